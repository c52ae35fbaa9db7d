"""Models without batch normalisation, made from models with it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jaxtyping import Array, Float

from dpjax._extras import extra
from dpjax._numerics.checks import whole
from dpjax.gradients.strategies import path_name
from dpjax.training.models import describe_module

if TYPE_CHECKING:
    from flax import linen, nnx

_FEWEST = 4  # channels of a group: one of few numbers says little after it was normalised


class WithoutBatchNorm(NamedTuple):
    """A module with group normalisation in the place of batch normalisation.

    Fields:
        module: the new one; the one that was given stays as it is.
        changed: {path of a batch normalisation: what stands there now, in words}.

    Example:
        >>> from flax import nnx
        >>> found = replace_batch_norm(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> type(found.module).__name__, found.changed
        ('Linear', {})
    """

    module: nnx.Module | linen.Module
    changed: dict[str, str]


def replace_batch_norm(
    module: nnx.Module | linen.Module,
    example: Float[Array, ...] | None = None,
    *,
    otherwise: Mapping[str, Any] | None = None,
    groups: int = 32,
) -> WithoutBatchNorm:
    """A flax module with every batch normalisation replaced by group normalisation.

        of one record: (x − mean) / √(variance + epsilon)·scale + bias, mean and variance of each
        group of its channels, over its places

    Channels are cut into the most groups that divide them, at most `groups` and of at least four
    channels each, or one. Scale, bias, epsilon and dtypes are taken over, under the same paths;
    running statistics are gone. A model that was trained with them gives other results until it is
    trained on.

    Args:
        module: of flax.nnx, or of flax.linen, of batches with channels last.
        example: of linen, one record's features, as for `from_linen`: its layers are seen in a
            call alone.
        otherwise: of linen, arguments of that call, such as `{"train": False}`.
        groups: the most groups.

    Returns:
        `WithoutBatchNorm(module, changed)`, for `from_nnx`, `from_linen` or a loss of your own.
        What asks a normalisation for running averages is answered by the record's own.

    Raises:
        TypeError: no module of flax.
        ValueError: groups below 1, channels that are not last, of linen no example.

    Guarantee:
        What a normalisation gives for one record does not depend on others of its batch, so that a
        clipped gradient bounds what a record changes.

    Example:
        >>> import flax.linen as nn, jax, jax.numpy as jnp
        >>> from dpjax import training
        >>> net = nn.Sequential([nn.Dense(8), nn.BatchNorm(use_running_average=True), nn.Dense(2)])
        >>> found = replace_batch_norm(net, jnp.ones(3))
        >>> found.changed
        {'layers_1': 'BatchNorm of 8 channels is GroupNorm in 2 groups'}
        >>> model = training.from_linen(found.module, jnp.ones(3))
        >>> jax.tree.map(jnp.shape, model.init(jax.random.key(0))["layers_1"])
        {'bias': (8,), 'scale': (8,)}

    References:
        Wu and He 2018, "Group normalization"; the same replacement in PyTorch is Opacus's
        `ModuleValidator.fix`.
    """
    most = whole("groups", groups)
    with extra("train"):
        from flax import linen, nnx
    if isinstance(module, nnx.Module):
        return _replace_in_nnx(module, most)
    if isinstance(module, linen.Module):
        if example is None:
            raise ValueError(
                "example must be one record's features where the module is of flax.linen, whose "
                "layers are seen in a call alone, got None"
            )
        return _replace_in_linen(module, example, dict(otherwise or {}), most)
    raise TypeError(
        f"module must be a module of flax.nnx or flax.linen, built, got {describe_module(module)}: "
        "of equinox put eqx.nn.GroupNorm there by eqx.tree_at"
    )


def _count_groups(channels: int, most: int) -> int:
    """How many groups channels are cut into."""
    able = (g for g in range(1, min(most, channels // _FEWEST) + 1) if channels % g == 0)
    return max(able, default=1)


def _describe(channels: int, groups: int) -> str:
    cut = "1 group" if groups == 1 else f"{groups} groups"
    return f"BatchNorm of {channels} channels is GroupNorm in {cut}"


def _check_channels_last(axis: object, path: str) -> None:
    if axis != -1:
        raise ValueError(
            f"module must normalise channels that are last, axis=-1, got axis={axis} at {path}"
        )


@functools.cache
def _nnx_group_norm() -> type[nnx.GroupNorm]:
    """The group normalisation of nnx that is called as its batch normalisation is."""
    with extra("train"):
        from flax import nnx

    class GroupNorm(nnx.GroupNorm):
        def __call__(
            self, x: Array, use_running_average: object = None, *, mask: Array | None = None
        ) -> Array:
            del use_running_average  # a record has nothing but its own
            return super().__call__(x, mask=mask)

    return GroupNorm


def _replace_in_nnx(module: nnx.Module, most: int) -> WithoutBatchNorm:
    with extra("train"):
        from flax import nnx

    changed: dict[str, str] = {}
    made: dict[int, nnx.GroupNorm] = {}  # one that stands in several places stays one

    def replace(path: jax.tree_util.KeyPath, part: object) -> object:
        if not isinstance(part, nnx.BatchNorm):
            return part
        name = path_name(path) or type(part).__name__
        _check_channels_last(part.axis, name)
        channels = part.num_features
        count = _count_groups(channels, most)
        changed[name] = _describe(channels, count)
        if id(part) not in made:
            new = _nnx_group_norm()(
                channels,
                num_groups=count,
                epsilon=part.epsilon,
                dtype=part.dtype,
                param_dtype=part.param_dtype,
                use_bias=part.use_bias,
                use_scale=part.use_scale,
                rngs=nnx.Rngs(0),
            )
            if part.use_scale:
                new.scale = part.scale
            if part.use_bias:
                new.bias = part.bias
            made[id(part)] = new
        return made[id(part)]

    def is_whole(part: object) -> bool:
        return isinstance(part, nnx.BatchNorm | nnx.Variable)

    copied = nnx.clone(module)  # variables in several places stay one, too
    found = jax.tree_util.tree_map_with_path(replace, copied, is_leaf=is_whole)
    return WithoutBatchNorm(found, changed)


@functools.cache
def _linen_wrapper() -> Callable[..., linen.Module]:
    """The class of modules of linen that call another one, batch normalisation replaced."""
    with extra("train"):
        from flax import linen as nn

    class GroupNormalised(nn.Module):
        own_module: nn.Module
        most: int
        log: Callable[[str, str], None] | None = None

        def setup(self) -> None:
            nn.share_scope(self, self.own_module)  # the same paths as without this class

        def __call__(self, *args: object, **kwargs: object) -> object:
            with nn.intercept_methods(self._replace):
                return self.own_module(*args, **kwargs)

        @nn.nowrap
        def _replace(
            self,
            call: Callable[..., object],
            args: tuple[Array, ...],
            kwargs: dict[str, Array],
            context: nn.module.InterceptorContext,
        ) -> object:
            norm = context.module
            if not (isinstance(norm, nn.BatchNorm) and context.method_name == "__call__"):
                return call(*args, **kwargs)
            x = args[0] if args else kwargs["x"]
            path = norm.path[norm.path[:1] == ("own_module",) :]  # as in the parameters
            name = "/".join(path) or type(norm).__name__
            _check_channels_last(norm.axis, name)
            count = _count_groups(x.shape[-1], self.most)
            if self.log is not None:
                self.log(name, _describe(x.shape[-1], count))
            new = nn.GroupNorm(
                num_groups=count,
                epsilon=norm.epsilon,
                dtype=norm.dtype,
                param_dtype=norm.param_dtype,
                use_bias=norm.use_bias,
                use_scale=norm.use_scale,
                bias_init=norm.bias_init,
                scale_init=norm.scale_init,
            )
            nn.share_scope(norm, new)
            return new(x, mask=kwargs.get("mask"))

    return GroupNormalised


def _replace_in_linen(
    module: linen.Module, example: Array, arguments: dict[str, Any], most: int
) -> WithoutBatchNorm:
    changed: dict[str, str] = {}
    logged = _linen_wrapper()(own_module=module, most=most, log=changed.__setitem__)
    jax.eval_shape(lambda key: logged.init(key, example[None], **arguments), jax.random.key(0))
    return WithoutBatchNorm(_linen_wrapper()(own_module=module, most=most), changed)
