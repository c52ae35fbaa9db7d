"""Evaluating a loss record by record over a whole batch, with taps where parameters are used.

The loss is traced for one record. The interpreter evaluates its equations for the batch: values
that depend on the record carry a leading batch axis, parameters do not. Where a parameter meets a
batched value in an equation with a rule, a zero "tap" is added to the equation's output; the
cotangents of the taps are the per-example output cotangents. A parameter that is used in any other
way is copied once per record, through a tap of its own: that tap's cotangent is the per-example
gradient, by JAX's own differentiation, whatever the equation.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.equations import Equation, Program, Scan, literal
from dpjax.gradients.low_rank import is_low_rank_sum
from dpjax.gradients.parameters import JoinedViews, ParameterView, joined, rearranged, whole
from dpjax.gradients.pooling import POOLING, by_slices
from dpjax.gradients.rules import Rule, find_rule


@dataclasses.dataclass(frozen=True)
class Constant:
    """Depends on neither the record nor (differentiably) on a parameter."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Batched:
    """Depends on the record; `value` has a leading batch axis."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Parametric:
    """Depends on parameters alone; `view` is None where it is not a rearrangement of one."""

    value: Any
    leaves: frozenset[int]
    view: ParameterView | JoinedViews | None


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One use of a parameter under a rule.

    Attributes:
        tap: the name of the tap; equations that use several parameters at once have one tap.
        view: the rearranged parameter in that equation.
        rule: how its gradient is formed.
        scans: the enclosing scans, outermost first: (length, whether it scans over the parameter).
        saved, out: shape and dtype of the equation's saved input and output for one record.
        where: the equation's place in the user's source.
    """

    tap: str
    view: ParameterView
    rule: Rule
    scans: tuple[tuple[int, bool], ...]
    saved: Any
    out: Any
    where: str


@jax.custom_jvp
def _tapped(value, tap):
    del tap
    return value


@_tapped.defjvp
def _tapped_jvp(primals, tangents):
    return primals[0], tangents[0] + tangents[1]


@jax.custom_jvp
def _copied(leaf, tap):
    """One copy of a parameter per record; the tap only carries the derivative."""
    return jnp.broadcast_to(leaf, (tap.shape[0], *leaf.shape)).astype(tap.dtype)


@_copied.defjvp
def _copied_jvp(primals, tangents):
    return _copied(*primals), tangents[1]


