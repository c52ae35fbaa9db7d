"""Sums over records that do not pay for how many there are: a total and what rounding took from it.

Records are added up in short runs, one matrix product each, and the runs with compensation: a pair
(total, error) stands for total + error, the total being that number rounded. Pairs of pieces and of
devices are added up in the same way, and the error is added once, with the noise.

THE SUM MOVES BY ONE RUN. Let records keep their places, where one is exchanged or its place is left
empty. All other runs are the same to the last bit, and the sum moves by what the record's own run
moves. With u the unit round-off, the sum of N terms vᵢ in any order is off by at most u times the
sum of the norms of all partial sums; of m records of norm at most C with one term each, the k-th of
these has at most k + 1 of them, in any order, so that this is at most u·C·(m(m + 1)/2 + m), the
rounding of the products included. Of t terms each, with norms that add up to C over a record, every
one of the m·t partial sums has norm at most m·C: u·C·(m²t + m). Two runs are compared, each off by
that much. `run_length` takes m ≤ √_LONGEST for t = 1 and m²t ≤ _LONGEST/2 else, which bounds both
by u·C·(_LONGEST + 3√_LONGEST) together.

THE RUNS ADD UP TO SECOND ORDER. Adding an array to a pair is off by at most 2u² of the result
(Joldes, Muller and Popescu 2017, Algorithm DWPlusFP), entry by entry. Of L records in R ≤ L runs of
m the j-th sum has norm at most j·m·C, so that all additions are off by 2u²·m·C·R²/2 ≤ u²·L²·C, on
either neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

_LONGEST = 1 << 14  # records of a run, squared, and times the positions of one
# Numbers of all runs' products up to which they are formed at once: they stay in the cache of a
# CPU, or fit into the memory of what is none.
_AT_ONCE_ON_CPU, _AT_ONCE_ELSEWHERE = 1 << 16, 1 << 24
_OF_DEVICES = 1 << 10  # devices × records up to which devices' sums are added in one precision
_UNROLLED = 2  # runs a turn of the loop: the pair is read and written once for all of them


class Compensated(NamedTuple):
    """Two trees of one structure, whose sum is meant: the total is that sum, rounded."""

    total: Any
    error: Any

    def map(self, function: Callable[..., Any], *others: Any) -> Compensated:
        """Both trees under a function that is linear and rounds nothing, such as a reshape."""
        return Compensated(function(self.total, *others), function(self.error, *others))


def without_error(tree: Any) -> Compensated:
    """Arrays that are what they stand for."""
    return Compensated(tree, jax.tree.map(jnp.zeros_like, tree))


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(a + b rounded, what rounding took from it), exactly (Knuth's TwoSum)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _normalise(total: Array, error: Array) -> Compensated:
    """The pair of a total and an error that is far smaller (Dekker's FastTwoSum)."""
    rounded = total + error
    return Compensated(rounded, error - (rounded - total))


def add_term(pair: Compensated, term: Array) -> Compensated:
    """The pair of arrays with one more term (DWPlusFP)."""
    total, lost = two_sum(pair.total, term)
    return _normalise(total, pair.error + lost)


def add(one: Compensated, other: Compensated) -> Compensated:
    """The sum of two pairs of trees."""

    def add_leaves(a: Array, ae: Array, b: Array, be: Array) -> Compensated:
        total, lost = two_sum(a, b)
        return _normalise(total, (ae + be) + lost)

    structure = jax.tree.structure(one.total)
    parts = zip(*(jax.tree.leaves(tree) for tree in (*one, *other)), strict=True)
    pairs = [add_leaves(*four) for four in parts]
    return Compensated(
        structure.unflatten([pair.total for pair in pairs]),
        structure.unflatten([pair.error for pair in pairs]),
    )


def run_length(records: int, positions: int = 1) -> int:
    """Records of a run, where each of them adds so many terms to an entry of the sum."""
    allowed = _LONGEST if positions == 1 else _LONGEST // (2 * positions)
    longest = max(1, math.isqrt(allowed))
    if longest >= records:
        return records
    # Runs of one length, if there is a divisor that is not much shorter: nothing is left over.
    lengths = range(longest, max(1, longest // 2), -1)
    return next((length for length in lengths if records % (2 * length) == 0), longest)


def slack_of_runs(records: int, unit: float) -> float:
    """The bound of THE SUM MOVES BY ONE RUN and THE RUNS ADD UP TO SECOND ORDER, over C."""
    longest = _LONGEST + 3 * math.isqrt(_LONGEST)
    # γ in the place of u covers that partial sums are themselves rounded.
    gamma = longest * unit / (1 - longest * unit)
    return gamma + 2 * (unit * records) ** 2 + 2 * _OF_DEVICES * unit


def is_reduced_as_it_is(devices: int, records: int) -> bool:
    """Whether so many devices' totals, of so many records together, are added without errors."""
    # Each of them drops its error and is added once: at most d·u·b·C on either neighbour.
    return devices * records <= _OF_DEVICES


def slack_of_shifted_runs(records: int, unit: float) -> float:
    """The same where the places of other records move, so that every run is another one."""
    longest = min(records, math.isqrt(_LONGEST))
    gamma = (longest + 3) * unit / (1 - (longest + 3) * unit)
    return records * gamma + 2 * (unit * records) ** 2 + 2 * _OF_DEVICES * unit


def describe_sum(records: int, positions: int, size: int) -> str:
    """In which form a sum of so many records and numbers is formed, for a reader."""
    length = run_length(records, positions)
    if length >= records:
        return "one product"
    runs = -(-records // length)
    return f"{runs} at once" if _is_at_once(runs, size) else f"loop over {runs}"


def _is_at_once(runs: int, size: int) -> bool:
    """Whether the products of all runs are formed before they are added up."""
    # A loop over records that a compiler has divided over devices would gather them in every turn.
    divided = jax.device_count() > 1 and not jax.sharding.get_abstract_mesh().manual_axes
    most = _AT_ONCE_ON_CPU if jax.default_backend() == "cpu" else _AT_ONCE_ELSEWHERE
    return divided or runs * size <= most


def sum_over_records(
    term: Callable[..., Array], operands: Sequence[Array], positions: int = 1
) -> Compensated:
    """The sum of `term(*parts)` over runs of the operands' leading axis, of records."""
    records = operands[0].shape[0]
    length = run_length(records, positions)
    if length >= records:
        return without_error(term(*operands))
    like = jax.eval_shape(term, *(operand[:length] for operand in operands))
    runs = records // length
    if _is_at_once(runs, like.size):
        whole = runs * length
        stacked = [x[:whole].reshape(runs, length, *x.shape[1:]) for x in operands]
        pair = _halve(without_error(jax.vmap(term)(*stacked)))
    else:
        whole = runs // _UNROLLED * _UNROLLED * length
        pair = _loop(term, operands, like, whole // length, length)
    for start in range(whole, records, length):  # what is left over: fewer than two runs
        stop = min(start + length, records)
        rest = [jax.lax.slice_in_dim(x, start, stop) for x in operands]
        pair = add_term(pair, term(*rest))
    return pair


def _halve(pairs: Compensated) -> Compensated:
    """The sum over the leading axis, by halves."""
    while (number := pairs.total.shape[0]) > 1:
        half = number // 2
        added = add(pairs.map(lambda x: x[:half]), pairs.map(lambda x: x[half : 2 * half]))  # noqa: B023
        left = pairs.map(lambda x: x[2 * half :])  # noqa: B023
        pairs = added if number % 2 == 0 else Compensated(
            *(jnp.concatenate(two) for two in zip(added, left, strict=True))
        )  # fmt: skip
    return pairs.map(lambda x: x[0])


def _loop(
    term: Callable[..., Array], operands: Sequence[Array], like: Any, runs: int, length: int
) -> Compensated:
    """The sum over that many runs, one after the other."""
    zero = jnp.zeros(like.shape, like.dtype)

    def turn(number: Any, carry: Any) -> Any:
        pair = as_pair(carry)
        for own in range(_UNROLLED):
            start = (number * _UNROLLED + own) * length
            parts = [jax.lax.dynamic_slice_in_dim(x, start, length) for x in operands]
            pair = add_term(pair, term(*parts))
        return as_leaves(pair)

    first = as_leaves(Compensated(zero, zero))
    return as_pair(jax.lax.fori_loop(0, runs // _UNROLLED, turn, first))


def as_leaves(pair: Compensated) -> Any:
    """The pair as a loop carries it."""
    # XLA's CPU backend writes each array of a pair in a pass of its own, and would compute all of
    # the sum twice: complex numbers carry both in one pass.
    if jax.default_backend() != "cpu":
        return pair
    return jax.tree.map(jax.lax.complex, *pair)


def as_pair(joined: Any) -> Compensated:
    """The pair that `as_leaves` was given."""
    if isinstance(joined, Compensated):
        return joined
    return Compensated(*(jax.tree.map(part, joined) for part in (jax.lax.real, jax.lax.imag)))


def add_noise(pair: Compensated, noise: Any) -> Any:
    """total + error + noise, rounded once: a function of their sum but for second order."""
    # (total, noise) → (sum, lost) exactly; lost + error rounds what is itself a rounding: second
    # order, where `slack_of_runs` has more than a unit to spare. The one rounding that is left is
    # a function of what is released: it only post-processes.

    def add_leaf(total: Array, error: Array, own: Array) -> Array:
        found, lost = two_sum(total, own.astype(total.dtype))
        return found + (lost + error)

    return jax.tree.map(add_leaf, *pair, noise)
