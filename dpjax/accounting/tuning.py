"""Private tuning: releasing the best of a random number of runs (Papernot and Steinke 2022).

Running a private algorithm k times and keeping the best run, k fixed, costs almost k runs. If k is
random and not revealed, it costs little more than one or two. Draw k with `draw_trials`, use fresh
randomness (and possibly a random candidate from a fixed list of settings) in each run, release
only the best by a score that is computed inside the run's guarantee, and certify `BestOf` the run.
If settings differ in their cost, the run's mechanism must cover the costliest.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from dpjax._numerics import float64
from dpjax.accounting import queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.mechanisms import Mechanism, check_number, register_mechanism
from dpjax.accounting.renyi_curves import register_curve

_SHAPES = {"geometric": 1.0, "logarithmic": 0.0}
_GRID = 1 + np.exp(np.linspace(-6.0, 12.0, 361))


@register_mechanism
class BestOf(Mechanism):
    """The best of K runs of a mechanism, K random and secret; only the winner is released.

    RDP of the run at orders λ and any λ̂ > 1 gives, for K truncated negative binomial of shape η (1
    geometric, 0 logarithmic) and parameter γ, ε'(λ) = ε(λ) + (1+η)(1−1/λ̂)ε(λ̂) + (1+η)log(1/γ)/λ̂
    + log(E K)/(λ−1); the best λ̂ is found. For K Poisson of mean m, if the run is (ε̂, δ̂)-private
    with e^ε̂ ≤ 1 + 1/(λ−1): ε'(λ) = ε(λ) + m δ̂ + log(m)/(λ−1). A Poisson K can be 0: something
    independent of the data is then released.

    Fields:
        mechanism: one run, with the score that ranks it: computing the score on private data is
            part of the run and must be paid in it.
        expected_trials: E K, at least 1 (above 1 for `"logarithmic"`).
        distribution: `"geometric"`, `"logarithmic"` or `"poisson"`.

    Guarantee: every run draws fresh randomness and returns a result and a totally ordered score;
        settings are drawn independently of the data from a fixed list; K is drawn before and not
        told.

    >>> from dpjax import accounting as acc
    >>> from dpjax.accounting.tuning import BestOf
    >>> run = acc.Gaussian(4.0)
    >>> once, best = (acc.epsilon(m, delta=1e-5, method="rdp") for m in (run, BestOf(run, 30.0)))
    >>> print(f"{once:.3f} {best:.3f} {acc.epsilon(acc.Repeated(run, 30), delta=1e-5):.3f}")
    1.012 2.442 6.326

    References: Papernot and Steinke 2022, Theorems 2 and 6.
    """

    mechanism: Mechanism
    expected_trials: Float[ArrayLike, ""]
    distribution: str = "geometric"

    def __post_init__(self) -> None:
        if isinstance(self.mechanism, int | float | str | np.ndarray):
            raise TypeError(f"BestOf.mechanism must be a mechanism, got {self.mechanism!r}")
        if self.distribution not in ("geometric", "logarithmic", "poisson"):
            raise ValueError(
                "BestOf.distribution must be 'geometric', 'logarithmic' or 'poisson', "
                f"got {self.distribution!r}"
            )
        logarithmic = self.distribution == "logarithmic"
        low = 0.0 if self.distribution == "poisson" else 1.0
        check_number(self, "expected_trials", low, open_low=logarithmic or low == 0.0)


def _log_inverse_gamma(expected: Array, distribution: str) -> Array:
    """log(1/γ) for which the number of trials has this mean, rounded up."""
    if distribution == "geometric":  # E K = 1/γ
        return jnp.log(expected)

    # Logarithmic: E K = (1/γ − 1)/log(1/γ), that is expm1(u)/u with u = log(1/γ).
    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        under = jnp.expm1(middle) / middle < expected
        return jnp.where(under, middle, low), jnp.where(under, high, middle)

    # expm1(u)/u >= 1 + u/2 and >= e^{u/2}.
    high = jnp.minimum(2 * (expected - 1), 2 * jnp.log(expected)) * (1 + 1e-12) + 1e-300
    return jax.lax.fori_loop(0, 80, halve, (high * 1e-12, high))[1]


def trial_parameter(expected_trials: float, distribution: str = "geometric") -> float:
    """γ of the truncated negative binomial law whose mean is `expected_trials`.

    Geometric: E K = 1/γ. Logarithmic: E K = (1/γ − 1)/log(1/γ).

    Example:
      >>> from dpjax.accounting.tuning import trial_parameter
      >>> round(trial_parameter(10.0), 12), round(trial_parameter(10.0, "logarithmic"), 6)
      (0.1, 0.026918)

    References:
      Papernot and Steinke 2022, Definition 1.
    """
    if distribution not in _SHAPES:
        raise ValueError(f"distribution must be one of {sorted(_SHAPES)}, got {distribution!r}")
    if not expected_trials >= 1:
        raise ValueError(f"expected_trials must be >= 1, got {expected_trials}")
    core = _log_core_geometric if distribution == "geometric" else _log_core_logarithmic
    return float(math.exp(-float(float64.evaluate(core, (expected_trials,), (0,)))))


def _log_core_geometric(expected: Array) -> Array:
    return _log_inverse_gamma(expected, "geometric")


def _log_core_logarithmic(expected: Array) -> Array:
    return _log_inverse_gamma(expected, "logarithmic")


def draw_trials(key: PRNGKeyArray, best: BestOf) -> int:
    """How many runs to make: one draw of K. Keep it, and the losing runs, secret.

    Args:
      key: a JAX key, used once. best: the mechanism that will be certified.

    Example:
      >>> import jax
      >>> from dpjax import accounting as acc
      >>> from dpjax.accounting.tuning import BestOf, draw_trials
      >>> best = BestOf(acc.Gaussian(4.0), 30.0)
      >>> draws = [draw_trials(key, best) for key in jax.random.split(jax.random.key(0), 400)]
      >>> min(draws) >= 1, 25 < sum(draws) / 400 < 35
      (True, True)
    """
    seed = np.asarray(jax.random.key_data(key) if _typed(key) else key).ravel()
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed.tolist())))
    expected = float(best.expected_trials)  # pyrefly: ignore
    if best.distribution == "poisson":
        return int(generator.poisson(expected))
    gamma = trial_parameter(expected, best.distribution)
    if best.distribution == "geometric":
        return int(generator.geometric(gamma))
    return int(generator.logseries(1.0 - gamma)) if gamma < 1 else 1


def _typed(key: Any) -> bool:
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def _extra_core_negative_binomial(shape: float, distribution: str) -> Any:
    def core(expected: Array, curve: Array, orders: Array) -> Array:
        known = jnp.isfinite(curve)
        logs = _log_inverse_gamma(expected, distribution)
        paid = (1 - 1 / orders) * jnp.where(known, curve, 0.0) + logs / orders
        paid = jnp.where(known, paid, jnp.inf)
        # λ̂ = 1 is a choice too, and costs log(1/γ) whatever the run.
        return (1 + shape) * jnp.minimum(jnp.min(paid), logs) * (1 + 1e-12)

    return core


_EXTRA = {name: _extra_core_negative_binomial(shape, name) for name, shape in _SHAPES.items()}


def _curve(best: Any, orders: Any, adjacency: Adjacency) -> Any:
    traced = float64.is_traced(best, orders)
    xp = jnp if traced else np
    orders = xp.asarray(orders)
    expected = best.expected_trials
    own = queries.rdp(best.mechanism, orders, adjacency=adjacency)
    if best.distribution == "poisson":
        target = -xp.log1p(-1 / orders) * (1 - 1e-12)  # log(1 + 1/(λ−1)), rounded down
        failure = _profile(best.mechanism, target, adjacency)
        count = xp.asarray(expected)[..., None]
        extra = count * failure
        value = own + extra + xp.log(count) / (orders - 1)
    else:
        at = queries.rdp(best.mechanism, _GRID, adjacency=adjacency)
        extra = float64.evaluate(
            _EXTRA[best.distribution], (expected, at, _GRID), (0, 1, 1), rounding="up"
        )
        count = xp.asarray(expected)[..., None]
        value = own + xp.asarray(extra)[..., None] + xp.log(count) / (orders - 1)
    return xp.where(orders > 1, xp.maximum(value, 0.0) * (1 + 1e-12), xp.inf)


def _profile(run: Mechanism, epsilons: Any, adjacency: Adjacency) -> Any:
    """δ(ε) of one run on a grid of ε behind the run's own axes."""
    if all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(run)):
        return queries.delta(run, epsilons, adjacency=adjacency)
    raise UnsupportedQuery(
        "BestOf with a Poisson number of trials prices one setting at a time: the run has array "
        "fields; loop over them, or use distribution='geometric'"
    )


def _answers(best: Any, adjacency: Adjacency) -> bool:
    able = queries.methods(best.mechanism, adjacency).values()
    has_curve = any(method.rdp is not None for method in able)
    if best.distribution == "poisson":
        return has_curve and any(method.delta is not None for method in able)
    return has_curve


register_curve(BestOf, _curve, _answers)
