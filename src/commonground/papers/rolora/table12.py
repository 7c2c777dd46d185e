"""RoLoRA's Table 12: a causal language model trained on CodeAlpaca (HumanEval) and on Alpaca (MMLU)."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from commonground.data.sources.instructions import read_objects
from commonground.data.text.prompts import alpaca_prompt
from commonground.engine import Run
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream
from commonground.papers.claims import judge
from commonground.papers.experiment import Experiment
from commonground.papers.outcome import Cell, Outcome
from commonground.papers.printed_values import printed, printed_lead, printed_side
from commonground.papers.request import Request
from commonground.papers.rolora.code_execution import Limits, require_confinement, run_program
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
from commonground.papers.rolora.mmlu import KINDS, LETTERS, Question, kind_of, prompt_of, read_questions
from commonground.papers.rolora.protocol import Found, measure, names_of
from commonground.papers.sweep import SweepArm

__all__ = ["Generation"]

SOURCE = "Chen et al. 2025, Table 12"
SEEDS = 5
CODE, GENERAL = "HumanEval", "MMLU"
STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n@")


class Generation(LanguageSettings):
    """What the experiment is run with, beside :class:`~commonground.papers.rolora.language.LanguageSettings`.

    Attributes:
        train: Alpaca's instructions, for MMLU.
        train_code: CodeAlpaca's, for HumanEval.
        mmlu: folder with ``test/SUBJECT_test.csv`` and ``dev/SUBJECT_dev.csv``.
        humaneval: HumanEval.jsonl.
        benchmarks: any of HumanEval, MMLU.
        shots: answered questions before each of MMLU's.
        execute: run the programs the model writes for HumanEval, in processes that the kernel confines. Without it they
            are written and not judged.
        confined: do not run them where the kernel cannot confine them. Otherwise a program could do what the user may
            do: switch this off in a container only.
        seconds, memory: limits of a program (bytes).
    """

    train_code: str = ""
    mmlu: str = ""
    humaneval: str = ""
    benchmarks: tuple[str, ...] = (CODE, GENERAL)
    shots: int = Field(default=5, ge=0)
    execute: bool = False
    confined: bool = True
    seconds: int = Field(default=5, ge=1)
    memory: int = Field(default=1 << 30, ge=1 << 26)

    def check(self) -> None:
        """Refuse unknown benchmarks, and programs that could not be confined."""
        super().check()
        if not self.benchmarks or not set(self.benchmarks) <= {CODE, GENERAL}:
            raise ConfigError(f"benchmarks is {list(self.benchmarks)}; known are {CODE}, {GENERAL}")
        if self.execute and self.confined and CODE in self.benchmarks:
            require_confinement()


PAPER = Generation(
    model=LLAMA, rates=(1e-3, 5e-3, 2e-2, 1e-1), rounds=100, layers="24-31", new_tokens=256, max_length=2048, watched=50
)
# Tries the whole path: a random model and made-up data, about which the paper says nothing.
SMALL = Generation(
    clients=4,
    rank=4,
    layers="0-1",
    rounds=2,
    steps=2,
    batch_size=2,
    rates=(0.1,),
    watched=4,
    max_length=128,
    new_tokens=6,
    shots=1,
    base_dtype="float32",
)


def _run(request: Request) -> Outcome:
    settings = request.choose(SMALL, PAPER)
    settings.check()
    files = (settings.train, settings.train_code, settings.mmlu, settings.humaneval, settings.model)
    made_up = request.scale == "small" and not any(files)
    every: list[SweepArm] = []
    judges: dict[str, Callable[[Run], dict[str, float]]] = {}
    model = settings.model
    if made_up:
        model = tiny_llama(request.folder / "tiny-llama", _made_up_texts(), settings.max_length)
    elif not model:
        raise ConfigError("the model is not given; name it with --set model=hf:NAME_OR_FOLDER")
    programs: list[Row] = []
    if CODE in settings.benchmarks:
        if made_up:
            rows, programs = _made_up_instructions(24), _made_up_programs()
            origin = request.folder / "made-up-code.json"
        else:
            origin = given(settings.train_code, "CodeAlpaca's file", "train_code=code_alpaca_20k.json")
            programs = _programs(given(settings.humaneval, "HumanEval's file", "humaneval=HumanEval.jsonl"))
            rows = [dict(row) for row in read_objects(origin)[0]]
        programs = part(programs, settings.questions, request.seed, "programs")
        every += arms(CODE, settings, _held_out(settings, model, rows, origin, request.seed), settings.rank)

        def code(run: Run) -> dict[str, float]:
            return _passed(Writer(run, settings.max_length), programs, settings)

        judges[CODE] = code
    if GENERAL in settings.benchmarks:
        if made_up:
            rows, questions = _made_up_instructions(24), _made_up_questions()
            examples, origin = {"marketing": questions[:1]}, request.folder / "made-up-instructions.json"
        else:
            origin = given(settings.train, "Alpaca's file", "train=alpaca_data.json")
            folder = given(settings.mmlu, "the folder of MMLU", "mmlu=FOLDER")
            examples = read_questions(folder, "dev") if settings.shots else {}
            questions = [q for part_ in read_questions(folder, "test").values() for q in part_]
            rows = [dict(row) for row in read_objects(origin)[0]]
        if settings.questions and settings.questions < len(questions):
            chosen = numpy_stream(request.seed, "part", "mmlu").permutation(len(questions))[: settings.questions]
            questions = [questions[i] for i in chosen]
        every += arms(GENERAL, settings, _held_out(settings, model, rows, origin, request.seed), settings.rank)

        def general(run: Run) -> dict[str, float]:
            return _right(Writer(run, settings.max_length), questions, examples, settings.shots)

        judges[GENERAL] = general
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    seeds = request.seed_range(SEEDS)
    asked = {"questions": settings.questions, "shots": settings.shots, "execute": settings.execute}
    measured: dict[tuple[str, str], Found] = {}
    for benchmark, judge_run in judges.items():
        own = [arm for arm in every if arm.condition == benchmark]
        measured |= measure(own, seeds, settings, request, outcome.notes, kept(judge_run, asked))
    found = Conditions(measured, SOURCE, outcome)
    table = {} if made_up else {(r["method"], r["benchmark"]): float(r["score"]) for r in printed("rolora-table12")}
    names = list(names_of(settings.methods))
    _scores(outcome, found, names, table, judged=not made_up)
    if not made_up:
        found.exactness()
    found.costs("likelihood of the watched answers, exactness and bytes")
    outcome.notes = [*_notes(settings, made_up), *outcome.notes]
    return outcome


def _scores(
    outcome: Outcome, found: Conditions, names: list[str], table: dict[tuple[str, str], float], judged: bool
) -> None:
    values: dict[tuple[str, str], Any] = {}
    for (_, name), one in found.measured.items():
        for score in one.details[0].scores:
            values[name, score] = np.array([100 * run.scores[score] for run in one.details])
    for (name, score), each in values.items():
        outcome.cells.append(Cell.over_seeds(score, name, table.get((name, score)), each))
    if not judged:
        return
    for score in dict.fromkeys(score for _, score in values):
        for name in names:
            if name != "RoLoRA" and ("RoLoRA", score) in values and (name, score) in values:
                paper = printed_lead(*(table.get((m, score)) for m in ("RoLoRA", name)))
                side = printed_side(paper)
                text = f"RoLoRA {side} {name} on {score} (points)"
                judge(outcome, text, SOURCE, paper, values["RoLoRA", score] - values[name, score], side)


def _held_out(settings: Generation, model: str, rows: Sequence[Row], origin: Path, seed: int) -> InstructionTasks:
    """Instructions of which some are followed and not trained on."""
    if len(rows) <= settings.watched:
        raise DataError(f"{origin} has {len(rows)} objects; more than the {settings.watched} watched ones are needed")
    order = numpy_stream(seed, "watched", origin.name).permutation(len(rows)).tolist()
    watched, train = order[: settings.watched], sorted(order[settings.watched :])
    fields = ("instruction", "input", "output")
    kept_rows = [{f: r[f] for f in fields if f in r} for r in rows]
    return InstructionTasks(settings, model, [kept_rows[i] for i in train], [kept_rows[i] for i in watched], origin)


def _right(
    writer: Writer, questions: Sequence[Question], examples: dict[str, list[Question]], shots: int
) -> dict[str, float]:
    """Shares of MMLU's questions whose letter is the most probable of the four next tokens: of all, and by kind."""
    prompts = [prompt_of(q, examples, shots) for q in questions]
    chosen = writer.choose(prompts, LETTERS)
    right = np.array([c == q.answer for c, q in zip(chosen, questions, strict=True)])
    kinds = np.array([kind_of(q.subject) for q in questions])
    by_kind = {f"MMLU-{k}": float(right[kinds == k].mean()) for k in KINDS if (kinds == k).any()}
    return {GENERAL: float(right.mean()), **by_kind}


