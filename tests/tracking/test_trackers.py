"""Runs that are tracked: what arrives, what a failure does, and that no number depends on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.cli import main
from commonground.errors import ConfigError
from commonground.extras import pip_install
from commonground.tracking import TRACKERS, Started, Tracker, make_tracker
from tests.helpers import made_data
from tests.tracking.stand_ins import MlflowServer, WandbServer, installed, mlflow_module, wandb_module

DATA = made_data((5, 6, 7), dtype=np.float32)
WEIGHTS = cg.train("fedrep", DATA, rounds=3).summary["weights_sha256"]


def go(track: Any, out: Path | None, **settings: Any) -> cg.Run:
    return cg.train("fedrep", DATA, rounds=3, out=out, track=track, **settings)


@pytest.fixture
def mlflow() -> Iterator[MlflowServer]:
    server = MlflowServer()
    with installed(mlflow_module(server), "mlflow"):
        yield server


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nonexistent")
    server = WandbServer()
    with installed(wandb_module(server), "wandb"):
        yield server


class Own(Tracker):
    """A user's own; it can fail at any of its methods."""

    name = "own"

    def __init__(self, name: str = "own", failing: str = "") -> None:
        self.name = name  # type: ignore[misc]
        self.failing, self.heard, self.about = failing, [], None  # type: tuple[str, list[Any], Started | None]

    def _hear(self, what: str, *more: Any) -> None:
        self.heard.append((what, *more))
        if what == self.failing:
            raise TimeoutError("the server is gone")

    def begin(self, about: Started) -> tuple[str, str]:
        self.about = about
        self._hear("begin", about.done, about.id)
        return "own-1", "nowhere"

    def round(self, number: int, figures: Any) -> None:
        self._hear("round", number)
        self.figures = figures

    def summary(self, summary: Any) -> None:
        self._hear("summary", summary["rounds"])

    def artefact(self, path: Path) -> None:
        self._hear("artefact", path.name)

    def end(self, whole: bool) -> None:
        self._hear("end", whole)


# -- what every tracker hears -----------------------------------------------------------------------------------------


def test_what_is_heard_and_that_no_number_depends_on_it(tmp_path: Path) -> None:
    own = Own()
    run = go(own, tmp_path / "run", options={"head_epochs": 2})
    assert own.heard == [("begin", 0, None), *(("round", n) for n in (1, 2, 3)), ("summary", 3), ("end", True)]
    assert own.about is not None
    assert own.about.name == "FedRep on made, seed 0"
    assert own.about.settings["options.head_epochs"] == 2
    assert own.about.settings["rounds"] == 3
    last = run.history[-1]
    assert own.figures["share/personal_accuracy"] == last["personal_accuracy"]
    assert own.figures["bytes/bytes_up"] == last["bytes_up"]
    assert own.figures["loss/train_loss"] == last["train_loss"]
    assert own.figures["seconds/seconds"] == last["seconds"]
    assert "share/global_accuracy" not in own.figures  # there is no such model
    assert go(Own(), None).summary["weights_sha256"] == WEIGHTS


def test_other_tasks_have_their_own_units() -> None:
    own = Own()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=8)
    data = cg.FederatedDataset.from_arrays([(x, y, x, y)] * 2, task="regression")
    cg.train("fedavg", data, rounds=1, track=own)
    assert {"rmse/personal_rmse", "rmse/global_rmse", "rmse/worst_decile"} <= set(own.figures)


def test_a_resumed_run_goes_on_in_the_same_tracker_run(tmp_path: Path) -> None:
    first, second = Own(), Own()
    go(first, tmp_path, on_round=lambda row: row["round"] < 2)
    assert first.heard[-2:] == [("summary", 2), ("end", True)]
    assert json.loads((tmp_path / "tracking.json").read_text()) == {"own": "own-1"}
    go(second, tmp_path, resume=True)
    assert second.heard == [("begin", 2, "own-1"), ("round", 3), ("summary", 3), ("end", True)]
    again = Own()
    go(again, tmp_path, resume=True)  # it is finished: there is nothing to tell
    assert again.heard == []


