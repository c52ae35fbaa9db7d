"""GeoDP's experiments at tiny size: they run, cache, and say what is known to be true."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpjax.accounting.geometric import angles as spherical
from experiments import common, images
from experiments.duan2025 import logistic, models, prices, privacy, tables, training
from experiments.duan2025.angles import angle_between, angles, direction_error

pytestmark = pytest.mark.usefixtures("lenient_promotion")


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_dir):
    """One folder for all targets, so that they share the cache as a real run does."""
    return common.Run(tmp_path_factory.mktemp("geodp"), data_dir, tiny=True)


def test_every_paper_lists_targets():
    assert "geodp" in common.papers()
    names = common.targets("geodp")
    assert {"figure1", "figure3", "figure4", "figure5", "figure6", "table2", "table3"} <= set(names)
    assert all(target.__doc__ for target in names.values())
    with pytest.raises(KeyError, match="no paper"):
        common.targets("nobody1900")


def test_rows_are_computed_once_for_the_same_content(tmp_path):
    here, calls = common.Run(tmp_path, tmp_path), []

    def compute():
        calls.append(1)
        return [{"value": len(calls)}]

    first = here.rows("x", {"a": 1}, compute, code=(angles,))
    assert here.rows("x", {"a": 1}, compute, code=(angles,)) == first == [{"value": 1}]
    assert here.rows("x", {"a": 2}, compute, code=(angles,)) == [{"value": 2}]
    assert here.rows("x", {"a": 1}, compute, code=(direction_error,)) == [{"value": 3}]


def test_a_report_is_filled_between_its_marks(tmp_path):
    file = tmp_path / "README.md"
    file.write_text("a\n<!-- t -->old<!-- /t -->\nb")
    common.fill_report(file, {"t": common.markdown_table([{"x": 1.23456, "y": math.nan}])})
    assert "| 1.235 | – |" in file.read_text()
    assert "old" not in file.read_text()
    with pytest.raises(ValueError, match="no section"):
        common.fill_report(file, {"u": ""})


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
        angles(jnp.asarray(vector, jnp.float32)), spherical.angles(vector), rtol=1e-6
    )


def test_the_last_angle_is_a_circle():
    first, second = jnp.array([-1.0, 1e-3]), jnp.array([-1.0, -1e-3])
    assert float(direction_error(first, second)) == pytest.approx(4e-6, rel=1e-3)
    assert float(angle_between(first, second)) == pytest.approx(2e-3, rel=0.2)


def test_models_have_the_published_sizes():
    key = jax.random.key(0)
    sizes = [
        models.dimension(models.initialise(model, jax.random.fold_in(key, i), shape))
        for i, (model, shape) in enumerate(
            [
                (models.LogisticRegression(), (28, 28, 1)),
                (models.SmallCNN(), (28, 28, 1)),
                (models.SmallResNet(), (32, 32, 3)),
            ]
        )
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
    found = spherical.published_geodp_mu(
        *(world.mean(axis=0) for world in worlds),
        noise_multiplier=1.0,
        clip_norm=privacy.CLIP_NORM,
        batch_size=privacy.BATCH_SIZE,
        bounding_factor=0.1,
    )
    assert found == pytest.approx(mu, rel=2e-3)  # the agreeing records are B − 1, not B


def test_audit_refutes_the_published_claim(run):
    rows = {row["neighbours"]: row for row in privacy.table(run)}
    aligned, tenth = rows["aligned"], rows["tenth"]
    assert aligned["claimed"] == pytest.approx(4.377178, rel=1e-6)
    assert aligned["threshold"] > aligned["claimed"]  # no assumption at all
    assert 0.9 * 18.0 < aligned["normal_shift"] <= aligned["exact"]
    assert 0.9 * 641 < tenth["normal_shift"] <= tenth["exact"]


def test_proven_prices():
    rows = {row.method.name: row for row in tables.TABLE2.rows if row.batch_size == tables.LARGE}

    def price(method, sigma=10.0):  # the accountant's default takes longer to compile
        return prices.proven_epsilon(method, tables.LARGE, sigma, 60_000, "pld")

    plain = price(rows["DP"].method)
    assert plain == pytest.approx(0.8744, rel=1e-3)
    assert price(tables.recentred(0.5)) == plain
    assert price(rows["DP+SUR"].method) > plain
    assert price(rows["DP+IS"].method) > 1.3 * plain
    # The noise at which selection costs as much in all as plain DP-SGD.
    assert price(rows["DP+SUR"].method, 10.2511) == pytest.approx(plain, rel=1e-3)
    assert prices.equal_sigma(tables.recentred(0.5), tables.LARGE, 10.0, 60_000) == 10.0
    geodp = rows["GeoDP β=0.1"].method
    assert price(geodp) == math.inf


def test_training_learns_and_noise_matters(run):
    data = logistic.odd_digits(images.load_mnist(run.data))
    data = images.Images(*(part[:512] for part in data))
    model = models.LogisticRegression()
    problem = training.Problem(
        model, models.binary_loss(model), lambda logit, label: (logit > 0) == label, data
    )

    def losses(method, sigma):
        numbers = training.Numbers(sigma, 1.0)
        return training.trainer(problem, method, 64)(numbers, 40, 0, record_every=39).losses

    free = losses(training.Method("free", "none"), 0.0)
    assert free[-1] < 0.8 * free[0]
    quiet = losses(training.Method("G3", "recentred", radius=1.0), 1e-6)
    assert quiet[-1] < 0.8 * quiet[0]
    assert losses(training.Method("DP"), 300.0)[-1] > free[-1]


@pytest.mark.parametrize("target", ["figure3", "figure1", "figure4", "figure6", "table2"])
def test_targets_write_what_they_promise(run, target):
    for file in common.targets("geodp")[target](run):
        if file.suffix == ".csv":
            assert len(pd.read_csv(file)) > 0
        else:
            assert file.stat().st_size > 5_000


def test_command_line_lists_refuses_and_runs(tmp_path):
    import typer
    from typer.testing import CliRunner

    from experiments.__main__ import main

    app = typer.Typer()
    app.command()(main)
    listed = CliRunner().invoke(app, ["geodp"])
    assert listed.exit_code == 0
    assert "table2" in listed.output
    assert CliRunner().invoke(app, ["geodp", "table9"]).exit_code == 2
    written = CliRunner().invoke(app, ["geodp", "report", "--out", str(tmp_path)])
    assert written.exit_code == 0
    assert (tmp_path / "README.md").is_file()
