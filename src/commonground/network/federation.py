"""The server's side of a run over a network: who takes part, what all have to agree on, then the rounds."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from commonground.algorithms.head_tuning import HeadTuning
from commonground.config import RunConfig
from commonground.counted import counted
from commonground.data.described import Description, described_dataset, read_description
from commonground.data.source import Origin
from commonground.data.tables.told import Agreed, Columns, read_told
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
from commonground.errors import CommonGroundError, ConfigError, DataError, RunError, UpdateError
from commonground.network.agreeing import agree_on_tables
from commonground.network.answering import Begin
from commonground.network.demands import unmet
from commonground.network.engine import NetworkEngine
from commonground.network.limits import Limits
from commonground.network.post import Letter, NoAnswerError, Post, Questions, json_of, said_of
from commonground.network.tuning import HeadTuningStart, tuning_of, tuning_run
from commonground.quoting import escaped, quoted

__all__ = ["MEMBERS", "Members", "RefusedError", "gather", "train_over"]

MEMBERS = "network.json"
"""The file of a run's folder that says who takes part."""

_TOLD_WITHIN = 5.0  # seconds for which it is waited for that clients have heard something
_PAUSE = 0.5  # seconds between two looks for nodes
_FIRST, _LONGEST = 4.0, 30.0  # seconds for their answers, while which others that come wait; doubled each time


class RefusedError(RunError):
    """Clients take no part in a run that has not begun, because of what it is.

    Args:
        why: by node, with the client's name.
    """

    def __init__(self, why: Mapping[int, str]) -> None:
        super().__init__("; ".join(why.values()))
        self.why = dict(why)


class Members(BaseModel):
    """Who takes part in a run, in the clients' order.

    Attributes:
        run: its id.
        nodes: of the clients.
        descriptions: of their data.
        table: what the columns of their tables become, if they have agreed on that.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    nodes: tuple[int, ...]
    descriptions: tuple[Description, ...]
    table: Agreed | None = None

    @classmethod
    def read(cls, path: Path) -> Members:
        """From a file.

        Raises:
            RunError: it cannot be read.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise RunError(f"'{path}', which says who takes part in the run, cannot be read: {error}") from None


