"""Traced programs as plain values, and what a value in one depends on.

This is the one file that reads JAX's jaxprs and types. Their fields have had other names from
release to release: jax 0.7 to 0.12 are known here. On anything else `UnknownProgram` is raised, or
an error of JAX's own, and `clipped_grad` takes `jax.vmap`; and of what varies over devices nothing
is taken for granted.

A value depends on the record, on parameters alone, or on neither. A `ParameterView` is a rearranged
piece of one parameter, and knows how a gradient travels back to it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend import core
from jax.sharding import AxisType
from jaxtyping import Array, PyTree

from dpjax._numerics.namespace import Given, Returned

if TYPE_CHECKING:
    from dpjax.gradients.ghost.rules import Rule

# A program within a program, run once on the equation's own operands.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
_RECOMPUTED = ("remat", "remat2", "checkpoint")
_INNER = ("jaxpr", "call_jaxpr")
# What an equation reads or a program gives: `is_literal` tells the two apart.
Variable = core.Var | core.Literal


class UnknownProgram(Exception):
    """A release of JAX whose traced programs are not as any that is known here."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A traced function."""

    constants: Mapping[core.Var, PyTree[Array]]  # what the trace closed over
    inputs: Sequence[core.Var]
    outputs: Sequence[Any]  # variables or literals; `is_literal` tells them apart
    equations: Sequence[Equation]

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
    unroll: int | bool


class Equation:
    """One operation of a program."""

    def __init__(self, eqn: Any):
        self._eqn = eqn
        self.name: str = eqn.primitive.name
        self.params: Mapping[str, Any] = eqn.params
        self.operands: Sequence[Variable] = eqn.invars
        self.results: Sequence[core.Var] = eqn.outvars
        self.ins = [v.aval for v in eqn.invars]  # shapes and dtypes
        self.outs = [v.aval for v in eqn.outvars]
        self.where = str(eqn.source_info.name_stack)  # the scopes that the user named

    def evaluate(self, values: Sequence[PyTree]) -> list[Array]:
        """The results for these operands."""
        primitive = self._eqn.primitive
        bound = primitive.get_bind_params(self.params)
        # Until jax 0.7 functions among the parameters were handed over apart from the others.
        functions, params = bound if isinstance(bound, tuple) else ((), bound)
        with self._eqn.ctx.manager:
            out = primitive.bind(*functions, *values, **params)
        return list(out) if primitive.multiple_results else [out]

    def find_called(self) -> Program | None:
        """The program that the equation only calls, if that is what it does."""
        if self.name not in _CALLS:
            return None
        return _program(next(self.params[name] for name in _INNER if name in self.params))

    @property
    def is_checkpoint(self) -> bool:
        """Whether the equation is a `jax.checkpoint`: run again rather than remembered."""
        return self.name in _RECOMPUTED

    def wrap_in_checkpoint(self, function: Callable[Given, Returned]) -> Callable[Given, Returned]:
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


def trace(function: Callable, *args: PyTree) -> tuple[Program, PyTree[jax.ShapeDtypeStruct]]:
    """The program of a function of arrays, or of their shapes, and the shapes it returns."""
    closed, out = jax.make_jaxpr(function, return_shape=True)(*args)
    return _program(closed), out


def varying_axes(array: Array) -> frozenset[str] | None:
    """The axes of devices over which a `jax.shard_map` knows the array to vary.

    None where it may know of some, and this release of JAX says them in no way that is known here.
    There are none outside of such a map, and in one that does not track them (`check_vma=False`).
    """
    kind = jax.typeof(array)
    tracked = getattr(kind, "manual_axis_type", None)  # before jax 0.10 the axes are "vma"
    axes = getattr(kind, "vma", None) if tracked is None else getattr(tracked, "varying", None)
    if axes is not None:
        return frozenset(axes)
    is_mapped = AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types
    return None if is_mapped else frozenset()


def is_literal(variable: object) -> TypeGuard[core.Literal]:
    """Whether this operand or output is a number in the program's text, `variable.val`."""
    return isinstance(variable, core.Literal)


