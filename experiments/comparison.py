"""Private solvers side by side on one split: their points as vmapped sweeps, the best per ε."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpjax import accounting as acc
from dpjax import erm
from dpjax._numerics.normal import normal
from dpjax.erm import _features
from dpjax.erm.losses import Logistic
from dpjax.erm.solver import solver_spec

Rows = list[dict[str, Any]]
CHOSEN_BY_ACCURACY = "the hyperparameters: the best of a grid by accuracy on held-out rows"


@dataclasses.dataclass(frozen=True)
class Method:
    """One line of a comparison.

    Attributes:
        name: as it is drawn.
        solver: a private solver of `dpjax.erm`.
        grid: hyperparameters to try.
        adjacency: the neighbouring relation of the budget.
        fixed: hyperparameters that do not vary.
        noise: (problem, ε, δ, hyperparameters) -> the noise argument, where the method is to be
            priced otherwise than by the accountant's best bound.
        noise_of: hyperparameters that the noise depends on; the others share a calibration.
        at_the_end: the only noise is one Gaussian on the result, of the noise argument's size, so
            that one run without it serves every ε.
        orders: runs without noise that the repeats of a setting share in turn, where the noise is
            at the end; None: one each. 1 is exact where such a run draws nothing.
        repeats: of every setting; None: as many as the comparison asks for.
        at_epsilon: (problem, ε, δ) -> hyperparameters that follow from the budget.
        classes: one binary classifier per class, which share the budget; 1: none of that.
    """

    name: str
    solver: Callable
    grid: Mapping[str, Sequence]
    adjacency: acc.Adjacency = acc.Adjacency.REPLACE_ONE
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    noise: Callable[..., float] | None = None
    noise_of: tuple[str, ...] | None = None
    at_the_end: bool = False
    orders: int | None = None
    repeats: int | None = None
    at_epsilon: Callable[..., dict[str, float]] | None = None
    classes: int = 1

    def identity(self) -> dict[str, Any]:
        """What the runs of this line depend on, the functions aside; for a cache's key."""
        kept = ("name", "grid", "fixed", "noise_of", "at_the_end", "repeats", "classes")
        found = {name: getattr(self, name) for name in kept}
        solver = getattr(self.solver, "__name__", "")
        return {**found, "solver": solver, "adjacency": str(self.adjacency)}

    def code(self) -> tuple[Callable, ...]:
        """The functions that price this line and no other."""
        return tuple(part for part in (self.noise, self.at_epsilon) if part is not None)

    def points(self) -> Rows:
        """Every combination of the grid."""
        return [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.product(*self.grid.values())
        ]


def label(point: Mapping[str, Any]) -> str:
    """A setting in words, as it stands in the tables."""
    return ", ".join(f"{name}={value:g}" for name, value in point.items())


def calibrate(
    method: Method, problem: erm.Problem, epsilons: Sequence[float], delta: float
) -> Rows:
    """A row for every ε and point: epsilon, point, noise, setting.

    The noise depends on n and the problem's constants, not on the records.
    """
    spec = solver_spec(method.solver)
    problem = _binary(method, problem)
    relevant = [n for n in method.grid if method.noise_of is None or n in method.noise_of]
    cases = []
    for epsilon in epsilons:
        extra = method.at_epsilon(problem, epsilon, delta) if method.at_epsilon else {}
        cases += [(epsilon, {**point, **extra}) for point in method.points()]
    # Whatever the noise does not depend on shares one calibration; what the mechanism takes as
    # arrays, one call.
    batches: dict[tuple, dict[tuple, tuple[float, dict]]] = {}
    for epsilon, point in cases:
        needed = {k: v for k, v in point.items() if k in relevant or k not in method.grid}
        whole = tuple((k, v) for k, v in needed.items() if k not in spec.traced)
        batches.setdefault(whole, {})[(epsilon, *needed.values())] = (epsilon, needed)
    found: dict[tuple, float] = {}
    for batch in batches.values():
        group = list(batch.values())
        if method.noise is not None:
            price = method.noise
            noises = [price(problem, e, delta, {**method.fixed, **n}) for e, n in group]
        else:
            columns = {}
            for name in group[0][1]:
                values = [needed[name] for _, needed in group]
                columns[name] = values[0] if len(set(values)) == 1 else np.asarray(values)
            settings = {**method.fixed, **columns}
            noises = acc.calibrate(
                lambda noise, settings=settings: _mechanism(method, problem, noise, settings),
                epsilon=np.asarray([epsilon for epsilon, _ in group]),
                delta=delta,
                adjacency=method.adjacency,
            )
        found |= {key: float(noise) for key, noise in zip(batch, noises, strict=True)}
    rows = []
    for epsilon, point in cases:
        needed = [v for k, v in point.items() if k in relevant or k not in method.grid]
        rows.append(
            {
                "epsilon": epsilon,
                "point": point,
                "noise": found[(epsilon, *needed)],
                "setting": label({name: point[name] for name in method.grid}),
            }
        )
    return rows


