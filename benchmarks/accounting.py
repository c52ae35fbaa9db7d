"""The accountant against dp_accounting, Opacus and prv_accountant, side by side in one run.

    python -m benchmarks.accounting                # speed and error
    python -m benchmarks.accounting --compare 500  # where the libraries differ, and who is right
    python -m benchmarks.accounting --soundness 2000

Times are medians of five or more; a sweep of the rivals is timed on a few settings and
extrapolated, and the table says so. The rivals' numerical libraries run on one thread.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # read when the rivals' libraries are first loaded

import jax  # noqa: E402
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from dpjax import accounting as acc  # noqa: E402
from dpjax._numerics.logarithm import log1p  # noqa: E402
from dpjax.accounting import contour, lowering, tight  # noqa: E402
from dpjax.accounting import loss_distribution as pld  # noqa: E402

RESULTS = pathlib.Path(__file__).parent / "results" / "accounting.md"
TRUTH = 1.8282366665165795  # σ = 1, rate 0.01, 1,000 steps, δ = 1e-5; contour in long double
POINT = (1.0, 0.01, 1_000)
BUDGETS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)


def _run(sigma, rate, steps):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)


def ours(method: str) -> Callable:
    return lambda sigma, rate, steps, delta: acc.epsilon(
        _run(sigma, rate, steps), delta=delta, method=method
    )


def _event(sigma, rate, steps):
    import dp_accounting

    inner = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(inner, int(steps))


def google_rdp(sigma, rate, steps, delta):
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant().compose(_event(sigma, rate, steps)).get_epsilon(delta)


def google_pld(sigma, rate, steps, delta):
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant().compose(_event(sigma, rate, steps)).get_epsilon(delta)


def opacus_rdp(sigma, rate, steps, delta):
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(sigma, rate, int(steps))]
    return accountant.get_epsilon(delta)


def opacus_prv(sigma, rate, steps, delta):
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, int(steps))]
    return accountant.get_epsilon(delta)


def prv(sigma, rate, steps, delta):
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    mechanism = PoissonSubsampledGaussianMechanism(
        sampling_probability=rate, noise_multiplier=sigma
    )
    accountant = PRVAccountant(
        mechanism, max_self_compositions=int(steps), eps_error=1e-3, delta_error=delta * 1e-3
    )
    return accountant.compute_epsilon(delta=delta, num_self_compositions=int(steps))[2]


RIVALS = {
    "dp_accounting RDP": google_rdp,
    "dp_accounting PLD": google_pld,
    "Opacus RDP": opacus_rdp,
    "Opacus PRV": opacus_prv,
    "prv_accountant": prv,
}
OURS = {"dpjax rdp": ours("rdp"), "dpjax contour": ours("contour"), "dpjax pld": ours("pld")}


def median_time(function: Callable, repeats: int = 5) -> tuple[float, object]:
    times, value = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return statistics.median(times), value


def warm_up(function: Callable, seconds: float = 8.0) -> None:
    """Ask until the program is compiled: the first 48 answers about one setting are interpreted."""
    start = time.perf_counter()
    for _ in range(60):
        function()
        if time.perf_counter() - start > seconds:
            break


def _available(name: str, function: Callable) -> bool:
    try:
        function(*POINT, 1e-5)
    except ImportError as error:
        Console().print(f"{name} left out: {error}")
        return False
    return True


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"


def _table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([f"## {title}", "", *lines, *("| " + " | ".join(r) + " |" for r in rows), ""])


def single() -> str:
    rows = []
    for name, function in {**OURS, **RIVALS}.items():
        start = time.perf_counter()
        if not _available(name, function):
            continue
        first = time.perf_counter() - start
        fast = name in OURS and "pld" not in name
        if fast:
            warm_up(lambda f=function: f(*POINT, 1e-5))
        warm, value = median_time(lambda f=function: f(*POINT, 1e-5), 31 if fast else 5)
        error = float(value) - TRUTH  # pyrefly: ignore
        rows.append([name, _seconds(first), _seconds(warm), f"{value:.9f}", f"{error:+.1e}"])
    columns = ["method", "first call", "warm", "ε", "ε − truth"]
    return _table("One ε (σ = 1, rate 0.01, 1,000 steps, δ = 1e-5)", columns, rows)


def calibration() -> str:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    rows = []

    def make(sigma):
        return _run(sigma, 0.01, 1_000)

    for budget in BUDGETS:
        row = [f"{budget:g}"]
        for method in ("rdp", "contour"):

            def solve(m=method, b=budget):
                return acc.calibrate(make, epsilon=b, delta=1e-5, method=m)

            warm_up(solve, 20.0)
            seconds, sigma = median_time(solve)
            over = acc.epsilon(make(sigma), delta=1e-5, method=method) > budget
            row += [f"{sigma:.6f}{' OVER' if over else ''}", _seconds(seconds)]
        for accountant in (RdpAccountant, PLDAccountant):

            def solve(a=accountant, b=budget):
                return dp_accounting.calibrate_dp_mechanism(
                    a,
                    lambda s: _event(s, 0.01, 1_000),
                    b,
                    1e-5,
                    dp_accounting.ExplicitBracketInterval(0.3, 30.0),
                    tol=1e-6,
                )

            start = time.perf_counter()
            sigma = solve()
            row += [f"{sigma:.6f}", _seconds(time.perf_counter() - start) + " (once)"]
        rows.append(row)
    columns = ["ε", "rdp σ", "time", "contour σ", "time"]
    columns += ["dp_accounting RDP σ", "time", "dp_accounting PLD σ", "time"]
    return _table("Calibration (rate 0.01, 1,000 steps, δ = 1e-5)", columns, rows)


def _settings(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    sigma = generator.uniform(0.6, 8, n)
    rate = 10 ** generator.uniform(-3.5, -1, n)
    steps = np.floor(10 ** generator.uniform(1.5, 4, n))
    return sigma, rate, steps


def sweep(n: int, sample: int = 5) -> str:
    settings = _settings(n)
    rows = []
    for name in ("dpjax rdp", "dpjax contour"):
        start = time.perf_counter()
        OURS[name](*settings, 1e-5)
        first = time.perf_counter() - start
        seconds, found = median_time(lambda f=OURS[name]: f(*settings, 1e-5), 3)
        left = int(np.sum(~np.isfinite(found)))
        note = f"{left} left to the fall-back" if left else ""
        rows.append([name, f"{n:,}", _seconds(first), _seconds(seconds), note])
    for name in ("dp_accounting RDP", "dp_accounting PLD", "Opacus RDP", "prv_accountant"):
        if not _available(name, RIVALS[name]):
            continue
        start = time.perf_counter()
        for i in range(sample):
            RIVALS[name](*(float(a[i]) for a in settings), 1e-5)
        seconds = (time.perf_counter() - start) * n / sample
        rows.append([name, f"{sample}", "", _seconds(seconds), f"extrapolated to {n:,}"])
    columns = ["method", "settings timed", "first call", "time", "note"]
    return _table(f"Sweep of {n:,} settings", columns, rows)


def distinct(n: int = 1_000) -> str:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    sigmas = np.linspace(0.8, 2.0, n)
    run = acc.Composed(tuple(acc.PoissonSampled(acc.Gaussian(float(s)), 0.01) for s in sigmas))
    rows = []
    for method in ("rdp", "contour"):

        def ask(m=method):
            return acc.epsilon(run, delta=1e-5, method=m)

        warm_up(ask, 5.0)
        seconds, value = median_time(ask)
        rows.append([f"dpjax {method}", _seconds(seconds), f"{value:.6f}"])
    start = time.perf_counter()
    accountant = RdpAccountant()
    for s in sigmas:
        inner = dp_accounting.GaussianDpEvent(float(s))
        accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, inner))
    value = accountant.get_epsilon(1e-5)
    rows.append(["dp_accounting RDP (once)", _seconds(time.perf_counter() - start), f"{value:.6f}"])
    # Composition grows dearer with every step: the straight line through the first is too low.
    start, few = time.perf_counter(), n // 20
    accountant = PLDAccountant()
    for s in sigmas[:few]:
        inner = dp_accounting.GaussianDpEvent(float(s))
        accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, inner))
    accountant.get_epsilon(1e-5)
    seconds = (time.perf_counter() - start) * n / few
    rows.append([f"dp_accounting PLD ({few} steps, extrapolated)", _seconds(seconds), ""])
    return _table(f"{n:,} distinct steps", ["method", "time", "ε"], rows)


def cold() -> str:
    program = (
        "from dpjax import accounting as acc;"
        "acc.epsilon(acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0),0.01),1000),"
        "delta=1e-5,method={!r})"
    )
    rows = []
    for method in ("rdp", "contour"):
        command = [sys.executable, "-c", program.format(method)]
        seconds, _ = median_time(lambda c=command: subprocess.run(c, check=True), 3)
        rows.append([f"dpjax {method}", _seconds(seconds)])
    return _table("New process: import and first ε", ["method", "time"], rows)


def coverage(n: int = 2_000) -> str:
    """How many random settings each resolution of the contour answers."""
    run = _run(*_settings(n, 3))
    best, rows = None, []
    for level, resolution in enumerate(contour.RESOLUTIONS):
        kernel = tight._kernel("epsilon", False, level)
        found = lowering.query(kernel, run, acc.Adjacency.ADD_REMOVE, (1e-5,), (0,), batch=4)
        best = found if best is None else tight._merge(best, found)
        width = tight._width(best)
        shares = [f"{np.mean(width <= goal):.1%}" for goal in (1e-8, 1e-6, 1e-5)]
        rows.append([f"{resolution.blocks**2:,}", f"{resolution.nodes:,}", *shares])
    columns = ["points on the line", "nodes", "resolved to 1e-8", "1e-6", "1e-5"]
    return _table(f"What a line resolves of {n:,} random settings", columns, rows)


def logarithm(n: int = 20_000) -> str:
    """Error of log(1 + x) in units of the last place, against NumPy's long double."""
    functions = {"jax.numpy": jax.numpy.log1p, "dpjax": log1p}
    rows = []
    for low, high in [(-0.99, -0.4143), (-0.4142, -0.2929), (-0.2928, 1.0), (1.0, 1e3)]:
        x = np.random.default_rng(0).uniform(low, high, n)
        exact = np.log1p(x.astype(np.longdouble))
        row = [f"{low:g} to {high:g}"]
        for function in functions.values():
            with jax.enable_x64(True):
                found = np.asarray(jax.jit(function)(x))
            worst = np.max(np.abs((found - exact) / exact)) / np.finfo(np.float64).eps
            row.append(f"{float(worst):.1f}")
        rows.append(row)
    return _table("log(1 + x): worst error, in units of roundoff", ["x", *functions], rows)


