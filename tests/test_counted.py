"""Numbers of things in words."""

from __future__ import annotations

import pytest

from commonground.counted import counted


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 clients"), (1, "1 client"), (2, "2 clients"), (1_200_000, "1,200,000 clients")]
)
def test_one_and_several(count: int, said: str) -> None:
    assert counted(count, "client") == said
