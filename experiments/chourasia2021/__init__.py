"""Chourasia, Ye and Shokri 2021: differential privacy dynamics of noisy gradient descent."""

from experiments.chourasia2021.dynamics import figure1
from experiments.chourasia2021.utility import theorem3

TARGETS = {"figure1": figure1, "theorem3": theorem3}
