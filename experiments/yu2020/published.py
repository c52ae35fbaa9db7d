"""What yu2020 prints."""

# Table 2: (minimum, average curvature).
TABLE2 = {
    "admission": (6.68e-3, 0.40),
    "sonar": (3.63e-4, 0.19),
    "boston": (3.44e-3, 0.34),
    "swedish-motor": (9.07e-6, 0.24),
}
# Table 4: validation accuracy in per cent at ε = 0.1 (MNIST: 1), δ = 1/n².
TABLE4 = {
    "Adult": {"NP": 84.8, "AMP": 79.3, "Out-SGD": 77.4, "DP-SGD": 80.4, "DP-GD": 80.9},
    "MNIST": {"NP": 91.9, "AMP": 71.9, "Out-SGD": 69.4, "DP-SGD": 87.5, "DP-GD": 88.6},
    "real-sim": {"NP": 93.3, "AMP": 73.1, "Out-SGD": 73.2, "DP-SGD": 73.8, "DP-GD": 76.1},
    "RCV1": {"NP": 93.5, "AMP": 64.5, "Out-SGD": 66.7, "DP-SGD": 70.4, "DP-GD": 74.9},
}
TABLE4_EPSILON = {"Adult": 0.1, "MNIST": 1.0, "real-sim": 0.1, "RCV1": 0.1}
