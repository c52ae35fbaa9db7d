"""The table of methods: explicit, without cycles of files, and open to new entries."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import accounting as acc
from dpjax.accounting.answers.methods import METHODS
from dpjax.accounting.pairs.atoms import PAIRS, SAMPLING_RULES
from tests.accounting.mechanism_examples import EXAMPLES

_ROOT = Path(dpjax.__file__).parent


def _imports(path: Path) -> set[str]:
    """Modules that a file imports, also inside functions; what is imported from a package too."""
    found = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):  # what only a type checker sees is no import
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dpjax"):
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.startswith("dpjax")}
    return found


def _graph() -> dict[str, set[str]]:
    files = [p for part in ("_numerics", "accounting") for p in (_ROOT / part).rglob("*.py")]
    names = {".".join(p.relative_to(_ROOT.parent).with_suffix("").parts): p for p in files}
    names = {name.removesuffix(".__init__"): p for name, p in names.items()}
    return {name: _imports(p) & (names.keys() - {name}) for name, p in names.items()}


def test_no_cycle_of_files_and_no_family_knows_the_answers():
    graph = _graph()
    assert len(graph) > 30
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    answers = "dpjax.accounting.answers"
    for name, imported in graph.items():
        if not name.startswith(answers) and name != "dpjax.accounting":
            assert not any(other.startswith(answers) for other in imported), name


def test_names_are_what_people_use():
    for name in acc.__all__:
        assert not isinstance(getattr(acc, name), type(sys)), f"{name} is a module"


def test_of_entries_of_one_name_the_tightest_answers():
    # Rare steps are for two of the entries alone; the third has a tight answer to these.
    run, add = (
        acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.8), 0.01), 1_000),
        acc.Adjacency("add-remove"),
    )
    own = [m for m in METHODS if m.name == "pld" and m.supports(run, add)]
    assert len(own) > 1
    answers = [float(m.epsilon(run, 1e-5, add)) for m in own]
    assert max(answers) == np.inf
    found = acc.methods(run)["pld"]
    assert found.epsilon(run, 1e-5, add) == min(answers) == acc.epsilon(run, 1e-5, method="pld")
    assert found.epsilon_lower(run, 1e-5, add) == max(m.epsilon_lower(run, 1e-5, add) for m in own)
    assert found.delta(run, 1.0, add) == acc.delta(run, 1.0, method="pld") < 1


def test_every_method_says_what_it_is():
    for method in METHODS:
        assert method.describe, method.name
        assert callable(method.supports)
        if method.epsilon_lower is not None:
            assert method.epsilon_lower.__doc__, f"{method.name}: which two distributions?"


def test_a_method_and_a_mechanism_of_the_user():
    code = """
from jaxtyping import ArrayLike
from dpjax import accounting as acc

@acc.register_mechanism
class Coin(acc.Mechanism):
    bias: ArrayLike

acc.register_method(acc.Method(
    "coin", rank=1.0, supports=lambda run, adjacency: isinstance(run, Coin),
    epsilon=lambda run, delta, adjacency: 2 * run.bias, describe="an example"))
