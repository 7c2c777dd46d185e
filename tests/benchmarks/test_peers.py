"""The benchmark beside other simulators: what it times, in which order, and the page. No peer is needed."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from benchmarks.peers import samples, stand_ins
from benchmarks.peers.__main__ import main
from benchmarks.peers.clock import Clock, Enough
from benchmarks.peers.common import NAMES, Missing, Work, peer_named
from benchmarks.peers.fedrep_authors import _with_expanded_tabs
from benchmarks.peers.harness import Asked, Failed, beside, child
from commonground.config import RunConfig
from commonground.engine.loop import Loop
from commonground.engine.prepare import prepare_setup

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"

STUB = """
import os, subprocess, sys, time
from pathlib import Path
from benchmarks.peers import common

BURN = "import time\\nwhile time.process_time() < {}: pass"

class Peer(common.Peer):
    title, methods, differs = "A stub", ("fedavg",), ("it learns nothing",)

    def find(self, path):
        if path is None:
            raise common.Missing("it is nowhere")
        return "1.0"

    def run(self, path, work, clock):
        if path is None or (path / "broken").exists():
            raise ValueError("it broke")
        with open(path / "order", "a") as order:
            order.write(f"{__name__} {work.method} {work.momentum} {len(os.sched_getaffinity(0))} {work.precision}\\n")
        while True:
            subprocess.run([sys.executable, "-S", "-c", BURN.format(SECONDS)], check=True)
            clock.trained()
            sum(range(100_000))
            clock.tested(0.5)
"""


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two modules of peers, of which one burns four times as long."""
    for name, seconds in (("stub_quick", 0.05), ("stub_slow", 0.2)):
        (tmp_path / "own_peers").mkdir(exist_ok=True)
        (tmp_path / "own_peers" / f"{name}.py").write_text(STUB.replace("SECONDS", str(seconds)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_peer_and_ours_are_timed_in_turns_on_one_core(stubs: Path) -> None:
    quick, slow = (Asked(f"own_peers.stub_{name}", str(stubs)) for name in ("quick", "slow"))
    said: list[str] = []
    found = beside(slow, Work("fedrep", str(stubs), rounds=2), ("fedrep", "fedavg"), 2, said.append, quick)
    assert (found["version"], found["differs"]) == ("1.0", ["it learns nothing"])
    (done,) = found["methods"].values()  # it has FedAvg alone
    order = [row.split() for row in (stubs / "order").read_text().splitlines()]
    assert [row[0] for row in order] == ["own_peers.stub_quick", "own_peers.stub_slow"] * 2
    assert {tuple(row[1:]) for row in order} == {("fedavg", "0.5", "1", "fp32")}
    assert done["peer"]["round_cpu"]["values"] == 2 * 2  # rounds that count, of both repeats
    assert done["peer"]["round_cpu"]["min"] > 0.19  # what a process below it burns counts
    assert 2 < done["ratio"]["round_cpu"] < 8
    assert done["peer"]["test_cpu"]["median"] < 0.05
    assert done["peer"]["memory_mb"] > 1
    assert len(done["load"]) == 3
    assert "A stub, fedavg" in said[0]


def test_ours_takes_a_third_turn_in_bf16(stubs: Path) -> None:
    quick, slow = (Asked(f"own_peers.stub_{name}", str(stubs)) for name in ("quick", "slow"))
    said: list[str] = []
    found = beside(slow, Work("fedavg", str(stubs), rounds=1), ("fedavg",), 2, said.append, quick, bf16=True)
    turns = [row.split() for row in (stubs / "order").read_text().splitlines()]
    assert [(row[0][-5:], row[-1]) for row in turns] == [("quick", "fp32"), ("quick", "bf16"), ("_slow", "fp32")] * 2
    done = found["methods"]["fedavg"]
    assert 2 < done["ratio_bf16"]["round_cpu"] < 8
    assert f"{done['ratio_bf16']['round_cpu']} times ours in bf16" in said[0]


def test_a_peer_that_is_missing_or_breaks_is_said_and_skipped(stubs: Path) -> None:
    work = Work("fedavg", str(stubs))
    with pytest.raises(Missing, match=r"^it is nowhere$"):
        beside(Asked("own_peers.stub_slow"), work, ("fedavg",), 1)
    with pytest.raises(Missing, match=r"^it has no fedrep$"):
        beside(Asked("own_peers.stub_slow", str(stubs)), work, ("fedrep",), 1)
    (stubs / "broken").touch()
    with pytest.raises(Failed, match="ValueError: it broke"):
        beside(Asked("own_peers.stub_slow", str(stubs)), work, ("fedavg",), 1, ours=Asked("own_peers.stub_slow"))
    with pytest.raises(Failed, match="within 0 s"):
        child(Asked("own_peers.stub_slow", str(stubs)), ("find",), 1, 0)
    out = stubs / "found.json"
    words = ["--peer", "own_peers.stub_slow", "--random", "10", "--clients", "5", "--sampled", "2", "--out", str(out)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["skipped"] == [{"name": "own_peers.stub_slow", "why": "it is nowhere"}]
    assert found["peers"] == []
    assert str(stubs) not in out.read_text()
    assert found["command"] == (
        "python -m benchmarks.peers --peer own_peers.stub_slow --random 10 --clients 5 --sampled 2 --rounds 2 "
        "--repeats 3 --cores one"
    )
    few = CliRunner().invoke(main, ["--peer", "own_peers.stub_slow", "--clients", "5"])
    assert "10 of 5 clients" in few.output
    assert "there is no peer 'nobody'" in CliRunner().invoke(main, ["--peer", "nobody"]).output


def test_a_peer_does_not_outlive_the_benchmark(stubs: Path) -> None:
    peer = stubs / "own_peers" / "stub_slow.py"
    peer.write_text(peer.read_text().replace("while True:", "while time.sleep(600) is None:"))
    words = ["--peer", f"own_peers.stub_slow={stubs}", "--method", "fedavg", "--random", "2", "--clients", "5"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(stubs), str(Path(__file__).parents[2])])}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers", *words, "--sampled", "1"], env=environment
    ) as running:
        until = time.monotonic() + 120
        while not (stubs / "order").exists() and time.monotonic() < until:
            time.sleep(0.1)
        found = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) != 0
    assert (stubs / "order").exists()
    assert found
    _, alive = psutil.wait_procs(found, 20)
    for process in alive:
        process.kill()
    assert not alive


