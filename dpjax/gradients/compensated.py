"""Sums over records that do not pay for how many there are: a total and what rounding took from it.

Records are added up in short runs, one matrix product each, and the runs with compensation: a pair
(total, error) stands for total + error, the total being that number rounded. Pairs of pieces and of
devices are added up in the same way, and the error is added once, with the noise.

What follows holds for every order in which a product adds its terms, another one for each entry if
it likes. u is the unit round-off, and C the clip norm. A record has t terms wₚ (positions), whose
sum has norm at most C, and whose norms add up to at most κ·C, κ = `cancelling(t)`: the ghost method
counts a record whose terms are larger for less (`outer.guard_cancellation`). A vector of absolute
values below is taken entry by entry.

ONE RUN. A sum of N terms is N − 1 additions, each off by at most u times its result:

- t = 1. In an entry the k-th result has at most k + 1 of the run's m terms, so that it is at most
  √((k + 1)·Σwᵢ²) (Cauchy and Schwarz), of norm √((k + 1)·m)·C over all entries, and Σ √(k·m) over k
  ≤ m is at most (2/3)m² + m/2. The products' own rounding is at most u·m·C.
- t > 1. A result holds some of a record's terms, A, and not the others, B. As |ΣA| + |ΣB| is at
  most Σ|wₚ|, and |ΣA| at most |Σw| + |ΣB|, the record adds at most (|Σw| + Σ|wₚ|)/2 to it, of norm
  (1 + κ)/2·C. So m·t additions of m records are off by u·m²·t·(1 + κ)/2·C, and the products by
  u·m·κ·C.
- t > 1, of one record, in chunks of q positions, each of which is added up by itself: every result
  is at most Σ|wₚ| of its chunk, q of them in each, so that all chunks are off by u·q·κ·C, and the
  products by u·κ·C. The chunks are added with compensation.

`run_shape` takes the largest m, and where one record is too long the largest q, for which two runs,
each on both neighbours, are off by at most `_LONGEST_RUN` units together. (A run of one record that
differs is compared with none on one of the two, which makes three.)

THE SUM MOVES BY TWO RUNS. Where one record is exchanged, or its place is masked, all other runs are
the same to the last bit. Where the last record moves into the place of the one that is taken out,
two are not. The sum moves by the record itself and at most what these are off by, on both
neighbours: that is `_LONGEST_RUN`·u·C.

THE RUNS ADD UP TO SECOND ORDER. Adding an array to a pair is off by at most 2u² of the result
(Joldes, Muller and Popescu 2017, Algorithm DWPlusFP), entry by entry, and adding pairs a and b by
3u²(|a| + |b|): one rounding of the two errors, u·u(|a| + |b|), and one of their sum with what the
totals lost, each of which is u(|a| + |b|); where totals cancel they lose nothing, and the last step
is off by 2u² in its place. Of L records the j-th result is at most j times what is added. Runs are
added up in blocks of at most `_BLOCK`, blocks one after the other, pieces of eight records or more
within a piece of `fit`, and those, at most `PIECES` of them, at last. On both neighbours, in
u²·L·C, that is 2·_BLOCK for a block's runs, 3L/_BLOCK for blocks, 3(L/8 + PIECES) for pieces.

Where one float64 carries a pair of float32 (`carry_zeros`), an addition is off by 2⁻⁵³ = u²/32 of
its result, and a block or piece that is split into a pair again by u² of it: less than the above.

By halves it is 6u²·L·C for each of at most 30 levels. A record's chunks, c of them, are off by
2u²·c·κ·C: all of them together, up to 2²⁵ in a step, by at most `_OF_CHUNKS`·u·C.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dpjax._numerics.scope import enable_x64
from dpjax._numerics.typing import Params

_LONGEST_RUN = 21 << 10  # units that two runs on two neighbours may be off by together
_CANCELLING = 64.0  # times as large as what is left of them a record's terms may be at most
_BLOCK = 1 << 10  # runs that are added up before they are added to the others
PIECES = 1 << 13  # into which the records of a step may be cut
# Units that others may be off by, on both neighbours: look-ups, which `outer` adds exactly but for
# this; chunks; and norms, to which what cancellation leaves of their rounding is added beyond 64.
_OF_LOOKUPS, _OF_CHUNKS, _OF_NORMS = 1 << 10, 1 << 9, 1 << 7
# Numbers of all runs' products up to which they are formed at once: they stay in the cache of a
# CPU, or fit into the memory of what is none.
_AT_ONCE_ON_CPU, _AT_ONCE_ELSEWHERE = 1 << 16, 1 << 24
_OF_DEVICES = 1 << 10  # devices × records up to which devices' sums are added in one precision
_HELD = 1 << 21  # numbers of the terms that a turn of the loop forms at once


class Compensated(NamedTuple):
    """Two trees of one structure, whose sum is meant: the total is that sum, rounded."""

    total: Params
    error: Params

    def map(self, function: Callable[..., PyTree[Array]], *others: PyTree[Array]) -> Compensated:
        """Both trees under a function that is linear and rounds nothing, such as a reshape."""
        return Compensated(function(self.total, *others), function(self.error, *others))


def without_error(tree: PyTree[Array]) -> Compensated:
    """Arrays that are what they stand for."""
    return Compensated(tree, jax.tree.map(jnp.zeros_like, tree))


Terms = Callable[..., Array | Compensated]  # what is added up, from a run's records
Carry = PyTree[Array] | Compensated  # one array in the place of a pair: see `carry_zeros`


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


def cancelling(positions: int) -> float:
    """How often as large as what is left of them a record's terms may be, by their norms."""
    # √t for terms that are orthogonal or independent, whose squares add up, and twice that. Of few
    # positions more, as those of a loss of differences cancel by design.
    if positions == 1:
        return 1.0
    return min(max(2 * math.sqrt(positions), 2 * _CANCELLING / positions), _CANCELLING)


