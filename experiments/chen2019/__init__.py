"""Chen, Lee and Kifer 2019: Rényi differentially private ERM for smooth objectives."""

from experiments.chen2019.figures import baseline, figure1, figure2, figure3, noise, sgld

TARGETS = {
    "baseline": baseline,
    "figure1": figure1,
    "figure2": figure2,
    "figure3": figure3,
    "noise": noise,
    "sgld": sgld,
}
