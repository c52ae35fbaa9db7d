"""What duan2025 prints in Tables II and III: accuracies in percent, by method and batch size."""

NOISE_FREE = {"MNIST": 99.11, "CIFAR-10": 67.43}

_SMALL, _LARGE = 8_192, 16_384
# σ = 10, σ = 1.
TABLE2 = {
    ("DP", _SMALL): (87.93, 94.25),
    ("DP", _LARGE): (88.12, 95.52),
    ("DP+IS", _LARGE): (88.43, 95.63),
    ("DP+SUR", _LARGE): (88.47, 95.75),
    ("DP+AUTO-S", _LARGE): (88.40, 95.71),
    ("DP+PSAC", _LARGE): (88.48, 95.83),
    ("DP+SUR+PSAC", _LARGE): (89.83, 96.91),
    ("GeoDP β=0.1", _SMALL): (90.31, 96.47),
    ("GeoDP β=0.1", _LARGE): (93.58, 98.04),
    ("GeoDP β=0.5", _SMALL): (53.80, 60.31),
    ("GeoDP+IS β=0.1", _LARGE): (93.60, 98.13),
    ("GeoDP+SUR β=0.1", _LARGE): (93.68, 98.22),
    ("GeoDP+AUTO-S β=0.1", _LARGE): (93.64, 98.17),
    ("GeoDP+PSAC β=0.1", _LARGE): (94.13, 98.24),
    ("GeoDP+SUR+PSAC β=0.1", _LARGE): (95.27, 98.69),
}
# σ = 0.1, σ = 0.01.
TABLE3 = {
    ("DP", _SMALL): (59.39, 63.27),
    ("DP", _LARGE): (60.12, 63.84),
    ("DP+IS", _LARGE): (60.27, 64.07),
    ("DP+SUR", _LARGE): (61.73, 64.83),
    ("DP+AUTO-S", _LARGE): (60.51, 63.91),
    ("DP+PSAC", _LARGE): (61.30, 64.71),
    ("DP+SUR+PSAC", _LARGE): (62.91, 65.60),
    ("GeoDP β=1", _SMALL): (61.47, 65.93),
    ("GeoDP β=1", _LARGE): (63.38, 66.51),
    ("GeoDP β=0.1", _LARGE): (65.47, 67.35),
    ("GeoDP+IS β=0.1", _LARGE): (65.51, 67.35),
    ("GeoDP+SUR β=0.1", _LARGE): (65.53, 67.36),
    ("GeoDP+AUTO-S β=0.1", _LARGE): (65.58, 67.37),
    ("GeoDP+PSAC β=0.1", _LARGE): (65.58, 67.38),
    ("GeoDP+SUR+PSAC β=0.1", _LARGE): (66.03, 67.40),
}
SIGMAS = {"table2": (10.0, 1.0), "table3": (0.1, 0.01)}


def accuracy(method: str, batch_size: int, sigma: float, table: str = "table2") -> float | None:
    """What a table prints for a row, None where it has no such row.

    >>> accuracy("GeoDP β=0.1", 16_384, 10.0), accuracy("DP+SUR by attempts", 16_384, 10.0)
    (93.58, 88.47)
    """
    rows = TABLE2 if table == "table2" else TABLE3
    found = rows.get((method.removesuffix(" by attempts"), batch_size))
    return None if found is None else found[SIGMAS[table].index(sigma)]
