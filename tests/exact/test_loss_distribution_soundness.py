"""Both ends of the loss-distribution method against the two distributions that it names.

The truth is integrated here from the two distributions alone, in mpmath: in closed form for one
step, by quadrature over the first step's outcome for two. No slack on either side.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from mpmath import exp, log, mpf, ncdf, npdf

from dpjax import accounting as acc
from dpjax.accounting.loss_distribution.grid import delta_bound, epsilon_bound
from dpjax.accounting.loss_distribution.method import pairs_by_direction
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.pairs.atoms import GroupedSteps
from dpjax.accounting.pairs.guarantee import GUARANTEE
from dpjax.accounting.pairs.protocol import SampledRelease, StepGroup
from dpjax.accounting.pairs.uses import repeat_release

_BINS = 1 << 14


class Named:
    """One step's (P, Q): mixtures of unit normals, given by weights and means."""

    def __init__(self, pair: Pair):
        mu, q = mpf(pair.mu), mpf(pair.rate)
        here, there = [(q, mu), (1 - q, mpf(0))], [(mpf(1), mpf(0))]
        if pair.family == "replace":
            there = [(q, -mu), (1 - q, mpf(0))]
        self.mu, self.q, self.family = mu, q, pair.family
        self.reverse = pair.family == "poisson" and pair.sign < 0
        self.p, self.other = (there, here) if self.reverse else (here, there)

    def loss(self, y):
        p, q = (sum(w * npdf(y, m) for w, m in side) for side in (self.p, self.other))
        return log(p / q)

    def threshold(self, epsilon):
        """y with log(mixture/other) = ε (of the forward pair); None below every loss."""
        mu, q, e = self.mu, self.q, exp(epsilon)
        if self.family == "replace":
            k = q * exp(-mu * mu / 2)  # 1 − q + ku = e(1 − q + k/u)
            b = (1 - q) * (e - 1)
            return log((b + mpmath.sqrt(b * b + 4 * k * k * e)) / (2 * k)) / mu
        a = (e - 1 + q) / q
        return log(a) / mu + mu / 2 if a > 0 else None

    def delta(self, epsilon):
        """P(L > ε) − e^ε Q(L > ε)."""
        if self.reverse:  # L > ε where the forward loss is below −ε
            y = self.threshold(-epsilon)
            if y is None:
                return mpf(0)
            beyond = [sum(w * ncdf(y - m) for w, m in side) for side in (self.p, self.other)]
        else:
            y = self.threshold(epsilon)
            if y is None:
                return 1 - exp(epsilon)
            beyond = [sum(w * ncdf(m - y) for w, m in side) for side in (self.p, self.other)]
        return beyond[0] - exp(epsilon) * beyond[1]


def composed(first: Named, second, epsilon):
    """δ of two steps: E over the first step's outcome of the second's δ(ε − L)."""
    edges = [mpf(v) for v in np.linspace(-11, 11 + float(first.mu), 12)]

    def inside(y):
        density = sum(w * npdf(y, m) for w, m in first.p)
        return density * second(mpf(epsilon) - first.loss(y))

    return mpmath.quad(inside, edges)


def settings(count, seed):
    generator = np.random.default_rng(seed)
    for i in range(count):
        sigma = float(np.exp(generator.uniform(np.log(0.3), np.log(100))))
        rate = 1.0 if i % 8 == 0 else float(10 ** generator.uniform(-6, 0))
        delta = float(10 ** generator.uniform(-13, -1))
        family = ["poisson", "poisson", "replace"][i % 3]
        yield Pair(family, int(generator.choice([1, -1])), 1 / sigma, rate, 1), delta


@pytest.mark.parametrize(("pair", "delta"), list(settings(48, 1)))
def test_one_step(pair, delta):
    low, high = (epsilon_bound([pair], delta, upper=u, bins=_BINS) for u in (False, True))
    assert low <= high
    with mpmath.workdps(40):
        truth = Named(pair)
        assert low == 0 or truth.delta(mpf(low)) >= mpf(delta)
        assert truth.delta(mpf(high)) <= mpf(delta)
        at = high if 0 < high < np.inf else 0.5
        below, above = (delta_bound([pair], at, upper=u, bins=_BINS) for u in (False, True))
        assert below <= truth.delta(mpf(at)) <= above


