"""Where samples come from: every source by name, any table or instruction file by its path, the Hugging Face hub."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from commonground.data.sources.base import Source, data_directory
from commonground.data.sources.cifar import cifar_is_there, load_cifar10, load_cifar100
from commonground.data.sources.digits import load_digits
from commonground.data.sources.glue import TASKS, glue_is_there, glue_reader
from commonground.data.sources.hub import PREFIX, load_hub
from commonground.data.sources.idx import emnist_letters_are_there, load_emnist_letters, load_mnist, mnist_is_there
from commonground.data.sources.images import CLIENT, has_clients, is_image_folder, load_images
from commonground.data.sources.instructions import load_instructions
from commonground.data.sources.sent140 import load_sent140, sent140_is_there
from commonground.data.sources.text_table import TEXT_COLUMNS, load_text_table
from commonground.data.sources.texts import tokenised
from commonground.data.tables.huggingface import hub_dataset, raw_of_dataset
from commonground.data.tables.load import LABEL, load_table
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import FORMS, first_fields, is_table
from commonground.data.tables.schema import TableSchema
from commonground.data.text.samples import TextData
from commonground.errors import ConfigError, DataError
from commonground.quoting import quoted
from commonground.suggest import meant

__all__ = [
    "Source",
    "SourceInfo",
    "available_sources",
    "data_directory",
    "default_model",
    "is_text",
    "load_instructions",
    "load_source",
    "load_table",
    "load_text_table",
    "tokenised",
    "usual_partition",
]


@dataclass(frozen=True)
class SourceInfo:
    """A source in a list.

    Attributes:
        name: as given to :func:`load_source`.
        description: one line.
        origin: where the files come from.
        model: the model used when the user names none; empty for texts, which have none.
        load: reads it from a data folder; the flag says whether downloads are allowed. Texts are tokenised afterwards.
        partition: the partition used when the user names none.
        text: whether it holds texts, which need a tokenizer.
        there: whether its files lie in a data folder (or their archive does), as far as their names tell.
    """

    name: str
    description: str
    origin: str
    model: str
    load: Callable[[Path, bool], Source | TextData]
    partition: str = "iid"
    text: bool = False
    there: Callable[[Path], bool] = lambda data_dir: True


_SOURCES = {
    info.name: info
    for info in (
        SourceInfo(
            "digits",
            "1,797 handwritten digits, 8x8 grey, 10 classes; no download",
            "scikit-learn (UCI, Alpaydin and Kaynak 1998)",
            "mlp",
            lambda data_dir, download: load_digits(),
        ),
        SourceInfo(
            "mnist",
            "70,000 handwritten digits, 28x28 grey, 10 classes",
            "https://ossci-datasets.s3.amazonaws.com/mnist/ (LeCun, Cortes and Burges 1998)",
            "cnn",
            load_mnist,
            there=mnist_is_there,
        ),
        SourceInfo(
            "cifar10",
            "60,000 pictures, 32x32 colour, 10 classes",
            "https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky 2009)",
            "cnn",
            load_cifar10,
            there=partial(cifar_is_there, "cifar10"),
        ),
        SourceInfo(
            "cifar100",
            "60,000 pictures, 32x32 colour, 100 classes",
            "https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky 2009)",
            "cnn",
            load_cifar100,
            there=partial(cifar_is_there, "cifar100"),
        ),
        SourceInfo(
            "emnist-letters",
            "handwritten letters A to J, 28x28 grey, 10 classes",
            "https://www.nist.gov/itl/products-and-services/emnist-dataset (Cohen et al. 2017)",
            "mlp",
            load_emnist_letters,
            there=emnist_letters_are_there,
        ),
        SourceInfo(
            "sent140",
            "tweets of 183 authors, positive or negative; files have to be put in the data folder",
            "http://help.sentiment140.com (Go, Bhayani and Huang 2009) and GloVe vectors",
            "lstm",
            load_sent140,
            partition="column:user",
            there=sent140_is_there,
        ),
        *(
            SourceInfo(
                name,
                f"{task.title}; texts, for a model hf:NAME",
                "https://gluebenchmark.com (Wang et al. 2019)",
                "",
                glue_reader(name),
                text=True,
                there=partial(glue_is_there, name),
            )
            for name, task in TASKS.items()
        ),
    )
}
_FORMS = (
    f"the path of a table ({FORMS}), of a folder of pictures, of a .json or .jsonl file of instructions, "
    "hf:OWNER/NAME, or file.py:function"
)


def available_sources() -> tuple[SourceInfo, ...]:
    """Every source that has a name, in the order to list them. Tables and instructions are given by their path."""
    return tuple(_SOURCES.values())


def is_text(name: str | os.PathLike[str]) -> bool:
    """Whether the data of this name are texts, which need a tokenizer: GLUE's tasks, .json, ``hf:``, and a .tsv or
    .jsonl file unless it has neither instructions nor columns as :func:`load_text_table` finds them.

    Other tables are of numbers and categories unless a tokenizer is given with them.
    """
    text = os.fspath(name)
    if text in _SOURCES:
        return _SOURCES[text].text
    if text.lower().endswith((".tsv", ".jsonl")):
        fields = first_fields(Path(text).expanduser())
        return not fields or _instructs(fields) or any(set(texts) <= set(fields) for texts in TEXT_COLUMNS)
    return text.startswith(PREFIX) or text.lower().endswith(".json")


def _has_instructions(path: Path) -> bool:
    fields = first_fields(path)
    return not fields or _instructs(fields)


def _instructs(fields: list[str]) -> bool:
    return "instruction" in fields


def default_model(name: str) -> str:
    """The model used for this data when the user names none; ``mlp`` for a table, ``cnn`` for a folder of pictures.

    Raises:
        ConfigError: the data are texts.
    """
    if is_text(name) and not name.startswith(PREFIX):
        raise ConfigError(
            f"the data '{name}' are texts, for which there is no usual model: choose one, as in --model hf:roberta-base"
        )
    if name in _SOURCES:
        return _SOURCES[name].model
    return "cnn" if _is_images(name) else "mlp"


def _is_images(name: str | os.PathLike[str]) -> bool:
    """Whether the name is that of a folder of pictures."""
    path = Path(os.fspath(name)).expanduser()
    return os.fspath(name) not in _SOURCES and not is_table(str(path)) and is_image_folder(path)


def usual_partition(name: str | os.PathLike[str]) -> str:
    """The partition a source is dealt by when the user names none."""
    info = _SOURCES.get(os.fspath(name))
    if info is None and _is_images(name) and has_clients(Path(os.fspath(name)).expanduser()):
        return f"column:{CLIENT}"
    return "iid" if info is None else info.partition


def load_source(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    seed: int = 0,
    label: str | None = None,
    client_column: str | None = None,
    tokenizer: Any = None,
    max_length: int = 128,
    vocab_size: int | None = None,
    task: str | None = None,
    options: TableOptions | None = None,
    schema: TableSchema | None = None,
) -> Source:
    """Read a source.

    Args:
        name: a name of :func:`available_sources`; the path of a table (:func:`load_table`; with a tokenizer, of texts:
            :func:`load_text_table`), of a folder of pictures (:func:`~commonground.data.sources.images.load_images`) or
            of instructions (.json, .jsonl: :func:`load_instructions`); or ``hf:OWNER/NAME`` (with a tokenizer texts,
            :func:`~commonground.data.sources.hub.load_hub`, else a table).
        data_dir: folder of the data files; see :func:`data_directory` for the default.
        download: whether missing files may be downloaded.
        seed: keys the hold-out of a table; the other sources have a fixed test set.
        label: a table's label column; by default ``label``, or the ``schema``'s.
        client_column: a table's client column.
        tokenizer: for texts: a transformers tokenizer, a folder with one, or ``hf:NAME_OR_FOLDER``.
        max_length: most tokens of a text.
        vocab_size: of the model that shall read the tokens, if known.
        task: what a table is for, by name; by default classification (see :func:`load_table`).
        options: how a table is read.
        schema: of a run whose columns and encoders are taken for a table; for texts, how it is split.

    Raises:
        ConfigError: a task for data that have one of their own, texts without a tokenizer, a tokenizer without texts,
            or one that does not fit.
        DataError: the name is unknown, or its files are missing or damaged.
    """
    text = os.fspath(name)
    hub = text.startswith(PREFIX)
    table = text not in _SOURCES and not hub and is_table(text)
    images = _is_images(text)
    if not (text in _SOURCES or is_text(text) or table or images):
        close = difflib.get_close_matches(text, _SOURCES, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise DataError(f"unknown data {text!r}{hint}; it is one of {', '.join(_SOURCES)}, {_FORMS}")
    if tokenizer is None and is_text(text) and not hub:
        raise ConfigError(
            f"the data '{text}' are texts and need a tokenizer: choose a Hugging Face model, as in --model "
            'hf:roberta-base (in Python, tokenizer="hf:roberta-base")'
        )
    if tokenizer is not None and not (is_text(text) or table):
        raise ConfigError(f"the data '{text}' are no texts; a tokenizer (of a model hf:NAME) has nothing to read there")
    if options is not None and options.image_size and not images:
        raise ConfigError(
            f"the data '{text}' are no folder of pictures, which --image-size {options.image_size} resizes"
        )
    columns = table or images or (hub and tokenizer is None)
    if not columns and replace(options or TableOptions(), client_column=None) != TableOptions():
        raise ConfigError(f"the data '{text}' are no table; there are no columns to drop, read or split by")
    if label not in (None, LABEL) and not (table or hub):
        raise ConfigError(f"the data '{text}' are no table, so that there is no target column {quoted(label)}")
    path = Path(text).expanduser()
    read: Source | TextData
    if text in _SOURCES:
        read = _SOURCES[text].load(data_directory(data_dir), download)
    elif images:
        read = load_images(path, seed=seed, options=replace(options or TableOptions(), client_column=client_column))
    elif hub and tokenizer is None:
        options = replace(options or TableOptions(), client_column=client_column)
        raw = raw_of_dataset(hub_dataset(text, download), Path(text))
        read = load_table(raw, label=label, seed=seed, task=task, options=options, schema=schema)
    elif hub:
        read = load_hub(text, download=download, label=label or LABEL, client_column=client_column, seed=seed)
    elif text.lower().endswith(".json") or (text.lower().endswith(".jsonl") and _has_instructions(path)):
        read = load_instructions(path, client_column=client_column, seed=seed)
    else:
        options = replace(options or TableOptions(), client_column=client_column)
        if tokenizer is not None:
            read = load_text_table(
                path,
                label=label or LABEL,
                client_column=client_column,
                seed=seed,
                options=options,
                asked=None if schema is None else schema.asked,
            )
        else:
            read = load_table(path, label=label, seed=seed, task=task, options=options, schema=schema)
    if task not in (None, read.task.name):
        raise ConfigError(f"the data '{text}' are for {read.task.name}, not for {task}{meant(task, [read.task.name])}")
    return read if isinstance(read, Source) else tokenised(read, tokenizer, max_length, vocab_size)
