"""The promise of every clipped sum at length: every strategy, method and dtype, larger batches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gradients.sensitivity import NAMES, STRATEGIES, cases, largest_move

_PROGRAMS = [
    (strategy, method, dtype)
    for strategy in STRATEGIES
    for method in ("ghost", "vmap", "pieces", "chain")
    for dtype in ("float32", "bfloat16", "float16")
] + [("whole", "users", "float32"), ("two groups", "users", "bfloat16")]
_SHORT = tuple(name for name in NAMES if name not in ("look-up 96", "look-up 97", "look-up 512"))


@pytest.mark.parametrize(("strategy", "method", "dtype"), _PROGRAMS)
def test_no_record_moves_a_sum_by_more_than_it_may(strategy, method, dtype):
    rng = np.random.default_rng(list(f"{strategy} {method} {dtype}".encode()))
    size = int(rng.choice([2, 3, 7, 33, 100, 300]))
    for name, kind in [case for _ in range(2) for case in cases(rng, size)]:
        removed = {int(i) for i in rng.integers(size, size=2)} | {size // 2}
        move, promised = largest_move(rng, strategy, method, dtype, size, name, kind, removed)
        assert move <= promised, (name, kind)


@pytest.mark.parametrize("method", ["ghost", "vmap"])
@pytest.mark.parametrize("size", [2_048, 16_384])
def test_nor_does_it_in_a_large_batch(size, method):
    """Every rule, where partial sums pass through powers of two and where all terms are large."""
    rng = np.random.default_rng(size)
    for name in _SHORT:
        for kind in ("equal", "cancelling all"):
            removed = {int(rng.integers(size)), size - 1}
            move, promised = largest_move(
                rng, "leaves", method, "float32", size, name, kind, removed, _SHORT
            )
            assert move <= promised, (name, kind)
