"""Flower's SuperLink behind a gate: ``python -m commonground.network.superlink`` takes the options of
``flower-superlink``.

Flower serves nodes (Fleet API) and whoever starts runs (Control and Runtime API) on one port, and asks only nodes for a
key: whoever reaches the port could start a run, which is code on the server's host. The gate lets everybody on other
hosts reach the Fleet API alone, and reads no request that is larger than a node may send.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from commonground.network.limits import LARGEST, PART
from commonground.network.parent import end_with

__all__ = ["ENDS_WITH", "MAX_BYTES", "Gate", "is_everywhere", "main"]

MAX_BYTES = "COMMONGROUND_MAX_MESSAGE_BYTES"
"""The environment variable that says how large a node's message may be."""

FLEET = "/v1/fleet/"
PUSH_OBJECT, PUSH_MESSAGES = f"{FLEET}push-object", f"{FLEET}push-messages"
ENDS_WITH = "COMMONGROUND_ENDS_WITH"
"""The environment variable that names the process without which this one ends, if there is one."""

NAME = 68  # bytes by which a part is announced: its SHA-256, and how long that is
ENTRY = 80  # bytes at most that it takes in the list of an array's parts, which is a part itself
SLACK = 1 << 10  # bytes of a request beside these; Flower's take 200 to 600

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gate:
    """ASGI middleware: refuses before anything is read.

    Args:
        app: what is behind it.
        max_bytes: of a message, all its parts together.
        everywhere: whether the server listens on all addresses of its host, and so on the loopback too.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        max_bytes: int = LARGEST,
        everywhere: bool = True,
    ) -> None:
        self.app, self.everywhere = app, everywhere
        parts = -(-max_bytes // PART)  # no part is sent that was not announced
        self.largest_announcement = NAME * parts + SLACK
        self.largest_part = max(PART, ENTRY * parts) + SLACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        if not path.startswith(FLEET):
            if self._is_from_here(scope):
                await self.app(scope, receive, send)
            else:
                await _refuse(send, 403, b"only the server's own host may do that")
            return
        most = self.largest_part if path == PUSH_OBJECT else self.largest_announcement
        if _announced(scope) > most:
            await _refuse(send, 413, b"too large")
            return
        receive = _bounded(receive, most)
        if path == PUSH_MESSAGES:
            body = await _whole(receive)
            if _is_in_another_s_name(body):
                await _refuse(send, 403, b"an answer in another node's name")
                return
            receive = _read_again(body, receive)
        await self.app(scope, receive, send)

    def _is_from_here(self, scope: Scope) -> bool:
        """Whether who asks is on the server's own host."""
        asking = _end(scope, "client")
        if asking is None:
            return False
        # A host speaks to an address of its own from that address, and others get no answer there. On all addresses it
        # need not, since there is the loopback: in some containers strangers come from the container's own address.
        return asking.is_loopback or (not self.everywhere and asking == _end(scope, "server"))


class _TooLarge(Exception):
    """More bytes came than were announced."""


def _bounded(receive: Receive, most: int) -> Receive:
    """Of a request that does not say how long it is, no more than ``most`` bytes are read."""
    read = 0

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > most:
            raise _TooLarge(f"a request of more than {most} bytes")
        return message

    return bounded


async def _whole(receive: Receive) -> bytes:
    """A request's body."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _read_again(body: bytes, receive: Receive) -> Receive:
    """What gives a body that was read once more, and then what comes behind it."""
    left = [body]

    async def again() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return again


def _is_in_another_s_name(body: bytes) -> bool:
    """Whether a node announces an answer of another one: Flower asks for the key of who announces it, and stores it as
    that of whoever the answer names.
    """
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    try:
        asked = PushMessagesRequest.FromString(body)
    except Exception:  # protobuf's own, of which Flower says what is wrong
        return False
    return any(message.metadata.src_node_id != asked.node.node_id for message in asked.messages_list)


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name.lower() == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else 1 << 62
    return 0


def is_everywhere(host: str) -> bool:
    """Whether who listens at a host does so on all its addresses; of what nobody can listen at: yes."""
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return True
    addresses = [_address(str(each[4][0])) for each in found]
    return any(address is None or address.is_unspecified for address in addresses)


def _end(scope: Scope, which: str) -> Address | None:
    """The address of one end of a connection; None if it has none."""
    end = scope.get(which)
    return None if end is None else _address(end[0])


def _address(host: str) -> Address | None:
    """An address, that of IPv4 as such also where it is written as one of IPv6."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


async def _refuse(send: Send, status: int, why: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": why})


def main() -> None:
    """Run ``flower-superlink`` with the gate before its application."""
    from flwr.common.logger import update_console_handler
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink

    if parent := os.environ.get(ENDS_WITH):
        end_with(int(parent))
    update_console_handler(timestamps=True, colored=sys.stderr.isatty())  # a log file is read without a terminal
    made = superlink.create_app

    def create_app(config: Any = None, *args: Any, **named: Any) -> Any:
        app = made(config, *args, **named)
        everywhere = config is None or is_everywhere(config.host)
        app.add_middleware(Gate, max_bytes=int(os.environ.get(MAX_BYTES, LARGEST)), everywhere=everywhere)
        return app

    superlink.create_app = create_app
    flower_superlink()


if __name__ == "__main__":
    main()
