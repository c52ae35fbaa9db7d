"""Duan et al. 2025, "Analyzing and Optimizing Perturbation of DP-SGD Geometrically" (GeoDP)."""

from experiments.duan2025 import figures, perturbation_figures

TARGETS = {
    "privacy": figures.privacy,
    "perturbation": perturbation_figures.perturbation,
    "figure5": figures.figure5,
    "figure5seeds": figures.figure5seeds,
    "noise_free": figures.noise_free,
    "table2": figures.table2,
    "addons": figures.addons,
    "selective": figures.selective,
    "quiet": figures.quiet,
    "table3": figures.table3,
    "future": figures.future,
    "figure6": figures.figure6,
}
