"""A client's process and its desk, with a line that breaks and letters that come twice; no server, no training."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx

from commonground.errors import ConfigError, RunError, UpdateError
from commonground.network import node
from commonground.network.desk import Desk
from commonground.network.fleet import RUN_OVER
from commonground.network.post import Letter, question_id

RUN = "ab" * 16


class Client:
    """In place of :class:`~commonground.network.Answering`: it counts what it works on."""

    def __init__(self) -> None:
        self.worked: list[bytes] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def hello(self) -> bytes:
        return b"hello"

    def has_begun(self, run: str) -> bool:
        return run == RUN

    def begin(self, text: bytes) -> bytes:
        self.worked.append(text)
        return b"{}"

    def ask(self, run: str, message: bytes) -> bytes:
        assert self.may_go_on.wait(5)
        self.worked.append(message)
        if message == b"bad":
            raise ConfigError("it cannot")
        if message == b"broken":
            raise ZeroDivisionError("one by none")
        if message == b"gone":
            raise SystemExit
        return b"answer to " + message

    def end(self, run: str, message: bytes) -> bytes:
        self.worked.append(b"end " + message)
        return b"kept"

    def agree(self, kind: str, text: bytes) -> bytes:
        self.worked.append(kind.encode())
        return b"table"


def letter(body: bytes, kind: str = "ask") -> Letter:
    return Letter(kind, RUN, body)


def ping(body: bytes) -> Letter:
    return Letter("ping", RUN, question_id(letter(body)).encode())


@pytest.fixture
def client() -> Any:
    return Client()


@pytest.fixture
def desk(client: Any) -> Iterator[Desk[Any]]:
    desk: Desk[Any] = Desk(client)
    yield desk
    client.may_go_on.set()
    desk.close()


def test_a_question_that_comes_twice_is_worked_on_once(desk: Desk[Any], client: Client) -> None:
    for tag in (1, 2):
        desk.take(tag, letter(b"one"))
    found = [desk.answers.get(timeout=5) for _ in range(2)]
    assert found == [(tag, Letter("ok", question_id(letter(b"one")), b"answer to one")) for tag in (1, 2)]
    assert client.worked == [b"one"]


def test_a_desk_says_what_became_of_a_letter(desk: Desk[Any], client: Client) -> None:
    client.may_go_on.clear()
    desk.take(1, letter(b"one"))
    desk.take(2, letter(b"two"))
    for body, said in ((b"one", "busy"), (b"two", "behind"), (b"three", "unknown")):
        desk.take(3, ping(body))
        assert desk.answers.get(timeout=5)[1].kind == said
    client.may_go_on.set()
    assert [desk.answers.get(timeout=5)[0] for _ in range(2)] == [1, 2]
    for body, said in ((b"one", "unknown"), (b"two", "done")):
        desk.take(3, ping(body))
        assert desk.answers.get(timeout=5)[1].kind == said


def test_an_error_is_an_answer(desk: Desk[Any]) -> None:
    for body, said in ((b"bad", b"it cannot"), (b"broken", b"one by none"), (b"good", b"answer to good")):
        desk.take(1, letter(body))
        _, answer = desk.answers.get(timeout=5)
        assert (answer.kind, said in answer.body) == ("ok", True)
    desk.take(1, letter(b"gone"))  # a user's code may say so, and the client lives on
    assert b"SystemExit" in desk.answers.get(timeout=5)[1].body
    desk.take(1, Letter("ask", "cd" * 16, b"of another run"))
    assert desk.answers.get(timeout=5)[1].kind == "not-begun"
    desk.take(1, letter(b"", "nonsense"))
    assert b"this is no message" in desk.answers.get(timeout=5)[1].body


def test_what_has_failed_is_tried_again(desk: Desk[Any], client: Client) -> None:
    for body in (b"bad", b"bad", b"broken", b"broken"):
        desk.take(1, letter(body))
        desk.answers.get(timeout=5)
        desk.take(2, ping(body))
        assert desk.answers.get(timeout=5)[1].kind == "done"
    assert client.worked == [b"bad", b"bad", b"broken", b"broken"]


def test_the_same_bytes_are_another_question_at_a_runs_end_or_when_it_begins_again(
    desk: Desk[Any], client: Client
) -> None:
    for kind in ("ask", "end", "ask", "begin", "ask", "ask"):
        desk.take(1, letter(b"test", kind))
        desk.answers.get(timeout=5)
    assert client.worked == [b"test", b"end test", b"test", b"test", b"test"]  # an ask, a begin and an ask are alike


def test_a_table_may_have_changed_when_it_is_asked_for_again(desk: Desk[Any], client: Client) -> None:
    for _ in range(2):
        desk.take(1, letter(b"columns", "agree"))
        desk.answers.get(timeout=5)
    assert client.worked == [b"agree", b"agree"]


class Line:
    """In place of :class:`~commonground.network.fleet.Fleet`: what it receives and how sending ends is written down."""

    address = "server:1"

    def __init__(self, received: list[Any], sent: list[Exception | None] | None = None, plain: bool = False) -> None:
        self.received, self.ends, self.plain = received, sent or [], plain
        self.sent: list[bytes] = []
        self.connected = 0
        self.until = time.monotonic() + 10

    def connect(self) -> int:
        self.connected += 1
        return 7

    def receive(self) -> Any:
        found = self.received.pop(0) if self.received else None
        if isinstance(found, Exception):
            raise found
        return None if found is None else (b"tag", found)

    def reply(self, tag: Any, answer: Letter) -> Any:
        return answer

    def send(self, answer: Letter) -> None:
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            raise end
        self.sent.append(answer.body)

    def serve(self, answers: int) -> list[str]:
        """What is noted until so many answers were sent."""
        notes: list[str] = []

        def over() -> bool:
            return len(self.sent) >= answers or time.monotonic() > self.until

        line: Any = self
        client: Any = Client()
        node.serve_client(line, client, notes.append, over)
        return notes


def status(code: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError(
        f"status {code}", request=httpx.Request("POST", "http://x"), response=httpx.Response(code)
    )


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "AGAIN", 0.01)
    monkeypatch.setattr(node, "POLL", 0.01)


def test_a_client_answers_until_it_is_stopped() -> None:
    line = Line([letter(b"one"), None, letter(b"two")])
    assert line.serve(2) == ["is node 7 of the server at server:1"]
    assert line.sent == [b"answer to one", b"answer to two"]


def test_a_server_that_is_away_is_tried_again_and_an_answer_kept() -> None:
    line = Line([letter(b"one"), letter(b"two")], [httpx.ConnectError("refused"), status(503)])
    notes = line.serve(2)
    assert sorted(line.sent) == [b"answer to one", b"answer to two"]
    assert notes[1:] == ["the server at server:1 cannot be reached: refused; trying again", "the server is there again"]
    assert line.connected == 1


def test_a_server_that_is_not_there_at_first_is_not_there_again() -> None:
    class Late(Line):
        def connect(self) -> int:
            node = super().connect()
            if node and self.connected == 1:
                raise httpx.ConnectError("refused")
            return node

    notes = Late([letter(b"one")]).serve(1)
    assert notes == [
        "the server at server:1 cannot be reached: refused; trying again",
        "is node 7 of the server at server:1",
    ]


@pytest.mark.parametrize("plain", [False, True])
def test_a_server_that_may_want_certificates_is_told(plain: bool) -> None:
    line = Line([httpx.RemoteProtocolError("no response"), letter(b"one")], plain=plain)
    assert ("--ca is needed in place of --insecure" in line.serve(1)[1]) is plain


def test_a_server_that_has_forgotten_the_node_is_told_of_it_again() -> None:
    line = Line([status(404), letter(b"one")])
    line.serve(1)
    assert line.connected == 2


def test_an_answer_that_nobody_wants_any_more_is_dropped() -> None:
    line = Line([letter(b"one"), letter(b"two")], [status(410)])
    line.serve(1)
    assert len(line.sent) == 1
    assert line.connected == 1


def test_a_client_at_work_hears_that_its_run_was_stopped() -> None:
    """Flower refuses its answer as it refuses a stranger's; the node is known and stays."""
    line = Line([letter(b"one"), letter(b"two")], [status(403)])
    assert line.serve(1)[1:] == [RUN_OVER]
    assert line.connected == 1


