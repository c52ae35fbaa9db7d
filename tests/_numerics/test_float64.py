"""Float64 evaluation under every trace, precision, transformation and thread."""

import contextlib
import threading

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._numerics.arrays import namespace
from dpjax._numerics.float64 import Derivative, Ladder, evaluate, is_traced
from dpjax._numerics.scope import ask_in_float64, enable_x64, narrow


def _core(x, y):
    return namespace(x, y).expm1(x) * y


def _vector_core(x):  # one setting: [m] -> (scalar, [m])
    xp = namespace(x)
    return xp.sum(x**2), xp.cumsum(x)


TINY = 1e-12  # expm1(1e-12) has no correct digit in float32


def test_concrete_results_are_numpy_float64_and_exact():
    value = evaluate(_core, (TINY, 2.0), (0, 0))
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, 2 * np.expm1(TINY), rtol=1e-15)


def test_same_with_x64_on_and_off_and_from_inside_a_trace():
    off = evaluate(_core, (0.3, 2.0), (0, 0))
    with enable_x64(True):
        on = evaluate(_core, (0.3, 2.0), (0, 0))
    seen = []

    @jax.jit
    def f(x):
        seen.append(evaluate(_core, (0.3, 2.0), (0, 0)))  # concrete, though inside a trace
        return x

    f(1.0)
    assert off == on == seen[0]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 3), (17,)])
def test_leading_axes_broadcast(shape):
    x = np.linspace(0.1, 1.0, int(np.prod(shape))).reshape(shape)
    got = evaluate(_core, (x, 2.0), (0, 0), batch=4)
    assert got.shape == shape
    np.testing.assert_allclose(got, 2 * np.expm1(x), rtol=1e-15)


def test_core_axes_stay_apart_from_the_sweep():
    x = np.arange(6.0).reshape(2, 3)
    total, running = evaluate(_vector_core, (x,), (1,))
    np.testing.assert_array_equal(total, (x**2).sum(-1))
    np.testing.assert_array_equal(running, x.cumsum(-1))


def test_jit_and_vmap_in_a_float32_program():
    x = jnp.linspace(0.1, 1.0, 5)
    want = 2 * np.expm1(np.asarray(x, np.float64))

    def f(v):
        return evaluate(_core, (v, 2.0), (0, 0), rounding="up")

    for got in (jax.jit(f)(x), jax.vmap(f)(x), jax.jit(jax.vmap(f))(x), jax.lax.map(f, x)):
        assert got.dtype == jnp.float32
        assert np.all(np.asarray(got, np.float64) >= want)  # rounded up
        np.testing.assert_allclose(got, want, rtol=2e-7)
    down = jax.jit(lambda v: evaluate(_core, (v, 2.0), (0, 0), rounding="down"))(x)
    assert np.all(np.asarray(down, np.float64) <= want)


def test_nested_vmap_over_different_arguments():
    x, y = jnp.linspace(0.1, 1.0, 3), jnp.linspace(1.0, 2.0, 4)

    def f(a, b):
        return evaluate(_core, (a, b), (0, 0))

    got = jax.vmap(jax.vmap(f, (None, 0)), (0, None))(x, y)
    np.testing.assert_allclose(got, np.expm1(x)[:, None] * np.asarray(y)[None], rtol=1e-6)


def test_derivatives_forward_reverse_and_second():
    def f(v):
        return evaluate(_core, (v, 2.0), (0, 0))

    x = 0.7
    want = 2 * np.exp(x)
    np.testing.assert_allclose(jax.grad(f)(x), want, rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(f)(x), want, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(f)))(x), want, rtol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(f))(jnp.array([0.7, 1.0])), 2 * np.exp([0.7, 1.0]), rtol=1e-6
    )
    with enable_x64(True):
        np.testing.assert_allclose(jax.grad(f)(x), want, rtol=1e-14)


def test_derivative_of_vector_cores():
    x = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    gradient = jax.grad(lambda v: evaluate(_vector_core, (v,), (1,))[0].sum())(x)
    np.testing.assert_allclose(gradient, 2 * x, rtol=1e-6)
    jacobian = jax.jacobian(lambda v: evaluate(_vector_core, (v,), (1,))[1])(x[0])
    np.testing.assert_allclose(jacobian, np.tril(np.ones((3, 3))), rtol=1e-6)


def test_integers_pass_under_a_trace():
    got = jax.jit(lambda n: evaluate(_core, (0.5, n), (0, 0)))(2**24 + 1)
    np.testing.assert_allclose(got, np.expm1(0.5) * (2**24 + 1), rtol=1e-7)


