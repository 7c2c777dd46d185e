"""Whatever goes wrong is a status and a sentence, which tells nothing of the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from commonground.engine.portable import PortableModel
from commonground.serve import RunModels
from tests.serve.shops import SHOPS, bearer, rows

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from commonground.serve import Tokens


def fails(*given: Any, **named: Any) -> Any:
    raise IndexError("index 66 is out of bounds in /srv/secret")


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [(PortableModel, "predict", "the model fails"), (RunModels, "_pass", "the service fails")],
)
def test_failures(
    owner: Any, name: str, said: str, service: tuple[TestClient, Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, tokens = service
    body, head = {"rows": rows(0, 2)}, bearer(tokens.issue(SHOPS[0]))
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fails)
        response = client.post("/v1/predict", json=body, headers=head)
    assert response.status_code == 500
    assert response.json()["detail"].startswith(said)
    assert "66" not in response.text
    assert 'path="/v1/predict",status="500"' in client.get("/metrics").text
    assert client.post("/v1/predict", json=body, headers=head).status_code == 200


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_a_body_in_another_encoding(encoding: str, service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    head = {**bearer(tokens.issue(SHOPS[0])), "content-type": "application/json"}
    text = json.dumps({"rows": [{**row, "note": "\u00e9t\u00e9"} for row in rows(0, 2)]}, ensure_ascii=False)
    response = client.post("/v1/predict", content=text.encode(encoding), headers=head)
    # UTF-16 without a mark is UTF-8 as well, of text with zeros that is no JSON, unless a letter is none of ASCII's.
    assert (response.status_code, response.json()) == (400, {"detail": "the body is no UTF-8"})
    assert client.post("/v1/predict", content=text.encode(), headers=head).status_code == 200


def test_a_column_that_is_there_twice(service: tuple[TestClient, Tokens]) -> None:
    client, tokens = service
    row = rows(0, 1)[0]
    first = next(iter(row))
    asked = {"rows": [row, {**row, f" {first}": row[first]}]}
    response = client.post("/v1/predict", json=asked, headers=bearer(tokens.issue(SHOPS[0])))
    assert (response.status_code, response.json()) == (422, {"detail": f"row 2 has the column '{first}' twice"})
