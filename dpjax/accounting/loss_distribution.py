"""Privacy-loss distributions composed by FFT: upper and lower bounds for any composition of steps.

The fall-back and the cross-check of contour integration. Each step is discretised both ways
(`discretisation`); composition is monotone in each factor's profile (δ₁₂(ε) = E_{L₂}[δ₁(ε − L₂)],
and E over L₁ likewise), so that the composed grid bounds the truth on either side.

Composition multiplies spectra. The distribution is tilted by e^{cl} first, c near the saddle point
for the target, so that rounding is relative to the mass that matters and δ = 1e-15 is as good as
1e-5; what wraps around the window is bounded by Chernoff's inequality, and the transform's rounding
is allowed for.

Host code: pocketfft in NumPy's float64 is several times faster than XLA's on a CPU, and a fall-back
need not be traced. Memory is bounded by the number of bins, whatever the noise: where losses spread
more widely the grid is coarser, and the answer still a bound.

References:
  Koskela, Jälkö, Honkela 2020 (FFT); Gopi, Lee, Wutschitz 2021; Doroshenko et al. 2022.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy

from dpjax._numerics import float64
from dpjax.accounting import lowering
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.discretisation import Pair, discretise, loss_range
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.queries import register_method

DEFAULT_BINS = 1 << 18
_UNSHOWN = 16  # settings that take a few seconds at most
_EPS = float(np.finfo(np.float64).eps)


class Composed(NamedTuple):
    """A composed, tilted loss distribution: P(l) = e^{log_scale − c·l}·mass.

    Fields:
      losses: the grid.
      mass: tilted probabilities.
      c, log_scale: the tilt, and Σ K(c).
      noise: bound on the error of δ(ε) by rounding and wrapping, relative to e^{log_scale − cε}.
      infinite: probability of an infinite loss.
      shift: to be subtracted from ε.
    """

    losses: np.ndarray
    mass: np.ndarray
    c: float
    log_scale: float
    noise: float
    infinite: float
    shift: float


_TILTS = np.exp(np.linspace(np.log(1e-9), np.log(3e3), 100))
_TRIES = np.array([-6, -3, 0, 3])
_TAUS = np.exp(np.linspace(np.log(0.05), np.log(30.0), 24))


def _moments(pairs: list[Pair], tilts: np.ndarray, reach: float) -> np.ndarray:
    """Σ K(c) at every tilt from a grid of some thousand bins; only choices depend on it."""
    total = np.zeros(len(tilts))
    for pair in pairs:
        low, high = loss_range(pair, reach)
        h = max((high - low) / 1000, 1e-12)
        step = discretise(pair, h, reach)
        kept = step.upper > 0
        losses = step.origin + h * (step.start + np.arange(len(step.upper))[kept])
        log_mass = np.log(step.upper[kept])
        exponent = log_mass + tilts[:, None] * losses
        top = exponent.max(axis=1)
        total += pair.count * (top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)))
    return total


def compose(
    pairs: list[Pair],
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    upper: bool = True,
    bins: int = DEFAULT_BINS,
) -> Composed:
    """The composed loss distribution, tilted towards a target δ or ε.

    Args:
      pairs: the steps.
      delta, epsilon: the target; give one.
      upper: whether to round towards more loss.
      bins: length of the transform, which bounds memory.

    Example:
      >>> from dpjax.accounting import loss_distribution as pld
      >>> run = pld.compose([pld.Pair("gaussian", 1, 1.0, 1.0, 1)], epsilon=1.0, bins=1 << 12)
      >>> run.losses.shape
      (4096,)
    """
    steps = sum(pair.count for pair in pairs)
    least = 1e-30 if delta is None else delta
    reach = float(
        np.clip(-scipy.special.ndtri(max(1e-6 * least / max(steps, 1.0), 1e-280)), 8.0, 36.0)
    )
    moments = _moments(pairs, _TILTS, reach)
    prefactor = np.log(_TILTS) + np.log1p(_TILTS)
    if epsilon is None:
        epsilon = max(float(np.min((moments - prefactor - np.log(least)) / _TILTS)), 0.0)
    c = float(_TILTS[np.argmin(moments - _TILTS * epsilon - prefactor)])
    near = _moments(pairs, c * np.array([0.98, 1.0, 1.02]), reach)
    spread = np.sqrt(max((near[2] - 2 * near[1] + near[0]) / (0.02 * c) ** 2, 1e-20))
    # Chernoff: the tilted mass beyond the window's ends is at most e^{−36} of the whole.
    taus = _TAUS / spread
    rise = _moments(pairs, c + taus, reach) - near[1]
    fall = _moments(pairs, c - taus, reach) - near[1]
    up, down = int(np.argmin((rise + 36.0) / taus)), int(np.argmin((fall + 36.0) / taus))
    top, bottom = (rise[up] + 36.0) / taus[up], -(fall[down] + 36.0) / taus[down]
    # Those moments were rough: the bound itself tries the neighbours too.
    near_up, near_down = (taus[np.clip(k + _TRIES, 0, len(taus) - 1)] for k in (up, down))
    top, bottom = max(top, epsilon), min(bottom, epsilon)
    width = 1.1 * (top - bottom) + 1e-9
    ranges = [loss_range(pair, reach) for pair in pairs]
    widest = max(high - low for low, high in ranges)
    h = max(width / bins, widest / (4 * bins))
    bottom = bottom - 0.05 * width

    spectrum = np.ones(bins // 2 + 1, np.complex128)
    log_scale, log_alive, shift = 0.0, 0.0, 0.0
    wrap_up, wrap_down = np.zeros(len(_TRIES)), np.zeros(len(_TRIES))
    offset, origin = 0, 0.0
    for pair in pairs:
        step = discretise(pair, h, reach)
        mass = step.upper if upper else step.lower
        losses = step.origin + h * (step.start + np.arange(len(mass)))
        with np.errstate(divide="ignore"):
            log_mass = np.log(mass) + c * losses
        moment = float(scipy.special.logsumexp(log_mass))
        tilted = np.exp(log_mass - moment)
        log_scale += pair.count * moment
        log_alive += pair.count * np.log1p(-step.infinite)
        shift += pair.count * step.shift
        origin += pair.count * step.origin
        peak = int(np.argmax(tilted))
        wrap_up += [pair.count * _log_mean(tilted, tau * losses) for tau in near_up]
        wrap_down += [pair.count * _log_mean(tilted, -tau * losses) for tau in near_down]
        # Centre every step on its mode, so that phases stay small; count the centres apart.
        offset += round(pair.count) * (step.start + peak)
        folded = np.bincount((np.arange(len(mass)) - peak) % bins, tilted, bins)
        spectrum *= _power(scipy.fft.rfft(folded), pair.count)
    composed = scipy.fft.irfft(spectrum, bins)
    first = round((bottom - origin) / h)
    composed = np.roll(composed, -((first - offset) % bins))
    losses = origin + h * (first + np.arange(bins))
    escaped = np.exp(min(np.min(wrap_up - near_up * losses[-1]), 0.0))
    escaped += np.exp(min(np.min(wrap_down + near_down * losses[0]), 0.0))
    rounding = (10 + 2 * np.log2(bins)) * _EPS * (1 + steps)
    # Error of one bin, summed over the geometric weights e^{−c(l−ε)} of all bins above ε.
    noise = rounding * 2 * np.mean(np.abs(spectrum)) / -np.expm1(-c * h) + escaped
    infinite = -np.expm1(log_alive) if upper else 0.0
    return Composed(
        losses, np.maximum(composed, 0.0), c, log_scale, float(noise), float(infinite), shift
    )


def _log_mean(mass: np.ndarray, exponent: np.ndarray) -> float:
    top = float(exponent.max())
    return top + float(np.log(max(mass @ np.exp(exponent - top), 1e-300)))


def _power(spectrum: np.ndarray, count: float) -> np.ndarray:
    """Integer powers by their logarithm; the branch of the logarithm does not matter for them."""
    size = np.abs(spectrum)
    with np.errstate(divide="ignore"):
        return np.exp(count * np.log(size)) * np.exp(1j * (round(count) * np.angle(spectrum)))


def _profile(run: Composed, at: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grid points l_k and A, B with δ(ε) = e^{log_scale − c·at}(A_k − e^{ε−l_k}B_k) just below l_k.

    A_k = Σ_{j≥k} m_j and B_k = Σ_{j≥k} m_j e^{l_k − l_j}, m_j = mass·e^{−c(l_j − at)}; `at` is not
    beyond the grid.
    """
    kept = int(np.count_nonzero(run.losses > at - 500.0 / run.c))
    losses = run.losses[-kept:]
    mass = run.mass[-kept:] * np.exp(-run.c * (losses - at))
    decay = float(np.exp(losses[0] - losses[1]))
    shrunk = np.asarray(scipy.signal.lfilter([1.0], [1.0, -decay], mass[::-1]))[::-1]
    return losses, np.cumsum(mass[::-1])[::-1], shrunk


