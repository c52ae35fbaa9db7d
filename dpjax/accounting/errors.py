"""What the accountant refuses."""

from __future__ import annotations

import math


class UnsupportedQuery(TypeError):
    """A question this mechanism cannot answer by this method; the message says what would answer.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.epsilon(acc.FixedBatchSampled(acc.Gaussian(4.0), 10, 100), delta=1e-5)
        Traceback (most recent call last):
        dpjax.accounting.errors.UnsupportedQuery: ...
    """


class CertificateError(ValueError):
    """A certificate that is tampered with, inconsistent or does not recompute.

    Fields:
        field: the name of the field that disagrees.

    Example:
        >>> CertificateError("epsilon", "says 1.0, recomputed 2.0").field
        'epsilon'
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"certificate field {field!r}: {message}")
        self.field = field


class BudgetExceeded(ValueError):
    """A run that a ledger cannot pay for; it must not start.

    Example:
        >>> issubclass(BudgetExceeded, ValueError)
        True
    """


class ImpossibleBudget(ValueError):
    """No value of the parameter keeps the budget; the message says how little is reachable.

    `beyond` is the end that the parameter would have to go past: +inf or 0; `reachable` is the
    smallest ε, +inf where there was no answer, and `parameter` where it is.

    Example:
        >>> issubclass(ImpossibleBudget, ValueError)
        True
    """

    beyond: float = math.inf
    reachable: float = math.inf
    parameter: float = math.nan
