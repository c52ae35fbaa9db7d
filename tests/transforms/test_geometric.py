"""Geometric mechanisms: their definition, their sensitivity, their noise, their anchor."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import transforms
from tests.contractions import coarse_products

B, D = 4, 6


def key(seed=0):
    return jax.random.key(seed)


def make(name, noise=0.0, batch_size=B):
    return {
        "recentred": lambda: transforms.recentred_clipping(0.5, noise, batch_size, key()),
        "anisotropic": lambda: transforms.anisotropic_clipping(
            0.7, 0.4, noise, noise, batch_size, key()
        ),
        "tangent": lambda: transforms.tangent_ball(0.6, noise, batch_size, 2.0, noise, key()),
        "boxed": lambda: transforms.boxed_angles(0.3, noise, batch_size, D, 2.0, noise, key()),
    }[name]()


NAMES = ("recentred", "anisotropic", "tangent", "boxed")
every_mechanism = pytest.mark.parametrize("name", NAMES)


def example_gradients(records=B, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal((records, D)) * rng.exponential(1, (records, 1)) + 0.4)


def state_at(tx, anchor):
    return tx.init(jnp.zeros(D))._replace(anchor=jnp.asarray(anchor, jnp.float32))


ANCHOR = np.array([0.5, -0.2, 0.3, 0.4, 0.1, 0.6])


def definition(name, gradients, a):
    """Each mechanism without noise, record by record in float64, straight from its formula."""
    g = np.asarray(gradients, np.float64)
    u = a / np.linalg.norm(a)
    shrink = lambda v, r: v * min(1, r / np.linalg.norm(v))  # noqa: E731
    if name == "recentred":
        return a + sum(shrink(x - a, 0.5) for x in g) / B
    if name == "anisotropic":
        along = sum(np.clip(x @ u, -0.7, 0.7) for x in g) / B
        return along * u + sum(shrink(x - (x @ u) * u, 0.4) for x in g) / B
    length = 1 + sum(min(np.linalg.norm(x), 2) - 1 for x in g) / B
    unit = g / np.linalg.norm(g, axis=1, keepdims=True)
    if name == "tangent":
        t = np.zeros(D)
        for v in unit:
            across = v - (v @ u) * u
            t += shrink(across / np.linalg.norm(across) * np.arccos(v @ u), 0.6) / B
        return length * (np.cos(np.linalg.norm(t)) * u + np.sinc(np.linalg.norm(t) / np.pi) * t)
    e = np.eye(D)[-1]
    mirror = np.eye(D) - 2 * np.outer(u - e, u - e) / ((u - e) @ (u - e))
    mean = np.zeros(D - 1)
    for v in unit @ mirror:
        theta = [np.arctan2(np.linalg.norm(v[z + 1 :]), v[z]) for z in range(D - 2)]
        offset = np.array([*theta, np.arctan2(v[-1], v[-2])]) - np.pi / 2
        offset[-1] = (offset[-1] + np.pi) % (2 * np.pi) - np.pi
        box = 0.3 * np.pi * np.array([0.5] * (D - 2) + [1])
        mean += np.clip(offset, -box, box) / B
    theta = mean + np.pi / 2
    v = np.append(np.cos(theta), 1) * np.append(1, np.cumprod(np.sin(theta)))
    return length * (mirror @ v)


@every_mechanism
def test_against_the_definition(name):
    tx, g = make(name), example_gradients()
    out, state = jax.jit(tx.update)(g, state_at(tx, ANCHOR))
    np.testing.assert_allclose(out, definition(name, g, ANCHOR), atol=3e-6)
    np.testing.assert_array_equal(state.anchor, out)  # the next anchor is what was released


@every_mechanism
def test_masked_and_nonfinite_records_are_absent(name):
    tx, g = make(name), example_gradients(B + 3)
    bad = g.at[B].set(jnp.nan).at[B + 1, 0].set(jnp.inf)
    out, _ = jax.jit(tx.update)(bad, state_at(tx, ANCHOR), mask=jnp.arange(B + 3) < B + 2)
    np.testing.assert_allclose(out, definition(name, g[:B], ANCHOR), atol=3e-6)


@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize("name", ["recentred", "anisotropic"])
def test_one_record_moves_the_average_within_the_sensitivity(name, exchange):
    """Any record, against none or any other: extreme, opposite, tiny; batch of one more."""
    tx = make(name)
    rng = np.random.default_rng(1)
    a = np.asarray(rng.standard_normal((300, D)) * 10.0 ** rng.uniform(-3, 6, (300, 1)), np.float32)
    b = -a if exchange else np.full_like(a, np.nan)
    run = jax.jit(jax.vmap(lambda x: tx.update(x[None], state_at(tx, ANCHOR))[0]))
    moved = np.asarray(run(jnp.asarray(a)), np.float64) - np.asarray(run(jnp.asarray(b)))
    factor = 2 if exchange else 1
    if name == "recentred":
        assert np.linalg.norm(moved, axis=1).max() <= factor * 0.5 / B * (1 + 1e-6)
        assert np.linalg.norm(moved, axis=1).max() > factor * 0.5 / B * 0.8
    else:
        u = ANCHOR / np.linalg.norm(ANCHOR)
        along = moved @ u
        across = np.linalg.norm(moved - along[:, None] * u, axis=1)
        assert np.abs(along).max() <= factor * 0.7 / B * (1 + 2e-6)
        assert across.max() <= factor * 0.4 / B * (1 + 2e-6)


def test_sensitivity_of_directions_and_lengths():
    """With one record and B = 1 the term itself is the output: its size is bounded as stated."""
    rng = np.random.default_rng(2)
    g = jnp.asarray(rng.standard_normal((300, 1, D)) * 10.0 ** rng.uniform(-3, 3, (300, 1, 1)))
    u = ANCHOR / np.linalg.norm(ANCHOR)
    tx = make("tangent", batch_size=1)
    out = jax.jit(jax.vmap(lambda x: tx.update(x, state_at(tx, ANCHOR))[0]))(g)
    lengths = np.linalg.norm(out, axis=1)
    assert lengths.max() <= 2.0 * (1 + 1e-6)
    angles = np.arccos(np.clip((np.asarray(out) / lengths[:, None]) @ u, -1, 1))
    assert angles.max() <= 0.6 + 1e-3
    assert np.sum(angles > 0.599) > 100


def average_move(tx, one, other, anchor, steps=20_000):
    """How far the mean of the releases moves, and its standard error, over paired noise.

    What is rounded before the noise moves by whole steps of its grid. What is rounded after it is
    spread over the grid by the noise, and the mean moves as the sum before the noise did.
    """
    state = tx.init(jnp.zeros(one.shape[1:]))
    state = state._replace(anchor=jnp.asarray(anchor, jnp.float32))

    def difference(step):
        now = state._replace(noise=transforms.NoiseState(key(), step))
        return tx.update(one, now)[0] - tx.update(other, now)[0]

    moved = np.asarray(jax.jit(jax.vmap(difference))(jnp.arange(steps)), np.float64)
    return np.abs(moved.mean(axis=0)), moved.std(axis=0) / math.sqrt(steps)


def test_a_direction_whose_squares_vanish_is_clipped():
    """Opposite to the anchor but for numbers whose squares are below float32's least one."""
    tx = transforms.tangent_ball(0.3, 0.0, 100, 1.0, 0.0, jax.random.key(0))
    u = jnp.zeros(1000).at[0].set(1.0)
    g = jnp.full(1000, 0.8e-19).at[0].set(-1.0).at[1].set(2e-19)
    out, _ = tx.update(g[None], state_at(tx, u))
    assert 0.99 * 0.3 / 100 < transforms.angle_between(out, u) <= 0.3 / 100


