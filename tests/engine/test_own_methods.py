"""What a user's own method may do by mistake: every engine does the same, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import commonground as cg
from commonground.algorithms import Algorithm, Client, Server, Tensors, Update, registry
from commonground.algorithms.base import unprefixed
from commonground.algorithms.fedprox import FedProx
from commonground.algorithms.fedrep import FedRep
from commonground.algorithms.flute import FLUTE
from commonground.cli import main
from commonground.engine.clients.captured import taken_along
from commonground.errors import CommonGroundError, ConfigError, ModelError
from commonground.models import Groups
from tests.engine.own_methods import ENGINES, Own, made, net, weights
from tests.helpers import TwoLayer, made_data, own, seeded


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    yield
    registry.pop("spoilt", None)


# -- the order of tensors ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flattening(Own):
    """A server step along the flattened mean change (as FedExP is often written), and a client that looks at names."""

    name = "flattening"

    def server_state(self, initial: Tensors) -> Tensors:
        return {"b/last": torch.zeros(2), "a/last": torch.zeros(3)}

    def client_update(self, client: Client, round: int) -> Tensors:
        assert list(client.received) == [*net().state_dict(), "b/last", "a/last"]
        client.fit("all")
        change = {n: v - client.received[n] for n, v in client.get("all").items()}
        scaled = client.scale(change, 1 / (1 + client.dot(change, change)))
        return client.send({n: client.received[n] + v for n, v in scaled.items()} | unprefixed("none", client.received))

    def server_update(self, server: Server, updates: Any, round: int) -> None:
        names = list(updates[0].tensors)
        old = torch.cat([server.shared[n].flatten() for n in server.shared if n in names])
        new = torch.stack([torch.cat([v.flatten() for v in u.tensors.values()]) for u in updates]).mean(0)
        step, place = old + 1.1 * (new - old), 0
        for name in names:
            size = server.shared[name].numel()
            server.shared[name] = step[place : place + size].view_as(server.shared[name])
            place += size
        server.memory = {"z": step[:1], "y": step[:2], **server.memory}


def test_a_method_meets_tensors_in_one_order(tmp_path: Path) -> None:
    """In messages and after a checkpoint they came in any, and what was flattened did not fit together."""
    assert weights(Flattening(), "serial") == weights(Flattening(), "messages") == weights(Flattening(), "processes")
    whole = weights(Flattening(), "serial", rounds=4)
    weights(Flattening(), "serial", rounds=2, out=tmp_path)
    assert weights(Flattening(), "serial", rounds=4, out=tmp_path, resume=True) == whole


NAMES = tuple(net().state_dict())


@dataclass(frozen=True)
class Mixed(Own):
    """A client's model that is made by going over what it received and keeps, as they come."""

    name = "mixed"

    def client_state(self, initial: Tensors) -> Tensors:
        return {f"own/{name}": value.clone() for name, value in initial.items()}

    def server_state(self, initial: Tensors) -> Tensors:
        return {"b/last": torch.zeros(2), "a/last": torch.zeros(3)}

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        client.keep({f"own/{name}": value for name, value in client.get("all").items()})
        return client.send(client.get("all"))

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        assert list(shared) == [*NAMES, "b/last", "a/last"]
        assert list(own) == [f"own/{name}" for name in NAMES]
        return {name: (shared[name] + mine) / 2 for name, mine in zip(NAMES, own.values(), strict=True)}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_has_the_same_model_in_memory_and_from_the_folder(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint gives shared tensors back in an order of its own, a client's file those of the client."""
    monkeypatch.setitem(registry, "mixed", Mixed)
    torch.manual_seed(0)
    run = cg.train(Mixed(), made(), model=net(), rounds=2, engine=engine, out=tmp_path / "run")
    torch.manual_seed(0)
    read = cg.load_run(tmp_path / "run", model=net())
    x = torch.randn(3, 5)
    for client in range(4):
        assert torch.equal(run.model(client)(x), read.model(client)(x))


# -- what is common to all clients ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaling(Own):
    """scale, dot and send of what the server sent, which is common to all clients."""

    name = "scaling"

    def server_state(self, initial: Tensors) -> Tensors:
        return {f"c/{name}": torch.full_like(value, 0.5) for name, value in initial.items()}

    def client_state(self, initial: Tensors) -> Tensors:
        return {"s/x": torch.ones(())}

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all", epochs=1)
        state = {n: v for n, v in client.received.items() if n.startswith("c/")}
        model = unprefixed("c", state)
        pull = client.scale(state, 1 / client.steps)
        length = client.dot(client.received, client.received) + client.dot({"x": client.state["s/x"]},
                                                                           {"x": client.state["s/x"]})  # fmt: skip
        moved = client.scale(client.get("all"), 1 / (1 + length))
        client.set({n: moved[n] + pull[f"c/{n}"] * model[n] for n in moved})
        return client.send({**client.get("all"), **state})


@pytest.mark.parametrize("clients", [3, 4, 6])  # of as many clients as a tensor has rows axes were mixed up
def test_common_tensors_are_scaled_multiplied_and_sent_alike(clients: int) -> None:
    data = made(clients)
    runs = {}
    for engine in ENGINES:
        torch.manual_seed(0)
        runs[engine] = cg.train(Scaling(), data, model=net(), rounds=2, engine=engine, dtype="float64")
    for engine in ENGINES[1:]:
        for name, value in runs["serial"].trained.shared.items():
            torch.testing.assert_close(runs[engine].trained.shared[name], value, rtol=0, atol=1e-13)


# -- what a server update leaves --------------------------------------------------------------------------------------


def spoilt(change: Callable[[Server, Any], None]) -> Algorithm:
    class Spoilt(Own):
        name = "spoilt"

        def server_update(self, server: Server, updates: Any, round: int) -> None:
            change(server, updates)

    return Spoilt()


def drop(server: Server, updates: list[Update]) -> None:
    server.shared = {n: v for n, v in server.mean(updates).items() if n != "4.bias"}


def add(server: Server, updates: list[Update]) -> None:
    server.shared = {**server.mean(updates), "more": torch.zeros(1)}


def widen(server: Server, updates: list[Update]) -> None:
    server.shared = {n: v.double() for n, v in server.mean(updates).items()}


def shrink(server: Server, updates: list[Update]) -> None:
    server.shared["4.bias"] = server.shared["4.bias"].sum()


def fail(server: Server, updates: list[Update]) -> None:
    server.shared["4.bias"] = updates[0].tensors["none"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop, "leaves out the shared tensor '4.bias'; let it replace entries"),
        (add, "adds the shared tensor 'more'"),
        (widen, r"makes the shared tensor '0.weight' of shape \(4, 5\) and type torch.float64"),
        (shrink, r"makes the shared tensor '4.bias' of shape \(\) and type torch.float32; it was of shape \(3,\)"),
    ],
)
def test_a_server_update_leaves_what_clients_expect(
    change: Callable[[Server, Any], None], said: str, engine: str
) -> None:
    """One client at a time went on with what the client before had left in the model."""
    with pytest.raises(ModelError, match=f"server_update of own in round 1 {said}"):
        weights(spoilt(change), engine)


