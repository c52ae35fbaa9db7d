"""Discretised privacy-loss distributions, composed by FFT: upper and lower bounds for any step.

The fall-back and the cross-check of contour integration. The loss of each step is put on a grid so
that its privacy profile can only grow ("connect the dots": mass between two grid points is split so
that P and Q both keep theirs, and the profile becomes its own chord in e^ε). What lies beyond the
grid on the right goes to an atom at +∞; on the left it is rounded up.

The lower bound uses the chord too, where it overshoots little: with δ̃ the chord,
δ̃(ε + η) ≤ δ(ε) for every ε once (e^η − 1)Q(L > l_{k+2}) ≥ (e^h − 1)Q(bin k)/4 in every bin, because
a convex function's chord overshoots by at most a quarter of the interval times the change of slope.
Bins that would need a larger η are rounded down instead. Composition is monotone in each factor's
profile (δ₁₂(ε) = E_{L₂}[δ₁(ε − L₂)], and E over L₁ likewise), so that the composed δ̃(ε + Ση) is a
lower bound whose distance falls with h², not h (derived for dpjax).

Composition multiplies spectra. The distribution is tilted by e^{cl} first, c near the saddle point
for the target, so that rounding is relative to the mass that matters and δ = 1e-15 is as good as
1e-5; what wraps around the window is bounded by Chernoff's inequality, and the transform's rounding
is allowed for.

Host code: pocketfft in NumPy's float64 is several times faster than XLA's on a CPU, and a fall-back
need not be traced. Memory is bounded by the number of bins, whatever the noise: where losses spread
more widely the grid is coarser, and the answer still a bound.

References:
  Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, Algorithm 1 (connect the dots); Koskela,
  Jälkö, Honkela 2020 (FFT); Gopi, Lee, Wutschitz 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.fft
from scipy.special import logsumexp, ndtr, ndtri

from dpjax.accounting.pairs import Family

DEFAULT_BINS = 1 << 18
_EPS = float(np.finfo(np.float64).eps)


class Pair(NamedTuple):
    """One kind of step: family, displacement over noise, sampling rate, multiplicity.

    Fields:
      family: see `pairs`; "gaussian" is the plain Gaussian pair.
      sign: +1 for direction remove, −1 for add; only "poisson" looks at it.
      mu, rate, count: numbers.
    """

    family: Family | str
    sign: int
    mu: float
    rate: float
    count: float


class Discretised(NamedTuple):
    """One step's loss on the grid l_k = origin + (start + k)·h.

    Fields:
      origin: offset of the grid, where most of a rarely sampled record's loss lies.
      start: index of the first grid point.
      upper: probability under P at each point, rounded towards larger losses.
      infinite: probability under P beyond the last point, for the upper bound.
      lower: the same rounded towards smaller losses, after a shift.
      shift: η of the lower bound.
    """

    origin: float
    start: int
    upper: np.ndarray
    infinite: float
    lower: np.ndarray
    shift: float


def _log_r(y: np.ndarray, mu: float, rate: float) -> np.ndarray:
    w = mu * y - 0.5 * mu * mu
    with np.errstate(over="ignore", divide="ignore"):
        excess = rate * np.expm1(np.minimum(w, 30.0))
        low = np.where(
            excess > -0.5,
            np.log1p(np.maximum(excess, -0.5)),
            np.log((1 - rate) + rate * np.exp(np.minimum(w, 30.0))),
        )
        high = w + np.log(rate + (1 - rate) * np.exp(-np.maximum(w, 30.0)))
    return w if rate == 1 else np.where(w > 30, high, low)


def _inverse(loss: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """y with log r(y) = loss; −∞ below the least loss log(1 − q)."""
    floor = np.log1p(-rate) if rate < 1 else -np.inf
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # log((e^l − 1 + q)/q), from whichever end does not cancel
        near = np.log1p(np.expm1(np.minimum(loss, 30.0)) / rate)
        over_floor = np.log(-np.expm1(floor - loss)) + loss - np.log(rate)
        w = np.where(
            loss > np.log1p(-0.5 * rate), np.where(loss > 30, over_floor, near), over_floor
        )
    return np.where(loss <= floor, -np.inf, (w + 0.5 * mu * mu) / mu)


def _normal_mass(edges: np.ndarray) -> np.ndarray:
    """Φ(b) − Φ(a) of successive ascending edges, without cancellation in either tail."""
    a, b = edges[:-1], edges[1:]
    return np.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a))


def _replace_inverse(loss: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """y with log r(y) − log r(−y) = loss: with u = e^{μy}, a quadratic."""
    if rate == 1:
        return loss / (2 * mu)
    # 1 − q + ku = e^l(1 − q + k/u), k = qe^{−μ²/2}, B = (1−q)(e^l − 1): u = (B + √(B² + 4k²e^l))/2k
    log_k = np.log(rate) - 0.5 * mu * mu
    size = np.abs(loss)
    # by symmetry for |l|; all terms divided by e^{l}, so that nothing overflows
    b = (1 - rate) * -np.expm1(-size)
    log_b = np.log(np.maximum(b, 1e-320))
    root = 0.5 * np.logaddexp(2 * log_b, np.log(4.0) + 2 * log_k - size)
    log_u = np.logaddexp(log_b, root) + size - np.log(2.0) - log_k
    return np.sign(loss) * np.maximum(log_u, 0.0) / mu


def _loss_range(pair: Pair, reach: float) -> tuple[float, float]:
    """Losses between which all of P lies but for normal tails beyond `reach`."""
    mu, rate = pair.mu, pair.rate
    if pair.family == "gaussian":
        return mu * mu / 2 - reach * mu, mu * mu / 2 + reach * mu

    def log_r(y: float) -> float:
        return float(_log_r(np.asarray(y), mu, rate))

    if pair.family == "poisson" and pair.sign < 0:
        return -log_r(reach), -log_r(-reach)
    low = -reach if rate < 1 else mu - reach
    if pair.family == "poisson":
        return log_r(low), log_r(mu + reach)
    if pair.family == "replace":
        return log_r(low) - log_r(-low), log_r(mu + reach) - log_r(-mu - reach)
    return -log_r(mu + reach), log_r(mu + reach)


def _masses(pair: Pair, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """P and Q mass between successive losses, and P mass above the last."""
    mu, rate = pair.mu, pair.rate
    if pair.family == "gaussian":
        y = losses / mu + 0.5 * mu
        return _normal_mass(y - mu), _normal_mass(y), float(ndtr(mu - y[-1]))
    if pair.family == "poisson" and pair.sign > 0:
        y = _inverse(losses, mu, rate)
        q = _normal_mass(y)
        p = (1 - rate) * q + rate * _normal_mass(y - mu)
        return p, q, float((1 - rate) * ndtr(-y[-1]) + rate * ndtr(mu - y[-1]))
    if pair.family == "poisson":
        y = _inverse(-losses, mu, rate)[::-1]
        p = _normal_mass(y)[::-1]
        q = (1 - rate) * p + rate * _normal_mass(y - mu)[::-1]
        return p, q, float(ndtr(y[0]))
    if pair.family == "replace":
        y = _replace_inverse(losses, mu, rate)
        common = (1 - rate) * _normal_mass(y)
        p, q = common + rate * _normal_mass(y - mu), common + rate * _normal_mass(y + mu)
        return p, q, float((1 - rate) * ndtr(-y[-1]) + rate * ndtr(mu - y[-1]))
    y = np.maximum(_inverse(np.abs(losses), mu, rate), 0.5 * mu)
    # Above 0 the pair is (g·r, g) on y > μ/2, below 0 its mirror image with P and Q exchanged.
    tail_g = ndtr(-y)
    tail_gr = (1 - rate) * tail_g + rate * ndtr(mu - y)
    upper = losses[:-1] >= 0
    p = np.where(upper, tail_gr[:-1] - tail_gr[1:], tail_g[1:] - tail_g[:-1])
    q = np.where(upper, tail_g[:-1] - tail_g[1:], tail_gr[1:] - tail_gr[:-1])
    return np.maximum(p, 0.0), np.maximum(q, 0.0), float(tail_gr[-1])


def _origin(pair: Pair, h: float) -> tuple[float, bool]:
    """A grid offset l₀ at which everything within h of it may be lumped for the lower bound.

    Lumping outcomes keeps log(P/Q) of the lump: second-order exact where most of the mass lies in
    one bin. l₀ solves l₀ ≤ log(P/Q) of the lump; for symmetric pairs it is 0.
    """
    mu, rate = pair.mu, pair.rate
    if pair.family != "poisson":
        return 0.0, pair.family != "gaussian"
    if rate == 1:
        return 0.0, False

    def lump(at: float) -> tuple[float, float]:
        edge = float(_inverse(np.asarray(pair.sign * at + h), mu, rate))
        excess = rate * (ndtr(edge - mu) / ndtr(edge) - 1)
        return pair.sign * np.log1p(excess), float(ndtr(edge))

    origin, mass = pair.sign * np.log1p(-rate), 0.0
    for _ in range(40):
        new, mass = lump(origin)
        if abs(new - origin) < 1e-18:
            break
        origin = new
    ratio, mass = lump(origin)
    # One rounding lower on either side, so that the inequality holds in floating point too.
    return min(origin, ratio) - 4 * _EPS * abs(origin), mass > 0.5


def discretise(pair: Pair, h: float, reach: float = 9.0) -> Discretised:
    """One step's loss on multiples of h, rounded both ways.

    Args:
      pair: the step.
      h: spacing of the grid.
      reach: normal quantile beyond which mass is cut off.

    Example:
      >>> from dpjax.accounting import loss_distribution as pld
      >>> step = pld.discretise(pld.Pair("poisson", 1, 1.0, 0.01, 1), 1e-3)
      >>> bool(abs(step.upper.sum() + step.infinite - 1) < 1e-12)
      True
    """
    low, high = _loss_range(pair, reach)
    origin, lumped = _origin(pair, h)
    origin = origin if lumped else 0.0
    first, last = int(np.floor((low - origin) / h)), int(np.ceil((high - origin) / h))
    if pair.family == "symmetrised":
        first, last = min(first, -1), max(last, 1)
    last = max(last, first + 1)
    losses = origin + h * np.arange(first, last + 1)
    p, q, above = _masses(pair, losses)
    # The chord: a + b = p and a·e^{−l} + b·e^{−l−h} = q. A point with q = 0 is rounded up.
    with np.errstate(over="ignore", invalid="ignore"):
        b = (p - q * np.exp(losses[:-1])) / -np.expm1(-h)
    b = np.clip(np.where(np.isfinite(b), b, p), 0.0, p)
    upper, lower = np.zeros(len(losses)), np.zeros(len(losses))
    upper[:-1] += p - b
    upper[1:] += b
    beyond = np.append(np.cumsum(q[::-1])[::-1][2:], [0.0, 0.0])
    with np.errstate(divide="ignore", invalid="ignore"):
        need = np.where(p > 0, np.log1p(np.expm1(h) * q / (4 * beyond)), 0.0)
    need = np.where(np.isfinite(need), need, np.inf)
    lump = np.zeros(len(p), bool)
    if lumped:
        cell = slice(max(-first - 1, 0), min(-first + 1, len(p)))
        lumped = p[cell].sum() > 0.5
        lump[cell] = lumped
        need = np.where(lump, 0.0, need)
    # The best threshold weighs the shift of all mass against rounding the rest down by h/2.
    order = np.argsort(need)
    weight = np.where(lump, 0.0, p)[order]
    rounded = np.append(np.cumsum(weight[::-1])[::-1][1:], 0.0) * h / 2
    cost = np.where(need[order] <= h, need[order], np.inf) + rounded
    eta = float(need[order][np.argmin(cost)]) if np.isfinite(cost.min()) else 0.0
    chord = need <= eta
    lower[:-1] += np.where(lump, 0.0, np.where(chord, p - b, p))
    lower[1:] += np.where(chord & ~lump, b, 0.0)
    lower[min(max(-first, 0), len(lower) - 1)] += p[lump].sum()
    lower[-1] += above
    if pair.family == "symmetrised":
        atom = (1 - pair.rate) * (2 * ndtr(0.5 * pair.mu) - 1)
        upper[-first] += atom
        lower[-first] += atom * (1 - 1e-15)
    # All that is unaccounted for, the left tail and rounding, goes to the lowest point.
    upper[0] += max(0.0, 1.0 - above - upper.sum())
    return Discretised(origin, first, upper, above * (1 + 1e-12), lower * (1 - 1e-15), eta)


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
_TAUS = np.exp(np.linspace(np.log(0.05), np.log(30.0), 24))


def _moments(pairs: list[Pair], tilts: np.ndarray, reach: float) -> np.ndarray:
    """Σ K(c) at every tilt from a grid of some thousand bins; only choices depend on it."""
    total = np.zeros(len(tilts))
    for pair in pairs:
        low, high = _loss_range(pair, reach)
        h = max((high - low) / 2000, 1e-12)
        step = discretise(pair, h, reach)
        kept = step.upper > 0
        losses = step.origin + h * (step.start + np.arange(len(step.upper))[kept])
        log_mass = np.log(step.upper[kept])
        total += pair.count * logsumexp(log_mass + tilts[:, None] * losses, axis=1)
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
    reach = float(np.clip(-ndtri(max(1e-6 * least / max(steps, 1.0), 1e-280)), 8.0, 36.0))
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
    top = float(np.min((rise + 36.0) / taus))
    bottom = float(np.max(-(fall + 36.0) / taus))
    top, bottom = max(top, epsilon), min(bottom, epsilon)
    width = 1.1 * (top - bottom) + 1e-9
    ranges = [_loss_range(pair, reach) for pair in pairs]
    widest = max(high - low for low, high in ranges)
    h = max(width / bins, widest / (4 * bins))
    bottom = bottom - 0.05 * width

    spectrum = np.ones(bins // 2 + 1, np.complex128)
    log_scale, log_alive, shift, wrap_up, wrap_down = 0.0, 0.0, 0.0, np.zeros(24), np.zeros(24)
    offset, origin = 0, 0.0
    for pair in pairs:
        step = discretise(pair, h, reach)
        mass = step.upper if upper else step.lower
        losses = step.origin + h * (step.start + np.arange(len(mass)))
        with np.errstate(divide="ignore"):
            log_mass = np.log(mass) + c * losses
        moment = float(logsumexp(log_mass))
        tilted = np.exp(log_mass - moment)
        log_scale += pair.count * moment
        log_alive += pair.count * np.log1p(-step.infinite)
        shift += pair.count * step.shift
        origin += pair.count * step.origin
        peak = int(np.argmax(tilted))
        for k, tau in enumerate(taus):
            wrap_up[k] += pair.count * _log_mean(tilted, tau * losses)
            wrap_down[k] += pair.count * _log_mean(tilted, -tau * losses)
        # Centre every step on its mode, so that phases stay small; count the centres apart.
        offset += round(pair.count) * (step.start + peak)
        folded = np.bincount((np.arange(len(mass)) - peak) % bins, tilted, bins)
        spectrum *= _power(scipy.fft.rfft(folded), pair.count)
    composed = scipy.fft.irfft(spectrum, bins)
    first = round((bottom - origin) / h)
    composed = np.roll(composed, -((first - offset) % bins))
    losses = origin + h * (first + np.arange(bins))
    escaped = np.exp(min(float(np.min(wrap_up - taus * losses[-1])), 0.0))
    escaped += np.exp(min(float(np.min(wrap_down + taus * losses[0])), 0.0))
    rounding = (10 + 2 * np.log2(bins)) * _EPS * (1 + steps)
    # Error of one bin, summed over the geometric weights e^{−c(l−ε)} of all bins above ε.
    noise = rounding * 2 * np.mean(np.abs(spectrum)) / -np.expm1(-c * h) + escaped
    infinite = -np.expm1(log_alive) if upper else 0.0
    return Composed(
        losses, np.maximum(composed, 0.0), c, log_scale, float(noise), float(infinite), shift
    )


def _log_mean(mass: np.ndarray, exponent: np.ndarray) -> float:
    top = float(exponent.max())
    return top + float(np.log(mass @ np.exp(exponent - top)))


def _power(spectrum: np.ndarray, count: float) -> np.ndarray:
    """Integer powers by their logarithm; the branch of the logarithm does not matter for them."""
    size = np.abs(spectrum)
    with np.errstate(divide="ignore"):
        return np.exp(count * np.log(size)) * np.exp(1j * (round(count) * np.angle(spectrum)))


def _profile(run: Composed, at: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Suffix sums A, B: δ(ε) = e^{log_scale − c·at}(A_k − e^{ε − at}B_k) between grid points."""
    kept = run.losses > at - 600.0 / (run.c + 1)
    losses = run.losses[kept]
    first = run.mass[kept] * np.exp(-run.c * (losses - at))
    second = first * np.exp(-(losses - at))
    return losses, np.cumsum(first[::-1])[::-1], np.cumsum(second[::-1])[::-1]


