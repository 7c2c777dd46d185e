"""Differential privacy of single training examples: noise in every step of local training (DP-SGD).

*Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang 2016, Algorithm 1.* A step on the batch b of a client:

    g_x = ∇ℓ(θ; x),    ḡ_x = g_x · min(1, C / ‖g_x‖₂),    g̃ = 1/B (Σ_{x∈b} ḡ_x + N(0, (Z·C)² I)),

‖·‖ being over all trained tensors together, and B the size of the client's full batches, also where an epoch's last
batch is smaller: every example counts the same then, and the noise of no step is larger. The optimizer is given g̃.

*Neighbours.* Federations that differ in **one training example of one client, replaced** by any other. How many
examples a client has is public.

*What an epoch gives away.* An epoch's batches are disjoint, and which example is in which depends on keys and not on
the examples. So one example is in one step of an epoch. That step's sum moves by up to **2C** (ḡ_x − ḡ_x′ may point in
opposite directions), and all other steps are the same function of θ and of examples that have not changed. An epoch
is therefore one Gaussian release of the multiplier Z/2 (parallel composition within it, adaptive composition over
epochs), and P passes over the data are one of the multiplier Z/(2√P), whose ε is known exactly (Balle and Wang 2018).
Nothing is amplified: the batches are no Poisson samples, for which Abadi et al. count, and they follow from the run's
seed, which the server knows. So this ε holds against whoever knows in which step an example was used and in which
rounds its client took part.

*The head that never leaves needs its noise here.* Where a client is hidden as a whole, noise on what it sends is
enough, however it was computed. Here it is the steps that hide an example. A step on the body depends on the head; a
head that was fitted to the examples without noise changes with the replaced one, and with it the gradients of *all*
others: the sum moves by up to 2C·|b|, at every step, and no noise of size Z·C hides that. (Nor is the head
post-processing of anything released.) So every step of a client's round gets noise, on the head as on the body, and
counts. What the client has after it, sent or kept, is then a function of private releases alone, and so is all that
it computes of that in later rounds. What is computed of the examples after the last round may do without noise, as
nothing is sent that depends on it: a head fine-tuned at home, a test.

*By hand.* Of the gradients (3, 4) and (0.3, 0.4) the first is cut to (0.6, 0.8) with C = 1; in a batch of B = 2 the
step goes along (0.45, 0.6), with Z = 2 and noise of the standard deviation 2·1/2 = 1 in each number. Two epochs with
Z = 2 are one Gaussian release of the multiplier 2/(2√2) = 0.707.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from commonground.devices import wide

__all__ = ["ExamplePrivacy", "clipped_sums", "noisy_means"]

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class ExamplePrivacy:
    """How the steps of local training are made private.

    Attributes:
        clip: C, the largest L2 norm of an example's gradient.
        noise: Z, the noise multiplier.
    """

    clip: float
    noise: float


def clipped_sums(gradients: Tensors, there: Tensor, clip: float) -> Tensors:
    """The sum of a batch's gradients, each cut to the length ``clip`` over all tensors together.

    A gradient that is not finite counts as zero: whatever one example does, it moves the sum by ``clip`` at most.

    Args:
        gradients: by name [rows, …], or [clients, rows, …].
        there: [rows] or [clients, rows], 1 for an example and 0 for padding.
        clip: C, positive.

    Returns:
        Sums by name […], or [clients, …].
    """
    lead = there.ndim
    squares = [wide(value).reshape(*there.shape, -1).square().sum(-1) for value in gradients.values()]
    lengths = torch.stack(squares).sum(0).sqrt()
    finite = torch.isfinite(lengths)
    shares = clip / lengths.clamp(min=clip) * there
    sums = {}
    for name, value in gradients.items():
        spread = (*there.shape, *[1] * (value.ndim - lead))
        counted = torch.where(finite.view(spread), value, torch.zeros_like(value))
        share = torch.where(finite, shares, torch.zeros_like(shares)).to(value.dtype)
        sums[name] = (counted * share.view(spread)).sum(lead - 1)
    return sums


def noisy_means(sums: Tensors, drawn: Tensor, std: float, sizes: Sequence[int]) -> Tensors:
    """Sums of cut gradients with their noise, divided by the size of a full batch.

    Args:
        sums: by name; of one client […], of a cohort [clients, …].
        drawn: [clients, numbers] standard Gaussian noise in float64 on the host, of all tensors one after the other.
        std: Z·C, the noise's standard deviation.
        sizes: B of each client.
    """
    clients, first, means = len(drawn), 0, {}
    for name, value in sums.items():
        count = value.numel() // clients
        noise = drawn[:, first : first + count].to(wide(value).dtype).to(value.device)
        full = torch.tensor(sizes, dtype=noise.dtype, device=value.device).view(-1, 1)
        means[name] = ((wide(value).reshape(clients, count) + std * noise) / full).to(value.dtype).view(value.shape)
        first += count
    return means
