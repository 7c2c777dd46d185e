"""What is asked of the service and what it answers, as JSON."""

# Pydantic reads the annotations: they are evaluated here, not later.

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from commonground.data.tables.cells import EXACT

__all__ = ["Added", "Examples", "Health", "Predictions", "RowsBody", "Said", "Utf8Route"]

MOST_ROWS = 10_000


def _exact(cell: Any) -> Any:
    if isinstance(cell, int) and abs(cell) > EXACT:
        raise ValueError("a whole number beyond 2^53 loses digits: an identifier is written as text")
    return cell


Cell = Annotated[str | int | float | bool | None, BeforeValidator(_exact)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RowsBody(_Strict):
    """Rows to be judged: objects by column name for tables, lists of numbers otherwise."""

    rows: list[dict[str, Cell] | list[Any]] = Field(min_length=1, max_length=MOST_ROWS)


class _Utf8Request(Request):
    """A request whose JSON is UTF-8; Python would read UTF-16 and UTF-32 as well."""

    async def json(self) -> Any:
        """The body.

        Raises:
            HTTPException: it is no UTF-8.
        """
        try:
            text = (await self.body()).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise HTTPException(400, "the body is no UTF-8") from None
        return json.loads(text)


class Utf8Route(APIRoute):
    """A door that takes JSON in UTF-8 alone."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See FastAPI: what answers a request."""
        answer = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            return await answer(_Utf8Request(request.scope, request.receive))

        return read_strictly


class Said(BaseModel):
    """What the client's own model says of a row; notes of cells that are read as none, are empty where none was, or lie
    far outside what training rows had.
    """

    answer: str
    values: dict[str, float]
    notes: list[str] = []


class Predictions(BaseModel):
    """An answer for each row, in their order."""

    client: str
    predictions: list[Said]


class Examples(_Strict):
    """A new client's rows with their targets."""

    client: str = Field(min_length=1, max_length=200)
    rows: list[dict[str, Cell]] = Field(min_length=1, max_length=MOST_ROWS)


class Added(BaseModel):
    """A client that was added: its token, told once, and how well its head does on the last quarter of its rows."""

    client: str
    token: str
    metric: str
    value: float | None


class Health(BaseModel):
    """Whether the service answers, and for whom."""

    status: str
    version: str
    clients: int
    columns: list[str]
