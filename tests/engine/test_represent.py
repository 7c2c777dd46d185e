"""A run shows the representation that it has learnt: what a model's body gives to its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import commonground as cg
from commonground.engine import portable
from commonground.errors import ModelError
from commonground.models.heads import inputs_of
from tests.helpers import made_data
from tests.language import tiny_model, token_data

SETTINGS: dict[str, Any] = {"rounds": 2, "batch_size": 4, "lr": 0.1, "seed": 1}


def assert_heads_say_what_is_predicted(run: cg.Run, x: Any, client: int, shown: np.ndarray[Any, Any]) -> None:
    """The head applied to the representation gives the prediction, row by row."""
    head = run.model(client).get_submodule("head")
    with torch.no_grad():
        said = head(torch.from_numpy(shown)).softmax(1)
    np.testing.assert_allclose(said.numpy(), run.predict(x, client), atol=1e-6)


def test_a_shared_body_shows_all_clients_the_same(tmp_path: Path) -> None:
    data = made_data(dtype=np.float32)
    run = cg.train("fedrep", data, model="mlp", out=tmp_path, **SETTINGS)
    shown = run.represent(data.x_test, client=0)
    assert shown.shape == (len(data.x_test), 64)
    assert shown.dtype == np.float32
    for client in range(data.clients):
        np.testing.assert_array_equal(run.represent(data.x_test, client), shown)
        assert_heads_say_what_is_predicted(run, data.x_test, client, shown)
    np.testing.assert_array_equal(cg.load_run(tmp_path).represent(data.x_test, 1), shown)


def test_clients_alone_have_their_own() -> None:
    data = made_data(dtype=np.float32)
    run = cg.train("local", data, model="mlp", **SETTINGS)
    one, other = (run.represent(data.x_test, client) for client in (0, 1))
    assert not np.array_equal(one, other)
    assert_heads_say_what_is_predicted(run, data.x_test, 1, other)


def test_the_global_model_has_one_and_many_rows_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made_data(dtype=np.float32)
    run = cg.train("fedavg", data, model="mlp", **SETTINGS)
    whole = run.represent(data.x_test)
    monkeypatch.setattr(portable, "PREDICTED_AT_ONCE", 3)
    np.testing.assert_allclose(run.represent(data.x_test), whole, atol=1e-6)


def test_of_a_table_and_of_heads_of_two_parts() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": ["a", "b"] * 30, "n": rng.normal(size=60), "y": ["p", "q", "q"] * 20})
    data = cg.load_data(frame, client_column="who", target="y")
    run = cg.train("fedrod", data, model="mlp", **SETTINGS)
    shown = run.represent(frame.drop(columns="y"), client="a")
    assert shown.shape == (60, 64)


def test_of_texts_in_their_order(tmp_path: Path) -> None:
    """Texts of different lengths are computed in passes by their length."""
    data = token_data()
    run = cg.train("lora", data, model=tiny_model("bert", tmp_path / "bert"), **SETTINGS)
    shown = run.represent(data.x_test, 0)
    with torch.no_grad():
        said = run.model(0).get_submodule("base.classifier")(torch.from_numpy(shown)).softmax(1)
    np.testing.assert_allclose(said.numpy(), run.predict(data.x_test, 0), atol=1e-6)


@pytest.mark.parametrize("kind", ["roberta", "llama"])
def test_of_a_head_that_is_given_all_tokens_states(kind: str, tmp_path: Path) -> None:
    """Then that of the token that it looks at: the first, or a text's last; the head says the same of it alone."""
    data = token_data()
    run = cg.train("lora", data, model=tiny_model(kind, tmp_path / kind), **SETTINGS)
    shown = run.represent(data.x_test, 0)
    assert shown.shape == (len(data.x_test), 16)
    head = run.model(0).get_submodule("base.score" if kind == "llama" else "base.classifier")
    with torch.no_grad():
        said = head(torch.from_numpy(shown).unsqueeze(1)).reshape(len(shown), 2).softmax(1)
    np.testing.assert_allclose(said.numpy(), run.predict(data.x_test, 0), atol=1e-6)


def test_a_model_that_writes_answers_has_none(tmp_path: Path) -> None:
    data = token_data(language=True)
    run = cg.train("lora", data, model=tiny_model("llama-lm", tmp_path / "lm"), **SETTINGS)
    with pytest.raises(ModelError, match="has no representation to show"):
        run.represent(data.x_test)


def test_what_a_module_is_given_is_watched_while_that_is_asked() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    x = torch.ones(4, 2)
    with inputs_of(net[1]) as given:
        net(x)
        net(2 * x)
    net(3 * x)
    assert [tensor.tolist() for tensor in given] == [net[0](x).tolist(), net[0](2 * x).tolist()]
    assert not net[1]._forward_pre_hooks


class TwoEnds(nn.Module):
    """Its head is two layers beside each other, which no submodule holds."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        return torch.as_tensor(self.left(hidden) + self.right(hidden))


def test_a_model_without_one_head_says_so() -> None:
    run = cg.train("fedrep", made_data(dtype=np.float32), model=TwoEnds(), head="left.*,right.*", **SETTINGS)
    with pytest.raises(ModelError, match="has no representation to show: no single submodule of its model"):
        run.represent(np.zeros((2, 4), np.float32), 0)
