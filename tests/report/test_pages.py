"""The pages: their numbers are the files' numbers, they ask for nothing, and what is wrong is said."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from commonground.engine.state.folder import RunFolder
from commonground.errors import CommonGroundError, RunError
from commonground.report import write_report, write_run_report
from commonground.report.charts import _apart, _power

KINDS = ["run_folder", "comparison_folder", "reproduction_folder", "regression_folder", "regression_comparison"]


class Page(HTMLParser):
    """Every element with its attributes, and all text outside of scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self._inside = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data

    @property
    def numbers(self) -> dict[str, float]:
        """Every number of a table by its key; of equal keys the first."""
        found: dict[str, float] = {}
        for _, attributes in self.elements:
            if "data-key" in attributes and "data-value" in attributes:
                found.setdefault(attributes["data-key"], float(attributes["data-value"]))
        return found


def look_up(value: Any, key: str) -> Any:
    for part in re.findall(r"[^.\[\]]+", key):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def test_numbers_of_a_run_are_those_of_its_summary(run_folder):
    page = Page(write_report(run_folder))
    summary = json.loads((run_folder / "summary.json").read_text())
    keys = ["personal_accuracy.mean", "personal_accuracy.std", "personal_accuracy.p10", "personal_accuracy.min",
            "personal_accuracy.last10", "bytes_up", "bytes_down", "seconds", "peak_rss_bytes"]  # fmt: skip
    for key in keys:
        assert page.numbers[key] == look_up(summary, key), key
    assert "FedRep on digits" in page.text


def test_client_table_has_every_client(run_folder):
    page = Page(write_report(run_folder))
    with (run_folder / "clients.csv").open() as file:
        wanted = [float(row["personal_accuracy"]) for row in csv.DictReader(file)]
    shown = [float(a["data-value"]) for _, a in page.elements if a.get("data-key") == "personal_accuracy"]
    assert shown == wanted


def test_numbers_of_a_comparison_are_those_of_its_file(comparison_folder):
    page = Page(write_report(comparison_folder))
    whole = json.loads((comparison_folder / "comparison.json").read_text())
    assert len(page.numbers) > 20
    for key, value in page.numbers.items():
        assert value == look_up(whole, key), key


def test_seeds_that_reach_the_target_are_counted(comparison_folder):
    path = comparison_folder / "comparison.json"
    whole = json.loads(path.read_text())
    whole["methods"][0]["to_accuracy"] = {"target": 0.3, "bytes": 9, "seconds": 1.0, "rounds": 2, "reached": 1}
    path.write_text(json.dumps(whole))
    page = Page(write_report(comparison_folder))
    assert page.numbers["methods[0].to_accuracy.rounds"] == 2
    assert "2 (1 of 2 seeds)" in page.text
    whole["methods"][0]["to_accuracy"]["reached"] = 2
    path.write_text(json.dumps(whole))
    assert "of 2 seeds)" not in Page(write_report(comparison_folder)).text


def test_numbers_of_a_reproduction_are_those_of_its_files(reproduction_folder):
    page = Page(write_report(reproduction_folder))
    shown: dict[str, list[float]] = {}  # of the paper's table first, then of the claims
    for _, attributes in page.elements:
        key = attributes.get("data-key", "")
        if "data-value" in attributes and re.match(r"\[\d+\]\.(paper|measured|low)$", key):
            shown.setdefault(key, []).append(float(attributes["data-value"]))
    cells, claims = (json.loads((reproduction_folder / f"{n}.json").read_text()) for n in ("cells", "results"))
    assert [look_up(each, "[0].paper") for each in (cells, claims)] == shown["[0].paper"]
    for key, values in shown.items():
        assert values[-1] == look_up(claims, key), key
    assert {"[0].paper", "[0].measured", "methods[0].personal_accuracy.mean"} <= set(page.numbers)
    assert "1 of 2" in page.text  # of the judged claims hold
    assert "Comparison: digits" in page.text


def test_a_reproduction_is_reported_from_its_one_whole_file_as_from_the_parts(reproduction_folder):
    parts = {n: json.loads((reproduction_folder / f"{n}.json").read_text()) for n in ("results", "cells")}
    about = {"title": "a table", "command": "commonground reproduce a-table", "minutes": 1.5}
    whole = about | {"claims": parts["results"], "cells": parts["cells"]}
    (reproduction_folder / "reproduction.json").write_text(json.dumps(whole))
    before = Page(write_report(reproduction_folder))
    for name in parts:
        (reproduction_folder / f"{name}.json").unlink()
    after = Page(write_report(reproduction_folder))
    assert after.text == before.text.replace("results.json", "reproduction.json").replace("cells", "reproduction")
    assert {"claims[0].paper", "claims[0].measured", "claims[0].low"} <= set(after.numbers)
    for key, value in after.numbers.items():
        if key.startswith(("claims[", "cells[")):
            assert value == look_up(whole, key), key


