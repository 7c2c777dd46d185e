"""What a comparison would need, told before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commonground import compare
from commonground.cli import main
from commonground.compare import plan_comparison
from commonground.errors import ConfigError
from commonground.plan import plan
from commonground.terminal import human_bytes

SMALL: dict[str, Any] = {"data": "digits", "clients": 4, "rounds": 4, "model": "mlp", "engine": "serial", "threads": 1}


def test_it_is_the_sum_of_its_runs(tmp_path: Path) -> None:
    told = plan_comparison(["fedrep", "fedavg+ft"], seeds=2, out=tmp_path / "out", grid={"lr": [0.01, 0.1]}, **SMALL)
    assert not (tmp_path / "out").exists()
    assert [method.method for method in told.methods] == ["fedrep", "fedavg+ft", "local"]
    for method in told.methods:
        assert method.runs == 2 * 3
        assert method.seconds == pytest.approx(2 * (1 + 2 * 0.8) * method.plan.seconds + 6 * method.start)
    assert told.seconds == pytest.approx(sum(method.seconds for method in told.methods))
    for method in told.methods:
        assert method.disk == 2 * sum(size for name, size in method.plan.files.items() if name != "report.html")
    assert told.disk > sum(method.disk for method in told.methods)
    one = plan("fedrep", out=tmp_path / "one", **SMALL)
    assert told.methods[0].plan.sent == one.sent
    # How many rounds lie between two checkpoints, and so how many of them are kept, is a matter of seconds.
    lasting = [{k: n for k, n in p.files.items() if "checkpoint" not in k} for p in (told.methods[0].plan, one)]
    assert sum(lasting[0].values()) == pytest.approx(sum(lasting[1].values()), rel=0.01)
    assert "3 methods, 18 runs" in repr(told)


def test_candidates_that_cost_unlike_are_all_counted(tmp_path: Path) -> None:
    """In whatever order the grid names them; the dearest is what a run may need."""
    settings = SMALL | {"local_only": False, "seeds": 1}
    one, other = (
        plan_comparison(["fedavg"], out=tmp_path / "out", grid={"rounds": rounds, "lr": [0.01, 0.1]}, **settings)
        for rounds in ([4, 400], [400, 4])
    )
    for told in (one, other):
        (method,) = told.methods
        assert (method.tried, len({id(plan) for plan in method.candidates})) == (4, 2)
        assert method.plan.setup.config.rounds == 400
        trials = 0.8 * sum(plan.seconds for plan in method.candidates)
        assert method.seconds == pytest.approx(trials + method.plan.seconds + 5 * method.start)
        sent = {plan.setup.config.rounds: plan.sent.up[1] + plan.sent.down[1] for plan in method.candidates}
        assert sent == {4: sent[4], 400: 100 * sent[4]}
        assert f"at most {human_bytes(sent[400])}" in told.table().rows[0]["sent by a run"]
        assert any("candidates of the grid cost unlike" in sentence for sentence in told.sentences(tmp_path))
    assert one.disk == pytest.approx(other.disk, rel=0.01)
    alike = plan_comparison(["fedavg"], out=tmp_path / "out", grid={"lr": [0.01, 0.1]}, **settings)
    assert not alike.methods[0].differ
    assert not any("unlike" in sentence for sentence in alike.sentences(tmp_path))


def test_bytes_are_those_of_the_comparison(tmp_path: Path) -> None:
    told = plan_comparison(["fedrep", "fedavg"], seeds=1, out=tmp_path / "out", **SMALL)
    done = compare(["fedrep", "fedavg"], seeds=1, out=tmp_path / "out", **SMALL)
    for method in told.methods:
        (run,) = done.runs[method.method]
        assert (method.plan.sent.up[0], method.plan.sent.down[0]) == (
            run.summary["bytes_up"],
            run.summary["bytes_down"],
        )
    size = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert 0.4 * told.disk < size <= told.disk
    again = plan_comparison(["fedrep", "fedavg"], seeds=2, out=tmp_path / "out", **SMALL)
    assert again.done == 3
    assert "3 runs there already; the plan is of all of them" in again.sentences(tmp_path / "out")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "fedrep", "--seeds", "2", "--clients", "4", "--rounds", "3", "--out", str(tmp_path / "out")]
    assert main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "FedRep" in told
    assert "Local Only" in told
    assert "for 4 runs, by rounds of each method timed just now" in told
    assert "this wrote nothing" in told
    assert main([*words, "--dry-run", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [method["runs"] for method in found["methods"]] == [2, 2]
    assert found["seconds"] == pytest.approx(sum(method["seconds"] for method in found["methods"]))
    assert not (tmp_path / "out").exists()
    assert main([*words, "--json"]) == 2
    assert "--json prints what --dry-run finds" in capsys.readouterr().err


def test_what_the_comparison_would_refuse() -> None:
    with pytest.raises(ConfigError, match="has the setting 'nothing'"):
        plan_comparison(["fedrep"], options={"nothing": 3}, **SMALL)
