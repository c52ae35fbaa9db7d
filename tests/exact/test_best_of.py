"""The tight price of the best of K runs, against every ranking of mechanisms that can be listed."""

import itertools

import jax
import mpmath as mp
import numpy as np
import pytest
import scipy.stats

from dpjax import accounting as acc
from dpjax.accounting import profiles, selection_bounds
from dpjax.accounting.contour import profile
from dpjax.accounting.loss_distribution import grid
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.mechanisms.selection import law_of_trials
from dpjax.accounting.pairs.uses import Discrete

ADD, REPLACE = acc.Adjacency
LAWS = ["geometric", "logarithmic", "poisson", "fixed"]


def generating(law, m, xp=np):
    """E x^K by definition, and E K^... left to differentiation."""
    if law == "poisson":
        return lambda x: xp.exp(m * (x - 1))
    if law == "fixed":
        return lambda x: x**m
    if law == "geometric":
        return lambda x: (x / m) / (1 - (1 - 1 / m) * x)
    gamma = gamma_of_mean(m)
    return lambda x: xp.log(1 - (1 - gamma) * x) / xp.log(gamma)


def gamma_of_mean(m):
    """γ of the logarithmic law, from its mean (1/γ − 1)/log(1/γ), by halving."""
    with mp.extradps(30):
        low, high = mp.mpf(0), 2 * (mp.mpf(m) - 1)
        for _ in range(4 * mp.mp.dps):
            u = (low + high) / 2
            low, high = (u, high) if mp.expm1(u) / u < m else (low, u)
        return mp.exp(-u)


def winners(f, masses):
    """Of every row of outcomes, best first: with which probability each is the winner."""
    beaten = np.clip(1 - np.cumsum(masses, axis=-1), 0.0, 1.0)
    values = f(np.concatenate([np.ones((*masses.shape[:-1], 1)), beaten], axis=-1))
    return -np.diff(values, axis=-1)


def of_law(law, m):
    f = generating(law, m)
    if law != "logarithmic":
        return f
    gamma = float(gamma_of_mean(m))
    return lambda x: np.log1p(-(1 - gamma) * x) / np.log(gamma)


def both_ways(p, q):
    with np.errstate(divide="ignore"):
        loss = np.log(p) - np.log(q)
    return [[Discrete(loss[p > 0], p[p > 0])], [Discrete(-loss[q > 0], q[q > 0])]]


def prepared(p, q, law, m, level=1e-14):
    """The bounds and the profiles, in the direction of (p, q) first."""
    run = law_of_trials(acc.BestOf(acc.Gaussian(1.0), m, law))
    own, other = profile.read_profiles(both_ways(p, q), level, with_neighbours=True)
    high = profile.read_profiles(both_ways(p, q), level, with_neighbours=False)
    bounds = [selection_bounds.upper_bound(run, *way, level) for way in (high, high[::-1])]
    return run, bounds, (own, other)


def random_mechanism(rng, size, infinite):
    p, q = (rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 5.0]))) + 1e-9 for _ in "pq")
    if infinite:
        q[0] = 0.0
        p[-1] *= rng.integers(2)
    return p / p.sum(), q / q.sum()


def random_law(rng):
    law = str(rng.choice(LAWS))
    m = float(rng.choice([1.0, 1.001, 1.5, 4.0, 30.0, 300.0]))
    if law == "logarithmic":
        return law, max(m, 1.001)
    if law == "fixed":
        return law, float(min(np.ceil(m), 30.0))
    return law, float(rng.choice([0.1, 3.0, 10.0, 60.0])) if law == "poisson" else m


EPSILONS = np.array([0.0, 0.2, 0.7, 1.5, 3.0, 6.0, 12.0])


def largest_delta(f, p, q, orders):
    """δ at EPSILONS of the worst of some rankings, in the direction of (p, q)."""
    one, two = winners(f, p[orders]), winners(f, q[orders])
    return [np.maximum(one - np.exp(e) * two, 0).sum(axis=1).max() for e in EPSILONS]


