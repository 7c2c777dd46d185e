"""Five tasks of GLUE (Wang et al. 2019), from their TSV files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonground.data.download import Published, extract, fetch, unavailable
from commonground.data.sources.table import read_table
from commonground.data.text.samples import TextData, TextSamples
from commonground.errors import DataError

__all__ = ["TASKS", "GlueTask", "glue_is_there", "glue_reader"]

_URL = "https://dl.fbaipublicfiles.com/glue/data/"


@dataclass(frozen=True)
class GlueTask:
    """One task's files. GLUE publishes no checksums; these are those the Hugging Face ``datasets`` library recorded.

    Attributes:
        folder: under ``glue`` in the data folder, and in the archive.
        title: one line.
        first, second: names that the columns of the two texts go by, the official one first.
        label: names that the label's column goes by.
        classes: in GLUE's order; a label is a name or its number.
        archive: the official archive.
        dev: names of the file with the validation part, the official one first.
        columns: further columns that may say whom a text is from.
    """

    folder: str
    title: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    label: tuple[str, ...]
    classes: tuple[str, ...]
    archive: Published
    dev: tuple[str, ...] = ("dev.tsv",)
    columns: tuple[str, ...] = ()


TASKS = {
    "sst2": GlueTask(
        "SST-2",
        "sentences of film reviews, negative or positive",
        ("sentence",),
        (),
        ("label",),
        ("negative", "positive"),
        Published(_URL + "SST-2.zip", sha256="d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
    ),
    "rte": GlueTask(
        "RTE",
        "pairs of texts, whether the first entails the second",
        ("sentence1",),
        ("sentence2",),
        ("label",),
        ("entailment", "not_entailment"),
        Published(_URL + "RTE.zip", sha256="6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
    ),
    "qnli": GlueTask(
        "QNLI",
        "questions and sentences, whether the sentence holds the answer",
        ("question", "sentence1"),
        ("sentence", "sentence2"),
        ("label",),
        ("entailment", "not_entailment"),
        Published(_URL + "QNLIv2.zip", sha256="e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
    ),
    "mnli": GlueTask(
        "MNLI",
        "pairs of sentences: entailment, neutral or contradiction",
        ("sentence1",),
        ("sentence2",),
        ("gold_label", "label"),
        ("entailment", "neutral", "contradiction"),
        Published(_URL + "MNLI.zip", sha256="e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
        dev=("dev_matched.tsv", "dev.tsv"),
        columns=("genre",),
    ),
    "qqp": GlueTask(
        "QQP",
        "pairs of questions, whether they ask the same",
        ("question1", "sentence1"),
        ("question2", "sentence2"),
        ("is_duplicate", "label"),
        ("not_duplicate", "duplicate"),
        Published(_URL + "QQP-clean.zip", sha256="40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"),
    ),
}
"""The tasks by name."""


def glue_reader(name: str) -> Callable[[Path, bool], TextData]:
    """What reads a task from a data folder; the flag says whether downloads are allowed.

    ``glue/FOLDER/train.tsv`` is the training part and ``dev.tsv`` (MNLI: ``dev_matched.tsv``) the test part, since
    the labels of GLUE's own test part are not public (as Sun et al. 2024 for RoLoRA do); validation data is cut from
    the training part. Columns are found by name, so files with other columns beside them are read too. Rows that are
    cut short or lack a text, which the official QQP has, are left out, and their number is said on standard error.
    """

    def read(data_dir: Path, download: bool) -> TextData:
        task = TASKS[name]
        train, dev = _files(name, task, data_dir / "glue" / task.folder, download)
        return TextData(name, _part(train, task), _part(dev, task), task.classes)

    return read


def glue_is_there(name: str, data_dir: Path) -> bool:
    """Whether a task's files, or its archive, lie in a data folder."""
    task = TASKS[name]
    folder = data_dir / "glue" / task.folder
    plain = (folder / "train.tsv").is_file() and any((folder / dev).is_file() for dev in task.dev)
    return plain or (folder.parent / task.archive.filename).is_file()


def _files(name: str, task: GlueTask, folder: Path, download: bool) -> tuple[Path, Path]:
    train = folder / "train.tsv"
    found = [folder / dev for dev in task.dev if (folder / dev).is_file()]
    if train.is_file() and found:
        return train, found[0]
    archive = folder.parent / task.archive.filename
    had = archive.exists()
    if not (had or download):
        missing = train if not train.is_file() else folder / task.dev[0]
        raise DataError(unavailable(task.archive, missing, name))
    fetch(task.archive, archive, name)
    dev = folder / task.dev[0]
    extract(archive, {f"{task.folder}/{path.name}": path for path in (train, dev)})
    if not had:
        archive.unlink()
    return train, dev


def _part(path: Path, task: GlueTask) -> TextSamples:
    cut: list[int] = []
    header, rows, lines = read_table(path, delimiter="\t", quoted=False, cut=cut)
    first = _column(path, header, task.first)
    second = _column(path, header, task.second) if task.second else None
    label = _column(path, header, task.label)
    texts = [first] if second is None else [first, second]
    kept = [i for i, row in enumerate(rows) if all(row[column].strip() for column in texts)]
    if without := len(cut) + len(rows) - len(kept):
        print(f"{path}: {without:,} of {len(cut) + len(rows):,} rows lack a text and are left out", file=sys.stderr)
    numbers = {text: number for number, text in enumerate(task.classes)}
    numbers |= {str(number): number for number in range(len(task.classes))}
    labels = np.empty(len(kept), dtype=np.int64)
    for place, i in enumerate(kept):
        word = rows[i][label].strip()
        if word not in numbers:
            raise DataError(
                f"{path}, line {lines[i]}: the label is {word!r}; it must be one of {', '.join(task.classes)}, or "
                f"0 to {len(task.classes) - 1}"
            )
        labels[place] = numbers[word]
    return TextSamples(
        [rows[i][first].strip() for i in kept],
        None if second is None else [rows[i][second].strip() for i in kept],
        labels,
        {name: np.array([rows[i][header.index(name)] for i in kept]) for name in task.columns if name in header},
        str(path),
        "line",
        [lines[i] for i in kept],
    )


def _column(path: Path, header: Sequence[str], names: Sequence[str]) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise DataError(f"{path} has no column {' or '.join(map(repr, names))}; its columns are: {', '.join(header)}")
