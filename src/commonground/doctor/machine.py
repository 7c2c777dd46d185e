"""What there is to compute on, and where data lie."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from commonground.errors import ConfigError
from commonground.processor import processor

__all__ = ["Confinement", "DataFolder", "Device", "confinement", "cores", "data_folder", "devices", "memory"]


@dataclass(frozen=True)
class Device:
    """A device that PyTorch can compute on.

    Attributes:
        name: as ``--device`` takes it.
        model: what it calls itself.
        memory_bytes: its own memory; None for the machine's.
    """

    name: str
    model: str
    memory_bytes: int | None = None


@dataclass(frozen=True)
class DataFolder:
    """Where data files are read from and downloaded to.

    Attributes:
        folder: its path.
        chosen: by what: ``--data-dir``, ``COMMONGROUND_DATA`` or ``default``.
        exists: whether it is there; it is made when something is downloaded.
        writable: whether it, or the nearest folder above it that exists, can be written to.
        free_bytes: free space there.
        there, missing: names of data sets whose files lie in it, and of those whose files do not.
    """

    folder: str
    chosen: str
    exists: bool
    writable: bool
    free_bytes: int
    there: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Confinement:
    """Whether programs that a language model wrote can be confined (Landlock and seccomp), and if not, why."""

    works: bool
    why: str


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int | None:
    """Bytes of the machine's memory, where the system says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def devices() -> tuple[Device, ...]:
    """What PyTorch, which is loaded here, sees."""
    import torch

    found = [Device("cpu", processor())]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(index)
        found.append(Device(f"cuda:{index}", about.name, about.total_memory))
    if torch.backends.mps.is_available():
        found.append(Device("mps", "Apple GPU"))
    return tuple(found)


def data_folder(given: str | None) -> DataFolder:
    """Where data lie, and which data sets do."""
    from commonground.data import available_sources, data_directory

    folder = data_directory(given)
    chosen = "--data-dir" if given else "COMMONGROUND_DATA" if os.environ.get("COMMONGROUND_DATA") else "default"
    near = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    there = {info.name: info.there(folder) for info in available_sources()}
    return DataFolder(
        str(folder),
        chosen,
        folder.is_dir(),
        os.access(near, os.W_OK | os.X_OK),
        shutil.disk_usage(near).free,
        tuple(name for name, is_there in there.items() if is_there),
        tuple(name for name, is_there in there.items() if not is_there),
    )


def confinement() -> Confinement:
    """Tried out with a program of two lines."""
    from commonground.papers.rolora.code_execution import require_confinement

    try:
        require_confinement()
    except ConfigError as error:
        return Confinement(False, str(error))
    return Confinement(True, "")
