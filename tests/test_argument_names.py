"""Arguments by other libraries' names are refused with ours, and by our own old ones accepted."""

from __future__ import annotations

import contextlib
import inspect
import io
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import _argument_names, correlation, erm, gradients, sampling, training, transforms
from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64

_STEP = acc.Gaussian(1.1)
_KEY = jax.random.key(0)


def _problem():
    return erm.logistic_regression(jnp.ones((4, 1)), jnp.array([0, 1, 0, 1]), l2=0.1)


# The call as a user of that library writes it, and what dpjax calls the argument.
_CALLS = {
    # dp_accounting
    "target_delta": (lambda: acc.epsilon(_STEP, target_delta=1e-5), "delta"),
    "target_epsilon": (lambda: acc.delta(_STEP, target_epsilon=1.0), "epsilon"),
    "count": (lambda: acc.Repeated(_STEP, count=5), "steps"),
    "event": (lambda: acc.Repeated(event=_STEP, steps=5), "mechanism"),
    "sampling_probability": (lambda: acc.PoissonSampled(_STEP, sampling_probability=0.1), "rate"),
    "neighboring_relation": (
        lambda: acc.epsilon(_STEP, 1e-5, neighboring_relation="add-remove"),
        "adjacency",
    ),
    "sample_size": (
        lambda: acc.FixedBatchSampled(_STEP, sample_size=5, population=10),
        "batch_size",
    ),
    "source_dataset_size": (
        lambda: acc.FixedBatchSampled(_STEP, batch_size=5, source_dataset_size=10),
        "population",
    ),
    "make_event_from_param": (
        lambda: acc.calibrate(make_event_from_param=acc.Gaussian, epsilon=1.0, delta=1e-5),
        "make_mechanism",
    ),
    "alphas": (lambda: acc.rdp(_STEP, alphas=[2.0]), "orders"),
    # jax_privacy
    "l2_clip_norm": (lambda: dpjax.clipped_grad(lambda w, x: w @ x, l2_clip_norm=1.0), "clip_norm"),
    "fun": (lambda: dpjax.clipped_grad(fun=lambda w, x: w @ x), "loss"),
    "prng_key": (lambda: transforms.gaussian_noise(noise_std=1.0, prng_key=_KEY), "key"),
    "sampling_prob": (lambda: sampling.poisson(_KEY, 0, population=9, sampling_prob=0.1), "rate"),
    # TensorFlow Privacy
    "l2_norm_clip": (lambda: transforms.clip_per_example(l2_norm_clip=1.0), "clip_norm"),
    "num_microbatches": (
        lambda: dpjax.clipped_grad(lambda w, x: w @ x, num_microbatches=4),
        "microbatch_size",
    ),
    # Opacus
    "max_grad_norm": (
        lambda: training.make_plan(9, delta=1e-3, batch_size=3, epochs=1, max_grad_norm=1.0),
        "clip_norm",
    ),
    "sample_rate": (lambda: acc.PoissonSampled(_STEP, sample_rate=0.1), "rate"),
    "noise_multiplier": (
        lambda: transforms.gaussian_noise(noise_multiplier=1.0, key=_KEY),
        "noise_std",
    ),
    "sigma": (lambda: acc.Gaussian(sigma=1.0), "noise_multiplier"),
    "data_loader": (lambda: training.fit(None, None, data_loader=1, plan=1, optimizer=1), "data"),
    "iterations": (
        lambda: erm.dp_gd(_problem(), _KEY, iterations=5, step_size=1.0, noise_multiplier=1.0),
        "steps",
    ),
}


@pytest.mark.parametrize("theirs", _CALLS)
def test_the_error_says_our_name(theirs):
    call, ours = _CALLS[theirs]
    with pytest.raises(TypeError, match=rf"'{theirs}': dpjax calls it '{ours}'"):
        call()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("C", "l2"), ("data_norm", "bounds"), ("max_iter", "solver_options")],
)
def test_the_estimators_know_the_names_of_diffprivlib(theirs, ours):
    estimators = pytest.importorskip("dpjax.estimators", exc_type=ImportError)
    with pytest.raises(TypeError, match=rf"'{theirs}': dpjax calls it '{ours}'"):
        estimators.DPLogisticRegression(**{theirs: 1.0})


def test_another_unit_is_said():
    with pytest.raises(TypeError, match="noise multiplier times clip norm"):
        transforms.gaussian_noise(noise_multiplier=1.0, key=_KEY)
    with pytest.raises(TypeError, match="not a number of pieces"):
        dpjax.clipped_grad(lambda w, x: w @ x, num_microbatches=4)


