"""The questions a mechanism answers: queries, calibration, certificates."""
