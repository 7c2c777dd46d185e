"""RoLoRA's Figure 2: the two-layer network by hand, whole labels to clients, the experiment on the small digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground import load_data, train
from commonground.cli import main
from commonground.data import Labels, parse_partition
from commonground.errors import ConfigError, DataError, ModelError
from commonground.models import build_model
from commonground.models.low_rank import LowRank


def test_the_network_is_equation_12() -> None:
    model = LowRank((1, 2, 2), 3, rank=2, begin="tiny", tiny=1.0)
    x = torch.randn(5, 1, 2, 2)
    a, b = model.lora_A.T, model.lora_B.T  # the paper's A [d, r] and B [r, d]
    expected = torch.relu(x.flatten(1) @ a @ b) @ model.W_out
    assert torch.allclose(model(x), expected)


@pytest.mark.parametrize(("begin", "starts"), [("derivative", True), ("tiny", True), ("zero", False)])
def test_nothing_starts_with_a_zero_b_and_no_slope_at_zero(begin: Any, starts: bool) -> None:
    torch.manual_seed(0)
    model = LowRank((4,), 3, rank=2, begin=begin)
    x = torch.randn(6, 4)
    loss = torch.nn.functional.cross_entropy(model(x), torch.arange(6) % 3)
    grad = torch.autograd.grad(loss, model.lora_B)[0]
    assert bool(grad.abs().sum() > 0) is starts
    if begin == "derivative":  # by hand: every hidden unit passes its gradient on
        out = (torch.full((6, 3), 1 / 3) - torch.eye(3)[torch.arange(6) % 3]) / 6
        assert torch.allclose(grad, (out @ model.W_out.T).T @ (x @ model.lora_A.T), atol=1e-6)


def test_a_is_small_and_w_out_stays_at_home() -> None:
    model = build_model("low-rank", (1, 28, 28), 10, seed=3)
    assert isinstance(model, LowRank)
    assert float(model.lora_A.detach().std()) == pytest.approx(1 / 28, rel=0.05)
    run = train(
        "rolora",
        load_data("digits", 5, partition="labels:test=iid"),
        model="low-rank",
        rounds=2,
        options={"head": "frozen"},
        model_options={"rank": 3},
    )
    assert set(run.shared) == {"lora_A", "lora_B"}
    assert run.history[0]["bytes_up"] == 5 * 3 * 64 * 4  # one factor of five clients
    assert run.global_accuracy is not None


@pytest.mark.parametrize(
    ("options", "says"), [({"rank": 0}, "the rank is 0"), ({"rank": 2, "begin": "now"}, "begin is 'now'")]
)
def test_a_network_that_cannot_be(options: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        LowRank((4,), 3, **options)


def test_labels_are_dealt_whole_and_in_order() -> None:
    for clients in (5, 10):
        data = load_data("digits", clients, partition="labels")
        holds = data.class_counts("train") > 0
        own = np.arange(10) * clients // 10
        assert np.array_equal(holds, own == np.arange(clients)[:, np.newaxis])
        assert np.array_equal(data.class_counts("test") > 0, holds)
        assert data.train_sizes.sum() == len(data.y_train)
    data = load_data("digits", 5, partition=Labels("iid"))
    assert (data.class_counts("test") > 0).all()
    assert data.test_sizes.max() - data.test_sizes.min() <= 1
    assert sorted(data.test_index) == list(range(len(data.y_test)))


def test_labels_as_text() -> None:
    for text in ("labels", "labels:test=iid"):
        assert str(parse_partition(text)) == text
    with pytest.raises(ConfigError, match="'same' or 'iid'"):
        parse_partition("labels:test=all")
    with pytest.raises(ConfigError, match="no meaning"):
        parse_partition("labels", 2)
    with pytest.raises(DataError, match="10 classes of 'digits' cannot be dealt to 3 clients"):
        load_data("digits", 3, partition="labels")


TINY = ["data=digits", "rounds=3", "rank=4", "local_epochs=1", "rates=[0.1,0.3]", "train_samples=0", "workers=1"]


def reproduce(out: Path, *settings: str, seeds: int = 3) -> dict[str, Any]:
    chosen = [part for value in [*TINY, *settings] for part in ("--set", value)]
    assert main(["reproduce", "rolora-fig2", *chosen, "--seeds", str(seeds), "--quiet", "--out", str(out)]) == 0
    whole: dict[str, Any] = json.loads((out / "reproduction.json").read_text())
    return whole


def test_the_experiment(tmp_path: Path) -> None:
    whole = reproduce(tmp_path)
    assert [c["column"] for c in whole["cells"]] == ["5 clients"] * 5 + ["10 clients"] * 5
    assert {c["method"] for c in whole["cells"]} == {"LoRA", "FFA-LoRA", "FlexLoRA", "RoLoRA", "Centralised"}
    for clients in (5, 10):
        figure = whole["curves"][f"{clients} clients: accuracy on the test set"]
        assert figure["lines"]["RoLoRA"]["x"] == [1.0, 2.0, 3.0]
    claims = {c["claim"]: c for c in whole["claims"]}
    fall = claims["LoRA falls from 5 to 10 clients (points lost)"]
    cells = {(c["column"], c["method"]): c["measured"] for c in whole["cells"]}
    assert fall["measured"] == pytest.approx(cells["5 clients", "LoRA"] - cells["10 clients", "LoRA"])
    halves = [c for t, c in claims.items() if "half of LoRA's factors" in t]
    assert [c["measured"] for c in halves] == [0.5, 0.5]
    rows = whole["tables"]["accuracy, exactness and bytes"]
    assert {r["learning rate"] for r in rows} <= {0.1, 0.3}
    errors = {r["method"]: r["aggregation error, largest"] for r in rows if r["condition"] == "10 clients"}
    assert errors["RoLoRA"] < 1e-6 < errors["LoRA"]


def test_the_accuracy_is_that_on_the_whole_test_set(tmp_path: Path) -> None:
    whole = reproduce(tmp_path, "methods=['rolora']", "clients=[5]", "rates=[0.3]", "centralised=false", seeds=1)
    run = next((tmp_path / "runs").rglob("seed-0"))
    from commonground.engine.state.folder import RunFolder

    checkpoint = RunFolder(run).load()
    assert checkpoint is not None
    data = load_data("digits", 5)
    model = build_model("low-rank", data.sample_shape, 10, seed=0, options={"rank": 4})
    model.load_state_dict({**model.state_dict(), **checkpoint.shared})
    x = torch.from_numpy(data.x_test).float() * data.preprocess.scale
    if data.preprocess.mean:
        x = x - torch.tensor(data.preprocess.mean)
    if data.preprocess.std:
        x = x / torch.tensor(data.preprocess.std)
    right = (model(x).argmax(1).numpy() == data.y_test).mean()
    assert whole["cells"][0]["measured"] == pytest.approx(100 * right, abs=1e-6)
    assert {c["holds"] for c in whole["claims"]} == {None}  # one seed judges nothing


def test_as_printed_nothing_is_learnt(tmp_path: Path) -> None:
    settings = ["methods=['lora','rolora']", "clients=[5]", "rates=[0.3]", "centralised=false", "begin=zero"]
    whole = reproduce(tmp_path, *settings, seeds=1)
    lines = whole["curves"]["5 clients: accuracy on the test set"]["lines"]
    assert all(len(set(line["mean"])) == 1 for line in lines.values())
    assert any("nothing is learnt" in note for note in whole["notes"])


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("clients=[3]", "cannot be dealt to 3 clients"),
        ("clients=[]", "clients is []"),
        ("begin=later", "'begin' is 'later'"),
        ("rates=[0.1,0.1]", "each named once"),
        ("methods=[]", "methods is empty"),
    ],
)
def test_refusals(setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [part for value in [*TINY, setting] for part in ("--set", value)]
    assert main(["reproduce", "rolora-fig2", *chosen, "--quiet", "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
