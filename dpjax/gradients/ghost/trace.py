"""Evaluating a loss record by record over a whole batch, with taps where parameters are used.

The loss is traced for one record, and its equations are evaluated for the batch: values that depend
on the record carry a leading batch axis, parameters do not. Where a parameter meets a batched value
in an equation with a rule, a zero "tap" is added to the output; its cotangents are the per-example
ones. A parameter that is used in any other way is copied once per record, through a tap of its own,
whose cotangent is the per-example gradient by JAX's own differentiation, whatever the equation.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dpjax.gradients.ghost import rules
from dpjax.gradients.ghost.outer import LOW_RANK_SUM
from dpjax.gradients.ghost.programs import (
    Batched,
    Constant,
    Equation,
    JoinedViews,
    ParameterView,
    Parametric,
    Program,
    Scan,
    Site,
    Value,
    Variable,
    is_literal,
    join_views,
    leaf_key,
    per_example_copy,
    rearrange,
    record_cotangent,
    view_scan_step,
    view_whole,
)


class Interpreter:
    """One evaluation of a traced loss; with `taps=None` it only finds sites and what to copy."""

    def __init__(
        self,
        copied: dict[int, str],
        batch: int,
        taps: dict[str, PyTree] | None,
        recompute: bool = False,
    ):
        self.copied = copied  # parameters, and why; grows until it is stable
        self.batch = batch
        self.dry = taps is None
        self.recompute = recompute  # whether what `jax.checkpoint` marks is run again, not kept
        self.taps: dict[str, PyTree] = taps or {}
        self.saved: dict[str, PyTree] = {}  # by tap: what the rule reads of the forward pass
        self.sites: dict[str, Site] = {}  # uses of parameters under a rule, by place
        self.scans: tuple[tuple[str, int], ...] = ()  # (path, length) of those around

    def make_dry_run(self) -> Interpreter:
        """Another interpreter, which evaluates nothing and only finds sites and copies."""
        return Interpreter(dict(self.copied), self.batch, None)

    def make_inner(self, taps: dict[str, PyTree]) -> Interpreter:
        """An interpreter of the same plan for the equations of a block, with these taps."""
        return Interpreter(self.copied, self.batch, taps, self.recompute)

    # -- values ------------------------------------------------------------------------------

    def read_parameter(self, index: int, leaf: Array) -> Value:
        if index not in self.copied:
            return Parametric(leaf, frozenset([index]), view_whole(index, leaf.shape))
        return Batched(None if self.dry else per_example_copy(leaf, self.taps[leaf_key(index)]))

    def copy(self, value: Parametric, why: str) -> Batched:
        """Gives up on sharing: from the next evaluation on, these parameters are copied."""
        if not self.dry:
            raise AssertionError("the plan missed a use of a parameter")
        self.copied |= dict.fromkeys(value.leaves - self.copied.keys(), why)
        return Batched(None)

    def evaluate_constant(self, eqn: Equation, ins: Sequence[Value]) -> list[PyTree]:
        return [None] * len(eqn.outs) if self.dry else eqn.evaluate([v.value for v in ins])

    def evaluate_batched(self, eqn: Equation, ins: Sequence[Value]) -> list[Value]:
        if self.dry:
            return [Batched(None)] * len(eqn.outs)
        axes = [0 if isinstance(v, Batched) else None for v in ins]  # parameters have no batch axis
        evaluate = rules.find_quick_pooling(eqn) or eqn.evaluate
        if len(ins) > 1 and not isinstance(ins[1], Batched):
            evaluate = rules.find_quick_convolution(eqn) or evaluate
        outs = jax.vmap(lambda *a: evaluate(a), in_axes=axes)(*(v.value for v in ins))
        return [Batched(out) for out in outs]

    def as_batched(self, value: Value, aval: jax.core.ShapedArray) -> Batched:
        if isinstance(value, Batched):
            return value
        if isinstance(value, Parametric):
            return self.copy(value, "output")
        if self.dry:
            return Batched(None)
        return Batched(jnp.broadcast_to(value.value, (self.batch, *aval.shape)))

    # -- equations ---------------------------------------------------------------------------

    def run(self, program: Program, args: list[Value], path: str) -> list[Value]:
        """The outputs of a program for these arguments; `path` names its place in the loss."""
        env: dict[Variable, Value] = {v: Constant(value) for v, value in program.constants.items()}
        env.update(zip(program.inputs, args, strict=True))

        def read(v: Variable) -> Value:
            return Constant(v.val) if is_literal(v) else env[v]

        for number, eqn in enumerate(program.equations):
            outs = self.evaluate_equation(eqn, [read(v) for v in eqn.operands], f"{path}{number}.")
            env.update(zip(eqn.results, outs, strict=True))
        return [read(v) for v in program.outputs]

    def evaluate_equation(self, eqn: Equation, ins: list[Value], path: str) -> list[Value]:
        """The results of an equation, by the kinds of its operands."""
        parametric = [v for v in ins if isinstance(v, Parametric)]
        batched = any(isinstance(v, Batched) for v in ins)
        if not (parametric or batched) or (parametric and eqn.name == "stop_gradient"):
            return list(map(Constant, self.evaluate_constant(eqn, ins)))
        if not parametric:  # of records and constants alone
            called = None if eqn.is_checkpoint else eqn.find_called()
            if called is not None and any(map(called.contains, (rules.POOLING, rules.CONVOLUTION))):
                return self.run(called, ins, path)
            return self.evaluate_batched(eqn, ins)
        if pair := _find_factors(eqn, ins):
            # The sum is a parameter of its own, known by its two factors.
            leaves, (value,) = frozenset(pair), self.evaluate_constant(eqn, ins)
            return [Parametric(value, leaves, view_whole(pair, eqn.outs[0].shape))]
        if called := eqn.find_called():
            if eqn.is_checkpoint and self.recompute:
                return _evaluate_recomputed(self, eqn, called, ins, path)
            return self.run(called, ins, path)
        if loop := eqn.scan():
            return _evaluate_scan(self, eqn, loop, ins, path)
        if not batched:  # of parameters and constants alone
            return self.derive_views(eqn, ins)
        if branches := eqn.branches():
            return _evaluate_branches(self, eqn, branches, ins, path)
        if len(parametric) == 1:  # the one case that a rule may cover
            slot = next(k for k, v in enumerate(ins) if isinstance(v, Parametric))
            found = _find_rules(eqn, slot, parametric[0].view)
            if found and isinstance(ins[found[0][1].saved], Batched):
                return [self.add_tap(eqn, ins, found, path)]
        why = f"{eqn.name} {eqn.where}".strip()
        ins = [self.copy(v, why) if isinstance(v, Parametric) else v for v in ins]
        return self.evaluate_batched(eqn, ins)

    def derive_views(self, eqn: Equation, ins: Sequence[Value]) -> list[Value]:
        values = self.evaluate_constant(eqn, ins)
        leaves = frozenset().union(*(v.leaves for v in ins if isinstance(v, Parametric)))
        known = [v.view if isinstance(v, Parametric) else None for v in ins]
        views = [join_views(known, eqn)] * len(values)
        if isinstance(known[0], ParameterView) and len(ins) == 1:
            views = rearrange(known[0], eqn) or views
        elif isinstance(known[0], JoinedViews) and eqn.name == "convert_element_type":
            views = known
        real = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in eqn.outs]
        return [
            Parametric(value, leaves, view) if floating else Constant(value)
            for floating, value, view in zip(real, values, views, strict=True)
        ]

    def add_tap(
        self,
        eqn: Equation,
        ins: list[Value],
        found: list[tuple[ParameterView, rules.Rule]],
        path: str,
    ) -> Batched:
        if not self.dry:
            (out,) = self.evaluate_batched(eqn, ins)
            self.saved[path] = ins[found[0][1].saved].value  # [b, ...]
            return Batched(record_cotangent(out.value, self.taps[path]))
        for number, (view, rule) in enumerate(found):
            scans = tuple((length, key in view.scans) for key, length in self.scans)
            shapes = eqn.ins[rule.saved], eqn.outs[0]
            self.sites[f"{path}{number}"] = Site(path, view, rule, scans, *shapes, eqn.where)
        return Batched(None)


def _find_factors(eqn: Equation, ins: Sequence[Value]) -> tuple[int, int] | None:
    """The two parameters whose product a low-rank sum adds to what is no parameter."""
    is_sum = eqn.params.get("name") == LOW_RANK_SUM and len(eqn.ins) == 3
    if not is_sum or not isinstance(ins[0], Constant):
        return None
    views = [v.view if isinstance(v, Parametric) else None for v in ins[1:]]
    if not all(isinstance(view, ParameterView) and view.parent is None for view in views):
        return None
    a, b = (view.leaf for view in views)  # pyrefly: ignore
    return None if a == b else (a, b)


def _find_rules(
    eqn: Equation, slot: int, view: ParameterView | JoinedViews | None
) -> list[tuple[ParameterView, rules.Rule]]:
    """The rule of every parameter in the operand; empty unless all of them have one."""
    pieces: tuple[tuple[ParameterView, rules.Cut | None], ...] = ()
    if isinstance(view, ParameterView):
        pieces = ((view, None),)
    elif isinstance(view, JoinedViews):
        pieces = view.pieces
    found = [(piece, rules.find_rule(eqn, slot, piece, cut)) for piece, cut in pieces]
    return [(v, r) for v, r in found if r] if all(r for _, r in found) else []


def _evaluate_recomputed(
    walk: Interpreter, eqn: Equation, block: Program, ins: list[Value], path: str
) -> list[Value]:
    """A `jax.checkpoint`: of the values inside, only what the sites save is kept."""

    def run_block(ins: list[Value], taps: dict[str, PyTree]):
        inner = walk.make_inner(taps)
        return inner.run(block, ins, path), inner.saved  # the same paths, so the same taps

    taps = {key: tap for key, tap in walk.taps.items() if key.startswith(path)}
    outs, saved = eqn.wrap_in_checkpoint(run_block)(ins, taps)
    walk.saved.update(saved)
    return outs


def _evaluate_branches(
    walk: Interpreter, eqn: Equation, programs: list[Program], ins: list[Value], path: str
) -> list[Value]:
    """The branch that is taken; where that differs by record, every branch and a selection."""
    if walk.dry or isinstance(ins[0], Batched):
        return _every_branch(walk, eqn, programs, ins, path)
    # Every branch has to save the same: what the others save is zero, as are their cotangents.
    dry = walk.make_dry_run()
    _every_branch(dry, eqn, programs, ins, path)
    shapes = {
        site.tap: ((*(n for n, _ in site.scans), walk.batch, *site.saved.shape), site.saved)
        for site in dry.sites.values()
    }

    def branch(number: int):
        inner = walk.make_inner(walk.taps)
        outs = inner.run(programs[number], ins[1:], f"{path}{number}.")
        zeros = {tap: jnp.zeros(shape, aval.dtype) for tap, (shape, aval) in shapes.items()}
        return list(map(inner.as_batched, outs, eqn.outs)), zeros | inner.saved

    index = jnp.clip(jnp.asarray(ins[0].value, jnp.int32), 0, len(programs) - 1)
    choices = [functools.partial(branch, number) for number in range(len(programs))]
    outs, saved = jax.lax.switch(index, choices)
    walk.saved.update(saved)
    return outs


def _every_branch(
    walk: Interpreter, eqn: Equation, programs: list[Program], ins: list[Value], path: str
) -> list[Value]:
    """Every branch for every record, and a selection among their results, as vmap does it."""
    results = []
    for number, branch in enumerate(programs):
        outs = walk.run(branch, ins[1:], f"{path}{number}.")
        results.append(list(map(walk.as_batched, outs, eqn.outs)))  # select_n needs equal kinds
    if walk.dry:
        return [Batched(None)] * len(eqn.outs)
    index = jnp.clip(jnp.asarray(ins[0].value, jnp.int32), 0, len(results) - 1)
    select = functools.partial(jax.vmap(jax.lax.select_n), jnp.broadcast_to(index, (walk.batch,)))
    return [Batched(select(*(o.value for o in options))) for options in zip(*results, strict=True)]


def _evaluate_scan(
    walk: Interpreter, eqn: Equation, loop: Scan, ins: list[Value], path: str
) -> list[Value]:
    """A loop, whose carried values are batched where they depend on the record."""
    body, n_consts, n_carry = loop.body, loop.constants, loop.carry
    if not any(isinstance(v, Batched) for v in ins):
        return walk.derive_views(eqn, ins)
    carried = slice(n_consts, n_consts + n_carry)
    consts, carry, xs = ins[:n_consts], ins[carried], ins[carried.stop :]
    carry_avals = eqn.ins[carried]
    carry = [walk.copy(v, "carried by a scan") if isinstance(v, Parametric) else v for v in carry]

    # Which carried values depend on the record? Grows until it is stable.
    probe = walk.make_dry_run()
    steps = [view_scan_step(v, path) for v in xs]
    batched, known = [isinstance(v, Batched) for v in carry], None
    while batched != known:
        trial = [Batched(None) if b else Constant(None) for b in batched]
        outs, known = probe.run(body, [*consts, *trial, *steps], path), batched
        pairs = zip(batched, outs[:n_carry], strict=True)
        batched = [b or not isinstance(o, Constant) for b, o in pairs]
    triples = zip(carry, carry_avals, batched, strict=True)
    carry = [walk.as_batched(v, a) if b else v for v, a, b in triples]
    outer = walk.scans
    walk.scans = (*outer, (path, loop.length))  # outermost first
    try:
        if not walk.dry:
            return _run_scan(walk, loop, carry_avals, consts, carry, xs, path)
        outs = walk.run(body, [*consts, *carry, *steps], path)
        outs[:n_carry] = _match_carry(walk, outs, carry, carry_avals)
        why = "output of a scan"
        return [walk.copy(o, why) if isinstance(o, Parametric) else o for o in outs]
    finally:
        walk.scans = outer


def _match_carry(
    walk: Interpreter, outs: list[Value], carry: Sequence[Value], avals: list[jax.core.ShapedArray]
) -> list[Value]:
    """The carried results of a step, batched where the carried arguments are."""
    triples = zip(outs[: len(carry)], carry, avals, strict=True)
    return [walk.as_batched(o, a) if isinstance(v, Batched) else o for o, v, a in triples]


def _run_scan(
    walk: Interpreter,
    loop: Scan,
    avals: list[jax.core.ShapedArray],
    consts: list[Value],
    carry: Sequence[Value],
    xs: list[Value],
    path: str,
) -> list[Value]:
    """The loop with a tap a step for every use of a parameter in its body."""

    def step(carry: Sequence[Value], sliced: tuple[list[Value], dict[str, PyTree]]):
        values, taps = sliced
        inner = walk.make_inner(taps)
        outs = inner.run(loop.body, [*consts, *carry, *values], path)
        return _match_carry(walk, outs, carry, avals), (outs[len(carry) :], inner.saved)

    def exchange_axes(v: Value):  # of steps and of records
        return Batched(jnp.moveaxis(v.value, 1, 0)) if isinstance(v, Batched) else v

    sliced = [
        dataclasses.replace(view_scan_step(v, path), value=exchange_axes(v).value) for v in xs
    ]
    last, (ys, saved) = jax.lax.scan(
        step,
        carry,
        (sliced, {key: tap for key, tap in walk.taps.items() if key.startswith(path)}),
        length=loop.length,
        reverse=loop.reverse,
        unroll=loop.unroll,
    )
    walk.saved.update(saved)
    return [*last, *map(exchange_axes, ys)]
