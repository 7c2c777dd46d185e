"""The service: own models only, tokens, new clients, every refusal in a sentence, and never a 5xx."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import AF_INET, AF_INET6, create_connection, create_server, has_dualstack_ipv6
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commonground as cg
from commonground.cli import main

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient

from commonground.errors import DataError, RunError
from commonground.serve import RunModels, Tokens, make_app
from commonground.serve.tokens import ENROL, Enrolment

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

SHOPS = ("north", "south", "east")


def rows(shop: int, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows whose label hangs on a and b, each shop in its own way."""
    rng = np.random.default_rng([seed, shop])
    found = []
    for _ in range(count):
        a, b = rng.normal(size=2).round(4).tolist()
        plan = "xyz"[int(rng.integers(3))]
        found.append({"a": a, "b": b, "plan": plan, "label": "yes" if a + (shop - 1) * b > 0 else "no"})
    return found


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    table = pd.DataFrame([{"shop": name, **row} for i, name in enumerate(SHOPS) for row in rows(i, 80)])
    table.to_csv(folder / "shops.csv", index=False)
    columns = ["--client-column", "shop", "--target", "label", "--rounds", "8", "--quiet"]
    assert main(["train", "fedrep", "--data", str(folder / "shops.csv"), *columns, "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def service(run_dir: Path) -> tuple[TestClient, Tokens]:
    tokens = Tokens(run_dir)
    return TestClient(make_app(RunModels(cg.load_run(run_dir)), tokens), raise_server_exceptions=False), tokens


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def features(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "label"} for row in given]


def test_cells_that_are_read_as_none_are_told(service: tuple[TestClient, Tokens], run_dir: Path) -> None:
    client, tokens = service
    asked = features(rows(0, 3, seed=1))
    asked[1]["plan"] = "unheard of"
    for part, noted in ((asked, [1]), (asked[:1], [])):
        body = client.post("/v1/predict", json={"rows": part}, headers=bearer(tokens.issue("north"))).json()
        found = [place for place, one in enumerate(body["predictions"]) if "notes" in one]
        assert found == noted
    models = RunModels(cg.load_run(run_dir))
    asked_for = [features(rows(0, 2)), asked, features(rows(0, 1))]
    answers = models._answers("north", asked_for)
    assert [[bool(one.notes) for one in part] for part in answers] == [[False, False], [False, True, False], [False]]  # type: ignore[union-attr]
    assert answers[1][1].notes == ("plan: 'unheard of' is read as none",)  # type: ignore[index]


def test_cells_that_the_run_does_not_know_are_told(service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    header = bearer(tokens.issue("north"))
    plain, *asked = features(rows(0, 3, seed=1))
    asked[0] |= {"shop": "north", "label": "yes"}  # of the run's table
    asked[1] |= {"colour": "red", "size": 3}
    said = client.post("/v1/predict", json={"rows": [plain, *asked]}, headers=header).json()["predictions"]
    assert [one.get("notes") for one in said] == [None, None, ["ignored: 'colour', 'size'"]]
    for stranger in ("south", "nobody", 3):
        response = client.post("/v1/predict", json={"rows": [plain, {**plain, "shop": stranger}]}, headers=header)
        assert response.status_code == 422
        sentence = f"row 2 is of shop '{stranger}', and who asks is 'north'; every client asks for its own rows"
        assert response.json()["detail"] == sentence
    response = client.post("/v1/predict", json={"rows": [{**plain, " shop": "south"}]}, headers=header)
    assert response.status_code == 422, "names are read without blanks around them"
    for nobody in (None, "", " north "):
        assert (
            client.post("/v1/predict", json={"rows": [{**plain, " shop": nobody}]}, headers=header).status_code == 200
        )


def test_rows_of_clients_that_are_numbers_or_were_pooled(tmp_path: Path) -> None:
    table = pd.DataFrame({"shop": [7] * 20 + [8] * 20 + [9] * 2, "x": np.arange(42.0) % 7, "label": np.arange(42) % 2})
    table.to_csv(tmp_path / "t.csv", index=False)
    data = cg.load_data(tmp_path / "t.csv", client_column="shop", few_rows="pool", min_rows=5, kinds={"x": "number"})
    models = RunModels(cg.train("fedrep", data, rounds=1, out=tmp_path / "run"))
    for whose, shops in (("7", (7, 7.0, "7")), ("(few rows)", (9, "9"))):
        for shop in shops:
            assert models.predict(whose, [{"x": 1.0, "shop": shop}])
    for whose, shop in (("7", 8), ("7", 9), ("(few rows)", 7)):
        with pytest.raises(DataError, match=f"row 1 is of shop '{shop}', and who asks is"):
            models.predict(whose, [{"x": 1.0, "shop": shop}])
    with pytest.raises(DataError, match="row 2 is of shop '7', and who asks is '12'"):
        models.add("12", [{"x": 1.0, "label": 1, "shop": 12}, *[{"x": 1.0, "label": 1, "shop": 7}] * 4])


def test_truths_are_the_words_that_a_table_has_for_them(tmp_path: Path) -> None:
    """JSON's true, of a column whose cells were True, False and unknown."""
    rng = np.random.default_rng(0)
    smoker = rng.choice(["True", "False", "unknown"], 120)
    label = np.where(smoker == "True", "ill", "well")
    frame = pd.DataFrame({"shop": ["a", "b"] * 60, "smoker": smoker, "x": rng.normal(size=120), "label": label})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = cg.load_data(tmp_path / "t.csv", client_column="shop")
    run = cg.train("fedrep", data, rounds=5, out=tmp_path / "run")
    words, truths = (
        pd.DataFrame({"smoker": ["True", "False"], "x": 0.0}),
        pd.DataFrame({"smoker": [True, False], "x": 0.0}),
    )
    assert np.array_equal(run.predict(words, "a"), run.predict(truths, "a"))
    models = RunModels(cg.load_run(tmp_path / "run"))
    for cell in ("True", True, "true"):
        (said,) = models.predict("a", [{"smoker": cell, "x": 0.0}])
        assert said.values == models.predict("a", [{"smoker": "True", "x": 0.0}])[0].values
        assert said.notes == ()


def test_each_client_is_answered_by_its_own_model(service: tuple[TestClient, Tokens], run_dir: Path) -> None:
    client, tokens = service
    asked = features(rows(0, 25, seed=1))
    said = {}
    for name in SHOPS:
        response = client.post("/v1/predict", json={"rows": asked}, headers=bearer(tokens.issue(name)))
        assert response.status_code == 200
        body = response.json()
        assert body["client"] == name
        wanted = cg.load_run(run_dir).predict(pd.DataFrame(asked), name)
        got = [[one["values"]["no"], one["values"]["yes"]] for one in body["predictions"]]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)
        assert [one["answer"] for one in body["predictions"]] == [["no", "yes"][row.argmax()] for row in wanted]
        said[name] = got
    assert said["north"] != said["east"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), (bearer("nonsense"), 401), ({"Authorization": "Basic abc"}, 401), (bearer(""), 401)],
)
def test_who_has_no_token_hears_nothing(
    headers: dict[str, str], status: int, service: tuple[TestClient, Tokens]
) -> None:
    response = service[0].post("/v1/predict", json={"rows": features(rows(0, 1))}, headers=headers)
    assert response.status_code == status
    assert response.json() == {"detail": "a valid token is needed"}


