"""The part of the campaign that writes hostile modules, and settings beyond all bounds.

Each try writes a file with a module or draws a setting, and trains two rounds by the command. It holds

- for a module that fails: if the command ends with 2 and one line, which names the file and the line that failed;
- for a module that draws: if two engines end with the same weights, whatever was drawn before, and the global
  generators stay as they were;
- for a setting: if the command ends with 0 or 2, in the latter case with one line that names the setting.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from commonground.algorithms import registry
from commonground.cli import main
from commonground.config import RunConfig
from tests.campaign.common import Tally, drawn, tries

__all__ = ["DRAWS", "FAULTS", "Command", "campaign", "run_command", "try_draws", "try_fault", "try_setting"]

DATA = """
import numpy as np
def clients():
    rng = np.random.default_rng(0)
    part = lambda n: (rng.normal(size=(n, 4)).astype("float32"), rng.integers(0, 3, n))
    return [(*part(n), *part(4)) for n in (9, 5, 12)]
"""

NET = """
import os, random, sys, time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
RNG, TORCH = np.random.default_rng(), torch.Generator()
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.calls = 0
        {init}
    def forward(self, x):
        self.calls += 1
        h = torch.tanh(self.first(x))
        {before}
        out = self.head(h)
        {after}
        return out
"""

# Statements that end a program: they are to be named with their line.
FAULTS: dict[str, str] = {
    "KeyError": "{}['x']",
    "IndexError": "[][3]",
    "AssertionError": "assert False",
    "ZeroDivisionError": "1 / 0",
    "AttributeError": "self.nothing",
    "TypeError": "len(3)",
    "ValueError": "int('x')",
    "RecursionError": "f = lambda: f(); f()",
    "RuntimeError": "torch.zeros(2) @ torch.zeros(3)",
    "NotImplementedError": "raise NotImplementedError",
    "FileNotFoundError": "open('/nonexistent')",
    "StopIteration": "next(iter([]))",
    "GeneratorExit": "raise GeneratorExit",
    "SystemExit": "sys.exit(3)",
    "UnicodeDecodeError": "bytes([255]).decode()",
    "NameError": "nowhere",
    "ImportError": "from os import nothing",
    "Warning": "raise Warning('a' * 9999 + chr(10) + chr(27))",
}

# Where they stand, and what has to be so.
PLACES = {"init": "{}", "before": "{}", "after": "{}"}
WHEN = ("", "if self.training: ", "if not self.training: ", "if self.training and self.calls > 4: ")

# Outputs and weights that no run can use, with a word of the sentence.
REFUSED: dict[str, tuple[str, str, str]] = {
    "whole numbers": ("", "return out.long()", "real numbers"),
    "complex": ("", "return torch.complex(out, out)", "real numbers"),
    "detached": ("", "return out.detach()", "hang on no parameter"),
    "NumPy": ("", "return torch.from_numpy(out.detach().numpy())", "hang on no parameter"),
    "not a number": ("", "return out * float('nan')", "not finite"),
    "two": ("", "return out, h", "not a tuple"),
    "none": ("", "return None", "nothing"),
    "a row less": ("", "return out[1:]", "rows of outputs"),
    "a column less": ("", "return out[:, 1:]", "outputs of shape"),
    "two in training": ("", "return (out, h) if self.training else out", "in training mode"),
    "no gradients": ("[p.requires_grad_(False) for p in self.parameters()]", "", "no parameter"),
    "complex weights": ("self.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))", "", "dense real numbers"),
    "lazy": ("self.w = nn.LazyLinear(2)", "", "no shape yet"),
    "meta": ("self.w = nn.Linear(2, 2, device='meta')", "", "'meta'"),
    "shared memory": ("self.w = nn.Parameter(self.first.weight.data)", "", "share memory"),
    "expanded": ("self.first.bias = nn.Parameter(torch.zeros(1).expand(6))", "", "share memory"),
    "a slash": ("self.add_module('a/b', nn.Linear(2, 2))", "", "/ in its name"),
    "the clock": ("", "return out * (time.perf_counter_ns() % 1000)", "no seed keys"),
    "the system": ("", "return out * int.from_bytes(os.urandom(4), 'little')", "no seed keys"),
    "weights changed in tests": ("", "self.head.weight.data.mul_(1.01)", "in evaluation as well"),
}

DRAWS: dict[str, str] = {
    "dropout": "h = F.dropout(h, 0.3, self.training)",
    "always": "h = F.dropout(h, 0.3)",
    "rand": "h = h + torch.rand_like(h)",
    "normal": "h = h + torch.empty_like(h).normal_()",
    "bernoulli": "h = h * torch.bernoulli(torch.full_like(h, 0.5))",
    "randperm": "h = h[:, torch.randperm(6)]",
    "multinomial": "h = h[:, torch.multinomial(torch.ones(6), 6)]",
    "numpy": "h = h * float(np.random.rand())",
    "normal of NumPy": "h = h * (1 + float(np.random.randn()))",
    "python": "h = h * random.random()",
    "own NumPy": "h = h * float(RNG.random())",
    "own PyTorch": "h = h + torch.rand(6, generator=TORCH)",
    "gumbel": "h = F.gumbel_softmax(h)",
    "rarely": "h = F.dropout(h, 0.5) if self.training and float(h.detach()[0, 0]) > 0.4 else h",
}

METHODS = ("fedrep", "fedavg", "perfedavg", "ditto", "scaffold", "fedbabu", "local")
EXTREME = ("nan", "inf", "-inf", "1e39", "-1e39", "1e-45", "1e300", "-1", "0", "99999999999999999999", "1" * 5000)
# Counts that are no mistake, but hours of work.
LONG = ("rounds", "seed", "threads", "workers")


@dataclass(frozen=True)
class Command:
    """What a command left.

    Attributes:
        code: its exit code; None if it raised.
        lines: of its standard error.
        sha: of the weights, if it finished.
    """

    code: int | None
    lines: tuple[str, ...]
    sha: str | None

    @property
    def sentence(self) -> bool:
        """Whether it ended with one line, of bearable length."""
        return self.code == 2 and len(self.lines) == 1 and len(self.lines[0]) < 1500


def run_command(folder: Path, method: str, *flags: str) -> Command:
    """``commonground train`` on three small clients."""
    (folder / "data.py").write_text(DATA)
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    said = io.StringIO()
    base = ["train", method, "--data", f"{folder / 'data.py'}:clients", "--rounds", "2", "--quiet", "--workers", "2"]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code: int | None = main([*base, "--out", str(out), *flags])
        except Exception as error:  # a traceback, had it been a command
            code, said = None, io.StringIO(f"{type(error).__name__}: {error}")
    sha = json.loads((out / "summary.json").read_text())["weights_sha256"] if code == 0 else None
    return Command(code, tuple(said.getvalue().strip().splitlines()), sha)


def write_net(folder: Path, init: str = "pass", before: str = "pass", after: str = "pass") -> Path:
    """The file of a module with these statements."""
    file = folder / "net.py"
    file.write_text(NET.format(init=init, before=before, after=after))
    return file


def try_fault(folder: Path, name: str, place: str, when: str, engine: str) -> str | None:
    """What is wrong with how a failing module is refused; None if nothing."""
    statement = f"{when if place != 'init' else ''}{FAULTS[name]}"
    file = write_net(folder, **{place: statement})
    line = file.read_text().splitlines().index(f"        {statement}") + 1
    ended = run_command(folder, "fedrep", "--model", f"{file}:Net", "--engine", engine)
    wanted = name in ended.lines[0] and f"net.py, line {line}" in ended.lines[0] if ended.lines else False
    return None if ended.sentence and wanted else f"{name} in {place} ({when}) of {engine}: {ended}"


def try_refused(folder: Path, name: str, engine: str) -> str | None:
    """As :func:`try_fault`, for modules that do not fail but cannot be used."""
    init, after, word = REFUSED[name]
    file = write_net(folder, init or "pass", after=after or "pass")
    ended = run_command(folder, "fedavg", "--model", f"{file}:Net", "--engine", engine)
    return None if ended.sentence and word in ended.lines[0] else f"{name} of {engine}: {ended}"


def try_draws(folder: Path, names: list[str], method: str, engine: str, draw: np.random.Generator) -> str | None:
    """What is wrong with the numbers of a module that draws; None if nothing."""
    file = write_net(folder, before="; ".join(DRAWS[name] for name in names if name != "rarely") or DRAWS["rarely"])
    flags, shas = ("--model", f"{file}:Net", "--seed", str(draw.integers(100))), []
    for one in ("serial", engine):
        torch.manual_seed(int(draw.integers(1 << 30)))
        random.seed(int(draw.integers(1 << 30)))
        before = torch.get_rng_state(), random.getstate()
        ended = run_command(folder, method, "--engine", one, *flags)
        if not torch.equal(before[0], torch.get_rng_state()) or before[1] != random.getstate():
            return f"{names} in {method} by {one}: the global generators have moved"
        shas.append(ended.sha)
        if ended.sha is None:
            return f"{names} in {method} by {one}: {ended}"
    return None if shas[0] == shas[1] else f"{names} in {method}: {engine} differs from serial"


def try_setting(folder: Path, method: str, name: str, value: str) -> str | None:
    """What is wrong with how an extreme setting is taken; None if nothing."""
    flags = ["--model", "linear", "--engine", "serial"]
    own = name in registry[method].options()
    flags += ["--set", f"{name}={value}"] if own else [f"--{name.replace('_', '-')}={value}"]
    ended = run_command(folder, method, *flags)
    said = ended.lines[0] if ended.lines else ""
    diverged = "not finite" in said or "beyond" in said
    named = name in said or f"--{name.replace('_', '-')}" in said or diverged
    return None if ended.code == 0 or (ended.sentence and named) else f"{method} {name}={value[:40]}: {ended}"


def one_try(folder: Path, draw: np.random.Generator) -> str | None:
    """A fault, a module that cannot be used, one that draws, or a setting; what is wrong, or None."""

    def pick(options: list[str]) -> str:
        return options[int(draw.integers(len(options)))]

    engine = pick(["processes", "messages"])
    kind = pick(["fault", "refused", "draws", "setting"])
    if kind == "fault":
        return try_fault(folder, pick([*FAULTS]), pick([*PLACES]), pick([*WHEN]), pick(["serial", "auto", engine]))
    if kind == "refused":
        return try_refused(folder, pick([*REFUSED]), pick(["serial", "auto", engine]))
    if kind == "draws":
        names = list(dict.fromkeys(pick([*DRAWS]) for _ in range(int(draw.integers(1, 4)))))
        return try_draws(folder, names, pick([*METHODS]), engine, draw)
    method = pick([*METHODS, "fedprox", "apfl", "l2gd", "fedmtl", "local-sgd", "flute", "fedcp"])
    numbers = [n for n, f in RunConfig.model_fields.items() if f.annotation in (int, float, int | None, float | None)]
    return try_setting(folder, method, pick([n for n in numbers if n not in LONG] + [*registry[method].options()]),
                       pick([*EXTREME]))  # fmt: skip


def campaign(seed: int, count: int, minutes: float) -> Tally:
    """Try ``count`` modules and settings."""
    findings, tried = [], 0
    for number in tries(count, minutes):
        tried += 1
        with tempfile.TemporaryDirectory() as folder:
            wrong = one_try(Path(folder), drawn(seed, number))
        if wrong is not None:
            findings.append(f"{number}: {wrong.replace(folder, '…')}")
    return Tally(tried, tried - len(findings), tuple(findings))
