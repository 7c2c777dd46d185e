"""The pages in a real browser, as wide as a phone."""

from __future__ import annotations

import json

import pytest

from commonground.report import write_report
from tests.report.browser import chromium, use


@pytest.mark.parametrize(
    "kind", ["run_folder", "comparison_folder", "reproduction_folder", "regression_folder", "regression_comparison"]
)
def test_page_works_on_a_phone(kind, request, tmp_path):
    chromium()
    folder = request.getfixturevalue(kind)
    found = use(write_report(folder), tmp_path / "profile")
    assert found["errors"] == ""
    assert found["requests"] == []
    for content, window in (found["width"], found["width_after"]):
        assert content <= window, "the page scrolls sideways"
    assert found["theme"][1] in ("light", "dark")
    for column in found["sorted"]:
        values = [float(value) for value in column if value is not None]
        assert values == sorted(values, reverse=True)
        assert None not in column[: len(values)]  # what is empty comes last
    assert len(found["tips"]) >= 4
    for text, _, hidden_again in found["tips"]:
        assert any(c.isdigit() for c in text)
        assert hidden_again
    copies = {"comparison_folder": 4, "regression_comparison": 4, "reproduction_folder": 6}
    assert len(found["copies"]) == copies.get(kind, 0)
    assert all(selected.strip() == text.strip() for selected, text in found["copies"])
    assert any(text != moved for text, moved, _ in found["tips"])  # the arrow keys move on


def test_numbers_the_browser_shows_are_those_of_the_summary(run_folder, tmp_path):
    chromium()
    found = use(write_report(run_folder), tmp_path / "profile")
    summary = json.loads((run_folder / "summary.json").read_text())
    shown = {key: (float(value), text) for key, value, text in found["cells"] if value is not None}
    for part in ("mean", "std", "p10", "min", "last10"):
        value, text = shown[f"personal_accuracy.{part}"]
        assert value == summary["personal_accuracy"][part]
        assert text == f"{100 * value:.1f} %"
    # The tip under the pointer tells the round's exact value.
    rounds = [json.loads(line) for line in (run_folder / "rounds.jsonl").read_text().splitlines()]
    heading, value_line, *_ = found["tips"][0][0].split("\n")
    row = next(r for r in rounds if f"round {r['round']}" == heading)
    assert f"{100 * row['personal_accuracy']:.2f} %" in value_line


def test_numbers_of_regression_are_shown_in_their_own_unit(regression_folder, tmp_path):
    chromium()
    found = use(write_report(regression_folder), tmp_path / "profile")
    rounds = [json.loads(line) for line in (regression_folder / "rounds.jsonl").read_text().splitlines()]
    heading, value_line, *_ = found["tips"][0][0].split("\n")
    row = next(r for r in rounds if f"round {r['round']}" == heading)
    assert float(value_line.split()[-1]) == pytest.approx(row["personal_rmse"], rel=1e-4)
    assert all("%" not in text for _, _, text in found["cells"])
