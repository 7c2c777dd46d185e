"""Methods that differ in how a pretrained model is adapted: ranks beside one another, and chosen from a grid."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.compare.adapting import ADAPTING
from commonground.compare.methods import Method
from commonground.errors import ConfigError, RunError
from commonground.models.lora_options import LoRAOptions
from tests.helpers import digits
from tests.language import tiny_model, token_data

SETTINGS: dict[str, Any] = {"rounds": 2, "lr": 0.3, "seeds": 1, "workers": 1, "local_only": False}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers")
    return tiny_model("bert", tmp_path_factory.mktemp("model") / "bert")


def test_ranks_beside_one_another_are_those_of_single_runs(bert: str, tmp_path: Path) -> None:
    named = ["lora:model.rank=2", "lora:model.rank=4,model.alpha=8", "fedavg"]
    given: dict[str, Any] = {"model": bert, "model_options": {"dropout": 0.1}}
    found = cg.compare(named, token_data(), **SETTINGS, **given, out=tmp_path / "c")
    assert list(found.runs) == named
    assert [row["title"] for row in found.result["methods"]] == [
        "LoRA (model.rank=2)",
        "LoRA (model.rank=4, model.alpha=8)",
        "FedAvg",
    ]
    for method, options in zip(named, ({"rank": 2}, {"rank": 4, "alpha": 8}, {}), strict=True):
        alone = cg.train(
            method.partition(":")[0], token_data(), model=bert, model_options={"dropout": 0.1, **options}, rounds=2,
            lr=0.3, workers=1,
        )  # fmt: skip
        (run,) = found.runs[method]
        assert run.trained.weights_digest == alone.trained.weights_digest
    small, large = (row["settings"] for row in found.result["methods"][:2])
    assert (small["model.rank"], large["model.rank"], large["model.alpha"]) == (2, 4, 8)
    # The same folder again takes what is there, and none with other options of all methods.
    again = cg.compare(named, token_data(), **SETTINGS, **given, out=tmp_path / "c")
    assert again.result["methods"] == found.result["methods"]
    with pytest.raises(RunError, match=r"was started with model_options = \{'dropout': 0.1.*not \{'dropout': 0.2"):
        cg.compare(named, token_data(), **SETTINGS, model=bert, model_options={"dropout": 0.2}, out=tmp_path / "c")


def test_a_rank_is_chosen_from_a_grid_on_training_rows(bert: str) -> None:
    data = token_data(sizes=(20, 24))
    found = cg.compare(["lora", "rolora:model.rank=1"], data, model=bert, grid={"model.rank": [2, 4]}, **SETTINGS)
    (tuned,) = found.result["tuning"]  # the other method has its own
    assert tuned["method"] == "lora"
    assert [tried["settings"] for tried in tuned["candidates"]] == [{"model.rank": 2}, {"model.rank": 4}]
    best = int(np.argmax([tried["validation_accuracy"] for tried in tuned["candidates"]]))
    assert found.runs["lora"][0].config.model_options["rank"] == [2, 4][best]
    assert found.runs["rolora:model.rank=1"][0].config.model_options["rank"] == 1
    assert found.result["methods"][0]["settings"]["model.rank"] == [2, 4][best]


def test_other_ranks_are_no_other_comparison(bert: str, tmp_path: Path) -> None:
    cg.compare(["lora:model.rank=2"], token_data(), model=bert, **SETTINGS, out=tmp_path)
    found = cg.compare(["lora", "rolora"], token_data(), model=bert, grid={"model.rank": [1]}, **SETTINGS, out=tmp_path)
    assert [row["settings"]["model.rank"] for row in found.result["methods"]] == [1, 1]


def test_what_nobody_named_is_the_usual(bert: str) -> None:
    with pytest.raises(ConfigError, match=r"'lora:model.rank=8' and 'lora' are the same with identical settings"):
        cg.compare(["lora:model.rank=8", "lora"], token_data(), model=bert, **SETTINGS)


def test_all_options_of_adapting_may_differ_but_those_that_read_or_keep() -> None:
    equal = {"base_dtype", "keep_hidden", "max_length", "generative"}
    assert {*ADAPTING} | equal == {*signature(LoRAOptions).parameters}
    assert not {*ADAPTING} & equal


@pytest.mark.parametrize(
    ("methods", "grid", "sentence"),
    [
        (["lora:model.rank=2", "lora"], {}, "'model.rank' says how a pretrained model is adapted"),
        (["fedavg"], {"model.rank": [2, 4]}, "'model.rank' says how a pretrained model is adapted"),
        (["fedavg:model.hidden=9"], {}, "'model.hidden' of 'fedavg' must be equal for all methods of a comparison"),
        (["lora:model.rnk=2"], {}, r"'model.rnk' is no option by which a model is adapted \(did you mean 'rank'"),
        (["lora"], {"model.rnk": [1, 2]}, r"'model.rnk' is no option by which a model is adapted \(did you mean"),
        (["lora:model.max_length=9"], {}, "'model.max_length' of 'lora' must be equal for all methods"),
        (["lora"], {"model.max_length": [9, 10]}, "'model.max_length' must be equal for all methods and candidates"),
    ],
)
def test_what_is_no_adapting_is_equal_for_all(methods: list[str], grid: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        cg.compare(methods, digits(), grid=grid, rounds=1)


def test_it_is_written_as_other_settings_are() -> None:
    method = Method.parse("lora:model.rank=2,lr=0.1,model.layers=1,2")
    assert method.settings == {"model.rank": 2, "lr": 0.1, "model.layers": "1,2"}
    assert Method.parse(method.label) == method
