"""What notebooks show and take: ``_repr_html_`` and ``to_pandas`` of runs and comparisons."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import commonground as cg
from commonground.compare import Comparison
from commonground.errors import ConfigError, RunError
from commonground.notebook import html_table
from tests.helpers import made_data

DATA = made_data((5, 6, 7), dtype=np.float32, client_names=["<b>one</b>", "two", "=three"])
HOSTILE = "<img src=x onerror=alert(1)>\n'\"&\u202e"


class Page(HTMLParser):
    """A fragment as a browser would take it apart: elements, the table's cells, links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert {name for name, _ in attrs} <= {"style", "href"}
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        self.links += [str(value) for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and not self.links:
            self.rows[-1][-1] += data


def test_a_run_is_a_short_table_with_a_link_to_its_report(tmp_path: Path) -> None:
    folder = tmp_path / "a <b>&'run"
    run = cg.train("fedavg", DATA, rounds=1, out=folder)
    page = Page(run._repr_html_())
    facts = dict(page.rows)
    assert facts["method"] == "fedavg"
    assert facts["personal accuracy"].startswith(f"{run.personal_accuracy['mean']:.4g}")
    assert page.links == []  # there is no report yet
    (folder / "report.html").write_text("")
    page = Page(cg.load_run(folder)._repr_html_())
    assert page.tags == {"table", "tbody", "tr", "th", "td", "p", "a"}
    assert unquote(page.links[0]) == f"file://{folder / 'report.html'}"


def test_names_cannot_act() -> None:
    run = cg.train("fedavg", DATA, rounds=1)
    page = Page(replace(run, config=run.config.model_copy(update={"data": HOSTILE}))._repr_html_())
    assert page.tags == {"table", "tbody", "tr", "th", "td"}
    assert dict(page.rows)["data"] == "<img src=x onerror=alert(1)> '\"&\\u202e, 3 clients"
    cells = Page(html_table([["a" * 1000, HOSTILE]], header=[HOSTILE], title=HOSTILE, bold=[0]))
    assert cells.tags == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert len(cells.rows[1][0]) < 130


def test_the_worst_tenth_of_an_error_is_its_largest() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=6) * scale) for scale in (1, 2, 9)]
    data = cg.FederatedDataset.from_arrays([(*part, *part) for part in parts], task="regression")
    run = cg.train("fedavg", data, rounds=1)
    assert f"worst tenth {run.personal['p90']:.4g}" in dict(Page(run._repr_html_()).rows)["personal rmse"]


def test_a_comparison(tmp_path: Path) -> None:
    made = cg.compare(["fedrep", "fedavg:lr=0.01"], DATA, seeds=2, out=tmp_path, rounds=2, reference="fedavg:lr=0.01")
    for comparison in (made, Comparison.read(tmp_path)):
        page = Page(comparison._repr_html_())
        assert repr(comparison).startswith("<Comparison on made, 2 seeds: FedRep ")
        assert len(repr(comparison)) < 200
        assert page.rows[0][0] == "method"
        assert [row[0] for row in page.rows[1:]] == ["FedRep", "FedAvg (lr=0.01)", "Local Only"]
        assert page.links[0].endswith("report.html")
        methods = comparison.to_pandas()
        assert methods["method"].tolist() == ["fedrep", "fedavg:lr=0.01", "local"]
        assert methods["personal_accuracy_mean"][0] == comparison.result["methods"][0]["personal_accuracy"]["mean"]
        assert len(comparison.to_pandas("runs")) == 6
        clients, rounds = comparison.to_pandas("clients"), comparison.to_pandas("rounds")
        assert len(clients) == 3 * 2 * 3
        assert len(rounds) == 3 * 2 * 2
        mean = clients[(clients["method"] == "fedrep") & (clients["seed"] == 1)]["personal_accuracy"].mean()
        assert mean == pytest.approx(comparison.to_pandas("runs")["personal_accuracy_mean"][1])
        for table in (clients, rounds):
            assert table["global_accuracy"].dtype == np.float64
            assert (table["global_accuracy"].isna() == (table["method"] != "fedavg:lr=0.01")).all()
        assert set(clients["name"]) == set(DATA.client_names or ())
        with pytest.raises(ConfigError, match=r"are methods, runs, clients, rounds, not 'client' \(did you mean 'clie"):
            comparison.to_pandas("client")  # type: ignore[arg-type]
    (tmp_path / "local" / "seed-1" / "config.toml").unlink()
    with pytest.raises(RunError, match=r"seed-1', a run of the comparison, is not there any more"):
        Comparison.read(tmp_path).to_pandas("rounds")


def test_several_functions_hear_of_every_round() -> None:
    heard: list[Any] = []

    def first(row: dict[str, Any]) -> None:
        heard.append(row.pop("round"))  # its own copy

    run = cg.train("fedavg", DATA, rounds=5, on_round=[first, lambda row: row["round"] < 2, heard.append])
    assert run.summary["stopped_after"] == 2
    assert [each if isinstance(each, int) else each["round"] for each in heard] == [1, 1, 2, 2]
    with pytest.raises(ConfigError, match="on_round must be a function of a round's row, not"):
        cg.train("fedavg", DATA, rounds=1, on_round=[first, 3])  # type: ignore[list-item]
