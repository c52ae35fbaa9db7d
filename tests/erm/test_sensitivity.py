"""Sensitivities bound the distance of runs on neighbouring data: a search for counterexamples."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import erm
from dpjax.accounting.gaussian import permuted_sgd
from dpjax.accounting.gaussian.permuted_sgd import batch_sensitivities
from dpjax.erm import sensitivity

_N, _D, _PAIRS = 12, 3, 3000


def _neighbours(key, clustered):
    """Rows and labels of D, and D' with the record at `place` replaced, most of them extreme."""
    keys = jax.random.split(key, 6)
    rows = jax.random.normal(keys[0], (_N, _D))
    axis = jax.random.normal(keys[1], (_D,))
    rows = jnp.where(clustered, axis[None, :] + 0.1 * rows, rows)
    rows = rows / jnp.linalg.norm(rows, axis=1, keepdims=True)
    labels = jnp.where(jax.random.bernoulli(keys[2], 0.5, (_N,)), 1.0, -1.0)
    labels = jnp.where(clustered, jnp.ones(_N), labels)
    place = jax.random.randint(keys[3], (), 0, _N)
    other = jnp.where(jax.random.bernoulli(keys[4]), rows[place], jax.random.normal(keys[5], (_D,)))
    other = other / jnp.linalg.norm(other)
    return rows, labels, rows.at[place].set(other), labels.at[place].multiply(-1.0), place


def _distances(run, *, l2, make=erm.logistic_regression):
    """Distance of the two runs and the replaced record's place, for thousands of pairs."""

    def one(key, clustered):
        rows, labels, rows2, labels2, place = _neighbours(key, clustered)
        a = run(make(rows, labels, l2=l2, intercept=0.0))
        b = run(make(rows2, labels2, l2=l2, intercept=0.0))
        return jnp.linalg.norm(a - b), place

    keys = jax.random.split(jax.random.key(11), _PAIRS)
    return jax.jit(jax.vmap(one))(keys, jnp.arange(_PAIRS) % 2 == 0)


_CYCLIC = {
    "rsgd": (erm.rsgd, {"epochs": 4, "batch_size": 5}, 3.0, erm.logistic_regression),
    "rsgd_ar": (
        erm.rsgd_ar,
        {"epochs": 6, "batch_size": 5, "average_every": 3},
        3.0,
        erm.logistic_regression,
    ),
    "rsgd_ar, svm": (
        erm.rsgd_ar,
        {"epochs": 4, "batch_size": 4, "average_every": 2},
        1.0,
        functools.partial(erm.huber_svm, width=0.3),
    ),
}


