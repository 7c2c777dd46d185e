"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field

from commonground.algorithms.base import Algorithm, Client, Server, Tensors, Update, prefixed, unprefixed


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """SCAFFOLD: local steps corrected by control variates (Karimireddy et al. 2020, Algorithm 1).

    With x the server's model, c its control variate and c_i the client's, all control variates starting at zero:

    - client: y ← y − η_l (g_i(y) − c_i + c) for K steps from y = x, where K is the client's own number of mini-batches;
    - its new control variate is c_i⁺ = g_i(x) over all its data (option I) or c_i − c + (x − y)/(K η_l) (option II);
    - it sends y and c_i⁺ − c_i; the server sets x ← x + η_g · mean(y − x) and c ← c + Σ(c_i⁺ − c_i)/N, with N the
      number of all clients.

    Option II reads the mean gradient off the distance travelled, which is right for plain SGD only: with momentum β
    the distance is about 1/(1 − β) times as long. So local steps take no momentum here.
    (Collins et al. give all methods momentum 0.5; their code has option II with it, and clips gradients to norm 10.)
    The control variates are an unweighted mean also under ``--weighting samples``. Those of buffers (BatchNorm
    statistics, which are averaged like the weights) are carried along and correct nothing.

    Args:
        server_step: η_g, the server's step (Collins et al. 2021, App. A.2: 1, but 0.5 for FEMNIST).
        option: ``II``, which costs nothing, or ``I``, one more pass over the client's data.
    """

    server_step: Annotated[float, Field(gt=0)] = 1.0
    option: Literal["I", "II"] = "II"

    name = "scaffold"
    title = "SCAFFOLD"
    source = "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020"
    own_aggregate = "its control variate is a sum over clients, which one false update moves anywhere"
    not_private = ""
    shared = ("all",)
    unused = (("momentum", "its control variates are read off plain steps"),)
    needs_sgd = "its control variates correct gradients, and are read off steps along them"

    def server_state(self, initial: Tensors) -> Tensors:
        """c = 0."""
        return prefixed("c", {name: torch.zeros_like(value) for name, value in initial.items()})

    def client_state(self, initial: Tensors) -> Tensors:
        """c_i = 0."""
        return prefixed("c_i", {name: torch.zeros_like(value) for name, value in initial.items()})

    def client_update(self, client: Client, round: int) -> Tensors:
        """Corrected local steps and the new c_i."""
        c, mine = unprefixed("c", client.received), unprefixed("c_i", client.state)
        client.fit("all", momentum=0.0, correction={name: c[name] - mine[name] for name in c})
        y = client.get("all")
        if self.option == "I":
            start = {name: client.received[name] for name in y}
            new = {**mine, **client.gradient("all", at=start)}
        else:
            travelled = {name: client.received[name] - value for name, value in y.items()}
            mean_gradient = client.scale(travelled, 1 / (client.steps.clamp(min=1) * client.lr))
            new = {name: mine[name] - c[name] + mean_gradient[name] for name in c}
        client.keep(prefixed("c_i", new))
        return client.send({**y, **prefixed("c", {name: new[name] - mine[name] for name in new})})

    def change_of(self, received: Tensors, sent: Tensors, buffers: Collection[str]) -> Tensors:
        """y is a change of x; what is sent of the control variates is their change itself."""
        return {n: torch.zeros_like(value) if "/" in n else received[n] for n, value in sent.items()}

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The steps of x and c."""
        models = [Update(u.client, u.samples, {n: v for n, v in u.tensors.items() if "/" not in n}) for u in updates]
        for name, y in server.mean(models).items():
            x = server.shared[name]
            server.shared[name] = x + self.server_step * (y - x)
        for name in prefixed("c", models[0].tensors):
            change = torch.stack([u.tensors[name] for u in updates]).sum(0)
            server.shared[name] = server.shared[name] + change / server.clients