def _delta_of(run: Composed, epsilon: float, upper: bool) -> float:
    at = epsilon + (0.0 if upper else run.shift)
    losses, a, b = _profile(run, at)
    k = int(np.searchsorted(losses, at, side="right"))
    value = float(a[k] - b[k]) if k < len(losses) else 0.0
    # The cumulative sums' own rounding, and the discretisation's.
    noise = run.noise + 1e-13 * (float(a[k]) if k < len(losses) else 0.0)
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
    losses, a, b = _profile(run, guess)
    relative = np.exp(-run.c * (losses - guess))
    noise = run.noise * relative + 1e-13 * a
    with np.errstate(over="ignore", divide="ignore"):
        target = np.exp(np.log(left) - run.log_scale + run.c * guess)
    # δ at a grid point counts the mass strictly above it, which A − e^ε B does by itself.
    # Far above the guess there is nothing left that a sum could hold.
    values = a - np.exp(np.minimum(losses - guess, 700.0)) * b + (noise if upper else -noise)
    private = values <= target
    if upper:
        above = np.nonzero(~private)[0]
        k = int(above[-1]) + 1 if len(above) else 0
        if k == len(losses):
            return np.inf
        if k == 0:
            return float(losses[0])
        room = a[k] + noise[k - 1] - target
        return float(np.clip(guess + np.log(max(room, 1e-300) / b[k]), losses[k - 1], losses[k]))
    above = np.nonzero(~private)[0]
    if not len(above):
        return -np.inf
    k = int(above[-1])
    if k + 1 == len(losses):
        return float(losses[k])
    room = a[k + 1] - noise[k] - target
    return float(np.clip(guess + np.log(max(room, 1e-300) / b[k + 1]), losses[k], losses[k + 1]))


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
    live = _usable(pairs)
    if live is None:
        return 0.0, np.inf
    if not live or delta >= 1:
        return 0.0, 0.0
    if not delta > 1e-250:
        return 0.0, np.inf
    ends = []
    for upper in (False, True):
        run = compose(live, delta=delta, upper=upper, bins=bins)
        guess = _guess(run, delta)
        found = _epsilon_of(run, delta, upper, guess) - (0.0 if upper else run.shift)
        # Rounding of the bins' masses moves a step's mean loss by about an ulp.
        slack = 1e-13 * (1 + abs(found)) + 3e-15 * sum(p.count for p in live)
        ends.append(max(found + (slack if upper else -slack), 0.0))
    return min(ends), ends[1]


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
    live = _usable(pairs)
    if live is None:
        return 0.0, 1.0
    if not live:
        return 0.0, 0.0
    steps = 3e-15 * sum(p.count for p in live) + 1e-14
    low = compose(live, epsilon=epsilon, upper=False, bins=bins)
    high = compose(live, epsilon=epsilon, upper=True, bins=bins)
    return _delta_of(low, epsilon + steps, False), _delta_of(high, max(epsilon - steps, 0.0), True)
