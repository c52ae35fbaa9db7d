"""Evidence canary by canary within one run: bets on guesses whose coins are revealed one by one.

Let m canaries be in or out by fair and independent coins S, and Y be all that one run releases. An
auditor who sees Y picks a canary, guesses its coin, has it revealed, picks the next by what he has
seen, and so on; he may abstain and stop as he likes. If the run is (ε, δ)-private in the two states
of every coin, the wealth W of bets with payoffs 1 + s·e^(−ε) (right) and 1 − s (wrong), for stakes
s in [0, 1] that were fixed before, obeys for every a

    P[W ever reaches 1/a] ≤ a + m·δ.

Proof. Let I be the coins that are revealed, i the canary that is picked, and Q_b(y) the density of
Y given these and S_i = b. Once coin i is revealed as b, mark it with probability
(Q_b − e^ε·Q_{1−b})₊/Q_b, by a draw of its own; a mass of min{Q_b, e^ε·Q_{1−b}} stays unmarked. Of
it a guess G is right on R = min{Q_G, e^ε·Q_{1−G}} and wrong on F = min{Q_{1−G}, e^ε·Q_G}, where
R ≤ e^ε·F in either case, so that (1 + s·e^(−ε))·R + (1 − s)·F = R + F + s·(e^(−ε)·R − F) ≤ R + F ≤
Q_0 + Q_1. Hence W times "nothing was marked so far" is a non-negative supermartingale, given Y and
all that is revealed, and by Ville's inequality it ever reaches 1/a with a probability of at most a.
It is W unless a canary is marked. For a fixed canary i, let u be the coins of all others and
P_{b,u}(y) the density of Y given them and S_i = b: (·)₊ is convex, so the mass that is marked is at
most the mean over b and u of (P_{b,u} − e^ε·P_{1−b,u})₊ over those y at which i is picked while all
that is revealed agrees with u. Given y and u there is one path, on which i is picked at most once:
this is at most ∫ (P_{b,u} − e^ε·P_{1−b,u})₊ dy ≤ δ. What Y shows may lead to any of the m canaries:
each is charged its δ, and all of them m·δ.

At δ = 0 the wealth itself is a supermartingale. Otherwise it is none: a run that shows all coins
with probability δ is private, and there the wealth grows without bound. Nor is there one for a
whole trade-off curve, which lets every coin be sure given a release that is rare enough: bet
against one of its lines (ε, δ).
"""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from dpjax._numerics import checks
from dpjax._numerics.arrays import EPS, NUMPY, namespace
from dpjax._numerics.scope import is_traced
from dpjax.audit.anytime import REFUTABLE, STAKES, log_mean, rounding
from dpjax.audit.bound import check_scores, real


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunningGuesses:
    """Bets on guesses about the canaries of one run: made by `start_guesses`, updated after each.

    A frozen pytree: `update` is pure, runs under `jax.jit`, `jax.vmap` and `jax.lax.scan` (there in
    JAX's own precision, and rounded down in either), and in NumPy's float64 outside.

    Fields:
        gains: [2, stakes], what a wrong and a right guess add to the logarithm of a bet's wealth.
        log_wealth: [stakes], of every bet.
        log_largest: the largest logarithm of the mean wealth so far, at least 0.
        guesses: guesses that were revealed so far.
        correct: how many of them were right.
        canaries: m, the coins that were flipped.
        delta: the δ of the claim.

    Guarantee:
        If every canary's two states are (ε, δ)-indistinguishable and the coins are fair and
        independent, P[`p_value` ever ≤ α] ≤ α for every α, whatever the order of the canaries, the
        guesses, abstentions and the time at which it stops, all chosen by the release and the coins
        revealed so far.

    Example:
        >>> import numpy as np
        >>> from dpjax import audit
        >>> rng = np.random.default_rng(0)
        >>> coins = rng.random(500) < 0.5
        >>> scores = coins + 0.2 * rng.normal(size=500)  # σ = 1 is meant
        >>> found = audit.start_guesses(1.0, 1e-6, canaries=500)
        >>> for i in np.argsort(-abs(scores - 0.5)):  # the surest first
        ...     found = found.update((scores[i] > 0.5) == coins[i])
        ...     if found.rejects(0.001):
        ...         break
        >>> int(found.guesses) < 100
        True

    References:
        Ville 1939; for δ = 0 the odds of a guess are those of Steinke, Nasr and Jagielski 2023,
        "Privacy auditing with one (1) training run", Proposition 5.1. For δ > 0 see the module.
    """

    gains: Float[Array, "2 stakes"]
    log_wealth: Float[Array, " stakes"]
    log_largest: Float[Array, ""]
    guesses: Int[Array, ""]
    correct: Int[Array, ""]
    canaries: int = dataclasses.field(metadata={"static": True})
    delta: float = dataclasses.field(metadata={"static": True})

    def update(
        self, right: Bool[ArrayLike, ""], guessed: Bool[ArrayLike, ""] = True
    ) -> RunningGuesses:
        """What is known after one more canary's coin is revealed.

        Args:
            right: whether the guess, which was made before, agrees with the coin.
            guessed: false where the auditor abstained, as decided before the coin was revealed.

        Raises:
            ValueError: what is not one boolean, or more guesses than canaries where both are known.
        """
        for name, value in (("right", right), ("guessed", guessed)):
            known = value if is_traced(value) else check_scores(name, value, events=True)
            if np.ndim(known) or not (is_traced(known) or known in (0.0, 1.0)):
                raise ValueError(f"{name} must be one boolean, got {value}")
        xp = namespace(right, guessed, self.log_wealth)
        left = xp.asarray(self.guesses) < self.canaries
        if not is_traced(left) and not is_traced(guessed) and guessed and not left:
            raise ValueError(f"guesses must be at most canaries = {self.canaries}, got one more")
        # Beyond the m canaries that δ is charged for, nothing is bet.
        counts = xp.where(left, xp.where(xp.asarray(guessed), 1, 0), 0)
        hit = counts * xp.where(xp.asarray(right), 1, 0)
        before = xp.asarray(self.log_wealth)
        grown = before + xp.asarray(self.gains)[hit]
        log_wealth = xp.where(counts > 0, grown - rounding(grown), before)
        largest = xp.maximum(xp.asarray(self.log_largest), log_mean(log_wealth))
        return dataclasses.replace(
            self,
            log_wealth=log_wealth,
            log_largest=largest,
            guesses=self.guesses + counts,
            correct=self.correct + hit,
        )

    @property
    def p_value(self) -> Float[Array, ""]:
        """min{1/(largest wealth) + m·δ, 1}, rounded up: of the claim, at any time.

        `RunningEvidence.multiply` takes it, to join runs whose noise is independent.
        """
        xp = namespace(self.log_largest)
        largest = xp.asarray(self.log_largest)
        up = 1.0 + 8.0 * float(np.finfo(largest.dtype).eps)  # of the exponential and the sum
        charged = self.canaries * self.delta
        return xp.minimum((xp.exp(rounding(largest) - largest) + charged) * up, 1.0)

    def rejects(self, level: float) -> Bool[Array, ""]:
        """Whether the claim has ever been refuted at this level.

        Args:
            level: the probability with which a true claim may ever be refuted, in (0, 0.5].

        Raises:
            ValueError: `level` outside (0, 0.5].
        """
        return self.p_value <= real("level", level, REFUTABLE, "lie in (0, 0.5], as 0.001")

    def describe(self) -> str:
        """The evidence in one sentence."""
        p_value = float(self.p_value)
        found = (
            f"refuted at every level from {p_value:.3g} on"
            if p_value <= REFUTABLE.high
            else "not refuted"
        )
        return (
            f"{int(self.correct)} of {int(self.guesses)} guesses about {self.canaries} canaries, "
            "revealed one by one and valid at whatever guess it is stopped, were right: the claim "
            f"is {found}."
        )


