"""Folders of runs that the disk, a power cut or an editor has changed.

A run that goes on, a model that is loaded and a report must be what they were, or a sentence says which file is wrong.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from commonground import load_run
from commonground.engine.state.folder import RunFolder
from commonground.errors import CommonGroundError
from commonground.report import write_run_report
from tests.campaign.common import Tally, drawn, tries
from tests.helpers import SMALL, Notes, Whole, made_data, rows_without_time, train_whole, training

__all__ = ["campaign", "change", "damage", "every_round_saved", "go"]

SETTINGS: dict[str, Any] = SMALL | {"rounds": 8, "participation": 0.5, "model": "mlp", "model_options": {"hidden": [5]}}
CASES: tuple[tuple[str, str, int, dict[str, Any]], ...] = (  # method, engine, stopped after a round (0: finished), …
    ("ditto", "serial", 6, {}),
    ("fedrep", "messages", 6, {}),
    ("scaffold", "serial", 5, {}),
    ("fedavg", "batched", 6, {"server_optimizer": "adam", "server_lr": 0.1}),
    ("fedrep", "messages", 0, {}),
    ("apfl", "serial", 0, {}),
    ("fedavg", "serial", 0, {"finetune_epochs": 2}),
)


def go(out: Path | None, algorithm: str = "ditto", **changes: Any) -> Whole:
    """A small run."""
    return train_whole(algorithm, made_data(), out=out, **(SETTINGS | changes))


@contextmanager
def every_round_saved() -> Any:
    """Inside, a checkpoint follows every round, and nothing waits for the disk, whose tricks are played by hand."""
    with patch.object(training.Keeper, "save_if_due", training.Keeper.save), patch("os.fsync", lambda descriptor: None):
        yield


# -- ways in which files change ---------------------------------------------------------------------------------------


def damage(path: Path, rng: np.random.Generator) -> str:
    """Change a file in one of the ways in which files change; what was done."""
    content = bytearray(path.read_bytes())
    how = str(rng.choice(["cut", "zeroed", "tail zeroed", "flipped", "emptied", "removed", "grown"]))
    if how == "removed":
        path.unlink()
        return how
    if how == "cut":
        content = content[: rng.integers(len(content))]
    elif how == "zeroed":
        start = int(rng.integers(len(content)))
        size = min(int(rng.integers(1, 600)), len(content) - start)
        content[start : start + size] = bytes(size)
    elif how == "tail zeroed":
        size = min(4096, len(content) - 1)
        content[len(content) - size :] = bytes(size)
    elif how == "flipped":
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            content[place] ^= 1 << int(rng.integers(8))
    elif how == "emptied":
        content = bytearray()
    else:
        content += bytes(int(rng.integers(1, 100)))
    path.write_bytes(content)
    return how


def change(folder: Path, file: Path, rng: np.random.Generator) -> str:
    """Damage a file of a folder, exchange it with another one, or edit a number in it; what was done."""
    path = folder / file
    others = [p for p in sorted(folder.rglob(f"*{file.suffix}")) if p.is_file() and p != path]
    draw = rng.random()
    if draw < 0.15 and others:
        other = others[int(rng.integers(len(others)))]
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)
        return f"exchanged with {other.relative_to(folder)}"
    numbers = list(re.finditer(rb"\d+", path.read_bytes())) if file.suffix != ".safetensors" else []
    if draw < 0.5 and numbers:
        content, found = path.read_bytes(), numbers[int(rng.integers(len(numbers)))]
        edited = str(int(found[0]) + int(rng.integers(1, 9))).encode()
        path.write_bytes(content[: found.start()] + edited + content[found.end() :])
        return f"{found[0].decode()} edited to {edited.decode()}"
    return damage(path, rng)


# -- what must not change ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sound:
    """A run's folder as it was written, and what belongs to it."""

    algorithm: str
    changes: dict[str, Any]
    folder: Path
    files: list[Path]
    whole: Whole
    finished: bool
    models: list[Any]
    page: str


