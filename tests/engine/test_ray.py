"""The engine on Ray itself: a cluster of three hosts of which one is lost, a Ray of the run's own, and wrong addresses.

What is sent, kept and repeated is tested without Ray, in ``test_ray_protocol.py``.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from commonground import train
from commonground.cli import main
from commonground.engine.backends.ray_crew import Crew
from commonground.engine.backends.ray_session import Session, _loopback, import_ray
from commonground.errors import ConfigError, ModelError
from commonground.extras import pip_install
from tests.helpers import Notes, TwoLayer, Whole, digits, made_data, seeded, train_whole

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::ResourceWarning")]

STORE = 80 << 20  # bytes of each host's object store


@contextmanager
def hooks_dropped() -> Iterator[None]:
    """What Ray would do at this process's end, forgotten: from Python 3.13 on, a forked worker drops it first of all,
    and with it the hosts' clients, whose ends crash it.
    """
    hooks: list[Any] = []
    whole = atexit.register

    def register(hook: Any, *given: Any, **more: Any) -> Any:
        hooks.append(hook)
        return whole(hook, *given, **more)

    try:
        with patch.object(atexit, "register", register):
            yield
    finally:
        for hook in hooks:
            if str(getattr(hook, "__module__", "")).startswith("ray."):
                atexit.unregister(hook)


@contextmanager
def cluster_of_three() -> Iterator[Any]:
    """Three hosts of one CPU each, as far as Ray can tell."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    with _loopback(), hooks_dropped():
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(2):
                made.add_node(num_cpus=1, object_store_memory=STORE)
            yield made
        finally:
            made.shutdown()


