"""Modules of flax as models."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dpjax._extras import extra
from dpjax._numerics.checks import is_from_package, render
from dpjax._numerics.typing import Params, PRNGKey
from dpjax.training.models import Model, describe_module

if TYPE_CHECKING:
    from flax import nnx


_WHY_NO_BATCH_NORM = (
    "batch normalisation makes the gradient of one record depend on the others of its batch, "
    "so clipping it does not bound what one record can change; use GroupNorm or LayerNorm instead "
    "(training.replace_batch_norm puts the first there)"
)


_WHY_PARAMETERS_ALONE = "only parameters are trained privately, so the rest must not depend on data"


def from_linen(
    module: Any,
    example: Float[Array, ...],
    *,
    when_training: Mapping[str, Any] | None = None,
    otherwise: Mapping[str, Any] | None = None,
) -> Model:
    """A flax.linen module as a model; `apply(params, x, key)` runs it with dropout.

    Args:
        module: of flax.linen, of batches.
        example: one record's features, for their shape.
        when_training: arguments of the module's call where a key is given, such as
            `{"deterministic": False}` or `{"train": True}`.
        otherwise: the same where none is, such as `{"deterministic": True}`.

    Raises:
        ValueError: no module of flax.linen, or one with batch statistics or other state besides its
            parameters.
        TypeError: a module that takes more than a record's features, or returns more than an array.

    Example:
        >>> import flax.linen as nn
        >>> model = from_linen(nn.Dense(2), jnp.ones(3))
        >>> model.apply(model.init(jax.random.key(0)), jnp.ones(3)).shape
        (2,)
        >>> dropped = from_linen(
        ...     nn.Dropout(0.5), jnp.ones(4), when_training={"deterministic": False},
        ...     otherwise={"deterministic": True})
        >>> dropped.apply({}, jnp.ones(4)).tolist()
        [1.0, 1.0, 1.0, 1.0]
        >>> set(dropped.apply({}, jnp.ones(4), jax.random.key(0)).tolist()) <= {0.0, 2.0}
        True
    """
    if isinstance(module, type) or not is_from_package(module, "flax.linen", "Module"):
        raise ValueError(
            f"module must be a flax.linen module, built, got {render(module)}: one of "
            "flax.nnx comes in by from_nnx, of equinox as the parameters themselves"
        )
    dropping, plain = dict(when_training or {}), dict(otherwise or {})
    name = type(module).__name__
    for arguments in (plain, dropping):
        _check_call(module, arguments)

    def init(key: PRNGKey):
        collections = dict(module.init(key, example[None], **plain))
        if "batch_stats" in collections:
            raise ValueError(
                f"{name} must not normalise over a batch, got batch_stats: {_WHY_NO_BATCH_NORM}"
            )
        params = collections.pop("params", {})
        if collections:
            raise ValueError(
                f"{name} must hold parameters alone, got {', '.join(collections)}: "
                f"{_WHY_PARAMETERS_ALONE}"
            )
        return params

    def apply(params: Params, x: Array, key: PRNGKey | None = None):
        if key is None:
            return _take_first(module.apply({"params": params}, x[None], **plain), name)
        rngs = {"dropout": key}
        return _take_first(module.apply({"params": params}, x[None], rngs=rngs, **dropping), name)

    # Shapes alone tell; a refusal belongs where the model is made, not in the middle of a run.
    jax.eval_shape(lambda key: apply(init(key), example), jax.random.key(0))
    return Model(init, apply)


_OWN_LOSS = "write the loss of one record, loss(params, example), yourself"


def _check_call(module: object, arguments: Mapping[str, object]) -> None:
    """Refuse a module whose call takes more than features, beside these arguments."""
    if not callable(module):
        return
    signature = inspect.signature(module.__call__)
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        raise TypeError(
            f"module must take the features of records alone, got {type(module).__name__}"
            f"{signature} ({error}): {_OWN_LOSS}, which calls the module with all that it takes"
        ) from None


def _take_first(outputs: object, name: str) -> Array:
    """The one record's logits of what a module returned for a batch of it."""
    if not isinstance(outputs, jax.Array):
        raise TypeError(
            f"module must return one array, got a {type(outputs).__name__} from {name}: "
            f"{_OWN_LOSS}, and take the logits out of it there"
        )
    return outputs[0]


