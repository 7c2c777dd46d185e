"""``python -m benchmarks.peers --peer NAME=PATH …``: rounds of other simulators beside ours."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click

from benchmarks.peers import samples
from benchmarks.peers.common import NAMES, Missing, Work
from benchmarks.peers.harness import Asked, Failed, beside
from commonground.stopping import stops_raise

METHODS = ("fedrep", "fedavg")


def _pairs(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    pairs = {value.partition("=")[0]: value.partition("=")[2] for value in values}
    for name in pairs:
        if name not in NAMES and "." not in name:
            raise click.BadParameter(f"there is no peer '{name}'; known are {', '.join(NAMES)}")
    return pairs


@click.command()
@click.option(
    "--peer", "peers", multiple=True, callback=_pairs, metavar="NAME[=PATH]",
    help=f"A peer, with its checkout where it is no installed package: {', '.join(NAMES)}. May be given several times.",
)  # fmt: skip
@click.option(
    "--python", "pythons", multiple=True, callback=_pairs, metavar="NAME=PYTHON",
    help="The Python whose environment has what a peer needs (default: this one).",
)  # fmt: skip
@click.option("--data-dir", default="", help="Folder with CIFAR-10's files (default: the library's own).")
@click.option("--random", "per_client", default=0, help="So many random pictures for each client, in CIFAR-10's place.")
@click.option("--clients", default=100, show_default=True)
@click.option("--sampled", type=click.IntRange(1), default=10, show_default=True, help="Clients in a round.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS), default=METHODS, show_default=True)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Rounds that count in each repeat, after one to warm up.",
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--cores", default="one", show_default=True, type=click.Choice(["one", "default"]),
              help="One core for each program, or all with what each takes by default.")  # fmt: skip
@click.option("--bf16", is_flag=True, help="Let ours run in bf16 too, in the same turns.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def main(
    peers: dict[str, str],
    pythons: dict[str, str],
    data_dir: str,
    per_client: int,
    clients: int,
    sampled: int,
    methods: Sequence[str],
    rounds: int,
    repeats: int,
    cores: str,
    bf16: bool,
    out: Path | None,
) -> None:
    """Time rounds of other simulators beside ours, in turns; a peer that is not here is said and skipped."""
    if not peers:
        raise click.UsageError("name at least one peer, such as --peer fedrep_authors=PATH")
    if sampled > clients:
        raise click.UsageError(f"{sampled} of {clients} clients cannot take part in a round")
    with stops_raise(), tempfile.TemporaryDirectory(prefix="peers-") as folder:  # what was started is ended in any case
        work = Work(
            "fedrep", folder, str(Path(data_dir).absolute()) if data_dir else "", per_client, clients, sampled,
            rounds=rounds, cores=int(cores == "one"),
        )  # fmt: skip
        samples.write(samples.dealt(work), Path(folder))
        found = {"command": _command(peers, methods, repeats, work) + " --bf16" * bf16, **described(work)}
        found |= {"peers": (measured := []), "skipped": (skipped := [])}
        for name, path in peers.items():
            asked = Asked(name, str(Path(path).absolute()) if path else "", pythons.get(name, Asked.python))
            try:
                measured.append(beside(asked, work, methods, repeats, click.echo, bf16=bf16))
            except (Missing, Failed) as error:
                click.echo(f"{name} is skipped: {error}", err=True)
                skipped.append({"name": name, "why": str(error)})
            if out is not None:  # after each, since all together take long
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _command(peers: dict[str, str], methods: Sequence[str], repeats: int, work: Work) -> str:
    """What makes the figures anew; places on this machine are left out."""
    words = [f"--peer {name}{'=PATH' if path else ''}" for name, path in peers.items()]
    words += [f"--method {name}" for name in methods] if set(methods) != set(METHODS) else []
    words += [f"--random {work.per_client}"] if work.per_client else ["--data-dir DIR"]
    words += [f"--clients {work.clients} --sampled {work.sampled} --rounds {work.rounds} --repeats {repeats}"]
    return " ".join(["python -m benchmarks.peers", *words, f"--cores {'one' if work.cores else 'default'}"])


def described(work: Work) -> dict[str, object]:
    """The machine, the versions and the work, without any folder of this machine."""
    kept = ("clients", "sampled", "batch", "head_epochs", "body_epochs", "epochs", "rounds", "per_client")
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "cores": "one" if work.cores else "default",
        "versions": {name: version(name) for name in ("commonground", "torch", "numpy")},
        "work": {name: getattr(work, name) for name in kept},
    }


def _processor() -> str:
    """What the processor calls itself, where Linux tells."""
    information = Path("/proc/cpuinfo")
    for row in information.read_text().splitlines() if information.is_file() else []:
        if row.startswith("model name"):
            return row.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
