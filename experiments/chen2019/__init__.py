"""Chen, Lee and Kifer 2019: Rényi differentially private ERM for smooth objectives."""

from experiments.chen2019.accuracy import figure1, figure2
from experiments.chen2019.noise import noise
from experiments.chen2019.timing import figure3

TARGETS = {"figure1": figure1, "figure2": figure2, "figure3": figure3, "noise": noise}