@pytest.mark.parametrize("claims", [None, {}, [1]])
def test_a_reproduction_without_claims_is_damaged(claims, tmp_path):
    (tmp_path / "reproduction.json").write_text(json.dumps({"claims": claims}))
    with pytest.raises(RunError, match=r"reproduction\.json' is damaged"):
        write_report(tmp_path)


def test_a_table_of_one_seed_shows_no_range_no_share_and_no_minutes_of_its_last_command(tmp_path):
    claim = {"claim": "FLUTE above FedRep", "paper": 0.88, "measured": 0.55, "low": 0.55, "high": 0.55, "seeds": 1}
    whole = {"command": "commonground reproduce flute-table1", "minutes": 0.0, "claims": [claim | {"holds": None}]}
    (tmp_path / "reproduction.json").write_text(json.dumps(whole))
    assert "(0.0 minutes on" in Page(write_report(tmp_path)).text
    (tmp_path / "cells.csv").write_text("column,method\n")
    text = Page(write_report(tmp_path)).text
    assert "0.55 to 0.55" not in text
    assert "0 of 0" not in text
    claims = [
        claim | {"claim": f"FLUTE above {of} on CIFAR-10 (50, {n})"} for of in ("FedRep", "FedPer") for n in (2, 5)
    ]
    (tmp_path / "reproduction.json").write_text(json.dumps(whole | {"claims": claims}))
    assert "Claims, counted" not in Page(write_report(tmp_path)).text  # a column's name is not cut at its comma
    (tmp_path / "reproduction.json").write_text(json.dumps(whole))
    assert "0.0 minutes" not in text
    assert "Asked for last: commonground reproduce flute-table1" in text


def test_a_method_s_leads_are_counted_by_column_and_reading_behind_the_table(tmp_path):
    names, columns = ("FLUTE*, head first", "FedRep", "FedAvg-FT, all layers"), ("A (50, 2)", "A (50, 5)")
    cells = [{"column": c, "method": m, "paper": 80.0, "measured": 81.0} for c in columns for m in names]
    claims = [
        {"claim": f"{names[0]} above {rival} on {column}{read}", "measured": 1.0, "seeds": 3, "holds": holds}
        for column in columns
        for rival, holds in ((names[1], True), (names[2], False))
        for read in ("", ", tested on bodies just trained")
    ]
    (tmp_path / "reproduction.json").write_text(json.dumps({"claims": claims, "cells": cells}))
    text = Page(write_report(tmp_path)).text
    for said in ("A (50, 2)", "A (50, 2), tested on bodies just trained", "A (50, 5)"):
        lead = re.escape(f"FLUTE*, head first above the others on {said}")
        assert re.search(rf"{lead}\s*2\s*1\s*1\s*0", text)
    assert text.index("The paper's table") < text.index("Claims, counted")


