"""The questions a mechanism answers: prices, calibration, certificates."""