def test_one_compilation_per_shape():
    @chex.assert_max_traces(n=2)
    def core(x):
        return jnp.sin(x)

    for value in np.linspace(0, 1, 10):
        evaluate(core, (value,), (0,))
    for _ in range(3):
        evaluate(core, (np.linspace(0, 1, 10),), (0,))


def test_ladder_repeats_only_the_poor():
    seen = []

    def rough(x):
        xp = namespace(x)
        return x, xp.where(x > 2, 1.0, 0.0)

    def fine(x):
        seen.append(x.shape)
        return 10 * x, 0 * x

    ladder = Ladder((fine,), lambda out: out[1] > 0)
    value, _ = evaluate(rough, (np.arange(5.0),), (0,), batch=2, ladder=ladder)
    np.testing.assert_array_equal(value, [0, 1, 2, 30, 40])
    value, _ = evaluate(rough, (3.0,), (0,), ladder=ladder)
    assert value == 30
    seen.clear()
    evaluate(rough, (1.0,), (0,), ladder=ladder)
    assert not seen
    traced = jax.jit(lambda v: evaluate(rough, (v,), (0,), ladder=ladder)[0])(jnp.array([1.0, 3.0]))
    np.testing.assert_array_equal(traced, [1, 30])


@pytest.mark.parametrize("wide", [False, True])
def test_derivatives_are_those_of_the_core_that_answered_in_float64(wide):
    # 1 − cos x has no correct digit in float32 at 1e-5, nor has its derivative formed this way.
    def rough(x):
        xp = namespace(x)
        return 100.0 * x, xp.where(x < 1.0, 1.0, 0.0)

    def fine(x):
        xp = namespace(x)
        return (1.0 - xp.cos(x)) / x, 0 * x

    def slopes(core, slope):
        def both(x):
            out = core(x)
            return out, ((slope(x),), (0 * x,))

        return both

    def fine_slope(x):
        xp = namespace(x)
        return xp.sin(x) / x - (1.0 - xp.cos(x)) / x**2

    number = jax.ShapeDtypeStruct((), np.float64)
    ladder = Ladder((fine,), lambda out: out[1] > 0)
    derivative = Derivative(
        slopes(rough, lambda x: 100.0 + 0 * x),
        Ladder((slopes(fine, fine_slope),), lambda both: both[0][1] > 0),
        (number, number),
    )

    def price(x):
        return evaluate(rough, (x,), (0,), ladder=ladder, derivative=derivative)[0]

    with enable_x64(wide) if hasattr(jax, "enable_x64") else contextlib.nullcontext():
        for transform in (jax.grad(price), jax.jit(jax.grad(price)), jax.jacfwd(price)):
            np.testing.assert_allclose(transform(1e-3), 0.5, rtol=1e-6)  # (1 − cos x)/x ≈ x/2
            np.testing.assert_allclose(transform(3.0), 100.0, rtol=1e-6)
        both = jax.vmap(jax.grad(price))(jnp.array([1e-3, 3.0]))
        np.testing.assert_allclose(both, [0.5, 100.0], rtol=1e-6)
        with pytest.raises(NotImplementedError, match="once"):
            jax.grad(jax.grad(price))(3.0)
        with pytest.raises(NotImplementedError, match="derivative of its own"):
            jax.grad(lambda x: evaluate(rough, (x,), (0,), ladder=ladder)[0])(3.0)
        # the traced answer is the concrete one, up to the rounding of the result
        np.testing.assert_allclose(
            jax.jit(price)(1e-3),
            price(np.float64(np.float32(1e-3))) if not wide else price(1e-3),
            rtol=1e-7,
        )


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
def test_a_program_rounds_to_the_side_that_numpy_rounds_to(rounding):
    rng = np.random.default_rng(0)
    size = np.exp(rng.uniform(-87, 88, 2_000))
    x = np.concatenate([size, -size, [0.0, np.inf, -np.inf, np.nan, 1e39, -1e39, 1.0]])
    small = np.array([1e-39, -1e-39, 1e-45, -1e-45, 1e-60, -1e-60, 1e-300])
    with enable_x64():
        rounded = jax.jit(lambda v: narrow(v, np.float32, rounding))
        found, tiny = np.asarray(rounded(x)), np.asarray(rounded(small))
    np.testing.assert_array_equal(found, narrow(x, np.float32, rounding))
    # Below the least normal number: further out, or 0, on the same side.
    if rounding != "nearest":
        sign = 1 if rounding == "up" else -1
        assert np.all(sign * tiny.astype(np.float64) >= sign * small)
        least = np.finfo(np.float32).tiny
        assert np.all(np.isin(np.abs(tiny), [0, least]))