def _sound(place: Path, case: tuple[str, str, int, dict[str, Any]]) -> Sound:
    algorithm, engine, stop, more = case
    changes = {"engine": engine, **more}
    whole, folder = go(None, algorithm, **changes), place / f"{algorithm}-{engine}-{stop}"
    if stop:
        with suppress(ValueError):  # the observer's, after that round
            go(folder, algorithm, observer=Notes(stop), **changes)
    else:
        whole = go(folder, algorithm, **changes)
    page = "" if stop else write_run_report(folder).read_text("utf-8")
    files = [p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.is_file()]
    files = [f for f in files if f.parts[0] not in ("report.html", "figures")]
    models = [] if stop else [load_run(folder).trained.own(client) for client in range(4)]
    return Sound(algorithm, changes, folder, files, whole, not stop, models, page)


def _resumed(sound: Sound, folder: Path) -> str:
    notes = Notes()
    again = go(folder, sound.algorithm, resume=True, observer=notes, **sound.changes)
    rows = rows_without_time(sound.whole.run.history)
    same = again.run.summary["weights_sha256"] == sound.whole.sha
    written = rows_without_time(RunFolder(folder).rounds.rows())
    if not (same and rows_without_time(again.run.history) == rows == written):
        return "--resume ends with other numbers"
    if again.run.clients != sound.whole.run.clients:
        return "--resume ends with other figures of clients"
    return "a note has several lines" if any("\n" in said for said in notes.said) else ""


def _loaded(sound: Sound, folder: Path) -> str:
    run = load_run(folder)
    for client, own in enumerate(sound.models):
        found = run.trained.own(client)
        if found.keys() != own.keys() or any(not torch.equal(own[name], value) for name, value in found.items()):
            return f"predict has another model of client {client}"
    if rows_without_time(run.history) != rows_without_time(sound.whole.run.history):
        return "load_run has other rounds"
    return "load_run has other figures" if run.clients != sound.whole.run.clients else ""


def _reported(sound: Sound, folder: Path) -> str:
    said = write_run_report(folder).read_text("utf-8")
    return "" if said.replace(str(folder), str(sound.folder)) == sound.page else "the report shows other figures"


def _fault(ask: Callable[[Path], str], folder: Path) -> str:
    """What one way of using a folder got wrong; empty if it gave what was written or said what is wrong."""
    try:
        return ask(folder)
    except CommonGroundError as error:
        if "\n" in str(error) or str(folder) not in str(error):
            return f"the sentence does not name the file, or is none: {str(error).replace(str(folder), 'RUN')[:200]}"
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error).replace(str(folder), 'RUN')[:200]}"


def campaign(seed: int, count: int, minutes: float) -> Tally:
    """So many damaged folders, of stopped and finished runs of several methods and engines."""
    findings: list[str] = []
    tried = held = 0
    with tempfile.TemporaryDirectory() as temporary, every_round_saved():
        place = Path(temporary)
        sounds = [_sound(place, case) for case in CASES[: max(1, count)]]
        for number in tries(count, minutes):
            rng, sound = drawn(seed, number), sounds[number % len(sounds)]
            file = sound.files[int(rng.integers(len(sound.files)))]
            # --resume changes the folder, so it comes last.
            uses: Mapping[str, Any] = {"report": _reported, "load": _loaded} if sound.finished else {}
            folder = place / "run"
            shutil.copytree(sound.folder, folder)
            how = change(folder, file, rng)
            faults = [_fault(partial(ask, sound), folder) for ask in (*uses.values(), _resumed)]
            shutil.rmtree(folder)
            tried += 1
            held += not any(faults)
            title = f"{sound.algorithm} {sound.changes['engine']}{'' if sound.finished else ' stopped'}"
            findings += [f"{number}: {title}, {file} {how}: {fault}" for fault in faults if fault]
    return Tally(tried, held, tuple(findings))
