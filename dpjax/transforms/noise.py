"""Gaussian noise as a function of (key, step), independent or correlated over the steps.

Noise that is correlated over the steps leaves less of it in sums of them.
"""

from __future__ import annotations

import contextvars
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, ArrayLike, Int, PyTree

from dpjax._argument_names import accepts_old_names
from dpjax._numerics.checks import positive
from dpjax._numerics.keys import bits_of_keys, fold_in_words
from dpjax._numerics.normal import normal_like
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.correlation import Banded, BandedInverse, BufferedToeplitz, Toeplitz
from dpjax.correlation.strategies import CorrelationStrategy

if TYPE_CHECKING:
    from dpjax.transforms.chain_reader import ChainReader

# What `released` reads a chain with while it runs one on shapes; None in an ordinary update.
READER: contextvars.ContextVar[ChainReader | None] = contextvars.ContextVar("reader", default=None)


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

    key: PRNGKey
    step: Int[Array, ""]


def start_noise(key: PRNGKey) -> Callable[[], NoiseState]:
    """The state before the first draw, for `key`, which is refused unless it is one JAX key."""
    dtype = getattr(key, "dtype", None)
    shape = None if dtype is None else jnp.shape(key)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (shape == () if typed else dtype == jnp.uint32 and shape in ((2,), (4,))):
        raise ValueError(
            "key must be one JAX key, such as jax.random.key(seed) or transforms.fresh_key(), got "
            f"{key!r}"
        )
    return lambda: NoiseState(_copy_key(key), jnp.zeros((), jnp.int32))


def _copy_key(key: PRNGKey) -> PRNGKey:
    """The same key in a buffer of its own, which a step that donates its state may delete."""
    # Whoever reads a chain knows a key by the object, and a traced one has no buffer.
    if READER.get() is not None or isinstance(key, jax.core.Tracer):
        return key
    bits, typed = bits_of_keys([key])
    return typed([jnp.array(words, copy=True) for words in bits])[0]


def refuse_unless_unsafe(what: str, instead: str, unsafe_no_dp: bool) -> None:
    """Raises ValueError unless the caller says that he knows there is no guarantee."""
    if unsafe_no_dp is not True:
        raise ValueError(
            f"{what} has no differential-privacy guarantee. Use {instead}; to reproduce published "
            "results anyway pass unsafe_no_dp=True."
        )


def fold_noise_key(state: NoiseState, kind: str, updates: PyTree) -> tuple[PRNGKey, NoiseState]:
    """The key of this step's noise, and the next step's state."""
    # Salted by the kind of noise and by the paths of the leaves: two transformations with one key
    # that perturb different parts of the parameters draw different noise. Whoever reads the chain
    # refuses two draws of one key and one salt.
    paths = (jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates))
    digest = hashlib.sha256("\n".join((kind, *paths)).encode()).digest()  # 64 bits salt the key
    reader = READER.get()
    step = state.step + 1 if reader is None else reader.draw(digest, state.key, state.step)
    salt = (np.uint32(int.from_bytes(digest[start : start + 4], "big")) for start in (0, 4))
    return fold_in_words(state.key, state.step, *salt), NoiseState(state.key, step)


