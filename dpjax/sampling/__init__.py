"""Which records a training step sees.

Every sampler is a pure function of `(key, step)`, of random allocation `(key, epoch, step)`, with
static shapes: a batch is a vector of record indices and a mask that says which of its slots are
real. Re-running a step after a crash draws the same batch, and batches of any size share one
compilation. The sampler that trains has to be the one that is priced: each names its mechanism of
`dpjax.accounting`, and none may stand in for another.
"""

from dpjax.sampling.contributions import bound_contributions
from dpjax.sampling.min_separated import min_separated_inclusion
from dpjax.sampling.samplers import (
    Batch,
    allocation_inclusion,
    cyclic_permutation,
    fixed_batch,
    overflow_probability,
    poisson,
    poisson_capacity,
    poisson_inclusion,
    random_allocation,
    realised_rate,
    truncated_poisson,
    with_replacement,
)
from dpjax.sampling.samplers import inclusion_up_to as inclusion_up_to
from dpjax.sampling.samplers import largest_word as largest_word

__all__ = [
    "Batch",
    "allocation_inclusion",
    "bound_contributions",
    "cyclic_permutation",
    "fixed_batch",
    "min_separated_inclusion",
    "overflow_probability",
    "poisson",
    "poisson_capacity",
    "poisson_inclusion",
    "random_allocation",
    "realised_rate",
    "truncated_poisson",
    "with_replacement",
]
