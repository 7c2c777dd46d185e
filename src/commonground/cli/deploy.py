"""``commonground deploy``: the same algorithms between real machines, over Flower."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from commonground.cli.completion import complete_algorithm
from commonground.cli.help import SectionedCommand
from commonground.cli.options import run_options, run_values, settings_options
from commonground.cli.parameters import Finite, NameChoice
from commonground.cli.sockets import listening
from commonground.config import OF_DATA
from commonground.errors import BusyError, ConfigError, Interrupted
from commonground.existing import check_folder
from commonground.extras import pip_install
from commonground.quoting import escaped, quoted

if TYPE_CHECKING:
    from commonground.network.answering import Answering
    from commonground.network.fleet import Fleet

__all__ = ["deploy"]

OF_ONE_MACHINE = ("engine", "workers", "ray_address", "init_from", "data_dir", "track")

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("deployment"),
    show_default=True,
    help="the server's folder",
)


@click.group(
    short_help="Train between real machines, over Flower.",
    epilog="Example: commonground deploy demo",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def deploy() -> None:
    """Train between real machines: each client's data stay on its own host, a server sees no sample.

    What is carried is Flower's (the extra 'network'); docs/trust/network.md says what leaves a client.
    """
    if find_spec("flwr") is None:  # importing it takes a while, and help does without
        raise ConfigError(f"deploy needs Flower: {pip_install('network')}")


@deploy.command(epilog="Example: commonground deploy server --folder deployment --host 0.0.0.0 --name fl.example.org")
@folder_option
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--port", type=click.IntRange(1, 65535), default=9092, show_default=True, help="port")
@click.option("--name", "names", multiple=True, help="name or address by which clients reach this host; repeatable")
@click.option(
    "--max-message", type=click.IntRange(1), default=1024, show_default=True, help="MiB of a client's message"
)
@click.option("--insecure", is_flag=True, help="plain HTTP, without certificates and keys: for tries on one machine")
def server(folder: Path, host: str, port: int, names: tuple[str, ...], max_message: int, insecure: bool) -> None:
    """Serve: make certificates if there are none, and run Flower's SuperLink until Ctrl-C.

    Clients need the file certificates/ca.pem; their keys are let in by `commonground deploy register`.
    """
    from commonground.network.deploy import Deployment

    # Flower says only in its log that it cannot; the socket is closed again, for Flower to listen.
    listening(host, port).close()
    deployment = Deployment(folder)
    check_folder(folder, "--folder")
    deployment.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(folder / "server.lock", f"another `commonground deploy server` uses '{folder}'"):
        if note := deployment.set_up(host, port, names, insecure=insecure, max_bytes=max_message << 20):
            click.echo(note, err=True)
        if insecure:
            click.echo(
                "plain HTTP: whoever reaches this port can read, take part, and change what others send", err=True
            )
        command = deployment.superlink(host, port)
        click.echo(f"+ {shlex.join(command)}", err=True)
        given = "" if insecure else f"; give clients '{deployment.certificates / 'ca.pem'}'"
        said = f"listening on {host}:{port}{given}"
        raise SystemExit(_attended(command, deployment.environment(max_message << 20), (host, port), said))


@deploy.command(epilog="Example: commonground deploy register north.pub south.pub")
@folder_option
@click.argument("public_keys", nargs=-1, required=True, type=click.Path(path_type=Path))
def register(folder: Path, public_keys: tuple[Path, ...]) -> None:
    """Let clients with these PUBLIC_KEYS (node.pub of their folders) take part."""
    from commonground.network.deploy import Deployment

    deployment = Deployment(folder)
    for key in public_keys:
        if not key.is_file():
            raise ConfigError(f"the public key '{key}' is no file; it is node.pub of the client's folder")
        node = deployment.register(key)
        click.echo(f"'{key}' was let in before" if node is None else f"'{key}' is node {node}")


@deploy.command(epilog="Example: commonground deploy unregister north.pub")
@folder_option
@click.argument("clients", nargs=-1, required=True)
def unregister(folder: Path, clients: tuple[str, ...]) -> None:
    """Let CLIENTS take part no more: their numbers in `deploy status`, or their keys as `deploy register` was given
    them.
    """
    from commonground.network.deploy import Deployment

    deployment = Deployment(folder)
    for who in clients:
        click.echo(f"node {deployment.unregister(who)} takes part no more")


@deploy.command(
    epilog="Example: commonground deploy client --data /srv/images --server fl.example.org:9092 --ca ca.pem"
)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("client"), show_default=True,
              help="where the client's key and its personal tensors are kept")  # fmt: skip
@click.option("--data", required=True, help="its own data: a folder of x_train.npy, y_train.npy, x_test.npy, y_test.npy"
              " (and data.json), a table (with --target, or --schema), texts or instructions (with --tokenizer), or"
              " file.py:function")  # fmt: skip
@click.option("--schema", type=click.Path(path_type=Path), help="of a table, in place of --target: schema.json, the"
              " same at all clients, which then agree on nothing over the network")  # fmt: skip
@settings_options("target", "task", "drop", "text_column", "kinds", "separator", "encoding", "split_column",
                  "time_column", "group_column", "test_share", "test_seed", "missing_target")  # fmt: skip
@click.option("--tokenizer", help="of texts: the model of the runs, hf:NAME, whose tokenizer reads them")
@click.option("--max-length", type=click.IntRange(1), help="most tokens of a text (default: 128)")
@click.option("--min-told-rows", "least", type=click.IntRange(1), default=5, show_default=True, help="tell the server"
              " of no category of a table with fewer rows, nothing of numbers that fewer rows have")  # fmt: skip
@click.option("--server", "address", required=True, metavar="HOST:PORT", help="where the server listens")
@click.option("--ca", type=click.Path(path_type=Path), help="the server's certificates/ca.pem")
@click.option("--name", help="what the client is called  [default: the folder's name]")
@click.option("--max-message", type=click.IntRange(1), default=1024, show_default=True, help="MiB of a message")
@click.option(
    "--allow-code", is_flag=True, help="run models and methods that the server names as file.py:… of this host"
)
@click.option("--demand-dp", "demand", type=NameChoice(["client", "example"]), help="take part in runs alone that hide"
              " all of this client's data, or single examples of them, from the server as well; and tell no statistics"
              " of them")  # fmt: skip
@click.option("--least-noise", type=Finite(0), default=0.0, help="the least noise Z with which they have to")
@click.option("--insecure", is_flag=True, help="plain HTTP to a server started with --insecure")
@click.option("--key-only", is_flag=True, help="make the key, say where it is, and stop")
def client(
    folder: Path,
    data: str,
    schema: Path | None,
    target: str | None,
    task: str | None,
    tokenizer: str | None,
    max_length: int | None,
    least: int,
    address: str,
    ca: Path | None,
    name: str | None,
    max_message: int,
    allow_code: bool,
    demand: Literal["client", "example"] | None,
    least_noise: float,
    insecure: bool,
    key_only: bool,
    **table: Any,
) -> None:
    """Take part: answer the server's questions with this host's data, until Ctrl-C."""
    from commonground.network.keys import check_certificate, make_node_key, read_node_key

    if not _is_address(address):
        raise ConfigError(f"--server {quoted(address)} is no HOST:PORT, as fl.example.org:9092 is one")
    if least_noise and demand is None:
        raise ConfigError(f"--least-noise {least_noise:g} is of the privacy that --demand-dp demands; add it")
    if not key_only and (ca is None) != insecure:  # a key needs none
        raise ConfigError(
            "a client needs the server's certificate: --ca ca.pem (or --insecure, for a server without certificates)"
        )
    if max_length is not None and tokenizer is None:
        raise ConfigError(f"--max-length {max_length} is of texts, which a model's tokenizer reads: add --tokenizer")
    if ca is not None and not key_only:
        check_certificate(ca)
    if name is not None and not name.strip():
        raise ConfigError("--name is empty; leave it out, and the client is called as its folder")
    check_folder(folder, "--folder")
    public = make_node_key(folder)
    if key_only:
        given = shlex.quote(str(public))
        click.echo(f"let the server's operator run: commonground deploy register --folder SERVER_FOLDER {given}")
        return
    from commonground.data.own_table import OwnTable
    from commonground.data.tables.options import table_options
    from commonground.network.answering import Answering
    from commonground.network.fleet import Fleet
    from commonground.network.own_data import TableWords, own_data

    called = name or folder.resolve().name

    def say(text: str) -> None:
        click.echo(f"client {escaped(called)}: {text}", err=True)

    with _alone(folder / "client.lock", f"another process uses the client's folder '{folder}'"):
        words = TableWords(target, task, table_options(table), least, tokenizer, max_length or 128)
        own = own_data(data, called, schema, words)
        for note in own.notes if isinstance(own, OwnTable) else own.about.get("notes", ()):
            say(escaped(note))
        answering = Answering(
            own,
            called,
            folder.resolve(),
            model_code=allow_code,
            demand=demand,
            least_noise=least_noise,
            least=least,
            tokenizer=tokenizer,
            note=lambda text: say(escaped(text, 1000)),
        )
        _take_part(Fleet(address, read_node_key(folder), ca, folder / "node.txt", max_message << 20), answering, say)


@contextmanager
def _alone(lock: Path, busy: str) -> Iterator[None]:
    """Keep other processes from a folder meanwhile: of a client's, they would be the same client to the server, and of
    a server's, this one would not be found any more.

    Args:
        lock: a file in the folder.
        busy: what is said where another one has it.

    Raises:
        BusyError: another one has it.
    """
    from commonground.engine.state.lock import locked_file

    with ExitStack() as held:
        try:
            held.enter_context(locked_file(lock))
        except BusyError:
            raise BusyError(f"{busy}; end that one, or choose another --folder") from None
        yield


def _take_part(fleet: Fleet, answering: Answering, say: Callable[[str], None]) -> None:
    """Answer the server until Ctrl-C or SIGTERM."""
    from commonground.network.node import serve_client

    over = threading.Event()

    def end(*_: object) -> None:
        if over.is_set():
            raise KeyboardInterrupt
        over.set()
        say("ends once what it works on is finished; a second SIGTERM, or Ctrl-C, ends it at once")

    signal.signal(signal.SIGTERM, end)
    try:
        serve_client(fleet, answering, say, over.is_set)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        fleet.close()


def _over_a_network(command: click.Command) -> click.Command:
    """Leave out of a command's help what is refused with a sentence: data and what computes are with the clients."""
    for option in command.params:
        if isinstance(option, click.Option) and option.name in (*OF_DATA, *OF_ONE_MACHINE, "metrics"):
            option.hidden = True
        elif isinstance(option, click.Option) and option.name == "class_weights":
            option.help = f"{option.help} (not balanced, which asks for all clients' classes)"
    return command


