"""Which method clips a loss's gradients, and at what cost: the choice, and a table of it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax

from dpjax._argument_names import suggests_argument_names
from dpjax.gradients.arguments import batch_size, record_keys, scalar_loss, trainable
from dpjax.gradients.ghost import sums
from dpjax.gradients.ghost.plan import Family, Plan, make_plan
from dpjax.gradients.strategies import Flat, Strategy

Method = Literal["auto", "ghost", "vmap"]

# A number that goes through memory costs about as much as this many multiplications; per-example
# gradients are written once and read twice (norm, sum).
MEMORY_WEIGHT = 8
_PASSES = 3
# On a CPU the gradients of one kernel per record (a convolution in groups) cost more than as many
# multiplications of a matrix product, and within a loop many times as much.
_CONVOLUTION_WEIGHT = 8


@dataclasses.dataclass(frozen=True)
class ParameterCost:
    """One row of the table."""

    parameter: str  # its path in the tree
    shape: tuple[int, ...]
    used_in: str  # the equations it enters, with the model's own scope names where there are any
    rule: str  # how its per-example norm is formed
    ghost: int  # estimated cost per record beyond the backward pass, by either method
    vmap: int


@dataclasses.dataclass(frozen=True)
class Choice:
    """What will be done, and why."""

    method: str  # "ghost" or "vmap"
    reason: str  # in words
    plan: Plan | None  # None for "vmap"
    rows: tuple[ParameterCost, ...]  # empty where the loss could not be traced

    def __str__(self) -> str:
        header = ("parameter", "shape", "used in", "rule", "ghost", "vmap")
        table = [header] + [
            (r.parameter, str(r.shape), r.used_in, r.rule, f"{r.ghost:,}", f"{r.vmap:,}")
            for r in self.rows
        ]
        widths = [max(len(row[k]) for row in table) for k in range(len(header))]
        lines = [
            "  ".join(
                cell.rjust(width) if k >= 4 else cell.ljust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in table
        ]
        return "\n".join([*lines, f"method: {self.method} ({self.reason})"])


def choose(method: Method, loss: Callable, params: Any, records: Any) -> Choice:
    """The method for a loss of `(params, record)`, by cost; it is still to be tried out."""
    if method == "vmap":
        return Choice("vmap", "as asked", None, ())
    try:
        plan = make_plan(loss, params, records)
    except Exception as error:
        return _given_up("not traceable record by record", error)
    rows = tuple(_rows(plan, params))
    ghost_cost, vmap_cost = sum(r.ghost for r in rows), sum(r.vmap for r in rows)
    share = f"{100 * ghost_cost / max(vmap_cost, 1):.3g} %"
    if method == "ghost":
        return Choice("ghost", "as asked", plan, rows)
    if ghost_cost < vmap_cost:
        return Choice("ghost", f"costs {share} of vmap", plan, rows)
    return Choice("vmap", f"ghost would cost {share} of it", None, rows)


def fall_back_if_untraceable(choice: Choice, run: Callable[..., Any], *arguments: Any) -> Choice:
    """The choice, or "vmap" where `run`, the clipped sum that will be used, cannot be traced."""
    if choice.plan is None:
        return choice
    try:
        jax.eval_shape(run, *arguments)
    except Exception as error:
        return _given_up("the ghost method failed", error)
    return choice


def _given_up(what: str, error: Exception) -> Choice:
    # Whatever goes wrong, per-example gradients are right: either they work, or they raise the
    # error that is the user's own.
    reason = f"{what}: {type(error).__name__}: {error}".splitlines()[0]
    return Choice("vmap", reason, None, ())


def multiplications(family: Family) -> int:
    """Of the product that forms one record's gradient from its outer products."""
    g, t, k, n = family.sizes
    return t * n if family.sites[0].rule.name == "table look-up" else g * t * k * n


def _rows(plan: Plan, params: Any) -> list[ParameterCost]:
    rows = []
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    for index, ((path, leaf), families) in enumerate(zip(leaves, plan.families, strict=True)):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "parameter"
        size = math.prod(leaf.shape)
        copies = _PASSES * MEMORY_WEIGHT * size
        if index in plan.copied:
            rows.append(
                ParameterCost(name, leaf.shape, plan.reasons[index], "copied", copies, copies)
            )
            continue
        sites = [site for family in families for site in family.sites]
        used = ", ".join(dict.fromkeys(f"{s.rule.name} {s.where}".strip() for s in sites))
        forms = ", ".join(dict.fromkeys(family.form for family in families))
        cost, full = 0, copies if families else 0
        for family in families:
            product, convolved = multiplications(family), family.sites[0].rule.name == "convolution"
            if family.form == "direct":  # formed once, for the norm and for the sum
                g, t, k, _ = family.sizes
                patches = g * t * k if convolved else 0
                cost += family.work + MEMORY_WEIGHT * (_PASSES * family.memory + patches)
            else:
                cost += family.work + MEMORY_WEIGHT * family.memory + product
            slow = convolved and jax.default_backend() == "cpu"
            full += product * (_CONVOLUTION_WEIGHT if slow else 1)
        rows.append(ParameterCost(name, leaf.shape, used or "nowhere", forms or "none", cost, full))
    return rows


@suggests_argument_names
def explain_clipping(
    loss: Callable[..., Any],
    params: Any,
    batch: Any,
    *,
    method: Method = "auto",
    strategy: Strategy = Flat(),  # noqa: B008 (frozen)
    has_aux: bool = False,
    rng: Any = None,
) -> None:
    """Prints how `clipped_grad` would treat every parameter, and which method it would use.

    The method is tried out on the shapes of the whole batch. Costs are estimates per record, in
    multiplications (a number that passes through memory counts as eight, and so does one of a
    kernel's gradient per record on a CPU), of what clipping adds to the backward pass. Rules:
    "vectors" ‖x⊗y‖ = ‖x‖·‖y‖; "gram" Σₜₛ (xₜ·xₛ)(yₜ·yₛ); "direct" the gradient itself, where it is
    smaller than its factors; "distinct" the sums of a look-up's equal tokens; "copied" one copy per
    record, differentiated by JAX (biases, scales, and every use without a rule).

    Args:
        loss, params, batch, method, strategy, has_aux, rng: as for `clipped_grad` and its function.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import explain_clipping
        >>> def loss(params, example):
        ...     x, y = example
        ...     return (x @ params["w"] + params["b"] - y) ** 2
        >>> params = {"w": jnp.zeros(100), "b": jnp.zeros(())}
        >>> explain_clipping(loss, params, (jnp.ones((8, 100)), jnp.ones(8)))
        parameter  shape   used in         rule     ghost   vmap
        b          ()      add             copied      24     24
        w          (100,)  matrix product  vectors    201  2,500
        method: ghost (costs 8.91 % of vmap)
    """
    trained, rebuild = trainable(params)
    keys = None if rng is None else record_keys(rng, batch_size(batch))
    one = scalar_loss(loss, rebuild, has_aux, with_key=rng is not None)
    choice = choose(method, one, trained, (batch, keys))
    if choice.plan is not None:
        run = functools.partial(sums.clipped_sum, choice.plan, strategy=strategy)
        everyone = jax.ShapeDtypeStruct((batch_size(batch),), bool)
        choice = fall_back_if_untraceable(choice, run, trained, (batch, keys), everyone, 1.0)
    print(choice)
