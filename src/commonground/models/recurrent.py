"""FedRep's network for tweets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commonground.data.directory import data_directory
from commonground.data.glove import GLOVE, read_glove
from commonground.errors import ModelError

__all__ = ["LSTM"]


class LSTM(nn.Module):
    """Frozen word vectors, an LSTM and two linear layers (Collins et al. 2021, App. A.2, for Sent140).

    The inputs are numbers of words [rows, words] (see the data set ``sent140``); the LSTM runs over the words of each
    tweet, so its input is [rows, words, 300]. (The authors' code reshapes where it should transpose, which mixes the
    words of different tweets.) The head is the last linear layer; LG-FedAvg's local part is the LSTM.

    Args:
        shape: one sample's shape: (words,).
        classes: number of classes.
        embedding: the word vectors' file; by default ``sent140/glove.6B.300d.txt`` in the data folder.
        hidden: width of the LSTM's state.
        decoder: width of the first linear layer.
    """

    groups: Mapping[str, Sequence[str]] = {"head": ["head"], "lower": ["lstm"]}
    table: Tensor

    def __init__(
        self, shape: Sequence[int], classes: int, embedding: str = "", hidden: int = 100, decoder: int = 64
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise ModelError(f"the model 'lstm' needs samples of word numbers as (words,), not of shape {tuple(shape)}")
        path = Path(embedding) if embedding else data_directory() / GLOVE
        _, vectors = read_glove(path)
        unknown = torch.zeros(1, vectors.shape[1])
        # Not a parameter and not persistent: everybody has the file, so it neither trains nor travels.
        self.register_buffer("table", torch.cat([unknown, torch.from_numpy(vectors)]), persistent=False)
        self.lstm = nn.LSTM(vectors.shape[1], hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, decoder)
        self.head = nn.Linear(decoder, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        """Logits [rows, classes] of word numbers [rows, words]."""
        try:
            words = F.embedding(numbers.long(), self.table)
        except IndexError:
            raise ValueError(f"a word has a number beyond the table's {len(self.table)} rows") from None
        _, (state, _) = self.lstm(words)
        logits: Tensor = self.head(torch.relu(self.decoder(state[-1])))
        return logits
