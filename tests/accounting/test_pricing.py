"""Queries: reference values, broadcasting, traces, threads, refusals."""

import threading
import warnings

import chex
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64
from dpjax.accounting.answers.methods import METHODS
from dpjax.accounting.pairs import atoms as pair_atoms
from dpjax.accounting.renyi import conversion

REPLACE = acc.Adjacency.REPLACE_ONE


def dpsgd(sigma=1.0, rate=0.01, steps=1_000):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)


# (σ, q, T, δ, add/remove, replace-one): contour integration in NumPy and mpmath, nine digits
REFERENCE = [
    (1.0, 0.01, 1_000, 1e-5, 1.8282366665, 2.8434402593),
    (0.8, 256 / 60_000, 14_062, 1e-5, 4.549838726, 7.104809735),
    (4.0, 0.1, 800, 1e-9, 4.392120189, 9.069618000),
]


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta", "add", "replace"), REFERENCE)
def test_reference_points(sigma, rate, steps, delta, add, replace):
    run = dpsgd(sigma, rate, steps)
    for adjacency, want in ((acc.Adjacency.ADD_REMOVE, add), (REPLACE, replace)):
        low, high = acc.epsilon_interval(run, delta, adjacency=adjacency)
        assert low <= want * (1 + 1e-9)
        np.testing.assert_allclose(high, want, rtol=1e-8)
        assert acc.epsilon(run, delta, adjacency=adjacency, method="rdp") > want
        back = acc.delta(run, high, adjacency=adjacency)
        np.testing.assert_allclose(back, delta, rtol=1e-6)


def test_the_three_samplings_never_stand_in_for_one_another():
    fixed = acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(1.0), 600, 60_000), 1_000)
    low, high = acc.epsilon_interval(fixed, 1e-5, adjacency=REPLACE)
    # the bracket recorded for rate 0.01, σ = 1, 1,000 steps: 13.36 one-sided, 14.82 symmetrised
    np.testing.assert_allclose([low, high], [13.36, 14.82], atol=0.005)
    assert acc.epsilon(dpsgd(), 1e-5) < acc.epsilon(dpsgd(), 1e-5, adjacency=REPLACE) < low
    passes = acc.Repeated(acc.Shuffled(acc.Gaussian(1.0), 100), 10)
    np.testing.assert_allclose(
        acc.epsilon(passes, 1e-5), acc.epsilon(acc.Repeated(acc.Gaussian(1.0), 10), 1e-5)
    )


def test_sweep_equals_loop_and_broadcasts():
    sigma, rate = np.array([[0.8], [1.5]]), np.array([0.001, 0.01, 0.1])
    together = acc.epsilon(dpsgd(sigma, rate, 100), 1e-6, method="rdp")
    assert together.shape == (2, 3)
    assert together.dtype == np.float64
    apart = [[acc.epsilon(dpsgd(s, q, 100), 1e-6, method="rdp") for q in rate] for s in sigma[:, 0]]
    np.testing.assert_allclose(together, apart, rtol=1e-9)
    deltas = acc.epsilon(dpsgd(), np.array([1e-4, 1e-6]), method="rdp")
    assert deltas.shape == (2,)
    assert isinstance(acc.epsilon(dpsgd(), 1e-5, method="rdp"), float)
    assert acc.epsilon(dpsgd(np.zeros(0)), 1e-5, method="rdp").shape == (0,)
    assert acc.epsilon(dpsgd(np.ones(1)), 1e-5, method="rdp").shape == (1,)


def test_same_under_every_transformation_and_precision():
    def price(sigma):
        return acc.epsilon(dpsgd(sigma, 0.02, 200), 1e-5, method="rdp")

    sigma = np.float32([0.9, 1.7])
    want = price(sigma)
    for got in (jax.jit(price)(sigma), jax.vmap(price)(sigma), jax.jit(jax.vmap(price))(sigma)):
        assert got.dtype == jnp.float32
        assert np.all(np.asarray(got, np.float64) >= want)
        np.testing.assert_allclose(got, want, rtol=2e-7)
    with enable_x64(True):
        np.testing.assert_array_equal(price(sigma), want)
        inlined = jax.jit(price)(jnp.asarray(sigma, jnp.float64))
        assert inlined.dtype == jnp.float64
        np.testing.assert_allclose(inlined, want, rtol=1e-12)


def test_mechanisms_cross_jit_boundaries():
    @jax.jit
    def price(run):
        return acc.epsilon(run, 1e-5, method="rdp")

    np.testing.assert_allclose(price(dpsgd()), acc.epsilon(dpsgd(), 1e-5, method="rdp"), rtol=2e-7)


