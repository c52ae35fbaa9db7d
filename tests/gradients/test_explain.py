"""The choice of method: by cost, said out loud, and never at the price of a wrong norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.gradients import clipped_grad, explain_clipping, methods
from dpjax.gradients.ghost.outer import cheapest_form
from dpjax.gradients.methods import choose_clipping
from dpjax.gradients.per_example import make_scalar_loss, split_trainable
from dpjax.gradients.ties import find_ties


def linear(params, x):
    return jnp.sin(x @ params["w"])


def elementwise(params, x):
    return jnp.sum(jnp.sin(x * params["w"]))


PARAMS, BATCH = {"w": jnp.ones(6)}, jnp.arange(18.0).reshape(3, 6)


def choice(method, loss, params=PARAMS, batch=BATCH):
    trained, rebuild = split_trainable(params, find_ties(params))
    return choose_clipping(
        method, make_scalar_loss(loss, rebuild, False, False), trained, (batch, None)
    )


def test_auto_takes_the_cheaper_method(monkeypatch):
    assert choice("auto", linear).method == "ghost"
    assert choice("auto", elementwise).method == "vmap"
    assert choice("ghost", elementwise).method == "ghost"
    assert choice("vmap", linear).plan is None
    # Both form the gradients, of two positions a record: by products of the same size.
    of_positions = choice(
        "auto", lambda w, x: jnp.sum(jnp.sin(x @ w)), jnp.ones((3, 2)), jnp.ones((4, 2, 3))
    )
    assert (of_positions.method, of_positions.rows[0].rule) == ("ghost", "direct")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert cheapest_form((1, 28, 128, 128), False)[0] == "gram"
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert cheapest_form((1, 28, 128, 128), False)[0] == "direct"
    assert cheapest_form((1, 128, 768, 3072), False)[0] == "gram"  # its gradient is too large


def test_costs_are_those_of_the_shapes():
    (row,) = choice("ghost", linear).rows
    assert (row.parameter, row.shape, row.rule) == ("w", (6,), "vectors")
    # norm: 6 + 1 multiplications; sum: 6. vmap: 6, and 6 numbers through memory three times.
    assert (row.ghost, row.vmap) == (13, 6 + 6 * 3 * 8)


def test_the_table_is_printed(capsys):
    explain_clipping(elementwise, PARAMS, BATCH)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:2] == ["parameter", "shape"]
    assert printed[1].split()[:4] == ["w", "(6,)", "mul", "copied"]
    assert printed[2].startswith("method: vmap")


def test_a_loss_that_cannot_be_traced_falls_back_and_says_so(monkeypatch):
    def fail(*_):
        raise NotImplementedError("no such equation")

    expected = clipped_grad(linear, 1.0, "vmap")(PARAMS, BATCH)
    monkeypatch.setattr(methods, "plan_memory", fail)
    with pytest.warns(UserWarning, match="no such equation"):
        out = clipped_grad(linear, 1.0, "ghost")(PARAMS, BATCH)
    silent = clipped_grad(linear, 1.0, "auto")(PARAMS, BATCH)
    np.testing.assert_array_equal(out.sum["w"], expected.sum["w"])
    np.testing.assert_array_equal(silent.sum["w"], expected.sum["w"])


def test_the_users_own_error_is_the_users():
    def broken(params, x):
        raise KeyError("my own mistake")

    for method in ("auto", "ghost", "vmap"):
        with pytest.raises(KeyError, match="my own mistake"):
            clipped_grad(broken, 1.0, method)(PARAMS, BATCH)


def test_the_form_of_every_sum_is_shown(capsys, monkeypatch):
    """Products of 64 records at once, a loop over more, and a scatter of a table's rows."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    params = {"table": jnp.zeros((7, 300)), "w": jnp.zeros((300, 400))}

    def loss(params, token):
        return jnp.sum(params["table"][token] @ params["w"])

    for records, form in ((64, "one product"), (1024, "loop over 16")):
        explain_clipping(loss, params, jnp.zeros(records, jnp.int32), method="ghost")
        _, table, w, _ = capsys.readouterr().out.strip().splitlines()
        assert table.endswith("  scatter")
        assert w.endswith(f"  {form}")
