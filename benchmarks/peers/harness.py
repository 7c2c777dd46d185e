"""Ours and a peer in turns, each in a process of its own, on the same cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.peers.common import Missing, Peer, Work, peer_named

ROOT = Path(__file__).parents[2]
FIGURES = ("round_cpu", "round_wall", "test_cpu", "test_wall")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")


class Failed(Exception):
    """A child process ended with an error; the message is its last line."""


@dataclass(frozen=True)
class Asked:
    """A peer that shall be measured: its name, its checkout, and the Python that has what it needs."""

    name: str
    path: str = ""
    python: str = sys.executable


OURS = Asked("ours")


def memory(pid: int) -> int:
    """Bytes that a process and all below it hold for themselves or share among them; no mapped files."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(OSError, psutil.NoSuchProcess):
                for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                        total += int(line.split()[1]) * 1024
    return total


def child(asked: Asked, words: Sequence[str], cores: int, seconds: float = 3600) -> tuple[dict[str, Any], int]:
    """Run :mod:`benchmarks.peers.child`.

    Args:
        asked: whom.
        words: its arguments after the path, but for the file of the result.
        cores: the number of cores that it may use; 0 for all.
        seconds: after which it is ended.

    Returns:
        What it found, and the most memory that was seen, in bytes.

    Raises:
        Failed: it ended with an error.
    """
    environment = {key: value for key, value in os.environ.items() if key not in THREADS}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    everything = sorted(os.sched_getaffinity(0))
    own = everything[-cores:] if cores else everything
    with tempfile.TemporaryDirectory(prefix="peer-") as place, open(Path(place, "log"), "w+") as log:
        result = Path(place, "result.json")
        command = [asked.python, "-m", "benchmarks.peers.child", *words[:1], asked.name, asked.path, *words[1:]]
        process = subprocess.Popen(
            [*command, str(result)], cwd=place, env=environment, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, own), start_new_session=True,
        )  # fmt: skip
        try:
            most = _watched(process, seconds)
        finally:  # also what it started, and after Ctrl-C
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode or not result.is_file():
            log.seek(0)
            lines = log.read().strip().splitlines() or ["nothing was said"]
            print("\n".join(lines[-25:]), file=sys.stderr)
            raise Failed(f"it ended with {process.returncode}: {lines[-1]}")
        return dict(json.loads(result.read_text())), most


def _watched(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The most memory of a process until it ends."""
    most, until, pause = 0, time.monotonic() + seconds, 0.01
    while process.poll() is None:
        if time.monotonic() > until:
            raise Failed(f"it did not end within {seconds:.0f} s")
        most = max(most, memory(process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause)
        pause = min(0.2, 2 * pause)  # a short one is seen several times, too
    return most


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Minimum and median over all rounds of all repeats, and the most memory."""
    found: dict[str, Any] = {}
    for figure in FIGURES:
        values = [value for run in runs for value in run[figure]]
        found[figure] = {"min": round(min(values), 4), "median": round(median(values), 4), "values": len(values)}
    found["memory_mb"] = round(max(run["memory"] for run in runs) / 1e6)
    accuracies = [run["accuracy"] for run in runs if run["accuracy"] is not None]
    found["accuracy"] = round(median(accuracies), 4) if accuracies else None
    return found


def in_turns(asked: Asked, work: Work, repeats: int, ours: Asked = OURS, bf16: bool = False) -> dict[str, Any]:
    """One method of one peer: A B A B …, each time in new processes; with ``bf16`` ours runs a second time in it."""
    turns = [("ours", ours, work), ("peer", asked, work)]
    if bf16:
        turns.insert(1, ("ours_bf16", ours, replace(work, precision="bf16")))
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who, *_ in turns}
    load = [round(os.getloadavg()[0], 2)]
    for _ in range(repeats):
        for who, whom, its in turns:
            figures, most = child(whom, ("run", its.text()), work.cores)
            runs[who].append(figures | {"memory": most})
        load.append(round(os.getloadavg()[0], 2))
    found = {who: summary(each) for who, each in runs.items()}
    ratios = {who.replace("ours", "ratio"): over(found["peer"], found[who]) for who in found if who != "peer"}
    return {**found, **ratios, "load": load}


def over(its: dict[str, Any], ours: dict[str, Any]) -> dict[str, float]:
    """A peer's figures over ours."""
    ratio = {name: round(its[name]["median"] / ours[name]["median"], 2) for name in FIGURES}
    return ratio | {"memory_mb": round(its["memory_mb"] / ours["memory_mb"], 2)}


def beside(
    asked: Asked,
    work: Work,
    methods: Sequence[str],
    repeats: int,
    say: Callable[[str], object] = print,
    ours: Asked = OURS,
    bf16: bool = False,
) -> dict[str, Any]:
    """All methods of one peer, with its version and what differs.

    Raises:
        Missing: it is not here.
        Failed: it ended with an error.
    """
    peer: Peer = peer_named(asked.name)
    wanted = [name for name in methods if name in peer.methods]
    if not wanted:
        raise Missing(f"it has no {' and no '.join(methods)}")
    try:
        about, _ = child(asked, ("find",), 0, 300)
    except Failed as error:
        raise Missing(str(error)) from None
    if "missing" in about:
        raise Missing(about["missing"])
    found: dict[str, Any] = {"name": asked.name, "title": peer.title, **about, "net": peer.net}
    found |= {"differs": list(peer.differs), "methods": {}}
    for method in wanted:
        same = replace(work, method=method, net=peer.net, momentum=peer.momentum)
        done = in_turns(asked, same, repeats, ours, bf16)
        found["methods"][method] = done
        say(line(peer.title, method, done))
    return found


def line(title: str, method: str, done: dict[str, Any]) -> str:
    """One method's outcome, for the terminal."""
    cpu, wall = ([done[who][f"round_{kind}"]["median"] for who in ("ours", "peer")] for kind in ("cpu", "wall"))
    times = done["ratio"]
    bf16 = f", {done['ratio_bf16']['round_cpu']} times ours in bf16" if "ratio_bf16" in done else ""
    return (
        f"{title}, {method}: {cpu[1]:.2f} s against {cpu[0]:.2f} s of CPU a round, {times['round_cpu']} times{bf16} "
        f"(wall {wall[1]:.2f} s, {wall[0]:.2f} s, {times['round_wall']} times); test {times['test_cpu']} times; "
        f"memory {done['peer']['memory_mb']} MB, {done['ours']['memory_mb']} MB; load {done['load']}"
    )
