"""Checkpointed blocks, conditions and loops of a traced loss, evaluated for the whole batch.

`walk` is the `tracing.Interpreter` that meets the equation.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.equations import Equation, Program, Scan
from dpjax.gradients.values import Batched, Constant, Parametric, one_step


def recomputed(walk: Any, eqn: Equation, block: Program, ins: list[Any], path: str) -> list[Any]:
    """A `jax.checkpoint`: of the values inside, only what the sites save is kept."""
    kinds: list[Any] = []
    saved_keys: list[str] = []

    def inside(values, taps):
        inner = walk.inside(taps, recompute=True)
        args = [dataclasses.replace(v, value=x) for v, x in zip(ins, values, strict=True)]
        outs = inner.run(block, args, path)
        kinds[:] = [dataclasses.replace(out, value=None) for out in outs]
        saved_keys[:] = list(inner.saved)
        return [out.value for out in outs], list(inner.saved.values())

    taps = {key: tap for key, tap in walk.taps.items() if key.startswith(path)}
    values, saved = eqn.checkpointed(inside)([v.value for v in ins], taps)
    walk.saved.update(zip(saved_keys, saved, strict=True))
    return [dataclasses.replace(kind, value=x) for kind, x in zip(kinds, values, strict=True)]


def branches(
    walk: Any, eqn: Equation, programs: list[Program], ins: list[Any], path: str
) -> list[Any]:
    """The branch that is taken; where that differs by record, every branch and a selection."""
    if walk.dry or isinstance(ins[0], Batched):
        return _every_branch(walk, eqn, programs, ins, path)
    # Every branch has to save the same: what the others save is zero, as are their cotangents.
    dry = walk.rehearsal()
    _every_branch(dry, eqn, programs, ins, path)
    shapes = {
        site.tap: ((*(n for n, _ in site.scans), walk.batch, *site.saved.shape), site.saved)
        for site in dry.sites.values()
    }

    def branch(number):
        inner = walk.inside(walk.taps)
        outs = inner.run(programs[number], ins[1:], f"{path}{number}.")
        values = [inner.as_batched(o, a).value for o, a in zip(outs, eqn.outs, strict=True)]
        zeros = {tap: jnp.zeros(shape, aval.dtype) for tap, (shape, aval) in shapes.items()}
        return values, zeros | inner.saved

    index = jnp.clip(jnp.asarray(ins[0].value, jnp.int32), 0, len(programs) - 1)
    choices = [functools.partial(branch, number) for number in range(len(programs))]
    outs, saved = jax.lax.switch(index, choices)
    walk.saved.update(saved)
    return [Batched(out) for out in outs]


def _every_branch(
    walk: Any, eqn: Equation, programs: list[Program], ins: list[Any], path: str
) -> list[Any]:
    """What vmap makes of a condition that differs by record."""
    results = []
    for number, branch in enumerate(programs):
        outs = walk.run(branch, ins[1:], f"{path}{number}.")
        results.append(list(map(walk.as_batched, outs, eqn.outs)))
    if walk.dry:
        return [Batched(None)] * len(eqn.outs)
    index = jnp.clip(jnp.asarray(ins[0].value, jnp.int32), 0, len(results) - 1)
    index = jnp.broadcast_to(index, (walk.batch,))
    chosen = []
    for options in zip(*results, strict=True):
        chosen.append(
            Batched(jax.vmap(jax.lax.select_n)(index, *(option.value for option in options)))
        )
    return chosen


def scan(walk: Any, eqn: Equation, loop: Scan, ins: list[Any], path: str) -> list[Any]:
    body, n_consts, n_carry = loop.body, loop.constants, loop.carry
    consts, carry, xs = (
        ins[:n_consts],
        ins[n_consts : n_consts + n_carry],
        ins[n_consts + n_carry :],
    )
    if not any(isinstance(v, Batched) for v in ins):
        return walk.derived(eqn, ins)
    carry_avals = eqn.ins[n_consts : n_consts + n_carry]
    carry = [walk.copy(v, "carried by a scan") if isinstance(v, Parametric) else v for v in carry]

    # Which carried values depend on the record? Grows until it is stable.
    probe = walk.rehearsal()
    steps = [one_step(v, path) for v in xs]
    batched = [isinstance(v, Batched) for v in carry]
    while True:
        trial = [Batched(None) if b else Constant(None) for b in batched]
        outs = probe.run(body, [*consts, *trial, *steps], path)
        grown = [
            b or not isinstance(o, Constant) for b, o in zip(batched, outs[:n_carry], strict=True)
        ]
        if grown == batched:
            break
        batched = grown
    carry = [
        walk.as_batched(v, a) if b else v
        for v, a, b in zip(carry, carry_avals, batched, strict=True)
    ]
    outer = walk.scans
    walk.scans = (*outer, (path, loop.length))
    try:
        if walk.dry:
            steps = [one_step(v, path) for v in xs]
            outs = walk.run(body, [*consts, *carry, *steps], path)
            outs[:n_carry] = [
                walk.as_batched(o, a) if isinstance(v, Batched) else o
                for o, v, a in zip(outs, carry, carry_avals, strict=False)
            ]
            return [
                walk.copy(o, "output of a scan") if isinstance(o, Parametric) else o for o in outs
            ]
        return _run_scan(walk, loop, carry_avals, consts, carry, xs, path)
    finally:
        walk.scans = outer


def _run_scan(
    walk, loop: Scan, carry_avals: list, consts: list, carry: list, xs: list, path: str
) -> list[Any]:
    body, n_carry = loop.body, len(carry)
    here = [key for key in walk.taps if key.startswith(path)]
    kinds: list[type] = []
    saved_keys: list[Any] = []

    def step(carried, sliced):
        values, taps = sliced
        inner = walk.inside(taps)
        args = [type(v)(c) for v, c in zip(carry, carried, strict=True)]
        for v, x in zip(xs, values, strict=True):
            args.append(dataclasses.replace(one_step(v, path), value=x))
        outs = inner.run(body, [*consts, *args], path)
        next_carry = [
            walk.as_batched(o, aval) if isinstance(v, Batched) else o
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
        (sliced, {key: walk.taps[key] for key in here}),
        length=loop.length,
        reverse=loop.reverse,
        unroll=loop.unroll,
    )
    walk.saved.update(zip(saved_keys, saved, strict=True))
    outs = [type(v)(x) for v, x in zip(carry, last, strict=True)]
    for kind, y in zip(kinds, ys, strict=True):
        outs.append(Batched(jnp.moveaxis(y, 0, 1)) if kind is Batched else Constant(y))
    return outs
