"""Gaussian noise with a true tail, from a counter-based stream: `normal` and `normal_like`.

Each pair of numbers gets 128 bits of its own: 62 for the radius, held with its leading bits near
both ends, 34 for the angle. The tail is right down to a probability of 2^-63 = 1e-19 (|z| up to
9.34), in float32 as in float64. The stream is Threefry-4x32 with its full 20 rounds (Salmon et al.,
SC 2011) in counter mode, under a key hashed from the JAX key: each pair is a function of (key,
leaf, place) alone, and so the same under jit, vmap and any sharding. What that promises and what it
does not is in docs/noise.md.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.typing import DTypeLike
from jaxtyping import Array, PRNGKeyArray, PyTree

from dpjax._numerics.explicit import (
    automatic,
    automatic_mesh,
    explicit_mesh,
    on_auto_mesh,
    placed_like,
)
from dpjax._numerics.keys import is_threefry, name_of_key, random_bits
from dpjax._numerics.namespace import Arguments, NumberTree, Returned

_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
_FLOAT32 = np.dtype(np.float32)
SHARED_DRAW = 4096  # leaves below this size share one flat draw
_MANY = 8  # slices of one draw, beyond which they are read by index
_BY_INDEX = lax.GatherDimensionNumbers((), (0,), (0,))  # of one axis, number by number
_ROW = 128  # the shortest innermost axis that is worth a loop of its own


def fresh_key() -> PRNGKeyArray:
    """A JAX key of 64 unpredictable bits, from the operating system's entropy.

    `jax.random.key(0)` is right for tests and reproduction, but whoever guesses the seed can
    subtract the noise; a run whose guarantee matters starts from this key, and keeps it secret.

    Returns:
        A typed Threefry key.

    Example:
        >>> import jax
        >>> from dpjax import transforms
        >>> jax.random.key_data(transforms.fresh_key()).shape
        (2,)
    """
    words = np.frombuffer(secrets.token_bytes(8), np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    name_of_key(key, drawn=True)
    return key


def normal(key: PRNGKeyArray, shape: tuple[int, ...] = (), dtype: DTypeLike = jnp.float32) -> Array:
    """Independent standard normal numbers whose tail is right beyond |z| = 9.

    Box and Muller's map (sqrt(-2 log u) cos t, sqrt(-2 log u) sin t) of uniforms (u, t) of 62 and
    34 bits. In float32 each number is within 1e-6 of the exact map, relative to the radius.

    Args:
        key: a JAX key (typed or raw), used once. Batches of keys go through `jax.vmap`.
        shape: the shape to draw.
        dtype: any floating type; 16-bit and smaller ones are drawn in float32 and rounded.

    Returns:
        An array of the given shape; constant with respect to everything differentiable.

    Raises:
        TypeError: if dtype is not a real floating type.
        ValueError: if the shape holds more than 2^33 numbers.
    """
    return normal_like(key, jax.ShapeDtypeStruct(tuple(shape), _floating(dtype)))


def normal_like(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """One draw of standard normal noise for a whole tree, in the leaves' shapes and dtypes.

    All leaves are slices of one stream under one key, and so independent of each other; small
    leaves share one kernel. The values depend on the shapes in the tree and never on the sharding:
    under `jit` a sharded leaf's noise is generated where the leaf lives, and outside it noise for a
    concrete leaf that is spread over devices takes the leaf's own sharding. (Inside `shard_map`
    every device draws the same noise for its block unless the key differs.)

    Args:
        key: a JAX key, used once.
        tree: arrays or anything with a shape and a floating dtype; the values are not read.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: if a leaf is not of a real floating type.
        ValueError: if a leaf holds more than 2^33 numbers.
    """
    if jax.config.jax_debug_key_reuse and is_threefry(key):  # pyrefly: ignore
        jax.random.bits(key, (0,))  # a use of the key, as JAX counts them
    leaves, structure = jax.tree.flatten(tree)
    specs = tuple((jnp.shape(leaf), _floating(jnp.result_type(leaf))) for leaf in leaves)
    shardings = tuple(_spread(leaf) for leaf in leaves)
    concrete = [leaf for leaf, one in zip(leaves, shardings, strict=True) if one is not None]
    with automatic(concrete) as mesh:
        drawn = _draw(key if mesh is None else on_auto_mesh(key), specs, shardings)
    drawn = drawn if mesh is None else placed_like(drawn, leaves)
    return jax.tree.unflatten(structure, drawn)


def _floating(dtype: DTypeLike) -> np.dtype:
    dtype = jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype must be a real floating type, got {dtype.name}")
    return jax.dtypes.canonicalize_dtype(dtype)


def _spread(leaf: object) -> Sharding | None:
    """The sharding of a concrete array on several devices, on automatic axes, else None."""
    if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array):
        return None
    placed = leaf.sharding
    named = isinstance(placed, NamedSharding) and explicit_mesh(leaf) is not None
    if named and isinstance(placed.mesh, Mesh):
        return NamedSharding(automatic_mesh(placed.mesh), placed.spec)
    return placed if len(placed.device_set) > 1 else None


@partial(jax.jit, static_argnames=("specs", "shardings"))
def _draw(key: PRNGKeyArray, specs: tuple, shardings: tuple) -> list[Array]:
    # Hashing the key first accepts every key type, and keeps this stream apart from the one that
    # jax.random would draw from the same key.
    # Held apart, or the kernel of every leaf would draw them again.
    words = lax.optimization_barrier(random_bits(key, (4,)))
    sizes = [math.prod(shape) for shape, _ in specs]
    # One flat draw serves all small leaves (biases, scales): a kernel each would cost more.
    small = [
        i for i, (_, dtype) in enumerate(specs) if sizes[i] < SHARED_DRAW and dtype.itemsize <= 4
    ]
    flat = _leaf(words, np.uint32(len(specs)), (sum(sizes[i] for i in small),), _FLOAT32)
    start = 0
    out = []
    for i, ((shape, dtype), sharding) in enumerate(zip(specs, shardings, strict=True)):
        if i in small:
            leaf = _part(flat, start, shape, many=len(small) > _MANY)
            start += sizes[i]
        else:
            leaf = _leaf(words, np.uint32(i), shape, dtype if dtype.itemsize > 4 else _FLOAT32)
        leaf = leaf.astype(dtype)
        out.append(leaf if sharding is None else lax.with_sharding_constraint(leaf, sharding))
    return out


def _part(flat: Array, start: int, shape: tuple[int, ...], *, many: bool) -> Array:
    """As many numbers of `flat` as the shape has, from `start` on.

    XLA compiles every slice with its bounds as constants, one program each: a thousand take half a
    minute. Read by an index, which is data, all leaves of one shape share one program.
    """
    size = math.prod(shape)
    if not many:
        return lax.slice(flat, (start,), (start + size,)).reshape(shape)
    places = np.arange(start, start + size, dtype=np.int32).reshape(*shape, 1)
    return lax.gather(flat, places, _BY_INDEX, (1,), mode="promise_in_bounds")


@partial(jax.jit, static_argnames=("shape", "dtype"))
def _leaf(words: Array, number: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """The noise of leaf `number`: Box-Muller pairs, two neighbours along one axis."""
    view, axis = _layout(shape)
    if math.prod(view) == 0:
        return jnp.zeros(shape, dtype)
    half = (*view[:axis], (view[axis] + 1) // 2, *view[axis + 1 :])
    if math.prod(half) > 1 << 32:
        raise ValueError(f"a leaf must hold at most 2^33 numbers, got shape {shape}: split it")

    def pairs(words: Array, number: Array) -> tuple[Array, Array]:
        block, stride = jnp.zeros(half, jnp.uint32), 1
        for a in reversed(range(len(half))):
            block += lax.broadcasted_iota(jnp.uint32, half, a) * np.uint32(stride % (1 << 32))
            stride *= half[a]
        zero = jnp.zeros_like(block)
        counter = (block, zero + number, zero, zero)
        box_muller = _box_muller_float64 if dtype == jnp.float64 else _box_muller_float32
        return box_muller(*_threefry(tuple(words), counter))

    first, second = _evaluated_once(pairs, words, number)
    z = jnp.stack([first, second], axis + 1)
    z = z.reshape(*view[:axis], 2 * half[axis], *view[axis + 1 :])
    return lax.slice_in_dim(z, 0, view[axis], axis=axis).reshape(shape)


def _layout(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """(the shape in which a leaf is drawn, the axis along which neighbours are a pair).

    Merged trailing axes keep the innermost loop long enough to vectorise; leading axes stay, so
    that a leaf sharded along them is generated where it lives.
    """
    view = tuple(shape) or (1,)
    while len(view) > 1 and view[-1] < _ROW:
        view = (*view[:-2], view[-2] * view[-1])
    axis = next((a for a, n in enumerate(view) if n % 2 == 0), int(np.argmax(view)))
    return view, axis


def drawn_in_place(shape: tuple[int, ...], dimension: int, parts: int) -> bool:
    """Whether equal blocks of a leaf along one dimension draw nothing of each other's noise.

    They do not where the blocks are whole pairs, and the dimension is the first of those that are
    drawn as one axis.
    """
    view, axis = _layout(shape)
    if shape[dimension] % parts or dimension >= len(view):
        return False
    return dimension != axis or (view[axis] // parts) % 2 == 0


def _evaluated_once(pairs: Callable, *args: Array) -> tuple[Array, Array]:
    """pairs(*args), computed in one pass over memory instead of once per output.

    XLA's CPU backend gives each output a kernel of its own, and would run the generator twice: a
    complex number carries both in one.
    """
    # Under jit it is traced once for all the branches of `materialised`.
    both = materialised(jax.jit(lambda *args: lax.complex(*pairs(*args))), *args)
    return lax.real(both), lax.imag(both)


def _threefry(key: tuple, counter: tuple) -> list[Array]:
    """Threefry-4x32-20: the four words that a key of four words gives a counter of four."""
    parity = key[0] ^ key[1] ^ key[2] ^ key[3] ^ np.uint32(0x1BD11BDA)
    keys = (*key, parity)
    x = [c + k for c, k in zip(counter, key, strict=True)]
    for d in range(20):
        a, b = _ROTATIONS[d % 8]
        i, j = (1, 3) if d % 2 == 0 else (3, 1)
        x[0], x[2] = x[0] + x[i], x[2] + x[j]
        x[i], x[j] = _rotate(x[i], a) ^ x[0], _rotate(x[j], b) ^ x[2]
        if d % 4 == 3:
            x = [word + keys[(d // 4 + 1 + n) % 5] for n, word in enumerate(x)]
            x[3] = x[3] + np.uint32(d // 4 + 1)
    return x


def _rotate(x: Array, r: int) -> Array:
    return (x << np.uint32(r)) | (x >> np.uint32(32 - r))


def _signed(word: Array) -> Array:
    return lax.bitcast_convert_type(word, jnp.int32)


def _box_muller_float32(w0: Array, w1: Array, w2: Array, w3: Array) -> tuple[Array, Array]:
    """Two independent standard normals from four words, in float32.

    Words 0 and 1 give u = (m + 1/2) / 2^62, m of 62 bits, and with it the radius sqrt(-2 log u).
    Word 2 gives an angle in (-pi/4, pi/4), word 3 turns it into another quadrant.
    """
    # u and 1 - u each keep their own leading bits: log u is accurate at both ends.
    high, low = _signed(w0 >> np.uint32(1)), _signed(w1 >> np.uint32(1))
    u = _fraction_float32(high, low)
    one_minus_u = _fraction_float32(high ^ np.int32(0x7FFFFFFF), low ^ np.int32(0x7FFFFFFF))
    radius_squared = log_of_pair(u, one_minus_u) * np.float32(-2)
    radius = radius_squared * lax.rsqrt(radius_squared)
    angle = (_signed(w2) | np.int32(1)).astype(jnp.float32) * np.float32(2.0**-31)
    sine, cosine = sine_cosine_octant(angle)
    turned = _signed(w3) < 0
    flip = (w3 << np.uint32(1)) & np.uint32(0x80000000)
    cosine = lax.bitcast_convert_type(
        lax.bitcast_convert_type(cosine, jnp.uint32) ^ flip, jnp.float32
    )
    return (
        radius * jnp.where(turned, sine, cosine),
        radius * jnp.where(turned, cosine, sine),
    )


def _fraction_float32(high: Array, low: Array) -> Array:
    fine = (low.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-62)
    return high.astype(jnp.float32) * np.float32(2.0**-31) + fine


def _box_muller_float64(w0: Array, w1: Array, w2: Array, w3: Array) -> tuple[Array, Array]:
    """The same map in float64: the same words give the same numbers, to float32's precision."""
    high, low = (w.astype(jnp.float64) for w in (w0 >> np.uint32(1), w1 >> np.uint32(1)))
    tail = (low + 0.5) * 2.0**-62
    u = high * 2.0**-31 + tail
    one_minus_u = (2.0**31 - 1 - high) * 2.0**-31 + (2.0**-31 - tail)
    radius = jnp.sqrt(-2.0 * log_of_pair(u, one_minus_u))
    sine, cosine = sine_cosine_octant((_signed(w2) | np.int32(1)).astype(jnp.float64) * 2.0**-31)
    turned = _signed(w3) < 0
    cosine = jnp.where((w3 << np.uint32(1)) >> np.uint32(31) == 1, -cosine, cosine)
    return radius * jnp.where(turned, sine, cosine), radius * jnp.where(turned, cosine, sine)


