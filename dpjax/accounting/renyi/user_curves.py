"""Rényi curves of all records of a user in a sample, on the host, setting by setting."""

from __future__ import annotations

import numpy as np

from dpjax._numerics import float64
from dpjax._numerics.arrays import NUMPY, Numbers
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import UserLevel
from dpjax.accounting.pairs.count_law import Binomial, merge_weights, relative_weight_error
from dpjax.accounting.pairs.user_level import ADDED, read_user
from dpjax.accounting.renyi.moments import LOUDEST, Kind, MeansTable, curve_by_setting, integrate

_LISTED = 1e5  # records of a user, of whose numbers each is listed


_DIRECTIONS = Kind(True, False), Kind(False, True)  # all records of a user removed, added


def has_curve(step: UserLevel, adjacency: Adjacency) -> bool:
    """Whether it is a Poisson sample, a user's records added or removed."""
    own = read_user(step, adjacency)
    return own is not None and own.release is ADDED


def users_curve(step: UserLevel, orders: Numbers, adjacency: Adjacency) -> np.ndarray:
    """The Rényi divergence of the larger direction at each order, shape S + [k], rounded up."""
    if float64.is_traced(step, orders):
        raise UnsupportedQuery(
            "the Rényi curve of UserLevel around a sample runs on the host and cannot be traced; "
            "acc.epsilon and acc.delta can"
        )
    own = read_user(step, adjacency)
    assert own is not None
    fields = (np.asarray(v, np.float64) for v in (*own.numbers, own.rate))
    mu, records, rate, _ = np.broadcast_arrays(*fields, np.zeros(np.shape(orders)[:-1]))
    with np.errstate(all="ignore"):
        return curve_by_setting(
            lambda at, order: _users_moments(mu[at], records[at], rate[at], order),
            mu.shape,
            orders,
        )


def _log_rare(
    mu: float, records: float, rate: float, first: float, order: np.ndarray
) -> np.ndarray:
    """Return log Σ w_j ‖N(jμ, 1)/N(0, 1)‖ over the numbers from `first` on, rounded up.

    The norm is that of the order: e^{(order − 1)(jμ)²/2}.
    """
    from scipy.special import gammaln

    j = np.arange(first, records + 1)[:, None]
    parts = gammaln(records + 1), -gammaln(j + 1), -gammaln(records - j + 1)
    terms = [*parts, j * np.log(rate), (records - j) * np.log1p(-rate)]
    terms = [*terms, 0.5 * (order - 1) * (mu * j) ** 2]
    units = 8 * sum(np.abs(term) for term in terms) + 8
    return np.logaddexp.reduce(sum(terms) + units * 2.0**-52, axis=0) + 1e-10


def _users_moments(mu: float, records: float, rate: float, order: np.ndarray) -> np.ndarray:
    if mu == 0 or records == 0 or rate == 0:
        return np.zeros_like(order)
    # At rates below 1e-150 the chance of two records is no number: what it weighs is unknown.
    if not mu < LOUDEST or (rate < 1e-150 and records > 1):
        return np.full_like(order, np.inf)
    law = Binomial(float(records), float(rate))
    number, weight = merge_weights(law, True)
    log_tail = np.full_like(order, -np.inf)
    if records <= _LISTED:  # what was moved to all records there would count far too much
        last = len(number) - int(number[-1] == records and weight[-1] < 1e-39)
        number, weight = number[:last], weight[:last]
        log_tail = _log_rare(mu, records, rate, number[-1] + 1, order)
    # Moved to where they count most; together they are one.
    taking = weight[1:] * (1 + relative_weight_error(law))
    rest = max(1 - taking.sum(), weight[0] * (1 - 1e-9))
    parts = (mu * number[1:])[:, None], taking[:, None], [rest]
    table = MeansTable(*map(NUMPY.asarray, parts))
    found = np.empty_like(order)
    size = np.floor(np.log2(order - 1))  # orders of one size share a line
    for some in (size == one for one in np.unique(size)):
        removed, added = (integrate(kind, table, order[some])[0] for kind in _DIRECTIONS)
        # MINKOWSKI: the norm of a sum is at most the sum of the norms. Of one added P is smaller
        # without those terms, hence Q/P larger.
        both = order[some] * np.logaddexp(removed / order[some], log_tail[some])
        found[some] = np.maximum(both, added)
    return np.maximum(found, 0.0)
