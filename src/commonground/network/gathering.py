"""Before a run over a network: clients come, say what they have, and agree on what their tables' columns become."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import groupby

from commonground.config import RunConfig
from commonground.counted import counted
from commonground.data.described import Description, read_description
from commonground.data.tables.told import Agreed, Columns, read_told
from commonground.errors import CommonGroundError, DataError, RunError, UpdateError
from commonground.network.agreeing import agree_on_tables
from commonground.network.demands import unmet
from commonground.network.members import Members
from commonground.network.post import Letter, NoAnswerError, Post, json_of
from commonground.quoting import escaped, quoted

__all__ = ["TOLD_WITHIN", "RefusedError", "gather"]

TOLD_WITHIN = 5.0  # seconds for which it is waited for that clients have heard something
_PAUSE = 0.5  # seconds between two looks for nodes
_FIRST, _LONGEST = 4.0, 30.0  # seconds for their answers, while which others that come wait; doubled each time

_HELLO = Letter("hello", "", b"")


class RefusedError(RunError):
    """Clients take no part in a run that has not begun, because of what it is.

    Args:
        why: by node, with the client's name.
    """

    def __init__(self, why: Mapping[int, str]) -> None:
        super().__init__("; ".join(why.values()))
        self.why = dict(why)


def gather(
    post: Post,
    clients: int,
    seconds: float,
    note: Callable[[str], None] = lambda text: None,
    without: dict[int, str] | None = None,
    config: RunConfig | None = None,
) -> Members:
    """Wait until as many clients have said what they have.

    Args:
        post: carries letters.
        clients: how many; all that are there then take part.
        seconds: how long is waited.
        note: hears of each.
        without: nodes that take no part in the run, with why. Those whose owners demand more privacy are added.
        config: of the run; None if it is not known yet.

    Raises:
        RunError: too few have come, two have one name, or they cannot agree on what they have.
        RefusedError: as many as are waited for have come, and demand more privacy, all of them.
    """
    arrivals = _Arrivals(config, note, {} if without is None else without)
    until, window, said = time.monotonic() + seconds, _FIRST, -1
    while True:
        there = len(arrivals.told)
        if said != there:
            said, left = there, max(0.0, until - time.monotonic())
            note(f"waiting up to {left:.0f} s for {counted(clients, 'client')}; there: {there}")
        early, patience = list(arrivals.told), min(seconds, window)
        for node, answer in post.exchange(dict.fromkeys(arrivals.to_ask(post.nodes()), _HELLO), patience):
            arrivals.hear(node, answer)
        if len(arrivals.told) >= clients:
            for node, answer in post.exchange(dict.fromkeys(early, _HELLO), patience):
                arrivals.hear_again(node, answer)
            break
        if not arrivals.told and len(arrivals.turned_away) >= clients:
            raise RefusedError(arrivals.turned_away)
        if time.monotonic() > until:
            why = f" ({'; '.join(dict.fromkeys(arrivals.absent.values()))})" if arrivals.absent else ""
            raise _said_to(
                post, arrivals.told, f"{len(arrivals.told)} of {clients} clients have come within {seconds:g} s{why}"
            )
        window = min(2 * window, _LONGEST)
        time.sleep(_PAUSE)
    described, agreed = _agreed(post, arrivals.told, seconds, note)
    return Members(
        run=secrets.token_hex(16), nodes=tuple(described), descriptions=tuple(described.values()), table=agreed
    )


@dataclass
class _Arrivals:
    """Who has come to a run, and who has not.

    Attributes:
        config: of the run, if it is known.
        note: hears of each.
        without: nodes that take no part, with why; those of ``turned_away`` are added.
        told: what nodes that take part have.
        absent: why others do not, or not yet.
        turned_away: nodes whose owners demand more privacy than the run has. An owner may start his client anew with
            less: they are asked again now and then.
    """

    config: RunConfig | None
    note: Callable[[str], None]
    without: dict[int, str]
    told: dict[int, Description | Columns] = field(default_factory=dict)
    absent: dict[int, str] = field(init=False)
    turned_away: dict[int, str] = field(default_factory=dict)
    _ask_again: float = 0.0  # when

    def __post_init__(self) -> None:
        self.absent = dict(self.without)

    def to_ask(self, nodes: Iterable[int]) -> list[int]:
        """Of the nodes that are there, those of which it is to be heard what they have."""
        known = {*self.told, *self.without}
        if self.turned_away and time.monotonic() > self._ask_again:
            self._ask_again = time.monotonic() + _LONGEST
            known -= self.turned_away.keys()
        return [node for node in nodes if node not in known]

    def hear(self, node: int, answer: Letter | UpdateError) -> None:
        """What a node says of itself."""
        try:
            told = _described(answer)
        except CommonGroundError as error:
            if node in self.turned_away and isinstance(error, NoAnswerError):
                return  # it has said why it does not take part
            known, self.absent[node] = self.absent.get(node), str(error)
            if isinstance(error, NoAnswerError):
                if known is None:
                    self.note(f"node {node} has not answered yet; it is asked again")
            elif known != str(error):
                self.note(f"node {node} cannot take part: {error}")
            return
        if why := _takes_no_part(told, self.config):
            if self.turned_away.get(node) != why:
                self.note(why)
                self._ask_again = time.monotonic() + _LONGEST
            self.without[node] = self.absent[node] = self.turned_away[node] = why
            return
        for reasons in (self.without, self.absent, self.turned_away):
            reasons.pop(node, None)
        self.told[node] = told
        name, ours = escaped(told.name), version("commonground")
        self.note(f"client {name} is there: {told.train:,} training rows")
        if told.version not in ("", ours):
            self.note(f"client {name} has version {escaped(told.version)}, and the server {ours}")

    def hear_again(self, node: int, answer: Letter | UpdateError) -> None:
        """What a node says that was there early: it may have been started anew since, with other data. One that does
        not answer now is taken by what it said.
        """
        with suppress(CommonGroundError):
            told, before = _described(answer), self.told[node]
            if told != before:
                self.note(
                    f"client {escaped(told.name)}, which was {quoted(before.name)} with {before.train:,} training "
                    f"rows, has been started anew: {told.train:,} training rows"
                )
                self.told[node] = told


def _agreed(
    post: Post, found: Mapping[int, Description | Columns], seconds: float, note: Callable[[str], None]
) -> tuple[dict[int, Description], Agreed | None]:
    """What clients have, by node in the order of their names, and what the columns of their tables become.

    Raises:
        RunError: two have one name, or some have tables without a schema and others have not.
        CommonGroundError: their tables do not fit together.
    """
    told = {node: found[node] for node in sorted(found, key=lambda node: found[node].name)}
    for name, namesakes in groupby(told, lambda node: told[node].name):
        same = [str(node) for node in sorted(namesakes)]
        if len(same) > 1:
            need = "each needs a name of its own (--name)"
            # By a node's number the server's operator finds its key; the others need not know it.
            _tell(post, map(int, same), f"{counted(len(same), 'client')} call themselves {quoted(name)}; {need}")
            raise RunError(
                f"the clients of nodes {', '.join(same[:-1])} and {same[-1]} call themselves {quoted(name)}; {need}"
            )
    described = {node: one for node, one in told.items() if isinstance(one, Description)}
    tables = {node: one for node, one in told.items() if isinstance(one, Columns)}
    if not tables:
        return described, None
    if described:
        raise _said_to(
            post,
            told,
            f"client {quoted(next(iter(tables.values())).name)} has a table without a schema, and client "
            f"{quoted(next(iter(described.values())).name)} has arrays or a table with one; start all with the same "
            "--schema, which those with --demand-dp need, or none",
        )
    try:
        agreed, descriptions = agree_on_tables(post, tables, seconds, note)
    except CommonGroundError as error:
        _tell(post, tables, str(error))
        raise
    return dict(zip(tables, descriptions, strict=True)), agreed


def _takes_no_part(told: Description | Columns, config: RunConfig | None) -> str:
    """Why a client is not to be waited for, if what it says of itself is enough to know it; else empty."""
    if config is None or not isinstance(told, Description):
        return ""
    # Noise that follows from a wanted ε is found later; whether it is enough the client says then.
    known = config if config.dp_noise is not None else config.model_copy(update={"dp_noise": math.inf})
    why = unmet(told.demand, told.least_noise, known)
    return f"client {quoted(told.name)} takes no part in this run, and says {quoted(why, 300)}" if why else ""


def _said_to(post: Post, nodes: Collection[int], text: str) -> RunError:
    """Why there is no run, told to clients as well: their owners are the ones who can do something about it."""
    _tell(post, nodes, text)
    return RunError(text)


def _tell(post: Post, nodes: Iterable[int], text: str) -> None:
    """Tell clients why there is no run."""
    for _ in post.exchange(dict.fromkeys(nodes, Letter("told", "", text.encode())), TOLD_WITHIN):
        pass


def _described(answer: Letter | UpdateError) -> Description | Columns:
    if isinstance(answer, UpdateError):
        raise answer
    if answer.kind != "ok":
        raise DataError(f"it says {answer.kind!r}")
    said = json_of(answer.body)
    if isinstance(said, UpdateError):
        raise said
    with suppress(ValueError, RecursionError):
        if "columns" in dict(json.loads(answer.body)):
            return read_told(Columns, answer.body)
    return read_description(answer.body)
