"""The models of the paper's experiments, in flax."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class LogisticRegression(nn.Module):
    """Binary logistic regression: 785 parameters on MNIST, as in the paper's Figure 5."""

    @nn.compact
    def __call__(self, image):
        return nn.Dense(1, kernel_init=nn.initializers.zeros)(image.reshape(-1))[0]


class Convolution(nn.Module):
    """A convolution as one matrix product over patches.

    The same function as `flax.linen.Conv`; per-example gradients take a CPU a quarter of the time.
    """

    features: int
    size: int
    stride: int = 1
    pad: bool = True

    @nn.compact
    def __call__(self, image):
        if self.pad:
            low, high = (self.size - 1) // 2, self.size // 2
            image = jnp.pad(image, ((low, high), (low, high), (0, 0)))
        rows, columns = (1 + (extent - self.size) // self.stride for extent in image.shape[:2])
        shifts = [
            image[i : i + self.stride * (rows - 1) + 1, j : j + self.stride * (columns - 1) + 1]
            for i in range(self.size)
            for j in range(self.size)
        ]
        patches = [shift[:: self.stride, :: self.stride] for shift in shifts]
        return nn.Dense(self.features)(jnp.concatenate(patches, axis=-1))


class SmallCNN(nn.Module):
    """Two 5×5 convolutions (10 and 20 filters), max pooling, 50 hidden units, 10 classes.

    21,840 parameters on MNIST, the number that the paper gives for its "2-layer CNN with Softmax
    activation"; 31,340 on 32×32 colour images.
    """

    @nn.compact
    def __call__(self, image):
        for filters in (10, 20):
            image = Convolution(filters, size=5, pad=False)(image)
            rows, columns, _ = image.shape
            pooled = image.reshape(rows // 2, 2, columns // 2, 2, filters).max(axis=(1, 3))
            image = nn.relu(pooled)
        hidden = nn.relu(nn.Dense(50)(image.reshape(-1)))
        return nn.Dense(10)(hidden)


class SmallResNet(nn.Module):
    """Three residual blocks of two convolutions and one ReLU each, as the paper describes.

    The paper names neither widths, nor a normalisation, nor what stands between the blocks and the
    classes. This has 24,586 parameters at the default widths, no normalisation (a batch's would
    mix the examples, whose gradients are then not per-example gradients), and one dense layer on
    all features: averaged over the image, they learn less in as few steps.
    """

    widths: tuple[int, ...] = (8, 16, 32)

    @nn.compact
    def __call__(self, image):
        image = Convolution(self.widths[0], size=3, stride=2)(image)
        for block, width in enumerate(self.widths):
            stride = 1 if block == 0 else 2
            inner = nn.relu(Convolution(width, size=3, stride=stride)(image))
            inner = Convolution(width, size=3)(inner)
            if inner.shape != image.shape:
                image = Convolution(width, size=1, stride=stride, pad=False)(image)
            image = image + inner
        return nn.Dense(10)(image.reshape(-1))


def binary_loss(model: nn.Module):
    """Logistic loss of one (image, label), labels 0 or 1."""

    def loss(params, example):
        image, label = example
        return optax.sigmoid_binary_cross_entropy(
            model.apply(params, image), label.astype(jnp.float32)
        )

    return loss


def softmax_loss(model: nn.Module):
    """Cross entropy of one (image, label)."""

    def loss(params, example):
        image, label = example
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, image), label)

    return loss


def initialise(model: nn.Module, key: jax.Array, image_shape: tuple[int, ...]):
    """Initial parameters for images of the given shape."""
    return model.init(key, jnp.zeros(image_shape))


def dimension(params) -> int:
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
