"""The promise of every clipped sum, over all who make it; see `sensitivity.py`."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.gradients import clipped_grad, low_rank_sum
from dpjax.gradients.ghost import outer
from dpjax.training.users import per_user
from tests.gradients.sensitivity import cases, largest_move

# One program a row, each with a share of the parameters, since its time is that of compiling it;
# all of them together are tried in `tests/exact`. Beyond 256 records are summed in several runs.
PROGRAMS = [
    ("whole", "ghost", "float32", 5, 8, ("long", "blocks", "tied", "look-up 2", "look-up 512")),
    ("whole", "vmap", "bfloat16", 32, 7, ("vector", "kernel", "look-up 97")),
    ("two groups", "ghost", "bfloat16", 9, 6, ("wide", "scanned", "row", "look-up 97")),
    ("leaves", "pieces", "float16", 12, 6, ("layers", "left", "bias", "look-up 96")),
    ("leaves", "chain", "bfloat16", 5, 6, ("long", "left", "look-up 2")),
    ("two groups", "function", "float16", 6, 6, ("vector", "bias", "look-up 2")),
    ("whole", "ghost", "float16", 1, 1, ("kernel", "look-up 1")),
    ("whole", "ghost", "float32", 300, 1, ("vector", "long", "look-up 96")),
    ("whole", "scaled", "float32", 8, 7, ("vector", "long", "tied", "look-up 2")),
    ("two groups", "scaled", "float16", 6, 6, ("vector", "bias", "look-up 2")),
    ("whole", "users", "float32", 7, 6, ("vector", "wide", "bias", "look-up 2")),
]


@pytest.mark.parametrize(("strategy", "method", "dtype", "size", "rounds", "names"), PROGRAMS)
def test_no_record_moves_a_sum_by_more_than_it_may(strategy, method, dtype, size, rounds, names):
    rng = np.random.default_rng([size, len(strategy), len(method), len(dtype)])
    for name, kind in [case for _ in range(rounds) for case in cases(rng, size, names)]:
        removed = {0, size // 2}
        move, promised = largest_move(
            rng, strategy, method, dtype, size, name, kind, removed, names
        )
        assert move <= promised, (name, kind)


@pytest.mark.parametrize("carried", [True, False], ids=["one float64", "a pair of float32"])
@pytest.mark.parametrize("records", [300, 4_096, 16_384, 60_000])
def test_sums_of_look_ups_are_rounded_once(records, carried, monkeypatch):
    """Half of the records add 1, and the rest a little less or more than half a unit of their sum.

    One after the other, each of the rest would be rounded the same way.
    """
    if not carried:  # what no CPU does of so few records
        monkeypatch.setattr(outer, "is_wider", lambda *_: False)
    half = records // 2
    tokens = jnp.arange(records) % 2 * 2
    table = {"e": jnp.zeros((4, 1))}
    clipped = clipped_grad(lambda p, r: p["e"][r[0], 0] * r[1], 1.0, "ghost", microbatch_size=None)
    summed = jax.jit(lambda values: clipped(table, (tokens, values)).sum["e"][:, 0])
    for lost in (0.75, 1.25):
        small = lost * np.spacing(np.float32(half)) / 2
        values = np.where(np.arange(records) < half, 1, small).astype(np.float32)
        total = summed(values)
        for token in (0, 2):
            terms = values[np.asarray(tokens) == token].astype(np.float64)
            allowed = 2.0**-24 + 4 * 2.0**-23  # one rounding, and the factors' own
            assert abs(float(total[token]) - terms.sum()) <= allowed * terms.sum()


@pytest.mark.parametrize("records_of_one", [1, 3])
def test_a_record_counts_the_same_by_every_method(records_of_one):
    """But for the rounding of a gradient whose terms cancel: they are about κ times what is left.

    With u the unit round-off, the gradient itself is off by a few u·κ. The ghost method has a norm
    that is off by u·κ² and at most a 64th of the terms' sizes: it rounds it up, and the record
    counts less. A norm beyond the root of the largest float is infinite by every method, and its
    record counts for nothing. So it is with a user of several records, whose sum is what counts.
    """
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((16, 8), (8, 16)))

    def of_record(p, record):
        w = low_rank_sum(jnp.zeros((16, 16)), p["a"], p["b"])
        return jnp.sum((record[0] @ w) * record[1])

    of_user = per_user(of_record, np.zeros(3), [1, 1, 1], 3)[0]

    def summed(how, x, y):
        loss, record = of_record, (x, y)
        if records_of_one > 1:
            loss, record = of_user, (record, jnp.ones(3, bool))
        one = jax.tree.map(lambda leaf: leaf[None], record)
        return clipped_grad(loss, 1.0, how)({"a": a, "b": b}, one).sum

    released = {how: jax.jit(functools.partial(summed, how)) for how in ("ghost", "vmap")}
    for size, kappa in itertools.product((1e9, 1e15, 1e30), (1, 30, 1e3, 1e5)):
        x, y = rng.normal(size=(2, records_of_one, 2, 16)).astype(np.float32)
        x[:, 1], y[:, 1] = x[:, 0], -y[:, 0] * np.float32(1 - 1 / kappa)
        y *= np.float32(size)
        if records_of_one == 1:
            x, y = x[0], y[0]
        wide = [np.reshape(v, (-1, 16)).astype(np.longdouble) for v in (x, y)]
        product = wide[0].T @ wide[1]
        truth = np.concatenate([(product @ b.T).ravel(), (a.T @ product).ravel()])
        truth = (truth / max(1, np.sqrt(np.sum(truth**2)))).astype(np.float64)
        off = 32 * 2.0**-24 * kappa + 1e-6
        for how, of in released.items():
            total = of(x, y)
            found = np.concatenate([np.float64(total[k]).ravel() for k in "ab"])
            if size > 1e19:
                assert not found.any()
                continue
            counts = float(found @ truth)  # of the record, how much
            assert np.linalg.norm(found - counts * truth) <= off
            assert counts <= 1 + 1e-6
            if how == "vmap" or kappa <= 30:
                assert counts >= 1 - off - (32 * 2.0**-23 * kappa**2 if how == "ghost" else 0)
