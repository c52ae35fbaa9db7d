"""Batches drawn with replacement, one record replaced: a record can be drawn several times.

Of m draws from n records J ~ Bin(m, 1/n) are the one that differs, whose contribution x is x' in
the neighbour. Let ω₀ be the release of a batch that lacks it, and ω_j, ω'_j those of batches with j
copies, every other draw being uniform over the other records. With w_j = Bin(m, 1/n)(j),
η = 1 − w₀ = 1 − (1 − 1/n)^m and v_j = w_j/η the step releases

    (1 − η)ω₀ + η Σ_{j>0} v_j ω_j = Σ_{j>0} v_j ((1 − η)ω₀ + ηω_j),

its neighbour the same with ω'_j: by joint convexity it is dominated by the pairs in parentheses
with j, drawn from v, released. A batch of m draws of the others, j of which are turned into x, or
into x', couples ω₀, ω_j and ω'_j: given it they are normal laws whose means lie within j times the
replace-one diameter μ of each other. So (1 − η)ω₀ + ηω_j against (1 − η)ω₀ + ηω'_j is a fixed
batch's step of displacement jμ and rate η, which C_η(G_{jμ}) dominates (`pairs/fixed_batch.py`).
For ε ≥ 0 and ε' = log(1 + η(e^ε − 1)) the profile is that of Balle, Barthe and Gaboardi 2018,
Theorem 10: δ'(ε') = Σ_{j>0} w_j δ_{jμ}(ε).

A record whose replacement contributes what all others do attains Σ_j w_j N(jμ, 1) against N(0, 1),
where j stays hidden (`pairs/users.py`): the lower end. It does not dominate: at ε = 0, of two
records of opposite contributions among others of none, the total variation is Σ_j w_j TV_j, which
is what the bound says and more than the hidden mixture's.

References:
  Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), Theorems 2 and 10; Dong, Roth, Su 2022 (C_q).
"""

from __future__ import annotations

import jax
import numpy as np

from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import WithReplacement
from dpjax.accounting.pairs.counts import drawn, few, mass_error
from dpjax.accounting.pairs.fixed_batch import Symmetrised
from dpjax.accounting.pairs.gaussian import DOMINATED, pair_of, samplable
from dpjax.accounting.pairs.labelled import Labelled, Part
from dpjax.accounting.pairs.protocol import Discretisable
from dpjax.accounting.pairs.ratio import ndtr
from dpjax.accounting.pairs.release import Known
from dpjax.accounting.pairs.spliced import Spliced
from dpjax.accounting.pairs.users import Users

_REVEALED = 1e-3  # of what may lie beyond the grid: labels rarer than that reveal everything


class Drawn:
    """A step whose batch is drawn with replacement, as a `release.Laid`.

    Its numbers are the displacement of one replaced record over the noise, the draws, and how many
    records there are; the rate is that of batches with the one.
    """

    kind = WithReplacement
    tight = sampled = True

    def known(self, step: WithReplacement, adjacency: Adjacency) -> Known | None:
        inner = step.mechanism
        if adjacency is not Adjacency.REPLACE_ONE:
            return None
        if type(inner) not in DOMINATED or not samplable(inner):
            return None
        if not is_traced(inner):  # arrays divide by 0
            inner = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), inner)
        with np.errstate(divide="ignore", invalid="ignore"):
            mu = np.sqrt(np.asarray(pair_of(inner).replace_one, np.float64))
            population = np.asarray(step.population, np.float64)
            taken = -np.expm1(step.batch_size * np.log1p(-1 / population))
        rate = np.where(np.asarray(step.batch_size) > 0, taken, 0.0)
        return Known(self, (mu, step.batch_size, population), rate, symmetric=True)

    def grid(self, own: Known) -> Discretisable:
        mu, draws, population = (float(number) for number in own.numbers)
        return Copies(mu, drawn(draws, 1.0, population))


DRAWN = Drawn()


class Copies(Users):
    """How often the record was drawn: released for an upper bound, hidden for a lower one."""

    name = "copies"

    def side(self, sign: int, mu: float, rate: float, reach: float, upper: bool) -> Discretisable:
        mu, law = self._own
        if not upper:
            return super().side(sign, mu, rate, reach, False)
        (j, weight), off = few(law, True), mass_error(law)
        near = labelled(Symmetrised(), mu, j, weight, off, reach)
        hidden = super().side(1, mu, rate, reach, True)
        without = float(weight[0]) * (1 - off)
        return Spliced(near, hidden, -float(np.log(without))) if without > 1e-9 else near


def labelled(
    pair: Discretisable, mu: float, j: np.ndarray, weight: np.ndarray, off: float, reach: float
) -> Labelled:
    """j copies at displacement jμ, each at the rate of any: rounded up.

    Args:
        pair: of one copy's displacement and rate.
        mu: that displacement.
        j, weight: numbers of copies, 0 first, and their probabilities, rounded towards more.
        off: bound on the relative error of the probabilities.
        reach: normal quantile beyond which mass is cut.
    """
    any_ = float(weight[1:].sum())
    rate = min(any_ * (1 + off), 1.0)
    own = weight[1:] / any_ * (1 + 3 * off)
    # From the rarest on, as long as they are less together than what the grid leaves out.
    order = np.argsort(own)
    rare = np.cumsum(own[order]) <= _REVEALED * float(ndtr(-reach))
    revealed, kept = order[rare], np.sort(order[~rare])
    parts = [Part(float(own[i]), float(j[1:][i] * mu), rate) for i in kept]
    return Labelled(pair, parts, rate * float(own[revealed].sum()))
