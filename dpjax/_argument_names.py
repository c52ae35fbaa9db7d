"""Arguments by the names that other libraries give them: the error says what dpjax calls them.

One table for Opacus, jax_privacy, TensorFlow Privacy, dp_accounting and diffprivlib. Functions and
classes are decorated with `suggests_argument_names`; a call that is right is passed on as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_Thing = TypeVar("_Thing", bound=Callable[..., Any])

# Their name -> ours, the likeliest first; said is the first that the function has.
OURS: dict[str, tuple[str, ...]] = {
    # budgets
    "target_delta": ("delta",),
    "dp_delta": ("delta",),
    "target_epsilon": ("epsilon",),
    "dp_epsilon": ("epsilon",),
    "pure_epsilon": ("epsilon",),
    "eps": ("epsilon",),
    "neighboring_relation": ("adjacency",),
    "neighbouring_relation": ("adjacency",),
    "relation": ("adjacency",),
    "accountant": ("method",),
    "make_fresh_accountant": ("method",),
    "alphas": ("orders",),
    "alpha": ("orders",),
    # the run
    "count": ("steps",),
    "num_steps": ("steps",),
    "num_updates": ("steps",),
    "iterations": ("steps",),
    "num_iterations": ("steps",),
    "max_iter": ("steps", "solver_options"),
    "num_epochs": ("epochs",),
    "sampling_probability": ("rate",),
    "sampling_prob": ("rate",),
    "sample_rate": ("rate",),
    "sampling_rate": ("rate",),
    "probability": ("rate",),
    "q": ("rate",),
    "sample_size": ("batch_size",),
    "expected_batch_size": ("batch_size",),
    "lot_size": ("batch_size",),
    "source_dataset_size": ("population",),
    "dataset_size": ("population",),
    "num_examples": ("population",),
    "num_samples": ("population",),
    "number_of_examples": ("population",),
    "n": ("population",),
    "truncated_batch_size": ("capacity",),
    "event": ("mechanism", "run"),
    "dp_event": ("run", "mechanism"),
    "events": ("mechanisms",),
    "make_event_from_param": ("make_mechanism",),
    "bracket_interval": ("bounds",),
    "poisson_sampling": ("sampling",),
    # clipping and noise
    "l2_clip_norm": ("clip_norm",),
    "l2_norm_clip": ("clip_norm",),
    "clipping_norm": ("clip_norm",),
    "max_grad_norm": ("clip_norm",),
    "max_norm": ("clip_norm",),
    "noise_multiplier": ("stddev", "noise_std"),
    "sigma": ("noise_multiplier", "stddev", "noise_std"),
    "std": ("stddev", "noise_std", "noise_multiplier"),
    "stddev": ("noise_std", "noise_multiplier"),
    "standard_deviation": ("stddev", "noise_std", "noise_multiplier"),
    "noise_scale": ("stddev", "scale", "noise_multiplier", "noise_std"),
    "scale": ("noise_multiplier",),
    "fun": ("loss",),
    "loss_fn": ("loss",),
    "grad_sample_mode": ("method",),
    "num_microbatches": ("microbatch_size",),
    "max_physical_batch_size": ("microbatch_size", "capacity"),
    "rng": ("key",),
    "prng_key": ("key",),
    "seed": ("key", "random_state"),
    # training and estimators
    "lr": ("learning_rate", "step_size"),
    "learning_rate": ("step_size",),
    "data_loader": ("data",),
    "dataset": ("data",),
    "tx": ("optimizer",),
    "C": ("l2",),
    "data_norm": ("feature_norm", "bounds"),
    "bounds_X": ("bounds",),
    "bounds_y": ("target_range",),
}
# Where the number itself is another one: (theirs, ours) -> what ours is.
UNITS: dict[tuple[str, str], str] = {
    ("C", "l2"): "weight of ½‖w‖² in the mean loss, 1 / (C · records)",
    ("num_microbatches", "microbatch_size"): "records at a time, not a number of pieces",
    ("poisson_sampling", "sampling"): 'one of several words, "poisson" unless told otherwise',
    ("data_norm", "bounds"): "a range of every column, public",
    ("max_iter", "solver_options"): 'a table, {"steps": …}',
    ("accountant", "method"): 'a bound by name, such as "rdp"; the tightest unless told otherwise',
    ("make_fresh_accountant", "method"): 'a bound by name, such as "rdp"',
    ("seed", "key"): "jax.random.key(seed), of a seed nobody can guess",
    ("noise_scale", "noise_multiplier"): "standard deviation (or scale) over sensitivity",
    ("scale", "noise_multiplier"): "scale over sensitivity",
    **{
        (theirs, ours): "noise multiplier times clip norm, in the units of the sum"
        for theirs in ("noise_multiplier", "sigma")
        for ours in ("stddev", "noise_std")
    },
    **{
        (theirs, "noise_multiplier"): "standard deviation over sensitivity (the clip norm)"
        for theirs in ("std", "stddev", "standard_deviation")
    },
}
# What no argument of dpjax stands for, and why.
_A_WEIGHT = (
    "a weighted record would count several times, so that what one record can change, and with it "
    "the noise, would follow the weight; leave weights out, or repeat rows and state "
    "UserLevel(…, records) for the copies"
)
REFUSED = {"sample_weight": _A_WEIGHT, "class_weight": _A_WEIGHT}


# What scikit-learn takes by position behind these.
_BEHIND: dict[tuple[str, ...], str] = {("self", "X", "y"): "sample_weight"}


def complaint(name: str, wrong: str, known: Any) -> str | None:
    """What is said of an argument that no function of dpjax takes; None if nothing is."""
    if wrong in REFUSED:
        return f"{name}() takes no {wrong!r}: {REFUSED[wrong]}"
    for ours in OURS.get(wrong, ()):  # the likeliest first
        if ours in known:
            unit = UNITS.get((wrong, ours))
            tail = f" ({unit})" if unit else ""
            return f"{name}() got {wrong!r}: dpjax calls it {ours!r}{tail}"
    return None


def suggests_argument_names(thing: _Thing) -> _Thing:
    """The function, or class, whose error about another library's argument name says our name.

    Args:
        thing: without `**keywords` of its own in its signature: those would take any name.

    Example:
        >>> @suggests_argument_names
        ... def spent(run, delta):
        ...     return delta
        >>> spent(None, target_delta=1e-5)
        Traceback (most recent call last):
        TypeError: spent() got 'target_delta': dpjax calls it 'delta'
    """
    if inspect.isclass(thing):
        setattr(thing, "__init__", _with_suggestions(thing.__init__, thing.__name__))  # noqa: B010
        return thing
    return _with_suggestions(thing, thing.__name__)


def _with_suggestions(function: Any, name: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            # Only now is it worth to look: what is right is never slowed down by this.
            known = inspect.signature(function).parameters
            behind = [_BEHIND.get(tuple(known), "")] if len(args) > len(known) else []
            for wrong in [*behind, *keywords]:
                if wrong not in known:
                    said = complaint(name, wrong, known)
                    if said is not None:
                        raise TypeError(said) from None
            raise

    return call
