"""How a model is adapted with LoRA: rank, scaling, places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from commonground.errors import ConfigError
from commonground.models.lora import Start

__all__ = ["LoRAOptions"]


class LoRAOptions:
    """How a model is adapted; peft's own names where peft has one.

    ``model.adapter=FOLDER`` starts from an adapter in peft's format, whose rank, α, targets and layers must be these.

    Args:
        rank: r of every adapted layer (peft's ``r``).
        alpha: α (``lora_alpha``); the update is scaled by α/r.
        dropout: of the update's inputs (``lora_dropout``). The frozen model's own dropout is off.
        target_modules: ends of layer names, separated by commas, or a regular expression after ``re:``; by default
            the query and value projections, as in the papers.
        layers: numbers of the transformer layers to adapt (``layers_to_transform``), for example ``3,4,5`` or
            ``18-23``; by default all.
        rslora: scaling α/√r (``use_rslora``).
        start: how A is drawn (see :class:`~commonground.models.lora.LoRALinear`).
        base_dtype: of the frozen weights: ``float32``, ``bfloat16`` or ``same`` as the run's.
        keep_hidden: whether hidden states below the first adapted layer are computed once and kept.
        max_length: tokens of the longest row.
        generative: whether the model writes answers (next-token prediction), and has no task head.
    """

    def __init__(
        self,
        rank: int = 8,
        alpha: float = 16.0,
        dropout: float = 0.0,
        target_modules: str | Sequence[str] = "",
        layers: str | int | Sequence[int] = "",
        rslora: bool = False,
        start: Start = "kaiming",
        base_dtype: Literal["same", "float32", "bfloat16"] = "same",
        keep_hidden: bool = True,
        max_length: int = 128,
        generative: bool = False,
    ) -> None:
        if not (isinstance(rank, int) and rank >= 1):
            raise ConfigError(f"the rank is {rank!r}; it must be a whole number of at least 1")
        if not 0 <= dropout < 1:
            raise ConfigError(f"the LoRA dropout is {dropout!r}; it must be at least 0 and below 1")
        if not alpha > 0:
            raise ConfigError(f"alpha is {alpha!r}; it must be positive")
        if start not in ("kaiming", "gaussian"):
            raise ConfigError(f"start is {start!r}; it is kaiming or gaussian")
        if base_dtype not in ("same", "float32", "bfloat16"):
            raise ConfigError(f"base_dtype is {base_dtype!r}; it is same, float32 or bfloat16")
        self.rank, self.alpha, self.dropout = rank, float(alpha), float(dropout)
        self.target_modules = target_modules
        self.layers = _numbers(layers)
        self.rslora, self.start, self.base_dtype = rslora, start, base_dtype
        self.keep_hidden, self.max_length, self.generative = keep_hidden, max_length, generative


def _numbers(text: str | int | Sequence[int]) -> list[int] | None:
    """``3,5-7`` as [3, 5, 6, 7]."""
    if isinstance(text, int):
        return [text]
    if not isinstance(text, str):
        return [int(n) for n in text] or None
    numbers: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ConfigError(f"layers '{text}' is not of the form 3,4,5 or 18-23")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"layers '{text}' runs backwards from {first} to {last}; write {last}-{first}")
        numbers += range(first, last + 1)
    return numbers or None