@pytest.mark.parametrize(("pair", "delta"), list(settings(9, 2)))
def test_two_steps(pair, delta):
    twice = pair._replace(count=2)
    low, high = (epsilon_bound([twice], delta, upper=u, bins=_BINS) for u in (False, True))
    assert low <= high
    with mpmath.workdps(25):
        truth = Named(pair)
        # Quadrature is good to many more digits than this.
        assert low == 0 or composed(truth, truth.delta, low) >= mpf(delta) * (1 - mpf(10) ** -15)
        assert composed(truth, truth.delta, high) <= mpf(delta) * (1 + mpf(10) ** -15)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_beside_a_sampled_guarantee(sign):
    """Three kinds at once: a sampled Gaussian, a Gaussian, a sampled pure release."""
    known = SampledRelease(GUARANTEE, (0.8, 0.0), 0.3)
    pair, other = Pair("poisson", sign, 0.9, 0.2, 1), Pair("gaussian", sign, 0.4, 1.0, 1)
    with mpmath.workdps(20):
        e, q = exp(mpf(known.numbers[0])), mpf(known.rate)
        without = [1 / (1 + e), e / (1 + e)]
        mixed = [(1 - q) * a + q * b for a, b in zip(without, without[::-1], strict=True)]
        p, r = (mixed, without) if sign > 0 else (without, mixed)
        first, last = Named(pair), Named(other)

        def rest(epsilon):
            return sum(a * last.delta(epsilon - log(a / b)) for a, b in zip(p, r, strict=True))

        for epsilon in (0.0, 1.0):
            exact = composed(first, rest, epsilon)
            low, high = (
                delta_bound(
                    [pair, other, repeat_release(known, 1, sign=sign, upper=u)], epsilon, upper=u
                )
                for u in (False, True)
            )
            assert low <= exact <= high
            assert high - low <= 1e-3 * exact


@pytest.mark.parametrize("upper", [False, True])
def test_nothing_sampled_and_everything_sampled(upper):
    nothing = Pair("poisson", 1, 1.0, 0.0, 100)
    assert epsilon_bound([nothing], 1e-5, upper=upper) == 0.0
    assert delta_bound([nothing], 0.0, upper=upper) == 0.0
    always = epsilon_bound([Pair("poisson", 1, 0.1, 1.0, 100)], 1e-5, upper=upper)
    plain = epsilon_bound([Pair("gaussian", 1, 1.0, 1.0, 1)], 1e-5, upper=upper)
    assert always == pytest.approx(plain, rel=1e-3)


def test_the_lower_end_names_pairs_that_neighbours_attain():
    """Fixed batches: one-sided, a record among others that are all like its replacement."""
    fixed = StepGroup(*(np.array([v]) for v in (2.0, 0.1, 3.0)))
    atoms = GroupedSteps(np.array(1.0), {"fixed": fixed})
    known = SampledRelease(GUARANTEE, (1.0, 0.0), 0.1)
    ways = pairs_by_direction(atoms, [(known, 2.0)], acc.Adjacency.REPLACE_ONE, upper=False)
    assert [way[0].family for way in ways] == ["gaussian"] * 2
    assert [way[1][:4] for way in ways] == [("poisson", s, 2.0, 0.1) for s in (1, -1)]
    # the sampled outcomes: (with the record, without it), then the reverse
    assert ways[0][2].losses[0] == pytest.approx(2 * np.log(0.9 + 0.1 * np.exp(-1.0)))
    assert ways[1][2].losses[0] == pytest.approx(-2 * np.log(0.9 + 0.1 * np.exp(1.0)))


@pytest.mark.parametrize("steps", [1e20, 1e24, 1e60, 1e200])
@pytest.mark.parametrize("sigma", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("rate", [1e-3, 1.0])
def test_more_steps_than_floats_count_have_no_answer(steps, sigma, rate):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)
    assert acc.epsilon(run, 1e-5, method="pld") == np.inf
    assert acc.delta(run, 1.0, method="pld") == 1.0
    assert np.isfinite(acc.epsilon(run, 1e-5))
    assert acc.epsilon_interval(run, 1e-5)[0] >= 0


def test_bounds_that_are_not_monotone_are_no_reason_to_refuse():
    """Rates so small that grids, and few outcomes beside them, answer: neither is monotone."""

    def make(rate):
        return acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.5), rate), 3)

    rate = acc.calibrate(make, 1e-3, 1e-13, bounds=(1e-10, 2e-8))
    dearer = float(np.nextafter(np.float32(rate), np.float32(1)))
    assert acc.epsilon(make(rate), 1e-13) <= 1e-3 < acc.epsilon(make(dearer), 1e-13)
