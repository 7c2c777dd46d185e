"""Invariant 2: a run that is stopped at any moment and resumed ends with the same weights, and the same rounds, as one
that was not. And what a run's folder refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from commonground import FederatedDataset, Run, train
from commonground.algorithms.fedrep import FedRep
from commonground.algorithms.lora import LoRA
from commonground.engine import load_run
from commonground.engine.backends.base import Engine
from commonground.engine.state import round_lines
from commonground.engine.state.checkpoint import CheckpointFolder
from commonground.engine.state.files import sync_file, write_atomically
from commonground.engine.state.folder import RunFolder
from commonground.engine.state.round_lines import RoundLines
from commonground.errors import Interrupted, RunError
from commonground.keys import numpy_stream
from commonground.models import ConvNet
from tests.campaign.kills import SETTINGS as KILLED
from tests.campaign.kills import go as small_run
from tests.campaign.kills import run_and_kill
from tests.helpers import (
    ENGINES,
    TwoLayer,
    Whole,
    engines_changed,
    fitting,
    images,
    made_data,
    rows_without_time,
    seeded,
    spoil,
    suited,
    train_whole,
)

SETTINGS: dict[str, Any] = KILLED | {"options": {"head_epochs": 2}}


def go(out: Path | None, engine: str = "serial", **changes: Any) -> Whole:
    return small_run(out, engine, **({"options": {"head_epochs": 2}} | changes))


def assert_unbroken(broken: Whole, whole: Whole, folder: Path) -> None:
    """Weights, rounds and clients are those of a run that was never stopped."""
    assert broken.sha == whole.sha
    rows = rows_without_time(RunFolder(folder).rounds.rows())
    assert rows == rows_without_time(whole.run.history)
    assert rows == rows_without_time(broken.run.history)
    assert broken.run.clients == whole.run.clients
    for key in ("bytes_up", "bytes_down", "personal_accuracy", "global_accuracy", "rounds"):
        assert broken.run.summary[key] == whole.run.summary[key]


class StopAfter:
    """An observer that fails after a round."""

    def __init__(self, round: int, error: BaseException | None = None) -> None:
        self.stop_at = round
        self.error = error or ValueError("the display broke")

    def begin(self, setup: Any, engine: str, done: int) -> None:
        self.done = done

    def round(self, row: Mapping[str, Any]) -> None:
        if row["round"] == self.stop_at:
            raise self.error

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("round", [1, 5, 8])
def test_stopped_after_a_round(round: int, engine: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the display broke"):
        go(tmp_path, engine, observer=StopAfter(round))
    assert RunFolder(tmp_path).summary() is None
    observer = StopAfter(0)
    again = go(tmp_path, engine, resume=True, observer=observer)
    assert observer.done == round
    assert_unbroken(again, go(None, engine), tmp_path)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("algorithm", ["fedala", "fedbn", "feddyn", "fedproto", "moon", "pfedme"])
def test_what_server_and_clients_remember_is_kept(algorithm: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 4, "participation": 0.6, "options": {}}
    settings["model"] = suited(algorithm, seeded(TwoLayer))
    whole = train_whole(algorithm, made_data(), **settings)
    train_whole(algorithm, made_data(), out=tmp_path, on_round=lambda row: row["round"] < 2, **settings)
    again = train_whole(algorithm, made_data(), out=tmp_path, resume=True, **settings)
    assert (again.sha, again.run.summary["rounds"]) == (whole.sha, 4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "local"])
def test_ctrl_c_during_an_evaluation(algorithm: str, engine: str, tmp_path: Path) -> None:
    """The round's local training is over, its test is not: the round must be repeated from where it began."""
    options = SETTINGS["options"] if algorithm == "fedrep" else {}
    calls = 0

    def interrupted(engine: Engine) -> None:
        evaluate = engine.evaluate

        def evaluating(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return evaluate(*args, **kwargs)

        engine.evaluate = evaluating  # type: ignore[method-assign]

    with engines_changed(interrupted), pytest.raises(Interrupted):
        go(tmp_path, engine, algorithm=algorithm, options=options)
    assert calls == 3
    again = go(tmp_path, engine, algorithm=algorithm, options=options, resume=True)
    assert_unbroken(again, go(None, engine, algorithm=algorithm, options=options), tmp_path)


@pytest.mark.parametrize(("algorithm", "options"), [("fedrep", {"head_epochs": 2}), ("ditto", {}), ("scaffold", {})])
def test_engines_that_are_bit_equal_take_turns(algorithm: str, options: dict[str, int], tmp_path: Path) -> None:
    changes: dict[str, Any] = {"algorithm": algorithm, "options": options}
    for last, engine in ((2, "processes"), (3, "serial"), (4, "processes")):
        with pytest.raises(ValueError, match="the display broke"):
            go(tmp_path, engine, observer=StopAfter(last), resume=last > 2, **changes)
        assert RunFolder(tmp_path).config().engine == engine
    with pytest.raises(RunError, match="would go on with engine batched instead of serial, and its numbers would not"):
        go(tmp_path, "batched", resume=True, **changes)
    with pytest.raises(RunError, match="was started with engine = 'processes', not 'messages'"):
        go(tmp_path, "messages", resume=True, **changes)  # whose clients remember what is theirs
    again = go(tmp_path, "serial", resume=True, **changes)
    assert_unbroken(again, go(None, **changes), tmp_path)
    assert again.run.summary["engine"] == "serial"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_during_an_evaluation(engine: str, tmp_path: Path) -> None:
    def failing(engine: Engine) -> None:
        engine.evaluate = lambda *args, **kwargs: 1 / 0  # type: ignore[method-assign,assignment]

    with pytest.raises(ValueError, match="display"):
        go(tmp_path, engine, observer=StopAfter(2))
    with engines_changed(failing), pytest.raises(ZeroDivisionError):
        go(tmp_path, engine, resume=True)
    assert_unbroken(go(tmp_path, engine, resume=True), go(None, engine), tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["fedrep", "fedavg"])
def test_killed_at_any_moment(algorithm: str, engine: str, tmp_path: Path) -> None:
    """SIGKILL again and again, wherever the run just is, then once to the end."""
    changes: dict[str, Any] = {"algorithm": algorithm, "rounds": 40, "options": {"head_epochs": 2}}
    if algorithm == "fedavg":
        changes |= {"options": {}, "finetune_epochs": 3}
    whole = go(tmp_path / "whole", engine, **changes)
    began = time.perf_counter()
    go(None, engine, **changes)
    usual = time.perf_counter() - began
    draw = numpy_stream(0, "kill", algorithm, engine)
    delays = [0.02 + draw.uniform(0.0, 0.3) * usual for _ in range(5)]
    kills = sum(run_and_kill(tmp_path / "run", engine, delay, changes) is not None for delay in delays)
    assert kills >= 2
    assert_unbroken(go(tmp_path / "run", engine, resume=True, **changes), whole, tmp_path / "run")


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_before_the_first_checkpoint(engine: str, tmp_path: Path) -> None:
    """Rounds and clients' folders are there, a checkpoint is not: everything is repeated."""
    with pytest.raises(ValueError, match="display"):
        go(tmp_path, engine, observer=StopAfter(6))
    shutil.rmtree(tmp_path / "checkpoint")
    assert len(RunFolder(tmp_path).rounds.rows()) == 6
    assert_unbroken(go(tmp_path, engine, resume=True), go(None, engine), tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("finetune", ["head", "all"])
def test_killed_between_the_rounds_and_the_results(finetune: str, engine: str, tmp_path: Path) -> None:
    """All rounds are done, the summary is not written."""
    changes = {"algorithm": "fedavg", "options": {}, "finetune_epochs": 3, "finetune": finetune}
    whole = go(tmp_path, engine, **changes)
    (tmp_path / "summary.json").unlink()
    assert_unbroken(go(tmp_path, engine, resume=True, **changes), whole, tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_leftovers_of_half_written_files(engine: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="display"):
        go(tmp_path, engine, observer=StopAfter(4))
    for name in ("config.toml", "rounds.jsonl", "summary.json", "clients.csv", "checkpoint/round-000005.safetensors"):
        spoil(tmp_path / name)
    spoil(tmp_path / "clients" / "client-0" / "round-000003.safetensors")
    spoil(tmp_path / "checkpoint" / "personal" / "round-000005.safetensors")
    assert_unbroken(go(tmp_path, engine, resume=True), go(None, engine), tmp_path)
    assert not [p for p in tmp_path.rglob("*.part") if engine == "messages" or "clients" not in p.parts]


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    """The next round's line, of which the process wrote a part."""
    with pytest.raises(ValueError, match="display"):
        go(tmp_path, observer=StopAfter(4))
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "train_lo')
    assert_unbroken(go(tmp_path, resume=True), go(None), tmp_path)


def test_a_lost_line_does_not_leave_a_hole(tmp_path: Path) -> None:
    """After a power cut the checkpoint may be there and the end of rounds.jsonl not: all rounds, or a refusal."""
    with pytest.raises(ValueError, match="display"):
        go(tmp_path, observer=StopAfter(4))
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    try:
        again = go(tmp_path, resume=True)
    except RunError:
        return
    assert [row["round"] for row in again.run.history] == list(range(1, 9))


def test_rounds_after_the_checkpoint_are_repeated(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="display"):
        go(tmp_path, observer=StopAfter(4))
    folder = RunFolder(tmp_path)
    folder.rounds.add({"round": 5, "train_loss": 99.0})
    folder.rounds.add({"round": 6, "train_loss": 99.0})
    assert_unbroken(go(tmp_path, resume=True), go(None), tmp_path)


def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="display"):
        go(tmp_path, observer=StopAfter(4))
    (checkpoint,) = (tmp_path / "checkpoint").glob("*.safetensors")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(RunError, match=rf"the checkpoint '{checkpoint}' cannot be read"):
        go(tmp_path, resume=True)


def test_a_finished_run_gives_its_results_again(tmp_path: Path) -> None:
    whole = go(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    again = train("fedrep", made_data(), model=seeded(TwoLayer), out=tmp_path, resume=True, **SETTINGS)
    assert again.summary == whole.run.summary
    assert again.history == whole.run.history
    assert again.clients == whole.run.clients
    assert {n: t.tolist() for n, t in again.shared.items()} == {n: t.tolist() for n, t in whole.run.shared.items()}
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before


CHANGES: dict[str, Any] = {
    "lr": 0.2,
    "seed": 2,
    "batch_size": 5,
    "participation": 1.0,
    "engine": "messages",
    "weighting": "samples",
    "momentum": 0.0,
    "options": {"head_epochs": 3},
    "dtype": "float64",
    "lr_schedule": "cosine",
}


@pytest.mark.parametrize("setting", CHANGES)
def test_a_changed_setting_is_named(setting: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="display"):
        go(tmp_path, observer=StopAfter(2))
    with pytest.raises(RunError, match=rf"was started with {setting} = .*, not "):
        go(tmp_path, resume=True, **{setting: CHANGES[setting]})
    assert_unbroken(go(tmp_path, resume=True), go(None), tmp_path)


def test_another_algorithm_or_model_is_named(tmp_path: Path) -> None:
    go(tmp_path)
    with pytest.raises(RunError, match="started with algorithm = 'fedrep', not 'fedper'"):
        go(tmp_path, resume=True, algorithm="fedper", options={})
    with pytest.raises(RunError, match="started with model = 'TwoLayer', not 'mlp'"):
        go(tmp_path, resume=True, model="mlp")


def test_hyperparameters_of_an_algorithm_object_are_settings_too(tmp_path: Path) -> None:
    """Given as an object, an algorithm is recorded with its hyperparameters, so that config.toml tells the run."""
    settings = SETTINGS | {"options": {}}
    by_name = go(tmp_path / "name", options={"head_epochs": 2})
    run = train(FedRep(head_epochs=2), made_data(), model=seeded(TwoLayer), out=tmp_path / "object", **settings)
    assert run.summary["weights_sha256"] == by_name.sha
    assert RunFolder(tmp_path / "object").config().options["head_epochs"] == 2
    train(LoRA(head="shared"), made_data(), model="mlp", out=tmp_path / "lora", **settings)
    assert RunFolder(tmp_path / "lora").config().options == {"head": "shared"}
    assert load_run(tmp_path / "lora").trained.has_global_model
    with pytest.raises(RunError, match="started with options = "):
        train(FedRep(head_epochs=3), made_data(), model=seeded(TwoLayer), out=tmp_path / "object", resume=True,
              **settings)  # fmt: skip


def test_a_folder_of_an_earlier_version_that_wrote_more_than_options_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {**SETTINGS, "options": {}, "rounds": 3, "model": "mlp", "out": tmp_path / "run"}
    given = {"data": made_data(), **settings}
    with monkeypatch.context() as earlier:
        earlier.setattr("commonground.engine.training.without_class_variables", dict)
        run = train(LoRA(), **given)
    assert set(tomllib.loads((tmp_path / "run" / "config.toml").read_text())["options"]) > {"head"}
    assert train(LoRA(), resume=True, **given).summary == run.summary
    assert load_run(tmp_path / "run").summary == run.summary


def _other_data() -> FederatedDataset:
    return made_data(seed=5)


@pytest.mark.parametrize("finished", [True, False])
def test_other_data_are_refused(finished: bool, tmp_path: Path) -> None:
    if finished:
        go(tmp_path)
    else:
        with pytest.raises(ValueError, match="display"):
            go(tmp_path, observer=StopAfter(2))
    with pytest.raises(RunError, match="was started on other data, or on data that this version"):
        go(tmp_path, resume=True, data=_other_data())


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    go(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(RunError, match="already holds a run; add --resume"):
        go(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file; --out needs a folder"):
        go(tmp_path / "file")


def test_workers_may_change(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="display"):
        go(tmp_path, "processes", workers=1, observer=StopAfter(3))
    assert_unbroken(go(tmp_path, "processes", workers=3, resume=True), go(None), tmp_path)


# -- what the figures are called ------------------------------------------------------------------------------------


def test_fedavg_has_no_personal_model_of_its_own() -> None:
    run = go(None, algorithm="fedavg", options={}).run
    assert run.personal_accuracy["mean"] == run.global_accuracy
    assert "global model" in run.summary["personal_accuracy_of"]
    assert all(c["personal_accuracy"] == c["global_accuracy"] for c in run.clients)
    assert all(row["personal_accuracy"] == row["global_accuracy"] for row in run.history)


def test_fine_tuning_makes_the_two_differ() -> None:
    changes: dict[str, Any] = {"algorithm": "fedavg", "options": {}, "data": made_data((20, 30), test=50)}
    plain = go(None, **changes).run
    tuned = go(None, **changes, finetune_epochs=10).run
    assert tuned.global_accuracy == plain.global_accuracy
    assert tuned.personal_accuracy["mean"] != tuned.global_accuracy
    assert "10 epochs on each client's head" in tuned.summary["personal_accuracy_of"]
    assert tuned.summary["weights_sha256"] != plain.summary["weights_sha256"]


@pytest.mark.parametrize("algorithm", ["fedrep", "fedper", "lg-fedavg", "local"])
def test_methods_without_a_global_model_claim_none(algorithm: str) -> None:
    run = go(None, algorithm=algorithm, options={}).run
    assert run.global_accuracy is None
    assert all(row["global_accuracy"] is None for row in run.history)


def test_last10_is_the_mean_of_the_last_ten_rounds() -> None:
    run = go(None, rounds=14).run
    wanted = [row["personal_accuracy"] for row in run.history[-10:]]
    assert run.personal_accuracy["last10"] == pytest.approx(sum(wanted) / 10)
    assert run.personal_accuracy["last10"] != pytest.approx(sum(r["personal_accuracy"] for r in run.history) / 14)


def test_a_run_without_training_writes_valid_json(tmp_path: Path) -> None:
    go(tmp_path, algorithm="fedavg", options={}, local_epochs=0)

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    for line in (tmp_path / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)


# -- files ----------------------------------------------------------------------------------------------------------


def test_rounds_are_on_the_disk_before_the_checkpoint_that_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*given: Any) -> Any:
            order.append(name)
            return function(*given)

        return noting

    monkeypatch.setattr(RoundLines, "sync", noted("rounds", RoundLines.sync))
    monkeypatch.setattr(round_lines, "sync_file", noted("synced", sync_file))
    monkeypatch.setattr(CheckpointFolder, "save", noted("checkpoint", CheckpointFolder.save))
    train("fedavg", "digits", clients=2, rounds=2, out=tmp_path, model="linear")
    assert order
    assert order == ["rounds", "synced", "checkpoint"] * (len(order) // 3)


def test_files_are_written_beside_and_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "deep" / "file.txt"
    write_atomically(target, "old")

    def broken(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, "new and longer")
    assert target.read_text() == "old"
    assert [p.name for p in target.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "scaffold"])
def test_convolutions_go_on_with_weights_that_lie_as_they_did(method: str, engine: str, tmp_path: Path) -> None:
    """Channels last, where a file has them first: products over the other have other last digits."""

    def run(**more: Any) -> Run:
        net = seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5))
        settings = fitting(method, {"rounds": 4, "batch_size": 4, "lr": 0.05})
        return train(method, images((7, 12, 4, 9, 6)), model=net, engine=engine, **settings, **more)

    run(out=tmp_path, on_round=lambda row: row["round"] < 2)
    assert run(out=tmp_path, resume=True).summary["weights_sha256"] == run().summary["weights_sha256"]