def _too_coarse(run: Composed) -> bool:
    """Whether two neighbouring losses differ by more than the tilt can weigh."""
    return bool(run.c * (run.losses[1] - run.losses[0]) > 400.0)


def _delta_of(run: Composed, epsilon: float, upper: bool) -> float:
    at = epsilon + (0.0 if upper else run.shift)
    value, noise = 0.0, run.noise  # nothing lies above the grid
    if _too_coarse(run):
        return 1.0 if upper else 0.0
    if at <= run.losses[-1]:
        losses, a, b = _profile(run, at)
        k = int(np.searchsorted(losses, at))
        value = float(a[k] - np.exp(at - losses[k]) * b[k])
        # The cumulative sums' own rounding, and the discretisation's.
        noise += 1e-13 * float(a[k])
    with np.errstate(over="ignore"):
        scale = np.exp(run.log_scale - run.c * at)
        if upper:
            return float(min(1.0, run.infinite + scale * (max(value, 0.0) + noise) * (1 + 1e-12)))
        return float(max(0.0, scale * (value - noise) * (1 - 1e-12)))


def _epsilon_of(run: Composed, delta: float, upper: bool, guess: float) -> float:
    """The root of the profile with its error added (upper) or taken off (lower)."""
    left = delta - run.infinite
    if left <= 0:
        return np.inf
    if _too_coarse(run):
        return np.inf if upper else -np.inf
    # The guess only scales; beyond the grid there is nothing to scale.
    guess = min(guess, float(run.losses[-1]))
    losses, a, b = _profile(run, guess)
    noise = run.noise * np.exp(-run.c * (losses - guess)) + 1e-13 * a
    with np.errstate(over="ignore"):
        target = np.exp(np.log(left) - run.log_scale + run.c * guess)
    revealing = np.nonzero(a - b + (noise if upper else -noise) > target)[0]
    if not len(revealing):
        return float(losses[0]) if upper else -np.inf
    k = int(revealing[-1])
    if k + 1 == len(losses):
        return np.inf if upper else float(losses[k])
    # Between two points the profile is linear in e^ε; the error is larger at the left one.
    room = a[k + 1] + (noise[k] if upper else -noise[k]) - target
    with np.errstate(divide="ignore", invalid="ignore"):
        root = losses[k + 1] + np.log(room / b[k + 1]) if room > 0 else losses[k]
    return float(np.clip(root, losses[k], losses[k + 1]))


