"""Privacy-loss distributions on a grid, composed by FFT: bounds of any composition of steps.

The fall-back and the cross-check of contour integration. Each step is discretised one way or the
other; composition is monotone in each factor's profile (δ₁₂(ε) = E_{L₂}[δ₁(ε − L₂)], and E over L₁
likewise), so that the composed grid bounds the truth on either side.

Composition multiplies spectra. The distribution is tilted by e^{cl} first, c near the saddle point
for the target, so that rounding is relative to the mass that matters and δ = 1e-15 is as good as
1e-5; what wraps around the window is bounded by Chernoff's inequality, and the transform's rounding
by Higham's. Discrete losses alone are multiplied out, without a grid.

Host code: pocketfft is several times XLA's speed. Memory is bounded, as wide losses have wide bins.

References:
  Koskela, Jälkö, Honkela 2020 (FFT); Gopi, Lee, Wutschitz 2021; Doroshenko, Ghazi, Kamath, Kumar,
  Manurangsi 2022, Algorithm 1 (connect the dots); Higham 2002, Theorem 24.2 (rounding of the FFT).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import EPS, log_sum
from dpjax.accounting.loss_distribution.step import Pair, discretise, loss_range
from dpjax.accounting.pairs.finite_profile import discrete_delta, discrete_epsilon
from dpjax.accounting.pairs.on_grid import grid_reach, loss_units, mass_units
from dpjax.accounting.pairs.uses import Discrete, convolve

DEFAULT_BINS = 1 << 18
_LEAST_DELTA = 1e-30  # δ that is looked for at a given ε
_MOST_STEPS = 2.0**53  # from which on the roundoff of one step, counted as often, is the whole
_SADDLE_TILTS = np.exp(np.linspace(np.log(1e-9), np.log(3e3), 100))
_TRIES = np.array([-6, -3, 0, 3])
_TAUS = np.exp(np.linspace(np.log(0.05), np.log(30.0), 24))


LossSteps = Sequence[Pair | Discrete]


class ComposedLoss(NamedTuple):
    """A composed, tilted loss distribution: P(l) = e^{log_scale − c·l}·mass.

    Fields:
        losses: the grid.
        mass: tilted probabilities.
        c: the tilt.
        log_scale: Σ K(c).
        noise: bound on the error of δ(ε) by rounding and wrapping, relative to e^{log_scale − cε}.
        relative: bound on the rounding error of a mass, relative to itself.
        infinite: probability of an infinite loss.
        shift: to be subtracted from ε.
    """

    losses: np.ndarray
    mass: np.ndarray
    c: float
    log_scale: float
    noise: float
    relative: float
    infinite: float
    shift: float


def _rough(pairs: LossSteps, reach: float) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Count, logarithms of masses, and losses of every step on a grid of some thousand bins."""
    steps = []
    for pair in pairs:
        low, high = loss_range(pair, reach)
        h = max((high - low) / 1000, 1e-12)
        step = discretise(pair, h, reach)
        kept = np.nonzero(step.mass)[0]
        steps.append((pair.count, np.log(step.mass[kept]), step.origin + h * (step.start + kept)))
    return steps


def _moments(rough: list[tuple[float, np.ndarray, np.ndarray]], tilts: np.ndarray) -> np.ndarray:
    """Σ K(c) at every tilt, of such steps; only choices depend on it."""
    total = np.zeros(len(tilts))
    for count, log_mass, losses in rough:
        total += count * log_sum(log_mass + tilts[:, None] * losses)
    return total


