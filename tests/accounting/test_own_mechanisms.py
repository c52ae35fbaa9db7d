"""What mechanisms and methods that are no part of dpjax are trusted for, and must bring."""

from __future__ import annotations

import pytest

from dpjax import accounting as acc
from dpjax.accounting.answers import methods
from dpjax.accounting.mechanisms import base
from dpjax.accounting.pairs import finite, guarantee
from dpjax.accounting.pairs.protocol import ClosedFormRelease


@pytest.fixture
def register(monkeypatch):
    """`register_mechanism`, of which the table forgets what a test adds."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    return acc.register_mechanism


class _Coin(acc.Mechanism):
    """What is common to the classes below: randomised response by another name."""

    epsilon: float = base.number_field()

    release = guarantee.GUARANTEE


def _coin(name, **own):
    return type(name, (_Coin,), {"__annotations__": {"epsilon": "float"}, **own})


@pytest.fixture
def stated():
    """A pair of the class's own numbers."""

    class Stated(guarantee.Guarantee):
        def numbers(self, step, adjacency):
            return step.epsilon, 0.0

    return Stated()


def test_a_mechanism_that_declares_nothing_is_certified_on_its_author_s_word(register, stated):
    kind = register(_coin("Undeclared", epsilon=base.number_field(), release=stated))
    for run in (kind(0.5), acc.Composed((acc.Gaussian(4.0), acc.Repeated(kind(0.5), 2)))):
        certificate = acc.certify(run, 1e-5)
        assert certificate.tier == "conditional"
        assert any("Undeclared" in sentence for sentence in certificate.assumptions)
        assert "Undeclared" in certificate.describe()
        assert certificate.verify().epsilon == certificate.epsilon


@pytest.mark.parametrize(
    ("own", "tier"),
    [
        ({"tier": "proven"}, "proven"),
        ({"rests_on": ("the coin is fair",)}, "proven"),
        ({"tier": "conditional", "rests_on": ("the coin is fair",)}, "conditional"),
    ],
)
def test_what_a_mechanism_declares_stands(register, stated, own, tier):
    kind = register(_coin("Declared", epsilon=base.number_field(), release=stated, **own))
    certificate = acc.certify(kind(0.5), 1e-5)
    assert certificate.tier == tier
    assert not any("Declared" in sentence for sentence in certificate.assumptions)
    assert set(own.get("rests_on", ())) <= set(certificate.assumptions)


def test_an_empty_list_of_assumptions_is_no_word_on_what_a_class_is_trusted_for(register, stated):
    own = {"epsilon": base.number_field(), "release": stated, "assumptions": lambda *_: ()}
    kind = register(_coin("Silent", **own))
    assert acc.certify(kind(0.5), 1e-5).tier == "conditional"


@pytest.mark.parametrize("parent", [acc.Laplace, acc.GeoDP, acc.Composed])
def test_what_another_kind_declares_is_not_said_of_a_class_made_from_it(register, parent):
    kind = register(type("Derived", (parent,), {"__annotations__": {}}))
    assert kind.tier == ("none" if parent is acc.GeoDP else "conditional")
    assert kind.rests_on[:-1] == parent.rests_on
    assert "Derived" in kind.rests_on[-1]


def test_every_kind_of_dpjax_declares_what_it_is_trusted_for():
    for name, kind in acc.registered_mechanisms().items():
        if kind.__module__.split(".")[0] == "dpjax":
            assert not any("declares neither" in sentence for sentence in kind.rests_on), name


@pytest.mark.parametrize("parent", [acc.Mechanism, acc.Gaussian, acc.Repeated])
def test_a_class_that_was_not_made_a_mechanism_is_refused_where_one_is_built(parent):
    kind = type("Unmade", (parent,), {})
    with pytest.raises(TypeError, match=r"Unmade must be made a mechanism by acc\.register_mech"):
        kind(1.0)


class _Whole(ClosedFormRelease):
    """A release with everything."""

    tight = sampled = True

    def numbers(self, step, adjacency):
        return (step.epsilon,)

    def pair(self, numbers, *, upper):
        return finite.NOTHING

    def epsilon(self, numbers, delta):
        return numbers[0]

    def delta(self, numbers, epsilon):
        return 0.0 * numbers[0]


@pytest.mark.parametrize("part", ["numbers", "pair", "epsilon", "delta"])
def test_half_a_release_cannot_be_made(part):
    own = {k: v for k, v in vars(_Whole).items() if k != part and not k.startswith("_")}
    with pytest.raises(TypeError, match=f"abstract.*{part}"):
        type("Half", (ClosedFormRelease,), own)()