class RunShape(NamedTuple):
    """What is added up without compensation."""

    records: int
    positions: int  # of each record; fewer than it has where `records` is 1 and it is cut


def _units_of_run(shape: RunShape, positions: int) -> float:
    """The bound of ONE RUN for all of a record's chunks, in units of u·C."""
    records, kappa = shape.records, cancelling(positions)
    if positions == 1:
        return 2 * records**2 / 3 + 1.5 * records
    if shape.positions < positions:
        return (shape.positions + 1) * kappa
    return records**2 * positions * (1 + kappa) / 2 + records * kappa


def _units_of_two(shape: RunShape, positions: int) -> float:
    """What two runs of this shape are off by on two neighbours, in units of u·C."""
    compared = 3 if shape.records == 1 else 4
    return compared * _units_of_run(shape, positions)


@functools.cache
def run_shape(positions: int = 1, parts: int = 1) -> RunShape:
    """The largest run whose bound is allowed, of records that add so many terms to an entry.

    Of an array that is used in several places the gradient has as many parts, each a sum by itself.
    """
    # The ghost method counts a record for less where the squares of its parts, each as large as its
    # terms ask for, add up to more than 4·C²: their norms add up to at most 2√parts·C.
    allowed = _LONGEST_RUN if parts == 1 else _LONGEST_RUN / (2 * math.sqrt(parts))
    records = max(1, math.isqrt(_LONGEST_RUN // positions))
    while records > 1 and _units_of_two(RunShape(records, positions), positions) > allowed:
        records -= 1
    whole = RunShape(records, positions)
    if _units_of_two(whole, positions) <= allowed:
        return whole
    chunk = RunShape(1, max(1, math.floor(allowed / (3 * cancelling(positions))) - 1))
    # Chunks of one length, if there is a divisor that is not much shorter: nothing is filled up.
    lengths = range(chunk.positions, chunk.positions // 2, -1)
    found = (length for length in lengths if positions % length == 0)
    return RunShape(1, next(found, chunk.positions))


def run_length(records: int, positions: int = 1, parts: int = 1) -> int:
    """Records of a run, where each of them adds so many terms to an entry of the sum."""
    longest = run_shape(positions, parts).records
    if longest >= records:
        return records
    # Runs of one length, if there is a divisor that is not much shorter: nothing is left over.
    lengths = range(longest, max(1, longest // 2), -1)
    return next((length for length in lengths if records % (2 * length) == 0), longest)


def _second_order(records: int, pieces: int, unit: float) -> float:
    """The bound of THE RUNS ADD UP TO SECOND ORDER, over C."""
    blocks = 2 * _BLOCK + 3 * records / _BLOCK
    return unit**2 * records * (blocks + 3 * max(records / 8 + PIECES, pieces) + 180)


def _of_others(unit: float) -> float:
    """What look-ups, chunks, norms and devices' sums are off by, on both neighbours, over C."""
    return (_OF_LOOKUPS + _OF_CHUNKS + _OF_NORMS + 2 * _OF_DEVICES) * unit


def slack_of_runs(records: int, unit: float, pieces: int = 1) -> float:
    """The bound of THE SUM MOVES BY TWO RUNS, and of second order, over C."""
    # γ in the place of u covers that partial sums are themselves rounded.
    gamma = _LONGEST_RUN * unit / (1 - _LONGEST_RUN * unit)
    return gamma + _second_order(records, pieces, unit) + _of_others(unit)


def slack_of_lookups(unit: float) -> float:
    """What a sum of look-ups may be off by, on both neighbours, over C."""
    return _OF_LOOKUPS * unit


def is_reduced_as_it_is(devices: int, records: int) -> bool:
    """Whether so many devices' totals, of so many records together, are added without errors."""
    # Each of them drops its error and is added once: at most d·u·b·C on either neighbour.
    return devices * records <= _OF_DEVICES


def slack_of_shifted_runs(records: int, unit: float, positions: int = 1, pieces: int = 1) -> float:
    """The same where the places of other records move, so that every run is another one."""
    shape = run_shape(positions)
    shape = shape._replace(records=min(records, shape.records))
    # A record's share of a run's bound grows with the run: none is shorter but for what is left.
    each = 2 * _units_of_run(shape, positions) * unit
    gamma = each / (1 - each) if each < 1 else math.inf
    runs = -(-records // shape.records)
    return runs * gamma + _second_order(records, pieces, unit) + _of_others(unit)


def describe_sum(records: int, positions: int, size: int) -> str:
    """The form in which a sum of so many records and numbers is made, for a reader."""
    length = run_length(records, positions)
    if length >= records:
        return "one product"
    runs = -(-records // length)
    return f"{runs} at once" if _is_at_once(runs, size) else f"loop over {runs}"


def _is_at_once(runs: int, size: int, of_one: bool = False) -> bool:
    """Whether the products of all runs are formed before they are added up."""
    # A loop over records that a compiler has divided over devices would gather them in every turn.
    divided = jax.device_count() > 1 and not jax.sharding.get_abstract_mesh().manual_axes
    most = _AT_ONCE_ON_CPU if jax.default_backend() == "cpu" else _AT_ONCE_ELSEWHERE
    return (divided and not of_one) or runs * size <= most


def sum_over_records(
    term: Terms, operands: Sequence[Array], positions: int = 1, parts: int = 1
) -> Compensated:
    """The sum of `term(*operands)`, an array or a pair, over runs of their leading axis."""
    return sum_runs(term, operands, run_length(operands[0].shape[0], positions, parts))


def sum_runs(
    term: Terms, operands: Sequence[Array], length: int, *, of_one: bool = False
) -> Compensated:
    """The same over runs of that length; of one record's parts, which no compiler divides."""
    records = operands[0].shape[0]
    if length >= records:
        return _as_compensated(term(*operands))
    runs = records // length
    if runs > _BLOCK:
        inner = functools.partial(sum_runs, term, length=length, of_one=of_one)
        return sum_runs(lambda *own: inner(own), operands, length * _BLOCK, of_one=of_one)
    like = jax.eval_shape(term, *(operand[:length] for operand in operands))
    like = like.total if isinstance(like, Compensated) else like
    if _is_at_once(runs, like.size, of_one):
        whole = runs * length
        stacked = [x[:whole].reshape(runs, length, *x.shape[1:]) for x in operands]
        pair = _halve(_as_compensated(jax.vmap(term)(*stacked)))
    else:
        turns = _runs_of_a_turn(runs, like.size)
        whole = runs // turns * turns * length
        pair = _loop(term, operands, like, whole // length, length)
    for start in range(whole, records, length):  # what is left over: fewer runs than a turn has
        stop = min(start + length, records)
        rest = [jax.lax.slice_in_dim(x, start, stop) for x in operands]
        pair = _add_to(pair, term(*rest))
    return pair


def _as_compensated(term: Array | Compensated) -> Compensated:
    """An array or a pair as a pair."""
    return term if isinstance(term, Compensated) else without_error(term)


def _add_to(pair: Compensated, term: Array | Compensated) -> Compensated:
    """The pair with one more term, an array or a pair."""
    return add(pair, term) if isinstance(term, Compensated) else add_term(pair, term)


def _runs_of_a_turn(runs: int, size: int) -> int:
    """How many runs a turn of the loop adds up, for which it reads and writes its carry once."""
    most = 8 if 8 * size <= _HELD else 2
    return next((turn for turn in range(most, most // 2, -1) if runs % turn == 0), most)


def _halve(pairs: Compensated) -> Compensated:
    """The sum over the leading axis, by halves."""
    while (number := pairs.total.shape[0]) > 1:
        half = number // 2
        added = add(_take_places(pairs, 0, half), _take_places(pairs, half, 2 * half))
        if number % 2:
            parts = zip(added, _take_places(pairs, 2 * half, number), strict=True)
            added = Compensated(*map(jnp.concatenate, parts))
        pairs = added
    return pairs.map(lambda x: x[0])


def _take_places(pairs: Compensated, start: int, stop: int) -> Compensated:
    """The pairs in these places of the leading axis."""
    return pairs.map(lambda x: x[start:stop])


def _loop(
    term: Terms, operands: Sequence[Array], like: jax.ShapeDtypeStruct, runs: int, length: int
) -> Compensated:
    """The sum over that many runs, one after the other."""
    turns = _runs_of_a_turn(runs, like.size)

    def turn(number: Array, carry: Carry) -> Carry:
        for own in range(turns):
            start = (number * turns + own) * length
            parts = [jax.lax.dynamic_slice_in_dim(x, start, length) for x in operands]
            carry = add_carried(carry, _as_compensated(term(*parts)))
        return carry

    return as_pair(jax.lax.fori_loop(0, runs // turns, turn, carry_zeros(like)))


def carry_zeros(like: PyTree[jax.ShapeDtypeStruct]) -> Carry:
    """Zeros like the arrays of a tree, as a loop carries a pair that it adds to."""
    # XLA's CPU backend writes each array of a pair in a pass of its own, and would compute all of
    # the sum twice. One array carries both: of a pair of float32 the float64 that is their sum.
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    if jax.default_backend() != "cpu":
        return without_error(zeros)
    return jax.tree.map(lambda zero: _carry_leaf(zero, zero), zeros)


def _carry_leaf(total: Array, error: Array) -> Array:
    """The one array that stands for a pair of arrays; of float64 none is wider."""
    if total.dtype != jnp.float32:
        return jax.lax.complex(total, error)
    with enable_x64():
        return jax.lax.add(*(jax.lax.convert_element_type(x, jnp.float64) for x in (total, error)))


def is_wider(carried: Carry, like: Array) -> bool:
    """Whether what a loop carries for such an array is one array of a wider dtype."""
    return not isinstance(carried, Compensated) and carried.dtype == jnp.float64 != like.dtype


_PIECE_BYTES = 2**20  # of terms that are widened at once


def scatter_into(carried: Array, rows: Array, values: Array) -> Array:
    """What a loop carries, [rows, n], with values [terms, n] added to its rows one by one."""
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )

    def add_terms(carried: Array, rows: Array, values: Array) -> Array:
        with enable_x64():
            terms = jax.lax.convert_element_type(values, carried.dtype)
            return jax.lax.scatter_add(carried, rows[:, None], terms, numbers)

    # Terms are widened piece by piece, which stay in the processor's cache, in the same order.
    count, length = rows.shape[0], max(1, _PIECE_BYTES // (8 * values.shape[1]))

    def add_piece(piece: Array, carried: Array) -> Array:
        some = (jax.lax.dynamic_slice_in_dim(x, piece * length, length) for x in (rows, values))
        return add_terms(carried, *some)

    pieces = count // length if count > 2 * length else 0
    if pieces:
        carried = jax.lax.fori_loop(0, pieces, add_piece, carried)
    return add_terms(carried, rows[pieces * length :], values[pieces * length :])


def add_carried(carry: Carry, pair: Compensated) -> Carry:
    """What a loop carries, with one more pair."""
    if isinstance(carry, Compensated):
        return add(carry, pair)

    def add_leaf(own: Array, total: Array, error: Array) -> Array:
        if jnp.issubdtype(own.dtype, jnp.complexfloating):
            return jax.lax.complex(*add(Compensated(own.real, own.imag), Compensated(total, error)))
        with enable_x64():
            # Off by 2⁻⁵³ = u²/32 of the result at most, where a pair would be by 2u².
            return jax.lax.add(own, _carry_leaf(total, error))

    return jax.tree.map(add_leaf, carry, *pair)


def as_pair(carry: Carry) -> Compensated:
    """The pair that a loop's carry stands for."""
    if isinstance(carry, Compensated):
        return carry

    def split(own: Array) -> Compensated:
        if jnp.issubdtype(own.dtype, jnp.complexfloating):
            return Compensated(own.real, own.imag)
        with enable_x64():
            # The rest is exact in float64, and rounded to float32 off by u² of the sum at most.
            total = jax.lax.convert_element_type(own, jnp.float32)
            rest = jax.lax.sub(own, jax.lax.convert_element_type(total, jnp.float64))
            return Compensated(total, jax.lax.convert_element_type(rest, jnp.float32))

    leaves, structure = jax.tree.flatten(carry)
    return Compensated(*map(structure.unflatten, zip(*map(split, leaves), strict=True)))


def add_noise(pair: Compensated, noise: PyTree[Array]) -> PyTree[Array]:
    """total + error + noise, rounded once: a function of their sum but for second order."""
    # (total, noise) → (sum, lost) exactly; lost + error rounds what is itself a rounding: second
    # order, where `slack_of_runs` has more than a unit to spare. The one rounding that is left is
    # a function of what is released: it only post-processes.

    def add_leaf(total: Array, error: Array, own: Array) -> Array:
        found, lost = two_sum(total, own.astype(total.dtype))
        return found + (lost + error)

    return jax.tree.map(add_leaf, *pair, noise)
