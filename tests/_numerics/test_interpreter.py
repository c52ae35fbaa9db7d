"""The interpreter: every primitive and loop against JAX, the accountant's cores against XLA."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics import concrete, float64, interpreter
from dpjax._numerics.interpreter import Interpreted
from dpjax.accounting.randomized_sensitivity import permuted_sgd

X = np.array([[0.3, -1.2, 2.5], [0.7, 0.1, -0.4]])
Y = np.array([[1.5, 0.2, -0.3], [2.0, 0.9, 0.6]])
POSITIVE = np.array([0.2, 0.9, 3.7])
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-300, 800.0, -800.0])


def _by_both(function, *args):
    with jax.enable_x64(True):
        traced = jax.jit(function).trace(*args)
        return Interpreted(traced)(*map(np.asarray, args)), jax.jit(function)(*args)


def _same(function, *args):
    ours, theirs = _by_both(function, *args)
    chex.assert_trees_all_equal_shapes_and_dtypes(ours, jax.tree.map(np.asarray, theirs))
    chex.assert_trees_all_close(ours, theirs, rtol=1e-14, atol=1e-300)


@pytest.fixture
def no_jax(monkeypatch):
    """Fail where an equation is left to JAX."""

    def refuse(eqn, values):
        raise AssertionError(f"no rule for {eqn.primitive.name}")

    monkeypatch.setattr(interpreter, "_by_jax", refuse)


@pytest.mark.parametrize("name", ["exp", "log", "expm1", "sqrt", "cbrt", "tanh", "sin", "cos"])
def test_functions_of_one_number(no_jax, name):
    function = getattr(jnp, name)
    _same(function, np.abs(X) if name in ("log", "sqrt") else X)
    if name not in ("sin", "cos"):  # of ∞ there is none
        _same(function, SPECIAL[[0, 1, 3, 5]])


@pytest.mark.parametrize("name", ["exp2", "tan", "sinh", "cosh", "arcsinh", "log1p"])
def test_functions_that_xla_rounds_worse(no_jax, name):
    ours, theirs = _by_both(getattr(jnp, name), X)
    np.testing.assert_allclose(ours, theirs, rtol=3e-14)
    assert np.isnan(_by_both(getattr(jnp, name), SPECIAL[:1])[0])


@pytest.mark.parametrize("name", ["floor", "ceil", "sign", "square", "negative", "abs"])
@pytest.mark.parametrize("values", [X, SPECIAL])
def test_exact_functions_of_one_number(no_jax, name, values):
    _same(getattr(jnp, name), values)
    _same(lambda x: (jnp.isfinite(x), jnp.isnan(x)), values)


BINARY = "add subtract multiply divide maximum minimum arctan2 equal not_equal less less_equal "


@pytest.mark.parametrize("name", (BINARY + "greater greater_equal nextafter logaddexp").split())
def test_functions_of_two_numbers(no_jax, name):
    _same(getattr(jnp, name), X, Y)
    _same(getattr(jnp, name), SPECIAL, np.array([2.0, 2.0, 0.0, 3.0, 7.0, np.inf, np.nan]))


@pytest.mark.parametrize("name", ["erf", "erfc", "gammaln", "digamma", "log_ndtr", "ndtri"])
def test_special_functions(no_jax, name):
    ours, theirs = _by_both(getattr(jax.scipy.special, name), POSITIVE / 4.0)
    np.testing.assert_allclose(ours, theirs, rtol=1e-13)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x**3 + x**-2 + jnp.abs(x) ** 0.5,
        lambda x: jnp.clip(x, -0.3, 1.0),
        lambda x: jax.lax.clamp(-0.3, x, 1.0),
        lambda x: jax.lax.rsqrt(jnp.abs(x)),
        lambda x: jnp.where((x > 0) & ~(x > 1) | (x < -1), x, 2.0),
        lambda x: jax.lax.select_n((x > 0).astype(int), x, -x),
        lambda x: jax.lax.stop_gradient(x).astype(np.float32),
        lambda x: x[:, ::-1].T.reshape(3, 2, 1)[::2, :, 0],
        lambda x: jnp.pad(x, ((1, 0), (0, 2)), constant_values=7.0),
        lambda x: jnp.concatenate([x, jnp.ones((1, 3))]) + jnp.arange(3.0)[None],
        lambda x: jnp.stack([x, 2 * x], axis=1),
        lambda x: jnp.expand_dims(x, (0, 2)).squeeze(0),
        lambda x: jnp.broadcast_to(x[:, None], (2, 4, 3)),
        lambda x: jax.lax.broadcasted_iota(int, x.shape, 1),
        lambda x: jax.lax.optimization_barrier((x, 2 * x)),
        lambda x: (x.sum(1), x.max(0), x.min(), x.prod(1), (x > 0).any(1), (x > 0).all(0)),
        lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(x)),
        lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), jax.lax.cummax(x, axis=1, reverse=True)),
        lambda x: (jax.lax.cummin(x, axis=0), jax.lax.cumlogsumexp(x, axis=1, reverse=True)),
        lambda x: jnp.sort(x, axis=1),
    ],
)
def test_shapes_choices_and_sums(no_jax, function):
    _same(function, X)


@pytest.mark.parametrize(
    "formula", ["ij,kj->ik", "ij,ij->i", "ij,ij->", "ij,kl->ijkl", "ij,kj->jik", "ij,j->i"]
)
def test_products(no_jax, formula):
    _same(functools.partial(jnp.einsum, formula), X, Y[0] if formula == "ij,j->i" else Y)


@pytest.mark.parametrize("index", [0, 1, -1, 2, 7, -9])
@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_lookups(no_jax, index, mode):
    if mode == "promise_in_bounds" and index not in (0, 1):
        return
    at = np.array(index)
    _same(lambda x, i: x.at[i].get(mode=mode), X, at)
    _same(lambda x, i: x.at[:, i].get(mode=mode), X.T, at)
    _same(lambda x, i: x.at[[0, 1], i].get(mode=mode), X.T, at)
    _same(lambda x, i: jax.vmap(lambda row: row.at[i].get(mode=mode))(x), X.T, at)
    both = np.stack([at, np.zeros_like(at), at])
    _same(lambda x, i: jax.vmap(lambda row, j: row.at[j].get(mode=mode))(x, i), X.T, both)
    _same(lambda x, i: jnp.take_along_axis(x, i[:, None], 1, mode=mode), X.T, both)


@pytest.mark.parametrize("start", [0, 1, -1, 5])
def test_windows_are_moved_inside(no_jax, start):
    _same(lambda x, i: jax.lax.dynamic_slice(x, (0, i), (2, 2)), X, np.array(start))
    _same(
        lambda x, i: jax.lax.dynamic_update_slice(x, jnp.ones((1, 2)), (i, 0)), X, np.array(start)
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_scans(no_jax, reverse, length):
    def function(x, rows):
        step = lambda c, row: (c * row + 1, (c, row))  # noqa: E731
        return jax.lax.scan(step, x, rows, reverse=reverse)

    _same(function, np.array(0.5), np.linspace(1.0, 2.0, length))


def test_loops_branches_and_calls(no_jax):
    @jax.custom_jvp
    def triple(x):
        return 3 * x

    triple.defjvp(lambda x, dx: (triple(x[0]), 5 * dx[0]))

    def function(x, n):
        last = jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.5), (0, x))
        total = jax.lax.fori_loop(0, n, lambda i, s: s + i * x, x)
        return last, total, jax.lax.cond(n > 3, triple, jnp.sin, x), jax.checkpoint(jnp.cos)(x)

    _same(function, np.array(0.7), np.array(5))
    _same(function, np.array(0.7), np.array(2))
    _same(jax.grad(triple), np.array(0.7))


def test_what_has_no_rule_is_left_to_jax():
    _same(lambda x: x.at[0, 1].set(9.0), X)
    _same(lambda x: jnp.fft.rfft(x[0]), X)
    _same(lambda i: (i // 2, jax.lax.div(i, 3)), np.array(-7))


def test_loops_are_counted_as_work():
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, s: 2 * s + x, x)).trace(1.0)
    assert 100 <= Interpreted(loop).work <= 250


def _question(method, run, **adjacency):
    return lambda: acc.epsilon(run, 1e-5, method=method, **adjacency)


_POISSON = acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.9), 0.02), 300)
_FIXED = acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(2.0), 50, 1_000), 20)
_REPLACE = {"adjacency": acc.Adjacency.REPLACE_ONE}
_MIXED = acc.Composed((acc.Gaussian(7.0), _POISSON, acc.PoissonSampled(acc.Gaussian(1.3), 0.1)))
_SGD = {"epochs": 10, "step_size": 1.0, "smoothness": 0.251, "strong_convexity": 1e-3}
QUESTIONS = {
    "rdp": _question("rdp", _POISSON),
    "rdp, mixed": _question("rdp", _MIXED),
    "rdp, replace": _question("rdp", _POISSON, **_REPLACE),
    "contour": _question("contour", _POISSON),
    "contour, mixed": _question("contour", _MIXED),
    "contour, replace": _question("contour", _POISSON, **_REPLACE),
    "contour, fixed": _question("contour", _FIXED, **_REPLACE),
    "gdp": _question("best", acc.Repeated(acc.Gaussian(5.0), 40)),
    "delta": lambda: acc.delta(_POISSON, 1.0, method="contour"),
    "randomized sensitivity": _question("best", permuted_sgd([40] * 9 + [33], 0.144, **_SGD)),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_accountant_says_the_same_interpreted_and_compiled(monkeypatch, name):
    monkeypatch.setattr(concrete, "_LONG", float("inf"))
    monkeypatch.setattr(concrete, "_PATIENCE", float("inf"))
    interpreted = QUESTIONS[name]()
    monkeypatch.setattr(concrete, "_PATIENCE", 0)
    compiled = QUESTIONS[name]()
    assert 0 < compiled < np.inf
    np.testing.assert_allclose(interpreted, compiled, rtol=1e-11)


def test_a_question_is_traced_once_and_compiled_when_it_is_asked_often():
    @chex.assert_max_traces(n=1)
    def core(x):
        return jnp.expm1(x)

    asked = [float64.evaluate(core, [0.1 * i], [0]) for i in range(2 * concrete._PATIENCE)]
    np.testing.assert_allclose(asked, np.expm1(0.1 * np.arange(len(asked))), rtol=1e-15)
    assert len(concrete.program(core, (0,), 8)._compiled) == 1
