"""What a chain releases is read off the chain; one key for two noises; schedules; MultiSteps."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax import accounting as acc
from dpjax import transforms
from dpjax.gradients import PerGroup

pytestmark = pytest.mark.usefixtures("lenient_promotion")  # optax's own arithmetic


def key(seed=0):
    return jax.random.key(seed)


PARAMS = {"a": jnp.zeros(4), "b": jnp.zeros((3, 2))}
LABELS = {"a": "a", "b": "b"}
clip, noise = transforms.clip_per_example, transforms.gaussian_noise


def apart(a, b):
    return optax.multi_transform({"a": a, "b": b}, LABELS)


# -- one key --------------------------------------------------------------------------------------


def test_groups_with_one_key_draw_different_noise():
    params = {"a": jnp.zeros(1000), "b": jnp.zeros(1000)}
    tx = apart(noise(1.0, key()), noise(1.0, key()))
    out, state = jax.jit(tx.update)(params, tx.init(params))
    later, _ = jax.jit(tx.update)(params, state)
    drawn = np.stack([out["a"], out["b"], later["a"], later["b"]])
    correlations = np.corrcoef(drawn) - np.eye(4)
    assert np.abs(correlations).max() < 5 / np.sqrt(1000)  # 5 standard deviations
    assert np.std(out["a"] - out["b"]) > 1.2


def test_kinds_of_noise_with_one_key_differ():
    x = jnp.zeros(500)
    gaussian, ball = noise(1.0, key()), transforms.ball_noise(1.0, key())
    one, other = (tx.update(x, tx.init(x))[0] for tx in (gaussian, ball))
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(500)


NOT_KEYS = [0, 1.0, None, np.int64(3), jnp.zeros(2), "key", jnp.uint32(7)]
FACTORIES = {
    "gaussian": lambda k: noise(1.0, k),
    "ball": lambda k: transforms.ball_noise(1.0, k),
    "sphere": lambda k: transforms.sphere_noise(1.0, k, unsafe_no_dp=True),
    "recentred": lambda k: transforms.recentred_clipping(1.0, 1.0, 8, k),
    "anisotropic": lambda k: transforms.anisotropic_clipping(1.0, 1.0, 1.0, 1.0, 8, k),
    "spherical": lambda k: transforms.spherical_noise(1.0, 1.0, 8, 0.1, k, unsafe_no_dp=True),
    "importance": lambda k: transforms.importance_mean(1.0, 1.0, 8, k),
    "selective": lambda k: transforms.selective_update(1.0, 1.0, 8, k, attempts=2),
}


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_a_key_that_is_none_is_refused_at_construction(factory):
    for bad in [*NOT_KEYS, jax.random.split(key(), 3)]:
        with pytest.raises(ValueError, match="key must be one JAX key"):
            factory(bad)
    factory(key())
    factory(jax.random.PRNGKey(0))
    factory(np.asarray(jax.random.PRNGKey(0)))


# -- schedules ------------------------------------------------------------------------------------


def test_a_schedule_is_the_scale_of_its_step():
    schedule = optax.linear_schedule(2.0, 0.5, 3)
    scheduled, unit = noise(schedule, key()), noise(1.0, key())
    x = jnp.zeros(50)
    state, same = scheduled.init(x), unit.init(x)
    update = jax.jit(scheduled.update)
    for expected in (2.0, 1.5, 1.0, 0.5, 0.5):
        out, state = update(x, state)
        one, same = unit.update(x, same)
        np.testing.assert_allclose(out, expected * one, rtol=1e-6)
    tx = optax.chain(clip(0.5), scheduled)
    for step, expected in ((0, 4.0), (2, 2.0), (9, 1.0)):
        assert transforms.released(tx, step=step).noise_multiplier == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"step must be given .* got None"):
        transforms.released(tx)


# -- the mechanism of a chain ---------------------------------------------------------------------


def loss(params, x):
    return jnp.sum(params["a"] * x) + jnp.sum(params["b"])


CHAINS = {
    "chain": (optax.chain(clip(0.5), noise(1.0, key()), optax.scale(0.1), optax.adam(0.1)), 2.0),
    "nested": (optax.chain(optax.chain(clip(2.0)), optax.chain(noise(3.0, key()))), 1.5),
    "identity": (
        optax.chain(optax.identity(), clip(1.0), optax.identity(), noise(3.0, key())),
        3.0,
    ),
    "per group": (optax.chain(clip(2.0, PerGroup()), noise(1.0, key()), optax.sgd(1.0)), 0.5),
    "named": (optax.named_chain(("clip", clip(4.0)), ("noise", noise(1.0, key()))), 0.25),
    "more noise": (
        optax.chain(clip(1.0), noise(2.0, key()), optax.scale(9.0), noise(1.0, key(1))),
        2.0,
    ),
    "weakest part": (optax.chain(clip(1.0), apart(noise(2.0, key()), noise(3.0, key()))), 2.0),
    "two clips": (
        apart(optax.chain(clip(1.0), noise(4.0, key())), optax.chain(clip(3.0), noise(9.0, key()))),
        ((1 / 4) ** 2 + (3 / 9) ** 2) ** -0.5,
    ),
    "accumulated after": (
        optax.chain(
            clip(1.0),
            noise(2.0, key()),
            optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation(),
        ),
        2.0,
    ),
}


@pytest.mark.parametrize(("chain", "multiplier"), CHAINS.values(), ids=CHAINS)
def test_the_mechanism_of_a_chain(chain, multiplier):
    found = transforms.released(chain, params=PARAMS)
    assert isinstance(found, acc.Gaussian)
    assert found.noise_multiplier == pytest.approx(multiplier, rel=1e-12)


def test_the_mechanism_of_a_chain_after_clipped_grad():
    """docs/training.md's example: no noise multiplier is typed a second time."""
    gradient = dpjax.clipped_grad(loss, clip_norm=0.5)
    chain = optax.chain(noise(1.0, key()), optax.adam(0.1))
    for fn in (gradient, jax.jit(gradient)):
        assert transforms.released(chain, fn) == acc.Gaussian(2.0)
    with pytest.raises(ValueError, match="gradient must be a function that clipped_grad returned"):
        transforms.released(chain, loss)


