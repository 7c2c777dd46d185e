"""Fed-MTL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from commonground.algorithms.base import Algorithm, Client, Server, Tensors, Update, prefixed, unprefixed
from commonground.devices import wide


@dataclass(frozen=True)
class FedMTL(Algorithm):
    """Fed-MTL: one model per client, tied by how the clients relate (Smith et al. 2017).

    With W = [w_1 … w_m] the models of all m clients as columns, it minimises
    Σ f_i(w_i) + λ1 tr(W Ω Wᵀ) + λ2 ‖W‖²_F, in which a client sees only its own column: a participant takes local
    epochs of SGD on f_i(w) + λ1 (Ω_ii ‖w‖² + 2 ⟨w, Σ_{j≠i} Ω_ij w_j⟩) + λ2 ‖w‖², the others as they were when the round
    began. (Smith et al. solve a quadratic model of the dual, which exists for convex losses; SGD is what Liang et al.
    2020 and Collins et al. 2021 take for networks. f_i is a mean over samples here, a sum there.)

    - ``omega="fixed"`` is their mean regularisation, Ω = (I − 11ᵀ/m)², for which tr(W Ω Wᵀ) = Σ ‖w_i − w̄‖². The client
      finds Σ_{j≠i} Ω_ij w_j = w_i/m − w̄ from the mean model it is sent.
    - ``omega="learned"`` alternates with Ω, after each round Ω = (1/m) ((1 − ρ) S/tr(S) + ρ I/m)^(−1) with
      S = (WᵀW)^(1/2): the closed form for the constraint tr(Ω^(−1)) = 1, drawn towards the identity by ρ so that the
      inverse exists while models are alike, and scaled so that unrelated models of one norm give Ω = I. (Eigenvalues of
      WᵀW below 1e-10 of the largest are rounding and count as that.) The server
      remembers every client's model (m times the model's size) and sends each participant its own sum.

    Clients send how their model changed; the server needs the model of every client in either case, so nothing of
    it is personal in the sense of privacy. The shared tensors are the mean model w̄ of all clients, trained or not.

    The public code of Liang et al., which Collins et al. used, multiplies the regulariser by about 1e-7 and has an Ω of
    equal entries, so it is Local Only in effect; ``strength=0`` gives that.

    Args:
        strength: λ1, how much the models' relations count; Collins et al. name no value.
        ridge: λ2, a pull of all models to zero.
        omega: what relates the models: Ω ``fixed``, or ``learned`` from them.
        smoothing: ρ in (0, 1]; Ω's largest eigenvalue is at most 1/ρ.
    """

    strength: Annotated[float, Field(ge=0)] = 0.1
    ridge: Annotated[float, Field(ge=0)] = 0.0
    omega: Literal["fixed", "learned"] = "fixed"
    smoothing: Annotated[float, Field(gt=0, le=1)] = 0.5

    name = "fedmtl"
    title = "Fed-MTL"
    source = "Smith, Chiang, Sanjabi, Talwalkar 2017"
    own_aggregate = "it adds up the changes of all clients' models"
    not_private = "its server keeps and relates the models of single clients"
    pseudo_gradient = False
    unused = (("weighting", own_aggregate),)
    shared = ("all",)

    def client_state(self, initial: Tensors) -> Tensors:
        """w_i, the same for all at first."""
        return prefixed("own", initial)

    def message_to(self, server: Server, client: int) -> Tensors:
        """Ω_ii, and for a learned Ω the sum over the other clients."""
        like = next(iter(server.shared.values()))
        if self.omega == "fixed":
            return {"omega/own": like.new_tensor(1 - 1 / server.clients)}
        self._remember(server)
        row = server.memory["omega"][client]
        others = torch.where(torch.arange(server.clients, device=row.device) == client, 0, row)
        models = unprefixed("W", server.memory)
        sums = {name: torch.tensordot(others.to(w.dtype), w, 1) for name, w in models.items()}
        return {"omega/own": row[client].to(like.dtype), **prefixed("others", sums)}

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs on the client's own model."""
        before = unprefixed("own", client.state)

        def relations(own: Tensors, received: Tensors) -> Tensor:
            diagonal = received["omega/own"]
            terms = []
            for name, start in unprefixed("own", own).items():
                w = own[name]
                others = (
                    (1 - diagonal) * start - received[name] if self.omega == "fixed" else received[f"others/{name}"]
                )
                terms.append((w * ((self.strength * diagonal + self.ridge) * w + 2 * self.strength * others)).sum())
            return torch.stack(terms).sum()

        client.set(before)
        client.fit("all", penalty=relations)
        after = client.get("all")
        client.keep(prefixed("own", after))
        return client.send({name: value - before[name] for name, value in after.items()})

    def change_of(self, received: Tensors, sent: Tensors, buffers: Collection[str]) -> Tensors:
        """What is sent is the change itself, of a client's own model."""
        return {name: torch.zeros_like(value) for name, value in sent.items()}

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The mean model of all clients and, if it is learned, Ω."""
        for name in updates[0].tensors:
            change = torch.stack([u.tensors[name] for u in updates]).sum(0)
            server.shared[name] = server.shared[name] + change / server.clients
        if self.omega == "learned":
            for name, w in unprefixed("W", server.memory).items():
                who = torch.tensor([u.client for u in updates], device=w.device)
                changes = torch.stack([u.tensors[name] for u in updates])
                server.memory[f"W/{name}"] = w.index_add(0, who, changes)
            server.memory["omega"] = self._relations(server)

    def _remember(self, server: Server) -> None:
        """Before the first round: every client's model and what they say of Ω."""
        if "omega" not in server.memory:
            models = {name: w.expand(server.clients, *w.shape).clone() for name, w in server.shared.items()}
            server.memory.update(prefixed("W", models))
            server.memory["omega"] = self._relations(server)

    def _relations(self, server: Server) -> Tensor:
        """Ω [m, m] for the models in memory, in float64."""
        flat = [wide(w.flatten(1)) for w in unprefixed("W", server.memory).values()]
        values, vectors = torch.linalg.eigh(torch.stack([w @ w.T for w in flat]).sum(0))
        # Models that are alike make the Gram matrix singular; a floor keeps rounding out of the square root.
        roots = values.clamp(min=1e-10 * values[-1]).sqrt()
        m = server.clients
        inverse = (1 - self.smoothing) * roots / roots.sum().clamp(min=1e-300) + self.smoothing / m
        relations: Tensor = (vectors / (m * inverse)) @ vectors.T
        return relations

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """w_i."""
        return unprefixed("own", own)
