"""Pictures of privacy guarantees and of training runs."""

from __future__ import annotations

import contextlib
import pathlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from dpjax import accounting as acc
from dpjax.accounting.answers.plain_words import name_users
from dpjax.accounting.answers.risks import bound_success
from dpjax.plotting.look import (
    COLOURS,
    DASHED,
    DOTTED,
    GREY,
    check_suffix,
    save_picture,
    style,
)

_STYLES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
_SCALE = (0.05, 50.0)  # of ε, in sweeps; beyond, the colours of the ends
_NOISES, _RATES = (0.4, 10.0), (5e-4, 0.2)  # the axes of sweeps; wider for what lies outside


@matplotlib.rc_context(style())
def plot_privacy(
    mechanisms: Mapping[str, acc.Mechanism],
    path: str | pathlib.Path,
    *,
    steps: Sequence[int],
    delta: float = 1e-5,
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE,
    title: str = "",
    on_panel: Callable[[], None] = lambda: None,
) -> pathlib.Path:
    """Draw Rényi curves, trade-off curves and ε against steps of several mechanisms to a file.

    The first two panels are of the last of `steps`, the third of all of them. A panel leaves out a
    mechanism that cannot answer it (noise uniform in a ball has no finite Rényi curve), and says so
    where nothing is left: all of it is zero, or infinite.

    Args:
        mechanisms: one step of each, by the name in the legend.
        path: where the picture goes: PNG, PDF, SVG or JPEG, by its suffix.
        steps: increasing numbers of repetitions.
        delta: δ of the third panel.
        adjacency: the neighbouring relation.
        title: above the panels.
        on_panel: called three times a mechanism, when it is drawn in a panel: for progress.

    Example:
        >>> import tempfile
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "curve.png"
        >>> plot_privacy({"σ = 4": acc.Gaussian(4.0)}, out, steps=[1, 10, 100]).name
        'curve.png'
    """
    path, adjacency = check_suffix(path), acc.Adjacency(adjacency)
    counts = np.asarray(steps)
    if not mechanisms or counts.ndim != 1 or counts.size == 0 or np.any(np.diff(counts) <= 0):
        raise ValueError(f"steps must be increasing numbers, and mechanisms not empty, got {steps}")
    most = int(counts[-1])
    figure = Figure(figsize=(13.2, 4.7))
    renyi, trade, growth = figure.subplots(1, 3)
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    orders = 1 + np.logspace(-2, 2, 81)
    rates = np.concatenate([[0.0], np.logspace(-6, 0, 200)])
    lines = []
    for k, (name, step) in enumerate(mechanisms.items()):
        look: dict[str, Any] = {"color": COLOURS[k % len(COLOURS)], "label": name}
        look["linestyle"] = _STYLES[k % len(_STYLES)]  # in print, by line style too
        run = acc.Repeated(step, most)
        with contextlib.suppress(acc.UnsupportedQuery):
            renyi.plot(orders - 1, acc.rdp(run, orders, adjacency=adjacency), **look)
        on_panel()
        trade.plot(rates, acc.tradeoff(run, rates, adjacency=adjacency), **look)
        on_panel()
        runs = (acc.Repeated(step, count) for count in counts.tolist())
        cost = np.array([acc.epsilon(run, delta, adjacency=adjacency) for run in runs])
        look["marker"] = "" if counts.size > 1 else "o"  # a line of one point is not seen
        lines += growth.plot(counts, np.where(np.isfinite(cost), cost, np.nan), **look)
        on_panel()

    shown = f"{most:,} steps" if most > 1 else "1 step"
    renyi.set(xscale="log", xlabel="Rényi order α − 1", ylabel="Rényi divergence")
    _upwards(renyi, logarithmic=True)
    renyi.set_title(f"Rényi curve, {shown}")
    trade.plot([0, 1], [1, 0], color=GREY, linewidth=1, linestyle=DOTTED)
    words: dict[str, Any] = {"textcoords": "offset points", "color": GREY, "fontsize": 8}
    trade.annotate("guessing", (0.5, 0.5), (4, 4), **words)
    trade.set(xlim=(0, 1), ylim=(0, 1.005), aspect="equal")
    trade.set(xlabel="false-positive rate of an attack", ylabel="false-negative rate, at least")
    trade.set_title(f"Trade-off curve, {shown}")
    growth.set(xlabel="steps", ylabel=f"ε at δ = {delta:g}")
    if counts.size > 1:
        growth.set(xscale="log", xlim=(int(counts[0]), most))
    else:
        growth.set(xlim=(most - 1, most + 1), xticks=[most])
    if _upwards(growth, logarithmic=counts.size > 1) and counts.size > 1:
        _plain_ticks(growth.yaxis)
    growth.set_title(f"ε against steps ({adjacency.value})")
    columns = min(len(lines), 3)
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, handlelength=3.2)
    return save_picture(figure, path)