def _usable(pairs: list[Pair]) -> list[Pair] | None:
    """The steps that release something; None if one of them adds no noise."""
    live = [p for p in pairs if p.mu > 0 and p.rate > 0 and p.count > 0]
    return live if all(np.isfinite([p.mu, p.count]).all() for p in live) else None


def epsilon_bounds(
    pairs: list[Pair], delta: float, *, bins: int = DEFAULT_BINS
) -> tuple[float, float]:
    """(lower, upper) bounds on ε(δ) of the composition of the pairs, in one direction.

    Args:
      pairs: the steps, all in the same direction.
      delta: δ in (0, 1).
      bins: length of the transform; the bounds approach each other as it grows.

    Returns:
      Numbers ≥ 0, the upper +∞ where nothing can be said.

    Example:
      >>> from dpjax.accounting import loss_distribution as pld
      >>> low, high = pld.epsilon_bounds([pld.Pair("gaussian", 1, 1.0, 1.0, 1)], 1e-5)
      >>> low <= 4.377178095681 <= high
      True
    """
    low, high = (epsilon_bound(pairs, delta, upper=upper, bins=bins) for upper in (False, True))
    return min(low, high), high


def epsilon_bound(
    pairs: list[Pair], delta: float, *, upper: bool, bins: int = DEFAULT_BINS
) -> float:
    """One end of `epsilon_bounds`.

    Args:
      pairs: the steps, all in the same direction.
      delta: δ in (0, 1).
      upper: which end.
      bins: length of the transform.

    Example:
      >>> from dpjax.accounting import loss_distribution as pld
      >>> step = pld.Pair("gaussian", 1, 1.0, 1.0, 1)
      >>> pld.epsilon_bound([step], 1e-5, upper=True) >= 4.377178095681
      True
    """
    live = _usable(pairs)
    if live is not None and (not live or delta >= 1):
        return 0.0
    if live is None or not delta > 1e-250:
        return np.inf if upper else 0.0
    run = compose(live, delta=delta, upper=upper, bins=bins)
    found = _epsilon_of(run, delta, upper, _guess(run, delta)) - (0.0 if upper else run.shift)
    # Rounding of the bins' masses moves a step's mean loss by about an ulp.
    slack = 1e-13 * (1 + abs(found)) + 3e-15 * sum(p.count for p in live)
    return max(found + (slack if upper else -slack), 0.0)


