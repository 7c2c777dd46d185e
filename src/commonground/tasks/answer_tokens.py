"""Answers of a language model: the tokens that follow a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from commonground.errors import DataError, ModelError
from commonground.tasks.base import Array, Bounds, Task
from commonground.tasks.classification import Classification, class_numbers, largest_class
from commonground.tasks.token_figures import TokenFigures

__all__ = ["NO_TOKEN", "AnswerTokens", "answer_tokens"]

NO_TOKEN = -1


@dataclass(frozen=True)
class AnswerTokens(Task):
    """The tokens of an answer, each predicted from all that stand before it.

    Outputs are scores [rows, A, vocabulary] of the next token at the A places that an answer's tokens take, y their
    tokens [rows, A or more], −1 where a shorter answer has none. A row's loss is the mean negative log-likelihood of
    its tokens; ``accuracy`` is 1 where greedy decoding gives exactly the answer. The targets that a data set stores
    [N] are numbers of answers, which serve partitions alone; the tokens stand in the samples.
    """

    name = "answers"
    counted = "answers"
    generative = True

    def targets(self, values: Array, field: str) -> Array:
        return class_numbers(values, field)

    def neutral_targets(self, rows: int, outputs: int) -> Array:
        return np.zeros(rows, dtype=np.int64)

    def outputs(self, targets: Sequence[Array], name: str) -> int:
        return largest_class(targets, name) + 1

    def check_targets(self, name: str, split: str, targets: Array, outputs: int) -> None:
        Classification().check_targets(name, split, targets, outputs)

    def members(self, targets: Array, outputs: int) -> npt.NDArray[np.bool_]:
        return Classification().members(targets, outputs)

    def label_of(self, targets: Array) -> npt.NDArray[np.int64]:
        return targets

    def check(self, output: Tensor, outputs: int) -> None:
        if output.ndim != 3:
            raise ModelError(
                f"the model gives outputs of shape {tuple(output.shape[1:])}; answers need scores of tokens "
                "[places, vocabulary]"
            )

    def check_inputs(self, name: str, kind: str, samples: Array) -> None:
        if kind != "tokens":
            raise DataError(f"{name!r} is {samples.dtype}; a language model learns from int32 tokens")

    def describe(self, outputs: int, held: str) -> str:
        return super().describe(outputs, held) if outputs > 1 else ""  # a single one stands for "no kinds of answers"

    def target_reader(self, x_train: Array, x_test: Array, dtype: torch.dtype) -> Callable[[Array, Array], Tensor]:
        longest = max(int((x[:, 2:, 1] == 1).sum(1).max(initial=1)) for x in (x_train, x_test))
        return lambda samples, targets: torch.from_numpy(answer_tokens(samples, longest))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        # Of all places, those without a token at no loss: to choose places would be to wait for a device.
        y = y[:, : output.shape[1]]
        loss = F.cross_entropy(output.flatten(0, 1), y.flatten(), ignore_index=NO_TOKEN, reduction="none")
        owner = torch.arange(len(y), device=y.device).repeat_interleave(y.shape[1])
        whole = torch.zeros(len(y), dtype=loss.dtype, device=loss.device).index_add(0, owner, loss)
        return whole / (y != NO_TOKEN).sum(1).clamp(min=1)

    def scores(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        each, owner, _ = self._tokens(output, y)
        wrong = (output[each].argmax(1) != y[:, : output.shape[1]][each]).long()
        return {"accuracy": torch.zeros(len(y), dtype=torch.long, device=y.device).index_add(0, owner, wrong) == 0}

    def score_bounds(self, outputs: int) -> dict[str, Bounds]:
        return {"accuracy": Bounds(0, 1, whole=True)}

    @property
    def fine(self) -> TokenFigures:
        return TokenFigures(self._tokens)

    def interpret(self, output: Tensor) -> Tensor:
        raise ModelError("a language model is asked for texts, not for classes")

    def _tokens(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which places hold a token [rows, A], the row of each, and their number in every row (at least 1)."""
        each = y[:, : output.shape[1]] != NO_TOKEN
        return each, torch.nonzero(each)[:, 0], each.sum(1).clamp(min=1)


def answer_tokens(rows: Array, longest: int) -> npt.NDArray[np.int64]:
    """The tokens of the answers in token rows, [n, longest], padded with −1.

    A row's first token is never predicted, so it is no part of an answer even where it is marked.
    """
    marked, ids = rows[:, 2:, 1] == 1, rows[:, 2:, 0]
    tokens = np.full((len(rows), longest), NO_TOKEN, dtype=np.int64)
    row, place = np.nonzero(marked)
    tokens[row, (marked.cumsum(axis=1) - 1)[row, place]] = ids[row, place]
    return tokens