def compare(n: int) -> str:
    """Who differs from the truth: below it by more than rounding is wrong, above it is loose."""
    settings = _settings(n, 5)
    truth = np.asarray(acc.epsilon(_run(*settings), delta=1e-5))  # the tight answer, or the PLD's
    names = ["dpjax rdp", "dp_accounting RDP", "Opacus RDP", "dp_accounting PLD", "prv_accountant"]
    rows = []
    for name in names:
        function = {**OURS, **RIVALS}[name]
        if not _available(name, function):
            continue
        count = n if "RDP" in name or "rdp" in name else min(n, 25)
        values = []
        for i in range(count):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    values.append(float(function(*(float(a[i]) for a in settings), 1e-5)))
                except Exception as error:
                    Console().print(f"{name} fails at setting {i}: {error}")
                    values.append(np.nan)
        ratio = np.asarray(values) / truth[:count]
        below = int(np.nansum(ratio < 1 - 1e-6))
        quantiles = [f"{v:.5f}" for v in np.nanquantile(ratio, [0.0, 0.5, 0.99, 1.0])]
        rows.append([name, str(count), str(below), str(int(np.isnan(ratio).sum())), *quantiles])
    columns = [
        "method",
        "settings",
        "below truth",
        "failed",
        "least ε/truth",
        "median",
        "99 %",
        "most",
    ]
    return _table("Who is right (truth: the upper end of the certified bracket)", columns, rows)


