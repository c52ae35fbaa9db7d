"""An argument of a kind that none is allowed to be is refused by its name, with what was given."""

from __future__ import annotations

import inspect

import jax
import pytest

from dpjax import correlation, sampling

_WORK = correlation.Workload(6)
_TOEPLITZ, _INVERSE = correlation.square_root(2), correlation.inverse_square_root(2)
_BUFFERED = correlation.BufferedToeplitz((0.5,), (0.25,))
_BANDED = correlation.Banded(((0.6, 0.8), (0.6, 0.8), (1.0, 0.0)))
_TREE = correlation.Tree()
_USES = {"steps": 3, "separation": 2, "participations": 1}
_DRAWN = {"key": jax.random.key(0), "step": 1, "population": 6}
_TUNED = {"separation": 3, "participations": 2, "kind": "mean"}
_SEARCHES = {
    correlation.banded_toeplitz: "bands",
    correlation.banded_inverse: "bands",
    correlation.buffered_toeplitz: "buffers",
}
# What is called, and arguments that it takes.
_CALLS = [
    (correlation.Workload, {"steps": 3, "momentum": 0.5, "rates": (1.0, 1.0, 1.0)}),
    (correlation.Toeplitz, {"coefficients": (1.0,)}),
    (correlation.BandedInverse, {"inverse_coefficients": (1.0,)}),
    (correlation.BufferedToeplitz, {"decays": (0.5,), "weights": (0.5,)}),
    (correlation.Banded, {"columns": ((1.0,),)}),
    (correlation.square_root, {"bands": 2}),
    (correlation.inverse_square_root, {"bands": 2}),
    (correlation.fixed_epochs, {"epochs": 2, "workload": _WORK}),
    (correlation.column_normalised, {"bands": 2, "steps": 3}),
    (correlation.column_normalised, {"bands": 2, "workload": _WORK}),
    *((f, {size: 2, "steps": 6, **_TUNED}) for f, size in _SEARCHES.items()),
    *((f, {size: 2, "workload": _WORK}) for f, size in _SEARCHES.items()),
    (_WORK.errors, {"strategy": _TOEPLITZ}),
    (_WORK.error, {"strategy": _TOEPLITZ, **_TUNED}),
    *((one.sensitivity, _USES) for one in (_TOEPLITZ, _INVERSE, _BUFFERED, _BANDED, _TREE)),
    *((one.sensitivities, _USES) for one in (_BANDED, _TREE)),
    (_BANDED.cyclic_sensitivities, _USES),
    (_BANDED.inverse_row, {"step": 1}),
    *((one.matrix, {"steps": 3}) for one in (_TOEPLITZ, _INVERSE, _BUFFERED, _BANDED, _TREE)),
    *((one.inverse, {"steps": 3}) for one in (_TOEPLITZ, _INVERSE, _BUFFERED)),
    *((one.column, {"steps": 3}) for one in (_INVERSE, _BUFFERED)),
    (sampling.bound_contributions, {"owners": [["ann"]], "most": 1}),
    (sampling.realised_rate, {"rate": 0.5}),
    (sampling.overflow_probability, {"population": 9, "rate": 0.5, "capacity": 5}),
    (
        sampling.poisson_capacity,
        {"population": 9, "rate": 0.5, "steps": 2, "delta": 1e-3, "epsilon": 1.0},
    ),
    *(
        (draw, {**_DRAWN, "batch_size": 2})
        for draw in (sampling.fixed_batch, sampling.with_replacement, sampling.cyclic_permutation)
    ),
    (sampling.poisson_inclusion, {**_DRAWN, "rate": 0.5}),
    (sampling.poisson, {**_DRAWN, "rate": 0.5, "capacity": 5}),
    (sampling.truncated_poisson, {**_DRAWN, "rate": 0.5, "capacity": 5}),
    (sampling.min_separated_inclusion, {**_DRAWN, "rate": 0.25, "separation": 2}),
    (sampling.random_allocation, {**_DRAWN, "epoch": 0, "steps": 3, "chosen": 1, "capacity": 5}),
    (sampling.allocation_inclusion, {**_DRAWN, "epoch": 0, "steps": 3, "chosen": 1}),
]


def test_every_function_of_both_packages_is_listed():
    known = {call for call, _ in _CALLS} | {sampling.Batch, correlation.Tree, correlation.identity}
    for package in (correlation, sampling):
        assert known >= {getattr(package, name) for name in package.__all__}


@pytest.mark.parametrize("wrong", [None, "x", [[["x"]]], object()], ids=["None", "x", "[]", "?"])
@pytest.mark.parametrize(
    ("call", "given", "name"),
    [
        pytest.param(call, given, name, id=f"{call.__qualname__}-{name}-{'-'.join(given)}")
        for call, given in _CALLS
        for name in given
    ],
)
def test_an_argument_of_a_wrong_kind_is_refused_by_its_name(call, given, name, wrong):
    if wrong is None and inspect.signature(call).parameters[name].default is None:
        return  # left out
    with pytest.raises((TypeError, ValueError), match=rf"^{name} must be .*, got ") as refused:
        call(**{**given, name: wrong})
    assert ("x" if isinstance(wrong, list) else repr(wrong)) in str(refused.value)


def test_columns_are_rows_of_numbers_and_owners_persons():
    with pytest.raises(ValueError, match="columns must be one tuple of numbers a step, got"):
        correlation.Banded((1.0, 2.0))
    with pytest.raises(TypeError, match="columns must be one tuple of numbers a step, got None"):
        correlation.Banded(None)
    with pytest.raises(TypeError, match=r"owners must be a collection of persons .* got None"):
        sampling.bound_contributions(None, 1)
    with pytest.raises(TypeError, match=r"owners must be persons .* got \[\['x'\]\] for record 0"):
        sampling.bound_contributions([[["x"]]], 1)
    with pytest.raises(TypeError, match=r"workload must be a dpjax.correlation.Workload, got None"):
        correlation.fixed_epochs(2, workload=None)