def test_mechanisms_that_clip_and_perturb_at_once():
    recentred = transforms.recentred_clipping(0.5, 0.1, 8, key())
    expected = acc.RecentredGaussian(0.5, 0.1, batch_size=8)
    assert transforms.released(optax.chain(recentred, optax.adam(0.1))) == expected
    tangent = transforms.tangent_ball(0.5, 0.1, 8, 1.0, 0.2, key())
    found = transforms.released(optax.chain(tangent, optax.sgd(0.1)))
    assert [type(m).__name__ for m in found.mechanisms] == ["TangentBall", "Gaussian"]
    ball = optax.chain(clip(0.5), transforms.ball_noise(2.0, key()))
    assert transforms.released(ball, params=PARAMS) == acc.UniformBall(0.25, 10)
    gradient = dpjax.clipped_grad(loss, clip_norm=0.5)
    both = transforms.released(
        ball.__class__(*transforms.ball_noise(2.0, key())),
        gradient,
        params=PARAMS,
        adjacency="replace-one",
    )
    assert both == acc.UniformBall(0.5, 10)


@pytest.mark.parametrize("radius", [2.0, 1e6])
def test_a_sphere_is_not_priced_as_the_ball_it_bounds(radius):
    """Whose δ falls with the radius; spheres that are apart share nothing."""
    sphere = optax.chain(clip(0.5), transforms.sphere_noise(radius, key(), unsafe_no_dp=True))
    with pytest.raises(ValueError, match="sphere_noise once"):
        transforms.released(sphere)
    for chain in (sphere, optax.chain(clip(0.5), transforms.ball_noise(0.0, key()))):
        found = transforms.released(chain, params=PARAMS)
        assert found == acc.UniformBall(2.0, 10)
    assert acc.delta(found, epsilon=0.0) == 1.0


