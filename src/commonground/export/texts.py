"""What an exported classifier of texts takes."""

from __future__ import annotations

import torch

from commonground.data.inputs import Inputs
from commonground.models.adapted import AdaptedModel

__all__ = ["token_inputs"]


def token_inputs(network: AdaptedModel) -> Inputs:
    """Two texts of four tokens, as arrays by name in the order in which an exported program takes them."""
    ids = torch.tensor([[5, 6, 7, 8], [6, 7, 8, 9]], device="cpu")
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs | network.segments(torch.zeros_like(ids))