def test_the_tight_answer_differentiates():
    def price(sigma):
        return acc.epsilon(dpsgd(sigma), 1e-5)

    slope = (price(1.0005) - price(0.9995)) / 1e-3
    np.testing.assert_allclose(jax.grad(price)(1.0), slope, rtol=1e-5)


def test_threads_agree():
    want = acc.epsilon(dpsgd(), 1e-5, method="rdp")
    found = []
    work = [
        threading.Thread(target=lambda: found.append(acc.epsilon(dpsgd(), 1e-5, method="rdp")))
        for _ in range(6)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert found == [want] * 6


def test_one_compilation_per_build_of_run():
    @chex.assert_max_traces(n=1)
    def kernel(atoms, adjacency, delta):
        return conversion.epsilon_from_atoms(atoms, adjacency, delta)

    for sigma in (0.7, 1.0, 2.0):
        for steps in (10, 1_000):
            pair_atoms.query(
                kernel, dpsgd(sigma, 0.01, steps), acc.Adjacency.ADD_REMOVE, (1e-5,), (0,)
            )


@pytest.mark.parametrize("name", ["rdp", "contour", "pld"])
def test_equal_steps_are_counted_and_nesting_is_flattened(name):
    step = acc.PoissonSampled(acc.Gaussian(1.5), 0.05)
    flat = acc.Repeated(step, 12)
    nested = acc.Composed(
        (acc.Repeated(acc.Repeated(step, 2), 3), step, acc.Composed((step,) * 4), step)
    )
    want = acc.epsilon(flat, 1e-5, method=name)
    np.testing.assert_allclose(acc.epsilon(nested, 1e-5, method=name), want, rtol=1e-9)


def test_sampling_of_compositions_and_of_samples():
    g = acc.Gaussian(2.0)
    twice = acc.PoissonSampled(acc.PoissonSampled(g, 0.1), 0.2)
    orders = [1.5, 8.0]
    np.testing.assert_allclose(
        acc.rdp(twice, orders), acc.rdp(acc.PoissonSampled(g, 0.02), orders), rtol=1e-12
    )
    # four releases of one sample are one release with twice the displacement
    many = acc.PoissonSampled(acc.Repeated(g, 4), 0.1)
    one = acc.PoissonSampled(acc.Gaussian(1.0), 0.1)
    np.testing.assert_allclose(acc.rdp(many, orders), acc.rdp(one, orders), rtol=1e-12)


def test_refusals_say_what_would_answer():
    fixed = acc.FixedBatchSampled(acc.Gaussian(1.0), 1, 10)
    with pytest.raises(acc.UnsupportedQuery, match=r"REPLACE_ONE.*method='contour'"):
        acc.epsilon(fixed, 1e-5)
    with pytest.raises(acc.UnsupportedQuery, match=r"by method 'gdp'.*'contour'"):
        acc.epsilon(dpsgd(), 1e-5, method="gdp")
    amplified = acc.PoissonSampled(acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.1), 2), 0.1)
    with pytest.raises(acc.UnsupportedQuery, match="amplification"):
        acc.epsilon(amplified, 1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acc.epsilon(dpsgd(), 0.0), r"delta must be in \(0, 1\), got 0"),
        (lambda: acc.epsilon(dpsgd(), 1.0), "delta"),
        (lambda: acc.epsilon(dpsgd(), np.nan), "delta"),
        (lambda: acc.epsilon(dpsgd(), [1e-5, 2.0]), "got 2.0"),
        (lambda: acc.delta(dpsgd(), -1.0), "epsilon"),
        (lambda: acc.epsilon(dpsgd(), 1e-5, method="magic"), "method must be"),
        (lambda: acc.epsilon(dpsgd(), 1e-5, adjacency="both"), "adjacency must be"),
        (lambda: acc.tradeoff(acc.Gaussian(1.0), [1.5]), "false_positive_rates"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("run", [1.0, "Gaussian", None])
def test_what_is_no_mechanism(run):
    with pytest.raises(TypeError, match="run must be a mechanism"):
        acc.epsilon(run, 1e-5)


def test_price_names_the_method_and_falls_back():
    assert acc.price(dpsgd(), 1e-5)[1].name == "contour"
    assert acc.price(acc.Gaussian(1.0), 1e-5)[1].name == "gdp"
    helpless = acc.register_method(
        acc.Method(
            "helpless_for_this_test",
            rank=-1.0,
            supports=lambda run, adjacency: isinstance(run, acc.Repeated),
            epsilon=lambda run, delta, adjacency: np.full(np.shape(run.steps), np.inf),
        )
    )
    try:
        assert acc.epsilon(dpsgd(), 1e-5) == acc.price(dpsgd(), 1e-5, method="contour")[0]
        steps = acc.epsilon(dpsgd(steps=np.array([1, 1_000])), 1e-5)
        np.testing.assert_allclose(steps[1], REFERENCE[0][4], rtol=1e-8)
    finally:
        METHODS.remove(helpless)


def test_renyi_is_never_below_the_tight_lower_end():
    rng = np.random.default_rng(5)
    run = dpsgd(rng.uniform(0.8, 4, 8), 10 ** rng.uniform(-1.3, -0.5, 8), 500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        low, high = acc.epsilon_interval(run, 1e-5)
        by_order = acc.epsilon(run, 1e-5, method="rdp")
    assert np.all(low <= high)
    assert np.all(by_order >= low)
    assert np.all(high <= by_order * (1 + 1e-9))


_SILENT = acc.Gaussian(0.0)
# (release without noise, adjacency, the chance that a record that differs takes part)
_REVEALED = [
    (acc.PoissonSampled(_SILENT, 1e-4), "add-remove", 1e-4),
    (acc.PoissonSampled(_SILENT, 1e-4), REPLACE, 1e-4),
    (acc.PoissonSampled(acc.PoissonSampled(acc.Laplace(0.0), 0.5), 1e-3), "add-remove", 5e-4),
    (acc.FixedBatchSampled(_SILENT, 3, 1_000), REPLACE, 3e-3),
    (
        acc.UserLevel(acc.FixedBatchSampled(_SILENT, 20, 100), 3),
        REPLACE,
        1 - 80 * 79 * 78 / (100 * 99 * 98),
    ),
    (acc.UserLevel(acc.FixedBatchSampled(_SILENT, 2, 1_000), 3), REPLACE, 1 - 996 / 999 * 0.997),
    (acc.WithReplacement(_SILENT, 3, 1_000), REPLACE, 1 - 0.999**3),
    (acc.UserLevel(acc.PoissonSampled(_SILENT, 1e-3), 3), "add-remove", 1 - 0.999**3),
    (acc.TruncatedPoissonSampled(_SILENT, 1e-3, 1_000, 60), "add-remove", 1e-3),
    # E[min(N, 20)]/100, N ~ Bin(100, 1/2), is 1/5 less some 1e-12.
    (acc.TruncatedPoissonSampled(_SILENT, 0.5, 100, 20), REPLACE, 0.2),
]


@pytest.mark.parametrize(("run", "adjacency", "chance"), _REVEALED)
def test_a_release_without_noise_costs_the_chance_of_being_in_it(run, adjacency, chance):
    for steps in (1, 7):
        some, whole = acc.Repeated(run, steps), -np.expm1(steps * np.log1p(-chance))
        for epsilon in (0.0, 1.0, 30.0):
            found = acc.delta(some, epsilon, adjacency=adjacency)
            assert whole * (1 - 1e-14) <= found <= whole * (1 + 1e-9)
        assert acc.epsilon(some, whole * 1.001, adjacency=adjacency) <= 1e-9
        assert acc.epsilon(some, whole * 0.999, adjacency=adjacency) == np.inf
        assert np.isinf(acc.epsilon(some, whole * 0.999, adjacency=adjacency))
    if not isinstance(run, acc.UserLevel):
        made = acc.certify(run, chance * 2, adjacency=adjacency)
        assert made.verify().epsilon == made.epsilon <= 1e-9


@pytest.mark.parametrize("delta", [1e-4, 0.1, 0.3, 1 / 3, 1e-13, 7e-9])
def test_a_promise_is_kept_at_its_own_delta_and_at_no_smaller_one(delta):
    """All that is promised is a number that was given: one rounding up once made ε infinite."""
    below = np.nextafter(delta, 0.0)
    for run, epsilon in (
        (acc.ApproximateDP(1.0, delta), 1.0),
        (acc.PoissonSampled(_SILENT, delta), 0.0),
    ):
        assert epsilon * (1 - 1e-12) <= acc.epsilon(run, delta) <= epsilon * (1 + 1e-12) + 1e-12
        assert acc.epsilon(run, below) == np.inf
        assert delta <= acc.delta(run, epsilon + 1e-9) <= delta * (1 + 1e-8)
    assert acc.certify(acc.ApproximateDP(1.0, delta), delta).verify().epsilon <= 1 + 1e-12


@pytest.mark.parametrize("delta", np.random.default_rng(5).uniform(1e-12, 0.2, 30))
def test_what_is_computed_from_a_promise_is_never_rounded_down(delta):
    """At the largest float below the exact mass of an infinite loss there is no finite ε."""
    promise, own = acc.ApproximateDP(1.0, delta), mpmath.mpf(delta)
    with mpmath.workdps(40):
        kept = 1 - mpmath.mpf(0.3)
        truths = [
            (acc.Repeated(promise, 2), "add-remove", 1 - (1 - own) ** 2),
            (acc.Composed((promise, acc.ApproximateDP(0.5, 0.3))), "add-remove", own * kept + 0.3),
            (acc.PoissonSampled(promise, 0.7), "add-remove", mpmath.mpf(0.7) * own),
            (acc.ApproximateDP(1.0, delta, "add-remove"), REPLACE, (1 + mpmath.e) * own),
            (acc.UserLevel(promise, 2), "add-remove", (1 + mpmath.e) * own),
        ]
        for run, adjacency, exact in truths:
            below = float(exact)
            while mpmath.mpf(below) >= exact:
                below = float(np.nextafter(below, 0.0))
            assert acc.epsilon(run, below, adjacency=adjacency) == np.inf
            assert acc.epsilon(run, below * (1 + 1e-11), adjacency=adjacency) < np.inf


def test_beside_other_releases_it_takes_its_share_of_delta():
    # All is told with probability p; else the Gaussian's δ is left (closed form of both).
    p, rest = 1e-6, acc.Gaussian(2.0)
    both = acc.Composed((acc.PoissonSampled(_SILENT, p), rest))
    found = acc.epsilon(both, 1e-5)
    assert acc.epsilon(rest, 1e-5) < found
    assert found == pytest.approx(acc.epsilon(rest, (1e-5 - p) / (1 - p)), rel=1e-6)
    assert acc.epsilon_interval(both, 1e-5)[0] <= found
    assert np.isinf(acc.rdp(acc.PoissonSampled(_SILENT, p), [2.0])).all()


_PURE = [  # largest loss under add/remove, in closed form
    (acc.Laplace(2.0), 0.5),
    (acc.DiscreteLaplace(2.0, 3), 0.5),
    (acc.RandomizedResponse(1.5, 4), 1.5),
    (acc.Exponential(0.7), 0.7),
    (acc.PureDP(0.3), 0.3),
    (acc.PoissonSampled(acc.Laplace(0.5), 0.1), np.log1p(0.1 * np.expm1(2.0))),
    (acc.Repeated(acc.Composed((acc.Laplace(2.0), acc.PureDP(0.25))), 4), 3.0),
    (acc.Composed(()), 0.0),
    (acc.Repeated(acc.Gaussian(1.0), 0), 0.0),
    (acc.Laplace(0.0), np.inf),
    (acc.PoissonSampled(acc.Laplace(1e-3), 1e-9), 1e3 + np.log(1e-9)),
]


@pytest.mark.parametrize(("run", "largest"), _PURE)
def test_at_delta_zero_bounded_losses_have_a_price(run, largest):
    found = acc.epsilon(run, delta=0)
    assert type(found) is float
    assert largest <= found <= largest * 1.1
    if largest < 500:
        assert found == pytest.approx(largest, rel=1e-12)
        assert acc.delta(run, found * (1 + 1e-9) + 1e-12) <= 1e-12
    np.testing.assert_array_equal(acc.epsilon(run, np.zeros(2)), [found, found])


@pytest.mark.parametrize(
    "run",
    [acc.Gaussian(1.0), acc.ApproximateDP(1.0, 1e-9), acc.DiscreteGaussian(2.0, 1), dpsgd()],
)
def test_at_delta_zero_other_releases_are_refused(run):
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\)"):
        acc.epsilon(run, delta=0.0)


def test_an_unknown_method_is_refused_at_delta_0_too():
    with pytest.raises(ValueError, match="method must be one of"):
        acc.epsilon(acc.Laplace(2.0), delta=0, method="exact")


@pytest.mark.at_length
def test_a_sweep_answers_under_disable_jit():
    run, few = dpsgd(np.linspace(1.0, 2.0, 300)), dpsgd(np.linspace(1.0, 2.0, 300)[:3])
    with jax.disable_jit():
        found = acc.epsilon(run, 1e-5, method="rdp")
        assert acc.delta(run, 1.0, method="rdp").shape == (300,)
    np.testing.assert_allclose(found[:3], acc.epsilon(few, 1e-5, method="rdp"), rtol=1e-9)