def test_a_release_of_no_such_class_is_refused_where_a_class_is_made(register):
    own = {k: v for k, v in vars(_Whole).items() if not k.startswith("_")}
    with pytest.raises(TypeError, match=r"Duck\.release must be an instance of a class made from"):
        register(_coin("Duck", epsilon=base.number_field(), release=type("Part", (), own)()))
    kind = register(_coin("Whole", epsilon=base.number_field(), release=_Whole()))
    assert acc.epsilon(kind(0.5), 1e-5, method="closed_form") == pytest.approx(0.5)


def test_a_release_that_does_not_say_who_attains_it_has_no_lower_end(register):
    own = {k: v for k, v in vars(_Whole).items() if not k.startswith("_")}
    del own["tight"], own["sampled"]
    release = type("Silent", (ClosedFormRelease,), own)()
    kind = register(_coin("Silent", epsilon=base.number_field(), release=release))
    low, high = acc.epsilon_interval(kind(0.5), 1e-5)
    assert low == 0
    assert high == pytest.approx(0.5)


@pytest.fixture
def halved():
    """Registers a method that calls half of the proven ε enough, with what is declared of it."""
    before = methods.METHODS[:]

    def register(**own):
        return acc.register_method(
            acc.Method(
                "halved",
                rank=0.5,
                supports=lambda run, adjacency: isinstance(run, acc.Gaussian),
                epsilon=lambda run, delta, adjacency: acc.epsilon(run, delta, method="gdp") / 2,
                describe="an example",
                **own,
            )
        )

    yield register
    methods.METHODS[:] = before  # the one list that all modules share


@pytest.mark.parametrize("method", ["best", "halved"])
def test_an_answer_by_a_method_that_declares_nothing_rests_on_its_author_s_word(halved, method):
    before = acc.certify(acc.Gaussian(4.0), 1e-5)
    assert halved().tier == "conditional"
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5, method=method)
    assert certificate.epsilon == before.epsilon / 2
    assert (before.tier, certificate.tier) == ("proven", "conditional")
    added = set(certificate.assumptions) - set(before.assumptions)
    assert len(added) == 1
    assert "'halved'" in added.pop()
    assert "'halved'" in certificate.describe()
    # What dpjax answers itself is as it was.
    assert acc.certify(acc.Gaussian(4.0), 1e-5, method="gdp").tier == "proven"
    assert acc.certify(acc.Laplace(1.0), 1e-5).tier == "proven"


@pytest.mark.parametrize(
    ("own", "tier"),
    [
        ({"tier": "proven"}, "proven"),
        ({"rests_on": ("a coin is fair",)}, "conditional"),
        ({"tier": "conditional", "rests_on": ("a coin is fair",)}, "conditional"),
        ({"tier": "proven", "rests_on": ("a coin is fair",)}, "proven"),
    ],
)
def test_what_a_method_declares_stands(halved, own, tier):
    halved(**own)
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5)
    assert certificate.tier == tier
    assert set(own.get("rests_on", ())) <= set(certificate.assumptions)
    assert not any("halved" in sentence for sentence in certificate.assumptions)


def test_a_certificate_that_leaves_out_what_its_method_rests_on_is_refused(halved):
    kept = halved(tier="conditional", rests_on=("a coin is fair",))
    certificate = acc.certify(acc.Gaussian(4.0), 1e-5)
    methods.METHODS[methods.METHODS.index(kept)] = kept._replace(tier="proven")
    with pytest.raises(acc.CertificateError, match="tier"):
        certificate.verify()
    methods.METHODS[methods.METHODS.index(kept._replace(tier="proven"))] = kept._replace(
        rests_on=("a coin is fair", "another is")
    )
    with pytest.raises(acc.CertificateError, match="another is"):
        certificate.verify()


@pytest.mark.parametrize("own", [{"tier": "none"}, {"tier": "sure"}, {"rests_on": "a coin"}])
def test_a_method_of_no_tier_or_of_assumptions_that_are_no_list_is_refused(halved, own):
    with pytest.raises((TypeError, ValueError), match=next(iter(own))):
        halved(**own)


def test_of_a_method_that_has_no_number_the_answer_is_another_s(halved):
    def nothing(run, delta, adjacency):
        return float("nan")

    methods.METHODS.append(
        halved()._replace(name="nothing", rank=-1.0, epsilon=nothing, tier="conditional")
    )
    value, used = acc.price(acc.Gaussian(4.0), 1e-5)
    assert used.name == "halved"
    assert value == acc.epsilon(acc.Gaussian(4.0), 1e-5, method="halved")


def test_no_refusal_names_a_price_as_if_of_no_noise():
    assert [m.name for m in methods.METHODS if not m.is_advised] == ["all_or_nothing"]
    run = acc.PoissonSampled(acc.Gaussian(1.0), 0.1)
    with pytest.raises(acc.UnsupportedQuery) as caught:
        acc.epsilon(run, 1e-5, method="gdp")
    assert "'contour'" in str(caught.value)
    assert "all_or_nothing" not in str(caught.value)