def test_what_fails_in_a_server_update_is_one_sentence() -> None:
    with pytest.raises(ModelError, match=r"the server's part of round 1 failed: .*KeyError.*test_own_methods.py, line"):
        weights(spoilt(fail), "serial")


# -- what a client received -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InPlace(Own):
    name = "in place"

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        for value in client.received.values():
            value += 1
        return client.send("all")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_received_is_not_changed_in_place(engine: str) -> None:
    with pytest.raises(CommonGroundError, match=r"changes the tensor '0\.weight' that it received, in place"):
        weights(InPlace(), engine)


# -- what a loss or penalty takes along -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anchored(Own):
    """A head held near where it was, by what the penalty takes along or asks the client for."""

    how: str = "ask"
    name = "anchored"
    shared = ("body",)
    personal = ("head",)

    def client_state(self, initial: Tensors) -> Tensors:
        return {"was/4.weight": torch.zeros_like(initial["4.weight"])}

    def client_update(self, client: Client, round: int) -> Tensors:
        before = client.get("head")
        client.keep({"was/4.weight": before["4.weight"]})
        constant = torch.full((4,), 0.5)
        prior = (client.class_counts + 1).log()
        counts: Callable[[], Tensor] = lambda: (client.class_counts + 1).log()  # noqa: E731
        ways: dict[str, Any] = {
            "mapping": {"penalty": lambda own, _: (own["4.weight"] - before["4.weight"]).square().sum()},
            "changed": {"penalty": lambda own, _, w=before["4.weight"] * 2: (own["4.weight"] - w).square().sum()},
            "loss": {"loss": lambda out, y: client.task.loss(out.logits + prior, y)},
            "ask": {
                "penalty": lambda own, _: (own["4.weight"] - client.state["was/4.weight"]).square().sum(),
                "loss": lambda out, y: client.task.loss(out.logits + counts(), y),
            },
            "get": {"penalty": lambda own, _: (own["4.weight"] - 0.5 * client.get("head")["4.weight"]).square().sum()},
            "constant": {"penalty": lambda own, _: (own["4.weight"].sum() * constant).sum()},
        }
        client.fit("head", **ways[self.how])
        return client.send("body")


