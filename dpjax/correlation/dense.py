"""The matrix of least error for records that return in every epoch, as often and at the same place.

Where the steps that a record enters are known, b, 2b, … apart, columns of one record can be made
orthogonal although they overlap, as no band can.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from dpjax._numerics.checks import Range, one_number
from dpjax._numerics.scope import float64_scope
from dpjax.correlation.banded import Banded
from dpjax.correlation.workload import Workload, check_workload

_SEARCH = 1000  # steps at most
_LITTLE = 1e-10  # of the error, less than which a step must gain for the search to end


def fixed_epochs(epochs: int, *, workload: Workload) -> Banded:
    """The full lower-triangular matrix of least mean error for so many epochs in one order.

    The logarithm of tr(A X⁻¹ Aᵀ) is minimised by L-BFGS over Gram matrices X = CᵀC in which columns
    that one record uses are orthogonal, and their squared lengths sum to 1. C is full: a run keeps
    the noise of all its steps, so that it is for small models or short runs.

    Args:
        epochs: how often a record is used: steps/epochs apart, which must be a whole number.
        workload: what is made of the releases; a matrix is held whole, so of few thousand steps.

    Raises:
        TypeError: a workload that is none.
        ValueError: epochs that do not divide the steps; rates that are all 0 or too large.

    Guarantee:
        None of its own: `Banded.cyclic_sensitivities` say what a record moves, rounding included.

    Example:
        >>> from dpjax.correlation import Workload, column_normalised, fixed_epochs
        >>> work = Workload(12)
        >>> tried = [column_normalised(4, workload=work), fixed_epochs(3, workload=work)]
        >>> [f"{work.error(c, cyclic=True, separation=4):.3f}" for c in tried]
        ['3.009', '2.923']

    References:
        Denisov et al. 2022; Choquette-Choo et al. 2022, "Multi-epoch matrix factorization
        mechanisms for private machine learning".
    """
    steps = check_workload(workload).steps
    times = int(one_number("epochs", epochs, Range(1.0, steps, whole=True)))
    if steps % times:
        raise ValueError(f"epochs must divide the {steps} steps of the workload, got {epochs}")
    with float64_scope():
        start = (jnp.zeros((times, steps // times)), jnp.zeros((steps, steps)))
        gram = np.asarray(_search_matrix(start, jnp.asarray(workload.matrix())))
    if not np.all(np.isfinite(gram)):
        raise ValueError(
            "workload must have rates of which some is above 0 and squares are held by float64, "
            f"got {workload!r}"
        )
    # X = CᵀC with C lower triangular: a Cholesky factor from the last row and column on.
    c = np.linalg.cholesky(gram[::-1, ::-1]).T[::-1, ::-1]
    return Banded(tuple((*c[t:, t].tolist(), *[0.0] * t) for t in range(steps)))


def _make_gram(place: tuple[Array, Array]) -> Float[Array, "steps steps"]:
    """X of squared lengths by their logarithms and of cosines, those within a record's steps 0."""
    logs, cosines = place
    epochs, apart = logs.shape
    steps = epochs * apart
    number = np.arange(steps)
    free = np.tril((number[:, None] - number) % apart != 0, -1)
    cosines = jnp.where(free, cosines, 0.0)
    lengths = jnp.sqrt(jax.nn.softmax(logs, axis=0).reshape(-1))  # step e·apart + j is (e, j)
    return lengths[:, None] * (jnp.eye(steps) + cosines + cosines.T) * lengths


@jax.jit
def _search_matrix(start: tuple[Array, Array], workload: Array) -> Float[Array, "steps steps"]:
    """The Gram matrix at which the error is least, from the identity on."""

    def logarithm(place: tuple[Array, Array]) -> Array:
        # NaN where X is not positive definite: the line search then takes a shorter step.
        factor = jax.scipy.linalg.cho_factor(_make_gram(place), lower=True)
        return jnp.log(jnp.sum(workload * jax.scipy.linalg.cho_solve(factor, workload.T).T))

    line = optax.scale_by_backtracking_linesearch(max_backtracking_steps=60, store_grad=True)
    search = optax.lbfgs(memory_size=10, linesearch=line)
    ask = optax.value_and_grad_from_state(logarithm)

    def step(carry: tuple) -> tuple:
        place, state, number, before, _ = carry
        value, slope = ask(place, state=state)
        update, state = search.update(
            slope, state, place, value=value, grad=slope, value_fn=logarithm
        )
        return optax.apply_updates(place, update), state, number + 1, value, before

    def goes_on(carry: tuple) -> Array:
        _, _, number, value, before = carry
        return (number < _SEARCH) & ((number < 3) | (before - value > _LITTLE))

    begun = (start, search.init(start), 0, jnp.inf, jnp.inf)
    return _make_gram(lax.while_loop(goes_on, step, begun)[0])
