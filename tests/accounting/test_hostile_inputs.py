"""Every field and every argument against hostile values: a clear error or a right answer."""

from __future__ import annotations

import dataclasses
import decimal
import fractions
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting import geodp, geometric
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.last_iterate import descent_bounds
from dpjax.accounting.tracing_diffusion import tracing_rate
from tests.accounting.mechanism_examples import EXAMPLES

# Values, and whether they are numbers at all.
_HOSTILE = {
    "None": None,
    "nan": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
    "-1": -1,
    "0": 0,
    "10**400": 10**400,
    "10**5000": 10**5000,
    "text": "text",
    "number as text": "1.0",
    "bytes": b"bytes",
    "[]": [],
    "{}": {},
    "object": object(),
    "True": True,
    "np.True_": np.True_,
    "1j": 1j,
    "empty": np.array([]),
    "texts": np.array(["a"]),
    "objects": np.array([None]),
    "bools": np.array([True]),
    "Fraction": fractions.Fraction(-5),
    "Decimal": decimal.Decimal(-5),
    "jnp.nan": jnp.float32(jnp.nan),
    "jnp -1": jnp.array([0.5, -1.0]),
    "jnp bool": jnp.array(True),
    "key": jax.random.key(0),
    "ragged": [[1.0], [1.0, 2.0]],
    "list with None": [0.5, None],
    "list with nan": [0.5, np.nan],
    "function": abs,
    "type": float,
    "mechanism": acc.Gaussian(1.0),
}
_NO_NUMBER = {
    "None", "text", "number as text", "bytes", "{}", "object", "True", "np.True_", "1j", "texts",
    "objects", "bools", "Fraction", "Decimal", "jnp bool", "key", "ragged", "list with None",
    "function", "type", "mechanism",
}  # fmt: skip
_NEVER = {"nan", "-inf", "10**400", "10**5000", "jnp.nan", "list with nan"}
_VALUES = pytest.mark.parametrize("label", _HOSTILE)