@pytest.mark.parametrize("infinite", [False, True])
def test_no_ranking_of_a_finite_mechanism_lies_above(infinite):
    """All rankings of 2 to 5 outcomes, and 500 of each outcome told in parts at random."""
    rng = np.random.default_rng(11 + infinite)
    for trial in range(40):
        p, q = random_mechanism(rng, int(rng.integers(2, 6)), infinite)
        law, m = random_law(rng)
        f = of_law(law, m)
        _, bounds, _ = prepared(p, q, law, m)
        orders = np.array(list(itertools.permutations(range(len(p)))))
        share = rng.dirichlet(np.ones(4), len(p))
        parts = (p[:, None] * share).ravel(), (q[:, None] * share).ravel()
        mixed = np.array([rng.permutation(4 * len(p)) for _ in range(500)])
        for bound, (one, two), (one_parts, two_parts) in zip(
            bounds, [(p, q), (q, p)], [parts, parts[::-1]], strict=True
        ):
            limit = np.array([bound.at(e) for e in EPSILONS])
            whole = largest_delta(f, one, two, orders)
            some = largest_delta(f, one_parts, two_parts, mixed)
            found = np.maximum(whole, some)
            assert np.all(found <= limit * (1 + 1e-9) + 1e-14), (trial, law, m, found / limit)


def test_the_ranking_test_finds_a_bound_that_forgets_what_better_outcomes_tell():
    """Planted: G(a) as if the other direction had no loss."""
    p, q = np.array([0.7, 0.3]), np.array([0.3, 0.7])
    law = law_of_trials(acc.BestOf(acc.Gaussian(1.0), 30.0))
    own, other = profile.read_profiles(both_ways(p, q), 1e-14, with_neighbours=False)
    planted = other._replace(high=0.0 * other.high)
    f = of_law("geometric", 30.0)
    found = largest_delta(f, p, q, np.array([[1, 0], [0, 1]]))
    right = [selection_bounds.upper_bound(law, own, other, 1e-14).at(e) for e in EPSILONS]
    wrong = [selection_bounds.upper_bound(law, own, planted, 1e-14).at(e) for e in EPSILONS]
    assert np.all(found <= np.array(right))
    assert np.any(found > np.array(wrong))


def largest_delta_beside(f, first, p, q, orders):
    """δ at EPSILONS where a first release, whose outcomes are known too, may choose the ranking."""
    one, two = winners(f, p[orders]), winners(f, q[orders])
    return [
        sum(
            np.maximum(a * one - np.exp(e) * b * two, 0).sum(axis=1).max()
            for a, b in zip(*first, strict=True)
        )
        for e in EPSILONS
    ]


def test_no_ranking_that_follows_another_release_lies_above():
    """All rankings of 2 to 5 outcomes, one for each outcome of what is released before."""
    rng, plants = np.random.default_rng(17), 0
    for trial in range(24):
        p, q = random_mechanism(rng, int(rng.integers(2, 6)), trial % 3 == 0)
        first = random_mechanism(rng, int(rng.integers(2, 4)), trial % 4 == 0)
        law, m = random_law(rng)
        f, (_, bounds, _) = of_law(law, m), prepared(p, q, law, m)
        others = profile.read_profiles(both_ways(*first), 1e-14, with_neighbours=False)
        orders = np.array(list(itertools.permutations(range(len(p)))))
        found = [
            largest_delta_beside(f, first, p, q, orders),
            largest_delta_beside(f, first[::-1], q, p, orders),
        ]
        together = selection_bounds.put_beside(bounds, others, 1e-6)
        for bound, alone, truth in zip(together, bounds, found, strict=True):
            limit = np.array([bound.at(e) for e in EPSILONS])
            assert np.all(truth <= limit * (1 + 1e-9) + 1e-14), (trial, law, m)
            # Planted: what is released before is forgotten.
            plants += np.any(truth > np.array([alone.at(e) for e in EPSILONS]) * (1 + 1e-9))
    assert plants > 12