def start_guesses(epsilon: float, delta: float, *, canaries: int) -> RunningGuesses:
    """Wealth of 1 to bet against (ε, δ)-privacy on the canaries of one run, before the first guess.

    A guess is right with odds of at most e^ε : 1 but for a probability of δ a canary, and bets at
    these odds win nothing in the mean: P[they ever reach 1/a] ≤ a + m·δ. Choose a δ far below
    level/m, with the ε that is claimed there: at a δ above, nothing is refuted.

    Args:
        epsilon: the ε that is claimed for the adjacency of a canary's two states, at least 0.
        delta: the δ at which it is claimed, in [0, 1), below 0.5/`canaries`.
        canaries: m, the fair and independent coins that were flipped, guessed about or not.

    Raises:
        ValueError: a number outside its range, or m·δ of 0.5 and more.

    Example:
        >>> from dpjax import audit
        >>> found = audit.start_guesses(1.0, 0.0, canaries=100)
        >>> for _ in range(100):
        ...     found = found.update(True)
        >>> found.rejects(1e-6), audit.start_guesses(1.0, 0.0, canaries=9).rejects(0.5)
        (np.True_, np.False_)
    """
    epsilon = real("epsilon", epsilon, checks.Range(0.0), "be at least 0 and finite")
    delta = real("delta", delta, checks.BELOW_ONE, "lie in [0, 1)")
    canaries = checks.whole("canaries", canaries)
    if canaries * delta >= REFUTABLE.high:
        raise ValueError(
            f"delta must be below 0.5/canaries = {REFUTABLE.high / canaries:.3g}, beyond which "
            f"nothing is refuted, got {delta:g}: claim the ε of a smaller δ"
        )
    # 1 − s and 1 + s·e^(−ε), each off by a few units of the last place.
    payoffs = np.stack([-STAKES, STAKES * math.exp(-epsilon)])
    gains = NUMPY.asarray(np.log1p(payoffs) - 100.0 * EPS)
    zero = NUMPY.zeros((), dtype=np.int64)
    return RunningGuesses(
        gains=gains,
        log_wealth=NUMPY.zeros(STAKES.shape),
        log_largest=NUMPY.zeros(()),
        guesses=zero,
        correct=zero,
        canaries=canaries,
        delta=delta,
    )