@_over_a_network
@deploy.command(
    cls=SectionedCommand, epilog="Example: commonground deploy run fedrep --expect 4 --rounds 20 --out runs/hospitals"
)
@click.argument("algorithm", required=False, shell_complete=complete_algorithm)
@run_options
@folder_option
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder for the run's files, on the server")
@click.option(
    "--expect",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="clients to wait for before a run begins; all there take part",
)
@click.option(
    "--wait", type=Finite(0, 1e9, min_open=True), default=300.0, show_default=True, help="seconds to wait for them"
)
@click.option("--answer-within", type=Finite(0, 1e9, min_open=True), default=600.0, show_default=True,
              help="seconds that an answer may take")  # fmt: skip
@click.option("--absent-for", type=Finite(0, 1e9, min_open=True), default=60.0, show_default=True,
              help="seconds that a client which is away is waited for")  # fmt: skip
@click.option("--min-answers", type=click.IntRange(1), default=1, show_default=True, help="a round needs so many")
@click.option("--max-update-norm", type=Finite(0, min_open=True), help="longer updates are refused  [default: none]")
@click.option("--resume", is_flag=True, help="continue the run in --out from its last checkpoint")
def run(
    algorithm: str | None,
    assignments: tuple[str, ...],
    config_file: Path | None,
    data_dir: str | None,
    track: tuple[str, ...],
    quiet: bool,
    folder: Path,
    out: Path,
    expect: int,
    wait: float,
    answer_within: float,
    absent_for: float,
    min_answers: int,
    max_update_norm: float | None,
    resume: bool,
    **flags: Any,
) -> None:
    """Start a run on the server of --folder, on this host, and show it until it is over."""
    from commonground.network.deploy import Deployment
    from commonground.network.limits import Limits
    from commonground.network.running import run_and_show, run_settings

    values = run_values(flags, assignments, config_file)
    if algorithm is not None:
        values["algorithm"] = algorithm
    if track or data_dir:
        raise ConfigError("--track and --data-dir are not for runs over a network: data are with the clients")
    limits = Limits(
        seconds=answer_within,
        absence=absent_for,
        min_answers=min_answers,
        patience=answer_within,
        max_norm=max_update_norm,
    )
    settings = run_settings(values, out, resume)
    try:
        run_and_show(Deployment(folder), settings, limits, out, expect=expect, wait=wait, resume=resume, quiet=quiet)
    except Interrupted as stopped:
        click.echo(f"commonground: {stopped}", err=True)
        raise SystemExit(130) from None


