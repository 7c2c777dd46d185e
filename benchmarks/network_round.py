"""Seconds of a round over a network beside Flower's own FedAvg, and bytes on the wire beside the ledger's.

The same clients, data, network, rates and tests; a SuperLink and three clients of each kind on this machine, one after
the other: ``python -m benchmarks.network_round --out results/network-bench.json`` on a quiet machine.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import click

from commonground.data import load_data
from commonground.network.demo import process, wait_for_port
from commonground.network.deploy import Deployment, flower_project, free_port
from commonground.network.own_data import write_arrays
from tests.network.live import Live, Proxy

CLIENTS = 3
BATCH, RATE = 10, 0.05

_APP = """
import json
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

torch.set_num_threads(1)
client = ClientApp()
server = ServerApp()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def rows(context, split):
    folder = Path(str(context.node_config["folder"]))
    x = torch.from_numpy(np.load(folder / f"x_{split}.npy")).float() / 16
    return x, torch.from_numpy(np.load(folder / f"y_{split}.npy"))


def loaded(message):
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@client.train()
def train(message: Message, context: Context):
    model, (x, y) = loaded(message), rows(context, "train")
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.5)
    for part in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context):
    model, (x, y) = loaded(message), rows(context, "test")
    with torch.no_grad():
        right = float((model(x).argmax(1) == y).float().mean())
    metrics = MetricRecord({"accuracy": right, "num-examples": len(x)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0, min_available_nodes=CLIENTS,
                      min_train_nodes=CLIENTS, min_evaluate_nodes=CLIENTS)
    while len(list(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.5)
    began = time.perf_counter()
    found = strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()),
                           num_rounds=int(context.run_config["rounds"]))
    seconds = time.perf_counter() - began
    last = max(found.evaluate_metrics_clientapp)
    accuracy = found.evaluate_metrics_clientapp[last]["accuracy"]
    Path(str(context.run_config["times"])).write_text(json.dumps({"seconds": seconds, "accuracy": accuracy}))
"""


def flower(root: Path, rounds: int) -> dict[str, float]:
    """Flower's own FedAvg; seconds of all rounds, and the last accuracy."""
    data = load_data("digits", CLIENTS, partition="shards:4", seed=0)
    port = free_port()
    deployment = Deployment(root / "flower")
    deployment.set_up("127.0.0.1", port, [], insecure=True)
    app = root / "quickstart"
    app.mkdir()
    apps = {"serverapp": "quick:server", "clientapp": "quick:client"}
    (app / "pyproject.toml").write_text(flower_project("quickstart", apps, {"rounds": 5, "times": ""}))
    numbers = {"RATE": str(RATE), "BATCH": str(BATCH), "CLIENTS": str(CLIENTS)}
    code = _APP
    for name, value in numbers.items():
        code = code.replace(name, value)
    (app / "quick.py").write_text(code)
    times = root / "times.json"
    environment, bin_ = deployment.environment(), Path(sys.executable).parent
    with ExitStack() as running:
        command = [str(bin_ / "flower-superlink"), "--insecure", "--port", str(port)]
        command += ["--disable-runtime-dependency-installation"]
        running.enter_context(process(command, root / "superlink.log", environment))
        wait_for_port(port, 60)
        for c in range(CLIENTS):
            write_arrays(data, c, root / f"own-{c}")
            node = [str(bin_ / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
            node += ["--port", str(free_port()), "--node-config", f'folder="{root / f"own-{c}"}"']
            running.enter_context(process(node, root / f"supernode-{c}.log", environment))
        words = [str(bin_ / "flwr"), "run", str(app), "deployment", "--run-config", f"rounds={rounds} times='{times}'"]
        subprocess.run(words, env=environment, check=True, capture_output=True)
        until = time.monotonic() + 600
        while not times.is_file() and time.monotonic() < until:
            time.sleep(0.2)
    return dict(json.loads(times.read_text()))


def ours(root: Path, rounds: int) -> dict[str, Any]:
    """The same over `commonground deploy`, with TLS and keys, and what went over the wire."""
    live = Live(root / "ours", load_data("digits", CLIENTS, partition="shards:4", seed=0))
    proxy = Proxy(live.port)
    live.reached_at = proxy.port
    try:
        live.start()
        out = root / "run"
        options = ("--rounds", str(rounds), "--model", "mlp", "--set", "model.hidden=[128,64]", "--threads", "1")
        summary = live.ran(out, "fedavg", *options, "--lr", str(RATE), "--batch-size", str(BATCH))
    finally:
        live.close()
        proxy.close()
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    each = [row["seconds"] + row["eval_seconds"] for row in rows]
    tests = (rounds + 1) * CLIENTS  # the server's model goes out once more for each test
    sent = summary["bytes_up"] + summary["bytes_down"]
    ledger = sent + tests * summary["bytes_down"] // (rounds * CLIENTS)
    return {
        "seconds": sum(each),
        "median": median(each),
        "accuracy": summary["global_accuracy"],
        "ledger": ledger,
        "wire": proxy.carried,
        "messages": 2 * CLIENTS * (2 * rounds + 3),
    }


@click.command()
@click.option("--rounds", default=10, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
def main(rounds: int, out: Path | None) -> None:
    """Measure both, and print the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        theirs, own = flower(root, rounds), ours(root, rounds)
    found = {
        "command": f"python -m benchmarks.network_round --rounds {rounds}",
        "flower_seconds_per_round": round(theirs["seconds"] / rounds, 3),
        "commonground_seconds_per_round": round(own["seconds"] / rounds, 3),
        "ratio": round(theirs["seconds"] / own["seconds"], 2),
        "accuracy": {"flower": theirs["accuracy"], "commonground": own["accuracy"]},
        "bytes": {name: own[name] for name in ("ledger", "wire", "messages")},
        "machine": platform.platform(),
        "versions": {name: version(name) for name in ("commonground", "flwr", "torch")},
    }
    print(json.dumps(found, indent=1))
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
