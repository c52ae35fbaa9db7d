"""Random allocation under correlated noise, by comparison with mechanisms that have a price.

A record takes part in one of b bins of steps; v_j is what it moves in bin j where its contributions
are one unit vector, and K_ij = ⟨v_i, v_j⟩/σ², with C ≥ 0. Where K ≤ K' entry by entry, diagonals
included, every hockey stick of the run, in either direction, is at most that of

    L' = b⁻¹ Σⱼ exp(Yⱼ − K'ⱼⱼ/2),  Y Gaussian with covariance K'

KAHANE: Under Q the density ratio is L = b⁻¹Σⱼ wⱼ, wⱼ the exponential martingale of Mʲ, and step t
adds Σ C_ts C_ts' ⟨x_s, x_s'⟩/σ², over s in bin i and s' in bin j, to the bracket of Mⁱ and Mʲ. The
contribution x_s is chosen before output s is seen, |x_s| ≤ 1 and C ≥ 0: the addition is at most
that of one unit vector, dK_ij(t). Let U(t, w) = E F(b⁻¹Σ wⱼ e^{Yⱼ(T) − Yⱼ(t) − …}), F convex and
smooth. Then ∂²U/∂wᵢ∂wⱼ ≥ 0, so that the drift of U(t, w_t), half of Σ wᵢwⱼU_ij times what the
additions fall short of dK_ij, is at most 0: E F(L) ≤ U(0, 1). With K' ≥ K for K it is Kahane 1985.
(L − e^ε)₊ and (1 − e^ε L)₊ are limits of such F. The pair of L' dominates, hence also composed.

EXCHANGEABLE: with a = max Kᵢᵢ and c = max_{i≠j} K_ij, K' = c + (a − c)·1{i = j}: a Gaussian of
μ² = c, and an allocation of b steps of μ² = a − c.
EVERY w-TH: L is the mean of w sums over the bins ≡ r modulo w, and δ is convex in L: at most the
mean of theirs, each by EXCHANGEABLE with c_w = the largest K_ij at |i − j| = w, 2w, … and ⌊b/w⌋
bins; of fewer bins L is larger in convex order. Each w gives a bound, and the least is taken.
AFRESH: of k epochs with bins of their own each, indexed by tuples, K' is X, the largest overlaps
across epochs, and Σ_e (c + (a − c)·1{j_e = j'_e}): a Gaussian of X + kc, and k allocations.
TWO LEVELS: L is also the mean over r of sums over r + qP + ui modulo b, i < s, q < ⌊b/P⌋: blocks of
s bins, u apart, that begin P apart. K' = c₂ + (c₁ − c₂)·1{same block} + (a − c₁)·1{i = j}, c₁ the
largest entry within a block and c₂ across two, is a mean of blocks with a factor each
(`mean_ratio.nested_ratio`); for one choice that is priced alone.
LOWER: the same with the least entries for a record whose contributions are one unit vector.

References:
  Kahane 1985, "Sur le chaos multiplicatif"; for adaptive contributions derived for dpjax.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax.accounting.mechanisms import (
    Composed,
    Gaussian,
    Mechanism,
    RandomAllocation,
    RandomAllocationCorrelated,
    Repeated,
)
from dpjax.accounting.mechanisms.base import build
from dpjax.accounting.pairs.allocation import whole_moments
from dpjax.accounting.pairs.mean_ratio import RatioLaw, nested_ratio
from dpjax.accounting.pairs.mean_ratio_lattice import raised

_U = 2.0**-53
MOMENTS = 64  # whole moments that bounds are compared by
_APART, _INNER, _GAPS = (1, 2, 4, 8), (2, 3, 4, 8), (2, 4, 8, 12, 16, 24, 32)
_RESOLVED = 1e-10, 100.0  # variances of which laws are computed
_SQUARED = 1e-150, 1e150  # noise whose square float64 holds
_LARGEST_EPSILON = 500.0  # e^ε of which laws are asked


class Exchangeable(NamedTuple):
    """A covariance of equal entries off its diagonal, for a noise multiplier of 1.

    Fields:
        shared: entries off the diagonal, all uses together.
        own: what the diagonal of one use has beyond them.
        bins: size of the matrix.
        uses: how many such choices are made.
    """

    shared: float
    own: float
    bins: int
    uses: int

    def mechanism(self, noise: Any) -> Mechanism:
        """The Gaussian release and the allocations that have this covariance."""
        xp = namespace(noise)

        def gaussian(mu2: float) -> Mechanism:
            root = math.sqrt(mu2)
            exact = root * root == mu2 and math.frexp(root)[0] == 0.5  # a power of 2
            # √ and the quotient are rounded to nearest: some units less noise make up for it.
            scale = 1.0 / root if exact else 1.0 / root * (1 - 4 * _U)
            return build(Gaussian, {"noise_multiplier": xp.asarray(noise) * scale})

        parts = []
        if self.shared:
            parts.append(gaussian(self.shared))
        if self.own:
            fields = {"mechanism": gaussian(self.own), "steps": float(self.bins), "chosen": 1.0}
            one = build(RandomAllocation, fields)
            parts.append(one if self.uses == 1 else Repeated(one, float(self.uses)))
        return parts[0] if len(parts) == 1 else build(Composed, {"mechanisms": tuple(parts)})

    def to_blocks(self) -> Nested:
        """The same as blocks of one bin each, of one use."""
        return Nested(self.shared, 0.0, self.own, self.bins, 1)

    def log_moments(self, noise: float) -> np.ndarray:
        """log E[L'^m] for m = 2, 3, …: what bounds are compared by before they are priced."""
        # Moments of independent factors multiply; a lognormal's is e^{m(m − 1)v/2}, v its variance.
        m = np.arange(2.0, MOMENTS + 1)
        noise2 = float(np.clip(noise, *_SQUARED)) ** 2  # the squares beyond are no float64
        shared, own = self.shared / noise2, self.own / noise2
        known = 0.5 * shared * m * (m - 1)
        if self.own:
            # A mean's moment is at most that of one of its terms (Jensen).
            alone = 0.5 * own * m * (m - 1)
            many = (
                whole_moments(own**0.5, float(self.bins), MOMENTS)[2:] if self.bins > 1 else alone
            )
            known = known + self.uses * np.minimum(many, alone)
        return known


def list_bounds(step: RandomAllocationCorrelated) -> list[Exchangeable]:
    """EVERY w-TH of a step of concrete numbers, without those that another one is below."""
    bins, epochs = int(step.bins), int(step.epochs)
    most = np.asarray(step.overlaps, np.float64)[(epochs - 1) * bins : epochs * bins]
    uses = epochs if step.redrawn else 1
    found, least = [], np.inf
    for w in range(1, bins + 1):
        # Bins that are w, 2w, … apart: K' needs the largest entry of these.
        shared = float(np.max(most[w::w], initial=0.0))
        if shared < least:  # of fewer bins only with less in common
            least = shared
            found.append(_split_overlap(shared, float(most[0]), bins // w, uses))
        if shared == 0.0:
            break
    # With as many bins the last shares least.
    last = {bound.bins: bound for bound in found}
    return [bound for bins, bound in last.items() if bins > 1 or len(last) == 1]


def _split_overlap(shared: float, own: float, bins: int, uses: int) -> Exchangeable:
    """The bound of these entries."""
    # Hockey sticks grow with every entry: what the quotient rounds is added.
    rest = max(own - shared, 0.0) / uses
    exact = (shared == 0.0 and uses == 1) or rest * uses == own
    return Exchangeable(shared, rest if exact else rest * (1 + 4 * _U), bins, uses)


def find_least(step: RandomAllocationCorrelated) -> Exchangeable:
    """LOWER, as a bound from below."""
    uses = int(step.epochs) if step.redrawn else 1
    own, shared = float(step.least_own), float(step.least_shared)
    # And fall with it: the difference and the quotient are off by a few units.
    rest = max(own - shared, 0.0) / uses * (1 - 16 * _U)
    return Exchangeable(shared * (1 - 16 * _U), rest, int(step.bins), uses)


class Nested(NamedTuple):
    """A covariance of blocks, for a noise multiplier of 1: TWO LEVELS.

    Fields:
        shared: entries across blocks.
        block: what entries within a block have beyond them.
        own: what the diagonal has beyond those.
        blocks, inner: how many blocks, and how many bins each has.
        apart, period: from one bin of a block to the next, and from one block to the next.
    """

    shared: float
    block: float
    own: float
    blocks: int
    inner: int
    apart: int = 1
    period: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether it is a Gaussian release, or random allocation, alone."""
        return not self.own or not (self.shared or self.block)

    def find_variances(self, noise: float) -> tuple[float, float, float]:
        """The variances of the three factors at this noise, rounded up where its square is held."""
        # Kahane: hockey sticks of the mean grow with each of the three.
        grow = (1 + 16 * _U) / float(np.clip(noise, *_SQUARED)) ** 2
        return self.shared * grow, self.block * grow, self.own * grow

    def log_moments(self, noise: float) -> np.ndarray:
        """As of `Exchangeable`: of a mean, m! times a coefficient of a power of a polynomial."""
        shared, block, own = self.find_variances(noise)
        # E[(Σ X_B)^m]/m! is the coefficient of x^m in (Σ E[X^k]x^k/k!)^blocks, as blocks are
        # independent given what all share.
        k = np.arange(MOMENTS + 1.0)
        factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
        # Of a block: the mean of its bins times a lognormal factor that they share.
        inner = whole_moments(own**0.5, float(self.inner), MOMENTS) + 0.5 * block * k * (k - 1)
        terms = inner - k * np.log(self.blocks) - factorial
        found = raised(terms, self.blocks, _multiply_logs) + factorial + 0.5 * shared * k * (k - 1)
        return found[2:]

    def law(self, noise: float, goal: float) -> RatioLaw | None:
        """The law of L' from above, made for about this δ; None where it is not resolved."""
        from scipy.special import ndtri

        parts = self.find_variances(noise)
        if not _SQUARED[0] <= noise <= _SQUARED[1] or not all(
            _RESOLVED[0] < v < _RESOLVED[1] for v in parts if v
        ):
            return None
        # Mass beyond the reach is charged whole: a millionth of the δ that is asked for.
        reach = math.ceil(2 * float(-ndtri(max(1e-6 * goal, 1e-280)))) / 2
        return nested_ratio(parts, self.blocks, self.inner, reach)


def list_nested(step: RandomAllocationCorrelated) -> list[Nested]:
    """TWO LEVELS of a step that makes one choice, for a few sizes of blocks and gaps."""
    bins, epochs = int(step.bins), int(step.epochs)
    if step.redrawn and epochs > 1:
        return []
    most = np.asarray(step.overlaps, np.float64)[(epochs - 1) * bins : epochs * bins]
    cyclic = np.maximum(most, np.concatenate([most[:1], most[:0:-1]]))  # also the other way round
    found = []
    for apart, inner, gap in itertools.product(_APART, _INNER, _GAPS):
        period = apart * (inner - 1) + gap
        blocks = bins // period
        if blocks < 2:  # no second level
            continue
        offsets = apart * np.arange(1 - inner, inner)
        # Every distance of two bins of different blocks; the mean over r wraps them around b.
        across = np.add.outer(period * np.arange(1, blocks), offsets).ravel()
        shared = float(np.max(cyclic[across]))
        within = float(np.max(cyclic[offsets[inner:]]))
        if shared < within < most[0]:
            sizes = (blocks, inner, apart, period)
            found.append(Nested(shared, within - shared, float(most[0]) - within, *sizes))
    return found


def _multiply_logs(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The product of two polynomials by the logarithms of their coefficients."""
    n = np.arange(len(f))
    # Coefficient n is Σ f_k·g_{n−k}, a sum of logarithms of which the largest is taken out.
    other = np.where(n <= n[:, None], g[n[:, None] - n], -np.inf)
    return np.logaddexp.reduce(f + other, axis=1)


def delta_of_law(law: RatioLaw, epsilon: float) -> float:
    """The larger direction's δ, rounded up."""
    # E[(W − e^ε)₊] and E[(1 − e^ε W)₊]: 1e-15 covers the rounding of e^ε and of the products.
    grow = math.exp(min(epsilon, 700.0))
    excess = float(np.maximum(law.ratio - grow * (1 - 1e-15), 0.0) @ law.mass) + law.beyond
    short = float(np.maximum(1 - grow * law.ratio * (1 - 1e-15), 0.0) @ law.mass) + law.zero
    # What the law's masses are off by, and what underflowed.
    return min(max(excess, short) * (1 + law.off) + 1e-300, 1.0)


def epsilon_of_law(law: RatioLaw, delta: float) -> float:
    """An ε at which the law's δ is at most this; +inf where there is none."""
    if delta_of_law(law, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0  # doubled until the bound holds at `high`
    while delta_of_law(law, high) > delta:
        low, high = high, 2 * high
        if high > _LARGEST_EPSILON:
            return math.inf
    for _ in range(60):  # δ falls with ε: the bound holds at `high` all along
        middle = 0.5 * (low + high)
        low, high = (low, middle) if delta_of_law(law, middle) <= delta else (middle, high)
    return high