def from_nnx(make: Callable[..., Any]) -> Model:
    """A flax.nnx module as a model; `make(rngs)`, or `make(rngs=rngs)`, builds it.

    `apply(params, x)` is the module in its `eval()` form. `apply(params, x, key)` is it in its
    `train()` form, every stream of its random numbers begun anew from the key.

    Raises:
        TypeError, ValueError: a module that is built already, a function that takes something else
            than `rngs` or builds no module of them, batch statistics, or other state that a call
            would change, a module that takes more than a record's features; and where it is
            applied, one that returns more than an array.

    Example:
        >>> from flax import nnx
        >>> model = from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
        >>> model.apply(model.init(jax.random.key(0)), jnp.ones(3)).shape
        (2,)
        >>> dropped = from_nnx(lambda rngs: nnx.Dropout(0.5, rngs=rngs))
        >>> dropped.apply({}, jnp.ones(4)).tolist()
        [1.0, 1.0, 1.0, 1.0]
        >>> set(dropped.apply({}, jnp.ones(4), jax.random.key(0)).tolist()) <= {0.0, 2.0}
        True
    """
    with extra("train"):
        from flax import nnx

    if not callable(make) or isinstance(make, nnx.Module):
        raise ValueError(
            "make must be a function or class that builds the module, got "
            f"{describe_module(make)} that is built: write "
            "training.from_nnx(lambda rngs: Net(rngs=rngs))"
        )
    build_module = _make_builder(make)

    def build(key: PRNGKey, training: bool = False):
        module = build_module(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise TypeError(f"make must return a module of flax.nnx, got {render(module)}")
        _check_call(module, {})
        module.train() if training else module.eval()
        return nnx.split(module, nnx.Param, nnx.BatchStat, ...)

    def shapes(training: bool = False):
        return nnx.eval_shape(lambda: build(jax.random.key(0), training))

    _, _, statistics, rest = shapes()  # without computing anything
    if jax.tree.leaves(statistics):
        raise ValueError(
            f"the module must not normalise over a batch, got BatchStat: {_WHY_NO_BATCH_NORM}"
        )
    others = jax.tree.leaves(rest, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    if not all(isinstance(variable, nnx.RngState) for variable in others):
        raise ValueError(
            f"the module must hold parameters alone, got other variables: {_WHY_PARAMETERS_ALONE}"
        )

    def init(key: PRNGKey):
        return nnx.to_pure_dict(build(key)[1])

    def apply(params: Params, x: Array, key: PRNGKey | None = None):
        graph, state, _, random = shapes(training=key is not None)
        nnx.replace_by_pure_dict(state, params)
        module = nnx.merge(graph, state, _begin_streams(random, key))
        return _take_first(module(x[None]), type(module).__name__)

    return Model(init, apply)


_BY_RNGS = "write training.from_nnx(lambda rngs: Net(rngs=rngs))"


def _make_builder(make: Callable[..., nnx.Module]) -> Callable[[nnx.Rngs], nnx.Module]:
    """`make` as a function of the streams of random numbers alone, whatever it calls them."""
    signature = inspect.signature(make)
    if isinstance(make, type):  # flax's metaclass takes anything: what counts is the class's own
        own = inspect.signature(make.__init__)
        signature = own.replace(parameters=list(own.parameters.values())[1:])
    named = "rngs" in signature.parameters
    try:
        signature.bind(**{"rngs": None}) if named else signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"make must take rngs alone, got {signature} ({error}): {_BY_RNGS}"
        ) from None

    def build(rngs: nnx.Rngs) -> nnx.Module:
        if named:
            return make(rngs=rngs)
        try:
            return make(rngs)
        except (TypeError, ValueError) as error:
            # What is called key or seed is taken for one, and flax then says what it was handed.
            name, kind = next(iter(signature.parameters), "rngs"), type(error).__name__
            raise TypeError(
                f"make must build the module from nnx.Rngs, got {kind} where {name} is one: "
                f"{_BY_RNGS}"
            ) from error

    return build


def _begin_streams(random: PyTree, key: PRNGKey | None) -> PyTree:
    """The state of a module's random numbers as at their beginning, one key a stream."""
    if key is None:
        key = jax.random.key(0)  # which the module in its `eval()` form does not draw from
    elif not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    numbers = itertools.count()

    def begin(leaf: Array):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.fold_in(key, next(numbers))
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(begin, random)
