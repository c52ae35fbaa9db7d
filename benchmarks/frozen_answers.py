"""What the accountant answered before it was rebuilt, and what it answers now.

    python -m benchmarks.frozen_answers             # compare, and print widths and times by family
    python -m benchmarks.frozen_answers --every 20  # every 20th setting alone
    python -m benchmarks.frozen_answers --freeze    # write the answers of this version anew

tests/accounting/frozen_answers.jsonl.gz has one setting a line: the run as a certificate writes it,
the relation, δ, both ends of `epsilon_interval`, the method of `price`, milliseconds
of processor time, and of some
settings δ(ε), a Rényi curve and ε by every method. What was refused is named. The settings are
drawn from a fixed seed, family by family in turn, so that a file that ends early covers all.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import itertools
import json
import math
import pathlib
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from dpjax import accounting as acc
from dpjax.accounting.answers.certificate import from_plain, to_plain

FILE = pathlib.Path(__file__).parents[1] / "tests" / "accounting" / "frozen_answers.jsonl.gz"
ORDERS = (1.25, 2.0, 4.0, 16.0, 64.0, 256.0)
# The ends of closed forms are one formula evaluated once or twice, correct to some units of the
# last place (2e-16), so that an exact new end may lie a few of these beyond an exact old one.
ROUNDING = 1e-12
_LONGEST = 25  # seconds for one setting; what takes longer is left out
_QUICK = 300  # milliseconds, above which the method is not asked for


def _log(rng: random.Random, low: float, high: float) -> float:
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")


def _whole(rng: random.Random, low: int, high: int) -> int:
    return round(_log(rng, low, high))


def _gaussian(rng: random.Random) -> acc.Mechanism:
    return acc.Gaussian(_log(rng, 0.3, 30.0))


def _sampled(rng: random.Random, steps: int) -> acc.Mechanism:
    """Two of three with a noise multiplier that suits the rate and the steps."""
    rate = _log(rng, 1e-4, 0.5)
    suits = max(0.45, rate * math.sqrt(steps) / _log(rng, 0.1, 3.0))
    sigma = min(float(f"{suits:.4g}"), 50.0) if rng.random() < 0.67 else _log(rng, 0.4, 20.0)
    return acc.PoissonSampled(acc.Gaussian(sigma), rate)


def _repeated(rng: random.Random, of: Callable, most: int = 100_000) -> acc.Mechanism:
    steps = 1 if rng.random() < 0.15 else _whole(rng, 1, most)
    return acc.Repeated(of(rng, steps), steps)


def _release(rng: random.Random) -> acc.Mechanism:
    kinds: list[Callable[[], acc.Mechanism]] = [
        lambda: acc.Laplace(_log(rng, 0.3, 50.0)),
        lambda: acc.DiscreteLaplace(_log(rng, 0.3, 50.0), rng.randint(1, 4)),
        lambda: acc.DiscreteGaussian(_log(rng, 0.5, 20.0), rng.randint(1, 4)),
        lambda: acc.RandomizedResponse(_log(rng, 1e-2, 5.0), rng.randint(2, 30)),
        lambda: acc.Exponential(_log(rng, 1e-2, 5.0), rng.random() < 0.3, rng.random() < 0.3),
    ]
    return rng.choice(kinds)()


def _stated(rng: random.Random) -> acc.Mechanism:
    relation = rng.choice(["as-asked", "add-remove", "replace-one"])
    relation = "as-asked" if rng.random() < 0.5 else relation
    kinds: list[Callable[[], acc.Mechanism]] = [
        lambda: acc.PureDP(_log(rng, 1e-3, 3.0), relation),
        lambda: acc.ApproximateDP(_log(rng, 1e-3, 3.0), _log(rng, 1e-14, 1e-4), relation),
        lambda: acc.ZeroConcentrated(_log(rng, 1e-5, 1.0), relation),
    ]
    return rng.choice(kinds)()


def _allocation(rng: random.Random) -> acc.Mechanism:
    steps = _whole(rng, 1, 10_000)
    epochs = 1 if rng.random() < 0.5 else _whole(rng, 1, 100)
    sigma = _log(rng, 0.6, 5.0) if rng.random() < 0.85 else _log(rng, 0.3, 20.0)
    return acc.Repeated(acc.RandomAllocation(acc.Gaussian(sigma), steps), epochs)


def _replaced(rng: random.Random) -> tuple[int, int, int]:
    population = _whole(rng, 10, 100_000)
    return _whole(rng, 1, max(1, population // 3)), population, _whole(rng, 1, 10_000)


def _strategy(rng: random.Random, most: int) -> list[float]:
    return [1.0, *sorted(round(rng.random(), 3) for _ in range(rng.randint(0, most)))[::-1]]


def _descent(rng: random.Random) -> tuple[float, ...]:
    smoothness = _log(rng, 0.1, 10.0)
    step = float(f"{rng.uniform(0.05, 1.9) / smoothness:.4g}")
    convexity = 0.0 if rng.random() < 0.2 else float(f"{smoothness * _log(rng, 1e-3, 1.0):.4g}")
    return (
        step,
        _log(rng, 1e-3, 1.0),
        _log(rng, 1e-4, 0.3),
        min(convexity, smoothness),
        smoothness,
    )


def _diameter(rng: random.Random) -> float:
    return math.inf if rng.random() < 0.5 else _log(rng, 0.1, 10.0)


def _anything(rng: random.Random) -> acc.Mechanism:
    names = [name for name in FAMILIES if name not in ("mixed", "users", "best of")]
    return FAMILIES[rng.choice(names)][1](rng)


def _user(rng: random.Random) -> acc.Mechanism:
    size, population, steps = _replaced(rng)
    few = min(steps, 1_000)
    inner = rng.choice(
        [
            _repeated(rng, _sampled, 2_000),
            acc.Repeated(acc.Gaussian(_log(rng, 1.0, 50.0)), few),
            acc.Repeated(
                acc.FixedBatchSampled(acc.Gaussian(_log(rng, 1.0, 20.0)), size, population), few
            ),
            acc.Repeated(
                acc.WithReplacement(acc.Gaussian(_log(rng, 1.0, 20.0)), size, population), few
            ),
            acc.Laplace(_log(rng, 1.0, 50.0)),
            acc.Repeated(_release(rng), _whole(rng, 1, 30)),
            _allocation(rng),
            acc.Shuffled(acc.Gaussian(_log(rng, 1.0, 20.0)), rng.randint(1, 50)),
        ]
    )
    return acc.UserLevel(inner, _whole(rng, 1, 30))


def _truncated(rng: random.Random) -> acc.Mechanism:
    population = _whole(rng, 10, 100_000)
    rate = _log(rng, 1e-3, 0.3)
    capacity = max(1, round(population * rate * _log(rng, 0.7, 3.0)))
    return acc.Repeated(
        acc.TruncatedPoissonSampled(acc.Gaussian(_log(rng, 0.5, 20.0)), rate, population, capacity),
        _whole(rng, 1, 10_000),
    )


def _randomized(rng: random.Random) -> acc.Mechanism:
    weights = [rng.random() + 1e-3 for _ in range(rng.randint(1, 6))]
    weights = [weight / sum(weights) for weight in weights]
    moved = [_log(rng, 1e-3, 2.0) for _ in weights]
    one = acc.RandomizedSensitivity(moved, weights, _log(rng, 0.1, 5.0))
    return one if rng.random() < 0.7 else acc.Repeated(one, _whole(rng, 1, 20))


def _matrix(rng: random.Random) -> acc.Mechanism:
    sizes = sorted(round(rng.uniform(0.5, 4.0), 3) for _ in range(rng.randint(1, 8)))
    known = _strategy(rng, 4)
    steps = _whole(rng, 1, 2_000)
    times = math.inf if rng.random() < 0.5 else float(rng.randint(1, 10))
    apart = _whole(rng, 1, steps)
    if rng.random() < 0.5:
        return acc.MatrixGaussian(_log(rng, 1.0, 30.0), sizes, len(sizes), 1, times)
    return acc.CorrelatedGaussian(_log(rng, 1.0, 30.0), known, steps, apart, times)


def _geometric(rng: random.Random) -> acc.Mechanism:
    batch, dimension = _whole(rng, 1, 1_000), rng.randint(2, 1_000)
    kinds: list[Callable[[], acc.Mechanism]] = [
        lambda: acc.RecentredGaussian(_log(rng, 0.01, 3.0), _log(rng, 1e-3, 0.1), batch),
        lambda: acc.BoxedAngles(_log(rng, 0.01, 1.0), _log(rng, 0.01, 1.0), batch, dimension),
        lambda: acc.TangentBall(_log(rng, 0.01, 3.0), _log(rng, 1e-3, 0.1), batch),
        lambda: acc.Anisotropic(
            *(_log(rng, 0.05, 2.0) for _ in range(2)),
            *(_log(rng, 0.01, 1.0) for _ in range(2)),
            batch,
        ),
        lambda: acc.GeoDP(1.0, 0.1, batch, dimension, unsafe_no_dp=True),
    ]
    run = rng.choice(kinds)()
    return run if rng.random() < 0.5 else acc.Repeated(run, _whole(rng, 1, 1_000))


def _last(rng: random.Random) -> acc.Mechanism:
    numbers, steps = _descent(rng), _whole(rng, 1, 5_000)
    which, diameter = rng.randrange(3), _diameter(rng)
    if which == 0:
        return acc.NoisyGradientDescent(steps, *numbers, diameter)
    if which == 1:
        return acc.NoisyCyclicDescent(steps, *numbers, rng.randint(1, 50), diameter)
    size, population, _ = _replaced(rng)
    return acc.NoisySampledDescent(steps, *numbers, size, population, diameter)


def _best(rng: random.Random) -> acc.Mechanism:
    inner = rng.choice(
        [
            acc.Gaussian(_log(rng, 1.0, 20.0)),
            _repeated(rng, _sampled, 3_000),
            _stated(rng),
            _release(rng),
        ]
    )
    law = rng.choice(["geometric", "logarithmic", "poisson"])
    return acc.BestOf(inner, _log(rng, 1.01, 100.0), law)


def _batch(rng: random.Random, kind: type) -> acc.Mechanism:
    size, population, steps = _replaced(rng)
    return acc.Repeated(kind(acc.Gaussian(_log(rng, 0.6, 20.0)), size, population), steps)


def _rare(rng: random.Random) -> acc.Mechanism:
    rate = _log(rng, 1e-7, 1e-3)
    steps = max(1, round(_log(rng, 0.003, 1.0) / rate))
    return acc.Repeated(
        acc.PoissonSampled(acc.Gaussian(_log(rng, 0.5, 8.0)), rate),
        min(steps, 30 if rng.random() < 0.5 else steps),
    )


def _cyclic(rng: random.Random) -> acc.Mechanism:
    known = _strategy(rng, 6)
    groups = len(known) + rng.randint(0, 5)
    one = acc.CyclicPoissonCorrelated(_log(rng, 0.6, 10.0), known, groups, _log(rng, 1e-3, 0.5))
    return acc.Repeated(one, _whole(rng, 1, 3_000))


# name: (how many of 5,000, how one is drawn)
FAMILIES: dict[str, tuple[int, Callable[[random.Random], acc.Mechanism]]] = {
    "gaussian": (150, lambda r: acc.Repeated(_gaussian(r), _whole(r, 1, 100_000))),
    "poisson": (900, lambda r: _repeated(r, _sampled)),
    "rare": (100, _rare),
    "phases": (
        300,
        lambda r: acc.Composed(
            tuple(_repeated(r, _sampled, 10_000) for _ in range(r.randint(2, 4)))
        ),
    ),
    "ball": (
        60,
        lambda r: acc.Repeated(
            acc.UniformBall(_log(r, 1e-3, 1.0), r.randint(1, 300)), _whole(r, 1, 100)
        ),
    ),
    "stated": (120, lambda r: acc.Repeated(_stated(r), _whole(r, 1, 300))),
    "releases": (350, lambda r: acc.Repeated(_release(r), _whole(r, 1, 2_000))),
    "sampled releases": (
        350,
        lambda r: acc.Repeated(
            acc.PoissonSampled(_release(r), _log(r, 1e-3, 0.5)), _whole(r, 1, 3_000)
        ),
    ),
    "allocation": (400, _allocation),
    "several allocated": (
        60,
        lambda r: acc.Repeated(
            acc.RandomAllocation(
                acc.Gaussian(_log(r, 0.8, 8.0)), _whole(r, 3, 2_000), r.randint(2, 3)
            ),
            _whole(r, 1, 20),
        ),
    ),
    "truncated": (150, _truncated),
    "fixed batch": (300, lambda r: _batch(r, acc.FixedBatchSampled)),
    "with replacement": (150, lambda r: _batch(r, acc.WithReplacement)),
    "shuffled": (
        80,
        lambda r: acc.Repeated(acc.Shuffled(_gaussian(r), r.randint(1, 100)), _whole(r, 1, 100)),
    ),
    "best of": (200, _best),
    "objective": (
        60,
        lambda r: acc.ObjectivePerturbation(
            _log(r, 0.1, 3.0),
            _log(r, 0.5, 100.0),
            _log(r, 0.05, 2.0),
            _log(r, 1.0, 300.0),
            _log(r, 1e-6, 1.0),
        ),
    ),
    "randomized sensitivity": (100, _randomized),
    "last iterate": (240, _last),
    "geometric": (150, _geometric),
    "correlated": (160, _matrix),
    "cyclic": (80, _cyclic),
    "users": (250, _user),
    "mixed": (240, lambda r: acc.Composed(tuple(_anything(r) for _ in range(r.randint(2, 3))))),
}


def settings() -> Iterator[tuple[str, acc.Mechanism, str, float]]:
    """Family, run, relation and δ of every setting; one family wraps everything in everything."""
    from tests.accounting.mechanism_examples import EXAMPLES, WRAPPERS  # not in every distribution

    waiting = [
        (number / size, name, number)
        for name, (size, _) in FAMILIES.items()
        for number in range(size)
    ]
    wrapped = list(itertools.product(EXAMPLES, [None, *WRAPPERS], acc.Adjacency))
    waiting += [(number / len(wrapped), "", number) for number in range(len(wrapped))]
    random.Random("wrapped").shuffle(wrapped)
    for _, name, number in sorted(waiting):
        if not name:
            run, wrapper, relation = wrapped[number]
            try:
                yield "wrapped", WRAPPERS[wrapper](run) if wrapper else run, relation.value, 1e-5
            except (TypeError, ValueError):
                continue
            continue
        rng = random.Random(f"{name} {number}")
        try:
            run = FAMILIES[name][1](rng)
        except (TypeError, ValueError):
            continue  # numbers that do not go together
        replaced = name in ("fixed batch", "with replacement") or rng.random() < 0.35
        if name in ("allocation", "several allocated") or rng.random() < 0.02:
            replaced = rng.random() < 0.02
        relation = acc.Adjacency.REPLACE_ONE if replaced else acc.Adjacency.ADD_REMOVE
        delta = _log(rng, 1e-8, 1e-4) if rng.random() < 0.5 else _log(rng, 1e-12, 1e-2)
        yield name, run, relation.value, delta


def ask(setting: dict[str, Any], asked: set[str]) -> dict[str, Any]:
    """The answers to the queries `asked`; `refused` names those without an answer."""
    run = from_plain(setting["run"])
    relation, delta = acc.Adjacency(setting["adjacency"]), setting["delta"]
    found: dict[str, Any] = {"refused": []}

    def attempt(name: str, query: Callable[[], Any]) -> None:
        if name not in asked:
            return
        try:
            found[name] = query()
        except acc.UnsupportedQuery:
            found["refused"].append(name)

    begun = time.process_time()
    attempt(
        "interval", lambda: [float(x) for x in acc.epsilon_interval(run, delta, adjacency=relation)]
    )
    found["ms"] = round(1e3 * (time.process_time() - begun), 2)
    attempt("method", lambda: acc.price(run, delta, adjacency=relation)[1].name)
    attempt("rdp", lambda: [float(x) for x in acc.rdp(run, ORDERS, adjacency=relation)])
    for at in ("low", "high"):
        key = f"delta at {at}"
        attempt(
            key, lambda k=key: float(acc.delta(run, setting[f"epsilon{k[5:]}"], adjacency=relation))
        )
    attempt(
        "methods",
        lambda: {
            name: float(acc.epsilon(run, delta, adjacency=relation, method=name))
            for name in acc.methods(run, relation)
        },
    )
    return found


def contradictions(setting: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What of the new answers cannot be true together with the old ones, or is no longer answered.

    An old lower end is the ε of two neighbours: no upper bound of ε may be below it, by whatever
    method, nor one that follows from a bound of δ(ε) or of a Rényi divergence.
    """
    old, delta, wrong = setting["answers"], setting["delta"], []
    wrong += [f"{name}: no answer" for name in new["refused"] if name in old]
    if "interval" not in old:
        return wrong
    lower, upper = old["interval"]
    least, most = lower * (1 - ROUNDING), upper * (1 + ROUNDING)
    if "interval" in new:
        low, high = new["interval"]
        if not high >= least:
            wrong.append(f"upper end {high!r} below the old lower end {lower!r}")
        if not low <= most:
            wrong.append(f"lower end {low!r} above the old upper end {upper!r}")
        if not 0 <= low <= high:
            wrong.append(f"ends {low!r} and {high!r} are no interval")
    for name, value in new.get("methods", {}).items():
        if not value >= least:
            wrong.append(f"{value!r} by {name} below the old lower end {lower!r}")
    for order, value in zip(ORDERS, new.get("rdp", []), strict=False):
        implied = acc.rdp_to_epsilon(order, value, delta) if value < math.inf else math.inf
        if not implied >= least:
            wrong.append(f"{implied!r} by the order {order} below the old lower end {lower!r}")
    for at in ("low", "high"):  # below the lower end, δ(ε) is above δ
        value, epsilon = new.get(f"delta at {at}"), setting.get(f"epsilon at {at}", math.inf)
        if value is not None and not 0 <= value <= 1:
            wrong.append(f"δ({epsilon!r}) = {value!r}")
        if (
            value is not None
            and epsilon < lower * (1 - ROUNDING)
            and not value >= delta * (1 - 1e-9)
        ):
            wrong.append(f"δ({epsilon!r}) = {value!r}, although the old lower end is {lower!r}")
    return wrong


