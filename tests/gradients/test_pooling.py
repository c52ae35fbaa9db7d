"""Poolings of maxima by slices give what XLA's own give, ties and NaN included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import clipped_grad
from dpjax.gradients.ghost import programs, rules


def pooled(x, window, strides=(1, 1), padding="VALID", base=(1, 1), dilation=(1, 1)):
    return jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, window, strides, padding, base_dilation=base,
        window_dilation=dilation,
    )  # fmt: skip


SETTINGS = {
    "overlapping": {"window": (2, 2)},
    "apart": {"window": (3, 2), "strides": (3, 2)},
    "padded": {"window": (3, 3), "strides": (2, 2), "padding": "SAME"},
    "padded on one side": {"window": (2, 3), "padding": ((1, 0), (0, 2))},
    "cut off": {"window": (2, 2), "padding": ((-1, 0), (0, -1))},
    "dilated": {"window": (2, 3), "dilation": (2, 1), "strides": (1, 2)},
    "spread": {"window": (3, 3), "base": (2, 2)},
    "whole": {"window": (7, 6)},
}


def the_equation(**setting):
    program, _ = programs.trace(
        lambda x: pooled(x, **setting), jax.ShapeDtypeStruct((7, 6), jnp.float32)
    )
    (eqn,) = [e for e in program.equations if e.name == rules.POOLING]
    return eqn


def by_hand(x, weights, p):
    """(largest entries, their derivative): the first of equal ones counts."""
    values, back = np.full(weights.shape, -np.inf), np.zeros(x.shape)
    for out in np.ndindex(weights.shape):
        first = None
        for place in np.ndindex(p["window_dimensions"]):
            at = [
                o * s + k * d - low
                for o, s, k, d, (low, _) in zip(
                    out, p["window_strides"], place, p["window_dilation"], p["padding"], strict=True
                )
            ]
            if any(a % b for a, b in zip(at, p["base_dilation"], strict=True)):
                continue
            at = tuple(a // b for a, b in zip(at, p["base_dilation"], strict=True))
            inside = all(0 <= a < n for a, n in zip(at, x.shape, strict=True))
            if inside and x[at] > values[out]:
                values[out], first = x[at], at
        if first is not None:
            back[first] += weights[out]
    return values, back


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.at_length(every=5)
def test_values_and_derivatives(setting):
    eqn = the_equation(**setting)
    evaluate = rules.find_quick_pooling(eqn)
    assert evaluate is not None
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 64, eqn.outs[0].shape)  # exact sums
    # whole numbers from a few: most windows hold equal entries
    for x in (rng.integers(-1, 2, (7, 6)), rng.integers(-99, 99, (7, 6)), np.zeros((7, 6))):
        values, derivative = by_hand(x, weights, eqn.params)
        ours, back = jax.vjp(lambda x: evaluate([x])[0], jnp.asarray(x, jnp.float32))
        np.testing.assert_array_equal(ours, values)
        np.testing.assert_array_equal(back(jnp.asarray(weights, jnp.float32))[0], derivative)
        if setting in (SETTINGS["dilated"], SETTINGS["cut off"]):
            continue  # JAX has no derivative there
        theirs, back = jax.vjp(lambda x: eqn.evaluate([x])[0], jnp.asarray(x, jnp.float32))
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(back(jnp.asarray(weights, jnp.float32))[0], derivative)


def test_what_is_not_finite_stays():
    eqn = the_equation(window=(2, 2))
    x = jnp.arange(42, dtype=jnp.float32).reshape(7, 6)
    for place in ((0, 0), (3, 3), (6, 5)):
        for value in (jnp.nan, jnp.inf, -jnp.inf):
            damaged = x.at[place].set(value)
            np.testing.assert_array_equal(
                rules.find_quick_pooling(eqn)([damaged])[0], eqn.evaluate([damaged])[0]
            )


def test_large_windows_whole_numbers_and_other_backends_are_left_alone(monkeypatch):
    program, _ = programs.trace(
        lambda x: jax.lax.reduce_window(x, jnp.int32(-9), jax.lax.max, (2,), (1,), "VALID"),
        jax.ShapeDtypeStruct((5,), jnp.int32),
    )
    assert all(rules.find_quick_pooling(eqn) is None for eqn in program.equations)
    program, _ = programs.trace(
        lambda x: pooled(x, (9, 9)), jax.ShapeDtypeStruct((9, 9), jnp.float32)
    )
    assert all(rules.find_quick_pooling(eqn) is None for eqn in program.equations)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert rules.find_quick_pooling(the_equation(window=(2, 2))) is None


def test_windows_that_do_not_fit_and_dtypes_without_infinity_are_left_alone():
    """Slices of a window beyond the operand are an error, and -inf is NaN in such a dtype."""

    def at_most(x):
        return jax.lax.reduce_window(x, jnp.finfo(x.dtype).min, jax.lax.max, (2,), (1,), "SAME")

    def loss(w, x):
        none = pooled(w * x, (3, 2), strides=(4, 1))
        return jnp.sum(at_most((w * x[0]).astype(jnp.float8_e4m3fn)).astype(w.dtype)) + none.sum()

    records = jnp.array([[[1.0, 2.0, -1.0]], [[-4.0, 8.0, 0.5]]])
    out = clipped_grad(loss, 100.0, "ghost")(jnp.float32(1.0), records)
    np.testing.assert_allclose(out.losses, [3.0, 16.5])  # every number has an exact float8
    np.testing.assert_allclose(out.norms, [3.0, 16.5], rtol=1e-6)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "within a function"])
@pytest.mark.at_length(every=2)
def test_a_clipped_sum_is_that_of_copies(wrapped):
    pool = jax.jit(lambda x: pooled(x, (2, 2))) if wrapped else lambda x: pooled(x, (2, 2))

    def loss(w, x):
        return jnp.sum(jnp.square(pool(jax.nn.relu(w["in"] @ x)) @ w["out"]))

    keys = jax.random.split(jax.random.key(0), 3)
    w = {"in": jax.random.normal(keys[0], (5, 4)), "out": jax.random.normal(keys[1], (5, 3))}
    records = jnp.round(jax.random.normal(keys[2], (6, 4, 6)) * 2)
    records = records.at[2, 1, 1].set(jnp.nan)

    def run(method):
        return clipped_grad(loss, 0.7, method)(w, records)

    text = jax.jit(lambda: run("ghost").sum).lower().as_text()
    assert "select_and_scatter" not in text
    # and the test sees it where it is
    assert "select_and_scatter" in jax.jit(lambda: run("vmap").sum).lower().as_text()
    ghost, copies = run("ghost"), run("vmap")
    np.testing.assert_allclose(ghost.norms, copies.norms, rtol=1e-5)
    for name in w:
        np.testing.assert_allclose(ghost.sum[name], copies.sum[name], rtol=1e-5, atol=1e-6)
