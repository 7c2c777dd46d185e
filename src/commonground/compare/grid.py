"""Tuning: candidates from a grid, judged on a part of the clients' training data, never on test data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from commonground.compare.adapting import OF_MODEL
from commonground.compare.methods import Method
from commonground.errors import ConfigError
from commonground.literals import literal

__all__ = ["candidates", "edge_notes", "on_edge", "parse_grid"]

_NO_SCALE = {"workers", "threads"}  # numbers that no model depends on


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read ``KEY=VALUE,VALUE,…`` lines.

    Raises:
        ConfigError: a line has another form, or a setting comes twice.

    >>> parse_grid(["lr=0.003,0.01", "mu=0.1"])
    {'lr': [0.003, 0.01], 'mu': [0.1]}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip().replace("-", "_")
        parts = [part.strip() for part in values.split(",")]
        if not equals or not key.removeprefix(OF_MODEL).isidentifier() or not all(parts):
            raise ConfigError(f"--grid {text} is not of the form KEY=VALUE,VALUE…, for example lr=0.003,0.01,0.03")
        if key in grid:
            raise ConfigError(f"--grid names '{key}' twice; put all its values into one")
        grid[key] = [literal(part) for part in parts]
    return check_grid(grid)


def check_grid(grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """A grid with every setting's values as a list, at least one each and none twice."""
    if not isinstance(grid, Mapping):
        raise ConfigError(f"grid must be a dict of lists, such as {{'lr': [0.01, 0.03, 0.1]}}, not {grid!r}")
    checked: dict[str, list[Any]] = {}
    for key, given in grid.items():
        values = given.tolist() if hasattr(given, "tolist") else given
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"the grid for '{key}' is {values!r}; a list of at least one value is needed")
        if any(value in values[:place] for place, value in enumerate(values)):
            raise ConfigError(f"the grid for '{key}' names a value twice: {', '.join(map(str, values))}")
        checked[key] = list(values)
    return checked


def candidates(
    method: Method, grid: Mapping[str, Sequence[Any]], common: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Every combination of the grid's settings that a method uses and does not set itself; at least the empty one.

    Args:
        method: the method.
        grid: every setting's values.
        common: settings of all methods, with which one may say nothing (a momentum beside Adam).
    """
    keys = [key for key in grid if method.has(key) and key not in method.settings]
    found: list[dict[str, Any]] = []
    for values in itertools.product(*(grid[key] for key in keys)):
        used = method.uses(dict(zip(keys, values, strict=True)), common or {})
        found += [] if used in found else [used]
    return found


def on_edge(tried: Sequence[Mapping[str, Any]], best: int) -> dict[str, Any]:
    """Settings whose best value is the smallest or the largest one tried, with this value: a better one may lie beyond.

    Args:
        tried: the candidates.
        best: the number of the chosen one.
    """
    edges = {}
    for key, chosen in tried[best].items():
        values = [candidate[key] for candidate in tried if key in candidate]  # others do not use it
        counted = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if not counted or key in _NO_SCALE or len(set(values)) < 2:
            continue
        # Below zero there is nothing to try.
        if chosen in (min(values), max(values)) and chosen != 0:
            edges[key] = chosen
    return edges


def edge_notes(found: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A sentence for every method and setting whose best value lies on its grid's edge.

    Args:
        found: for each method and seed, the method's title and what :func:`on_edge` says.
    """
    notes = []
    for title, key in dict.fromkeys((title, key) for title, edges in found for key in edges):
        seeds = [edges for name, edges in found if name == title]
        values = [edges[key] for edges in seeds if key in edges]
        named = ", ".join(f"{value:g}" for value in sorted(set(values)))
        many = f" with {len(values)} of {len(seeds)} seeds" if len(seeds) > 1 else ""
        notes.append(f"{title}: the best value of {key} lies on the grid's edge ({named}){many}: widen it.")
    return notes
