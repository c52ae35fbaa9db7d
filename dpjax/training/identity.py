"""What has to agree before the key of a run that is kept draws noise again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

import dpjax
from dpjax._numerics.persons import number_persons
from dpjax.training import devices, fingerprint
from dpjax.training.checkpoint import CheckpointError
from dpjax.training.data import HostData
from dpjax.training.fingerprint import UnhashableProgram, array_digest, source_digest
from dpjax.training.loop import Metrics
from dpjax.training.step import digest_programs
from dpjax.training.step_config import StepConfig
from dpjax.training.users import as_user_array

if TYPE_CHECKING:
    from dpjax._numerics.typing import Params, PRNGKey
    from dpjax.training.run import RunArrays
    from dpjax.training.typing import RunData

# What decides the numbers of a key and the bits of a sum. They are compared first: under another of
# them much else differs.
_SETTINGS = (
    "jax_threefry_partitionable",
    "jax_default_prng_impl",
    "jax_random_seed_offset",
    "jax_enable_x64",
    "jax_explicit_x64_dtypes",
    "jax_default_matmul_precision",
    "jax_disable_jit",
)


def identify_run(
    config: StepConfig,
    arrays: RunArrays,
    metrics: Metrics,
    owners: Mapping[str, Any],
    identity: Mapping[str, Any],
    key: PRNGKey,
) -> dict[str, object]:
    """All that must agree before a stored key draws noise again; the key keys its digests."""
    # With one of them changed, the same key would add the same noise to another sum, and the
    # difference of the two outputs would be free of noise.
    secret, data = np.asarray(jax.random.key_data(key)).tobytes(), arrays.data
    if arrays.given is not None:
        # The leader has to see all of it, and sees its own copies.
        data, params = arrays.given
        if not isinstance(data, HostData):
            data = jax.tree.map(devices.as_device_type, data)
        config = config._replace(params=jax.tree.map(jnp.asarray, params))
    of_jax = _describe_jax(key)
    software = f"dpjax {dpjax.__version__} ({source_digest()}), jax {jax.__version__}"
    found: dict[str, object] = {
        "software": software,
        **of_jax,
        "rows of the metrics": metrics.every,
    }
    found |= {"columns of the metrics": metrics.names, "capacity": config.capacity}
    found |= {"method": config.method, **identity, **owners}
    if owners:
        # A step draws numbers of users in their order, whatever they are called.
        owner = number_persons(as_user_array(owners["users"]))
        found["users"] = array_digest(owner, secret=secret)
    plan, params = config.plan, config.params
    found |= of_jax | {
        "data": _digest_data(data, plan.population, secret),
        "mechanism": repr(plan.mechanism),
        # To the last bit: the line above rounds arrays.
        "mechanism's numbers": array_digest(plan.mechanism),
        "clip norm": plan.clip_norm,
        "records": plan.population,
        "delta": plan.delta,
        "reserved delta": dict(plan.extra_delta),
        "adjacency": plan.adjacency.value,
        "trainable arrays": _list_paths(params),
        "initial parameters": array_digest(params, secret=secret),
        "frozen parameters": array_digest(arrays.frozen, secret=secret),
        "strategy of clipping": fingerprint.strategy_digest(config.scaling),
    }
    if plan.correlation is not None:  # C and C⁻¹ have one price, and draw other noise
        found["strategy"] = repr(plan.correlation)
    if plan.adaptive is not None:
        found["adaptive clip norm"] = repr(plan.adaptive)
    try:
        programs = digest_programs(config, arrays.example, secret=secret)
    except UnhashableProgram as error:
        raise CheckpointError(
            "loss, optimizer, average and clipping must be known again in a run with a folder, "
            f"and one of them calls {error}, a function of Python's that no digest tells from "
            "another: write it in JAX, or leave folder out"
        ) from None
    programs["optimiser"] += array_digest(config.optimizer.init(params), secret=secret)
    return found | programs


def _list_paths(params: Params) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]


def _describe_jax(key: PRNGKey) -> dict[str, str]:
    """The settings of JAX that decide the numbers of a key and the bits of a sum."""
    found = {name: str(getattr(jax.config, name, None)) for name in _SETTINGS}
    if "threefry" not in str(jax.random.key_impl(key)):  # the device's own generator
        found["kind of device"] = jax.default_backend()
    return found


def _digest_data(data: RunData, population: int, secret: bytes) -> str:
    if isinstance(data, HostData):
        return data.fingerprint(secret)

    # A run may go on on a number of devices that pads the records differently.
    def cut(leaf: Array) -> ArrayLike:
        return leaf if len(leaf) == population else np.asarray(leaf)[:population]

    return array_digest(jax.tree.map(cut, data), secret=secret)
