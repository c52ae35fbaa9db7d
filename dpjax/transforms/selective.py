"""`selective_update`: keep an update only if a noisy validation loss says that it helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from dpjax._numerics.checks import positive, scalar, whole
from dpjax._numerics.typing import PRNGKey
from dpjax.gradients.per_example import as_boolean_mask
from dpjax.transforms.clip import noisy_total
from dpjax.transforms.noise import READER, NoiseState, fold_noise_key, start_noise


class SelectiveState(NamedTuple):
    """The state of `selective_update`; free of private data beyond what the tests release.

    Fields:
        noise: the key, and the number of candidates tested so far.
        accepted: how many of them were kept.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.selective_update(0.1, 1.0, 64, jax.random.key(0), attempts=100)
        >>> int(tx.init(jnp.zeros(2)).accepted)
        0
    """

    noise: NoiseState
    accepted: Int[Array, ""]


class Attempts(NamedTuple):
    """What a run of selective updates releases, every candidate counted.

    Fields:
        training_noise_multiplier: of the Gaussian that makes one candidate.
        validation_noise_multiplier: of the Gaussian that tests it.
        attempts: candidates at most, kept or not.

    Example:
        >>> from dpjax import accounting as acc, transforms
        >>> cost = transforms.Attempts(2.0, 4.0, 100)
        >>> train = acc.PoissonSampled(acc.Gaussian(cost.training_noise_multiplier), 0.01)
        >>> test = acc.PoissonSampled(acc.Gaussian(cost.validation_noise_multiplier), 0.005)
        >>> run = acc.Repeated(acc.Composed((train, test)), cost.attempts)
        >>> 0.0 < acc.epsilon(run, delta=1e-5, method="rdp") < 1.0
        True
    """

    training_noise_multiplier: float
    validation_noise_multiplier: float
    attempts: int


class Selective(optax.GradientTransformationExtraArgs):
    """The transformation that `selective_update` returns; it knows what an attempt costs.

    Fields:
        validation_noise_multiplier: of the test.
        attempts: candidates at most.

    Example:
        >>> import jax
        >>> from dpjax import transforms
        >>> tx = transforms.selective_update(0.1, 4.0, 64, jax.random.key(0), attempts=100)
        >>> tx.charged(training_noise_multiplier=2.0).validation_noise_multiplier
        4.0
    """

    validation_noise_multiplier: float
    attempts: int

    def charged(self, training_noise_multiplier: float) -> Attempts:
        """What to price, given the noise multiplier of the update that is tested."""
        positive("training_noise_multiplier", training_noise_multiplier)
        return Attempts(training_noise_multiplier, self.validation_noise_multiplier, self.attempts)


def selective_update(
    loss_clip: float,
    noise_multiplier: float,
    batch_size: float,
    key: PRNGKey,
    *,
    attempts: int,
    threshold: float = 0.0,
) -> Selective:
    """Test each update by a noisy validation loss, and replace it by zero if it fails.

    With ℓᵢ(w) the losses of a validation batch, C the loss clip, σ the noise multiplier and B the
    expected size of the batch, the candidate w + u is kept if

        (1/B)·[Σᵢ clip(ℓᵢ(w + u) − ℓᵢ(w), ±C) + σ·C·Z] < threshold.

    Put it last in a chain: one update is one attempt. After `attempts` of them all further updates
    are zero, so that the number of candidates that the data ever decided on is fixed in advance.

    Not offered: the published accounting, which charges accepted updates only. What is released
    given acceptance is the candidate's law *reweighted* by the acceptance probability, and
    reweighting can raise a Rényi divergence. With noise of 5 clip norms, candidates beyond 6.5
    accepted with probability 1/2 and all others with Φ(−1/σ), on both data sets alike (so that the
    test itself leaks nothing), the divergence of order 2 is 1.66 times the claim at σ = 1.

    Args:
        loss_clip: C > 0, the bound on what one record's loss may say, in units of the loss.
        noise_multiplier: σ > 0 of the test, a concrete number.
        batch_size: B > 0, the expected number of validation records, a public constant.
        key: a JAX key, secret, used for nothing else.
        attempts: candidates that may be tested in all, kept or not.
        threshold: in units of the loss, at most `loss_clip` in size; negative demands progress.

    Returns:
        A transformation whose `update` needs `params` and `validation_losses`, a function from
        parameters to the losses [b] of the validation records; `validation_mask` marks padding by
        False. Draw the validation batch by a sampler of its own, under a key of its own, from
        training records (or from records that are used for nothing else).

    Raises:
        ValueError: an argument out of range; no `params` or no `validation_losses` in `update`.

    Guarantee:
        The test is a Gaussian mechanism of sensitivity C if a record is added or removed, 2C if one
        is exchanged, whatever the losses: they are clipped record by record and added in integers;
        a candidate with an infinite or NaN loss counts as C worse. With training rate q and
        validation rate p, a run is priced by
        `acc.Repeated(acc.Composed((acc.PoissonSampled(acc.Gaussian(train), q),
        acc.PoissonSampled(acc.Gaussian(validate), p))), attempts)`, its numbers from `tx.charged`.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax import transforms
        >>> tx = transforms.selective_update(1.0, 0.01, 4, jax.random.key(0), attempts=3)
        >>> losses = lambda w: (jnp.array([1.0, 1.2, 0.8, 1.0]) - w) ** 2
        >>> w, state = jnp.array(0.0), tx.init(jnp.array(0.0))
        >>> for u in (0.5, -3.0, 0.5, 0.1):
        ...     update, state = tx.update(jnp.array(u), state, w, validation_losses=losses)
        ...     w = optax.apply_updates(w, update)
        ...     print(float(w), end=" ")
        0.5 0.5 1.0 1.0
        >>> int(state.accepted)
        2

    References:
        Fu et al. 2024, "DPSUR: accelerating differentially private stochastic gradient descent
        using selective update and release" (the idea, and the accounting that does not hold).
    """
    positive("loss_clip", loss_clip)
    positive("noise_multiplier", noise_multiplier)
    positive("batch_size", batch_size)
    attempts = whole("attempts", attempts, most=2**31 - 1)
    scalar("threshold", threshold)
    if not abs(threshold) <= loss_clip:
        raise ValueError(f"threshold must be within ±loss_clip = ±{loss_clip}, got {threshold!r}")
    start = start_noise(key)

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree | None = None,
        *,
        validation_losses: Callable[[PyTree], Float[Array, " b"]] | None = None,
        validation_mask: Bool[Array, " b"] | None = None,
        **extra: object,
    ):
        if (reader := READER.get()) is not None:
            reader.refuse("selective_update, which is priced by its attempts: tx.charged")
        if params is None or validation_losses is None:
            raise ValueError(
                "give params and validation_losses: "
                "tx.update(updates, state, params, validation_losses=lambda params: ...)"
            )
        before = validation_losses(params)
        after = validation_losses(optax.apply_updates(params, updates))
        if jnp.ndim(before) != 1 or jnp.shape(before) != jnp.shape(after):
            raise ValueError(
                "validation_losses must return one loss per validation record, [b], got shapes "
                f"{jnp.shape(before)} and {jnp.shape(after)}"
            )
        valid = as_boolean_mask(before.shape[0], validation_mask, "validation_mask")
        worse = jnp.where(jnp.isfinite(after), after - before, jnp.inf)  # clipped to C in the sum
        worse = jnp.where(jnp.isnan(worse), -jnp.inf, worse)  # only the old loss was not a number
        now, noise = fold_noise_key(state.noise, "selective", updates)
        total = noisy_total(worse, loss_clip, noise_multiplier, now, valid)
        kept = (total / batch_size < threshold) & (state.noise.step < attempts)
        updates = jax.tree.map(lambda u: jnp.where(kept, u, jnp.zeros_like(u)), updates)
        # The counter stops with the last attempt: a run that goes on cannot wrap it around.
        step = jnp.minimum(noise.step, attempts)
        return updates, SelectiveState(
            NoiseState(noise.key, step), state.accepted + kept.astype(jnp.int32)
        )

    tx = Selective(lambda params: SelectiveState(start(), jnp.zeros((), jnp.int32)), update)
    tx.validation_noise_multiplier = noise_multiplier
    tx.attempts = attempts
    return tx