def _binary(method: Method, problem: erm.Problem) -> erm.Problem:
    """One class against the rest, for methods that can only do that; `one_vs_rest` sets labels."""
    if method.classes == 1:
        return problem
    sides = jnp.ones(problem.n, problem.dtype)
    return dataclasses.replace(problem, loss=Logistic(), labels=sides)


def _mechanism(method: Method, problem: erm.Problem, noise: Any, settings: Mapping[str, Any]):
    run = erm.mechanism_of(method.solver, problem, noise, adjacency=method.adjacency, **settings)
    return acc.Repeated(run, method.classes) if method.classes > 1 else run


def run_method(
    method: Method,
    problem: erm.Problem,
    test: tuple[Any, Any],
    noises: Rows,
    *,
    repeats: int,
    key: jax.Array,
    memory_budget: float = 2**30,
) -> pd.DataFrame:
    """One row a run: method, epsilon, setting, noise, accuracy, objective, repeat.

    Args:
        noises: from `calibrate`; may be of any problem with the same n and constants.
    """
    repeats = method.repeats or repeats
    spec = solver_spec(method.solver)
    common = {"repeats": repeats, "progress": False, "memory_budget": memory_budget}
    common |= {"adjacency": method.adjacency, **method.fixed}
    run_key, noise_key = jax.random.split(key)
    if method.classes > 1:
        return _one_vs_rest(method, problem, test, noises, repeats, run_key, noise_key)
    if method.at_the_end:
        return _noise_at_the_end(
            method, problem, test, noises, {**common, spec.noise: 0.0}, run_key, noise_key
        )
    points = [{**row["point"], spec.noise: row["noise"]} for row in noises]
    # Calibration has priced them; the solver is given the noise.
    table = erm.sweep(method.solver, problem, points, key=run_key, test=test, **common).table
    return pd.DataFrame(
        {
            "method": method.name,
            "epsilon": [noises[i]["epsilon"] for i in table["setting"]],
            "setting": [noises[i]["setting"] for i in table["setting"]],
            **{name: table[name] for name in ("noise", "accuracy", "objective", "repeat")},
        }
    )