# --- logarithm, sine and cosine by polynomials: several times as fast as XLA's on a CPU ----------

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
def _log_of_pair_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]):
    u, one_minus_u = primals
    return log_of_pair(u, one_minus_u), tangents[0] / u


def sine_cosine_octant(t: Array) -> tuple[Array, Array]:
    """(sin(πt/4), cos(πt/4)) for |t| ≤ 1."""
    if t.dtype == jnp.float64:
        return jnp.sin(t * (math.pi / 4)), jnp.cos(t * (math.pi / 4))
    return horner(_SIN, t * t) * t, horner(_COS, t * t)


def sine_cosine(x: Array) -> tuple[Array, Array]:
    """(sin x, cos x), in float32 to 2e-7 + 1e-7·|x| (float64: as the library has them)."""
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
    """A polynomial, its highest coefficient first."""
    value = jnp.full_like(t, coefficients[0])
    for c in coefficients[1:]:
        value = value * t + np.asarray(c, t.dtype)
    return value


def materialised(fn: Callable[[*Arguments], Returned], *args: *Arguments) -> Returned:
    """fn(*args), written to memory once and read from there.

    XLA's CPU backend merges a cheap-looking producer into each of its readers, and drops
    optimization barriers before it does; a conditional whose predicate it cannot see through is
    what it does not merge. Elsewhere a barrier is enough, and a conditional would wait for the
    device.
    """

    def on_cpu(*args: *Arguments) -> Returned:
        shapes = jax.eval_shape(fn, *args)
        true = lax.optimization_barrier(jnp.bool_(True))
        return lax.cond(true, fn, functools.partial(_zeros, shapes), *args)

    def elsewhere(*args: *Arguments) -> Returned:
        return lax.optimization_barrier(fn(*args))

    return lax.platform_dependent(*args, cpu=on_cpu, default=elsewhere)


def _zeros(shapes: PyTree[jax.ShapeDtypeStruct], *args: NumberTree) -> NumberTree:
    """Zeros that vary over the devices of a `shard_map` where what is made of `args` does."""
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return zeros
    unequal = [jnp.any(x != x) for x in jax.tree.leaves(args)]
    either = functools.reduce(jnp.logical_or, unequal, jnp.bool_(False))
    return jax.tree.map(lambda zero: jnp.where(either, zero, zero), zeros)
