"""Models as two pure functions, and adapters for flax; models that mix records are refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpjax._extras import extra

__all__ = ["Model", "cross_entropy", "from_linen", "from_nnx", "logistic", "mlp", "softmax"]

Params = Any
_WHY_NO_BATCH_NORM = (
    "batch normalisation makes the gradient of one record depend on the others of its batch, "
    "so clipping it does not bound what one record can change; use GroupNorm or LayerNorm instead"
)
_WHY_PARAMETERS_ALONE = "only parameters are trained privately, so the rest must not depend on data"


class Model(NamedTuple):
    """A classifier as pure functions of one record.

    Fields:
        init: key -> parameters, drawn without looking at data.
        apply: (parameters, features of one record) -> logits, [classes]; of models with dropout
            also (parameters, features, key), which drops units as training does.
        architecture: what `load_model` rebuilds it from, if it is one of `logistic`, `softmax` and
            `mlp`.

    Example:
        >>> model = logistic(features=3)
        >>> model.apply(model.init(jax.random.key(0)), jnp.ones(3)).shape
        (2,)
    """

    init: Callable[[Key[Array, ""]], Params]
    apply: Callable[..., Float[Array, " classes"]]
    architecture: Mapping[str, Any] | None = None


def logistic(features: int) -> Model:
    """Logistic regression: two classes with logits (0, z), z = ⟨weights, x⟩ + bias, from zero.

    Example:
        >>> jax.tree.map(jnp.shape, logistic(4).init(jax.random.key(0)))
        {'bias': (), 'weights': (4,)}
    """

    def init(key):
        del key  # a convex problem starts from zero
        return {"weights": jnp.zeros(features), "bias": jnp.zeros(())}

    def apply(params, x):
        z = x @ params["weights"] + params["bias"]
        return jnp.stack([jnp.zeros_like(z), z])

    return Model(init, apply, {"kind": "logistic", "features": features})


def softmax(features: int, classes: int) -> Model:
    """Softmax regression, one weight vector a class, from zero.

    Example:
        >>> jax.tree.map(jnp.shape, softmax(4, 3).init(jax.random.key(0)))
        {'bias': (3,), 'weights': (4, 3)}
    """

    def init(key):
        del key  # a convex problem starts from zero
        return {"weights": jnp.zeros((features, classes)), "bias": jnp.zeros(classes)}

    sizes = {"kind": "softmax", "features": features, "classes": classes}
    return Model(init, lambda params, x: x @ params["weights"] + params["bias"], sizes)


def mlp(features: int, classes: int, hidden: Sequence[int] = (64,)) -> Model:
    """A perceptron with tanh units, whose bounded activations suit clipped gradients.

    Example:
        >>> model = mlp(4, 3, hidden=(8,))
        >>> model.apply(model.init(jax.random.key(0)), jnp.ones(4)).shape
        (3,)

    References:
        tanh: Papernot et al. (2021), "Tempered sigmoid activations for deep learning with
        differential privacy".
    """
    sizes = [features, *hidden, classes]

    def init(key):
        layers = []
        for number, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            scale = np.float32(np.sqrt(1 / fan_in))
            draw = jax.random.truncated_normal(
                jax.random.fold_in(key, number), -2.0, 2.0, (fan_in, fan_out)
            )
            layers.append({"weights": scale * draw, "bias": jnp.zeros(fan_out)})
        return layers

    def apply(params, x):
        for layer in params[:-1]:
            x = jnp.tanh(x @ layer["weights"] + layer["bias"])
        return x @ params[-1]["weights"] + params[-1]["bias"]

    shape = {"features": features, "classes": classes, "hidden": list(hidden)}
    return Model(init, apply, {"kind": "mlp", **shape})


def built(architecture: Mapping[str, Any]) -> Model:
    """The model that an architecture describes, as `load_model` finds it."""
    kinds: dict[str, tuple[Callable[..., Model], set[str]]] = {
        "logistic": (logistic, {"features"}),
        "softmax": (softmax, {"features", "classes"}),
        "mlp": (mlp, {"features", "classes", "hidden"}),
    }
    kind = architecture.get("kind") if isinstance(architecture, Mapping) else architecture
    if not isinstance(kind, str) or kind not in kinds or kind is architecture:
        raise ValueError(f"the architecture must be one of {', '.join(kinds)}, got {kind!r}")
    make, names = kinds[kind]
    sizes = {name: size for name, size in architecture.items() if name != "kind"}
    hidden = sizes.get("hidden", [])
    widths = [*(s for n, s in sizes.items() if n != "hidden"), *_listed(hidden)]
    if set(sizes) != names or not all(type(width) is int and width >= 1 for width in widths):
        raise ValueError(
            f"the architecture {kind!r} must have {', '.join(sorted(names))}, sizes of at least 1, "
            f"got {sizes}"
        )
    return make(**sizes)


def _listed(hidden: Any) -> list[Any]:
    return hidden if isinstance(hidden, list) else [hidden, None]  # no size: it is refused


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
        ValueError: a module with batch statistics, or with state besides its parameters.

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
    dropping, plain = dict(when_training or {}), dict(otherwise or {})

    def init(key):
        collections = dict(module.init(key, example[None], **plain))
        if "batch_stats" in collections:
            raise ValueError(
                f"{type(module).__name__} must not normalise over a batch, got batch_stats: "
                f"{_WHY_NO_BATCH_NORM}"
            )
        params = collections.pop("params", {})
        if collections:
            raise ValueError(
                f"{type(module).__name__} must hold parameters alone, got "
                f"{', '.join(collections)}: {_WHY_PARAMETERS_ALONE}"
            )
        return params

    def apply(params, x, key=None):
        if key is None:
            return module.apply({"params": params}, x[None], **plain)[0]
        return module.apply({"params": params}, x[None], rngs={"dropout": key}, **dropping)[0]

    # Shapes alone tell; a refusal belongs where the model is made, not in the middle of a run.
    jax.eval_shape(init, jax.random.key(0))
    return Model(init, apply)


def from_nnx(make: Callable[[Any], Any]) -> Model:
    """A flax.nnx module as a model; `make(rngs)` builds it.

    `apply(params, x)` is the module in its `eval()` form. `apply(params, x, key)` is it in its
    `train()` form, every stream of its random numbers begun anew from the key.

    Raises:
        ValueError: a module with batch statistics or other state that a call would change.

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

    def build(key, training=False):
        module = make(nnx.Rngs(key))
        module.train() if training else module.eval()
        return nnx.split(module, nnx.Param, nnx.BatchStat, ...)

    def shapes(training=False):
        return nnx.eval_shape(lambda: build(jax.random.key(0), training))

    _, _, statistics, rest = shapes()
    if jax.tree.leaves(statistics):
        raise ValueError(
            f"the module must not normalise over a batch, got BatchStat: {_WHY_NO_BATCH_NORM}"
        )
    others = jax.tree.leaves(rest, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    if not all(isinstance(variable, nnx.RngState) for variable in others):
        raise ValueError(
            f"the module must hold parameters alone, got other variables: {_WHY_PARAMETERS_ALONE}"
        )

    def init(key):
        return nnx.to_pure_dict(build(key)[1])

    def apply(params, x, key=None):
        graph, state, _, random = shapes(training=key is not None)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state, _streams(random, key))(x[None])[0]

    return Model(init, apply)


def _streams(random: Any, key: Any) -> Any:
    """The state of a module's random numbers as at their beginning, one key a stream."""
    if key is None:
        key = jax.random.key(0)  # which the module in its `eval()` form does not draw from
    elif not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    numbers = itertools.count()

    def begun(leaf):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.fold_in(key, next(numbers))
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(begun, random)


def cross_entropy(
    model: Model,
) -> Callable[..., Float[Array, ""]]:
    """The loss −log p(label) of one record (features, label), for `fit` and `clipped_grad`.

    With a key as its third argument, `fit(loss_takes_key=True)`, the model drops units.

    Example:
        >>> loss = cross_entropy(logistic(3))
        >>> params = {"weights": jnp.zeros(3), "bias": jnp.zeros(())}
        >>> round(float(loss(params, (jnp.ones(3), jnp.asarray(1)))), 4)
        0.6931
    """

    def loss(params, example, *key):
        features, label = example
        return -jax.nn.log_softmax(model.apply(params, features, *key))[label]

    return loss
