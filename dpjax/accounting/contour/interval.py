"""ε(δ) and δ(ε) of a composition between two certified ends, the worse of its directions.

Mass at infinite loss counts in δ at every ε: of independent steps of which each has the mass m_i it
is m = 1 − Π(1 − m_i)^{n_i}, and the line gives the rest, δ(ε) − m.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers, namespace, tree_map
from dpjax.accounting.contour import line as lines
from dpjax.accounting.contour.line import Line
from dpjax.accounting.contour.saddle import (
    Composition,
    Saddle,
    Step,
    find_saddle,
    reversed_run,
    sum_over,
)
from dpjax.accounting.contour.single_step import Bounds, of_single_step
from dpjax.accounting.pairs.pair import Atoms

# Nodes and blocks that are tried in turn; of atoms alone only the line grows.
LEVELS = ((256, 20), (1024, 32), (4096, 64))
_OF_ATOMS = ((0, 20), (0, 64), (0, 256))
_SHORT = (128, 16)  # to tell that a direction is no worse than the other
GOOD = 1e-8  # relative width at which no finer line is tried
USABLE = 1e-5  # relative width above which the answer is left to another method
_NEWTON = 40
_BACK = np.array([1.0, 1.05, 1.1, 1.5, 3.0])  # where a lower end is looked for, over the gap
_BLURRED = np.array([0.0, 0.0, 0.1, 1.0, 6.0])  # and over the blur


def infinite_mass(run: Composition) -> Numbers:
    """Return the mass under P of the outcomes that Q never gives."""
    xp = namespace(run)

    def kept(pair: Step, _: Numbers) -> Numbers:
        return xp.log1p(-pair.infinite) if isinstance(pair, Atoms) else xp.zeros(())

    return -xp.expm1(sum_over(kept, run, xp.zeros(())))


def list_levels(run: Composition) -> tuple:
    return _OF_ATOMS if all(isinstance(g.pair, Atoms) for g in run.groups) else LEVELS


# ------------------------------------------------------------------------------ roots


def find_root(
    log_value: Callable, goal: Numbers, start: Numbers, top: Numbers
) -> tuple[Numbers, Numbers]:
    """Return a point in [0, top] at or beyond a falling function's root, and Newton's last.

    Args:
        log_value: returns logarithm and slope at a point.
        goal: what the logarithm is to be.
        start: where to begin.
        top: where it is known to be no more.
    """
    xp = namespace(goal, start, top)

    def improve(state: tuple) -> tuple:
        i, low, high, x, _ = state
        value, slope = log_value(x)
        enough = value <= goal
        low, high = xp.where(enough, low, x), xp.where(enough, xp.minimum(high, x), high)
        steep = (slope < 0) & (slope > -1e9)  # where the sum is lost it has no slope to follow
        new = x - (value - goal) / xp.where(steep, slope, -1e9)
        still = xp.abs(new - x) <= 1e-14 * (1 + x)
        new = xp.where(still | ((new > low) & (new < high)), new, 0.5 * (low + high))
        return i + 1, low, high, new, still

    state = (0, 0.0 * top, top, xp.minimum(start, top), ~(top >= 0))
    _, _, high, x, _ = xp.while_loop(lambda s: (s[0] < _NEWTON) & ~s[4], improve, state)
    return high, x


def _read_epsilon(line: Line, start: Numbers, goals: tuple[Numbers, Numbers]) -> Bounds:
    """Return both ends of ε off one line, each looked up at a δ of its own.

    δ falls, so that an ε at which the upper end of δ is small enough is an upper end, and one at
    which the lower end is large enough is a lower one: how they are found proves nothing.
    """
    xp = namespace(line.c, start)
    goal, goal_below = goals
    top = xp.maximum((line.chernoff - goal) / line.c, 0.0) * (1 + 1e-11) + 1e-11
    high, x = find_root(lambda e: lines.log_line_delta(line, e)[::2], goal, start, top)
    points = xp.stack([high, x + 1e-10 * (1 + x), x + 2e-13 * (1 + x), 0.0 * x, x])
    up, _, slope = xp.vmap(lambda e: lines.log_line_delta(line, e))(points)
    sure = 1e-15 * (1 + xp.abs(goal))
    upper = xp.min(xp.where(up[:4] <= goal - sure, points[:4], np.inf))
    under = lines.read_ends(line, x)[1]
    gap = xp.where(under > -np.inf, up[4] - under, 0.0) + (goal_below - goal) + 1e-13
    points = x - _BACK * gap / xp.maximum(-slope[4], 1e-9) - 1e-13 * (1 + x)
    points = points - xp.sqrt(line.blur) * _BLURRED
    low = xp.vmap(lambda e: lines.read_ends(line, e)[1])(points)
    lower = xp.max(xp.where((points > 0) & (low >= goal_below + sure), points, 0.0))
    return Bounds(lower, upper)


def _read_delta(line: Line, epsilon: Numbers) -> Bounds:
    xp = namespace(line.c, epsilon)
    up, low = lines.read_ends(line, epsilon)
    return Bounds(xp.exp(low) * (1 - 1e-14), xp.exp(up) * (1 + 1e-14))


def _best(found: list[Bounds]) -> Bounds:
    """All of them hold: the best of each end."""
    xp = namespace(found)
    lower, upper = found[0]
    for other in found[1:]:
        lower, upper = xp.fmax(lower, other.lower), xp.fmin(upper, other.upper)
    return Bounds(lower, upper)


def is_good(found: Bounds, good: float = GOOD) -> Numbers:
    """Whether no finer line is worth its time."""
    return found.upper - found.lower <= good * found.upper


def _of_lines(question: str, run: Composition, given: Numbers, at: Saddle, level: tuple) -> Bounds:
    """Return the ends off one pair of lines, at a saddle point."""
    xp = namespace(run, given)
    mass = infinite_mass(run)
    found = []
    both = lines.evaluate_line(run, at, *level)
    if xp is not NUMPY:
        stacked = tree_map(lambda *v: xp.stack(v), *both)
        ends = xp.map(lambda line: _of_line(question, line, given, at.epsilon, mass), stacked)
        return Bounds(xp.max(ends.lower), xp.min(ends.upper))
    for line in both:
        found.append(_of_line(question, line, given, at.epsilon, mass))
        if line.blur == 0:
            break  # the second line is the first
    return _best(found)


def _of_line(question: str, line: Line, given: Numbers, start: Numbers, mass: Numbers) -> Bounds:
    """Return the ends off one line, with the mass at infinite loss."""
    xp = namespace(line.c, given)
    if question == "delta":
        ends = _read_delta(line, given)
        upper = xp.minimum(ends.upper + mass * (1 + 1e-12), 1.0)
        return Bounds(ends.lower + mass * (1 - 1e-12), upper)
    rests = given - mass * (1 + 1e-12), given - mass * (1 - 1e-12)
    goal, goal_below = (xp.log(xp.maximum(rest, 1e-300)) for rest in rests)
    ends = _read_epsilon(line, start, (goal, goal_below))
    upper = xp.where(rests[0] > 1e-300, ends.upper, np.inf)
    return Bounds(xp.where(rests[1] > 0, ends.lower, np.inf), upper)


def _direction(question: str, run: Composition, given: Numbers, level: int) -> Bounds:
    """Return the ends of one direction at one resolution."""
    xp = namespace(run, given)
    if question == "delta":
        at = find_saddle(run, None, given)
    else:
        rest = xp.maximum(given - infinite_mass(run), 1e-300)
        at = find_saddle(run, xp.log(rest), None)
        if level > 0:  # once more, from the ε that was found
            at = find_saddle(run, xp.log(rest), xp.maximum(at.epsilon, 1e-9))
    found = _of_lines(question, run, given, at, list_levels(run)[level])
    if xp is NUMPY and found.upper < (np.inf if question == "epsilon" else 1.0):
        return found
    return Bounds(found.lower, xp.fmin(found.upper, _chernoff(question, run, given, at.c)))


def _chernoff(question: str, run: Composition, given: Numbers, c: Numbers) -> Numbers:
    """Return an upper end where a line of large tilt is lost: RIGHT at a tilt of 2 at most."""
    xp = namespace(run, given, c)
    s, mass = xp.minimum(c, 2.0), infinite_mass(run) * (1 + 1e-12)
    moment = lines.bound_moment(run, s, LEVELS[0][0])
    moment = moment + 1e-12 * (1 + xp.abs(moment))
    if question == "delta":
        return xp.minimum(xp.exp(moment - s * given) * (1 + 1e-12) + mass, 1.0)
    rest = given - mass
    found = xp.maximum((moment - xp.log(xp.maximum(rest, 1e-300))) / s * (1 + 1e-14), 0.0)
    return xp.where(rest > 1e-300, found, np.inf)


def _is_dominated(run: Composition, epsilon: Numbers, delta: Numbers) -> Numbers:
    """Whether δ(ε) of this direction is at most δ, by a short line."""
    xp = namespace(run, epsilon, delta)
    rest = delta - infinite_mass(run) * (1 + 1e-12)
    goal = xp.log(xp.maximum(rest, 1e-300))
    line, _ = lines.evaluate_line(run, find_saddle(run, goal, epsilon), *_SHORT)
    up = lines.log_line_delta(line, epsilon)[0]
    return (up <= goal - 1e-14 * (1 + xp.abs(goal))) & (rest > 1e-300)


def bounds(
    question: str, run: Composition, signs: tuple[int, ...], given: Numbers, level: int
) -> Bounds:
    """Return the ends of ε(δ) or δ(ε), the worse of the directions, at one resolution.

    Args:
        question: "epsilon" or "delta".
        run: what is composed.
        signs: (1,), or (1, −1) for both directions.
        given: δ in (0, 1), or ε ≥ 0.
        level: position in `LEVELS`.
    """
    xp = namespace(run, given)
    back = reversed_run(run)
    if xp is not NUMPY:  # compiled once for both, which run side by side in a sweep

        def one(sign: Numbers) -> Bounds:
            turned = tree_map(lambda a, b: xp.where(sign > 0, a, b), run, back)
            return _direction(question, turned, given, level)

        each = xp.map(one, xp.asarray(signs))
        return _fill_degenerate(question, xp.max(each.lower), xp.max(each.upper))
    lower = upper = 0.0 * given
    for k, sign in enumerate(signs):
        turned = run if sign > 0 else back
        if k > 0:  # only the worse direction has to be resolved
            ends = (upper, given) if question == "epsilon" else (given, upper)
            if not upper < np.inf or _is_dominated(turned, *ends):
                break
        found = _direction(question, turned, given, level)
        # What is not a number stays so.
        kept = ~(found.upper <= upper) & ~np.isnan(upper)
        lower, upper = xp.maximum(found.lower, lower), xp.where(kept, found.upper, upper)
    return _fill_degenerate(question, lower, upper)


def _fill_degenerate(question: str, lower: Numbers, upper: Numbers) -> Bounds:
    """Return ends of which one that is no number says nothing."""
    xp = namespace(lower, upper)
    # NaN is not above 0: it becomes what holds always.
    upper = xp.where(upper >= 0, upper, np.inf if question == "epsilon" else 1.0)
    lower = xp.where(lower >= 0, lower, 0.0)
    return Bounds(xp.minimum(lower, upper), upper)


# ------------------------------------------------------------------------------ one setting


def line_epsilon(
    run: Composition, delta: float, signs: tuple[int, ...] = (1,), good: float = GOOD
) -> Bounds:
    """Return the ends of ε(δ) of one concrete setting, on lines as fine as it takes.

    Example:
        >>> from dpjax.accounting.contour.saddle import Group
        >>> from dpjax.accounting.pairs.mixtures import poisson_mixture
        >>> steps = Group(poisson_mixture(np.array([1.0]), np.array([0.01])), np.array([1e3]))
        >>> found = line_epsilon(Composition(np.float64(0.0), (steps,)), 1e-5, (1, -1))
        >>> print(f"{found.lower:.8f} {found.upper:.8f}")
        1.82823667 1.82823667
    """
    return _concrete("epsilon", run, delta, signs, good)


def line_delta(
    run: Composition, epsilon: float, signs: tuple[int, ...] = (1,), good: float = GOOD
) -> Bounds:
    """Return the ends of δ(ε) of one concrete setting, on lines as fine as it takes."""
    return _concrete("delta", run, epsilon, signs, good)


def _concrete(
    question: str, run: Composition, given: float, signs: tuple[int, ...], good: float
) -> Bounds:
    asked = NUMPY.asarray(given)[()]
    with np.errstate(all="ignore"):
        best = of_single_step(question, run, signs, asked)
        found = [best]
        if best.lower > 0 and is_good(best, good):
            return best
        # A law that is rough itself has no first line as good as that.
        for level in range(int(good > GOOD), len(LEVELS)):
            found.append(bounds(question, run, signs, asked, level))
            best = _best(found)
            if is_good(best, good):
                break
        return best
