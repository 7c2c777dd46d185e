"""What may import what: no circles between modules, and rooms that know only what lies below them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"

# Rooms (modules and packages right below ``commonground``; "" is the package itself), the lowest layer first. A room
# imports from lower layers and from itself, never from another room of its own layer.
LAYERS = (
    ("locks",),
    (
        "access",
        "ambient",
        "counted",
        "declared",
        "extras",
        "quoting",
        "stopping",
        "suggest",
        "wording",
    ),
    ("errors", "keys", "notebook", "spreadsheet", "terminal"),
    ("device_names", "name_lists", "partition_forms", "processor"),
    ("catalogue", "existing", "literals", "registration", "schedules"),
    ("devices", "generators", "precision", "single_precision"),
    ("explained", "ranges", "statistics", "table", "tasks", "tracking", "user_code"),
    ("data", "theory"),
    ("aggregation", "models", "privacy"),
    ("algorithms",),
    ("adapters", "config"),
    ("engine",),
    ("adapt", "console", "export", "plan", "prediction"),
    ("serve", "sklearn"),
    ("report",),
    ("compare", "network"),
    ("", "demo", "papers"),
    ("doctor",),
    ("cli",),
    ("__main__",),
)
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}


def import_graph(source: Path, package: str) -> dict[str, set[str]]:
    """The package's modules, each with those it imports anywhere in its file: in functions and for types alone, too.

    ``from package import name`` means the submodule of that name where there is one, else the package's own file. What
    :mod:`importlib` imports by names put together at run time (one file per algorithm and paper) is not seen.
    """
    files = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (source / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {module: set() for module in files}
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}, line {node.lineno}: imports are written in full here"
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in files else str(node.module) for name in inner]
            graph[module] |= {name for name in names if name in files and name != module}
    return graph


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of one circle in their order, the first again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def room(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


GRAPH = import_graph(SRC, "commonground")


def test_no_module_imports_itself_in_a_circle() -> None:
    assert " imports ".join(circle(GRAPH)) == ""


def test_every_room_has_a_layer() -> None:
    assert {room(module) for module in GRAPH} == set(LAYER)


def test_rooms_import_downward_only() -> None:
    upward = [
        f"{module} imports {other}"
        for module, others in sorted(GRAPH.items())
        for other in sorted(others)
        if room(other) != room(module) and LAYER[room(other)] >= LAYER[room(module)]
    ]
    assert upward == []


@pytest.mark.parametrize(
    "last",
    [
        "import box.a",
        "from box import a",
        "def f():\n    from box.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from box.a import x",
    ],
)
def test_circles_are_found_wherever_the_import_stands(last: str, tmp_path: Path) -> None:
    (tmp_path / "box" / "inner").mkdir(parents=True)
    files = {"__init__": "", "a": "from box import inner", "inner/__init__": "from box.inner.b import x", "inner/b": ""}
    for name, text in files.items():
        (tmp_path / "box" / f"{name}.py").write_text(text)
    assert circle(import_graph(tmp_path, "box")) == []
    (tmp_path / "box" / "inner" / "b.py").write_text(last)
    graph = import_graph(tmp_path, "box")
    assert graph["box.a"] == {"box.inner"}
    found = circle(graph)
    assert found[0] == found[-1]
    assert set(found) == {"box.a", "box.inner", "box.inner.b"}
    assert all(other in graph[module] for module, other in pairwise(found))
