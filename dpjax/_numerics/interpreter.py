"""A jaxpr evaluated by NumPy: the answer to a question asked once, without compiling a program.

Compiling an accountant's core takes seconds, evaluating it milliseconds. One setting asked for a
few times is therefore interpreted: the same jaxpr, equation by equation, in NumPy's float64. An
equation whose primitive has no rule here is evaluated by JAX, which compiles that equation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from dpjax._numerics.primitives import RULES

_NESTED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_LOOP = 8  # passes that a loop of unknown length is counted as


class Interpreted:
    """A traced function of arrays, called without being compiled.

    Arguments:
        traced: what `jax.jit(function).trace(*shapes)` returns.

    Fields:
        work: equations to evaluate in a call, loops counted.
        calls: how often it was called.

    >>> with jax.enable_x64(True):
    ...     double = Interpreted(jax.jit(lambda x: {"y": 2 * x}).trace(1.5))
    >>> double(1.5), double.work
    ({'y': array(3.)}, 1)
    """

    def __init__(self, traced: Any):
        self._closed = traced.jaxpr
        self._tree = jax.tree.structure(traced.out_info)
        self.work = _work(self._closed.jaxpr)
        self.calls = 0

    def __call__(self, *args: np.ndarray) -> Any:
        self.calls += 1
        with np.errstate(all="ignore"):
            flat = _evaluate(self._closed, args)
        return jax.tree.unflatten(self._tree, [np.asarray(x) for x in flat])


def _closed(thing: Any) -> Any:
    """Jaxprs come closed or open; the open ones here have no constants."""
    return thing if hasattr(thing, "consts") else jex.ClosedJaxpr(thing, ())


def _inner(eqn: Any) -> Any:
    found = [eqn.params[name] for name in _NESTED if name in eqn.params]
    return _closed(found[0]) if found else None


def _work(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "scan":
            total += eqn.params["length"] * _work(eqn.params["jaxpr"].jaxpr)
        elif name == "while":
            bodies = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
            total += _LOOP * sum(_work(body.jaxpr) for body in bodies)
        elif name == "cond":
            total += max(_work(branch.jaxpr) for branch in eqn.params["branches"])
        else:
            inner = _inner(eqn)
            total += 1 if inner is None else _work(inner.jaxpr)
    return total


def _evaluate(closed: Any, args: Iterable[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(np.asarray, closed.consts), strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return np.asarray(atom.val) if isinstance(atom, jex.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        out = _apply(eqn, [read(v) for v in eqn.invars])
        known.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _apply(eqn: Any, values: list[Any]) -> Sequence[Any]:
    name = eqn.primitive.name
    rule = RULES.get(name)
    if rule is not None:
        try:
            return (rule(*values, **eqn.params),)
        except NotImplementedError:
            return _by_jax(eqn, values)
    if name in _CONTROL:
        return _CONTROL[name](values, **eqn.params)
    inner = _inner(eqn)
    return _by_jax(eqn, values) if inner is None else _evaluate(inner, values)


def _by_jax(eqn: Any, values: list[Any]) -> Sequence[Any]:
    out = eqn.primitive.bind(*map(jax.numpy.asarray, values), **eqn.params)
    return [np.asarray(x) for x in (out if eqn.primitive.multiple_results else [out])]


def _scan(
    values: list[Any],
    *,
    jaxpr: Any,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    **_: Any,
) -> list[Any]:
    consts, carry = values[:num_consts], values[num_consts : num_consts + num_carry]
    rows = values[num_consts + num_carry :]
    outs = []
    for i in reversed(range(length)) if reverse else range(length):
        out = _evaluate(jaxpr, [*consts, *carry, *(row[i] for row in rows)])
        carry = out[:num_carry]
        outs.append(out[num_carry:])
    if reverse:
        outs.reverse()
    empty = [np.zeros((0, *v.aval.shape), v.aval.dtype) for v in jaxpr.jaxpr.outvars[num_carry:]]
    return [*carry, *([np.stack(column) for column in zip(*outs, strict=True)] or empty)]


def _while(
    values: list[Any],
    *,
    cond_jaxpr: Any,
    body_jaxpr: Any,
    cond_nconsts: int,
    body_nconsts: int,
    **_: Any,
) -> list[Any]:
    asked, done = values[:cond_nconsts], values[cond_nconsts : cond_nconsts + body_nconsts]
    state = values[cond_nconsts + body_nconsts :]
    while _evaluate(cond_jaxpr, [*asked, *state])[0]:
        state = _evaluate(body_jaxpr, [*done, *state])
    return state


def _cond(values: list[Any], *, branches: Any, **_: Any) -> list[Any]:
    index = int(np.clip(values[0], 0, len(branches) - 1))
    return _evaluate(branches[index], values[1:])


_CONTROL: dict[str, Callable[..., list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "optimization_barrier": lambda values: values,
}
