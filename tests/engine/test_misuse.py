"""What is given wrongly in Python, or was changed since: a sentence, never another model or a traceback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import commonground as cg
from commonground.algorithms import Algorithm, Client, Tensors, registry
from commonground.cli import main
from commonground.engine.known_clients import KnownClients
from commonground.errors import ConfigError, DataError, ModelError, RunError
from tests.helpers import digits, made_data, own

GIVEN: dict[str, Any] = {"rounds": 1, "engine": "serial"}


def named(*names: str) -> cg.FederatedDataset:
    """Two clients of opposite classes."""
    rng, rows = np.random.default_rng(0), []
    for sign in (1, -1):
        x = rng.normal(size=(60, 4))
        y = (sign * x[:, 0] > 0).astype(np.int64)
        rows.append((x[:40], y[:40], x[40:], y[40:]))
    return cg.FederatedDataset.from_arrays(rows, client_names=names)


def test_a_number_that_is_anothers_name_is_no_answer() -> None:
    data = named("1", "0")
    run = cg.train("fedrep", data, rounds=8, lr=0.1, engine="serial")
    numbers: list[Any] = [0, np.int64(1)]
    for number in numbers:
        with pytest.raises(ConfigError, match=f"{number} is the name of one client and the number of another"):
            run.predict(data.x_test, number)
    for number, name in enumerate(("1", "0")):
        own = data.test_indices(number)
        right = (run.predict(data.x_test[own], name).argmax(1) == data.y_test[own]).mean()
        assert right == run.clients[number]["personal_accuracy"]
    assert (run.trained.known.number("1"), cg.train("fedrep", named("0", "1"), **GIVEN).trained.known.number(1)) == (
        0,
        1,
    )
    # A number that no client has can only be a name.
    assert cg.train("fedrep", named("10245", "77"), **GIVEN).trained.known.number(77) == 1


@dataclass(frozen=True)
class Nameless(Algorithm):
    shared = ("all",)

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        return client.send("all")


def test_an_algorithm_without_a_name_or_with_numbers_for_tensors() -> None:
    with pytest.raises(ConfigError, match=r"the algorithm Nameless lacks its name; write name = \"…\" in the class"):
        cg.train(Nameless(), digits(), **GIVEN)

    class Untitled(Nameless):
        name, title = "untitled-here", " "

    try:
        with pytest.raises(ConfigError, match="the algorithm Untitled lacks its title"):
            cg.train(Untitled(), digits(), **GIVEN)
    finally:
        registry.pop("untitled-here")  # other tests go over all methods

    class Numbered(Nameless):
        title = "Numbered"

        def client_state(self, initial: Tensors) -> Tensors:
            return {"h/x": 0.5}  # type: ignore[dict-item]

    Numbered.name = "numbered"
    for engine in ("serial", "messages"):
        with pytest.raises(ModelError, match=r"client_state of Numbered gives for 'h/x' no tensor, but a float: 0.5"):
            cg.train(Numbered(), digits(), **{**GIVEN, "engine": engine})


class Hearing:
    def round(self, row: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"observer": Hearing}, r"an observer is an object, such as Hearing\(\), and not its class"),
        ({"track": Hearing}, "unknown tracker <class .*Hearing'>; known are .* and Tracker objects"),
        ({"track": {}}, "unknown tracker {}; known are"),
    ],
)
def test_objects_of_another_kind(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cg.train("fedrep", digits(), **GIVEN, **given)


def test_a_loss_that_joins_rows_is_refused() -> None:
    """Engines put rows of several clients together, and would train other models."""

    def joined(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output - output.mean(0) * 3, y, reduction="none")

    def drawn(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none") * torch.rand(len(y))

    with pytest.raises(ModelError, match="the loss of a row changes with the rows beside it"):
        cg.train("fedrep", digits(), loss=joined, **GIVEN)
    cg.train("fedrep", digits(), loss=drawn, **GIVEN)


def test_losses_from_which_nothing_can_be_learnt() -> None:
    """It is the loss that is named, and not the model or the learning rate."""

    def detached(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none").detach()

    def nothing(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none") * float("nan")

    def sometimes(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none") * torch.where(y == y[0], float("nan"), 1.0)

    def in_place(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output.clamp_(-30, 30), y, reduction="none")

    for engine in ("serial", "batched"):
        cg.train("fedrep", digits(), loss=in_place, **GIVEN | {"engine": engine})
        with pytest.raises(ModelError, match=r"the loss is no number \(NaN\) for a row of the training data"):
            cg.train("fedrep", digits(), loss=sometimes, **GIVEN | {"engine": engine})
        with pytest.raises(ModelError, match="the loss does not depend on the model's outputs: it is detached"):
            cg.train("fedrep", digits(), loss=detached, **GIVEN | {"engine": engine})
        with pytest.raises(ModelError, match=r"the loss is no number \(NaN\) for a row of the training data"):
            cg.train("fedrep", digits(), loss=nothing, **GIVEN | {"engine": engine})


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (
            lambda output: output,
            r"the loss '<lambda>' has the parameters \(output\), and is called with \(outputs, targets\)",
        ),
        (lambda output, y, z: output, r"the loss '<lambda>' has the parameters \(output, y, z\)"),
        (nn.CrossEntropyLoss(), r"the loss must give one number for each of"),
    ],
)
def test_what_is_no_loss_is_refused(loss: Any, sentence: str) -> None:
    with pytest.raises((ConfigError, ModelError), match=sentence):
        cg.train("fedrep", digits(), loss=loss, **GIVEN)


def _near(tensors: Tensors, received: Tensors) -> Tensor:
    pulls = [((tensors[name] - value) ** 2).sum() for name, value in received.items() if name in tensors]
    return torch.stack(pulls).sum()


@own
@dataclass(frozen=True)
class Pulled(Nameless):
    """FedAvg with a penalty: ``kind`` says of what."""

    kind: str = "near"

    def client_update(self, client: Client, round: int) -> Tensors:
        penalty = {
            "near": _near,
            "zero": lambda tensors, received: 0.0,
            "a tensor of zero": lambda tensors, received: torch.zeros(()),
            "another part": lambda tensors, received: sum((tensors[name] ** 2).sum() for name in client.get("body")),
            "detached": lambda tensors, received: _near(tensors, received).detach() + 1,
            "saturated": lambda tensors, received: min(_near(tensors, received), torch.tensor(1e-4)),
            "later": lambda tensors, received: _near(tensors, received).detach(),
            "a number": lambda tensors, received: 1.0,
            "nan": lambda tensors, received: float("nan"),
            "read": lambda tensors, received: sum((value**2).sum() for value in client.get("head").values()),
        }[self.kind]
        client.fit("head", epochs=3, penalty=penalty)
        return client.send("all")


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_penalty_that_trains_nothing_is_refused(engine: str) -> None:
    """Unless it is 0, as one that is off, or of tensors that a phase does not train."""

    def run(kind: str, **more: Any) -> cg.Run:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        return cg.train(Pulled(kind=kind), made_data(), model=net, lr=0.1, **{**GIVEN, **more, "engine": engine})

    whole = [run(kind).summary["weights_sha256"] for kind in ("zero", "a tensor of zero", "near")]
    assert len({*whole}) == 2
    for kind in ("detached", "later", "a number", "nan", "read"):
        with pytest.raises(ModelError, match="penalty does not depend on the tensors it is called with"):
            run(kind)
    run("another part")
    if engine == "serial":  # where it is a number that Python can compare
        run("saturated")
    private = {"dp": "example", "dp_clip": 1.0, "dp_noise": 1.0}
    run("near", **private)
    with pytest.raises(ModelError, match="penalty does not depend"):
        run("a number", **private)


def test_a_number_of_one_of_clients_that_are_trained_together_is_none() -> None:
    """In a sentence, and not in PyTorch's words."""

    @own
    @dataclass(frozen=True)
    class Read(Nameless):
        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all", penalty=lambda tensors, received: _near(tensors, received).item())
            return client.send("all")

    sentence = r"in .*test_misuse\.py, line \d+: clients are trained together here, .* or take --engine serial$"
    with pytest.raises(ModelError, match=sentence):
        cg.train(Read(), made_data(), **{**GIVEN, "engine": "batched"})


