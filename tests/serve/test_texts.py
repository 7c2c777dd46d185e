"""A service of texts: each client's own model on a base that all have in common."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg

pytest.importorskip("peft")
pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient

from commonground.data.text import TextSamples
from commonground.engine.run import Run
from commonground.engine.state.tokens import ENROL
from commonground.errors import ConfigError
from commonground.prediction.texts import classify
from commonground.serve import RunModels, Tokens, make_app
from tests.language import tiny_model, token_data
from tests.serve.shops import bearer
from tests.text_files import save_tokenizer, some_words

SHOPS = ("north", "south", "east")


def rows(shop: int, count: int, columns: tuple[str, ...] = ("words",)) -> list[dict[str, str]]:
    """Texts of low or of high words; what is good in one shop is bad in the next."""
    rng = np.random.default_rng(shop)
    found = []
    for row in range(count):
        half = row % 2
        texts = {name: some_words(rng, 20 * half, 20 + 20 * half) for name in columns}
        found.append({**texts, "mood": ("good", "bad")[(half + shop) % 2]})
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    name = tiny_model("bert", folder)
    save_tokenizer(folder, language=False)
    return name


def trained(model: str, folder: Path, columns: tuple[str, ...] = ("words",)) -> Run:
    table = folder / "shops.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        lines = csv.DictWriter(file, ["shop", *columns, "mood"])
        lines.writeheader()
        for number, shop in enumerate(SHOPS):
            lines.writerows({"shop": shop, **row} for row in rows(number, 24, columns))
    return cg.train(
        "lora",
        str(table),
        client_column="shop",
        text_column=",".join(columns),
        label="mood",
        model=model,
        model_options={"rank": 2, "max_length": 12},
        options={"head": "personal"},
        lr=0.02,
        rounds=3,
        out=folder / "run",
    )


@pytest.fixture(scope="module")
def run(model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(model, tmp_path_factory.mktemp("texts"))


@pytest.fixture
def service(run: Run) -> Iterator[tuple[TestClient, Tokens]]:
    assert run.folder is not None
    tokens = Tokens(run.folder)
    with TestClient(make_app(RunModels(cg.load_run(run.folder)), tokens), raise_server_exceptions=False) as client:
        yield client, tokens


def texts(found: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"words": row["words"]} for row in found]


def test_each_client_is_answered_by_its_own_model(service: tuple[TestClient, Tokens], run: Run) -> None:
    """As ``predict`` answers, also where a request is computed in several passes."""
    client, tokens = service
    asked = rows(0, 150)  # more than are computed at once
    samples = TextSamples([row["words"] for row in asked], None, np.zeros(len(asked), np.int64))
    answers = {}
    for shop in SHOPS:
        response = client.post("/v1/predict", json={"rows": texts(asked)}, headers=bearer(tokens.issue(shop)))
        assert response.status_code == 200, response.text
        said = response.json()["predictions"]
        wanted = classify(run, samples, run.trained.known.number(shop))
        values = np.array([[one["values"][name] for name in ("bad", "good")] for one in said])
        assert np.allclose(values, wanted, atol=1e-6)
        assert [one["answer"] for one in said] == [("bad", "good")[i] for i in wanted.argmax(1)]
        answers[shop] = values
    assert not np.allclose(answers["north"], answers["south"], atol=1e-3)
    assert client.get("/health").json()["columns"] == ["words"]
    assert "&quot;words&quot;: &quot;&quot;" in client.get("/").text


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"words": ""}, "row 2: the text 'words' is empty"),
        ({"words": None}, "row 2: the text 'words' is empty"),
        ({"words": 3}, "row 2: the text 'words' is no text"),
        ({"words": True}, "row 2: the text 'words' is no text"),
        ({"text": "w1"}, "row 2 has no column 'words'"),
        ({"words": "w1 \ud800"}, "row 2 holds half of a character"),
        ({"words": "w1", "shop": "south"}, "row 2 is of shop 'south', and who asks is 'north'"),
        (["w1"], "rows of a table are objects with its columns' names"),
    ],
)
def test_rows_that_are_no_texts(service: tuple[TestClient, Tokens], row: Any, said: str) -> None:
    client, tokens = service
    head = bearer(tokens.issue("north"))
    body = json.dumps({"rows": [{"words": "w2"}, row]})
    response = client.post("/v1/predict", content=body, headers={**head, "content-type": "application/json"})
    assert response.status_code == 422
    assert response.json()["detail"].startswith(said)


def test_what_is_cut_and_what_is_ignored_is_told(service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    asked = [
        {"words": "w1 " * 40, "stars": 5},
        {" words": "w1", "mood": "good", "shop": "north"},
        {"words": "w1 " * 40},
    ]
    response = client.post("/v1/predict", json={"rows": asked}, headers=bearer(tokens.issue("north")))
    cut = "fills the 12 tokens that are read; what is longer is cut"
    said = response.json()["predictions"]
    assert [one.get("notes") for one in said] == [[cut, "ignored: 'stars'"], None, [cut]]
    assert np.allclose([*said[0]["values"].values()], [*said[2]["values"].values()])


def test_a_client_is_added_from_texts(service: tuple[TestClient, Tokens], run: Run) -> None:
    client, tokens = service
    enrol = bearer(tokens.issue(ENROL))
    examples = rows(1, 24)
    response = client.post("/v1/clients", json={"client": "west", "rows": examples}, headers=enrol)
    assert response.status_code == 201, response.text
    assert response.json()["metric"] == "accuracy"
    asked = client.post("/v1/predict", json={"rows": texts(examples)}, headers=bearer(response.json()["token"]))
    right = [one["answer"] == row["mood"] for one, row in zip(asked.json()["predictions"], examples, strict=True)]
    assert np.mean(right) > 0.7
    wrong = [{**row, "mood": "unheard"} if n == 2 else row for n, row in enumerate(examples)]
    response = client.post("/v1/clients", json={"client": "other", "rows": wrong}, headers=enrol)
    assert response.status_code == 422
    assert response.json()["detail"] == "row 3 has no mood, or one that the run does not know"
    for shop, status in (("north", 422), ("other", 201)):
        named = [{**row, "shop": shop} for row in examples]
        assert client.post("/v1/clients", json={"client": "other", "rows": named}, headers=enrol).status_code == status


def test_many_who_ask_at_once_are_answered_as_if_alone(run: Run) -> None:
    """Tokenizers and the common base are used by one thread at a time."""
    assert run.folder is not None
    models = RunModels(cg.load_run(run.folder))
    asked = [texts(rows(shop, 9 + 70 * (shop % 2))) for shop in range(6)]
    alone = [models.predict(SHOPS[n % 3], each) for n, each in enumerate(asked)]
    found: dict[int, Any] = {}

    def ask(n: int) -> None:
        found[n] = models.predict(SHOPS[n % 3], asked[n])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, answers in enumerate(alone):
        assert [one.answer for one in found[n]] == [one.answer for one in answers]
        for one, other in zip(found[n], answers, strict=True):
            assert one.values == pytest.approx(other.values, abs=1e-6)


def test_pairs_of_texts_have_two_columns(model: str, tmp_path: Path) -> None:
    run = trained(model, tmp_path, ("question", "reply"))
    models = RunModels(run)
    assert models.columns == ["question", "reply"]
    (one,) = models.predict("north", [{"reply": "w3 w4", "question": "w1"}])
    samples = TextSamples(["w1"], ["w3 w4"], np.zeros(1, np.int64))
    assert [*one.values.values()] == pytest.approx(
        classify(run, samples, run.trained.known.number("north"))[0].tolist(), abs=1e-6
    )


def test_a_run_on_tokens_has_one_column_of_texts(model: str, tmp_path: Path) -> None:
    run = cg.train(
        "lora", token_data(), model=model, model_options={"rank": 2, "max_length": 64}, rounds=1, out=tmp_path / "run"
    )
    models = RunModels(run)
    assert models.columns == ["text"]
    assert models.predict("0", [{"text": "w1 w2"}])[0].answer in ("low", "high")


def test_a_model_that_writes_answers_is_no_service(tmp_path: Path) -> None:
    name = tiny_model("llama-lm", tmp_path / "model")
    save_tokenizer(tmp_path / "model", language=True)
    data = token_data(language=True)
    run = cg.train("lora", data, model=name, model_options={"rank": 2}, rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"is of a language model that writes answers; a service is for tables"):
        RunModels(run)


def test_a_frame_of_texts_is_answered_row_by_row(run: Run) -> None:
    asked = pd.DataFrame([{"shop": shop, **row} for n, shop in enumerate(SHOPS) for row in rows(n, 5)])
    found = cg.predict_rows(run, asked.drop(columns="mood"))
    assert [*found.columns] == ["shop", "class", "bad", "good"]
    for shop, part in asked.groupby("shop"):
        samples = TextSamples(part["words"].tolist(), None, np.zeros(len(part), np.int64))
        wanted = classify(run, samples, run.trained.known.number(str(shop)))
        assert np.allclose(found.loc[part.index, ["bad", "good"]], wanted, atol=1e-6)