def test_claims_and_their_counts_stand_before_the_figures(reproduction_folder):
    claim = json.loads((reproduction_folder / "results.json").read_text())[0]
    verdicts = [True, False, None, True]
    claims = [claim | {"claim": f"FedRep is ahead, n = {n}", "holds": v} for n, v in enumerate(verdicts)]
    claims += [claim | {"claim": f"It converges: within {n} rounds"} for n in range(4)]
    (reproduction_folder / "results.json").write_text(json.dumps(claims))
    line = {"x": [1, 2], "mean": [0.1, 0.2]}
    figure = {"x": "round", "y": "distance", "lines": {"FedRep": line}, "percent": False}
    (reproduction_folder / "reproduction.json").write_text(json.dumps({"curves": {"a figure": figure}}))
    text = Page(write_report(reproduction_folder)).text
    places = [
        text.index(part) for part in ("Claims, counted", "FedRep is ahead, n = 0", "as they come out here", "A figure")
    ]
    assert places == sorted(places)
    assert re.search(r"FedRep is ahead\s*4\s*2\s*1\s*1\s*It converges\s*4\s*4\s*0\s*0", text)
    # Claims that share nothing are not counted.
    (reproduction_folder / "results.json").write_text(json.dumps(claims[3:5]))
    assert "Claims, counted" not in Page(write_report(reproduction_folder)).text


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_small_and_asks_for_nothing(kind, request):
    path = write_report(request.getfixturevalue(kind))
    text, page = path.read_text("utf-8"), Page(path)
    assert len(text) < 300_000
    assert set(re.findall(r"https?://[^\"'\s<)]+", text)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    for tag, attributes in page.elements:
        for name in ("src", "href", "data", "poster", "action"):
            value = attributes.get(name)
            if value and tag != "a":
                assert value.startswith(("#", "data:")), (tag, name, value)
            elif value and value.startswith("#"):
                assert f'id="{value[1:]}"' in text, value
            elif value:
                assert (path.parent / value).is_file(), value
    assert "@import" not in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_has_picture_values_explanation_and_source(kind, request):
    path = write_report(request.getfixturevalue(kind))
    text = path.read_text("utf-8")
    figures = re.findall(r'<figure class="card" id="figure-([^"]+)"[^>]*>(.*?)</figure>', text, re.DOTALL)
    assert len(figures) >= 4
    for name, body in figures:
        assert (path.parent / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        with (path.parent / "figures" / f"{name}.csv").open() as file:
            rows = list(csv.reader(file))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1
        assert re.search(r"<p>[A-Z][^<]{30,}\.</p>", body), f"{name} has no explanation"
        assert re.search(r"<figcaption>From <code>[^<]+\.(json|jsonl|csv)</code>", body), f"{name} names no file"
        assert "#0072b2" not in body  # colours are variables, so that light and dark both fit
        svg = re.search(r"<svg.*?</svg>", body, re.DOTALL)
        assert svg is not None
        ElementTree.fromstring(svg[0])  # well-formed


def test_curve_values_are_those_of_the_rounds(run_folder):
    write_report(run_folder)
    rounds = [json.loads(line) for line in (run_folder / "rounds.jsonl").read_text().splitlines()]
    with (run_folder / "figures" / "accuracy.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(r["accuracy"]) for r in rows] == [r["personal_accuracy"] for r in rounds]
    with (run_folder / "figures" / "accuracy-bytes.csv").open() as file:
        sent = [float(r["sent by clients"]) for r in csv.DictReader(file)]
    assert sent == [sum(r["bytes_up"] for r in rounds[: i + 1]) for i in range(len(rounds))]


def settled(folder: Path) -> Path:
    """A run's folder whose files, changed by hand, count as what the run wrote."""
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("sha256")
    RunFolder(folder).write_summary(summary)
    return folder


def test_metrics_of_any_name_get_a_figure(run_folder):
    path = run_folder / "rounds.jsonl"
    rows = [
        json.loads(line) | {"global_nc2": 0.5, "my_thing": i} for i, line in enumerate(path.read_text().splitlines())
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = Page(write_report(settled(run_folder))).text
    assert "Global NC2" in text
    assert "neural collapse" in text
    assert "My thing" in text


def test_missing_values_and_not_a_number_are_left_out(run_folder):
    path = run_folder / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["personal_accuracy"] = None
    rows[1]["train_loss"] = float("nan")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(settled(run_folder)).read_text("utf-8")
    assert "NaN" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert (run_folder / "figures" / "loss.csv").read_text().count("\n") == len(rows)


def test_text_from_files_cannot_become_markup(run_folder):
    path = run_folder / "summary.json"
    evil = "<script>alert(1)</script>$x_{&\"'"
    summary = json.loads(path.read_text()) | {"data": evil, "model": evil}
    path.write_text(json.dumps(summary))
    split = json.loads((run_folder / "split.json").read_text())
    split["class_names"] = ["</script><script>alert(1)</script>$a$"] * len(split["class_names"])
    (run_folder / "split.json").write_text(json.dumps(split))
    text = write_report(settled(run_folder)).read_text("utf-8")
    assert "<script>alert" not in text
    assert text.count("</script>") == text.count("<script")


def test_many_clients_are_thinned_out(run_folder):
    count = 1000
    header, first, *_ = (run_folder / "clients.csv").read_text().splitlines()
    lines = [f"{i},{i},{first.split(',', 2)[2]}" for i in range(count)]
    (run_folder / "clients.csv").write_text("\n".join([header, *lines]) + "\n")
    split = {"class_names": ["a", "b"], "train": [[i, 1] for i in range(count)]}
    (run_folder / "split.json").write_text(json.dumps(split))
    page = Page(write_report(settled(run_folder)))
    assert "200 of 1,000 clients" in page.text
    assert (run_folder / "report.html").stat().st_size < 300_000
    header_row = (run_folder / "figures" / "split.csv").read_text().splitlines()[0].split(",")
    assert header_row[1] == "0"
    assert header_row[-1] == "999"


def test_a_split_can_be_given(run_folder):
    (run_folder / "split.json").unlink()
    assert "Who holds which classes" not in Page(write_run_report(settled(run_folder))).text
    given = {"class_names": ["a", "b"], "train": [[1, 2]] * 6}
    assert "Who holds which classes" in Page(write_run_report(run_folder, split=given)).text
    with pytest.raises(RunError, match="one count per class"):
        write_run_report(run_folder, split={"class_names": ["a"], "train": [[1, 2]]})


def test_writing_twice_gives_the_same_page(run_folder):
    first = write_report(run_folder).read_bytes()
    assert write_report(run_folder).read_bytes() == first


def test_comparison_copes_with_what_is_missing(comparison_folder):
    path = comparison_folder / "comparison.json"
    whole = json.loads(path.read_text())
    slim = {"methods": [{"algorithm": m["algorithm"], "personal_accuracy": {"mean": m["personal_accuracy"]["mean"]},
                         "runs": m["runs"]} for m in whole["methods"]]}  # fmt: skip
    slim["methods"][0]["runs"] = ["nowhere/seed-0"]
    path.write_text(json.dumps(slim))
    text = Page(write_report(comparison_folder)).text
    assert "FedRep" in text  # its title, from its name
    assert "nowhere/seed-0" in text


@pytest.mark.parametrize(("within", "said"), [(0.0, None), (0.00004, "0.001"), (0.0123, "0.013")])
def test_how_exact_a_figure_of_all_rows_is(run_folder, within, said):
    path = run_folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["metrics"]["auc"]["over_rows_within"] = within
    path.write_text(json.dumps(summary))
    page = write_report(settled(run_folder)).read_text("utf-8")
    assert ("made of counts in bins" in page) is (said is not None)
    assert said is None or f"AUC over all rows is made of counts in bins, exact to {said}." in page


def damage(folder: Path, name: str, text: str | None) -> None:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("summary.json", None, "not finished.*--resume"),
        ("summary.json", "{", "summary.json' is damaged"),
        ("summary.json", "[]", "should hold a JSON object"),
        ("summary.json", "{}", "personal_accuracy"),
        ("rounds.jsonl", '{"round": 1}\n{"rou', "rounds.jsonl' is damaged in line 2"),
        ("rounds.jsonl", None, "holds no rounds.*there is no rounds.jsonl"),
        ("clients.csv", "a,b\n1,2\n", "clients.csv' is damaged"),
        ("config.toml", "= 3", "config.toml' is damaged"),
        ("split.json", '{"train": 3}', "split.json' should hold"),
    ],
)
def test_damaged_files_are_named_in_one_sentence(run_folder, name, text, sentence):
    damage(run_folder, name, text)
    with pytest.raises(RunError, match=sentence) as error:
        write_report(run_folder)
    assert "\n" not in str(error.value)
    assert not (run_folder / "report.html").exists()


@pytest.mark.parametrize(
    ("kind", "name", "text", "sentence"),
    [
        ("comparison_folder", "comparison.json", '{"methods": []}', "list of methods"),
        ("comparison_folder", "comparison.json", '{"methods": [{}]}', "method 1"),
        ("comparison_folder", "fedrep/seed-0/clients.csv", "", "clients.csv' is damaged"),
        ("reproduction_folder", "results.json", '[{"paper": 1}]', "entry 1 has no claim"),
        ("reproduction_folder", "cells.json", "[1]", "one per cell"),
    ],
)
def test_damaged_comparisons_and_reproductions_too(kind, name, text, sentence, request):
    folder = request.getfixturevalue(kind)
    damage(folder, name, text)
    with pytest.raises(RunError, match=sentence):
        write_report(folder)


def test_a_folder_of_another_kind_is_refused(tmp_path):
    with pytest.raises(CommonGroundError, match="neither a run"):
        write_report(tmp_path)
    with pytest.raises(CommonGroundError, match="there is no folder"):
        write_report(tmp_path / "nowhere")


def test_ticks_of_a_logarithmic_axis_are_readable() -> None:
    assert [_power(v) for v in (1e-16, 1e-3, 1.0, 20.0, 1e4, 1e5)] == ["10⁻¹⁶", "0.001", "1", "20", "10000", "10⁵"]


def test_few_values_of_a_logarithmic_axis_are_its_ticks() -> None:
    assert _apart({64.0, 1.0, 4.0, 16.0}) == [1.0, 4.0, 16.0, 64.0]
    assert _apart({0.25, 0.125, 0.0625, 0.03125}) == [0.03125, 0.0625, 0.125, 0.25]
    assert _apart({1.0, 2.0, 3.0, 1000.0}) == ()  # 2 and 3 would lie on each other
    assert _apart({float(x) for x in range(1, 100)}) == ()
    assert _apart({5.0}) == _apart({0.0, 1.0}) == ()