def test_tokens_are_kept_as_hashes_and_can_be_ended(run_dir: Path, service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    token = tokens.issue("south")
    text = (run_dir / "tokens.json").read_text()
    assert token not in text
    assert (run_dir / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert Tokens(run_dir).whose(token) == "south"
    ask = {"rows": features(rows(0, 1))}
    assert client.post("/v1/predict", json=ask, headers=bearer(token)).status_code == 200
    assert tokens.revoke("south") >= 1
    assert client.post("/v1/predict", json=ask, headers=bearer(token)).status_code == 401


def test_what_another_process_does_with_tokens_holds_at_once(run_dir: Path, service: tuple[TestClient, Tokens]) -> None:
    """A token that was ended stays so, whatever the service writes afterwards."""
    client, tokens = service
    other, ask = Tokens(run_dir), {"rows": features(rows(0, 1))}

    def status(token: str) -> int:
        return int(client.post("/v1/predict", json=ask, headers=bearer(token)).status_code)

    ended = tokens.issue("south")
    assert status(ended) == 200
    assert other.revoke("south") >= 1
    assert status(ended) == 401
    given = other.issue("east")
    assert status(given) == 200
    tokens.issue("north")
    assert (status(ended), status(given)) == (401, 200)
    assert (Tokens(run_dir).whose(ended), Tokens(run_dir).whose(given)) == (None, "east")
    assert (run_dir / "tokens.json").stat().st_mode & 0o777 == 0o600


def test_no_token_is_lost_where_many_are_given_out_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as several:
        given = list(several.map(lambda number: Tokens(tmp_path).issue(f"site {number}"), range(20)))
    assert [Tokens(tmp_path).whose(token) for token in given] == [f"site {number}" for number in range(20)]
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]


def test_a_service_whose_tokens_cannot_be_read_lets_nobody_in(tmp_path: Path, run_dir: Path) -> None:
    tokens = Tokens(tmp_path)
    client = TestClient(make_app(RunModels(cg.load_run(run_dir)), tokens), raise_server_exceptions=False)
    token = tokens.issue("north")
    (tmp_path / "tokens.json").write_text("{")
    answer = client.post("/v1/predict", json={"rows": features(rows(0, 1))}, headers=bearer(token))
    assert (answer.status_code, answer.json()) == (503, {"detail": "the tokens of this service cannot be read"})


def test_a_client_that_is_added_where_its_token_cannot_be_kept_is_told(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(client: str) -> str:
        raise RunError(f"'{tmp_path}/tokens.json' cannot be written: no space left")

    tokens = Tokens(tmp_path)
    run = cg.load_run(shutil.copytree(run_dir, tmp_path / "run"))
    service = TestClient(make_app(RunModels(run), tokens), raise_server_exceptions=False)
    token = tokens.issue(ENROL)
    monkeypatch.setattr(tokens, "issue", full)
    answer = service.post("/v1/clients", json={"client": "late", "rows": rows(0, 12)}, headers=bearer(token))
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("the client is there now, but its token cannot be kept")
    assert str(tmp_path) not in answer.text


def test_a_client_whose_name_is_a_path_gets_a_clients_token(
    tmp_path: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(run_dir, tmp_path / "run")
    tokens = Tokens(run)
    client = TestClient(make_app(RunModels(cg.load_run(run)), tokens), raise_server_exceptions=False)
    enrol = tokens.issue(ENROL)
    body = {"client": "/enrol", "rows": rows(0, 8)}
    own = client.post("/v1/clients", json=body, headers=bearer(enrol)).json()["token"]
    assert main(["serve", str(run), "--token-for", "/enrol"]) == 0
    for token in (own, capsys.readouterr().out.strip()):
        assert tokens.whose(token) == "/enrol"
        answer = client.post("/v1/clients", json=body, headers=bearer(token))
        assert (answer.status_code, "this token is a client's" in answer.text) == (403, True)
        answer = client.post("/v1/predict", json={"rows": features(rows(0, 1))}, headers=bearer(token))
        assert (answer.status_code, answer.json()["client"]) == (200, "/enrol")
    assert main(["serve", str(run), "--revoke", "/enrol"]) == 0
    assert (tokens.whose(own), tokens.whose(enrol)) == (None, ENROL)
    assert main(["serve", str(run), "--revoke-to-enrol"]) == 0
    assert tokens.whose(enrol) is None
    assert main(["serve", str(run), "--revoke-to-enrol", "--token-for", "/enrol"]) == 2
    assert "give one of --token-for, --token-to-enrol, --revoke and --revoke-to-enrol" in capsys.readouterr().err


def test_a_token_opens_one_door(service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    ask = {"rows": features(rows(0, 1))}
    enrol, own = tokens.issue(ENROL), tokens.issue("north")
    assert client.post("/v1/predict", json=ask, headers=bearer(enrol)).status_code == 403
    body = {"client": "x", "rows": rows(0, 8)}
    assert client.post("/v1/clients", json=body, headers=bearer(own)).status_code == 403
    named = tokens.issue("client /enrol")
    assert client.post("/v1/clients", json=body, headers=bearer(named)).status_code == 403


def test_a_new_client_is_added_from_examples(service: tuple[TestClient, Tokens], run_dir: Path) -> None:
    client, tokens = service
    enrol = bearer(tokens.issue(ENROL))
    examples = rows(2, 60, seed=5)
    added = client.post("/v1/clients", json={"client": "west", "rows": examples}, headers=enrol)
    assert added.status_code == 201, added.text
    body = added.json()
    assert (body["client"], body["metric"]) == ("west", "accuracy")
    assert body["value"] > 0.6
    fresh = rows(2, 60, seed=6)
    said = client.post("/v1/predict", json={"rows": features(fresh)}, headers=bearer(body["token"])).json()
    right = [one["answer"] == row["label"] for one, row in zip(said["predictions"], fresh, strict=True)]
    assert np.mean(right) > 0.75
    assert cg.load_run(run_dir).trained.names == [*sorted(SHOPS), "west"]
    again = client.post("/v1/clients", json={"client": "west", "rows": examples}, headers=enrol)
    assert again.status_code == 422
    assert again.json()["detail"] == "there is a client 'west' already"
    for wrong, says in (
        ({"client": "n", "rows": rows(0, 3)}, "3 rows are too few"),
        ({"client": "n", "rows": features(rows(0, 9))}, "label"),
        ({"client": "n", "rows": [*rows(0, 8), {**rows(0, 1)[0], "label": "perhaps"}]}, "row 9 has no label, or one"),
        ({"client": " n", "rows": rows(0, 8)}, "a client's name is"),
        ({"client": "all", "rows": rows(0, 8)}, "cannot be called 'all'"),
        ({"client": "1", "rows": rows(0, 8)}, "a new client cannot be called '1', which is another one's number"),
    ):
        response = client.post("/v1/clients", json=wrong, headers=enrol)
        assert response.status_code == 422, response.text
        assert says in response.json()["detail"]
        assert str(run_dir) not in response.text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["--data", "digits", "--clients", "3"], "the run of this service is of no table"),
        (["--scaling", "client"], "the run of this service scales by each client's own statistics"),
    ],
)
def test_who_would_be_added_is_told_no_folder_of_the_host(
    settings: list[str], says: str, run_dir: Path, tmp_path: Path
) -> None:
    shops = ["--data", str(run_dir.parent / "shops.csv"), "--client-column", "shop", "--target", "label"]
    given = settings if "--data" in settings else [*shops, *settings]
    assert main(["train", "fedrep", *given, "--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]) == 0
    tokens = Tokens(tmp_path / "run")
    client = TestClient(make_app(RunModels(cg.load_run(tmp_path / "run")), tokens), raise_server_exceptions=False)
    body = {"client": "west", "rows": rows(0, 8)}
    response = client.post("/v1/clients", json=body, headers=bearer(tokens.issue(ENROL)))
    assert response.status_code == 422
    assert says in response.json()["detail"]
    assert str(tmp_path) not in response.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"rows": [{"a": 1, "plan": "x"}, {"a": ["x"], "plan": "x"}]}', "row 2, column 'a': a cell is a text, a fin"),
        ('{"rows": [{"a": NaN}]}', "row 1, column 'a': a cell is a text, a finite number, true, false or null"),
        ('{"rows": [{"a": 1e400}]}', "row 1, column 'a': a cell is"),
        ('{"rows": [{"a": 1, "b": 2, "plan": "x"}, {"plan": "\\ud800"}]}', "row 2 holds half of a character, \\ud800"),
        ('{"rows": [3]}', "row 1 is no object of cells by their columns' names"),
        ('{"rows": [', "the body is no JSON: "),
        ('{"rows": []}', "rows: List should have at least 1 item"),
        ("{}", "rows: Field required"),
    ],
)
def test_a_body_of_another_form_is_told_by_its_row_and_column(
    body: str, says: str, service: tuple[TestClient, Tokens]
) -> None:
    client, tokens = service
    headers = {**bearer(tokens.issue("north")), "content-type": "application/json"}
    response = client.post("/v1/predict", content=body.encode(), headers=headers)
    assert response.status_code == 422
    assert response.json()["detail"].startswith(says)
    enrol = {**headers, **bearer(tokens.issue(ENROL))}
    response = client.post("/v1/clients", content=body.replace("{", '{"client": "x", ', 1).encode(), headers=enrol)
    assert response.status_code == 422
    assert "[" not in response.json()["detail"]


