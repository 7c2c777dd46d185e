"""New clients' heads are fitted on the run's own network, also where what never changes in it was drawn by a seed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import commonground as cg
from tests.helpers import digits
from tests.language import token_data


def without_pooler(folder: Path) -> str:
    """A BERT whose pooler transformers draws anew."""
    size: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    config = transformers.BertConfig(vocab_size=44, max_position_embeddings=64, initializer_range=0.3, **size)
    with torch.random.fork_rng():
        transformers.BertForMaskedLM(config).save_pretrained(folder)
    return f"hf:{folder}"


def right_of(run: cg.Run, data: cg.FederatedDataset, name: str | None) -> list[float]:
    """Accuracy on each client's test samples, of its own model or the global one."""
    found = []
    for client in range(data.clients):
        rows = data.test_indices(client)
        said = run.predict(data.x_test[rows], None if name is None else name.format(client))
        found.append(float((said.argmax(1) == data.y_test[rows]).mean()))
    return found


@pytest.mark.parametrize("algorithm", ["lora", "ffa-lora", "flora", "rolora", "flexlora"])
@pytest.mark.parametrize("texts", [False, True])
def test_a_kept_client_does_as_well_as_is_said(algorithm: str, texts: bool, tmp_path: Path) -> None:
    settings: dict[str, Any]
    if texts:
        data, new = token_data(sizes=(40,)), token_data(2, sizes=(60, 50))
        settings = {"model": without_pooler(tmp_path / "bert"), "model_options": {"rank": 2}}
    else:
        data, new = digits(4), digits(3)
        settings = {"model": "mlp", "options": {"rank": 2}}
    run = cg.train(algorithm, data, rounds=2, lr=0.01, seed=3, out=tmp_path / "run", **settings)
    kept = cg.keep_clients(run, new, seed=11)
    assert kept.mean == pytest.approx(np.mean(right_of(kept.run, new, "new-{}")), abs=1e-12)


def test_the_global_model_is_the_runs_whatever_seed_draws_the_shots(tmp_path: Path) -> None:
    """Trained with a rate of nothing, it does on new clients what it does there anyway."""
    data, new = digits(4), digits(3)
    run = cg.train("lora", data, model="mlp", options={"rank": 2, "head": "shared"}, rounds=2, lr=0.01, seed=3)
    right = np.mean(right_of(run, new, None))
    for seed in (0, 3, 1000):
        found = cg.adapt(run, new, [5], repeats=1, epochs=1, lr=1e-9, seed=seed, local_only=False)
        assert {one.method: one.mean for one in found}["global + FT"] == pytest.approx(right, abs=1e-9)


def test_an_adapter_that_a_run_started_from_is_known_again(tmp_path: Path) -> None:
    """What is constant in it is read with the run, which tells when it is another one."""
    model = without_pooler(tmp_path / "bert")
    for seed in (1, 2):
        other = cg.train("lora", token_data(sizes=(20,)), model=model, model_options={"rank": 2}, rounds=1, seed=seed)
        cg.export_model(other, tmp_path / f"adapter-{seed}", client=0, format="peft")
    start = tmp_path / "start"
    shutil.copytree(tmp_path / "adapter-1", start)
    cg.train(
        "lora", token_data(sizes=(20,)), model=model, model_options={"rank": 2, "adapter": str(start)}, rounds=1,
        out=tmp_path / "run",
    )  # fmt: skip
    cg.load_run(tmp_path / "run")
    shutil.copytree(tmp_path / "adapter-2", start, dirs_exist_ok=True)
    with pytest.warns(UserWarning, match=r"adapter_model.safetensors' is another one than when the run"):
        cg.load_run(tmp_path / "run")