@accepts_old_names(stddev="noise_std")
def gaussian_noise(
    noise_std: Number | optax.Schedule, key: PRNGKey
) -> optax.GradientTransformation:
    """Add independent normal noise N(0, noise_std²) to every number of the updates.

    Args:
        noise_std: in units of the updates: noise multiplier × clip norm, where the updates are the
            sum that `clip_per_example` returns. May be traced, or a schedule: a function of the
            number of the step, counted from 0.
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
        multiplier noise_std/C. The noise has its full tail (|z| to 9.3); 16-bit updates are
        perturbed in float32 and rounded after.

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
    if not callable(noise_std):
        positive("noise_std", noise_std, allow_zero=True)
    return make_additive("gaussian", normal_like, noise_std, key)


def make_additive(
    kind: str,
    draw: Callable[[PRNGKey, PyTree], PyTree],
    scale: Number | optax.Schedule,
    key: PRNGKey,
) -> optax.GradientTransformation:
    """The transformation that adds scaled draws of one kind."""
    start = start_noise(key)

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        del params
        now, after = fold_noise_key(state, kind, updates)
        if (reader := READER.get()) is not None:
            return reader.perturb(kind, updates, scale), after
        size = scale(state.step) if callable(scale) else scale  # of this step
        return add_scaled(updates, draw(now, widen_shapes(updates)), size), after

    return optax.GradientTransformation(lambda params: start(), update)


def widen_shapes(updates: PyTree) -> PyTree:
    """The shapes of the updates, 16-bit floats widened: noise is added before rounding."""
    return jax.tree.map(
        lambda u: u if u.dtype.itemsize >= 4 else jax.ShapeDtypeStruct(u.shape, jnp.float32),
        updates,
    )


def make_wide_zeros(updates: PyTree) -> PyTree:
    """Zeros like the updates, in float32 at least."""
    return jax.tree.map(lambda u: jnp.zeros(u.shape, u.dtype), widen_shapes(updates))


def add_scaled(updates: PyTree, noise: PyTree, scale: ArrayLike) -> PyTree:
    """updates + scale·noise in the noise's dtype, then in the updates'."""
    scales = {z.dtype: jnp.asarray(scale, z.dtype) for z in jax.tree.leaves(noise)}
    return jax.tree.map(
        lambda u, z: (u.astype(z.dtype) + scales[z.dtype] * z).astype(u.dtype), updates, noise
    )


class CorrelatedState(NamedTuple):
    """The state of `correlated_noise`.

    Fields:
        key: the secret key of the whole run; never changes.
        step: the number of draws so far.
        past: the last bands − 1 steps' noise for a standard deviation of 1, a ring, or the sums of
            a `BufferedToeplitz`: a tree like the parameters whose leaves have one more axis in
            front; as secret as the key. `()` where nothing is kept.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import correlation, transforms
        >>> tx = transforms.correlated_noise(correlation.square_root(4), 1.0, jax.random.key(0))
        >>> tx.init({"w": jnp.zeros(5)}).past["w"].shape
        (3, 5)
    """

    key: PRNGKey
    step: Int[Array, ""]
    past: PyTree


@accepts_old_names(strategy="correlation", stddev="noise_std")
def correlated_noise(
    correlation: CorrelationStrategy, noise_std: Number, key: PRNGKey
) -> optax.GradientTransformation:
    """Add the noise of matrix factorisation (DP-FTRL): noise_std·(C⁻¹z)ₜ in step t.

        yₜ = (zₜ − Σ_{0 < l < bands} c_l·yₜ₋ₗ)/c₀,  z standard normal, fresh at every step; or
        the same with numbers of each step's own for a `Banded`; or
        yₜ = Σ_{l < bands} d_l·zₜ₋ₗ  for a `BandedInverse` of coefficients d; or
        yₜ = zₜ − Σᵢ ωᵢ·sᵢ,  then  sᵢ ← θᵢ·sᵢ + yₜ,  for a `BufferedToeplitz`; or
        yₜ = zₜ − the z of the blocks that the one which ends at t is made of, for a `Tree`.

    Args:
        correlation: C, `dpjax.correlation.banded_toeplitz(8, steps)`, or C⁻¹ by its coefficients,
            `dpjax.correlation.banded_inverse(8, steps)`, or as a few geometric series,
            `dpjax.correlation.buffered_toeplitz(3, steps)`, or `dpjax.correlation.Tree()`.
        noise_std: of z, as of `gaussian_noise`, but no schedule: noise multiplier × clip norm, not
            multiplied by the sensitivity of C.
        key: a JAX key, secret, used for nothing else.

    Returns:
        A transformation whose state holds the key, the step and the last bands − 1 noises y of a
        banded C, or the sums sᵢ of a buffered one, sharded as the parameters are; they belong into
        checkpoints. Of a `BandedInverse`
        nothing is kept: a step draws the last `bands` z again; and of a `Tree`, two of them on
        average. zₜ is a function of (key, t) and of the leaves' paths: a run continued from its
        state by the same compiled step adds the same noise to the last bit (another program may
        round the same noise to a neighbouring number).

    Raises:
        TypeError, ValueError: a strategy that is none, a standard deviation that is negative, not
            finite or a schedule, a key that is none.

    Guarantee:
        With updates of l2 sensitivity C, all steps together are
        `acc.CorrelatedGaussian(noise_std/C, correlation, steps, separation)`, or
        `acc.MatrixGaussian` of a `Tree`, if no record enters two steps less than `separation`
        apart. One step alone has no price. z has its full tail (|z| to 9.3); 16-bit updates are
        perturbed in float32 and rounded after.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax import correlation, transforms
        >>> strategy = correlation.banded_toeplitz(8, steps=100)
        >>> tx = optax.chain(
        ...     transforms.clip_per_example(1.0),
        ...     transforms.correlated_noise(strategy, 4.0, jax.random.key(0)),
        ...     optax.sgd(0.1 / 256),  # over the expected batch size
        ... )
        >>> tx.update({"w": jnp.ones((5, 3))}, tx.init({"w": jnp.zeros(3)}))[0]["w"].shape
        (3,)

    References:
        Kairouz et al. 2021; Denisov et al. 2022; Choquette-Choo et al. 2023, Algorithm 9.
    """
    if not isinstance(correlation, CorrelationStrategy):
        raise TypeError(f"correlation must be one of dpjax.correlation, got {correlation!r}")
    if callable(noise_std):
        raise ValueError(
            "noise_std must be one number: no price is known for a schedule under correlated "
            f"noise, got {noise_std!r}"
        )
    positive("noise_std", noise_std, allow_zero=True)
    start = start_noise(key)
    kept: int | None = None
    if isinstance(correlation, Toeplitz):
        draw_next, kept = _noise_from_ring(correlation), correlation.bands - 1
    elif isinstance(correlation, Banded):
        draw_next, kept = _noise_from_columns(correlation), correlation.bands - 1
    elif isinstance(correlation, BufferedToeplitz):
        draw_next, kept = _noise_from_buffers(correlation), correlation.buffers
    elif isinstance(correlation, BandedInverse):
        draw_next = _noise_from_redraws(correlation)
    else:
        draw_next = _tree_noise

    def init(params: PyTree):
        past = () if kept is None else jax.tree.map(lambda leaf: _make_ring(leaf, kept), params)
        return CorrelatedState(*start(), past)

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        del params
        if (reader := READER.get()) is not None:
            reader.refuse(
                "correlated_noise, whose steps have no price one by one (price the whole run: "
                "acc.CorrelatedGaussian, acc.CyclicPoissonCorrelated or acc.MatrixGaussian)"
            )
        noise, past = draw_next(updates, state)  # y for a standard deviation of 1
        state = CorrelatedState(state.key, state.step + 1, past)
        return add_scaled(updates, noise, noise_std), state

    return optax.GradientTransformation(init, update)


# The noise of a step by kind of strategy: `draw_next(updates, state) -> (y, past)`.
_Drawer = Callable[[PyTree, CorrelatedState], tuple[PyTree, PyTree]]


def _draw_step(updates: PyTree, state: CorrelatedState, step: Array) -> PyTree:
    """z of a step."""
    now, _ = fold_noise_key(NoiseState(state.key, step), "correlated", updates)
    return normal_like(now, widen_shapes(updates))


def _noise_from_redraws(strategy: BandedInverse) -> _Drawer:
    """y as the sum of the last z, each drawn again."""

    def draw_next(updates: PyTree, state: CorrelatedState) -> tuple[PyTree, PyTree]:
        def add_lag(lag: Array, total: PyTree):
            z, d = _draw_step(updates, state, state.step - lag), strategy.inverse_coefficients
            return jax.tree.map(lambda s, x: s + jnp.asarray(d, x.dtype)[lag] * x, total, z)

        # One program, however many bands; none of the steps before the first.
        last = jnp.minimum(state.step + 1, strategy.bands)
        return lax.fori_loop(0, last, add_lag, make_wide_zeros(updates)), ()

    return jax.jit(draw_next)


@jax.jit
def _tree_noise(updates: PyTree, state: CorrelatedState) -> tuple[PyTree, PyTree]:
    """y as the z of the block that ends here less those of the blocks that it is made of."""
    step = state.step
    # The digits of `step` that are 1 before its first 0: each is a block that ends in this one.
    ended = lax.population_count(step & ~(step + 1))

    def add_block(height: Array, total: PyTree):
        own = height == ended
        z = _draw_step(updates, state, jnp.where(own, step, ((step >> height) << height) - 1))
        return jax.tree.map(lambda sum_, x: sum_ + jnp.where(own, x, -x), total, z)

    return lax.fori_loop(0, ended + 1, add_block, make_wide_zeros(updates)), ()


def _noise_from_ring(strategy: Toeplitz) -> _Drawer:
    """y from this step's z and from the last y, a ring of which is kept."""
    kept = strategy.bands - 1
    # c_l/c₀ for l = 1, 2, …, in float64 before rounding once.
    ratios = np.asarray(strategy.coefficients[1:]) / strategy.coefficients[0]

    def divide_by_first(z: Array):
        return z / jnp.asarray(strategy.coefficients[0], z.dtype)

    def draw_next(updates: PyTree, state: CorrelatedState) -> tuple[PyTree, PyTree]:
        fresh = _draw_step(updates, state, state.step)
        if not kept:
            unit = strategy.coefficients[0] == 1.0
            return fresh if unit else jax.tree.map(divide_by_first, fresh), state.past
        slot = state.step % kept  # of the oldest noise, which this one replaces
        # Slot j holds the step l before this one, where l − 1 = (t − 1 − j) mod kept.
        order = (state.step - 1 - jnp.arange(kept)) % kept

        def correlate(z: Array, past: Array):
            # One product: written as a sum of slices, XLA draws z again for each of them.
            weights = jnp.asarray(ratios, z.dtype)[order]
            old = jnp.tensordot(weights, past, axes=1, precision=lax.Precision.HIGHEST)
            return divide_by_first(z) - old

        noise = jax.tree.map(correlate, fresh, state.past)
        past = jax.tree.map(
            lambda ring, y: lax.dynamic_update_index_in_dim(ring, y, slot, 0), state.past, noise
        )
        return noise, past

    return draw_next