def test_every_row_has_every_column(service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    headers = bearer(tokens.issue("north"))
    full: dict[str, Any] = {"a": 1.0, "b": None, "plan": "x"}
    misspelt = {"a": 2.0, "bb": 3.0, "plan": "x"}
    said = client.post("/v1/predict", json={"rows": [full, {**full, "c": 1}, {"plan ": "y", **full}]}, headers=headers)
    assert said.status_code == 422, "both 'plan' and 'plan '"
    said = client.post("/v1/predict", json={"rows": [full, {**full, "c": 1}]}, headers=headers)
    assert said.status_code == 200, "null is a missing value, and other columns are ignored"
    for body in ([full, misspelt], [misspelt, full]):
        said = client.post("/v1/predict", json={"rows": body}, headers=headers)
        row = 1 + body.index(misspelt)
        assert said.status_code == 422, said.text
        says = f"row {row} has no column 'b' (did you mean 'bb'?); its columns are: a, bb, plan"
        assert said.json()["detail"] == says
    examples = rows(1, 9)
    del examples[6]["label"]
    added = client.post("/v1/clients", json={"client": "n", "rows": examples}, headers=bearer(tokens.issue(ENROL)))
    assert added.status_code == 422
    assert added.json()["detail"].startswith("row 7 has no column 'label'; its columns are: a, b, plan")


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([True], "row 1, column 'a': 'true' is not a finite number"),
        ([None, False], "row 2, column 'a': 'false' is not a finite number"),
        ([1.5, True], "row 2, column 'a': 'true' is a truth, and row 1 has a number"),
        ([True, 1.5], "row 2, column 'a': '1.5' is a number, and row 1 has a truth"),
        ([1, True], "row 2, column 'a': 'true' is a truth, and row 1 has a number"),
    ],
)
def test_a_truth_among_numbers_is_refused_by_row_and_column(
    cells: list[Any], says: str, service: tuple[TestClient, Tokens]
) -> None:
    client, tokens = service
    body: dict[str, Any] = {"rows": [{"a": cell, "b": 1.0, "plan": "x"} for cell in cells]}
    said = client.post("/v1/predict", json=body, headers=bearer(tokens.issue("north")))
    assert said.status_code == 422, said.text
    assert said.json()["detail"].startswith(f"the table, {says}")
    examples = [{**row, "label": "yes"} for row in [*body["rows"], *features(rows(0, 8))]]
    said = client.post("/v1/clients", json={"client": "n", "rows": examples}, headers=bearer(tokens.issue(ENROL)))
    assert said.status_code == 422, said.text
    assert "column 'a': " in said.json()["detail"]


