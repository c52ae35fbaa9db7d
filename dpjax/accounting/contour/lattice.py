"""The contour of noise on the whole numbers, by the Gaussian whose transform it shares.

Noise on the whole numbers has no decay of its own: its transform is periodic. LATTICE: moved by a,
that of the discrete Gaussian of variance σ² is, with θ(f) = Σ_y e^{−(y−f)²/2σ²} over the integers,

    E_P[e^{zL}] = e^{μ²z(z+1)/2}·θ(a(1 + z))/θ(0),  μ = a/σ.

By Poisson summation θ(f) ∝ 1 + 2Σ_{k≥1} e^{−2π²σ²k²} cos(2πkf). So θ(f) ≤ θ(0) at real f, and for
|Im z| ≤ V = πσ²/2a, where |cos(2πkf)| ≤ e^{π²σ²k}, the quotient is within 4Σ_{k≥1} e^{−π²σ²k} of 1.
The profiles of a run with the discrete Gaussians and with Gaussians of the same μ instead therefore
differ, on a line Re z = c with |M(z)| ≤ ρM(c) of all else beyond V, by at most

    M(c)e^{−cε}·(η/2c + 2ρ/πV),  1 + η = the product of what the quotients may be,

as ∫ dv/|z(z + 1)| is at most π/2c over all v > 0, and at most 1/V over v > V.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import half, interval
from dpjax.accounting.contour import line as lines
from dpjax.accounting.contour import tilt as tilts
from dpjax.accounting.contour.saddle import Composition, Step, find_saddle, sum_over
from dpjax.accounting.contour.users import host_bound, read_composition
from dpjax.accounting.loss_distribution import method as grids
from dpjax.accounting.mechanisms import Composed, Gaussian, Mechanism
from dpjax.accounting.mechanisms.steps import Factors, count_uses, widen
from dpjax.accounting.method import HostPart, Method
from dpjax.accounting.pairs.atoms import is_gaussian_family
from dpjax.accounting.pairs.protocol import LatticeRelease
from dpjax.accounting.pairs.stacked import split_run, times
from dpjax.accounting.typing import Real

_OF_DELTA, _FURTHEST = 1e-9, 1e9  # of LATTICE: what it may cost, and V


# --- LATTICE: noise on the whole numbers ---------------------------------------------------------


class _Lattice(NamedTuple):
    """What all such steps of all settings have at most: V, log(1 + η) and Σμ²."""

    end: float
    error: float
    mu2: float


def _split_lattice(run: Mechanism) -> tuple[list[tuple[Mechanism, Factors]], Composed]:
    return split_run(run, lambda step: isinstance(step.release, LatticeRelease))


def _supports_lattice(run: Mechanism, adjacency: Adjacency) -> bool:
    steps, rest = _split_lattice(run)
    return bool(steps and rest.mechanisms) and is_gaussian_family(rest, adjacency)


def _without_lattice(run: Mechanism, adjacency: Adjacency) -> tuple[Mechanism, _Lattice]:
    """Return the run with Gaussians of the same μ in the place of noise on whole numbers."""
    steps, rest = _split_lattice(run)
    moved = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    end, error, mu2, parts = _FURTHEST, 0.0, 0.0, list(rest.mechanisms)
    for step, factors in steps:
        release = step.release
        assert isinstance(release, LatticeRelease)
        numbers = release.numbers(widen(step), adjacency)
        assert numbers is not None
        own_end, own_error = release.lattice(numbers)
        count = count_uses(factors)
        end = min(end, float(np.min(own_end)))
        error += float(np.max(count * np.log1p(own_error)))
        mu2 += float(np.max(count * np.square(numbers.mu)))
        # Two quotients, rounded towards less privacy by far less than _OF_DELTA.
        parts.append(times(Gaussian(moved / numbers.mu * (1 - 2.0**-51)), factors))
    return Composed(tuple(parts)), _Lattice(end, error, mu2)


def _lattice_error(run: Composition, epsilon: float, c: Numbers, lattice: _Lattice) -> float:
    """Return what δ(ε) may be off by on the line Re z = c."""
    nodes, t = interval.LEVELS[1][0], NUMPY.asarray(np.geomspace(1e-3, 1.0, 12) * lattice.end)

    def fall(pair: Step, _: Numbers) -> Numbers:
        step = half.tilt(pair, c, nodes)
        return NUMPY.log(tilts.decay(step, t, lines.moment_error(step))[-1])

    own = max(float(run.gaussian_mu2) - lattice.mu2 * (1 + 1e-9), 0.0)  # what is rounded is none
    rho = np.exp(sum_over(fall, run, NUMPY.asarray(-0.5 * own * lattice.end**2)))
    # The bound is of k(c)M(c), k(c) = c^c/(1 + c)^{c+1}; 1 % for rounding.
    moment = lines.bound_moment(run, c, nodes) + np.log1p(c) + c * np.log1p(1 / c)
    each = np.expm1(lattice.error) / (2 * c) + 2 * rho / (math.pi * lattice.end)
    return 1.01 * float(np.exp(moment - c * epsilon) * each)


def _lattice_bound(
    pairs: list[grids.Pair], given: float, question: str, *, upper: bool, lattice: _Lattice
) -> float:
    """Return one end in one direction: of Gaussians instead, where δ is off by next to nothing."""
    asked = question == "epsilon"
    nothing = (np.inf if asked else 1.0) if upper else 0.0
    spared = _OF_DELTA * asked * (1 if upper else -1)
    found = host_bound(pairs, given * (1 - spared), question, upper=upper)
    if found == nothing:
        return nothing
    epsilon, delta = (found, given) if asked else (given, max(found, 1e-300))  # never 0
    used = [pair for pair in pairs if pair.count > 0 and pair.mu > 0 and pair.rate > 0]
    run, _, _ = read_composition(used, upper)
    with np.errstate(all="ignore"):  # what is no number is no answer
        at = find_saddle(run, NUMPY.log(delta), NUMPY.asarray(epsilon))
        off = _lattice_error(run, epsilon, at.c, lattice)
    if off <= _OF_DELTA * delta:
        return found if asked else min(delta + off, 1.0)
    return nothing


def _lattice_part(question: str, upper: bool) -> HostPart:
    def ask(run: Mechanism, given: Real, adjacency: Adjacency) -> np.ndarray:
        """The end of the pairs in every step; of counts, that of the cells which a record is in."""
        with np.errstate(divide="ignore", over="ignore"):  # no noise
            smooth, lattice = _without_lattice(run, adjacency)
        bound = functools.partial(_lattice_bound, question=question, lattice=lattice)
        return grids.each_setting(bound, smooth, given, adjacency, upper=upper)

    return ask


LATTICE_METHODS = (
    Method(
        "contour",
        rank=11.0,
        tight=True,
        dear=True,
        supports=_supports_lattice,
        needs="release",
        epsilon=_lattice_part("epsilon", True),
        delta=_lattice_part("delta", True),
        epsilon_lower=_lattice_part("epsilon", False),
        describe="privacy profile by contour integration, discrete Gaussian noise by the Gaussian "
        "whose transform it shares up to a bounded error, all errors bounded and added",
    ),
)
