"""The picture of what a linear model of a table has learned, a panel a column."""

from __future__ import annotations

import pathlib
import textwrap
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpjax.plotting.look import COLOURS, GREY, check_suffix, save_picture, style

if TYPE_CHECKING:
    from dpjax.effects import Effect, Effects, Fitted
    from dpjax.training import SavedModel

# In inches: three panels beside one another.
_ACROSS, _WIDTH, _GAP = 3, 4.0, 0.3
_TITLE, _AXIS, _NUMBER_PANEL, _ROW, _ROW_OF_OUTPUT = 0.32, 0.28, 1.45, 0.19, 0.04
_LEFT, _LEFT_OF_NAMES = 0.5, 1.6
_MOST_CATEGORIES, _NAME, _HEADING = 32, 24, 40
_AT_END = ("missing", "any other", "missing or other")


class _Panel(NamedTuple):
    """A column's effect and how high its panel is, in inches."""

    effect: Effect
    values: list[int]  # which are shown, from top to bottom of categories
    height: float


@matplotlib.rc_context(style())
def plot_effects(
    model: str | pathlib.Path | SavedModel | Fitted | Effects,
    path: str | pathlib.Path,
    *,
    most: int = 12,
    title: str = "",
) -> pathlib.Path:
    """Draw what a linear model of a table has learned to a file: each column's effect on the score.

    One panel a column, the steepest first, all on one scale. A number's effect is drawn over the
    bins that it is encoded in, each as wide as another, or along its range; a category's beside its
    name. What is missing has a place of its own. The band, or bar, is two standard deviations of
    the noise of training to both sides, at most; it is of noise alone, not of which records
    happened to be in the table.

    Args:
        model: the folder of a run, what `training.load_model` found in it, a fitted estimator such
            as `DPLogisticRegression`, or its `effects.read_effects`.
        path: where the picture goes: PNG, PDF, SVG or JPEG, by its suffix.
        most: how many columns are drawn; the text table of `Effects.table` has all.
        title: above the picture.

    Raises:
        ValueError: as of `effects.read_effects`, or `most` below 1.

    Guarantee:
        Post-processing of what the run released: it costs no ε.

    Example:
        >>> import tempfile
        >>> from dpjax import data, training
        >>> folder, model = pathlib.Path(tempfile.mkdtemp()), training.logistic(2)
        >>> columns = (data.Column("job", "category", categories=("a", "b")),)
        >>> schema = data.Schema(columns, target="paid", classes=("no", "yes"))
        >>> weights = {"weights": np.array([-1.0, 1.0], "f"), "bias": np.zeros((), "f")}
        >>> encoding = data.describe_encoding(schema)
        >>> saved = training.save_model(folder / "run", weights, model, encoding=encoding)
        >>> plot_effects(saved, folder / "effects.png").name
        'effects.png'
    """
    from dpjax._numerics.checks import whole
    from dpjax.effects import Effects, read_effects

    path, most = check_suffix(path), whole("most", most)
    found = model if isinstance(model, Effects) else read_effects(model)
    by_name = {effect.column: effect for effect in found.columns}
    shown = [by_name[change.column] for change in found.steepest()[:most]]
    outputs = _choose_outputs(found)
    panels = [_plan_panel(effect, len(outputs)) for effect in shown]
    places, height = _place(panels)
    notes = _notes(found, len(shown), len(outputs))
    written = textwrap.wrap(" ".join(notes), 180)
    head = 0.35 + 0.3 * bool(title) + 0.28 * (len(outputs) > 1)
    foot = 0.12 + 0.17 * len(written)
    width, whole_height = _ACROSS * (_WIDTH + _GAP), head + height + foot
    with matplotlib.rc_context({"figure.constrained_layout.use": False}):  # each has its place
        figure = Figure(figsize=(width, whole_height))
    ends = _common_ends(shown, outputs)
    for panel, (left, top) in zip(panels, places, strict=True):
        margin = _LEFT if panel.effect.kind == "number" else _LEFT_OF_NAMES
        box = (
            (left + margin) / width,
            1 - (head + top + panel.height - _AXIS) / whole_height,
            (_WIDTH - margin) / width,
            (panel.height - _AXIS - _TITLE) / whole_height,
        )
        axes = figure.add_axes(box)
        draw = _draw_number if panel.effect.kind == "number" else _draw_categories
        draw(axes, panel, outputs, ends)
        _write_heading(axes, panel, -margin / (_WIDTH - margin))
    line = 1 - 0.08 / whole_height
    if title:
        figure.text(0.008, line, _plain(title, 120), fontsize=12, va="top")
        line -= 0.3 / whole_height
    figure.text(0.008, line, f"Effect on the {_escape(found.score)}", fontsize=10, va="top")
    if len(outputs) > 1:
        handles = [
            Line2D([], [], color=COLOURS[k], label=_plain(found.outputs[o], 22))
            for k, o in enumerate(outputs)
        ]
        anchor = (0.004, line - 0.2 / whole_height)
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=anchor, ncols=len(outputs))
    text = "\n".join(map(_escape, written))
    figure.text(0.008, 0.06 / whole_height, text, fontsize=8, color=GREY, va="bottom")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a sign that the font lacks is drawn as a box
        return save_picture(figure, path)


