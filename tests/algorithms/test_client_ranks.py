"""Clients with factors of different ranks, of FlexLoRA (FLoRA's are beside its stacks)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import commonground as cg
from commonground.algorithms import Server, Tensors, Update, make_algorithm
from commonground.algorithms.fedavg import FedAvg
from commonground.algorithms.federated_lora import factor_pairs
from commonground.algorithms.flexlora import FlexLoRA
from commonground.data import FederatedDataset
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.held_parts import parts_of
from commonground.errors import ConfigError, UpdateError
from commonground.plan import plan
from tests.helpers import digits, own, seeded

ENGINES = ["serial", "batched", "processes", "messages"]
RANKS = (1, 3)


def train(engine: str = "serial", **more: Any) -> cg.Run:
    options = {"ranks": "1,3", "rank": 4, **more.pop("options", {})}
    settings: dict[str, Any] = {"rounds": 3, "lr": 0.1, "dtype": "float64", "seed": 2}
    method = more.pop("method", "flexlora")
    return cg.train(method, digits(), engine=engine, options=options, **{**settings, **more})


def raws(clients: int) -> Any:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(clients, 24, 40)), rng.integers(0, 3, size=(clients, 24))
    return [(a[:16], b[:16], a[16:], b[16:]) for a, b in zip(x, y, strict=True)]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(40, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).relu())
        return out


def best(product: np.ndarray, rank: int) -> np.ndarray:
    """The nearest matrix of a rank in Frobenius norm (Eckart and Young)."""
    u, s, v = np.linalg.svd(product)
    return np.asarray((u[:, :rank] * s[:rank]) @ v[:rank])


def drawn(rank: int, seed: int = 0) -> Tensors:
    stream = torch.Generator().manual_seed(seed)
    return {
        "l.lora_A": torch.randn(rank, 6, dtype=torch.float64, generator=stream),
        "l.lora_B": torch.randn(5, rank, dtype=torch.float64, generator=stream),
    }


@pytest.mark.parametrize("split", ["balanced", "A", "B"])
def test_a_client_is_sent_the_best_mean_of_its_rank(split: str) -> None:
    method = make_algorithm("flexlora", {"ranks": "1,3", "split": split})
    sent = [drawn(4, seed) for seed in range(4)]
    server = Server(dict(sent[0]), clients=4, seed=7)
    method.server_update(server, [Update(k, 1, tensors) for k, tensors in enumerate(sent)], 1)
    ranks = [RANKS[client % 2] for client in range(4)]
    products = [t["l.lora_B"].numpy()[:, :k] @ t["l.lora_A"].numpy()[:k] for t, k in zip(sent, ranks, strict=True)]
    mean = np.mean(products, axis=0)
    for client in range(4):
        rank = ranks[client]
        own = parts_of(method, server.shared, client)
        assert [tuple(value.shape) for value in own.values()] == [(rank, 6), (5, rank)]
        product = own["l.lora_B"].numpy() @ own["l.lora_A"].numpy()
        np.testing.assert_allclose(product, best(mean, rank), rtol=0, atol=1e-12)


def test_a_client_trains_its_rank_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[int, Tensors]] = []
    update = FlexLoRA.server_update

    def spied(self: FlexLoRA, server: Server, updates: list[Update], round: int) -> None:
        found.append({u.client: {n: v.clone() for n, v in u.tensors.items()} for u in updates})
        update(self, server, updates, round)

    monkeypatch.setattr(FlexLoRA, "server_update", spied)
    run = train()
    for updates in found:
        for client, tensors in updates.items():
            rank = RANKS[client % 2]
            for a_name, b_name in factor_pairs(list(tensors)):
                a, b = tensors[a_name], tensors[b_name]
                assert not a[rank:].any()
                assert not b[:, rank:].any()
                assert int(torch.linalg.matrix_rank(b @ a)) == rank
    a_name, b_name = factor_pairs(list(run.shared))[0]
    last = found[-1].values()
    mean = np.mean([(t[b_name] @ t[a_name]).numpy() for t in last], axis=0)
    assert np.linalg.matrix_rank(mean) > max(RANKS)
    product = (run.shared[b_name] @ run.shared[a_name]).numpy()
    np.testing.assert_allclose(product, best(mean, 4), rtol=0, atol=1e-12)


def test_every_engine_trains_the_same() -> None:
    runs = {engine: train(engine, **({"workers": 2} if engine == "processes" else {})) for engine in ENGINES}
    for engine in ENGINES[1:]:
        for name, value in runs["serial"].shared.items():
            torch.testing.assert_close(runs[engine].shared[name], value, rtol=0, atol=1e-10)
        for way in ("bytes_up", "bytes_down"):
            assert [row[way] for row in runs[engine].history] == [row[way] for row in runs["serial"].history]
    same = {engine: run.summary["weights_sha256"] for engine, run in runs.items() if engine != "batched"}
    assert len(set(same.values())) == 1
    assert (
        train(options={"ranks": "4"}).summary["weights_sha256"]
        == train(options={"ranks": ""}).summary["weights_sha256"]
    )  # all clients of the model's rank: as without ranks


@pytest.mark.parametrize("more", [{}, {"participation": 0.4, "rounds": 6}, {"options": {"head": "shared"}}])
@pytest.mark.parametrize("method", ["flexlora", "flora"])
def test_bytes_are_those_of_the_messages(method: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, dict[int, int]] = {"bytes_down": {}, "bytes_up": {}}
    deliver = MessageEngine._to_client

    def counted(self: Any, client: int, message: bytes) -> bytes:
        fields, tensors = unpack(message)
        answer = deliver(self, client, message)
        if fields["kind"] == "train":
            for way, what in (("bytes_down", tensors), ("bytes_up", unpack(answer)[1])):
                size = sum(8 * value.numel() for value in what.values())
                sent[way][fields["round"]] = sent[way].get(fields["round"], 0) + size
        return answer

    monkeypatch.setattr(MessageEngine, "_to_client", counted)
    run = train("messages", method=method, **more)
    for way, rounds in sent.items():
        assert rounds == {row["round"]: row[way] for row in run.history}
    if not more:
        factors = [value for name, value in run.shared.items() if name.rpartition(".")[2] != "merged"]
        one = sum(8 * value.numel() for value in factors) // 4  # of rank 1
        dealt = sum(RANKS[client % 2] for client in range(digits().clients))
        assert [row["bytes_up"] for row in run.history] == [one * dealt] * 3


def test_a_message_with_a_part_of_another_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = MessageEngine._to_client

    def widened(self: Any, client: int, message: bytes) -> bytes:
        fields, tensors = unpack(message)
        name = min(tensors, default="")
        if fields["kind"] == "train" and client == 1:
            tensors[name] = torch.cat([tensors[name], tensors[name][:1]])
        return deliver(self, client, pack(fields, tensors))

    monkeypatch.setattr(MessageEngine, "_to_client", widened)
    with pytest.raises(UpdateError, match=r"it has 'fc1.lora_A' of shape \(4, 64\) instead of \(3, 64\)"):
        train("messages")


def test_an_update_with_a_part_of_another_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = MessageEngine._to_client

    def widened(self: Any, client: int, message: bytes) -> bytes:
        fields, tensors = unpack(deliver(self, client, message))
        if tensors and fields.get("client") == 1:
            tensors = {name: torch.cat([value, value[:1]]) for name, value in tensors.items()}
        return pack(fields, tensors)

    monkeypatch.setattr(MessageEngine, "_to_client", widened)
    with pytest.raises(
        UpdateError, match=r"update of client 1 in round 1 has 'fc1.lora_A' of shape \(4, 64\) instead of \(3, "
    ):
        train("messages")


def test_stacks_have_the_clients_ranks() -> None:
    """FLoRA's paper: N clients' factors of ranks k_1 to k_N are sent back as stacks of Σ kᵢ rows and columns."""
    data, settings = FederatedDataset.from_arrays(raws(4)), dict[str, Any](rounds=2, dtype="float64", lr=0.1)
    options = {"downlink": "stack", "rank": 4, "ranks": "1,3", "head": "frozen"}
    run = cg.train("flora", data, model=nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 3)), options=options, **settings)
    sides, stack = 40 + 50, sum(RANKS) * 2
    assert [row["bytes_up"] for row in run.history] == [8 * stack * sides] * 2
    assert [row["bytes_down"] for row in run.history] == [8 * stack * sides, 8 * 4 * stack * sides]


@own
@dataclass(frozen=True)
class Halves(FedAvg):
    """Every second client holds the first half of the first layer's rows, whatever it trains."""

    def held_part(self, name: str, client: int) -> tuple[slice, ...]:
        return (slice(4),) if client % 2 and name.startswith("first") else ()


