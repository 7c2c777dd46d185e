"""A deployment on this machine for tests: a server and clients as processes of their own, which can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from commonground.data import FederatedDataset
from commonground.network.deploy import Deployment, free_port
from commonground.network.keys import make_node_key
from commonground.network.own_data import write_arrays

__all__ = ["Live", "Proxy"]


class Live:
    """A server, and a client for each of a data set's, each with its own folder.

    Args:
        root: folder for everything.
        data: whose clients' samples are written into the folders.
        sources: in place of a folder of arrays, ``file.py:function`` of each client.
    """

    def __init__(self, root: Path, data: FederatedDataset | None = None, sources: list[str] | None = None) -> None:
        self.root, self.port = root, free_port()
        self.reached_at = self.port
        self.deployment = Deployment(root / "server")
        self.deployment.set_up("127.0.0.1", self.port, [], insecure=False)
        self.sites = [root / f"site-{c}" for c in range(len(sources) if sources else data.clients if data else 0)]
        self.sources = sources or [str(site / "data") for site in self.sites]
        for c, site in enumerate(self.sites):
            if data is not None:
                write_arrays(data, c, site / "data")
            make_node_key(site)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """The server, the keys, the clients."""
        self.start_server()
        with ThreadPoolExecutor(2) as several:
            list(several.map(lambda site: self.deployment.register(site / "node.pub"), self.sites))
        for c in range(len(self.sites)):
            self.start_client(c)

    def start_server(self) -> None:
        command = self.deployment.superlink("127.0.0.1", self.port)
        self._start("server", command, self.deployment.environment(64 << 20))
        until = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < until, "the server does not listen"
            time.sleep(0.1)

    def client_command(self, c: int, *more: str) -> list[str]:
        ca = str(self.deployment.certificates / "ca.pem")
        command = [sys.executable, "-m", "commonground", "deploy", "client", "--folder", str(self.sites[c]), "--data"]
        return [*command, self.sources[c], "--server", f"127.0.0.1:{self.reached_at}", "--ca", ca, *more]

    def start_client(self, c: int) -> None:
        self._start(f"client {c}", self.client_command(c), None)

    def _start(self, name: str, command: list[str], environment: dict[str, str] | None) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """SIGKILL, to the process and what it has started."""
        child = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name)

    def run(self, out: Path, algorithm: str, *options: str) -> subprocess.Popen[str]:
        """``commonground deploy run``, in a process of its own."""
        command = [sys.executable, "-m", "commonground", "deploy", "run", algorithm, "--folder"]
        command += [str(self.deployment.folder), "--out", str(out), "--expect", str(len(self.sites)), *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ran(self, out: Path, algorithm: str, *options: str) -> dict[str, Any]:
        """The summary of a run to its end."""
        child = self.run(out, algorithm, *options)
        _, told = child.communicate(timeout=300)
        assert child.returncode == 0, told
        return dict(json.loads((out / "summary.json").read_text("utf-8")))


class Proxy:
    """A link on the loopback that can be cut."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listening.getsockname()[1])
        self.cut = False
        self.carried = 0  # bytes, both ways
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def drop(self, seconds: float) -> None:
        """Break all connections, and let none through for a while."""
        self.cut = True
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()
        time.sleep(seconds)
        self.cut = False

    def close(self) -> None:
        self.listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listening.accept()
            except OSError:
                return
            if self.cut:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self.carried += len(data)
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
