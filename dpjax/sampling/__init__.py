"""Which records a training step sees.

Every sampler is a pure function of `(key, step)`, of random allocation `(key, epoch, step)`, with
static shapes: a batch is a vector of record indices and a mask that says which of its slots are
real. Re-running a step after a crash draws the same batch, and batches of any size share one
compilation.

The sampler that trains has to be the sampler that is priced: `poisson` belongs to
`accounting.PoissonSampled`, `truncated_poisson` to `accounting.TruncatedPoissonSampled`,
`random_allocation` to `accounting.RandomAllocation`, `fixed_batch` to
`accounting.FixedBatchSampled`, `with_replacement` to `accounting.WithReplacement`,
`cyclic_permutation` to `accounting.Shuffled`, and none of them may stand in for another.
"""

from dpjax.sampling.allocation import allocation_inclusion, random_allocation
from dpjax.sampling.batch import Batch
from dpjax.sampling.capacity import overflow_probability, poisson_capacity
from dpjax.sampling.cyclic import cyclic_permutation
from dpjax.sampling.fixed import fixed_batch
from dpjax.sampling.poisson import (
    inclusion_up_to as inclusion_up_to,
)
from dpjax.sampling.poisson import (
    largest_word as largest_word,
)
from dpjax.sampling.poisson import (
    poisson,
    poisson_inclusion,
    realised_rate,
)
from dpjax.sampling.replacement import with_replacement
from dpjax.sampling.truncated import truncated_poisson

__all__ = [
    "Batch",
    "allocation_inclusion",
    "cyclic_permutation",
    "fixed_batch",
    "overflow_probability",
    "poisson",
    "poisson_capacity",
    "poisson_inclusion",
    "random_allocation",
    "realised_rate",
    "truncated_poisson",
    "with_replacement",
]
