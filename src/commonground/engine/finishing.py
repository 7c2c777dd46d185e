"""After the last round: the final test, the files of the results, and the run as an object."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from commonground.algorithms import Tensors
from commonground.algorithms.head_tuning import tuning
from commonground.engine.backends.base import Engine, Which
from commonground.engine.early_stopping import EarlyStopping
from commonground.engine.evaluation_plan import EvaluationPlan
from commonground.engine.importance import column_importance
from commonground.engine.network import named_model
from commonground.engine.private.releases import releases
from commonground.engine.private.secret import remove_secret
from commonground.engine.private.summary import own_privacy, privacy_summary, with_epsilons
from commonground.engine.progress import Progress
from commonground.engine.results import GlobalTest, client_rows, summarise, weights_sha256
from commonground.engine.run import Run, at_hand
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.checkpoint import Checkpoint
from commonground.engine.state.files import write_atomically
from commonground.engine.state.folder import IMPORTANCE, RunFolder, plain_settings
from commonground.engine.state.split_file import describe
from commonground.engine.trained import States, Trained
from commonground.errors import RunError
from commonground.models import FrozenBaseModel, reset_counters, tensors_of

__all__ = ["finish", "trained_from"]

_OF_SERVER = ("bytes_up", "bytes_down", "seconds")
"""What a client of a network does not know of a whole run."""


def finish(
    setup: Setup,
    folder: RunFolder | None,
    progress: Progress,
    engine: Engine,
    tuned: tuple[Engine, Tensors] | None = None,
    stopping: EarlyStopping | None = None,
    answered: Sequence[int] | None = None,
) -> Run:
    """Test every client (or those asked for), write the results, and give the run.

    Args:
        setup: of the run.
        folder: for the files, if any.
        progress: after the last round, or after the one it was stopped at.
        engine: holds the clients' state.
        tuned: after fine-tuning, the engine that holds the clients' heads, and the body.
        stopping: what is told of early stopping.
        answered: in the folder of a single client of a larger federation, the rounds in which it gave answers with
            noise of its own.

    Raises:
        RunError: the results cannot be written.
    """
    config, plan = setup.config, EvaluationPlan(setup)
    stopped = progress.done < config.rounds and not (stopping is not None and stopping.exhausted)
    early = {} if stopping is None or stopped else stopping.summary()
    judge, shared = tuned or (engine, progress.shared)
    scores, global_test = _last_test(setup, plan, progress, engine, tuned)
    # Under --dp of what was released after the last round: nothing of what clients have tuned is told.
    sha256 = weights_sha256(setup, judge, shared if config.dp is None else progress.shared)
    summary = summarise(
        setup,
        engine.name,
        progress.history,
        progress.totals,
        scores,
        global_test,
        sha256,
        rounds=progress.done,
        took_part=progress.took_part,
        stopped=stopped,
        last=progress.models_of,
        asked=plan.finals,
        untested=judge.untested,
        untuned={} if tuned is None else judge.missing,
    )
    clients = client_rows(setup.data, progress.took_part, scores, None if global_test is None else global_test.headline)
    done = range(1, len(progress.history) + 1)
    clients = with_epsilons(setup, done if answered is None else answered, clients)
    del scores  # the clients' rows have what is told of them
    released = {} if folder is None else releases(folder.path)
    summary |= early
    came = [row["participants"] for row in progress.history]
    if answered is None:
        summary |= privacy_summary(setup, len(done), progress.shared, released, came)
    else:
        summary |= own_privacy(setup, answered, int(progress.took_part[0]))
        summary = {name: value for name, value in summary.items() if name not in _OF_SERVER} | {"engine": "network"}
    path = None if folder is None else folder.path
    if folder is not None:
        with _written(folder):
            if tuned is not None:
                name = "finetuned.safetensors"
                personal = judge.save(folder.checkpoints.personal(name), progress.done)
                settings, files = plain_settings(config), folder.files
                last = Checkpoint(progress.done, progress.totals, shared, {}, settings, files, personal)
                folder.save(last, name=name)
            folder.write_clients(clients)
    trained = trained_from(setup, path, shared, judge.states(), tuned is not None)
    if folder is not None:
        with _written(folder):
            (folder.path / IMPORTANCE).unlink(missing_ok=True)  # of fewer rounds
            if setup.data.schema is not None and not stopped and not setup.data.described:
                write_atomically(folder.path / IMPORTANCE, column_importance(trained, setup.data).to_json())
            folder.write_summary(summary)
            if not stopped:
                remove_secret(folder.path)
    return Run(config, summary, progress.history, clients, path, at_hand(trained))


def _last_test(
    setup: Setup,
    plan: EvaluationPlan,
    progress: Progress,
    engine: Engine,
    tuned: tuple[Engine, Tensors] | None,
) -> tuple[Scores, GlobalTest | None]:
    """What the models say that are each client's own, and what is told of the one shared model if there is one."""
    asked, everyone = plan.finals, range(setup.data.clients)

    def tested(which: Which) -> Scores:
        # The last round's test, unless it covered a panel only, was before a resume, or came unexpectedly.
        scores = progress.last_scores.pop(which, None)
        if scores is None:
            scores = engine.evaluate(asked, progress.shared, which, progress.models_of, detailed=True)
        return scores.among(everyone).narrowed()

    scores = tested("global") if "global" in plan.kinds else None
    global_test = None if scores is None else GlobalTest.of(scores, setup.config.worst_min_rows)
    if tuned is not None or "personal" in plan.kinds:
        scores = None  # of very many clients there is no room for both
    if tuned is not None:
        judge, shared = tuned
        # One round more than before, or clients who answer messages would test the heads they had then.
        scores = judge.evaluate(asked, shared, "personal", setup.config.rounds + 1, detailed=True)
        scores = scores.among(everyone).narrowed()
    elif scores is None:
        scores = tested("personal")
    return scores, global_test


@contextlib.contextmanager
def _written(folder: RunFolder) -> Iterator[None]:
    """Say in one sentence that the folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"the results cannot be written to '{folder.path}': {error.strerror or error}; continue with --resume"
        ) from None


def trained_from(setup: Setup, path: Path | None, shared: Tensors, kept: States | Checkpoint, tuned: bool) -> Trained:
    """What is left when the engines are gone: the network as it was at first, and where all tensors are.

    Args:
        setup: of the run; its network is set back.
        path: the run's folder, if it has one.
        shared: the server's final tensors.
        kept: how to read the clients' state.
        tuned: whether every client's model was fine-tuned after the last round.
    """
    config, model, noise = setup.config, setup.model.cpu(), setup.data.noise
    with torch.no_grad():
        for name, value in tensors_of(model).items():
            value.copy_(setup.initial[name])
        reset_counters(model)
    setup.behaviour.reset(model)
    if isinstance(model, FrozenBaseModel):
        model.keep_hidden(None)
    return Trained(
        path,
        config,
        tuning(config.finetune, config.finetune_epochs) if tuned else setup.algorithm,
        model,
        setup.groups,
        {name: value.cpu() for name, value in shared.items()},
        setup.data.clients,
        json.loads(json.dumps(describe(setup.data))),
        kept,
        setup.start is not None and not named_model(config),
        setup.data.schema,
        None if noise is None else torch.from_numpy(noise.images),
    )
