"""Privacy-loss distributions composed by FFT."""