def _guess(run: Composed, delta: float) -> float:
    """Chernoff's ε for δ at the run's tilt: where exponents are counted from."""
    return (run.log_scale - np.log1p(run.c) - run.c * np.log1p(1 / run.c) - np.log(delta)) / run.c


def delta_bounds(
    pairs: list[Pair], epsilon: float, *, bins: int = DEFAULT_BINS
) -> tuple[float, float]:
    """(lower, upper) bounds on δ(ε) of the composition of the pairs, in one direction.

    Args:
      pairs: the steps, all in the same direction.
      epsilon: ε ≥ 0.
      bins: length of the transform.

    Example:
      >>> from dpjax.accounting import loss_distribution as pld
      >>> low, high = pld.delta_bounds([pld.Pair("gaussian", 1, 1.0, 1.0, 1)], 1.0)
      >>> low <= 0.126936737507 <= high
      True
    """
    low, high = (delta_bound(pairs, epsilon, upper=upper, bins=bins) for upper in (False, True))
    return min(low, high), high


def delta_bound(
    pairs: list[Pair], epsilon: float, *, upper: bool, bins: int = DEFAULT_BINS
) -> float:
    """One end of `delta_bounds`.

    Args:
      pairs: the steps, all in the same direction.
      epsilon: ε ≥ 0.
      upper: which end.
      bins: length of the transform.

    Example:
      >>> from dpjax.accounting import loss_distribution as pld
      >>> step = pld.Pair("gaussian", 1, 1.0, 1.0, 1)
      >>> pld.delta_bound([step], 1.0, upper=False) <= 0.126936737507
      True
    """
    live = _usable(pairs)
    if live is None or not live:
        return 1.0 if live is None and upper else 0.0
    slack = 3e-15 * sum(p.count for p in live) + 1e-14
    run = compose(live, epsilon=epsilon, upper=upper, bins=bins)
    return _delta_of(run, max(epsilon - slack, 0.0) if upper else epsilon + slack, upper)


# --- the method -----------------------------------------------------------------------------------


