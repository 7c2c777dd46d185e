"""Why a request is not answered: one sentence, which tells nothing of the host."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from commonground.errors import BusyError, CommonGroundError, ModelError, RunError
from commonground.quoting import escaped, quoted

__all__ = ["REFUSALS", "refuse_in_sentences"]

logger = logging.getLogger(__name__)


class Refused(BaseModel):
    """Why a request was not answered, in a sentence."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refused, "description": "bytes that are no UTF-8"},
    401: {"model": Refused, "description": "no token, or one that was never given out"},
    403: {"model": Refused, "description": "a token for something else"},
    413: {"model": Refused, "description": "too long a request"},
    415: {"model": Refused, "description": "a body that is not said to be JSON"},
    422: {"model": Refused, "description": "rows of another form, in a sentence"},
    500: {"model": Refused, "description": "the model or the service fails"},
    503: {"model": Refused, "description": "the tokens or the run of this service cannot be read"},
}


def refuse_in_sentences(app: FastAPI) -> None:
    """Whatever a service raises becomes a status and a sentence."""

    @app.exception_handler(RequestValidationError)
    async def not_the_form(request: Request, error: RequestValidationError) -> JSONResponse:
        kind = request.headers.get("content-type", "")
        if "json" not in kind.lower():  # as curl sends it, which then is read as a text
            return JSONResponse({"detail": "send the header Content-Type: application/json"}, 415)
        return JSONResponse({"detail": escaped(_not_the_form(error.errors()[0])[:400])}, 422)

    @app.exception_handler(CommonGroundError)
    async def refused(request: Request, error: CommonGroundError) -> JSONResponse:
        return JSONResponse({"detail": str(error)[:1000]}, 422)

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> JSONResponse:
        said = "another process is at work on the run of this service; try again in a while"
        return JSONResponse({"detail": said}, 503, {"Retry-After": "10"})

    @app.exception_handler(RunError)
    async def not_this_run(request: Request, error: RunError) -> JSONResponse:
        logger.error("%s", error)  # its sentence names a folder of this host
        said = "the run of this service cannot be read, or has gone on; whoever runs the service finds why in its log"
        return JSONResponse({"detail": said}, 503)

    @app.exception_handler(ModelError)
    async def model_fails(request: Request, error: ModelError) -> JSONResponse:
        logger.error("%s", error)  # its sentence names files of this host
        said = "the model fails on these rows; whoever runs the service finds why in its log"
        return JSONResponse({"detail": said}, 500)

    @app.exception_handler(Exception)  # which the server logs
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": "the service fails; whoever runs it finds why in its log"}, 500)

    @app.exception_handler(StarletteHTTPException)
    async def unread(request: Request, error: StarletteHTTPException) -> Response:
        if isinstance(error.__cause__, RecursionError):  # FastAPI calls it bytes that are no JSON
            return JSONResponse({"detail": "the body is nested too deeply"}, 422)
        return await http_exception_handler(request, error)


def _not_the_form(error: Mapping[str, Any]) -> str:
    """What is wrong with a body, by the first of Pydantic's errors; its words name types of Python where rows are."""
    place = [part for part in error["loc"][1:] if not str(part).startswith("dict[str,")]
    if error["type"] == "json_invalid":
        return f"the body is no JSON: {error['ctx']['error']}"
    if len(place) < 2 or place[0] != "rows":
        field = quoted(".".join(map(str, place)))
        said = {
            "extra_forbidden": f"{field} is no field of this request",
            "missing": f"the body lacks the field {field}" if place else "there is no body",
            "too_short": f"{field} is empty; at least one is needed",
            "too_long": f"{field} holds more than the {error.get('ctx', {}).get('max_length', 0):,} of one request",
            "model_attributes_type": "the body is no object; one with the field 'rows' is needed",
        }
        return said.get(error["type"], f"{field if place else 'the body'}: {error['msg']}")
    row, column = f"row {place[1] + 1}", place[2:3]
    if not column or column == ["list[any]"]:
        return f"{row} is no object of cells by their columns' names"
    where = f"{row}, column {quoted(str(column[0]))}"
    if error["type"] == "value_error":
        return f"{where}: {error['msg'].removeprefix('Value error, ')}"
    return f"{where}: a cell is a text, a finite number, true, false or null"
