"""RoLoRA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from commonground.algorithms.base import Client, RunSettings
from commonground.algorithms.federated_lora import FederatedLoRA
from commonground.devices import wide
from commonground.errors import ConfigError


@dataclass(frozen=True)
class RoLoRA(FederatedLoRA):
    """RoLoRA: the factors are trained and averaged in turns (Chen, Guo, Ju, Dalal, Zhu, Khisti 2025, Algorithm 1).

    In odd communication rounds A is frozen, the same on all clients, and B is trained and averaged; in even rounds the
    other way round (equations 3 and 4). So the average is exact, and a client sends one factor, half of LoRA's bytes
    (it is sent both before its first round, and again after rounds that it missed). One iteration of Algorithm 1 is two
    communication rounds. A head that is trained, is trained in every round.

    Args:
        first: the factor of the first round. The paper's is B; with A first nothing would be learned in the first
            round, since B is zero.
        step_bound: c: the learning rate of a round is at most c / ‖F‖₂², F being the factor that is frozen in it (of
            several layers the one of the largest norm). Ours, after the paper's theory. For a loss whose curvature in
            the product BA is L, that in one factor is up to L‖F‖₂², so that a fixed rate overshoots once F has grown.
            In Section 5's linear problem any c < 1 makes every round contract, whatever the rate; on MNIST the bound
            keeps a rate that is too large from ruining a run, and makes no clear difference at good ones
            (``rolora-step-bound``). For SGD; a head that is trained takes the same steps. None (the default) leaves the
            rate as it is, as the paper has it. ``body_lr``, which would take the bounded rate's place, is refused.
    """

    first: Literal["lora_A", "lora_B"] = "lora_B"
    step_bound: Annotated[float, Field(gt=0)] | None = None

    name = "rolora"
    title = "RoLoRA"
    source = "Chen, Guo, Ju, Dalal, Zhu, Khisti 2025"
    pseudo_gradient = False
    shared = ("lora_A", "lora_B")
    personal = ("head",)

    def trained(self, round: int) -> tuple[str, ...]:
        other = "lora_A" if self.first == "lora_B" else "lora_B"
        return (self.first,) if round % 2 == 1 else (other,)

    def check(self, config: RunSettings) -> None:
        """Refuse a bound of steps that do not follow the gradient's size, and one that would bound another rate."""
        if self.step_bound is not None and config.optimizer not in (None, "sgd"):
            raise ConfigError(
                f"step_bound={self.step_bound:g} bounds steps of SGD; those of {config.optimizer} do not grow with the "
                "gradient (--optimizer sgd)"
            )
        if self.step_bound is not None and config.body_lr is not None:
            raise ConfigError(
                f"step_bound={self.step_bound:g} bounds the rate of the factors, which --body-lr {config.body_lr:g} "
                "would set by itself; give their rate by --lr, and that of a head by --head-lr"
            )

    def rate(self, client: Client, round: int) -> float | None:
        if self.step_bound is None:
            return None
        (trained,) = self.trained(round)
        frozen = "lora_A" if trained == "lora_B" else "lora_B"
        squares = [largest_square(v) for name, v in client.received.items() if name.rpartition(".")[2] == frozen]
        largest = max(squares)
        return client.lr if largest * client.lr <= self.step_bound else self.step_bound / largest


def largest_square(factor: Tensor) -> float:
    """‖F‖₂² of a factor [r, in] or [out, r], from its smaller Gram matrix; the host waits for it."""
    thin = wide(factor if factor.shape[0] <= factor.shape[1] else factor.T)
    return float(torch.linalg.eigvalsh(thin @ thin.T)[-1].clamp(min=0))