def _program(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> Program:
    # Until jax 0.10 a closed jaxpr held another with the equations, and only some were closed.
    values = getattr(jaxpr, "consts", ())
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    names = ("constvars", "invars", "outvars", "eqns")
    if not all(hasattr(inner, name) for name in names):
        raise UnknownProgram(f"{type(jaxpr).__name__} has no {', '.join(names)}")
    constants = dict(zip(inner.constvars, values, strict=True))
    return Program(constants, inner.invars, inner.outvars, [Equation(eqn) for eqn in inner.eqns])


# Values are trees: within a loop, a branch or a checkpoint they travel as they are.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Constant:
    """Depends on neither the record nor (differentiably) on a parameter."""

    value: PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batched:
    """Depends on the record; `value` has a leading batch axis."""

    value: PyTree


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["leaves", "view"]
)
@dataclasses.dataclass(frozen=True)
class Parametric:
    """Depends on parameters alone; `view` is None where it is not a rearrangement of one."""

    value: PyTree
    leaves: frozenset[int]
    view: ParameterView | JoinedViews | None


Value = Constant | Batched | Parametric


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One use of a parameter under a rule."""

    tap: str  # equations that use several parameters at once have one tap
    view: ParameterView  # the rearranged parameter in that equation
    rule: Rule
    # The enclosing scans, outermost first: (length, whether it scans over the parameter).
    scans: tuple[tuple[int, bool], ...]
    saved: jax.core.ShapedArray  # shape and dtype of the equation's saved input for one record
    out: jax.core.ShapedArray  # and of its output
    where: str  # the equation's place in the user's source


@jax.custom_jvp
def record_cotangent(value: Array, tap: Array):
    del tap
    return value


@record_cotangent.defjvp
def _record_cotangent_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]):
    return primals[0], tangents[0] + tangents[1]


@jax.custom_jvp
def per_example_copy(leaf: Array, tap: Array):
    """One copy of a parameter per record; the tap only carries the derivative by each of them."""
    return jnp.broadcast_to(leaf, (tap.shape[0], *leaf.shape)).astype(tap.dtype)


def _per_example_copy_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array | SymbolicZero, Array | SymbolicZero]
):
    # By the taps norms are formed; by the parameter a user differentiates the sum.
    value, (of_leaf, of_tap) = per_example_copy(*primals), tangents
    if isinstance(of_leaf, SymbolicZero):
        return value, jnp.zeros_like(value) if isinstance(of_tap, SymbolicZero) else of_tap
    shared = jnp.broadcast_to(of_leaf, value.shape).astype(value.dtype)
    return value, shared if isinstance(of_tap, SymbolicZero) else shared + of_tap


per_example_copy.defjvp(_per_example_copy_jvp, symbolic_zeros=True)


def leaf_key(index: int) -> str:
    """The name of the tap of a parameter's copies; sites are named by their place: "3.0.12."."""
    return f"leaf {index}"


def view_scan_step(value: Value, scan: str) -> Value:
    """What a scanned-over value is inside the scan's body."""
    if not isinstance(value, Parametric):
        return type(value)(None)
    if not isinstance(whole := value.view, ParameterView):
        return Parametric(None, value.leaves, None)
    dims = None if whole.dims is None else whole.dims[1:]
    view = ParameterView(whole.leaf, dims, whole.box, whole, scan=scan)
    return Parametric(None, value.leaves, view)


# Rearrangements: every entry of the output is one entry of the input, no entry is used twice, so
# that a gradient keeps its norm on the way back.
_REARRANGEMENTS = ("convert_element_type", "copy", "reshape", "rev", "squeeze", "transpose")


@dataclasses.dataclass(frozen=True, eq=False)
class ParameterView:
    """A rearranged piece of one parameter."""

    leaf: int | tuple[int, int]  # a pair of them for what `low_rank_sum` makes of its two factors
    # For every dimension of this value, the parameter's dimension that it runs along, or None for a
    # dimension of size one that the parameter does not have; None where a reshape mixed them.
    dims: tuple[int | None, ...] | None
    box: tuple[tuple[int, int], ...]  # the piece held: [start, stop) of the parameter's dimensions
    parent: ParameterView | None = None  # what it was made from; None for the parameter itself
    # From a gradient of this value to one of the parent, where that is not the same.
    back: Callable[[Array], Array] | None = None
    scan: str | None = None  # the scan of which this value is one step's slice of the parent

    def to_leaf(self, gradient: Array, scans: int) -> Array:
        """The parameter's gradient from this value's, which carries one leading axis per scan."""
        view = self
        while view.parent is not None:
            if view.scan is not None:
                scans -= 1
            elif (back := view.back) is not None:
                for _ in range(scans):
                    back = jax.vmap(back)
                gradient = back(gradient)
            view = view.parent
        return gradient

    @property
    def scans(self) -> tuple[str, ...]:
        """The scans that slice the parameter on the way to this value, innermost first."""
        above = () if self.parent is None else self.parent.scans
        return above if self.scan is None else (self.scan, *above)


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedViews:
    """Several parameters concatenated along one axis, each with its (axis, start, stop)."""

    pieces: tuple[tuple[ParameterView, tuple[int, int, int]], ...]


