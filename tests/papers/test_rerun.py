"""Cells of a table are measured again, and compared digit by digit."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commonground.cli import main
from commonground.errors import ConfigError, RunError
from commonground.papers import experiments
from commonground.papers.experiment import Experiment
from commonground.papers.summary import write_summary
from commonground.papers.tables.cells import CELLS, CellStore
from commonground.papers.tables.judge import run_table
from commonground.papers.tables.rerun import Again, draw_runs, measured_again, rerun, rerun_table
from commonground.papers.tables.rerun_file import ALIKE, FILE, ORIGIN, OTHER, OTHER_WEIGHTS, in_words, read_reruns
from tests.papers.small_table import COLUMN, TABLE, request


@pytest.fixture(autouse=True, scope="module")
def _known() -> Iterator[None]:
    Experiment("a-table", "title", "a paper", lambda asked: run_table(TABLE, asked), table=TABLE)
    yield
    del experiments["a-table"]


@pytest.fixture(scope="module")
def measured(_known: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of FedRep, APFL and FedAvg, by the command."""
    folder = tmp_path_factory.mktemp("measured")
    command = ["reproduce", "a-table", "--scale", "paper", "--seeds", "2", "--methods", "fedrep,apfl,fedavg"]
    assert main([*command, "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def table(measured: Path, tmp_path: Path) -> Path:
    """A copy of what was measured, to change."""
    return shutil.copytree(measured, tmp_path / "table")


def change(folder: Path, **values: str) -> None:
    """Change every cell of a folder."""
    lines = list(csv.DictReader((folder / CELLS).read_text().splitlines()))
    with (folder / CELLS).open("w") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows({**line, **values} for line in lines)


def test_the_command(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "--rerun", str(table), "--runs", "9", "--out", str(tmp_path / "again")]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "8 of 8 cells are the same to the last digit, final weights included" in told
    assert len(CellStore(tmp_path / "again")) == 8  # six runs, of which two have two cells
    change(table, global_last10="0.125", processor="an abacus")
    assert main(command) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "0 of 8 cells are the same" in told
    assert "12.5" in told
    off = [one.off for one in measured_again(table, tmp_path / "again") if one.off]
    assert f"the others are up to {100 * max(map(abs, off)):.2f} points off" in told


def test_what_is_kept_of_all_draws(table: Path, tmp_path: Path) -> None:
    again, command = tmp_path / "again", ["reproduce", "--rerun", str(table), "--quiet"]
    for method, seed in (("fedrep", "0"), ("apfl", "1"), ("apfl", "1")):  # the last is there already
        assert main([*command, "--methods", method, "--seed", seed, "--out", str(again)]) == 0
    rows = read_reruns(again)
    assert [row["method"] for row in rows] == ["FedRep", "APFL"]
    assert {row["the same"] for row in rows} == {ALIKE}
    for row in rows:
        both = [cell.personal_last10 or 0.0 for cell in CellStore(table).all() if cell.method == row["method"]]
        assert float(row["over seeds"]) == pytest.approx(100 * abs(both[0] - both[1]) / 2**0.5, abs=0.005)
    shutil.copy(again / FILE, table / FILE)
    _, readme = write_summary(table.parent)[:2]
    text = readme.read_text()
    assert "Measured again, 2 of 2 cells are the same to the last digit, final weights included." in text
    assert "## Cells measured again" in text
    assert f"| a paper | {COLUMN.label} | APFL |" in text


def test_the_words_say_how_far_off_the_furthest_is() -> None:
    same = {"the same": ALIKE, "off by": "0.0000", "over seeds": "0.50"}
    off = {"the same": OTHER, "off by": "-0.3900", "over seeds": "0.37"}
    near = {"the same": OTHER, "off by": "0.1000", "over seeds": "9.00"}
    assert in_words([same, near, off]) == (
        "1 of 3 cells are the same to the last digit, final weights included; the others are up to 0.39 points off, "
        "where that cell's seeds differ by 0.37 (standard deviation)"
    )
    assert in_words([off | {"over seeds": "–"}]).endswith("up to 0.39 points off")
    weights = {"the same": OTHER_WEIGHTS, "off by": "0.0000", "over seeds": "0.37"}
    assert in_words([weights]) == "0 of 1 cells are the same to the last digit, final weights included"
    assert "points" not in in_words([off | {"off by": "–"}])  # one of the two diverged


def test_a_damaged_file_of_reruns(tmp_path: Path) -> None:
    assert read_reruns(tmp_path) == []
    for text in (
        "column,method\na,b\n",
        "column,method,change,seed,kept (%),now (%),off by,over seeds,the same\na,b\n",
    ):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(RunError, match="is damaged: a line has too few or too many cells"):
            read_reruns(tmp_path)
    (tmp_path / FILE).write_bytes(b"\xff")
    with pytest.raises(RunError, match="is not readable"):
        read_reruns(tmp_path)


def test_other_weights_with_the_same_accuracies(table: Path, tmp_path: Path) -> None:
    change(table, weights_sha256="ab" * 32, threads="7")
    assert main(["reproduce", "--rerun", str(table), "--methods", "apfl", "--out", str(tmp_path / "again")]) == 0
    found, notes = rerun(table, request(tmp_path / "again", methods=("apfl",)), 5)
    assert not notes
    assert [(one.same, one.same_accuracies) for one in found] == [(False, True)] * 2
    assert found[0].changed == ["threads 1 instead of 7"]
    lines = rerun_table(found).rows
    assert {line["the same"] for line in lines} == {"to the last digit; other weights"}
    assert lines[0]["kept (%)"] == lines[0]["now (%)"] == f"{100 * (found[0].before.personal_last10 or 0):.4f}"


def test_what_is_drawn_hangs_on_the_seed(table: Path, tmp_path: Path) -> None:
    store, drawn = CellStore(table), set()
    for seed in range(12):
        runs, _ = draw_runs(TABLE, store, request(tmp_path, seed=seed), 1)
        again, _ = draw_runs(TABLE, store, request(tmp_path, seed=seed), 3)
        assert runs == again[:1]
        assert len({kept[0].weights_sha256 for _, kept in again}) == 3
        drawn.add(runs[0][0].cells()[0])
    assert len(drawn) > 3  # of six runs
    few, _ = draw_runs(TABLE, store, request(tmp_path, methods=("fedavg+ft",)), 9)
    assert [[cell.method for cell in kept] for _, kept in few] == [["FedAvg+FT"]] * 2


def test_what_is_drawn_fits_into_the_minutes(table: Path, tmp_path: Path) -> None:
    change(table, minutes="30.0")
    store = CellStore(table)
    cell = store.get((COLUMN.label, "APFL", "", 1))
    assert cell is not None
    store.add(replace(cell, minutes=1.5), store.clients(cell.key), {})
    for minutes, fits in ((2.0, 1), (30.0, 1), (31.5, 2), (62.0, 3)):
        for seed in range(5):
            runs, notes = draw_runs(TABLE, store, request(tmp_path, minutes=minutes, seed=seed), 9)
            assert sum(kept[0].minutes for _, kept in runs) <= minutes
            assert len(runs) == fits
            assert "passed over, since they took longer than is left of the minutes" in notes[0]
    assert draw_runs(TABLE, store, request(tmp_path, minutes=200.0), 9)[1] == []
    with pytest.raises(RunError, match="holds no such cells that take so few minutes"):
        draw_runs(TABLE, store, request(tmp_path, minutes=1.0), 9)


def test_what_cannot_be_measured_again(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunError, match="has these cells already; name another --out"):
        rerun(table, request(table), 1)
    with pytest.raises(RunError, match="holds no such cells"):
        rerun(table, request(tmp_path / "out", variants=("bf16",)), 1)
    with pytest.raises(ConfigError, match="no method 'fedrap'"):
        rerun(table, request(tmp_path / "out", methods=("fedrap",)), 1)
    change(table, device="cuda:0")
    with pytest.raises(ConfigError, match="PyTorch sees no CUDA GPU here"):
        rerun(table, request(tmp_path / "out"), 1)
    for more in (["fedrep-table1"], ["--set", "rounds=2"], ["--device", "auto"], ["--seeds", "2"]):
        assert main(["reproduce", *more, "--rerun", str(table), "--out", str(tmp_path / "out")]) == 2
        assert "--rerun takes experiment, settings and device from the cells" in capsys.readouterr().err
    assert main(["reproduce", "--rerun", str(table)]) == 2
    assert "--out is missing" in capsys.readouterr().err
    assert main(["reproduce", "--rerun", str(tmp_path), "--out", str(tmp_path / "out")]) == 2


def test_a_cell_without_a_value_is_the_same_if_it_has_none_again(table: Path) -> None:
    cell = CellStore(table).all()[0]
    gone = replace(cell, personal_last10=None, personal_final=None, best=None, diverged="no finite number")
    assert Again(gone, gone, None, None).same
    assert not Again(cell, gone, 0.5, None).same_accuracies
    assert not Again(cell, cell, 0.5, 0.6).same_accuracies  # of participants, whose accuracy the curve has alone
    assert rerun_table([Again(gone, gone, None, None)]).rows[0]["now (%)"] == "–"


def test_what_is_measured_again_is_computed_as_before(table: Path, tmp_path: Path) -> None:
    change(table, precision="bf16")
    found, _ = rerun(table, request(tmp_path / "again", methods=("apfl",)), 1)
    assert found[0].now.precision == "bf16"
    assert "--precision bf16" in found[0].now.command


def test_a_folder_s_own_scale_and_settings_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "other-rate"
    command = ["reproduce", "a-table", "--scale", "paper", "--seeds", "1", "--methods", "fedrep", "--quiet"]
    assert main([*command, "--set", "lr=0.02", "--out", str(folder)]) == 0
    found, _ = rerun(folder, request(tmp_path / "again", scale="small"), 1)
    assert (found[0].now.scale, found[0].same) == ("paper", True)
    assert "--set lr=0.02" in found[0].now.command


def test_only_what_is_asked_for_is_told_of_a_run_with_several_cells(table: Path, tmp_path: Path) -> None:
    found, _ = rerun(table, request(tmp_path / "again", methods=("fedavg+ft",)), 1)
    assert [one.before.method for one in found] == ["FedAvg+FT"]


@pytest.fixture
def again(table: Path, tmp_path: Path) -> Path:
    """APFL's first seed of the table, measured again."""
    assert main(["reproduce", "--rerun", str(table), "--methods", "apfl", "--quiet", "--out", str(tmp_path / "a")]) == 0
    return tmp_path / "a"


def about(folder: Path, **values: object) -> None:
    """Change what a table's folder says of itself."""
    file = folder / "reproduction.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("of", "named"),
    [
        ({"set": ["lr=0.02"]}, "a-table --scale paper --set lr=0.02"),
        ({"scale": "small"}, "a-table --scale small"),
        ({"experiment": "b-table"}, "b-table --scale paper"),
    ],
)
def test_cells_of_another_table_are_not_compared(
    table: Path, again: Path, of: dict[str, object], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may have the same labels and names; with the record, and without it, as earlier versions left them."""
    other = replace(TABLE, name="b-table")
    Experiment("b-table", "title", "a paper", lambda asked: run_table(other, asked), table=other)
    try:
        about(table, **of)
        kept = (again / FILE).read_bytes()
        said = f"a' holds a-table --scale paper, and not {named}; choose another --out"
        for record in (True, False):
            if not record:
                (again / ORIGIN).unlink()
            assert main(["reproduce", "--rerun", str(table), "--methods", "apfl", "--out", str(again)]) == 2
            assert said in " ".join(capsys.readouterr().err.split())
            with pytest.raises(RunError, match=said):
                measured_again(table, again)
        assert (again / FILE).read_bytes() == kept
        assert not (again / ORIGIN).exists()
    finally:
        del experiments["b-table"]


def test_a_folder_says_whose_cells_it_is_for_before_it_has_any(table: Path, tmp_path: Path) -> None:
    again, asked = tmp_path / "again", request(tmp_path / "again", methods=("apfl",))
    change(table, minutes="0.0")  # so that it is drawn however few the minutes are
    _, notes = rerun(table, replace(asked, minutes=1e-9), 1)
    assert "Time ran out" in notes[0]
    assert json.loads((again / ORIGIN).read_text()) == {"experiment": "a-table", "scale": "paper", "set": []}
    about(table, set=["lr=0.02"])
    with pytest.raises(
        RunError, match=r"again' holds a-table --scale paper, and not a-table --scale paper --set lr=0\.02"
    ):
        rerun(table, asked, 1)
    (again / ORIGIN).unlink()  # empty, as an earlier version left it
    assert rerun(table, asked, 1)[0]
    about(table, set=[])
    with pytest.raises(RunError, match=r"holds a-table --scale paper --set lr=0\.02, and not a-table --scale paper;"):
        measured_again(table, again)


def test_a_folder_put_together_from_several_is_compared_as_a_whole(table: Path, again: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert main(["reproduce", "--rerun", str(table), "--methods", "fedrep", "--quiet", "--out", str(other)]) == 0
    (other / ORIGIN).unlink()  # one by an earlier version
    merged, theirs = CellStore(tmp_path / "merged"), [CellStore(again), CellStore(other)]
    for store in theirs:
        for cell in store.all():
            merged.add(cell, store.clients(cell.key), store.curves(cell.column).get(cell.key, {}))
    found = measured_again(table, merged.folder)
    assert {one.before.method for one in found} == {"APFL", "FedRep"}
    assert len(found) == sum(map(len, theirs))
    assert rerun(table, request(merged.folder, methods=("apfl",)), 1)[0]  # and goes on
    assert (merged.folder / ORIGIN).is_file()
    change(merged.folder, command="")
    with pytest.raises(RunError, match="merged' holds cells that do not say of which table they are, and not a-table"):
        measured_again(table, merged.folder)


def test_a_table_s_own_folder_is_none_for_another_s_cells(table: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    shutil.copy(table / "reproduction.json", tmp_path / "own")
    about(tmp_path / "own", experiment="rolora-fig3")
    with pytest.raises(RunError, match="own' holds rolora-fig3 --scale paper, and not a-table --scale paper;"):
        rerun(table, request(tmp_path / "own"), 1)


def test_cells_whose_variant_a_setting_has_undone_are_measured_as_they_were(tmp_path: Path) -> None:
    """Earlier versions let it; such a folder's other cells are drawn as well."""
    folder = tmp_path / "t"
    command = ["reproduce", "a-table", "--scale", "paper", "--seeds", "1", "--methods", "apfl", "--quiet"]
    assert main([*command, "--set", "lr=0.02", "--out", str(folder)]) == 0
    change(folder, variant="lr-0.03")
    (one,), _ = rerun(folder, request(tmp_path / "again"), 1)
    assert (one.now.variant, one.before.weights_sha256) == ("lr-0.03", one.now.weights_sha256)
