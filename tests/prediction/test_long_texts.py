"""Texts of more tokens than a model has places for, where its tokenizer names a larger limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.data.text import TextSamples
from commonground.engine.run import Run
from commonground.errors import CommonGroundWarning, ConfigError
from commonground.export import export_model
from commonground.prediction.texts import tokens_of
from tests.small_texts import base, table, trained

PLACES = 17  # of 18 positions, which RoBERTa counts from its token for padding on


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained("roberta", tmp_path_factory.mktemp("roberta"))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of the exporter
def test_they_are_cut_to_the_places_and_that_is_told(run: Run, tmp_path: Path) -> None:
    assert run.trained.longest_text == PLACES
    long = ["a good film " * 20, "a good film a good film a good film a good film a good film"]
    told = "2 of 2 texts fill the 17 tokens that are read; what is longer is cut"
    with pytest.warns(CommonGroundWarning, match=told):
        found = cg.predict_rows(run, pd.DataFrame({"who": "x", "text": long}))[["bad", "good"]].to_numpy()
    assert found[0] == pytest.approx(found[1])  # the first 15 words, and what begins and ends a text
    notes: list[str] = []
    tokens_of(run, TextSamples(long, None, np.zeros(2, np.int64)), notes.append)
    assert notes == [told]
    export_model(run, tmp_path / "own", client="x", format="torch")
    assert "max_length=17," in (tmp_path / "own" / "README.md").read_text("utf-8")


def test_a_service_cuts_them_and_tells_it(run: Run) -> None:
    pytest.importorskip("fastapi")
    from commonground.serve import RunModels

    (said,) = RunModels(run).predict("x", [{"text": "a good film " * 20}])
    assert said.notes == ("fills the 17 tokens that are read; what is longer is cut",)


def test_a_run_on_them_says_how_they_are_cut(tmp_path: Path) -> None:
    model, texts = base("roberta", tmp_path / "base"), str(table(tmp_path, words=40))
    said = r"the texts of texts.csv have up to \d+ tokens, and the model 'hf:.*' reads at most 17: cut them"
    with pytest.raises(ConfigError, match=said):
        cg.train("lora", texts, client_column="who", model=model, rounds=1)
    cg.train("lora", texts, client_column="who", model=model, rounds=1, model_options={"max_length": 17})
