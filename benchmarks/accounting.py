"""The accountant against dp_accounting, Opacus and prv_accountant, side by side in one run.

    python -m benchmarks.accounting                     # all sections, into results/accounting.md
    python -m benchmarks.accounting --only cold sweep   # these sections anew, the others kept
    python -m benchmarks.accounting --quick             # small sizes, printed and not kept

Times are medians; a sweep of the rivals is timed on a few settings and extrapolated, and the table
says so. Fresh processes, single answers and calibrations are measured by their processor time;
sweeps, which take all processors, by the clock. The rivals' numerical libraries run on one thread.
A library that is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

if __name__ == "__main__":  # read when the rivals' libraries are first loaded
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

import jax
import jax.export
import numpy as np

from dpjax import accounting as acc
from dpjax._numerics.arrays import JAX
from dpjax._numerics.scope import float64_scope
from dpjax.accounting.loss_distribution.grid import epsilon_bound
from dpjax.accounting.loss_distribution.step import Pair

RESULTS = pathlib.Path(__file__).parent / "results" / "accounting.md"
TRUTH = 1.8282366665165795  # σ = 1, rate 0.01, 1,000 steps, δ = 1e-5; contour in long double
POINT = (1.0, 0.01, 1_000)
BUDGETS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)


class Sizes(NamedTuple):
    """How much each section does.

    Fields:
        repeats: timed calls of which the median is taken.
        budgets: ε that are calibrated to.
        sweep: settings of the sweep.
        sample: settings of it that the rivals are timed on.
        distinct: different steps composed.
        compare: settings on which the libraries are compared.
        soundness: settings held against the certified lower end.
    """

    repeats: int = 7
    budgets: tuple[float, ...] = BUDGETS
    sweep: int = 10_000
    sample: int = 5
    distinct: int = 1_000
    compare: int = 500
    soundness: int = 2_000


QUICK = Sizes(1, (1.0,), 50, 1, 20, 3, 5)


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


def median_time(
    function: Callable, repeats: int, clock: Callable[[], float] = time.process_time
) -> tuple[float, object]:
    times, value = [], None
    for _ in range(repeats):
        start = clock()
        value = function()
        times.append(clock() - start)
    return statistics.median(times), value


def _available(name: str, function: Callable) -> bool:
    try:
        function(*POINT, 1e-5)
    except ImportError as error:
        print(f"{name} left out: {error}")
        return False
    return True


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"


def _times(value: float) -> str:
    return f"{value:.0f} ×" if value >= 10 else f"{value:.2g} ×"


def _table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([f"## {title}", "", *lines, *("| " + " | ".join(r) + " |" for r in rows), ""])


def cold(sizes: Sizes) -> str:
    """Processor time of fresh processes, beside `import jax` alone."""
    ours = (
        "from dpjax import accounting as acc;"
        "acc.epsilon(acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0),0.01),1000),"
        "delta=1e-5,method={!r})"
    )
    theirs = (
        "import dp_accounting as d;from dp_accounting.{} import {} as A;"
        "e=d.PoissonSampledDpEvent(0.01,d.GaussianDpEvent(1.0));"
        "A().compose(d.SelfComposedDpEvent(e,1000)).get_epsilon(1e-5)"
    )
    programs = {
        "import jax": "import jax",
        "import dpjax.accounting": "import dpjax.accounting",
        "dpjax rdp": ours.format("rdp"),
        "dpjax contour": ours.format("contour"),
        "dpjax best": ours.format("best"),
        "dp_accounting RDP": theirs.format("rdp", "RdpAccountant"),
        "dp_accounting PLD": theirs.format("pld", "PLDAccountant"),
    }
    spent: dict[str, list[float]] = {name: [] for name in programs}
    # As installed packages are: bytecode is written by the first round, which does not count.
    own = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    # In turns, so that a change of the machine's speed meets all of them.
    for turn in range(sizes.repeats + 1):
        for name, program in programs.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=own)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            if turn > 0:
                spent[name].append(used if done.returncode == 0 else np.nan)
    base = statistics.median(spent["import jax"])
    rows = []
    for name, seconds in spent.items():
        middle = statistics.median(seconds)
        rows.append([name, _seconds(middle), f"{middle / base:.2f}", f"{middle - base:+.2f} s"])
    columns = [
        "fresh process: imports and first ε",
        "processor time",
        "over `import jax`",
        "beyond",
    ]
    return _table(f"First ε, processor time (median of {sizes.repeats})", columns, rows)


def single(sizes: Sizes) -> str:
    rows = []
    for name, function in {**OURS, **RIVALS}.items():
        start = time.process_time()
        if not _available(name, function):
            continue
        first = time.process_time() - start
        fast = name in OURS and "pld" not in name
        repeats = sizes.repeats * (9 if fast else 1)
        warm, value = median_time(lambda f=function: f(*POINT, 1e-5), repeats)
        error = float(value) - TRUTH
        rows.append([name, _seconds(first), _seconds(warm), f"{value:.9f}", f"{error:+.1e}"])
    columns = ["method", "first call", "warm", "ε", "ε − truth"]
    return _table("One ε (σ = 1, rate 0.01, 1,000 steps, δ = 1e-5)", columns, rows)


def calibration(sizes: Sizes) -> str:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    def make(sigma):
        return _run(sigma, 0.01, 1_000)

    def theirs(accountant, budget):
        return dp_accounting.calibrate_dp_mechanism(
            accountant,
            lambda s: _event(s, 0.01, 1_000),
            budget,
            1e-5,
            dp_accounting.ExplicitBracketInterval(0.3, 30.0),
            tol=1e-6,
        )

    rows = []
    for budget in sizes.budgets:
        row = [f"{budget:g}"]
        for method, accountant in (("rdp", RdpAccountant), ("contour", PLDAccountant)):

            def solve(m=method, b=budget):
                return acc.calibrate(make, epsilon=b, delta=1e-5, method=m)

            solve()
            seconds, sigma = median_time(solve, min(sizes.repeats, 3))
            over = acc.epsilon(make(sigma), delta=1e-5, method=method) > budget
            start = time.process_time()
            rival = theirs(accountant, budget)
            once = time.process_time() - start
            row += [f"{sigma:.6f}{' OVER' if over else ''}", _seconds(seconds)]
            row += [f"{rival:.6f}", _seconds(once), _times(once / seconds)]
        rows.append(row)
    columns = ["ε", "rdp σ", "time", "dp_accounting RDP σ", "time (once)", "faster"]
    columns += ["contour σ", "time", "dp_accounting PLD σ", "time (once)", "faster"]
    return _table("Calibration (rate 0.01, 1,000 steps, δ = 1e-5)", columns, rows)


def _settings(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    sigma = generator.uniform(0.6, 8, n)
    rate = 10 ** generator.uniform(-3.5, -1, n)
    steps = np.floor(10 ** generator.uniform(1.5, 4, n))
    return sigma, rate, steps


def sweep(sizes: Sizes) -> str:
    n, sample = sizes.sweep, sizes.sample
    settings = _settings(n)
    rivals = {}
    for name in ("dp_accounting RDP", "dp_accounting PLD", "Opacus RDP", "prv_accountant"):
        if not _available(name, RIVALS[name]):
            continue
        start = time.perf_counter()
        for i in range(sample):
            RIVALS[name](*(float(a[i]) for a in settings), 1e-5)
        rivals[name] = (time.perf_counter() - start) * n / sample
    rows = []
    against = {"dpjax rdp": "dp_accounting RDP", "dpjax contour": "dp_accounting PLD"}
    for name, rival in against.items():
        start = time.perf_counter()
        OURS[name](*settings, 1e-5)
        first = time.perf_counter() - start
        seconds, found = median_time(
            lambda f=OURS[name]: f(*settings, 1e-5), min(sizes.repeats, 3), time.perf_counter
        )
        left = int(np.sum(~np.isfinite(found)))
        note = f"{_times(rivals[rival] / seconds)} {rival}; {left} left to the fall-back"
        rows.append([name, f"{n:,}", _seconds(first), _seconds(seconds), note])
    for name, seconds in rivals.items():
        rows.append([name, f"{sample}", "", _seconds(seconds), f"extrapolated to {n:,}"])
    columns = ["method", "settings timed", "first call", "time", "note"]
    return _table(f"Sweep of {n:,} settings", columns, rows)


def distinct(sizes: Sizes) -> str:
    n = sizes.distinct
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    sigmas = np.linspace(0.8, 2.0, n)
    run = acc.Composed(tuple(acc.PoissonSampled(acc.Gaussian(float(s)), 0.01) for s in sigmas))
    rows = []
    for method in ("rdp", "contour"):

        def ask(m=method):
            return acc.epsilon(run, delta=1e-5, method=m)

        ask()
        seconds, value = median_time(ask, sizes.repeats, time.perf_counter)
        rows.append([f"dpjax {method}", _seconds(seconds), f"{value:.6f}"])
    start = time.perf_counter()
    accountant = RdpAccountant()
    for s in sigmas:
        inner = dp_accounting.GaussianDpEvent(float(s))
        accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, inner))
    value = accountant.get_epsilon(1e-5)
    rows.append(["dp_accounting RDP (once)", _seconds(time.perf_counter() - start), f"{value:.6f}"])
    # Composition grows dearer with every step: the straight line through the first is too low.
    start, few = time.perf_counter(), max(n // 20, 1)
    accountant = PLDAccountant()
    for s in sigmas[:few]:
        inner = dp_accounting.GaussianDpEvent(float(s))
        accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, inner))
    accountant.get_epsilon(1e-5)
    seconds = (time.perf_counter() - start) * n / few
    rows.append([f"dp_accounting PLD ({few} steps, extrapolated)", _seconds(seconds), ""])
    return _table(f"{n:,} distinct steps", ["method", "time", "ε"], rows)


def traced(sizes: Sizes) -> str:
    """Queries in a float32 program: on a CPU they call NumPy, exported they are operations."""

    def gaussian(sigma):
        return acc.epsilon(acc.Repeated(acc.Gaussian(sigma), 1_000), 1e-5)

    def renyi(sigma):
        return acc.epsilon(_run(sigma, 0.01, 1_000), 1e-5, method="rdp")

    def contour(sigma):
        return acc.epsilon(_run(sigma, 0.01, 1_000), 1e-5, method="contour")

    queries = {"Gaussian": gaussian, "Rényi": renyi, "contour": contour}
    if sizes.repeats > 1:  # half a minute or more to compile
        queries["contour, derivative"] = jax.value_and_grad(contour)
    else:
        queries.pop("contour")
    rows, number = [], jax.ShapeDtypeStruct((), np.float32)
    for name, query in queries.items():
        row = [name]
        for exported in (False, True):
            start = time.process_time()
            function = query
            if exported:
                platforms = ("cpu", "cuda", "tpu")
                function = jax.export.export(jax.jit(query), platforms=platforms)(number).call
                row.append(_seconds(time.process_time() - start))
                start = time.process_time()
            program = jax.jit(function).lower(number).compile()
            row.append(_seconds(time.process_time() - start))
            call = lambda: jax.block_until_ready(program(np.float32(1.0)))  # noqa: B023, E731
            call()
            seconds, value = median_time(call, 3 * sizes.repeats)
            row.append(_seconds(seconds))
        row.append(f"{jax.tree.leaves(value)[0]:.7f}")
        rows.append(row)
    columns = [
        "query (σ = 1, δ = 1e-5)",
        "calls NumPy: compiled in",
        "a call",
        "operations: exported in",
        "compiled in",
        "a call",
        "ε",
    ]
    return _table("Queries within a float32 program, on a CPU", columns, rows)


def logarithm(sizes: Sizes) -> str:
    """Error of log(1 + x) in units of the last place, against NumPy's long double."""
    functions = {"jax.numpy": jax.numpy.log1p, "dpjax": JAX.log1p}
    rows = []
    for low, high in [(-0.99, -0.4143), (-0.4142, -0.2929), (-0.2928, 1.0), (1.0, 1e3)]:
        x = np.random.default_rng(0).uniform(low, high, 20_000)
        exact = np.log1p(x.astype(np.longdouble))
        row = [f"{low:g} to {high:g}"]
        for function in functions.values():
            with float64_scope():
                found = np.asarray(jax.jit(function)(x))
            worst = np.max(np.abs((found - exact) / exact)) / np.finfo(np.float64).eps
            row.append(f"{float(worst):.1f}")
        rows.append(row)
    return _table("log(1 + x): worst error, in units of roundoff", ["x", *functions], rows)


