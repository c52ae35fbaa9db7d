"""What rounding is charged, against 40 digits: normal tails, cells of grids, losses, transforms."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import fft

from dpjax.accounting.loss_distribution import grid, step
from dpjax.accounting.pairs import on_grid, poisson

_MP = mpmath.mp.clone()
_MP.dps = 40
_EPS = 2.0**-52


def _tail(x):
    return _MP.erfc(x / _MP.sqrt(2)) / 2


def test_the_normal_tails_of_scipy_are_as_exact_as_the_charge_says():
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.uniform(-37, 0, 3000), rng.uniform(-3, 0, 2000), -np.arange(37.0)])
    off = [abs(float(f / _tail(-_MP.mpf(v)) - 1)) for f, v in zip(on_grid.ndtr(x), x, strict=True)]
    assert np.all(off <= on_grid.tail_error(-x))
    assert np.max(off) > 1e-13  # as it grows with x², no one number is both true and small
    assert np.max(off / on_grid.tail_error(-x)) > 0.4


def test_normal_masses_are_off_by_no_more_than_they_are_charged():
    rng, tightest = np.random.default_rng(11), 0.0
    for scale in (1e-3, 0.05, 1.0, 8.0):
        edges = np.sort(rng.normal(rng.uniform(-9, 9), scale, 40))
        moved = 2.0**-53 * np.abs(edges)
        signs = rng.choice([-1, 1], 40)
        moved_edges = [_MP.mpf(e) + s * _MP.mpf(m) for e, s, m in zip(edges, signs, moved)]  # noqa: B905
        truth = [_tail(a) - _tail(b) for a, b in itertools.pairwise(moved_edges)]
        charged = on_grid.normal_mass_error(edges, moved)
        for mass, most, right in zip(on_grid.normal_mass(edges), charged, truth, strict=True):
            assert abs(mass - right) <= most
            tightest = max(tightest, float(abs(mass - right) / most))
    assert tightest > 0.1


def _pairs(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        mu, rate = np.exp(rng.uniform(np.log([0.02, 1e-8]), np.log([20.0, 0.9])))
        family, sign = str(rng.choice(["poisson", "replace", "gaussian"])), int(rng.choice([1, -1]))
        pair = step.Pair(family, sign if family == "poisson" else 1, mu, rate, 1)
        kind = step._kind(pair)
        losses = np.linspace(*kind.loss_range(pair.sign, mu, rate, rng.uniform(8, 36)), 30)
        if family == "poisson":
            places = on_grid.inverse(pair.sign * losses, mu, rate)
        else:
            between = poisson._inverse(losses, mu, rate) if family == "replace" else losses / mu
            places = between + (0.5 * mu if family == "gaussian" else 0.0)
        yield pair, kind, losses, places


def test_what_lies_above_a_loss_is_off_by_no_more_than_its_masses_are_charged():
    worst = 0.0
    for pair, kind, losses, places in _pairs(1, 40):
        p, _, above = kind.masses(pair.sign, pair.mu, pair.rate, losses)
        total = np.cumsum(np.append(p, above)[::-1])[::-1]
        rate = _MP.mpf(pair.rate if pair.family != "gaussian" else 1.0)
        for mass, found, y in zip(np.append(p, above), total, places, strict=True):
            if not (mass > 1e-290 and np.isfinite(y)):
                continue
            y = _MP.mpf(y)
            truth = (1 - rate) * _tail(y) + rate * _tail(y - pair.mu)
            truth = _tail(-y) if pair.sign < 0 else truth
            charged = _EPS * on_grid.mass_units(np.log(mass))
            assert abs(found / truth - 1) <= charged
            worst = max(worst, float(abs(found / truth - 1) / charged))
    assert worst > 0.2


def test_losses_at_a_grids_places_are_off_by_no_more_than_they_are_charged():
    worst, above_flat = 0.0, 0.0
    for pair, _, losses, places in _pairs(2, 150):
        mu, rate = _MP.mpf(pair.mu), _MP.mpf(pair.rate if pair.family != "gaussian" else 1.0)
        charged = grid._slack([pair], 0.0, 0.0) - 1e-13

        def log_ratio(y, mu=mu, rate=rate):
            return _MP.log(1 - rate + rate * _MP.exp(mu * y - mu * mu / 2))

        for loss, y in zip(losses, places, strict=True):
            if not np.isfinite(y):
                continue
            y = _MP.mpf(y)
            truth = pair.sign * log_ratio(y) - (log_ratio(-y) if pair.family == "replace" else 0)
            off = float(abs(truth - loss))
            assert off <= charged
            worst, above_flat = max(worst, off / charged), max(above_flat, off)
    assert worst > 0.1
    assert above_flat > 3e-15  # what each step was charged before


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs a wider float")
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 25, 60, 243, 625, 1024, 3125, 2**14, 3**9, 2**18])
def test_transforms_are_off_by_no_more_than_five_units_a_stage(n):
    # On lengths of which 2, 3 and 5 are the only factors, as `next_fast_len` chooses them.
    rng, u, worst = np.random.default_rng(n), 2.0**-53, 0.0
    spikes = np.zeros(n)
    spikes[rng.integers(n, size=2)] = 1.0, math.pi
    wave = np.cos(2 * np.pi * rng.integers(1, max(n // 2, 2)) * np.arange(n) / n + 1)
    for x in (
        rng.dirichlet(np.full(n, 0.05)),
        rng.normal(size=n),
        rng.choice([-1.0, 1], n),
        spikes,
        wave,
    ):
        wide = x.astype(np.longdouble)
        there, truth = fft.rfft(x), fft.rfft(wide)
        off = float(np.max(np.abs(there - truth))) / np.sum(np.abs(x))
        back, right = fft.irfft(there, n), fft.irfft(there.astype(np.clongdouble), n)
        off_back = float(np.max(np.abs(back - right))) * n / (2 * np.sum(np.abs(there)))
        worst = max(worst, off, off_back)
        # Higham 2002, Theorem 24.2, in the 2-norm, with what a stage is charged on grids.
        norm = float(np.linalg.norm((there - truth).astype(complex)) / np.linalg.norm(there))
        assert norm <= 8 * u * math.log2(n)
    assert worst <= 5 * u * math.log2(n)
    assert n < 8 or worst > 0.1 * u * math.log2(n)
