"""Who may ask: tokens open one door each, and nothing is told without."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import commonground as cg
from commonground.cli import main

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient

from commonground.engine.state.tokens import ENROL
from commonground.errors import RunError
from commonground.serve import RunModels, Tokens, make_app
from tests.serve.shops import bearer, features, rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


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


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/clients"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer of-somebody"}, {"Authorization": "Basic eA=="}])
def test_of_who_has_no_token_no_body_is_read(
    path: str, headers: dict[str, str], service: tuple[TestClient, Tokens]
) -> None:
    client, _ = service
    for body in (b"no json", b"[" * 3000, b'{"rows": 3}'):
        response = client.post(path, content=body, headers={"Content-Type": "application/json"} | headers)
        assert response.status_code == 401
        assert response.json()["detail"] == "a valid token is needed"
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert f'commonground_requests_total{{path="{path}",status="401"}}' in client.get("/metrics").text


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
