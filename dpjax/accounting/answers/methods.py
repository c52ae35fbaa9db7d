"""The one table of methods: every family's, in one tuple after the other."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from dpjax._numerics import checks
from dpjax.accounting.adjacency import Adjacency, unknown
from dpjax.accounting.best_of import BEST_OF_METHODS
from dpjax.accounting.contour import method as contour
from dpjax.accounting.contour.lattice import LATTICE_METHODS
from dpjax.accounting.contour.rare_steps import RARE_STEPS_METHODS
from dpjax.accounting.contour.users import USER_METHODS
from dpjax.accounting.envelope import envelope
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import gaussian_dp as gaussian
from dpjax.accounting.gaussian import objective_perturbation, randomized_sensitivity
from dpjax.accounting.geodp import GEODP_METHODS
from dpjax.accounting.geometric import BALL_METHODS
from dpjax.accounting.group_privacy import group_privacy
from dpjax.accounting.kahane import kahane
from dpjax.accounting.last_iterate import DESCENT_METHODS
from dpjax.accounting.little_noise import all_or_nothing
from dpjax.accounting.loss_distribution import method as loss_distribution
from dpjax.accounting.mechanisms import BestOf, Mechanism, flatten
from dpjax.accounting.mechanisms.base import TIERS, walk
from dpjax.accounting.mechanisms.guarantees import StatedGuarantee
from dpjax.accounting.mechanisms.steps import rewrite_for_group
from dpjax.accounting.method import Method, bound_by, rank_methods
from dpjax.accounting.pairs import atoms
from dpjax.accounting.renyi import method as renyi
from dpjax.accounting.tracing_diffusion import TRACING_METHODS
from dpjax.accounting.typing import Answer, Real

METHODS: list[Method] = [
    *gaussian.GDP_METHODS,
    *contour.CONTOUR_METHODS,
    *LATTICE_METHODS,
    *USER_METHODS,
    *RARE_STEPS_METHODS,
    *loss_distribution.LOSS_METHODS,
    *renyi.RENYI_METHODS,
    *BEST_OF_METHODS,
    *objective_perturbation.OBJECTIVE_METHODS,
    *randomized_sensitivity.SENSITIVITY_METHODS,
    *DESCENT_METHODS,
    *TRACING_METHODS,
    *BALL_METHODS,
    *GEODP_METHODS,
]
METHODS.append(all_or_nothing(METHODS[:]))  # asks the methods before it
METHODS.append(kahane(METHODS[:]))
METHODS.append(group_privacy(METHODS[:]))
METHODS.append(envelope(METHODS[:]))


_UNDECLARED = "the bound of method {name!r}, which is not part of dpjax, holds of this run"


def register_method(method: Method) -> Method:
    """Add a way to price mechanisms to the table.

    Several entries may share a name (say `closed_form`) as long as they support different
    mechanisms. An answer by a method that declares no `tier` is certified as conditional, on what
    the method `rests_on`, or else on its author's word.

    Returns:
        The entry of the table, with its tier and what it rests on.

    Raises:
        TypeError, ValueError: a tier that is neither `"proven"` nor `"conditional"`, or
            assumptions that are no tuple.

    Example:
        >>> from dpjax import accounting as acc
        >>> mine = acc.register_method(
        ...     acc.Method("nothing", None, lambda run, adjacency: False, describe="an example"))
        >>> "nothing" in acc.methods(), mine.tier
        (True, 'conditional')
        >>> METHODS.remove(mine)
    """
    if not isinstance(method.rests_on, tuple):
        raise TypeError(
            f"rests_on must be a tuple of sentences, got {checks.render(method.rests_on)}"
        )
    if method.tier is None:
        rests_on = method.rests_on or (_UNDECLARED.format(name=method.name),)
        method = method._replace(tier=TIERS[1], rests_on=rests_on)
    checks.choice("tier", method.tier, TIERS[:2])  # what gives no guarantee has no price
    METHODS.append(method)
    return method


def methods(
    run: Mechanism | None = None, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> dict[str, Method]:
    """Methods by name, those that support `run` if one is given, tightest first.

    Of several entries of one name that support it the answers are the tightest of theirs, as for
    `method=`.

    Example:
        >>> from dpjax import accounting as acc
        >>> "rdp" in acc.methods(acc.Gaussian(1.0))
        True
    """
    found: dict[str, list[Method]] = {}
    run, adjacency = None if run is None else rewrite_for_group(run), check_adjacency(adjacency)
    for m in sorted(METHODS, key=lambda m: float("inf") if m.rank is None else m.rank):
        if run is None or m.supports(run, adjacency):
            found.setdefault(m.name, []).append(m)
    return {name: own[0] if run is None else _join(own) for name, own in found.items()}


def _join(own: list[Method]) -> Method:
    """Entries of one name as one."""

    def lower(run: Mechanism, given: Real, adjacency: Adjacency) -> Answer:
        """The greatest lower end."""
        asked = (m.epsilon_lower for m in own if m.epsilon_lower is not None)
        return functools.reduce(np.fmax, (np.asarray(ask(run, given, adjacency)) for ask in asked))

    first = own[0]
    if len(own) == 1:
        return first
    return first._replace(
        epsilon=functools.partial(bound_by, own, "epsilon") if first.epsilon else None,
        delta=functools.partial(bound_by, own, "delta") if first.delta else None,
        epsilon_lower=lower if first.epsilon_lower else None,
    )


def check_adjacency(adjacency: Adjacency | str) -> Adjacency:
    """The adjacency, from its name too."""
    if not isinstance(adjacency, str):  # arrays have no truth value to be compared by
        raise unknown(adjacency)
    return Adjacency(adjacency)


def check_method(name: str) -> None:
    """Refuse a name that is no method's."""
    checks.choice("method", name, ["best", *sorted({m.name for m in METHODS})])


