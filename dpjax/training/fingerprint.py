"""What a function computes, as a digest that is the same in every process.

The digest is of the function's jaxpr: the primitives in order, how they are connected, their
parameters, and the values of all constants. A function that is passed along inside an equation
(the rule of a custom derivative) enters by its name alone; of a loss, take `jax.value_and_grad`,
whose jaxpr has such rules written out.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax.gradients.per_example import norms_dtype

__all__ = [
    "array_digest",
    "factors_digest",
    "program_digest",
    "source_digest",
    "strategy_digest",
    "text_digest",
]

# The packages whose code decides, to the last bit, the sum of a step and what is added to it.
_COMPUTING = ("_numerics", "correlation", "gradients", "sampling", "training", "transforms")

# These can be called, and their text says all there is to them.
_SPEAKING = (jax.sharding.Mesh, jax.sharding.AbstractMesh)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Opaque(Exception):
    """A program holds a function of Python's, which no digest can tell from another."""


def program_digest(
    function: Callable[..., Any], *arguments: Any, secret: bytes = b"", exact: bool = False
) -> str:
    """A digest of what `function` computes from arguments of these shapes.

    Args:
        function: traced, not run.
        arguments: arrays, or shapes and dtypes.
        secret: makes the digest useless to who does not have it: constants may be private.
        exact: raise `Opaque` where a function inside an equation would enter by its name.

    Example:
        >>> one, two = (program_digest(lambda x, r=r: r * x, 1.0) for r in (0.1, 0.2))
        >>> one == program_digest(lambda y: 0.1 * y, 1.0), one == two
        (True, False)
    """
    digest = hashlib.blake2b(key=secret[:64], digest_size=32)
    shapes = jax.tree.map(
        lambda leaf: str(jax.typeof(leaf)) if _is_array(leaf) else leaf, arguments
    )
    digest.update(_text(jax.tree.structure(arguments)) + _text(shapes))
    _closed(digest, jax.make_jaxpr(function)(*arguments), exact)
    return digest.hexdigest()


@functools.cache
def source_digest() -> str:
    """A digest of the files that decide the bits of a step: another order of additions is another.

    A version's number is not enough: it stays the same between two releases.

    Example:
        >>> len(source_digest())
        16
    """
    digest = hashlib.blake2b(digest_size=8)
    root = pathlib.Path(__file__).parents[1]
    for package in _COMPUTING:
        for file in sorted((root / package).rglob("*.py")):
            name, code = file.relative_to(root).as_posix(), file.read_bytes()
            digest.update(f"{name} {len(code)} ".encode() + code)
    return digest.hexdigest()


def array_digest(arrays: Any, *, secret: bytes = b"") -> str:
    """A digest of a tree of arrays: structure, dtypes, shapes and values.

    Example:
        >>> array_digest(np.ones(3)) == array_digest([np.ones(3)])
        False
    """
    digest = hashlib.blake2b(key=secret[:64], digest_size=32)
    leaves, structure = jax.tree.flatten(arrays)
    digest.update(_text(structure))
    for leaf in leaves:
        _array(digest, leaf)
    return digest.hexdigest()


def strategy_digest(strategy: Any) -> str:
    """What tells a strategy of clipping from another: its kind and the values of its fields.

    Example:
        >>> from dpjax.gradients import Automatic
        >>> strategy_digest(Automatic(0.1))
        'Automatic(gamma=0.1)'
    """
    names = (
        [f.name for f in dataclasses.fields(strategy)] if dataclasses.is_dataclass(strategy) else []
    )
    values = [np.asarray(getattr(strategy, name)).tolist() for name in names]
    shown = ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))
    return f"{type(strategy).__name__}({shown})"


def factors_digest(strategy: Any, params: Any, *, exact: bool = False) -> str:
    """What a strategy of clipping computes for these parameters, whatever it is made of.

    Args:
        strategy: of `dpjax.gradients`, or one of the user's own.
        params: arrays, or shapes and dtypes.
        exact: raise `Opaque` where a function would enter by its name.

    Example:
        >>> from dpjax.gradients import Automatic
        >>> one, two = (factors_digest(Automatic(gamma), np.ones(2)) for gamma in (0.1, 0.2))
        >>> one == two
        False
    """
    groups = tuple(strategy.groups(params))
    dtype = norms_dtype(jax.tree.leaves(params))
    squared = jax.ShapeDtypeStruct((max(groups) + 1, 2), dtype)
    of_norms = program_digest(
        lambda *given: strategy.factors(*given),
        squared,
        jax.ShapeDtypeStruct((), dtype),
        exact=exact,
    )
    return text_digest([repr(groups), of_norms])


def text_digest(texts: Sequence[str], *, secret: bytes = b"") -> str:
    """A digest of texts in their order.

    Example:
        >>> text_digest(["ab", "c"]) == text_digest(["a", "bc"])
        False
    """
    digest = hashlib.blake2b(key=secret[:64], digest_size=32)
    for text in texts:
        written = text.encode()
        digest.update(len(written).to_bytes(8, "little") + written)
    return digest.hexdigest()


def _text(value: Any) -> bytes:
    """A value's text without addresses, which differ from process to process."""
    return _ADDRESS.sub("", str(value)).encode()


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _closed(digest: Any, closed: Any, exact: bool) -> None:
    for value in closed.consts:
        _array(digest, value)
    _jaxpr(digest, closed.jaxpr, exact)


def _jaxpr(digest: Any, jaxpr: Any, exact: bool) -> None:
    numbers: dict[Any, int] = {}

    def name(variable: Any) -> None:
        if hasattr(variable, "val"):  # a literal
            digest.update(b"literal")
            _array(digest, variable.val)
        else:
            number = numbers.setdefault(variable, len(numbers))
            digest.update(f"{number}:{variable.aval}".encode())

    for variable in (*jaxpr.constvars, *jaxpr.invars):
        name(variable)
    for equation in jaxpr.eqns:
        digest.update(f"\n{equation.primitive.name}(".encode())
        for variable in equation.invars:
            name(variable)
        for key in sorted(equation.params):
            digest.update(f";{key}=".encode())
            _parameter(digest, equation.params[key], exact)
        digest.update(b")->")
        for variable in equation.outvars:
            name(variable)
    digest.update(b"\nreturn ")
    for variable in jaxpr.outvars:
        name(variable)


def _parameter(digest: Any, value: Any, exact: bool) -> None:
    if hasattr(value, "jaxpr") and hasattr(value, "consts"):
        _closed(digest, value, exact)
    elif hasattr(value, "eqns"):
        _jaxpr(digest, value, exact)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _parameter(digest, value[key], exact)
    elif isinstance(value, tuple | list):
        digest.update(f"[{len(value)}".encode())
        for part in value:
            _parameter(digest, part, exact)
    elif isinstance(value, np.ndarray | jax.Array):
        _array(digest, value)
    elif callable(value) and not isinstance(value, (type, *_SPEAKING)):
        if exact:
            raise Opaque(str(value))
        digest.update(getattr(value, "__qualname__", type(value).__qualname__).encode())
    else:
        digest.update(_text(value))


def _array(digest: Any, value: Any) -> None:
    value = concrete(value)
    digest.update(f"{value.dtype}{value.shape}".encode())
    digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def concrete(leaf: Any) -> np.ndarray:
    """A leaf as a NumPy array; a JAX key as its words."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