def test_the_clock_leaves_out_what_warms_up_and_ends_by_itself() -> None:
    clock = Clock(2)
    clock.begins_untrained()
    tests = clock.testing(lambda result: result, lambda result: result / 100)
    for number in (10, 20, 30):
        assert tests(number) == number
    with pytest.raises(Enough):
        tests(40)
    figures = clock.figures()
    assert [len(figures[key]) for key in ("round_cpu", "round_wall", "test_cpu", "test_wall")] == [2] * 4
    assert figures["accuracy"] == 0.4
    began = time.process_time()
    clock.trained()
    while time.process_time() < began + 0.05:
        pass
    clock.evaluation.pop()
    with pytest.raises(Enough):
        clock.tested()
    assert clock.evaluation[-1][0] >= 0.045


@pytest.mark.parametrize("method", ["fedrep", "fedavg"])
def test_ours_runs_by_the_same_protocol(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "_evaluate", Loop._evaluate)  # to be as it was afterwards
    work = Work(
        method, str(tmp_path), per_client=10, clients=5, sampled=1, rounds=1, head_epochs=2, epochs=1, net="pfllib"
    )
    clock = Clock(work.rounds)
    with pytest.raises(Enough):
        peer_named("ours").run(None, work, clock)
    figures = clock.figures()
    assert len(figures["round_cpu"]) == len(figures["test_cpu"]) == 1
    assert 0 <= figures["accuracy"] <= 1


