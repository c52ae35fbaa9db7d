"""Small models, and their losses, accuracy and baseline without privacy."""

from __future__ import annotations

import abc
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from dpjax._numerics import checks
from dpjax._numerics.typing import Loss, Params, PRNGKey
from dpjax.training.data import as_array, as_arrays, check_present
from dpjax.training.link import ClippedLink
from dpjax.training.options import check_integer

if TYPE_CHECKING:
    from dpjax.training.typing import RunData


class Model(NamedTuple):
    """A classifier as pure functions of one record.

    Fields:
        init: key -> parameters, drawn without looking at data.
        apply: (parameters, features of one record) -> logits, [classes]; of models with dropout
            also (parameters, features, key), which drops units as training does.
        architecture: what `load_model` rebuilds a `logistic`, `softmax` or `mlp` from.

    Example:
        >>> model = logistic(features=3)
        >>> model.apply(model.init(jax.random.key(0)), jnp.ones(3)).shape
        (2,)
    """

    init: Callable[[PRNGKey], Params]
    apply: Callable[..., Float[Array, " classes"]]
    architecture: Mapping[str, Any] | None = None


def logistic(features: int, link: ClippedLink | None = None) -> Model:
    """Logistic regression: two classes with logits (0, z), z = ⟨weights, x⟩ + bias, from zero.

    Args:
        features: how many.
        link: of a model that was trained with clipped gradients: its logits are then those of the
            probabilities that training meant. Train the model without it.

    Example:
        >>> jax.tree.map(jnp.shape, logistic(4).init(jax.random.key(0)))
        {'bias': (), 'weights': (4,)}
    """

    def apply(params: Params, x: Array):
        z = x @ params["weights"] + params["bias"]
        return jnp.stack([jnp.zeros_like(z), z]) if link is None else link.of_logistic(z, x)

    init = _make_zeros(weights=(features,), bias=())
    return Model(init, apply, {"kind": "logistic", "features": features} | _describe_link(link))


def softmax(features: int, classes: int, link: ClippedLink | None = None) -> Model:
    """Softmax regression, one weight vector a class, from zero.

    Args:
        features, classes: how many.
        link: as of `logistic`.

    Example:
        >>> jax.tree.map(jnp.shape, softmax(4, 3).init(jax.random.key(0)))
        {'bias': (3,), 'weights': (4, 3)}
    """
    init = _make_zeros(weights=(features, classes), bias=(classes,))
    sizes = {"kind": "softmax", "features": features, "classes": classes}

    def apply(params: Params, x: Array):
        scores = x @ params["weights"] + params["bias"]
        return scores if link is None else link.of_softmax(scores, x)

    return Model(init, apply, sizes | _describe_link(link))


def _describe_link(link: ClippedLink | None) -> dict[str, dict[str, float]]:
    """What an architecture says of its link: nothing where there is none."""
    if link is None:
        return {}
    checks.one_number("clip_norm", link.clip_norm, checks.CLIP_NORMS)
    checks.one_number("bias_feature", link.bias_feature, checks.Range(0.0))
    return {"link": {"clip_norm": float(link.clip_norm), "bias_feature": float(link.bias_feature)}}


def _make_zeros(**shapes: tuple[int, ...]) -> Callable[[PRNGKey], Params]:
    # A convex problem starts from zero, whatever the key.
    return lambda key: {name: jnp.zeros(shape) for name, shape in shapes.items()}


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

    def init(key: PRNGKey):
        layers = []
        for number, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            scale = np.float32(np.sqrt(1 / fan_in))  # the variance of the sum stays that of a unit
            draw = jax.random.truncated_normal(
                jax.random.fold_in(key, number), -2.0, 2.0, (fan_in, fan_out)
            )
            layers.append({"weights": scale * draw, "bias": jnp.zeros(fan_out)})
        return layers

    def apply(params: Params, x: Array):
        for layer in params[:-1]:
            x = jnp.tanh(x @ layer["weights"] + layer["bias"])
        return x @ params[-1]["weights"] + params[-1]["bias"]

    shape = {"features": features, "classes": classes, "hidden": list(hidden)}
    return Model(init, apply, {"kind": "mlp", **shape})


def check_model(model: object) -> None:
    """Refuse what has no `apply(parameters, features)`."""
    if isinstance(model, type) or not callable(getattr(model, "apply", None)):
        raise TypeError(
            f"model must be a Model, as from_nnx(make) or from_linen(module, example) makes, got "
            f"{describe_module(model)}: of another module write the loss of one record, "
            "loss(module, example), yourself"
        )


def describe_module(module: object) -> str:
    """A module by its class: its text is long."""
    built = not isinstance(module, type)
    return f"a {type(module).__name__}" if built else f"the class {module.__name__}"