# At which a profile is read, as parts of the certificate's ε.
_SHARES_OF_EPSILON = np.linspace(0.0, 3.0, 25)


@matplotlib.rc_context(style())
def plot_attack(certificate: acc.Certificate, path: str | pathlib.Path) -> pathlib.Path:
    """Draw how often the best attack is right, at most, against its false alarms, to a file.

    The run's trade-off curve, seen from the attacker's side, with what is reserved of δ added; and
    no worse than the certificate's (ε, δ) alone allows.

    Args:
        certificate: of the run.
        path: where the picture goes: PNG, PDF, SVG or JPEG, by its suffix.

    Example:
        >>> import tempfile
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "attack.png"
        >>> plot_attack(acc.certify(acc.Gaussian(4.0), delta=1e-5), out).name
        'attack.png'
    """
    path, c = check_suffix(path), certificate
    rates = np.logspace(-4, 0, 161)
    bound = [bound_success(c.epsilon, c.delta, rate) for rate in rates.tolist()]
    reserved = sum(c.extra_delta.values())
    with contextlib.suppress(acc.UnsupportedQuery):
        if c.method == "selection":
            # The curve of the best of several runs asks Rényi curves too, seconds for each of many
            # ε. The certificate's own profile bounds it as well: an attack is right no more often
            # than (ε, δ(ε) + reserved) allows, at any ε.
            epsilons = c.epsilon * _SHARES_OF_EPSILON
            deltas = acc.delta(c.mechanism, epsilons, adjacency=c.adjacency, method=c.method)
            pairs = np.stack([epsilons, np.asarray(deltas)], axis=1)
            for epsilon, delta in pairs.tolist():
                line = [bound_success(epsilon, delta + reserved, rate) for rate in rates.tolist()]
                bound = np.minimum(bound, line)
        else:
            missed = acc.tradeoff(c.mechanism, rates, adjacency=c.adjacency)
            bound = np.minimum(bound, 1 - missed + reserved)
    figure = Figure(figsize=(5.2, 3.4))
    axes = figure.subplots()
    axes.plot(rates, np.clip(bound, 0, 1), color=COLOURS[0])
    axes.plot(rates, rates, color=GREY, linewidth=1, linestyle=DOTTED)
    axes.set(xscale="log", yscale="log", xlim=(rates[0], 1), ylim=(rates[0], 1.2))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    found = name_users(c, "records found, at most")
    axes.set(xlabel="false alarms of an attack", ylabel=found)
    return save_picture(figure, path)


@matplotlib.rc_context(style())
def plot_bounds(found: Mapping[str, float], path: str | pathlib.Path) -> pathlib.Path:
    """Draw values of ε on one line, each by its name, to a file.

    Args:
        found: ε by name, such as "proven", "heuristic" and "audited"; infinite ones are left out.
        path: where the picture goes: PNG, PDF, SVG or JPEG, by its suffix.

    Example:
        >>> import tempfile
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "bounds.png"
        >>> plot_bounds({"proven": 1.5, "heuristic": 1.1}, out).name
        'bounds.png'
    """
    path = check_suffix(path)
    shown = {name: value for name, value in found.items() if np.isfinite(value)}
    figure = Figure(figsize=(5.2, 1.5))
    axes = figure.subplots()
    for name, (place, value) in zip(shown, enumerate(shown.values()), strict=True):
        axes.plot([value], [0.0], "o", color=COLOURS[place % len(COLOURS)])
        up = 10 if place % 2 == 0 else -18
        axes.annotate(name, (value, 0.0), (0, up), textcoords="offset points", ha="center")
    axes.set(xlim=(0.0, 1.1 * max([*shown.values(), 1e-3])), xlabel="ε", yticks=[])
    return save_picture(figure, path)


