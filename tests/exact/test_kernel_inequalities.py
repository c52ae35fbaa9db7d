"""Every inequality of the certified kernel is attacked by itself, and the attack finds it missing.

An attack draws random pairs, tables that are not monotone among them, on coarse nodes and short
lines where errors show, and counts how often a bound is below what a far finer rule, enumeration
or a closed form gives. Each is run twice: on the kernel, where it finds nothing, and on the kernel
without the inequality's term, where it finds something.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpjax.accounting.contour import half
from dpjax.accounting.contour import line as lines
from dpjax.accounting.contour import saddle as saddles
from dpjax.accounting.contour import tilt as tilts
from dpjax.accounting.contour.saddle import Composition, Group
from dpjax.accounting.pairs.mixtures import Mixture, poisson_mixture, replace_one, symmetrised
from dpjax.accounting.pairs.pair import Atoms


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


def _draw(random, kinds=5):
    mu = float(np.exp(random.uniform(np.log(0.1), np.log(2.5))))
    rate = float(np.exp(random.uniform(np.log(1e-3), np.log(0.95))))
    kind = random.integers(kinds)
    if kind == 0:
        return poisson_mixture(np.float64(mu), np.float64(rate))
    if kind == 1:
        return poisson_mixture(np.float64(mu), np.float64(rate)).reversed()
    if kind == 2:
        return replace_one(np.float64(mu), np.float64(rate))
    if kind == 3:
        k = int(random.integers(2, 6))
        j = np.arange(k + 1)
        weight = np.array([math.comb(k, i) * rate**i * (1 - rate) ** (k - i) for i in j])
        pair = Mixture(j * mu / 2, weight, (j == 0) * 1.0)
        return pair if random.random() < 0.5 else pair.reversed()
    means = np.sort(random.uniform(-mu, mu, 4))  # not monotone
    return Mixture(means, random.dirichlet(np.ones(4)), random.dirichlet(np.ones(4)))


def _fine_nodes(pair, c, count=8193):
    (p0, p1), (q0, q1) = pair.slopes()
    low, high = (c + 1) * p0 - c * q1 - 14, (c + 1) * p1 - c * q0 + 14
    h = 2.0 ** math.ceil(math.log2((high - low) / (count - 1)))
    return math.floor(low / h) * h + h * np.arange(count), h


def _transform(pair, c, ts, moment, count=8193):
    """E[e^{(c + it)L}]e^{−moment} by the trapezoid rule on far more nodes."""
    y, h = _fine_nodes(pair, c, count)
    a, b = pair.logs(y)
    weight = np.exp((c + 1) * a - c * b - 0.5 * y * y - moment) * h / math.sqrt(2 * math.pi)
    return np.array([np.sum(weight * np.exp(1j * t * (a - b))) for t in ts])


def _tilted(random, kinds=5, nodes=(24, 32, 48, 64, 128)):
    pair = _draw(random, kinds)
    c = float(np.exp(random.uniform(np.log(0.3), np.log(40))))
    step = tilts.tilt_line(pair, c, int(random.choice(nodes)))
    mean = step.weight @ step.loss
    deviation = math.sqrt(max(step.weight @ (step.loss - mean) ** 2, 1e-12))
    ts = np.sort(np.exp(random.uniform(np.log(0.01), np.log(60), 24))) / deviation
    return pair, c, step, np.concatenate([[0.0], ts])


def _rounding(ts):
    return 3e-15 + 4e-16 * np.max(ts)


# ------------------------------------------------------------------------------ attacks


def _complex_logs(weight, means, y):
    """(log p)^(k) at complex y for k = 0 … 4, from cumulants of the means."""
    term = weight * np.exp(means * y - 0.5 * means**2)
    share = term / np.sum(term)
    mean = np.sum(share * means)
    second, third, fourth = (np.sum(share * (means - mean) ** k) for k in (2, 3, 4))
    return np.log(np.sum(term)), mean, second, third, fourth - 3 * second**2


def _attack_sector_and_cumulants(random):
    wrong = 0
    for _ in range(400):
        pair = _draw(random)
        width = float(pair.width())
        b = float(random.uniform(0.05, 0.95)) * math.pi / width
        y = float(random.uniform(-4, 4))
        r = float(tilts.sector(width, b))
        real = _complex_logs(pair.p, pair.means, y)
        there = _complex_logs(pair.p, pair.means, y + 1j * b)
        wrong += there[0].real < real[0] - math.log(r) - 1e-12
        for found, bound in zip(there[2:], tilts.cumulants(r, width), strict=True):
            wrong += abs(found) > bound * real[2] * (1 + 1e-9) + 1e-13
    return wrong


def _attack_gronwall(random):
    wrong = 0
    for _ in range(400):
        pair, step = _draw(random), float(random.uniform(0.05, 1.0))
        y = float(random.uniform(-4, 4))
        here, there = (_complex_logs(pair.p, pair.means, v)[2] for v in (y, y + step))
        most = float(tilts.growth(pair.width(), step)) * (1 + 1e-9)
        wrong += not here / most - 1e-14 <= there <= here * most + 1e-14
    return wrong


def _attack_chord(random):
    wrong = 0
    for _ in range(400):
        pair, h = _draw(random), float(random.uniform(0.1, 1.0))
        y = float(random.uniform(-4, 4)) + np.array([0.0, 0.5, 1.0]) * h
        psi = pair.logs(y)[0] - 2.0 * pair.logs(y)[1] - 0.5 * y * y
        bend = 1 + 0.5 * pair.width() ** 2  # a variance is at most a quarter of the width's square
        wrong += psi[1] > 0.5 * (psi[0] + psi[2]) + float(tilts.chord(bend, h)) + 1e-12
    return wrong


def _attack_poisson(random):
    wrong = 0
    for _ in range(60):
        pair, c, step, ts = _tilted(random)
        knots = np.concatenate([[0.0], np.linspace(0, 1, 7)[1:] ** 2 * ts[-1]])
        bound = lines.chords(ts, knots, tilts.quadrature_error(step, knots))
        bound = bound + step.constant + ts * step.per_t
        found = np.array([np.sum(step.weight * np.exp(1j * t * step.loss)) for t in ts])
        error = np.abs(found - _transform(pair, c, ts, step.moment))
        wrong += np.any(error > bound + _rounding(ts))
    return wrong


def _attack_convex(random):
    wrong = 0
    for _ in range(60):
        _, _, step, ts = _tilted(random)
        knots = np.concatenate([[0.0], np.linspace(0, 1, 7)[1:] ** 2 * ts[-1]])
        rows = tilts.quadrature_error(step, ts)
        chords = lines.chords(ts, knots, tilts.quadrature_error(step, knots))
        wrong += np.any(np.log(chords + 1e-300) < np.min(rows, axis=0) - 1e-9)
    return wrong


def _attack_ratio(random):
    """The sign of Im L where the kernel says that the loss is monotone, and the decay it claims."""
    wrong = 0
    for _ in range(400):
        pair = _draw(random)
        side, b = float(pair.direction()), float(random.uniform(0, 1)) * math.pi / pair.width()
        y = float(random.uniform(-4, 4)) + 1j * float(b)
        p, q = (np.sum(w * np.exp(pair.means * y - 0.5 * pair.means**2)) for w in (pair.p, pair.q))
        wrong += side * (p * np.conj(q)).imag < -1e-12 * abs(p) * abs(q)
    for _ in range(40):
        pair, c, step, ts = _tilted(random, nodes=(128, 256))
        off = math.exp(np.min(tilts.quadrature_error(step, np.zeros(1)))) + step.constant
        if not off < 1e-3:
            continue
        rho = tilts.decay(step, ts[1:], off)
        for count in (8193, 1 << 17):  # far along the line L turns faster than few nodes tell
            size = np.abs(_transform(pair, c, ts[1:], step.moment, count))
            later = np.maximum.accumulate(size[::-1])[::-1]
            bad = np.any(later > rho * (1 + 1e-12) + _rounding(ts))
            if not bad:
                break
        wrong += bad
    return wrong


def _attack_edges(random):
    """The modulus beyond the window on the path, both sides, at several t."""
    wrong = 0
    for _ in range(20):
        pair, c, step, _ = _tilted(random, nodes=(24, 32, 48))
        h, wave = float(step.line.step), 2 * math.pi / float(step.line.step)
        width = float(pair.width())
        nodes = tilts._nodes(pair, c, len(step.weight))[0]
        y, fine = _fine_nodes(pair, c)
        outside = (y < nodes[0]) | (y > nodes[-1])
        claimed = float(tilts._edge(pair, c, h, step.weight, step.line.cut))
        for t in (0.0, 1.0, 30.0):
            b = 1 / (wave + width * t)
            if 0.5 * width * b > 1.2:
                continue
            p, q = (
                w @ np.exp(np.outer(pair.means, y + 1j * b) - 0.5 * pair.means[:, None] ** 2)
                for w in (pair.p, pair.q)
            )
            turned = np.angle(p * np.conj(q))
            size = (c + 1) * np.log(np.abs(p)) - c * np.log(np.abs(q)) - 0.5 * (y * y - b * b)
            size = np.exp(size + t * np.abs(turned) - step.moment) / math.sqrt(2 * math.pi)
            # and where it comes down from the highest shift
            mass = 2 * np.sum(size[outside]) * fine / math.expm1(wave * b)
            down = 2 * (step.weight[0] + step.weight[-1]) / h * math.exp(0.5 * b * b)
            down = down * b / math.expm1(wave * b)  # a short way of it
            wrong += mass + down > claimed * (1 + width * t / wave) * (1 + 1e-6)
    return wrong


def _gaussian_delta(mu, epsilon):
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def _line_of(run, delta, blocks=20, nodes=256):
    at = saddles.find_saddle(run, math.log(delta), None)
    return lines.evaluate_line(run, at, nodes, blocks), float(at.epsilon)


def _attack_left_and_right(random):
    """Plain Gaussian releases, of which δ is known, on a line whose period is too short."""
    wrong = 0
    for _ in range(60):
        mu = float(random.uniform(0.2, 3))
        run = Composition(np.float64(mu * mu), ())
        (_, line), epsilon = _line_of(run, float(10 ** random.uniform(-6, -2)))
        for e in epsilon * np.array([0.2, 0.6, 1.0, 1.5]):
            up, low, _ = lines.log_line_delta(line, e)
            truth = _gaussian_delta(mu, e)
            wrong += not float(np.exp(low)) * (1 - 1e-9) <= truth <= float(np.exp(up)) * (1 + 1e-9)
    return wrong


def _atoms_delta(loss, mass, count, epsilon):
    """δ(ε) of `count` steps by listing how often every outcome comes."""
    total = 0.0

    def add(k, left, value, size):
        nonlocal total
        if k == len(loss) - 1:
            value, size = value + left * loss[k], size * mass[k] ** left
            total += size * max(-math.expm1(epsilon - value), 0.0)
            return
        for n in range(left + 1):
            add(k + 1, left - n, value + n * loss[k], size * math.comb(left, n) * mass[k] ** n)

    add(0, count, 0.0, 1.0)
    return total


def _random_atoms(random):
    size = float(random.uniform(0.3, 3))
    loss = np.array([size, -size])
    mass = np.array([1 / (1 + math.exp(-size)), 1 / (1 + math.exp(size))])
    if random.random() < 0.5:  # three outcomes
        m = float(random.uniform(0.05, 0.6))
        loss, mass = np.array([size, 0.0, -size]), np.array([m, 0.0, m * math.exp(-size)])
        mass[1] = 1 - mass[0] - mass[2]
    return loss, mass


def _attack_atoms(random):
    wrong = 0
    for _ in range(60):
        loss, mass = _random_atoms(random)
        count = int(random.integers(2, 7))
        used = mass > 0
        none = np.float64(0.0)
        assert abs(mass.sum() - 1) <= 1e-12
        assert abs(mass @ np.exp(-loss) - 1) <= 1e-12
        pair = Atoms(loss[used], mass[used], none, none)
        run = Composition(
            np.float64(0.0),
            (Group(type(pair)(*(v[None] for v in pair)), np.array([float(count)])),),
        )
        found, epsilon = _line_of(run, float(10 ** random.uniform(-3, -0.3)), nodes=0)
        for line in found:
            for e in epsilon * np.array([0.5, 0.9, 1.0, 1.1, 1.4]):
                truth = _atoms_delta(loss, mass, count, e)
                up, low = lines.read_ends(line, e)
                wrong += float(np.exp(low)) > truth * (1 + 1e-9) + 1e-14
                wrong += float(np.exp(up)) < truth * (1 - 1e-9) - 1e-14
        # what is claimed of the aliases to the right, had the period been that short
        line, e = found[-1], 0.3 * epsilon
        for period in count * np.max(loss) * np.array([0.15, 0.4]):
            truth = sum(
                math.exp(min(line.c * (e + j * period) - line.scale, 700.0))
                * _atoms_delta(loss, mass, count, e + j * period)
                for j in range(1, 8)
                if e + j * period < count * np.max(loss)
            )
            claimed = float(lines.right_aliases(line, e, period))
            wrong += claimed * (1 + 1e-9) < truth - 1e-14
    return wrong


def _folded_transform(pair, c, ts, moment):
    """The same of a folded pair, by Gauss's rule on far shorter panels."""
    x, w = np.polynomial.legendre.leggauss(24)
    high = 14 + (c + 1) * pair.pair.means[1]
    edges = np.linspace(pair.start, pair.start + high, 201)
    size = 0.5 * np.diff(edges)[:, None]
    y, w = (edges[:-1, None] + size * (1 + x)).ravel(), (size * w).ravel()
    loss = np.subtract(*pair.pair.logs(y))
    front = np.log(w / math.sqrt(2 * math.pi)) - 0.5 * y * y - moment
    mass = np.exp(np.concatenate([front + (c + 1) * loss, front - c * loss]))
    mass = np.append(mass, pair.atom * math.exp(-moment))
    loss = np.concatenate([loss, -loss, [0.0]])
    return np.array([np.sum(mass * np.exp(1j * t * loss)) for t in ts])


