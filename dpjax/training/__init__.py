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
from dpjax.training.augment import augmented
from dpjax.training.averaging import exponential_average, tail_average
from dpjax.training.checkpoint import Checkpoints, discard_key
from dpjax.training.errors import CheckpointError
from dpjax.training.evaluation import accuracy, probabilities, train_without_privacy
from dpjax.training.fit import fit
from dpjax.training.lora import Lora, lora
from dpjax.training.make_plan import make_plan
from dpjax.training.models import (
    Model,
    cross_entropy,
    from_linen,
    from_nnx,
    logistic,
    mlp,
    softmax,
)
from dpjax.training.placement import Placement, data_parallel, fully_sharded
from dpjax.training.plan import Plan
from dpjax.training.result import Fit
from dpjax.training.saved import SavedModel, load_model, save_model
from dpjax.training.sources import HostData
from dpjax.training.speed import progress_line
from dpjax.training.training_step import TrainingStep, training_step
from dpjax.training.users import per_user

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Fit",
    "HostData",
    "Lora",
    "Model",
    "Placement",
    "Plan",
    "SavedModel",
    "TrainingStep",
    "accuracy",
    "augmented",
    "cross_entropy",
    "data_parallel",
    "discard_key",
    "exponential_average",
    "fit",
    "from_linen",
    "from_nnx",
    "fully_sharded",
    "load_model",
    "logistic",
    "lora",
    "make_plan",
    "mlp",
    "per_user",
    "probabilities",
    "progress_line",
    "save_model",
    "softmax",
    "tail_average",
    "train_without_privacy",
    "training_step",
    "write_atomically",
]