def test_an_anchor_whose_squares_vanish_has_a_direction_of_length_one():
    """All but one of its numbers have squares below float32's least one."""
    tiny = np.full(1000, 1e-19).astype(np.float32)
    tiny[0] = 1.2e-19
    tx = transforms.anisotropic_clipping(1e-3, 1.0, 0.0, 0.0, 1, key())
    state = tx.init(jnp.zeros(1000))._replace(anchor=jnp.asarray(tiny))
    out, _ = tx.update(jnp.asarray(1e20 * tiny)[None], state)
    assert np.linalg.norm(out) == pytest.approx(1e-3, rel=1e-4)
    a, b = jnp.full(5, 1e-30), jnp.full(5, 1e30).at[1:].set(0.0)
    assert transforms.angle_between(a, b) == pytest.approx(math.acos(5**-0.5), rel=1e-6)


@pytest.mark.parametrize("name", ["tangent", "boxed"])
def test_a_release_of_length_zero_is_not_the_last(name):
    """Records without gradients, no noise: there is no direction to take the next ones about."""
    if name == "tangent":
        tx = transforms.tangent_ball(3.0, 0.0, 2, 10.0, 0.0, jax.random.key(0))
    else:
        tx = transforms.boxed_angles(1.0, 0.0, 2, 3, 10.0, 0.0, jax.random.key(0))
    out, state = tx.update(jnp.zeros((2, 3)), tx.init(jnp.zeros(3)))
    assert not np.any(out)
    g = jnp.tile(jnp.array([2.0, 3.0, 6.0]), (2, 1))
    out, _ = tx.update(g, state)
    np.testing.assert_allclose(out, [2.0, 3.0, 6.0], rtol=1e-5)


