"""Duan et al. 2025, "Analyzing and Optimizing Perturbation of DP-SGD Geometrically" (GeoDP)."""

from experiments.geodp import deep, logistic, perturbation_figures, privacy, report, runtime

TARGETS = {
    "privacy": privacy.privacy,
    "figure1": perturbation_figures.figure1,
    "figure3": perturbation_figures.figure3,
    "figure4": perturbation_figures.figure4,
    "figure5": logistic.figure5,
    "figure6": runtime.figure6,
    "table2": deep.table2,
    "table2_rates": deep.table2_rates,
    "table3": deep.table3,
    "report": report.report,
}
