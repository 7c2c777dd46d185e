"""Clients with factors of different ranks, of FlexLoRA (FLoRA's are beside its stacks)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import commonground as cg
from commonground.algorithms import Server, Tensors, Update, make_algorithm
from commonground.algorithms.federated_lora import factor_pairs
from commonground.algorithms.flexlora import FlexLoRA
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import unpack
from commonground.errors import ConfigError
from tests.helpers import digits

ENGINES = ["serial", "batched", "processes", "messages"]
RANKS = (1, 3)


def train(engine: str = "serial", **more: Any) -> cg.Run:
    options = {"ranks": "1,3", "rank": 4, **more.pop("options", {})}
    settings: dict[str, Any] = {"rounds": 3, "lr": 0.1, "dtype": "float64", "seed": 2}
    return cg.train("flexlora", digits(), engine=engine, options=options, **{**settings, **more})


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
    mean = np.mean([t["l.lora_B"].numpy() @ t["l.lora_A"].numpy() for t in sent], axis=0)
    for client in range(4):
        own = method.message_to(server, client)
        product = own["l.lora_B"].numpy() @ own["l.lora_A"].numpy()
        np.testing.assert_allclose(product, best(mean, RANKS[client % 2]), rtol=0, atol=1e-12)
    assert method.spared(server, 0) == (frozenset(drawn(4)), {})  # what all would be sent is in no message


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
        assert [row["bytes_down"] for row in runs[engine].history] == [
            row["bytes_down"] for row in runs["serial"].history
        ]
    same = {engine: run.summary["weights_sha256"] for engine, run in runs.items() if engine != "batched"}
    assert len(set(same.values())) == 1
    assert (
        train(options={"ranks": "4"}).summary["weights_sha256"]
        == train(options={"ranks": ""}).summary["weights_sha256"]
    )  # all clients of the model's rank: as without ranks


@pytest.mark.parametrize("more", [{}, {"participation": 0.4, "rounds": 6}, {"options": {"head": "shared"}}])
def test_bytes_are_those_of_the_messages(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[int, int] = {}
    deliver = MessageEngine._to_client

    def counted(self: Any, client: int, message: bytes) -> bytes:
        fields, tensors = unpack(message)
        if fields["kind"] == "train":
            sent[fields["round"]] = sent.get(fields["round"], 0) + sum(8 * value.numel() for value in tensors.values())
        return deliver(self, client, message)

    monkeypatch.setattr(MessageEngine, "_to_client", counted)
    run = train("messages", **more)
    assert sent == {row["round"]: row["bytes_down"] for row in run.history}
    if not more:
        each = sum(8 * value.numel() for value in run.shared.values())
        assert run.history[0]["bytes_down"] == digits().clients * each  # the factors go down once, not twice


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
