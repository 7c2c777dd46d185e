"""A run's folder after the disk, a power cut or an editor has changed it: the run goes on with the same numbers, or
says in one sentence which file is wrong. It never goes on with other numbers."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from commonground import train
from commonground.engine import load_run
from commonground.engine.state.folder import RunFolder
from commonground.errors import CommonGroundError, ConfigError, RunError
from commonground.report import write_run_report
from tests.campaign.damage import damage, every_round_saved, go
from tests.helpers import Notes, made_data, rows_without_time


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with every_round_saved():
        yield


def stopped(folder: Path, algorithm: str, round: int = 6, **changes: Any) -> Path:
    """A run that was stopped after a round."""
    with pytest.raises(ValueError, match="display"):
        go(folder, algorithm, observer=Notes(round), **changes)
    return folder


def assert_sentence(error: BaseException, folder: Path) -> None:
    """One line that names a file of the run or the folder."""
    assert isinstance(error, CommonGroundError)
    assert "\n" not in str(error)
    assert str(folder) in str(error)


@pytest.mark.parametrize(
    ("algorithm", "engine", "times"),
    [("ditto", "serial", 200), ("fedrep", "messages", 100), ("scaffold", "serial", 60)],
)
def test_a_damaged_folder_of_a_stopped_run(algorithm: str, engine: str, times: int, tmp_path: Path) -> None:
    whole = go(None, algorithm, engine=engine)
    wanted = rows_without_time(whole.run.history)
    source = stopped(tmp_path / "source", algorithm, engine=engine)
    files = sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file())
    assert len([f for f in files if f.match("checkpoint/round-*")]) == 2
    rng = np.random.default_rng(7)
    ends: Counter[str] = Counter()
    for number in range(times):
        folder = tmp_path / "run"
        shutil.copytree(source, folder)
        file = files[number % len(files)]
        how = damage(folder / file, rng)
        notes = Notes()
        try:
            again = go(folder, algorithm, engine=engine, resume=True, workers=1, observer=notes)
        except CommonGroundError as error:
            assert_sentence(error, tmp_path)
            ends["refused"] += 1
        else:
            assert again.sha == whole.sha, f"{file} {how}"
            assert rows_without_time(again.run.history) == wanted, f"{file} {how}"
            assert rows_without_time(RunFolder(folder).rounds.rows()) == wanted
            if notes.said:
                assert str(folder) in notes.said[0]
                assert "\n" not in notes.said[0]
            ends["older taken" if notes.said else "unharmed"] += 1
        assert not list(folder.rglob("*.part"))
        shutil.rmtree(folder)
    assert min(ends.values()) > times // 20, ends


@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_a_damaged_folder_of_a_finished_run(engine: str, tmp_path: Path) -> None:
    """Neither ``--resume`` nor ``predict`` takes anything else for the run's results than the run's results."""
    source = tmp_path / "source"
    whole = go(source, "fedrep", engine=engine)
    own = [load_run(source).trained.own(client) for client in range(4)]
    files = sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file())
    rng = np.random.default_rng(3)
    refused: Counter[str] = Counter()
    for number in range(150):
        folder = tmp_path / "run"
        shutil.copytree(source, folder)
        file = files[number % len(files)]
        how = damage(folder / file, rng)
        try:
            run = load_run(folder)
            for client in range(4):
                assert all(torch.equal(own[client][n], t) for n, t in run.trained.own(client).items()), f"{file} {how}"
            assert all(torch.equal(whole.run.shared[n], t) for n, t in run.shared.items())
        except CommonGroundError as error:
            assert_sentence(error, tmp_path)
            refused["predict"] += 1
        try:
            again = go(folder, "fedrep", engine=engine, resume=True)
            assert again.run.summary["weights_sha256"] == whole.sha, f"{file} {how}"
            assert rows_without_time(again.run.history) == rows_without_time(whole.run.history), f"{file} {how}"
            assert again.run.clients == whole.run.clients, f"{file} {how}"
        except CommonGroundError as error:
            assert_sentence(error, tmp_path)
            refused["resume"] += 1
        shutil.rmtree(folder)
    assert len(refused) == 2


# -- checkpoints ------------------------------------------------------------------------------------------------------


def newest(folder: Path) -> Path:
    return RunFolder(folder).checkpoints.rounds()[-1]


def flip(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def test_the_older_checkpoint_is_taken_and_said(tmp_path: Path) -> None:
    stopped(tmp_path, "ditto")
    flip(newest(tmp_path))
    notes = Notes()
    again = go(tmp_path, resume=True, workers=1, observer=notes)
    (said,) = notes.said
    assert said.startswith(
        f"the checkpoint '{tmp_path}/checkpoint/round-000006.safetensors' cannot be read: its tensors"
    )
    assert said.endswith("; the run goes on from the one before, of round 5")
    assert notes.done == 5
    assert again.sha == go(None).sha


def test_both_damaged_is_one_sentence(tmp_path: Path) -> None:
    stopped(tmp_path, "ditto")
    for path in RunFolder(tmp_path).checkpoints.rounds():
        flip(path)
    with pytest.raises(RunError, match=r"round-000006.* cannot be read: .*, nor can the one before, .*round-000005"):
        go(tmp_path, resume=True)


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
def test_a_checkpoint_that_is_no_file(kind: str, tmp_path: Path) -> None:
    """As on a disk that is not there."""
    folder = tmp_path / "run"
    go(folder, "fedrep")
    path = newest(folder)
    path.unlink()
    path.mkdir() if kind == "folder" else path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunError) as failed:
        load_run(folder)
    assert_sentence(failed.value, folder)


def test_a_finished_run_without_its_checkpoint_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(folder, "fedrep")
    for path in (folder / "checkpoint").glob("round-*.safetensors"):
        path.unlink()
    with pytest.raises(RunError, match="is finished, but its checkpoint is gone, and its models with it"):
        load_run(folder)


def test_a_lost_segment(tmp_path: Path) -> None:
    stopped(tmp_path, "ditto")
    (tmp_path / "checkpoint/personal/round-000006.safetensors").unlink()
    notes = Notes()
    assert go(tmp_path, resume=True, observer=notes).sha == go(None).sha
    assert "personal/round-000006.safetensors' cannot be read" in notes.said[0]


def test_a_finished_run_with_a_damaged_checkpoint_repeats_its_last_round(tmp_path: Path) -> None:
    whole = go(tmp_path)
    flip(newest(tmp_path))
    with pytest.raises(RunError, match="round-000008"):
        load_run(tmp_path)
    notes = Notes()
    again = go(tmp_path, resume=True, observer=notes)
    assert notes.done == 7
    assert again.sha == whole.sha
    assert load_run(tmp_path).trained.own(0).keys() == again.personal[0].keys()


def test_damaged_fine_tuning_is_repeated(tmp_path: Path) -> None:
    whole = go(tmp_path, "fedavg", finetune_epochs=2)
    flip(tmp_path / "checkpoint" / "finetuned.safetensors")
    notes = Notes()
    assert go(tmp_path, "fedavg", finetune_epochs=2, resume=True, observer=notes).sha == whole.sha
    assert "; fine-tuning is repeated" in notes.said[0]


@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_models_of_fine_tuning_that_was_removed_are_gone(engine: str, tmp_path: Path) -> None:
    """The server's last model and heads that nobody trained are not given in their place."""
    settings: dict[str, Any] = {"model": "mlp", "rounds": 2, "engine": engine, "finetune_epochs": 1, "out": tmp_path}
    whole = train("fedavg", made_data(), **settings)
    (tmp_path / "checkpoint" / "finetuned.safetensors").unlink()
    again = train("fedavg", made_data(), resume=True, **settings)
    assert again.summary == whole.summary
    with pytest.raises(RunError, match="is finished, but its checkpoint is gone, and its models with it"):
        again.model(0)


