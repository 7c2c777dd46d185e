"""pFedMe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from commonground.algorithms.base import Algorithm, Client, Server, Tensors, Update, prefixed, unprefixed


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """pFedMe: personal models through Moreau envelopes (Dinh, Tran, Nguyen 2020, Algorithm 1).

    It minimises the mean of F_i(w) = min_θ f_i(θ) + λ/2 ‖θ − w‖² (their eq. 2 and 3). A participant begins with
    w_i = w, and for each of its mini-batches D

    - finds θ_i ≈ argmin f_i(θ; D) + λ/2 ‖θ − w_i‖² (eq. 7) by K steps θ ← θ − α (∇f_i(θ; D) + λ (θ − w_i)) with α the
      run's ``--lr``,
    - then steps along the gradient of the envelope, λ (w_i − θ_i) (eq. 6): w_i ← w_i − η λ (w_i − θ_i).

    It sends w_i, and keeps θ_i, its personal model, with which it is tested. The server sets
    w ← (1 − β) w + β · mean(w_i). The paper's R local rounds are the run's local epochs or ``--local-steps``.

    The paper leaves open where the K steps start; as in the authors' code (CharlieDinh/pFedMe) it is w at the beginning
    of a round and then the last θ_i. That code has all clients train in every round and averages a sample of them; here
    others than the participants do nothing, and keep their θ_i. It also adds 0.001 θ to the gradient, which is
    ``--weight-decay 0.001`` here. The steps take no momentum, and need α λ < 2. BatchNorm
    statistics of w_i are those of θ_i.

    Args:
        strength: λ, the weight of the distance to w_i; 15 in the authors' commands for MNIST. Larger keeps personal
            models nearer to w.
        inner_steps: K, steps on θ for each mini-batch; 5 in the paper's experiments.
        envelope_lr: η, the step of w_i; 0.005 in the paper's experiments, of 800 rounds. η λ is the share of the way
            to θ_i, and fewer rounds want a larger one, such as η = 0.1 with λ = 5.
        server_step: β, the server's step towards the mean; 1 or 2 in the paper.
    """

    strength: Annotated[float, Field(ge=0)] = 15.0
    inner_steps: Annotated[int, Field(ge=1)] = 5
    envelope_lr: Annotated[float, Field(gt=0)] = 0.005
    server_step: Annotated[float, Field(gt=0)] = 1.0

    name = "pfedme"
    title = "pFedMe"
    source = "Dinh, Tran, Nguyen 2020"
    not_private = ""
    shared = ("all",)
    unused = (("momentum", "its steps are plain, as in its Algorithm 1"),)
    needs_sgd = "its personal models step along their gradients towards the envelope's"

    def client_state(self, initial: Tensors) -> Tensors:
        """θ_i = w_0; during a round it is w_i that stands there."""
        return prefixed("own", initial)

    def client_update(self, client: Client, round: int) -> Tensors:
        """θ_i on each mini-batch, and a step of w_i towards it."""
        client.keep(prefixed("own", client.get("all")))
        trained: tuple[str, ...] = ()
        for batch in client.batches():
            w = unprefixed("own", client.state)
            for _ in range(self.inner_steps):
                theta, slope = client.get("all"), client.gradient("all", batch)
                trained = tuple(slope)
                pull = {n: self.strength * (theta[n] - w[n]) + client.weight_decay * theta[n] for n in trained}
                client.step({n: slope[n] + pull[n] for n in trained})
            theta = client.get("all")
            share = self.envelope_lr * self.strength
            client.keep(prefixed("own", {n: w[n] - share * (w[n] - theta[n]) for n in trained}))
        w, theta = unprefixed("own", client.state), client.get("all")
        client.keep(prefixed("own", theta))
        return client.send(theta | {n: w[n] for n in trained})

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The step towards the mean; BatchNorm statistics become the mean."""
        for name, mean in server.mean(updates).items():
            w, step = server.shared[name], 1.0 if name in server.buffers else self.server_step
            server.shared[name] = mean if step == 1 else (1 - step) * w + step * mean

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """θ_i."""
        return unprefixed("own", own)
