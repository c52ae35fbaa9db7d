"""What makes a function a private solver: its noise or a budget, declared here once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from dpjax import accounting as acc
from dpjax._numerics.checks import scalar
from dpjax._other_names import taught
from dpjax.erm.problems import Problem
from dpjax.erm.solution import Solution, nonnegative

__all__ = ["calibrate_noise", "mechanism_of"]

# What every private solver takes besides its noise; appended to the Args of its docstring.
_BUDGET_DOC = """
epsilon, delta: a budget instead of {noise}, which becomes the smallest that keeps it.
adjacency: the neighbouring relation of that budget; {adjacency} unless told otherwise.
"""


class Budget(NamedTuple):
    """The noise of a run, or the budget that it follows from: exactly one of the two.

    Fields:
        name: of the solver's noise argument.
        noise: its value, or None.
        epsilon: of the budget, or None.
        delta: of the budget, or None.
        adjacency: of the budget.
    """

    name: str
    noise: Any
    epsilon: Any
    delta: Any
    adjacency: Any

    def resolve(self, mechanism: Callable[[Any], Any]) -> Any:
        """The noise given, or the smallest with which `mechanism(noise)` keeps the budget."""
        if (self.noise is None) == (self.epsilon is None):
            raise ValueError(
                f"give either {self.name} or a budget (epsilon, delta), not "
                f"{'both' if self.noise is not None else 'neither'}"
            )
        if self.noise is not None:
            scalar(self.name, self.noise)
            nonnegative(self.name, self.noise)
            return self.noise
        if self.delta is None:
            raise ValueError("delta is missing: a budget is epsilon together with delta")
        return acc.calibrate(
            mechanism, epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency
        )

    def keywords(self) -> dict[str, Any]:
        """As another solver with the same noise argument takes it."""
        given = {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self.adjacency}
        return {self.name: self.noise, **given}


class SolverSpec(NamedTuple):
    """What a sweep must know of a solver.

    Fields:
        noise: name of its noise argument.
        mechanism: (problem, noise, **hyperparameters) -> mechanism.
        adjacency: its default.
        broadcasts: whether `mechanism` takes an array for every hyperparameter.
        traced: hyperparameters that may vary within one compiled program.
        concrete: whether it wants float64, and so must not be traced.
        copies_data: whether every run permutes a copy of the data.
    """

    noise: str
    mechanism: Callable[..., Any]
    adjacency: Any
    broadcasts: bool
    traced: tuple[str, ...]
    concrete: bool
    copies_data: bool


_SPECS: dict[Callable, SolverSpec] = {}


def private_solver(
    *,
    noise: str,
    mechanism: Callable[..., Any],
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE,
    broadcasts: bool = False,
    traced: tuple[str, ...] = ("step_size",),
    concrete: bool = False,
    copies_data: bool = False,
):
    """Make `solve(problem, key, budget, **hyperparameters)` a private solver; see `SolverSpec`.

    The public function takes the noise argument, `epsilon`, `delta` and `adjacency` by keyword
    where `solve` takes a `Budget`; its signature and docstring say so.
    """

    def register(solve: Callable[..., Solution]) -> Callable[..., Solution]:
        defaults = {noise: None, "epsilon": None, "delta": None, "adjacency": adjacency}

        @functools.wraps(solve)
        def solver(problem: Problem, key: Any, **hyperparameters: Any) -> Solution:
            given = [hyperparameters.pop(name, value) for name, value in defaults.items()]
            return solve(problem, key, Budget(noise, *given), **hyperparameters)

        own = inspect.signature(solve)
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in defaults.items()
        ]
        problem, key, _, *others = own.parameters.values()
        public = own.replace(parameters=[problem, key, *others, *shared])
        setattr(solver, "__signature__", public)  # noqa: B010 (unknown to type checkers)
        solver.__doc__ = _with_budget(inspect.getdoc(solve) or "", noise, adjacency)
        solver = taught(solver)
        _SPECS[solver] = SolverSpec(
            noise, mechanism, adjacency, broadcasts, traced, concrete, copies_data
        )
        return solver

    return register


def _with_budget(doc: str, noise: str, adjacency: acc.Adjacency) -> str:
    """The docstring with the shared keywords at the end of its Args."""
    before, args, after = doc.partition("\nArgs:\n")
    own, *sections = after.split("\n\n")
    text = _BUDGET_DOC.format(noise=noise, adjacency=f"Adjacency.{adjacency.name}")
    shared = "".join(f"\n    {line}" for line in text.strip().splitlines())
    return before + args + "\n\n".join([own + shared, *sections])


def spec_of(solver: Callable) -> SolverSpec:
    """The registered noise argument and mechanism of a private solver."""
    if solver not in _SPECS:
        names = ", ".join(sorted(f.__name__ for f in _SPECS))
        name = getattr(solver, "__name__", solver)
        raise ValueError(f"solver must be one of the private ones ({names}), got {name}")
    return _SPECS[solver]


def mechanism_of(solver: Callable, problem: Problem, noise, **hyperparameters):
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
    return spec_of(solver).mechanism(problem, noise, **hyperparameters)


def calibrate_noise(
    solver: Callable, problem: Problem, *, epsilon, delta, adjacency=None, **hyperparameters
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
    spec = spec_of(solver)
    adjacency = spec.adjacency if adjacency is None else adjacency
    return acc.calibrate(
        lambda noise: spec.mechanism(problem, noise, adjacency=adjacency, **hyperparameters),
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
    )
