"""All that was found, and what of it is broken."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from commonground.doctor import machine
from commonground.doctor.machine import Confinement, DataFolder, Device
from commonground.doctor.packages import Extra, Package, extras, installed, needed

__all__ = ["Findings", "examine"]

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Findings:
    """What ``commonground doctor`` tells.

    Attributes:
        version: of commonground; None where it is not installed.
        python, platform: in words.
        needed, extras: packages.
        cores: that may be used.
        memory_bytes: of the machine.
        devices: that PyTorch can compute on; empty where it cannot be loaded.
        data: the data folder; None where PyTorch cannot be loaded.
        confinement: of judged programs, likewise.
        problems: sentences on what is broken that everything needs.
    """

    version: str | None
    python: str
    platform: str
    needed: Sequence[Package]
    extras: Sequence[Extra]
    cores: int
    memory_bytes: int | None
    devices: Sequence[Device]
    data: DataFolder | None
    confinement: Confinement | None
    problems: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; packages and extras say whether they fit."""
        told = asdict(self)
        told["needed"] = [_told(package) for package in self.needed]
        told["extras"] = [
            {"name": extra.name, "feature": extra.feature, "fits": extra.fits, "install": extra.install,
             "packages": [_told(package) for package in extra.packages]}
            for extra in self.extras
        ]  # fmt: skip
        return told


def _told(package: Package) -> dict[str, Any]:
    return {**asdict(package), "fits": package.fits}


def examine(data_dir: str | None = None, name: str = "commonground") -> Findings:
    """Look at this installation and this machine.

    Args:
        data_dir: the user's own data folder.
        name: under which it is installed.
    """
    packages = needed(name)
    broken = _cannot_load("torch")
    works = broken is None
    return Findings(
        version=installed(name),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()}, {platform.machine()}",
        needed=packages,
        extras=extras(name),
        cores=machine.cores(),
        memory_bytes=machine.memory(),
        devices=machine.devices() if works else (),
        data=machine.data_folder(data_dir) if works else None,
        confinement=machine.confinement() if works else None,
        problems=_problems(packages, broken),
    )


def _cannot_load(module: str) -> str | None:
    """Why a module cannot be loaded; None if it can."""
    try:
        import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # a library that is missing, or made for another machine
        return " ".join(str(error).split())
    return None


def _problems(packages: Sequence[Package], broken: str | None) -> list[str]:
    said = []
    if sys.version_info < OLDEST_PYTHON:
        said.append(f"Python {platform.python_version()} is too old; 3.11 or newer is needed")
    if not packages:
        said.append("commonground is not installed, only its source is here: pip install -e . in its folder")
    for package in packages:
        if package.installed is None:
            said.append(f"{package.name} is missing: pip install '{package.name}{package.wanted}'")
        elif not package.fits:
            said.append(
                f"{package.name} {package.installed} is here and {package.wanted} is needed: "
                f"pip install '{package.name}{package.wanted}'"
            )
    if broken is not None and not any(package.name == "torch" and package.installed is None for package in packages):
        said.append(f"PyTorch cannot be loaded: {broken}")
    return said