def leaf_key(index: int) -> str:
    """The name of the tap of a parameter's copies; sites are named by their place: "3.0.12."."""
    return f"leaf {index}"


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

    # -- values ------------------------------------------------------------------------------

    def parameter(self, index: int, leaf: Any) -> Any:
        if index not in self.copied:
            return Parametric(leaf, frozenset([index]), whole(index, leaf.shape))
        return Batched(None if self.dry else _copied(leaf, self.taps[leaf_key(index)]))

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
            inside = called is not None and called.contains(POOLING)
            return self.run(called, ins, path) if inside else self.batched(eqn, ins)
        if eqn.name == "stop_gradient":
            return list(map(Constant, self.constant(eqn, ins)))
        if pair := _factors(eqn, ins):
            # The sum is a parameter of its own, known by its two factors.
            leaves, (value,) = frozenset(pair), self.constant(eqn, ins)
            return [Parametric(value, leaves, whole(pair, eqn.outs[0].shape))]
        if called := eqn.called():
            if eqn.recomputed and self.recompute:
                return self.recomputed(eqn, called, ins, path)
            return self.run(called, ins, path)
        if loop := eqn.scan():
            return self.scan(eqn, loop, ins, path)
        if not batched:
            return self.derived(eqn, ins)
        if branches := eqn.branches():
            return self.branches(eqn, branches, ins, path)
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
            return Batched(_tapped(out.value, self.taps[path]))
        for number, (view, rule) in enumerate(rules):
            scans = tuple((length, key in view.scans) for key, length in self.scans)
            saved = eqn.ins[rule.saved]
            site = Site(path, view, rule, scans, saved, eqn.outs[0], eqn.where)
            self.sites[f"{path}{number}"] = site
        return Batched(None)

    # -- structure ---------------------------------------------------------------------------

    def recomputed(self, eqn: Equation, block: Program, ins: list[Any], path: str) -> list[Any]:
        """A `jax.checkpoint`: of the values inside, only what the sites save is kept."""
        kinds: list[Any] = []
        saved_keys: list[str] = []

        def inside(values, taps):
            walk = Interpreter(self.copied, self.batch, taps, recompute=True)
            args = [dataclasses.replace(v, value=x) for v, x in zip(ins, values, strict=True)]
            outs = walk.run(block, args, path)
            kinds[:] = [dataclasses.replace(out, value=None) for out in outs]
            saved_keys[:] = list(walk.saved)
            return [out.value for out in outs], list(walk.saved.values())

        taps = {key: tap for key, tap in self.taps.items() if key.startswith(path)}
        values, saved = eqn.checkpointed(inside)([v.value for v in ins], taps)
        self.saved.update(zip(saved_keys, saved, strict=True))
        return [dataclasses.replace(kind, value=x) for kind, x in zip(kinds, values, strict=True)]

    def branches(
        self, eqn: Equation, programs: list[Program], ins: list[Any], path: str
    ) -> list[Any]:
        """The branch that is taken; where that differs by record, every branch and a selection."""
        if self.dry or isinstance(ins[0], Batched):
            return self.every_branch(eqn, programs, ins, path)
        # Every branch has to save the same: what the others save is zero, as are their cotangents.
        dry = Interpreter(set(self.copied), self.batch, None)
        dry.every_branch(eqn, programs, ins, path)
        shapes = {
            site.tap: ((*(n for n, _ in site.scans), self.batch, *site.saved.shape), site.saved)
            for site in dry.sites.values()
        }

        def branch(number):
            walk = Interpreter(self.copied, self.batch, self.taps, self.recompute)
            outs = walk.run(programs[number], ins[1:], f"{path}{number}.")
            values = [walk.as_batched(o, a).value for o, a in zip(outs, eqn.outs, strict=True)]
            zeros = {tap: jnp.zeros(shape, aval.dtype) for tap, (shape, aval) in shapes.items()}
            return values, zeros | walk.saved

        index = jnp.clip(jnp.asarray(ins[0].value, jnp.int32), 0, len(programs) - 1)
        choices = [functools.partial(branch, number) for number in range(len(programs))]
        outs, saved = jax.lax.switch(index, choices)
        self.saved.update(saved)
        return [Batched(out) for out in outs]

    def every_branch(
        self, eqn: Equation, programs: list[Program], ins: list[Any], path: str
    ) -> list[Any]:
        """What vmap makes of a condition that differs by record."""
        results = []
        for number, branch in enumerate(programs):
            outs = self.run(branch, ins[1:], f"{path}{number}.")
            results.append(list(map(self.as_batched, outs, eqn.outs)))
        if self.dry:
            return [Batched(None)] * len(eqn.outs)
        index = jnp.clip(jnp.asarray(ins[0].value, jnp.int32), 0, len(results) - 1)
        index = jnp.broadcast_to(index, (self.batch,))
        chosen = []
        for options in zip(*results, strict=True):
            chosen.append(
                Batched(jax.vmap(jax.lax.select_n)(index, *(option.value for option in options)))
            )
        return chosen

    def scan(self, eqn: Equation, loop: Scan, ins: list[Any], path: str) -> list[Any]:
        body, n_consts, n_carry = loop.body, loop.constants, loop.carry
        consts, carry, xs = (
            ins[:n_consts],
            ins[n_consts : n_consts + n_carry],
            ins[n_consts + n_carry :],
        )
        if not any(isinstance(v, Batched) for v in ins):
            return self.derived(eqn, ins)
        carry_avals = eqn.ins[n_consts : n_consts + n_carry]
        carry = [
            self.copy(v, "carried by a scan") if isinstance(v, Parametric) else v for v in carry
        ]

        # Which carried values depend on the record? Grows until it is stable.
        probe = Interpreter(set(self.copied), self.batch, None)
        steps = [one_step(v, path) for v in xs]
        batched = [isinstance(v, Batched) for v in carry]
        while True:
            trial = [Batched(None) if b else Constant(None) for b in batched]
            outs = probe.run(body, [*consts, *trial, *steps], path)
            grown = [
                b or not isinstance(o, Constant)
                for b, o in zip(batched, outs[:n_carry], strict=True)
            ]
            if grown == batched:
                break
            batched = grown
        carry = [
            self.as_batched(v, a) if b else v
            for v, a, b in zip(carry, carry_avals, batched, strict=True)
        ]
        outer = self.scans
        self.scans = (*outer, (path, loop.length))
        try:
            if self.dry:
                steps = [one_step(v, path) for v in xs]
                outs = self.run(body, [*consts, *carry, *steps], path)
                outs[:n_carry] = [
                    self.as_batched(o, a) if isinstance(v, Batched) else o
                    for o, v, a in zip(outs, carry, carry_avals, strict=False)
                ]
                return [
                    self.copy(o, "output of a scan") if isinstance(o, Parametric) else o
                    for o in outs
                ]
            return self.run_scan(loop, carry_avals, consts, carry, xs, path)
        finally:
            self.scans = outer

    def run_scan(
        self, loop: Scan, carry_avals: list, consts: list, carry: list, xs: list, path: str
    ) -> list[Any]:
        body, n_carry = loop.body, len(carry)
        here = [key for key in self.taps if key.startswith(path)]
        kinds: list[type] = []
        saved_keys: list[Any] = []

        def step(carried, sliced):
            values, taps = sliced
            inner = Interpreter(self.copied, self.batch, taps, self.recompute)
            args = [type(v)(c) for v, c in zip(carry, carried, strict=True)]
            for v, x in zip(xs, values, strict=True):
                args.append(dataclasses.replace(one_step(v, path), value=x))
            outs = inner.run(body, [*consts, *args], path)
            next_carry = [
                self.as_batched(o, aval) if isinstance(v, Batched) else o
                for o, v, aval in zip(outs[:n_carry], carry, carry_avals, strict=True)
            ]
            kinds[:] = [type(o) for o in outs[n_carry:]]
            saved_keys[:] = list(inner.saved)
            ys = [o.value for o in outs[n_carry:]]
            return [o.value for o in next_carry], (ys, list(inner.saved.values()))

        sliced = [jnp.moveaxis(v.value, 1, 0) if isinstance(v, Batched) else v.value for v in xs]
        last, (ys, saved) = jax.lax.scan(
            step,
            [v.value for v in carry],
            (sliced, {key: self.taps[key] for key in here}),
            length=loop.length,
            reverse=loop.reverse,
            unroll=loop.unroll,
        )
        self.saved.update(zip(saved_keys, saved, strict=True))
        outs = [type(v)(x) for v, x in zip(carry, last, strict=True)]
        for kind, y in zip(kinds, ys, strict=True):
            outs.append(Batched(jnp.moveaxis(y, 0, 1)) if kind is Batched else Constant(y))
        return outs


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


def one_step(value: Any, scan: Any) -> Any:
    """What a scanned-over value is inside the scan's body."""
    if not isinstance(value, Parametric):
        return type(value)(None)
    view = value.view
    view = view.slice_of_scan(scan) if isinstance(view, ParameterView) else None
    return Parametric(None, value.leaves, view)