def _attack_gauss(random):
    wrong = 0
    for _ in range(60):
        mu = float(np.exp(random.uniform(np.log(0.1), np.log(4))))
        rate = float(np.exp(random.uniform(np.log(1e-3), np.log(0.95))))
        c = float(np.exp(random.uniform(np.log(0.3), np.log(40))))
        pair = symmetrised(np.float64(mu), np.float64(rate))
        step = half.tilt(pair, c, int(random.choice([64, 128, 192, 256])))
        mean = step.weight @ step.loss
        deviation = math.sqrt(max(step.weight @ (step.loss - mean) ** 2, 1e-12))
        ts = np.sort(np.exp(random.uniform(np.log(0.01), np.log(60), 24))) / deviation
        ts = np.concatenate([[0.0], ts])
        bound = np.exp(np.min(tilts.quadrature_error(step, ts), axis=0))
        bound = bound + step.constant + ts * step.per_t
        found = np.array([np.sum(step.weight * np.exp(1j * t * step.loss)) for t in ts])
        truth = _folded_transform(pair, c, ts, step.moment)
        wrong += np.any(np.abs(found - truth) > bound + _rounding(ts))
        if bound[0] < 1e-3:
            rho = tilts.decay(step, ts[1:], bound[0])
            later = np.maximum.accumulate(np.abs(truth[1:])[::-1])[::-1]
            wrong += np.any(later > rho * (1 + 1e-12) + _rounding(ts))
    return wrong