def _upwards(axes: Axes, *, logarithmic: bool) -> bool:
    """Whether a panel has a finite, positive value; without one, it says what its values are."""
    values = np.concatenate([np.empty(0), *(np.asarray(one.get_ydata()) for one in axes.lines)])
    if np.any(np.isfinite(values) & (values > 0)):
        axes.set(yscale="log" if logarithmic else "linear")
        return True
    axes.set_ylim(0.0, 1.0)
    axes.set_yticks([])
    found = "zero" if np.any(values == 0) else "infinite"
    axes.text(0.5, 0.5, found, transform=axes.transAxes, ha="center", color=GREY)
    return False


def _plain_ticks(axis: Axis) -> None:
    """1, 2, 5, 10, … on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


@matplotlib.rc_context(style())
def plot_sweep(
    noise_multipliers: Sequence[float],
    rates: Sequence[float],
    epsilons: np.ndarray,
    path: str | pathlib.Path,
    *,
    title: str = "",
    contours: Sequence[float] = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32),
) -> pathlib.Path:
    """Draw a grid of ε over noise multiplier and sampling rate as a heat map to a file.

    Args:
        noise_multipliers: [n] increasing, the horizontal axis: 0.4 to 10, wider where they are.
        rates: [m] increasing, vertical: 5e-4 to 0.2, wider where they are.
        epsilons: [m, n]; +inf is left white. Colours mean the same ε in every picture.
        path: where the picture goes: PNG, PDF, SVG or JPEG, by its suffix.
        title: above the picture.
        contours: the values of ε drawn as lines, as far as they occur.

    Example:
        >>> import tempfile
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "sweep.png"
        >>> plot_sweep([1.0, 2.0], [0.01, 0.1], np.array([[1.0, 0.5], [4.0, 2.0]]), out).name
        'sweep.png'
    """
    path, epsilons = check_suffix(path), np.asarray(epsilons, float)
    across, up = np.asarray(noise_multipliers, float), np.asarray(rates, float)
    if epsilons.shape != (up.size, across.size):
        raise ValueError(
            f"epsilons must have shape {(up.size, across.size)} (rates by noises), "
            f"got {epsilons.shape}"
        )
    figure = Figure(figsize=(7.2, 5.4))
    axes = figure.subplots()
    axes.grid(False)
    shown = np.ma.masked_where(~np.isfinite(epsilons) | (epsilons <= 0), epsilons)
    if shown.count() == 0:
        raise ValueError("epsilons must hold a finite, positive value, got none")
    norm = LogNorm(*_SCALE)  # a colour is the same ε in every picture
    picture = axes.pcolormesh(across, up, shown, norm=norm, shading="nearest", rasterized=True)
    if min(epsilons.shape) >= 2:
        levels = [level for level in contours if shown.min() < level < shown.max()]
        if levels:
            drawn = axes.contour(across, up, shown, levels, colors="white", linewidths=1.4)
            axes.clabel(drawn, fmt=lambda value: f"ε = {value:g}", fontsize=8)
    for axis, values, usual in (("x", across, _NOISES), ("y", up, _RATES)):
        if values.min() > 0:
            getattr(axes, f"set_{axis}scale")("log")
            ends = (min(usual[0], values.min() / 1.1), max(usual[1], values.max() * 1.1))
            getattr(axes, f"set_{axis}lim")(*ends)
            _plain_ticks(getattr(axes, f"{axis}axis"))
    axes.set(xlabel="noise multiplier", ylabel="sampling rate")
    if title:
        axes.set_title(title)
    bar = figure.colorbar(picture, ax=axes, label="ε", extend="both")
    _plain_ticks(bar.ax.yaxis)
    return save_picture(figure, path)


_ACCURACY, _EPSILON, *_ = COLOURS
_LEAST_SPAN = 0.06  # of accuracies in a picture: ticks are then whole percents, and differ
_STEPS = (1, 2, 3, 5, 10)  # from tick to tick: whole percents in the least span


@matplotlib.rc_context(style())
def plot_training(
    metrics: Mapping[str, np.ndarray],
    path: str | pathlib.Path,
    *,
    title: str = "",
    delta: float | None = None,
    reference: float | None = None,
    budget: float | None = None,
) -> pathlib.Path:
    """Draw test accuracy (upper panel) and ε spent so far (lower panel) to a file.

    Args:
        metrics: columns `step`, `epsilon` and `test_accuracy` of equal length, as `fit` returns; or
            `test_error`, of numbers.
        path: where the picture goes: PNG, PDF, SVG or JPEG, by its suffix.
        title: what was trained.
        delta: the δ at which ε holds, for the label.
        reference: accuracy or error of the same model without privacy, drawn as a line.
        budget: the ε that was asked for, drawn as a line.

    Example:
        >>> import tempfile
        >>> metrics = {name: np.array([0.0, 1.0]) for name in ("step", "epsilon", "test_accuracy")}
        >>> plot_training(metrics, pathlib.Path(tempfile.mkdtemp()) / "run.png").name
        'run.png'
    """
    path = check_suffix(path)
    steps = np.asarray(metrics["step"])
    figure = Figure(figsize=(6.0, 5.0))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.35, 1))
    if title:
        figure.suptitle(textwrap.fill(title, 60), x=0.02, ha="left")  # as wide as the picture
    is_error = "test_error" in metrics
    name, form = ("test_error", ".4g") if is_error else ("test_accuracy", ".1%")
    values = np.asarray(metrics[name])
    upper.plot(steps, values, color=_ACCURACY)
    _label_end(upper, steps[-1], values[-1], format(values[-1], form), _ACCURACY)
    upper.set_ylabel(name.replace("_", " "))
    if is_error:  # from zero, what it would be at best
        upper.set_ylim(0.0, 1.1 * max(float(values.max()), reference or 0.0, 1e-30))
    else:
        upper.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        top = max(float(values.max()), reference or 0.0)
        bottom = float(np.min(values[1:])) if len(values) > 2 else float(values.min())
        span = max(top - bottom, _LEAST_SPAN)  # below it, chance looks like a trend
        # A line at 100 % is seen whole, and no tick lies beyond it.
        upper.set_ylim(max(0.0, top - 1.1 * span), min(top + 0.1 * span, 1.0 + 0.02 * span))
    if reference is not None:
        _explain_line(upper, reference, f"same model without privacy: {reference:{form}}")
    spent = np.asarray(metrics["epsilon"])
    lower.plot(steps, spent, color=_EPSILON)
    _label_end(lower, steps[-1], spent[-1], f"{spent[-1]:.3g}", _EPSILON)
    lower.set_ylabel("ε spent" + (f"  (δ = {delta:g})" if delta is not None else ""))
    lower.set_xlabel("step")
    lower.set_xlim(0, max(float(steps[-1]), 1.0))
    lower.set_ylim(0, 1.1 * max(float(spent[-1]), budget or 0.0, 1e-9))
    if budget is not None:
        _explain_line(lower, budget, f"budget: {budget:g}")
    for axis in (upper.yaxis, lower.yaxis, lower.xaxis):
        axis.set_major_locator(MaxNLocator(4, steps=_STEPS, integer=axis is lower.xaxis))
    return save_picture(figure, path)


def _label_end(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    """The last point of a line, with its value beside the panel, where no line runs."""
    axes.plot([x], [y], "o", color=color, clip_on=False)
    look: dict[str, Any] = {
        "ha": "left",
        "va": "center",
        "fontsize": 10,
        "fontweight": "bold",
        "color": color,
    }
    axes.annotate(text, (x, y), (8, 0), textcoords="offset points", **look)


def _explain_line(axes: Axes, height: float, text: str) -> None:
    """A dashed grey line across a panel, and what it shows above the panel."""
    axes.axhline(height, color=GREY, linewidth=1.2, linestyle=DASHED, zorder=1.5, label=text)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, labelcolor=GREY)