def gather(
    post: Post,
    clients: int,
    seconds: float,
    note: Callable[[str], None] = lambda text: None,
    without: dict[int, str] | None = None,
    config: RunConfig | None = None,
) -> Members:
    """Wait until as many clients have said what they have.

    Args:
        post: carries letters.
        clients: how many; all that are there then take part.
        seconds: how long is waited.
        note: hears of each.
        without: nodes that take no part in the run, with why. Those whose owners demand more privacy are added.
        config: of the run; None if it is not known yet.

    Raises:
        RunError: too few have come, or two have one name.
        RefusedError: as many as are waited for have come, and demand more privacy, all of them.
    """
    without = {} if without is None else without
    refused, turned_away = dict(without), dict[int, str]()
    until, found = time.monotonic() + seconds, dict[int, Description | Columns]()
    window, said, ours = _FIRST, -1, version("commonground")
    while True:
        if said != len(found):
            said, left = len(found), max(0.0, until - time.monotonic())
            note(f"waiting up to {left:.0f} s for {counted(clients, 'client')}; there: {said}")
        news = {node: Letter("hello", "", b"") for node in post.nodes() if node not in {**found, **without}}
        for node, answer in post.exchange(news, min(seconds, window)):
            try:
                found[node] = _described(answer)
            except NoAnswerError as error:
                if node not in refused:
                    note(f"node {node} has not answered yet; it is asked again")
                refused[node] = str(error)
            except CommonGroundError as error:
                if refused.get(node) != str(error):
                    note(f"node {node} cannot take part: {error}")
                refused[node] = str(error)
            else:
                refused.pop(node, None)
                if why := _takes_no_part(found[node], config):
                    without[node] = refused[node] = turned_away[node] = why
                    del found[node]
                    note(why)
                    continue
                note(f"client {escaped(found[node].name)} is there: {found[node].train:,} training rows")
                if found[node].version not in ("", ours):
                    theirs = escaped(found[node].version)
                    note(f"client {escaped(found[node].name)} has version {theirs}, and the server {ours}")
        if len(found) >= clients:
            _ask_again(post, found, [node for node in found if node not in news], min(seconds, window), note)
            break
        if not found and len(turned_away) >= clients:
            raise RefusedError(turned_away)
        if time.monotonic() > until:
            why = f" ({'; '.join(dict.fromkeys(refused.values()))})" if refused else ""
            text = f"{len(found)} of {clients} clients have come within {seconds:g} s{why}"
            _tell(post, found, text)
            raise RunError(text)
        window = min(2 * window, _LONGEST)
        time.sleep(_PAUSE)
    nodes = sorted(found, key=lambda node: found[node].name)
    for name, namesakes in groupby(nodes, lambda node: found[node].name):
        same = [str(node) for node in sorted(namesakes)]
        if len(same) > 1:
            text = (
                f"the clients of nodes {', '.join(same[:-1])} and {same[-1]} call themselves {quoted(name)}; each "
                "needs a name of its own (--name)"
            )
            _tell(post, map(int, same), text)
            raise RunError(text)
    described = [told for node in nodes if isinstance(told := found[node], Description)]
    tables = {node: told for node in nodes if isinstance(told := found[node], Columns)}
    if tables and described:
        text = (
            f"client {quoted(next(iter(tables.values())).name)} has a table without a schema, and client "
            f"{quoted(described[0].name)} has arrays or a table with one; start all with the same --schema, which "
            "those with --demand-dp need, or none"
        )
        _tell(post, nodes, text)
        raise RunError(text)
    agreed = None
    if tables:
        try:
            agreed, described = agree_on_tables(post, tables, seconds, note)
        except CommonGroundError as error:
            _tell(post, tables, str(error))
            raise
    return Members(run=secrets.token_hex(16), nodes=tuple(nodes), descriptions=tuple(described), table=agreed)


def _ask_again(
    post: Post,
    found: dict[int, Description | Columns],
    early: Sequence[int],
    seconds: float,
    note: Callable[[str], None],
) -> None:
    """Hear once more of those who were there early: one may have been started anew since, with other data. Who does not
    answer now is taken by what it said.
    """
    for node, answer in post.exchange({node: Letter("hello", "", b"") for node in early}, seconds):
        with suppress(CommonGroundError):
            told = _described(answer)
            if told != found[node]:
                note(
                    f"client {escaped(told.name)}, which was {quoted(found[node].name)} with {found[node].train:,} "
                    f"training rows, has been started anew: {told.train:,} training rows"
                )
                found[node] = told


def _takes_no_part(told: Description | Columns, config: RunConfig | None) -> str:
    """Why a client is not to be waited for, if what it says of itself is enough to know it; else empty."""
    if config is None or not isinstance(told, Description):
        return ""
    # Noise that follows from a wanted ε is found later; whether it is enough the client says then.
    known = config if config.dp_noise is not None else config.model_copy(update={"dp_noise": math.inf})
    why = unmet(told.demand, told.least_noise, known)
    return f"client {quoted(told.name)} takes no part in this run, and says {quoted(why, 300)}" if why else ""


def _tell(post: Post, nodes: Iterable[int], text: str) -> None:
    """Tell clients why there is no run: their owners are the ones who can do something about it."""
    for _ in post.exchange(dict.fromkeys(nodes, Letter("told", "", text.encode())), _TOLD_WITHIN):
        pass


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
        for _ in post.exchange({node: Letter("off", members.run, b"") for node in letters}, _TOLD_WITHIN):
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


def _described(answer: Letter | UpdateError) -> Description | Columns:
    if isinstance(answer, UpdateError):
        raise answer
    if answer.kind != "ok":
        raise DataError(f"it says {answer.kind!r}")
    said = json_of(answer.body)
    if isinstance(said, UpdateError):
        raise said
    with suppress(ValueError, RecursionError):
        if "columns" in dict(json.loads(answer.body)):
            return read_told(Columns, answer.body)
    return read_description(answer.body)