def test_a_tracker_named_later_is_told_of_all_rounds(tmp_path: Path) -> None:
    """By a run that goes on with it, and by one that was finished without it."""
    go(None, tmp_path, on_round=lambda row: row["round"] < 2)
    later = Own()
    run = go(later, tmp_path, resume=True)
    assert later.heard == [("begin", 0, None), *(("round", n) for n in (1, 2, 3)), ("summary", 3), ("end", True)]
    assert later.figures["loss/train_loss"] == run.history[-1]["train_loss"]
    other = Own("other")
    go([later, other], tmp_path, resume=True)
    assert other.heard == later.heard
    assert other.about is not None
    assert later.about is not None
    assert (other.about.name, other.about.settings) == (later.about.name, later.about.settings)


def test_two_trackers_of_one_name_go_on_each_by_itself(tmp_path: Path) -> None:
    class Numbered(Own):
        def __init__(self, id: str) -> None:
            super().__init__()
            self.id = id

        def begin(self, about: Started) -> tuple[str, str]:
            super().begin(about)
            return self.id, "nowhere"

    go([Numbered("a"), Numbered("b")], tmp_path, on_round=lambda row: row["round"] < 2)
    assert json.loads((tmp_path / "tracking.json").read_text()) == {"own": "a", "own 2": "b"}
    both = Numbered("a"), Numbered("b")
    go(both, tmp_path, resume=True)
    assert [one.heard[0] for one in both] == [("begin", 2, "a"), ("begin", 2, "b")]


def test_a_run_that_ends_with_an_error_is_closed_as_such(tmp_path: Path) -> None:
    own = Own()
    with pytest.raises(ZeroDivisionError):
        go(own, tmp_path, on_round=lambda row: 1 / (2 - row["round"]))
    assert own.heard[-1] == ("end", False)


def test_early_stopping_without_a_folder_is_tracked_too() -> None:
    own = Own()
    go(own, None, validation_fraction=0.4, early_stopping=1)
    assert own.heard[0] == ("begin", 0, None)
    assert own.about is not None
    assert own.about.folder is None
    assert [what for what, *_ in own.heard].count("summary") == 1


@pytest.mark.parametrize("failing", ["begin", "round", "summary", "end"])
def test_a_tracker_that_fails_is_one_warning_and_not_the_end(failing: str, tmp_path: Path) -> None:
    own, other = Own(failing=failing), Own()
    said = r"own tracks no more \(TimeoutError: the server is gone\); the run goes on without it"
    with pytest.warns(UserWarning, match=said) as warnings:
        run = go([own, other], tmp_path)
    assert len(warnings) == 1
    assert run.summary["weights_sha256"] == WEIGHTS
    assert [what for what, *_ in own.heard].count(failing) == 1
    assert own.heard[-1][0] == "end"  # it is given the chance to close what it has opened
    assert [what for what, *_ in other.heard] == ["begin", "round", "round", "round", "summary", "end"]


def test_an_observer_hears_the_warning_instead(tmp_path: Path) -> None:
    said: list[str] = []
    go(Own(failing="round"), tmp_path, observer=SimpleNamespace(note=said.append))
    assert said[0] == "own: nowhere"
    assert "own tracks no more" in said[1]


# -- the three --------------------------------------------------------------------------------------------------------


