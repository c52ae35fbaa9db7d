"""The papers' tables and figures, re-run: one folder per paper.

A folder is a package that exposes `TARGETS`, a dict from a name such as "figure3" to a function
that takes an `experiments.common.Run` and writes PNG and CSV files through it. `python -m
experiments` lists every paper and its targets.
"""
