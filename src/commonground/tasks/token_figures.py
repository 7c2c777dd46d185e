"""What a language model's answers are judged by beside whether they are exactly right: token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from commonground.devices import wide
from commonground.tasks.bounds import Bounds, Figures
from commonground.tasks.fine import Array, Counts, FineFigures, Owner, share, sums_of

__all__ = ["TokenFigures"]

_MOST = 700.0  # nats per token; e to more is infinite

Places = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class TokenFigures(FineFigures):
    """``perplexity`` (e to the mean negative log-likelihood of a token of the answers, given all before it) and
    ``token_accuracy`` (share of the tokens that are the likeliest), both over the tokens of a set, long answers
    counting more than short ones.

    Args:
        places: which places of a batch hold tokens, as :class:`~commonground.tasks.AnswerTokens` knows them.
    """

    names = ("perplexity", "token_accuracy")

    def __init__(self, places: Places) -> None:
        self._places = places

    def of_rows(self, output: Tensor, y: Tensor) -> dict[str, Array]:
        each, owner, _ = self._places(output, y)
        said, tokens = output[each], y[:, : output.shape[1]][each]
        loss = wide(F.cross_entropy(said, tokens, reduction="none"))
        values = {"nll": loss, "right": wide(said.argmax(1) == tokens), "tokens": torch.ones_like(loss)}
        empty = loss.new_zeros(len(y))
        return {name: empty.index_add(0, owner, value).cpu().numpy() for name, value in values.items()}

    def told(self, rows: Mapping[str, Array], owner: Owner, sets: int) -> tuple[Figures, Counts]:
        figures = _figures({name: sums_of(value, owner, sets) for name, value in rows.items()})
        return figures, {name: np.array(value.sum()) for name, value in rows.items()}

    def of_counts(self, counts: Counts) -> dict[str, float]:
        return {name: float(value) for name, value in _figures(counts).items()}

    def bounds(self, outputs: int) -> dict[str, Bounds]:
        return {"nll": Bounds(0), "right": Bounds(0), "tokens": Bounds(0)}


def _figures(sums: Counts) -> Figures:
    tokens = sums["tokens"]
    return {
        "perplexity": np.exp(np.minimum(share(sums["nll"], tokens), _MOST)),
        "token_accuracy": share(sums["right"], tokens),
    }
