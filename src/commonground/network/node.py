"""A client's process: it fetches letters, has them answered, and sends the answers, until it is stopped."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import httpx
from flwr.app import Message

from commonground.errors import UpdateError
from commonground.network.answering import Answering, failed
from commonground.network.desk import Desk
from commonground.network.fleet import REFUSED, RUN_OVER, Fleet
from commonground.network.post import Letter

__all__ = ["serve_client"]

POLL = 0.2  # seconds between two looks for letters while there is work
IDLE_POLL = 1.0  # and when there has been none for a minute
IDLE_AFTER = 60.0
AGAIN = 2.0  # seconds before a server is tried again that could not be reached
TOO_LARGE = 413  # what a server says of a message that it does not take for its size
SHORT = 10_000  # bytes that every server takes


def serve_client(fleet: Fleet, answering: Answering, note: Callable[[str], None], stop: Callable[[], bool]) -> None:
    """Answer a server's letters until ``stop`` says so.

    Args:
        fleet: the line to the server.
        answering: the client.
        note: hears of what happens.
        stop: whether to end.

    Raises:
        RunError: the server does not take this client.
    """
    desk: Desk[Message] = Desk(answering, note)
    connected, reached, newest = False, True, time.monotonic()
    unsent: list[tuple[Message, Message, Letter]] = []  # an answer, what it answers, and what is in it
    while not stop():
        try:
            if not connected:
                note(f"is node {fleet.connect()} of the server at {fleet.address}")
                connected = reached = True
            while unsent:
                _send(fleet, *unsent[0], note)
                unsent.pop(0)
            received = _receive(fleet, note)
            if not reached:
                note("the server is there again")
                reached = True
        except (httpx.HTTPError, ValueError) as error:  # a ValueError: what answers there is no server of Flower's
            if reached:
                why = str(error) or type(error).__name__
                if fleet.plain and isinstance(error, httpx.RemoteProtocolError):
                    why += " (as one with certificates does, where --ca is needed in place of --insecure)"
                if "certificate has expired" in why:
                    why += " (who runs the server has to make another one, whose ca.pem every client needs)"
                elif "CERTIFICATE_VERIFY_FAILED" in why:
                    why += " (is --ca the certificates/ca.pem of this server?)"
                note(f"the server at {fleet.address} cannot be reached: {why}; trying again")
            connected, reached = connected and _is_known(error), False
            time.sleep(AGAIN)
            continue
        if received is not None:
            newest = time.monotonic()
            desk.take(*received)
        idle = time.monotonic() - newest > IDLE_AFTER
        try:
            answer = desk.answers.get(timeout=0.001 if received else IDLE_POLL if idle else POLL)
            unsent.append((fleet.reply(*answer), *answer))
            newest = time.monotonic()
        except queue.Empty:
            pass
    desk.close()


def _receive(fleet: Fleet, note: Callable[[str], None]) -> tuple[Message, Letter] | None:
    try:
        return fleet.receive()
    except UpdateError as error:
        note(str(error))
        return None


def _send(fleet: Fleet, reply: Message, received: Message, letter: Letter, note: Callable[[str], None]) -> None:
    """Send an answer; one that the server no longer wants, or does not take, is dropped. In place of one that is too
    large for it the server hears so, or it would wait for as long as an answer may take.
    """
    try:
        fleet.send(reply)
    except UpdateError as error:
        note(str(error))
    except httpx.HTTPStatusError as error:
        if error.response.status_code >= 500:
            raise
        if error.response.status_code in REFUSED:
            note(RUN_OVER)
        if error.response.status_code == TOO_LARGE and len(letter.body) > SHORT:
            said = UpdateError(f"its answer has {len(letter.body):,} bytes, more than the server takes (--max-message)")
            note(str(said))
            short = letter._replace(body=failed(said))
            _send(fleet, fleet.reply(received, short), received, short, note)


def _is_known(error: Exception) -> bool:
    """Whether the server still knows the node: after a restart it may not."""
    return not (isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500)
