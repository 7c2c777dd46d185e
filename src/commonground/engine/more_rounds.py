"""More rounds or fewer for a run that has begun: it ends as a run of so many rounds would have ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commonground.algorithms import Algorithm
from commonground.config import RunConfig
from commonground.engine.metrics import figure_names
from commonground.engine.private.releases import last_asked
from commonground.engine.state.folder import FREE, RunFolder
from commonground.errors import RunError
from commonground.tasks import Task

__all__ = ["check_rounds", "continued", "follows", "not_evaluated"]


def follows(config: RunConfig) -> frozenset[str]:
    """Settings that may differ when a run is continued, or that follow from its rounds (see :func:`check_rounds`)."""
    return FREE | ({"dp_noise"} if config.dp_epsilon is not None else set())


def continued(before: RunConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with which a run goes on: those it has, and in their place what is named now. Hyperparameters and
    options of the model are named one by one, as long as method and model are the same.

    Args:
        before: the run's.
        values: what is named.
    """
    known = before.model_dump(exclude_none=True)
    found = known | dict(values)
    for named, of in (("options", "algorithm"), ("model_options", "model")):
        if values.get(of, known.get(of)) == known.get(of):
            found[named] = {**known.get(named, {}), **values.get(named, {})}
        elif named not in values:
            del found[named]
    return found


def check_rounds(folder: RunFolder, config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse another number of rounds than the run in a folder has, where it would not end as a longer run does.

    Args:
        folder: of the run.
        config: the settings to go on with.
        algorithm: its method.

    Raises:
        RunError: more rounds than that are done, or something in the run depends on their number.
    """
    before, now = folder.config().rounds, config.rounds
    if now == before:
        return
    rows = folder.rounds.rows()
    if now < len(rows):
        raise RunError(
            f"the run in '{folder.path}' has {before} rounds, of which {len(rows)} are done; it can go on with as many "
            f"or more, not with {now}"
        )
    why = _needs_rounds(config) or algorithm.needs_rounds()
    if not why and (now > before or folder.finished):
        why = _has_ended(config)
    if why:
        raise RunError(
            f"the run in '{folder.path}' was planned for {before} rounds and cannot go on to {now}: {why}; choose "
            "another --out"
        )
    untested = [row["round"] for row in rows if config.is_tested(row["round"]) and not row["evaluated_clients"]]
    asked = last_asked(folder.path)
    enough = max(asked, min(before, max(untested) + max(1, config.eval_last)) if untested else 0)
    if now < asked:
        raise RunError(
            f"the run in '{folder.path}' cannot end with {now} rounds: clients were asked for answers to round "
            f"{asked}, which count in their ε whether the round is done or not; it can end with {enough}"
        )
    if now < before and untested:
        raise RunError(
            f"the run in '{folder.path}' cannot end with {now} rounds: then round {untested[0]} would have been "
            f"tested (eval_every, eval_last), and it was not; it can end with {enough}"
        )


def _needs_rounds(config: RunConfig) -> str:
    """Why another number of rounds would have been another run from its first round on; empty if not."""
    if config.lr_schedule.partition(":")[0] not in ("constant", "exponential"):
        return f"its learning rate follows the share of its rounds that is done (lr_schedule = {config.lr_schedule!r})"
    if config.dp_epsilon is not None:
        return f"its noise is what --dp-epsilon {config.dp_epsilon:g} needs in so many rounds"
    return ""


def _has_ended(config: RunConfig) -> str:
    """Why a run does not go on once its last round is done; empty if it does."""
    if config.finetune_epochs:
        return "every client's head is fine-tuned after its last round"
    return "" if config.early_stopping is None else "it has gone back to its best round (early_stopping)"


def not_evaluated(row: dict[str, Any], task: Task) -> dict[str, Any]:
    """The line of a round without what was measured because it was the last one, or close to it, of a shorter run."""
    row = {name: value for name, value in row.items() if name not in figure_names(task.metric)}
    figures = (f"personal_{task.metric}", f"global_{task.metric}", "worst_decile")
    validation = [name for name in row if name.startswith("validation_")]
    return row | dict.fromkeys([*figures, *validation]) | {"evaluated_clients": 0}