def build_model(architecture: object) -> Model:
    """The model that an architecture describes, as `load_model` finds it."""
    kinds: dict[str, Callable[..., Model]] = {"logistic": logistic, "softmax": softmax, "mlp": mlp}
    described = isinstance(architecture, Mapping)
    kind = architecture.get("kind") if described else architecture
    if not described or not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"the architecture must be one of {', '.join(kinds)}, got {kind!r}")
    names = set(inspect.signature(kinds[kind]).parameters) - {"link"}
    sizes = {name: size for name, size in architecture.items() if name not in ("kind", "link")}
    hidden = sizes.get("hidden", [])
    widths = [size for name, size in sizes.items() if name != "hidden"]
    widths += hidden if isinstance(hidden, list) else [None]  # no size: it is refused
    if set(sizes) != names or not all(type(width) is int and width >= 1 for width in widths):
        raise ValueError(
            f"the architecture {kind!r} must have {', '.join(sorted(names))}, sizes of at least 1, "
            f"got {sizes}"
        )
    if "link" not in architecture:  # as models of before 0.2, and perceptrons
        return kinds[kind](**sizes)
    return kinds[kind](**sizes, link=_read_link(kind, architecture["link"]))


def _read_link(kind: str, described: object) -> ClippedLink:
    """The link that an architecture describes."""
    fields = set(ClippedLink._fields)
    if kind == "mlp" or not isinstance(described, Mapping) or set(described) != fields:
        raise ValueError(
            f"the link of the architecture {kind!r} must be {' and '.join(sorted(fields))} of a "
            f"logistic or softmax model, got {described!r}"
        )
    link = ClippedLink(**described)
    _describe_link(link)  # which refuses what is no such number
    return link


def check_labels(labels: ArrayLike, ndim: int, classes: int | None = None) -> None:
    """Refuse labels that are no class: one whole number in 0…classes − 1 a record."""
    checks.unmasked("labels", labels)
    check_present("labels", labels)
    labels = labels if isinstance(labels, np.ndarray | jax.Array) else np.asarray(labels)
    shape, dtype = labels.shape, labels.dtype
    if len(shape) > ndim:
        how, way = "one-hot labels", "labels.argmax(-1)"
        if shape[-1] == 1:
            how, way = "a column", "labels.squeeze(-1)"
        raise ValueError(
            f"labels must be one whole number a record, got {how} of shape {shape}: give {way}"
        )
    if dtype.kind == "m" or not jnp.issubdtype(dtype.newbyteorder("="), jnp.integer):
        raise TypeError(f"labels must be whole numbers, got {dtype}: give labels.astype(int)")
    if isinstance(labels, jax.core.Tracer) or not np.size(labels):
        return
    low, high = int(np.min(labels)), int(np.max(labels))
    if low < 0 or (classes is not None and high >= classes):
        most = "" if classes is None else f" to {classes - 1}"
        raise ValueError(
            f"labels must be the numbers of classes, from 0{most}, got {low if low < 0 else high}: "
            "number them by np.unique(labels, return_inverse=True)[1], or give the model more "
            "classes"
        )


def cross_entropy(model: Model) -> Loss:
    """The loss −log p(label) of one record (features, label), for `fit` and `clipped_grad`.

    With a key as its third argument, `fit(loss_takes_key=True)`, the model drops units. A label
    that is no class is refused where its value is known, by `fit` before the first step; elsewhere
    the loss of its record is NaN, so that the record contributes nothing.

    Raises:
        TypeError, ValueError: no model, or labels that are not one whole number of a class each.

    Example:
        >>> loss = cross_entropy(logistic(3))
        >>> params = {"weights": jnp.zeros(3), "bias": jnp.zeros(())}
        >>> round(float(loss(params, (jnp.ones(3), jnp.asarray(1)))), 4)
        0.6931
    """
    check_model(model)
    return CrossEntropy(model)


class CheckedLoss(abc.ABC):
    """A loss of one record that can tell beforehand which data it is not made for."""

    @abc.abstractmethod
    def __call__(self, params: Params, example: PyTree[Array], *key: PRNGKey) -> Float[Array, ""]:
        """The loss of one record."""

    @abc.abstractmethod
    def check_data(self, params: Params, data: RunData) -> None:
        """Refuse data that this is no loss for, as far as their values are known."""


class CrossEntropy(CheckedLoss):
    """The loss −log p(label) of one record of a model."""

    def __init__(self, model: Model):
        self.model = model

    def __call__(self, params: Params, example: PyTree[Array], *key: PRNGKey) -> Float[Array, ""]:
        features, label = example
        scores = jax.nn.log_softmax(self.model.apply(params, features, *key))
        classes = scores.shape[-1]
        check_labels(label, 0, classes)
        label = jnp.asarray(label)
        most = min(classes - 1, jnp.iinfo(label.dtype).max)
        is_class = (label >= 0) & (label <= most)
        # The place of a class there is, so that NaN reaches a gradient of every version of JAX.
        place = jnp.where(is_class, label, jnp.zeros_like(label))
        return -scores[place] * jnp.where(is_class, jnp.ones_like(scores[0]), jnp.nan)

    def check_data(self, params: Params, data: RunData) -> None:
        if isinstance(data, tuple | list) and len(data) == 2:
            features = jax.eval_shape(lambda: jax.tree.map(lambda x: jnp.asarray(x[0]), data[0]))
            scores = jax.eval_shape(self.model.apply, params, features)
            check_labels(data[1], 1, scores.shape[-1])


