"""The benchmark's models in PyTorch, trained one step by Opacus: hooks, and ghost clipping."""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

warnings.filterwarnings("ignore")


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = DPLSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(256), nn.LayerNorm(256)
        self.query, self.key, self.value, self.out = (nn.Linear(256, 256) for _ in range(4))
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        y = self.norm1(x)
        heads = [
            layer(y).unflatten(-1, (4, 64)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        y = nn.functional.scaled_dot_product_attention(*heads)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
}


def model_of(name: str) -> nn.Module | None:
    """The model of that name, such as "perceptron 784-256-10"; None where there is no equal."""
    kind = name.split()[0].rstrip(",")
    if kind in ("logistic", "softmax", "perceptron"):
        widths = [int(width) for width in re.findall(r"\d+", name)]
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        between = [[layer, nn.ReLU()] for layer in layers[:-1]]
        return nn.Sequential(*itertools.chain(*between), layers[-1])
    if name == "CNN, 3 convolutions":
        widths = (3, 16, 32, 64)
        blocks = [
            [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            for a, b in itertools.pairwise(widths)
        ]
        return nn.Sequential(*itertools.chain(*blocks), nn.Flatten(), nn.Linear(64 * 16, 10))
    if kind == "CNN":
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )
    if kind == "transformer":
        blocks = [Block() for _ in range(4)]
        return nn.Sequential(
            nn.Linear(16, 256), *blocks, nn.LayerNorm(256), Mean(), nn.Linear(256, 10)
        )
    if kind == "LSTM":
        return Last()
    if kind == "embedding":
        return nn.Sequential(nn.Embedding(10_000, 64), Mean(), nn.Linear(64, 2))
    return None


def steps(
    name: str, x: Any, y: Any, clip: float, sigma: float, rate: float, optimizer: str = "sgd"
) -> dict[str, Callable[[], Any]]:
    """One training step of every kind, as functions without arguments."""
    update = functools.partial(OPTIMIZERS[optimizer], lr=rate)
    inputs, labels = torch.tensor(x), torch.tensor(y, dtype=torch.long)
    if name.startswith("CNN"):
        inputs = inputs.permute(0, 3, 1, 2).contiguous()
    if inputs.dtype == torch.int32:
        inputs = inputs.long()
    settings = {
        "noise_multiplier": sigma,
        "max_grad_norm": clip,
        "expected_batch_size": len(labels),
    }
    found: dict[str, Callable[[], Any]] = {}

    plain = model_of(name)
    if plain is None:
        return found
    plainly = update(plain.parameters())

    def non_private():
        plainly.zero_grad()
        nn.functional.cross_entropy(plain(inputs), labels).backward()
        plainly.step()

    found["PyTorch non-private"] = non_private

    hooked = GradSampleModule(model_of(name))
    private = DPOptimizer(update(hooked.parameters()), **settings)

    def hooks():
        private.zero_grad()
        nn.functional.cross_entropy(hooked(inputs), labels).backward()
        private.step()

    found["Opacus hooks"] = hooks
    if name.startswith("LSTM"):
        return found  # no ghost rule for DPLSTM's gates

    ghostly = GradSampleModuleFastGradientClipping(
        model_of(name), max_grad_norm=clip, use_ghost_clipping=True
    )
    clipping = DPOptimizerFastGradientClipping(update(ghostly.parameters()), **settings)
    criterion = DPLossFastGradientClipping(ghostly, clipping, nn.CrossEntropyLoss())

    def ghost():
        clipping.zero_grad()
        criterion(ghostly(inputs), labels).backward()
        clipping.step()

    found["Opacus ghost"] = ghost
    return found
