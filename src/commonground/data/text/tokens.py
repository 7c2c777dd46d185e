"""Texts as rows of tokens.

A tokenised data set is an int32 array [N, 1 + L, 2], L its longest row:

- position 0 is a header, (number, length): the row's own number in the data set (training rows from 0 on, test rows
  after them) and how many tokens it has;
- positions 1 … length hold (token, mark). For classification the mark is the segment (BERT's ``token_type_ids``; 0 for
  tokenizers without segments); for language models it is 1 for tokens of the answer, which are learnt, and 0 for the
  prompt;
- the rest is padding, (-1, 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.text.row_makers import ANSWERED_PROMPTS, SEQUENCES, Row, check_answering, cut_prompt, prompt_rows
from commonground.data.text.samples import TextSamples
from commonground.data.text.tokenizers import threads, tokenizer_name
from commonground.errors import ConfigError, DataError

__all__ = ["Tokens", "pad_tokens", "prompt_tokens", "tokenize", "told_of_full"]

Tokens = npt.NDArray[np.int32]
"""Token rows [N, 1 + L, 2]."""

_AT_A_TIME = 4096  # texts; a tokenizer's answer is made of Python lists, which take far more memory than the tokens


def tokenize(
    texts: TextSamples,
    tokenizer: Any,
    max_length: int = 128,
    *,
    generative: bool = False,
    vocab_size: int | None = None,
    first_number: int = 0,
) -> Tokens:
    """Token rows of texts.

    For classification a text or pair is tokenised by the tokenizer with its own special tokens, and a pair that is
    too long loses tokens from the longer of its texts.

    For language models a row is the prompt (with the tokenizer's begin token, if it has one), the answer and the end
    token. Prompt and answer are tokenised apart, so that the prompt's tokens are the ones a model gets when it is
    asked. A row that is too long loses the beginning of its prompt, down to a quarter of ``max_length``; an answer
    that even then is too long loses its end and the end token. Every row keeps tokens of its answer.

    Args:
        texts: the texts; for language models prompts and answers.
        tokenizer: a transformers tokenizer.
        max_length: most tokens of a row.
        generative: whether texts are prompts with answers to learn.
        vocab_size: of the model, if known.
        first_number: number of the first row.

    Returns:
        int32 [N, 1 + L, 2], in the layout above, L the longest of these rows.

    Raises:
        ConfigError: the tokenizer lacks what is needed, does not fit the model, or max_length is too small or larger
            than what the tokenizer's model reads.
        DataError: a text gives no tokens.
    """
    maker = ANSWERED_PROMPTS if generative else SEQUENCES
    maker.check(texts, tokenizer, max_length)
    ids: list[npt.NDArray[np.int32]] = []
    marks: list[npt.NDArray[np.int32]] = []
    lengths: list[int] = []
    least = maker.added(texts, tokenizer)
    for start in range(0, len(texts), _AT_A_TIME):
        stop = min(start + _AT_A_TIME, len(texts))
        part: list[Row] = []
        try:
            with threads():
                part = list(maker.rows(texts, slice(start, stop), tokenizer, max_length))
            flat = [np.fromiter(chain.from_iterable(row[i] for row in part), dtype=np.int64) for i in (0, 1)]
        except (ConfigError, DataError):
            raise
        except Exception as error:  # a tokenizer's own errors: no unknown token, for example
            raise ConfigError(
                f"the tokenizer {tokenizer_name(tokenizer)} cannot read {texts.origin}: "
                f"{str(error).strip() or type(error).__name__}"
            ) from None
        for row, (own, _) in enumerate(part, start):
            if len(own) <= least:
                raise DataError(f"{texts.where(row)}: the tokenizer {tokenizer_name(tokenizer)} makes no tokens of it")
        lengths += [len(own) for own, _ in part]
        _check_vocabulary(flat[0], tokenizer, vocab_size)
        ids.append(flat[0].astype(np.int32))
        marks.append(flat[1].astype(np.int32))
    longest = max(lengths, default=1)
    size = np.array(lengths, dtype=np.int32)
    tokens = np.zeros((len(texts), 1 + longest, 2), dtype=np.int32)
    tokens[:, 0, 0] = np.arange(first_number, first_number + len(texts))
    tokens[:, 0, 1] = size
    tokens[:, 1:, 0] = -1
    body = tokens[:, 1:]
    inside = np.arange(longest) < size[:, np.newaxis]
    if ids:
        body[inside] = np.stack([np.concatenate(ids), np.concatenate(marks)], axis=1)
    return tokens


def prompt_tokens(prompts: Sequence[str], tokenizer: Any, max_length: int) -> list[list[int]]:
    """Tokens of prompts as a language model was given them in training: with the begin token, without an end token.

    Args:
        prompts: the texts.
        tokenizer: a transformers tokenizer.
        max_length: most tokens; a longer prompt loses its beginning.

    Raises:
        ConfigError: the tokenizer has no end token.
        DataError: a prompt gives no tokens.
    """
    check_answering(tokenizer, max_length)
    with threads():
        rows = prompt_rows(prompts, tokenizer)
    for row, prompt in enumerate(rows):
        if not prompt:
            raise DataError(f"the tokenizer {tokenizer_name(tokenizer)} makes no tokens of prompt {row + 1}")
    return [cut_prompt(prompt, max_length, tokenizer.bos_token_id) for prompt in rows]


def told_of_full(max_length: int, *parts: Tokens) -> str:
    """How many rows have as many tokens as are read, so that something may have been cut; empty if none has."""
    full = sum(int((tokens[:, 0, 1] >= max_length).sum()) for tokens in parts)
    if not full:
        return ""
    return (
        f"{full:,} of {sum(map(len, parts)):,} texts fill the {max_length} tokens that are read; what is longer is cut"
    )


def pad_tokens(tokens: Tokens, length: int) -> Tokens:
    """Token rows with padding up to ``length`` tokens; as they are when they are that long already."""
    missing = 1 + length - tokens.shape[1]
    if missing < 0:
        raise DataError(f"the rows have up to {tokens.shape[1] - 1} tokens, more than {length}")
    if missing == 0:
        return tokens
    padding = np.zeros((len(tokens), missing, 2), dtype=np.int32)
    padding[..., 0] = -1
    return np.concatenate([tokens, padding], axis=1)


def _check_vocabulary(ids: npt.NDArray[np.int64], tokenizer: Any, vocab_size: int | None) -> None:
    if ids.size and int(ids.min()) < 0:
        raise ConfigError(f"the tokenizer {tokenizer_name(tokenizer)} gives the token number {int(ids.min())}")
    if vocab_size is not None and ids.size and int(ids.max()) >= vocab_size:
        raise ConfigError(
            f"the tokenizer {tokenizer_name(tokenizer)} gives the token number {int(ids.max())}, and the model's "
            f"vocabulary has {vocab_size}: take the model's own tokenizer"
        )
