"""A post in one process, and clients behind desks, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from commonground.data import FederatedDataset
from commonground.data.own_table import OwnTable
from commonground.data.part import part_of
from commonground.errors import UpdateError
from commonground.network import Answering
from commonground.network.desk import Desk
from commonground.network.post import Letter

__all__ = ["Spoil", "Town"]

Spoil = Callable[[int, Letter, Letter], Letter | UpdateError]


class InTurn(Answering):
    """Clients of one process share its random generator, which those of several do not."""

    lock = threading.Lock()

    def begin(self, text: bytes) -> bytes:
        with self.lock:
            return super().begin(text)

    def ask(self, run: str, message: bytes) -> bytes:
        with self.lock:
            return super().ask(run, message)

    def end(self, run: str, message: bytes) -> bytes:
        with self.lock:
            return super().end(run, message)


class Town:
    """A post in one process: a desk for each client; ``spoil`` may change or lose what a node answers."""

    def __init__(self, data: FederatedDataset | Sequence[OwnTable], folder: Path, tokenizer: str | None = None) -> None:
        self.tokenizer = tokenizer
        if isinstance(data, FederatedDataset):
            self.data: list[Any] = [part_of(data, [c]) for c in range(data.clients)]
            self.names = [data.client_name(c) for c in range(data.clients)]
        else:
            self.data, self.names = list(data), [table.columns.name for table in data]
        self.folders = [folder / f"client-{c}" for c in range(len(self.data))]
        self.desks = {100 + c: self._desk(c) for c in range(len(self.data))}
        self.letters: list[tuple[int, Letter, Letter]] = []
        self.spoil: Spoil = lambda node, asked, answer: answer
        self._tags = count()

    def _desk(self, client: int) -> Desk[int]:
        return Desk(InTurn(self.data[client], self.names[client], self.folders[client], tokenizer=self.tokenizer))

    def restart(self, node: int) -> None:
        self.desks[node] = self._desk(node - 100)

    def nodes(self) -> Sequence[int]:
        return list(self.desks)

    def exchange(
        self, letters: Mapping[int, Letter], seconds: float, check_stop: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, Letter | UpdateError]]:
        asked = {node: next(self._tags) for node in letters}
        for node, letter in letters.items():
            self.desks[node].take(asked[node], letter)
        for node, letter in list(letters.items())[::-1]:
            tag = None
            while tag != asked[node]:  # an earlier answer is one that nobody waited for
                tag, answer = self.desks[node].answers.get(timeout=seconds)
            self.letters.append((node, letter, answer))
            yield node, self.spoil(node, letter, answer)