def _write_heading(axes: Axes, panel: _Panel, left: float) -> None:
    """The column's name above its panel, and how many of its values are left out."""
    name = _plain(panel.effect.column, _HEADING)
    left_out = len(panel.effect.labels) - len(panel.values)
    name += f" ({left_out} more)" * (left_out > 0)
    look: dict[str, Any] = {"fontsize": 10, "fontweight": "bold", "ha": "left", "va": "bottom"}
    axes.annotate(
        name, (left, 1.0), (0, 4), xycoords="axes fraction", textcoords="offset points", **look
    )


def _notes(found: Effects, shown: int, outputs: int) -> list[str]:
    """What the picture is of, in sentences."""
    notes = [f"{found.centred}.", f"{found.noise}."]
    if shown < len(found.columns):
        notes.insert(0, f"the {shown} steepest of {len(found.columns)} columns.")
    if outputs < len(found.outputs):
        notes.insert(0, f"the {outputs} classes of {len(found.outputs)} that change most.")
    return [note[0].upper() + note[1:] for note in notes]


def _choose_outputs(found: Effects) -> list[int]:
    """The scores that are drawn, as many as there are colours, those that change most."""
    spans = sum(np.ptp(effect.scores, axis=0) for effect in found.columns)
    return sorted(np.argsort(-np.asarray(spans))[: len(COLOURS)].tolist())


def _plan_panel(effect: Effect, outputs: int) -> _Panel:
    """Which values are drawn, and how high the panel is."""
    count = len(effect.labels)
    if effect.kind == "number":
        return _Panel(effect, [*range(count)], _TITLE + _NUMBER_PANEL + _AXIS)
    # What is missing or of no category stands below the categories.
    last = [k for k in range(count) if effect.labels[k] in _AT_END]
    others = [k for k in range(count) if k not in last]
    if len(others) > _MOST_CATEGORIES:
        size = np.abs(effect.scores).max(axis=1)
        others = sorted(others, key=lambda k: -size[k])[:_MOST_CATEGORIES]
    spread = np.ptp(effect.scores, axis=0)
    main = int(np.argmax(spread))
    kept = sorted(others, key=lambda k: -effect.scores[k, main]) + last
    return _Panel(
        effect, kept, _TITLE + (_ROW + _ROW_OF_OUTPUT * (outputs - 1)) * (len(kept) + 0.6) + _AXIS
    )


def _place(panels: list[_Panel]) -> tuple[list[tuple[float, float]], float]:
    """Left and top of every panel, each in the column that is shortest so far; the height."""
    tops, places = [0.0] * _ACROSS, []
    for panel in panels:
        at = tops.index(min(tops))
        places.append((0.1 + at * (_WIDTH + _GAP), tops[at]))
        tops[at] += panel.height + 0.12
    return places, max(tops)


def _common_ends(effects: list[Effect], outputs: list[int]) -> tuple[float, float]:
    """From where to where all panels are drawn."""
    low, high = 0.0, 0.0
    for effect in effects:
        scores = effect.scores[:, outputs]
        around = 0.0 if effect.noise_std is None else 2 * effect.noise_std[:, outputs]
        low, high = min(low, np.min(scores - around)), max(high, np.max(scores + around))
    edge = 0.04 * max(high - low, 1e-9)
    return float(low - edge), float(high + edge)


