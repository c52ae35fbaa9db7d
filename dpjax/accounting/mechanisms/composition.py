"""Several releases of the same data, each of which may depend on the outputs before it."""

from __future__ import annotations

from dpjax._numerics import checks
from dpjax.accounting.mechanisms.base import Mechanism, keep, number_field, register_mechanism
from dpjax.accounting.typing import Real as Real


@register_mechanism
class Repeated(Mechanism):
    """The mechanism used `steps` times on the same data, each use may depend on earlier outputs.

    Fields:
        mechanism: one step.
        steps: number of uses, a whole number >= 0.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.Repeated(acc.Gaussian(4.0), steps=100).steps
        100
    """

    mechanism: Mechanism
    steps: Real = number_field(whole=True)

    tier = "proven"  # what it is made of may be less
    released = "{steps} adaptive uses of: {mechanism}"


@register_mechanism
class Composed(Mechanism):
    """Several mechanisms on the same data, each may depend on the outputs before it.

    Its outputs may steer what is asked next; its noise levels, rates and numbers of steps may not:
    they are those given here, fixed before the first output is seen. With parameters chosen on the
    way the price does not hold. There, add up ε of pure mechanisms, ρ of zero-concentrated ones or
    μ² of Gaussians, or Rényi ε at one order fixed in advance, and stop before the budget is passed.

    Fields:
        mechanisms: a tuple of mechanisms, possibly empty (nothing released).

    Example:
        >>> from dpjax import accounting as acc
        >>> len(acc.Composed((acc.Gaussian(4.0), acc.Gaussian(8.0))).mechanisms)
        2

    References:
        Rogers, Roth, Ullman, Vadhan 2016, "Privacy odometers and filters"; Feldman and Zrnic 2021,
        "Individual privacy accounting via a Rényi filter", Theorem 4.1.
    """

    mechanisms: tuple[Mechanism, ...]

    tier = "proven"  # what it is made of may be less

    def __post_init__(self) -> None:
        if isinstance(self.mechanisms, list):
            keep(self, "mechanisms", tuple(self.mechanisms))
        if not isinstance(self.mechanisms, tuple):
            raise TypeError(
                "Composed.mechanisms must be a tuple of mechanisms (Composed((m,)) for one), "
                f"got {checks.render(self.mechanisms)}"
            )
        for part in self.mechanisms:
            if not isinstance(part, Mechanism):
                raise TypeError(
                    f"Composed.mechanisms must be mechanisms, got {checks.render(part)} there"
                )

    def parts(self) -> tuple[Mechanism, ...]:
        return self.mechanisms

    def has_several_releases(self) -> bool:
        return len(self.mechanisms) > 1

    def describe(self) -> str:
        shown = [part.describe() for part in self.mechanisms[:3]]
        shown += ["…"] if len(self.mechanisms) > 3 else []
        return f"{len(self.mechanisms):,} adaptively composed releases: {'; '.join(shown)}"
