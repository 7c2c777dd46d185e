"""A run on a deployment, as the command starts and shows it."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from commonground.config import OF_DATA, RunConfig
from commonground.console import result_note, result_table
from commonground.engine.more_rounds import check_rounds, continued
from commonground.engine.option_checks import check_described
from commonground.engine.prepare import checked_algorithm
from commonground.engine.run import load_run
from commonground.engine.state.folder import RunFolder
from commonground.engine.state.lock import is_free
from commonground.errors import BusyError, ConfigError, Interrupted, RunError
from commonground.existing import check_folder
from commonground.network.demands import files_of_weights
from commonground.network.deploy import Deployment
from commonground.network.following import follow
from commonground.network.holder import Holder
from commonground.network.limits import Limits
from commonground.network.server_app import LOG, Job
from commonground.quoting import escaped
from commonground.report import write_run_report
from commonground.tasks import Metric
from commonground.tasks.rank import is_share
from commonground.terminal import standard_output
from commonground.user_code import is_code

__all__ = ["check_idle", "run_and_show", "run_settings"]

LINGERS = 3.0  # seconds for which the process of a server that was killed may still have its run's folder


def run_settings(values: Mapping[str, Any], out: Path, resume: bool) -> dict[str, Any]:
    """The settings of a run over a network.

    Raises:
        ConfigError: one divides or changes data, or says what computes, which are with the clients; or there is no
            algorithm.
        RunError: another run has the folder, or has left something there; or the one in it cannot go on to as many
            rounds.
    """
    for name in OF_DATA:
        if name in values:
            raise ConfigError(f"--{name.replace('_', '-')} is not for a run over a network: data are with the clients")
    for name in ("engine", "workers", "ray_address"):
        if name in values:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is not for a run over a network: each client computes on its own host")
    check_idle(out, resume)
    found = dict(values)
    if resume:
        if not RunFolder(out).exists:
            begun = "; nothing of it was trained yet: leave out --resume" if (out / LOG).is_file() else ""
            raise ConfigError(f"'{out}' holds no run to continue{begun}")
        found = continued(RunFolder(out).config(), found)
    else:
        RunFolder(out).check_free()
    if "algorithm" not in found:
        raise ConfigError("name an algorithm, for example: commonground deploy run fedrep --expect 4 --out runs/first")
    config = RunConfig.make(found)  # refuses what is wrong before anything is started
    for what in files_of_weights(config):
        raise ConfigError(f"{what} is not for a run over a network, which begins with new weights")
    check_described(config)
    if not is_code(config.algorithm):  # a file is found from where the server was started
        algorithm = checked_algorithm(config)
        algorithm.check(config)
        if resume:
            check_rounds(RunFolder(out), config, algorithm)
    return found


def check_idle(out: Path, resume: bool) -> None:
    """Refuse a folder that a run has which goes on; one that was stopped or killed may still have it for a moment.

    Args:
        out: the folder.
        resume: whether the run in it is to be continued.

    Raises:
        BusyError: says which run has it, and how it is ended.
    """
    if not out.is_dir() or is_free(out, LINGERS if resume else 0.0):
        return
    holder = Holder.of(out)
    if holder is None and resume:
        return  # the job waits for it
    if holder is None:
        raise BusyError(f"another process is training in '{out}'; choose another --out")
    state = Deployment(holder.server).state_of(holder.run)
    if not (state == "unknown" or state.startswith("finished")):
        raise holder.busy(out)


def run_and_show(
    deployment: Deployment,
    settings: Mapping[str, Any],
    limits: Limits,
    out: Path,
    *,
    expect: int,
    wait: float,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Start a run, show how it goes on, and print its results.

    Args:
        deployment: the server's.
        settings: of the run.
        limits: of the run.
        out: the run's folder, on this host.
        expect: clients to wait for.
        wait: seconds for which they are waited for.
        resume: whether to go on with the run in the folder.
        quiet: print nothing but errors.

    Raises:
        ConfigError: no server has been started in the deployment's folder, its certificate has expired, or the limits
            do not go with the settings.
        RunError: it failed.
        Interrupted: somebody has stopped it.
    """
    limits.check(RunConfig.make(settings))
    job = Job(settings=dict(settings), clients=expect, wait=wait, limits=limits, out=str(out.resolve()), resume=resume)
    deployment.check()
    check_folder(out)
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        command, name, number = deployment.start(job)
    except RunError:
        with suppress(OSError):
            if made:
                out.rmdir()
        raise
    shown = _Shown(quiet)
    shown.say(f"+ {shlex.join(command)}")
    shown.say(f"run {number} of the server")
    try:
        follow(deployment, job, name, number, shown.hear)
    except Interrupted:
        raise
    except KeyboardInterrupt:
        folder, report = shlex.quote(str(deployment.folder)), shlex.quote(str(out))
        shown.say(
            f"the run goes on on the server; `commonground deploy stop {number} --folder {folder}` ends it, and when "
            f"it has finished, `commonground report {report}` writes its report"
        )
        raise
    write_run_report(out)
    if not quiet:
        finished, console = load_run(out), standard_output()
        console.print(result_table(finished))
        if note := result_note(finished):
            console.print(note, markup=False)


class _Shown:
    """Writes to standard error what is heard of a run."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self._began = quiet, time.monotonic()

    def say(self, text: str) -> None:
        """A line."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def hear(self, kind: str, told: Any) -> None:
        """See :func:`~commonground.network.following.follow`."""
        if kind == "note":
            self.say(escaped(str(told), 1000))
            return
        figures = [f"round {told['round']}"]
        if told["train_loss"] is not None:
            figures.append(f"loss {told['train_loss']:.4g}")
        for name, value in told.items():
            kind, _, key = name.partition("_")
            if kind in ("personal", "global") and value is not None:
                metric = Metric(key, is_share(key))
                figures.append(f"{kind} {metric.name} {metric.show(value)}")
        figures.append(f"{told['participants']} clients, {told['seconds'] + told['eval_seconds']:.1f} s")
        if told.get("missing"):
            figures.append(f"{told['missing']} missing")
        self.say("  ".join(figures))
