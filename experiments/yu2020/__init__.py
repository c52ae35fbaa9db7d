"""Yu, Zhang, Chen, Yin and Liu 2020: gradient perturbation is underrated."""

from experiments.yu2020.accuracy import figure2, table4
from experiments.yu2020.bound import bound
from experiments.yu2020.curvature import figure1, table2

TARGETS = {
    "table2": table2,
    "figure1": figure1,
    "table4": table4,
    "figure2": figure2,
    "bound": bound,
}
