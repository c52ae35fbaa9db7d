"""Low-rank sums under the ghost method: no copies, and the gradients of autodiff in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._numerics.scope import enable_x64
from dpjax.gradients import PerGroup, clipped_grad, low_rank_sum
from dpjax.gradients.methods import choose_clipping

RNG = np.random.default_rng(0)
BASE = RNG.normal(size=(4, 3, 2))
BATCH = RNG.normal(size=(5, 6, 4))  # six positions a record
PARAMS = {"a": RNG.normal(size=(4, 2)), "b": RNG.normal(size=(2, 6))}


def merged(params, shape=BASE.shape):
    base = jnp.asarray(BASE).astype(params["a"].dtype).reshape(shape)
    return low_rank_sum(base, params["a"], params["b"])


def dense(params, x):
    return jnp.sum(jnp.tanh(jnp.einsum("td,dhk->thk", x, merged(params))))


def cast(params, x):
    wide = merged(params).astype(jnp.float32).astype(x.dtype)
    return jnp.sum(jnp.tanh(jnp.einsum("td,dhk->thk", x, wide)))


def twice(params, x):
    w = merged(params, (4, 6))
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w.T))


def one_position(params, x):
    return jnp.sum(jnp.tanh(x[0] @ merged(params, (4, 6))))


def in_a_loop(params, x):
    w = merged(params, (4, 6))

    def step(h, row):
        return jnp.tanh(h + row @ w), None

    return jnp.sum(jax.lax.scan(step, jnp.zeros(6, x.dtype), x)[0])


def checkpointed(params, x):
    return jax.checkpoint(dense)(params, x)


def elementwise(params, x):
    return jnp.sum(x[0][:, None, None] * merged(params) ** 2)


def used_beside(params, x):
    return dense(params, x) + jnp.sum(x[:2, :2] @ params["b"])


def mixed(params, x):
    return jnp.sum(jnp.tanh(x @ merged(params).reshape(4, 6)))


def joined(params, x):
    w = jnp.concatenate([merged(params, (4, 6)), jnp.ones((4, 2), x.dtype)], axis=1)
    return jnp.sum(jnp.tanh(x @ w))


def both(loss, batch, **options):
    found = []
    for method in ("ghost", "vmap"):
        clip = jax.jit(clipped_grad(loss, 1.5, method, **options))
        found.append(clip(jax.tree.map(jnp.asarray, PARAMS), batch))
    return found


@pytest.mark.parametrize(
    ("loss", "copies"),
    [
        (dense, 0), (cast, 0), (twice, 0), (one_position, 0), (in_a_loop, 0), (checkpointed, 0),
        (elementwise, 2), (used_beside, 2), (joined, 2), (mixed, 2),
    ],
)  # fmt: skip
@pytest.mark.at_length(every=3)
def test_ghost_is_autodiff(loss, copies):
    with enable_x64():
        batch = jnp.asarray(BATCH)
        ghost, vmap = both(loss, batch)
        choice = choose_clipping("ghost", lambda p, r: (loss(p, r[0]), None), PARAMS, (batch, None))
        assert choice.method == "ghost"
        assert len(choice.plan.copied) == copies
        tolerance = 1e-6 if loss is cast else 1e-10  # its gradient goes through float32
        np.testing.assert_allclose(ghost.norms, vmap.norms, rtol=tolerance)
        assert (np.asarray(vmap.norms) > 1.5).any()
        for name in PARAMS:
            np.testing.assert_allclose(ghost.sum[name], vmap.sum[name], rtol=tolerance, atol=1e-12)


def test_the_factors_may_be_groups():
    with enable_x64():
        strategy = PerGroup(lambda path, leaf: path)
        ghost, vmap = both(dense, jnp.asarray(BATCH), clipping=strategy)
        for name in PARAMS:
            np.testing.assert_allclose(ghost.sum[name], vmap.sum[name], rtol=1e-10)


def test_low_rank_sum_is_the_sum():
    found = low_rank_sum(*(jnp.asarray(v, jnp.float32) for v in (BASE, PARAMS["a"], PARAMS["b"])))
    expected = BASE + (PARAMS["a"] @ PARAMS["b"]).reshape(BASE.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


# Kernels of three layers, [layers, rows, columns], of 4 rows and 2 · 2 columns.
LAYERS = RNG.normal(size=(3, 4, 2, 2))
STACK = {"a": RNG.normal(size=(3, 4, 2)), "b": RNG.normal(size=(3, 2, 4))}


def layered(params, x, reverse=False, remat=False):
    def block(h, w):
        return h + jnp.tanh(jnp.einsum("td,dhk->thk", h, w)).reshape(h.shape), None

    w = low_rank_sum(jnp.asarray(LAYERS).astype(x.dtype), params["a"], params["b"])
    block = jax.checkpoint(block) if remat else block
    return jnp.sum(jax.lax.scan(block, x, w, reverse=reverse)[0] ** 2)


def layers_backwards(params, x):
    return layered(params, x, reverse=True, remat=True)


def layers_of_steps(params, x):
    """Every layer is a recurrence over the positions: its kernel is used once a step."""

    def block(rows, w):
        def step(h, row):
            h = jnp.tanh(h + row @ w)
            return h, h

        return rows + jax.lax.scan(step, jnp.zeros(4, x.dtype), rows)[1], None

    w = low_rank_sum(jnp.asarray(LAYERS).reshape(3, 4, 4), params["a"], params["b"])
    return jnp.sum(jax.lax.scan(block, x, w)[0] ** 2)


def layers_by_number(params, x):
    w = low_rank_sum(jnp.asarray(LAYERS).reshape(3, 4, 4), params["a"], params["b"])
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w[0]) @ w[2]))


@pytest.mark.parametrize(
    ("loss", "copies"),
    [(layered, 0), (layers_backwards, 0), (layers_of_steps, 0), (layers_by_number, 2)],
)
def test_a_loop_over_layers_has_factors_of_its_own_for_each(loss, copies):
    with enable_x64():
        batch = jnp.asarray(BATCH) / 4
        choice = choose_clipping("ghost", lambda p, r: (loss(p, r[0]), None), STACK, (batch, None))
        assert choice.method == "ghost", choice.reason
        assert len(choice.plan.copied) == copies
        given = jax.tree.map(jnp.asarray, STACK)
        ghost, vmap = (
            jax.jit(clipped_grad(loss, 1.5, method))(given, batch) for method in ("ghost", "vmap")
        )
        np.testing.assert_allclose(ghost.norms, vmap.norms, rtol=1e-10)
        assert (np.asarray(vmap.norms) > 1.5).any()
        for name in STACK:
            np.testing.assert_allclose(ghost.sum[name], vmap.sum[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("positions", "width", "rank"), [(8, 32, 4), (64, 256, 4), (128, 64, 8)])
@pytest.mark.at_length(every=3)
def test_what_autodiff_forms_of_a_kernel_s_size_is_counted(positions, width, rank):
    """Adapters were clipped by autodiff, at several times the ghost method's cost."""
    base = jnp.zeros((width, width), jnp.float32)
    given = {"a": jnp.zeros((width, rank)), "b": jnp.zeros((rank, width))}
    batch = jnp.zeros((16, positions, width))

    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ low_rank_sum(base, params["a"], params["b"])))

    choice = choose_clipping("auto", lambda p, r: (loss(p, r[0]), None), given, (batch, None))
    assert choice.method == "ghost"
    numbers, adapter = width * width, width * rank
    # A record's gradient of the kernel: formed, written once and read twice, then times the other
    # factor; the adapter's own, written once and read twice; a pass counts as eight products.
    assert {row.parameter: row.vmap for row in choice.rows} == {
        "a": numbers * (positions + rank) + 24 * numbers + 24 * adapter,
        "b": numbers * rank + 24 * adapter,
    }
    # XLA's own count of the two programs, before it optimises them.
    flops = {
        method: jax.jit(clipped_grad(loss, 1.0, method, microbatch_size=None))
        .lower(given, batch)
        .cost_analysis()["flops"]
        for method in ("ghost", "vmap")
    }
    assert flops["ghost"] < flops["vmap"]