def test_a_checkpoint_of_an_earlier_version(tmp_path: Path) -> None:
    """One file with every client's rows, as they were written before there were segments."""
    stopped(tmp_path, "ditto")
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").mkdir()
    tensors = {"shared/a": torch.zeros(2), "clients/slot": torch.zeros(4, dtype=torch.int32)}
    save_file(tensors, tmp_path / "checkpoint/round-000006.safetensors", {"round": "6", "totals": "{}"})
    match = "round-000006.* was written by an earlier version of CommonGround.*start the run again in another --out"
    with pytest.raises(RunError, match=match):
        go(tmp_path, resume=True)
    with pytest.raises(RunError, match=match):
        load_run(tmp_path)


# -- settings and the other files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [False, True])
def test_an_edited_configuration_is_refused(finished: bool, tmp_path: Path) -> None:
    """Also where the settings of the resumed run are those of the edited file, as the command takes them from it."""
    go(tmp_path) if finished else stopped(tmp_path, "ditto")
    path = tmp_path / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("lr = 0.1\n", "lr = 0.06\n"))
    match = r"config.toml' was changed: it says lr = 0.06, but the run was started with 0.1"
    for lr in (0.06, 0.1):
        with pytest.raises(RunError, match=match):
            go(tmp_path, resume=True, lr=lr)
    with pytest.raises(RunError, match=match):
        load_run(tmp_path)
    path.write_text(text.replace("workers = 2\n", "workers = 1\n"))
    assert go(tmp_path, resume=True, workers=1).run.summary["rounds"] == 8


def test_a_cut_configuration_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path, "ditto", lr_schedule="cosine")
    path = tmp_path / "config.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "lr_schedule" not in line))
    with pytest.raises(RunError, match="it says lr_schedule = 'constant', but the run was started with 'cosine'"):
        go(tmp_path, resume=True, lr_schedule="cosine")


