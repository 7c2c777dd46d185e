"""A finished run's models on new texts: classes of texts or pairs, answers to instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from commonground.counted import counted
from commonground.data.sources.instructions import read_objects
from commonground.data.sources.table import read_table
from commonground.data.sources.text_table import text_columns
from commonground.data.tables.features import check_columns
from commonground.data.tables.read import RawTable, is_table, read_raw
from commonground.data.tables.textfile import check_unsaid
from commonground.data.text import TextSamples, alpaca_prompt, load_tokenizer, prompt_tokens, tokenize
from commonground.data.text.tokens import Tokens, told_of_full
from commonground.engine.predictions import device_of, portable_model, predictions_of
from commonground.engine.run import Run
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, DataError
from commonground.models import vocab_size_of
from commonground.models.adapted import AdaptedModel
from commonground.models.generation import greedy_answers
from commonground.tasks import Metric
from commonground.tasks.answer_tokens import answer_tokens
from commonground.tasks.rank import is_share

__all__ = [
    "answer",
    "classify",
    "judged",
    "read_instructions",
    "read_text_table",
    "read_texts",
    "texts_in",
    "tokens_of",
]

_KINDS = ".tsv, .csv, .jsonl or .txt"
JUDGED_AT_ONCE = 16  # answers: their scores are of every token of the vocabulary at every place


def read_texts(
    path: Path,
    columns: Sequence[str] = (),
    usual: Sequence[str] = (),
    separator: str | None = None,
    encoding: str | None = None,
) -> TextSamples:
    """Texts or pairs without labels.

    Args:
        path: a .txt file with a text a line, or a table (.tsv, .csv, .jsonl, .parquet, …) with a column or two of
            texts, such as ``sentence`` or ``sentence1`` and ``sentence2`` (others are left alone). In a .tsv file
            quotation marks are ordinary characters.
        columns: the texts' columns, if they are called otherwise.
        usual: columns to be taken if they are there.
        separator, encoding: of a table; found if not given.

    Raises:
        ConfigError: an impossible separator or encoding, or one of a .txt file.
        DataError: the file is missing, of another kind, empty, or without such columns (line named).
    """
    if path.suffix.lower() == ".txt":
        check_unsaid(path, separator, encoding)
        lines = _lines(path)
        return _samples(path, [[line] for line in lines], range(1, len(lines) + 1))
    if not is_table(str(path)):
        raise DataError(f"the input file '{path}' is not one of texts: {_KINDS}")
    return texts_in(read_text_table(path, separator, encoding), columns, usual)


def read_text_table(
    path: Path, separator: str | None = None, encoding: str | None = None, client_column: str | None = None
) -> RawTable:
    """A table as it is read where its columns are texts: in a .tsv file quotation marks are ordinary characters.

    Raises:
        ConfigError: an impossible separator or encoding.
        DataError: the file is missing, damaged or empty.
    """
    quotes = ".tsv" not in path.name.lower()
    there = path if path.is_dir() else _there(path)
    return read_raw(there, separator, encoding, quotes=quotes, client_column=client_column)


def texts_in(raw: RawTable, columns: Sequence[str] = (), usual: Sequence[str] = ()) -> TextSamples:
    """The texts of a table that is read.

    Args:
        raw: the table.
        columns, usual: see :func:`read_texts`.

    Raises:
        DataError: it has no such columns, or a cell is empty (line named).
    """
    names = tuple(columns) or text_columns(raw, raw.names, usual)
    check_columns(raw.path, raw.columns, names, raw.unread)
    cells = zip(*(raw.columns[name].to_pylist() for name in names), strict=True)
    return _samples(raw.path, list(cells), raw.numbers())


def read_instructions(path: Path) -> list[str]:
    """Prompts in Alpaca's format.

    Args:
        path: a .json or .jsonl file of objects with ``instruction`` and perhaps ``input``, a .tsv or .csv table with
            such columns, or a .txt file with an instruction a line.

    Raises:
        DataError: the file is missing, of another kind or empty, or an instruction is (line named).
    """
    kind = path.suffix.lower()
    if kind in (".json", ".jsonl"):
        return [
            _prompt(row, f"{path}, object {number}") for row, number in zip(*read_objects(_there(path)), strict=True)
        ]
    if kind == ".txt":
        samples = read_texts(path)
        return [alpaca_prompt(text) for text in samples.first]
    if kind not in (".tsv", ".csv"):
        raise DataError(f"the input file '{path}' is not one of instructions: .json, {_KINDS}")
    header, table, numbers = read_table(_there(path), delimiter="\t" if kind == ".tsv" else ",", quoted=kind == ".csv")
    if "instruction" not in header:
        raise DataError(f"{path} has no column 'instruction'; its columns are: {', '.join(header)}")
    given = _samples(path, [[row[header.index("instruction")]] for row in table], numbers)
    inputs = [row[header.index("input")].strip() for row in table] if "input" in header else [""] * len(table)
    return [alpaca_prompt(text, more) for text, more in zip(given.first, inputs, strict=True)]


def classify(
    run: Run, texts: TextSamples, client: int | None, note: Callable[[str], None] | None = None
) -> npt.NDArray[np.float64]:
    """What a client's own model (None: the global one) says of texts, as the run's task does: class probabilities
    [n, classes], ….

    Args:
        run: the run.
        texts: single ones or pairs, as the run was trained on.
        client: its number.
        note: hears if texts are longer than what the model was trained to read.

    Raises:
        ConfigError: the run's model reads no texts.
        ModelError: it is a language model, which answers instructions.
        DataError: the run was trained on pairs and these are single texts, or the other way round.
    """
    return predictions_of(run.trained, tokens_of(run, texts, note), client)


def tokens_of(run: Run, texts: TextSamples, note: Callable[[str], None] | None = None, tokenizer: Any = None) -> Tokens:
    """Texts as the run's model reads them.

    Args:
        run, texts, note: see :func:`classify`.
        tokenizer: the model's, if it is loaded already.

    Raises:
        ConfigError: the run's model reads no texts.
        DataError: the run was trained on pairs and these are single texts, or the other way round.
    """
    run.trained.check_texts(1 if texts.second is None else 2, texts.origin)
    model = _pretrained(run.trained.network)
    longest = run.trained.longest_text
    tokens = tokenize(texts, tokenizer or load_tokenizer(run.config.model), longest, vocab_size=vocab_size_of(model))
    if note is not None and (told := told_of_full(longest, tokens)):
        note(told)
    return tokens


def answer(run: Run, prompts: Sequence[str], client: int | None, max_new_tokens: int = 64) -> list[str]:
    """What a client's own language model (None: the global one) answers, each token the most probable one.

    Args:
        run: the run.
        prompts: as :func:`read_instructions` gives them.
        client: its number.
        max_new_tokens: most tokens of an answer. Prompts are cut, from their beginning, to the length of training.

    Raises:
        ConfigError: the run is not of a language model, or prompt and answer are longer than what it reads.
    """
    if not run.trained.task.generative:
        raise ConfigError(f"{run.trained.where} classifies texts and does not answer")
    model = _pretrained(run.trained.model(client))
    most = model.places
    if most is not None and max_new_tokens >= most:
        raise ConfigError(f"--max-new-tokens is {max_new_tokens}, and the model reads at most {most} tokens in all")
    tokenizer = load_tokenizer(run.config.model)
    longest = run.trained.longest_text
    room = longest if most is None else min(longest, most - max_new_tokens)
    tokens = prompt_tokens(prompts, tokenizer, max(3, room))
    made = greedy_answers(model, tokens, int(tokenizer.eos_token_id), max_new_tokens)
    return [str(tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in made]


def judged(run: Run, path: Path, client: int | None) -> str:
    """How well a client's own language model (None: the global one) gives the answers that a file holds, in words;
    empty if it holds none.

    Args:
        run: the run.
        path: as of :func:`read_instructions`; objects with an ``output`` are judged.
        client: its number.

    Raises:
        DataError: the file is missing or damaged, or an instruction is empty.
    """
    told = _told_answers(path)
    if not told:
        return ""
    prompts, outputs = zip(*told, strict=True)
    samples = TextSamples(prompts, outputs, np.zeros(len(told), np.int64), origin=str(path), unit="object")
    trained, model = run.trained, _pretrained(run.trained.network)
    most, tokenizer = trained.longest_text, load_tokenizer(run.config.model)
    tokens = tokenize(samples, tokenizer, most, generative=True, vocab_size=vocab_size_of(model))
    metrics = {Metric(key, is_share(key)): value for key, value in _figures(trained, tokens, client).items()}
    said = ", ".join(f"{metric.name} {metric.show(value)}" for metric, value in metrics.items())
    full = int((tokens[:, 0, 1] >= most).sum())
    cut = f"; {full:,} fill with their prompts the {most} tokens that are read, and may be cut" if full else ""
    return f"{said} over {counted(len(told), 'answer')}{cut}"


def _told_answers(path: Path) -> list[tuple[str, str]]:
    """The prompts of a file whose answers it holds, and these."""
    if path.suffix.lower() not in (".json", ".jsonl"):
        return []
    found = []
    for row, number in zip(*read_objects(_there(path)), strict=True):
        output = row.get("output")
        if isinstance(output, str) and output.strip():
            found.append((_prompt(row, f"{path}, object {number}"), output))
    return found


def _figures(trained: Trained, tokens: Tokens, client: int | None) -> dict[str, float]:
    """What answers in token rows are judged by: the share that is given word for word, and figures of their tokens."""
    model, fine = portable_model(trained, client), trained.task.fine
    assert fine is not None
    right, counts = 0.0, dict[str, npt.NDArray[Any]]()
    for start in range(0, len(tokens), JUDGED_AT_ONCE):
        part = tokens[start : start + JUDGED_AT_ONCE]
        said = model.outputs(part, trained.where, device_of(trained))
        y = torch.from_numpy(answer_tokens(part, said.shape[1]))
        right += float(trained.task.scores(said, y)["accuracy"].sum())
        for name, values in fine.of_rows(said, y).items():
            counts[name] = counts.get(name, np.zeros(())) + values.sum()
    return {"accuracy": right / len(tokens), **fine.of_counts(counts)}


def _pretrained(model: nn.Module) -> AdaptedModel:
    if not isinstance(model, AdaptedModel):
        raise ConfigError(f"texts are read by models hf:NAME_OR_FOLDER, and the run's is a {type(model).__name__}")
    return model


def _prompt(row: Mapping[str, Any], where: str) -> str:
    instruction, more = row.get("instruction"), row.get("input") or ""
    if not isinstance(instruction, str) or not instruction.strip():
        raise DataError(f"{where}: 'instruction' is missing or empty")
    if not isinstance(more, str):
        raise DataError(f"{where}: 'input' is {type(more).__name__}, not text")
    return alpaca_prompt(instruction, more)


def _there(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"the input file '{path}' does not exist")
    return path


def _lines(path: Path) -> list[str]:
    try:
        lines = _there(path).read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; save it as that") from None
    return lines[: len(lines) - (not lines[-1])]


def _samples(path: Path, rows: Sequence[Sequence[object]], numbers: Sequence[int]) -> TextSamples:
    if not rows:
        raise DataError(f"the input file '{path}' holds no texts")
    columns = [
        [cell.strip() if isinstance(cell, str) else cell for cell in column] for column in zip(*rows, strict=True)
    ]
    return TextSamples(
        columns[0],
        columns[1] if len(columns) > 1 else None,
        np.zeros(len(rows), np.int64),
        origin=str(path),
        unit="line",
        numbers=list(numbers),
    )
