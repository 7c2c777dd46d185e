"""The service's doors: health, metrics, prediction, new clients, and a page to try them."""

# Annotations are evaluated here, not later: the doors' name what make_app itself makes.

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from commonground.engine.state.tokens import ENROL, Enrolment, Tokens
from commonground.errors import RunError
from commonground.serve.bodies import Added, Examples, Health, Predictions, RowsBody, Said, Utf8Route
from commonground.serve.models import RunModels
from commonground.serve.page import page
from commonground.serve.refusals import REFUSALS, refuse_in_sentences

__all__ = ["make_app"]

MOST_BYTES = 16 * 1024 * 1024
MOST_DISCARDED, SECONDS_TO_DISCARD = 8 * MOST_BYTES, 5


def make_app(models: RunModels, tokens: Tokens) -> FastAPI:
    """The service of a run as an ASGI application.

    Every client asks with a token of its own and is answered by its own model alone; which client that is, is in the
    token, not in the request.

    Args:
        models: of the run.
        tokens: given out for it.
    """
    app = FastAPI(title="CommonGround", version=version("commonground"), docs_url=None, redoc_url=None)
    app.router.route_class = Utf8Route
    refuse_in_sentences(app)
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

    async def refused(request: Request) -> Response | None:
        """The answer to a request whose body is not read: it is too long, or nobody's who has a token."""
        length = request.headers.get("content-length", "")
        if not (length.isdecimal() and int(length) <= MOST_BYTES):
            return JSONResponse({"detail": f"a body of known length, at most {MOST_BYTES:,} bytes"}, 413)
        try:
            if request.url.path.startswith("/v1/"):
                await run_in_threadpool(asker, await bearer(request))
        except HTTPException as error:
            return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        return None

    @app.middleware("http")
    async def watched(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        try:
            response = await refused(request) if request.method == "POST" else None
            if response is None:
                response = await call_next(request)
            elif _may_be_discarded(request):
                with suppress(TimeoutError, ClientDisconnect):
                    await asyncio.wait_for(_discard(request), SECONDS_TO_DISCARD)
        except Exception:  # whose answer is made further out
            count(request, 500, began)
            raise
        count(request, response.status_code, began)
        return response

    def count(request: Request, status: int, began: float) -> None:
        asked = request.url.path  # also of one that no route has seen, being refused before
        path = asked if any(asked == getattr(route, "path", "") for route in app.routes) else "other"
        requests.labels(path, str(status)).inc()
        seconds.labels(path).observe(time.perf_counter() - began)

    @app.get("/health")
    def health() -> Health:
        """Whether the service answers."""
        models.heed_others()
        count = len(models.run.trained.known.names)
        return Health(status="ok", version=version("commonground"), clients=count, columns=models.columns)

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        """Counts and times, as Prometheus reads them."""
        return generate_latest(registry).decode()

    @app.get("/", response_class=HTMLResponse)
    def home() -> str:
        """A page to try the service."""
        return page(models.rows.example)

    @app.post("/v1/predict", responses=REFUSALS, response_model_exclude_unset=True)
    async def predict(body: RowsBody, client: Annotated[str, Depends(client_of)], request: Request) -> Predictions:
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


def _may_be_discarded(request: Request) -> bool:
    """Whether a body that is refused is short enough to be read all the same, and its sender does not wait to be asked
    for it.
    """
    length = request.headers.get("content-length", "")
    return length.isdecimal() and int(length) <= MOST_DISCARDED and "expect" not in request.headers


async def _discard(request: Request) -> None:
    """Read a body that is refused: many clients send all of it before they read, and would find the connection reset in
    place of the answer.
    """
    async for _ in request.stream():
        pass
