"""Pictures of privacy guarantees: curves of several mechanisms side by side, and a priced grid."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from dpjax import accounting as acc
from dpjax.accounting.answers.attacker import line
from dpjax.plotting.appearance import COLOURS, DOTTED, GREY, picture_path, save_picture, style

__all__ = ["plot_attack", "plot_privacy", "plot_sweep"]

# In print, by line style too.
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
    path, adjacency = picture_path(path), acc.Adjacency(adjacency)
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
        look: dict[str, Any] = {
            "color": COLOURS[k % len(COLOURS)],
            "linestyle": _STYLES[k % len(_STYLES)],
            "label": name,
        }
        run = acc.Repeated(step, most)
        curve = _ask(acc.rdp, run, orders, adjacency)
        if curve is not None:
            renyi.plot(orders - 1, curve, **look)
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
    trade.annotate(
        "guessing", (0.5, 0.5), (4, 4), textcoords="offset points", color=GREY, fontsize=8
    )
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
    figure.legend(
        handles=lines,
        loc="outside lower center",
        ncols=min(len(lines), 3),
        handlelength=3.2,
    )
    save_picture(figure, path)
    return path


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
    path, c = picture_path(path), certificate
    rates = np.logspace(-4, 0, 161)
    bound = [line(c.epsilon, c.delta, rate) for rate in rates.tolist()]
    try:
        missed = acc.tradeoff(c.mechanism, rates, adjacency=c.adjacency)
        bound = np.minimum(bound, 1 - missed + sum(c.extra_delta.values()))
    except acc.UnsupportedQuery:
        pass
    figure = Figure()
    axes = figure.subplots()
    axes.plot(rates, np.clip(bound, 0, 1), color=COLOURS[0])
    axes.plot(rates, rates, color=GREY, linewidth=1, linestyle=DOTTED)
    axes.set(xscale="log", yscale="log", xlim=(rates[0], 1), ylim=(rates[0], 1.2))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.set(xlabel="false alarms of an attack", ylabel="records found, at most")
    save_picture(figure, path)
    return path


def _upwards(axes: Any, *, logarithmic: bool) -> bool:
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


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10, … on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def _ask(question: Any, run: acc.Mechanism, given: Any, adjacency: acc.Adjacency) -> Any:
    try:
        return question(run, given, adjacency=adjacency)
    except acc.UnsupportedQuery:
        return None


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
    path, epsilons = picture_path(path), np.asarray(epsilons, float)
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
    save_picture(figure, path)
    return path