def test_a_function_around_clipped_grad_is_not_taken_for_it():
    """`functools.wraps` hands on every attribute, whatever the function makes of the sum."""
    gradient = dpjax.clipped_grad(loss, clip_norm=0.5)

    @functools.wraps(gradient)
    def louder(*given, **named):
        return jax.tree.map(lambda x: 100 * x, gradient(*given, **named))

    for fn in (louder, jax.jit(louder), jax.vmap(gradient)):
        with pytest.raises(ValueError, match="gradient must be a function that clipped_grad"):
            transforms.released(noise(1.0, key()), fn)


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.parametrize("starts", ["with the chain's clipping", "from clipped_grad"])
def test_an_exchange_counts_twice_exactly_once(starts, adjacency):
    """Replacing moves the sum by 2C: `Gaussian` prices that itself, a ball's displacement is it."""
    first, gradient = (clip(0.5),), None
    if starts == "from clipped_grad":
        first, gradient = (), dpjax.clipped_grad(loss, clip_norm=0.5)

    def read(last):
        chain = optax.chain(*first, last)
        return transforms.released(chain, gradient, params=PARAMS, adjacency=adjacency)

    assert read(noise(1.0, key())) == acc.Gaussian(2.0)
    moved = 1.0 if adjacency is acc.Adjacency.REPLACE_ONE else 0.5
    assert read(transforms.ball_noise(2.0, key())) == acc.UniformBall(moved / 2.0, 10)


def test_an_adjacency_that_is_none_is_refused():
    chain = optax.chain(clip(0.5), noise(1.0, key()))
    with pytest.raises(ValueError, match="adjacency must be"):
        transforms.released(chain, adjacency="neighbours")


def test_two_noises_of_one_key_on_the_same_leaves_cancel_and_are_refused():
    again = optax.chain(noise(2.0, key()), optax.scale(-1.0), noise(2.0, key()))
    x = jnp.arange(8.0)
    out, _ = again.update(x, again.init(x))
    np.testing.assert_allclose(out, -x, atol=1e-5)  # not a trace of noise
    raw = optax.chain(clip(1.0), noise(2.0, jax.random.PRNGKey(0)), noise(1.0, key()))
    twice = transforms.recentred_clipping(0.5, 0.1, 8, key())
    for chain in (optax.chain(clip(1.0), again), raw, optax.chain(twice, twice)):
        with pytest.raises(ValueError, match="two of one key on the same leaves"):
            transforms.released(chain, params=PARAMS)
    traced = jax.jit(
        lambda k: transforms.released(optax.chain(clip(1.0), noise(2.0, k), noise(1.0, k))) and 0
    )
    with pytest.raises(ValueError, match="two of one key on the same leaves"):
        traced(key())
    ball = optax.chain(clip(1.0), noise(2.0, key()), transforms.ball_noise(1.0, key()))
    assert transforms.released(ball, params=PARAMS) == acc.Gaussian(2.0)  # kinds differ


good = noise(1.1, key())


def norm_of(updates):
    return optax.tree.norm(updates)


def around(write):
    """A chain that clips to 1 and in which `write(u, s, good.update)` stands around the noise."""
    wrapper = optax.GradientTransformation(good.init, lambda u, s, p=None: write(u, s, good.update))
    return optax.chain(clip(1.0), wrapper)


def added(*trees):
    return jax.tree.map(lambda *leaves: sum(leaves), *trees)


def zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def kept_and_handed_on_next():
    """The state holds the clipped sum, which the next update releases."""

    def update(updates, state, params=None):
        out, inner = good.update(updates, state[0], params)
        return added(out, state[1]), (inner, updates)

    return optax.chain(clip(1.0), optax.GradientTransformation(lambda p: (good.init(p), p), update))


def by_reference(updates, state, draw):
    told = jax.new_ref(jnp.zeros(()))
    told[...] = norm_of(updates)
    out, state = draw(updates, state)
    return jax.tree.map(lambda u: u + told[...], out), state


def told_outside(updates, state, draw):
    jax.debug.callback(lambda norm: None, norm_of(updates))
    return draw(updates, state)