def test_errors_that_are_of_something_else_stay_as_they_are():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        acc.epsilon(_STEP, nonsense=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'delta'"):
        acc.epsilon(_STEP)
    with pytest.raises(TypeError, match="must be a mechanism"):
        acc.epsilon(3.0, delta=1e-5)
    # A name of the table that the function has itself is no mistake of the caller's.
    with pytest.raises(TypeError, match="the loss's own"):
        dpjax.clipped_grad(lambda *_: (_ for _ in ()).throw(TypeError("the loss's own")))(
            jnp.zeros(1), jnp.zeros((1, 1))
        )


def test_help_pickles_and_traces_see_what_they_saw():
    assert list(inspect.signature(acc.epsilon).parameters) == [
        "run",
        "delta",
        "adjacency",
        "method",
    ]
    assert list(inspect.signature(acc.Gaussian).parameters) == ["noise_multiplier"]
    assert list(inspect.signature(erm.dp_gd).parameters)[:3] == ["problem", "key", "steps"]
    assert pickle.loads(pickle.dumps(acc.epsilon)) is acc.epsilon
    assert pickle.loads(pickle.dumps(_STEP)) == _STEP
    with enable_x64():
        traced = jax.jit(lambda s: acc.epsilon(acc.Gaussian(s), 1e-5, method="rdp"))(1.1)
        assert float(traced) == pytest.approx(acc.epsilon(_STEP, 1e-5, method="rdp"), rel=1e-9)


def _taught():
    """Every public function and class that the table is shown to."""
    found = {}
    for package in dpjax._PACKAGES:
        module = pytest.importorskip(f"dpjax.{package}", exc_type=ImportError)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            inner = thing.__init__ if inspect.isclass(thing) else thing
            if (
                getattr(inner, "__code__", None)
                is _argument_names.suggests_argument_names(lambda: 0).__code__
            ):
                found[name] = inspect.signature(thing).parameters
    return found


def test_every_entry_of_the_table_is_of_use_and_no_function_hides_a_mistake():
    taught = _taught()
    assert len(taught) > 60
    for name, parameters in taught.items():
        kinds = [p.kind for p in parameters.values()]
        assert inspect.Parameter.VAR_KEYWORD not in kinds, f"{name} takes any name"
    for theirs, candidates in _argument_names.OURS.items():
        for ours in candidates:
            met = [n for n, p in taught.items() if ours in p and theirs not in p]
            assert met, f"nothing is called {ours!r} where {theirs!r} is said"
    for theirs, ours in _argument_names.UNITS:
        assert ours in _argument_names.OURS[theirs]


_ROWS = jnp.array([[3.0, 4.0], [0.3, 0.4], [1.0, -2.0], [0.0, 0.5]])
_WEIGHTS = jnp.array([0.5, -1.0])
_AUTOMATIC, _SQUARE_ROOT = gradients.Automatic(0.1), correlation.square_root(3)


def _loss(weights, row):
    return 0.5 * (row @ weights - 1.0) ** 2


def _plan(**given):
    return training.make_plan(4, noise_multiplier=2.0, delta=1e-5, steps=2, batch_size=2, **given)


def _update(chain, updates, **given):
    return chain.update(updates, chain.init(_WEIGHTS), **given)[0]


def _explained(rows, **clipping):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        dpjax.explain_clipping(_loss, _WEIGHTS, rows, **clipping)
    return said.getvalue()


def _trained(rows, **clipping):
    step = training.training_step(_loss, _WEIGHTS, _plan(), optimizer=optax.sgd(0.1), **clipping)
    return step.update(step.init(_WEIGHTS), rows, _KEY)[0]["params"]


def _weighted(rows, **clipping):
    chain = transforms.importance_mean(1.0, 0.0, 4, _KEY, **clipping)
    return _update(chain, rows, probabilities=jnp.full(4, 0.5), sensitivity=jnp.float32(1.0))


# What a function gives for the records, of an argument by whatever name; the value; whether the
# call can be traced.
_BY_OLD_NAMES = {
    ("clipped_grad", "strategy"): (
        lambda rows, **own: dpjax.clipped_grad(_loss, 1.0, **own)(_WEIGHTS, rows).sum,
        _AUTOMATIC,
        True,
    ),
    ("clip_and_sum", "strategy"): (
        lambda rows, **own: dpjax.clip_and_sum(lambda row: row, 1.0, **own)(rows).sum,
        _AUTOMATIC,
        True,
    ),
    ("explain_clipping", "strategy"): (_explained, _AUTOMATIC, False),
    ("clip_per_example", "strategy"): (
        lambda rows, **own: _update(transforms.clip_per_example(1.0, **own), rows),
        _AUTOMATIC,
        True,
    ),
    ("importance_mean", "strategy"): (_weighted, _AUTOMATIC, True),
    ("fit", "strategy"): (
        lambda rows, **own: (
            training.fit(
                _loss, _WEIGHTS, rows, _plan(), optimizer=optax.sgd(0.1), key=_KEY, **own
            ).params
        ),
        _AUTOMATIC,
        False,
    ),
    ("training_step", "strategy"): (_trained, _AUTOMATIC, True),
    ("make_plan", "strategy"): (
        lambda rows, **own: _plan(sampling="cyclic", **own).strategy.coefficients,
        _SQUARE_ROOT,
        False,
    ),
    ("correlated_noise", "strategy"): (
        lambda rows, **own: _update(
            transforms.correlated_noise(noise_std=0.5, key=_KEY, **own), rows[0]
        ),
        _SQUARE_ROOT,
        True,
    ),
    ("correlated_noise", "stddev"): (
        lambda rows, **own: _update(
            transforms.correlated_noise(_SQUARE_ROOT, key=_KEY, **own), rows[0]
        ),
        0.5,
        True,
    ),
    ("gaussian_noise", "stddev"): (
        lambda rows, **own: _update(transforms.gaussian_noise(key=_KEY, **own), rows[0]),
        0.5,
        True,
    ),
    ("discrete_gaussian", "stddev"): (
        lambda rows, **own: transforms.discrete_gaussian(_KEY, shape=(9,), **own),
        2.5,
        False,
    ),
}


def _renamed():
    """(function, old name) -> today's name, of every public function that accepts an old one."""
    found = {}
    for package in ["", *dpjax._PACKAGES]:
        module = pytest.importorskip(f"dpjax.{package}".strip("."), exc_type=ImportError)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                old = inspect.getclosurevars(thing).nonlocals.get("old", {})
                found |= {(name, theirs): ours for theirs, ours in old.items()}
    return found


@pytest.mark.parametrize(("function", "old"), _BY_OLD_NAMES)
def test_an_old_name_gives_the_same_with_a_warning_at_the_callers_line(function, old):
    renamed = _renamed()
    assert renamed.keys() == _BY_OLD_NAMES.keys()
    call, value, traced = _BY_OLD_NAMES[function, old]
    ours = renamed[function, old]
    for run in [call, jax.jit(call, static_argnames=(old, ours))] if traced else [call]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            by_old = run(_ROWS, **{old: value})
        own = [one for one in seen if issubclass(one.category, DeprecationWarning)]
        assert [str(one.message) for one in own] == [
            f"{function}() takes {old!r} as {ours!r} now: the old name will be refused in a later "
            "version"
        ]
        assert own[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            np.testing.assert_array_equal(by_old, run(_ROWS, **{ours: value}))
    with pytest.raises(TypeError, match=rf"{function}\(\) got '{ours}' twice: '{old}' is its old"):
        call(_ROWS, **{old: value, ours: value})


def test_an_old_name_beside_the_same_argument_by_position_is_refused():
    with pytest.raises(TypeError, match="got 'noise_std' twice: 'stddev' is its old name"):
        transforms.gaussian_noise(1.0, _KEY, stddev=1.0)
    with pytest.warns(DeprecationWarning, match="'strategy' as 'correlation' and 'stddev' as"):
        transforms.correlated_noise(strategy=_SQUARE_ROOT, stddev=1.0, key=_KEY)
    for thing in (transforms.correlated_noise, training.fit, training.make_plan):
        assert not {"strategy", "stddev"} & inspect.signature(thing).parameters.keys()


def test_what_was_compared_and_clipped_is_read_by_its_old_name():
    one = training.Compared("cyclic", _SQUARE_ROOT, 1.0, 0.5, _plan())
    with pytest.warns(DeprecationWarning, match="Compared.strategy is 'correlation' now") as seen:
        assert one.strategy is one.correlation is _SQUARE_ROOT
    own = [one for one in seen if issubclass(one.category, DeprecationWarning)]
    assert [one.filename for one in own] == [__file__]
    summed = dpjax.clipped_grad(_loss, 1.0, clipping=_AUTOMATIC)
    assert summed.strategy is summed.clipping is _AUTOMATIC
