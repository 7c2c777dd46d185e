"""Tables of shops, and how the service is asked about their rows."""

from __future__ import annotations

from typing import Any

import numpy as np

SHOPS = ("north", "south", "east")


def rows(shop: int, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows whose label hangs on a and b, each shop in its own way."""
    rng = np.random.default_rng([seed, shop])
    found = []
    for _ in range(count):
        a, b = rng.normal(size=2).round(4).tolist()
        plan = "xyz"[int(rng.integers(3))]
        found.append({"a": a, "b": b, "plan": plan, "label": "yes" if a + (shop - 1) * b > 0 else "no"})
    return found


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def features(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "label"} for row in given]