@pytest.mark.parametrize("law", LAWS)
def test_beside_releases_it_costs_more_than_alone_and_less_than_the_sum(law):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(3.0), 0.05), 100)
    best, looks = acc.BestOf(run, 10.0, law), acc.Repeated(acc.Histogram(60.0), 8)
    both = acc.Composed((looks, best))
    epsilon, method = acc.price(both, 1e-5)
    assert method.name == "selection"
    assert epsilon < acc.epsilon(both, 1e-5, method="rdp")
    alone, mu = acc.epsilon(best, 1e-5), np.sqrt(8) / 60
    # Below any split of δ, above the selection by itself; nearly as with Gaussians of the same μ.
    split = min(acc.epsilon(best, 1e-5 - d) + acc.epsilon(looks, d) for d in (1e-6, 3e-6))
    assert acc.epsilon_interval(both, 1e-5)[0] <= alone < epsilon < split
    gaussian = acc.epsilon(acc.Composed((acc.Gaussian(1 / mu), best)), 1e-5)
    assert epsilon == pytest.approx(gaussian, rel=1e-4)
    assert acc.delta(both, epsilon) == pytest.approx(1e-5, rel=0.01)
    checked = acc.certify(both, 1e-5).verify()
    assert (checked.checked_by, checked.upper >= epsilon) == ("rdp", True)
    nothing = acc.Composed((acc.Repeated(acc.Histogram(1e9), 1), best))
    assert alone <= acc.epsilon(nothing, 1e-5) <= 1.01 * alone


def test_beside_releases_two_selections_and_repeated_ones_are_left_to_curves():
    best = acc.BestOf(acc.Gaussian(4.0), 10.0)
    for run in (acc.Composed((best, best)), acc.Repeated(best, 3)):
        assert acc.price(run, 1e-5)[1].name == "rdp"


def test_a_certain_number_beside_releases_costs_at_most_all_of_its_runs():
    looks, run = acc.Gaussian(2.0), acc.Repeated(acc.Gaussian(20.0), 10)
    for m in (1.0, 3.0):
        both = acc.Composed((looks, acc.BestOf(run, m, "fixed")))
        every = acc.epsilon(acc.Composed((looks, acc.Repeated(run, m))), 1e-5)
        assert acc.epsilon(both, 1e-5) <= every


def attained(f, losses, p, q, delta):
    """The greatest ε of rankings of some least losses first, and then from the greatest down."""
    rising = np.argsort(losses)
    most = 0.0
    cells = np.unique(np.concatenate([[0], np.searchsorted(np.cumsum(p[rising]), GRID)]))
    for k in cells:
        order = np.concatenate([rising[:k], rising[k:][::-1]])
        one, two = winners(f, p[order]), winners(f, q[order])
        if np.maximum(one - np.exp(most) * two, 0).sum() <= delta:
            continue
        low, high = most, 60.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            above = np.maximum(one - np.exp(middle) * two, 0).sum() > delta
            low, high = (middle, high) if above else (low, middle)
        most = low
    return most


GRID = np.concatenate([np.geomspace(1e-5, 0.9, 60), [0.95, 0.98]])


def in_parts(p, q, parts):
    """Every outcome told in so many equal parts."""
    p, q = (np.repeat(v / parts, parts) for v in (p, q))
    return np.log(p) - np.log(q), p, q


@pytest.mark.parametrize("law", LAWS[:3])
@pytest.mark.parametrize("mu", [0.25, 1.0])
def test_the_ends_hold_a_ranking_of_a_gaussian(law, mu):
    """4,000 outcomes that are functions of the Gaussian's, ranked by no bound of ours."""
    m, delta = (10.0 if law == "poisson" else 30.0), 1e-5
    edges = np.concatenate([[-np.inf], np.linspace(-7, 7 + mu, 4000), [np.inf]])
    masses = []
    for mean in (mu, 0.0):
        low, high = scipy.stats.norm.cdf(edges - mean), scipy.stats.norm.sf(edges - mean)
        masses.append(np.where(edges[1:] > mean, -np.diff(high), np.diff(low)))
    p, q = masses
    shown = attained(of_law(law, m), np.log(p) - np.log(q), p, q, delta)
    low, high = acc.epsilon_interval(acc.BestOf(acc.Gaussian(1 / mu), m, law), delta)
    assert low <= shown * 1.002  # as many outcomes as it takes
    assert shown <= high
    assert high - low <= 0.02 * high


