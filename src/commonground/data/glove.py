"""Word vectors in GloVe's text format: a word and its numbers on each line."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commonground.errors import DataError

__all__ = ["GLOVE", "read_glove", "word_numbers"]

GLOVE = Path("sent140", "glove.6B.300d.txt")
"""Where the vectors of the tweets' words are, below the data folder."""

Vectors = npt.NDArray[np.float32]


@lru_cache(maxsize=1)
def read_glove(path: Path) -> tuple[tuple[str, ...], Vectors]:
    """Words and their vectors, in the file's order.

    Args:
        path: the file, for example ``glove.6B.300d.txt``.

    Returns:
        The V words and a float32 array [V, dimensions].

    Raises:
        DataError: the file is missing, or a line has another number of values than the first.
    """
    if not path.is_file():
        raise DataError(
            f"the word vectors are wanted as {path} (GloVe, 300 numbers a word: glove.6B.300d.txt from "
            "https://nlp.stanford.edu/projects/glove/), and there is no such file"
        )
    words: list[str] = []
    rows: list[Vectors] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                word, *values = line.rstrip("\n").split(" ")
                try:
                    row = np.array(values, dtype=np.float32)
                except ValueError:
                    raise DataError(f"line {number} of {path} holds something else than a word and numbers") from None
                finite = int(np.isfinite(row).sum())
                if not finite or finite < len(row) or (rows and len(row) != len(rows[0])):
                    wanted = len(rows[0]) if rows else max(1, len(row))
                    raise DataError(f"line {number} of {path} has {finite} finite numbers, not {wanted}")
                words.append(word)
                rows.append(row)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text, as GloVe's files are") from None
    if not rows:
        raise DataError(f"{path} holds no word vectors")
    return tuple(words), np.stack(rows)


def word_numbers(words: tuple[str, ...]) -> dict[str, int]:
    """Each word's number in the network's table: its line in the file, from 1 on; 0 is padding or an unknown word."""
    return {word: number for number, word in enumerate(words, 1)}
