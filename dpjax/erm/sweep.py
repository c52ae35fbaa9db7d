"""A grid of hyperparameters times repeats as a few compiled programs, and a tidy table of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from dpjax import accounting as acc
from dpjax._extras import extra
from dpjax._numerics.typing import PRNGKey
from dpjax.erm import _features, check
from dpjax.erm.problems import Problem, as_signs, prepare_rows
from dpjax.erm.solver import PrivateSolver, SolverSpec, solver_spec
from dpjax.erm.sweep_result import SweepResult

T = TypeVar("T")


def sweep(
    solver: PrivateSolver,
    problem: Problem,
    grid: Mapping[str, Sequence] | Sequence[Mapping[str, Any]],
    *,
    repeats: int,
    key: Array,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: str | None = None,
    test: tuple[Any, Any] | None = None,
    memory_budget: float = 2**30,
    progress: bool = True,
    **fixed: Any,
) -> SweepResult:
    """Run a private solver on every point of a grid, `repeats` times each.

    The noise of the whole grid is calibrated in one vectorised call where the mechanism allows it
    (one per group of equal integer hyperparameters otherwise); all runs that share their integers
    are one compiled program over a batch of keys, noise scales and float hyperparameters.

    Args:
        grid: hyperparameter -> values, of which every combination is run; or the points themselves,
            dictionaries with the same names. "epsilon" and "delta" may be among them.
        repeats: runs per point.
        key: split over all of them.
        epsilon, delta, adjacency: the budget of *one* run; or give the solver's noise argument.
        test: (features, labels) for the accuracy column, prepared like the training rows.
        memory_budget: bytes that one batch of runs may take, estimated; the sweep runs in batches.
        progress: show a progress bar.
        fixed: hyperparameters that do not vary.

    Returns:
        SweepResult. Releasing the whole sweep, or a setting chosen by it, costs more than one run;
        see `SweepResult.best` and `SweepResult.choose_privately`.

    Raises:
        ValueError: an unknown solver, an empty axis, or both noise and budget.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> result = sweep(dpjax.erm.dp_gd, problem, {"steps": [2, 4], "step_size": [0.5, 1.0]},
        ...                repeats=3, key=jax.random.key(0), noise_multiplier=5.0, progress=False)
        >>> len(result.table), result.best("objective").private
        (12, False)
    """
    with extra("erm"):
        import pandas as pd
        from rich.progress import Progress

    spec = solver_spec(solver)
    check.count("repeats", repeats)
    check.positive_values("memory_budget", memory_budget)
    points = _grid_points(grid)
    budget = {k: v for k, v in (("epsilon", epsilon), ("delta", delta)) if v is not None}
    settings = [{**budget, **fixed, **point} for point in points]
    adjacency = acc.Adjacency(spec.adjacency if adjacency is None else adjacency)
    # Some mechanisms are made for one adjacency, and so are their runs.
    bound_solver = functools.partial(solver, adjacency=adjacency)
    spec = spec._replace(mechanism=functools.partial(spec.mechanism, adjacency=adjacency))
    noises, mechanisms = _calibrate_all(spec, problem, settings, adjacency)
    keys = jax.random.split(key, (len(settings), repeats))
    scorer = _make_scorer(problem, test)
    results: list[Any] = [None] * len(settings)
    with Progress(disable=not progress) as bar:
        task = bar.add_task(solver.__name__, total=len(settings) * repeats)
        run = _run_concrete if spec.concrete else _run_group
        for members in _group_settings(spec, settings):
            group = _Group(
                solver=bound_solver,
                spec=spec,
                problem=problem,
                scorer=scorer,
                settings=[settings[i] for i in members],
                noises=noises[members],
                keys=keys[np.asarray(members)],
                memory_budget=memory_budget,
                advance=functools.partial(bar.advance, task),
            )
            found = run(group)
            for position, i in enumerate(members):
                results[i] = jax.tree.map(lambda leaf, p=position: leaf[p], found)
    rows = [
        {"setting": i, **setting, "noise": float(noises[i]), "repeat": r}
        | {name: float(values[r]) for name, values in results[i][1].items()}
        for i, setting in enumerate(settings)
        for r in range(repeats)
    ]
    params = np.concatenate([np.asarray(found[0]) for found in results])
    names, size = tuple(points[0]), None if test is None else len(test[1])
    return SweepResult(pd.DataFrame(rows), params, settings, mechanisms, names, size)


def _grid_points(
    grid: Mapping[str, Sequence] | Sequence[Mapping[str, Any]],
) -> list[dict[str, object]]:
    """The points of a grid, or the points given."""
    if isinstance(grid, Mapping):
        if not grid or any(len(values) == 0 for values in grid.values()):
            raise ValueError("grid must have a value for every hyperparameter, got none")
        return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    points = [dict(point) for point in grid]
    if not points or not points[0]:
        raise ValueError("grid must have a point with a hyperparameter, got none")
    if any(set(point) != set(points[0]) for point in points):
        raise ValueError(
            "grid must have the same hyperparameters at every point, got different ones"
        )
    return points


def _hyperparameters(spec: SolverSpec, setting: dict) -> dict:
    return {k: v for k, v in setting.items() if k not in ("epsilon", "delta", spec.noise)}


def _group_settings(spec: SolverSpec, settings: list[dict[str, Any]]) -> list[list[int]]:
    """Settings that share a compiled program: equal but for the values of traced arguments."""
    free = (*spec.traced, spec.noise, "epsilon", "delta")
    groups: dict[tuple, list[int]] = {}
    for i, setting in enumerate(settings):
        program = tuple((n, None if n in free else v) for n, v in sorted(setting.items()))
        groups.setdefault(program, []).append(i)
    return list(groups.values())


def _calibrate_all(
    spec: SolverSpec, problem: Problem, settings: list[dict[str, Any]], adjacency: acc.Adjacency
) -> tuple[np.ndarray, list[acc.Mechanism]]:
    """The noise of every setting and the mechanism of one run of it."""
    given = [spec.noise in s for s in settings]
    if any(given) and any("epsilon" in s for s in settings):
        raise ValueError(f"give either {spec.noise} or a budget (epsilon, delta), not both")
    noises = np.asarray([s.get(spec.noise, np.nan) for s in settings], np.float64)
    if not all(given):
        # One vectorised calibration for all settings, or for those of equal integers.
        everything = [list(range(len(settings)))]
        for members in everything if spec.broadcasts else _group_settings(spec, settings):
            group = [settings[i] for i in members]
            if any("epsilon" not in s or "delta" not in s for s in group):
                raise ValueError(f"give {spec.noise}, or a budget: epsilon together with delta")
            names = _hyperparameters(spec, group[0])
            columns = {name: _stack_values([s[name] for s in group]) for name in names}
            noises[members] = acc.calibrate(
                lambda noise, columns=columns: spec.mechanism(problem, noise, **columns),
                epsilon=np.asarray([s["epsilon"] for s in group], np.float64),
                delta=np.asarray([s["delta"] for s in group], np.float64),
                adjacency=adjacency,
            )
    mechanisms = [
        spec.mechanism(problem, float(noise), **_hyperparameters(spec, s))
        for noise, s in zip(noises, settings, strict=True)
    ]
    return noises, mechanisms


def _stack_values(values: list[T]) -> T | np.ndarray:
    return values[0] if all(v == values[0] for v in values) else np.asarray(values)


def _make_scorer(
    problem: Problem, test: tuple[ArrayLike, ArrayLike] | None
) -> Callable[[Array], _Metrics]:
    """params -> metrics; the test rows are prepared once."""
    if test is None:
        return lambda params: {"objective": problem.objective(params)}
    rows = prepare_rows(test[0], problem.intercept, problem.feature_norm)
    rows = rows.astype(problem.dtype)
    binary = problem.loss.outputs == 1
    truth = as_signs(test[1]) if binary else jnp.asarray(test[1])

    def score(params: Array):
        scores = _features.matvec(rows, params)
        predicted = jnp.where(scores >= 0, 1.0, -1.0) if binary else jnp.argmax(scores, axis=1)
        accuracy = jnp.mean((predicted == truth).astype(problem.dtype))
        return {"objective": problem.objective(params), "accuracy": accuracy}

    return score


_Metrics = dict[str, Array]
_Runs = tuple[Array, _Metrics]  # parameters and metrics, [settings, repeats, …]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Group:
    """The runs of some settings that one program serves, or that are run one by one."""

    solver: PrivateSolver
    spec: SolverSpec
    problem: Problem
    scorer: Callable[[Array], _Metrics]
    settings: list[dict[str, Any]]
    noises: np.ndarray  # of each setting
    keys: Array  # [settings, repeats]
    memory_budget: float
    advance: Callable[[int], None]  # is told of so many runs that are done


def _run_group(group: _Group) -> _Runs:
    """All runs that share a compiled program, in batches of one size."""
    spec, problem, solver, keys = group.spec, group.problem, group.solver, group.keys
    repeats, settings = keys.shape[1], group.settings
    total = len(settings) * repeats
    names = _hyperparameters(spec, settings[0])
    varying: dict[str, ArrayLike | list] = {
        n: [s[n] for s in settings] for n in spec.traced if n in names
    }
    static = {n: value for n, value in names.items() if n not in varying}
    varying[spec.noise] = group.noises
    traced = {n: np.repeat(np.asarray(v, problem.dtype), repeats) for n, v in varying.items()}
    width = int(max(1, min(total, group.memory_budget // _bytes_per_run(problem, spec))))

    @jax.jit
    def batch(problem: Problem, keys: Array, traced: dict[str, Array]):
        def one(key: PRNGKey, values: dict[str, Array]):
            params = solver(problem, key, **static, **values).params
            return params, group.scorer(params)

        return jax.vmap(one)(keys, traced)

    flat, parts = keys.reshape(-1), []
    for begin in range(0, total, width):
        # The last batch is filled up, so that every batch has the same shape.
        index = np.minimum(np.arange(begin, begin + width), total - 1)
        out = batch(problem, flat[index], {k: jnp.asarray(v[index]) for k, v in traced.items()})
        real = min(width, total - begin)
        parts.append(jax.tree.map(lambda leaf, real=real: np.asarray(leaf)[:real], out))
        group.advance(real)

    def join(*leaves: np.ndarray) -> np.ndarray:
        return np.concatenate(leaves).reshape(*keys.shape, *leaves[0].shape[1:])

    return jax.tree.map(join, *parts)


def _run_concrete(group: _Group) -> _Runs:
    """One run at a time: solvers that compute in float64 cannot be traced from float32."""

    def run(setting: dict[str, Any], noise: float, key: PRNGKey) -> tuple[Array, _Metrics]:
        values = {**_hyperparameters(group.spec, setting), group.spec.noise: float(noise)}
        params = group.solver(group.problem, key, **values).params
        group.advance(1)
        return params, group.scorer(params)

    def stack(*leaves: ArrayLike) -> np.ndarray:
        return np.stack([np.asarray(leaf) for leaf in leaves])

    rows = zip(group.settings, group.noises, group.keys, strict=True)
    runs = [[run(setting, noise, key) for key in row] for setting, noise, row in rows]
    return jax.tree.map(stack, *[jax.tree.map(stack, *row) for row in runs])


def _bytes_per_run(problem: Problem, spec: SolverSpec) -> float:
    """A rough upper estimate: a few vectors of n scores, and the copy that a permutation makes."""
    item = np.dtype(problem.dtype).itemsize
    vectors = 8 * problem.n * problem.loss.outputs * item
    copies = sum(leaf.nbytes for leaf in jax.tree.leaves(problem)) if spec.copies_data else 0
    return vectors + 1.5 * copies + 64 * problem.dimension * item