@pytest.mark.parametrize(("law", "m"), [("geometric", 30.0), ("logarithmic", 8.0), ("poisson", 10)])
def test_the_ends_hold_a_ranking_of_few_outcomes(law, m):
    """The lower end is attained by scores that tell an outcome in parts."""
    rng = np.random.default_rng(5)
    for size in (2, 3, 5):
        p, q = (rng.dirichlet(np.full(size, 3.0)) for _ in "pq")
        trials, bounds, profiles = prepared(p, q, law, m)
        for bound, way, (one, two) in zip(
            bounds, (profiles, profiles[::-1]), [(p, q), (q, p)], strict=True
        ):
            shown = attained(of_law(law, m), *in_parts(one, two, 200), 1e-4)
            low, high = (
                selection_bounds.lower_end(trials, *way, 1e-4),
                selection_bounds.solve_bounds([bound], 1e-4),
            )
            assert 0.999 * shown <= low <= 1.02 * shown
            assert shown <= high
            assert high <= 1.07 * low  # UPPER lets every outcome have its own best ranking


def test_the_ends_hold_a_ranking_of_a_sampled_run():
    """Outcomes of the composed run from its loss distribution, which knows no line."""
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000)
    low, high = acc.epsilon_interval(acc.BestOf(run, 30.0), 1e-5)
    shown = 0.0
    for sign in (1, -1):
        pair = Pair("poisson", sign, 1.0, 0.01, 1_000.0)
        law = grid.compose_losses([pair], epsilon=1.0, upper=False, bins=1 << 15)
        p = np.exp(law.log_scale - law.c * law.losses) * law.mass
        q = p * np.exp(-law.losses)
        kept = (p > 1e-13) & (q > 1e-13)
        parts = law.losses[kept], p[kept] / p[kept].sum(), q[kept] / q[kept].sum()
        shown = max(shown, attained(of_law("geometric", 30.0), *parts, 1e-5))
    assert low <= shown * 1.002
    assert shown <= high
    # As wide as said, and below what was published: E K · δ(ε − c), with c by both estimates.
    assert high <= 3.08
    assert low >= 3.03


@pytest.mark.parametrize(
    ("law", "m", "most", "least"),
    [
        ("geometric", 30.0, 1.667, 1.654),
        ("logarithmic", 30.0, 1.518, 1.507),
        ("poisson", 10.0, 1.835, 1.807),
    ],
)
def test_figures_of_one_gaussian(law, m, most, least):
    best = acc.BestOf(acc.Gaussian(4.0), m, law)
    low, high = acc.epsilon_interval(best, 1e-5)
    assert least <= low <= high <= most
    epsilon, method = acc.price(best, 1e-5)
    assert (epsilon, method.name) == (high, "selection")
    assert acc.delta(best, high) <= 1e-5 <= acc.delta(best, low * 0.99)
    certificate = acc.certify(best, 1e-5)
    assert certificate.method == "selection"
    checked = certificate.verify()
    assert checked.checked_by == "rdp"
    assert checked.upper >= high


def published(run, m, delta):
    """Koskela, Redberg and Wang 2024, geometric law: m·δ(ε − c)."""
    gamma = 1 / m

    def added(epsilon):
        d = acc.delta(run, epsilon)
        return np.log(max(1 / (gamma + (1 - gamma) * np.exp(-epsilon) * (1 - d)), 1 + (m - 1) * d))

    c = 2 * min(added(e) for e in np.linspace(0.1, 2.0, 40))
    return acc.epsilon(run, delta / m) + c