def soundness(n: int) -> str:
    """Every method's ε is at least the lower end of the bracket, on random settings."""
    generator = np.random.default_rng(11)
    sigma = np.exp(generator.uniform(np.log(0.4), np.log(20), n))
    rate = 10 ** generator.uniform(-4, -0.05, n)
    steps = np.floor(10 ** generator.uniform(0.5, 4.5, n))
    delta = 10 ** generator.uniform(-11, -3, n)
    rows = []
    lower = np.zeros(n)
    for i in range(n):
        for sign in (1, -1):
            pair = pld.Pair("poisson", sign, 1 / sigma[i], rate[i], steps[i])
            low = pld.epsilon_bound([pair], delta[i], upper=False, bins=1 << 16)
            lower[i] = max(lower[i], low)
    for name in ("dpjax contour", "dpjax rdp"):
        found = np.asarray(OURS[name](sigma, rate, steps, delta))
        known = np.isfinite(found)
        below = int(np.sum(found < lower * (1 - 1e-12)))
        excess = np.quantile((found / np.maximum(lower, 1e-9))[known & (lower > 1e-3)], 0.5)
        rows.append([name, f"{n:,}", str(below), str(int(np.sum(~known))), f"{excess:.5f}"])
    columns = ["method", "settings", "below the bracket", "left to the fall-back", "median ε/lower"]
    return _table("Never below the lower end", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", type=int, nargs="?", const=500, default=0)
    parser.add_argument("--soundness", type=int, nargs="?", const=2_000, default=0)
    parser.add_argument("--sweep", type=int, default=10_000)
    parser.add_argument(
        "--only", help="one section: single, calibration, sweep, distinct, cold, coverage"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sections: dict[str, Callable[[], str]] = {
        "single": single,
        "cold": cold,
        "distinct": distinct,
        "sweep": lambda: sweep(options.sweep),
        "calibration": calibration,
        "coverage": coverage,
        "logarithm": logarithm,
    }
    if options.compare:
        sections = {"compare": lambda: compare(options.compare)}
    elif options.soundness:
        sections = {"soundness": lambda: soundness(options.soundness)}
    elif options.only:
        sections = {options.only: sections[options.only]}
    RESULTS.parent.mkdir(exist_ok=True)
    for name, section in sections.items():
        text = section()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        stamp = f"<!-- {name}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        stamp += f"peak memory of the process {peak:.2f} GB -->\n"
        with RESULTS.open("a") as file:
            file.write(text + "\n" + stamp + "\n")


if __name__ == "__main__":
    main()
