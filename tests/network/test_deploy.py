"""A server and clients in processes of their own, over TLS with keys; one deployment for all tests of this file."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

import commonground as cg
from commonground.cli import main
from commonground.data import FederatedDataset, load_data
from commonground.errors import RunError
from commonground.network.fleet import Fleet
from commonground.network.holder import Holder
from commonground.network.keys import make_certificates, make_node_key, read_node_key
from tests.network.live import Live

ROUNDS = 3
SETTINGS = ("--rounds", str(ROUNDS), "--model", "mlp", "--threads", "1", "--seed", "3")


@pytest.fixture(scope="module")
def data() -> FederatedDataset:
    return load_data("digits", 3, partition="shards:4", seed=0)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, data: FederatedDataset) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("live"), data)
    try:
        live.start()
        yield live
    finally:
        live.close()


def here(data: FederatedDataset, algorithm: str, **more: Any) -> str:
    named = load_data("digits", 3, partition="shards:4", seed=0)
    given = {"rounds": ROUNDS, "model": "mlp", "threads": 1, "seed": 3, **more}
    run = cg.train(algorithm, named, engine="serial", **given)
    return str(run.summary["weights_sha256"])


def test_the_numbers_are_those_of_one_machine(live: Live, data: FederatedDataset, tmp_path: Path) -> None:
    summary = live.ran(tmp_path / "run", "fedrep", *SETTINGS)
    assert summary["weights_sha256"] == here(data, "fedrep")
    assert summary["engine"] == "network"
    assert (tmp_path / "run" / "report.html").is_file()
    rows = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text("utf-8").splitlines()]
    assert [row["participants"] for row in rows] == [3] * ROUNDS


def test_a_killed_client_goes_on_and_nothing_is_lost(live: Live, data: FederatedDataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    child = live.run(out, "scaffold", *SETTINGS)
    _wait_for_rounds(out, 1, child)
    live.kill("client 1")
    time.sleep(0.5)
    live.start_client(1)
    _, told = child.communicate(timeout=200)
    assert child.returncode == 0, told
    assert json.loads((out / "summary.json").read_text("utf-8"))["weights_sha256"] == here(data, "scaffold")


def test_a_killed_server_is_continued(live: Live, data: FederatedDataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    child = live.run(out, "fedrep", *SETTINGS)
    _wait_for_rounds(out, 1, child)
    live.kill("server")
    child.kill()
    child.communicate()
    live.start_server()
    summary = live.ran(out, "fedrep", *SETTINGS, "--resume", "--expect", "9")
    assert summary["weights_sha256"] == here(data, "fedrep")
    assert "the run goes on with the 3 clients it began with: " in (out / "network.log").read_text("utf-8")


def test_a_run_goes_on_on_the_server_until_it_is_stopped_there(
    live: Live, data: FederatedDataset, tmp_path: Path
) -> None:
    """Ctrl-C ends who looks on; the run may be gone on with afterwards."""
    out = tmp_path / "run"
    child = live.run(out, "fedrep", *SETTINGS[2:], "--rounds", "400")
    _wait_for_rounds(out, 1, child)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130
    found = re.search(r"the run goes on on the server; `commonground deploy stop (\d+) --folder (.*)` ends it", told)
    assert found is not None, told
    assert found[2] == str(live.deployment.folder)
    assert f"when it has finished, `commonground report {out}` writes its report" in told
    before = len((out / "rounds.jsonl").read_text("utf-8").splitlines())
    _wait_for_rounds(out, before + 1, None)
    live.deployment.stop(int(found[1]))
    with pytest.raises(RunError):
        live.deployment.stop(1)
    rounds = -1
    while rounds != (rounds := len((out / "rounds.jsonl").read_text("utf-8").splitlines())):
        time.sleep(2)
    assert rounds < 400
    assert not (out / "summary.json").is_file()
    summary = live.ran(out, "fedrep", *SETTINGS[2:], "--rounds", str(rounds), "--resume")
    assert (summary["rounds"], "stopped_after" in summary) == (rounds, False)
    assert summary["weights_sha256"] == here(data, "fedrep", rounds=rounds)
    logs = [(live.root / f"client {c}.log").read_text("utf-8") for c in range(len(live.sites))]
    assert not [text for text in logs if "cannot be reached: Client error" in text]


def test_a_run_that_waits_for_clients_keeps_its_folder(live: Live, data: FederatedDataset, tmp_path: Path) -> None:
    """People start again after Ctrl-C, which ends the display alone; and who looks on hears that a run was stopped."""
    out = tmp_path / "run"
    waiting = live.run(out, "fedrep", *SETTINGS, "--expect", "9")
    number = str(_holder(out, waiting))
    held = {path.name: path.read_bytes() for path in out.iterdir()}
    second = live.run(out, "fedrep", *SETTINGS)
    _, told = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"the run {number} has '{out}'" in told
    assert f"`commonground deploy stop {number} --folder {live.deployment.folder}` ends it" in told
    assert len(told.splitlines()) == 1
    assert {name: (out / name).read_bytes()[: len(content)] for name, content in held.items()} == held
    live.deployment.stop(int(number))
    _, told = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    said = f"commonground: the run {number} was stopped before its first round; start it again"
    assert told.splitlines()[-1] == said
    assert live.ran(out, "fedrep", *SETTINGS)["weights_sha256"] == here(data, "fedrep")


def test_who_looks_on_hears_that_a_run_was_stopped(live: Live, data: FederatedDataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    child = live.run(out, "fedrep", *SETTINGS[2:], "--rounds", "400")
    _wait_for_rounds(out, 1, child)
    number = str(_holder(out, child))
    second = live.run(out, "fedrep", *SETTINGS[2:], "--rounds", "400", "--resume")
    assert f"the run {number} has '{out}'" in second.communicate(timeout=60)[1]
    live.deployment.stop(int(number))
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130
    assert told.splitlines()[-1] == f"commonground: the run {number} was stopped; go on with it with --resume"


def _holder(out: Path, child: subprocess.Popen[str]) -> int:
    """The number of the run that has a folder, as soon as it does."""
    until = time.monotonic() + 60
    while (holder := Holder.of(out)) is None:
        assert child.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    return holder.run


def test_who_is_there_is_told_by_name_and_a_key_may_be_let_in_twice(
    live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live.ran(tmp_path / "run", "fedavg", *SETTINGS[2:], "--rounds", "1")
    names = [f"client {site.name}" for site in live.sites]
    folder = ["--folder", str(live.deployment.folder)]
    let_in = live.deployment.keys()
    assert sorted(let_in.values()) == sorted(str(site / "node.pub") for site in live.sites)
    assert main(["deploy", "status", *folder]) == 0
    shown = capsys.readouterr().out.splitlines()
    lines = [line for line in shown if line.startswith("node ")]
    assert any(line.startswith("run ") and line.endswith(f"  --out {tmp_path / 'run'}") for line in shown)
    assert sorted(line.partition("  client ")[2] for line in lines) == sorted(name[7:] for name in names)
    make_node_key(tmp_path / "new")
    keys = [str(live.sites[0] / "node.pub"), str(tmp_path / "new" / "node.pub")]
    assert main(["deploy", "register", *folder, *keys]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"'{keys[0]}' was let in before"
    assert re.fullmatch(rf"'{re.escape(keys[1])}' is node \d+", second)
    given = f"127.0.0.1:{live.port}", read_node_key(tmp_path / "new"), live.deployment.certificates / "ca.pem"
    line = Fleet(*given, tmp_path / "node.txt", 1 << 20)
    number = line.connect()
    line.close()
    assert main(["deploy", "unregister", *folder, keys[1]]) == 0
    assert capsys.readouterr().out == f"node {number} takes part no more\n"
    assert sorted(live.deployment.keys().values()) == sorted(let_in.values())
    again = Fleet(*given, tmp_path / "node.txt", 1 << 20)
    with pytest.raises(RunError, match="does not take this client"):
        again.connect()
    again.close()
    assert main(["deploy", "unregister", *folder, keys[1]]) == 2
    assert f"no key '{keys[1]}' was let in; known are " in capsys.readouterr().err


def test_a_setting_that_does_not_fit_is_one_sentence(live: Live, tmp_path: Path) -> None:
    child = live.run(tmp_path / "run", "fedavg", "--rounds", "1", "--model", "cnn")
    _, told = child.communicate(timeout=100)
    assert child.returncode == 2
    assert "the model 'cnn' needs images of at least 16×16" in told.splitlines()[-1]
    assert "Traceback" not in told


def test_a_client_without_a_registered_key_is_refused(live: Live, tmp_path: Path) -> None:
    make_node_key(tmp_path)
    command = live.client_command(0)
    command[command.index("--folder") + 1] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    told = done.stderr.splitlines()[-1]
    assert "does not take this client (Failed to activate SuperNode.); its key may not be let in yet" in told
    assert told.endswith(f": commonground deploy register --folder SERVER_FOLDER {tmp_path / 'node.pub'}")


def test_a_second_process_of_a_client_is_refused(live: Live) -> None:
    twice = subprocess.run(live.client_command(1), capture_output=True, text=True, timeout=60, check=False)
    assert twice.returncode == 2
    assert f"another process uses the client's folder '{live.sites[1]}'" in twice.stderr


def test_a_client_does_not_talk_to_another_server(live: Live, tmp_path: Path) -> None:
    """A certificate of another authority: nothing is sent."""
    make_certificates(tmp_path, ["localhost", "127.0.0.1"])
    command = live.client_command(0)
    command[command.index("--ca") + 1] = str(tmp_path / "ca.pem")
    command[command.index("--folder") + 1] = str(tmp_path / "client")  # the other one's is in use
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        told = child.stderr.readline()
        assert "CERTIFICATE_VERIFY_FAILED" in told
        assert told.endswith("(is --ca the certificates/ca.pem of this server?); trying again\n")
    finally:
        child.kill()
        child.communicate()


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], days=-1)
    make_node_key(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_answer_once, args=(context, listening), daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        fleet = Fleet(address, read_node_key(tmp_path), tmp_path / "ca.pem", tmp_path / "node.txt", 1 << 20)
        with pytest.raises(httpx.ConnectError, match="certificate has expired"):
            fleet.connect()


def _answer_once(context: ssl.SSLContext, listening: socket.socket) -> None:
    with suppress(OSError):
        near, _ = listening.accept()
        context.wrap_socket(near, server_side=True).close()


def test_plain_http_is_refused(live: Live) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://127.0.0.1:{live.port}/v1/fleet/pull-messages", content=b"")


def test_without_a_signature_nothing_is_served(live: Live) -> None:
    known = ssl.create_default_context(cafile=live.deployment.certificates / "ca.pem")
    with httpx.Client(verify=known) as client:
        kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        answer = client.post(f"https://127.0.0.1:{live.port}/v1/fleet/pull-messages", content=b"", headers=kind)
        assert answer.status_code in (401, 403, 415)
        whole = bytes(6 << 20)
        answer = client.post(f"https://127.0.0.1:{live.port}/v1/fleet/push-object", content=whole, headers=kind)
        assert answer.status_code == 413


def test_the_secret_key_is_nobody_elses_to_read(live: Live) -> None:
    for path in (live.sites[0] / "node.key", live.deployment.certificates / "server.key"):
        assert path.stat().st_mode & 0o077 == 0


def _wait_for_rounds(out: Path, rounds: int, child: subprocess.Popen[str] | None) -> None:
    until = time.monotonic() + 120
    lines = out / "rounds.jsonl"
    while not (lines.is_file() and lines.read_text("utf-8").count("\n") >= rounds):
        assert child is None or child.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
