"""The command as a user meets it: files, exit codes, sentences."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from commonground.cli import main

BASE = ["--data", "digits", "--clients", "8", "--classes-per-client", "2", "--rounds", "2", "--seed", "1"]
SUMMARY = [
    "algorithm",
    "data",
    "model",
    "clients",
    "rounds",
    "seed",
    "engine",
    "personal_accuracy",
    "global_accuracy",
    "bytes_up",
    "bytes_down",
    "seconds",
    "peak_rss_bytes",
    "weights_sha256",
]
ROUND = ["round", "train_loss", "personal_accuracy", "global_accuracy", "bytes_up", "bytes_down", "seconds"]


def test_a_run_leaves_the_promised_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", "fedrep", *BASE, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "personal accuracy" in printed.out
    assert "round 2/2" in printed.err
    summary = json.loads((out / "summary.json").read_text())
    assert set(SUMMARY) <= set(summary)
    assert set(summary["personal_accuracy"]) == {"mean", "std", "p10", "p90", "min", "max", "last10"}
    assert len(summary["weights_sha256"]) == 64
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2]
    assert all(set(ROUND) <= set(row) for row in rows)
    with (out / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert len(clients) == 8
    mean = np.mean([float(c["personal_accuracy"]) for c in clients])
    assert summary["personal_accuracy"]["mean"] == pytest.approx(mean)
    assert (out / "config.toml").is_file()
    assert list((out / "checkpoint").glob("*.safetensors"))
    assert not list(out.rglob("*.part"))


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fedrep", *BASE, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_settings_come_from_file_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('algorithm = "fedrep"\nclients = 6\nclasses_per_client = 2\nrounds = 1\nlr = 0.03\n')
    out = tmp_path / "run"
    flags = ["--config", str(file), "--lr", "0.02", "--set", "head_epochs=3", "--set", "model.hidden=[16]"]
    assert main(["train", *flags, "--quiet", "--out", str(out)]) == 0
    text = (out / "config.toml").read_text()
    for line in ("clients = 6", "lr = 0.02", "head_epochs = 3", "16"):
        assert line in text


def _csv(tmp_path: Path, cell: str) -> str:
    path = tmp_path / "table.csv"
    rows = [f"{'c1' if i % 2 else 'c2'},{i * 0.1},{cell if i == 7 else i},{i % 3}" for i in range(40)]
    path.write_text("who,a,b,label\n" + "\n".join(rows) + "\n")
    return str(path)


def _truncated_mnist(tmp_path: Path) -> str:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, magic in (("train", 60000), ("t10k", 10000)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(
            (2051).to_bytes(4, "big") + magic.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2 + b"\x00" * 100
        )
        (folder / f"{part}-labels-idx1-ubyte").write_bytes((2049).to_bytes(4, "big") + magic.to_bytes(4, "big"))
    return str(tmp_path)


def _wrong_checksum(tmp_path: Path) -> str:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte.gz").write_bytes(b"not what was published")
    return str(tmp_path)


WRONG = {
    "unknown algorithm": (["no-such"], "unknown algorithm 'no-such'"),
    "a comparison's way of writing": (["fedprox:mu=0.1"], "one run takes 'fedprox' alone, and its hyperparameters by"),
    "unknown data": (["fedrep", "--data", "no-such"], "no-such"),
    "unknown hyperparameter": (["fedrep", "--set", "tau=3"], "no setting 'tau'"),
    "malformed --set": (["fedrep", "--set", "tau"], "KEY=VALUE"),
    "unknown flag": (["fedrep", "--colour", "red"], "--colour"),
    "not a number": (["fedrep", "--lr", "fast"], "fast"),
    "no participation": (["fedrep", "--participation", "0"], "participation"),
    "too much participation": (["fedrep", "--participation", "1.5"], "participation"),
    "no clients": (["fedrep", "--clients", "0"], "clients"),
    "more clients than samples": (["fedrep", "--clients", "5000"], "5000"),
    "more classes than there are": (["fedrep", "--clients", "5", "--classes-per-client", "11"], "11"),
    "alpha 0": (["fedrep", "--clients", "5", "--partition", "dirichlet:0"], "lpha"),
    "missing configuration": (["fedrep", "--config", "no-such.toml"], "no-such.toml"),
    "missing table": (["fedrep", "--data", "no-such.csv"], "no-such.csv"),
    "missing model file": (["fedrep", "--model", "no-such.py:Net"], "no-such.py"),
    "a model that does not fit": (["fedrep", "--model", "cnn"], "16×16"),
    "rate of NaN": (["fedrep", "--lr", "nan"], "lr"),
    "fine-tuning without a global model": (["fedrep", "--finetune-epochs", "2"], "global model"),
    "resume without a folder": (["fedrep", "--resume"], "--out"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_sentence_and_leaves_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, named = WRONG[case]
    out = tmp_path / "run"
    where = [] if "--resume" in flags else ["--out", str(out)]
    assert main(["train", *flags, *where]) == 2
    _check_sentence(capsys, named)
    assert not out.exists()


@pytest.mark.parametrize(
    ("make", "data", "named"),
    [
        (_truncated_mnist, "mnist", "ubyte"),
        (_wrong_checksum, "mnist", "ubyte.gz"),
        (str, "mnist", "train-images-idx3-ubyte.gz"),
        (str, "cifar100", "cifar-100"),
    ],
    ids=["truncated", "wrong checksum", "missing", "missing CIFAR-100"],
)
def test_bad_data_files(make, data, named, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing is downloaded from a test
    folder, out = make(tmp_path), tmp_path / "run"
    assert main(["train", "fedrep", "--data", data, "--clients", "10", "--data-dir", folder, "--out", str(out)]) == 2
    _check_sentence(capsys, named)
    assert not out.exists()


@pytest.mark.parametrize("cell", ["inf", "1e39", "red"])
def test_bad_cells_of_a_table(cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    table = _csv(tmp_path, cell)
    assert main(["train", "fedrep", "--data", table, "--partition", "column:who", "--out", str(out)]) == 2
    _check_sentence(capsys, "b")
    assert not out.exists()


def test_a_table_with_a_client_column_trains(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ["--data", _csv(tmp_path, "1"), "--partition", "column:who", "--rounds", "2", "--quiet"]
    assert main(["train", "fedrep", *flags, "--out", str(out)]) == 0
    assert json.loads((out / "summary.json").read_text())["clients"] == 2


def test_another_run_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run"), "--quiet"]
    assert main(["train", "fedrep", *BASE, *out]) == 0
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert main(["train", "fedper", *BASE, *out]) == 2
    _check_sentence(capsys, "already holds a run")
    assert main(["train", "fedrep", *BASE, "--lr", "0.01", *out, "--resume"]) == 2
    _check_sentence(capsys, "lr = 0.05, not 0.01")
    assert main(["train", "fedavg", *BASE, *out, "--resume"]) == 2
    _check_sentence(capsys, "algorithm = 'fedrep', not 'fedavg'")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    assert main(["train", "--resume", *out]) == 0


def _check_sentence(capsys: pytest.CaptureFixture[str], named: str) -> None:
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("commonground: ")
    assert "Traceback" not in lines[0]
    assert named in lines[0]


def _start(out: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "commonground", "train", "fedrep", *BASE[:-4], "--rounds", "50", "--seed", "1"]
    return subprocess.Popen([*command, "--out", str(out), "--quiet", *flags], stderr=subprocess.PIPE)


def _wait_for_rounds(out: Path, process: subprocess.Popen[bytes], rounds: int) -> None:
    began = time.monotonic()
    while time.monotonic() - began < 60 and process.poll() is None:
        path = out / "rounds.jsonl"
        if path.is_file() and path.read_bytes().count(b"\n") >= rounds:
            return
        time.sleep(0.01)
    raise AssertionError("the run did not get that far")


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_ctrl_c_ends_with_130_and_a_checkpoint_and_resume_gives_the_same_weights(tmp_path: Path, engine: str) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    reference = _start(whole, "--engine", engine)
    process = _start(broken, "--engine", engine)
    _wait_for_rounds(broken, process, 5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.decode().count("\n") == 1
    assert list((broken / "checkpoint").glob("round-*.safetensors"))
    # Killed the hard way in the middle of the second leg.
    process = _start(broken, "--engine", engine, "--resume")
    _wait_for_rounds(broken, process, 20)
    process.kill()
    process.communicate()
    process = _start(broken, "--engine", engine, "--resume")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert reference.wait(timeout=120) == 0
    assert reference.stderr is not None
    reference.stderr.close()
    results = [json.loads((path / "summary.json").read_text()) for path in (whole, broken)]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    histories = [[json.loads(x) for x in (p / "rounds.jsonl").read_text().splitlines()] for p in (whole, broken)]
    for one, other in zip(*histories, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }


def test_a_head_in_the_middle_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rounds", "1", "--head"]
    assert main(["train", "fedrep", *BASE, *flags, "fc1", "--out", str(tmp_path / "one")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "head: fc1 (" in said
    assert "the body goes on behind the head (fc2, head), which is rarely meant" in said
    assert main(["train", "fedrep", *BASE, *flags, "fc2,head", "--out", str(tmp_path / "two")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "head: fc2, head (" in said
    assert "body: fc1 (" in said
    assert "rarely meant" not in said


@pytest.mark.parametrize("what", ["algorithms", "data", "models"])
def test_list(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    named = {"algorithms": "fedrep", "data": "emnist-letters", "models": "cnn"}[what]
    assert named in capsys.readouterr().out


def test_digits_reach_what_the_readme_says(tmp_path: Path) -> None:
    base = ["--data", "digits", "--clients", "20", "--classes-per-client", "2", "--rounds", "30", "--seed", "5"]
    results = {}
    for name in ("fedrep", "fedavg"):
        out = tmp_path / name
        assert main(["train", name, *base, "--out", str(out), "--quiet"]) == 0
        results[name] = json.loads((out / "summary.json").read_text())
    personal = results["fedrep"]["personal_accuracy"]["mean"]
    assert personal >= 0.95
    assert personal >= results["fedavg"]["global_accuracy"] + 0.05
    assert results["fedrep"]["global_accuracy"] is None


def test_predict_and_adapt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sklearn.datasets import load_digits

    out = tmp_path / "run"
    assert main(["train", "fedrep", *BASE, "--rounds", "10", "--out", str(out), "--quiet"]) == 0
    digits = load_digits()
    np.save(tmp_path / "x.npy", digits.images[:5])
    np.savetxt(tmp_path / "x.csv", digits.data[:5], delimiter=",")
    np.savetxt(tmp_path / "x2.csv", digits.data[:5], delimiter=";", encoding="utf-16")
    answers = []
    for name, read in (("x.npy", []), ("x.csv", []), ("x2.csv", ["--separator", ";", "--encoding", "utf-16"])):
        assert main(["predict", str(out), "--client", "3", "--input", str(tmp_path / name), *read]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0].splitlines()) == 6
    assert main(["adapt", str(out), "--shots", "4,8", "--classes-per-client", "3", "--repeats", "1", "--quiet"]) == 0
    results = json.loads((out / "adapt.json").read_text())["results"]
    assert {(r["method"], r["shots"]) for r in results} == {
        (m, k) for m in ("frozen body", "local only") for k in (4, 8)
    }
    for flags, named in (
        (["predict", str(out), "--client", "99", "--input", str(tmp_path / "x.npy")], "99"),
        (["predict", str(out), "--global", "--input", str(tmp_path / "x.npy")], "no global model"),
        (["predict", str(out), "--client", "0", "--input", str(tmp_path / "no.npy")], "no.npy"),
        (
            ["predict", str(out), "--client", "0", str(tmp_path / "x.npy"), "--separator", ";"],
            "--separator says nothing",
        ),
        (
            ["predict", str(out), "--client", "0", str(tmp_path / "x.npy"), "--encoding", "ascii"],
            "--encoding says noth",
        ),
        (["predict", str(out), "--client", "0", str(tmp_path / "x.csv"), "--separator", ";"], "…', no number"),
        (["adapt", str(out), "--keep", "--repeats", "3"], "--repeats is for --shots, and --keep has no use for it"),
        (["adapt", str(out), "--keep", "--per-class"], "--per-class is for --shots"),
        (["adapt", str(out), "--keep", "--out", str(tmp_path / "new")], "--out is for --shots"),
        (["adapt", str(out), "--shots", "5000"], "5000"),
        (["adapt", str(tmp_path / "nothing"), "--shots", "5"], "nothing"),
        (["adapt", str(out), "--shots", "500", "--per-class"], "class"),
    ):
        assert main(flags) == 2
        _check_sentence(capsys, named)


def test_output_to_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m commonground list algorithms | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=os.environ, check=False)
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that takes nothing")
def test_output_that_takes_no_more_is_told_apart_from_a_full_disk() -> None:
    command = f"{sys.executable} -m commonground list algorithms > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=os.environ, check=False)
    said = "commonground: standard output took no more: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_progress_shows_the_validation_metric_that_judges(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "digits", "--clients", "3", "--rounds", "2", "--validation-fraction", "0.3"]
    assert main(["train", "fedavg", *words, "--rank-by", "log_loss"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    assert len(lines) == 2
    for line in lines:
        assert re.search(r"accuracy \d+\.\d %  validation log loss \d\.\d+", line)


def test_lines_of_rounds_say_which_model_is_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method with both has each client's own, and the global one behind it."""
    for method, says in (("fedavg", r"  global accuracy [\d.]+ %  "), ("fedrep", r"  personal accuracy [\d.]+ %  ")):
        assert main(["train", method, *BASE, "--out", str(tmp_path / method)]) == 0
        assert re.search(says, capsys.readouterr().err)
    assert main(["train", "ditto", *BASE, "--out", str(tmp_path / "ditto")]) == 0
    said = re.findall(r"  personal accuracy ([\d.]+) %, global ([\d.]+) %  ", capsys.readouterr().err)
    summary = json.loads((tmp_path / "ditto" / "summary.json").read_text())
    last = summary["personal_accuracy"]["mean"], summary["global_accuracy"]
    assert said[-1] == tuple(f"{100 * value:.1f}" for value in last)
    assert said[-1][0] != said[-1][1]


def test_hyperparameters_are_named_one_by_one_where_a_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run"), "--quiet"]
    given = ["--set", "head_epochs=2", "--set", "body_epochs=1", "--set", "model.hidden=[8]"]
    assert main(["train", "fedrep", *BASE, *given, *out]) == 0
    for named in ([], ["--set", "head_epochs=2"], ["--set", "model.hidden=[8]"]):
        assert main(["train", *out, "--resume", "--rounds", "3", *named]) == 0
    assert main(["train", *out, "--resume", "--set", "head_epochs=3"]) == 2
    assert "'head_epochs': 2" in capsys.readouterr().err
    assert main(["train", "fedper", *out, "--resume"]) == 2
    assert "was started with algorithm = 'fedrep', not 'fedper'" in capsys.readouterr().err