def test_a_far_anchor_does_not_round_the_sum_before_the_noise():
    """At 1e5 float32 numbers are 1/128 apart: .0125 rounded on that grid is .015625."""
    far = 1e5
    tx = transforms.recentred_clipping(0.05, 0.02, B, key())
    with_record, without = jnp.full((1, 1), 2 * far), jnp.full((1, 1), jnp.nan)
    moved, error = average_move(tx, with_record, without, [far])
    assert error < 0.02 * 0.05 / B
    assert moved <= 0.05 / B + 4 * error
    assert moved >= 0.05 / B - 4 * error


def test_half_the_clip_norm_does_not_round_the_length_before_the_noise():
    """Of 10 million records one moves the length by 5e-8; numbers above 1/2 are 6e-8 apart."""
    batch, noise = 10**7, 2e-7
    tx = transforms.tangent_ball(0.5, 0.0, batch, 1.0, noise, key())
    with_record, without = jnp.array([[9.0, 0.0]]), jnp.full((1, 2), jnp.nan)
    moved, error = average_move(tx, with_record, without, [1.0, 0.0])
    assert error[0] < 0.03 * 0.5 / batch
    assert moved[0] == pytest.approx(0.5 / batch, abs=4 * error[0])


@every_mechanism
@pytest.mark.at_length(every=3)
def test_noise_has_the_stated_scale(name):
    """No record at all: what remains is anchor plus noise, measured over 4,000 steps."""
    noise = 0.01
    tx = make(name, noise)
    empty = jnp.full((1, D), jnp.nan)

    def one(step):
        state = state_at(tx, ANCHOR)
        state = state._replace(noise=transforms.NoiseState(key(), step))
        return tx.update(empty, state)[0]

    out = np.asarray(jax.jit(jax.vmap(one))(jnp.arange(4000)), np.float64)
    u = ANCHOR / np.linalg.norm(ANCHOR)
    if name == "recentred":
        offsets = (out - ANCHOR).ravel()
    elif name == "anisotropic":
        offsets = out.ravel()
    else:
        lengths = np.linalg.norm(out, axis=1)
        assert np.std(lengths) == pytest.approx(noise, rel=0.06)
        assert np.mean(lengths) == pytest.approx(1.0, abs=1e-3)
        across = out / lengths[:, None]
        across = across - (across @ u)[:, None] * u
        offsets = np.sqrt(np.sum(across**2, axis=1) / (D - 1))
        assert np.sqrt(np.mean(offsets**2)) == pytest.approx(noise, rel=0.03)
        return
    assert np.std(offsets) == pytest.approx(noise, rel=0.02)


@every_mechanism
def test_released_prices_the_step(name):
    """What a transformation says it releases is what the accountant takes, field by field."""
    tx = make(name, 0.25)
    step = acc.Composed(tuple(getattr(acc, n)(**fields) for n, fields in tx.released.items()))
    mu = {
        "recentred": 0.5 / B / 0.25,
        "anisotropic": math.hypot(0.7, 0.4) / B / 0.25,
        "tangent": math.hypot(0.6 / B / 0.25, 1.0 / B / 0.25),
        "boxed": math.hypot(math.sqrt(D + 2) * 0.3 * math.pi / (2 * B) / 0.25, 1.0 / B / 0.25),
    }[name]
    expected = acc.epsilon(acc.Gaussian(1 / mu), delta=1e-5)
    assert acc.epsilon(step, delta=1e-5) == pytest.approx(expected, rel=1e-3)