@deploy.command(epilog="Example: commonground deploy status")
@folder_option
def status(folder: Path) -> None:
    """Which clients are there, by the names that they had in the last run, or by their keys before, and which runs
    there were: `flwr supernode list` and `flwr list`.
    """
    from commonground.network.deploy import Deployment

    deployment = Deployment(folder)
    command, found = deployment.flwr("supernode", "list")
    click.echo(f"+ {shlex.join(command)}", err=True)
    names, keys = deployment.names(), deployment.keys()
    for node in found.get("nodes", []):
        number = str(node.get("node-id"))
        called = f"  key {escaped(keys[number])}" if number in keys else ""
        called = f"  client {escaped(names[number])}" if number in names else called
        click.echo(f"node {node.get('node-id')}  {node.get('status')}{called}")
    if not found.get("nodes"):
        click.echo("no clients yet")
    command, found = deployment.flwr("list")
    click.echo(f"+ {shlex.join(command)}", err=True)
    folders = deployment.folders()
    for one in found.get("runs", []):
        out = folders.get(str(one.get("run-id")))
        click.echo(
            f"run {one.get('run-id')}  {one.get('status')}" + ("" if out is None else f"  --out {shlex.quote(out)}")
        )
    if not found.get("runs"):
        click.echo("no runs yet")


