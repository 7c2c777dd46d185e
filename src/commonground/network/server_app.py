"""What Flower starts on the server's host for a run: the loop of rounds over its grid."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import http_grid
from pydantic import BaseModel, ConfigDict

from commonground.config import RunConfig
from commonground.counted import counted
from commonground.engine.observer import Silent
from commonground.engine.state.folder import RunFolder
from commonground.errors import CommonGroundError
from commonground.network.federation import train_over
from commonground.network.gathering import RefusedError, gather
from commonground.network.grid import GridPost
from commonground.network.holder import Holder
from commonground.network.limits import Limits
from commonground.network.members import MEMBERS, Members
from commonground.network.parent import end_with
from commonground.network.parts import Opened, pull_opened
from commonground.quoting import escaped
from commonground.wording import naming_options

__all__ = ["FAILED", "HANDOVER", "LOG", "Job", "app", "outcome_of"]

LOG = "network.log"
FAILED = "failed: "
"""Before the last line of the log of a run that ended so; whoever does not watch finds it there."""

HANDOVER = 30.0  # seconds for which the process of a server that has just died may still have a run's folder

app = ServerApp()


class Job(BaseModel):
    """What is to be done.

    Attributes:
        settings: of the run.
        clients: how many are waited for.
        wait: seconds for which they are.
        limits: of the run.
        out: the run's folder.
        resume: whether to go on with the run in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, Any]
    clients: int
    wait: float
    limits: Limits
    out: str
    resume: bool = False


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the job in the file that the run's configuration names."""
    # Without its server there are no answers. A SIGINT, which is how Flower says so, would let the round be finished,
    # for which there is nobody left; and the run could not go on elsewhere while this process holds its folder.
    end_with(os.getppid())
    path = Path(str(context.run_config["job"]))
    job = Job.model_validate_json(path.read_bytes())
    # This process is ours alone; Flower's grid has no setting for how it waits for parts on their way and reads them.
    limits = job.limits
    vars(http_grid)["pull_objects"] = partial(pull_opened, most_seconds=limits.seconds, most_bytes=limits.max_bytes)
    vars(http_grid)["inflate_object_from_contents"] = _message_of
    with naming_options():  # what goes wrong is read by whoever gave the command
        try:
            _carry_out(grid, job, Holder(run=context.run_id, server=path.parent.parent))
        except CommonGroundError as error:
            _tell(path, str(error))
            raise
        except BaseException as error:
            _tell(path, f"{type(error).__name__}: {error}")
            raise
        _tell(path, None)


def _message_of(object_id: str, contents: Opened) -> Message:
    """What Flower's grid takes as the message that parts make: it is made already."""
    return contents.message


def outcome_of(job: Path) -> Path:
    """Where it is told that a job is over, beside the file that says what is to be done: what this process may write
    even if the run's folder is another's.
    """
    return job.with_suffix(".outcome")


def _carry_out(grid: Grid, job: Job, holder: Holder) -> None:
    """The job, with the run's folder as its own from before clients are waited for until it is over."""
    out = Path(job.out)
    with holder.holding(out, HANDOVER), (out / LOG).open("a", encoding="utf-8", buffering=1) as log:
        try:
            _train(grid, job, out, lambda text: print(text, file=log, flush=True))
        except CommonGroundError as error:
            print(f"{FAILED}{error}", file=log, flush=True)
            raise


def _train(grid: Grid, job: Job, out: Path, note: Any) -> None:
    post = GridPost(grid, job.limits)
    if not job.resume:
        RunFolder(out).check_free()  # before clients are waited for in vain
    config, observer = RunConfig.make(job.settings), _Noting(note)
    train = partial(
        train_over, post, config, limits=job.limits, out=out, resume=job.resume, observer=observer, held=True
    )
    if job.resume and (out / MEMBERS).is_file():
        members = Members.read(out / MEMBERS)
        names = ", ".join(escaped(told.name) for told in members.descriptions)
        note(f"the run goes on with the {counted(len(members.nodes), 'client')} it began with: {names}")
        train(members)
        return
    without: dict[int, str] = {}
    while True:
        members = gather(post, job.clients, job.wait, note, without=without, config=config)
        note(f"clients know this run as {members.run}, and keep its model in the folder models/{members.run} of theirs")
        try:
            train(members, left_out=without)
        except RefusedError as refused:
            without |= refused.why
            if len(refused.why) == len(members.nodes):
                raise
            for why in refused.why.values():
                note(why)
        else:
            return


class _Noting(Silent):
    """Writes into the log what happens beside the rounds."""

    def __init__(self, note: Any) -> None:
        self._note = note

    def note(self, text: str) -> None:
        """See :class:`~commonground.engine.Observer`."""
        self._note(text)


def _tell(job: Path, error: str | None) -> None:
    """Whole or not at all: somebody waits for it."""
    outcome = outcome_of(job)
    part = outcome.with_name(f".{outcome.name}.{os.getpid()}")
    part.write_text(json.dumps({"error": error}), encoding="utf-8")
    part.replace(outcome)
