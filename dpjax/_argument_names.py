"""Arguments by the names that other libraries give them: the error says what dpjax calls them.

One table for Opacus, jax_privacy, TensorFlow Privacy, dp_accounting and diffprivlib. Functions and
classes are decorated with `suggests_argument_names`; a call that is right is passed on as it is.
Functions whose own arguments had other names before are decorated with `accepts_old_names` instead.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Container, Mapping
from typing import ParamSpec, TypeVar, overload

from dpjax._numerics.warning import OldNameWarning

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")
_Class = TypeVar("_Class", bound=type)

# What others call an argument of ours that it alone can be.
_THEIRS = {
    # budgets
    "delta": "target_delta dp_delta",
    "epsilon": "target_epsilon dp_epsilon pure_epsilon eps",
    "adjacency": "neighboring_relation neighbouring_relation relation",
    "method": "accountant make_fresh_accountant grad_sample_mode",
    "orders": "alphas alpha",
    "bounds": "bracket_interval bounds_X",
    "target_range": "bounds_y",
    # the run
    "steps": "count num_steps num_updates iterations num_iterations",
    "epochs": "num_epochs",
    "rate": "sampling_probability sampling_prob sample_rate sampling_rate probability q",
    "batch_size": "sample_size expected_batch_size lot_size",
    "population": "source_dataset_size dataset_size num_examples num_samples number_of_examples n",
    "capacity": "truncated_batch_size",
    "mechanisms": "events",
    "make_mechanism": "make_event_from_param",
    "sampling": "poisson_sampling",
    # clipping, noise and training
    "clip_norm": "l2_clip_norm l2_norm_clip clipping_norm max_grad_norm max_norm",
    "loss": "fun loss_fn",
    "microbatch_size": "num_microbatches",
    "key": "rng prng_key",
    "data": "data_loader dataset",
    "optimizer": "tx",
    "l2": "C",
    "noise_multiplier": "scale",
    "step_size": "learning_rate",
}
# Their name -> ours, the likeliest first; said is the first that the function has.
OURS: dict[str, tuple[str, ...]] = {
    **{theirs: (ours,) for ours, names in _THEIRS.items() for theirs in names.split()},
    "max_iter": ("steps", "solver_options"),
    "event": ("mechanism", "run"),
    "dp_event": ("run", "mechanism"),
    "noise_multiplier": ("stddev", "noise_std"),
    "sigma": ("noise_multiplier", "stddev", "noise_std"),
    "std": ("stddev", "noise_std", "noise_multiplier"),
    "stddev": ("noise_std", "noise_multiplier"),
    "standard_deviation": ("stddev", "noise_std", "noise_multiplier"),
    "noise_scale": ("stddev", "scale", "noise_multiplier", "noise_std"),
    "max_physical_batch_size": ("microbatch_size", "capacity"),
    "seed": ("key", "random_state"),
    "lr": ("learning_rate", "step_size"),
    "data_norm": ("feature_norm", "bounds"),
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


def complaint(name: str, wrong: str, known: Container[str]) -> str | None:
    """What is said of an argument that no function of dpjax takes; None if nothing is."""
    if wrong in REFUSED:
        return f"{name}() takes no {wrong!r}: {REFUSED[wrong]}"
    for ours in OURS.get(wrong, ()):  # the likeliest first
        if ours in known:
            unit = UNITS.get((wrong, ours))
            tail = f" ({unit})" if unit else ""
            return f"{name}() got {wrong!r}: dpjax calls it {ours!r}{tail}"
    return None


@overload
def suggests_argument_names(thing: _Class) -> _Class: ...
@overload
def suggests_argument_names(thing: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]: ...
def suggests_argument_names(thing: Callable[..., _Returned]) -> Callable[..., _Returned]:
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


def accepts_old_names(
    **renamed: str,
) -> Callable[[Callable[_Given, _Returned]], Callable[_Given, _Returned]]:
    """`suggests_argument_names` for a function that takes some arguments by old names too.

    The value goes to the argument of today's name as it is; a warning at the caller's line, one a
    call, says that name. The signature, and what is given by position, have today's names alone.

    Args:
        renamed: today's name by the old one, `accepts_old_names(stddev="noise_std")`.

    Raises:
        TypeError: from a call that gives an argument by both of its names.

    Example:
        >>> import warnings
        >>> @accepts_old_names(stddev="noise_std")
        ... def twice(noise_std):
        ...     return 2 * noise_std
        >>> with warnings.catch_warnings(record=True) as seen:
        ...     warnings.simplefilter("always")
        ...     twice(stddev=1.5)
        3.0
        >>> print(seen[0].message)
        twice() takes 'stddev' as 'noise_std' now: the old name will be refused in a later version
    """
    return lambda function: _with_suggestions(function, function.__name__, renamed)


def _with_suggestions(
    function: Callable[_Given, _Returned], name: str, renamed: Mapping[str, str] | None = None
) -> Callable[_Given, _Returned]:
    old = renamed or {}

    @functools.wraps(function)
    def call(*args: _Given.args, **keywords: _Given.kwargs) -> _Returned:
        if not old.keys().isdisjoint(keywords):
            by_position = list(inspect.signature(function).parameters)[: len(args)]
            _rename(keywords, old, name, by_position)
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


def _rename(
    keywords: dict[str, object], renamed: Mapping[str, str], name: str, by_position: Container[str]
) -> None:
    """Old names among a call's keywords to today's, in place, with a warning of all of them."""
    met = [old for old in renamed if old in keywords]
    for old in met:
        ours = renamed[old]
        if ours in keywords or ours in by_position:
            raise TypeError(f"{name}() got {ours!r} twice: {old!r} is its old name, leave that out")
        keywords[ours] = keywords.pop(old)
    said = " and ".join(f"{old!r} as {renamed[old]!r}" for old in met)
    warnings.warn(
        f"{name}() takes {said} now: the old name will be refused in a later version",
        OldNameWarning,
        stacklevel=3,  # the caller of the function, whose decorator stands between
    )
