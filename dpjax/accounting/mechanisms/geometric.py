"""Mechanisms of geometric perturbation: those that hold, and GeoDP as published."""

from __future__ import annotations

from dpjax.accounting.mechanisms.base import (
    FRESH_NOISE,
    Mechanism,
    Real,
    number_field,
    register_mechanism,
)

_ANCHORED = (
    "the anchor depends on public data and on earlier noisy outputs alone",
    "averages are divided by the stated batch size, a public constant",
    FRESH_NOISE,
)


@register_mechanism
class RecentredGaussian(Mechanism):
    """Clipping around an anchor: `a + (1/B) Σ clip_r(g_i − a) + noise_std · Z`.

    The anchor a is any function of previous noisy outputs and public data. L2 sensitivity: r/B
    under ADD_REMOVE, 2r/B under REPLACE_ONE, B a public constant.

    Fields:
        radius: r > 0.
        noise_std: of the released average, >= 0.
        batch_size: B, a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.RecentredGaussian(radius=0.5, noise_std=0.01, batch_size=256).radius
        0.5
    """

    radius: Real = number_field(open_low=True)
    noise_std: Real = number_field()
    batch_size: Real = number_field(1.0, whole=True)

    released = (
        "a mean of {batch_size} contributions clipped to {radius} about an anchor, plus Gaussian "
        "noise of standard deviation {noise_std}"
    )
    rests_on = (
        "every contribution is clipped to the radius about the anchor before it is summed",
        *_ANCHORED,
    )


@register_mechanism
class BoxedAngles(Mechanism):
    """Mean of per-example angles, each clipped to a box about an anchor, plus Gaussian noise.

    Angles are taken in a chart that puts the anchor far from the poles; all but the last are
    clipped to ±βπ/2, the last to ±βπ. L2 sensitivity of `Σ(θ_i − θ_anchor)/B`: √(d+2)·βπ/(2B) under
    ADD_REMOVE, √(d+2)·βπ/B under REPLACE_ONE, d the dimension of the gradient.

    Fields:
        bounding_factor: β in (0, 1].
        noise_std: per angle, radians, >= 0.
        batch_size: B, a whole number >= 1.
        dimension: d, a whole number >= 2.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.BoxedAngles(0.1, noise_std=0.01, batch_size=256, dimension=100).dimension
        100
    """

    bounding_factor: Real = number_field(0.0, 1.0, open_low=True)
    noise_std: Real = number_field()
    batch_size: Real = number_field(1.0, whole=True)
    dimension: Real = number_field(2.0, whole=True)

    released = (
        "a mean of {batch_size} gradients' {dimension} angles in a box of factor {bounding_factor} "
        "about an anchor, plus Gaussian noise of standard deviation {noise_std}"
    )
    rests_on = (
        "every record's angles are clipped to the box about the anchor before the mean",
        *_ANCHORED,
    )


@register_mechanism
class TangentBall(Mechanism):
    """Mean of per-example directions in an anchor's tangent space, clipped to a ball, plus noise.

    L2 sensitivity of the mean tangent: ρ/B under ADD_REMOVE, 2ρ/B under REPLACE_ONE.

    Fields:
        radius: ρ > 0, radians.
        noise_std: per tangent coordinate, >= 0.
        batch_size: B, a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.TangentBall(radius=0.3, noise_std=0.01, batch_size=256).batch_size
        256
    """

    radius: Real = number_field(open_low=True)
    noise_std: Real = number_field()
    batch_size: Real = number_field(1.0, whole=True)

    released = (
        "a mean of {batch_size} directions clipped to {radius} radians about an anchor, plus "
        "Gaussian noise of standard deviation {noise_std}"
    )
    rests_on = (
        "every record's direction is clipped to the ball about the anchor before the mean",
        *_ANCHORED,
    )


@register_mechanism
class Anisotropic(Mechanism):
    """Parts parallel and perpendicular to an anchor, clipped and perturbed apart.

    Under REPLACE_ONE it is μ-GDP with μ² = (2C∥/(B s∥))² + (2r⊥/(B s⊥))²; halve μ under ADD_REMOVE.

    Fields:
        parallel_radius, perpendicular_radius: C∥, r⊥ > 0.
        parallel_noise_std, perpendicular_noise_std: s∥, s⊥ >= 0, of the averages.
        batch_size: B, a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.Anisotropic(1.0, 0.2, 0.02, 0.004, batch_size=256).parallel_radius
        1.0
    """

    parallel_radius: Real = number_field(open_low=True)
    perpendicular_radius: Real = number_field(open_low=True)
    parallel_noise_std: Real = number_field()
    perpendicular_noise_std: Real = number_field()
    batch_size: Real = number_field(1.0, whole=True)

    released = (
        "a mean of {batch_size} contributions, clipped to {parallel_radius} along an anchor and "
        "{perpendicular_radius} across it, plus Gaussian noise of standard deviation "
        "{parallel_noise_std} and {perpendicular_noise_std}"
    )
    rests_on = (
        "both parts of every contribution are clipped to their radii before the sum",
        *_ANCHORED,
    )


@register_mechanism
class GeoDP(Mechanism):
    """GeoDP's perturbation as published (Duan et al. 2025): no differential-privacy guarantee.

    The angle of an averaged gradient has no bounded sensitivity: two batches whose average has norm
    C/10 differ by an angle ten times the one the noise was scaled for. With B = 2048, β = 0.1, σ =
    1 the published claim is ε = 4.38 at δ = 1e-5; explicit neighbours show ε = 18 in the best case
    and 5·10⁵ near a pole. It is priced +inf, and kept for reproducing the paper. Use
    `RecentredGaussian`.

    Raises:
        ValueError: `unsafe_no_dp` is not True.

    Fields:
        noise_multiplier: σ >= 0.
        bounding_factor: β in (0, 1].
        batch_size: B, a whole number >= 1.
        dimension: d, a whole number >= 2.
        unsafe_no_dp: must be True, to say that this is understood.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.GeoDP(1.0, 0.1, batch_size=2048, dimension=10)
        Traceback (most recent call last):
        ValueError: GeoDP has no differential-privacy guarantee ...
    """

    noise_multiplier: Real = number_field()
    bounding_factor: Real = number_field(0.0, 1.0, open_low=True)
    batch_size: Real = number_field(1.0, whole=True)
    dimension: Real = number_field(2.0, whole=True)
    unsafe_no_dp: bool = False

    tier = "none"
    released = "the norm and the angles of an averaged gradient, perturbed as GeoDP was published"

    def __post_init__(self) -> None:
        if self.unsafe_no_dp is not True:
            raise ValueError(
                "GeoDP has no differential-privacy guarantee (the angle of an average has "
                "unbounded sensitivity); use RecentredGaussian, or pass unsafe_no_dp=True to "
                "reproduce the paper"
            )
        super().__post_init__()
