"""The server's side of a run over a network that clients have come to: it begins, trains and ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from commonground.algorithms.head_tuning import HeadTuning
from commonground.config import RunConfig
from commonground.counted import counted
from commonground.data.described import described_dataset
from commonground.data.source import Origin
from commonground.engine.backends.message_kinds import Acknowledged, Evaluate, FailedError, read_answer
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.observer import Observer
from commonground.engine.prepare import prepare_setup
from commonground.engine.run import Run
from commonground.engine.setup import Setup
from commonground.engine.state.files import write_atomically
from commonground.engine.state.folder import RunFolder
from commonground.engine.state.lock import locked
from commonground.engine.training import run_training
from commonground.errors import ConfigError, UpdateError
from commonground.network.answering import Begin
from commonground.network.engine import NetworkEngine
from commonground.network.gathering import TOLD_WITHIN, RefusedError
from commonground.network.limits import Limits
from commonground.network.members import MEMBERS, Members
from commonground.network.post import Letter, NoAnswerError, Post, Questions, said_of
from commonground.network.tuning import HeadTuningStart, tuning_of, tuning_run
from commonground.quoting import escaped, quoted

__all__ = ["train_over"]


def train_over(
    post: Post,
    config: RunConfig,
    members: Members,
    limits: Limits,
    out: Path,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    held: bool = False,
    left_out: Iterable[int] = (),
) -> Run:
    """Train a configuration with these members.

    Args:
        post: carries letters.
        config: of the run.
        members: who takes part.
        limits: how long is waited, and for how many.
        out: the run's folder.
        resume: go on with the run in it.
        observer: hears of every round.
        held: whether the caller has the folder locked (:func:`~commonground.engine.state.lock.locked`).
        left_out: nodes that take no part, as the observer knows.

    Raises:
        RefusedError: a client takes no part in a run with these settings, which therefore has not begun.
        CommonGroundError: a setting does not fit the clients' data, or the run cannot go on.
    """
    limits.check(config)
    data = described_dataset(members.descriptions)
    if members.table is not None:
        data = replace(data, origin=Origin(schema=members.table.schema_of_all()))
    # Whoever takes part knows the run's seed, and could draw noise that follows from it.
    agreed = {"data": data.name, **({"dp_secret_noise": True} if config.dp is not None else {})}
    setup = prepare_setup(RunConfig.make(config.model_dump(exclude_unset=True) | agreed), data)
    asked = setup.config.participants(data.clients)
    if limits.min_answers > asked:
        raise ConfigError(
            f"--min-answers is {limits.min_answers}, and a round asks {counted(asked, 'client')}; no round would count"
        )

    if not resume and (refused := _refusals(post, setup, members, limits)):
        raise RefusedError(refused)

    engines: list[NetworkEngine] = []

    def engine_of(name: str, setup: Setup, folder: Path | None) -> NetworkEngine:
        if not engines:  # the folder is ours, and no other run's: nobody else's members are overwritten
            write_atomically(out / MEMBERS, members.model_dump_json(indent=1).encode())
        note = None if observer is None or engines else observer.note  # once, and not again when heads are tuned
        engines.append(NetworkEngine(setup, _questions(post, setup, members, resume, note, left_out), limits))
        return engines[-1]

    with nullcontext() if held else locked(out):
        run = run_training(setup, out=out, resume=resume, observer=observer, engine_of=engine_of, held=True)
        without = {setup.data.client_name(c): why for c, why in end_run(setup, post, members, out, limits).items()}
        for name, why in without.items():
            if observer is not None:
                observer.note(
                    f"client {escaped(name)} did not take its model: {why}; run with --resume offers it once more"
                )
        told = {key: value for key, value in run.summary.items() if key != "clients_without_model"}
        told |= {"clients_without_model": without} if without else {}
        if told != run.summary:
            RunFolder(out).write_summary(told)
            run = replace(run, summary=told)
    return run


def _refusals(post: Post, setup: Setup, members: Members, limits: Limits) -> dict[int, str]:
    """Tell all clients of a run that is to begin: the nodes of those that take no part in it, and why.

    Who does not answer is none of them: it is told again with its first question.
    """
    letters = {
        node: Letter("begin", members.run, begin_of(setup, members, client))
        for client, node in enumerate(members.nodes)
    }
    names = {node: told.name for node, told in zip(members.nodes, members.descriptions, strict=True)}
    found: dict[int, str] = {}
    for node, answer in post.exchange(letters, limits.seconds):
        told = said_of(answer, letters[node])
        if isinstance(told, UpdateError) and not isinstance(told, NoAnswerError):
            why = f", and says {told.said}" if isinstance(told, FailedError) else f": {told}"
            found[node] = f"client {quoted(names[node])} takes no part in this run{why}"
    if found:
        for _ in post.exchange({node: Letter("off", members.run, b"") for node in letters}, TOLD_WITHIN):
            pass
    return found


def end_run(setup: Setup, post: Post, members: Members, out: Path, limits: Limits) -> dict[int, str]:
    """Give every client the shared tensors that the run ends with, with which it has its own model.

    Args:
        setup, post, members, limits: of the run.
        out: its folder.

    Returns:
        Whom they did not reach, and why; the run that is over may be resumed to try again.
    """
    files = RunFolder(out)
    summary = files.summary() or {}
    best, untuned = (summary.get("early_stopping") or {}).get("best_round"), summary.get("untuned_clients", {})
    last = files.load(None if best is None else files.checkpoints.name_of(best))
    if last is None:
        return {}
    messages, round, shared = {}, last.round, last.shared
    if setup.config.finetune_epochs:
        setup, round = setup.fine_tuning(shared), setup.config.rounds + 1
        shared = {name: shared[name] for name in setup.shared_names}
    rounds_of = zip(last.clients["heard"].clamp(min=0).tolist(), last.clients["took_part"].tolist(), strict=True)
    for client, (heard, took_part) in enumerate(rounds_of):
        heard = heard if round == last.round else 0 if setup.data.client_name(client) in untuned else round
        test = Evaluate(round=round, which="personal", last=heard, took_part=took_part)
        messages[client] = pack(test.model_dump(), shared)
    questions = _questions(post, setup, members)
    failed: dict[int, str] = {}
    for client, answer in questions.exchange(messages, limits.seconds, lambda: None, "end"):
        try:
            if isinstance(answer, UpdateError):
                raise answer
            read_answer(Acknowledged, unpack(answer)[0])
        except UpdateError as error:
            failed[client] = str(error)
    return failed


def _questions(
    post: Post,
    setup: Setup,
    members: Members,
    again: bool = False,
    note: Callable[[str], None] | None = None,
    left_out: Iterable[int] = (),
) -> Questions:
    """To the clients of a run, or of the one that tunes its heads.

    Args:
        post, setup, members: of the run.
        again: whether the run has begun before.
        note: hears of nodes that are not in the run.
        left_out: but not of these.
    """
    if not isinstance(setup.algorithm, HeadTuning):
        said = note or (lambda text: None)
        return Questions(post, members.run, members.nodes, partial(begin_of, setup, members), again, said, left_out)
    tuning, run = tuning_of(members.run, setup), tuning_run(members.run)
    begin = partial(begin_of, setup, members.model_copy(update={"run": run}), tuning=tuning)
    return Questions(post, run, members.nodes, begin, again)


def begin_of(setup: Setup, members: Members, client: int, tuning: HeadTuningStart | None = None) -> bytes:
    """What a client is told first."""
    config = json.loads(setup.config.model_dump_json(exclude_none=True))
    data = setup.data
    begin = Begin(
        run=members.run,
        config=config,
        number=client,
        class_names=data.class_names,
        task_settings=asdict(data.task),
        tokens=data.x_train.shape[1] - 1 if data.tokens else None,
        table=members.table,
        tuning=tuning,
    )
    return begin.model_dump_json(exclude={"tokens"} if begin.tokens is None else None).encode()
