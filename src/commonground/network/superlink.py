"""Flower's SuperLink behind a gate: ``python -m commonground.network.superlink`` takes the options of
``flower-superlink``.

Flower serves nodes (Fleet API) and whoever starts runs (Control and Runtime API) on one port, and asks only nodes for a
key: whoever reaches the port could start a run, which is code on the server's host. The gate lets everybody on other
hosts reach the Fleet API alone, and reads no request that is larger than a node may send.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from commonground.network.limits import PART
from commonground.network.parent import end_with

__all__ = ["ENDS_WITH", "MAX_BYTES", "Gate", "main"]

MAX_BYTES = "COMMONGROUND_MAX_MESSAGE_BYTES"
"""The environment variable that says how large a node's message may be."""

FLEET = "/v1/fleet/"
PUSH_OBJECT = f"{FLEET}push-object"
ENDS_WITH = "COMMONGROUND_ENDS_WITH"
"""The environment variable that names the process without which this one ends, if there is one."""

LARGEST_PART = 5 << 20  # bytes; Flower's own nodes send such
SLACK = 16 << 10  # bytes of a request beside what it carries

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gate:
    """ASGI middleware: refuses before anything is read.

    Args:
        app: what is behind it.
        max_bytes: of a message, all its parts together.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], max_bytes: int = 1 << 30) -> None:
        self.app = app
        # A message is announced by the names of its parts, some hundred bytes for each of PART bytes.
        self.largest_announcement = SLACK + 256 * (max_bytes // PART + 1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, client = scope["path"], scope.get("client")
        local = client is not None and _is_loopback(client[0])
        if not path.startswith(FLEET):
            if local:
                await self.app(scope, receive, send)
            else:
                await _refuse(send, 403, b"only the server's own host may do that")
            return
        most = LARGEST_PART + SLACK if path == PUSH_OBJECT else self.largest_announcement
        if _announced(scope) > most:
            await _refuse(send, 413, b"too large")
            return
        await self.app(scope, _bounded(receive, most), send)


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


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name.lower() == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else 1 << 62
    return 0


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


async def _refuse(send: Send, status: int, why: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": why})


def main() -> None:
    """Run ``flower-superlink`` with the gate before its application."""
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink

    if parent := os.environ.get(ENDS_WITH):
        end_with(int(parent))
    made = superlink.create_app

    def create_app(*args: Any, **named: Any) -> Any:
        app = made(*args, **named)
        app.add_middleware(Gate, max_bytes=int(os.environ.get(MAX_BYTES, 1 << 30)))
        return app

    superlink.create_app = create_app
    flower_superlink()


if __name__ == "__main__":
    main()
