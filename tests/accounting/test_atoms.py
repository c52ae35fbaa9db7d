"""From mechanisms to atoms: what is grouped, counted, and with which displacement."""

import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics import float64
from dpjax.accounting.pairs import atoms as pair_atoms
from dpjax.accounting.pairs.stacked import flatten_run

ADD, REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE


def atoms(run, adjacency=ADD):
    ready = flatten_run(run)
    with float64.float64_scope():
        return pair_atoms.atoms(ready.key, adjacency, ready.leaves)


def rows(steps):
    """(μ, rate, count) of the steps that are not padding, sorted."""
    table = np.stack([np.asarray(v, float) for v in steps], axis=-1)
    return sorted(map(tuple, table[table[:, 2] > 0].round(12)))


def sampled(sigma, rate=0.01):
    return acc.PoissonSampled(acc.Gaussian(sigma), rate)


def test_plain_gaussians_add_their_squares():
    run = acc.Composed((acc.Repeated(acc.Gaussian(2.0), 3), acc.Shuffled(acc.Gaussian(4.0), 10)))
    for adjacency, factor in ((ADD, 1.0), (REPLACE, 4.0)):
        found = atoms(run, adjacency)
        assert float(found.gaussian_mu2) == pytest.approx(factor * (3 / 4 + 1 / 16))
        assert found.sampled == {}


def test_equal_steps_are_one_row_however_nested():
    run = acc.Composed(
        (
            acc.Repeated(acc.Repeated(sampled(2.0), 3), 5),
            sampled(4.0),
            acc.Repeated(acc.Composed((sampled(2.0), sampled(4.0, 0.5))), 2),
        )
    )
    assert rows(atoms(run).sampled["poisson"]) == [
        (0.25, 0.01, 1.0),
        (0.25, 0.5, 2.0),
        (0.5, 0.01, 17.0),
    ]


def test_distinct_steps_are_padded_to_a_power_of_two_with_count_zero():
    run = acc.Composed(tuple(sampled(1.0 + k) for k in range(5)))
    steps = atoms(run).sampled["poisson"]
    assert steps.count.shape == (8,)
    assert np.sum(np.asarray(steps.count)) == 5.0
    assert len(rows(steps)) == 5


def test_nothing_is_merged_that_differs():
    close = np.nextafter(2.0, 3.0)
    steps = atoms(acc.Composed((sampled(2.0), sampled(float(close))))).sampled["poisson"]
    assert sorted(np.asarray(steps.count)) == [1.0, 1.0]


def test_displacements_by_adjacency():
    assert rows(atoms(sampled(2.0), ADD).sampled["poisson"]) == [(0.5, 0.01, 1.0)]
    # Poisson, replace-one: the two means lie at ±1/σ, and the pair knows it
    assert rows(atoms(sampled(2.0), REPLACE).sampled["poisson"]) == [(0.5, 0.01, 1.0)]
    fixed = acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(2.0), 3, 12), 4)
    found = atoms(fixed, REPLACE)
    assert rows(found.sampled["fixed"]) == [(1.0, 0.25, 4.0)]
    assert set(found.sampled) == {"fixed"}


def test_sampling_of_a_sample_and_of_a_composition():
    twice = acc.PoissonSampled(sampled(2.0, 0.1), 0.2)
    assert rows(atoms(twice).sampled["poisson"]) == [(0.5, 0.02, 1.0)]
    both = acc.PoissonSampled(acc.Composed((acc.Gaussian(1.0), acc.Gaussian(2.0))), 0.1)
    assert rows(atoms(both).sampled["poisson"]) == [(round(float(np.sqrt(1.25)), 12), 0.1, 1.0)]


def test_all_kinds_in_one_run():
    run = acc.Composed(
        (acc.Gaussian(1.0), sampled(2.0), acc.FixedBatchSampled(acc.Gaussian(4.0), 1, 10))
    )
    found = atoms(run, REPLACE)
    assert float(found.gaussian_mu2) == 4.0
    assert rows(found.sampled["poisson"]) == [(0.5, 0.01, 1.0)]
    assert rows(found.sampled["fixed"]) == [(0.5, 0.1, 1.0)]
    assert not pair_atoms.is_gaussian_family(
        run, ADD
    )  # fixed batches do not survive adding a record


def test_no_steps_release_nothing():
    assert float(atoms(acc.Repeated(acc.Gaussian(1.0), 0)).gaussian_mu2) == 0.0
    assert float(atoms(acc.Composed(())).gaussian_mu2) == 0.0
    assert acc.epsilon(acc.Repeated(acc.Gaussian(0.0), 0), 1e-5) == 0.0  # also without noise


@pytest.mark.parametrize(
    ("run", "adjacency"),
    [
        (acc.FixedBatchSampled(acc.Gaussian(1.0), 1, 10), ADD),
        (acc.PoissonSampled(acc.Shuffled(acc.Gaussian(1.0), 4), 0.1), ADD),
        (acc.PoissonSampled(acc.Repeated(sampled(1.0), 2), 0.1), ADD),
        (acc.Shuffled(sampled(1.0), 4), ADD),
        (acc.UniformBall(0.1, 10), ADD),
    ],
)
def test_what_has_no_atoms_is_refused(run, adjacency):
    with pytest.raises(acc.UnsupportedQuery):
        pair_atoms.check_gaussian_family(run, adjacency)


def test_finer_cores_answer_only_where_the_first_is_poor():
    run = acc.Gaussian(np.array([1.0, 2.0, 4.0]))
    found = pair_atoms.query(
        lambda atoms, adjacency: -atoms.gaussian_mu2,
        run,
        ADD,
        ladder=float64.Ladder(
            cores=(lambda atoms, adjacency: 2.0 * atoms.gaussian_mu2,),
            poor=lambda out: out < -0.2,
            merge=lambda old, new: old + 10.0 * new,
        ),
    )
    np.testing.assert_allclose(found, [-1 + 20, -0.25 + 5, -0.0625])