def twice(other):
    """The sum is perturbed well, and once more hardly."""

    def update(updates, state, params=None):
        pairs = zip((good, other), state, strict=True)
        outs, states = zip(*(tx.update(updates, s) for tx, s in pairs), strict=True)
        return added(*outs), states

    return optax.chain(
        clip(1.0),
        optax.GradientTransformation(lambda p: (good.init(p), other.init(p)), update),
    )


def in_a_loop(updates, state, draw):
    def body(state, _):
        out, state = draw(updates, state)
        return state, out

    state, outs = jax.lax.scan(body, state, length=9)
    return jax.tree.map(lambda x: x.mean(0), outs), state


def called_again(updates, state, draw):
    once = jax.jit(lambda state: draw(updates, state))
    first, state = once(state)
    second, state = once(state)
    return jax.tree.map(lambda a, b: (a + b) / 2, first, second), state


def vmapped(updates, state, draw):
    def one(step):
        return draw(updates, state._replace(step=step))[0]

    outs = jax.vmap(one)(state.step + jnp.arange(9))
    return jax.tree.map(lambda x: x.mean(0), outs), state._replace(step=state.step + 9)


def first_state(updates, state, draw):
    out, _ = draw(updates, state)
    return out, state


def one_step(updates, state, draw):
    out, after = draw(updates, state._replace(step=jnp.zeros((), jnp.int32)))
    return out, after


def on_the_norm(updates, state, draw):
    large = norm_of(updates) > 0.5
    return jax.lax.cond(large, lambda: draw(updates, state), lambda: (zeros(updates), state))


def chosen_leafwise(updates, state, draw):
    out, state = draw(updates, state)
    return jax.tree.map(lambda u, o: jnp.where(norm_of(updates) > 0.5, u, o), updates, out), state


def scaled_by_the_norm(updates, state, draw):
    factor = norm_of(updates)
    out, state = draw(updates, state)
    return jax.tree.map(lambda o: o * factor, out), state


def cut_by_the_norm(updates, state, draw):
    bound = norm_of(updates)
    out, state = draw(updates, state)
    return jax.tree.map(lambda o: jnp.clip(o, -bound, bound), out), state


def added_again(updates, state, draw):
    out, state = draw(updates, state)
    return added(updates, out), state


def noise_less_itself(updates, state, draw):
    """(u + z) − (0 + z): the noise of one draw, taken off again."""
    out, after = draw(updates, state)
    less, _ = draw(zeros(updates), state)
    return jax.tree.map(lambda a, b: a - b, out, less), after


def subtracted_by_another_step(updates, state, draw):
    out, after = draw(updates, state)
    return added(out, draw(zeros(updates), after)[0]), after


def half_masked(tx):
    return optax.masked(tx, {"a": True, "b": False})


def even(step, **_):
    return step % 2 == 0


