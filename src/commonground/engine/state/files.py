"""Files that are whole or not there: written under a temporary name, synced to the disk, and only then renamed."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "TensorColumn",
    "raw_bytes",
    "remove_parts",
    "sync_file",
    "sync_folder",
    "tensor_file",
    "write_atomically",
    "write_tensors",
]

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


MOST_LINKS = 40  # that are followed, as the kernel has it


class TensorColumn(NamedTuple):
    """A tensor that is written part by part, so that it need not be in memory as a whole.

    Attributes:
        dtype: its number type.
        shape: its shape.
        parts: its content, cut along the leading axis.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Iterable[Tensor]


def raw_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes in memory order of its contiguous form, of any number type, without a copy where it is one."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_atomically(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file, as a whole or part by part, under a temporary name in the same folder, sync it, then rename it."""
    parts = (content.encode(),) if isinstance(content, str) else (content,) if isinstance(content, bytes) else content
    with _replacing(path, durable=True) as descriptor:
        for part in parts:
            _write(descriptor, part)


def tensor_file(
    tensors: Mapping[str, Tensor | TensorColumn], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """A safetensors file, part by part. The same tensors and strings are the same bytes, which the format's own library
    does not promise.

    Args:
        tensors: by name.
        metadata: strings for its header.
    """
    columns = {
        n: t if isinstance(t, TensorColumn) else TensorColumn(t.dtype, tuple(t.shape), (t,)) for n, t in tensors.items()
    }
    # Wide numbers first, as the format wants it, so that every tensor is aligned in the file.
    order = sorted(columns, key=lambda name: (-columns[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        column = columns[name]
        begin, end = end, end + torch.Size(column.shape).numel() * column.dtype.itemsize
        header[name] = {"dtype": _DTYPES[column.dtype], "shape": list(column.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield from map(raw_bytes, columns[name].parts)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor | TensorColumn], metadata: Mapping[str, str], *, durable: bool = True
) -> None:
    """Write a safetensors file as :func:`write_atomically` writes others, part by part.

    Args:
        path: of the file.
        tensors: by name.
        metadata: strings for its header.
        durable: whether it is synced; not where a power cut would take the rest of the run's files as well.
    """
    with _replacing(path, durable=durable) as descriptor:
        for part in tensor_file(tensors, metadata):
            _write(descriptor, part)


def remove_parts(folder: Path) -> None:
    """Remove what a process that was killed while it wrote into this folder has left."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Let what was appended to a file reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Let renames and removals in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot sync folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _replacing(path: Path, *, durable: bool) -> Iterator[int]:
    """A descriptor to write to; the file takes its name when the block ends, and leaves nothing behind if it fails.

    To a device or a pipe (``/dev/null``, ``/dev/stdout``) is written as it is: a file would take its place.
    """
    opened = _opened(path)
    if opened is not None:
        try:
            yield opened
        finally:
            os.close(opened)
        return
    _make(path.parent)
    part = path.with_name(f".{path.name}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            yield descriptor
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        # A write knows no name, and the part's is one that nobody has given.
        if isinstance(error, OSError) and error.errno and error.filename in (None, os.fspath(part)):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    if durable:
        sync_folder(path.parent)


def _opened(path: Path) -> int | None:
    """A descriptor of a device, of a pipe, or of what this process has opened by number; None where files may stand."""
    place = Path(os.path.abspath(path))
    for _ in range(MOST_LINKS):
        number = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", str(place))
        if number is not None:
            return os.dup(int(number[1]))  # so that what is printed before and after stands before and after
        if not place.is_symlink():
            break
        place = Path(os.path.abspath(place.parent / place.readlink()))
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else os.open(path, os.O_WRONLY)


def _make(folder: Path) -> None:
    """Make a folder and its parents so that they outlast a power cut."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _write(descriptor: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest[: 1 << 30]) :]
