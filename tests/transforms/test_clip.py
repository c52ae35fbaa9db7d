"""Per-example clipping of given gradients, against a brute-force loop."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import transforms
from dpjax.gradients import Automatic, Flat, PerGroup, PerSampleAdaptive

STRATEGIES = {
    "flat": (Flat(), lambda n, c: min(1, c / n) if n else 1),
    "auto": (Automatic(gamma=0.1), lambda n, c: c / (n + 0.1)),
    "psac": (PerSampleAdaptive(r=0.2), lambda n, c: c / (n + 0.2 / (n + 0.2))),
}


def gradients(records=6, dtype=np.float32):
    rng = np.random.default_rng(0)
    scale = np.array([0.01, 0.1, 1, 10, 100, 0.0])[:records]
    return {
        "w": jnp.asarray(rng.standard_normal((records, 4, 3)) * scale[:, None, None], dtype),
        "b": jnp.asarray(rng.standard_normal((records, 2)) * scale[:, None], dtype),
    }


def brute_force(tree, c, factor, keep):
    out = {k: np.zeros(v.shape[1:]) for k, v in tree.items()}
    for i in keep:
        g = {k: np.asarray(v[i], np.float64) for k, v in tree.items()}
        norm = np.sqrt(sum(np.sum(x**2) for x in g.values()))
        for k in g:
            out[k] += factor(norm, c) * g[k]
    return out


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("clip_norm", [0.05, 1.0, 1e6])
def test_against_a_loop(name, clip_norm):
    strategy, factor = STRATEGIES[name]
    tree = gradients()
    tx = transforms.clip_per_example(clip_norm, strategy)
    out, _ = jax.jit(tx.update)(tree, tx.init(None))
    expected = brute_force(tree, clip_norm, factor, range(6))
    chex.assert_trees_all_close(out, expected, rtol=2e-5, atol=1e-5 * min(clip_norm, 100))


def test_mask_and_nonfinite_records_contribute_zero():
    tree = gradients()
    tree["w"] = tree["w"].at[1, 0, 0].set(jnp.nan).at[2, 0, 0].set(jnp.inf)
    mask = jnp.array([True, True, True, True, False, True])
    tx = transforms.clip_per_example(1.0)
    out, _ = jax.jit(tx.update)(tree, tx.init(None), mask=mask)
    expected = brute_force(tree, 1.0, STRATEGIES["flat"][1], [0, 3, 5])
    chex.assert_trees_all_close(out, expected, rtol=2e-5, atol=1e-6)


def test_one_record_never_exceeds_the_bound():
    rng = np.random.default_rng(1)
    g = jnp.asarray(rng.standard_normal((500, 1, 1000)) * 10.0 ** rng.uniform(-3, 6, (500, 1, 1)))
    out = jax.vmap(lambda x: transforms.clip_per_example(0.3).update(x, optax.EmptyState())[0])(
        g.astype(jnp.float32)
    )
    norms = np.linalg.norm(np.asarray(out, np.float64), axis=1)
    assert norms.max() <= 0.3
    assert norms.max() > 0.3 * (1 - 1e-5)


def test_per_group_bounds():
    tree = gradients()
    out, _ = transforms.clip_per_example(1.0, PerGroup()).update(
        jax.tree.map(lambda x: x[4:5], tree), None
    )
    norms = [float(jnp.linalg.norm(x.ravel())) for x in out.values()]
    np.testing.assert_allclose(norms, [np.sqrt(0.5)] * 2, rtol=1e-5)


def test_16_bits_and_empty_batches():
    tree = jax.tree.map(lambda x: x.astype(jnp.float16), gradients())
    out, _ = transforms.clip_per_example(1.0).update(tree, None)
    assert out["w"].dtype == jnp.float32
    expected = brute_force(tree, 1.0, STRATEGIES["flat"][1], range(6))
    chex.assert_trees_all_close(out, expected, atol=3e-3)
    empty, _ = transforms.clip_per_example(1.0).update(jnp.zeros((0, 3)), None)
    np.testing.assert_array_equal(empty, np.zeros(3))


def test_in_a_chain_one_trace_whatever_the_draw():
    """The mask changes from step to step, the program does not."""
    tx = optax.chain(
        transforms.clip_per_example(1.0),
        transforms.gaussian_noise(0.0, jax.random.key(0)),
        optax.scale(-1 / 4),
    )
    params = jnp.zeros(3)
    state = tx.init(params)
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(1)
    def step(state, mask):
        return tx.update(jnp.eye(3), state, params, mask=mask)

    for n in range(3):
        update, state = step(state, jnp.arange(3) < n)
        np.testing.assert_allclose(update, -0.25 * (np.arange(3) < n), atol=1e-6)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 1e39, 1e-39])
def test_bad_clip_norm(bad):
    with pytest.raises(ValueError, match="clip_norm must"):
        transforms.clip_per_example(bad)


@pytest.mark.parametrize("bad", [{}, jnp.zeros(()), {"a": jnp.ones((2, 1)), "b": jnp.ones((3, 1))}])
def test_updates_without_records(bad):
    with pytest.raises(ValueError, match="updates"):
        transforms.clip_per_example(1.0).update(bad, None)


@pytest.mark.at_length
def test_one_record_moves_a_sum_of_16_bit_gradients_by_at_most_the_clip_norm():
    updates = jnp.full((1001, 64), 0.125, jnp.bfloat16)  # each of norm 1
    clip = transforms.clip_per_example(1.0)

    def total(records):
        found, _ = clip.update(updates, clip.init(None), mask=jnp.arange(1001) < records)
        return np.asarray(found, np.float64)

    moved = [np.linalg.norm(total(k + 1) - total(k)) for k in range(510, 530)]
    assert max(moved) <= 1.0 + 1e-5


@pytest.mark.parametrize("mask", [[True], [[True], [False]], True, [True, False, True]])
def test_a_mask_has_one_number_a_record(mask):
    """Others broadcast, and a masked record took part."""
    tx = transforms.clip_per_example(1.0)
    with pytest.raises(ValueError, match=r"mask must have shape \(2,\), got"):
        tx.update(jnp.ones((2, 3)), tx.init(jnp.zeros(3)), mask=jnp.asarray(mask))


def test_complex_gradients_are_refused():
    """Their imaginary parts were left out."""
    tx = transforms.clip_per_example(1.0)
    with pytest.raises(ValueError, match="updates must be real, got complex"):
        tx.update({"w": jnp.array([[3.0 + 4.0j]])}, tx.init({"w": jnp.zeros(1)}))
