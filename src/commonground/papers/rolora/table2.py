"""RoLoRA's Tables 2 and 10: a causal language model on eight commonsense tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commonground.data.sources.instructions import read_objects
from commonground.data.text.answers import CHOICES, extract_answer
from commonground.data.text.prompts import alpaca_prompt
from commonground.engine import Run
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream
from commonground.papers.claims import judge
from commonground.papers.experiment import Experiment
from commonground.papers.outcome import Cell, Outcome
from commonground.papers.printed_values import printed, printed_lead, printed_side
from commonground.papers.request import Request
from commonground.papers.rolora.findings import Conditions
from commonground.papers.rolora.generation import Writer
from commonground.papers.rolora.language import (
    LLAMA,
    InstructionTasks,
    LanguageSettings,
    Row,
    arms,
    given,
    kept,
    part,
    tiny_llama,
)
from commonground.papers.rolora.protocol import measure, names_of

__all__ = ["Commonsense", "made_up_questions"]

SOURCE = "Chen et al. 2025, Tables 2 and 10"
SEEDS = 3
FOLDERS = {
    "BoolQ": ("boolq", "boolq"),
    "PIQA": ("piqa", "piqa"),
    "SIQA": ("siqa", "social_i_qa"),
    "HellaSwag": ("hellaswag", "hellaswag"),
    "WinoGrande": ("winogrande", "winogrande"),
    "ARC-e": ("arc-e", "ARC-Easy"),
    "ARC-c": ("arc-c", "ARC-Challenge"),
    "OBQA": ("obqa", "openbookqa"),
}
"""The tasks by the paper's names: our name, and the folder of their test set in LLM-Adapters (Hu et al. 2023)."""


class Commonsense(LanguageSettings):
    """What the experiment is run with, beside :class:`~commonground.papers.rolora.language.LanguageSettings`.

    Attributes:
        tests: folder that holds the test sets, as ``boolq/test.json`` or ``boolq.json``.
        tasks: by the paper's names.
        ranks: of the factors: 8 is Table 2, 2 is Table 10.
    """

    tests: str = ""
    tasks: tuple[str, ...] = tuple(FOLDERS)
    ranks: tuple[int, ...] = (8, 2)


PAPER = Commonsense(model=LLAMA, rates=(1e-3, 5e-3, 2e-2, 1e-1))
# Tries the whole path in half a minute: a random model and made-up questions, about which the paper claims nothing.
SMALL = Commonsense(
    clients=4,
    ranks=(4,),
    layers="0-1",
    rounds=4,
    steps=4,
    batch_size=2,
    rates=(0.1, 0.3),
    watched=16,
    max_length=64,
    new_tokens=6,
    base_dtype="float32",
)


def _run(request: Request) -> Outcome:
    settings = request.choose(SMALL, PAPER)
    settings.check()
    for task in settings.tasks:
        if task not in FOLDERS:
            raise ConfigError(f"unknown task '{task}'; known are {', '.join(FOLDERS)}")
    made_up = request.scale == "small" and not (settings.train or settings.tests or settings.model)
    if made_up:
        train, tests = made_up_questions(25, "train"), made_up_questions(4, "test")
        tests = {task: tests[task] for task in settings.tasks}
        origin = request.folder / "made-up.json"
        rows = [row for task in settings.tasks for row in train[task]]
        every_row = [*rows, *(row for task in tests for row in tests[task])]
        texts = [alpaca_prompt(row["instruction"]) + " " + row["output"] for row in every_row]
        model = tiny_llama(request.folder / "tiny-llama", texts, settings.max_length)
    else:
        origin = given(settings.train, "the training file", "train=commonsense_170k.json")
        folder = given(settings.tests, "the folder with the test sets", "tests=dataset")
        tests = {task: _test_rows(folder, task) for task in settings.tasks}
        rows = [dict(row) for row in read_objects(origin)[0]]
        if not settings.model:
            raise ConfigError("the model is not given; name it with --set model=hf:NAME_OR_FOLDER")
        model = settings.model
    tests = {task: part(tests[task], settings.questions, request.seed, task) for task in settings.tasks}
    watched = part([row for task in settings.tasks for row in tests[task]], settings.watched, request.seed, "watched")
    fields = ("instruction", "input", "output", "answer")
    train_rows, watched_rows = ([_only(row, fields) for row in some] for some in (rows, watched))
    data = InstructionTasks(settings, model, train_rows, watched_rows, origin)

    def scores(run: Run) -> dict[str, float]:
        return answer_accuracy(Writer(run, settings.max_length), tests, settings.new_tokens)

    asked = {"questions": {task: len(tests[task]) for task in tests}, "new_tokens": settings.new_tokens}
    every = [arm for rank in settings.ranks for arm in arms(f"rank {rank}", settings, data, rank)]
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    measured = measure(every, request.seed_range(SEEDS), settings, request, outcome.notes, kept(scores, asked))
    found = Conditions(measured, SOURCE, outcome)
    names = list(names_of(settings.methods))
    table = {} if made_up else {(r["method"], r["task"], int(r["rank"])): r for r in printed("rolora-table2-table10")}
    by_task = {
        (task, rank, name): np.array([100 * run.scores[task] for run in measured[f"rank {rank}", name].details])
        for task in settings.tasks
        for rank in settings.ranks
        for name in names
    }
    for (task, rank, name), values in by_task.items():
        theirs = table.get((name, task, rank))
        paper = float(theirs["accuracy_percent"]) if theirs else None
        outcome.cells.append(Cell.over_seeds(f"{task}, rank {rank}", name, paper, values))
    if not made_up:
        _judge(outcome, settings, names, by_task, table)
        found.exactness()
    found.costs("likelihood of the watched answers, exactness and bytes")
    outcome.notes = [*_notes(settings, made_up), *outcome.notes]
    return outcome