def _outcome(name, label, call):
    """The answer, or None after an error that names the argument."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return call(_HOSTILE[label])
    except (TypeError, ValueError) as error:
        found = error
    assert name in str(found), f"{label}: {found}"
    assert len(str(found)) < 500
    assert label not in _NO_NUMBER or isinstance(found, TypeError)
    return None


@_VALUES
@pytest.mark.parametrize("run", EXAMPLES, ids=lambda run: type(run).__name__)
def test_every_field(run, label):
    for field in dataclasses.fields(run):
        if (field.default, label) == (None, "None"):
            continue

        def build(value, name=field.name):
            return dataclasses.replace(run, **{name: value})

        if field.name not in type(run)._ranges:
            name = f"{type(run).__name__}.{field.name}" if type(run) is not acc.GeoDP else "GeoDP"
            if isinstance(getattr(run, field.name), acc.Mechanism) and label == "mechanism":
                continue
            if (field.name, label) == ("mechanisms", "[]") or (field.type, label) == (
                "bool",
                "True",
            ):
                continue
            with pytest.raises((TypeError, ValueError), match=name):
                build(_HOSTILE[label])
            continue
        made = _outcome(field.name, label, build)
        if made is None:
            continue
        assert label not in _NO_NUMBER | _NEVER
        numbers = np.asarray(getattr(made, field.name), np.float64)
        assert np.all(type(run)._ranges[field.name].holds(numbers))


_RUN = acc.Repeated(acc.Gaussian(2.0), 3)


def _geodp(name, value):
    settings = {"noise_multiplier": 1.0, "bounding_factor": 0.1, "batch_size": 10, "clip_norm": 1.0}
    one, other = np.array([1.0, 0.0]), np.array([0.8, 0.6])
    return geodp.published_geodp_mu(one, other, **(settings | {name: value}))


_QUESTIONS = {
    "epsilon": ("delta", lambda v: acc.epsilon(_RUN, v)),
    "delta": ("epsilon", lambda v: acc.delta(_RUN, v)),
    "rdp": ("orders", lambda v: acc.rdp(_RUN, v)),
    "tradeoff": ("false_positive_rates", lambda v: acc.tradeoff(_RUN, v)),
    "epsilon_interval": ("delta", lambda v: acc.epsilon_interval(_RUN, v)),
    "price": ("delta", lambda v: acc.price(_RUN, v)[0]),
    "certify": ("delta", lambda v: acc.certify(_RUN, v).epsilon),
    "certify.extra": (
        "extra_delta",
        lambda v: acc.certify(_RUN, 1e-5, extra_delta={"a": v}).epsilon,
    ),
    "calibrate.epsilon": ("epsilon", lambda v: acc.calibrate(acc.Gaussian, epsilon=v, delta=1e-5)),
    "calibrate.delta": ("delta", lambda v: acc.calibrate(acc.Gaussian, epsilon=1.0, delta=v)),
    "rdp_to_epsilon.orders": ("orders", lambda v: acc.rdp_to_epsilon(v, 1.0, 1e-5)),
    "rdp_to_epsilon.rdp": ("rdp", lambda v: acc.rdp_to_epsilon(2.0, v, 1e-5)),
    "rdp_to_epsilon.delta": ("delta", lambda v: acc.rdp_to_epsilon(2.0, 1.0, v)),
    "zcdp_to_epsilon.rho": ("rho", lambda v: acc.zcdp_to_epsilon(v, 1e-5)),
    "zcdp_to_epsilon.delta": ("delta", lambda v: acc.zcdp_to_epsilon(0.1, v)),
    "gaussian_dp.delta.mu": ("mu", lambda v: gaussian_dp.delta(v, 1.0)),
    "gaussian_dp.delta.epsilon": ("epsilon", lambda v: gaussian_dp.delta(1.0, v)),
    "gaussian_dp.epsilon.mu": ("mu", lambda v: gaussian_dp.epsilon(v, 1e-5)),
    "gaussian_dp.epsilon.delta": ("delta", lambda v: gaussian_dp.epsilon(1.0, v)),
    "gaussian_dp.mu.epsilon": ("epsilon", lambda v: gaussian_dp.mu(v, 1e-5)),
    "gaussian_dp.mu.delta": ("delta", lambda v: gaussian_dp.mu(1.0, v)),
    "ball_delta.displacement": ("displacement", lambda v: geometric.ball_delta(v, 3)),
    "ball_delta.dimension": ("dimension", lambda v: geometric.ball_delta(0.1, v)),
    "ball_displacement.delta": ("delta", lambda v: geometric.ball_displacement(v, 3)),
    "ball_displacement.dimension": ("dimension", lambda v: geometric.ball_displacement(0.1, v)),
    "calibrate.bounds.low": (
        "bounds",
        lambda v: acc.calibrate(acc.Gaussian, epsilon=1.0, delta=1e-5, bounds=(v, 10.0)),
    ),
    "calibrate.bounds.high": (
        "bounds",
        lambda v: acc.calibrate(acc.Gaussian, epsilon=1.0, delta=1e-5, bounds=(0.1, v)),
    ),
    **{
        f"published_geodp_mu.{name}": (name, functools.partial(_geodp, name))
        for name in ("noise_multiplier", "bounding_factor", "batch_size", "clip_norm")
    },
}


@_VALUES
@pytest.mark.parametrize("question", _QUESTIONS)
def test_every_argument(question, label):
    name, ask = _QUESTIONS[question]
    # None is as if it were not given.
    if question in ("calibrate.epsilon", "calibrate.delta") and label == "None":
        with pytest.raises(ValueError, match=name):
            ask(None)
        return
    found = _outcome(name, label, ask)
    if found is None:
        return
    assert label not in _NO_NUMBER | {"nan", "10**400", "10**5000", "jnp.nan", "list with nan"}
    for answer in found if isinstance(found, tuple) else (found,):
        assert not np.any(np.isnan(answer))
        assert np.all(np.asarray(answer) >= 0)


@_VALUES
@pytest.mark.parametrize(
    "question",
    ["epsilon", "delta", "epsilon_interval", "rdp", "tradeoff", "price", "certify", "gdp_mu"],
)
def test_what_is_no_mechanism_is_refused(question, label):
    if label == "mechanism":
        return
    ask = getattr(acc, question)
    with pytest.raises(TypeError, match="run must be a mechanism"):
        ask(_HOSTILE[label], *([] if question == "gdp_mu" else [0.5]))


@_VALUES
def test_what_is_no_adjacency_or_method_is_refused(label):
    value = _HOSTILE[label]
    with pytest.raises((TypeError, ValueError), match="adjacency must be"):
        acc.epsilon(_RUN, 1e-5, adjacency=value)
    with pytest.raises((TypeError, ValueError), match="method must be"):
        acc.epsilon(_RUN, 1e-5, method=value)


def test_compositions_inside_a_sample_are_priced_or_refused_in_words():
    sampled = acc.PoissonSampled(acc.Gaussian(1.0), 0.1)
    for inner in (acc.Composed((acc.Gaussian(1.0), sampled)), acc.Repeated(sampled, 3)):
        for adjacency in acc.Adjacency:
            with pytest.raises(acc.UnsupportedQuery, match="PoissonSampled"):
                acc.epsilon(acc.PoissonSampled(inner, 0.5), 1e-5, adjacency=adjacency)


def test_shapes_that_do_not_broadcast_are_named():
    wide, other = np.ones(2), np.ones(3)
    with pytest.raises(ValueError, match="must broadcast"):
        acc.FixedBatchSampled(acc.Gaussian(1.0), wide, other)
    with pytest.raises(ValueError, match="must broadcast"):
        acc.epsilon(acc.Repeated(acc.Gaussian(wide), other), 1e-5)
    with pytest.raises(ValueError, match="must broadcast"):
        acc.epsilon(acc.Gaussian(wide), 1e-5 * other)


@_VALUES
def test_what_is_no_mechanism_to_calibrate_or_draw_is_refused(label):
    value = _HOSTILE[label]
    if label not in ("function", "type"):
        with pytest.raises(TypeError, match="make_mechanism must be a function"):
            acc.calibrate(value, epsilon=1.0, delta=1e-5)
    with pytest.raises((TypeError, ValueError), match="make_mechanism must return a mechanism"):
        acc.calibrate(lambda noise: value if label != "mechanism" else None, 1.0, 1e-5)
    with pytest.raises((TypeError, ValueError), match="best must be a BestOf"):
        acc.draw_trials(jax.random.key(0), value)
    if label != "key":
        with pytest.raises((TypeError, ValueError), match="key must be"):
            acc.draw_trials(value, acc.BestOf(acc.Gaussian(1.0), 3.0))
    with pytest.raises((TypeError, ValueError), match="form must be"):
        tracing_rate(acc.NoisyGradientDescent(10, 0.1, 0.1, 0.1, 1.0, 2.0), value)
    with pytest.raises((TypeError, ValueError), match="run must be a NoisyGradientDescent"):
        descent_bounds(value)


@_VALUES
def test_bounds_and_facts_are_numbers_or_refused_by_name(label):
    value = _HOSTILE[label]
    if label != "None":  # the default
        with pytest.raises((TypeError, ValueError), match="bounds must"):
            acc.calibrate(acc.Gaussian, 1.0, 1e-5, bounds=value)
    with pytest.raises(ValueError, match="bounds must rise"):
        acc.calibrate(acc.Gaussian, 1.0, 1e-5, bounds=(2.0, 1.0))
    if label not in ("text", "number as text", "-1", "0"):
        with pytest.raises((TypeError, ValueError), match="declared"):
            acc.certify(_RUN, 1e-5, declared={"fact": value})
        return
    certificate = acc.certify(_RUN, 1e-5, declared={"fact": value})
    assert acc.Certificate.from_json(certificate.to_json()).declared == {"fact": value}
