"""The table of steps whose pair is laid on a grid: a new one is a file and a line here."""

from __future__ import annotations

from dpjax.accounting.pairs import group, replacement, truncated
from dpjax.accounting.pairs.release import Laid

LAID: dict[type, Laid] = {
    laid.kind: laid for laid in (truncated.CUT, replacement.DRAWN, group.GROUP)
}
