"""Chen, Lee and Kifer 2019: Rényi differentially private ERM for smooth objectives."""

from experiments.chen2019.accuracy import figure1, figure2

TARGETS = {"figure1": figure1, "figure2": figure2}