def test_below_the_published_bound_and_the_curves():
    best = acc.BestOf(acc.Gaussian(4.0), 30.0)
    found = acc.epsilon(best, 1e-5)
    assert found < 0.95 * published(acc.Gaussian(4.0), 30.0, 1e-5)
    assert found < 0.7 * acc.epsilon(best, 1e-5, method="rdp")


def test_a_promise_that_may_fail_costs_its_failures():
    """1 % of P at infinite loss: a score that prefers it has δ ≥ f(1) − f(.99) at every ε."""
    p, q = np.array([0.01, 0.594, 0.396]), np.zeros(3)
    q[1:] = p[1:] * np.exp([-0.5, 0.5])
    q = q / q.sum()
    _, bounds, _ = prepared(p, q, "geometric", 30.0)
    least = 1 - of_law("geometric", 30.0)(0.99)
    assert least == pytest.approx(0.2326, abs=1e-4)
    for epsilon in (5.0, 50.0):  # every such outcome is charged as if none were better
        assert least <= bounds[0].at(epsilon) <= 30 * 0.01 * (1 + 1e-9)
    for run in (
        acc.ApproximateDP(0.5, 1e-6),
        acc.Composed((acc.Gaussian(4.0), acc.ApproximateDP(0.1, 1e-6))),
        acc.Repeated(acc.ApproximateDP(0.01, 1e-7), 10),
    ):
        best = acc.BestOf(run, 30.0)
        assert acc.epsilon(best, 1e-5) == np.inf
        assert 3e-5 * 0.999 <= acc.delta(best, 30.0) <= 3.1e-5
        low, high = acc.epsilon_interval(best, 1e-4)
        assert 0 < low <= high < np.inf


@pytest.mark.parametrize("run", [acc.Gaussian(4.0), acc.RandomizedResponse(1.0, 2)])
@pytest.mark.parametrize("law", ["geometric", "fixed"])
def test_one_run_costs_one_run(run, law):
    for adjacency in acc.Adjacency:
        own = acc.epsilon(run, 1e-5, adjacency=adjacency)
        best = acc.BestOf(run, 1.0, law)
        low, high = acc.epsilon_interval(best, 1e-5, adjacency=adjacency)
        assert 0.999 * own <= low <= high
        assert high == pytest.approx(own, rel=1e-12)
        assert acc.delta(best, 0.3, adjacency=adjacency) <= 1.001 * acc.delta(
            run, 0.3, adjacency=adjacency
        )


def test_a_fixed_number_costs_at_most_all_of_its_runs():
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 100)
    for m in (2.0, 10.0):
        best = acc.BestOf(run, m, "fixed")
        every = acc.epsilon(acc.Repeated(run, m), 1e-5)
        low, high = acc.epsilon_interval(best, 1e-5)
        assert acc.epsilon(run, 1e-5) < low <= high <= every
        np.testing.assert_allclose(acc.rdp(best, [3.0]), m * acc.rdp(run, [3.0]), rtol=1e-11)
        assert acc.draw_trials(jax.random.key(0), best) == m
    with pytest.raises(ValueError, match="a whole number >= 1"):
        acc.BestOf(run, 2.5, "fixed")


@pytest.mark.parametrize(
    ("law", "m"),
    [
        *[(law, m) for law in ("geometric", "logarithmic") for m in (1 + 1e-10, 1.5, 30.0, 1e5)],
        *[("poisson", m) for m in (1e-3, 1.0, 10.0, 1e4)],
        *[("fixed", m) for m in (1.0, 2.0, 3.0, 40.0)],
    ],
)
def test_laws_against_fifty_digits(law, m):
    found = law_of_trials(acc.BestOf(acc.Gaussian(1.0), m, law))
    with mp.workdps(60):
        f = generating(law, mp.mpf(m), mp)
        for a, p in itertools.product([0.0, 1e-13, 1e-4, 0.3, 0.999], [1e-12, 1e-6, 0.3]):
            a, p = a / m if law == "poisson" and m > 1 else a, min(p, 1 - a)
            x = 1 - mp.mpf(a)
            slope, bend = mp.diff(f, x), mp.diff(f, x, 2)
            win = f(x) - f(x - mp.mpf(p))
            # The mean says γ to a unit of roundoff; near 1 the law is almost that of one run.
            np.testing.assert_allclose(found.slope(a), float(slope), rtol=2e-13)
            np.testing.assert_allclose(found.bend(a), float(bend), rtol=1e-5, atol=1e-14 * m)
            np.testing.assert_allclose(found.win(a, p), float(win), rtol=2e-13)


