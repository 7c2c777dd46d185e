"""The formulas: cutting a change to a length, how much noise it gets, and the length that follows a quantile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonground.devices import wide
from commonground.privacy.noise import NoiseSource

__all__ = ["CLIP", "WITHIN", "ClientPrivacy", "clipped", "is_private_part", "next_clip", "wide", "with_noise"]

Tensors = dict[str, Tensor]

CLIP = "dp/clip"
"""The tensor by which clients are told C, where it follows a quantile."""

WITHIN = "dp/within"
"""The tensor by which a client tells whether its change was within C."""

RATE = 0.2  # η of Andrew et al. 2021, who use it for all tasks


@dataclass(frozen=True)
class ClientPrivacy:
    """How the changes that clients send are made private.

    Attributes:
        clip: C, the largest L2 norm of a client's change; with a ``quantile`` that of the first round.
        noise: Z, the noise multiplier.
        where: who adds the noise: the ``server``, once for the mean, or each ``client``, before anything leaves it.
        quantile: γ, the share of changes that C is to leave as they are; None for a C that stays.
    """

    clip: float
    noise: float
    where: Literal["server", "client"] = "server"
    quantile: float | None = None

    def bits_std(self, participants: int) -> float:
        """σ_b, of the noise on the number of changes within C: a twentieth of the participants (Andrew et al. 2021),
        but at least Z, so that z_Δ exists. A client that adds its own noise is alone.
        """
        alone = self.where == "client"
        return max((1 if alone else participants) / 20, self.noise)

    def change_noise(self, participants: int) -> float:
        """The multiplier of the noise on the changes: Z, or z_Δ where the numbers within C are released as well."""
        if self.quantile is None:
            return self.noise
        return float((self.noise**-2 - (2 * self.bits_std(participants)) ** -2) ** -0.5)

    def zero_out_noise(self, participants: int) -> float:
        """The multiplier of one Gaussian release that tells as much of a neighbour who sends zero: Z, or less where the
        numbers within C are released as well. The change moves by C at most and the number within C by 1, as who sends
        zero is within it (and not by ½, as for one who is left out of Σ (b_i − ½)).
        """
        if self.quantile is None:
            return self.noise
        return float((self.change_noise(participants) ** -2 + self.bits_std(participants) ** -2) ** -0.5)

    def server_state(self, dtype: torch.dtype) -> Tensors:
        """What the server tells all clients beside the method's tensors, at its start: C, if it changes."""
        return {} if self.quantile is None else {CLIP: torch.tensor(self.clip, dtype=dtype)}

    def upload_state(self, dtype: torch.dtype) -> Tensors:
        """What each client tells the server beside the method's tensors, as examples of their shapes."""
        return {} if self.quantile is None else {WITHIN: torch.zeros((), dtype=dtype)}


def is_private_part(name: str) -> bool:
    """Whether a tensor that travels belongs to this package and not to the method."""
    return name.startswith("dp/")


def clipped(change: Tensors, clip: Tensor | float) -> tuple[Tensors, Tensor]:
    """A change cut to the length ``clip`` over all tensors together, and 1 if it was within it, else 0.

    One that is not finite counts as none: whatever happens to a client, what it sends is as long as that at most.

    Args:
        change: by name; not empty.
        clip: C, positive.
    """
    squares = [wide(value).square().sum() for value in change.values()]
    length = torch.stack(squares).sum().sqrt()
    bound = torch.as_tensor(clip, dtype=length.dtype, device=length.device)
    finite = torch.isfinite(length)
    share = bound / torch.maximum(length, bound)
    cut = {n: torch.where(finite, wide(value) * share, torch.zeros_like(wide(value))) for n, value in change.items()}
    return cut, (length <= bound).to(length.dtype)


def with_noise(values: Tensors, std: Tensor | float, source: NoiseSource, *key: str | int) -> Tensors:
    """Values plus independent Gaussian noise, drawn on the host for each tensor by itself.

    Args:
        values: by name.
        std: standard deviation of each number's noise.
        source: where it comes from.
        *key: what it is for; with the tensor's name it is used once.
    """
    noisy: Tensors = {}
    for name, value in values.items():
        drawn = source.normal(tuple(value.shape), *key, name)
        noisy[name] = value + drawn.to(value.dtype).to(value.device) * std
    return noisy


def next_clip(clip: Tensor, share: Tensor, quantile: float) -> Tensor:
    """C_{t+1} = C_t · exp(−η (b̃ − γ)).

    Args:
        clip: C_t.
        share: b̃, the share of changes within it, with its noise.
        quantile: γ.
    """
    # With few clients b̃ may lie far outside of [0, 1], and one such round must not take C out of reach.
    moved: Tensor = clip * torch.exp(-RATE * (share.clamp(-1.0, 2.0) - quantile)).to(clip.dtype)
    return moved
