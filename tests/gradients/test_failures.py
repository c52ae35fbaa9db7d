"""What must not go wrong silently: failures of the ghost method, bad clip norms, empty batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.gradients import (
    Automatic,
    Flat,
    PerGroup,
    Strategy,
    clipped_grad,
    explain_clipping,
    low_rank_sum,
)
from dpjax.gradients.ghost import sums

METHODS = ("vmap", "ghost")


def normal(i, *shape):
    return jax.random.normal(jax.random.key(i), shape)


def gradients_of(loss, params, batch):
    """[batch, parameters], by a loop over records."""
    gradient = jax.jit(jax.grad(loss))
    rows = []
    for i in range(len(jax.tree.leaves(batch)[0])):
        one = gradient(params, jax.tree.map(lambda x, i=i: x[i], batch))
        rows.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one)]))
    return np.array(rows, np.float64)


# -- a failure anywhere in the clipped sum falls back to vmap -------------------------------------


def differences(table, pair):
    return jnp.sum((table[pair[0]] - table[pair[1]]) ** 2)


@pytest.mark.at_length
def test_one_table_looked_up_twice():
    """u[i] − u[j]: two look-ups of one family, in all forms; equal rows cancel exactly."""
    table = normal(0, 6, 3)
    pairs = jnp.array([[0, 1], [2, 2], [3, 4], [1, 0]])

    def long(table, pair):  # enough positions for the sort
        return jnp.sum((table[jnp.tile(pair, 60)] - table[pair[1]][None]) ** 2)

    for loss in (differences, long):
        rows = gradients_of(loss, table, pairs)
        norms = np.linalg.norm(rows, axis=1)
        for method in ("auto", "ghost"):
            out = clipped_grad(loss, 3.0, method)(table, pairs)
            np.testing.assert_allclose(out.norms, norms, rtol=1e-5, atol=1e-6)
            expected = np.minimum(1, 3.0 / np.maximum(norms, 1e-30)) @ rows
            np.testing.assert_allclose(np.ravel(out.sum), expected, rtol=1e-5, atol=1e-5)


def test_a_failure_after_the_backward_pass_falls_back_too(monkeypatch, capsys):
    """The trial covers the norms and the weighted sum, not only the two passes."""

    def fail(*_):
        raise ValueError("axis 2 is out of bounds")

    params, batch = {"w": normal(0, 5, 3)}, normal(1, 4, 5)

    def loss(params, x):
        return jnp.sum(jnp.sin(x @ params["w"]))

    expected = clipped_grad(loss, 1.0, "vmap")(params, batch)
    for broken in ("_square_leaf", "_sum_leaf"):
        with monkeypatch.context() as patch:
            patch.setattr(sums, broken, fail)
            with pytest.warns(UserWarning, match="axis 2 is out of bounds"):
                out = jax.jit(clipped_grad(loss, 1.0, "ghost"))(params, batch)
            silent = jax.jit(clipped_grad(loss, 1.0, microbatch_size=3))(params, batch)
            explain_clipping(loss, params, batch)
        printed = capsys.readouterr().out.splitlines()[-1]
        assert printed.startswith("method: vmap (the ghost method failed: ValueError: axis 2")
        np.testing.assert_allclose(out.sum["w"], expected.sum["w"], rtol=1e-6)
        np.testing.assert_allclose(silent.sum["w"], expected.sum["w"], rtol=1e-6)


# -- a condition whose predicate is the same for all records --------------------------------------


def root_of(params, x):
    return jnp.sum(jnp.sqrt(x @ params["a"]))  # NaN where negative, and so is its gradient


def conditions(params, x):
    def inner(params, x):
        return jax.lax.cond(jnp.array(True), lambda: jnp.sum(x @ params["a"]), lambda: -x[0] / 0.0)

    h = jax.lax.cond(params["s"] > 0, inner, root_of, params, x)
    return h + jax.lax.switch(
        jnp.int32(1),
        [root_of, lambda p, x: jnp.sum(jnp.sin(x @ p["b"] + p["c"])), root_of],
        params,
        x,
    )


def in_a_scan(params, x):
    def step(h, t):
        h = jax.lax.cond(
            t < 1,
            lambda h: jnp.tanh(h @ params["b"]),
            lambda h: jnp.sqrt(-1 - (h @ params["b"]) ** 2),
            h,
        )
        return h, jax.lax.cond(t < 1, lambda: jnp.sum(h @ params["a"]), lambda: jnp.zeros(()))

    h, sums = jax.lax.scan(step, x, jnp.zeros(3, jnp.int32))
    return jnp.sum(h) + jnp.sum(sums)


@pytest.mark.parametrize("loss", [conditions, in_a_scan])
@pytest.mark.parametrize("method", METHODS)
def test_the_branch_not_taken_is_not_run(loss, method):
    params = {"a": normal(0, 4, 2), "b": normal(1, 4, 4), "c": normal(2, 4), "s": jnp.float32(1)}
    batch = normal(3, 6, 4)
    rows = gradients_of(loss, params, batch)
    assert np.isfinite(rows).all()
    out = jax.jit(clipped_grad(loss, 1e6, method))(params, batch)
    np.testing.assert_allclose(out.norms, np.linalg.norm(rows, axis=1), rtol=1e-5)
    total = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(out.sum)])
    np.testing.assert_allclose(total, rows.sum(0), rtol=1e-4, atol=1e-5)
    assert int(out.nonfinite) == 0


# -- clip norms that do not clip ------------------------------------------------------------------


def product(params, x):
    return jnp.sum(jnp.sin(x @ params["w"] + params["b"]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "strategy", [Flat(), Automatic(), PerGroup()], ids=lambda s: type(s).__name__
)
def test_a_traced_clip_norm_that_is_none_gives_zero(method, strategy):
    params, batch = {"b": normal(0, 2), "w": normal(1, 3, 2)}, 10 * normal(2, 5, 3)
    fn = clipped_grad(product, 1.0, method, clipping=strategy)
    run = jax.jit(jax.vmap(lambda c: fn(params, batch, clip_norm=c)))
    bad = jnp.array([jnp.nan, -1.0, -jnp.inf, jnp.inf, 0.0, 1.0])
    out = run(bad)
    norms = np.sqrt(sum(np.sum(np.reshape(x, (6, -1)) ** 2, 1) for x in jax.tree.leaves(out.sum)))
    np.testing.assert_array_equal(norms[:5], 0)
    assert out.nonfinite.tolist() == [5, 5, 5, 5, 5, 0]  # and it is seen
    assert 0 < norms[5] <= 5


class Loose(Strategy):
    """Scales every second record to twice the bound."""

    def factors(self, squared_norms, clip_norm):
        wrong = 1.0 + jnp.arange(float(squared_norms.shape[1])) % 2.0
        return wrong[None] * clip_norm / jnp.sqrt(squared_norms)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gamma", [-0.5, float("nan")])
def test_no_strategy_passes_more_than_the_bound(method, gamma):
    """Whatever factors come back, a record beyond the bound contributes zero."""
    params, batch = {"b": normal(0, 2), "w": normal(1, 3, 2)}, normal(2, 6, 3)
    out = clipped_grad(product, 0.5, method, clipping=Loose())(params, batch)
    assert int(out.nonfinite) == 3
    assert np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(out.sum))) <= 3 * 0.5
    traced = jax.jit(
        lambda g: clipped_grad(product, 0.5, method, clipping=Automatic(g))(params, batch)
    )(gamma)
    assert int(traced.nonfinite) == 6
    assert not any(leaf.any() for leaf in jax.tree.leaves(traced.sum))


# -- nothing to sum -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", *METHODS])
@pytest.mark.parametrize("microbatch_size", ["auto", None, 3])
def test_an_empty_batch_gives_a_zero_sum(method, microbatch_size):
    def loss(params, example, key):
        x, y = example
        return product(params, x * jax.random.uniform(key)) * y, {"kept": x > 0, "key": key}

    params = {"b": normal(0, 2), "n": jnp.int32(3), "w": normal(1, 3, 2)}
    batch = np.zeros((0, 3), np.float32), jnp.zeros(0)
    fn = clipped_grad(loss, 1.0, method, microbatch_size=microbatch_size, has_aux=True)
    for rng in (jax.random.key(0), jax.random.split(jax.random.key(0), 0)):
        out = jax.jit(fn)(params, batch, jnp.zeros(0, bool), rng=rng)
        assert out.sum["n"] is None
        assert out.sum["w"].shape == (3, 2)
        assert not out.sum["w"].any()
        assert not out.sum["b"].any()
        assert out.norms.shape == out.losses.shape == out.aux["key"].shape == (0,)
        assert out.aux["kept"].shape == (0, 3)
        assert int(out.nonfinite) == 0
    eager = fn(params, batch, rng=jax.random.key(1))
    assert not eager.sum["w"].any()


# -- squares that are too small for a number ------------------------------------------------------


def of_one_position(params, example):
    x, s = example
    return s * jnp.sum(x[0] @ params["w"])


def of_two_positions(params, example):
    x, s = example
    return s * jnp.sum(x @ params["w"])


def of_low_rank(params, example):
    x, s = example
    return s * jnp.sum(x[0] @ low_rank_sum(jnp.zeros((64, 400)), params["a"], params["b"]))


def of_rows(params, example):
    x, s = example
    return s * jnp.sum(params["w"][jnp.array([0, 0, 1])] * x[0, 0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", [of_one_position, of_two_positions, of_low_rank, of_rows])
@pytest.mark.at_length(every=3)
def test_a_large_input_does_not_hide_behind_a_small_cotangent(loss, method):
    """The squares of 1e-19 are zero in float32, and 1e18 times it, 400 times, is no small norm."""
    if loss is of_low_rank:
        params = {"a": jnp.ones((64, 2)) / 64, "b": jnp.ones((2, 400))}
    else:
        params = {"w": jnp.zeros((64, 400))}
    batch = jnp.full((3, 2, 64), 1e18), jnp.array([1e-19, 5e-20, 0.0])
    out = clipped_grad(loss, 0.5, method)(params, batch)
    total = np.sqrt(sum((np.asarray(x, np.float64) ** 2).sum() for x in jax.tree.leaves(out.sum)))
    assert 0.4 <= total <= 2 * 0.5 * (1 + 1e-5)
    assert not out.nonfinite


@pytest.mark.parametrize("strategy", [Flat(), Automatic(1e-20), PerGroup()])
def test_many_small_entries_are_no_gradient_of_norm_zero(strategy):
    clip_norm = 1.0 if isinstance(strategy, Automatic) else 1e-18
    fn = clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm, "vmap", clipping=strategy)
    total = np.asarray(fn(jnp.zeros(100_000), jnp.full((1, 100_000), 1e-19)).sum, np.float64)
    assert 0.9 * clip_norm <= np.sqrt((total**2).sum()) <= clip_norm * (1 + 1e-5)


BYTES = np.array([[3, 70, 3, 254, 255], [0, 1, 2, 100, 99], [255, 255, 0, 7, 7]], np.uint8)


@pytest.mark.parametrize("mode", [None, "clip"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("rows", [128, 255, 256, 257, 300, 2**16 + 1])
@pytest.mark.at_length(every=7)
def test_tokens_of_few_bits_are_rows_of_any_table(rows, dtype, mode):
    # 256 does not fit into 8 bits: as 0 it put every row outside the table, and no row was trained.
    records = (BYTES if dtype == np.uint8 and rows > 255 else BYTES % 128).astype(dtype)

    def loss(table, x):
        return jnp.sum(jnp.take(table, x, axis=0, mode=mode))

    out = clipped_grad(loss, 1e9, "ghost")(jnp.ones((rows, 2)), records)
    counts = np.stack([np.bincount(x, minlength=rows) for x in records.astype(int)])
    np.testing.assert_allclose(out.norms, np.sqrt(2.0 * (counts**2).sum(1)), rtol=1e-6)
    np.testing.assert_allclose(out.sum, np.repeat(counts.sum(0)[:, None], 2, 1), rtol=1e-6)


TURNS = np.exp(1j * np.arange(4)).astype(np.complex64)


def filtered(w, x):
    return jnp.sum(jnp.abs(jnp.fft.fft(x) @ w.astype(complex)) ** 2)


def of_complex_rows(table, x):
    turned = TURNS @ table.astype(complex)[jnp.int32(8 * jnp.abs(x))]
    return jnp.sum(jnp.abs(turned) ** 2)


@pytest.mark.parametrize("loss", [filtered, of_complex_rows])
@pytest.mark.parametrize("method", ["ghost", "auto"])
@pytest.mark.at_length(every=2)
def test_the_norm_of_a_gradient_through_complex_numbers_is_that_of_its_real_part(loss, method):
    rng = np.random.default_rng(0)
    params = rng.normal(size=(4, 40) if loss is filtered else (40, 6))
    records = rng.uniform(-2, 2, size=(6, 4))
    out = clipped_grad(loss, 1e9, method)(jnp.float32(params), jnp.float32(records))

    def value(params, x):  # the loss again, of NumPy's complex numbers
        if loss is filtered:
            return np.sum(np.abs(np.fft.fft(x) @ params) ** 2)
        rows = params[(8 * np.abs(np.float32(x))).astype(int)]
        return np.sum(np.abs(TURNS @ rows) ** 2)

    # A quadratic: central differences are its gradient.
    units = np.eye(params.size).reshape(-1, *params.shape)
    for x, norm in zip(records, out.norms, strict=True):
        slopes = [(value(params + u, x) - value(params - u, x)) / 2 for u in units]
        np.testing.assert_allclose(norm, np.linalg.norm(slopes), rtol=1e-4)