def gaussian_delta(mu, epsilon):
    """δ(ε) of N(μ, 1) against N(0, 1), whole ε of either sign."""
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def sampled_delta(mu, rate, epsilon, removed):
    """δ(ε) of one sampled step: of the mixture against N(0, 1), or of the reverse."""
    mu, rate, odds = mp.mpf(mu), mp.mpf(rate), mp.exp(mp.mpf(epsilon))

    def tails(x):
        plain = mp.ncdf(-x)
        return (1 - rate) * plain + rate * mp.ncdf(mu - x), plain

    if removed:
        if odds <= 1 - rate:  # less than any loss
            return 1 - odds
        x = mp.log((odds - 1 + rate) / rate) / mu + mu / 2
        mixed, plain = tails(x)
        return mixed - odds * plain
    rest = 1 / odds - (1 - rate)
    if rest <= 0:
        return mp.mpf(0)
    mixed, plain = tails(mp.log(rest / rate) / mu + mu / 2)
    return (1 - plain) - odds * (1 - mixed)


def test_profiles_against_fifty_digits():
    step = acc.PoissonSampled(acc.Gaussian(1.25), 0.05)
    promise = acc.Composed((acc.Gaussian(2.0), acc.ApproximateDP(0.3, 1e-4)))
    runs = acc.Gaussian(2.0), step, promise
    ways = {run: profiles.pairs_of_setting(run, ADD, True) for run in runs}
    with mp.workdps(50):
        likely = (1 - mp.mpf("1e-4")) / (1 + mp.exp(mp.mpf(-0.3)))
        parts = [(0.3, likely), (-0.3, 1 - mp.mpf("1e-4") - likely)]
        truths = {
            acc.Gaussian(2.0): lambda e, k: gaussian_delta(mp.mpf(0.5), mp.mpf(e)),
            step: lambda e, k: sampled_delta(0.8, 0.05, e, k == 0),
            promise: lambda e, k: (
                mp.mpf("1e-4")
                + sum(w * gaussian_delta(mp.mpf(0.5), mp.mpf(e) - mp.mpf(l)) for l, w in parts)
            ),
        }
        for run, pairs in ways.items():
            for neighbours in (False, True):
                found = profile.read_profiles(pairs, 1e-10, with_neighbours=neighbours)
                for k, own in enumerate(found):
                    for i in range(0, len(own.epsilon), 17):
                        true = float(truths[run](own.epsilon[i], k))
                        assert own.low[i] <= true * (1 + 1e-14) + 1e-40
                        assert true <= own.high[i] * (1 + 1e-14)
                        assert own.high[i] - own.low[i] <= 1e-6 * true + 1e-13
                    below = profile.at_both_signs(own, found[len(found) - 1 - k])
                    at = np.searchsorted(below[0], -0.4)
                    true = float(truths[run](below[0][at], k))
                    assert true <= below[1][at] <= true * (1 + 1e-4)


@pytest.mark.parametrize("loss", [1e-6, 1e-5, 1e-3])
def test_profiles_of_tiny_losses_against_fifty_digits(loss):
    """Of two outcomes: δ(ε) = m(1 − e^{ε − loss}), and only the likelier one has a loss above ε."""
    pairs = profiles.pairs_of_setting(acc.RandomizedResponse(loss), REPLACE, True)
    mass = mp.mpf(float(pairs[0][0].masses[pairs[0][0].losses == loss][0]))
    with mp.workdps(50):
        for neighbours in (False, True):
            for own in profile.read_profiles(pairs, 1e-14, with_neighbours=neighbours):
                for e, high, low in zip(*own, strict=True):
                    true = mass * max(-mp.expm1(mp.mpf(e) - mp.mpf(loss)), 0)
                    assert low <= true <= high <= true * (1 + mp.mpf("1e-11"))
                below = own.epsilon < loss
                one, other = (v[below] for v in own.tails())
                assert np.all(one <= float(mass))
                assert np.all(other >= float(mass * mp.exp(-mp.mpf(loss))))


