"""Outside a compiled program a step compiles what it needs once, not at every call."""

import jax
import jax.numpy as jnp
import pytest

from dpjax import correlation, gradients, transforms

PARAMS = {"w": jnp.ones((5, 3)), "b": jnp.ones(3)}
BATCH = jax.tree.map(lambda x: jnp.stack([x] * 4), PARAMS)
KEY = jax.random.key(0)
POINT = transforms.Spherical(jnp.float32(2.0), jnp.linspace(0.1, 1.0, 17))


def compiled(caplog, call):
    """The names of the programs that a call compiles."""
    caplog.clear()
    with jax.log_compiles():
        jax.block_until_ready(call())
    return [r.getMessage() for r in caplog.records if "XLA compilation" in r.getMessage()]


def stepping(tx, updates):
    state = tx.init(PARAMS)

    def step():
        nonlocal state
        out, state = tx.update(updates, state, PARAMS)
        return out

    return step


def loss(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"]) @ params["b"])


CASES = {
    "gaussian": lambda: stepping(transforms.gaussian_noise(1.0, KEY), PARAMS),
    "ball": lambda: stepping(transforms.ball_noise(1.0, KEY), PARAMS),
    "banded": lambda: stepping(
        transforms.correlated_noise(correlation.Toeplitz([1.0, 0.5]), 1.0, KEY), PARAMS
    ),
    "drawn again": lambda: stepping(
        transforms.correlated_noise(correlation.BandedInverse([1.0, -0.5]), 1.0, KEY), PARAMS
    ),
    "tree": lambda: stepping(transforms.correlated_noise(correlation.Tree(), 1.0, KEY), PARAMS),
    "clip": lambda: stepping(transforms.clip_per_example(1.0), BATCH),
    "recentred": lambda: stepping(transforms.recentred_clipping(1.0, 0.1, 4, KEY), BATCH),
    "tangent ball": lambda: stepping(transforms.tangent_ball(0.1, 0.1, 4, 1.0, 0.1, KEY), BATCH),
    "boxed angles": lambda: stepping(
        transforms.boxed_angles(0.1, 0.1, 4, 18, 1.0, 0.1, KEY), BATCH
    ),
    "anisotropic": lambda: stepping(
        transforms.anisotropic_clipping(1.0, 0.1, 0.1, 0.2, 4, KEY), BATCH
    ),
    "spherical": lambda: stepping(
        transforms.spherical_noise(1.0, 1.0, 4, 0.1, KEY, unsafe_no_dp=True), PARAMS
    ),
    "to spherical": lambda: lambda: transforms.to_spherical(PARAMS),
    "from spherical": lambda: lambda: transforms.from_spherical(POINT, PARAMS),
    "clipped gradient": lambda: (
        lambda: gradients.clipped_grad(loss, clip_norm=1.0)(PARAMS, jnp.ones((8, 5)))
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.at_length(every=3)
def test_a_later_call_compiles_nothing(name, caplog, lenient_promotion):
    call = CASES[name]()
    call()
    call()  # the first step's state may differ in kind from the next ones'
    assert compiled(caplog, call) == []


def test_what_is_compiled_anew_is_seen(caplog):
    assert compiled(caplog, lambda: jax.jit(lambda x: x + 17)(jnp.ones(7)))
