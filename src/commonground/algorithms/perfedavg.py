"""PerFedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import Annotated

from pydantic import Field

from commonground.algorithms.base import Algorithm, Client, Tensors


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """PerFedAvg: a shared model that is good after each client's own adaptation (Fallah et al. 2020).

    It minimises the mean of F_i(w) = f_i(w − α∇f_i(w)). With a support batch D and a target batch D′ of the client,
    drawn independently, a local step is w ← w − β (I − α∇²f_i(w; D)) g with g = ∇f_i(w − α∇f_i(w; D); D′).

    - Hessian-free (the default, their HF variant): ∇²f_i(w; D) g ≈ (∇f_i(w + δg; D) − ∇f_i(w − δg; D)) / 2δ;
    - first-order (``first_order``, their FO variant): that term is left out.

    The paper's Algorithm 1 draws a third batch D″ for the Hessian (``hessian``); by default it shares D, as "8 samples
    as the support set and 2 samples as the target set" (Collins et al. 2021, App. A.2) has it, and the step is then
    along the gradient of f_i(w − α∇f_i(w; D); D′). The paper counts local steps; here a local epoch has as many as
    batches of all that a step draws need for one pass over the data (n/10 for 8 and 2). β is the run's learning rate,
    and steps use the run's momentum as all methods do there (0 is the paper's). (In FedRep's authors' code no script
    runs its class for this method, LocalUpdateMAML. It cuts each batch of 10 into 8 and 2, sets α to a thousandth of
    β, and computes the inner step but never uses it: a step adds the gradients of D and of D′, both at w.)

    Every client adapts the shared model to its training data before its own model is tested. The paper takes one
    gradient step of size α; with App. A.2's α = 1e-4 that changes nothing, so by default it is ``adapt_steps``
    mini-batch steps at the run's learning rate. (FedRep's authors' code trains 5 epochs on the whole model there, once,
    after the last round, which costs far more than the rounds between two tests: raise ``--eval-every`` with
    ``adapt_steps``.)

    Args:
        inner_lr: α, the size of the inner step.
        support, target: samples of D and D′.
        hessian: samples of D″; 0 takes the Hessian on D.
        first_order: leave the Hessian out.
        delta: δ, the distance at which gradients are compared for the Hessian.
        adapt_steps: mini-batch steps before a test; 0 takes the paper's step on all the client's training data.
    """

    inner_lr: Annotated[float, Field(ge=0)] = 1e-4
    support: Annotated[int, Field(ge=1)] = 8
    target: Annotated[int, Field(ge=1)] = 2
    hessian: Annotated[int, Field(ge=0)] = 0
    first_order: bool = False
    delta: Annotated[float, Field(gt=0)] = 1e-3
    adapt_steps: Annotated[int, Field(ge=0)] = 10

    name = "perfedavg"
    title = "PerFedAvg"
    source = "Fallah, Mokhtari, Ozdaglar 2020"
    shared = ("all",)
    needs_sgd = "its local step is one along the meta-gradient"

    def client_update(self, client: Client, round: int) -> Tensors:
        """Steps along the meta-gradient."""
        speed: Tensors = {}
        third = 0 if self.first_order else self.hessian
        targets, supports = client.batches(batch_size=self.target), client.batches(batch_size=self.support)
        curving = client.batches(batch_size=third) if third else repeat(None)
        # The batch of all a step draws comes last: it runs out first, and it is this one that says who still steps.
        pace = client.batches(batch_size=self.support + self.target + third)
        for target, support, own, _ in zip(targets, supports, curving, pace, strict=False):
            w = client.get("all")
            inner = client.gradient("all", support)
            meta = client.gradient("all", target, at={n: w[n] - self.inner_lr * g for n, g in inner.items()})
            if not self.first_order:
                curved = support if own is None else own
                ahead = client.gradient("all", curved, at={n: w[n] + self.delta * g for n, g in meta.items()})
                behind = client.gradient("all", curved, at={n: w[n] - self.delta * g for n, g in meta.items()})
                half = self.inner_lr / (2 * self.delta)
                meta = {n: g - half * (ahead[n] - behind[n]) for n, g in meta.items()}
            meta = {n: g + client.weight_decay * w[n] for n, g in meta.items()}
            speed = {n: client.momentum * speed[n] + g for n, g in meta.items()} if speed else meta
            client.step(speed)
        return client.send("all")

    def personalize(self, client: Client, round: int) -> None:
        """Adaptation to the client's training data."""
        if self.adapt_steps:
            client.fit("all", steps=self.adapt_steps)
        else:
            client.step(client.gradient("all"), lr=self.inner_lr)
