"""Traced programs as plain values: the one file that reads JAX's jaxprs.

Their fields have had other names from release to release: jax 0.7 to 0.12 are known here. On
anything else `Unknown` is raised, or an error of JAX's own, and `clipped_grad` takes `jax.vmap`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core

# A program within a program, run once on the equation's own operands.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
_RECOMPUTED = ("remat", "remat2", "checkpoint")
_INNER = ("jaxpr", "call_jaxpr")


class Unknown(Exception):
    """A release of JAX whose traced programs are not as any that is known here."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A traced function."""

    constants: Mapping[Any, Any]  # the values that the trace closed over, by variable
    inputs: Sequence[Any]  # variables
    outputs: Sequence[Any]  # variables or literals; `literal` tells them apart
    jaxprs: Sequence[Any]  # what `equations` reads

    @property
    def equations(self) -> list[Equation]:
        return [Equation(eqn) for eqn in self.jaxprs]

    def contains(self, name: str) -> bool:
        """Whether a primitive of that name occurs in it, or in a program inside."""
        return any(
            eqn.name == name or any(inner.contains(name) for inner in eqn.programs())
            for eqn in self.equations
        )


@dataclasses.dataclass(frozen=True)
class Scan:
    """A loop: `body` maps (constants, carry, one step's slices) to (carry, one step's results)."""

    body: Program
    constants: int
    carry: int
    length: int
    reverse: bool
    unroll: Any


class Equation:
    """One operation of a program."""

    def __init__(self, eqn: Any):
        self._eqn = eqn
        self.name: str = eqn.primitive.name
        self.params: Mapping[str, Any] = eqn.params
        self.operands: Sequence[Any] = eqn.invars  # variables or literals
        self.results: Sequence[Any] = eqn.outvars  # variables
        self.ins = [v.aval for v in eqn.invars]  # shapes and dtypes
        self.outs = [v.aval for v in eqn.outvars]
        self.where = str(eqn.source_info.name_stack)  # the scopes that the user named

    def evaluate(self, values: Sequence[Any]) -> list[Any]:
        """The results for these operands."""
        primitive = self._eqn.primitive
        bound = primitive.get_bind_params(self.params)
        # Until jax 0.7 functions among the parameters were handed over apart from the others.
        functions, params = bound if isinstance(bound, tuple) else ((), bound)
        with self._eqn.ctx.manager:
            out = primitive.bind(*functions, *values, **params)
        return list(out) if primitive.multiple_results else [out]

    def called(self) -> Program | None:
        """The program that the equation only calls, if that is what it does."""
        if self.name not in _CALLS:
            return None
        return _program(next(self.params[name] for name in _INNER if name in self.params))

    @property
    def recomputed(self) -> bool:
        """Whether the equation is a `jax.checkpoint`: run again rather than remembered."""
        return self.name in _RECOMPUTED

    def checkpointed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function under a `jax.checkpoint` like this one."""
        settings = {name: self.params[name] for name in ("policy", "prevent_cse")}
        return jax.checkpoint(function, **settings)

    def branches(self) -> list[Program] | None:
        """The programs among which the first operand chooses, if the equation is a condition."""
        return [_program(b) for b in self.params["branches"]] if self.name == "cond" else None

    def scan(self) -> Scan | None:
        """The loop, if it is one."""
        if self.name != "scan":
            return None
        p = self.params
        if "num_carry" in p:  # until jax 0.10
            constants, carry = p["num_consts"], p["num_carry"]
        else:
            constants, carry, _ = map(len, p["ft_in"].unpack())
        return Scan(_program(p["jaxpr"]), constants, carry, p["length"], p["reverse"], p["unroll"])

    def programs(self) -> list[Program]:
        """All programs among the parameters."""
        leaves = jax.tree.leaves(dict(self.params), is_leaf=lambda v: hasattr(v, "eqns"))
        return [_program(leaf) for leaf in leaves if hasattr(leaf, "eqns")]


def trace(function: Callable, *args: Any) -> tuple[Program, Any]:
    """The program of a function of arrays, or of their shapes, and the shapes it returns."""
    closed, out = jax.make_jaxpr(function, return_shape=True)(*args)
    return _program(closed), out


def literal(variable: Any) -> bool:
    """Whether this operand or output is a number in the program's text, `variable.val`."""
    return isinstance(variable, core.Literal)


def _program(jaxpr: Any) -> Program:
    # Until jax 0.10 a closed jaxpr held another with the equations, and only some were closed.
    values = getattr(jaxpr, "consts", ())
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    names = ("constvars", "invars", "outvars", "eqns")
    if not all(hasattr(inner, name) for name in names):
        raise Unknown(f"{type(jaxpr).__name__} has no {', '.join(names)}")
    constants = dict(zip(inner.constvars, values, strict=True))
    return Program(constants, inner.invars, inner.outvars, inner.eqns)
