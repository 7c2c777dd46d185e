"""Parts in which Flower carries a message: how large they are, and how long those are waited for that are on their
way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from flwr.app.message import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

from commonground.network.limits import FIRST_WAIT, LONGEST_WAIT, PART, PATIENCE

__all__ = ["divide", "pull_patiently"]


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
