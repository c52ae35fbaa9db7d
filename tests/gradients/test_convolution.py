"""Convolutions in a CPU's quick layout give what the equation gives, and loops have no other."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import clipped_grad
from dpjax.gradients import methods
from dpjax.gradients.ghost import programs, rules

LAYOUTS = {
    "channels last": ("NHWC", "HWIO", "NHWC"),
    "channels first": ("NCHW", "OIHW", "NCHW"),
    "mixed": ("HNCW", "IWOH", "CWNH"),
    "one axis": ("NCW", "OIW", "NCW"),
    "three axes": ("NDHWC", "DHWIO", "NCDHW"),
}
SETTINGS = {
    "same": {},
    "strided": {"window_strides": 2, "padding": "VALID"},
    "uneven": {"padding": (2, 0)},
    "cut off": {"padding": (-1, 1)},
    "padded beyond the kernel": {"padding": (4, 5)},
    "strided, padded on one side": {"padding": (0, 2), "window_strides": 3},
    "dilated": {"rhs_dilation": 2},
    "transposed": {"lhs_dilation": 2, "padding": (3, 2)},
    "in groups": {"feature_group_count": 2},
}
QUICK = re.compile("b[012]+f_[012]+io->b[012]+f")


def convolved(x, kernel, layout, **setting):
    axes = len(layout[0]) - 2
    setting = {"window_strides": 1, "padding": "SAME"} | setting
    for name in ("window_strides", "rhs_dilation", "lhs_dilation"):
        if name in setting:
            setting[name] = (setting[name],) * axes
    if not isinstance(setting["padding"], str):
        setting["padding"] = (setting["padding"],) * axes
    return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=layout, **setting)


def operands(layout, groups=1):
    """Small whole numbers, of which every sum is exact in any order."""
    sizes = {"N": 2, "C": 8, "I": 8 // groups, "O": 6} | dict(zip("HWD", (7, 6, 5), strict=True))
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, [sizes[axis] for axis in layout[0]])
    kernel = rng.integers(-4, 5, [sizes[axis] if axis in "IO" else 3 for axis in layout[1]])
    return jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32)


def the_equation(function, *args):
    program, _ = programs.trace(function, *args)
    (eqn,) = [e for e in program.equations if e.name == rules.CONVOLUTION]
    return eqn


def by_hand(x, kernel, weights, eqn):
    """(values, derivatives of their weighted sum), by a product for each place of the kernel."""
    p = eqn.params
    of_x, of_kernel, of_out = p["dimension_numbers"]
    x, weights = x.transpose(of_x), weights.transpose(of_out)  # [records, channels, space...]
    kernel = kernel.transpose(of_kernel)  # [out, in, space...]
    groups, space = p["feature_group_count"], kernel.shape[2:]
    apart = [(n - 1) * k + 1 for n, k in zip(x.shape[2:], p["lhs_dilation"], strict=True)]
    margin = 8  # on every side, so that each place of the kernel lies within
    wide = np.zeros((*x.shape[:2], *(n + 2 * margin for n in apart)))
    inner = tuple(
        slice(margin, margin + n, k) for n, k in zip(apart, p["lhs_dilation"], strict=True)
    )
    wide[:, :, *inner] = x
    for axis, (n, (low, high)) in enumerate(zip(apart, p["padding"], strict=True)):
        cut = np.moveaxis(wide, 2 + axis, 0)  # what negative padding cuts off reads as zero
        cut[: margin + max(-low, 0)] = 0
        cut[margin + n - max(-high, 0) :] = 0
    values, to_kernel, to_wide = np.zeros(weights.shape), np.zeros(kernel.shape), 0 * wide
    for place in np.ndindex(space):
        starts = [
            margin - low + k * d
            for k, d, (low, _) in zip(place, p["rhs_dilation"], p["padding"], strict=True)
        ]
        seen = tuple(
            slice(start, start + (n - 1) * step + 1, step)
            for start, n, step in zip(starts, weights.shape[2:], p["window_strides"], strict=True)
        )
        pairs = zip(
            *(np.split(np.arange(n), groups) for n in (x.shape[1], len(kernel))), strict=True
        )
        for ins, outs in pairs:
            part = kernel[(outs, slice(None), *place)]
            values[:, outs] += np.einsum("oi,ni...->no...", part, wide[:, ins][:, :, *seen])
            flat = [
                a.reshape(*a.shape[:2], -1) for a in (weights[:, outs], wide[:, ins][:, :, *seen])
            ]
            to_kernel[(outs, slice(None), *place)] += np.einsum("nop,nip->oi", *flat)
            pushed = np.zeros((len(x), len(ins), *wide.shape[2:]))
            pushed[:, :, *seen] = np.einsum("oi,no...->ni...", part, weights[:, outs])
            to_wide[:, ins] += pushed
    for axis, (n, (low, high)) in enumerate(zip(apart, p["padding"], strict=True)):
        cut = np.moveaxis(to_wide, 2 + axis, 0)
        cut[: margin + max(-low, 0)] = 0
        cut[margin + n - max(-high, 0) :] = 0
    found = (values, of_out), (to_wide[:, :, *inner], of_x), (to_kernel, of_kernel)
    return [value.transpose(np.argsort(order)) for value, order in found]


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.at_length(every=4)
def test_values_and_derivatives(layout, setting):
    x, kernel = operands(layout, setting.get("feature_group_count", 1))
    eqn = the_equation(lambda x, kernel: convolved(x, kernel, layout, **setting), x, kernel)
    evaluate = rules.find_quick_convolution(eqn)
    assert evaluate is not None
    weights = np.random.default_rng(1).integers(-4, 5, eqn.outs[0].shape).astype(np.float32)
    values, to_x, to_kernel = by_hand(np.asarray(x), np.asarray(kernel), weights, eqn)
    assert np.any(values)
    ours, back = jax.vjp(lambda x: evaluate([x, kernel])[0], x)
    np.testing.assert_array_equal(ours, values)
    np.testing.assert_array_equal(back(jnp.asarray(weights))[0], to_x)
    # Forwards, and with respect to the kernel, of which XLA's derivative with negative padding is
    # wrong on CPUs in some releases, with or without us.
    both = jax.jvp(lambda *a: evaluate(a)[0], (x, kernel), (2 * x, 3 * kernel))[1]
    np.testing.assert_array_equal(both, 5 * values)
    if setting not in (SETTINGS["cut off"], SETTINGS["strided, padded on one side"]):
        back = jax.vjp(lambda kernel: evaluate([x, kernel])[0], kernel)[1]
        np.testing.assert_array_equal(back(jnp.asarray(weights))[0], to_kernel)


def test_the_derivative_with_respect_to_one_operand_does_not_form_the_other():
    layout = LAYOUTS["channels first"]
    arrays = operands(layout)
    eqn = the_equation(lambda *a: convolved(*a, layout), *arrays)
    evaluate = rules.find_quick_convolution(eqn)

    def convolutions(*differentiated):
        def total(*a):
            return jnp.sum(jnp.square(evaluate(a)[0]))

        return str(jax.make_jaxpr(jax.grad(total, differentiated))(*arrays)).count(
            "conv_general_dilated["
        )

    assert [convolutions(0), convolutions(1), convolutions(0, 1)] == [2, 2, 3]


def test_what_is_no_such_convolution_is_left_alone(monkeypatch):
    layout = LAYOUTS["channels last"]
    x, kernel = operands(layout)

    def plain(x, kernel, **setting):
        return the_equation(lambda *a: convolved(*a, layout, **setting), x, kernel)

    assert rules.find_quick_convolution(plain(x, kernel)) is not None
    by_channel = plain(x, jnp.ones((3, 3, 1, 8)), feature_group_count=8)
    pairs = plain(x, jnp.ones((3, 3, 2, 8)), feature_group_count=4)
    of_batches = plain(x, kernel, batch_group_count=2)
    whole = plain(x.astype(jnp.int32), kernel.astype(jnp.int32))
    for eqn in (by_channel, pairs, of_batches, whole):
        assert rules.find_quick_convolution(eqn) is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert rules.find_quick_convolution(plain(x, kernel)) is None


def network(layout):
    """A loss with two convolutions, the second in groups, and its parameters and records."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [
        [{"H": 3, "W": 3, "I": i, "O": 8}[axis] for axis in LAYOUTS[layout][1]] for i in (4, 4)
    ]
    w = [0.3 * jax.random.normal(key, s) for key, s in zip(keys, shapes, strict=False)]
    shape = [{"N": 5, "H": 6, "W": 6, "C": 4}[axis] for axis in LAYOUTS[layout][0]]

    def loss(w, x):
        hidden = jnp.tanh(convolved(x[None], w[0], LAYOUTS[layout]))
        out = convolved(hidden, w[1], LAYOUTS[layout], feature_group_count=2)
        return jnp.sum(jnp.square(out))

    return loss, w, jax.random.normal(keys[2], shape)


