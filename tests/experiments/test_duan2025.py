"""duan2025: training through the public parts, audits, prices, and what is read off the tables."""

from __future__ import annotations

import math
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpjax.accounting import geodp
from experiments import common, images
from experiments.duan2025 import (
    future,
    logistic,
    loop,
    models,
    perturbation,
    prices,
    privacy,
    published,
    summaries,
    training,
    tuned,
)
from experiments.duan2025.angles import angle_between, angles, direction_error
from experiments.duan2025.methods import CLIP_NORM, METHODS, Setting

pytestmark = pytest.mark.usefixtures("lenient_promotion")


def test_every_target_says_what_it_is():
    assert "duan2025" in common.papers()
    assert all(target.__doc__ for target in common.targets("duan2025").values())
    with pytest.raises(KeyError, match="no paper"):
        common.targets("nobody1900")


@pytest.fixture(scope="module")
def problem() -> training.Problem:
    """Two classes of 256 records in four dimensions, apart along one direction."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 256).astype(np.int32)
    rows = rng.normal(size=(256, 2, 2, 1)).astype(np.float32)
    rows[:, 0, 0, 0] += 4.0 * (labels - 0.5)
    model = models.LogisticRegression()
    return training.Problem(
        model,
        models.binary_loss(model),
        lambda logit, label: (logit > 0) == label,
        images.Images(rows, labels, rows, labels),
    )


def _trained(problem, name, sigma, *, steps=30, rate=1.0, batch_size=64, **setting):
    run = training.Run(batch_size, sigma, steps)
    return training.train(problem, METHODS[name], run, Setting(rate, **setting), 0)


def _accuracy(problem, outcome) -> float:
    data = problem.data
    return training.accuracy(problem, data.test_images, data.test_labels)(outcome.params)


def test_angles_are_those_of_the_paper():
    # Section I's example: (1, √3) has direction π/3.
    assert float(angles(jnp.array([1.0, math.sqrt(3.0)]))[0]) == pytest.approx(math.pi / 3)
    vector = np.array([0.5, -1.0, 2.0, -0.25])
    expected = [
        math.atan2(math.sqrt(1 + 4 + 0.0625), 0.5),
        math.atan2(math.sqrt(4 + 0.0625), -1.0),
        math.atan2(-0.25, 2.0),
    ]
    np.testing.assert_allclose(angles(jnp.asarray(vector, jnp.float32)), expected, rtol=1e-6)
    np.testing.assert_allclose(
        angles(jnp.asarray(vector, jnp.float32)), geodp.angles(vector), rtol=1e-6
    )


def test_the_last_angle_is_a_circle():
    first, second = jnp.array([-1.0, 1e-3]), jnp.array([-1.0, -1e-3])
    assert float(direction_error(first, second)) == pytest.approx(4e-6, rel=1e-3)
    assert float(angle_between(first, second)) == pytest.approx(2e-3, rel=0.2)


def test_models_have_the_published_sizes():
    key = jax.random.key(0)
    sizes = [
        models.dimension(
            jax.eval_shape(lambda k, m=model, s=shape: models.initialise(m, k, s), key)
        )
        for model, shape in [
            (models.LogisticRegression(), (28, 28, 1)),
            (models.SmallCNN(), (28, 28, 1)),
            (models.SmallResNet(), (32, 32, 3)),
        ]
    ]
    assert sizes == [785, 21_840, 24_586]


def test_patches_are_convolutions():
    import flax.linen as nn

    image = jax.random.normal(jax.random.key(0), (9, 8, 3))
    layer = models.Convolution(4, size=3, stride=2)
    params = layer.init(jax.random.key(1), image)
    dense = params["params"]["Dense_0"]
    kernel = dense["kernel"].reshape(3, 3, 3, 4)
    reference = nn.Conv(4, (3, 3), strides=2, padding=((1, 1), (1, 1)))
    expected = reference.apply({"params": {"kernel": kernel, "bias": dense["bias"]}}, image)
    np.testing.assert_allclose(layer.apply(params, image), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", privacy.KINDS)
@pytest.mark.parametrize("dimension", [2, 10])
def test_neighbours_differ_in_one_clipped_record(kind, dimension):
    first, second = privacy.neighbours(kind, dimension, 1e-3)
    assert (np.linalg.norm(first, axis=1) <= privacy.CLIP_NORM * (1 + 1e-12)).all()
    assert ((first != second).any(axis=1)).sum() == 1


@pytest.mark.parametrize(
    ("kind", "dimension", "mu"),
    # Closed forms of the published noise on explicit neighbours, evaluated with mpmath.
    [("aligned", 2, 3.18309886), ("tenth", 2, 31.8307357), ("aligned", 10, 1.83776284)],
)
def test_exact_parameters_of_the_neighbours(kind, dimension, mu):
    worlds = privacy.neighbours(kind, dimension, privacy.noise_std(dimension, 0.1, 1.0))
    found = geodp.published_geodp_mu(
        *(world.mean(axis=0) for world in worlds),
        noise_multiplier=1.0,
        clip_norm=privacy.CLIP_NORM,
        batch_size=privacy.BATCH_SIZE,
        bounding_factor=0.1,
    )
    assert found == pytest.approx(mu, rel=2e-3)  # the agreeing records are B − 1, not B


def test_audit_refutes_the_published_claim():
    settings = {"d": 2, "beta": 0.1, "sigma": [1.0], "trials": 20_000}
    rows = {row["neighbours"]: row for row in privacy.cell(settings, pathlib.Path())}
    aligned, tenth = rows["aligned"], rows["tenth"]
    assert aligned["claimed"] == pytest.approx(4.377178, rel=1e-6)
    assert aligned["threshold"] > aligned["claimed"]  # no assumption at all
    assert 0.9 * 18.0 < aligned["normal_shift"] <= aligned["exact"]
    assert 0.9 * 641 < tenth["normal_shift"] <= tenth["exact"]


def test_proven_prices():
    def price(name, sigma=10.0):
        return prices.proven_epsilon(METHODS[name], 16_384, sigma, 60_000)

    plain = price("DP")
    assert plain == pytest.approx(0.8744, rel=1e-3)
    assert price("G3") == price("averaged DP") == plain
    assert price("DP+SUR") > price("DP+SUR by attempts") > plain
    # The noise at which selection, counted by attempts, costs as much in all as plain DP-SGD.
    assert price("DP+SUR by attempts", 10.2511) == pytest.approx(plain, rel=1e-3)
    assert price("DP+IS") > 1.3 * plain
    assert price("GeoDP β=0.1") == price("noise-free, clipped") == math.inf


@pytest.mark.parametrize("name", ["noise-free, clipped", "DP", "averaged DP", "G3"])
def test_training_learns_without_noise_and_not_with_much(problem, name):
    assert _accuracy(problem, _trained(problem, name, 1e-6)) > 90.0
    if name != "noise-free, clipped":
        after = _trained(problem, name, 1e4, steps=1).params
        moved = jnp.linalg.norm(jax.flatten_util.ravel_pytree(after)[0])
        # One draw of noise Cσ/B in five numbers, for two keys in a thousand outside these.
        assert 0.45 < float(moved) / (CLIP_NORM * 1e4 / 64) < 4.6


@pytest.mark.parametrize("name", ["DP", "G3", "averaged DP"])
def test_a_row_is_tuned_until_its_setting_is_inside(name, monkeypatch):
    """Accuracies that fall with the distance from rate 200 and radius or weight 0.3."""
    ran = []

    def train(problem, method, run, setting, seed):
        ran.append((setting, seed))
        other = {"G3": setting.radius, "averaged DP": 1.0 - setting.decay}.get(name, 0.3)
        off = abs(math.log2(setting.rate / 200)) + abs(math.log2(other / 0.3))
        return training.Outcome(90.0 - off, 73, 73, {})

    halves = (lambda params: params), (lambda params: params + 1.0)
    monkeypatch.setattr(tuned, "train", train)
    monkeypatch.setattr(tuned.deep, "problem_of", lambda *_: (None, halves))
    settings = {"methods": f"{name}, B=16384", "divisor": 16, "sigma": 10.0, "rates": [48.0, 96.0]}
    rows = tuned.private({**settings, "records priced": 60_000, "seeds": [0, 1]}, None)
    assert [row["edge"] for row in rows] == ["", ""]
    assert all(row["setting"].startswith("rate 192") for row in rows)
    # Every setting once at the first seed, the chosen one at the second.
    tried = rows[0]["tried"].split("; ")
    assert len({s for s, seed in ran if seed == 0}) == len(ran) - 1 == len(tried)
    assert ran[-1][1] == 1


def test_a_network_without_noise_is_tuned_the_same_way_and_is_not_clipped(problem, monkeypatch):
    ran = []

    def train(problem, method, run, setting, seed, *, clip_norm):
        ran.append((method.noise, run, clip_norm))
        return training.Outcome(90.0 - abs(math.log2(setting.rate / 0.2)), 1, 1, {})

    halves = (lambda params: params), (lambda params: params + 1.0)
    monkeypatch.setattr(tuned, "train", train)
    monkeypatch.setattr(tuned.deep, "problem_of", lambda *_: (problem, halves))
    settings = {"data": "MNIST", "batch size": 64, "epochs": 2, "rates": [0.05, 0.1]}
    (row,) = tuned.noise_free({**settings, "seeds": [0]}, None)
    assert (row["setting"], row["edge"], row["accuracy %"]) == ("rate 0.2", "", 91.0)
    # Two epochs of 256 records.
    assert set(ran) == {("none", training.Run(64, 0.0, 8), training.UNCLIPPED)}
    assert row["proven ε"] == math.inf


def test_further_seeds_of_a_curve_have_its_end_alone(monkeypatch):
    asked = []

    def curve(settings, data):
        asked.append(settings)
        return [{"iteration": i, "seed": settings["seeds"]} for i in (0, settings["iterations"])]

    monkeypatch.setattr(tuned, "curve", curve)
    rows = tuned.repeated(
        {"curve, rate": [["a", "DP", 1.0, 8], 0.25], "seeds": [1, 2], "iterations": 350}, None
    )
    assert rows == [{"iteration": 350, "seed": 1}, {"iteration": 350, "seed": 2}]
    assert [(s["curves"], s["rates"]) for s in asked] == [(["a", "DP", 1.0, 8], [0.25])] * 2


_ROW = """
import hashlib, jax, numpy
from experiments import images
from experiments.duan2025 import models, training
from experiments.duan2025.methods import METHODS, Setting
rng, model = numpy.random.default_rng(0), models.SmallCNN()
rows = rng.random((64, 28, 28, 1), numpy.float32), rng.integers(0, 10, 64).astype(numpy.int32)
problem = training.Problem(model, models.softmax_loss(model), None, images.Images(*rows, *rows))
found = training.train(problem, METHODS["DP"], training.Run(32, 0.6, 3), Setting(48.0), 0)
print(hashlib.sha256(b"".join(numpy.asarray(x).tobytes() for x in jax.tree.leaves(found.params)))
.hexdigest())
"""


def test_a_row_of_table_2_has_the_same_bits_in_another_process_with_other_threads():
    said = [
        subprocess.run(
            [sys.executable, "-c", _ROW],
            env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0", "XLA_FLAGS": flags},
            cwd=pathlib.Path(common.__file__).parents[1],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for flags in ("", "--xla_cpu_multi_thread_eigen=false")
    ]
    assert len(said[0]) == 65
    assert said[0] == said[1]


def test_geodp_turns_directions_and_keeps_lengths(problem):
    small = training.Run(64, 1.0, 1)
    found = {}
    for beta in (0.1, 1.0):
        params = training.train(problem, METHODS[f"GeoDP β={beta:g}"], small, Setting(1.0), 0)
        free = training.train(problem, METHODS["noise-free, clipped"], small, Setting(1.0), 0)
        step, plain = (jax.flatten_util.ravel_pytree(x.params)[0] for x in (params, free))
        found[beta] = float(angle_between(step, plain))
        # β does not reach the length: only the noise of one number does.
        gap = abs(float(jnp.linalg.norm(step) - jnp.linalg.norm(plain)))
        assert gap < 5 * CLIP_NORM / 64
    assert found[0.1] < found[1.0]


def test_selective_updates_are_counted_both_ways(problem):
    by_accepted = _trained(problem, "DP+SUR", 300.0, steps=8)
    assert by_accepted.accepted == 8 < by_accepted.attempts <= loop.MOST_ATTEMPTS * 8
    by_attempts = _trained(problem, "DP+SUR by attempts", 300.0, steps=8)
    assert by_attempts.attempts == 8 > by_attempts.accepted


def test_importance_sampling_learns(problem):
    found = _trained(problem, "DP+IS", 1e-6)
    assert _accuracy(problem, found) > 90.0
    assert found.attempts == found.accepted == 30


def test_a_release_errs_as_its_noise_says():
    rng = np.random.default_rng(0)
    batch, before = rng.normal(size=(2, 64, 40)).astype(np.float32)
    found = perturbation._errors(
        jax.random.key(0), jnp.asarray(batch), jnp.asarray(before), sigma=jnp.float32(2.0),
        batch_size=64, betas=jnp.float32([0.1, 1.0]),
    )  # fmt: skip
    variance = 40 * (CLIP_NORM * 2.0 / 64) ** 2
    # A sum of 40 squares: within four of its deviations.
    assert float(found["DP"][1]) == pytest.approx(variance, rel=4 * math.sqrt(2 / 40))
    assert float(found["GeoDP #0"][0]) < float(found["GeoDP #1"][0])


def test_the_step_size_of_figure_5_is_one_at_which_nothing_rises():
    rows = [
        {"method": summaries.FREE, "panel": panel, "B": 8, "rate": rate, "iteration": i, "loss": x}
        for panel, curves in {
            "a": {0.25: (0.7, 0.5, 0.4), 0.5: (0.7, 0.4, 0.45)},
            "b": {0.25: (0.7, 0.5, 0.4), 0.5: (0.7, 0.4, 0.3)},
        }.items()
        for rate, losses in curves.items()
        for i, x in enumerate(losses)
    ]
    assert summaries.steady_rate(pd.DataFrame(rows)) == 0.25
    with pytest.raises(ValueError, match="rates must have one"):
        summaries.steady_rate(pd.DataFrame([r for r in rows if r["rate"] == 0.5]))


def test_the_printed_tables_have_the_papers_rows():
    assert published.accuracy("GeoDP β=0.1", 16_384, 1.0) == 98.04
    assert published.accuracy("DP", 8_192, 0.01, "table3") == 63.27
    assert published.accuracy("G3", 16_384, 10.0) is None
    assert {name for name, _ in {**published.TABLE2, **published.TABLE3}} <= set(METHODS)


def test_odd_digits_are_one_and_the_background_is_zero():
    digits = np.arange(10, dtype=np.int32)
    pixels = np.linspace(-1.0, 1.0, 40, dtype=np.float32).reshape(10, 2, 2, 1)
    found = logistic.odd_digits(images.Images(pixels, digits, pixels, digits))
    assert found.labels.tolist() == [0, 1] * 5
    assert (found.images.min(), found.images.max()) == (0.0, 1.0)


def test_command_line_lists_and_refuses():
    import typer
    from typer.testing import CliRunner

    from experiments.__main__ import main

    app = typer.Typer()
    app.command()(main)
    listed = CliRunner().invoke(app, ["duan2025"])
    assert listed.exit_code == 0
    assert "table2" in listed.output
    assert CliRunner().invoke(app, ["duan2025", "table9"]).exit_code == 2


def _units(count: int, *shape: int):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, *shape, 3)).astype(np.float32)
    return jnp.asarray(features), jnp.sign(jnp.asarray(features[..., 0]))


@pytest.mark.parametrize("optimiser", ["SGD", "federated averaging"])
@pytest.mark.parametrize("method", future.METHODS)
def test_a_step_of_the_future_work_is_the_formula(optimiser, method):
    # All units in the batch, no noise: two steps against their formulas in NumPy.
    size = future.Size(units=6, batch=6, steps=2, delta=1e-5, clip_norm=0.5)
    units = _units(6, 4) if optimiser == "federated averaging" else _units(6)
    numbers = {
        "DP": future.Numbers(0.3, 1.0, 0.0, 0.0),
        "averaged DP": future.Numbers(0.3, 1.0, 0.4, 0.0),
        "G3": future.Numbers(0.3, 0.5, 0.0, 1.0),
    }[method]
    found = future.train(optimiser, size, units, numbers, 0.0, 0)
    features, signs = (np.asarray(x, float) for x in units)
    params, before = np.zeros(3), np.zeros(3)

    def gradient(w, x, y):
        x, y = np.atleast_2d(x), np.atleast_1d(y)
        return (-(y / (1 + np.exp(y * (x @ w))))[:, None] * x).mean(0)

    for _ in range(2):
        parts = []
        for x, y in zip(features, signs, strict=True):
            if optimiser == "SGD":
                change = gradient(params, x, y)
            else:
                local = params
                for _ in range(future._LOCAL_STEPS):
                    local = local - future._LOCAL_RATE * gradient(local, x, y)
                change = params - local
            part = change - numbers.recentred * before
            bound = numbers.radius * size.clip_norm
            parts.append(part * min(1.0, bound / np.linalg.norm(part)))
        release = numbers.recentred * before + np.mean(parts, axis=0)
        before = numbers.decay * before + (1 - numbers.decay) * release
        params = params - numbers.rate * before
    np.testing.assert_allclose(found, params, atol=2e-3)


@pytest.mark.parametrize("method", future.METHODS)
def test_the_future_work_is_tuned_until_its_setting_is_inside(method, monkeypatch):
    """Accuracies that fall with the distance from rate 24 and radius or weight 0.3, in octaves."""

    def train(optimiser, size, units, numbers, sigma, seed):
        other = {"G3": numbers.radius, "averaged DP": 1.0 - numbers.decay}.get(method, 0.3)
        return abs(math.log2(numbers.rate / 24)) + abs(math.log2(other / 0.3)) + 0.01 * seed

    monkeypatch.setattr(future, "train", train)
    monkeypatch.setattr(future, "_data", lambda *_: (None, None, None))
    monkeypatch.setattr(future, "_accuracy", lambda params, rows: 0.9 - 0.01 * params)
    settings = {"methods": method, "optimiser": "SGD", "epsilon": 1.0, "seeds": [0, 1, 2]}
    rows = future.cell(settings, None)
    assert [row["edge"] for row in rows] == [""] * 3
    assert {row["rate"] for row in rows} <= {16.0, 32.0}
    assert len({row["accuracy %"] for row in rows}) == 3


def test_the_future_work_has_one_price_and_noise_of_its_size():
    size = future.Size(units=50, batch=25, steps=1, delta=1e-5, clip_norm=0.5)
    units = jnp.zeros((50, 400)), jnp.ones(50)
    # Nothing but noise, over the batch, times the rate: 2 · σr/B.
    for radius, recentred in ((1.0, 0.0), (0.25, 1.0)):
        numbers = future.Numbers(2.0, radius, 0.0, recentred)
        found = np.asarray(future.train("SGD", size, units, numbers, 3.0, 1))
        assert found.std() == pytest.approx(2.0 * 3.0 * radius * 0.5 / 25, rel=0.15)