def events(folder: Path) -> list[Any]:
    """What TensorBoard would read, file by file; the framing is that of TFRecord."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.iterdir()):
        content, place = file.read_bytes(), 0
        while place < len(content):
            size = int.from_bytes(content[place : place + 8], "little")
            found.append(Event.FromString(content[place + 12 : place + 12 + size]))
            place += 12 + size + 4
    return found


def test_tensorboard(tmp_path: Path) -> None:
    run = go("tensorboard", tmp_path, on_round=lambda row: row["round"] < 2)
    run = go("tensorboard", tmp_path, resume=True)
    written = events(tmp_path / "tensorboard")
    assert written[0].file_version == "brain.Event:2"
    scalars = [(e.step, v.tag, v.simple_value) for e in written for v in e.summary.value if v.HasField("simple_value")]
    accuracy = {step: value for step, tag, value in scalars if tag == "share/personal_accuracy"}
    assert accuracy == pytest.approx({row["round"]: row["personal_accuracy"] for row in run.history})
    assert [e.step for e in written if e.HasField("session_log")] == [
        3
    ]  # what came after the checkpoint counts no more
    texts = {v.tag: v.tensor.string_val[0].decode() for e in written for v in e.summary.value if v.tensor.string_val}
    assert "| algorithm | fedrep |" in texts["settings/text_summary"]
    assert run.summary["weights_sha256"] in texts["summary/text_summary"]
    with pytest.raises(ConfigError, match="tensorboard writes into the run's folder; name one with out="):
        go("tensorboard", None)


def test_a_disk_that_is_full_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboardX.record_writer import RecordWriter

    write = RecordWriter.write
    written: list[bytes] = []

    def full(self: object, data: bytes) -> None:
        if sum(map(len, written)) + len(data) > 2000:
            raise OSError(28, "No space left on device")
        written.append(data)
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", full)
    with pytest.warns(UserWarning, match=r"tensorboard tracks no more \(OSError: .*No space left"):
        assert go("tensorboard", tmp_path).summary["weights_sha256"] == WEIGHTS


def test_mlflow(mlflow: MlflowServer, tmp_path: Path) -> None:
    go("mlflow", tmp_path, on_round=lambda row: row["round"] < 2)
    run = go("mlflow", tmp_path, resume=True)
    (tracked,) = mlflow.runs.values()  # the second part went on in the run of the first
    assert tracked.status == "FINISHED"
    assert tracked.params["algorithm"] == "fedrep"
    assert tracked.metrics["share/personal_accuracy"] == {r["round"]: r["personal_accuracy"] for r in run.history}
    assert tracked.metrics["summary/personal_accuracy/mean"][3] == run.personal_accuracy["mean"]
    assert json.loads(tracked.files["summary.json"])["weights_sha256"] == run.summary["weights_sha256"]


def test_rounds_that_a_killed_run_repeats_are_in_mlflow_once(mlflow: MlflowServer, tmp_path: Path) -> None:
    """Killed after round 3 with the checkpoint of round 2; then it goes on, to more rounds than it was begun with."""
    first, then = make_tracker("mlflow"), make_tracker("mlflow")
    id, _ = first.begin(Started("a run", {"rounds": 4, "lr": 0.1}, tmp_path))
    for number in (1, 2, 3):
        first.round(number, {"seconds/seconds": 1.0 * number, "loss/train_loss": 1 / number})
    then.begin(Started("a run", {"rounds": 5, "lr": 0.1}, tmp_path, 2, id))
    for number in (3, 4, 5):
        then.round(number, {"seconds/seconds": 9.0, "loss/train_loss": 1 / number})
    (tracked,) = mlflow.runs.values()
    assert tracked.metrics["seconds/seconds"] == {1: 1.0, 2: 2.0, 3: 3.0, 4: 9.0, 5: 9.0}
    assert (tracked.params, tracked.tags) == ({"rounds": "4", "lr": "0.1"}, {"rounds": "5"})


def test_tensorboard_named_later_has_all_rounds_and_the_settings(tmp_path: Path) -> None:
    go(None, tmp_path, on_round=lambda row: row["round"] < 2)
    go("tensorboard", tmp_path, resume=True)
    written = events(tmp_path / "tensorboard")
    assert [e.step for e in written for v in e.summary.value if v.tag == "loss/train_loss"] == [1, 2, 3]
    assert [e.step for e in written for v in e.summary.value if v.tag == "settings/text_summary"] == [0]
    assert not any(e.HasField("session_log") for e in written)


def test_mlflow_inside_a_run_of_the_users_own(mlflow: MlflowServer, tmp_path: Path) -> None:
    mlflow.start_run()
    go("mlflow", tmp_path)
    assert [run.name for run in mlflow.open] == ["run-0"]
    assert mlflow.runs["run-1"].nested


def test_a_server_that_is_gone(mlflow: MlflowServer, tmp_path: Path) -> None:
    mlflow.failing = "log_batch"
    with pytest.warns(UserWarning, match=r"mlflow tracks no more \(ConnectionError: no route to host Max retries"):
        go("mlflow", tmp_path)
    assert not mlflow.open
    assert mlflow.runs["run-0"].status == "KILLED"


def test_wandb_is_offline_without_a_key(wandb: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go("wandb", tmp_path, on_round=lambda row: row["round"] < 2)
    run = go("wandb", tmp_path, resume=True)
    first, second = wandb.runs
    assert (first.id, second.id) == ("id0", "id0")
    assert (first.arguments["resume"], second.arguments["resume"]) == (None, "allow")
    assert second.arguments["config"]["algorithm"] == "fedrep"
    assert sorted(first.rows) == [1, 2]
    rows = second.rows  # whole by itself: what the first one had in its buffer a kill would have lost
    assert {n: row["share/personal_accuracy"] for n, row in rows.items()} == {
        row["round"]: row["personal_accuracy"] for row in run.history
    }
    assert second.summary["summary"]["weights_sha256"] == run.summary["weights_sha256"]
    assert (first.exit_code, second.exit_code) == (0, 0)
    from commonground.tracking import wandb as module

    for name, value in (("WANDB_API_KEY", "k" * 40), ("WANDB_MODE", "online")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert module._mode() is None
    keys = tmp_path / "netrc"
    keys.write_text("machine api.wandb.ai login user password secret")
    monkeypatch.setenv("NETRC", str(keys))
    assert module._mode() is None


def test_a_full_disk_of_wandb(wandb: WandbServer, tmp_path: Path) -> None:
    wandb.failing = "log"
    with pytest.warns(UserWarning, match="wandb tracks no more"):
        go("wandb", tmp_path)
    assert wandb.runs[0].exit_code == 1


# -- on the command line, and in comparisons --------------------------------------------------------------------------


def test_the_command_sends_the_report_too(mlflow: MlflowServer, wandb: WandbServer, tmp_path: Path) -> None:
    tracks = [word for name in TRACKERS for word in ("--track", name)]
    command = ["train", "fedrep", "--clients", "4", "--rounds", "2", "--quiet", *tracks, "--out", str(tmp_path / "run")]
    assert main(command) == 0
    assert mlflow.runs["run-0"].files["report.html"].startswith("<!")
    assert wandb.runs[0].files == ["report.html"]
    assert events(tmp_path / "run" / "tensorboard")
    assert main([*command, "--resume"]) == 0  # finished: nobody is bothered
    assert len(mlflow.runs) == len(wandb.runs) == 1


@pytest.mark.parametrize("name", TRACKERS)
def test_a_package_that_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, {"tensorboard": "tensorboardX"}.get(name, name), None)
    for part in [each for each in sys.modules if each.startswith("tensorboardX.")]:
        monkeypatch.setitem(sys.modules, part, None)
    monkeypatch.delitem(sys.modules, f"commonground.tracking.{name}", raising=False)
    out = tmp_path / "run"
    for command in (["train", "fedrep"], ["compare", "fedrep", "fedavg"]):
        assert main([*command, "--clients", "4", "--rounds", "1", "--track", name, "--out", str(out)]) == 2
        said = capsys.readouterr().err.splitlines()
        assert said[-1] == f"commonground: the tracker {name} needs the extra: {pip_install(name)}"
    assert not out.exists()


def test_runs_of_a_comparison_are_tracked_one_by_one(mlflow: MlflowServer, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    cg.compare(
        ["fedrep", "fedavg"], DATA, seeds=2, out=tmp_path, rounds=2, local_only=False, track="mlflow",
        grid={"lr": [0.01, 0.02]}, on_round=rows.append,
    )  # fmt: skip
    assert len(mlflow.runs) == 4  # candidates of the grid are none of them
    assert {run.status for run in mlflow.runs.values()} == {"FINISHED"}
    assert {run.params["seed"] for run in mlflow.runs.values()} == {"0", "1"}
    assert [(row["method"], row["seed"], row["round"]) for row in rows[:3]] == [
        ("fedrep", 0, 1), ("fedrep", 0, 2), ("fedavg", 0, 1),
    ]  # fmt: skip
    assert len(rows) == 8


def test_names_and_objects_that_are_no_trackers() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown tracker 'mlfow' \(did you mean 'mlflow'\?\); known are tensorboard"
    ):
        go("mlfow", None)
    with pytest.raises(ConfigError, match="unknown tracker 3; known are"):
        go([3], None)


def test_a_folder_that_an_earlier_version_tracked_is_not_told_twice(tmp_path: Path) -> None:
    """TensorBoard is known by nothing, which was not written down; its folder tells that it has heard of the run."""
    go("tensorboard", tmp_path)
    (tmp_path / "tracking.json").unlink()
    go("tensorboard", tmp_path, resume=True)
    written = events(tmp_path / "tensorboard")
    assert [e.step for e in written for v in e.summary.value if v.tag == "loss/train_loss"] == [1, 2, 3]


def test_a_tracker_that_failed_while_it_was_told_the_past_is_told_again(tmp_path: Path) -> None:
    go(None, tmp_path)
    with pytest.warns(UserWarning, match="own tracks no more"):
        go(Own(failing="round"), tmp_path, resume=True)
    own = Own()
    go(own, tmp_path, resume=True)
    assert [what for what, *_ in own.heard] == ["begin", "round", "round", "round", "summary", "end"]
