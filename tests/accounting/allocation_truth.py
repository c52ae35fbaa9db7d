"""The profile of two steps of random allocation at 30 digits."""

from __future__ import annotations

import mpmath


def delta_of_two(sigma, epsilon):
    """δ of two steps, both directions: of the other step's ratio in closed form, at 30 digits."""
    with mpmath.workdps(30):
        mu, grow = 1 / mpmath.mpf(sigma), mpmath.exp(epsilon)
        ratio = lambda z: mpmath.exp(mu * z - mu**2 / 2)  # noqa: E731

        def lognormal_excess(level):  # E[(X − level)₊] and E[(level − X)₊]
            if level <= 0:
                return 1 - level, mpmath.mpf(0)
            z = (mpmath.log(level) + mu**2 / 2) / mu
            above = mpmath.ncdf(mu - z) - level * mpmath.ncdf(-z)
            return above, above - 1 + level

        edges = [-12, -6, -3, 0, 3, 6, 12, 20]
        for level in (2 * grow, 2 / grow):  # where the other one's share ends
            edges.append((mpmath.log(level) + mu**2 / 2) / mu)
        edges = sorted(edges)
        remove = mpmath.quad(
            lambda z: mpmath.npdf(z) * lognormal_excess(2 * grow - ratio(z))[0] / 2, edges
        )
        add = mpmath.quad(
            lambda z: mpmath.npdf(z) * grow * lognormal_excess(2 / grow - ratio(z))[1] / 2, edges
        )
        return float(remove), float(add)
