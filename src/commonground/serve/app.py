"""The service's doors: health, metrics, prediction, new clients, and a page to try them."""

# Annotations are evaluated here, not later: the doors' name what make_app itself makes.

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from commonground.errors import BusyError, CommonGroundError, RunError
from commonground.quoting import escaped, quoted
from commonground.serve.models import RunModels
from commonground.serve.page import page
from commonground.serve.tokens import ENROL, Enrolment, Tokens

__all__ = ["make_app"]

logger = logging.getLogger(__name__)

MOST_ROWS = 10_000
MOST_BYTES = 16 * 1024 * 1024
MOST_DISCARDED, SECONDS_TO_DISCARD = 8 * MOST_BYTES, 5

# Whole numbers that a float holds exactly: a longer one in a table is an identifier, which is written as text.
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
Cell = str | Whole | float | bool | None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Rows(_Strict):
    """Rows to be judged: objects by column name for tables, lists of numbers otherwise."""

    rows: list[dict[str, Cell] | list[Any]] = Field(min_length=1, max_length=MOST_ROWS)


class Said(BaseModel):
    """What the client's own model says of a row; notes only of cells that are read as none."""

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


class Refused(BaseModel):
    """Why a request was not answered, in a sentence."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refused, "description": "bytes that are no JSON"},
    401: {"model": Refused, "description": "no token, or one that was never given out"},
    403: {"model": Refused, "description": "a token for something else"},
    413: {"model": Refused, "description": "too long a request"},
    415: {"model": Refused, "description": "a body that is not said to be JSON"},
    422: {"model": Refused, "description": "rows of another form, in a sentence"},
    503: {"model": Refused, "description": "the tokens or the run of this service cannot be read"},
}


def make_app(models: RunModels, tokens: Tokens) -> FastAPI:
    """The service of a run as an ASGI application.

    Every client asks with a token of its own and is answered by its own model alone; which client that is, is in the
    token, not in the request.

    Args:
        models: of the run.
        tokens: given out for it.
    """
    app = FastAPI(title="CommonGround", version=version("commonground"), docs_url=None, redoc_url=None)
    registry = CollectorRegistry()
    requests = Counter("commonground_requests", "Requests by path and status.", ["path", "status"], registry=registry)
    seconds = Histogram("commonground_seconds", "Seconds from request to answer.", ["path"], registry=registry)
    rows_seen = Counter("commonground_rows", "Rows that were judged.", registry=registry)
    bearer = HTTPBearer(auto_error=False, description="a token of `commonground serve RUN --token-for CLIENT`")

    def asker(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> str | Enrolment:
        try:
            whose = None if given is None else tokens.whose(given.credentials)
        except RunError:  # its sentence names a file of this host, which is nothing to tell everybody
            raise HTTPException(503, "the tokens of this service cannot be read") from None
        if whose is None:
            raise HTTPException(401, "a valid token is needed", {"WWW-Authenticate": "Bearer"})
        return whose

    def client_of(whose: Annotated[str | Enrolment, Depends(asker)]) -> str:
        if isinstance(whose, Enrolment):
            raise HTTPException(403, "this token adds clients; a client's own is needed")
        return whose

    def enrolling(whose: Annotated[str | Enrolment, Depends(asker)]) -> None:
        if whose is not ENROL:
            raise HTTPException(403, "this token is a client's; one that adds clients is needed")

    @app.middleware("http")
    async def watched(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not (length.isdecimal() and int(length) <= MOST_BYTES):
            if length.isdecimal() and int(length) <= MOST_DISCARDED and "expect" not in request.headers:
                with suppress(TimeoutError, ClientDisconnect):
                    await asyncio.wait_for(_discard(request), SECONDS_TO_DISCARD)
            response: Response = JSONResponse({"detail": f"a body of known length, at most {MOST_BYTES:,} bytes"}, 413)
        else:
            response = await call_next(request)
        route = request.scope.get("route")
        path = str(getattr(route, "path", "other"))
        requests.labels(path, str(response.status_code)).inc()
        seconds.labels(path).observe(time.perf_counter() - began)
        return response

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

    @app.exception_handler(StarletteHTTPException)
    async def unread(request: Request, error: StarletteHTTPException) -> Response:
        if isinstance(error.__cause__, RecursionError):  # FastAPI calls it bytes that are no JSON
            return JSONResponse({"detail": "the body is nested too deeply"}, 422)
        return await http_exception_handler(request, error)

    @app.get("/health")
    def health() -> Health:
        """Whether the service answers."""
        models.heed_others()
        count = len(models.run.trained.names)
        return Health(status="ok", version=version("commonground"), clients=count, columns=models.columns)

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        """Counts and times, as Prometheus reads them."""
        return generate_latest(registry).decode()

    @app.get("/", response_class=HTMLResponse)
    def home() -> str:
        """A page to try the service."""
        return page(models.columns)

    @app.post("/v1/predict", responses=REFUSALS, response_model_exclude_unset=True)
    async def predict(body: Rows, client: Annotated[str, Depends(client_of)], request: Request) -> Predictions:
        """What the asking client's own model says of rows."""
        answers = await models.asked(client, body.rows, int(request.headers["content-length"]))
        rows_seen.inc(len(answers))
        said = [
            Said(answer=a.answer, values=a.values, **({"notes": list(a.notes)} if a.notes else {})) for a in answers
        ]
        return Predictions(client=client, predictions=said)

    @app.post("/v1/clients", responses=REFUSALS, status_code=201, dependencies=[Depends(enrolling)])
    async def add(body: Examples) -> Added:
        """Add a client from examples, with a head of its own on the run's body."""
        kept = await run_in_threadpool(models.add, body.client, body.rows)
        metric = models.run.trained.task.metric
        value = kept.mean if kept.mean == kept.mean else None
        try:
            token = await run_in_threadpool(tokens.issue, body.client)
        except RunError:  # as in `asker`
            raise HTTPException(
                503, "the client is there now, but its token cannot be kept; whoever runs the service can give one out"
            ) from None
        return Added(client=body.client, token=token, metric=metric, value=value)

    return app


def _not_the_form(error: Mapping[str, Any]) -> str:
    """What is wrong with a body, by the first of Pydantic's errors; its words name types of Python where rows are."""
    place = [part for part in error["loc"][1:] if not str(part).startswith("dict[str,")]
    if error["type"] == "json_invalid":
        return f"the body is no JSON: {error['ctx']['error']}"
    if len(place) < 2 or place[0] != "rows":
        return f"{'.'.join(map(str, place)) or 'the body'}: {error['msg']}"
    row, column = f"row {place[1] + 1}", place[2:3]
    if not column or column == ["list[any]"]:
        return f"{row} is no object of cells by their columns' names"
    return f"{row}, column {quoted(str(column[0]))}: a cell is a text, a finite number, true, false or null"


async def _discard(request: Request) -> None:
    """Read a body that is refused: many clients send all of it before they read, and would find the connection reset in
    place of the answer.
    """
    async for _ in request.stream():
        pass
