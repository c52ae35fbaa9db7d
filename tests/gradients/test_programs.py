"""Traced programs are read the same under every release of JAX, or not at all."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from dpjax.gradients import clip_and_sum, clipped_grad
from dpjax.gradients.ghost import programs


def loss(w, x):
    """A loop, a call, a condition and a closed-over array."""

    def step(carry, row):
        return jnp.tanh(carry + row @ w), jnp.sum(carry)

    last, sums = jax.lax.scan(step, x[0], x[1:], reverse=True)
    last = jax.lax.cond(jnp.sum(x) > 0, lambda v: 2 * v, lambda v: v, last)
    last = jax.checkpoint(jax.jit(lambda v: jnp.sin(v) + jnp.asarray([1.0, 2.0, 3.0])))(last)
    return jnp.sum(last**2) + jnp.sum(sums)


W = jax.random.normal(jax.random.key(0), (3, 3))
X = jax.random.normal(jax.random.key(1), (6, 5, 3))


def run(program, args):
    """Every equation by its own evaluation, and every called program by its equations."""
    known = dict(program.constants) | dict(zip(program.inputs, args, strict=True))
    read = lambda v: v.val if programs.is_literal(v) else known[v]  # noqa: E731
    for eqn in program.equations:
        values = list(map(read, eqn.operands))
        called = eqn.find_called()
        outs = run(called, values) if called else eqn.evaluate(values)
        known.update(zip(eqn.results, outs, strict=True))
    return list(map(read, program.outputs))


def test_a_program_computes_what_it_was_traced_from():
    program, out = programs.trace(loss, W, X[0])
    assert out.shape == ()
    np.testing.assert_allclose(run(program, [W, X[0]])[0], loss(W, X[0]), rtol=1e-6)


def test_the_parts_of_a_program():
    program, _ = programs.trace(loss, W, X[0])
    found = {eqn.name: eqn for eqn in program.equations}
    loop = found["scan"].scan()
    assert (loop.constants, loop.carry, loop.length, loop.reverse) == (1, 1, 4, True)
    assert len(loop.body.inputs) == 3
    assert len(loop.body.outputs) == 2
    assert len(found["cond"].branches()) == 2
    assert found["scan"].find_called() is found["scan"].branches() is found["cond"].scan() is None
    assert program.contains("tanh")  # inside the loop
    assert program.contains("sin")  # inside a call within a call
    assert not program.contains("cos")


@pytest.mark.parametrize("what", ["evaluate", "find_called", "scan"])
@pytest.mark.at_length(every=2)
def test_what_is_not_known_is_left_to_vmap(what, monkeypatch):
    """As after a release that renames a field: the same sums, and a word about it where asked."""

    def renamed(self, *_):
        raise KeyError("a_field_of_another_name")

    expected = clipped_grad(loss, 0.7, "vmap")(W, X)
    assert clipped_grad(loss, 0.7, "ghost")(W, X).norms.shape == (6,)
    monkeypatch.setattr(programs.Equation, what, renamed)
    with pytest.warns(UserWarning, match="became 'vmap'.*a_field_of_another_name"):
        out = clipped_grad(loss, 0.7, "ghost")(W, X)
    np.testing.assert_array_equal(out.sum, expected.sum)
    np.testing.assert_array_equal(clipped_grad(loss, 0.7)(W, X).sum, expected.sum)


def test_an_unknown_kind_of_program_is_refused():
    with pytest.raises(programs.UnknownProgram, match="int has no constvars"):
        programs._program(3)


# A type as releases of JAX have it, and as a later one might.
_TYPES = {
    "manual_axis_type": SimpleNamespace(manual_axis_type=SimpleNamespace(varying={"d"})),
    "vma": SimpleNamespace(vma=frozenset({"d"})),
    "renamed": SimpleNamespace(manual_axis_type=SimpleNamespace(moving={"d"})),
    "gone": SimpleNamespace(),
}


@pytest.mark.parametrize("kind", _TYPES)
def test_what_varies_over_devices_is_read_under_every_release_or_refused(kind, monkeypatch):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    known = kind in ("manual_axis_type", "vma")

    def total(records, told):
        with monkeypatch.context() as changed:
            if told:
                changed.setattr(jax, "typeof", lambda _: _TYPES[kind])
            found.append(programs.varying_axes(records))
            return clip_and_sum(lambda record: record, 1.0)(records).sum

    def mapped(told):
        specs = {"in_specs": PartitionSpec("d"), "out_specs": PartitionSpec("d")}
        run = jax.shard_map(lambda x: total(x, told)[None], mesh=mesh, check_vma=False, **specs)
        return run(jnp.ones(4))

    found = []
    np.testing.assert_allclose(mapped(told=False), [2.0, 2.0], rtol=1e-5)  # it tracks nothing
    with pytest.raises(ValueError, match="over devices" if known else "outside of jax.shard_map"):
        mapped(told=True)
    assert found == [frozenset(), frozenset({"d"}) if known else None]
    monkeypatch.setattr(jax, "typeof", lambda _: _TYPES[kind])
    assert programs.varying_axes(jnp.ones(4)) == ({"d"} if known else frozenset())
