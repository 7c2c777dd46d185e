"""What ε a run's clipping and noise amount to, by Google's ``dp-accounting`` (extra ``privacy``).

*Neighbours.* A run's clients are numbered and their number N is public, as is the number n that takes part in each
round. So two federations are neighbours if they differ in all the data of **one client, replaced** by any other
(replace-one). (ε, δ)-DP says that for neighbours D, D′ and any set of outcomes O, P(M(D) ∈ O) ≤ e^ε P(M(D′) ∈ O) + δ.

*Sensitivity: the factor 2.* Released is Σ Δ̄_i + noise of standard deviation Z·C, every ‖Δ̄_i‖ ≤ C. Replacing client
j changes the sum by Δ̄_j − Δ̄_j′, whose length is up to **2C**, not C: the two may point in opposite directions. An
accountant's noise multiplier is the ratio of standard deviation and sensitivity, so it is handed **Z/2**. (Under add
or remove one, or where a client is replaced by one that sends zero, the sensitivity is C and the multiplier Z. Many
papers state that ε, which is about half as large. It is :meth:`Budget.zero_out`, and only where all clients take
part: below.)

The bits of adaptive clipping fit in: b_i − ½ is ±½, so a client's part in Σ (b_i − ½) moves by 1 against another, by ½
against none. Both parts double together, and Z/2 stays the multiplier of the pair (Andrew et al. 2021). A client that
does take part and sends zero is within C, however, and moves Σ b_i by 1 as well: its multiplier is less than Z
(:meth:`~commonground.privacy.mechanism.ClientPrivacy.zero_out_noise`).

*Sampling.* Each round draws n of N clients without replacement, always n of them, anew in each round. dp-accounting's
``SampledWithoutReplacementDpEvent`` is just that, and knows replace-one alone; its bound is Theorem 27 of Wang,
Balle, Kasiviswanathan 2019 on the Rényi divergence, in which two batches differ in one member exchanged for another,
so that 2C is right there as well. (Poisson sampling, whose ε is often quoted, has batches of random sizes: it is not
what happens here.) With n = N there is no sampling and nothing is amplified: T Gaussian releases of the multiplier σ
are one of σ/√T, whose ε is known exactly (Balle and Wang 2018). That holds with sampling, too, since a client takes
part in at most T rounds, and is smaller where n/N is large and noise is small; both bounds are true, and the smaller
is taken.

*Whom sampling hides from.* Amplification presumes that it is not known who took part. The server knows. So with local
noise the ε against the server counts the rounds in which one client was asked at most, and amplifies nothing.

A round that a server released several times, being lost in between, has the same participants each time: k Gaussian
releases of one batch are one of the multiplier over √k under one sampling, which amplifies less than k samplings would.

Each round's mechanism may depend on all that was released before (adaptive composition), which is what training does.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType

from commonground.errors import ConfigError
from commonground.extras import pip_install

__all__ = ["Budget", "noise_for", "usual_delta"]

LEAST_NOISE, MOST_NOISE = 1e-3, 1e6  # among which a Z is looked for

GAUSSIAN = "analytic Gaussian mechanism (Balle, Wang 2018)"
ORDERS = [1.1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 33), *range(34, 65, 2), 80, 128, 512]
"""Of the Rényi divergence. Each gives a true bound; dp-accounting's own 156 give nearly the same in more time."""

RENYI = "Rényi DP of sampling without replacement (Wang, Balle, Kasiviswanathan 2019)"


def usual_delta(clients: int) -> float:
    """1/N^1.1 (McMahan et al. 2018), to three digits: less than one in N."""
    return float(f"{clients**-1.1:.3g}")


@dataclass(frozen=True)
class Budget:
    """What has been released, as the accountant sees it.

    Args:
        noise: Z, the noise's standard deviation over C.
        rounds: T, in which something was released once.
        clients: N.
        participants: n, of each round.
        repeated: of other rounds, how often something was released of the same participants, each time with other
            noise.
    """

    noise: float
    rounds: int
    clients: int
    participants: int
    repeated: tuple[int, ...] = ()

    @property
    def releases(self) -> int:
        """Of all rounds together."""
        return self.rounds + sum(self.repeated)

    def epsilon(self, delta: float) -> tuple[float, str]:
        """ε at ``delta`` under replace-one, and how it was found."""
        if self.releases == 0:
            return 0.0, GAUSSIAN
        found = [(self._gaussian(self.noise / 2, delta), GAUSSIAN)]
        if self.participants < self.clients:
            found.append((_sampled(self, delta), RENYI))
        return min(found)

    def zero_out(self, delta: float) -> float | None:
        """ε if a neighbour is a client that sends zero; None with sampling, whose bound is for replace-one alone."""
        if self.participants < self.clients:
            return None
        return 0.0 if self.releases == 0 else self._gaussian(self.noise, delta)

    def _gaussian(self, multiplier: float, delta: float) -> float:
        return float(_library().get_epsilon_gaussian(multiplier / math.sqrt(self.releases), delta))


def noise_for(epsilon: float, delta: float, budget: Budget) -> float:
    """The smallest Z, to five digits and rounded up, with which a budget's ε is at most ``epsilon``.

    Args:
        epsilon, delta: what is wanted.
        budget: rounds and clients; its noise is not looked at.

    Raises:
        ConfigError: no noise from a thousandth to a million does just that.
    """
    from scipy.optimize import brentq

    def excess(logarithm: float, budget: Budget = budget) -> float:
        found, _ = replace(budget, noise=math.exp(logarithm)).epsilon(delta)
        return math.log(max(found, 1e-12) / epsilon)

    # Without sampling first, which is quick to tell and never less noise.
    whole, low, high = replace(budget, participants=budget.clients), math.log(LEAST_NOISE), math.log(MOST_NOISE)
    if not excess(high, whole) < 0 < excess(low, whole):
        raise ConfigError(
            f"no --dp-noise from {LEAST_NOISE:g} to {MOST_NOISE:,.0f} makes {budget.rounds:,} rounds private to just "
            f"epsilon {epsilon:g} at delta {delta:g}; take another epsilon, or say the noise"
        )
    found = brentq(excess, low, high, (whole,), xtol=1e-9)
    if budget.participants < budget.clients:
        high = found + 1e-6
        low = high - math.log(2)
        while excess(low) < 0:
            low, high = low - math.log(2), low
        found = brentq(excess, low, high, xtol=1e-6)
    digits = 4 - math.floor(math.log10(math.exp(found)))
    noise = math.ceil(math.exp(found) * 10**digits) / 10**digits
    return float(noise if excess(math.log(noise)) <= 0 else noise + 10.0**-digits)


@lru_cache(maxsize=256)
def _sampled(budget: Budget, delta: float) -> float:
    dp = _library()
    accountant = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    for releases, rounds in ((1, budget.rounds), *Counter(budget.repeated).items()):
        noise = dp.GaussianDpEvent(budget.noise / 2 / math.sqrt(releases))
        sampled = dp.SampledWithoutReplacementDpEvent(budget.clients, budget.participants, noise)
        if rounds:
            accountant.compose(dp.SelfComposedDpEvent(sampled, rounds))
    return float(accountant.get_epsilon(delta))


def _library() -> ModuleType:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise ConfigError(
            f"--dp needs the package dp-accounting, which counts epsilon: {pip_install('privacy')}"
        ) from None
    library: ModuleType = dp_accounting
    return library