@pytest.mark.parametrize("name", _CYCLIC)
@pytest.mark.at_length(every=2)
def test_no_neighbours_are_further_apart_than_their_batch_allows(name):
    solver, settings, step, make = _CYCLIC[name]
    key = jax.random.key(5)
    order = np.asarray(jax.random.permutation(jax.random.split(jax.random.clone(key))[1], _N))

    def run(p):
        return solver(p, jax.random.clone(key), step_size=step, noise_std=0.0, **settings).params

    far, place = _distances(run, l2=0.05, make=make)
    size = settings["batch_size"]
    sizes = [size] * (_N // size) + ([_N % size] if _N % size else [])
    problem = make(np.eye(_D, dtype=np.float32), [0, 1, 0], l2=0.05)
    allowed = batch_sensitivities(
        sizes,
        epochs=settings["epochs"],
        step_size=step,
        average_every=settings.get("average_every"),
        gradient_radius=problem.gradient_bound,
        strong_convexity=0.05,
        smoothness=problem.smoothness,
    )
    batch = np.argsort(order)[np.asarray(place)] // size
    ratio = np.asarray(far) / allowed[batch]
    assert ratio.max() <= 1 + 1e-5
    # Not vacuous: some pair of the search comes within a factor of five of the bound.
    assert ratio.max() > 0.2


@pytest.mark.parametrize(
    ("solver", "settings"),
    [
        (erm.output_perturbed_gd, {"steps": 15, "step_size": 3.0}),
        (erm.output_perturbed_sgd, {"passes": 3, "batch_size": 5, "step_size": 2.0}),
        (erm.output_perturbed_sgd, {"passes": 3, "batch_size": 4, "schedule": "sqrt"}),
        (erm.output_perturbed_sgd, {"passes": 3, "batch_size": 4, "schedule": "strongly_convex"}),
    ],
    ids=["gd", "constant", "sqrt", "strongly_convex"],
)
@pytest.mark.at_length(every=3)
def test_output_perturbation_hides_the_largest_distance(solver, settings):
    key = jax.random.key(5)
    run = lambda p: solver(p, jax.random.clone(key), noise_std=0.0, **settings).params  # noqa: E731
    far, _ = _distances(run, l2=0.05)
    sample = erm.logistic_regression(np.zeros((_N, _D), np.float32), [0, 1] * 6, l2=0.05)
    allowed = solver(sample, key, noise_std=1.0, **settings).mechanism.sensitivities[0]
    assert np.max(far) <= allowed * (1 + 1e-5)
    assert np.max(far) > 0.2 * allowed


def test_one_step_of_noisy_gd_moves_by_at_most_the_gradient_sensitivity():
    # The bound is reached by records that are wrong by far and differ across the decision's normal.
    w = 300 * jax.random.normal(jax.random.key(1), (_D,))
    for clip in (None, 0.4):
        far, _ = _distances(lambda p, c=clip: p.gradient_sum(w, clip_norm=c) / p.n, l2=0.05)
        allowed = 2 * (clip or 1.0) / _N
        assert np.max(far) <= allowed * (1 + 1e-5)
        assert np.max(far) > 0.6 * allowed


@pytest.mark.parametrize("step", [0.5, 2.0, 3.3, 9.0])
def test_contraction_factor_bounds_a_step_and_is_reached_by_quadratics(step):
    problem = erm.logistic_regression(
        np.eye(_D, dtype=np.float32), [0, 1, 1], l2=0.3, intercept=0.0
    )
    rho = sensitivity.contraction_factor(step, problem.strong_convexity, problem.smoothness)
    pairs = 8 * jax.random.normal(jax.random.key(2), (2, 500, _D))

    def stretch(u, v):
        g = lambda w: w - step * problem.gradient(w)  # noqa: E731
        return jnp.linalg.norm(g(u) - g(v)) / jnp.linalg.norm(u - v)

    assert jnp.max(jax.vmap(stretch)(*pairs)) <= rho * (1 + 1e-5)
    assert rho == max(abs(1 - step * 0.3), abs(1 - step * 0.55))


def test_scheduled_recurrence_equals_the_literal_loop():
    rng = np.random.default_rng(0)
    sizes, steps = [4, 4, 3], rng.uniform(0.1, 5.0, 12)
    found = sensitivity.scheduled_sensitivities(
        sizes, steps, gradient_diameter=2.0, strong_convexity=0.1, smoothness=0.7
    )
    for j, size in enumerate(sizes):
        move = 0.0
        for t, step in enumerate(steps):
            move *= max(abs(1 - step * 0.1), abs(1 - step * 0.7))
            move += 2.0 * step / size if t % 3 == j else 0.0
        assert found[j] == pytest.approx(move, rel=1e-11)
        assert found[j] >= move * (1 - 1e-13)


def test_recurrence_never_exceeds_the_published_closed_forms():
    n, batch, passes, beta = 1000, 50, 4, 0.25
    kept = {"gradient_diameter": 2.0, "strong_convexity": 0.0, "smoothness": beta}
    times = np.arange(1.0, passes * n / batch + 1)
    published = functools.partial(
        sensitivity.bolton_sensitivity,
        n=n,
        batch_size=batch,
        passes=passes,
        lipschitz=1.0,
        smoothness=beta,
    )
    for name, steps in {
        "constant": np.full(times.size, 0.5),
        "decreasing": 2 / (beta * (times + n**0.5)),
        "sqrt": 2 / (beta * (np.sqrt(times) + n**0.5)),
    }.items():
        ours = sensitivity.scheduled_sensitivities([batch] * 20, steps, **kept).max()
        theirs = published(name, step_size=0.5 if name == "constant" else None)
        assert ours <= theirs * (1 + 1e-9)
        assert ours >= 0.99 * theirs  # the same worst case without strong convexity
    strong = {**kept, "strong_convexity": 0.01, "smoothness": 0.26}
    steps = np.minimum(1 / 0.26, 1 / (0.01 * times))
    ours = sensitivity.scheduled_sensitivities([batch] * 20, steps, **strong).max()
    assert ours <= published("strongly_convex", strong_convexity=0.01) * (1 + 1e-9)


def test_published_closed_forms_reproduce_their_reference_values(oracles):
    checked = 0
    for name in ("strongly_convex", "convex_constant", "convex_decreasing", "sc_constant_step"):
        for row in oracles[f"bolton_sensitivity_{name}"]:
            p = row["params"]
            schedule = {
                "convex_constant": "constant",
                "convex_decreasing": "decreasing",
                "sc_constant_step": "strongly_convex_constant",
            }.get(name, name)
            found = sensitivity.bolton_sensitivity(
                schedule,
                n=p.get("n", 1),
                batch_size=p.get("b", 1),
                passes=p.get("k", 1),
                lipschitz=p["L"],
                smoothness=p.get("beta", 1.0),
                strong_convexity=p.get("gamma", 0.0),
                step_size=p.get("eta"),
                exponent=p.get("c", 0.5),
            )
            assert found == pytest.approx(row["value"], rel=1e-12)
            checked += 1
    for row in oracles["outpert_gd_sensitivity_finite_T"]:
        p = row["params"]
        found = sensitivity.descent_sensitivity(
            p["n"],
            p["T"],
            p["eta"],
            gradient_diameter=2 * p["R"],
            strong_convexity=p["mu"],
            smoothness=p["L"],
        )
        assert found == pytest.approx(row["value"], rel=1e-11)
    for row in oracles["outpert_gd_sensitivity_zhang"]:
        p = row["params"]
        found = sensitivity.zhang_sensitivity(
            p["n"], gradient_bound=p["R"], smoothness=p["L"], strong_convexity=p["mu"]
        )
        assert found == pytest.approx(row["value"], rel=1e-12)
    assert checked == 7


def test_golden_sensitivities():
    # 2RηT/n without strong convexity; 2/(nμ) at η = 2/(L + μ) in the limit (chen2019 Prop. 2).
    kept = {"gradient_diameter": 2.0, "smoothness": 0.251}
    flat = sensitivity.descent_sensitivity(100, 10, 0.5, strong_convexity=0.0, **kept)
    assert flat == pytest.approx(2 * 0.5 * 10 / 100, rel=1e-11)
    limit = sensitivity.descent_sensitivity(39073, 10**7, 2 / 0.252, strong_convexity=1e-3, **kept)
    assert limit == pytest.approx(0.051186241138382, rel=1e-9)


def test_rsgd_mechanism_carries_the_reference_sensitivities(oracles, key):
    row = next(
        r
        for r in oracles["rsgd_sensitivity_vector"]
        if r["params"]["tau"] == 5 and r["params"]["sizes"][-1] == 3073
    )
    p = row["params"]
    problem = erm.logistic_regression(
        np.zeros((39073, 1), np.float32), np.zeros(39073, int), l2=p["mu"], intercept=0.0
    )
    mechanism = erm.mechanism_of(
        erm.rsgd_ar,
        problem,
        1.0,
        epochs=p["T"],
        batch_size=4000,
        step_size=p["eta0"],
        average_every=5,
    )
    np.testing.assert_allclose(mechanism.sensitivities, row["value"], rtol=1e-10)
    np.testing.assert_allclose(mechanism.weights, np.array(p["sizes"]) / 39073)


def test_a_calibration_unrolls_the_epochs_once(monkeypatch):
    unrolled = []
    contraction = permuted_sgd._contraction
    monkeypatch.setattr(
        permuted_sgd, "_contraction", lambda *a: (unrolled.append(a), contraction(*a))[1]
    )
    settings = {"smoothness": 0.26, "strong_convexity": 0.013, "step_size": 0.71}
    sizes, asked = [50, 60, 40], []

    def run(noise):
        asked.append(noise)
        moves = batch_sensitivities(sizes, epochs=9, average_every=3, **settings)
        return acc.RandomizedSensitivity(moves, np.array(sizes) / sum(sizes), noise)

    noise = acc.calibrate(run, epsilon=1.0, delta=1e-6, adjacency="replace-one")
    assert acc.epsilon(run(noise), 1e-6, adjacency="replace-one") <= 1.0
    assert len(asked) > 5
    assert len(unrolled) == 9
    kept = batch_sensitivities(sizes, epochs=9, average_every=3, **settings)
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 0.0
    # Another interval, other epochs and other sizes are other questions.
    for change in ({"average_every": None}, {"epochs": 8}, {"sizes": [50, 60, 41]}):
        given = {"sizes": sizes, "epochs": 9, "average_every": 3, **change}
        assert np.any(batch_sensitivities(**given, **settings) != kept)