REFUSED = {
    "no noise": (optax.chain(clip(1.0), optax.sgd(1.0)), "without noise"),
    "nothing": (optax.sgd(1.0), "without clipping"),
    "noise alone": (good, "needs the clipped sum as it is"),
    "noise first": (optax.chain(good, clip(1.0)), "needs the clipped sum as it is"),
    "scaled between": (optax.chain(clip(1.0), optax.scale(2.0), good), "as it is"),
    "scaled by a schedule between": (
        optax.chain(clip(1.0), optax.scale_by_schedule(lambda step: 1.0 + step), good),
        "as it is",
    ),
    "averaged between": (optax.chain(clip(1.0), optax.trace(0.9), good), "as it is"),
    "changed before": (optax.chain(optax.scale(2.0), clip(1.0), good), "as they are"),
    "half of it": (optax.chain(clip(1.0), half_masked(good)), "without noise"),
    "half, by name": (optax.chain(clip(1.0), apart(good, optax.identity())), "without noise"),
    "half clipped": (half_masked(optax.chain(clip(1.0), good)), "without clipping"),
    "accumulated": (optax.MultiSteps(optax.chain(clip(1.0), good), 2), "as they are"),
    "accumulated between": (
        optax.chain(clip(1.0), optax.MultiSteps(good, 2).gradient_transformation()),
        "as it is",
    ),
    "GeoDP": (optax.chain(clip(1.0), FACTORIES["spherical"](key())), "without noise"),
    "every second update": (
        optax.chain(clip(1.0), optax.conditionally_transform(good, even)),
        "every update",
    ),
    "every second, all of it": (
        optax.conditionally_transform(optax.chain(clip(1.0), good), even),
        "every update",
    ),
    "where finite": (optax.chain(clip(1.0), optax.apply_if_finite(good, 5)), "every update"),
    "no noise in the end": (
        optax.chain(
            clip(1.0),
            optax.inject_hyperparams(noise, static_args="key")(
                optax.linear_schedule(1.1, 0.0, 5), key()
            ),
        ),
        "known outside a trace",
    ),
    "a condition on the norm": (around(on_the_norm), "decides by them"),
    "a choice by the norm": (around(chosen_leafwise), "every update"),
    "scaled by the norm": (around(scaled_by_the_norm), "every update"),
    "cut at the norm": (around(cut_by_the_norm), "every update"),
    "added once more": (around(added_again), "every update"),
    "its noise taken off": (around(noise_less_itself), "two of one key"),
    "two draws": (around(subtracted_by_another_step), "two of one key"),
    "hardly perturbed once more": (twice(noise(1e-3, key(1))), "every update"),
    "clipped once more": (twice(optax.chain(clip(1.0), noise(1e-3, key(1)))), "every update"),
    "kept in the state": (kept_and_handed_on_next(), "every update"),
    "kept for show": (around(lambda u, s, draw: (draw(u, s)[0], norm_of(u))), "every update"),
    "told by reference": (around(by_reference), "callback or a mutable array"),
    "told to a callback": (around(told_outside), "callback or a mutable array"),
    "averaged in a loop": (around(in_a_loop), "once an update"),
    "averaged over calls": (around(called_again), "once an update"),
    "averaged by vmap": (around(vmapped), "once an update"),
    "the first state for ever": (around(first_state), "state of its noise"),
    "the first step for ever": (around(one_step), "state of its noise"),
}


def at(change):
    """The noise is drawn at another step than the state's: `change` says which."""

    def write(updates, state, draw):
        return draw(updates, state._replace(step=change(state.step)))

    return write


def after(change):
    """The state that is kept counts in another way: from the step before and the one after."""

    def write(updates, state, draw):
        out, new = draw(updates, state)
        return out, new._replace(step=change(state.step, new.step))

    return write


