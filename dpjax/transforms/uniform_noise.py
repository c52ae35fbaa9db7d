"""Noise uniform in a ball, and on a sphere, which protects nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import optax

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import positive
from dpjax._numerics.directions import ball_like, sphere_like
from dpjax._numerics.typing import PRNGKey
from dpjax.transforms.noise import make_additive, refuse_unless_unsafe

if TYPE_CHECKING:
    pass


@suggests_argument_names
def ball_noise(radius: float, key: PRNGKey) -> optax.GradientTransformation:
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
        Tholeti and Kalyani 2021, "On the differentially private nature of perturbed gradient
        descent", Algorithm 1.
    """
    positive("radius", radius, allow_zero=True)
    return make_additive("ball", ball_like, radius, key)


def sphere_noise(
    radius: float, key: PRNGKey, unsafe_no_dp: bool = False
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
    return make_additive("sphere", sphere_like, radius, key)
