"""The part of the campaign that lies: to the server in answers, and to clients in messages.

Honest runs are listened to once. Each try takes one of their messages or answers, bends it (``lies.py``) and hands it
to who it is for, with the client's folder as it was. It holds if an UpdateError of one sentence names client and round
and the folder is as before; or if it was taken and changed nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from commonground import FederatedDataset, train
from commonground.engine.backends.base import Engine
from commonground.engine.backends.checks import settle
from commonground.engine.backends.fine_answers import fine_tensors
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import unpack
from commonground.engine.setup import Setup
from commonground.errors import UpdateError
from tests.campaign.common import Tally, drawn, tries
from tests.campaign.lies import lies_of
from tests.helpers import SMALL, engines_changed, made_data
from tests.other_tasks import multilabel_data, regression_data

__all__ = ["Exchange", "campaign", "exchanges", "honest", "outcome"]

Deliver = Callable[[int, bytes], bytes]
ANSWERS = {"train": "trained", "reply": "kept", "evaluate": "tested", "digest": "digested"}


@dataclass(frozen=True)
class Exchange:
    """One message of an honest run and its answer.

    Attributes:
        title: of the run.
        setup: of the run.
        client, kind, round: whose, of what and of which round.
        message, answer: as they travelled.
        files: of the client's folder before, by name.
    """

    title: str
    setup: Setup
    client: int
    kind: str
    round: int
    message: bytes
    answer: bytes
    files: dict[str, bytes]

    @property
    def name(self) -> str:
        """The client's, as sentences call it."""
        return self.setup.data.client_name(self.client)

    def sides(self) -> list[tuple[str, bytes]]:
        """What travelled to the client, and what to the server, by kind."""
        return [(self.kind, self.message), (ANSWERS[self.kind], self.answer)]


RUNS: list[tuple[str, Callable[[], FederatedDataset], dict[str, Any]]] = [
    ("fedavg", lambda: made_data(client_names=("ann", "bob", "cid", "dan")), {"weighting": "samples"}),
    ("fedrep", made_data, {}),
    ("scaffold", made_data, {}),
    ("flute", made_data, {}),
    ("l2gd", made_data, {"options": {"p": 0.9}}),
    ("fedmtl", made_data, {"options": {"omega": "learned"}}),
    ("ffa-lora", made_data, {"model": "mlp"}),
    ("flora", made_data, {"options": {"ranks": "1,2"}}),
    ("flexlora", made_data, {"options": {"ranks": "1,2"}}),
    ("fedproto", made_data, {}),
    ("feddyn", made_data, {}),
    ("ditto", lambda: regression_data((3, 4, 12)), {"lr": 0.01}),
    ("fedper", lambda: multilabel_data(3), {}),
    ("fedavg", made_data, {"finetune_epochs": 1}),
]


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))} if folder.is_dir() else {}


@cache
def exchanges() -> list[Exchange]:
    """Messages and answers of short honest runs."""
    found: list[Exchange] = []
    for method, data, settings in RUNS:

        def listen(engine: Engine, title: str = f"{method} {settings}") -> None:
            assert isinstance(engine, MessageEngine)
            deliver = engine.deliver

            def heard(client: int, message: bytes) -> bytes:
                files = files_in(engine.folder / f"client-{client}")
                answer, fields = deliver(client, message), unpack(message)[0]
                kind, round = fields["kind"], fields["round"]
                found.append(Exchange(title, engine.setup, client, kind, round, message, answer, files))
                return answer

            engine.deliver = heard

        values = {"model": "mlp", "model_options": {"hidden": (6, 5)}, **SMALL, "engine": "messages", **settings}
        with engines_changed(listen):
            train(method, data(), **values)
    return found


@contextmanager
def engine_of(exchange: Exchange) -> Iterator[MessageEngine]:
    """The server of an exchange, and its client's folder as it was."""
    with tempfile.TemporaryDirectory(prefix="commonground-lies-") as folder:
        place = Path(folder) / f"client-{exchange.client}"
        place.mkdir()
        for name, content in exchange.files.items():
            (place / name).write_bytes(content)
        engine = MessageEngine(exchange.setup, Path(folder))
        engine._round = exchange.round
        yield engine


