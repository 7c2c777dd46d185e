"""Pages for everybody: landmarks, names, captions, contrast; and light where clients are ten thousand."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground import FederatedDataset, train
from commonground.report import write_report
from commonground.report.palette import INK, PAGE, SERIES, VERDICTS
from tests.report.browser import chromium, use

KINDS = ["run_folder", "comparison_folder", "reproduction_folder", "regression_folder", "big_folder"]
VOID = {"meta", "link", "br", "img"}


class Node:
    """An element with what is in it."""

    def __init__(self, tag: str, attributes: dict[str, Any], parent: Node | None) -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Node | str] = []

    def all(self, *tags: str) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                if child.tag in tags:
                    yield child
                yield from child.all(*tags)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def name(self) -> str:
        """What a screen reader says, as far as the page says it here."""
        return str(self.attributes.get("aria-label") or self.attributes.get("alt") or self.text).strip()


class Tree(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = self.here = Node("", {}, None)
        self.feed(text)
        assert self.here is self.root, f"<{self.here.tag}> is never closed"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        node = Node(tag, dict(attrs), self.here)
        self.here.children.append(node)
        if tag not in VOID:
            self.here = node

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.here.children.append(Node(tag, dict(attrs), self.here))

    def handle_endtag(self, tag: str) -> None:
        assert self.here.tag == tag, f"<{self.here.tag}> is closed by </{tag}>"
        assert self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.children.append(data)


@pytest.fixture(scope="session")
def made_big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 10,000 clients with few rows of two numbers."""
    rng, clients = np.random.default_rng(0), 10_000
    x = rng.normal(size=(clients, 6, 2)).astype(np.float32)
    y = (x @ rng.normal(size=(clients, 2, 1)).astype(np.float32) > 0)[..., 0].astype(np.int64)
    data = FederatedDataset.from_arrays(
        [(x[c, :3], y[c, :3], x[c, 3:], y[c, 3:]) for c in range(clients)],
        client_names=[f"customer {c:05d}" for c in range(clients)],
    )
    out = tmp_path_factory.mktemp("big") / "run"
    train("fedavg", data, model="linear", rounds=2, participation=0.01, finetune_epochs=1, out=out)
    write_report(out)
    return out


@pytest.fixture
def big_folder(made_big: Path) -> Path:
    return made_big


def test_ten_thousand_clients_make_a_light_page(made_big: Path) -> None:
    page = made_big / "report.html"
    assert page.stat().st_size < 500_000
    tree = Tree(page.read_text("utf-8")).root
    tables = {t.parent.attributes["aria-label"]: t for t in tree.all("table") if t.parent is not None}
    assert max(len(list(t.all("tr"))) for t in tables.values()) <= 201
    with (made_big / "clients.csv").open() as file:
        values = sorted(float(row["personal_accuracy"]) for row in csv.DictReader(file))
    shown = [float(c.attributes["data-value"]) for c in tables["Clients"].all("td")
             if c.attributes.get("data-key") == "personal_accuracy"]  # fmt: skip
    assert shown == [*values[:100], *values[-100:]]
    assert any(a.attributes["href"] == "clients.csv" for a in tree.all("a"))


@pytest.mark.parametrize("kind", KINDS)
def test_who_hears_the_page_finds_their_way(kind: str, request: pytest.FixtureRequest) -> None:
    text = write_report(request.getfixturevalue(kind)).read_text("utf-8")
    tree = Tree(text).root
    ids = [node["id"] for node in (n.attributes for n in tree.all(*all_tags(tree))) if "id" in node]
    assert len(ids) == len(set(ids))
    assert [next(tree.all("html")).attributes.get("lang")] == ["en"]
    for landmark in ("header", "main", "footer", "h1"):
        assert len(list(tree.all(landmark))) == 1
    levels = [int(heading.tag[1]) for heading in tree.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for node in tree.all(*all_tags(tree)):
        for key in ("aria-labelledby", "aria-describedby"):
            if key in node.attributes:
                assert node.attributes[key] in ids
    for section in tree.all("section", "figure"):
        assert section.attributes.get("aria-labelledby") or section.tag == "figure"
    for svg in tree.all("svg"):
        assert svg.attributes.get("aria-hidden") == "true" or (svg.attributes["role"], len(svg.name) > 40) == (
            "img",
            True,
        )
    for node in tree.all("button", "a", "summary", "img"):
        assert node.name, node.attributes
        assert node.tag == "img" or node.text.strip() in node.name or not node.attributes.get("aria-label")
    for table in tree.all("table"):
        assert next(table.all("caption")).text.strip()
        assert all(head.text.strip() and head.attributes["scope"] in ("col", "row") for head in table.all("th"))
    for region in (node for node in tree.all("div", "pre") if node.attributes.get("tabindex") == "0"):
        assert region.attributes["aria-label"]  # what scrolls can be reached by keys, and says what it is


def all_tags(tree: Node) -> set[str]:
    found: set[str] = set()
    todo = [tree]
    while todo:
        for child in todo.pop().children:
            if isinstance(child, Node):
                found.add(child.tag)
                todo.append(child)
    return found


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's ratio."""

    def light(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(dark: bool) -> None:
    grounds = (INK["ground"][dark], PAGE[dark])
    texts = [INK["text"], INK["soft"], SERIES[0], *VERDICTS.values()]  # the first colour is that of links
    assert min(contrast(text[dark], ground) for text in texts for ground in grounds) >= 4.5
    assert contrast(SERIES[0][dark], grounds[0]) >= 3  # the ring of what has the focus


def test_no_text_has_a_colour_of_the_curves() -> None:
    css = (Path(write_report.__code__.co_filename).parent / "page.css").read_text("utf-8")
    colored = set(re.findall(r"(?<![-\w])color: var\(--([\w]+)\)", css))
    assert colored <= {"text", "soft", "ground", "s0", *VERDICTS}


def test_a_large_page_on_a_phone(made_big: Path, tmp_path: Path) -> None:
    chromium()
    found = use(made_big / "report.html", tmp_path / "profile")
    assert found["errors"] == ""
    for content, window in (found["width"], found["width_after"]):
        assert content <= window, "the page scrolls sideways"
