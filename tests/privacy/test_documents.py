"""What the page on privacy says was measured is what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commonground.cli_help import SECTIONS

ROOT = Path(__file__).parents[2]
COLUMNS = ("none", "epsilon-8", "epsilon-2")
ROWS = {
    "fedrep": "FedRep",
    "fedavg+ft": "FedAvg+FT",
    "fedper": "FedPer",
    "fedrep:body_epochs=0": "FedRep, body never trained",
}


@pytest.mark.parametrize("page", ["docs/PRIVACY.md", "results/privacy/NOTES.md"])
def test_the_table_is_that_of_the_results(page: str) -> None:
    lines = (ROOT / page).read_text("utf-8").splitlines()
    for label, title in ROWS.items():
        cells = []
        for column in COLUMNS:
            result = json.loads((ROOT / "results" / "privacy" / column / "comparison.json").read_text("utf-8"))
            entry = next(e for e in result["methods"] if e["method"].removesuffix(",dp_clip=0.1") == label)
            spread = entry["personal_accuracy"]
            cells.append(f"{100 * spread['mean']:.1f} ± {100 * spread['std']:.1f}")
            assert (column == "none") == ("privacy" not in entry)
            if column != "none":
                wanted = float(column.removeprefix("epsilon-"))
                assert 0.999 * wanted < entry["privacy"]["epsilon"] <= wanted
        (line,) = (each for each in lines if each.startswith(f"| {title} |"))
        assert [cell.strip() for cell in line.split("|")[2:-1]] == cells


def test_every_option_is_on_the_page() -> None:
    page = (ROOT / "docs" / "PRIVACY.md").read_text("utf-8")
    for name in SECTIONS["Privacy"]:
        assert f"--{name.replace('_', '-')}" in page
