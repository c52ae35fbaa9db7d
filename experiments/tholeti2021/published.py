"""What tholeti2021 states; its Figure 2 prints no numbers."""

# §IV-A1: for d = 1 the δ of one step is Δ/2, for every Δ up to the ball's diameter.
ONE_DIMENSION = 0.5


def odd_dimension(sensitivity: float, dimension: int) -> float:
    """Eq. 9, δ of one step for odd d: (Δ/2)·Σ_k C(2k, k)/4^k·(1 − Δ²/4)^k, k = 0 … (d − 1)/2.

    >>> odd_dimension(0.4, 1)
    0.2
    """
    import math

    inside = 1.0 - sensitivity**2 / 4.0
    terms = (math.comb(2 * k, k) / 4**k * inside**k for k in range((dimension + 1) // 2))
    return sensitivity / 2.0 * math.fsum(terms)


def total(delta: float, n: int, steps: int) -> float:
    """Eq. 7, Theorem 1: 1 − (1 − δ/n)^T after T steps that draw one of n records each.

    >>> round(total(0.5, 10, 2), 4)
    0.0975
    """
    return 1.0 - (1.0 - delta / n) ** steps
