"""A service beside other processes that add clients to its run, or go on with it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient

from commonground.adapt import keep_clients
from commonground.engine.state.lock import locked
from commonground.engine.state.tokens import ENROL
from commonground.errors import ConfigError, RunError
from commonground.serve import RunModels, Tokens, make_app

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def frame(shop: str, rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng([seed, len(shop)])
    a, b = rng.normal(size=(2, rows)).round(4)
    return pd.DataFrame({"shop": shop, "a": a, "b": b, "label": np.where(a + len(shop) * b > 0, "yes", "no")})


def data_of(*shops: str, **more: Any) -> cg.FederatedDataset:
    return cg.load_data(pd.concat([frame(s) for s in shops]), client_column="shop", target="label", **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with-others") / "run"
    cg.train("fedrep", data_of("north", "east"), rounds=3, seed=0, out=folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def others_add(run: Path, shop: str, seed: int = 0) -> None:
    """As another process does, which has read the folder for itself."""
    again = cg.load_run(run)
    new = cg.load_data(frame(shop, seed=seed), client_column="shop", schema=again.trained.schema)
    keep_clients(again, new, seed=seed)


def service(run: Path) -> tuple[TestClient, Tokens, RunModels]:
    models, tokens = RunModels(cg.load_run(run)), Tokens(run)
    return TestClient(make_app(models, tokens), raise_server_exceptions=False), tokens, models


def asked(rows: int = 8) -> list[dict[str, Any]]:
    return frame("any", rows, seed=9)[["a", "b"]].to_dict("records")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def said(models: RunModels, client: str) -> list[list[float]]:
    return [list(one.values.values()) for one in models.predict(client, asked())]


def test_who_is_added_by_others_is_answered_at_once_and_with_the_newest_head(run: Path) -> None:
    _, _, models = service(run)
    with pytest.raises(ConfigError, match=r"^the run of this service has no client 'newest'$"):
        models.predict("newest", asked())
    for seed in (0, 1):
        others_add(run, "newest", seed)
        fresh = RunModels(cg.load_run(run))
        assert said(models, "newest") == said(fresh, "newest")
        assert said(models, "north") == said(fresh, "north")
    assert models.run.trained.known.names == ["east", "north", "newest"]


def test_health_counts_those_whom_others_have_added(run: Path) -> None:
    client, _, _ = service(run)
    others_add(run, "newest")
    assert client.get("/health").json()["clients"] == 3


def test_who_comes_while_another_process_is_at_work_may_try_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, tokens, _ = service(run)
    monkeypatch.setattr(sys.modules["commonground.adapt.keep"], "WAIT", 0.0)
    body = {"client": "newest", "rows": frame("newest").drop(columns="shop").to_dict("records")}
    enrol = bearer(tokens.issue(ENROL))
    with locked(run):
        answer = client.post("/v1/clients", json=body, headers=enrol)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert "try again" in answer.json()["detail"]
    assert client.post("/v1/clients", json=body, headers=enrol).status_code == 201


def test_who_was_added_between_reading_a_run_and_serving_it_is_answered(run: Path) -> None:
    read = cg.load_run(run)
    assert read.trained.known.names == ["east", "north"]
    others_add(run, "newest")
    assert said(RunModels(read), "newest") == said(RunModels(cg.load_run(run)), "newest")


def test_nobody_takes_over_the_name_of_one_whom_others_have_added(run: Path) -> None:
    client, tokens, models = service(run)
    others_add(run, "newest")
    before = said(RunModels(cg.load_run(run)), "newest")
    body = {"client": "newest", "rows": frame("other", seed=5).drop(columns="shop").to_dict("records")}
    answer = client.post("/v1/clients", json=body, headers=bearer(tokens.issue(ENROL)))
    assert (answer.status_code, answer.json()["detail"]) == (422, "there is a client 'newest' already")
    assert said(RunModels(cg.load_run(run)), "newest") == said(models, "newest") == before
    with pytest.raises(ConfigError, match="there is a client 'newest' already"):
        keep_clients(run, data_of("newest", schema=models.run.trained.schema), renew=False)


def test_a_run_that_has_gone_on_takes_no_client_from_those_who_have_not_seen_it(run: Path) -> None:
    client, tokens, models = service(run)
    before = said(models, "north")
    cg.train("fedrep", data_of("north", "east"), rounds=6, seed=0, out=run, resume=True)
    others_add(run, "newest")
    body = {"client": "sixth", "rows": frame("sixth").drop(columns="shop").to_dict("records")}
    answer = client.post("/v1/clients", json=body, headers=bearer(tokens.issue(ENROL)))
    assert answer.status_code == 503
    assert "has gone on" in answer.json()["detail"]
    assert str(run) not in answer.text
    assert cg.load_run(run).trained.known.names == ["east", "north", "newest"]
    with pytest.raises(RunError, match="has gone on since it was read"):
        keep_clients(models.run, data_of("sixth", schema=models.run.trained.schema))
    assert said(models, "north") == before  # as it began
    assert client.post("/v1/predict", json={"rows": asked()}, headers=bearer(tokens.issue("newest"))).status_code == 503


def test_a_body_that_is_not_said_to_be_json_is_told_so(run: Path) -> None:
    """As ``curl -d`` sends it."""
    client, tokens, _ = service(run)
    form = {"Content-Type": "application/x-www-form-urlencoded", **bearer(tokens.issue("north"))}
    answer = client.post("/v1/predict", content=b'{"rows": [{"a": 1, "b": 2}]}', headers=form)
    assert (answer.status_code, answer.json()["detail"]) == (415, "send the header Content-Type: application/json")


def test_who_is_taken_out_by_others_is_answered_no_more_and_nobody_gets_another_ones_model(run: Path) -> None:
    """Those behind it move up by a number, also while a request is under way that knows them by the old one."""
    for shop in ("first", "later", "last one"):
        others_add(run, shop)
    client, tokens, models = service(run)
    before = {shop: said(models, shop) for shop in ("first", "later", "last one", "north")}
    assert len({str(answers) for answers in before.values()}) == 4
    token = tokens.issue("first")
    old = models.run.trained
    cg.forget_clients(run, ["first"])
    answer = client.post("/v1/predict", json={"rows": asked()}, headers=bearer(token))
    assert answer.status_code == 401
    with pytest.raises(ConfigError, match="has no client 'first'"):
        models.predict("first", asked())
    assert {shop: said(models, shop) for shop in before if shop != "first"} == {
        shop: answers for shop, answers in before.items() if shop != "first"
    }
    # A request that began before: whoever it asked for, it does not fill the service's memory with the old numbers.
    number = old.known.number("north")
    assert models._model(old, number) is not models._model(models.run.trained, number)
