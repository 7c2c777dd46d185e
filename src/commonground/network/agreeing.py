"""The server's side of agreeing on tables: two or three questions to all clients, before a run has an id."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel

from commonground.counted import counted
from commonground.data.described import Description, read_description
from commonground.data.tables.agree import (
    agreed_columns,
    agreed_readings,
    check_statistics,
    said_of_classes,
    too_many,
)
from commonground.data.tables.told import Agreed, Columns, Statistics, StatisticsRequest, read_told
from commonground.errors import CommonGroundError, RunError, UpdateError
from commonground.network.post import Letter, NoAnswerError, Post, said_of
from commonground.quoting import quoted

__all__ = ["agree_on_tables"]


def agree_on_tables(
    post: Post,
    tables: Mapping[int, Columns],
    seconds: float,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[Agreed, list[Description]]:
    """What the columns of all clients' tables become, and what data these then are.

    Args:
        post: carries letters.
        tables: what each node has said of its own, in the clients' order.
        seconds: how long is waited for an answer.
        note: hears what has been agreed on.

    Raises:
        RunError: they cannot agree, or one does not answer as it should; names clients and column.
    """

    def ask(kind: str, said: BaseModel) -> dict[int, bytes]:
        letter = Letter(kind, "", said.model_dump_json().encode())
        found = dict.fromkeys(tables, b"")
        for node, answer in post.exchange(dict.fromkeys(tables, letter), seconds):
            told = said_of(answer, letter)
            if isinstance(told, NoAnswerError):
                raise RunError(
                    f"client {quoted(tables[node].name)} has not answered while the clients agreed on their tables: "
                    f"{told}; when it is there again, start the run again"
                )
            if isinstance(told, UpdateError):
                raise RunError(f"client {quoted(tables[node].name)} does not agree on its table: {told}")
            found[node] = told
        return found

    def statistics(asked: StatisticsRequest) -> list[Statistics]:
        found = []
        for node, body in ask("tell", asked).items():
            try:
                told = read_told(Statistics, body)
                check_statistics(told, asked, tables[node].train)
            except CommonGroundError as error:
                raise RunError(f"client {quoted(tables[node].name)} cannot take part: {error}") from None
            found.append(told)
        return found

    clients = list(tables.values())
    columns, dropped = agreed_readings(clients)
    told = statistics(StatisticsRequest(columns=columns))
    if many := too_many(columns, told):
        told = statistics(StatisticsRequest(columns=columns, counted=many))
    agreed = agreed_columns(clients, columns, dropped, told)
    descriptions = [_of(tables[node].name, body) for node, body in ask("agree", agreed).items()]
    left = "".join(f"; left out: {quoted(name)} ({why})" for name, why in list(agreed.dropped.items())[:5])
    columns_of = f"{counted(len(agreed.features), 'column')} make{'s' if len(agreed.features) == 1 else ''}"
    note(f"the clients' tables: {columns_of} {counted(len(agreed.mean), 'input')}{left}")
    if said := said_of_classes(clients, agreed):
        note(said)
    return agreed, descriptions


def _of(name: str, body: bytes) -> Description:
    told = read_description(body)
    if told.name != name:
        raise RunError(f"client {quoted(name)} now calls itself {quoted(told.name)}")
    return told
