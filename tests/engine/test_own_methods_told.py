"""What a run says of a method of one's own that would give other numbers than its author means, or none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import commonground as cg
from commonground.algorithms import Client, Server, Tensors, Update, registry
from commonground.algorithms.fedavg import FedAvg
from commonground.algorithms.fedrep import FedRep
from commonground.config import RunConfig
from commonground.engine.backends.factory import make_engine
from commonground.engine.prepare import prepare_setup
from commonground.errors import ConfigError, ModelError
from tests.engine.own_methods import made, net, weights
from tests.helpers import own, seeded


def test_auto_computes_one_by_one_what_fails_for_several_clients_together() -> None:
    """A method that is right in every other engine runs, and a line says why not faster."""

    @own
    class TakesAlong(FedRep):
        def client_update(self, client: Client, round: int) -> Tensors:
            before = client.get("body")
            client.fit("head")
            client.fit("body", penalty=lambda mine, _: sum((mine[n] - before[n]).square().sum() for n in before))
            return client.send("body")

    found = {
        engine: cg.train(TakesAlong(), made(), model=seeded(net), rounds=2, engine=engine, workers=1).summary
        for engine in ("auto", "serial")
    }
    setup = prepare_setup(RunConfig.make({"algorithm": "takesalong", "data": "made"}), made(), net(), TakesAlong())
    engine = make_engine("auto", setup)
    assert engine.name in ("serial", "processes")
    engine.close()
    assert found["auto"]["engine"] == "serial"
    assert found["auto"]["weights_sha256"] == found["serial"]["weights_sha256"]
    says = (
        "clients are not computed together, since takesalong's client_update fails so: the penalty takes along 'before'"
    )
    assert engine.remark.startswith(says)
    assert not engine.remark.endswith("--engine serial")
    with pytest.raises(ModelError, match="takes along 'before'"):
        weights(TakesAlong(), "batched")
    assert make_engine("auto", replace(setup, algorithm=FedRep())).remark == ""


def test_what_looks_at_all_clients_at_once_is_not_computed_so() -> None:
    """It fails nowhere: the length of one client's change is that of all, stacked."""

    @own
    class Shorter(FedAvg):
        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all")
            change = {name: value - client.received[name] for name, value in client.get("all").items()}
            length = torch.sqrt(torch.stack([value.square().sum() for value in change.values()]).sum())
            return client.send({name: client.received[name] + value / length for name, value in change.items()})

    @own
    class Longer(FedAvg):
        """The same by the client's own verbs."""

        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all")
            change = {name: value - client.received[name] for name, value in client.get("all").items()}
            shorter = client.scale(change, 1 / client.dot(change, change).sqrt())
            return client.send({name: client.received[name] + value for name, value in shorter.items()})

    setup = prepare_setup(RunConfig.make({"algorithm": "shorter", "data": "made"}), made(), net(), Shorter())
    says = r"since shorter's client_update gives other numbers for two clients at once than for each alone \('[0-9]"
    assert re.search(says, make_engine("auto", setup).remark)
    with pytest.raises(ConfigError, match=f"{says}.*; or take --engine serial"):
        make_engine("batched", setup)
    assert make_engine("auto", replace(setup, algorithm=Longer())).remark == ""
    assert make_engine("batched", replace(setup, algorithm=Longer())).name == "batched"
    assert weights(Shorter(), "auto") == weights(Shorter(), "serial")


def test_settings_that_a_method_of_ones_own_passes_over_are_told(recwarn: pytest.WarningsRecorder) -> None:
    """Its server sums by itself: nothing stood in the mean's place, and the run said that a median had."""

    @own
    class Sums(FedAvg):
        def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
            for name in updates[0].tensors:
                server.shared[name] = torch.stack([u.tensors[name] for u in updates]).mean(0)

    weights(Sums(), "serial", aggregate="median", weighting="uniform")
    told = [str(one.message) for one in recwarn if "has done nothing" in str(one.message)]
    assert told == [
        "--aggregate median has done nothing in this round: server_update of sums does not call server.mean, nor "
        "server.aggregate or server.weights"
    ]
    recwarn.clear()
    weights(FedAvg(), "serial", aggregate="median", weighting="uniform")

    @own
    class Asks(FedAvg):
        def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
            server.shared.update(server.mean(updates))

    weights(Asks(), "serial", aggregate="median", weighting="uniform")
    assert not [one for one in recwarn if "done nothing" in str(one.message)]


def test_an_observer_may_do_with_a_row_what_it_likes() -> None:
    class Writes:
        def round(self, row: Any) -> None:
            row.clear()

    run = cg.train(FedAvg(), made(), model=seeded(net), rounds=2, engine="serial", observer=Writes())  # type: ignore[arg-type]
    assert [row["round"] for row in run.history] == [1, 2]


def test_no_drift_is_told_of_bodies_where_changes_are_sent() -> None:
    """What lay apart were the changes: of Fed-MTL's models, or of a method that says so itself."""

    @own
    class SendsChanges(FedAvg):
        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all")
            return client.send({name: v - client.received[name] for name, v in client.get("all").items()})

        def change_of(self, received: Tensors, sent: Tensors, buffers: Any) -> Tensors:
            return {name: torch.zeros_like(value) for name, value in sent.items()}

        def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
            for name, change in server.mean(updates).items():
                server.shared[name] = server.shared[name] + change

    for method, told in ((FedAvg(), True), (SendsChanges(), False), (registry["fedmtl"](), False)):
        run = cg.train(method, made(), model=seeded(net), rounds=1, engine="serial")
        assert (run.history[0]["body_drift"] is not None) == told


@pytest.mark.parametrize("engine", ["serial", "batched", "messages"])
def test_state_that_is_not_finite_at_the_start_is_its_hooks_doing(engine: str) -> None:
    """The update of a client was blamed, which only passed it on."""

    @own
    class Spread(FedAvg):
        def server_state(self, initial: Tensors) -> Tensors:
            return {"by/spread": torch.log(-torch.ones(1))}

    with pytest.raises(ModelError, match="server_state of spread gives for 'by/spread' a value that is not finite"):
        weights(Spread(), engine)
