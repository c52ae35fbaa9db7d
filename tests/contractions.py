"""The matrix products of a function, and the precision that they ask a device for."""

from __future__ import annotations

from typing import Any

import jax


def coarse_products(function, *args) -> list[Any]:
    """Shapes of the products that a GPU may compute in TF32, and a TPU in bfloat16."""
    found = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "dot_general":
                asked = eqn.params["precision"]
                if asked is None or set(asked) != {jax.lax.Precision.HIGHEST}:
                    found.append([v.aval.shape for v in eqn.invars])
            for value in eqn.params.values():
                for part in value if isinstance(value, tuple | list) else (value,):
                    inner = getattr(part, "jaxpr", part)
                    if hasattr(inner, "eqns"):
                        walk(inner)

    walk(jax.make_jaxpr(function)(*args).jaxpr)
    return found
