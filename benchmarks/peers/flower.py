"""Flower's simulation on Ray, with a FedAvg app in the style of its quickstart."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.peers import common, samples
from benchmarks.peers.clock import Clock, Enough
from benchmarks.peers.nets import whole


class Peer(common.Peer):
    """Server and clients are Flower's apps; Flower's own FedAvg averages, and its grid carries the messages."""

    title = "Flower simulation (Ray)"
    methods = ("fedavg",)
    differs = (
        "it has no FedRep",
        "every client's model goes through its messages and Ray's workers, as it would to another machine",
        "its quickstart asks for two cores a client; here it is one",
    )

    def find(self, path: Path | None) -> str:
        """The versions of Flower and Ray."""
        try:
            return f"{version('flwr')}, Ray {version('ray')}"
        except PackageNotFoundError as error:
            raise common.Missing(f"there is no package {error.name}") from None

    def run(self, path: Path | None, work: common.Work, clock: Clock) -> None:
        """Its simulation of so many rounds; a round and the test of all clients are two of its own exchanges."""
        os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        server = ServerApp()
        server.main()(_server(work, clock))
        cores = len(os.sched_getaffinity(0))
        backend: Any = {"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, _client(work), work.clients, "ray", backend)
        if len(clock.evaluation) != clock.rounds + clock.skipped:
            raise RuntimeError(f"Flower's simulation ended after {len(clock.evaluation)} rounds")


def _server(work: common.Work, clock: Clock) -> Any:
    """The server's app: rounds of FedAvg, each followed by a test of all clients."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    def main(grid: Any, context: Any) -> None:
        share = work.sampled / work.clients
        strategy = FedAvg(
            fraction_train=share, fraction_evaluate=1.0, min_train_nodes=1, min_available_nodes=work.clients
        )
        arrays = ArrayRecord(whole(work.net).state_dict())
        for round in range(1, work.rounds + 2):
            sent = strategy.configure_train(round, arrays, ConfigRecord(), grid)
            averaged, _ = strategy.aggregate_train(round, grid.send_and_receive(sent))
            if averaged is None:
                raise RuntimeError("no client answered")
            arrays = averaged
            clock.trained()
            sent = strategy.configure_evaluate(round, arrays, ConfigRecord(), grid)
            found = strategy.aggregate_evaluate(round, grid.send_and_receive(sent))
            try:
                clock.tested(_accuracy(found))
            except Enough:
                return

    return main


def _accuracy(found: Any) -> float:
    return float(found["accuracy"])


def _client(work: common.Work) -> Any:
    """The clients' app."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    client = ClientApp()

    @client.train()
    def train(message: Any, context: Any) -> Any:
        import torch
        from torch import nn

        model, (x, y) = _loaded(work, message), _own(work, "train", context)
        optimizer = torch.optim.SGD(model.parameters(), work.lr, momentum=work.momentum)
        for _ in range(work.epochs):
            for rows in torch.randperm(len(y)).split(work.batch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        metrics = MetricRecord({"num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @client.evaluate()
    def evaluate(message: Any, context: Any) -> Any:
        import torch

        model, (x, y) = _loaded(work, message), _own(work, "test", context)
        with torch.no_grad():
            right = float((model(x).argmax(1) == y).float().mean())
        metrics = MetricRecord({"accuracy": right, "num-examples": len(y)})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return client


def _loaded(work: common.Work, message: Any) -> Any:
    model = whole(work.net)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def _own(work: common.Work, part: str, context: Any) -> Any:
    return samples.read(work.data, part).of(int(context.node_config["partition-id"]))
