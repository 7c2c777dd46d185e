"""A run that would go on with other threads, precision or device says so, and does it only if it is asked to."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import commonground as cg
from commonground.cli import main
from commonground.engine.state.folder import RunFolder
from commonground.errors import RunError
from tests.helpers import SMALL, made_data

SETTINGS: dict[str, Any] = SMALL | {"rounds": 6, "model": "mlp", "device": "auto"}


def go(out: Path, **changes: Any) -> cg.Run:
    return cg.train("fedrep", made_data(), out=out, **(SETTINGS | changes))


def stopped(out: Path) -> Path:
    go(out, on_round=lambda row: row["round"] < 3)
    return out


@pytest.mark.parametrize(("setting", "value"), [("threads", 2), ("precision", "bf16"), ("device", "cpu")])
def test_another_setting_needs_the_flag(setting: str, value: Any, tmp_path: Path) -> None:
    stopped(tmp_path)
    said = rf"was started with {setting} = .*, not {value!r}; .* accept other numbers with --allow-other-numerics"
    with pytest.raises(RunError, match=said):
        go(tmp_path, resume=True, **{setting: value})
    run = go(tmp_path, resume=True, allow_other_numerics=True, **{setting: value})
    assert run.summary["rounds"] == 6
    assert run.summary[setting] == value
    assert tomllib.loads((tmp_path / "config.toml").read_text())[setting] == value
    assert cg.load_run(tmp_path).summary == run.summary
    again = go(tmp_path, resume=True, **{setting: value})  # it is this run's setting now
    assert again.summary == run.summary
    # The same device by another name changes no number.
    assert ("numerics_changed" in run.summary) == (setting != "device")


@pytest.mark.parametrize("change", [{"engine": "batched"}, {"threads": 2}, {"lr": 0.5}, {"engine": "messages"}])
@pytest.mark.parametrize("finished", [False, True])
def test_a_refusal_leaves_the_folder_as_it_is(finished: bool, change: dict[str, Any], tmp_path: Path) -> None:
    if finished:
        go(tmp_path, rounds=3)
    else:
        stopped(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunError):
        go(tmp_path, resume=True, **change)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert len(cg.load_run(tmp_path).history) == 3


def test_the_summary_says_from_where_on(tmp_path: Path) -> None:
    stopped(tmp_path)
    heard: list[str] = []

    class Ear:
        def note(self, text: str) -> None:
            heard.append(text)

    run = go(tmp_path, resume=True, threads=2, workers=1, allow_other_numerics=True, observer=Ear())
    before, after = run.summary["numerics_changed"]
    assert (before["after_round"], before["threads"], after["after_round"], after["threads"]) == (0, 1, 3, 2)
    assert heard == [
        "from round 4 on the run computes with threads 2 instead of 1: its numbers are not those of an unbroken run"
    ]
    assert json.loads((tmp_path / "summary.json").read_text())["numerics_changed"] == [before, after]


def test_other_settings_stay_refused_with_the_flag(tmp_path: Path) -> None:
    stopped(tmp_path)
    with pytest.raises(RunError, match="was started with lr = "):
        go(tmp_path, resume=True, lr=0.2, allow_other_numerics=True)


def test_another_processor_under_the_same_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` is another device on another machine, and kernels differ between kinds of processors."""
    stopped(tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")
    with pytest.raises(
        RunError, match=r"would go on with device cpu \(OTHER\) instead of cpu \(.*allow-other-numerics"
    ):
        go(tmp_path, resume=True)
    run = go(tmp_path, resume=True, allow_other_numerics=True)
    assert run.summary["numerics_changed"][1]["device"] == "cpu (OTHER)"


def test_killed_right_after_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint knows the new threads, config.toml does not yet: with the flag it goes on."""
    stopped(tmp_path)
    monkeypatch.setattr(RunFolder, "go_on", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go(tmp_path, resume=True, threads=2, allow_other_numerics=True)
    monkeypatch.undo()
    with pytest.raises(RunError, match="it says threads = 1, but the run was started with 2"):
        go(tmp_path, resume=True)
    assert go(tmp_path, resume=True, threads=2, allow_other_numerics=True).summary["rounds"] == 6


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path), "--quiet"]
    base = ["train", "fedrep", "--data", "digits", "--clients", "3", "--model", "linear", "--engine", "serial"]
    assert main([*base, "--rounds", "2", "--allow-other-numerics", *out]) == 2
    assert "is of a run that is continued; add --resume" in " ".join(capsys.readouterr().err.split())
    assert main([*base, "--rounds", "2", *out]) == 0
    more = ["train", "--resume", "--rounds", "4", "--precision", "bf16", *out]
    assert main(more) == 2
    assert "--allow-other-numerics" in capsys.readouterr().err
    assert main([*more, "--allow-other-numerics"]) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["precision"] == "bf16"
