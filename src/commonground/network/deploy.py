"""A deployment on this host: its folder, and Flower's commands that are run for it."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from commonground.engine.state.files import write_atomically
from commonground.errors import ConfigError, RunError
from commonground.network.holder import Holder
from commonground.network.keys import check_own_certificate, make_certificates
from commonground.network.limits import LARGEST
from commonground.network.members import MEMBERS, Members
from commonground.network.server_app import Job
from commonground.network.superlink import MAX_BYTES, is_everywhere
from commonground.quoting import escaped

__all__ = ["CONNECTION", "Deployment", "flower_project", "free_port"]

CONNECTION = "deployment"
_LOCAL = ("localhost", "127.0.0.1", "::1")

_SERVER = "from commonground.network import server_app\n\napp = server_app.app\n"  # Flower looks for an assignment
_CLIENT = '''"""Flower wants one; clients run `commonground deploy client`, which takes no code from the server."""
from flwr.clientapp import ClientApp

app = ClientApp()
'''


def flower_project(name: str, components: Mapping[str, str], config: Mapping[str, str | int]) -> str:
    """The ``pyproject.toml`` of an app that Flower runs.

    Args:
        name: the app's.
        components: ``serverapp`` and ``clientapp``, as ``module:object``.
        config: what a run of it may be given, with the values that stand there otherwise.
    """
    parts: dict[str, Mapping[str, object]] = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": name,
            "version": "1.0.0",
            "description": "What Flower runs for CommonGround",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool.flwr.app": {"publisher": "commonground"},
        "tool.flwr.app.components": components,
        "tool.flwr.app.config": config,
    }
    lines = [[f"[{title}]", *(f"{key} = {json.dumps(value)}" for key, value in part.items())]
             for title, part in parts.items()]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in lines) + "\n"


class Deployment:
    """The server's folder: certificates, Flower's database and settings, the app that is started for a run.

    Args:
        folder: of the server.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @property
    def certificates(self) -> Path:
        """Folder of ``ca.pem``, which clients are given, and of the server's own."""
        return self.folder / "certificates"

    @property
    def insecure(self) -> bool:
        """Whether it was set up for plain connections."""
        return not (self.certificates / "ca.pem").is_file()

    @property
    def max_bytes(self) -> int:
        """Of a client's message, as the server was started last."""
        path = self.folder / "server.json"
        if not path.is_file():  # a server of an earlier version
            return LARGEST
        try:
            return int(json.loads(path.read_bytes())["max_bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(f"'{path}' cannot be read; `commonground deploy server` writes it anew") from None

    def set_up(self, host: str, port: int, names: Sequence[str], *, insecure: bool, max_bytes: int = LARGEST) -> str:
        """Write what is missing of the folder, which is its owner's alone if it is made here.

        Args:
            host: address to listen on.
            port: likewise.
            names: under which clients reach the server; for its certificate.
            insecure: without certificates.
            max_bytes: of a client's message.

        Returns:
            What is worth knowing of its certificates; mostly nothing.

        Raises:
            ConfigError: without certificates in a folder that has some, or those that it has are over, or for others.
        """
        if insecure and not self.insecure:
            raise ConfigError(
                f"'{self.folder}' has certificates, which its clients were given; leave out --insecure, or choose "
                "another --folder"
            )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if host not in _LOCAL and not is_everywhere(host):
            names = [*names, host]  # by which this host reaches it, to start runs
        if not insecure and self.insecure:
            make_certificates(self.certificates, list(dict.fromkeys([*names, *_LOCAL])))
        write_atomically(self.folder / "server.json", json.dumps({"max_bytes": max_bytes}).encode())
        app = self.folder / "app"
        app.mkdir(exist_ok=True)
        apps = {"serverapp": "server:app", "clientapp": "client:app"}
        project = flower_project("commonground-deployment", apps, {"job": ""})
        for name, text in (("pyproject.toml", project), ("server.py", _SERVER), ("client.py", _CLIENT)):
            (app / name).write_text(text, encoding="utf-8")
        # Runs are started from this host: Flower's own port beside the loopback would be everybody's.
        here = "127.0.0.1" if host == "localhost" else host
        if is_everywhere(host):
            here = "::1" if ":" in host else "127.0.0.1"
        here = f"[{here}]" if ":" in here else here
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        safe = "insecure = true" if insecure else f"root-certificates = {_toml(self.certificates / 'ca.pem')}"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{here}:{port}"\n{safe}\n'
        (home / "config.toml").write_text(text, encoding="utf-8")
        return "" if insecure else check_own_certificate(self.certificates, names)

    def superlink(self, host: str, port: int) -> list[str]:
        """The command that serves: ``flower-superlink`` with a gate before it."""
        command = [sys.executable, "-m", "commonground.network.superlink", "--host", host, "--port", str(port)]
        command += ["--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation"]
        if self.insecure:
            return [*command, "--insecure"]
        files = {"--ssl-ca-certfile": "ca.pem", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
        for option, name in files.items():
            command += [option, str(self.certificates / name)]
        return [*command, "--enable-supernode-auth"]

    def environment(self, max_bytes: int | None = None) -> dict[str, str]:
        """Of Flower's commands: its settings in this folder, nothing sent to anybody, nothing installed."""
        env = dict(os.environ)
        env |= {
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")]),
        }
        return env if max_bytes is None else env | {MAX_BYTES: str(max_bytes)}

    def flwr(self, *words: str) -> tuple[list[str], dict[str, Any]]:
        """Run a command of ``flwr`` that answers in JSON.

        Returns:
            The command, and its answer.

        Raises:
            RunError: it failed.
        """
        command, done = self._asked(*words, CONNECTION)
        found = _answer_of(done)
        if found is None:
            raise RunError(f"`{shlex.join(command)}` failed: {self._why(done)}")
        if not found.get("success", True):
            raise RunError(f"`flwr {' '.join(words)}` failed: {self._why(done)}")
        return command, found

    def _asked(self, *words: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
        """A command of ``flwr``, and what it did."""
        self.check()
        command = [str(Path(sys.executable).parent / "flwr"), *words, "--format", "json"]
        return command, subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)

    def check(self) -> None:
        """Before Flower says of a folder that is none, or of a certificate that is over, that the network is to blame.

        Raises:
            ConfigError: no server has been started in this folder, or its certificate has expired.
        """
        if not (self.folder / "flwr" / "config.toml").is_file():
            raise ConfigError(
                f"'{self.folder}' is no server's folder; name the one of `commonground deploy server --folder …`"
            )
        if not self.insecure:
            check_own_certificate(self.certificates)

    def stop(self, run: int) -> None:
        """End a run on the server; its last checkpoint stays.

        Raises:
            RunError: there is none of this number that is going on.
        """
        state = self.state_of(run)
        if state == "unknown":
            raise RunError(f"'{self.folder}' has no run {run}; `commonground deploy status` lists what there is")
        if state.startswith("finished"):
            raise RunError(f"the run {run} is over already ({state})")
        self.flwr("stop", str(run))

    def register(self, public_key: Path) -> int | None:
        """Let the node of a public key take part; which file it was is kept, for :meth:`keys`.

        Returns:
            Its number; None of one that was let in before.

        Raises:
            ConfigError: the file holds something else.
            RunError: Flower refuses the key.
        """
        self.check()
        if not _is_public_key(public_key):
            raise ConfigError(f"'{public_key}' holds no public key; it is node.pub of the client's folder")
        _, done = self._asked("supernode", "register", str(public_key.resolve()), CONNECTION)
        node = (_answer_of(done) or {}).get("node-id")
        if node is None and "already in use" in done.stdout + done.stderr:
            return None
        if node is None:
            raise RunError(f"the key '{public_key}' was not registered: {self._why(done)}")
        write_atomically(self.folder / "registered" / f"{node}.txt", f"{public_key}\n")
        return int(node)

    def unregister(self, who: str) -> int:
        """Let a node take part no more.

        Args:
            who: its number, or its public key's file as it was named to :meth:`register`.

        Returns:
            Its number.

        Raises:
            RunError: nobody of this name was let in here, or Flower does not know the node.
        """
        known = self.keys()
        named = [node for node, key in known.items() if who in (node, key)]
        if not named and not who.isdecimal():
            there = f"; known are {', '.join(escaped(key) for key in known.values())}" if known else ""
            raise RunError(f"no key '{escaped(who)}' was let in{there}")
        for node in named or [who]:
            self.flwr("supernode", "unregister", node)
            (self.folder / "registered" / f"{node}.txt").unlink(missing_ok=True)
        return int((named or [who])[-1])

    def start(self, job: Job) -> tuple[list[str], str, int]:
        """Start a run, in which messages may be as large as the server lets them be.

        Returns:
            Flower's command, the job's name, and Flower's number of the run.
        """
        self.check()
        job = job.model_copy(update={"limits": job.limits.model_copy(update={"max_bytes": self.max_bytes})})
        name = f"{secrets.token_hex(8)}.json"
        path = self.job_file(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(job.model_dump_json(indent=1), encoding="utf-8")
        command, done = self._asked("run", str(self.folder / "app"), CONNECTION, "--run-config", f"job={_toml(path)}")
        number = (_answer_of(done) or {}).get("run-id")
        if number is None:
            raise RunError(f"the run did not start: {self._why(done)}")
        return command, name, int(number)

    def _why(self, done: subprocess.CompletedProcess[str]) -> str:
        """What a command of Flower's says went wrong; where nobody listens, what to do."""
        said = _last_words(done)
        if "SuperLink is unavailable" not in said:
            return escaped(said)
        return (
            f"the server of '{self.folder}' does not answer; start it: commonground deploy server --folder "
            f"{shlex.quote(str(self.folder))}"
        )

    def jobs(self) -> list[Job]:
        """All that were started, the last one last."""
        found = []
        for path in sorted((self.folder / "jobs").glob("*.json"), key=lambda path: path.stat().st_mtime):
            with suppress(OSError, ValueError):
                found.append(Job.model_validate_json(path.read_bytes()))
        return found

    def names(self) -> dict[str, str]:
        """What clients were called in the last run in which each took part, by their nodes' numbers."""
        found: dict[str, str] = {}
        for job in self.jobs():
            with suppress(RunError):
                members = Members.read(Path(job.out) / MEMBERS)
                found |= {str(n): told.name for n, told in zip(members.nodes, members.descriptions, strict=True)}
        return found

    def keys(self) -> dict[str, str]:
        """The files of the public keys that were let in, as they were named then, by their nodes' numbers."""
        files = (self.folder / "registered").glob("*.txt")
        return {path.stem: path.read_text("utf-8", "replace").strip() for path in files}

    def folders(self) -> dict[str, str]:
        """Where runs are written, by Flower's numbers of them; of several in one folder, of the last."""
        holders = {job.out: Holder.of(Path(job.out)) for job in self.jobs()}
        return {str(holder.run): out for out, holder in holders.items() if holder is not None}

    def job_file(self, name: str) -> Path:
        """Where a job's file is."""
        return self.folder / "jobs" / name

    def state_of(self, run: int) -> str:
        """What Flower says of a run: ``running``, ``finished:completed``, ``finished:failed`` and others."""
        try:
            _, found = self.flwr("ls")
        except RunError:
            raise RunError(
                f"the server of '{self.folder}' does not answer any more; start it again (commonground deploy server "
                f"--folder {self.folder}, with the --host, --port and --name that it had)"
            ) from None
        for one in found.get("runs", []):
            if str(one.get("run-id")) == str(run):
                return str(one.get("status"))
        return "unknown"


def _is_public_key(path: Path) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):
        return False
    return True


def _answer_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any] | None:
    """What a command of Flower's says in JSON, after lines of its own; None if nothing."""
    try:
        return dict(json.loads(done.stdout[done.stdout.index("{") :]))
    except ValueError:
        return None


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """What a command says went wrong, in one line; it begins with what it was about to do."""
    said = (_answer_of(done) or {}).get("error-message")
    if said is not None:
        return " ".join(str(said).replace("\\n", " ").rpartition("Using SuperLink: ")[2].split())
    told = (done.stderr or done.stdout).strip().splitlines()
    return told[-1] if told else "Flower said nothing"


def _toml(path: Path) -> str:
    """A path as a string of TOML, without a quotation mark in it, at which Flower would cut what it is told to run."""
    return '"' + json.dumps(str(path), ensure_ascii=False)[1:-1].replace('\\"', "\\u0022") + '"'


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
