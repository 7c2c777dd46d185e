"""What the page on privacy says was measured is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commonground.cli.help import SECTIONS

ROOT = Path(__file__).parents[2]
COLUMNS = ("none", "epsilon-8", "epsilon-2")
TABLES = {  # by the beginning of the results' folders: methods with their titles on the pages
    "": {
        "fedrep": "FedRep",
        "fedavg+ft": "FedAvg+FT",
        "fedper": "FedPer",
        "fedrep:body_epochs=0": "FedRep, body never trained",
    },
    "cifar10-": {"fedrep": "FedRep", "fedavg+ft:lr=0.15": "FedAvg+FT"},
}
EXAMPLES = {
    "fedavg+ft": "FedAvg+FT",
    "fedbabu:tune_epochs=10": "FedBABU",
    "fedrep": "FedRep, one epoch on the head",
}


def measured(folder: str, method: str) -> tuple[str, dict[str, Any]]:
    """A method's accuracy as the pages write it, and all that a comparison holds of it."""
    result = json.loads((ROOT / "results" / "privacy" / folder / "comparison.json").read_text("utf-8"))
    entry = next(e for e in result["methods"] if e["method"].removesuffix(",dp_clip=0.1") == method)
    spread = entry["personal_accuracy"]
    wanted = folder.rpartition("epsilon-")[2]
    if wanted.isdecimal():
        assert 0.999 * int(wanted) < entry["privacy"]["epsilon"] <= int(wanted)
    else:
        assert "privacy" not in entry
    return f"{100 * spread['mean']:.1f} ± {100 * spread['std']:.1f}", entry


def rows_of(page: str) -> list[list[str]]:
    lines = (ROOT / page).read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("page", ["docs/PRIVACY.md", "results/privacy/NOTES.md"])
def test_the_table_is_that_of_the_results(page: str, kind: str) -> None:
    rows = rows_of(page)
    for method, title in TABLES[kind].items():
        assert [title, *(measured(f"{kind}{column}", method)[0] for column in COLUMNS)] in rows


def test_single_examples_are_those_of_the_results() -> None:
    rows = [[row[0], *row[2:]] for row in rows_of("results/privacy/NOTES.md")]  # without the passes
    for method, title in EXAMPLES.items():
        none, (private, entry) = measured("examples-none", method)[0], measured("examples-epsilon-8", method)
        assert [title, none, f"{private} (Z = {entry['privacy']['noise']:.3g})"] in rows


def test_every_option_is_on_the_page() -> None:
    page = (ROOT / "docs" / "PRIVACY.md").read_text("utf-8")
    for name in SECTIONS["Privacy"]:
        assert f"--{name.replace('_', '-')}" in page
