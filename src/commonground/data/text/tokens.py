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

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.text.samples import TextSamples
from commonground.data.text.tokenizers import threads, tokenizer_name
from commonground.errors import ConfigError, DataError

__all__ = ["Tokens", "pad_tokens", "prompt_tokens", "tokenize"]

Tokens = npt.NDArray[np.int32]
"""Token rows [N, 1 + L, 2]."""

_AT_A_TIME = 4096  # texts; a tokenizer's answer is made of Python lists, which take far more memory than the tokens
_SMALLEST = 3  # tokens of a row: what begins and ends it, and one of the text

_Row = tuple[Sequence[int], Sequence[int]]


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
    pair = texts.second is not None
    if generative and not pair:
        raise DataError(f"{texts.origin}: a language model needs prompts and answers, and there are single texts")
    _check_tokenizer(tokenizer, max_length, pair, generative)
    rows = _continuations if generative else _sequences
    ids: list[npt.NDArray[np.int32]] = []
    marks: list[npt.NDArray[np.int32]] = []
    lengths: list[int] = []
    least = 0 if generative else _added(tokenizer, pair)
    for start in range(0, len(texts), _AT_A_TIME):
        stop = min(start + _AT_A_TIME, len(texts))
        part: list[_Row] = []
        try:
            with threads():
                part = list(rows(texts, slice(start, stop), tokenizer, max_length))
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
    _check_tokenizer(tokenizer, max_length, False, True)
    with threads():
        rows = _prompts(prompts, tokenizer)
    for row, prompt in enumerate(rows):
        if not prompt:
            raise DataError(f"the tokenizer {tokenizer_name(tokenizer)} makes no tokens of prompt {row + 1}")
    return [_end_of(prompt, max_length, tokenizer.bos_token_id) for prompt in rows]


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


def _sequences(texts: TextSamples, rows: slice, tokenizer: Any, max_length: int) -> Iterator[_Row]:
    """Tokens and segments of texts or pairs."""
    second = None if texts.second is None else list(texts.second[rows])
    given = tokenizer(
        list(texts.first[rows]), second, truncation=True, max_length=max_length, return_attention_mask=False
    )
    ids = _ids(given, tokenizer)
    segments = given.get("token_type_ids") or [[0] * len(row) for row in ids]
    yield from zip(ids, segments, strict=True)


def _continuations(texts: TextSamples, rows: slice, tokenizer: Any, max_length: int) -> Iterator[_Row]:
    """Tokens of prompts with their answers, and whether each belongs to the answer."""
    first, second = list(texts.first[rows]), list((texts.second or ())[rows])
    end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
    prompts = _prompts(first, tokenizer)
    answers = _ids(tokenizer(second, add_special_tokens=False, return_attention_mask=False, verbose=False), tokenizer)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True), rows.start):
        if not prompt or not answer:
            what = "answer" if prompt else "prompt"
            name = tokenizer_name(tokenizer)
            raise DataError(f"{texts.where(row)}: the tokenizer {name} makes no tokens of the {what}")
        answer = [*answer, end]
        floor = min(len(prompt), max(1, max_length // 4))
        keep = max(floor, min(len(prompt), max_length - len(answer)))
        prompt = _end_of(prompt, keep, begin)
        answer = answer[: max_length - keep]
        yield [*prompt, *answer], [0] * len(prompt) + [1] * len(answer)


def _prompts(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Tokens of prompts, without what a tokenizer puts at a text's end: the answer is what follows."""
    closing = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
    rows = _ids(tokenizer(list(texts), return_attention_mask=False, verbose=False), tokenizer)
    return [row[: len(row) - (len(row) > 0 and row[-1] in closing)] for row in rows]


def _end_of(prompt: list[int], keep: int, begin: int | None) -> list[int]:
    """The last ``keep`` tokens; a begin token stays."""
    if keep >= len(prompt):
        return prompt
    return [prompt[0], *prompt[len(prompt) - keep + 1 :]] if prompt[0] == begin and keep > 1 else prompt[-keep:]


def _ids(given: Any, tokenizer: Any) -> list[list[int]]:
    try:
        ids: list[list[int]] = given["input_ids"]
    except (KeyError, TypeError, IndexError):
        raise ConfigError(f"{tokenizer_name(tokenizer)} gives no token numbers (input_ids)") from None
    return ids


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_tokenizer(tokenizer: Any, max_length: int, pair: bool, generative: bool) -> None:
    name = tokenizer_name(tokenizer)
    if not callable(tokenizer) or not hasattr(tokenizer, "model_max_length"):
        raise ConfigError(f"{name} is no tokenizer of transformers; name one as hf:NAME or by its folder")
    if max_length < _SMALLEST:
        raise ConfigError(f"max_length is {max_length}; a row needs at least {_SMALLEST} tokens")
    if max_length > tokenizer.model_max_length:
        raise ConfigError(
            f"max_length is {max_length}, and the model of the tokenizer {name} reads at most "
            f"{tokenizer.model_max_length} tokens"
        )
    if generative:
        if getattr(tokenizer, "eos_token_id", None) is None:
            raise ConfigError(
                f"the tokenizer {name} has no end token (eos_token), which ends an answer; take that of a causal "
                "language model"
            )
    elif max_length <= _added(tokenizer, pair) + pair:
        raise ConfigError(
            f"max_length is {max_length}; the tokenizer {name} adds {_added(tokenizer, pair)} tokens of its own to a "
            f"{'pair of texts' if pair else 'text'}, which leaves too little room"
        )


def _added(tokenizer: Any, pair: bool) -> int:
    """Special tokens of a row."""
    return int(tokenizer.num_special_tokens_to_add(pair=pair))


def _check_vocabulary(ids: npt.NDArray[np.int64], tokenizer: Any, vocab_size: int | None) -> None:
    if ids.size and int(ids.min()) < 0:
        raise ConfigError(f"the tokenizer {tokenizer_name(tokenizer)} gives the token number {int(ids.min())}")
    if vocab_size is not None and ids.size and int(ids.max()) >= vocab_size:
        raise ConfigError(
            f"the tokenizer {tokenizer_name(tokenizer)} gives the token number {int(ids.max())}, and the model's "
            f"vocabulary has {vocab_size}: take the model's own tokenizer"
        )