REFUSED |= {
    "a step that stays": (around(after(lambda s, n: s + 0 * n)), "state of its noise"),
    "steps modulo three": (around(after(lambda s, n: n % 3)), "state of its noise"),
    "steps up to one": (around(after(lambda s, n: jnp.minimum(n, 1))), "state of its noise"),
    "begun anew": (around(after(lambda s, n: jnp.where(n % 9 == 0, 0, n))), "state of its noise"),
    "kept at times": (
        around(after(lambda s, n: jnp.where(s % 2 == 0, n, s))),
        "state of its noise",
    ),
    "kept by a condition": (
        around(after(lambda s, n: jax.lax.cond(s % 2 == 0, lambda: n, lambda: s))),
        "state of its noise",
    ),
    "half steps": (around(at(lambda s: s // 2)), "state of its noise"),
    "the noise again, compiled": (
        optax.chain(
            clip(1.0),
            good,
            optax.scale(-1.0),
            optax.GradientTransformation(good.init, jax.jit(good.update)),
        ),
        "two of one key",
    ),
    "the noise again, behind a barrier": (
        optax.chain(
            clip(1.0),
            good,
            optax.scale(-1.0),
            optax.GradientTransformation(
                good.init, lambda u, s, p=None: good.update(u, jax.lax.optimization_barrier(s))
            ),
        ),
        "two of one key",
    ),
}


class Box:
    """Holds an array where JAX does not look."""

    def __init__(self, held):
        self.held = held


def counted_in_python():
    def update(updates, state, params=None):
        count, inner = state
        out, inner = good.update(updates, inner) if count % 2 == 0 else (updates, inner)
        return out, (count + 1, inner)

    return optax.GradientTransformation(lambda p: (0, good.init(p)), update)


def kept_in_a_box():
    def update(updates, state, params=None):
        out, inner = good.update(updates, state[0])
        return out, (inner, Box(updates))

    return optax.GradientTransformation(lambda p: (good.init(p), jnp.zeros(())), update)


@pytest.mark.parametrize("wrapped", [counted_in_python(), kept_in_a_box()], ids=["count", "box"])
def test_a_state_that_cannot_be_read_is_refused(wrapped):
    with pytest.raises(ValueError, match="a state of JAX arrays, in pytrees, got one that holds"):
        transforms.released(optax.chain(clip(1.0), wrapped), params=PARAMS)


@pytest.mark.parametrize(
    "choose",
    [
        lambda leaf: leaf.ndim == 1,
        lambda leaf: leaf.size < 4,
    ],
)
def test_noise_on_some_parameters_is_not_priced_without_them(choose):
    """On the made-up vector all was perturbed: the matrices of real parameters were not."""
    some = optax.masked(good, lambda tree: jax.tree.map(choose, tree))
    with pytest.raises(ValueError, match=r"params must be given .* got None"):
        transforms.released(optax.chain(clip(1.0), some))


def test_an_object_around_clipped_grad_is_not_taken_for_it():
    class Scaled:
        def __init__(self, function):
            functools.update_wrapper(self, function)

        def __call__(self, *args):
            return jax.tree.map(lambda g: 10 * g, self.__wrapped__(*args))

    gradient = dpjax.clipped_grad(lambda p, x: jnp.sum(p["a"]) * x, 0.5)
    with pytest.raises(ValueError, match="gradient must be a function that clipped_grad returned"):
        transforms.released(noise(0.55, key()), Scaled(gradient), params=PARAMS)
    found = transforms.released(noise(0.55, key()), jax.jit(gradient), params=PARAMS)
    assert found == acc.Gaussian(1.1)


@pytest.mark.parametrize(("chain", "words"), REFUSED.values(), ids=REFUSED)
def test_a_chain_that_hands_on_more_than_its_noisy_sum_is_refused(chain, words):
    with pytest.raises(ValueError, match=words):
        transforms.released(chain, params=PARAMS, step=0)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda tx: optax.conditionally_transform(tx, even),
        lambda tx: optax.apply_if_finite(tx, 5),
        lambda tx: optax.GradientTransformation(
            tx.init, lambda u, s, p=None: (tx.update(u, s, p)[0], norm_of(u))
        ),
    ],
    ids=["passed on as they are", "a condition on them", "kept in the state"],
)
def test_updates_of_clipped_grad_that_pass_by_the_noise_are_refused(wrapped):
    gradient = dpjax.clipped_grad(lambda p, x: jnp.sum(p["a"]) * x, 0.5)
    with pytest.raises(ValueError, match="clip and perturb every update"):
        transforms.released(wrapped(noise(0.55, key())), gradient, params=PARAMS)


def halved(updates, state, draw):
    out, state = draw(updates, state)
    return jax.tree.map(lambda o: o / 2, out), state


def either_half(updates, state, draw):
    """Nothing in every second update; the state moves on where noise was drawn."""
    return jax.lax.cond(
        state.step % 2 == 0, lambda: draw(updates, state), lambda: (zeros(updates), state)
    )


def cut_afterwards(updates, state, draw):
    out, state = draw(updates, state)
    return optax.clip_by_global_norm(norm_of(out) / 2).update(out, optax.EmptyState())[0], state


HONEST = {
    "scaled after": around(halved),
    "nothing in every second": around(either_half),
    "masked in every second": optax.chain(clip(1.0), optax.conditionally_mask(good, even)),
    "cut by what is released": around(cut_afterwards),
    "compiled within": optax.chain(
        clip(1.0), optax.GradientTransformation(good.init, lambda u, s, p=None: within(u, s))
    ),
    "two parts": optax.chain(clip(1.0), apart(good, noise(1.1, key(1)))),
    "checked after": optax.chain(clip(1.0), good, optax.apply_if_finite(optax.sgd(0.1), 5)),
    "with momentum": optax.chain(clip(1.0), good, optax.trace(0.9)),
}


def within(updates, state):
    return jax.jit(lambda s: good.update(updates, s))(state)


@pytest.mark.parametrize("chain", HONEST.values(), ids=HONEST)
@pytest.mark.at_length(every=2)
def test_an_honest_chain_is_read_and_moves_as_little_as_it_says(chain):
    """By its draws: noise, and the shift by one record of norm 1, of one update with one key."""
    assert transforms.released(chain, params=PARAMS) == acc.Gaussian(1.1)
    params = {"a": jnp.zeros(3000), "b": jnp.zeros((50, 20))}
    state = chain.init(params)
    outs = []
    for size in (0.0, 9.0):
        record = jax.tree.map(functools.partial(jnp.full_like, fill_value=size), params)
        batch = jax.tree.map(lambda leaf: leaf[None], record)
        outs.append(ravel_pytree(chain.update(batch, state, params)[0])[0])
    ratio = np.std(outs[0]) / np.linalg.norm(outs[1] - outs[0])
    assert ratio > 1.1 * (1 - 5 / np.sqrt(2 * 4000))  # 5 standard deviations of the estimate


def test_a_condition_after_the_noise_or_on_the_step_changes_no_mechanism():
    gradient = dpjax.clipped_grad(lambda p, x: jnp.sum(p["a"]) * x, 0.5)
    after = optax.chain(noise(0.55, key()), optax.apply_if_finite(optax.adam(0.1), 5))
    no_step = optax.conditionally_mask(noise(0.55, key()), lambda step, **_: step < 3)
    for chain in (after, no_step):
        assert transforms.released(chain, gradient, params=PARAMS) == acc.Gaussian(1.1)


def test_parameters_are_asked_for_where_they_matter():
    chain = optax.chain(clip(1.0), apart(noise(1.0, key()), noise(1.0, key())))
    with pytest.raises(ValueError, match=r"params must be given .* got None"):
        transforms.released(chain)


def test_noise_inside_multisteps_is_one_release_of_the_mean_of_its_batches():
    """As docs/training.md prices it: k batches, one draw, sensitivity C/k of the mean."""
    with jax.debug_key_reuse(False):  # it selects between states, keys included
        _release_of_the_mean()


def _release_of_the_mean():
    tx = optax.MultiSteps(noise(1.0, key()), 4)
    x = jnp.zeros(2000)
    state = tx.init(x)
    update = jax.jit(tx.update)
    outs = []
    for i in range(8):
        record = x.at[0].set(100.0) if i == 5 else x  # one record in one of the second four
        out, state = update(record, state)
        outs.append(np.asarray(out))
    assert int(state.inner_opt_state.step) == 2
    assert not np.any(outs[:3] + outs[4:7])
    assert 0.9 < np.std(outs[3]) < 1.1
    tx = optax.MultiSteps(noise(0.0, key()), 4)
    state = tx.init(x)
    for i in range(4):
        out, state = tx.update(x.at[0].set(100.0) if i == 1 else x, state)
    np.testing.assert_allclose(out[0], 25.0, rtol=1e-6)


def test_what_is_not_priced_by_its_update_says_how_it_is():
    selective = transforms.selective_update(0.1, 1.0, 64, key(2), attempts=9)
    clip, noise = transforms.clip_per_example(1.0), transforms.gaussian_noise(1.0, key(1))
    with pytest.raises(ValueError, match=r"selective_update, which is priced by its attempts"):
        transforms.released(optax.chain(clip, noise, selective))
    with pytest.raises(ValueError, match="importance_mean, which is priced"):
        transforms.released(transforms.importance_mean(1.0, 1.0, 10, key()))