def choose_methods(run: Mechanism, part: str, name: str, adjacency: Adjacency) -> Sequence[Method]:
    """Methods to ask for one part, or a refusal that says what would answer."""
    check_method(name)
    if not isinstance(run, Mechanism):
        raise TypeError(f"run must be a mechanism, such as Gaussian(1.1), got {run!r}")

    def kept(m: Method) -> bool:
        return m.rank is not None if name == "best" else m.name == name

    chosen = rank_methods(METHODS, part, run, adjacency, kept)
    if chosen:
        return chosen
    able = _list_advised(part, run, adjacency)
    question = part.replace("_", " ")
    if able:
        would = " or ".join(dict.fromkeys(repr(m.name) for m in able))
        raise UnsupportedQuery(
            f"{describe(run)} has no {question} by method {name!r} under {adjacency.value}; "
            f"method={would} answers"
        )
    reason = _reason(run, part, adjacency)
    other = Adjacency.REPLACE_ONE if adjacency is Adjacency.ADD_REMOVE else Adjacency.ADD_REMOVE
    elsewhere = [m for m in _list_advised(part, run, other) if m.rank is not None]
    advice = ""
    if elsewhere:
        advice = f"; adjacency=Adjacency.{other.name} with method={elsewhere[0].name!r} answers"
    raise UnsupportedQuery(
        f"{describe(run)} has no {question} by any method under {adjacency.value}{reason}{advice}"
    )


def _list_advised(part: str, run: Mechanism, adjacency: Adjacency) -> list[Method]:
    """The methods that answer a part and may be named as what would."""
    able = rank_methods(METHODS, part, run, adjacency)
    return [method for method in able if method.is_advised]


def _reason(run: Mechanism, part: str, adjacency: Adjacency) -> str:
    """Why no method answers: what a step is missing, or a curve where there is a price."""
    for step in walk(run):
        if isinstance(step, StatedGuarantee) and step.stated_for(adjacency) is None:
            relation = vars(step)["adjacency"]
            return (
                f": {type(step).__name__} is stated for {relation}, which implies nothing for data "
                "sets of another size"
            )
        if isinstance(step, BestOf) and not _list_advised("epsilon", step.mechanism, adjacency):
            inside = _reason(step.mechanism, part, adjacency)
            return f": {describe(step)} is priced by one run, and that has no price{inside}"
    priced = [m for m in _list_advised("epsilon", run, adjacency) if m.rank is not None]
    if part == "rdp" and priced:
        steps = dict.fromkeys(
            describe(step)
            for step, _ in flatten(run)
            if not rank_methods(METHODS, part, step, adjacency)
        )
        unknown = " or ".join(steps) or describe(run)
        return (
            f": no Rényi curve is known of {unknown}; method={priced[0].name!r} answers epsilon "
            "and delta"
        )
    try:
        atoms.check_gaussian_family(run, adjacency)
    except UnsupportedQuery as refusal:
        return f": {refusal}"
    return ""


def describe(run: Mechanism) -> str:
    """The classes of a mechanism and of what it wraps."""
    inner = getattr(run, "mechanism", None)
    own = type(run).__name__
    return f"{own}({describe(inner)})" if isinstance(inner, Mechanism) else own