def test_a_cluster(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One test, since a cluster starts slowly, and tests of one file may run in several processes."""
    silent = "ray" not in sys.modules  # what Ray prints is settled when it is imported
    pytest.importorskip("ray") if importlib.util.find_spec("ray") is None else import_ray()
    (tmp_path / "net.py").write_text(MODEL)
    with cluster_of_three() as cluster:
        more_workers_than_cpus(cluster)
        what_a_clients_code_raises_is_told_as_by_processes(cluster, tmp_path)
        a_model_of_a_users_file_and_a_run_that_is_resumed(cluster, tmp_path)
        capfd.readouterr()
        a_host_that_is_lost_in_the_middle_of_a_round(cluster)
        assert capfd.readouterr() == ("", "") or not silent  # Ray has no word
        assert Session.current is None


MODEL = """
from torch import nn

class Net(nn.Sequential):
    groups = {"head": ["2"]}

    def __init__(self, shape, classes):
        super().__init__(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

class Failing(Net):
    def forward(self, x):
        if self.training and len(x) == 3:
            raise ValueError("three are too many")
        return super().forward(x)
"""


def go(cluster: Any, **settings: Any) -> Whole:
    data = made_data((5, 3, 8, 4))
    on = {"engine": "ray", "workers": 2, "ray_address": cluster.address} if cluster is not None else {}
    return train_whole("fedrep", data, **{"batch_size": 4, "rounds": 3, **on, **settings})


def a_model_of_a_users_file_and_a_run_that_is_resumed(cluster: Any, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    settings: dict[str, Any] = {"model": f"{file}:Net", "rounds": 4}
    whole = go(None, **settings)
    with pytest.raises(ValueError, match="the display broke"):
        go(cluster, **settings, out=tmp_path / "run", observer=Notes(stop_after=2))
    again = go(cluster, **settings, out=tmp_path / "run", resume=True)
    assert again.sha == whole.sha
    assert again.run.summary["engine"] == "ray"
    assert [row["train_loss"] for row in again.run.history] == whole.losses


def what_a_clients_code_raises_is_told_as_by_processes(cluster: Any, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    said = []
    for where in (None, cluster):
        with pytest.raises(ModelError) as caught:
            go(where, model=f"{file}:Failing", batch_size=3, **({} if where else {"engine": "processes"}))
        said.append(str(caught.value).replace(str(tmp_path), ""))
        assert isinstance(caught.value.__cause__, ValueError)
    assert said[0].split(" in ")[1:] == said[1].split(" in ")[1:]  # another client may be the first
    assert "three are too many" in said[1]


def more_workers_than_cpus(cluster: Any) -> None:
    with pytest.raises(ConfigError, match=r"^--workers 4 needs 4 free CPUs, and the Ray cluster at \S+ has 3$"):
        go(cluster, workers=4)


def a_host_that_is_lost_in_the_middle_of_a_round(cluster: Any) -> None:
    data, settings = digits(9, 2), {"rounds": 4, "model": "mlp", "batch_size": 16}
    whole = train_whole("fedrep", data, **settings).run
    armed: list[Any] = []

    class Watching(Notes):
        def round(self, row: Any) -> None:
            if row["round"] == 2:
                armed.append(cluster.list_all_nodes()[-1])

    def ready(crew: Crew, answers: list[Any]) -> list[Any]:
        """With the first answer of the third round a host goes, whose worker has more of that round to do."""
        found = there(crew, answers)
        if found and armed:
            cluster.remove_node(armed.pop(), allow_graceful=False)
        return found

    notes, there = Watching(), Crew.ready
    with patch.object(Crew, "ready", ready):
        on = {"engine": "ray", "workers": 3, "ray_address": cluster.address}
        run = train_whole("fedrep", data, observer=notes, **{**settings, **on}).run
    assert run.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert [row["train_loss"] for row in run.history] == [row["train_loss"] for row in whole.history]
    (line,) = notes.said
    assert line.startswith("round 3: a worker on ")
    assert line.endswith("has taken its 3 clients and repeats their part")


# -- a Ray of the run's own -------------------------------------------------------------------------------------------


def processes_of(folder: str) -> dict[int, str]:
    """Processes with this folder in their command line, and Ray's workers among their children."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if folder in words or folder in (path.parent / "environ").read_bytes().decode(errors="replace"):
                found[int(path.parent.name)] = words
        except OSError:
            continue  # it has ended
    return found


def listening(pids: Any) -> set[str]:
    """Addresses, as the kernel writes them, at which these processes take connections."""
    own = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                own.add(os.readlink(link))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[1].split(":")[0])
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, and the same as an IPv6 address


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads what Linux tells of processes")
def test_a_ray_of_the_runs_own_is_seen_by_nobody_and_ends_with_it(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="cgt-", dir="/tmp")
    flags = ["--clients", "4", "--engine", "ray", "--workers", "2", "--rounds", "100000"]
    command = [sys.executable, "-m", "commonground", "train", "fedrep", *flags, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "TMPDIR": folder}
    with subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            rows = tmp_path / "run" / "rounds.jsonl"
            end = time.monotonic() + 120
            while not (rows.exists() and len(rows.read_text().splitlines()) > 3):
                assert run.poll() is None, run.communicate()
                assert time.monotonic() < end
                time.sleep(0.2)
            there = processes_of(folder)
            assert any("raylet" in words for words in there.values())
            assert listening(there) <= LOOPBACK
            os.killpg(run.pid, signal.SIGINT)
            _, said = run.communicate(timeout=60)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 130
    assert said.splitlines()[-1] == "commonground: interrupted; continue with --resume"
    assert {line.split(" ")[0] for line in said.splitlines()} <= {"", "FedRep", "round", "commonground:"}, said
    assert list((tmp_path / "run" / "checkpoint").glob("round-*"))
    end = time.monotonic() + 20
    while processes_of(folder) and time.monotonic() < end:
        time.sleep(0.2)
    assert processes_of(folder) == {}
    assert list(Path(folder).glob("cg-ray-*")) == []
    os.rmdir(folder)


# -- what is refused --------------------------------------------------------------------------------------------------


def small(**settings: Any) -> Any:
    return train("fedavg", made_data(), model=seeded(TwoLayer), rounds=1, **{"engine": "ray", **settings})


def test_nothing_answers() -> None:
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^nothing answers at --ray-address {address} \(.+\); `ray start"):
            small(ray_address=address)
    assert Session.current is None


def test_no_ray_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def nobody(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(pytest.importorskip("ray"), "init", nobody)
    with pytest.raises(
        ConfigError, match=r"^no Ray runs on this machine that --ray-address auto could join; `ray start"
    ):
        small(ray_address="auto")
    assert Session.current is None


def test_something_else_answers() -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"SSH-2.0-none\r\n"))
        thread.start()
        with pytest.raises(ConfigError, match=r"what answers at --ray-address 127\.0\.0\.1:\d+ is no Ray cluster"):
            small(ray_address=f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_no_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["train", "fedrep", "--engine", "ray", "--rounds", "1"]) == 2
    said = capsys.readouterr().err.strip()
    assert said == f"commonground: the engine 'ray' needs Ray, which is not installed: {pip_install('ray')}"


@pytest.mark.parametrize("address", ["lokal", "host:", ":6379", "ray://host:10001", "host:99999", "host:port"])
def test_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match=r"'ray_address' .*neither HOST:PORT of a Ray cluster nor auto"):
        small(ray_address=address)


def test_an_address_in_vain() -> None:
    with pytest.raises(ConfigError, match="--ray-address auto says where the engine 'ray' computes; add --engine ray"):
        small(engine="serial", ray_address="auto")
