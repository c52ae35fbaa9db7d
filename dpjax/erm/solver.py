"""The decorator of private solvers, and the budget that a solver's noise follows from."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from jaxtyping import Array

from dpjax import accounting as acc
from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import scalar
from dpjax._numerics.namespace import Values
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.erm import check
from dpjax.erm.problems import Problem

REPLACE_ONE = acc.Adjacency.REPLACE_ONE
# What every private solver takes besides its noise; appended to the Args of its docstring.
_BUDGET_DOC = """
epsilon, delta: a budget instead of {noise}, which becomes the smallest that keeps it.
adjacency: the neighbouring relation of that budget; {adjacency} unless told otherwise.
"""


M = TypeVar("M", bound=acc.Mechanism)
Cost = TypeVar("Cost", bound=acc.Mechanism | None)


class Solution(NamedTuple, Generic[Cost]):
    """The outcome of a solver.

    Fields:
        params: the parameters to release.
        mechanism: what producing them costs, to be priced by `acc.epsilon(solution.mechanism, …)`;
            None for a solver without privacy.
        history: diagnostics of the run, named by the solver's docstring, which also says whether
            the mechanism's price covers them. Release nothing else.

    Example:
        >>> Solution(params=[0.0], mechanism=None, history=None).params
        [0.0]
    """

    params: Array
    mechanism: Cost
    history: Any


PrivateSolver = Callable[..., Solution[acc.Mechanism]]


class Budget(NamedTuple, Generic[M]):
    """The noise of a run, or the budget that it follows from: exactly one of the two."""

    name: str  # of the solver's noise argument
    noise: Number | None  # its value, or None
    epsilon: Number | None  # of the budget, or None
    delta: Number | None  # of the budget, or None
    adjacency: acc.Adjacency  # of the budget
    mechanism: Callable[..., M]  # (noise, **changed hyperparameters) -> what the run costs

    def resolve(self, **changed: Any) -> tuple[Values, M]:
        """(noise, mechanism): the noise given, or the smallest that keeps the budget."""
        make = functools.partial(self.mechanism, **changed)
        if (self.noise is None) == (self.epsilon is None):
            raise ValueError(
                f"give either {self.name} or a budget (epsilon, delta), not "
                f"{'both' if self.noise is not None else 'neither'}"
            )
        if self.noise is not None:
            scalar(self.name, self.noise)
            check.positive_values(self.name, self.noise, allow_zero=True)
            return self.noise, make(self.noise)
        if self.delta is None:
            raise ValueError("delta is missing: a budget is epsilon together with delta")
        asked = {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self.adjacency}
        noise = acc.calibrate(make, **asked)  # never below what keeps the budget
        return noise, make(noise)

    def keywords(self) -> dict[str, Any]:
        """As another solver with the same noise argument takes it."""
        given = {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self.adjacency}
        return {self.name: self.noise, **given}


class SolverSpec(NamedTuple):
    """What a sweep must know of a solver."""

    noise: str  # name of its noise argument
    mechanism: Callable[..., acc.Mechanism]  # (problem, noise, **hyperparameters) -> mechanism
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE  # unless told otherwise
    broadcasts: bool = False  # whether `mechanism` takes an array for every hyperparameter
    traced: tuple[str, ...] = ("step_size",)  # what may vary within one compiled program
    concrete: bool = False  # whether it wants float64, and so must not be traced
    copies_data: bool = False  # whether every run permutes a copy of the data


_SPECS: dict[PrivateSolver, SolverSpec] = {}


def private_solver(
    noise: str, mechanism: Callable[..., acc.Mechanism], **declared: Any
) -> Callable[[PrivateSolver], PrivateSolver]:
    """Make `solve(problem, key, budget, **hyperparameters)` a private solver; see `SolverSpec`."""
    # The public function takes the noise argument, `epsilon`, `delta` and `adjacency` by keyword
    # where `solve` takes a `Budget`; its signature and docstring say so.
    spec = SolverSpec(noise, mechanism, **declared)
    defaults = {noise: None, "epsilon": None, "delta": None, "adjacency": spec.adjacency}

    def register(solve: PrivateSolver) -> PrivateSolver:
        own = inspect.signature(solve)
        usual = {name: p.default for name, p in own.parameters.items()}

        @functools.wraps(solve)
        def solver(problem: Problem, key: PRNGKey, **hyperparameters: Any) -> Solution:
            given = [hyperparameters.pop(name, value) for name, value in defaults.items()]
            # An unknown name is refused below; None is right where it is the default.
            named = [(n, v) for n, v in hyperparameters.items() if n in usual]
            check.settings(problem, **{n: v for n, v in named if not (v is usual[n] is None)})
            price = functools.partial(mechanism, problem, adjacency=given[-1], **hyperparameters)
            return solve(problem, key, Budget(noise, *given, mechanism=price), **hyperparameters)

        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [inspect.Parameter(n, keyword, default=v) for n, v in defaults.items()]
        problem, key, _, *others = own.parameters.values()
        public = own.replace(parameters=[problem, key, *others, *shared])
        vars(solver)["__signature__"] = public  # unknown to type checkers as an attribute
        solver.__doc__ = _with_budget(inspect.getdoc(solve) or "", noise, spec.adjacency)
        solver = suggests_argument_names(solver)
        _SPECS[solver] = spec
        return solver

    return register


def _with_budget(doc: str, noise: str, adjacency: acc.Adjacency) -> str:
    """The docstring with the shared keywords at the end of its Args."""
    before, args, after = doc.partition("\nArgs:\n")
    own, *sections = after.split("\n\n")
    text = _BUDGET_DOC.format(noise=noise, adjacency=f"Adjacency.{adjacency.name}")
    shared = "".join(f"\n    {line}" for line in text.strip().splitlines())
    return before + args + "\n\n".join([own + shared, *sections])


def solver_spec(solver: PrivateSolver) -> SolverSpec:
    """The registered noise argument and mechanism of a private solver."""
    if solver not in _SPECS:
        raise _unknown(getattr(solver, "__name__", repr(solver)))
    return _SPECS[solver]


def find_solver(name: str) -> PrivateSolver:
    """The private solver of a name."""
    for solver in _SPECS:
        if solver.__name__ == name:
            return solver
    raise _unknown(name)


def _unknown(name: str) -> ValueError:
    names = ", ".join(sorted(f.__name__ for f in _SPECS))
    return ValueError(f"solver must be one of the private ones ({names}), got {name}")


def mechanism_of(solver: Callable, problem: Problem, noise: Values, **hyperparameters: Any):
    """The mechanism that `solver` would report for this noise, without running it.

    Args:
        solver: a private solver.
        problem: what it would solve; only its constants are used.
        noise: the solver's noise argument.
        hyperparameters: the solver's others.

    Returns:
        A mechanism, as in `Solution.mechanism`.

    Example:
        >>> import dpjax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
        >>> dpjax.erm.mechanism_of(dpjax.erm.dp_gd, problem, 3.0, steps=4, step_size=1.0).steps
        4
    """
    return solver_spec(solver).mechanism(problem, noise, **hyperparameters)


def calibrate_noise(
    solver: Callable,
    problem: Problem,
    *,
    epsilon: Values,
    delta: Values,
    adjacency: acc.Adjacency | None = None,
    **hyperparameters: Any,
):
    """The smallest noise with which `solver` keeps the budget.

    Args:
        solver: a private solver.
        problem: what it would solve; only its constants are used.
        epsilon: of the budget.
        delta: of the budget.
        adjacency: of the budget; the solver's default unless told otherwise.
        hyperparameters: the solver's others.

    Returns:
        The value for the solver's noise argument.

    Example:
        >>> import dpjax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
        >>> sigma = dpjax.erm.calibrate_noise(
        ...     dpjax.erm.dp_gd, problem, epsilon=1.0, delta=1e-5, steps=4, step_size=1.0)
        >>> round(float(sigma), 2)
        7.46
    """
    spec = solver_spec(solver)
    adjacency = spec.adjacency if adjacency is None else adjacency
    make = functools.partial(spec.mechanism, problem, adjacency=adjacency, **hyperparameters)
    return acc.calibrate(make, epsilon=epsilon, delta=delta, adjacency=adjacency)
