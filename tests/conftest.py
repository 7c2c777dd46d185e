"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from commonground.wording import naming_options
from tests.slow import in_share, is_slow, listed

# A shell lets what runs in its background ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _messages_as_written() -> Iterator[None]:
    """Messages are compared as they are written, with the command's options; tests/test_wording.py reads them as
    callers in Python do.
    """
    with naming_options():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """A share of the slow tests (:mod:`tests.slow`)."""
    parser.addoption(
        "--slow-share", metavar="K/N", help="the quick tests and the K-th N-th of the slow ones (K from 0)"
    )


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow tests; with a share, leave the others of them out."""
    slow, share = listed(), config.getoption("--slow-share")
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marked = is_slow(item.nodeid, slow)
        if marked:
            item.add_marker(pytest.mark.slow)
        try:
            (kept if not marked or share is None or in_share(item.nodeid, share) else left_out).append(item)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
