"""Requests a second and the time of the slowest hundredth, of a service on this machine: one row a request.

    python -m benchmarks.service [--seconds 10] [--askers 8] [--out results/service-bench.json]

A FedRep run on a made table of 20 customers is served by one process; askers (threads of another process) send one row
after the other, each with the token of a customer of its own.
"""

from __future__ import annotations

import argparse
import http.client
import json
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from commonground.cli import main as command
from commonground.serve import Tokens


def table(path: Path, customers: int, rows: int) -> None:
    """Two numbers and a category; the label hangs on them by customer."""
    rng = np.random.default_rng(0)
    lines = ["customer,age,income,plan,label"]
    for i in range(customers * rows):
        age, income = rng.normal(40, 10), rng.lognormal(10, 0.5)
        own = (i % customers) / customers
        label = "yes" if age / 40 + own * income / 22_000 > 1.5 else "no"
        lines.append(f"c{i % customers},{age:.1f},{income:.0f},{'abc'[int(rng.integers(3))]},{label}")
    path.write_text("\n".join(lines) + "\n")


def ask(port: int, token: str, until: float, times: list[float]) -> None:
    """One row after the other over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"rows": [{"age": 41.5, "income": 30_000, "plan": "b"}]})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    while time.perf_counter() < until:
        began = time.perf_counter()
        connection.request("POST", "/v1/predict", body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        times.append(time.perf_counter() - began)


def main() -> None:
    """Train, serve, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--askers", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        table(Path(folder) / "t.csv", 20, 200)
        columns = ["--client-column", "customer", "--target", "label", "--rounds", "5", "--quiet", "--out", str(run)]
        assert command(["train", "fedrep", "--data", str(Path(folder) / "t.csv"), *columns]) == 0
        tokens = Tokens(run)
        given = [tokens.issue(f"c{i % 20}") for i in range(args.askers)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        server = subprocess.Popen([sys.executable, "-m", "commonground", "serve", str(run), "--port", str(port)])
        try:
            for _ in range(600):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            ask(port, given[0], time.perf_counter() + 1, [])  # models are ready then
            times: list[list[float]] = [[] for _ in given]
            until = time.perf_counter() + args.seconds
            askers = [
                threading.Thread(target=ask, args=(port, token, until, own))
                for token, own in zip(given, times, strict=True)
            ]
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join()
        finally:
            server.terminate()
            server.wait()
    every = np.concatenate([np.array(own) for own in times])
    result = {
        "command": f"python -m benchmarks.service --seconds {args.seconds:g} --askers {args.askers}",
        "requests_per_second": round(len(every) / args.seconds, 1),
        "median_ms": round(float(np.median(every)) * 1e3, 2),
        "p99_ms": round(float(np.quantile(every, 0.99)) * 1e3, 2),
        "requests": len(every),
        "askers": args.askers,
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": {name: version(name) for name in ("commonground", "torch", "fastapi", "uvicorn")},
    }
    print(json.dumps(result, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