@every_mechanism
@pytest.mark.at_length(every=3)
def test_trees_and_dtypes(name):
    tx = make(name)
    g = example_gradients()
    tree = {"a": g[:, :2].reshape(B, 1, 2), "b": g[:, 2:].astype(jnp.bfloat16)}
    params = {"a": jnp.zeros((1, 2)), "b": jnp.zeros(4, jnp.bfloat16)}
    out, state = tx.update(tree, tx.init(params))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), out) == jax.tree.map(
        lambda x: (x.shape, x.dtype), params
    )
    assert state.anchor["b"].dtype == jnp.float32
    flat, _ = tx.update(g, tx.init(jnp.zeros(D)))
    np.testing.assert_allclose(np.concatenate([np.ravel(out["a"]), out["b"]]), flat, atol=0.02)


def test_shrinking_beats_the_noisy_mean():
    """James and Stein: a smaller squared error for every truth, by much when the anchor is near."""
    truth, anchor = jnp.ones(50), jnp.full(50, 1.1)
    noisy = truth[None] + 0.5 * jax.random.normal(key(3), (2000, 50))
    shrunk = jax.vmap(lambda x: transforms.shrink_towards(x, anchor, 0.5))(noisy)
    error = lambda x: float(jnp.mean(jnp.sum((x - 1) ** 2, -1)))  # noqa: E731
    assert error(shrunk) < 0.15 * error(noisy)
    np.testing.assert_array_equal(transforms.shrink_towards(anchor, anchor, 0.5), anchor)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda: transforms.recentred_clipping(0.0, 1.0, 4, key()), "radius must"),
        (lambda: transforms.recentred_clipping(1.0, -1.0, 4, key()), "noise_std must"),
        (lambda: transforms.recentred_clipping(1.0, 1.0, 0, key()), "batch_size must"),
        (
            lambda: transforms.recentred_clipping(1.0, 1.0, 4, key(), anchor_decay=1.0),
            "anchor_decay must",
        ),
        (lambda: transforms.tangent_ball(4.0, 1.0, 4, 1.0, 1.0, key()), "radius must"),
        (lambda: transforms.boxed_angles(1.5, 1.0, 4, D, 1.0, 1.0, key()), "bounding_factor must"),
        (lambda: transforms.boxed_angles(0.5, 1.0, 4, 1, 1.0, 1.0, key()), "dimension must"),
        (lambda: transforms.spherical_noise(1.0, 1.0, 4, 0.1, key()), "unsafe_no_dp"),
    ],
)
def test_bad_arguments(change, match):
    with pytest.raises(ValueError, match=match):
        change()


def test_boxed_angles_refuses_another_dimension():
    tx = make("boxed")
    with pytest.raises(ValueError, match=f"got {D}"):
        tx.update(jnp.ones((2, D + 1)), tx.init(jnp.zeros(D + 1)))


@every_mechanism
def test_no_product_is_coarse(name):
    """A clipped term rounded to TF32 or bfloat16 leaves its ball by a thousandth and more."""
    tx = make(name)
    state = tx.init(jnp.zeros(D))
    assert coarse_products(lambda g: tx.update(g, state), example_gradients()) == []


@every_mechanism
def test_masks_of_other_shapes_and_what_is_not_real_are_refused(name):
    tx = make(name)
    state = tx.init(jnp.zeros(D))
    for mask in (jnp.ones((B, 1), bool), jnp.ones(1, bool)):
        with pytest.raises(ValueError, match=r"mask must have shape \(4,\), got"):
            tx.update(example_gradients(), state, mask=mask)
    with pytest.raises(ValueError, match="updates must be real, got complex"):
        tx.update(example_gradients().astype(jnp.complex64), state)
    with pytest.raises(ValueError, match="params must be of floats, got int32"):
        tx.init(jnp.zeros(D, jnp.int32))


@every_mechanism
@pytest.mark.at_length(every=3)
def test_no_records_are_as_one_that_is_masked(name):
    tx = make(name, noise=0.1)
    state = tx.init(jnp.zeros(D))
    none, _ = tx.update(jnp.zeros((0, D)), state)
    masked, _ = tx.update(jnp.ones((1, D)), state, mask=jnp.zeros(1, bool))
    np.testing.assert_array_equal(none, masked)
