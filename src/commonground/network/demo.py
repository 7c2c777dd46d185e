"""A deployment on one machine: what `commonground deploy demo` does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from commonground.data import load_data
from commonground.errors import ConfigError, RunError
from commonground.network.deploy import Deployment, free_port
from commonground.network.keys import make_node_key
from commonground.network.limits import Limits
from commonground.network.own_data import write_arrays
from commonground.network.running import run_and_show

__all__ = ["CLIENTS", "process", "run_deploy_demo", "wait_for_port"]

CLIENTS = 4


def run_deploy_demo(rounds: int, out: Path | None, quiet: bool) -> None:
    """Start a server and clients on the loopback, train, and end them.

    Args:
        rounds: of FedRep.
        out: folder for everything; by default a temporary one.
        quiet: print the table alone.

    Raises:
        ConfigError: something is in the folder already, such as the keys of an earlier demo.
    """
    if out is not None and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise ConfigError(f"there is something in '{out}' already; the demo needs a folder of its own")
    root = Path(tempfile.mkdtemp(prefix="commonground-demo-")) if out is None else out.resolve()

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    try:
        _demo(root, rounds, say, quiet)
    finally:
        if out is None:
            shutil.rmtree(root, ignore_errors=True)


def _demo(root: Path, rounds: int, tell: Callable[[str], None], quiet: bool) -> None:
    data, port = load_data("digits", CLIENTS, partition="shards:4", seed=0), free_port()
    deployment = Deployment(root / "server")
    deployment.set_up("127.0.0.1", port, [], insecure=False)
    tell(f"certificates and keys for this run are in '{root}'")
    sites = [root / f"site-{c}" for c in range(CLIENTS)]
    for c, site in enumerate(sites):
        write_arrays(data, c, site / "data")
        make_node_key(site)
    with ExitStack() as running:
        command = deployment.superlink("127.0.0.1", port)
        tell(f"+ {' '.join(command)}")
        running.enter_context(process(command, root / "server" / "server.log", deployment.environment(1 << 30)))
        wait_for_port(port, 60)
        with ThreadPoolExecutor(2) as several:
            list(several.map(lambda site: deployment.register(site / "node.pub"), sites))
        tell(f"the keys of {CLIENTS} clients are registered")
        for site in sites:
            command = [sys.executable, "-m", "commonground", "deploy", "client", "--folder", str(site)]
            command += ["--data", str(site / "data"), "--server", f"127.0.0.1:{port}"]
            command += ["--ca", str(deployment.certificates / "ca.pem")]
            running.enter_context(process(command, site / "client.log"))
        settings = {"algorithm": "fedrep", "model": "mlp", "rounds": rounds, "threads": 1, "seed": 0}
        run_and_show(deployment, settings, Limits(), root / "run", expect=CLIENTS, wait=120, quiet=quiet)
    own = next((sites[0] / "models").iterdir(), None)
    tell(f"each client has its own model on its own host: commonground predict {own} --client {sites[0].name} …")
    same = "commonground train fedrep --data digits --clients 4 --partition shards:4 --model mlp --threads 1"
    tell(f"the same table comes of: {same} --rounds {rounds} --engine serial")


@contextmanager
def process(
    command: list[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block; what it says goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def wait_for_port(port: int, seconds: float) -> None:
    """Wait until somebody listens on a port of the loopback.

    Raises:
        RunError: nobody did in time.
    """
    import socket

    until = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > until:
            raise RunError(f"the server did not listen on port {port} within {seconds:g} s")
        time.sleep(0.2)