def test_peers_find_the_samples_that_ours_trains_on(tmp_path: Path) -> None:
    work = Work("fedrep", str(tmp_path), per_client=10, clients=5)
    data = samples.dealt(work)
    samples.write(data, tmp_path)
    setup = prepare_setup(RunConfig.make({"data": data.name, "clients": 5}), data)
    for part in ("train", "test"):
        read = samples.read(tmp_path, part)
        index = getattr(data, f"{part}_index")[read.index(3)]
        x, y = setup.inputs.rows(part, index)
        assert (read.of(3)[0] - setup.inputs.arrange(x)["x"]).abs().max() < 1e-5
        assert read.of(3)[1].tolist() == y.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_every_peer_can_be_named_and_says_what_differs(name: str) -> None:
    peer = peer_named(name)
    assert peer.title
    assert set(peer.methods) <= {"fedrep", "fedavg"}
    assert peer.differs
    if name not in ("flower", "fluke", "pfl_research", "blazefl"):
        with pytest.raises((Missing, ImportError)):
            peer.find(None)


def test_a_stand_in_lets_itself_be_imported_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    stand_ins.install("no_such_package")
    module = importlib.import_module("no_such_package.deep.inside")
    parent = importlib.import_module("no_such_package")
    assert parent.transforms.Compose([parent.transforms.ToTensor()])(3) == 3
    with pytest.raises(NotImplementedError, match="stand-in"):
        module.resnet18()(1, 2)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package_either")


def test_mixed_tabs_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    file = tmp_path / "mixed.py"
    file.write_text("def f():\n    for i in range(2):\n\ti += 1\n        i += 1\n    return i\n")
    with pytest.raises(TabError):
        compile(file.read_text(), str(file), "exec")
    assert _with_expanded_tabs("mixed_tabs", file).f() == 3
    assert os.listdir(tmp_path) == ["mixed.py"]


def _measured(times: float) -> dict[str, Any]:
    seconds = {"min": 1.5, "median": 2.0, "values": 6}
    side = {"round_cpu": seconds, "memory_mb": 300}
    ratio = {"round_cpu": times, "round_wall": times + 1, "test_cpu": 3.04, "memory_mb": 0.8}
    return {"ours": side, "peer": side | {"memory_mb": 240}, "ratio": ratio, "load": [0.5, 1.25]}


def test_the_page_shows_ratios_what_differs_and_where_ours_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXTENSIONS)
    speed = importlib.import_module("speed")
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    assert speed.speed("benchmarks/peers").startswith("Not measured")
    epochs = {"head_epochs": 10, "body_epochs": 1, "epochs": 5}
    peer = {"title": "A_peer", "version": "commit 1a", "python": "3.11.7", "differs": ["it differs"]}
    found: dict[str, Any] = {
        "command": "python -m benchmarks.peers --peer a", "machine": "a machine", "cores": "one",
        "versions": {"torch": "2"}, "work": {"clients": 100, "sampled": 10, "batch": 10, "per_client": 0} | epochs,
        "peers": [peer | {"methods": {"fedrep": _measured(8.46), "fedavg": _measured(0.95)}}],
        "skipped": [{"name": "other", "why": "it is nowhere"}],
    }  # fmt: skip
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "peers.json").write_text(json.dumps(found))
    page = speed.speed("benchmarks/peers")
    assert "| A\\_peer | FedRep | 2.00 (1.50) | 2.00 (1.50) | **8.5** | 9.5 | 3.0 | 300 | 240 |" in page
    assert "CPU seconds of a round (0.95 times)" in page
    assert "FedRep: memory (0.80 times)" in page
    assert "FedRep: CPU" not in page
    assert "Not measured: other (it is nowhere)." in page
    assert "- A\\_peer (commit 1a, Python 3.11.7): it differs." in page
    assert "load of the machine 0.5 to 1.2" in page
    assert "CIFAR-10, 100 clients" in page
    assert "(../../results/benchmarks/peers.json)" in page
    assert "bf16" not in page
    for done in found["peers"][0]["methods"].values():
        done["ratio_bf16"] = {"round_cpu": 14.26}
    (tmp_path / "benchmarks" / "peers.json").write_text(json.dumps(found))
    page = speed.speed("benchmarks/peers")
    assert "| ours, MB | its, MB | times, ours in bf16 |" in page
    assert "| **8.5** | 9.5 | 3.0 | 300 | 240 | 14.3 |" in page
