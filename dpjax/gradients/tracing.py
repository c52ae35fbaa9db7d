"""Evaluating a loss record by record over a whole batch, with taps where parameters are used.

The loss is traced for one record. The interpreter evaluates its equations for the batch: values
that depend on the record carry a leading batch axis, parameters do not. Where a parameter meets a
batched value in an equation with a rule, a zero "tap" is added to the equation's output; the
cotangents of the taps are the per-example output cotangents. A parameter that is used in any other
way is copied once per record, through a tap of its own: that tap's cotangent is the per-example
gradient, by JAX's own differentiation, whatever the equation.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients import control_flow
from dpjax.gradients.convolution import CONVOLUTION, in_quick_layout
from dpjax.gradients.equations import Equation, Program, literal
from dpjax.gradients.low_rank import is_low_rank_sum
from dpjax.gradients.parameters import JoinedViews, ParameterView, joined, rearranged, whole
from dpjax.gradients.pooling import POOLING, by_slices
from dpjax.gradients.rules import Rule, find_rule
from dpjax.gradients.values import (
    Batched,
    Constant,
    Parametric,
    Site,
    copied,
    leaf_key,
    tapped,
)


class Interpreter:
    """One evaluation of a traced loss.

    With `taps=None` nothing is computed: the interpreter only finds the sites, and the parameters
    that have to be copied (`copied` grows until it is stable). `recompute`: what `jax.checkpoint`
    marks is run again in the backward pass; otherwise it is remembered.
    """

    def __init__(
        self, copied: set[int], batch: int, taps: dict[str, Any] | None, recompute: bool = False
    ):
        self.copied = copied
        self.batch = batch
        self.dry = taps is None
        self.recompute = recompute
        self.taps: dict[str, Any] = taps or {}
        self.saved: dict[str, Any] = {}
        self.sites: dict[str, Site] = {}
        self.reasons: dict[int, str] = {}
        self.scans: tuple[tuple[str, int], ...] = ()

    def rehearsal(self) -> Interpreter:
        """One that only finds sites and copies, of its own."""
        return Interpreter(set(self.copied), self.batch, None)

    def inside(self, taps: dict[str, Any], recompute: bool | None = None) -> Interpreter:
        """One for the equations of a block, of the same plan."""
        recompute = self.recompute if recompute is None else recompute
        return Interpreter(self.copied, self.batch, taps, recompute)

    # -- values ------------------------------------------------------------------------------

    def parameter(self, index: int, leaf: Any) -> Any:
        if index not in self.copied:
            return Parametric(leaf, frozenset([index]), whole(index, leaf.shape))
        return Batched(None if self.dry else copied(leaf, self.taps[leaf_key(index)]))

    def copy(self, value: Parametric, why: str) -> Batched:
        """Gives up on sharing: from the next evaluation on, these parameters are copied."""
        if not self.dry:
            raise AssertionError("the plan missed a use of a parameter")
        self.copied.update(value.leaves)
        self.reasons.update({leaf: why for leaf in value.leaves if leaf not in self.reasons})
        return Batched(None)

    def constant(self, eqn: Equation, ins: list[Any]) -> list[Any]:
        if self.dry:
            return [None] * len(eqn.outs)
        return eqn.evaluate([v.value for v in ins])

    def batched(self, eqn: Equation, ins: list[Any]) -> list[Batched]:
        if self.dry:
            return [Batched(None)] * len(eqn.outs)
        axes = [0 if isinstance(v, Batched) else None for v in ins]
        evaluate = by_slices(eqn) or eqn.evaluate
        if len(ins) > 1 and not isinstance(ins[1], Batched):
            evaluate = in_quick_layout(eqn) or evaluate
        outs = jax.vmap(lambda *a: evaluate(a), in_axes=axes)(*(v.value for v in ins))
        return [Batched(out) for out in outs]

    def as_batched(self, value: Any, aval: Any) -> Batched:
        if isinstance(value, Batched):
            return value
        if isinstance(value, Parametric):
            return self.copy(value, "output")
        if self.dry:
            return Batched(None)
        return Batched(jnp.broadcast_to(value.value, (self.batch, *aval.shape)))

    # -- equations ---------------------------------------------------------------------------

    def run(self, program: Program, args: list[Any], path: str) -> list[Any]:
        env: dict[Any, Any] = {v: Constant(value) for v, value in program.constants.items()}
        env.update(zip(program.inputs, args, strict=True))

        def read(v):
            return Constant(v.val) if literal(v) else env[v]

        for number, eqn in enumerate(program.equations):
            outs = self.equation(eqn, [read(v) for v in eqn.operands], f"{path}{number}.")
            env.update(zip(eqn.results, outs, strict=True))
        return [read(v) for v in program.outputs]

    def equation(self, eqn: Equation, ins: list[Any], path: str) -> list[Any]:
        parametric = [v for v in ins if isinstance(v, Parametric)]
        batched = any(isinstance(v, Batched) for v in ins)
        if not parametric and not batched:
            return list(map(Constant, self.constant(eqn, ins)))
        if not parametric:
            called = None if eqn.recomputed else eqn.called()
            if called is not None and any(map(called.contains, (POOLING, CONVOLUTION))):
                return self.run(called, ins, path)
            return self.batched(eqn, ins)
        if eqn.name == "stop_gradient":
            return list(map(Constant, self.constant(eqn, ins)))
        if pair := _factors(eqn, ins):
            # The sum is a parameter of its own, known by its two factors.
            leaves, (value,) = frozenset(pair), self.constant(eqn, ins)
            return [Parametric(value, leaves, whole(pair, eqn.outs[0].shape))]
        if called := eqn.called():
            if eqn.recomputed and self.recompute:
                return control_flow.recomputed(self, eqn, called, ins, path)
            return self.run(called, ins, path)
        if loop := eqn.scan():
            return control_flow.scan(self, eqn, loop, ins, path)
        if not batched:
            return self.derived(eqn, ins)
        if branches := eqn.branches():
            return control_flow.branches(self, eqn, branches, ins, path)
        if len(parametric) == 1:
            slot = next(k for k, v in enumerate(ins) if isinstance(v, Parametric))
            rules = _rules(eqn, slot, parametric[0].view)
            if rules and isinstance(ins[rules[0][1].saved], Batched):
                return [self.tapped(eqn, ins, rules, path)]
        why = f"{eqn.name} {eqn.where}".strip()
        return self.batched(
            eqn, [self.copy(v, why) if isinstance(v, Parametric) else v for v in ins]
        )

    def derived(self, eqn: Equation, ins: list[Any]) -> list[Any]:
        values = self.constant(eqn, ins)
        leaves = frozenset().union(*(v.leaves for v in ins if isinstance(v, Parametric)))
        known = [v.view if isinstance(v, Parametric) else None for v in ins]
        views: list[Any] = [joined(known, eqn)] * len(values)
        if isinstance(known[0], ParameterView) and len(ins) == 1:
            views = rearranged(known[0], eqn) or views
        elif isinstance(known[0], JoinedViews) and eqn.name == "convert_element_type":
            views = known
        return [
            Parametric(value, leaves, view)
            if jnp.issubdtype(aval.dtype, jnp.inexact)
            else Constant(value)
            for aval, value, view in zip(eqn.outs, values, views, strict=True)
        ]

    def tapped(self, eqn: Equation, ins: list[Any], rules: list[Any], path: str) -> Batched:
        if not self.dry:
            (out,) = self.batched(eqn, ins)
            self.saved[path] = ins[rules[0][1].saved].value
            return Batched(tapped(out.value, self.taps[path]))
        for number, (view, rule) in enumerate(rules):
            scans = tuple((length, key in view.scans) for key, length in self.scans)
            saved = eqn.ins[rule.saved]
            site = Site(path, view, rule, scans, saved, eqn.outs[0], eqn.where)
            self.sites[f"{path}{number}"] = site
        return Batched(None)


def _factors(eqn: Equation, ins: list[Any]) -> tuple[int, int] | None:
    """The two parameters whose product a low-rank sum adds to what is no parameter."""
    if not is_low_rank_sum(eqn) or not isinstance(ins[0], Constant):
        return None
    views = [v.view if isinstance(v, Parametric) else None for v in ins[1:]]
    if not all(isinstance(view, ParameterView) and view.parent is None for view in views):
        return None
    a, b = (view.leaf for view in views)  # pyrefly: ignore
    return None if a == b else (a, b)


def _rules(eqn: Equation, slot: int, view: Any) -> list[tuple[ParameterView, Rule]]:
    """The rule of every parameter in the operand; empty unless all of them have one."""
    match view:
        case ParameterView():
            pieces: list[Any] = [(view, None)]
        case JoinedViews():
            pieces = view.pieces()
        case _:
            return []
    found = [(piece, find_rule(eqn, slot, piece, cut)) for piece, cut in pieces]
    return [(v, r) for v, r in found if r] if all(r for _, r in found) else []
