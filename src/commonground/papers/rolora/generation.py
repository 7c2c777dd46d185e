"""Greedy answers of a trained language model, and the most probable of a few next tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from commonground.data import load_tokenizer
from commonground.engine import Run
from commonground.errors import ConfigError
from commonground.models import build_model, tensors_of
from commonground.models.adapted import AdaptedModel
from commonground.models.generation import greedy_answers

__all__ = ["Writer"]

BATCH = 16  # prompts in a pass; only prompts of equal length go together, so nothing is padded


class Writer:
    """The global model of a run, to be asked.

    Args:
        run: finished, of a language model.
        max_length: most tokens of a prompt and its answer; a longer prompt loses its beginning.
    """

    def __init__(self, run: Run, max_length: int) -> None:
        config = run.config
        options = dict(config.model_options) | {"generative": True}
        dtype = getattr(torch, config.dtype)
        model = build_model(str(config.model), (), 1, seed=config.seed, options=options, dtype=dtype)
        assert isinstance(model, AdaptedModel)
        live = tensors_of(model)
        with torch.no_grad():
            for name, value in run.shared.items():
                live[name].copy_(value)
        self.model = model.eval()
        self.tokenizer: Any = load_tokenizer(str(config.model))
        self.max_length = max_length

    def write(self, prompts: Sequence[str], new_tokens: int) -> list[str]:
        """What the model writes after each prompt, greedily, until its end token or so many tokens.

        Raises:
            ConfigError: no room is left for a prompt.
        """
        room = self.max_length - new_tokens
        if room < 1:
            raise ConfigError(f"{new_tokens} new tokens leave no room for a prompt within max_length {self.max_length}")
        given = [self._ids(prompt, room) for prompt in prompts]
        written = greedy_answers(self.model, given, self.tokenizer.eos_token_id, new_tokens)
        texts: list[str] = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        return texts

    def choose(self, prompts: Sequence[str], choices: Sequence[str]) -> list[str]:
        """Which of a few continuations of one token (``A``, ``B``, …) is the most probable next one.

        Raises:
            ConfigError: two choices begin with the same token.
        """
        tokens = [self.tokenizer(choice, add_special_tokens=False)["input_ids"][-1] for choice in choices]
        if len(set(tokens)) < len(tokens):
            raise ConfigError(f"the tokenizer gives the choices {', '.join(choices)} no tokens of their own")
        base: Any = self.model.base

        by_length: Mapping[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for place, prompt in enumerate(prompts):
            ids = self._ids(prompt, self.max_length)
            by_length[len(ids)].append((place, ids))
        found = [""] * len(prompts)
        with torch.no_grad():
            for group in by_length.values():
                for start in range(0, len(group), BATCH):
                    part = group[start : start + BATCH]
                    given = torch.tensor([ids for _, ids in part])
                    out = base(input_ids=given, attention_mask=torch.ones_like(given), use_cache=False)
                    best = out.logits[:, -1, tokens].argmax(1).tolist()
                    for (place, _), choice in zip(part, best, strict=True):
                        found[place] = choices[choice]
        return found

    def _ids(self, prompt: str, room: int) -> list[int]:
        """A prompt's tokens as in training: without an end token, for the answer is what follows."""
        closing = {self.tokenizer.eos_token_id, self.tokenizer.sep_token_id} - {None}
        ids: list[int] = self.tokenizer(prompt, verbose=False)["input_ids"]
        ids = ids[:-1] if ids and ids[-1] in closing else ids
        return ids if len(ids) <= room else ids[len(ids) - room :]
