"""Letters as Flower's messages: a record of settings, and the body as an array of bytes, which travels in parts."""

from __future__ import annotations

import secrets

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from commonground.errors import UpdateError
from commonground.network.parts import divide
from commonground.network.post import Letter

__all__ = ["content_of", "letter_of"]

_KIND, _RUN, _SECRET = "kind", "run", "secret"


def content_of(letter: Letter) -> RecordDict:
    """What a message of Flower holds.

    Flower takes an answer for that of the node to which the question went, whoever sends it: all that it asks for is
    the question's id, which is a digest of what the question holds. So each holds something that nobody else knows.
    """
    about = ConfigRecord({_KIND: letter.kind, _RUN: letter.run, _SECRET: secrets.token_hex(16)})
    data = Array(dtype="uint8", shape=(len(letter.body),), stype="commonground", data=letter.body)
    body = ArrayRecord({"body": data})
    divide(body["body"])  # the record has made one of its own
    return RecordDict({"about": about, "body": body})


def letter_of(content: RecordDict, most: int) -> Letter:
    """The letter in a message.

    Args:
        content: of the message.
        most: bytes that its body may have.

    Raises:
        UpdateError: it holds none.
    """
    try:
        about, body = content["about"], content["body"]
        if not isinstance(about, ConfigRecord) or not isinstance(body, ArrayRecord):
            raise TypeError
        kind, run, data = about[_KIND], about[_RUN], body["body"].data
    except (KeyError, TypeError, AttributeError):
        raise UpdateError("a message was received that is none of CommonGround") from None
    if not isinstance(kind, str) or not isinstance(run, str) or not isinstance(data, bytes):
        raise UpdateError("a message was received that is none of CommonGround")
    if len(data) > most or len(kind) > 100 or len(run) > 100:
        raise UpdateError(
            f"a message of {len(data):,} bytes was received, and at most {most:,} are allowed (--max-message)"
        )
    return Letter(kind, run, data)
