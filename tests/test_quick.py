"""One fast test a package, for `make check`: each against something worked out by other means."""

from __future__ import annotations

import math
import re
import statistics
from importlib import metadata

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import optax
import pytest

import dpjax
from dpjax import accounting as acc
from dpjax import audit, erm, sampling, training, transforms
from dpjax._numerics.normal import normal


def test_numerics_noise_is_standard_normal():
    draws = np.asarray(normal(jax.random.key(0), (20_000,), jnp.float32), np.float64)
    assert abs(draws.mean()) < 5 / math.sqrt(draws.size)
    assert abs(np.mean(draws**2) - 1) < 5 * math.sqrt(2 / draws.size)


def test_accounting_prices_the_gaussian_by_its_closed_form():
    noise, epsilon = 1.3, acc.epsilon(acc.Gaussian(1.3), delta=1e-6)
    with mpmath.workdps(50):
        mu, eps = 1 / mpmath.mpf(noise), mpmath.mpf(epsilon)
        delta = mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)
    assert 1e-6 * (1 - 1e-9) < delta <= 1e-6


@pytest.mark.parametrize("method", ["vmap", "ghost"])
def test_gradients_are_clipped_one_by_one(method):
    rows = jnp.array([[3.0, 4.0], [0.3, 0.4], [0.0, -2.0]])
    clipped = dpjax.clipped_grad(lambda w, x: w @ x, clip_norm=1.0, method=method)
    found = clipped(jnp.zeros(2), rows).sum
    np.testing.assert_allclose(found, [0.6 + 0.3, 0.8 + 0.4 - 1.0], rtol=1e-5)


def test_transforms_clip_along_the_leading_axis():
    clip = transforms.clip_per_example(clip_norm=1.0)
    rows = jnp.array([[3.0, 4.0], [0.3, 0.4]])
    found, _ = clip.update(rows, clip.init(jnp.zeros(2)))
    np.testing.assert_allclose(np.sum(np.atleast_2d(found), axis=0), [0.9, 1.2], rtol=1e-5)


def test_sampling_takes_each_record_with_the_probability_it_says():
    taken = [
        int(sampling.poisson_inclusion(jax.random.key(0), step, population=500, rate=0.2).sum())
        for step in range(20)
    ]
    assert abs(statistics.mean(taken) - 100) < 5 * math.sqrt(500 * 0.2 * 0.8 / 20)


def test_erm_gradients_are_those_of_the_logistic_loss():
    x, w = np.array([[0.6, 0.8], [-1.0, 0.0]], np.float32), np.array([0.5, -1.0], np.float32)
    problem = erm.logistic_regression(x, [1, 0], l2=0.1, intercept=0.0)
    residual = 1 / (1 + np.exp(-(x @ w))) - np.array([1, 0])
    expected = x.T @ residual / 2 + 0.1 * w
    np.testing.assert_allclose(problem.gradient(jnp.asarray(w)), expected, rtol=1e-5)


def test_training_runs_what_its_plan_prices():
    plan = training.make_plan(200, noise_multiplier=4.0, delta=1e-4, steps=3, batch_size=200)
    x = jax.random.normal(jax.random.key(0), (200, 2))
    y, model = (x[:, 0] > 0).astype(jnp.int32), training.logistic(features=2)
    params = model.init(jax.random.key(1))
    loss = training.cross_entropy(model)
    fit = training.fit(loss, params, (x, y), plan, optimizer=optax.sgd(5.0), key=jax.random.key(2))
    assert training.accuracy(model, x, y)(fit.params) > 0.85
    assert fit.metrics["epsilon"][-1] <= plan.epsilon()


def test_audit_stays_below_the_truth():
    scores = np.asarray(jax.random.normal(jax.random.key(0), (2, 4_000)), np.float64)
    found = audit.distinguishing_bound(scores[0], scores[1] + 1.0, delta=1e-2)
    assert 0 < found.epsilon < acc.epsilon(acc.Gaussian(1.0), delta=1e-2)


def test_data_maps_a_declared_range_to_plus_minus_one():
    pd = pytest.importorskip("pandas")
    from dpjax import data

    schema = data.Schema((data.Column("x", range=(0, 10)),), target="y", classes=("a", "b"))
    found = data.encode(pd.DataFrame({"x": [0.0, 5.0, 99.0], "y": ["a", "b", "b"]}), schema)
    assert found.features.ravel().tolist() == [-1, 0, 1]
    assert found.labels.tolist() == [0, 1, 1]


def test_plotting_writes_a_picture(tmp_path):
    metrics = {name: np.array([0.0, 1.0]) for name in ("step", "epsilon", "test_accuracy")}
    picture = dpjax.plotting.plot_training(metrics, tmp_path / "run.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_cli_says_what_the_accountant_says():
    from typer.testing import CliRunner

    from dpjax.cli import app

    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 100)
    arguments = "epsilon --noise-multiplier 1.1 --rate 0.01 --steps 100 --delta 1e-5 --json"
    found = CliRunner().invoke(app, arguments.split())
    assert found.exit_code == 0, found.output
    assert f"{acc.epsilon(run, delta=1e-5):.6g}"[:6] in found.output


def test_the_core_brings_at_most_twelve_packages():
    """What `pip install dpjax` installs, followed through the packages that are here."""
    found, waiting = set(), ["dpjax"]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            needed = (line.partition(";") for line in metadata.requires(name) or ())
            waiting += [re.match(r"[\w.-]+", n)[0] for n, _, when in needed if "extra" not in when]
    assert {"jax", "numpy", "optax", "scipy"} <= found
    assert len(found) <= 12, f"the core brings {sorted(found)}"