def test_operations_that_are_lowered_by_being_traced_anew_stand_in_a_float32_program():
    def operations(x):  # each fails to lower within `enable_x64` alone, or loses digits
        x = x.astype(np.float64) * 1e-12 + jnp.arange(3.0)[::-1]
        least = jnp.argmin(x) + 0.0 * x[0]
        found = (jnp.cumsum(x)[-1] - 3.0) * 1e12 + least + jnp.argsort(x)[0]
        return [found.astype(np.float32)]

    number = jax.ShapeDtypeStruct((), np.float32)

    def ask(x):
        return ask_in_float64(lambda x: [np.full(x.shape, -1.0)], operations, [number], (x,))[0]

    exported = jax.export.export(jax.jit(ask), platforms=("cpu", "cuda", "tpu"))(number)
    assert exported.call(2.0) == pytest.approx(6.0 + 2 + 2, rel=1e-3)
    assert jax.jit(ask)(2.0) == ask(jnp.float32(2.0)) == -1.0  # on a CPU the host is asked


def test_a_ladder_within_a_program_repeats_the_poor():
    def rough(x):
        xp = namespace(x)
        return x, xp.where(x > 2, 1.0, 0.0)

    ladder = Ladder((lambda x: (10 * x, 0 * x),), lambda out: out[1] > 0)

    def ask(v):
        return evaluate(rough, (v,), (0,), batch=2, ladder=ladder)[0]

    for shape in ((), (5,)):
        exported = jax.export.export(jax.jit(ask))(jax.ShapeDtypeStruct(shape, np.float32))
        values = jnp.arange(5.0) if shape else jnp.float32(3.0)
        want = [0, 1, 2, 30, 40] if shape else 30
        np.testing.assert_array_equal(exported.call(values), want)


def test_threads_agree_and_callers_keep_their_precision():
    def core(x):
        return namespace(x).expm1(x)

    want = evaluate(core, (0.3,), (0,))
    results = []

    def work():
        results.append(evaluate(core, (0.3,), (0,)))
        results.append(np.asarray(jnp.ones(()).dtype == jnp.float32))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 16
    assert all(r in (want, True) for r in results)


def test_is_traced():
    assert not is_traced(1.0, np.ones(2), None)
    assert jax.eval_shape(lambda x: jnp.asarray(is_traced((x,))), 1.0).shape == ()


class TestSweeps:
    """Blocks, threads and padding change nothing but the time."""

    @pytest.mark.parametrize("size", [2, 49, 64, 65, 129, 300])
    def test_every_size_gives_every_setting_its_own_answer(self, size):
        x, y = np.linspace(0.1, 1.0, size), 3.0

        def core(x, y):
            xp = namespace(x, y)
            return xp.expm1(x) * y, x + xp.arange(2.0)

        got = evaluate(core, (x, y), (0, 0), batch=4)
        np.testing.assert_allclose(got[0], 3 * np.expm1(x), rtol=1e-14)
        np.testing.assert_array_equal(got[1], x[:, None] + np.arange(2.0))

    def test_axes_of_one_are_shared(self):
        x, y, z = np.arange(60.0).reshape(1, 60), np.arange(4.0).reshape(4, 1), np.ones((1, 1, 3))
        got = evaluate(lambda x, y, z: x + 100 * y + z.sum(), (x, y, z), (0, 0, 1))
        np.testing.assert_array_equal(got, x + 100 * y + 3)
        alone = evaluate(lambda z: z.sum(), (z,), (1,))
        assert alone.shape == (1, 1)

    def test_large_sweeps_compile_one_block(self):
        @chex.assert_max_traces(n=1)
        def core(x):
            return namespace(x).sqrt(x)

        for size in (1_000, 1_001, 2_345):
            x = np.arange(float(size))
            np.testing.assert_allclose(evaluate(core, (x,), (0,)), np.sqrt(x), rtol=1e-15)

    def test_only_the_poor_are_repeated(self):
        asked = []

        def poor(out):
            asked.append(out.shape)
            return out < 0

        ladder = Ladder((lambda x: x + 1000.0,), poor)
        x = np.arange(500.0) - 100.0
        got = evaluate(lambda x: x, (x,), (0,), ladder=ladder)
        np.testing.assert_array_equal(got, np.where(x < 0, x + 1000.0, x))
        assert asked == [(500,)]


def test_a_core_written_against_jax_numpy_is_float64_for_one_setting_too():
    def core(x):
        return jnp.log(x) + jnp.zeros(())

    assert evaluate(core, [3.0], [0]) == pytest.approx(np.log(3.0), rel=1e-15)
