"""Rows and other bodies: every refusal in a sentence, and never a 5xx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commonground as cg

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient

from commonground.data.tables.schema import TableSchema
from commonground.engine.state.tokens import ENROL, Enrolment
from commonground.errors import DataError
from commonground.serve import RunModels, Tokens
from commonground.serve.rows import _check_owner
from tests.serve.shops import bearer, features, rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


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
        ([True], "row 1, column 'a': 'true' is no number"),
        ([None, False], "row 2, column 'a': 'false' is no number"),
        ([1.5, True], "row 2, column 'a': 'true' is no number"),
        ([True, 1.5], "row 1, column 'a': 'true' is no number"),
        ([1, True], "row 2, column 'a': 'true' is no number"),
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


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"rows": [{"a": 1, "plan": "x"}, {"a": ["x"], "plan": "x"}]}', "row 2, column 'a': a cell is a text, a fin"),
        ('{"rows": [{"a": NaN}]}', "row 1, column 'a': a cell is a text, a finite number, true, false or null"),
        ('{"rows": [{"a": 1e400}]}', "row 1, column 'a': a cell is"),
        ('{"rows": [{"a": 1, "b": 2, "plan": "x"}, {"plan": "\\ud800"}]}', "row 2 holds half of a character, \\ud800"),
        (
            '{"rows": [{"a": 1, "b": 2, "plan": "x"}, {"a": 9007199254740993}]}',
            "row 2, column 'a': a whole number beyond 2^53 loses digits: an identifier is written as text",
        ),
        ('{"rows": [3]}', "row 1 is no object of cells by their columns' names"),
        ('{"rows": [', "the body is no JSON: "),
        ('{"rows": []}', "'rows' is empty; at least one is needed"),
        ("{}", "the body lacks the field 'rows'"),
        ("[1]", "the body is no object; one with the field 'rows' is needed"),
        (json.dumps({"rows": [{}] * 10_001}), "'rows' holds more than the 10,000 of one request"),
        ('{"rows": [{}]}', "row 1 has no column 'a'; it has none"),
        ('{"rows": [{"a": 1}], "whose": "north"}', "'whose' is no field of this request"),
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
        (b"\xff\xfe", 400),
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


def test_a_body_that_is_not_said_to_be_json(service: tuple[TestClient, Tokens]) -> None:
    """As curl sends it by default."""
    client, tokens = service
    headers = {**bearer(tokens.issue("north")), "content-type": "application/x-www-form-urlencoded"}
    response = client.post("/v1/predict", content=json.dumps({"rows": features(rows(0, 1))}).encode(), headers=headers)
    assert response.status_code == 415
    assert response.json() == {"detail": "send the header Content-Type: application/json"}


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


@pytest.mark.parametrize(("whose", "refused"), [(True, False), ("True", False), (False, True), ("False", True)])
def test_truths_name_clients_as_well(whose: object, refused: bool) -> None:
    """JSON's true is a client's name, which a table writes True."""
    schema = TableSchema((), ("y",), "classification", ("a", "b"), client_column="who")
    if refused:
        with pytest.raises(DataError, match="who asks is 'True'; every client asks for its own rows"):
            _check_owner([{"who": whose}], schema, "True")
    else:
        _check_owner([{"who": whose}], schema, "True")
