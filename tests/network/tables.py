"""Tables of three clients, and towns of them, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commonground.data.own_table import OwnTable
from commonground.data.tables.options import TableOptions
from commonground.data.tables.told import Agreed
from commonground.network import gather
from tests.network.town import Town

NAMES = ("east", "north", "south")


def made_frame(name: str, rows: int, **more: Any) -> pd.DataFrame:
    rng = np.random.default_rng(len(name) * 100 + rows)
    frame = pd.DataFrame(
        {
            "age": (rng.normal(40, 10, rows) + rows).round(3),
            "income": np.where(rng.random(rows) < 0.2, "", rng.integers(900, 5000, rows).astype(str)),
            "town": rng.choice(["Bern", "Graz", "Lyon", f"only {name}"], rows),
            "member": rng.choice(["yes", "no"], rows),
            "since": [f"20{y:02d}-03-0{1 + y % 9}" for y in rng.integers(0, 20, rows)],
            "ward": f"ward of {name}",
            "code": [f"{name}-{i}" for i in range(rows)],
            "goal": rng.choice(["ill", "well", *(["odd"] if name == "south" else [])], rows),
            "split": np.where(np.arange(rows) % 4 == 3, "test", "train"),
            "site": name,
            **more,
        }
    )
    return frame


def written(folder: Path, frames: dict[str, pd.DataFrame]) -> dict[str, Path]:
    paths = {}
    folder.mkdir(exist_ok=True)
    for name, frame in frames.items():
        paths[name] = folder / f"{name}.csv"
        frame.to_csv(paths[name], index=False)
    return paths


def made_frames() -> dict[str, pd.DataFrame]:
    return {name: made_frame(name, rows) for name, rows in zip(NAMES, (60, 44, 52), strict=True)}


def town_of(folder: Path, frames: dict[str, pd.DataFrame], **more: Any) -> Town:
    more = {"target": "goal", "options": TableOptions(drop=("site",)), **more}
    return Town([OwnTable(path, name, **more) for name, path in written(folder, frames).items()], folder / "sites")


def agreed_on(town: Town) -> Agreed:
    table = gather(town, len(town.desks), 10).table
    assert table is not None
    return table


def joined(folder: Path, frames: dict[str, pd.DataFrame]) -> Path:
    return written(folder, {"joined": pd.concat(frames.values())})["joined"]


def in_german(frame: pd.DataFrame, *numbers: str) -> pd.DataFrame:
    """The same table with decimal commas and days before months."""
    said = {name: [str(value).replace(".", ",") for value in frame[name]] for name in numbers}
    return frame.assign(**said, since=[".".join(day.split("-")[::-1]) for day in frame["since"]])


def one_of(folder: Path, frames: dict[str, pd.DataFrame], name: str, kinds: dict[str, str]) -> Town:
    """A town in which one client says something of its columns."""
    town, client = town_of(folder, frames), list(frames).index(name)
    options = TableOptions(drop=("site",), kinds=kinds)
    town.data[client] = OwnTable(folder / f"{name}.csv", name, "goal", options=options)
    town.restart(100 + client)
    return town
