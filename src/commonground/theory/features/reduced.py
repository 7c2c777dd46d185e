"""Gradient descent in the products that matter: Γ, Ξ and the Gram matrix of the noise patches.

Every gradient is a combination of features and noise patches, so the weights stay

    w_r = w_r⁽⁰⁾ + Σ_k a_{r,k} v_k + Σ_ij c_{r,ij} ξ_ij,

and since ⟨v_k, ξ_ij⟩ = 0 and the v_k are orthonormal, (B.1)–(B.4) and (C.1)–(C.4) close exactly:

    Γ_{r,k}  ← Γ_{r,k} + 3η · mean over the model's clients of ν_i s_{i,k} Γ_{r,k}²
    c_{r,ij} ← c_{r,ij} + 3η/(n · clients of the model) · y_ij ℓ_ij Ξ_{r,ij}²,    Ξ = Ξ⁽⁰⁾ + c G,  G = ⟨ξ_ij, ξ_i'j'⟩

with s the signals of :meth:`FeatureModel.signals`. Nothing is dropped: these are the numbers of the full simulation to
rounding, at a cost that does not depend on d.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from commonground.theory.features.problem import Problem

__all__ = ["Products", "ReducedState", "reduced_start"]


@dataclass(frozen=True)
class Products:
    """What the dynamics need to know of a problem, once.

    Attributes:
        signals: [N, K].
        labels: [S, N, n].
        gram: ⟨ξ_ij, ξ_i'j'⟩, [S, Nn, Nn].
        own_gram: its blocks of one client each, [S, N, n, n].
        start_xi: Ξ⁽⁰⁾, [S, m, Nn].
        start_gram: ⟨w_r⁽⁰⁾, H w_s⁽⁰⁾⟩, [S, m, m].
    """

    signals: torch.Tensor
    labels: torch.Tensor
    gram: torch.Tensor
    own_gram: torch.Tensor
    start_xi: torch.Tensor
    start_gram: torch.Tensor


@dataclass(frozen=True)
class ReducedState:
    """One model for all (global updates, or an average) or one per client (local updates).

    Attributes:
        products: of the problem.
        local: whether every client has a model of its own.
        gamma: Γ, [S, A, m, K]; A is N if ``local``, else 1.
        xi: Ξ_{r,ij} of client i's noise in the model client i uses, [S, N, m, n].
        memory: c_{r,ij}, the coefficient of client i's noise in that model, [S, N, m, n].
    """

    products: Products
    local: bool
    gamma: torch.Tensor
    xi: torch.Tensor
    memory: torch.Tensor

    @property
    def margin(self) -> torch.Tensor:
        """y·F on the training samples: [S, N, n]."""
        signal = (self.gamma.pow(3).sum(2) * self.products.signals).sum(-1)  # [S, N]
        return signal[..., None] + self.products.labels * self.xi.pow(3).sum(2)

    @property
    def noise_gram(self) -> torch.Tensor:
        """⟨w_r, H w_s⟩ with the projection H beside the features: [S, A, m, m]."""
        memory, start = self._models(self.memory), self._models(_clients(self.products.start_xi, self.xi.shape))
        # W H Wᵀ = W0 H W0ᵀ + C Ξ0ᵀ + (C Ξᵀ)ᵀ, as Ξ = Ξ0 + C G
        mixed = memory @ start.mT
        gram = self.products.start_gram.unsqueeze(1) + mixed + (memory @ self._models(self.xi).mT).mT
        return (gram + gram.mT) / 2

    def step(self, eta: float) -> ReducedState:
        """One step of (2) for a shared model, of (3) in every client for local ones."""
        labels, signals = self.products.labels, self.products.signals
        slope = torch.sigmoid(-self.margin)
        pull = slope.mean(-1)[..., None] * signals  # ν_i s_{i,k}: [S, N, K]
        learned = 3 * eta * labels.shape[-1] ** -1 * (labels * slope).unsqueeze(2) * self.xi.square()
        if self.local:
            xi = self.xi + learned @ self.products.own_gram
        else:
            pull = pull.mean(1, keepdim=True)
            learned = learned / labels.shape[1]
            xi = self.xi + _clients(_flat(learned) @ self.products.gram, self.xi.shape)
        gamma = self.gamma + 3 * eta * pull.unsqueeze(2) * self.gamma.square()
        return replace(self, gamma=gamma, xi=xi, memory=self.memory + learned)

    def averaged(self) -> ReducedState:
        """One model, the mean of the clients' (Theorem 4)."""
        if not self.local:
            return self
        memory = self.memory / self.memory.shape[1]
        xi = _clients(self.products.start_xi + _flat(memory) @ self.products.gram, self.xi.shape)
        return replace(self, local=False, gamma=self.gamma.mean(1, keepdim=True), xi=xi, memory=memory)

    def _models(self, by_client: torch.Tensor) -> torch.Tensor:
        """[S, N, m, n] by the patches each model holds coefficients of: [S, N, m, n] or [S, 1, m, Nn]."""
        return by_client if self.local else _flat(by_client).unsqueeze(1)


def reduced_start(problem: Problem, local: bool) -> ReducedState:
    """The common start W⁽⁰⁾, in every client if ``local``."""
    model = problem.model
    noise = problem.noise.flatten(1, 2)  # [S, Nn, d]
    gram = noise @ noise.mT
    blocks = gram.view(-1, model.N, model.n, model.N, model.n)
    own = blocks.diagonal(dim1=1, dim2=3).movedim(-1, 1).contiguous()
    gamma = problem.start @ problem.features
    beside = problem.start - gamma @ problem.features.mT
    xi = problem.start @ noise.mT
    products = Products(model.signals(problem.device), problem.labels, gram, own, xi, beside @ beside.mT)
    shape = (len(problem.seeds), model.N, model.m, model.n)
    models = model.N if local else 1
    start = _clients(xi, shape)
    return ReducedState(
        products, local, gamma.unsqueeze(1).repeat(1, models, 1, 1), start.clone(), torch.zeros_like(start)
    )


def _flat(by_client: torch.Tensor) -> torch.Tensor:
    """[S, N, m, n] as [S, m, Nn]."""
    return by_client.transpose(1, 2).flatten(2)


def _clients(flat: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """[S, m, Nn] as [S, N, m, n], the shape given."""
    return flat.view(*flat.shape[:2], shape[1], shape[3]).transpose(1, 2)
