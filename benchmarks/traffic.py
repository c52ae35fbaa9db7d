"""Bytes that a compiled program hands to a device, by kind of collective."""

from __future__ import annotations

import math
import re

_KINDS = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
# Those that name what they read too, where they are begun and ended apart.
_TWICE = ("all-gather", "collective-permute")
_OPERATION = re.compile(rf"= (\(.*?\)|\S+) ({_KINDS})(-start)?\(")
_CALLED = re.compile(
    r"(body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "c64": 64, "c128": 128}


def traffic(program: str) -> dict[str, int]:
    """Bytes by collective of one run of a compiled program, loops counted by their passes.

    A loop whose passes the compiler does not know counts as one pass, and may hold no other such
    loop with collectives: of `fit` it is the loop over steps, so what is counted is one step.

    Args:
        program: as `compiled.as_text()` writes it.

    Raises:
        ValueError: a loop of unknown length with collectives within another.
    """
    bodies, entry = _computations(program)
    found: dict[str, tuple[dict[str, int], bool]] = {}

    def total(name: str) -> tuple[dict[str, int], bool]:
        """(bytes by collective, whether a loop of unknown length adds to them)."""
        if name not in found:
            sums: dict[str, int] = {}
            unknown = False
            for line in bodies.get(name, ()):
                own = _OPERATION.search(line)
                if own:
                    sums[own[2]] = sums.get(own[2], 0) + _bytes(
                        own[1], bool(own[3]) and own[2] in _TWICE
                    )
                for times, called in _calls(line):
                    inner, inner_unknown = total(called)
                    if inner and times is None:
                        if inner_unknown:
                            raise ValueError(f"{called} must have a known number of passes")
                        unknown = True
                    unknown = unknown or inner_unknown
                    for kind, size in inner.items():
                        sums[kind] = sums.get(kind, 0) + (times or 1) * size
            found[name] = sums, unknown
        return found[name]

    return total(entry)[0]


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    bodies: dict[str, list[str]] = {}
    name = entry = ""
    for line in program.splitlines():
        head = _HEAD.match(line)
        if head and not line.startswith("HloModule"):
            name = head[2]
            bodies[name] = []
            entry = name if head[1] else entry
        elif name:
            bodies[name].append(line)
    return bodies, entry


def _calls(line: str) -> list[tuple[int | None, str]]:
    """What an operation calls, and how often; None where nobody knows."""
    times: int | None = 1
    if " while(" in line:
        known = _TRIPS.search(line)
        times = int(known[1]) if known else None
    calls: list[tuple[int | None, str]] = [(times, name) for _, name in _CALLED.findall(line)]
    for group in _BRANCHES.findall(line):
        calls += [(1, name.strip().lstrip("%")) for name in group.split(",")]
    return calls


def _bytes(shape: str, second_half: bool) -> int:
    """Of an array or a tuple of them."""
    parts = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    parts = parts[len(parts) // 2 :] if second_half else parts
    return sum(
        _width(kind) * math.prod(int(n) for n in sizes.split(",") if n) for kind, sizes in parts
    )


def _width(kind: str) -> int:
    bits = _BITS.get(kind) or int(re.sub(r"\D", "", kind.split("e")[0]) or 8)
    return max(1, bits // 8)