@deploy.command(epilog="Example: commonground deploy stop 8837421093")
@folder_option
@click.argument("run_id", metavar="RUN", type=int)
def stop(folder: Path, run_id: int) -> None:
    """End RUN on the server, as `deploy status` lists it; `deploy run --resume` goes on with what it has finished."""
    from commonground.network.deploy import Deployment
    from commonground.network.following import stopped

    deployment = Deployment(folder)
    deployment.stop(run_id)
    out = deployment.folders().get(str(run_id))
    kept = "what it has finished is kept, and `deploy run --resume` goes on with it"
    click.echo(f"the run {run_id} was stopped; {kept}" if out is None else stopped(run_id, Path(out)))


@deploy.command(epilog="Example: commonground deploy demo")
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True, help="rounds")
@click.option("--out", type=click.Path(path_type=Path), help="folder for everything  [default: a temporary one]")
@click.option("--quiet", is_flag=True, help="print the table alone")
def demo(rounds: int, out: Path | None, quiet: bool) -> None:
    """Server and four clients on this machine, each with its own digits, TLS and keys made for the occasion."""
    from commonground.network.demo import run_deploy_demo

    run_deploy_demo(rounds, out, quiet)


def _is_address(text: str) -> bool:
    """Whether a text is a host's name or address, that of IPv6 in brackets, and a port."""
    found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+):([0-9]{1,5})", text)
    return found is not None and 1 <= int(found[1]) <= 65535


def _attended(
    command: list[str], environment: dict[str, str], address: tuple[str, int] | None = None, said: str = ""
) -> int:
    """Run a command that ends with this one, also if this one is killed.

    Args:
        command, environment: of the child process.
        address: on which it will listen.
        said: once it does.

    Returns:
        Its exit status.
    """
    from commonground.network.superlink import ENDS_WITH

    child = subprocess.Popen(command, env={**environment, ENDS_WITH: str(os.getpid())})
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        while address is not None and child.poll() is None and not _answers(*address):
            time.sleep(0.1)
        if said and child.poll() is None:
            click.echo(said, err=True)
        return child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
        sys.stderr.write("stopped\n")
        return 130


def _answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    from commonground.network.superlink import is_everywhere

    here = host if not is_everywhere(host) else "::1" if ":" in host else "127.0.0.1"
    try:
        socket.create_connection((here, port), timeout=1).close()
    except OSError:
        return False
    return True
