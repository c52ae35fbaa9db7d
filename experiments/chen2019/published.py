"""What chen2019 prints: Table 1, and what its text says of Figures 1 to 3 (no numbers)."""

# Table 1: (records, attributes after preprocessing).
TABLE1 = {
    "Adult": (48_842, 124),
    "Bank": (45_211, 33),
    "IPUMS-US": (40_000, 58),
    "IPUMS-BR": (38_000, 53),
    "KDDCup99": (4_898_431, 120),
}
# §5.1 on Figures 1 and 2, §5.2 on Figure 3.
FIGURES_1_2 = (
    "RSGD-AR consistently outperforms or performs competitively with other baselines",
    "the accuracy of SGD-MA suddenly surges to almost that of the non-private algorithm",
)
FIGURE_3 = "RSGD-AR is as fast as ObjPert, which is the fastest of the paper's methods"
FOOTNOTE_3 = "Noisy SGLD diverges unless ε is very large, because of its noise per iteration"