def test_a_method_of_ones_own_holds_parts() -> None:
    data, settings = FederatedDataset.from_arrays(raws(4)), dict[str, Any](rounds=2, dtype="float64", lr=0.1)
    runs = {e: cg.train(Halves(), data, model=seeded(Two), engine=e, **settings) for e in ENGINES}
    whole = cg.train("fedavg", data, model=seeded(Two), **settings)
    first = 40 * 8 + 8
    for run in runs.values():
        for name, value in runs["serial"].shared.items():
            torch.testing.assert_close(run.shared[name], value, rtol=0, atol=1e-12)
        for way in ("bytes_up", "bytes_down"):
            assert whole.summary[way] - run.summary[way] == 2 * 2 * 8 * first // 2
    told = plan(Halves(), data, model=seeded(Two), **settings).sent
    assert (told.up[0], told.down[0]) == (runs["serial"].summary["bytes_up"], runs["serial"].summary["bytes_down"])
    assert told.exact


def test_a_resumed_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    whole = train(participation=0.5, rounds=5)
    train(participation=0.5, rounds=3, out=tmp_path / "run")
    again = train(participation=0.5, rounds=5, out=tmp_path / "run", resume=True)
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert again.summary["bytes_down"] == whole.summary["bytes_down"]


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="ranks '2,x' is not a list of ranks such as 2,4,8"):
        train(options={"ranks": "2,x"})
    with pytest.raises(ConfigError, match=r"FlexLoRA's largest rank 9 exceeds the model's 4 \(rank\)$"):
        train(options={"ranks": "9"})
    with pytest.raises(ConfigError, match="ranks"):
        cg.train("lora", digits(), options={"ranks": "1,2"})
