"""What no ε covers, whichever way a model is trained."""

from __future__ import annotations


def usual_uncovered(records: int, *, seeded: bool) -> list[str]:
    """One line for each, for a certificate's `not_covered`.

    Example:
        >>> usual_uncovered(100, seeded=False)[0]
        'the number of training records (100) is treated as public'
    """
    lines = [
        f"the number of training records ({records}) is treated as public",
        "choosing settings, or among several runs, by looking at results on the same records",
    ]
    if seeded:
        lines.append(
            "the noise comes from a seed given by hand: who guesses it, or has another model "
            "trained with it, can subtract it"
        )
    return lines