def test_an_answer_that_the_server_does_not_take_is_dropped() -> None:
    line = Line([letter(b"one"), letter(b"two")], [UpdateError("not taken")])
    assert line.serve(1)[1:] == ["not taken"]
    assert len(line.sent) == 1


def test_a_server_hears_of_an_answer_that_is_too_large_for_it() -> None:
    """It would wait for it as long as an answer may take."""
    large = letter(b"x" * 20_000)
    line = Line([large, letter(b"two")], [status(413)])
    told = "its answer has 20,010 bytes, more than the server takes (--max-message)"
    assert line.serve(2)[1:] == [told]
    assert told.encode() in line.sent[0]
    assert line.sent[1] == b"answer to two"
    line = Line([letter(b"one"), letter(b"two")], [status(413)])  # whatever that was, it was not the size
    assert line.serve(1) == ["is node 7 of the server at server:1"]


def test_what_is_no_server_of_flowers_is_tried_again() -> None:
    """As where a login page of a network answers in its place."""
    line = Line([ValueError("Invalid protobuf response payload"), letter(b"one")])
    assert "cannot be reached: Invalid protobuf response payload; trying again" in line.serve(1)[1]
    assert line.sent == [b"answer to one"]


def test_a_message_that_is_none_is_noted() -> None:
    line = Line([UpdateError("none of ours"), letter(b"one")])
    assert line.serve(1)[1] == "none of ours"


def test_a_server_that_does_not_take_the_client_ends_it() -> None:
    line = Line([RunError("not registered")])
    with pytest.raises(RunError, match="not registered"):
        line.serve(1)
