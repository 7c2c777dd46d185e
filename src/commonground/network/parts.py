"""Parts in which Flower carries a message: how large they are, how long those are waited for that are on their way, and
how they become a message again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Message
from flwr.app.message import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)

from commonground.errors import UpdateError
from commonground.network.limits import FIRST_WAIT, LONGEST_WAIT, PART, PATIENCE

__all__ = ["UNUSABLE", "Opened", "divide", "opened", "pull_opened", "pull_patiently"]

UNUSABLE = "it cannot be used: "
"""In what Flower says of an answer whose parts came and make no message, before what is wrong with it."""


def divide(array: Array) -> None:
    """Let an array travel in parts of :data:`~commonground.network.limits.PART` bytes.

    Flower's own parts are five times as long. On a line of 1 Mbit/s two of them, which are on their way at a time, take
    longer than any of its requests may.
    """
    view = memoryview(array.data)
    parts = [ArrayChunk(view[start : start + PART]) for start in range(0, len(view), PART)]
    array.__dict__["_chunks"] = [(part.object_id, part) for part in parts]  # Flower has no setting for it


def pull_patiently(
    object_ids: list[str], pull_object_fn: Callable[[str], bytes], most: float = math.inf
) -> dict[str, bytes]:
    """The parts of a message, of which some may still be on their way.

    Flower's :func:`~flwr.supercore.inflatable.inflatable_utils.pull_objects`, whose names these are, waits for all
    together, however long a message is and however slow a line. Here who sends is given up when nothing has come for
    :data:`~commonground.network.limits.PATIENCE` seconds.

    Args:
        object_ids: of the parts, in the order in which they are sent.
        pull_object_fn: fetches one.
        most: seconds for all together.

    Raises:
        ObjectPullError: one has not come, or does not exist.
    """
    began = newest = time.monotonic()

    def pull(object_id: str) -> bytes:
        nonlocal newest
        try:
            content = pull_object_fn(object_id)
        except ObjectUnavailableError:
            now = time.monotonic()
            if now - newest > PATIENCE or now - began > most:
                raise ObjectPullError(object_id, f"no part has come for {now - newest:.0f} s") from None
            raise
        newest = time.monotonic()
        return content

    return pull_objects(
        object_ids, pull, max_time=None, max_tries_per_object=None, initial_backoff=FIRST_WAIT, backoff_cap=LONGEST_WAIT
    )


def opened(contents: Mapping[str, bytes], most: int) -> Message:
    """The message that parts make.

    Flower's :func:`~flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents` believes what they say: a
    list that names one part a thousand times would be as many copies of it.

    Args:
        contents: of all parts, by their ids.
        most: bytes that its arrays may have, all together.

    Raises:
        UpdateError: they make none, or a larger one.
    """
    left = dict(contents)
    try:
        if (size := _joined(left)) > most:
            raise UpdateError(
                f"a message of {size:,} bytes was received, and at most {most:,} are allowed (--max-message)"
            )
        found: dict[str, InflatableObject] = {}
        message = inflate_object_from_contents(_outermost(left), left, objects=found)
    except UpdateError:
        raise
    except Exception as error:  # whatever Flower trips over in what a node has sent
        raise UpdateError("a message was received that cannot be read") from error
    if not isinstance(message, Message) or len(found) != len(contents):
        raise UpdateError("a message was received that is none")
    return message


class Opened(dict[str, bytes]):
    """The parts of a message that can be used, with what they make."""

    def __init__(self, contents: Mapping[str, bytes], most: int) -> None:
        self.message = opened(contents, most)
        super().__init__()


def pull_opened(
    object_ids: list[str], pull_object_fn: Callable[[str], bytes], most_seconds: float, most_bytes: int
) -> Opened:
    """As :func:`pull_patiently`, for Flower's grid: an answer that cannot be used is told as one whose parts did not
    come, since the grid would end with whatever is wrong with it, and lose the others' answers that came with it.

    Raises:
        ObjectPullError: a part has not come, or they make no message (:data:`UNUSABLE`).
    """
    contents = pull_patiently(object_ids, pull_object_fn, most_seconds)
    try:
        return Opened(contents, most_bytes)
    except UpdateError as error:
        raise ObjectPullError("of an answer", f"{UNUSABLE}{error}") from error


def _outermost(contents: Mapping[str, bytes]) -> str:
    """The one part that no other names."""
    named = {child for content in contents.values() for child in get_object_head_values_from_object_content(content)[1]}
    (outermost,) = contents.keys() - named
    return outermost


def _joined(contents: Mapping[str, bytes]) -> int:
    """How many bytes the arrays have whose parts are joined: a part counts as often as it is named."""
    heads = {name: get_object_head_values_from_object_content(content) for name, content in contents.items()}
    total = 0
    for name, (kind, children, _) in heads.items():
        if kind == Array.__qualname__:
            places: Iterable[int] = json.loads(get_object_body(contents[name], Array))["arraychunk_ids"]
            total += sum(heads[children[place]][2] for place in places)
    return total
