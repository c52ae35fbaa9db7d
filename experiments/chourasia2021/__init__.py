"""Chourasia, Ye and Shokri 2021: differential privacy dynamics of noisy gradient descent."""

from experiments.chourasia2021.figures import figure1, table1, theorem3, theorem4

TARGETS = {"figure1": figure1, "theorem3": theorem3, "theorem4": theorem4, "table1": table1}