def test_the_ends_of_tiny_losses_hold_the_published_bound():
    """Liu and Talwar 2019: a geometric best of ε-private runs is 3ε-private."""
    for loss in (1e-6, 1e-5, 1e-3):
        run = acc.RandomizedResponse(loss)
        for delta in (1e-7, loss / 10):
            low, high = acc.epsilon_interval(acc.BestOf(run, 2.0), delta, adjacency=REPLACE)
            assert loss <= low <= 3 * loss
            assert low <= high
            # Of two runs told whole: δ(ε) = m²(1 − e^{ε − 2·loss}) above the loss, which is 0.
            twice = acc.BestOf(run, 2, "fixed")
            told = 2 * loss + np.log1p(-delta * (1 + np.exp(-loss)) ** 2)
            low, _ = acc.epsilon_interval(twice, delta, adjacency=REPLACE)
            assert 0.99 * told <= low <= told
            assert acc.certify(twice, delta, adjacency=REPLACE).verify()


def test_an_infinite_mass_and_a_sweep_are_priced_one_by_one():
    best = acc.BestOf(acc.Gaussian(np.array([3.0, 4.0])), 10.0)
    found = acc.epsilon(best, np.array([[1e-5], [1e-8]]), method="selection")
    for i, delta in enumerate([1e-5, 1e-8]):
        for j, sigma in enumerate([3.0, 4.0]):
            one = acc.epsilon(acc.BestOf(acc.Gaussian(sigma), 10.0), delta, method="selection")
            assert found[i, j] == one
    traced = jax.jit(lambda s: acc.epsilon(acc.BestOf(acc.Gaussian(s), 10.0), 1e-5))(4.0)
    assert found[0, 1] <= traced <= found[0, 1] * (1 + 3e-7)


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
def test_what_lines_cannot_be_drawn_for_keeps_the_curve(adjacency):
    zero = acc.BestOf(acc.ZeroConcentrated(0.01, adjacency.value), 10.0)
    assert "selection" not in acc.methods(zero, adjacency)
    assert acc.price(zero, 1e-5, adjacency=adjacency)[1].name == "rdp"
    loud = acc.BestOf(acc.Gaussian(1e-3), 10.0)  # ε beyond what lines are read for
    assert acc.epsilon(loud, 1e-5, adjacency=adjacency, method="selection") == np.inf
    assert acc.epsilon(loud, 1e-5, adjacency=adjacency) < np.inf
    nothing = acc.BestOf(acc.Gaussian(1e5), 10.0)
    assert acc.epsilon(nothing, 1e-5, adjacency=adjacency) <= 1e-3


def test_calibrates_and_draws_a_tradeoff():
    sigma = acc.calibrate(lambda s: acc.BestOf(acc.Gaussian(s), 10.0), 1.0, 1e-5)
    best = acc.BestOf(acc.Gaussian(sigma), 10.0)
    assert 0.99 < acc.epsilon(best, 1e-5) <= 1.0
    rates = np.array([0.01, 0.1, 0.5])
    found = acc.tradeoff(best, rates)
    assert np.all(found <= acc.tradeoff(acc.Gaussian(sigma), rates))
    # The score that prefers what is likelier with the record: a power no bound may miss.
    f = of_law("geometric", 10.0)
    test = scipy.stats.norm.isf(1 - np.linspace(0.5, 0.999999, 400))
    wrong, missed = 1 - f(scipy.stats.norm.cdf(test)), f(scipy.stats.norm.cdf(test - 1 / sigma))
    assert np.all(found <= np.interp(rates, wrong[::-1], missed[::-1]) + 1e-6)
    assert np.all(found > 0)
