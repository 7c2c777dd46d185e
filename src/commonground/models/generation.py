"""Greedy answers of a language model with LoRA factors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from commonground.models.adapted import AdaptedModel

__all__ = ["greedy_answers"]

ROWS = 16  # prompts of one pass


def greedy_answers(
    model: AdaptedModel, prompts: Sequence[Sequence[int]], end: int, max_new_tokens: int
) -> list[list[int]]:
    """The most probable next token after each prompt, again and again, up to the end token.

    Prompts of equal length go through the model together, so that none is padded.

    Args:
        model: a language model.
        prompts: token numbers of each prompt.
        end: the end token, which is not part of an answer.
        max_new_tokens: most tokens of an answer.

    Returns:
        Token numbers of each answer.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    with torch.no_grad():
        for _, same in groupby(order, key=lambda i: len(prompts[i])):
            rows = list(same)
            for start in range(0, len(rows), ROWS):
                part = rows[start : start + ROWS]
                given = torch.tensor([list(prompts[i]) for i in part], device=next(model.parameters()).device)
                for i, tokens in zip(part, _continue(model, given, end, max_new_tokens).tolist(), strict=True):
                    answers[i] = tokens[: tokens.index(end)] if end in tokens else tokens
    return answers


def _continue(model: AdaptedModel, ids: torch.Tensor, end: int, most: int) -> torch.Tensor:
    """New tokens [n, at most ``most``]; what follows an end token means nothing."""
    base: Any = model.base
    body, scores = getattr(base, str(base.base_model_prefix)), base.get_output_embeddings()
    made: list[torch.Tensor] = []
    past = None
    done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    while len(made) < most and not bool(done.all()):
        out = body(input_ids=ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        ids = scores(out.last_hidden_state[:, -1:]).argmax(-1)
        made.append(ids)
        done |= ids[:, 0] == end
    return torch.cat(made, 1) if made else ids[:, :0]