def accuracy(
    model: Model,
    features: Float[ArrayLike, "records features"],
    labels: Int[ArrayLike, " records"],
) -> Callable[[Params], float]:
    """A compiled function from parameters to the share of records classified correctly.

    Raises:
        TypeError, ValueError: no model, no records, another number of labels than of records, or
            labels that are not one whole number of a class each.

    Example:
        >>> score = accuracy(logistic(1), jnp.array([[-1.0], [2.0]]), jnp.array([0, 1]))
        >>> score({"weights": jnp.ones(1), "bias": jnp.zeros(())})
        1.0
    """
    check_model(model)
    check_labels(labels, 1)
    features, labels = as_array("features", features), as_array("labels", labels)
    if np.ndim(labels) != 1 or not len(labels) or np.shape(features)[:1] != labels.shape:
        raise ValueError(
            "features and labels must be of the same records, at least one, got shapes "
            f"{np.shape(features)} and {np.shape(labels)}"
        )
    features, labels = jnp.asarray(features), jnp.asarray(labels)
    records, most = labels.size, int(np.max(labels))

    @jax.jit
    def correct(params: Params, features: Array, labels: Array):
        scores = jax.vmap(model.apply, in_axes=(None, 0))(params, features)
        check_labels(np.asarray(most), 0, scores.shape[-1])
        guesses = jnp.argmax(scores, axis=1)
        return jnp.sum(guesses.astype(labels.dtype) == labels, dtype=jnp.int32)

    return lambda params: int(correct(params, features, labels)) / records


def probabilities(
    model: Model, params: Params, features: Float[ArrayLike, "records features"]
) -> Float[np.ndarray, "records classes"]:
    """The probability of each class for each record: the softmax of the model's logits.

    Example:
        >>> params = {"weights": jnp.zeros(1), "bias": jnp.zeros(())}
        >>> probabilities(logistic(1), params, [[3.0]]).tolist()
        [[0.5, 0.5]]
    """
    logits = jax.jit(jax.vmap(model.apply, in_axes=(None, 0)))
    features = jnp.asarray(as_array("features", features))
    return np.asarray(jax.nn.softmax(logits(params, features), axis=1))


def train_without_privacy(
    loss: Loss,
    params: Params,
    data: PyTree[ArrayLike],
    *,
    steps: int = 2_000,
    batch_size: int = 512,
    learning_rate: float = 0.02,
) -> Params:
    """The same model trained without clipping or noise (Adam, cosine decay): NOT private.

    A yardstick for what privacy costs. Its parameters are released by no mechanism; publish neither
    them nor what is computed from them.

    Example:
        >>> data = (jnp.array([[-1.0], [1.0]]), jnp.array([0, 1]))
        >>> model = logistic(1)
        >>> fitted = train_without_privacy(
        ...     cross_entropy(model), model.init(jax.random.key(0)), data, steps=50)
        >>> float(fitted["weights"][0]) > 0.2
        True
    """
    steps, batch_size = check_integer("steps", steps), check_integer("batch_size", batch_size)
    data = as_arrays(data)
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
    if len(lengths) != 1 or lengths == {()}:
        raise ValueError(
            "data must be arrays that share one leading axis of records, got lengths "
            f"{sorted(lengths)}: of lists of several lengths make one padded array"
        )
    ((records,),) = lengths
    if isinstance(loss, CheckedLoss):
        loss.check_data(params, data)
    size = min(batch_size, records)
    data = jax.tree.map(jnp.asarray, data)
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    rng = np.random.default_rng(0)
    passes = -(-steps * size // records)  # enough of them
    order = np.concatenate([rng.permutation(records) for _ in range(passes)])[: steps * size]

    def step(data: PyTree[Array], carry: tuple[Params, optax.OptState], rows: Array):
        params, state = carry
        batch = jax.tree.map(lambda leaf: leaf[rows], data)

        def mean_loss(params: Params):
            return jnp.mean(jax.vmap(loss, in_axes=(None, 0))(params, batch))

        updates, state = optimizer.update(jax.grad(mean_loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    # The records are an argument, so that no compiled program holds them as constants.
    run = jax.jit(lambda data, carry, rows: jax.lax.scan(partial(step, data), carry, rows)[0])
    rows = jnp.asarray(order.reshape(steps, size), jnp.int32)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        return run(data, (params, optimizer.init(params)), rows)[0]
