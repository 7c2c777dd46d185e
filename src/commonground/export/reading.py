"""How texts become the inputs of an exported model: its tokenizer, what rows are padded with, the lines that say so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from commonground.adapters import copy_tokenizer
from commonground.data.inputs import Inputs
from commonground.data.text import load_tokenizer
from commonground.engine.run import Run
from commonground.errors import ConfigError
from commonground.models.adapted import AdaptedModel

__all__ = ["Reading", "reading_of", "token_inputs"]


@dataclass(frozen=True)
class Reading:
    """How a model's texts are read outside this library.

    Attributes:
        model: the adapted model.
        longest: tokens to which texts are cut.
        tokenizer: the base's; None where none can be had.
        pad_token: number of the token that rows are padded with, which every head has to know as that; None where no
            rows are padded, or nobody knows with what.
    """

    model: AdaptedModel
    longest: int
    tokenizer: Any
    pad_token: int | None

    @property
    def pads_alike(self) -> bool:
        """Whether the base's tokenizer itself pads with :attr:`pad_token`."""
        return self.tokenizer is None or self.pad_token in (None, self.tokenizer.pad_token_id)

    def write(self, folder: Path) -> None:
        """Put the tokenizer's files into a folder, if the base is a local one; there it pads with :attr:`pad_token`."""
        copy_tokenizer(self.model, folder)
        if not self.pads_alike and Path(self.model.location).is_dir():
            self.tokenizer.pad_token = self.tokenizer.convert_ids_to_tokens(self.pad_token)
            self.tokenizer.save_pretrained(str(folder))

    def lines(self, tensors: str) -> str:
        """Python that makes ``read``, the inputs by name, of ``texts``.

        Args:
            tensors: ``pt`` or ``np``.
        """
        code = f"tokenizer = AutoTokenizer.from_pretrained({self.where})\n"
        if not self.pads_alike and self.where != "folder":
            code += f"tokenizer.pad_token = {self.tokenizer.convert_ids_to_tokens(self.pad_token)!r}\n"
        code += (
            f"read = tokenizer(texts, truncation=True, max_length={self.longest}, padding=True, "
            f'return_tensors="{tensors}")\n'
        )
        if "token_type_ids" in token_inputs(self.model):
            code += 'read = {"token_type_ids": 0 * read["input_ids"], **read}  # which some tokenizers leave out\n'
        return code

    @property
    def where(self) -> str:
        """Where the tokenizer is loaded from, as Python."""
        return "folder" if Path(self.model.location).is_dir() else f'"{self.model.location}"'


def reading_of(run: Run, model: AdaptedModel) -> Reading:
    """How texts are read for a run's model.

    Raises:
        ConfigError: its tokenizer has no token to pad with.
    """
    try:
        tokenizer = load_tokenizer(run.config.model)
    except ConfigError:  # of a run on rows that were tokens already
        tokenizer = None
    classifies = bool(model.head_names)
    pad = model.pad_token if not classifies or model.pad_token is not None else _padding(model, tokenizer)
    return Reading(model, run.trained.longest_text, tokenizer, pad if classifies else None)


def token_inputs(network: AdaptedModel) -> Inputs:
    """Two texts of four tokens, as arrays by name in the order in which an exported program takes them."""
    ids = torch.tensor([[5, 6, 7, 8], [6, 7, 8, 9]], device="cpu")
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs | network.segments(torch.zeros_like(ids))


def _padding(model: AdaptedModel, tokenizer: Any) -> int | None:
    """The number of a token to pad with where the model knows none: transformers' heads take the last token of a row
    that is another one, so that no text may end with it.
    """
    if tokenizer is None:
        end = getattr(model.config, "eos_token_id", None)
        return end if isinstance(end, int) else None
    last = tokenizer("a")["input_ids"][-1:]  # what the tokenizer itself puts at a text's end, or the text's own
    named = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, *tokenizer.all_special_ids)
    known = (token for token in named if token is not None and token < int(model.config.vocab_size))
    found: int | None = next((token for token in known if token not in (*last, tokenizer.unk_token_id)), None)
    if found is None:
        raise ConfigError(
            f"the tokenizer of '{model.location}' has no token that texts of different lengths could be padded with; "
            "add one to its special tokens (tokenizer.add_special_tokens) that the model's vocabulary has"
        )
    return found