def compare(sizes: Sizes) -> str:
    """Who differs from the truth: below it by more than rounding is wrong, above it is loose."""
    n = sizes.compare
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
                    print(f"{name} fails at setting {i}: {error}")
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


def soundness(sizes: Sizes) -> str:
    """Every method's ε is at least the lower end of the bracket, on random settings."""
    n = sizes.soundness
    generator = np.random.default_rng(11)
    sigma = np.exp(generator.uniform(np.log(0.4), np.log(20), n))
    rate = 10 ** generator.uniform(-4, -0.05, n)
    steps = np.floor(10 ** generator.uniform(0.5, 4.5, n))
    delta = 10 ** generator.uniform(-11, -3, n)
    rows = []
    lower = np.zeros(n)
    for i in range(n):
        for sign in (1, -1):
            pair = Pair("poisson", sign, 1 / sigma[i], rate[i], steps[i])
            low = epsilon_bound([pair], delta[i], upper=False, bins=1 << 16)
            lower[i] = max(lower[i], low)
    for name in ("dpjax contour", "dpjax rdp"):
        found = np.asarray(OURS[name](sigma, rate, steps, delta))
        known = np.isfinite(found)
        below = int(np.sum(found < lower * (1 - 1e-12)))
        excess = np.quantile((found / np.maximum(lower, 1e-9))[known & (lower > 1e-3)], 0.5)
        rows.append([name, f"{n:,}", str(below), str(int(np.sum(~known))), f"{excess:.5f}"])
    columns = ["method", "settings", "below the bracket", "left to the fall-back", "median ε/lower"]
    return _table("Never below the lower end", columns, rows)


