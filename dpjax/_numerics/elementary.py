"""Logarithm, sine and cosine in float32 by polynomials: several times as fast as XLA's on a CPU."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

# Minimax polynomials, highest power first, of relative errors 2.4e-7, 2.3e-8 and 1e-7:
# log(1 + m) / m on [sqrt(1/2) - 1, sqrt(2) - 1]; sin(pi t / 4) / t and cos(pi t / 4) in t^2 <= 1.
_LOG = (
    -0.100624959,
    0.161606362,
    -0.17238664,
    0.199076297,
    -0.249718285,
    0.333348909,
    -0.500003206,
    0.999999954,
)
_SIN = (-3.58195944e-05, 0.00248976622, -0.0807453122, 0.785398146)
_COS = (-0.000317579815, 0.0158477268, -0.308423284, 0.999999902)


@jax.custom_jvp
def log_of_pair(u: Array, one_minus_u: Array) -> Array:
    """log u for 0 < u ≤ 1, from u and 1 − u, each with its own leading digits.

    Accurate relative to the logarithm itself, at both ends. u must be a normal number.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax._numerics.elementary import log_of_pair
        >>> f"{log_of_pair(jnp.float32(1 - 1e-9), jnp.float32(1e-9)):.5e}"
        '-1.00000e-09'
    """
    if u.dtype == jnp.float64:
        return jnp.where(u < 0.5, jnp.log(u), jnp.log1p(-jnp.minimum(one_minus_u, 0.5)))
    # log u = e log 2 + log(1 + m), with 1 + m in [sqrt(1/2), sqrt(2)). No test for zero, infinity
    # or NaN: half the price of the library's logarithm.
    bits = lax.bitcast_convert_type(u, jnp.int32)
    e = (bits - np.int32(0x3F3504F3)) >> 23
    m = lax.bitcast_convert_type(bits - (e << 23), jnp.float32) - np.float32(1)
    m = jnp.where(e == 0, -one_minus_u, m)
    return horner(_LOG, m) * m + e.astype(jnp.float32) * np.float32(math.log(2))


@log_of_pair.defjvp
def _log_of_pair_jvp(primals, tangents):
    u, one_minus_u = primals
    return log_of_pair(u, one_minus_u), tangents[0] / u


def sine_cosine_octant(t: Array) -> tuple[Array, Array]:
    """(sin(πt/4), cos(πt/4)) for |t| ≤ 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax._numerics.elementary import sine_cosine_octant
        >>> [f"{x:.4f}" for x in sine_cosine_octant(jnp.float32(1))]
        ['0.7071', '0.7071']
    """
    if t.dtype == jnp.float64:
        return jnp.sin(t * (math.pi / 4)), jnp.cos(t * (math.pi / 4))
    return horner(_SIN, t * t) * t, horner(_COS, t * t)


def sine_cosine(x: Array) -> tuple[Array, Array]:
    """(sin x, cos x), in float32 to 2e-7 + 1e-7·|x| (float64: as the library has them).

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax._numerics.elementary import sine_cosine
        >>> [f"{x:.4f}" for x in sine_cosine(jnp.float32(2.0))]
        ['0.9093', '-0.4161']
    """
    if x.dtype == jnp.float64:
        return jnp.sin(x), jnp.cos(x)
    quarters = jnp.round(x * np.float32(2 / math.pi))
    # π/2 in three parts, the first short enough for its product to be exact.
    rest = x - quarters * np.float32(1.5703125)
    rest = (rest - quarters * np.float32(4.837512969970703e-4)) - quarters * np.float32(
        7.549789948768648e-8
    )
    sine, cosine = sine_cosine_octant(rest * np.float32(4 / math.pi))
    quadrant = quarters.astype(jnp.int32)
    odd = (quadrant & np.int32(1)) == 1
    sine, cosine = jnp.where(odd, cosine, sine), jnp.where(odd, sine, cosine)
    half = (quadrant & np.int32(2)) == 2
    other = ((quadrant + np.int32(1)) & np.int32(2)) == 2
    return jnp.where(half, -sine, sine), jnp.where(other, -cosine, cosine)


def horner(coefficients: tuple[float, ...], t: Array) -> Array:
    """A polynomial, its highest coefficient first.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax._numerics.elementary import horner
        >>> float(horner((2.0, 0.0, 1.0), jnp.float32(3)))
        19.0
    """
    value = jnp.full_like(t, coefficients[0])
    for c in coefficients[1:]:
        value = value * t + np.asarray(c, t.dtype)
    return value
