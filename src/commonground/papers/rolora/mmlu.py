"""MMLU's questions (Hendrycks et al. 2021): four choices in 57 subjects of four kinds."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commonground.errors import DataError

__all__ = ["KINDS", "LETTERS", "Question", "kind_of", "prompt_of", "read_questions"]

LETTERS = ("A", "B", "C", "D")

_STEM = """abstract_algebra anatomy astronomy college_biology college_chemistry college_computer_science
college_mathematics college_physics computer_security conceptual_physics electrical_engineering elementary_mathematics
high_school_biology high_school_chemistry high_school_computer_science high_school_mathematics high_school_physics
high_school_statistics machine_learning"""
_HUMAN = """formal_logic high_school_european_history high_school_us_history high_school_world_history international_law
jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory professional_law world_religions"""
_SOCIAL = """econometrics high_school_geography high_school_government_and_politics high_school_macroeconomics
high_school_microeconomics high_school_psychology human_sexuality professional_psychology public_relations
security_studies sociology us_foreign_policy"""

KINDS = ("human", "other", "social", "stem")
"""The kinds of subjects, by the names of RoLoRA's Table 12."""


@dataclass(frozen=True)
class Question:
    """A question with four choices; ``answer`` is a letter."""

    subject: str
    text: str
    choices: tuple[str, ...]
    answer: str


def kind_of(subject: str) -> str:
    """Which of :data:`KINDS` a subject is of; ``other`` is what is none of the other three."""
    for kind, subjects in (("stem", _STEM), ("human", _HUMAN), ("social", _SOCIAL)):
        if subject in subjects.split():
            return kind
    return "other"


def read_questions(folder: Path, split: str) -> dict[str, list[Question]]:
    """Questions by subject from ``folder/split/SUBJECT_split.csv`` (question, four choices, letter; no header).

    Raises:
        DataError: there are none, or a line is no such question.
    """
    found: dict[str, list[Question]] = {}
    for path in sorted((folder / split).glob(f"*_{split}.csv")):
        subject = path.stem.removesuffix(f"_{split}")
        for line, row in _lines(path):
            if len(row) != 6 or row[5] not in LETTERS:
                raise DataError(f"{path}, line {line}: a question, four choices and a letter A to D are expected")
            found.setdefault(subject, []).append(Question(subject, row[0], tuple(row[1:5]), row[5]))
    if not found:
        raise DataError(f"there are no MMLU questions in '{folder / split}' (SUBJECT_{split}.csv)")
    return found


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in (reader := csv.reader(file)):
                yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} could not be read as a table: {error}") from None


def prompt_of(question: Question, examples: Mapping[str, Sequence[Question]], shots: int) -> str:
    """A question after so many answered ones of its subject, in Hendrycks et al.'s format; its letter follows.

    >>> print(prompt_of(Question("marketing", "Which?", ("a", "b", "c", "d"), "B"), {}, 0).splitlines()[-1])
    Answer:
    """
    subject = question.subject.replace("_", " ")
    head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    shown = [f"{_asked(q)} {q.answer}\n\n" for q in list(examples.get(question.subject, ()))[:shots]]
    return head + "".join(shown) + _asked(question)


def _asked(question: Question) -> str:
    choices = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, question.choices, strict=True))
    return f"{question.text}\n{choices}\nAnswer:"