def _atoms(atoms: lowering.Atoms, adjacency: Adjacency) -> lowering.Atoms:
    return atoms


def directions(atoms: lowering.Atoms, adjacency: Adjacency, *, lower: bool) -> list[list[Pair]]:
    """The pairs of one concrete setting, once for each direction to be taken.

    Args:
      atoms: one setting of a run, as NumPy numbers.
      adjacency: the neighbouring relation.
      lower: for a lower bound, fixed batches take the one-sided pair in every step; for an upper
        bound the symmetrised one.

    Example:
      >>> import numpy as np
      >>> from dpjax.accounting import Adjacency, loss_distribution, lowering
      >>> atoms = lowering.Atoms(np.array(1.0), None, None)
      >>> loss_distribution.directions(atoms, Adjacency.REPLACE_ONE, lower=False)
      [[Pair(family='gaussian', sign=1, mu=1.0, rate=1.0, count=1)]]
    """
    one_sided = lower and atoms.fixed is not None
    poisson = "poisson" if adjacency is Adjacency.ADD_REMOVE else "replace"
    two = one_sided or (adjacency is Adjacency.ADD_REMOVE and atoms.poisson is not None)
    found = []
    for sign in (1, -1) if two else (1,):
        mu2 = float(atoms.gaussian_mu2)
        own = [Pair("gaussian", sign, float(np.sqrt(mu2)), 1.0, 1)] if mu2 > 0 else []
        for steps, family in (
            (atoms.poisson, poisson),
            (atoms.fixed, "poisson" if lower else "symmetrised"),
        ):
            if steps is not None:
                rows = zip(steps.mu, steps.rate, steps.count, strict=True)
                own += [Pair(family, sign, float(m), float(r), float(n)) for m, r, n in rows]
        found.append(own)
    return found


def _shown(settings: list) -> Iterable:
    """The settings, with a progress bar where someone waits for many at a terminal."""
    if len(settings) <= _UNSHOWN:
        return settings
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        settings,
        "loss distributions",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _each_setting(bound, run: Mechanism, given: Any, adjacency: Adjacency, lower: bool) -> Any:
    """Run over the settings one by one; the worse direction of each."""
    if float64.is_traced(run, given):
        raise UnsupportedQuery(
            "method 'pld' runs on the host and cannot be traced; method='contour' or 'rdp' can"
        )
    atoms = lowering.query(_atoms, run, adjacency)
    lead = np.shape(atoms.gaussian_mu2)
    shape = np.broadcast_shapes(lead, np.shape(given))
    given = np.broadcast_to(np.asarray(given, np.float64), shape)
    answer = np.empty(shape)
    for index in _shown(list(np.ndindex(*shape))):
        place = tuple(
            0 if n == 1 else i for n, i in zip(lead, index[len(shape) - len(lead) :], strict=True)
        )
        single = lowering.Atoms(
            atoms.gaussian_mu2[place],
            *(
                None if group is None else lowering.Steps(*(a[place] for a in group))
                for group in (atoms.poisson, atoms.fixed)
            ),
        )
        ways = directions(single, adjacency, lower=lower)
        answer[index] = max(bound(way, float(given[index]), upper=not lower) for way in ways)
    return answer


def _epsilon_upper(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    return _each_setting(epsilon_bound, run, delta, adjacency, lower=False)


def _epsilon_lower(run: Mechanism, delta: Any, adjacency: Adjacency) -> Any:
    return _each_setting(epsilon_bound, run, delta, adjacency, lower=True)


def _delta_upper(run: Mechanism, epsilon: Any, adjacency: Adjacency) -> Any:
    return _each_setting(delta_bound, run, epsilon, adjacency, lower=False)


register_method(
    "pld",
    rank=20.0,
    supports=lowering.lowers,
    epsilon=_epsilon_upper,
    delta=_delta_upper,
    epsilon_lower=_epsilon_lower,
    traceable=False,
    describe="privacy-loss distributions, discretised pessimistically by connecting the dots and "
    "composed by tilted FFT",
)
