"""What ``commonground deploy`` says of its options before anything is started."""

from __future__ import annotations

import json
import math
import re
import shlex
import signal
import subprocess
import tomllib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from socket import create_server
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.common.config import parse_config_args

import commonground as cg
from commonground.cli import deploy as cli_deploy
from commonground.cli import main
from commonground.engine.state.lock import locked_file
from commonground.errors import ConfigError, RunError
from commonground.network import Answering
from commonground.network.deploy import Deployment, free_port
from commonground.network.following import follow
from commonground.network.keys import check_own_certificate, make_certificates, make_node_key
from commonground.network.limits import LARGEST, Limits
from commonground.network.own_data import write_arrays
from commonground.network.running import run_settings
from commonground.network.server_app import Job
from tests.helpers import made_data


def test_a_port_in_use_is_told_before_anything_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["deploy", "server", "--folder", str(tmp_path / "server"), "--port", port]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told == [f"commonground: nothing can listen on --host 127.0.0.1 --port {port}: Address already in use"]
    assert not (tmp_path / "server").exists()


def test_two_servers_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second would write where it listens over where the first one does, and nobody would find that any more."""
    folder, port = tmp_path / "server", str(free_port())
    Deployment(folder).set_up("127.0.0.1", 1, [], insecure=False)
    before = (folder / "flwr" / "config.toml").read_bytes()
    with locked_file(folder / "server.lock"):
        assert main(["deploy", "server", "--folder", str(folder), "--port", port]) == 2
    told = capsys.readouterr().err.splitlines()
    said = f"another `commonground deploy server` uses '{folder}'; end that one, or choose another --folder"
    assert told == [f"commonground: {said}"]
    assert (folder / "flwr" / "config.toml").read_bytes() == before


def test_a_server_that_does_not_answer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a server"
    Deployment(folder).set_up("127.0.0.1", free_port(), [], insecure=False)
    make_node_key(tmp_path / "client")
    said = f"the server of '{folder}' does not answer; start it: commonground deploy server --folder '{folder}'"
    commands = {
        "`flwr supernode list` failed": ["status"],
        "the run did not start": ["run", "fedavg", "--out", str(tmp_path / "run")],
    }
    for what, command in commands.items():
        assert main(["deploy", *command, "--folder", str(folder)]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"commonground: {what}: {said}"
    assert not (tmp_path / "run").exists()


def test_files_in_place_of_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    for command in (["client", "--data", "x", "--server", "h:1", "--insecure"], ["server", "--port", str(free_port())]):
        assert main(["deploy", *command, "--folder", str(file / "sub")]) == 2
        said = f"'{file}' is a file, and '{file / 'sub'}' would be in it; --folder needs a folder"
        assert capsys.readouterr().err == f"commonground: {said}\n"


@pytest.mark.parametrize("insecure", [False, True])
def test_clients_are_given_a_certificate_where_there_is_one(
    insecure: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()

    def attended(command: list[str], environment: dict[str, str], address: Any, said: str) -> int:
        told.append(said)
        return 0

    monkeypatch.setattr(cli_deploy, "_attended", attended)
    with create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    flag = ["--insecure"] if insecure else []
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["deploy", "server", "--folder", str(tmp_path), "--port", port, *flag])
    assert told[0].startswith(f"listening on 127.0.0.1:{port}")
    assert ("ca.pem'" in told[0]) is not insecure
    assert (tmp_path / "certificates" / "ca.pem").is_file() is not insecure
    if not insecure:
        assert main(["deploy", "server", "--folder", str(tmp_path), "--port", port, "--insecure"]) == 2
        assert "has certificates, which its clients were given; leave out --insecure" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "stop 1", "register node.pub", "run fedavg --out run"])
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_of_no_server_is_told_before_anything_is_written(
    there: bool, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("node.pub").write_text("key")
    if there:
        Path("mistyped").mkdir()
    assert main(["deploy", *command.split(), "--folder", "mistyped"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "mistyped' is no server's folder; name the one of `commonground deploy server --folder …`" in told
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mistyped"] * there + ["node.pub"]


@pytest.mark.parametrize("what", ["share", "seed"])
def test_a_client_says_which_rows_are_held_out(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("a,label,split\n1,x,train\n2,y,test\n")
    value = {"share": "0.3", "seed": "7"}[what]
    asked = f"deploy client --data x.csv --target label --server a:1 --insecure --test-{what} {value}"
    assert main(asked.split()) == 2
    assert f"so that a test {what} of {value} says nothing; leave out the {what}, or" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run fedavg --expect 1 --out run --answer-within nan", "'--answer-within': nan is no finite number"),
        (
            "run fedavg --expect 1 --out run --answer-within 1e10",
            "'--answer-within': 10000000000.0 is not in the range",
        ),
        ("run fedavg --expect 1 --out run --absent-for inf", "'--absent-for': inf is "),
        ("run fedavg --expect 1 --out run --wait nan", "'--wait': nan is no finite number"),
        ("run fedavg --expect 1 --out run --max-update-norm nan", "'--max-update-norm': nan is no finite number"),
        ("client --data x.csv --server a:1 --demand-dp client --least-noise nan", "'--least-noise': nan is no finite"),
    ],
)
def test_numbers_that_are_none(command: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of which each would end in a traceback, or hold nobody to anything."""
    assert main(["deploy", *command.split(), "--folder", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
    with pytest.raises(ConfigError, match="the least noise of client north must be a number of at least 0, not nan"):
        Answering(made_data((3,)), "north", tmp_path, demand="client", least_noise=math.nan)


def test_only_public_keys_are_registered(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "server")
    deployment.set_up("127.0.0.1", 9, [], insecure=True)
    make_node_key(tmp_path / "site")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    for wrong in (tmp_path / "table.csv", tmp_path / "site" / "node.key"):
        with pytest.raises(ConfigError, match=f"'{wrong}' holds no public key; it is node.pub of the client's folder"):
            deployment.register(wrong)


def started(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> tuple[Job, dict[str, Any]]:
    """The job that a run is given, and its configuration as Flower reads it off the command."""
    commands: list[list[str]] = []

    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps({"success": True, "run-id": "7"}), "")

    job = Job(settings={}, clients=2, wait=1, limits=Limits(seconds=5), out="run")
    with monkeypatch.context() as patched:
        patched.setattr("commonground.network.deploy.subprocess.run", run)
        _, name, number = deployment.start(job)
    assert number == 7
    config = parse_config_args([commands[0][commands[0].index("--run-config") + 1]])
    return Job.model_validate_json(deployment.job_file(name).read_bytes()), config


@pytest.mark.parametrize("mebibytes", [None, 1, 4096])
def test_a_run_takes_messages_as_large_as_its_server_does(
    mebibytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[str] = []

    def attended(command: list[str], environment: dict[str, str], *listens: Any) -> int:
        gates.append(environment["COMMONGROUND_MAX_MESSAGE_BYTES"])
        return 0

    monkeypatch.setattr(cli_deploy, "_attended", attended)
    with create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    more = [] if mebibytes is None else ["--max-message", str(mebibytes)]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["deploy", "server", "--folder", str(tmp_path), "--port", port, "--insecure", *more])
    job, _ = started(Deployment(tmp_path), monkeypatch)
    most = LARGEST if mebibytes is None else mebibytes << 20
    assert job.limits == Limits(seconds=5, max_bytes=most)
    assert gates == [str(most)]


def test_a_server_of_before_has_the_usual_limit(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    assert deployment.max_bytes == LARGEST
    for content in ("", "[]", "{}", '{"max_bytes": "many"}'):
        (tmp_path / "server.json").write_text(content)
        with pytest.raises(ConfigError, match=r"server\.json' cannot be read; `commonground deploy server` writes it"):
            _ = deployment.max_bytes


@pytest.mark.parametrize("name", ["o'neil", "a b", 'a"b', "a\\", 'a\\"b=c', "ü 🙂", "a\nb"])
def test_a_folder_of_any_name_is_told_to_flower(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(tmp_path / name)
    deployment.set_up("127.0.0.1", 9, [], insecure=False)
    connection = tomllib.loads((deployment.folder / "flwr" / "config.toml").read_text("utf-8"))
    ca = connection["superlink"]["deployment"]["root-certificates"]
    assert ca == str(deployment.certificates / "ca.pem")
    _, config = started(deployment, monkeypatch)
    assert list(config) == ["job"]
    assert Path(config["job"]).parent == deployment.folder / "jobs"
    assert Path(config["job"]).is_file()


@pytest.mark.parametrize(
    ("host", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"),
     ("::1", "[::1]"), ("127.0.0.2", "127.0.0.2"), ("192.0.2.1", "192.0.2.1"), ("2001:db8::1", "[2001:db8::1]")],
)  # fmt: skip
def test_this_host_reaches_its_server_where_that_listens(host: str, reached: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    assert deployment.set_up(host, 9, [], insecure=False) == ""
    connection = tomllib.loads((tmp_path / "flwr" / "config.toml").read_text("utf-8"))
    assert connection["superlink"]["deployment"]["address"] == f"{reached}:9"
    assert check_own_certificate(deployment.certificates, [reached.strip("[]"), "localhost", "127.0.0.1"]) == ""


def test_a_certificate_without_the_address_to_listen_on_is_told(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.set_up("0.0.0.0", 9, ["fl.example.org"], insecure=False)
    with pytest.raises(ConfigError, match=r"is for fl\.example\.org, .*, and not for the address 192\.0\.2\.1: "):
        deployment.set_up("192.0.2.1", 9, ["fl.example.org"], insecure=False)


def client(tmp_path: Path, *more: str, server: str = "127.0.0.1:1") -> int:
    command = ["deploy", "client", "--folder", str(tmp_path / "client"), "--data", str(tmp_path), "--server", server]
    return main([*command, *more])


@pytest.mark.parametrize("content", [b"no certificate", b"", b"\xff\x00", b"the key"])
def test_a_file_that_is_no_certificate(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.pem"
    make_certificates(tmp_path, ["localhost"])
    file.write_bytes((tmp_path / "server.key").read_bytes() if content == b"the key" else content)
    assert client(tmp_path, "--ca", str(file)) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"commonground: --ca '{file}' is no certificate in PEM; it is certificates/ca.pem of the server's folder"
    ]


@pytest.mark.parametrize(
    "server",
    ["127.0.0.1", "127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1:", "127.0.0.1:x", ":9092", "::1", "[::1:9092", "",
     "https://fl.example.org:9092", "fl.example.org:9092/", "fl example:9092", "fl.example.org:-1", "fl.org:٣"],
)  # fmt: skip
def test_an_address_without_a_port_is_refused_at_once(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert client(tmp_path, "--insecure", server=server) == 2
    told = capsys.readouterr().err.splitlines()
    assert told == [f"commonground: --server '{server}' is no HOST:PORT, as fl.example.org:9092 is one"]
    assert not (tmp_path / "client").exists()


@pytest.mark.parametrize("server", ["127.0.0.1:9092", "[::1]:9092", "fl-1.example.org:65535", "my_host:1"])
def test_other_addresses_are_not(server: str, tmp_path: Path) -> None:
    assert client(tmp_path, "--insecure", "--key-only", server=server) == 0


def test_a_key_is_made_before_the_certificate_has_come(tmp_path: Path) -> None:
    assert client(tmp_path, "--ca", str(tmp_path / "not-yet.pem"), "--key-only") == 0


def test_a_key_needs_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert client(tmp_path, "--key-only") == 0
    given = shlex.quote(str(tmp_path / "client" / "node.pub"))
    assert f"commonground deploy register --folder SERVER_FOLDER {given}\n" in capsys.readouterr().out
    assert client(tmp_path, "--key-only", "--name", " ") == 2
    assert "--name is empty; leave it out" in capsys.readouterr().err
    assert client(tmp_path) == 2
    assert "a client needs the server's certificate: --ca ca.pem" in capsys.readouterr().err


def test_two_processes_are_not_one_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second would take letters that are the first one's; when that has ended, whatever way, it may."""
    folder = tmp_path / "client"
    write_arrays(made_data(), 0, tmp_path)
    taking_part: list[bool] = []

    def take_part(*given: Any) -> None:
        taking_part.append((folder / "client.lock").is_file())

    monkeypatch.setattr(cli_deploy, "_take_part", take_part)
    with locked_file(folder / "client.lock"):
        assert client(tmp_path, "--insecure") == 2
        assert client(tmp_path, "--insecure", "--key-only") == 0
    assert capsys.readouterr().err.splitlines() == [
        f"commonground: another process uses the client's folder '{folder}'; end that one, or choose another --folder"
    ]
    (folder / "client.lock").touch()  # as a killed one leaves it
    assert client(tmp_path, "--insecure") == 0
    assert taking_part == [True]


def test_noise_is_demanded_of_privacy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert client(tmp_path, "--insecure", "--least-noise", "1", "--key-only") == 2
    assert "--least-noise 1 is of the privacy that --demand-dp demands; add it" in capsys.readouterr().err
    assert client(tmp_path, "--insecure", "--least-noise", "1", "--demand-dp", "example", "--key-only") == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"algorithm": "fedrep", "finetune_epochs": 2}, "needs a method with one global model; FedRep has none"),
        ({"algorithm": "fedavg", "finetune_epochs": 2, "batch_norm": "local"}, "needs one global model"),
        ({"algorithm": "fedavg", "options": {"no_such": 1}}, "no_such"),
        ({"algorithm": "fedavg", "metrics": "full"}, "--metrics full is not possible where the clients' samples"),
    ],
)
def test_what_follows_from_the_command_alone_is_refused_before_clients_are_asked(
    settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        run_settings(settings, tmp_path / "run", resume=False)


def test_a_server_that_is_gone_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*words: str) -> None:
        raise RunError("`flwr ls` failed: Using SuperLink")

    deployment = Deployment(tmp_path)
    monkeypatch.setattr(deployment, "flwr", gone)
    out = tmp_path / "run"
    job = Job(settings={}, clients=1, wait=1, limits=Limits(), out=str(out))
    ticks = count(0, 100)  # seconds: it looks what Flower says after ten
    monkeypatch.setattr("commonground.network.following.time.monotonic", lambda: next(ticks))
    command = re.escape(
        f"commonground deploy server --folder {tmp_path}, with the --host, --port and --name that it had"
    )
    gone_says = rf"does not answer any more; start it again \({command}\) and "
    with pytest.raises(RunError, match=gone_says + "the run as well, without --resume: nothing of it was trained yet$"):
        follow(deployment, job, "job", 3, lambda kind, told: None)
    cg.train("fedavg", made_data(), model="linear", rounds=1, out=out / "begun")
    job = job.model_copy(update={"out": str(out / "begun")})
    with pytest.raises(RunError, match=gone_says + "continue the run with --resume$"):
        follow(deployment, job, "job", 3, lambda kind, told: None)


def test_a_run_that_has_trained_nothing_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no run to continue$"):
        run_settings({"algorithm": "fedavg"}, tmp_path, resume=True)
    (tmp_path / "network.log").write_text("client north is there\n")
    with pytest.raises(ConfigError, match=r"continue; nothing of it was trained yet: leave out --resume$"):
        run_settings({"algorithm": "fedavg"}, tmp_path, resume=True)


def test_options_that_are_always_refused_are_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "run", "--help"]) == 0
    told = capsys.readouterr().out
    given = {"--data": "digits", "--clients": "2", "--partition": "iid", "--target": "label", "--engine": "serial",
             "--workers": "2", "--init-from": "x", "--track": "tensorboard"}  # fmt: skip
    for name, value in given.items():
        assert f"  {name} " not in told
        assert main(["deploy", "run", "fedavg", "--out", "x", name, value]) == 2
        assert "not for" in capsys.readouterr().err
    assert "--rounds" in told
    assert "--expect" in told
    assert "  --metrics " not in told  # of which there is one kind alone
    assert "(not balanced, which asks for all clients' classes)" in " ".join(told.split())


def test_a_client_says_what_a_sigterm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it works on is finished, unless a second one comes."""
    told: list[str] = []
    line: Any = SimpleNamespace(close=lambda: told.append("closed"))

    def serve(fleet: Any, answering: Any, note: Any, over: Callable[[], bool]) -> None:
        for _ in range(2):
            assert over() is bool(told)
            signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the second one ends it")

    monkeypatch.setattr("commonground.network.node.serve_client", serve)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match=r"^130$"):
            cli_deploy._take_part(line, cast(Any, None), told.append)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == ["ends once what it works on is finished; a second SIGTERM, or Ctrl-C, ends it at once", "closed"]


def test_status_tells_no_time_that_a_restart_does_not_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower counts on over a client's restart, which takes its place back."""
    nodes = [{"node-id": "7", "status": "online", "online-elapsed": 835.0}, {"node-id": "8", "status": "offline"}]
    monkeypatch.setattr(Deployment, "flwr", lambda *words: (["flwr"], {"nodes": nodes, "runs": []}))
    assert main(["deploy", "status", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["node 7  online", "node 8  offline", "no runs yet"]


@pytest.mark.parametrize("who", ["7", "north.pub"])
def test_a_key_is_taken_back_by_its_file_or_by_the_node(
    who: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def flwr(deployment: Deployment, *words: str) -> tuple[list[str], dict[str, Any]]:
        asked.append(words)
        return ["flwr"], {}

    monkeypatch.setattr(Deployment, "flwr", flwr)
    (tmp_path / "registered").mkdir()
    for node, key in ((7, "north.pub"), (8, "south.pub")):
        (tmp_path / "registered" / f"{node}.txt").write_text(f"{key}\n", "utf-8")
    assert main(["deploy", "unregister", "--folder", str(tmp_path), who]) == 0
    assert capsys.readouterr().out == "node 7 takes part no more\n"
    assert asked == [("supernode", "unregister", "7")]
    assert Deployment(tmp_path).keys() == {"8": "south.pub"}
    assert main(["deploy", "unregister", "--folder", str(tmp_path), "north.pub"]) == 2
    assert "no key 'north.pub' was let in; known are south.pub" in capsys.readouterr().err


def test_folders_of_server_and_client_are_their_owners_alone(tmp_path: Path) -> None:
    Deployment(tmp_path / "server").set_up("127.0.0.1", 9, [], insecure=True)
    make_node_key(tmp_path / "client")
    for folder in ("server", "client"):
        assert (tmp_path / folder).stat().st_mode & 0o077 == 0


def test_a_certificate_for_other_names_is_told(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    assert deployment.set_up("127.0.0.1", 9, ["a.example.org"], insecure=False) == ""
    assert deployment.set_up("127.0.0.1", 9, [], insecure=False) == ""
    with pytest.raises(
        ConfigError, match=r"is for a\.example\.org, localhost, .*, and not for b\.example\.org: clients need"
    ):
        deployment.set_up("127.0.0.1", 9, ["b.example.org"], insecure=False)


@pytest.mark.parametrize("reached", ["fl.example.org", "FL.Example.ORG", "127.0.0.1", "::1", "0:0:0:0:0:0:0:1"])
def test_a_certificate_names_hosts_as_tls_takes_them(reached: str, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["*.Example.org", "127.0.0.1", "::1"])
    assert check_own_certificate(tmp_path, [reached]) == ""
    with pytest.raises(ConfigError, match=r"and not for example\.org"):
        check_own_certificate(tmp_path, ["example.org"])


def test_an_address_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS refuses a certificate of one's own that names it as one."""
    x509 = pytest.importorskip("cryptography.x509")
    with monkeypatch.context() as patched:
        patched.setattr("commonground.network.keys._name", x509.DNSName)
        make_certificates(tmp_path, ["127.0.0.1"])
    with pytest.raises(ConfigError, match=r"is for 127\.0\.0\.1, and not for the address 127\.0\.0\.1"):
        check_own_certificate(tmp_path, ["127.0.0.1"])


def test_names_with_other_letters(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["bücher.example"])
    assert check_own_certificate(tmp_path, ["xn--bcher-kva.example"]) == ""
    assert check_own_certificate(tmp_path, ["Bücher.example"]) == ""
    with pytest.raises(ConfigError, match=r"'a\.\.ü' is no name of a host"):
        make_certificates(tmp_path, ["a..ü"])


@pytest.mark.parametrize("name", ["straße.de", "Straße.DE", "faß.bücher.example", "my_host", "fl.example.org"])
def test_names_are_those_that_clients_look_for(name: str, tmp_path: Path) -> None:
    """As httpx encodes them: the older rule makes strasse.de of straße.de, which is somebody else's."""
    make_certificates(tmp_path, [name])
    sought = httpx.URL(f"https://{name}:9092").raw_host.decode()
    assert check_own_certificate(tmp_path, [sought, name]) == ""
    if "ß" in name:
        with pytest.raises(ConfigError, match="and not for"):
            check_own_certificate(tmp_path, [name.replace("ß", "ss")])


def test_a_star_stands_before_other_letters_too(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["*.bücher.example"])
    assert check_own_certificate(tmp_path, ["fl.xn--bcher-kva.example"]) == ""


@pytest.mark.parametrize("name", ["", "*."])
def test_an_empty_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"is no name of a host; give the one by which clients reach the server \(--name"
    ):
        make_certificates(tmp_path / "certificates", [name])
    assert not (tmp_path / "certificates").exists()


@pytest.mark.parametrize(("days", "said"), [(-2, "ended on"), (5, "ends on"), (90, "")])
def test_a_certificate_that_is_over_is_told_and_not_the_network_blamed(days: float, said: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.set_up("127.0.0.1", 9, [], insecure=False)
    make_certificates(deployment.certificates, ["localhost"], days)
    if days > 0:
        assert (said in deployment.set_up("127.0.0.1", 9, [], insecure=False)) is True
        return
    key = make_node_key(tmp_path / "site")
    for use in (
        lambda: deployment.set_up("127.0.0.1", 9, [], insecure=False),
        lambda: deployment.register(key),
        lambda: deployment.flwr("ls"),
    ):
        with pytest.raises(ConfigError, match=r"server\.pem' ended on .*: clients need another one and its ca\.pem"):
            use()