@pytest.mark.parametrize("how", ["ask", "get", "constant"])
def test_losses_and_penalties_may_ask_the_client(how: str) -> None:
    found = {}
    for engine in ENGINES:
        torch.manual_seed(0)
        run = cg.train(Anchored(how), made(), model=net(), rounds=2, engine=engine, dtype="float64")
        found[engine] = torch.stack([run.model(c).state_dict()["4.weight"] for c in range(4)])
    torch.testing.assert_close(found["batched"], found["serial"], rtol=0, atol=1e-13)
    assert torch.equal(found["messages"], found["serial"])


@pytest.mark.parametrize(("how", "what"), [("mapping", "'before'"), ("changed", "'a default'"), ("loss", "'prior'")])
@pytest.mark.parametrize("clients", [3, 4])
def test_a_tensor_of_all_clients_is_not_taken_along(how: str, what: str, clients: int) -> None:
    with pytest.raises(ModelError, match=f"takes along {what}, a tensor of all {clients} clients"):
        weights(Anchored(how), "batched", made(clients))
    weights(Anchored(how), "serial", made(clients))  # where there is one


def test_what_a_function_takes_along() -> None:
    from functools import partial

    a, b, c, d = (torch.tensor(float(i)) for i in range(4))
    held = {"w": [a]}

    def inner(x: Tensor, *, given: Tensor = b) -> Tensor:
        return x + held["w"][0] + given

    found = list(taken_along(partial(lambda f, x, extra: inner(x) + extra, d, extra=c)))
    assert [(variable, key, float(value)) for variable, key, value in found] == [
        ("held", "w", 0.0), ("given", "", 1.0), ("an argument", "", 3.0), ("extra", "", 2.0),
    ]  # fmt: skip


# -- a client's own model -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixing(Own):
    """A model between the client's and the shared one, by a number of the client's."""

    name = "mixing"

    def client_state(self, initial: Tensors) -> Tensors:
        return {"mix/share": torch.zeros(())} | {f"own/{n}": v.clone() for n, v in initial.items()}

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        client.keep({f"own/{n}": v for n, v in client.get("all").items()})
        client.keep({"mix/share": client.state["mix/share"] + 1 / client.steps})
        return client.send("all")

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        share = own["mix/share"]
        assert share.shape == ()
        return {n: share * v + (1 - share) * shared[n] for n, v in unprefixed("own", own).items()}


@pytest.mark.parametrize("clients", [3, 4])
def test_a_personal_model_sees_one_client(clients: int) -> None:
    """Its numbers need no axes; over several clients they would meet the last axis of a tensor."""
    data = made(clients)
    found = {}
    for engine in ENGINES:
        torch.manual_seed(0)
        run = cg.train(Mixing(), data, model=net(), rounds=2, engine=engine, dtype="float64", metrics="full")
        found[engine] = run.personal_accuracy["mean"]
        right = [
            float((run.predict(data.x_test[data.test_indices(c)], client=c).argmax(1) == y).mean())
            for c in range(clients)
            for y in [data.y_test[data.test_indices(c)]]
        ]
        assert run.personal_accuracy["mean"] == pytest.approx(np.mean(right))
    assert len(set(found.values())) == 1


# -- what a step of its own passes over -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stepping(Own):
    """Plain steps, which know nothing of what `fit` makes of the run's settings."""

    name = "stepping"

    def client_update(self, client: Client, round: int) -> Tensors:
        for batch in client.batches():
            client.step(client.gradient("all", batch))
        return client.send("all")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"head_lr": 0.5}, "--head-lr"),
        ({"body_lr": 0.5}, "--body-lr"),
        ({"clip_norm": 0.1}, "--clip-norm"),
        ({"optimizer": "adam"}, "--optimizer"),
    ],
)
def test_settings_that_a_methods_own_steps_pass_over_are_refused(engine: str, given: dict[str, Any], flag: str) -> None:
    said = (
        f"own takes a step of its own \\(client.step\\), which passes over {flag}; leave it out, or train by client.fit"
    )
    with pytest.raises(CommonGroundError, match=said):
        weights(Stepping(), engine, **given)
    assert weights(Stepping(), engine, optimizer="sgd") == weights(Stepping(), engine)


@dataclass(frozen=True)
class Keeping(Own):
    """A state that bears the name that a tensor of the model might have."""

    name = "keeping"

    def client_state(self, initial: Tensors) -> Tensors:
        return {"mine": torch.zeros(2)}


@dataclass(frozen=True)
class Telling(Own):
    """The same of what the server tells."""

    name = "telling"

    def server_state(self, initial: Tensors) -> Tensors:
        return {"theirs": torch.zeros(2)}