def _passed(writer: Writer, programs: Sequence[Row], settings: Generation) -> dict[str, float]:
    """Share of HumanEval's problems whose greedily written solution passes the tests; nothing if it is not run."""
    written = writer.write([str(row["prompt"]) for row in programs], settings.new_tokens)
    if not settings.execute:
        return {}
    limits = Limits(settings.seconds, settings.memory)
    passed = []
    for row, text in zip(programs, written, strict=True):
        prompt, tests, name = (str(row[field]) for field in ("prompt", "test", "entry_point"))
        helpers = _helpers(prompt)
        verdict = run_program(
            prompt + _cut(text), tests, name, helpers=helpers, limits=limits, confined=settings.confined
        )
        passed.append(verdict == "passed")
    return {CODE: float(np.mean(passed))}


def _helpers(prompt: str) -> str:
    """What a prompt defines for its tests; some tests use a function that stands above the one to be written."""
    for source in (prompt, f"{prompt}\n    pass\n"):  # the last function may have no body yet
        with contextlib.suppress(SyntaxError, ValueError):
            ast.parse(source)
            return source
    return ""


def _cut(text: str) -> str:
    """A completion up to where the next thing begins."""
    ends = [place for stop in STOPS if (place := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]


def _programs(path: Path) -> list[Row]:
    rows, numbers = read_objects(path)
    for row, number in zip(rows, numbers, strict=True):
        for field in ("prompt", "test", "entry_point"):
            if not isinstance(row.get(field), str):
                raise DataError(f"{path}, object {number}: '{field}' is missing")
    return list(rows)


# -- made up ----------------------------------------------------------------------------------------------------------


def _made_up_instructions(each: int) -> list[Row]:
    return [
        {"instruction": f"made-up instruction {k % 6}", "input": "", "output": f"made-up answer {k % 6}"}
        for k in range(each)
    ]


def _made_up_questions() -> list[Question]:
    subjects = ("marketing", "philosophy", "sociology", "astronomy")
    return [
        Question(s, f"made-up question {i}", ("this", "that", "both", "none"), LETTERS[i])
        for i, s in enumerate(subjects)
    ]


def _made_up_programs() -> list[Row]:
    return [
        {
            "prompt": "def made_up():\n    return 1\n",
            "test": "def check(f):\n    assert f() == 1",
            "entry_point": "made_up",
        }
    ]


def _made_up_texts() -> list[str]:
    texts = [alpaca_prompt(str(r["instruction"])) + " " + str(r["output"]) for r in _made_up_instructions(6)]
    questions = [prompt_of(q, {}, 0) for q in _made_up_questions()]
    return [*texts, *questions, *(str(row["prompt"]) for row in _made_up_programs()), *LETTERS]


def _notes(settings: Generation, made_up: bool) -> list[str]:
    how = "confined by the kernel" if settings.confined else "with confined=false"
    run = (
        f"HumanEval's programs were run in processes of their own, {how} ({settings.seconds} s, "
        f"{settings.memory >> 20} MiB), and their tests in others, which decide."
        if settings.execute
        else "Programs for HumanEval are written and not run, so it has no score; --set execute=true runs them, in "
        "processes that the kernel confines."
    )
    if made_up:
        return [
            "A trial of the path, not of the paper: a Llama of two layers with random weights, and made-up "
            "instructions, questions and programs, all made on the fly. None of the paper's claims is judged and none "
            "of its values shown. With weights and files: --scale paper --set model=hf:FOLDER --set "
            "train_code=code_alpaca_20k.json --set humaneval=HumanEval.jsonl --set train=alpaca_data.json --set "
            "mmlu=FOLDER.",
            run,
        ]
    return [
        settings.says(),
        run,
        f"MMLU: the most probable of the four letters after {settings.shots} answered questions (the paper does not "
        "say how many). Solutions for HumanEval are written greedily. Rank and α are not in the paper's Table 11; here "
        f"{settings.rank} and {settings.alpha:g}.",
    ]


Experiment("rolora-table12", "a causal language model on HumanEval and MMLU, 50 clients", SOURCE, _run)
