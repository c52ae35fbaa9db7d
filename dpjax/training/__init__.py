"""The private training loop: plan, run, resume, evaluate.

>>> import dpjax, optax, jax, jax.numpy as jnp
>>> from dpjax import training
>>> x = jax.random.normal(jax.random.key(0), (400, 5))
>>> y = (x[:, 0] > 0).astype(jnp.int32)
>>> model = training.logistic(features=5)
>>> plan = training.make_plan(400, epsilon=2.0, delta=1e-4, steps=50, batch_size=100)
>>> result = training.fit(
...     training.cross_entropy(model), model.init(jax.random.key(1)), (x, y), plan,
...     optimizer=optax.sgd(1.0), key=jax.random.key(2))
>>> training.accuracy(model, x, y)(result.params) > 0.8, plan.epsilon() <= 2.0
(True, True)
"""

from dpjax._files import write_atomically
from dpjax.training.batch_norm import WithoutBatchNorm, replace_batch_norm
from dpjax.training.checkpoint import CheckpointError, Checkpoints, discard_key
from dpjax.training.compare_noise import Compared, compare_noise
from dpjax.training.data import HostData
from dpjax.training.devices import Placement, data_parallel, fully_sharded
from dpjax.training.fit import Fit, fit
from dpjax.training.flax_models import from_linen, from_nnx
from dpjax.training.link import ClippedLink
from dpjax.training.loop import progress_line
from dpjax.training.low_rank import Lora, lora
from dpjax.training.make_plan import make_plan
from dpjax.training.models import (
    Model,
    accuracy,
    cross_entropy,
    logistic,
    mlp,
    probabilities,
    softmax,
    train_without_privacy,
)
from dpjax.training.normalise import group_normalise, standardise_weights
from dpjax.training.one_step import TrainingStep, training_step
from dpjax.training.options import augmented, exponential_average, tail_average
from dpjax.training.parameter_noise import parameter_noise_std
from dpjax.training.plan import Plan
from dpjax.training.saved import SavedModel, load_model, save_model
from dpjax.training.saved_like import save_like
from dpjax.training.search import Search, compile_train, search
from dpjax.training.users import per_user

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "ClippedLink",
    "Compared",
    "Fit",
    "HostData",
    "Lora",
    "Model",
    "Placement",
    "Plan",
    "SavedModel",
    "Search",
    "TrainingStep",
    "WithoutBatchNorm",
    "accuracy",
    "augmented",
    "compare_noise",
    "compile_train",
    "cross_entropy",
    "data_parallel",
    "discard_key",
    "exponential_average",
    "fit",
    "from_linen",
    "from_nnx",
    "fully_sharded",
    "group_normalise",
    "load_model",
    "logistic",
    "lora",
    "make_plan",
    "mlp",
    "parameter_noise_std",
    "per_user",
    "probabilities",
    "progress_line",
    "replace_batch_norm",
    "save_like",
    "save_model",
    "search",
    "softmax",
    "standardise_weights",
    "tail_average",
    "train_without_privacy",
    "training_step",
    "write_atomically",
]
