"""Rows of tokens from texts: single texts or pairs to be classified, or prompts with answers to be learnt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from commonground.data.text.samples import TextSamples
from commonground.data.text.tokenizers import tokenizer_name
from commonground.errors import ConfigError, DataError

__all__ = ["ANSWERED_PROMPTS", "SEQUENCES", "Row", "RowMaker", "check_answering", "cut_prompt", "prompt_rows"]

SMALLEST = 3  # tokens of a row: what begins and ends it, and one of the text

Row = tuple[Sequence[int], Sequence[int]]
"""A row's tokens and their marks."""


class RowMaker(ABC):
    """How texts become rows, and what their marks are."""

    @abstractmethod
    def check(self, texts: TextSamples, tokenizer: Any, max_length: int) -> None:
        """Refuse texts, or a tokenizer, that such rows cannot be made of.

        Raises:
            ConfigError: the tokenizer lacks what is needed, or ``max_length`` leaves no room.
            DataError: the texts are of the wrong kind.
        """

    @abstractmethod
    def added(self, texts: TextSamples, tokenizer: Any) -> int:
        """Tokens that a row has whatever its text; one with no more has no text."""

    @abstractmethod
    def rows(self, texts: TextSamples, part: slice, tokenizer: Any, max_length: int) -> Iterator[Row]:
        """The rows of a part of the texts.

        Raises:
            DataError: a text gives no tokens.
        """


class Sequences(RowMaker):
    """Texts or pairs with the tokenizer's own special tokens; the marks are segments."""

    def check(self, texts: TextSamples, tokenizer: Any, max_length: int) -> None:
        """See :meth:`RowMaker.check`."""
        _check_length(tokenizer, max_length)
        pair, added = texts.second is not None, self.added(texts, tokenizer)
        if max_length <= added + pair:
            raise ConfigError(
                f"max_length is {max_length}; the tokenizer {tokenizer_name(tokenizer)} adds {added} tokens of its own "
                f"to a {'pair of texts' if pair else 'text'}, which leaves too little room"
            )

    def added(self, texts: TextSamples, tokenizer: Any) -> int:
        """See :meth:`RowMaker.added`: its special tokens."""
        return int(tokenizer.num_special_tokens_to_add(pair=texts.second is not None))

    def rows(self, texts: TextSamples, part: slice, tokenizer: Any, max_length: int) -> Iterator[Row]:
        """See :meth:`RowMaker.rows`."""
        second = None if texts.second is None else list(texts.second[part])
        given = tokenizer(
            list(texts.first[part]), second, truncation=True, max_length=max_length, return_attention_mask=False
        )
        ids = _ids(given, tokenizer)
        segments = given.get("token_type_ids") or [[0] * len(row) for row in ids]
        yield from zip(ids, segments, strict=True)


class AnsweredPrompts(RowMaker):
    """Prompts with their answers and the end token; the mark says whether a token is the answer's."""

    def check(self, texts: TextSamples, tokenizer: Any, max_length: int) -> None:
        """See :meth:`RowMaker.check`."""
        if texts.second is None:
            raise DataError(f"{texts.origin}: a language model needs prompts and answers, and there are single texts")
        check_answering(tokenizer, max_length)

    def added(self, texts: TextSamples, tokenizer: Any) -> int:
        """See :meth:`RowMaker.added`: prompts and answers are looked at one by one."""
        return 0

    def rows(self, texts: TextSamples, part: slice, tokenizer: Any, max_length: int) -> Iterator[Row]:
        """See :meth:`RowMaker.rows`."""
        first, second = list(texts.first[part]), list((texts.second or ())[part])
        end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
        prompts = prompt_rows(first, tokenizer)
        answers = _ids(
            tokenizer(second, add_special_tokens=False, return_attention_mask=False, verbose=False), tokenizer
        )
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True), part.start):
            if not prompt or not answer:
                what = "answer" if prompt else "prompt"
                name = tokenizer_name(tokenizer)
                raise DataError(f"{texts.where(row)}: the tokenizer {name} makes no tokens of the {what}")
            answer = [*answer, end]
            floor = min(len(prompt), max(1, max_length // 4))
            keep = max(floor, min(len(prompt), max_length - len(answer)))
            prompt = cut_prompt(prompt, keep, begin)
            answer = answer[: max_length - keep]
            yield [*prompt, *answer], [0] * len(prompt) + [1] * len(answer)


SEQUENCES, ANSWERED_PROMPTS = Sequences(), AnsweredPrompts()


def prompt_rows(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Tokens of prompts, without what a tokenizer puts at a text's end: the answer is what follows."""
    closing = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
    rows = _ids(tokenizer(list(texts), return_attention_mask=False, verbose=False), tokenizer)
    return [row[: len(row) - (len(row) > 0 and row[-1] in closing)] for row in rows]


def cut_prompt(prompt: list[int], keep: int, begin: int | None) -> list[int]:
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


def check_answering(tokenizer: Any, max_length: int) -> None:
    """Refuse a tokenizer that no language model's answers can be made with.

    Raises:
        ConfigError: it has no end token, or ``max_length`` leaves no room.
    """
    _check_length(tokenizer, max_length)
    if getattr(tokenizer, "eos_token_id", None) is None:
        raise ConfigError(
            f"the tokenizer {tokenizer_name(tokenizer)} has no end token (eos_token), which ends an answer; take that "
            "of a causal language model"
        )


def _check_length(tokenizer: Any, max_length: int) -> None:
    name = tokenizer_name(tokenizer)
    if not callable(tokenizer) or not hasattr(tokenizer, "model_max_length"):
        raise ConfigError(f"{name} is no tokenizer of transformers; name one as hf:NAME or by its folder")
    if max_length < SMALLEST:
        raise ConfigError(f"max_length is {max_length}; a row needs at least {SMALLEST} tokens")
    if max_length > tokenizer.model_max_length:
        raise ConfigError(
            f"max_length is {max_length}, and the model of the tokenizer {name} reads at most "
            f"{tokenizer.model_max_length} tokens"
        )