def _choose_window(
    pairs: LossSteps, delta: float | None, epsilon: float | None, bins: int
) -> tuple:
    """(tilt, reach of normal tails, bin width, least loss, tilts that bound what lies beyond)."""
    least = _LEAST_DELTA if delta is None else delta
    reach = grid_reach(1e-6 * least / max(sum(pair.count for pair in pairs), 1.0))
    rough = _rough(pairs, reach)
    moments, prefactor = (
        _moments(rough, _SADDLE_TILTS),
        np.log(_SADDLE_TILTS) + np.log1p(_SADDLE_TILTS),
    )
    if epsilon is None:
        epsilon = max(float(np.min((moments - prefactor - np.log(least)) / _SADDLE_TILTS)), 0.0)
    c = float(_SADDLE_TILTS[np.argmin(moments - _SADDLE_TILTS * epsilon - prefactor)])
    near = _moments(rough, c * np.array([0.98, 1.0, 1.02]))
    spread = np.sqrt(max((near[2] - 2 * near[1] + near[0]) / (0.02 * c) ** 2, 1e-20))
    # Chernoff: the tilted mass beyond the window's ends is at most e^{−36} of the whole.
    taus = _TAUS / spread
    rise, fall = (_moments(rough, c + sign * taus) - near[1] for sign in (1, -1))
    up, down = int(np.argmin((rise + 36.0) / taus)), int(np.argmin((fall + 36.0) / taus))
    top, bottom = (rise[up] + 36.0) / taus[up], -(fall[down] + 36.0) / taus[down]
    # Those moments were rough: the bound itself tries the neighbours too.
    near_up, near_down = (taus[np.clip(k + _TRIES, 0, len(taus) - 1)] for k in (up, down))
    bottom = min(bottom, epsilon)
    width = 1.1 * (max(top, epsilon) - bottom) + 1e-9
    widest = max(float(np.ptp(loss_range(pair, reach))) for pair in pairs)
    h = max(width / bins, widest / (4 * bins))
    return c, reach, h, bottom - 0.05 * width, near_up, near_down