def _noise_from_columns(strategy: Banded) -> _Drawer:
    """y from this step's z and the last y, by numbers of this step's own."""
    steps, kept = strategy.steps, strategy.bands - 1
    # Row t of C: C[t, t], C[t, t−1], …; of no step beyond the last, whose noise is NaN.
    rows = np.full((steps + 1, strategy.bands), np.nan)
    for lag in range(strategy.bands):
        before = np.asarray(strategy.columns)[: steps - lag, lag]
        rows[:steps, lag] = np.pad(before, (lag, 0))[:steps]

    def draw_next(updates: PyTree, state: CorrelatedState) -> tuple[PyTree, PyTree]:
        fresh = _draw_step(updates, state, state.step)
        slot = state.step % max(kept, 1)  # of the oldest noise, which this one replaces
        order = (state.step - 1 - jnp.arange(kept)) % max(kept, 1)

        def correlate(z: Array, past: Array):
            row = jnp.asarray(rows, z.dtype)[jnp.minimum(state.step, steps)]
            # One product, as in `_noise_from_ring`.
            old = jnp.tensordot(row[1:][order], past, axes=1, precision=lax.Precision.HIGHEST)
            return (z - old) / row[0]

        noise = jax.tree.map(correlate, fresh, state.past)
        if not kept:
            return noise, state.past
        past = jax.tree.map(
            lambda ring, y: lax.dynamic_update_index_in_dim(ring, y, slot, 0), state.past, noise
        )
        return noise, past

    return draw_next