assert acc.epsilon(Coin(0.25), 1e-5) == 0.5
assert acc.price(Coin(0.25), 1e-5)[1].name == "coin"
assert "Coin" in acc.registered_mechanisms()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.at_length
def test_a_way_to_sample_and_its_pair_are_lines_in_two_tables():
    code = """
from dpjax import accounting as acc
from dpjax.accounting.mechanisms.base import number_field
from dpjax.accounting.pairs import atoms as table
from dpjax.accounting.pairs.poisson import PoissonPair
from dpjax.accounting.pairs.protocol import SamplingRule

@acc.register_mechanism
class Rarely(acc.Mechanism):  # Poisson sampling at half of the rate it states
    mechanism: acc.Mechanism
    rate: float = number_field(0.0, 1.0)

class Copied(PoissonPair):
    name = "copied"

copied = lambda adjacency: "copied"
parameters = lambda step, adjacency: (1 / step.mechanism.noise_multiplier, step.rate / 2)
table.PAIRS["copied"] = table.GRIDS["copied"] = Copied()
table.SAMPLING_RULES[Rarely] = SamplingRule(
    "rarely", Rarely, lambda step, adjacency, kind_of: "", parameters, copied, copied)
new, old = (acc.Repeated(step, 50) for step in (
    Rarely(acc.Gaussian(1.0), 0.2), acc.PoissonSampled(acc.Gaussian(1.0), 0.1)))
for method in ("contour", "rdp", "rdp_classic", "pld"):
    assert acc.epsilon(new, 1e-5, method=method) == acc.epsilon(old, 1e-5, method=method)
assert acc.delta(new, 1.0) == acc.delta(old, 1.0)
assert acc.epsilon_interval(new, 1e-5) == acc.epsilon_interval(old, 1e-5)
both = acc.Composed((new, old))  # two schemes, of one pair each
assert acc.epsilon(both, 1e-5) == acc.epsilon(acc.Repeated(old.mechanism, 100), 1e-5)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_method_knows_a_pair_or_a_way_to_sample_by_name():
    names = {*PAIRS, *(scheme.name for scheme in SAMPLING_RULES.values())}
    for family in ("contour", "renyi", "loss_distribution"):
        for file in (_ROOT / "accounting" / family).glob("*.py"):
            found = {
                node.value
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            assert not names & found, f"{file.name} names {names & found}"


@pytest.mark.at_length
def test_the_answer_under_a_trace_is_the_concrete_one_also_where_it_is_dear():
    def price(epsilon):
        run = acc.Repeated(acc.PureDP(epsilon), 10_000)
        return acc.epsilon(run, 1e-5, adjacency="replace-one")

    # Kairouz, Oh and Viswanath (2017), exact: 4.376; basic composition says 100
    assert abs(price(0.01) - 4.376) < 1e-3
    np.testing.assert_allclose(jax.jit(price)(0.01), price(float(np.float32(0.01))), rtol=2e-7)
    both = jax.vmap(price)(jnp.array([0.01, 0.02]))
    np.testing.assert_allclose(both, [price(0.01), price(0.02)], rtol=1e-5)
    slope = (price(0.01001) - price(0.00999)) / 2e-5
    np.testing.assert_allclose(jax.grad(price)(0.01), slope, rtol=1e-4)


def test_what_no_constructor_takes_is_infinite_under_a_trace():
    @jax.jit
    def price(sigma, delta):
        return acc.epsilon(acc.Gaussian(sigma), delta)

    assert np.isfinite(price(1.0, 1e-5))
    for sigma, delta in ((np.nan, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 2.0), (1.0, np.nan)):
        assert price(sigma, delta) == np.inf


def test_the_interval_of_sampled_ball_noise_claims_no_lower_end_it_cannot_show():
    run = acc.PoissonSampled(acc.UniformBall(0.5, 1), 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The worst pair of clipped contributions has ε <= 0.2 here.
        low, high = acc.epsilon_interval(run, 0.1125, adjacency="replace-one")
    assert low <= 0.2
    assert low <= high


_REPLACE = acc.Adjacency.REPLACE_ONE
_ZOO = {
    "gaussian": acc.Repeated(acc.Gaussian(4.0), 10),
    "sampled": acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.05), 30),
    "fixed": acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(4.0), 5, 100), 20),
    "shuffled": acc.Repeated(acc.Shuffled(acc.Gaussian(4.0), 20), 3),
    "pure": acc.Repeated(acc.PureDP(0.1), 20),
    "pure and gaussian": acc.Composed((acc.PureDP(0.1), acc.Gaussian(2.0))),
    "concentrated": acc.Composed((acc.ZeroConcentrated(0.01, "replace-one"), acc.Gaussian(4.0))),
    "descent": acc.NoisyGradientDescent(100, 0.1, 0.02, 4 / 5000, 1.0, 2.0),
    "cyclic": acc.NoisyCyclicDescent(400, 0.1, 0.02, 4 / 1000, 1.0, 2.0, batches=40),
    "ball and gaussian": acc.Composed((acc.UniformBall(1e-9, 3), acc.Gaussian(2.0))),
    "best of": acc.BestOf(acc.Gaussian(4.0), 10),
    "batches": acc.RandomizedSensitivity([0.1, 0.2], [0.5, 0.5], noise_std=1.0),
    **{type(run).__name__: run for run in EXAMPLES},
}


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.parametrize("name", list(_ZOO))
@pytest.mark.at_length(every=3)
def test_best_is_at_most_every_method(name, adjacency):
    run = _ZOO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part, given in (("epsilon", 1e-5), ("delta", 0.5)):
            able = [
                m
                for m in METHODS
                if getattr(m, part) and m.rank is not None and m.supports(run, adjacency)
            ]
            if not able:
                continue
            best = getattr(acc, part)(run, given, adjacency=adjacency)
            for method in able:
                own = float(np.asarray(getattr(method, part)(run, given, adjacency)))
                assert best <= own * (1 + 1e-5), (part, method.name)
        if acc.methods(run, adjacency):
            low, high = acc.epsilon_interval(run, 1e-5, adjacency=adjacency)
            assert 0 <= low <= high


@pytest.mark.parametrize("name", list(_ZOO))
@pytest.mark.at_length(every=3)
def test_best_under_jit_is_best(name):
    """In a float32 program the concrete answer to the number it holds, rounded upwards."""
    run, delta = _ZOO[name], np.float32(1e-5)
    adjacency = _REPLACE if not acc.methods(run) or name == "pure" else acc.Adjacency.ADD_REMOVE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        concrete = acc.epsilon(run, float(delta), adjacency=adjacency)
        traced = jax.jit(lambda d: acc.epsilon(run, d, adjacency=adjacency))(delta)
    if name == "RandomAllocationCorrelated":  # a trace cannot look which of its bounds is least
        assert abs(traced - concrete) <= 1e-3 * concrete
        return
    assert traced == concrete == np.inf or concrete <= traced <= concrete * (1 + 3e-7) + 1e-30