WRONG: dict[str, Any] = {
    "no rows": {"rows": []},
    "a column lacks": {"rows": [{"a": 1.0, "plan": "x"}]},
    "words for a number": {"rows": [{"a": "one", "b": 1.0, "plan": "x"}]},
    "lists": {"rows": [[1.0, 2.0]]},
    "nothing": {},
    "more": {"rows": [{"a": 1, "b": 2, "plan": "x"}], "client": "south"},
    "a long number": {"rows": [{"a": 10**400, "b": 2, "plan": "x"}]},
    "half a character": {"rows": [{"a": 1, "b": 2, "plan": "\ud800"}]},
    "a name with half a character": {"rows": [{"a": 1, "b": 2, "plan": "x", "\udfff": 1}]},
    "an object": {"rows": [{"a": {"deep": 1}, "b": 2, "plan": "x"}]},
    "a name twice": {"rows": [{"a": 1, "b": 2, "plan": "x", "a ": 3}]},
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_in_a_sentence(body: Any, service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    headers = {**bearer(tokens.issue("north")), "content-type": "application/json"}
    response = client.post("/v1/predict", content=json.dumps(body).encode(), headers=headers)
    assert response.status_code == 422, response.text
    assert 0 < len(response.json()["detail"]) <= 1000
    assert "\n" not in response.json()["detail"]
    assert "row 0" not in response.json()["detail"], "rows are counted from 1"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 422),
        (b"\xff\xfe", 422),
        (b"\xff\xff", 400),
        (b'{"rows": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422),
        (b'{"rows": [{"a": NaN, "b": Infinity, "plan": "x"}]}', 422),
        (b" " * (16 * 1024 * 1024 + 1), 413),
    ],
)
def test_bytes_that_are_no_request(content: bytes, status: int, service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    headers = {**bearer(tokens.issue("north")), "content-type": "application/json"}
    response = client.post("/v1/predict", content=content, headers=headers)
    assert response.status_code == status, response.text
    assert "\n" not in response.json()["detail"]
    assert (response.json()["detail"] == "the body is nested too deeply") is (b"[[" in content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
CELLS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | JSON
TABLE = st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS, "plan": CELLS}, optional={"c": CELLS}), max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.one_of(JSON, st.fixed_dictionaries({"rows": TABLE | JSON})), door=st.sampled_from(["predict", "clients"])
)
def test_no_body_makes_the_service_fail(body: Any, door: str, service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    given = {"client": "z", **body} if door == "clients" and isinstance(body, dict) else body
    headers = bearer(_token(tokens, "north" if door == "predict" else ENROL)) | {"content-type": "application/json"}
    response = client.post(f"/v1/{door}", content=json.dumps(given).encode(), headers=headers)
    assert response.status_code in (200, 422), response.text


_KEPT: dict[object, str] = {}


def _token(tokens: Tokens, whose: str | Enrolment) -> str:
    if whose not in _KEPT:
        _KEPT[whose] = tokens.issue(whose)
    return _KEPT[whose]


def test_health_metrics_page_and_openapi(service: tuple[TestClient, Tokens]) -> None:
    client, _ = service
    health = client.get("/health").json()
    assert health["status"] == "ok"
    assert health["clients"] >= len(SHOPS)
    assert health["columns"] == ["a", "b", "plan"]
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "&quot;plan&quot;" in page.text
    assert "https://" not in page.text, "nothing is loaded from elsewhere"
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/health", "/metrics", "/", "/v1/predict", "/v1/clients"}
    assert client.get("/nowhere").status_code == 404
    text = client.get("/metrics").text
    assert 'commonground_requests_total{path="/health",status="200"}' in text
    for name in SHOPS:
        assert name not in text, "no client's name in what anybody may read"


def test_numbers_without_a_table(tmp_path: Path) -> None:
    run = cg.train("fedrep", "digits", clients=4, rounds=1, local_epochs=1, workers=1, out=tmp_path / "run")
    data = cg.load_data("digits", 4)
    tokens = Tokens(tmp_path / "run")
    client = TestClient(make_app(RunModels(run), tokens), raise_server_exceptions=False)
    headers = bearer(tokens.issue("2"))
    x = data.x_test[:3]
    said = client.post("/v1/predict", json={"rows": x.tolist()}, headers=headers).json()
    got = [list(one["values"].values()) for one in said["predictions"]]
    np.testing.assert_allclose(got, run.predict(x, 2), atol=1e-12)
    flat = client.post("/v1/predict", json={"rows": x.reshape(3, -1).tolist()}, headers=headers).json()
    assert flat == said
    assert client.post("/v1/predict", json={"rows": [[1.0]]}, headers=headers).status_code == 422
    examples = {"client": "n", "rows": [{"a": 1}] * 5}
    refused = client.post("/v1/clients", json=examples, headers=bearer(tokens.issue(ENROL)))
    assert refused.status_code == 422
    assert "is of no table" in refused.json()["detail"]


def test_by_command_until_it_is_told_to_stop(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(run_dir), "--token-for", "nobody"]) == 2
    assert "has no client 'nobody'" in capsys.readouterr().err
    assert main(["serve", str(run_dir), "--host", "no.such.host.invalid"]) == 2
    assert "nothing can listen on --host no.such.host.invalid --port 8000: " in capsys.readouterr().err
    for host, family in (("127.0.0.1", AF_INET), *([("::1", AF_INET6)] if has_dualstack_ipv6() else [])):
        with create_server((host, 0), family=family) as taken:
            port = str(taken.getsockname()[1])
            assert main(["serve", str(run_dir), "--host", host, "--port", port]) == 2
        assert f"nothing can listen on --host {host} --port {port}: Address already in use" in capsys.readouterr().err
    for flag in ("--token-for", "--revoke"):  # a number might be meant for another client
        assert main(["serve", str(run_dir), flag, "0"]) == 2
        assert "has no client '0'" in capsys.readouterr().err
    assert main(["serve", str(run_dir), "--token-for", "east"]) == 0
    token, whose = capsys.readouterr()
    assert whose == f"for client 'east' of {run_dir}\n"
    token = token.strip()
    command = [sys.executable, "-m", "commonground", "serve", str(run_dir), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        told = re.fullmatch(
            rf"serving \d+ clients of {run_dir} at (http://(\S+):(\d+)); Ctrl-C ends it\n", process.stderr.readline()
        )
        assert told is not None
        base = told[1]
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{base}/health").read()
                break
            except OSError:
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.1)
        body = json.dumps({"rows": features(rows(0, 2))}).encode()
        headers = {**bearer(token), "content-type": "application/json"}
        request = urllib.request.Request(f"{base}/v1/predict", body, headers)
        assert json.loads(urllib.request.urlopen(request).read())["client"] == "east"
        # Who sends all of it before reading hears why it is refused, and finds no connection reset.
        request = urllib.request.Request(f"{base}/v1/predict", b" " * (30 * 1024 * 1024), headers)
        with pytest.raises(urllib.error.HTTPError, match="413"):
            urllib.request.urlopen(request)
        # Who asks first, as curl does, is not told to send it.
        with create_connection((told[2], int(told[3])), timeout=60) as plain:
            plain.sendall(
                b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 30000000\r\nExpect: 100-continue\r\n\r\n"
            )
            assert plain.recv(100).startswith(b"HTTP/1.1 413 ")
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode in (0, -signal.SIGTERM, 130, 143)
