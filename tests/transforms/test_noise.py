"""Noise transformations: right scale, a function of (key, step), any tree, any transformation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from scipy import stats

from dpjax import correlation, transforms


def key(seed=0):
    return jax.random.key(seed)


FACTORIES = {
    "gaussian": lambda scale, k: transforms.gaussian_noise(scale, k),
    "ball": lambda scale, k: transforms.ball_noise(scale, k),
    "sphere": lambda scale, k: transforms.sphere_noise(scale, k, unsafe_no_dp=True),
}
TREE = {"w": jnp.ones((130, 5)), "b": (jnp.ones(3, jnp.bfloat16), jnp.ones(()))}
every_noise = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


@pytest.mark.parametrize(("wrong", "accepted"), [(1.0, True), (0.98, False), (1.02, False)])
def test_gaussian_scale_is_accepted_when_right_and_rejected_when_wrong(wrong, accepted):
    """Chi-square test of the variance over 2^17 numbers, two-sided p = 1e-4, fixed key."""
    tx = transforms.gaussian_noise(0.7, key(1))
    zero = jnp.zeros((256, 512))
    out, _ = tx.update(zero, tx.init(zero))
    statistic = np.sum((np.asarray(out, np.float64) / (0.7 * wrong)) ** 2)
    p = 2 * min(stats.chi2.cdf(statistic, zero.size), stats.chi2.sf(statistic, zero.size))
    assert (p > 1e-4) == accepted


def test_gaussian_noise_is_normal():
    tx = transforms.gaussian_noise(2.0, key(2))
    out, _ = tx.update(jnp.full(50_000, 3.0), tx.init(None))
    assert stats.kstest(np.asarray(out), stats.norm(3, 2).cdf).pvalue > 1e-4


def test_ball_and_sphere_radius():
    zero = jnp.zeros(1000)
    for name in ("ball", "sphere"):
        tx = FACTORIES[name](3.0, key())
        norm = float(jnp.linalg.norm(tx.update(zero, tx.init(zero))[0]))
        assert 2.9 < norm <= 3.0 * (1 + 1e-6)


@every_noise
def test_noise_is_a_function_of_key_and_step(factory):
    tx = factory(1.0, key(3))
    state = tx.init(TREE)
    first, state1 = tx.update(TREE, state)
    second, _ = tx.update(TREE, state1)
    again, _ = factory(1.0, key(3)).update(TREE, transforms.NoiseState(key(3), jnp.int32(1)))
    jax.tree.map(np.testing.assert_array_equal, second, again)
    assert not np.array_equal(first["w"], second["w"])


@every_noise
def test_jit_is_eager(factory):
    tx = factory(1.0, key())
    eager, _ = tx.update(TREE, tx.init(TREE))
    jitted, _ = jax.jit(tx.update)(TREE, tx.init(TREE))
    chex.assert_trees_all_close(eager, jitted, rtol=2e-6)
    chex.assert_trees_all_equal_shapes_and_dtypes(eager, TREE)


@every_noise
def test_vmap_is_the_loop(factory):
    updates = jnp.arange(12.0).reshape(3, 4)
    keys = jax.random.split(key(), 3)

    def one(k, u):
        tx = factory(1.0, k)
        return tx.update(u, tx.init(u))[0]

    together = jax.vmap(one)(keys, updates)
    for i in range(3):
        np.testing.assert_allclose(
            together[i], one(jax.random.split(key(), 3)[i], updates[i]), 1e-6
        )


@every_noise
def test_one_trace_over_a_run(factory):
    tx = optax.chain(factory(0.1, key()), optax.sgd(0.1))
    params = jnp.zeros(5)
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(1)
    def step(params, state):
        update, state = tx.update(jnp.ones(5), state, params)
        return optax.apply_updates(params, update), state

    state = tx.init(params)
    for _ in range(4):
        params, state = step(params, state)
    assert int(state[0].step) == 4


def test_a_sweep_over_scales_is_one_vmap():
    def one(stddev):
        tx = transforms.gaussian_noise(stddev, key())
        return tx.update(jnp.zeros(100), tx.init(None))[0]

    out = jax.vmap(one)(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(out[1], 2 * out[0], rtol=1e-6)


def test_16_bit_updates_are_perturbed_before_rounding():
    """Rounding the noise alone, then adding, would leave the updates' own grid visible."""
    big = jnp.full(1000, 256.0, jnp.bfloat16)
    tx = transforms.gaussian_noise(1.0, key())
    out, _ = tx.update(big, tx.init(big))
    wide, _ = tx.update(big.astype(jnp.float32), tx.init(big))
    np.testing.assert_array_equal(out, wide.astype(jnp.bfloat16))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 1e39, 1e-39])
@every_noise
def test_bad_scale(factory, bad):
    with pytest.raises(ValueError, match=r"(noise_std|radius) must be"):
        factory(bad, key())


def test_sphere_noise_needs_the_flag():
    with pytest.raises(ValueError, match="unsafe_no_dp"):
        transforms.sphere_noise(1.0, key())


def test_arguments_are_checked_inside_a_trace_too():
    """Constants stay concrete under jit, so a bad one is still refused there."""

    def run(updates):
        tx = transforms.gaussian_noise(-1.0, key())
        return tx.update(updates, tx.init(None))[0]

    with pytest.raises(ValueError, match="noise_std must"):
        jax.jit(run)(jnp.zeros(3))


def test_a_small_leaf_takes_three_operations():
    """Read, scale, add: a tree of 1,000 leaves is traced and compiled in seconds."""
    noise = transforms.gaussian_noise(1.0, jax.random.key(0))

    def operations(number):
        leaves = [jnp.zeros((3, n % 7 + 1)) for n in range(number)]
        program = jax.jit(noise.update).lower(leaves, noise.init(leaves)).as_text()
        return sum(" = stablehlo." in line for line in program.splitlines())

    # A constant and its broadcast are in the text besides: the places, and the scale.
    assert operations(40) - operations(20) <= 20 * 5


@pytest.mark.parametrize(
    "transform",
    [
        transforms.gaussian_noise(1.0, jax.random.key(0)),
        transforms.ball_noise(0.5, jax.random.key(0)),
        transforms.spherical_noise(1.0, 1.0, 4, 0.5, jax.random.key(0), unsafe_no_dp=True),
        transforms.correlated_noise(correlation.Toeplitz((1.0, 0.5)), 1.0, jax.random.key(0)),
    ],
    ids=["gaussian", "ball", "spherical", "correlated"],
)
@pytest.mark.at_length(every=3)
def test_under_shard_map_a_device_has_the_noise_of_its_own_key(transform):
    """What varies over the devices went through a conditional whose other branch did not."""
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    leaf = jnp.ones((2, 3))

    def noisy(place):
        key = jax.random.fold_in(jax.random.key(7), place)
        return transform.update(leaf, transform.init(leaf)._replace(key=key))[0]

    own = jax.shard_map(
        lambda: noisy(jax.lax.axis_index("data"))[None], mesh=mesh, in_specs=(), out_specs=P("data")
    )
    expected = [noisy(place) for place in range(4)]
    np.testing.assert_allclose(jax.jit(own)(), np.stack(expected), rtol=1e-6)
    assert len({float(noise[0, 0]) for noise in expected}) == 4
