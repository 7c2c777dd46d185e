"""``commonground doctor``: what is here, and what is missing for what."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from commonground.quoting import visible
from commonground.terminal import human_bytes, standard_output

if TYPE_CHECKING:
    from commonground.doctor import Findings
    from commonground.doctor.machine import DataFolder

__all__ = ["doctor"]


@click.command(
    short_help="What is installed, what the machine has, and what is missing.",
    epilog="Example: commonground doctor --json",
)
@click.option("--data-dir", help="folder of the data files  [default: $COMMONGROUND_DATA or a cache folder]")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def doctor(data_dir: str | None, as_json: bool) -> None:
    """Tell versions, extras, devices, the data folder, and whether judged programs can be confined.

    The exit code is 0 unless something that everything needs is broken. What an extra needs is told with the command
    that installs it.
    """
    from commonground.doctor import examine

    found = examine(data_dir)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        _show(found)
    if found.problems:
        raise click.exceptions.Exit(1)


def _show(found: Findings) -> None:
    console = standard_output()
    console.print(f"commonground {found.version or '(not installed)'}, Python {found.python}, {found.platform}")
    console.print(_packages(found))
    console.print(_extras(found))
    console.print(_machine(found))
    for problem in found.problems:
        console.print(f"broken: {visible(problem)}", markup=False, soft_wrap=True)
    if not found.problems:
        console.print("everything that is needed is here")


def _packages(found: Findings) -> Table:
    table = Table("needed", "installed", "asked for", title_justify="left")
    for package in found.needed:
        state = package.installed or "missing"
        table.add_row(package.name, state if package.fits else f"{state} (!)", Text(package.wanted))
    return table


def _extras(found: Findings) -> Table:
    table = Table("extra", "for", "installed")
    for extra in found.extras:
        there = ", ".join(f"{one.name} {one.installed}" for one in extra.packages if one.fits)
        table.add_row(extra.name, extra.feature, Text(there if extra.fits else extra.install))
    return table


def _machine(found: Findings) -> Table:
    table = Table("machine", "", show_header=False)
    spread = f"{found.cores} usable; a worker process for each (--workers), one thread in each (--threads)"
    if threads := os.environ.get("OMP_NUM_THREADS"):
        spread += f"; OMP_NUM_THREADS={threads}"
    table.add_row("cores", spread)
    if found.memory_bytes is not None:
        table.add_row("memory", human_bytes(found.memory_bytes))
    for device in found.devices:
        own = "" if device.memory_bytes is None else f", {human_bytes(device.memory_bytes)}"
        table.add_row(f"device {device.name}", Text(f"{device.model}{own}"))
    if found.data is not None:
        for name, text in _data(found.data).items():
            table.add_row(name, Text(text))
    if found.confinement is not None:
        works = "Landlock and seccomp confine them" if found.confinement.works else visible(found.confinement.why)
        table.add_row("judged programs", Text(works))
    return table


def _data(data: DataFolder) -> dict[str, str]:
    state = "is there" if data.exists else "is made when something is downloaded"
    writable = "" if data.writable else ", and may not be written to"
    return {
        "data folder": f"{visible(data.folder)} ({data.chosen}) {state}{writable}; {human_bytes(data.free_bytes)} free",
        "data sets there": ", ".join(data.there) or "none",
        "not there": ", ".join(data.missing) or "none",
    }