def outcome(engine: MessageEngine, exchange: Exchange) -> dict[str, Any]:
    """What the server takes from the exchange, as plain numbers and bytes."""
    client, round, fields = exchange.client, exchange.round, unpack(exchange.message)[0]
    if exchange.kind == "train":
        (result,) = settle(exchange.setup, engine.train(round, [client], {}), round)
        tensors = {name: value.numpy().tobytes() for name, value in result.update.tensors.items()}
        return {"samples": result.update.samples, "loss": result.loss, **tensors}
    if exchange.kind == "evaluate":
        scores = engine.evaluate([client], {}, fields["which"], round, detailed=fields["detailed"])
        fine = fine_tensors(scores.fine)
        return (
            {"loss": scores.loss.tobytes(), "count": scores.count.tobytes()}
            | {name: values.tobytes() for name, values in scores.sums.items()}
            | {name: values.numpy().tobytes() for name, values in fine.items()}
        )
    if exchange.kind == "digest":
        return {"digest": engine.digest(client)}
    engine.commit(round, [], {client: {}})
    return {}


def honest(exchange: Exchange) -> dict[str, Any]:
    """What the server takes if nobody lies."""
    with engine_of(exchange) as engine:
        engine.deliver = lambda client, message: exchange.answer
        return outcome(engine, exchange)


def verdict(exchange: Exchange, deliver: Callable[[Deliver], Deliver], *, folder: bool) -> str:
    """What is wrong with how an exchange ended in which somebody lied; empty if nothing is.

    Args:
        exchange: an honest one.
        deliver: makes the way of a message, from the honest one.
        folder: whether the client's folder must not have changed if the lie was found.
    """
    with engine_of(exchange) as engine:
        engine.deliver = deliver(engine.deliver)
        try:
            taken = outcome(engine, exchange)
        except UpdateError as error:
            text = str(error)
            if not (text.isprintable() and len(text) < 1500):
                return f"said {text[:300]!r}"
            if f"client {exchange.name} in round {exchange.round}" not in text:
                return f"said, without client and round: {text[:300]}"
            after = files_in(engine.folder / f"client-{exchange.client}")
            return "changed the client's folder" if folder and after != exchange.files else ""
        except Exception as error:
            return f"ended in {type(error).__name__}: {str(error)[:200]!r}"
    return "" if taken == honest(exchange) else "was taken with other numbers"


def one_try(draw: np.random.Generator, heard: Sequence[Exchange], only: str = "") -> tuple[str, str] | None:
    """A lie and what is wrong with how it ended; None if what was drawn does not go together.

    Args:
        draw: decides everything.
        heard: exchanges to choose from.
        only: a sort of lies.
    """
    exchange = heard[int(draw.integers(len(heard)))]
    side = int(draw.integers(2))
    kind, message = exchange.sides()[side]
    fields, tensors = unpack(message)
    lies = lies_of(kind, fields, tensors)
    # Kinds of lies are drawn before lies, or the many about fields would leave little to the others.
    sorts = sorted({name.split(":")[0] if ": " in name else "fields" for name, _ in lies})
    sort = only or sorts[draw.integers(len(sorts))]
    lies = [(n, lie) for n, lie in lies if (n.startswith(f"{sort}: ") if sort != "fields" else ": " not in n)]
    name, lie = lies[draw.integers(len(lies))]
    bent = lie(draw, fields, tensors, message)
    if bent is None or bent == message:
        return None
    if side == 0:
        wrong = verdict(exchange, lambda to_client: lambda client, _: to_client(client, bent), folder=True)
    else:
        wrong = verdict(exchange, lambda _: lambda client, message: bent, folder=False)
    return f"{exchange.title}: {kind} of round {exchange.round}, client {exchange.name}, {name}", wrong


def campaign(seed: int, count: int, minutes: float) -> Tally:
    """Lie ``count`` times."""
    heard, findings, tried = exchanges(), [], 0
    for number in tries(count, minutes):
        draw = drawn(seed, number)
        found = None
        while found is None:  # until what is drawn goes together
            found = one_try(draw, heard)
        tried += 1
        if found[1]:
            findings.append(f"{number}: {found[0]}: {found[1]}")
    return Tally(tried, tried - len(findings), tuple(findings))