@dataclass(frozen=True)
class Sending(Own):
    """The same of what a client sends beside the model."""

    name = "sending"

    def upload_state(self, initial: Tensors, groups: Groups) -> Tensors:
        return {"sent": torch.zeros(2)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("method", "hook", "name"),
    [
        (Keeping(), "client_state", "mine"),
        (Telling(), "server_state", "theirs"),
        (Sending(), "upload_state", "sent"),
    ],
)
def test_extra_tensors_need_names_that_no_model_has(engine: str, method: Own, hook: str, name: str) -> None:
    said = f"{hook} of own names a tensor '{name}', as one of the model's might be called; .* such as 'own/{name}'"
    with pytest.raises(ModelError, match=said):
        weights(method, engine)


# Other tests go through all that are registered.
for _method in (Flattening, Mixed, Scaling, InPlace, Anchored, Mixing, Stepping, Keeping, Telling, Sending):
    del registry[_method.name]


def test_a_method_may_cut_its_batches() -> None:
    """What the host knows of a batch's rows does not hold for what a method makes of it."""

    @dataclass(frozen=True)
    class Half(Algorithm):
        name, title, source, shared = "half", "Half", "a test", ("all",)

        def client_update(self, client: Any, round: int) -> Any:
            for batch in client.batches(epochs=1, batch_size=4):
                k = max(1, batch.weight.shape[-1] // 2)
                at = (slice(None), slice(k)) if batch.weight.ndim == 2 else slice(k)
                half = batch._replace(
                    x={name: value[at] for name, value in batch.x.items()}, y=batch.y[at], weight=batch.weight[at]
                )
                client.step(client.gradient("all", half))
            return client.send("all")

    def own_loss(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, y, reduction="none")

    runs = [
        cg.train(Half(), made_data((4, 8, 12)), model=seeded(TwoLayer), loss=own_loss, engine=engine, rounds=2, lr=0.1)
        for engine in ("serial", "batched")
    ]
    for name, value in runs[0].shared.items():
        torch.testing.assert_close(value, runs[1].shared[name])


def test_what_is_personal_is_not_sent_unless_the_method_says_so() -> None:
    @own
    class Leaky(FedRep):
        def sends(self, round: int) -> tuple[str, ...]:
            return ("body",) if round == 1 else ("*.weight",)

        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all")
            return client.send(self.sends(round))

        def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
            """Looks at the head and leaves it where it is."""
            server.shared.update({n: v for n, v in server.mean(updates).items() if n in server.shared})

    for engine in ENGINES:
        with pytest.raises(
            ModelError, match=r"^leaky sends '4\.weight' \(sends\(\)\), which is personal and would leave"
        ):
            weights(Leaky(), engine)
    weights(Leaky(), "serial", rounds=1)  # in which no head is sent
    assert FLUTE().server_sees


def test_what_is_sent_and_not_shared_is_not_averaged_into_the_shared_tensors() -> None:
    """Of a method whose server is to see clients' own tensors, and which has no server_update of its own."""

    @own
    class Seen(FedRep):
        """Sends its head as well."""

        server_sees = "heads, to compare clients"

        def sends(self, round: int) -> tuple[str, ...]:
            return ("body", "head")

        def client_update(self, client: Client, round: int) -> Tensors:
            super().client_update(client, round)
            return client.send("body") | client.send("head")

    for engine in ENGINES:
        assert weights(Seen(), engine) == weights(FedRep(), engine)


def test_hyperparameters_of_what_is_no_dataclass_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain.py").write_text(
        "from commonground.algorithms.fedrep import FedRep\n\n\nclass Plain(FedRep):\n    mu: float = 0.1\n"
        "    name = 'plain-one'\n    title = 'Plain'\n    source = 'a test'\n"
    )
    says = "Plain has the hyperparameter 'mu' and is no dataclass; write @dataclass(frozen=True) above its class"
    try:
        for words in (["train", "--set", "mu=0.5"], ["train"], ["list"]):
            assert main([words[0], f"{tmp_path / 'plain.py'}:Plain", *words[1:]]) == 2
            assert says in " ".join(capsys.readouterr().err.split())
        with pytest.raises(ConfigError, match="is no dataclass"):
            registry["plain-one"](mu=0.5)
    finally:
        registry.pop("plain-one", None)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (FLUTE(server_lr=-1.0), r"FLUTE: 'server_lr' is -1\.0: input should be greater than or equal to 0"),
        (FedProx(mu="three"), r"FedProx: 'mu' is 'three': input should be a valid number"),  # type: ignore[arg-type]
    ],
)
def test_hyperparameters_of_an_object_are_checked_as_by_name(method: Algorithm, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cg.train(method, made(), model=net(), rounds=1)


def test_annotations_that_say_nothing_to_others_are_a_methods_own_affair() -> None:
    class Anything:
        """A type of the user's."""

    @own
    @dataclass(frozen=True)
    class WithAnything(FedRep):
        what: Anything | None = None
        how: Callable[[int], int] = abs

    weights(WithAnything(what=Anything()), "serial", rounds=1)