def test_losses_that_take_no_single_row(tmp_path: Path) -> None:
    """Which no batch here is."""

    def squeezed(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output.squeeze(), y.squeeze(), reduction="none")

    data = made_data((20, 20))
    assert cg.train("fedavg", data, loss=squeezed, **GIVEN).config.batch_size == 10
    with pytest.raises(ModelError, match="the loss failed: ZeroDivisionError"):
        cg.train("fedavg", data, loss=lambda output, y: output.sum(1) / (1 // 0), **GIVEN)


def test_trying_a_loss_leaves_the_models_statistics() -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def plain(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none")

    data = made_data((6, 4, 8))
    own, usual = (cg.train("fedavg", data, model=net(), loss=loss, lr=0.1, **GIVEN) for loss in (plain, None))
    for name, value in usual.shared.items():
        torch.testing.assert_close(own.shared[name], value)


def test_layers_of_another_kind_are_told_and_do_not_go_on(tmp_path: Path) -> None:
    """Whose tensors have the same shapes."""

    def net(between: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 3))

    cg.train("fedrep", made_data(), model=net(nn.Tanh()), out=tmp_path / "run", **GIVEN)
    again = {"out": tmp_path / "run", "resume": True, **GIVEN, "rounds": 2}
    with pytest.raises(RunError, match="'Sequential' is another one than when the run in"):
        cg.train("fedrep", made_data(), model=net(nn.ReLU()), **again)
    with pytest.warns(UserWarning, match="'Sequential' is another one than when .* and its models may be too"):
        cg.load_run(tmp_path / "run", model=net(nn.ReLU()))
    cg.load_run(tmp_path / "run", model=net(nn.Tanh()))
    with pytest.raises(ConfigError, match=r"algorithm must be an Algorithm object, such as FedRep\(\), not 'fedrep'"):
        cg.load_run(tmp_path / "run", model=net(nn.Tanh()), algorithm="fedrep")  # type: ignore[arg-type]
    cg.train("fedrep", made_data(), model=net(nn.Tanh()), **again)


def test_what_a_users_layer_says_of_itself_is_not_what_it_is(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """It may print a set, whose order is another one in another process."""

    class Saying(nn.Linear):
        said: list[int] = []  # noqa: RUF012 (of all objects)

        def extra_repr(self) -> str:
            self.said.append(len(self.said))
            return str(self.said)

    def net() -> nn.Module:
        return nn.Sequential(Saying(4, 6), nn.ReLU(), nn.Linear(6, 3))

    given: dict[str, Any] = {"out": tmp_path / "run", "model": net(), "engine": "serial"}
    cg.train("fedrep", made_data(), rounds=1, **given)
    recwarn.clear()
    cg.load_run(tmp_path / "run", model=net())
    assert not [str(one.message) for one in recwarn if "another one" in str(one.message)]
    cg.train("fedrep", made_data(), rounds=2, resume=True, **given)


OWN = '''
from __future__ import annotations
from dataclasses import dataclass
from commonground.algorithms import Algorithm
from torch import nn

@dataclass(frozen=True)
class Mine(Algorithm):
    """What I have made.

    Args:
        weight: how much, or none.
        sizes: several.
        word: a word.
    """
    name = "mine"
    title = "Mine"
    shared = ("all",)
    weight: float | None = 0.5
    sizes: tuple[int, ...] = (1,)
    word: str = "x"

    def client_update(self, client, round):
        client.fit("all")
        return client.send("all")

class Net(nn.Module):
    """A net.

    Args:
        width: of its layer.
    """
    def __init__(self, shape, classes, width: int = 4):
        super().__init__()
'''


def test_a_file_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    for words, said in (
        ("own.py:Mine", ["What I have made.", "how much, or none.", "commonground train own.py:Mine --set weight=0.5"]),
        ("algorithms own.py:Mine", ["What I have made."]),
        ("models own.py:Net", ["of its layer.", "train fedrep --model own.py:Net --set model.width=4"]),
    ):
        assert main(["list", *words.split()]) == 0
        told = capsys.readouterr().out
        assert all(part in told for part in said)
    train = ["train", "own.py:Mine", "--rounds", "1", "--quiet", "--out"]
    for number, value in enumerate(("none", "None", "0.25")):
        assert main([*train, f"run{number}", "--set", f"weight={value}", "--set", "sizes=[3, 4]"]) == 0
    assert cg.load_run("run0", trust_code=True).trained.algorithm.weight is None  # type: ignore[attr-defined]
    for given, says in (
        ('sizes=[1, "none"]', "'sizes' is 'none'"),
        ("sizes=3,4", "input should be a valid tuple, written as [1, 2]"),
        ("word=7", "input should be a valid string; in quotes what looks like a number is one: '\"7\"'"),
        ("weight=abc", "'weight' is 'abc'"),
        ("sizes=none", "'sizes' is 'none'"),
    ):
        assert main([*train, "refused", "--set", given]) == 2
        assert says in capsys.readouterr().err
    assert main([*train, "word", "--set", 'word="7"']) == 0
    Path("own.py").write_text(OWN.replace("client.fit", "client.fit  "))
    with pytest.warns(UserWarning, match="'own.py' is another one than when the run in 'run0' was trained with it"):
        cg.load_run("run0", trust_code=True)


def test_a_word_of_digits_behind_a_zero_is_a_name_and_no_number() -> None:
    known = KnownClients("the run", 12, [f"c{i}" for i in range(12)])
    assert [known.numbered(name) for name in ("7", "0", "11", "12", "007", "07", "00")] == [7, 0, 11, *[None] * 4]
    assert known.number("7") == 7
    with pytest.raises(ConfigError, match="has no client '007'"):
        known.number("007")


def test_numbers_beyond_single_precision_are_refused_before_training() -> None:
    """They are finite as they are stored, and would be none in the first round."""

    def large(by: float, **inputs: Any) -> cg.FederatedDataset:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(20, 3)) * by, np.arange(20) % 2
        return cg.FederatedDataset.from_arrays([(x, y, x[:5], y[:5])] * 2, **inputs)

    with pytest.raises(DataError, match=r"train sample 0 of 'arrays' has a number beyond single precision .*float64"):
        cg.train("fedavg", large(1e300), **GIVEN)
    scaled = cg.data.Preprocess(mean=(0.0,), std=(1e300,), double=True)
    assert cg.train("fedavg", large(1e300, preprocess=scaled), **GIVEN).config.rounds == 1
