"""`train --dry-run`: what would be done, and nothing of it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from commonground import train
from commonground.cli import main
from commonground.privacy import about_privacy


def test_it_says_what_a_run_does_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["train", "fedrep", "--rounds", "4", "--clients", "10", "--participation", "0.3", "--out", str(out)]
    assert main([*words, "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert not out.exists()
    assert "4, of 3 of 10 clients each" in told
    assert "FedRep: head_epochs=" in told
    run = train("fedrep", rounds=4, clients=10, participation=0.3)
    down, up = (run.summary[f"bytes_{way}"] / 12 / 1000 for way in ("down", "up"))
    assert f"{down:.1f} kB from the server, {up:.1f} kB to it" in told
    assert f"engine {run.summary['engine']} on cpu" in told


@pytest.mark.parametrize("method", ["flora", "rolora"])
def test_rounds_that_send_unlike_much_are_told_as_their_mean(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLoRA's clients are sent what they missed; RoLoRA's send one factor and then the other."""
    options = {"rank": 2, "downlink": "stack"} if method == "flora" else {"rank": 2}
    run = train(method, rounds=5, clients=10, participation=0.3, options=options)
    words = ["--rounds", "5", "--clients", "10", "--participation", "0.3", "--out", str(tmp_path / "run")]
    given = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    assert main(["train", method, *words, *given, "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    down, up = (run.summary[f"bytes_{way}"] / 15 / 1000 for way in ("down", "up"))
    assert f"{down:.1f} kB from the server, {up:.1f} kB to it, on average" in told


def test_bytes_that_early_stopping_may_change_are_no_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Early rounds of RoLoRA send more than their mean, and a run may end with them."""
    words = ["--rounds", "8", "--clients", "5", "--early-stopping", "2", "--validation-fraction", "0.2"]
    assert main(["train", "rolora", *words, "--set", "rank=2", "--out", str(tmp_path / "run"), "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "at most" not in told.partition("a client's round")[2].partition("the whole run")[0]
    assert "to it, on average" in told


def test_what_is_wrong_is_told_as_by_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fedrep", "--model", "cnn", "--dry-run", "--out", str(tmp_path / "run")]) == 2
    assert "needs images of at least 16×16" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--dp", "client", "--dp-clip", "1", "--dp-epsilon", "0.5"],
        ["--dp", "client", "--dp-adaptive-clip", "0.5", "--dp-noise", "1.5", "--dp-where", "client"],
        ["--dp", "example", "--dp-clip", "1", "--dp-noise", "2"],
        [],
    ],
)
def test_it_says_what_is_hidden(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ε, the noise and what is not covered are known before the run: the same as it tells afterwards."""
    asked = ["train", "fedavg", "--clients", "6", "--rounds", "2", "--participation", "0.5", *words]
    assert main([*asked, "--dry-run", "--json", "--out", str(tmp_path / "run")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert main([*asked, "--quiet", "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert ("privacy" in plan) == ("privacy" in summary) == bool(words)
    told = summary.get("privacy", {})
    told.pop("last_clip", None)
    assert plan.get("privacy", {}) == told
    capsys.readouterr()
    assert main([*asked, "--dry-run", "--out", str(tmp_path / "other")]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert (f"{about_privacy(told)} not covered: {told['not_covered']}" in shown) if words else "privacy" not in shown


def test_of_a_run_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "fedrep", "--clients", "5", "--out", str(tmp_path / "run")]
    assert main([*words, "--rounds", "3", "--quiet"]) == 0
    assert main([*words, "--rounds", "2", "--resume", "--dry-run"]) == 2
    assert "it can go on with as many or more, not with 2" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "--rounds", "5", "--resume", "--dry-run"]) == 0
    assert "3 of 5 rounds are done; the plan is of all of them" in capsys.readouterr().err
    for more in ([], ["--dry-run"]):
        other = ["train", "fedavg", "--clients", "5", "--resume", *more, "--out", str(tmp_path / "run")]
        assert main(other) == 2
        assert "algorithm = 'fedrep'" in " ".join(capsys.readouterr().err.split())


def test_several_methods_have_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("local", "pooled", "scaffold", "rolora", "fedproto"):
        more = ["--set", "rank=2"] if method == "rolora" else []
        assert main(["train", method, *more, "--rounds", "2", "--dry-run", "--out", str(tmp_path / method)]) == 0
        assert "a dry run" in capsys.readouterr().out


def test_it_is_printed_as_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", "fedavg", "--rounds", "2", "--out", str(out), "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"]["exact"]
    assert told["seconds"]["all"] >= told["seconds"]["rounds"] > 0
    assert told["memory_bytes"]["peak"] > 50e6
    assert told["disk_bytes"]["split.json"] > 0
    assert not out.exists()
    assert main(["train", "fedavg", "--json", "--out", str(out)]) == 2
    assert "add --dry-run" in capsys.readouterr().err


def test_what_will_not_fit_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate = importlib.import_module("commonground.plan.estimate")
    monkeypatch.setattr(estimate, "available_bytes", lambda: 10_000_000)
    monkeypatch.setattr(estimate, "free_bytes", lambda folder: 1000)
    assert main(["train", "fedavg", "--rounds", "2", "--out", str(tmp_path / "run"), "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "10.0 MB can be had: take" in told
    assert "on another" in told
