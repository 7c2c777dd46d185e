"""The doors: everyone is answered by its own model, new clients are added, health and metrics; and the command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from socket import AF_INET, AF_INET6, create_connection, create_server, has_dualstack_ipv6

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient

from commonground.engine.state.tokens import ENROL
from commonground.serve import RunModels, Tokens, make_app
from tests.serve.shops import SHOPS, bearer, features, rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


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
    assert cg.load_run(run_dir).trained.known.names == [*sorted(SHOPS), "west"]
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
    for cells in ("1", True, None):
        refused = client.post("/v1/predict", json={"rows": [[cells] * 64]}, headers=headers)
        assert (refused.status_code, refused.json()["detail"]) == (
            422,
            "samples are lists of numbers, all of one shape",
        )
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
    assert process.returncode == 0  # as asked: no failure to whoever started it
