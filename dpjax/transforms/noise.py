"""Noise as a function of (key, step): Gaussian, uniform in a ball, and on a sphere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import positive
from dpjax._numerics.keys import folded
from dpjax._numerics.normal import ball_like, normal_like, sphere_like
from dpjax.transforms.released import current_reader


class NoiseState(NamedTuple):
    """The state of every transformation that draws noise.

    Fields:
        key: the secret key of the whole run; never changes.
        step: the number of draws so far.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> transforms.gaussian_noise(1.0, jax.random.key(0)).init(jnp.zeros(2)).step.item()
        0
    """

    key: PRNGKeyArray
    step: Int[Array, ""]


def noise_start(key: Any) -> Callable[[], NoiseState]:
    """The state before the first draw, for `key`, which is refused unless it is one JAX key."""
    dtype, shape = getattr(key, "dtype", None), jnp.shape(key) if hasattr(key, "dtype") else None
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (shape == () if typed else dtype == jnp.uint32 and shape in ((2,), (4,))):
        raise ValueError(
            "key must be one JAX key, such as jax.random.key(seed) or transforms.fresh_key(), got "
            f"{key!r}"
        )
    return lambda: NoiseState(key, jnp.zeros((), jnp.int32))


def refuse_unless_unsafe(what: str, instead: str, unsafe_no_dp: bool) -> None:
    """Raises ValueError unless the caller says that he knows there is no guarantee."""
    if unsafe_no_dp is not True:
        raise ValueError(
            f"{what} has no differential-privacy guarantee. Use {instead}; to reproduce published "
            "results anyway pass unsafe_no_dp=True."
        )


def fold_noise_key(
    state: NoiseState, kind: str, updates: PyTree
) -> tuple[PRNGKeyArray, NoiseState]:
    """The key of this step's noise, and the next step's state."""
    # Salted by the kind of noise and by the paths of the leaves: two transformations with one key
    # that perturb different parts of the parameters draw different noise. Whoever reads the chain
    # refuses two draws of one key and one salt.
    paths = (jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates))
    digest = hashlib.sha256("\n".join((kind, *paths)).encode()).digest()
    reader = current_reader()
    step = state.step + 1 if reader is None else reader.draw(digest, state.key, state.step)
    salt = (np.uint32(int.from_bytes(digest[start : start + 4], "big")) for start in (0, 4))
    return folded(state.key, state.step, *salt), NoiseState(state.key, step)


@suggests_argument_names
def gaussian_noise(
    stddev: float | optax.Schedule, key: PRNGKeyArray
) -> optax.GradientTransformation:
    """Add independent normal noise N(0, stddev²) to every number of the updates.

    Args:
        stddev: in units of the updates: noise multiplier × clip norm, where the updates are the sum
            that `clip_per_example` returns. May be traced, or a schedule: a function of the number
            of the step, counted from 0.
        key: a JAX key, secret, used for nothing else. `transforms.fresh_key()` draws one from the
            operating system's entropy.

    Returns:
        A transformation whose state holds the key and the step. The noise of step t is a function
        of (key, t) and of the leaves' paths: a step that is run again after a crash adds the same
        noise, not a second draw, and under `optax.multi_transform` groups with one key differ.

    Raises:
        ValueError: standard deviation negative or not finite, a key that is none (an integer).

    Guarantee:
        With updates of l2 sensitivity C, the output of a step is the Gaussian mechanism with noise
        multiplier stddev/C. The noise has its full tail (|z| to 9.3); 16-bit updates are perturbed
        in float32 and rounded after.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax import transforms
        >>> tx = optax.chain(
        ...     transforms.clip_per_example(1.0),
        ...     transforms.gaussian_noise(1.1, jax.random.key(0)),
        ...     optax.sgd(0.1 / 256),  # over the expected batch size
        ... )
        >>> tx.update({"w": jnp.ones((5, 3))}, tx.init({"w": jnp.zeros(3)}))[0]["w"].shape
        (3,)

    References:
        Dwork et al. 2006, "Our data, ourselves"; Abadi et al. 2016, Algorithm 1.
    """
    if not callable(stddev):
        positive("stddev", stddev, allow_zero=True)
    return _additive("gaussian", normal_like, stddev, key)


@suggests_argument_names
def ball_noise(radius: float, key: PRNGKeyArray) -> optax.GradientTransformation:
    """Add one draw, uniform in the ball of the given radius, to the updates as one vector.

    Args:
        radius: of the ball, in units of the updates; rounding makes it larger by up to 2e-6, never
            smaller. May be traced.
        key: a JAX key, secret, used for nothing else.

    Raises:
        ValueError: radius negative or not finite, a key that is none.

    Guarantee:
        (0, δ)-differential privacy only, with δ the total variation distance of two balls
        `sensitivity / radius` apart; no ε > 0 improves it (`acc.UniformBall`). In d dimensions that
        takes a radius near 0.4·√d·sensitivity/δ, far more noise than a Gaussian with ε = 1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.ball_noise(2.0, jax.random.key(0))
        >>> out, _ = tx.update(jnp.zeros(10), tx.init(jnp.zeros(10)))
        >>> bool(jnp.linalg.norm(out) <= 2.0)
        True

    References:
        Tholeti and Kalyani 2021, "Privacy-preserving gradient descent with unit-ball noise".
    """
    positive("radius", radius, allow_zero=True)
    return _additive("ball", ball_like, radius, key)


def sphere_noise(
    radius: float, key: PRNGKeyArray, unsafe_no_dp: bool = False
) -> optax.GradientTransformation:
    """Add one draw, uniform on the sphere of the given radius. No privacy whatsoever.

    Args:
        radius: of the sphere, in units of the updates.
        key: a JAX key, used for nothing else.
        unsafe_no_dp: must be True.

    Raises:
        ValueError: `unsafe_no_dp` is not True, radius negative or not finite.

    Guarantee:
        None. Two spheres that do not coincide meet in a set of measure zero: the total variation
        distance of neighbours is 1, however large the radius. Its price is that of two balls that
        do not meet, `acc.UniformBall(2.0, d)`: δ = 1, and ε = +inf at every δ < 1.

    Example:
        >>> import jax
        >>> from dpjax import transforms
        >>> transforms.sphere_noise(2.0, jax.random.key(0))
        Traceback (most recent call last):
        ValueError: noise on a sphere has no differential-privacy guarantee. ...

    References:
        Tholeti and Kalyani 2021, remark on the surface of the ball.
    """
    refuse_unless_unsafe("noise on a sphere", "gaussian_noise", unsafe_no_dp)
    positive("radius", radius, allow_zero=True)
    return _additive("sphere", sphere_like, radius, key)


def _additive(
    kind: str, draw: Callable[[PRNGKeyArray, PyTree], PyTree], scale: Any, key: PRNGKeyArray
) -> optax.GradientTransformation:
    """The transformation that adds scaled draws of one kind."""
    start = noise_start(key)

    def update(updates, state, params=None):
        del params
        now, after = fold_noise_key(state, kind, updates)
        if (reader := current_reader()) is not None:
            return reader.perturb(kind, updates, scale), after
        size = scale(state.step) if callable(scale) else scale
        return add_scaled(updates, draw(now, in_float32(updates)), size), after

    return optax.GradientTransformation(lambda params: start(), update)


def in_float32(updates: PyTree) -> PyTree:
    """The shapes of the updates, 16-bit floats widened: noise is added before rounding."""
    return jax.tree.map(
        lambda u: u if u.dtype.itemsize >= 4 else jax.ShapeDtypeStruct(u.shape, jnp.float32),
        updates,
    )


def add_scaled(updates: PyTree, noise: PyTree, scale: Any) -> PyTree:
    """updates + scale·noise in the noise's dtype, then in the updates'."""
    scales = {z.dtype: jnp.asarray(scale, z.dtype) for z in jax.tree.leaves(noise)}
    return jax.tree.map(
        lambda u, z: (u.astype(z.dtype) + scales[z.dtype] * z).astype(u.dtype), updates, noise
    )
