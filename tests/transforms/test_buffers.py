"""A state holds buffers of its own: a step that donates it deletes nothing of the caller's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import correlation, transforms

pytestmark = pytest.mark.usefixtures("lenient_promotion")

# Everything in dpjax.transforms that begins with a state, from a key.
MAKE = {
    "clip_per_example": lambda key: transforms.clip_per_example(1.0),
    "gaussian_noise": lambda key: transforms.gaussian_noise(1.0, key),
    "ball_noise": lambda key: transforms.ball_noise(1.0, key),
    "sphere_noise": lambda key: transforms.sphere_noise(1.0, key, unsafe_no_dp=True),
    "correlated_noise": lambda key: transforms.correlated_noise(
        correlation.square_root(4), 1.0, key
    ),
    "recentred_clipping": lambda key: transforms.recentred_clipping(0.5, 0.1, 8, key),
    "anisotropic_clipping": lambda key: transforms.anisotropic_clipping(2.0, 0.1, 0.1, 0.1, 8, key),
    "tangent_ball": lambda key: transforms.tangent_ball(3.0, 0.1, 8, 10.0, 0.1, key),
    "boxed_angles": lambda key: transforms.boxed_angles(1.0, 0.1, 8, 3, 10.0, 0.1, key),
    "importance_mean": lambda key: transforms.importance_mean(1.0, 0.1, 3, key),
    "selective_update": lambda key: transforms.selective_update(0.1, 1.0, 64, key, attempts=9),
    "spherical_noise": lambda key: transforms.spherical_noise(
        1.0, 1.0, 2048, 0.1, key, unsafe_no_dp=True
    ),
    "periodic_average": lambda key: transforms.periodic_average(2),
    "scale_then_privatise": lambda key: transforms.scale_then_privatise(0.1),
}
KEYS = {
    "typed": lambda: jax.random.key(7),
    "raw": lambda: jax.random.PRNGKey(7),
}


def test_no_transformation_is_left_out():
    found = set()
    for name in transforms.__all__:
        made = getattr(transforms, name)
        returned = getattr(made, "__annotations__", {}).get("return", "")
        if "Transformation" in str(returned) or str(returned) in ("Release", "Selective"):
            found.add(name)
    assert found == set(MAKE)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("name", MAKE)
def test_a_donated_state_deletes_nothing_of_the_callers(name, kind):
    key, params = KEYS[kind](), {"w": jnp.ones(3, jnp.float32)}
    tx = MAKE[name](key)
    state = tx.init(params)
    lost = jax.jit(lambda state: jax.tree.map(lambda x: x, state), donate_argnums=0)
    lost(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state) if leaf.size)
    assert not key.is_deleted()
    assert not params["w"].is_deleted()
    again = tx.init(params)  # whose key is the one that was given
    keys = [leaf for leaf in jax.tree.leaves(again) if leaf.dtype in (key.dtype, jnp.uint32)]
    for found in keys:
        if found.shape == key.shape:
            words = [np.asarray(jax.random.key_data(one)) for one in (found, key)]
            np.testing.assert_array_equal(*words)


def test_a_chain_is_read_after_a_donated_step():
    key = jax.random.key(0)
    tx = optax.chain(transforms.clip_per_example(1.0), transforms.gaussian_noise(2.0, key))
    before = transforms.released(tx)
    step = jax.jit(lambda state, g: tx.update(g, state)[1], donate_argnums=0)
    state = tx.init({"w": jnp.zeros(3)})
    for _ in range(2):
        state = step(state, {"w": jnp.ones((4, 3))})
    assert transforms.released(tx) == before
    first = tx.update({"w": jnp.ones((4, 3))}, tx.init({"w": jnp.zeros(3)}))[0]
    again = tx.update({"w": jnp.ones((4, 3))}, tx.init({"w": jnp.zeros(3)}))[0]
    np.testing.assert_array_equal(first["w"], again["w"])