def _noise_from_buffers(strategy: BufferedToeplitz) -> _Drawer:
    """y from this step's z and a sum of the past y for each geometric series."""

    def subtract_past(z: Array, sums: Array):
        weights = jnp.asarray(strategy.weights, sums.dtype)
        return z - jnp.tensordot(weights, sums, axes=1, precision=lax.Precision.HIGHEST)

    def decay(sums: Array, y: Array):
        decays = jnp.asarray(strategy.decays, sums.dtype)
        return decays.reshape(-1, *[1] * y.ndim) * sums + y[None]

    def draw_next(updates: PyTree, state: CorrelatedState) -> tuple[PyTree, PyTree]:
        noise = jax.tree.map(subtract_past, _draw_step(updates, state, state.step), state.past)
        return noise, jax.tree.map(decay, state.past, noise)

    return draw_next


def _make_ring(leaf: Array, kept: int) -> Array:
    """Zeros for so many numbers' noise of the leaf's shape, sharded as the leaf is."""
    dtype = jnp.float64 if jnp.result_type(leaf) == jnp.float64 else jnp.float32
    placed = None if isinstance(leaf, jax.core.Tracer) else getattr(leaf, "sharding", None)
    device = None
    if isinstance(placed, jax.sharding.NamedSharding):
        spec = jax.sharding.PartitionSpec(None, *placed.spec)
        device = jax.sharding.NamedSharding(placed.mesh, spec)
    return jnp.zeros((kept, *jnp.shape(leaf)), dtype, device=device)
