"""Arguments by other libraries' names are refused with ours, and nothing else changes."""

from __future__ import annotations

import inspect
import pickle

import jax
import jax.numpy as jnp
import pytest

import dpjax
from dpjax import _argument_names, erm, sampling, training, transforms
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
    "prng_key": (lambda: transforms.gaussian_noise(stddev=1.0, prng_key=_KEY), "key"),
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
        "stddev",
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
