"""Bytes by collective of a compiled program, as `benchmarks.scaling` counts them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from benchmarks.traffic import traffic


def bytes_of(passes):
    """Of a sum of 16 numbers over all devices, so many times."""
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))

    def summed(x):
        once = lambda i, x: jnp.tanh(jax.lax.psum(x, "data"))  # noqa: E731
        return once(0, x) if passes is None else jax.lax.fori_loop(0, passes, once, x)

    spec = PartitionSpec("data")
    mapped = jax.shard_map(summed, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return traffic(str(jax.jit(mapped).lower(jnp.ones(8 * 16)).compile().as_text()))


@pytest.mark.parametrize("passes", [None, 5])
def test_a_loop_counts_as_often_as_it_runs(passes):
    assert bytes_of(passes) == {"all-reduce": 4 * 16 * (passes or 1)}


def test_a_tuple_a_start_and_two_loops_of_unknown_length():
    head = "HloModule m\n\n%sum (x: f32[]) -> f32[] {\n}\n\n"
    begun = "%a = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), dimensions={0}\n"
    both = "%b = (f32[4]{0}, bf16[2]{0}) all-reduce(%x, %y), to_apply=%sum\n"
    entry = "ENTRY %main (x: f32[4]) -> f32[8] {\n  " + begun + "  " + both + "}\n"
    assert traffic(head + entry) == {"all-gather": 32, "all-reduce": 20}
    inner = "%inner (x: f32[4]) -> f32[4] {\n  " + both + "}\n\n"
    outer = "%outer (x: f32[4]) -> f32[4] {\n  %w = f32[4] while(%x), body=%inner\n}\n\n"
    once = "ENTRY %main (x: f32[4]) -> f32[4] {\n  %w = f32[4] while(%x), body=%inner\n}\n"
    assert traffic(head + inner + once) == {"all-reduce": 20}
    twice = once.replace("body=%inner", "body=%outer")
    with pytest.raises(ValueError, match="must have a known number of passes"):
        traffic(head + inner + outer + twice)
