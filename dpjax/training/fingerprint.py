"""What a function computes, as a digest that is the same in every process.

The digest is of the function's jaxpr: the primitives in order, how they are connected, their
parameters, and the values of all constants. The rule of a custom derivative enters by its name
alone; of a loss, take `jax.value_and_grad`, whose jaxpr has such rules written out. A function of
Python's that a program calls for its values (`jax.pure_callback`) has no digest.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import ArrayLike, PyTree

from dpjax._numerics.checks import is_array
from dpjax._numerics.typing import Params
from dpjax.gradients.per_example import norms_dtype
from dpjax.gradients.strategies import Strategy

# The packages whose code decides, to the last bit, the sum of a step and what is added to it.
_COMPUTING = ("_numerics", "correlation", "gradients", "sampling", "training", "transforms")

# These can be called, and their text says all there is to them.
_SAFE_REPR_TYPES = (jax.sharding.Mesh, jax.sharding.AbstractMesh)
_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Primitives whose functions decide values: those of the host, prices, and rules of `jax.vmap`.
_CALLING = re.compile("callback|custom_vmap|ask_in_float64")


class UnhashableProgram(Exception):
    """A program holds a function of Python's, which no digest can tell from another."""


def program_digest(
    function: Callable[..., Any], *arguments: PyTree, secret: bytes = b"", exact: bool = False
) -> str:
    """A digest of what `function` computes from arguments of these shapes."""
    digest = hashlib.blake2b(key=secret[:64], digest_size=32)
    shapes = jax.tree.map(lambda leaf: str(jax.typeof(leaf)) if is_array(leaf) else leaf, arguments)
    digest.update(_address_free_text(jax.tree.structure(arguments)) + _address_free_text(shapes))
    _digest_jaxpr(digest, jax.make_jaxpr(function)(*arguments), exact)
    return digest.hexdigest()


@functools.cache
def source_digest() -> str:
    """A digest of the files that decide the bits of a step, the order of additions included."""
    # A version's number is not enough: it stays the same between two releases.
    digest = hashlib.blake2b(digest_size=8)
    root = pathlib.Path(__file__).parents[1]
    for package in _COMPUTING:
        for file in sorted((root / package).rglob("*.py")):
            name, code = file.relative_to(root).as_posix(), file.read_bytes()
            digest.update(f"{name} {len(code)} ".encode() + code)
    return digest.hexdigest()


def array_digest(arrays: PyTree, *, secret: bytes = b"") -> str:
    """A digest of a tree of arrays: structure, dtypes, shapes and values."""
    digest = hashlib.blake2b(key=secret[:64], digest_size=32)
    leaves, structure = jax.tree.flatten(arrays)
    digest.update(_address_free_text(structure))
    for leaf in leaves:
        _digest_array(digest, leaf)
    return digest.hexdigest()


def strategy_digest(strategy: Strategy) -> str:
    """What tells a strategy of clipping from another: its kind and the values of its fields."""
    fields = dataclasses.fields(strategy) if dataclasses.is_dataclass(strategy) else ()
    values = {own.name: np.asarray(getattr(strategy, own.name)).tolist() for own in fields}
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"{type(strategy).__name__}({shown})"


def factors_digest(strategy: Strategy, params: Params, *, exact: bool = False) -> str:
    """What a strategy of clipping computes for these parameters, whatever it is made of."""
    groups = tuple(strategy.groups(params))  # which leaf is in which
    dtype = norms_dtype(jax.tree.leaves(params))
    squared = jax.ShapeDtypeStruct((max(groups) + 1, 2), dtype)
    norm = jax.ShapeDtypeStruct((), dtype)
    # The lambda hides what a bound method's text would say of the strategy's place in memory.
    of_norms = program_digest(lambda *given: strategy.factors(*given), squared, norm, exact=exact)
    return hashlib.blake2b(f"{groups} {of_norms}".encode(), digest_size=32).hexdigest()


def _address_free_text(value: object) -> bytes:
    """A value's text without addresses, which differ from process to process."""
    return _ADDRESS.sub("", str(value)).encode()


def _digest_jaxpr(digest: hashlib.blake2b, jaxpr: Any, exact: bool) -> None:
    """Adds a jaxpr to the digest, after the values of its constants where it is closed."""
    if hasattr(jaxpr, "consts"):
        for value in jaxpr.consts:
            _digest_array(digest, value)
        jaxpr = jaxpr.jaxpr
    numbers: dict[Any, int] = {}

    def name(variable: Any) -> None:
        if hasattr(variable, "val"):  # a literal
            digest.update(b"literal")
            _digest_array(digest, variable.val)
        else:
            number = numbers.setdefault(variable, len(numbers))  # by order of appearance
            digest.update(f"{number}:{variable.aval}".encode())

    for variable in (*jaxpr.constvars, *jaxpr.invars):
        name(variable)
    for equation in jaxpr.eqns:
        digest.update(f"\n{equation.primitive.name}(".encode())
        for variable in equation.invars:
            name(variable)
        # What gives no value, such as `jax.debug.print`, decides nothing.
        hidden = bool(_CALLING.search(equation.primitive.name) and equation.outvars)
        for key in sorted(equation.params):  # in an order of their own
            digest.update(f";{key}=".encode())
            _digest_parameter(digest, equation.params[key], exact or hidden)
        digest.update(b")->")
        for variable in equation.outvars:
            name(variable)
    digest.update(b"\nreturn ")
    for variable in jaxpr.outvars:
        name(variable)


def _digest_parameter(digest: hashlib.blake2b, value: object, exact: bool) -> None:
    """Adds a parameter of an equation; an exact digest refuses functions of Python's."""
    if hasattr(value, "eqns"):
        _digest_jaxpr(digest, value, exact)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _digest_parameter(digest, value[key], exact)
    elif isinstance(value, tuple | list):
        digest.update(f"[{len(value)}".encode())
        for part in value:
            _digest_parameter(digest, part, exact)
    elif isinstance(value, np.ndarray | jax.Array):
        _digest_array(digest, value)
    elif callable(value) and not isinstance(value, (type, *_SAFE_REPR_TYPES)):
        if exact:
            raise UnhashableProgram(getattr(value, "callback_func", value))
        digest.update(getattr(value, "__qualname__", type(value).__qualname__).encode())
    else:
        digest.update(_address_free_text(value))


def _digest_array(digest: hashlib.blake2b, value: ArrayLike) -> None:
    value = as_numpy(value)
    digest.update(f"{value.dtype}{value.shape}".encode())
    digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def as_numpy(leaf: ArrayLike) -> np.ndarray:
    """A leaf as a NumPy array; a JAX key as its words."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)  # its words
    return np.asarray(leaf)
