"""The one style of all pictures: colours, settings of matplotlib, files whole or absent.

A colour means the same thing in each, and the colours are told apart without colour vision.
"""

from __future__ import annotations

import io
import pathlib
from typing import Any

from matplotlib import rcsetup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax._files import write_atomically

# Distinguishable without colour vision (Okabe and Ito). In pictures of training the first is
# accuracy under privacy, the second ε.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
GREY, GRID = "#6b7280", "#e5e7eb"
DASHED, DOTTED = (0, (5, 3)), (0, (1, 2))
# What the file of a picture may be called: its format is the one that its name says.
SUFFIXES = (".png", ".pdf", ".svg", ".jpg")


def check_suffix(path: str | pathlib.Path) -> pathlib.Path:
    """Where a picture goes, refused before it is computed if its name says no format of these."""
    path = pathlib.Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"path must end in {', '.join(SUFFIXES)}, got {path}")
    return path


def save_picture(figure: Figure, path: pathlib.Path) -> pathlib.Path:
    """Write a picture whole or not at all: on a full disk an older one stays."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.lower()[1:])
    write_atomically(path, content.getvalue())
    return path


def style() -> dict[str, object]:
    """The settings of matplotlib with which all of dpjax's pictures are drawn.

    For your own: `matplotlib.pyplot.rcParams.update(plotting.style())`, or
    `with matplotlib.rc_context(plotting.style())`. Colours follow one another in an order that is
    told apart without colour vision; legends have no frame, and a light grid lies under the lines.

    Example:
        >>> import matplotlib
        >>> from dpjax import plotting
        >>> with matplotlib.rc_context(plotting.style()):
        ...     matplotlib.rcParams["axes.grid"], matplotlib.rcParams["legend.frameon"]
        (True, False)
    """
    return {
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.labelsize": 10,
        "axes.prop_cycle": rcsetup.cycler(color=COLOURS),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "errorbar.capsize": 3,
        "figure.constrained_layout.use": True,
        "figure.figsize": (7.2, 4.2),
        "figure.titlesize": 12,
        "font.size": 10,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "image.cmap": "viridis_r",
        "legend.fontsize": 9,
        "legend.frameon": False,
        "lines.linewidth": 2,
        "lines.markersize": 5,
        "savefig.dpi": 150,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
    }


def reference_line(axes: Axes, height: float, text: str, *, at: str = "left") -> None:
    """A dashed grey line across a picture, with words on it: the model without privacy, a budget.

    Args:
        axes: of matplotlib.
        height: where the line is.
        text: what it shows, written above the line.
        at: the end of the line at which the words are, "left" or "right".

    Raises:
        ValueError: `at` is another word.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from dpjax import plotting
        >>> axes = Figure().subplots()
        >>> plotting.reference_line(axes, 0.95, "without privacy: 95 %")
        >>> axes.texts[0].get_text()
        'without privacy: 95 %'
    """
    if at not in ("left", "right"):
        raise ValueError(f"at must be 'left' or 'right', got {at!r}")
    axes.axhline(height, color=GREY, linewidth=1.2, linestyle=DASHED, zorder=1.5)
    place, look = (0.015 if at == "left" else 0.985, height), {"fontsize": 9, "color": GREY}
    coordinates: dict[str, Any] = {
        "xycoords": ("axes fraction", "data"),
        "textcoords": "offset points",
    }
    axes.annotate(text, place, (0, 4), ha=at, **coordinates, **look)
