"""What `dpjax train` says before and after a run."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

from dpjax._digits import rounded_up

if TYPE_CHECKING:
    from dpjax.training import Plan


def title_of(data: str, options, certificate) -> str:
    """The title of the picture."""
    cost = f"ε = {rounded_up(certificate.epsilon, 4)} at δ = {certificate.delta:g}"
    return (
        f"{options['model']} on {pathlib.Path(data).name}: {cost} ({certificate.adjacency.value})"
    )


def _kind(step: Any) -> str:
    from dpjax import accounting as acc

    return "random allocation" if isinstance(step, acc.RandomAllocation) else "Poisson"


def show_plan(
    console, plan: Plan, certificate, options, data: str, learned: tuple[str, ...]
) -> None:
    """The plan, and what was learned from the rows to make it, before a step is taken."""
    from rich.table import Table

    table = Table(title=f"Plan: {options['model']} on {data}", title_justify="left")
    table.add_column("setting")
    table.add_column("value", justify="right")
    tier = "beyond what is learned from the rows" if learned else certificate.tier
    rows = [
        ("training records", f"{plan.population:,}"),
        ("adjacency", plan.adjacency.value),
        ("expected batch size", f"{plan.expected_batch_size:,.1f}"),
        (f"sampling rate ({_kind(plan.step)})", f"{plan.rate:.6g}"),
        ("steps", f"{plan.steps:,}"),
        ("clip norm", f"{plan.clip_norm:g}"),
        ("noise multiplier", f"{plan.noise_multiplier:.6g}"),
        ("ε it will cost", rounded_up(certificate.epsilon)),
        ("at δ", f"{plan.delta:g}"),
        ("by the bound", f"{certificate.method} ({tier})"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    if learned:
        console.print(
            f"learned from the rows: {'; '.join(_counted(line) for line in learned)}: not covered "
            "by ε; a schema avoids it",
            style="yellow",
            markup=False,
            highlight=False,
        )


def _counted(line: str) -> str:
    """`ranges learned from the rows: a, b` as `ranges of 2 columns`."""
    what, _, names = line.partition(": ")
    number = len(names.split(", "))
    return f"{what.removesuffix(' learned from the rows')} of {number} column{'s' * (number > 1)}"


def show_result(console, summary: dict[str, Any]) -> None:
    """Accuracy, ε, and how to check it."""
    reference = summary.get("test_accuracy_without_privacy")
    compared = "" if reference is None else f"(same model without privacy: {reference:.1%}) "
    console.print(
        f"test accuracy {summary['test_accuracy']:.1%} "
        f"{compared}"
        f"at ε = {rounded_up(summary['epsilon'], 4)}, δ = {summary['delta']:g}, "
        f"{summary['adjacency']}",
        highlight=False,
        markup=False,
    )
    if summary.get("nonfinite_gradients"):
        console.print(
            f"{summary['nonfinite_gradients']} gradients were NaN or infinite and counted as zero",
            markup=False,
        )
    folder = pathlib.Path(summary["folder"])
    shown = (
        folder.relative_to(pathlib.Path.cwd())
        if folder.is_relative_to(pathlib.Path.cwd())
        else folder
    )
    console.print(f"check it: dpjax verify {shown}/certificate.json", markup=False, highlight=False)
    console.print(
        f"use it: dpjax predict {shown} --data NEW.csv --out predictions.csv",
        markup=False,
        highlight=False,
    )