SECTIONS: dict[str, Callable[[Sizes], str]] = {
    "cold": cold,
    "single": single,
    "sweep": sweep,
    "calibration": calibration,
    "distinct": distinct,
    "compare": compare,
    "soundness": soundness,
    "traced": traced,
    "logarithm": logarithm,
}
_STAMP = re.compile(r"^<!-- (\w+): .*-->\n", re.MULTILINE)


def _machine() -> str:
    """The machine and the libraries, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text())
        model = names[0] if names else model
    versions = [f"Python {platform.python_version()}"]
    for library in ("jax", "numpy", "scipy", "dp-accounting"):
        versions.append(f"{library} {importlib.metadata.version(library)}")
    load = os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, load {load:.1f}; {', '.join(versions)}"


def _kept() -> dict[str, str]:
    """The sections of the last results, by name."""
    if not RESULTS.exists():
        return {}
    parts = _STAMP.split(RESULTS.read_text())
    stamps = [match.group(0) for match in _STAMP.finditer(RESULTS.read_text())]
    texts = parts[0::2]
    return {
        name: text.strip() + "\n\n" + stamp
        for name, text, stamp in zip(parts[1::2], texts, stamps, strict=False)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sizes = QUICK if options.quick else Sizes()
    found = _kept()
    for name in options.only:
        text = SECTIONS[name](sizes)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        stamp = f"<!-- {name}: {_machine()}; peak memory of the process {peak:.2f} GB -->\n"
        print(text, stamp, sep="\n")
        found[name] = f"{text}\n{stamp}"
        if not options.quick:  # after every section, so that a run broken off is not lost
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text("\n".join(found[n] for n in SECTIONS if n in found))


if __name__ == "__main__":
    main()
