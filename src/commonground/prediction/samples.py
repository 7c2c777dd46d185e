"""Samples of numbers from files, for prediction."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.access import reason
from commonground.data.tables.textfile import check_unsaid, read_text_file
from commonground.errors import DataError
from commonground.quoting import quoted

__all__ = ["read_samples"]


def read_samples(path: Path, separator: str | None = None, encoding: str | None = None) -> npt.NDArray[np.float64]:
    """Samples [n, …] from a .npy or .csv file.

    Args:
        path: the file.
        separator: between the cells of a .csv file; by default a comma.
        encoding: of a .csv file; by default found.

    Raises:
        ConfigError: an impossible separator or encoding, or one of a .npy file.
        DataError: the file is missing, of another kind, empty or not numeric.
    """
    if path.suffix == ".npy":
        check_unsaid(path, separator, encoding)
    if not path.is_file():
        raise DataError(f"the input file '{path}' does not exist")
    try:
        if path.suffix == ".npy":
            x = _read_array(path)
        elif path.suffix == ".csv":
            file = read_text_file(path, separator or ",", encoding)
            text = file.content.decode("utf-8", "surrogatepass")
            lines = [line for line in csv.reader(text.splitlines(), delimiter=file.separator) if line]
            header = bool(lines) and not any(_is_number(cell) for cell in lines[0])
            for number, line in enumerate(lines[header:], 1 + header):
                if len(line) != len(lines[0]):
                    raise DataError(
                        f"{path}, row {number}: it has {len(line)} cells, and the first row {len(lines[0])}"
                    )
                for place, cell in enumerate(line, 1):
                    if not _is_number(cell):
                        raise DataError(
                            f"{path}, row {number}: column {place} is {quoted(cell, 40)}, no number; columns are those "
                            "of the training samples in their order, without label and client"
                        )
            x = np.array([[float(cell) for cell in line] for line in lines[header:]])
        else:
            raise DataError(f"the input file '{path}' is neither .npy nor .csv")
    except (ValueError, OSError, csv.Error) as error:
        raise DataError(f"the input file '{path}' cannot be read as numbers: {reason(error, path)}") from None
    if not isinstance(x, np.ndarray):
        raise DataError(f"the input file '{path}' is an archive of several arrays; one array is needed")
    if x.ndim < 2 or len(x) == 0 or x.dtype.kind not in "fiu":
        raise DataError(f"the input file '{path}' must hold at least one sample as a row of numbers, not {x.shape}")
    return np.array(x, dtype=np.float64)  # a copy: the file must not be written to


def _read_array(path: Path) -> Any:
    """What a .npy file holds; mapped, so that no memory is asked for that a header claims and the file has not.

    Raises:
        ValueError: it is no such file. NumPy's parser of headers lets through whatever a damaged one makes it raise.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # whatever NumPy's parser lets through
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which Python takes for a blank between digits