def _noise_at_the_end(method, problem, test, noises, common, run_key, noise_key) -> pd.DataFrame:
    """Runs without noise once, then the noise of every ε on their results."""
    points = {row["setting"]: row["point"] for row in noises}
    repeats, orders = common["repeats"], method.orders or common["repeats"]
    common = {**common, "repeats": orders}
    exact = erm.sweep(method.solver, problem, [*points.values()], key=run_key, **common)
    params = np.asarray(exact.params).reshape(len(points), orders, -1)
    params = params[:, np.arange(repeats) % orders]
    where = {setting: number for number, setting in enumerate(points)}
    # The rows are arguments: constants of a compiled program would be folded, slowly.
    features = _features.as_features(test[0])
    signs = jnp.where(jnp.asarray(test[1]) > 0, 1.0, -1.0)

    @jax.jit
    def score(problem, params, features, signs):
        right = jax.vmap(lambda w: jnp.mean(problem.predict(w, features) == signs))(params)
        return jax.vmap(problem.objective)(params), right

    tables = []
    for number, row in enumerate(noises):
        results = jnp.asarray(params[where[row["setting"]]])
        shake = normal(jax.random.fold_in(noise_key, number), results.shape, results.dtype)
        objectives, accuracies = score(problem, results + row["noise"] * shake, features, signs)
        named = {"method": method.name, **{k: row[k] for k in ("epsilon", "setting", "noise")}}
        tables.append(
            pd.DataFrame(
                {
                    **named,
                    "accuracy": np.asarray(accuracies, np.float64),
                    "objective": np.asarray(objectives, np.float64),
                    "repeat": np.arange(repeats),
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def _one_vs_rest(method, problem, test, noises, repeats, run_key, noise_key) -> pd.DataFrame:
    """A classifier per class, all of one budget; the objective is not defined."""
    binary, spec = _binary(method, problem), solver_spec(method.solver)
    keys = jax.random.split(run_key, (len(noises), repeats))

    def train(key, point, noise):
        return erm.one_vs_rest(
            method.solver,
            binary,
            key,
            classes=method.classes,
            class_labels=problem.labels,
            adjacency=method.adjacency,
            **{**method.fixed, **point, spec.noise: noise},
        ).params

    rows, exact = [], {}
    for number, row in enumerate(noises):
        for repeat in range(repeats):
            if method.at_the_end:
                case = (row["setting"], repeat)
                if case not in exact:
                    exact[case] = train(keys[number, repeat], row["point"], 0.0)
                shake_key = jax.random.fold_in(noise_key, number * repeats + repeat)
                shake = normal(shake_key, exact[case].shape, exact[case].dtype)
                params = exact[case] + row["noise"] * shake
            else:
                params = train(keys[number, repeat], row["point"], row["noise"])
            said = np.asarray(erm.predict_class(binary, params, test[0]))
            named = {k: row[k] for k in ("epsilon", "setting", "noise")}
            accuracy = float(np.mean(said == np.asarray(test[1])))
            found = {"accuracy": accuracy, "objective": None, "repeat": repeat}
            rows.append({"method": method.name, **named, **found})
    return pd.DataFrame(rows)


def best_per_epsilon(table: pd.DataFrame, *, by: str = "accuracy") -> pd.DataFrame:
    """Mean and standard error of the best setting of every (method, ε).

    The setting is chosen by its mean test accuracy, as the papers do: not a private choice.
    """
    grouped = table.groupby(["method", "epsilon", "setting"], sort=False)
    means = grouped.agg(
        accuracy=("accuracy", "mean"),
        accuracy_se=("accuracy", "sem"),
        objective=("objective", "mean"),
        objective_se=("objective", "sem"),
        runs=("accuracy", "size"),
        noise=("noise", "mean"),
    ).reset_index()
    ranked = means[by] if by == "accuracy" else -means[by]
    chosen = ranked.groupby([means["method"], means["epsilon"]], sort=False).idxmax()
    return means.loc[chosen].reset_index(drop=True)


def certificate(
    method: Method,
    problem: erm.Problem,
    row: Mapping[str, Any],
    delta: float,
    *,
    data: str,
    not_covered: Sequence[str] = (),
) -> str:
    """The certificate, as one line of JSON, of one run of a row of `calibrate`."""
    settings = {**method.fixed, **row["point"]}
    return certificate_line(
        _mechanism(method, _binary(method, problem), float(row["noise"]), settings),
        delta,
        adjacency=method.adjacency,
        records=problem.n,
        method=method.name,
        data=data,
        target=row["epsilon"],
        not_covered=[CHOSEN_BY_ACCURACY, *not_covered],
    )


def certificate_line(
    mechanism: Any,
    delta: float,
    *,
    adjacency: acc.Adjacency,
    records: int,
    method: str,
    data: str,
    target: float,
    not_covered: Sequence[str] = (),
    method_of_price: str = "best",
) -> str:
    """A certificate as one line of JSON, labelled by method, data set and the ε asked for."""
    declared: dict[str, Any] = {"records": records, "target epsilon": target}
    declared |= {"method": method, "data set": data}
    found = acc.certify(
        mechanism,
        delta,
        adjacency=adjacency,
        method=method_of_price,
        declared=declared,
        not_covered=not_covered,
    )
    return json.dumps(json.loads(found.to_json()), ensure_ascii=False)


def draw(
    axis: Any,
    best: pd.DataFrame,
    styles: Mapping[str, tuple[str, str]],
    *,
    metric: str = "accuracy",
    lines: Mapping[str, float] | None = None,
) -> None:
    """Metric against ε, one line a method, ±2 standard errors; horizontal lines beside."""
    scale = 100.0 if metric == "accuracy" else 1.0
    for name, (colour, marker) in styles.items():
        mine = best[best["method"] == name].sort_values("epsilon")
        if mine.empty:
            continue
        axis.errorbar(
            mine["epsilon"],
            scale * mine[metric],
            2 * scale * mine[f"{metric}_se"].fillna(0.0),
            color=colour,
            marker=marker,
            ms=4,
            capsize=2,
            lw=1.3,
            label=name,
        )
    for (name, value), style in zip((lines or {}).items(), ("--", ":"), strict=False):
        axis.axhline(scale * value, color="#555555", ls=style, lw=1, label=name)
    axis.set_xscale("log")
    ticks = sorted(best["epsilon"].dropna().unique())
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
