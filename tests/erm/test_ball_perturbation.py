"""Ball noise escapes a strict saddle that plain gradient descent cannot leave."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from dpjax import accounting as acc
from dpjax import erm
from dpjax._numerics.warning import DpjaxWarning


def _saddle():
    # F(w) = w₀²/2 − w₁²/2 + w₁⁴/4: a strict saddle at 0 (curvatures 1, −1), minima at (0, ±1).
    # The records' linear terms cancel exactly, so that the average gradient at 0 is 0.
    slopes = jnp.array([[0.1, 0.0], [-0.1, 0.0]] * 50)
    return erm.differentiable_problem(
        lambda w, z: w[0] ** 2 / 2 - w[1] ** 2 / 2 + w[1] ** 4 / 4 + z @ w, slopes, (2,)
    )


def test_plain_gradient_descent_stays_and_perturbed_escapes():
    problem = _saddle()
    start = jnp.array([0.5, 0.0])  # on the saddle's stable line
    stuck = erm.gradient_descent(problem, steps=300, step_size=0.1, init=start).params
    assert jnp.linalg.norm(stuck) < 1e-5
    with pytest.warns(UserWarning, match="protects nobody") as seen:
        run = erm.perturbed_gd(
            problem, jax.random.key(0), steps=300, step_size=0.1, clip_norm=5.0, noise_radius=0.3,
            init=start,
        )  # fmt: skip
    (ours,) = [one.filename for one in seen if issubclass(one.category, DpjaxWarning)]
    assert ours == __file__  # points to its caller
    assert abs(abs(run.params[1]) - 1) < 0.3
    assert problem.objective(run.params) < -0.15  # the minima's value is −1/4, the saddle's 0


def test_a_tight_ball_is_no_protection_and_a_wide_one_is(logistic, key):
    wide = erm.perturbed_gd(logistic, key, steps=5, step_size=0.1, noise_radius=1e4)
    delta = acc.delta(wide.mechanism, epsilon=0.0, adjacency="replace-one")
    # T(1/n)·TV: the total variation of two balls of dimension 6 at distance 2e-4 of their radius is
    # I_{1e-8}(1/2, 7/2) = 2·1e-4/B(1/2, 7/2) to first order.
    tv = 2e-4 / 0.9817477042468103
    assert delta == pytest.approx(5 / 203 * tv, rel=1e-4)


def test_a_budget_sets_the_radius(logistic, key):
    run = erm.perturbed_gd(logistic, key, steps=5, step_size=0.1, epsilon=0.5, delta=1e-4)
    spent = acc.delta(run.mechanism, epsilon=0.0, adjacency="replace-one")
    assert 0.99e-4 < spent <= 1e-4