def join_views(
    views: Sequence[ParameterView | JoinedViews | None], eqn: Equation
) -> JoinedViews | None:
    """The concatenation of plain views; None for any other equation or operand."""
    plain = [view for view in views if isinstance(view, ParameterView)]
    if eqn.name != "concatenate" or len(plain) < len(views):
        return None
    axis, stops = eqn.params["dimension"], [0]
    for aval in eqn.ins:
        stops.append(stops[-1] + aval.shape[axis])
    cuts = ((axis, *ends) for ends in itertools.pairwise(stops))
    return JoinedViews(tuple(zip(plain, cuts, strict=True)))


def view_whole(leaf: int | tuple[int, int], shape: tuple[int, ...]) -> ParameterView:
    """The parameter itself."""
    return ParameterView(leaf, tuple(range(len(shape))), tuple((0, size) for size in shape))


def rearrange(view: ParameterView, eqn: Equation) -> list[ParameterView] | None:
    """The views that an equation makes of a view, or None where it does more than rearrange."""
    name, params = eqn.name, eqn.params
    source = eqn.ins[0]
    if len(eqn.ins) != 1 or not jnp.issubdtype(source.dtype, jnp.inexact):
        return None

    def child(
        index: int, dims: tuple[int | None, ...] | None, box: tuple[tuple[int, int], ...] = view.box
    ):
        # The transpose needs the equation as a function of its one operand; in the parameter's own
        # precision, so that no gradient is rounded to the precision of the forward pass.
        def forward(x: Array):
            return eqn.evaluate([x])[index]

        def back(gradient: Array):
            shape = jax.ShapeDtypeStruct(source.shape, gradient.dtype)
            (out,) = jax.linear_transpose(forward, shape)(gradient)
            return out

        kept = name == "convert_element_type"
        return ParameterView(view.leaf, dims, box, view, None if kept else back)

    if name == "split":
        dim = None if view.dims is None else view.dims[params["axis"]]
        if dim is None:
            return None
        stops = itertools.accumulate(map(int, params["sizes"]), initial=view.box[dim][0])
        boxes = (_cut_box(view.box, dim, *ends) for ends in itertools.pairwise(stops))
        return [child(index, view.dims, box) for index, box in enumerate(boxes)]
    if name == "slice":
        if view.dims is None or params["strides"] is not None:
            return None
        box = view.box
        for axis, dim in enumerate(view.dims):
            if dim is not None:
                start = box[dim][0]
                low, high = params["start_indices"][axis], params["limit_indices"][axis]
                box = _cut_box(box, dim, start + low, start + high)
        return [child(0, view.dims, box)]
    if name == "broadcast_in_dim":
        if eqn.outs[0].size != source.size:
            return None
        dims: list[int | None] = [None] * len(params["shape"])
        for axis, target in enumerate(params["broadcast_dimensions"]):
            dims[target] = None if view.dims is None else view.dims[axis]
        return [child(0, None if view.dims is None else tuple(dims))]
    if name not in _REARRANGEMENTS:
        return None
    if name == "convert_element_type" and not jnp.issubdtype(params["new_dtype"], jnp.inexact):
        return None
    if view.dims is None or name == "rev":
        return [child(0, None)]
    if name == "reshape":
        return [child(0, _reshape_dims(view.dims, source.shape, params["new_sizes"]))]
    kept = params.get("permutation", range(source.ndim))
    kept = [axis for axis in kept if axis not in params.get("dimensions", ())]
    return [child(0, tuple(view.dims[axis] for axis in kept))]


def _cut_box(box: tuple, dim: int, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    return (*box[:dim], (start, stop), *box[dim + 1 :])


def _reshape_dims(dims: tuple, old: tuple, new: tuple) -> tuple | None:
    """Dimensions after a reshape that only adds or drops sizes of one; None for any other."""
    wide = [(d, size) for d, size in zip(dims, old, strict=True) if size != 1]
    if [size for _, size in wide] != [size for size in new if size != 1]:
        return None
    remaining = iter(wide)
    return tuple(next(remaining)[0] if size != 1 else None for size in new)
