"""One promise over everything that clips: a record moves the released sum by at most C(1 + slack).

One loss holds a parameter for each rule of the ghost method and each way around it, and is linear
in all of them: the records carry the gradients as they are, so that they can be as awkward as
floating point allows. The difference of two released sums is formed exactly, in float64.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import transforms
from dpjax.gradients import (
    AdaptiveQuantile,
    Automatic,
    Flat,
    PerGroup,
    PerSampleAdaptive,
    clip_and_sum,
    clipped_grad,
    low_rank_sum,
    rounding_slack,
)
from dpjax.training.users import per_user

ROWS = 3  # of a table: few, so that records meet
USERS = 3  # records of a user, where users are the unit
POSITIONS = (1, 2, 96, 97, 512)
SHAPES = {
    "vector": (4, 3),  # a matrix product with one position
    "long": (2, 3),  # with more positions than its gradient has numbers: "direct"
    "wide": (18, 17),  # with two positions: "gram"
    "blocks": (2, 3, 2),  # a product with a batch axis of its own
    "kernel": (2, 1, 2),  # a convolution
    "scanned": (3, 2),  # used in every turn of a loop
    "layers": (2, 3, 2),  # a loop has a slice a turn
    "tied": (ROWS, 2),  # looked up and multiplied by
    "row": (ROWS, 2),  # a slice at the record's place
    "left": (3, 1),
    "right": (1, 2),  # a low-rank sum
    "bias": (3,),  # copied for every record
} | {f"look-up {t}": (ROWS, 2) for t in POSITIONS}
WHOLE = (Flat(), Automatic(), Automatic(gamma=1e-6), PerSampleAdaptive(), AdaptiveQuantile(10.0, 8))


@dataclasses.dataclass(frozen=True)
class Chosen(Flat):
    """The strategy of the whole gradient that a number of a program chooses."""

    which: Any

    def factors(self, squared_norms, clip_norm):
        return jnp.stack([one.factors(squared_norms, clip_norm) for one in WHOLE])[self.which]


# Those that look at the whole gradient are one program.
STRATEGIES = {
    "whole": Chosen,
    "leaves": lambda which: PerGroup(lambda path, leaf: path),
    "two groups": lambda which: PerGroup(lambda p, leaf: "tables" if "look" in p else "others"),
}
KINDS = (
    "ordinary", "equal", "cancelling", "cancelling all", "1e38", "infinite", "nan", "denormal",
    "small", "one entry",
)  # fmt: skip


def _coefficients() -> dict[str, tuple[tuple[int, ...], ...]]:
    """The shapes of what a record hands to each parameter: left and right factors by position."""
    shapes = {
        "vector": ((1, 4), (1, 3)), "long": ((9, 2), (9, 3)), "wide": ((2, 18), (2, 17)),
        "blocks": ((2, 2, 3), (2, 2, 2)), "kernel": ((5, 1), (4, 2)),
        "scanned": ((4, 3), (4, 2)), "layers": ((2, 3), (2, 2)), "tied": ((2,), (2, 2), (2,), (3,)),
        "row": ((2,),), "left": ((2, 3), (2, 2)), "bias": ((3,),),
    }  # fmt: skip
    return shapes | {f"look-up {t}": ((t, 2),) for t in POSITIONS}


def _bilinear(x, w, y):
    return jnp.sum((x @ w) * y)


def _blocks(p, tokens, x, y):
    return jnp.sum(jnp.einsum("btk,bkn->btn", x, p["blocks"]) * y)


def _convolution(p, tokens, x, y):
    numbers = ("NHC", "HIO", "NHC")
    seen = jax.lax.conv_general_dilated(
        x[None], p["kernel"], (1,), "VALID", dimension_numbers=numbers
    )
    return jnp.sum(seen[0] * y)


def _scanned(p, tokens, x, y):
    def turn(carry, xy):
        return carry + _bilinear(xy[0][None], p["scanned"], xy[1][None]), None

    return jax.lax.scan(turn, jnp.zeros((), x.dtype), (x, y))[0]


def _layers(p, tokens, x, y):
    def layer(carry, wxy):
        return carry + _bilinear(wxy[1][None], wxy[0], wxy[2][None]), None

    return jax.lax.scan(layer, jnp.zeros((), x.dtype), (p["layers"], x, y))[0]


def _tied(p, tokens, x, y, z, u):
    looked_up = jnp.sum(p["tied"][tokens[:2]] * y * x[:, None])
    return looked_up + jnp.sum((p["tied"] @ z) * u)


def _row(p, tokens, x):
    return jnp.sum(jax.lax.dynamic_slice(p["row"], (tokens[0], 0), (1, 2))[0] * x)


def _low_rank(p, tokens, x, y):
    return _bilinear(x, low_rank_sum(jnp.zeros((3, 2), x.dtype), p["left"], p["right"]), y)


def _looked_up(t, p, tokens, x):
    return jnp.sum(p[f"look-up {t}"][tokens[:t]] * x)


TERMS = {
    "vector": lambda p, tokens, x, y: _bilinear(x, p["vector"], y),
    "long": lambda p, tokens, x, y: _bilinear(x, p["long"], y),
    "wide": lambda p, tokens, x, y: _bilinear(x, p["wide"], y),
    "blocks": _blocks,
    "kernel": _convolution,
    "scanned": _scanned,
    "layers": _layers,
    "tied": _tied,
    "row": _row,
    "left": _low_rank,
    "bias": lambda p, tokens, x: jnp.sum(p["bias"] * x),
} | {f"look-up {t}": functools.partial(_looked_up, t) for t in POSITIONS}
NAMES = tuple(TERMS)


def loss(params, record):
    """Linear in every parameter but the low-rank pair; only of those that are there."""
    tokens, given = record
    return sum(TERMS[k](params, tokens, *given[k]) for k in NAMES if k in params)


@functools.cache
def parameters(dtype, names):
    rng = np.random.default_rng(0)
    held = {k for name in names for k in ((name, "right") if name == "left" else (name,))}
    return {k: jnp.asarray(rng.normal(size=SHAPES[k]), dtype) for k in SHAPES if k in held}


def records(rng, size, dtype, names, name, kind, users=1):
    """(tokens, factors) of so many records: ordinary all but the middle one, of one kind.

    Users have so many records each: [size, users, ...], with a mask of those that are there.
    """
    rows = size * users
    tokens = rng.integers(0, ROWS, (rows, max(POSITIONS))).astype(np.int32)
    given = {
        k: [np.float32(rng.normal(size=(rows, *s)) / np.sqrt(np.prod(s))) for s in shapes]
        for k, shapes in _coefficients().items()
        if k in names
    }
    with np.errstate(over="ignore"):
        _change(rng, given, tokens, name, kind, rows // 2)
        if users > 1 and kind == "cancelling":  # and so do the user's records
            first, one = given[name][0], rows // 2
            first[one] = np.where(first[one] == 0, 1e15, first[one])
            first[one + 1] = -first[one]
            for x in (tokens, *given[name][1:]):
                x[one + 1] = x[one]
        arrays = jax.tree.map(lambda x: jnp.asarray(x, dtype), given)
    batch = jnp.asarray(tokens), arrays
    if users == 1:
        return batch
    here = rng.random((size, users)) < 0.8
    here[size // 2] = True
    blocks = jax.tree.map(lambda x: x.reshape(size, users, *x.shape[1:]), batch)
    return blocks, jnp.asarray(here)


def _change(rng, given, tokens, name, kind, middle):
    """Make the middle record, or all of them, of that kind in what it hands to one parameter."""
    largest = 1e15 if rng.random() < 0.5 else 1e9
    if kind == "equal":  # partial sums pass through every power of two
        for arrays in given.values():
            for x in arrays:
                x[:] = 0.0
        for x in given[name]:
            x[:] = rng.uniform(0.5, 2.0)
        tokens[:] = 0
    elif kind.startswith("cancelling"):  # terms of a gradient of zero, the first and last position
        who = slice(None) if kind.endswith("all") else slice(middle, middle + 1)
        for arrays in given.values():
            for x in arrays:
                x[who] = 0.0
        first, *rest = given[name]
        tokens[who] = tokens[middle, 0]
        for x in rest:
            x[who] = 1.0
        first[who] = 1.0 if first.ndim == 2 else 0.0
        if first.ndim > 2:
            first[who, 0], first[who, -1] = largest, -largest
    else:
        value = {"1e38": 1e38, "infinite": np.inf, "nan": np.nan, "denormal": 1e-42}
        value |= {"small": 1e-20, "one entry": 1e12}
        for number, x in enumerate(given[name]):
            if kind == "one entry":
                x[middle].flat[0] = 1e12
            elif kind in value:
                x[middle] = value[kind] if number == 0 else 1.0


@functools.cache
def program(strategy, method, dtype, size, names):
    """The released sum of a batch with a mask and a strategy's number, compiled once."""
    params, made = parameters(dtype, names), STRATEGIES[strategy]
    if method == "chain":
        gradient = jax.vmap(jax.grad(loss), in_axes=(None, 0))

        @jax.jit
        def released(batch, mask, which):
            clip = transforms.clip_per_example(1.0, made(which))
            return clip.update(gradient(params, batch), clip.init(params), mask=mask)[0]

        return released
    if method == "function":

        def values(record):
            return jax.grad(loss)(params, record)

        return jax.jit(lambda b, m, which: clip_and_sum(values, clipping=made(which))(b, m).sum)
    pieces = {"microbatch_size": max(size // 4, 1)} if method == "pieces" else {}
    how = "vmap" if method in ("vmap", "scaled") else "ghost"
    one = per_user(loss, np.zeros(3), [1, 1, 1], USERS)[0] if method == "users" else loss

    @jax.jit
    def summed(batch, mask, which):
        clipped = clipped_grad(one, 1.0, how, clipping=made(which), **pieces)
        scale = awkward_scale(params) if method == "scaled" else None
        return clipped(params, batch, mask=mask, scale=scale).sum

    return summed


def awkward_scale(params):
    """Numbers from 1e-4 to 1e4 like the parameters, some of them negative or zero."""
    draws = np.random.default_rng(9)

    def numbers(leaf):
        scale = 10.0 ** draws.uniform(-4, 4, leaf.shape) * draws.choice([-1, 0, 1, 1], leaf.shape)
        return jnp.asarray(scale, leaf.dtype)

    return jax.tree.map(numbers, params)


def cases(rng, size, names=NAMES):
    """What is tried on one program: (parameter, kind of record)."""
    tables = [name for name in names if "look" in name]  # summed in another way than the rest
    found = [(name, "cancelling") for name in tables]
    found += [(names[i], "cancelling") for i in rng.integers(len(names), size=4)]
    kinds = KINDS if size <= 256 else ("equal", "cancelling all")
    return found + [(names[rng.integers(len(names))], kind) for kind in kinds]


def largest_move(rng, strategy, method, dtype, size, name, kind, removed, names=NAMES):
    """(the largest ‖sum with − sum without‖ over removed records, what is promised: 1 + slack)."""
    batch = records(rng, size, dtype, names, name, kind, USERS if method == "users" else 1)
    released, which = program(strategy, method, dtype, size, names), rng.integers(len(WHOLE))
    whole = released(batch, np.ones(size, bool), which)
    moves = []
    for index in removed:
        rest = released(batch, np.arange(size) != index, which)
        parts = (
            np.asarray(a, np.float64) - np.asarray(b, np.float64)
            for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(rest), strict=True)
        )
        moves.append(np.sqrt(sum(np.sum(part**2) for part in parts)))
    dimension = sum(leaf.size for leaf in jax.tree.leaves(parameters(dtype, names)))
    # A record is masked, so that all others keep their places.
    slack = rounding_slack(size, dimension, failure=1e-9, in_place=True)
    return max(moves), 1 + slack