def test_an_impossible_configuration_names_the_file(tmp_path: Path) -> None:
    stopped(tmp_path, "ditto")
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().replace('"constant"', '"constajt"'))
    for read in (load_run, lambda folder: go(folder, resume=True)):
        with pytest.raises(ConfigError, match=r"config.toml' was changed: 'lr_schedule' is 'constajt'"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["rounds.jsonl", "split.json"])
@pytest.mark.parametrize("how", ["changed", "cut", "emptied", "removed"])
def test_files_of_a_stopped_run(name: str, how: str, tmp_path: Path) -> None:
    stopped(tmp_path, "ditto")
    spoil_text(tmp_path / name, how)
    with pytest.raises(RunError, match=rf"{name}' is (not what the run wrote|missing)"):
        go(tmp_path, resume=True)


@pytest.mark.parametrize("name", ["rounds.jsonl", "split.json", "clients.csv", "summary.json"])
@pytest.mark.parametrize("how", ["changed", "cut", "emptied"])
def test_files_of_a_finished_run(name: str, how: str, tmp_path: Path) -> None:
    go(tmp_path)
    spoil_text(tmp_path / name, how)
    with pytest.raises(RunError, match=rf"{name}' (is not what the run wrote|cannot be read)"):
        go(tmp_path, resume=True)


def spoil_text(path: Path, how: str) -> None:
    text = path.read_text()
    if how == "removed":
        path.unlink()
    elif how == "changed":
        place = next(i for i in range(len(text) // 2, len(text)) if text[i].isdigit())
        path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    else:
        path.write_text(text[: len(text) // 2] if how == "cut" else "")


def test_a_summary_that_was_removed_is_written_again(tmp_path: Path) -> None:
    whole = go(tmp_path)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(RunError, match=r"summary.json' is missing, though .* --resume writes it again"):
        load_run(tmp_path)
    again = go(tmp_path, resume=True)
    assert again.sha == whole.sha
    assert json.loads((tmp_path / "summary.json").read_text())["weights_sha256"] == whole.sha


def test_settings_are_compared_as_they_are_written(tmp_path: Path) -> None:
    """A tuple is a list in a file."""
    stopped(tmp_path, "ditto", model_options={"hidden": (5,)})
    assert go(tmp_path, resume=True, model_options={"hidden": (5,)}).run.summary["rounds"] == 8
    with pytest.raises((RunError, ConfigError), match="model_options"):
        go(tmp_path, resume=True, model_options={"hidden": (6,)})


def test_files_under_each_others_names(tmp_path: Path) -> None:
    """Each is sound by itself: its name is part of what it says."""
    go(tmp_path, "fedrep", engine="messages")
    pairs = [sorted((tmp_path / folder).glob("round-*"))[-2:] for folder in ("clients/client-2", "checkpoint")]
    for one, other in pairs:
        mine, theirs = one.read_bytes(), other.read_bytes()
        one.write_bytes(theirs)
        other.write_bytes(mine)
        with pytest.raises(RunError, match=rf"{other}' cannot be read: it is the file .* under another name"):
            load_run(tmp_path).trained.own(2)
        one.write_bytes(mine)
        other.write_bytes(theirs)
    load_run(tmp_path).trained.own(2)


def test_a_report_and_a_loaded_run_show_only_what_the_run_wrote(tmp_path: Path) -> None:
    go(tmp_path)
    for name, before, after in (("clients.csv", "\n0,0,5", "\n0,0,6"), ("config.toml", "lr = 0.1", "lr = 0.2")):
        path = tmp_path / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))
        for read in (write_run_report, load_run):
            with pytest.raises(RunError, match=rf"{name}' (is not what the run wrote|was changed)"):
                read(tmp_path)
        path.write_text(text)
    assert write_run_report(tmp_path).is_file()


def test_the_newest_checkpoint_is_that_of_the_last_round(tmp_path: Path) -> None:
    checkpoints = RunFolder(tmp_path).checkpoints
    checkpoints.path.mkdir(parents=True)
    for round in (1_000_000, 999_999, 7):
        (checkpoints.path / checkpoints.name_of(round)).touch()
    assert [path.name for path in checkpoints.rounds()] == [checkpoints.name_of(n) for n in (7, 999_999, 1_000_000)]


@pytest.mark.parametrize("key", ["preprocess", "task_settings", "inputs", "classes"])
def test_a_split_that_was_changed_is_noticed_before_it_is_read(key: str, tmp_path: Path) -> None:
    train("fedavg", made_data(), rounds=1, out=tmp_path)
    path = tmp_path / "split.json"
    path.write_text(path.read_text().replace(f'"{key}"', '"other"'))
    with pytest.raises(RunError, match=r"split\.json"):
        load_run(tmp_path)