@pytest.mark.parametrize("layout", ["channels last", "channels first"])
def test_within_a_loop_every_convolution_is_in_the_quick_layout(layout):
    """As in the loop over the steps of a run, where XLA brings none into it."""
    loss, w, records = network(layout)

    def labels(method):
        def steps(w):
            def body(w, _):
                total = clipped_grad(loss, 1.0, method)(w, records).sum
                return jax.tree.map(lambda a, b: a - 0.1 * b, w, total), None

            return jax.lax.scan(body, w, None, length=3)[0]

        text = jax.jit(steps).lower(w).compile().as_text()
        found = re.findall(r" convolution\(.*?dim_labels=([^ ,]*)(.*)", text)
        assert found
        return [QUICK.fullmatch(label) and "group_count" not in rest for label, rest in found]

    assert all(labels("ghost"))
    assert not all(labels("vmap"))  # the test sees another layout where there is one


@pytest.mark.parametrize("layout", ["channels last", "channels first"])
@pytest.mark.at_length
def test_a_clipped_sum_is_that_of_copies(layout):
    loss, w, records = network(layout)
    ghost, copies = (clipped_grad(loss, 0.7, method)(w, records) for method in ("ghost", "vmap"))
    np.testing.assert_allclose(ghost.norms, copies.norms, rtol=1e-5)
    for ours, theirs in zip(ghost.sum, copies.sum, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_small_kernels_are_clipped_by_the_ghost_method_on_a_cpu(monkeypatch):
    """Their gradients per record are a convolution in groups there, many times as slow."""
    layout = LAYOUTS["channels last"]
    w, records = jnp.zeros((3, 3, 3, 16)), jnp.zeros((4, 32, 32, 3))

    def loss(w, x):
        return jnp.sum(jnp.tanh(convolved(x[None], w, layout))), ()

    assert methods.choose_clipping("auto", loss, w, records).method == "ghost"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert methods.choose_clipping("auto", loss, w, records).method == "vmap"