def _judge(
    outcome: Outcome,
    settings: Commonsense,
    names: list[str],
    by_task: Mapping[tuple[str, int, str], Any],
    table: Mapping[tuple[str, str, int], Mapping[str, str]],
) -> None:
    for rank in settings.ranks:
        for task in settings.tasks:
            for name in names:
                if name == "RoLoRA" or "RoLoRA" not in names:
                    continue
                rows = [table.get((m, task, rank)) for m in ("RoLoRA", name)]
                paper = printed_lead(*(None if row is None else float(row["accuracy_percent"]) for row in rows))
                side, lead = printed_side(paper), by_task[task, rank, "RoLoRA"] - by_task[task, rank, name]
                judge(outcome, f"RoLoRA {side} {name} on {task}, rank {rank} (points)", SOURCE, paper, lead, side)


def answer_accuracy(writer: Writer, tests: Mapping[str, Sequence[Row]], new_tokens: int) -> dict[str, float]:
    """Share of questions of each task whose answer, read from what the model writes, is the right one.

    A text that names no answer is wrong.
    """
    found: dict[str, float] = {}
    for task, rows in tests.items():
        prompts = [alpaca_prompt(str(row["instruction"]), str(row.get("input") or "")) for row in rows]
        texts = writer.write(prompts, new_tokens)
        answers = [extract_answer(FOLDERS[task][0], text) for text in texts]
        right = [a is not None and a == str(row["answer"]).lower() for a, row in zip(answers, rows, strict=True)]
        found[task] = float(np.mean(right))
    return found


def _test_rows(folder: Path, task: str) -> list[Row]:
    ours, theirs = FOLDERS[task]
    places = [folder / name / "test.json" for name in (theirs, ours)] + [folder / f"{n}.json" for n in (theirs, ours)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataError(f"there is no test set of {task} in '{folder}'; expected is {theirs}/test.json")
    rows, numbers = read_objects(path)
    for row, number in zip(rows, numbers, strict=True):
        for field in ("instruction", "answer"):
            if not str(row.get(field) or "").strip():
                raise DataError(f"{path}, object {number}: '{field}' is missing")
        if extract_answer(ours, str(row["answer"])) != str(row["answer"]).lower():
            raise DataError(
                f"{path}, object {number}: the answer is {row['answer']!r}, none of {', '.join(CHOICES[ours])}"
            )
    return [{**row, "output": row.get("output") or f"the correct answer is {row['answer']}"} for row in rows]


def _only(row: Row, fields: Sequence[str]) -> Row:
    return {field: row[field] for field in fields if field in row}


def made_up_questions(each: int, split: str) -> dict[str, list[Row]]:
    """Questions in the format of the eight tasks about nothing: a word decides on the answer.

    Args:
        each: how many of each task.
        split: keys the draw.
    """
    made: dict[str, list[Row]] = {}
    for task, (ours, _) in FOLDERS.items():
        choices = CHOICES[ours]
        drawn = numpy_stream(0, "made-up questions", split, ours).integers(0, len(choices), each)
        made[task] = [
            {
                "instruction": f"made-up {ours} question about thing{k} : {' or '.join(choices)} ?",
                "input": "",
                "output": f"the correct answer is {choices[k]}",
                "answer": choices[k],
            }
            for k in drawn.tolist()
        ]
    return made


def _notes(settings: Commonsense, made_up: bool) -> list[str]:
    if made_up:
        return [
            "A trial of the path, not of the paper: a Llama of two layers with random weights and made-up questions in "
            "the format of the eight tasks, both made on the fly. None of the paper's claims is judged and none of its "
            "values shown. With weights and files: --scale paper --set model=hf:FOLDER --set "
            "train=commonsense_170k.json --set tests=FOLDER (LLM-Adapters' files).",
            "Accuracy is the share of right answers in greedily written texts, read as the eight tasks' format asks.",
        ]
    return [
        settings.says(),
        "Accuracy is the share of right answers in greedily written texts; rates are chosen by the share of validation "
        "answers that greedy decoding would give exactly.",
        f'{settings.clients} clients; the paper\'s 30 "local epochs" are mini-batch steps of batch 1 (Table 9). α is '
        f"{settings.alpha:g} and A drawn by '{settings.start}', on which the paper is silent. FlexLoRA is not in the "
        "paper's tables.",
    ]


Experiment("rolora-table2", "a causal language model on eight commonsense tasks, 50 clients", SOURCE, _run)
