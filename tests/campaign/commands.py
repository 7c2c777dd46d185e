"""Random command lines, made of the command's own parameters: no traceback, no hang, exit codes by the contract."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from commonground.cli import cli, main
from tests.campaign.common import Tally, call, drawn, tries

__all__ = ["campaign", "command_line"]

SECONDS = 3.0  # of a command line that has so much to do that it is interrupted

NUMBERS = ["0", "1", "2", "3", "-1", "7", "1.5", "0.3", "1e-3", "1e39", "nan", "inf", "-0", "99999999999999999999", "",
           "x", "1_0", "٣", "0x10", " 2", "1e400", "--"]  # fmt: skip
TEXTS = ["", "x", "=1+1", "\x1b[2J", "\u202eevil", "a:b", "..", "/dev/null", "None", "[1,2", "é" * 300, "{}", "*", "-"]
# What makes sense for options that take text, so that many lines get far.
KNOWN = {
    "algorithm": ["fedrep", "fedavg", "ditto", "local", "apfl", "fedsgd", "scaffold", "flute", "local-sgd", "rolora",
                  "l2gd", "table.csv", "net.py:Net", "net.py:no"],
    "methods": ["fedrep", "fedavg", "fedavg+ft", "local", "fedprox:mu=0.1", "ditto:lr=x", "fedrep+ft"],
    "data": ["digits", "table.csv", "empty.csv", "net.py:data", "no.csv", "folder"],
    "model": ["linear", "mlp", "low-rank", "cnn", "lstm", "net.py:Net", "net.py", "no.py:Net"],
    "partition": ["iid", "dirichlet:0.5", "dirichlet:x", "dirichlet:-1", "lognormal", "column:who", "column:no",
                  "features:0.5", "features:2", "shards", "labels"],
    "lr_schedule": ["constant", "cosine", "exponential:0.9", "exponential:2", "halve:0.5,0.75", "halve:x"],
    "assignments": ["head_epochs=2", "head_epochs=x", "mu=0.1", "model.hidden=[3]", "model.hidden=[0]", "steps=2", "a",
                    "=b", "model.hidden=1e9", "rank=2", "lam=-1", "head_epochs=99999999999999999999"],
    "body": ["0.*", "*", "no.*", "0.*,2.*"],
    "head": ["2.*", "*", "no"],
    "task": ["classification", "regression", "multilabel", "answers", "x"],
    "target": ["label", "a", "a,b", "no"],
    "device": ["cpu", "auto", "cuda", "cuda:99", "mps", "x"],
    "shots": ["1", "1,2", "0", "-1", "x", "1,,2", "9999"],
    "client": ["0", "3", "-1", "99", "=1+1", "x"],
    "experiment": ["fedrep-theorem1", "flute-fig3", "fedrep-fig1", "no-such"],
    "what": ["algorithms", "data", "models", "experiments"],
    "grid": ["lr=0.1,0.2", "lr=", "lr=x", "no=1"],
    "config_file": ["good.toml", "bad.toml", "table.csv", "no.toml"],
    "input_file": ["x.npy", "x.csv", "bad.npy", "empty.csv", "table.csv", "no.npy", "folder"],
    "run_dir": ["run", "folder", "no", "table.csv"],
    "folders": ["run", "folder", "no", "table.csv"],
    "out": ["new", "run", "table.csv", "table.csv/new", "folder"],
    "data_dir": ["folder", "no", "table.csv"],
}  # fmt: skip
# Options whose values cost memory, processes or a network on the machine of who tries.
KEPT = {"threads": ["1", "0", "x", "1025"], "workers": ["1", "2", "0", "x"], "seeds": ["1", "2", "0", "x"]}
SMALL = ["--data", "digits", "--clients", "3", "--rounds", "1", "--train-samples", "6", "--model", "linear"]


def _parameters(command: click.Command) -> Iterator[click.Parameter]:
    return (p for p in command.params if p.name != "help")


def _value(parameter: click.Parameter, rng: np.random.Generator) -> str:
    """A value for a parameter: mostly one that may do, else anything."""
    name = str(parameter.name)
    pool = KEPT.get(name) or KNOWN.get(name, [])
    if isinstance(parameter.type, click.Choice):
        pool = [str(choice) for choice in parameter.type.choices]
    if name in KEPT or (pool and rng.random() < 0.85):
        return str(rng.choice(pool))
    small = isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType) and rng.random() < 0.6
    return str(rng.choice(["1", "2", "3"] if small else [*NUMBERS, *TEXTS] if rng.random() < 0.5 else [*NUMBERS]))


def command_line(rng: np.random.Generator) -> list[str]:
    """A random command line."""
    name = str(rng.choice(sorted(cli.commands), p=_shares()))
    command = cli.commands[name]
    arguments = [p for p in _parameters(command) if isinstance(p, click.Argument)]
    options = [p for p in _parameters(command) if isinstance(p, click.Option)]
    line = [name]
    for argument in arguments:
        times = int(rng.integers(0, 4)) if argument.nargs == -1 else int(rng.random() < 0.95)
        line += [_value(argument, rng) for _ in range(times)]
    if name in ("train", "compare") and rng.random() < 0.9:
        line += SMALL
    wanted = {o.name for o in options if o.required and rng.random() < 0.9}
    wanted |= (
        {options[int(i)].name for i in rng.integers(len(options), size=int(rng.integers(0, 6)))} if options else set()
    )
    for option in options:
        if option.name in wanted:
            flag = str(rng.choice(option.opts))
            line += [flag] if option.is_flag else [flag, _value(option, rng)]
    if rng.random() < 0.08:
        line.insert(int(rng.integers(len(line) + 1)), str(rng.choice(["--no-such", "-x", *TEXTS])))
    return [part.replace("\0", "") for part in line]


def _shares() -> list[float]:
    weights = [6.0 if name == "train" else 2.0 if name in ("compare", "adapt", "predict") else 1.0 for name in
               sorted(cli.commands)]  # fmt: skip
    return [w / sum(weights) for w in weights]


def _prepare(place: Path) -> None:
    """A folder with a run and files of all kinds, good and bad."""
    main(["train", "fedrep", *SMALL, "--rounds", "2", "--quiet", "--out", str(place / "run")])
    rows = [f"{'u' if i % 2 else 'v'},{i * 0.1},{i % 5},{'yes' if i % 3 else 'no'}" for i in range(40)]
    (place / "table.csv").write_text("who,a,b,label\n" + "\n".join(rows) + "\n")
    (place / "empty.csv").write_text("")
    (place / "good.toml").write_text("lr = 0.1\nrounds = 1\n")
    (place / "bad.toml").write_bytes(b"lr = [\xff")
    np.save(place / "x.npy", np.zeros((2, 8, 8)))
    np.savetxt(place / "x.csv", np.zeros((2, 64)), delimiter=",")
    (place / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff{")
    (place / "folder").mkdir()
    (place / "net.py").write_text(
        "from torch import nn\n\ndef data():\n    return 3\n\nclass Net(nn.Sequential):\n"
        "    def __init__(self, shape, classes):\n        super().__init__(nn.Flatten(), nn.LazyLinear(classes))\n"
    )


def campaign(seed: int, count: int, minutes: float) -> Tally:
    """So many command lines, each in a fresh folder with a run and some files."""
    findings: list[str] = []
    tried = 0
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "source"
        source.mkdir()
        _prepare(source)
        for number in tries(count, minutes):
            line, folder = command_line(drawn(seed, number)), Path(temporary) / "here"
            shutil.copytree(source, folder)
            fault = call(line, folder, SECONDS).fault()
            fault = fault or ("it leaves a .part" if list(folder.rglob("*.part")) else "")
            shutil.rmtree(folder)
            tried += 1
            if fault:
                findings.append(f"{number}: {line!a}: {fault.replace(str(folder), '.')}")
    return Tally(tried, tried - len(findings), tuple(findings))