def _draw_number(axes: Axes, panel: _Panel, outputs: list[int], ends: tuple[float, float]) -> None:
    """Steps over bins, or a curve; a point for what is missing."""
    effect = panel.effect
    known = np.flatnonzero(~np.isnan(effect.edges[:, 0]))
    absent = np.flatnonzero(np.isnan(effect.edges[:, 0]))
    if effect.is_curve:
        across, pick = effect.across[known], known
        count = float(across[-1])
        # At the ends of cells where there are some, which are whole numbers.
        ends_of_cells = np.flatnonzero((across > 0) & (across % 1 == 0) & (across < count))[::2]
        at = ends_of_cells if ends_of_cells.size else np.arange(len(known))
        ticks = at[np.unique(np.linspace(0, len(at) - 1, min(4, len(at))).round().astype(int))]
        places, labels = across[ticks].tolist(), [effect.labels[known[k]] for k in ticks]
    else:
        count = len(known)
        across = np.repeat(np.arange(count + 1), 2)[1:-1]
        pick = np.repeat(known, 2)
        cuts = count - 1
        ticks = np.unique(np.linspace(0, cuts - 1, min(4, cuts)).round().astype(int))
        places = (ticks + 1).tolist()
        labels = [effect.labels[known[k + 1]].split(" – ")[0].removeprefix("> ") for k in ticks]
    # Farther where the last number stands below the curve's end.
    beside = count * (1.16 if ticks[-1] < len(known) - 1 else 1.24)
    for k, output in enumerate(outputs):
        look: dict[str, Any] = {"color": COLOURS[k]}
        height = effect.scores[:, output]
        around = None if effect.noise_std is None else 2 * effect.noise_std[:, output]
        if around is not None:
            low, high = (height - around)[pick], (height + around)[pick]
            axes.fill_between(across, low, high, alpha=0.22, linewidth=0, **look)
        axes.plot(across, height[pick], linewidth=1.6, **look)
        if absent.size:
            shift = 0.05 * count * (k - (len(outputs) - 1) / 2) / max(len(outputs), 2)
            error = None if around is None else around[absent]
            axes.errorbar(
                [beside + shift],
                height[absent],
                yerr=error,
                fmt="o",
                markersize=4,
                capsize=2,
                elinewidth=1.2,
                **look,
            )
    axes.axhline(0.0, color=GREY, linewidth=0.8, zorder=1.2)
    right = beside + 0.08 * count if absent.size else count
    axes.set(xlim=(0, right), ylim=ends)
    if absent.size:
        places, labels = [*places, beside], [*labels, "missing"]
    axes.set_xticks(places, [_plain(text, 12) for text in labels], fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.locator_params(axis="y", nbins=5)


def _draw_categories(
    axes: Axes, panel: _Panel, outputs: list[int], ends: tuple[float, float]
) -> None:
    """A point with its bar beside the name of each category."""
    effect, rows = panel.effect, len(panel.values)
    heights = np.arange(rows)
    for k, output in enumerate(outputs):
        shift = 0.6 * (k - (len(outputs) - 1) / 2) / max(len(outputs), 2)
        error = None
        if effect.noise_std is not None:
            error = 2 * effect.noise_std[panel.values, output]
        axes.errorbar(
            effect.scores[panel.values, output],
            heights + shift,
            xerr=error,
            fmt="o",
            markersize=4 if len(outputs) == 1 else 3,
            capsize=0,
            elinewidth=1.2,
            color=COLOURS[k],
        )
    axes.axvline(0.0, color=GREY, linewidth=0.8, zorder=1.2)
    axes.set(xlim=ends, ylim=(rows - 0.5, -0.5))
    names = _tell_apart([effect.labels[k] for k in panel.values])
    axes.set_yticks(heights, [_plain(name, _NAME) for name in names], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)


def _tell_apart(names: list[str]) -> list[str]:
    """Names that are too long and begin and end alike, without what is alike of them."""
    long = [name for name in names if len(name) > _NAME]
    if len(long) < 2:
        return names
    before = _count_alike(long)
    behind = _count_alike([name[before:][::-1] for name in long])
    end = "…" * (behind > 0)
    short = {
        name: f"{name[: min(before, 10)]}…{name[before : len(name) - behind]}{end}" for name in long
    }
    return [short.get(name, name) if before + behind > 12 else name for name in names]


def _count_alike(names: list[str]) -> int:
    """How many characters all names begin with."""
    pairs = zip(min(names), max(names), strict=False)  # by their order, those between are alike too
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(map(len, names)))


def _plain(text: str, most: int) -> str:
    """A text of a record or a column: one line, not too long, no formula."""
    from dpjax.effects import shorten

    return _escape(shorten(text, most))


def _escape(text: str) -> str:
    """In a picture a dollar begins a formula."""
    return text.replace("$", r"\$")
