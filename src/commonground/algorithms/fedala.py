"""FedALA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from commonground.algorithms.base import Algorithm, Client, Tensors, prefixed, unprefixed

ROUNDS = "count/rounds"  # in which the client has taken part


@dataclass(frozen=True)
class FedALA(Algorithm):
    """FedALA: a client starts from its own mixture of the global and its last model (Zhang et al. 2023, Algorithm 1).

    With Θ the received model and Θ_i the client's of its last round, it starts from
    Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i in the p highest layers, with a weight in [0, 1] for each parameter, and from Θ in the
    layers below (their eq. 4). On mini-batches of a random s % of its data it learns
    W_i ← clip(W_i − η ∇_{W_i} f_i(Θ̂_i)) (eq. 5), from W_i = 1 and with everything else fixed; ∇_{W_i} is
    ∇_Θ̂ f_i ⊙ (Θ − Θ_i). Then it trains Θ̂_i as in FedAvg and sends it. Θ_i in the highest layers and W_i stay with it.
    Its own model in a test is Θ̂_i of the newest global model, without the training that follows, as in the authors'
    code (TsingZ0/FedALA); what W_i learns for a test is forgotten.

    W_i is learnt until it converges the first time, and one epoch in later rounds. The code takes eleven epochs the
    first time, and more only while the losses of the last ten have a standard deviation of 0.1 or more; here it is a
    number of epochs. A client's first round leaves W_i alone, as Θ_i is then no model of its own. The code has
    every client learn W_i in every round, sampled or not, and drops what is left of a last mini-batch; here the
    participants do, and a smaller mini-batch counts. It takes s % in a row, here they are drawn one by one. Averages
    are weighted by samples in the paper (``--weighting samples``). Layers are the modules that hold tensors, in the
    order of the model's definition; the code counts tensors instead. BatchNorm statistics are not mixed.

    Args:
        layers: p, how many of the highest layers are mixed; 1 is the head alone, as in the paper's main experiments.
            More than the model has mean all.
        share: s as a share of the client's training samples; 0.8 in the paper.
        weight_lr: η, the step of the weights; 1 in the paper.
        first_epochs: epochs on W_i the first time.
    """

    layers: Annotated[int, Field(ge=1)] = 1
    share: Annotated[float, Field(gt=0, le=1)] = 0.8
    weight_lr: Annotated[float, Field(ge=0)] = 1.0
    first_epochs: Annotated[int, Field(ge=1)] = 11

    name = "fedala"
    title = "FedALA"
    source = "Zhang, Hua, Wang, Song, Xue, Ma, Guan 2023"
    shared = ("all",)

    def client_state(self, initial: Tensors) -> Tensors:
        """Θ_i in the highest layers, W_i = 1, and in how many rounds the client took part."""
        order = list(dict.fromkeys(name.rpartition(".")[0] for name in initial))[-self.layers :]
        own = {name: value for name, value in initial.items() if name.rpartition(".")[0] in order}
        mix = {name: torch.ones_like(value) for name, value in own.items()}
        count = torch.zeros((), dtype=torch.int64, device="cpu")
        return prefixed("own", own) | prefixed("mix", mix) | {ROUNDS: count}

    def client_update(self, client: Client, round: int) -> Tensors:
        """Adaptive local aggregation, then local epochs on the whole model, which is sent."""
        self._aggregate(client)
        client.fit("all")
        trained = client.get("all")
        own = {name: trained[name] for name in unprefixed("own", client.state)}
        client.keep(prefixed("own", own) | {ROUNDS: client.state[ROUNDS] + 1})
        return client.send(trained)

    def personalize(self, client: Client, round: int) -> None:
        """Θ̂_i of the model at hand."""
        self._aggregate(client)

    def _aggregate(self, client: Client) -> None:
        """Learn W_i and put Θ̂_i in place of Θ; a client that has not trained yet keeps Θ."""
        own, received, count = unprefixed("own", client.state), client.received, client.state[ROUNDS]
        gap = {name: received[name] - value for name, value in own.items()}

        def mixed(mix: Tensors) -> Tensors:
            return {name: own[name] + gap[name] * value for name, value in mix.items()}

        # Counted on the host, as the length of training has to be known there.
        epochs = torch.where(count > 1, 1, self.first_epochs) * (count > 0)
        for batch in client.batches(epochs=epochs, share=self.share):
            mix = unprefixed("mix", client.state)
            slope = client.gradient(tuple(own), batch, at=mixed(mix))
            new = {n: (mix[n] - self.weight_lr * g * gap[n]).clamp(0, 1) for n, g in slope.items()}
            client.keep(prefixed("mix", new))
            client.set(mixed(new))
