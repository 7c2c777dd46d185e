"""The clients that a run knows, by name and by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from commonground.data.names import numbered
from commonground.data.tables.split import FEW
from commonground.errors import ConfigError
from commonground.name_lists import plain_name
from commonground.quoting import quoted
from commonground.suggest import meant

__all__ = ["KnownClients"]

MOST_COMPARED = 20_000  # names that an unknown one is compared with; a million would take a minute


@dataclass(frozen=True, eq=False)
class KnownClients:
    """The clients that trained, numbered from 0 in their order, and after them those that were added later.

    Attributes:
        where: what to call the run in a message.
        trained: number of clients that trained.
        called: their names, empty where they have none but their numbers.
        added: names of the clients that were added later.
        few: of a table, the clients with too few rows to be clients (``clients``) and what became of them (``how``).
    """

    where: str
    trained: int
    called: Sequence[str] = field(default=(), repr=False)
    added: Sequence[str] = ()
    few: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def names(self) -> list[str]:
        """The names of all clients."""
        return [*(self.called or [str(c) for c in range(self.trained)]), *self.added]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Clients' numbers by name."""
        return numbered(self.names)

    @cached_property
    def _plain(self) -> dict[str, int]:
        """The same by names as tables have them, of which none is two clients'."""
        plain = [plain_name(name) for name in self.names]
        twice = Counter(plain)
        return {name: number for number, name in enumerate(plain) if twice[name] == 1}

    def find(self, name: str) -> int | None:
        """The number of the client of a name, whichever way its letters with marks are written (``ö`` is one character
        or two); None if there is none.
        """
        number = self._numbers.get(name)
        return self._plain.get(plain_name(name)) if number is None else number

    @cached_property
    def _by_number(self) -> bool:
        """Whether a number may stand for a client that has a name: not where a name is a number, maybe another's."""
        return not any(name.isdecimal() for name in self.called)

    def for_people(self, client: int | None) -> str:
        """A client, ``client 4`` or ``client 'north'``; None is ``global``."""
        if client is None:
            return "global"
        name = self.names[client]
        return f"client {name if name == str(client) else quoted(name)}"

    def numbered(self, name: str) -> int | None:
        """The trained client that a name means by its number, if any; a new client cannot be called so."""
        plain = name.isdecimal() and (name == "0" or name[0] != "0")  # 007 is somebody's name
        number = int(name) if plain and self._by_number else self.trained
        return number if number < self.trained else None

    def number(self, name: str | int, *, by_number: bool = True) -> int:
        """A client's number, by its name, or by its number where no client has a number for its name. A number in words
        is that of a client that was trained: one that is added may be called so.

        Args:
            name: its name, or its number, which is whole and no text.
            by_number: whether a number will do.

        Raises:
            ConfigError: there is no such client; or a whole number is one client's name and another's number.
        """
        names, number = self.names, self.find(str(name))
        if number is None and by_number and not isinstance(name, str) and self._by_number:
            number = name if self.trained <= name < len(names) else None  # added to the run
        if number is not None:
            if not isinstance(name, str) and number != name and 0 <= name < self.trained:
                raise ConfigError(
                    f"in {self.where} {name} is the name of one client and the number of another, "
                    f"{quoted(names[name])}; give the name as a text: '{name}', or {quoted(names[name])}"
                )
            return number
        if by_number and (number := self.numbered(str(name))) is not None:
            return number
        if plain_name(str(name)) in map(plain_name, self.few.get("clients", ())):
            became = {
                "pool": f"trained with others of few rows as '{FEW}'",
                "shared": "took no part, having few rows: the global model serves it",
                "drop": "was left out, having few rows",
            }
            raise ConfigError(f"the client '{name}' of {self.where} {became[self.few['how']]}")
        near = meant(str(name), names[:MOST_COMPARED])
        raise ConfigError(
            f"{self.where} has no client '{name}'{near}; it has {len(names)}, from '{names[0]}' to '{names[-1]}'"
        )