def _attack_near(random):
    wrong = 0
    for _ in range(400):
        pair, d = _draw(random), float(random.uniform(0.05, 1.0))
        c = float(np.exp(random.uniform(np.log(0.3), np.log(40))))
        y = float(random.uniform(-4, 4)) + np.array([0.0, random.uniform(-d, d)])
        f = (c + 1) * pair.logs(y)[0] - c * pair.logs(y)[1] - 0.5 * y * y
        p, q = pair.spread(y[:1])
        slope = (c + 1) * p.mean - c * q.mean - y[:1]
        more = (c + 1) * p.variance + c * q.variance
        kappa = 1 + float(tilts.growth(pair.width(), d)) * more
        wrong += f[1] > f[0] + float(half.near(d, slope, kappa)[0]) + 1e-12 * (1 + abs(f[0]))
    return wrong


def _short_period(monkeypatch):
    for module in (lines, saddles):
        monkeypatch.setattr(module, "MARGIN", 1.0)


def _chord_of_least(t, knots, values):
    """What is wrong: the least over the shifts at every knot, then chords."""
    return np.exp(np.interp(t, knots, np.min(values, axis=0)))


def _one(*args):
    return 1.0


# name: attack, what is taken away, and what makes its errors show in either case
_ATTACKS = {
    "SECTOR": (_attack_sector_and_cumulants, (tilts, "sector", lambda width, b: 1.0), None),
    "CUMULANT": (
        _attack_sector_and_cumulants,
        (tilts, "cumulants", lambda r, width: (1.0, width, width**2)),
        None,
    ),
    "GRONWALL": (_attack_gronwall, (tilts, "growth", _one), None),
    "CHORD": (_attack_chord, (tilts, "chord", lambda bend, step: 0.0), None),
    "POISSON": (_attack_poisson, (tilts, "log_aliases", lambda wave, b: -2 * wave * b), None),
    "CONVEX": (_attack_convex, (lines, "chords", _chord_of_least), None),
    "RATIO": (_attack_ratio, (Mixture, "direction", lambda self: np.float64(1.0)), None),
    "EDGES": (_attack_edges, (tilts, "_edge", lambda pair, c, step, weight, cut: 0.0), None),
    "GAUSS": (_attack_gauss, (half, "log_gauss", lambda rho: -124 * np.log(rho)), None),
    "NEAR": (_attack_near, (half, "near", lambda d, slope, kappa: 0.0 * slope), None),
    "LEFT": (
        _attack_left_and_right,
        (lines, "left_aliases", lambda line, front, period: 0.0),
        _short_period,
    ),
    "RIGHT": (
        _attack_left_and_right,
        (lines, "right_aliases", lambda line, epsilon, period: 0.0),
        _short_period,
    ),
    "BOUNDED": (_attack_atoms, (lines, "_greatest", lambda pair: 0.2 * np.max(pair.loss)), None),
    "BLUR": (_attack_atoms, (lines, "time_value", lambda line, epsilon: 0.0), None),
}


@pytest.mark.parametrize("name", _ATTACKS)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_attack_finds_a_bound_below_the_truth(name, seed, monkeypatch):
    attack, _, prepare = _ATTACKS[name]
    if prepare:
        prepare(monkeypatch)
    assert attack(np.random.default_rng(seed)) == 0


@pytest.mark.parametrize("name", _ATTACKS)
def test_without_its_term_the_attack_finds_it_missing(name, monkeypatch):
    attack, (place, term, instead), prepare = _ATTACKS[name]
    if prepare:
        prepare(monkeypatch)
    monkeypatch.setattr(place, term, instead)
    assert attack(np.random.default_rng(1)) > 0
