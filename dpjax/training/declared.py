"""What the certificate of a run says besides its price: its assumptions and public numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpjax import accounting as acc
from dpjax.training.phases import unrolled

if TYPE_CHECKING:
    from dpjax.training.plan import Plan

# What every certificate of a run with Gaussian noise assumes.
SECRET_KEY = "the key of the run stays secret, and its stream passes for random"
GAUSSIAN_NOISE = (
    "the noise is Gaussian up to the generator's tail (1e-19 a number beyond |z| = 9.3) and up to "
    "rounding in its last bits"
)
# What a certificate of a run over users says of its "records".
OF_USERS = (
    "a record is all that one user contributes: the summed gradient of that user's records, "
    "clipped once"
)
# What a certificate of a run with an adaptive clip norm says of its Gaussians.
ADAPTIVE = (
    "every step releases the clipped sum and a count of the records below the clip norm, with "
    "noise multipliers a and b: one Gaussian of noise multiplier (1/a² + 1/b²)^(−1/2), as stated"
)


def assumptions_of(plan: Plan) -> tuple[str, ...]:
    """What a plan's certificate assumes, beside what its mechanism does."""
    return (
        SECRET_KEY,
        GAUSSIAN_NOISE,
        *((OF_USERS,) if plan.unit == "user" else ()),
        *(() if plan.adaptive is None else (ADAPTIVE,)),
    )


def declared_of(plan: Plan, run: acc.Mechanism) -> dict[str, Any]:
    """The public numbers of a plan of which the steps in `run` were taken."""
    one_kind = len(plan.phases) == 1
    return {
        **({"unit": plan.unit} if plan.unit == "user" else {}),
        "records": plan.population,
        # Those that are paid: of an epoch that was begun, all.
        "steps": sum(phase.steps for phase in unrolled(run)),
        "clip_norm": plan.clip_norm,
        **({} if plan.adaptive is None else {"adaptive": repr(plan.adaptive)}),
        **({"batch_size": plan.expected_batch_size} if one_kind else {}),
        **({"noise_multiplier": plan.noise_multiplier} if one_kind else {}),
    }
