"""Importance sampling: records take part in proportion to their gradients' norms, privately.

Sampling a record with probability p(x) ≤ q is sampling it with probability q, then replacing what
it adds by zero on the toss of a coin that only it decides. So Poisson sampling's price at rate q
covers it under either adjacency, as long as q is fixed in advance and the normaliser of the
probabilities is public or was itself released with noise.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from dpjax import sampling
from dpjax._argument_names import accepts_old_names
from dpjax._numerics.checks import positive, scalar, whole
from dpjax._numerics.explicit import on_explicit_too, without_records
from dpjax._numerics.normal import normal_like
from dpjax._numerics.typing import PRNGKey
from dpjax.gradients.per_example import (
    accumulation_dtype,
    as_boolean_mask,
    clip_records,
    expand_like,
    sum_clipped,
)
from dpjax.gradients.strategies import Flat, Strategy
from dpjax.transforms.clip import count_update_records, mask_records, noisy_total
from dpjax.transforms.noise import READER, add_scaled, fold_noise_key, start_noise, widen_shapes

_GRID = 2**32


class ImportanceDraw(NamedTuple):
    """Who takes part in a step, and how much each of them counts.

    Fields:
        included: True for the records of the batch.
        probabilities: with which each record was included: multiples of 2⁻³², 0 for zero norms.
        sensitivity: K̃/(N·b), what a record adds to the average, at most.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> draw = transforms.importance_inclusion(
        ...     jax.random.key(0), 0, jnp.array([0.5, 1.0]), normaliser=4.0, batch_size=1,
        ...     clip_norm=1.0, rate=0.25)
        >>> draw.probabilities.tolist(), float(draw.sensitivity)
        ([0.125, 0.25], 2.0)
    """

    included: Bool[Array, " n"]
    probabilities: Float[Array, " n"]
    sensitivity: Float[Array, ""]


def importance_rate(batch_size: float, clip_norm: float, normaliser: float) -> float:
    """The largest inclusion probability b·C/K̃, on the sampler's grid: the rate to price.

    Args:
        batch_size, clip_norm: b and C > 0.
        normaliser: K̃ ≥ b·C, the least that will be used, fixed before the run.

    Raises:
        ValueError: an argument out of range, or K̃ < b·C, where a probability would exceed 1.

    Example:
        >>> from dpjax import transforms
        >>> transforms.importance_rate(64, 1.0, 256.0)
        0.25
    """
    positive("batch_size", batch_size)
    positive("clip_norm", clip_norm)
    positive("normaliser", normaliser)
    if normaliser < batch_size * clip_norm:
        raise ValueError(
            f"normaliser must be at least batch_size·clip_norm = {batch_size * clip_norm}, got "
            f"{normaliser!r}; a record would take part with a probability above 1"
        )
    return sampling.realised_rate(batch_size * clip_norm / normaliser)


def importance_normaliser(
    norms: Float[Array, " n"], clip_norm: float, noise_multiplier: float, key: PRNGKey
) -> Float[Array, ""]:
    """A private estimate of K = Σᵢ min(‖gᵢ‖, C) over all records: K + noise_multiplier·C·Z.

    It may be off either way, and negative: `importance_inclusion` puts a floor under it.

    Args:
        norms: of all records' gradients; NaN counts as 0.
        clip_norm, noise_multiplier: > 0, the latter a concrete number.
        key: used once.

    Guarantee:
        A Gaussian mechanism on all records, without amplification by sampling:
        `acc.Gaussian(noise_multiplier)` for *every* refresh. (Norms lie in [0, C], so exchanging a
        record moves K by C and not 2C; the price allows for more.) The exact K is not private: do
        not use it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> norms = jnp.full(1000, 0.5)
        >>> k = float(transforms.importance_normaliser(norms, 1.0, 5.0, jax.random.key(0)))
        >>> 475 < k < 525
        True
    """
    positive("clip_norm", clip_norm)
    positive("noise_multiplier", noise_multiplier)
    return noisy_total(norms, clip_norm, noise_multiplier, key)


def importance_inclusion(
    key: PRNGKey,
    step: int | Int[Array, ""],
    norms: Float[Array, " n"],
    *,
    normaliser: float | Float[Array, ""],
    batch_size: float,
    clip_norm: float,
    rate: float,
) -> ImportanceDraw:
    """Include record i with probability b·min(‖gᵢ‖, C)/K̃, rounded up to a multiple of 2⁻³².

    Args:
        key: a typed JAX key, as secret as the data, used for nothing else.
        step: the step's number.
        norms: of all N records' clipped gradients, now or at the last refresh, each a function of
            its own record and of earlier releases; clipped to C here as well. NaN counts as 0.
        normaliser: K̃, public (N·C always holds as a bound) or from `importance_normaliser`, never
            the exact sum. Raised to b·C/rate where it is below. May be traced.
        batch_size: b: the batch has b·K/K̃ records on average.
        clip_norm: C > 0.
        rate: q in (0, 1], the largest probability, fixed before the run: the price depends on it
            alone. `importance_rate` gives it for the least K̃.

    Guarantee:
        No record takes part with a probability above `sampling.realised_rate(rate)`, whatever norms
        and normaliser are: the cap is an integer comparison. The batch must not be truncated: work
        through all records that are included.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> norms = jnp.array([0.1] * 900 + [1.0] * 100)
        >>> draw = transforms.importance_inclusion(jax.random.key(0), 0, norms,
        ...     normaliser=200.0, batch_size=50, clip_norm=1.0, rate=0.25)
        >>> int(draw.included[:900].sum()), int(draw.included[900:].sum())
        (24, 24)
    """
    positive("batch_size", batch_size)
    positive("clip_norm", clip_norm)
    scalar("rate", rate)
    scalar("normaliser", normaliser)
    most = round(sampling.realised_rate(rate) * _GRID)  # the grid has it exactly
    floor = np.float32(batch_size * clip_norm / rate)  # above it b·C/K̃ ≤ rate
    normaliser = jnp.maximum(jnp.asarray(normaliser, jnp.float32), floor)
    norms = jnp.clip(norms.astype(jnp.float32), 0.0, clip_norm)  # a NaN stays one
    norms = jnp.where(jnp.isnan(norms), jnp.zeros_like(norms), norms)
    wanted = jnp.ceil(np.float32(batch_size) * norms / normaliser * np.float32(_GRID))
    # 2³² itself does not fit into 32 bits: certain inclusion is a flag of its own.
    certain = (wanted >= np.float32(_GRID)) & (most == _GRID)
    limit = np.uint32(min(most, _GRID - 1))
    threshold = jnp.where(wanted >= np.float32(_GRID), limit, wanted.astype(jnp.uint32))
    threshold = jnp.minimum(threshold, limit)  # p ≤ realised_rate(rate), in integers
    bits = jax.random.bits(jax.random.fold_in(key, step), norms.shape, dtype=jnp.uint32)
    probabilities = threshold.astype(jnp.float32) / np.float32(_GRID)
    return ImportanceDraw(
        (bits < threshold) | certain,  # P(bits < threshold) = threshold/2³²
        jnp.where(certain, jnp.ones_like(probabilities), probabilities),
        normaliser / np.float32(batch_size * norms.size),  # Δ = K̃/(N·b)
    )


@accepts_old_names(strategy="clipping")
def importance_mean(
    clip_norm: float,
    noise_multiplier: float,
    population: int,
    key: PRNGKey,
    *,
    clipping: Strategy | None = None,
) -> optax.GradientTransformationExtraArgs:
    """The noisy average gradient of all N records, estimated from an importance-sampled batch.

        out = Σᵢ clip_Δ(clip_C(gᵢ)/(N·pᵢ)) + σ·Δ·Z,  Δ = K̃/(N·b).

    Where the pᵢ come from the norms of these very clip_C(gᵢ), the second clip does nothing: the
    expectation is (1/N)·Σᵢ clip_C(gᵢ). With other norms it keeps the guarantee, at a bias.

    Args:
        clip_norm: C > 0, as in `importance_inclusion`.
        noise_multiplier: σ ≥ 0, over Δ. May be traced.
        population: N, a public constant.
        key: a JAX key, secret, used for nothing else.
        clipping: how gradients are clipped to C; `dpjax.gradients.Flat()` by default.

    Returns:
        A transformation that drops the leading axis of records. `update` needs `probabilities` [b]
        of `importance_inclusion` at the batch's records, its `sensitivity`, and takes a `mask` [b],
        False for records that do not take part. The output is the released average.

    Raises:
        ValueError: an argument out of range; `probabilities` or `sensitivity` left out.

    Guarantee:
        With the batch from `importance_inclusion(..., rate=q)`, a step costs
        `acc.PoissonSampled(acc.Gaussian(noise_multiplier), sampling.realised_rate(q))`, besides
        `acc.Gaussian` for every refresh of K̃. N is taken as public. Float rounding of the sum adds
        to its sensitivity what `gradients.rounding_slack` bounds.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> g, key = jnp.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.1]]), jax.random.key(0)
        >>> draw = transforms.importance_inclusion(key, 0, jnp.linalg.norm(g, axis=1),
        ...     normaliser=3.0, batch_size=3, clip_norm=1.0, rate=1.0)
        >>> tx = transforms.importance_mean(1.0, 0.0, 3, jax.random.key(1))
        >>> out, _ = tx.update(g, tx.init(jnp.zeros(2)), mask=draw.included,
        ...                    probabilities=draw.probabilities, sensitivity=draw.sensitivity)
        >>> out.shape
        (2,)

    References:
        Wei et al. 2022, "DPIS: an enhanced mechanism for differentially private SGD with importance
        sampling".
    """
    positive("clip_norm", clip_norm)
    positive("noise_multiplier", noise_multiplier, allow_zero=True)
    whole("population", population, most=2**31 - 1)
    strategy = Flat() if clipping is None else clipping
    start = start_noise(key)

    def clip_total(
        updates: PyTree, probabilities: Array, sensitivity: Array, mask: Bool[Array, " b"] | None
    ):
        mask = as_boolean_mask(count_update_records(updates), mask) & (probabilities > 0)
        weights = 1.0 / (population * jnp.where(mask, probabilities, jnp.ones_like(probabilities)))
        records, tree, _ = clip_records(updates, updates, clip_norm, strategy, mask)

        def weigh(factors: Array, leaf: Array):
            """clip_C(gᵢ)·wᵢ, every record for itself; zero for records that do not take part."""
            factors = expand_like(factors * weights, leaf)
            kept = jnp.where(factors > 0, leaf, jnp.zeros_like(leaf))
            # In float32 at least: what is divided by N·p may have no place among float16's numbers.
            wide = accumulation_dtype(leaf.dtype)
            return kept.astype(wide) * factors.astype(wide)

        scaled, mask = mask_records(tree.unflatten([weigh(*pair) for pair in records]), mask)
        total, *_ = sum_clipped(scaled, scaled, sensitivity, Flat(), mask)
        return total.total  # terms ≤ Δ for any p

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree | None = None,
        *,
        probabilities: Float[Array, " b"] | None = None,
        sensitivity: Float[Array, ""] | None = None,
        mask: Bool[Array, " b"] | None = None,
        **extra: object,
    ):
        del params, extra
        if (reader := READER.get()) is not None:
            reader.refuse("importance_mean, which is priced by its Guarantee")
        if probabilities is None or sensitivity is None:
            raise ValueError(
                "give probabilities=draw.probabilities[batch] and sensitivity=draw.sensitivity"
            )
        _check_shapes(probabilities, sensitivity, count_update_records(updates))
        given = (updates, probabilities, sensitivity, mask)
        total = on_explicit_too(clip_total, without_records(updates), *given)
        now, state = fold_noise_key(state, "importance", total)
        stddev = jnp.asarray(noise_multiplier, jnp.float32) * sensitivity
        return add_scaled(total, normal_like(now, widen_shapes(total)), stddev), state

    return optax.GradientTransformationExtraArgs(lambda params: start(), update)


def _check_shapes(probabilities: Array, sensitivity: Array, records: int) -> None:
    """Refuse probabilities that are not one a record, and several sensitivities."""
    if jnp.shape(probabilities) != (records,) or jnp.shape(sensitivity) != ():
        raise ValueError(
            f"probabilities must have shape ({records},) and sensitivity (), got "
            f"{jnp.shape(probabilities)} and {jnp.shape(sensitivity)}"
        )
