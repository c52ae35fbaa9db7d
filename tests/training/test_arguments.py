"""What a run cannot do is refused by name before a step is taken."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from dpjax import training
from dpjax.training.options import check_optimizer

WHOLE = ("log_every", "capacity", "checkpoint_every")
FUNCTIONS = ("evaluate", "on_log", "stop_when", "average")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("bad", [0, -1, 1.5, float("nan")])
def test_numbers_that_count_are_whole_and_positive(name, bad, run):
    """`log_every=-1` used to return the parameters it was given, as trained ones."""
    with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1, got {bad}"):
        run(**{name: bad})


@pytest.mark.parametrize("name", [*WHOLE, "time_limit"])
@pytest.mark.parametrize("bad", ["2", True])
def test_other_kinds_are_refused(name, bad, run):
    with pytest.raises(TypeError, match=f"{name} must be a number .* got {bad!r}"):
        run(**{name: bad})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_cannot_be_called_is_refused_at_once(name, run):
    with pytest.raises(TypeError, match=f"{name} must be a function, got 3"):
        run(**{name: 3})


@pytest.mark.parametrize("bad", [0, "a", np.zeros(2), jax.random.split(jax.random.key(0), 2)])
def test_a_seed_or_several_keys_are_no_key(bad, run):
    with pytest.raises(TypeError, match="key must be one key, as"):
        run(key=bad)


def test_nothing_is_resumed_without_a_folder(run):
    """It used to begin anew, with nothing said."""
    with pytest.raises(ValueError, match="folder must be given with resume=True, got None"):
        run(folder=None, resume=True)


@pytest.mark.parametrize("name", ["step", "train_loss", "clipped", "memory"])
def test_evaluate_hides_no_value_of_the_row(name, run):
    """A "step" of its own used to keep `stop_when` from ever being asked."""
    with pytest.raises(ValueError, match="evaluate must return names other than"):
        run(evaluate=lambda w: {name: 0.0})


def test_values_of_evaluate_go_by_their_names(run):
    calls = []

    def evaluate(w):
        calls.append(len(calls))
        pair = [("a", 1.0), ("b", 2.0)]
        return dict(pair if len(calls) % 2 else pair[::-1])

    found = run(evaluate=evaluate).metrics
    assert set(found["a"]) == {1.0}
    assert set(found["b"]) == {2.0}


def test_evaluate_returns_the_same_names_at_every_row(run):
    calls = []

    def evaluate(w):
        calls.append(w)
        return {"a": 1.0, "b": 2.0} if len(calls) == 1 else {"a": 1.0}

    with pytest.raises(ValueError, match=r"evaluate must return \['a', 'b'\] at every row, got"):
        run(evaluate=evaluate, log_private_losses=False)


@pytest.mark.parametrize(
    "column",
    [
        np.array(["a", "b", "c", "d"]),
        np.array([1, "b", None, 2.0], object),
        np.array(["2020-01-01"] * 4, "datetime64[D]"),
    ],
    ids=["text", "objects", "dates"],
)
def test_records_that_are_no_numbers_are_refused_without_showing_them(column):
    plan = training.make_plan(4, noise_multiplier=1.0, delta=1e-5, steps=2, batch_size=2)
    options = {"optimizer": optax.sgd(0.1)}
    with pytest.raises(ValueError, match="data must be numbers, got") as error:
        training.fit(lambda w, x: w * x[0], np.ones(()), (column, np.ones(4)), plan, **options)
    assert not any(str(value) in str(error.value).split() for value in column)


def _line_search():
    return optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(5))


NEEDY = {
    "lbfgs": (optax.lbfgs, "the line search of lbfgs, .* the exact loss"),
    "line search": (_line_search, "scale_by_backtracking_linesearch, .* the exact loss"),
    "plateau": (optax.contrib.reduce_on_plateau, "reduce_on_plateau, .* value: the exact loss"),
    "polyak": (optax.polyak_sgd, "scale_by_polyak, .* value: the exact loss"),
    "momo": (optax.contrib.momo, "momo, .* value: the exact loss"),
    "sophia": (lambda: optax.contrib.sophia(0.1), "got contrib.sophia, .* obj_fn: the exact loss"),
    "sharpness": (
        lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True),
        "got one, which needs grad_fn: the exact loss",
    ),
    "injected lbfgs": (
        lambda: optax.inject_hyperparams(optax.lbfgs)(learning_rate=0.1),
        "the line search of lbfgs, .* the exact loss",
    ),
    "injected plateau": (
        lambda: optax.inject_hyperparams(optax.contrib.reduce_on_plateau)(factor=0.5),
        "reduce_on_plateau, .* value: the exact loss",
    ),
    "injected and asked": (
        lambda: optax.inject_hyperparams(lambda rate: optax.sgd(rate if rate > 0 else 0.1))(0.1),
        "one that looks at the value of a setting: .* static_args",
    ),
    "lookahead": (lambda: optax.lookahead(optax.sgd(0.1), 5, 0.5), "lookahead, .* fast optimiser"),
    "dpsgd": (
        lambda: optax.contrib.dpsgd(0.1, 1.0, 1.0, 0),
        "contrib.dpsgd.*, which needs the gradient of every record",
    ),
    "uncalled": (lambda: optax.sgd, r"called with its learning rate, sgd\(0.1\), got sgd"),
    "nothing": (lambda: None, r"such as optax.sgd\(0.1\), got None"),
    "text": (lambda: "sgd", r"such as optax.sgd\(0.1\), got 'sgd'"),
}


@pytest.mark.parametrize("taker", ["fit", "training_step"])
@pytest.mark.parametrize("name", NEEDY)
@pytest.mark.filterwarnings("ignore")
def test_an_optimiser_that_needs_more_than_updates_is_refused_by_name(name, taker, run):
    """They used to end in errors from within a trace, and `lookahead` in one about a tuple."""
    make, reason = NEEDY[name]
    plan = training.make_plan(6, noise_multiplier=1.0, delta=1e-5, steps=2, batch_size=2)
    takers = {
        "fit": lambda: run(optimizer=make(), folder=None),
        "training_step": lambda: training.training_step(
            lambda w, x: w @ x, np.ones(2), plan, optimizer=make()
        ),
    }
    with pytest.raises((TypeError, ValueError), match=f"optimizer must .*{reason}"):
        takers[taker]()


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.adamw(0.1),
        lambda: optax.lbfgs(linesearch=None),
        lambda: optax.MultiSteps(optax.sgd(0.1), 2),
        lambda: optax.contrib.schedule_free_sgd(0.1),
    ],
    ids=["adamw", "lbfgs without a search", "several steps", "schedule-free"],
)
def test_an_optimiser_that_needs_updates_alone_is_taken(make):
    check_optimizer(make(), {"w": np.ones(2, np.float32), "frozen": None})
