"""A deployment in which a client, the server or the link dies at a random moment: equal weights after a restart."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import commonground as cg
from commonground.data import load_data
from tests.campaign.common import Tally, drawn, tries
from tests.network.live import Live, Proxy

__all__ = ["campaign"]

METHODS = ("fedrep", "scaffold", "ditto", "flute")
VICTIMS = ("client", "server", "link")
CLIENTS, ROUNDS, WAIT = 3, 6, 240
OPTIONS = ("--rounds", str(ROUNDS), "--model", "mlp", "--threads", "1", "--seed", "3", "--min-answers", str(CLIENTS))


def campaign(seed: int, count: int, minutes: float) -> Tally:
    """So many runs, each with one death."""
    findings: list[str] = []
    tried, usual, expected = 0, 6.0, dict[str, str]()
    with tempfile.TemporaryDirectory() as temporary:
        live = Live(Path(temporary), load_data("digits", CLIENTS, partition="shards:4", seed=0))
        proxy = Proxy(live.port)
        live.reached_at = proxy.port
        try:
            live.start()
            for number in tries(count, minutes):
                method, victim = METHODS[number % len(METHODS)], VICTIMS[number % len(VICTIMS)]
                expected.setdefault(method, _weights(method))
                began = time.monotonic()
                rng = drawn(seed, number)
                out = Path(temporary) / f"run-{number}"
                after = float(rng.uniform(0.2, 1.0)) * usual
                wrong = _one(live, proxy, out, method, victim, after, int(rng.integers(CLIENTS)), expected[method])
                usual = 0.7 * usual + 0.3 * min(60.0, time.monotonic() - began)
                tried += 1
                findings += [f"{number}: {method}, {victim}: {wrong}"] if wrong else []
        finally:
            live.close()
            proxy.close()
    return Tally(tried, tried - len(findings), tuple(findings))


def _weights(method: str) -> str:
    data = load_data("digits", CLIENTS, partition="shards:4", seed=0)
    run = cg.train(method, data, engine="serial", rounds=ROUNDS, model="mlp", threads=1, seed=3)
    return str(run.summary["weights_sha256"])


def _one(
    live: Live, proxy: Proxy, out: Path, method: str, victim: str, after: float, client: int, expected: str
) -> str:
    """What is wrong after a death; nothing if all is as it should be."""
    child = live.run(out, method, *OPTIONS)
    time.sleep(after)
    if victim == "client":
        live.kill(f"client {client}")
        time.sleep(0.5)
        live.start_client(client)
    elif victim == "link":
        proxy.drop(3.0)
    else:
        live.kill("server")
        child.kill()
        child.communicate()
        live.start_server()
        done = (out / "summary.json").is_file()
        begun = (out / "config.toml").is_file()
        child = live.run(out, method, *OPTIONS, *(("--resume",) if begun else ())) if not done else child
        if done:
            return _compared(out, expected)
    try:
        _, told = child.communicate(timeout=WAIT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"it did not end within {WAIT} s"
    return f"exit {child.returncode}: {told.splitlines()[-1:]}" if child.returncode else _compared(out, expected)


def _compared(out: Path, expected: str) -> str:
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text("utf-8"))
    if summary["weights_sha256"] == expected:
        return ""
    return f"other weights; refused {summary.get('refused')}, lost {summary.get('lost_clients')}"