def compose_losses(
    pairs: LossSteps,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    upper: bool = True,
    bins: int = DEFAULT_BINS,
) -> ComposedLoss:
    """The composed loss distribution of the steps, tilted towards a target δ, or ε."""
    c, reach, h, bottom, near_up, near_down = _choose_window(pairs, delta, epsilon, bins)
    spectrum = np.ones(bins // 2 + 1, np.complex128)
    # |computed − true| ≤ transform·Σ|x| at every frequency, and relative to the 2-norm over all.
    transform = 4 * np.log2(bins) * EPS
    gain = np.ones(bins // 2 + 1)
    log_scale, log_alive, shift, relative = 0.0, 0.0, 0.0, 1e-13
    wrap_up, wrap_down = np.zeros(len(_TRIES)), np.zeros(len(_TRIES))
    offset, origin = 0, 0.0
    for pair in pairs:
        step = discretise(pair, h, reach, upper=upper)
        place = np.nonzero(step.mass)[0]
        losses = step.origin + h * (step.start + place)
        log_mass = np.log(step.mass[place])
        exponent = log_mass + c * losses
        moment = float(log_sum(exponent))
        log_tilted = exponent - moment
        tilted = np.exp(log_tilted)
        log_scale += pair.count * moment
        log_alive += pair.count * np.log1p(-step.infinite)
        shift += pair.count * step.shift
        origin += pair.count * step.origin
        # δ grows with the law of the loss under P: off by what all above each point is.
        units = 2 * abs(moment) + tilted @ (2 * np.abs(exponent) + mass_units(log_mass)) + 8
        relative += EPS * pair.count * float(units)
        peak = int(place[np.argmax(tilted)])
        wrap_up += pair.count * log_sum(log_tilted + near_up[:, None] * losses)
        wrap_down += pair.count * log_sum(log_tilted - near_down[:, None] * losses)
        # Centre every step on its mode, so that phases stay small; count the centres apart.
        offset += round(pair.count) * (step.start + peak)
        own = np.fft.rfft(np.bincount((place - peak) % bins, tilted, bins))
        # Integer powers by their logarithm; its branch does not matter for them.
        size = np.abs(own)
        with np.errstate(divide="ignore"):
            spectrum *= np.exp(pair.count * np.log(size))
        spectrum *= np.exp(1j * (round(pair.count) * np.angle(own)))
        # |Π(φᵢ + eᵢ)^{nᵢ} − Πφᵢ^{nᵢ}| ≤ Π(|φᵢ| + |eᵢ|)^{nᵢ}·Σ nᵢ|eᵢ|/(|φᵢ| + |eᵢ|).
        gain += pair.count / (size + transform)
    composed = np.fft.irfft(spectrum, bins)
    first = round((bottom - origin) / h)
    composed = np.roll(composed, -((first - offset) % bins))
    losses = origin + h * (first + np.arange(bins))
    escaped = np.exp(min(np.min(wrap_up - near_up * losses[-1]), 0.0))
    escaped += np.exp(min(np.min(wrap_down + near_down * losses[0]), 0.0))
    # Cauchy–Schwarz over all bins above ε, whose weights are at most e^{−c(l−ε)}. A spectrum below
    # the transform's own error is off by no more than that.
    error = 2 * transform * (np.abs(spectrum) + transform) * gain
    noise = np.sqrt(np.mean(error * error) / -np.expm1(-2 * c * h)) + escaped
    rounding = 1e-12 if upper else -1e-12
    return ComposedLoss(
        losses,
        np.maximum(composed, 0.0),  # which cannot be further from the truth than before
        c,
        log_scale,
        float(noise),
        relative,
        float(-np.expm1(log_alive)) * (1 + rounding),
        shift,
    )


def _profile(run: ComposedLoss, at: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grid points l_k and A, B with δ(ε) = e^{log_scale − c·at}(A_k − e^{ε−l_k}B_k) just below l_k.

    A_k = Σ_{j≥k} m_j and B_k = Σ_{j≥k} m_j e^{l_k − l_j}, m_j = mass·e^{−c(l_j − at)}; `at` is not
    beyond the grid.
    """
    kept = int(np.count_nonzero(run.losses > at - 500.0 / run.c))
    losses = run.losses[-kept:]
    mass = run.mass[-kept:] * np.exp(-run.c * (losses - at))
    return losses, np.cumsum(mass[::-1])[::-1], _sum_decaying(mass, float(losses[1] - losses[0]))


def _sum_decaying(mass: np.ndarray, step: float) -> np.ndarray:
    """Σ_{j≥k} mass_j e^{−(j − k)·step} for every k."""
    # S_2w[k] = S_w[k] + e^{−w·step} S_w[k + w], where S_w has the first w terms. Of positive terms
    # each pass is off by two units in the last place, relative: 40 of them where there are 2^20.
    # (A filter of `scipy.signal` would do it too, and take a third of a second to import.)
    total, width = mass.copy(), 1
    while width < len(mass) and (factor := math.exp(-width * step)) > 0:
        total[:-width] += factor * total[width:]
        width *= 2
    return total


def _too_coarse(run: ComposedLoss) -> bool:
    """Whether two neighbouring losses differ by more than the tilt can weigh."""
    return bool(run.c * (run.losses[1] - run.losses[0]) > 400.0)


def _grid_delta(run: ComposedLoss, epsilon: float, upper: bool) -> float:
    at = epsilon + (0.0 if upper else run.shift)
    value, noise = 0.0, run.noise  # nothing lies above the grid
    if _too_coarse(run):
        return 1.0 if upper else 0.0
    if at <= run.losses[-1]:
        losses, a, b = _profile(run, at)
        k = int(np.searchsorted(losses, at))
        value = max(float(a[k] - np.exp(at - losses[k]) * b[k]), 0.0)
        noise += run.relative * float(a[k])
    with np.errstate(over="ignore"):
        scale = np.exp(run.log_scale - run.c * at)
        bound = value + noise if upper else max(value - noise, 0.0)
        bound = run.infinite + scale * bound * (1 + 1e-12 if upper else 1 - 1e-12)
        bound += 1e-300 if upper else 0.0  # what underflows is not nothing
    return float(min(bound, 1.0))


def _grid_epsilon(run: ComposedLoss, delta: float, upper: bool, guess: float) -> float:
    """The root of the profile with its error added (upper) or taken off (lower)."""
    left = delta - run.infinite
    if left <= 0:
        return np.inf
    if _too_coarse(run):
        return np.inf if upper else -np.inf
    # The guess only scales; beyond the grid there is nothing to scale.
    guess = min(guess, float(run.losses[-1]))
    losses, a, b = _profile(run, guess)
    noise = run.noise * np.exp(-run.c * (losses - guess)) + run.relative * a
    with np.errstate(over="ignore"):
        target = np.exp(np.log(left) - run.log_scale + run.c * guess)
    revealing = np.nonzero(a - b + (noise if upper else -noise) > target)[0]
    if not len(revealing):
        return float(losses[0]) if upper else -np.inf
    k = int(revealing[-1])
    if k + 1 == len(losses):
        return np.inf if upper else float(losses[k])
    # Between two points the profile is linear in e^ε; the error is larger at the left one.
    gap = a[k + 1] + (noise[k] if upper else -noise[k]) - target
    with np.errstate(divide="ignore", invalid="ignore"):
        root = losses[k + 1] + np.log(gap / b[k + 1]) if gap > 0 else losses[k]
    return float(np.clip(root, losses[k], losses[k + 1]))


def _guess(run: ComposedLoss, delta: float) -> float:
    """Chernoff's ε for δ at the run's tilt: where exponents are counted from."""
    return (run.log_scale - np.log1p(run.c) - run.c * np.log1p(1 / run.c) - np.log(delta)) / run.c


def _usable(pairs: LossSteps) -> list[Pair | Discrete] | None:
    """The steps that release something, discrete ones multiplied out; None if one has no noise."""
    live = [p for p in pairs if isinstance(p, Pair) and p.mu > 0 and p.rate > 0 and p.count > 0]
    noisy = [np.isfinite([p.mu, p.count]).all() for p in live]
    if live:  # else the sum over the outcomes answers
        noisy += [np.any(p.masses[p.losses < np.inf]) for p in pairs if isinstance(p, Discrete)]
    if not all(noisy):
        return None
    ranges = [loss_range(p, 36.0) for p in live]
    # As good as none: losses so large beside their range that no grid tells them apart.
    if any(max(-low, high) > 1e10 * max(high - low, 1.0) for low, high in ranges):
        return None
    return [*live, *convolve(p for p in pairs if isinstance(p, Discrete) and np.any(p.losses))]


def _largest(pairs: LossSteps) -> tuple[float, float]:
    """The largest finite loss of all steps together, and a bound on the mass of infinite ones."""
    if not all(isinstance(p, Discrete) for p in pairs):
        return np.inf, 1.0
    losses = [(np.asarray(p.losses), np.asarray(p.masses), p.count) for p in pairs]  # pyrefly: ignore
    most = sum(n * float(l[np.isfinite(l) & (m > 0)].max(initial=0.0)) for l, m, n in losses)
    infinite = sum(n * float(m[l == np.inf].sum()) for l, m, n in losses)
    up = 1.0 if len(pairs) == 1 and pairs[0].exact else 1 + 1e-12  # pyrefly: ignore
    return most * (1 + 1e-13), min(infinite * up, 1.0)


def _slack(pairs: LossSteps, epsilon: float, delta: float) -> float:
    """By how much rounding may move ε: by what the losses of all steps and ε itself are off by."""
    units, rare = 0.0, 1e-6 * delta / max(sum(pair.count for pair in pairs), 1.0)
    for pair in pairs:
        laid = getattr(getattr(pair, "family", None), "largest_mean", None)
        reach = grid_reach(rare) if laid else 36.0  # what is rarer has no place on the grid
        mean = laid(reach) if laid else getattr(pair, "mu", 0.0)
        units += pair.count * loss_units(max(map(abs, loss_range(pair, reach))), mean)
    return 1e-13 * (1 + abs(epsilon)) + EPS * units


def epsilon_bound(
    pairs: LossSteps, delta: float, *, upper: bool, bins: int = DEFAULT_BINS
) -> float:
    """A bound on ε(δ) of steps in one direction, upper or lower: +∞ or 0 where none is known."""
    live = _usable(pairs)
    if live is not None and (not live or delta >= 1):
        return 0.0
    if live is None or not delta > 1e-250:
        return np.inf if upper else 0.0
    if len(live) == 1 and isinstance(live[0], Discrete) and live[0].count == 1:
        found = discrete_epsilon(live[0], delta * (1 - 1e-12 if upper else 1 + 1e-12))
    elif sum(p.count for p in live) > _MOST_STEPS:
        found = np.inf if upper else 0.0
    else:
        run = compose_losses(live, delta=delta, upper=upper, bins=bins)
        found = _grid_epsilon(run, delta, upper, _guess(run, delta)) - (0.0 if upper else run.shift)
    most, infinite = _largest(live)
    found = min(found, most) if upper and infinite <= delta else found
    slack = _slack(live, found, delta * upper) if found < np.inf else 0.0
    return max(found + (slack if upper else -slack), 0.0)


def delta_bound(
    pairs: LossSteps, epsilon: float, *, upper: bool, bins: int = DEFAULT_BINS
) -> float:
    """A bound on δ(ε) of the composition of the pairs, in one direction; see `epsilon_bound`."""
    live = _usable(pairs)
    if live is None or not live:
        return 1.0 if live is None and upper else 0.0
    slack = _slack(live, epsilon, _LEAST_DELTA * upper)
    at = max(epsilon - slack if upper else epsilon + slack, 0.0)
    if len(live) == 1 and isinstance(live[0], Discrete) and live[0].count == 1:
        return min(discrete_delta(live[0], at) * (1 + 1e-12 if upper else 1 - 1e-12), 1.0)
    most, infinite = _largest(live)
    if upper and at >= most:
        return infinite
    if sum(p.count for p in live) > _MOST_STEPS:
        return 1.0 if upper else 0.0
    return _grid_delta(compose_losses(live, epsilon=epsilon, upper=upper, bins=bins), at, upper)