def read() -> list[dict[str, Any]]:
    """The settings and their frozen answers."""
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        return [_numbers(json.loads(line)) for line in file]


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    if isinstance(value, dict):
        return {k: v if k == "run" else _numbers(v) for k, v in value.items()}
    return math.inf if value == "inf" else value


def compare(frozen: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every setting with its new answers."""
    for setting in frozen:
        yield setting, ask(setting, {*setting["answers"], *setting["answers"]["refused"]} - {"ms"})


def _freeze() -> None:
    signal.signal(signal.SIGALRM, _too_long)
    plain = FILE.with_suffix("")  # as far as one has come, should it end early
    with plain.open("w", encoding="utf-8") as file:
        for number, (family, run, relation, delta) in enumerate(settings()):
            setting = {
                "family": family,
                "run": to_plain(run),
                "adjacency": relation,
                "delta": delta,
            }
            more = {"rdp"} if number % 3 == 0 else set()
            more |= {"methods"} if number % 11 == 0 else set()
            signal.alarm(_LONGEST)
            try:
                answers = ask(setting, {"interval"})
                low, high = answers.get("interval", (1.0, math.inf))
                if number % 4 == 0 and high < math.inf:
                    setting["epsilon at low"] = 0.999 * low if low > 0 else 0.5 * high
                    setting["epsilon at high"] = float(f"{1.5 * high:.4g}")
                    more |= {"delta at low", "delta at high"}
                if answers["ms"] < _QUICK:
                    more |= {"method"}
                found = ask(setting, more)
                answers = {**found, **answers, "refused": answers["refused"] + found["refused"]}
            except TimeoutError:
                print(f"left out: {setting}", flush=True)
                continue
            except Exception as error:
                print(f"{type(error).__name__} ({error}): {setting}", flush=True)
                continue
            finally:
                signal.alarm(0)
            setting["answers"] = answers
            line = json.dumps(_finite(setting), separators=(",", ":"))
            file.write(line + "\n")
            if number % 50 == 0:
                print(number, flush=True)
                file.flush()
    FILE.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def _finite(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return "inf" if isinstance(value, float) and value == math.inf else value


def _too_long(*_: Any) -> None:
    raise TimeoutError


def _relative(ends: list[float]) -> float:
    low, high = ends
    return (high - low) / high if 0 < high < math.inf else float(high > 0)


def _report(every: int) -> None:
    rows = collections.defaultdict(list)
    wrong, wider = 0, []
    for setting, new in compare(read()[::every]):
        for sentence in contradictions(setting, new):
            wrong += 1
            print(f"{setting['family']}: {sentence}\n    {json.dumps(_finite(setting))}")
        old = setting["answers"]
        if "interval" not in old or "interval" not in new:
            continue
        ends = old["interval"], new["interval"]
        widths = [_relative(end) for end in ends]
        more = widths[1] - widths[0]
        rows[setting["family"]].append((*widths, old["ms"], new["ms"], more > 1e-6))
        wider += [(more, setting)] if more > 1e-6 else []
    print("| family | settings | width before | now | ms before | now | wider by over 1e-6 |")
    print("|---|---|---|---|---|---|---|")
    for family, found in sorted(rows.items()):
        columns = list(zip(*found, strict=True))
        old, new, before, now = (statistics.median(column) for column in columns[:4])
        print(
            f"| {family} | {len(found)} | {old:.2g} | {new:.2g} | {before:.1f} | {now:.1f} "
            f"| {sum(columns[4])} |"
        )
    for more, setting in sorted(wider, key=lambda pair: -pair[0])[:20]:
        print(f"wider by {more:.2g}: {json.dumps(_finite(setting))}")
    print(f"contradictions: {wrong}")


def main() -> None:
    """Compare with the frozen answers, or freeze those of this version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    _freeze() if given.freeze else _report(given.every)


if __name__ == "__main__":
    main()
