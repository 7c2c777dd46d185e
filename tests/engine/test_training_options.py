"""Rates of head and body, warm-up, clipping, spared biases, class weights and losses of one's own, in every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commonground import compare, load_data, load_run, train
from commonground.algorithms.fedrep import FedRep
from commonground.errors import ConfigError, ModelError, RunError
from tests.algorithms.reference import BATCH, BODY, HEAD, SEED, network, plan_batches, problem
from tests.helpers import ENGINES, assert_same_run, assert_tensors_close, digits, train_whole
from tests.language import tiny_model, token_data

LR, DECAY = 0.1, 0.2
SETTINGS: dict[str, Any] = {
    "seed": SEED, "lr": LR, "momentum": 0.5, "batch_size": BATCH, "local_epochs": 3, "dtype": "float64", "rounds": 1,
    "weight_decay": DECAY,
}  # fmt: skip


def by_torch(
    client: int,
    phases: list[tuple[tuple[str, ...], int]],
    *,
    rates: dict[str, float] | None = None,
    clip: float | None = None,
    spare: bool = False,
    weights: Tensor | None = None,
) -> dict[str, Tensor]:
    """A client's tensors after phases of (names, epochs) with PyTorch's own SGD and clipping."""
    model, data = network().double(), problem()
    tensors = dict(model.named_parameters())
    for number, (names, epochs) in enumerate(phases, 1):
        groups = [
            {
                "params": [tensors[n]],
                "lr": (rates or {}).get("head" if n in HEAD else "body", LR),
                "weight_decay": 0.0 if spare and tensors[n].ndim < 2 else DECAY,
            }
            for n in names
        ]
        optimizer = torch.optim.SGD(groups, lr=LR, momentum=0.5)
        for x, y in plan_batches(data, client, 1, number, epochs=epochs):
            target = torch.from_numpy(y)
            rows = F.cross_entropy(model(torch.from_numpy(x)), target, reduction="none")
            model.zero_grad()
            (rows if weights is None else rows * weights[target]).mean().backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([tensors[n] for n in names], clip)
            optimizer.step()
    return {name: value.detach() for name, value in tensors.items()}


ALL = BODY + HEAD
WEIGHTS = (0.5, 3.0, 1.5)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rates of head and body": ({"head_lr": 0.3, "body_lr": 0.02}, {"rates": {"head": 0.3, "body": 0.02}}),
    "a rate of the head alone": ({"head_lr": 0.3}, {"rates": {"head": 0.3}}),
    "clipping": ({"clip_norm": 0.05}, {"clip": 0.05}),
    "clipping of what is rarely large": ({"clip_norm": 0.6}, {"clip": 0.6}),
    "spared biases": ({"no_decay_bias": True}, {"spare": True}),
    "class weights": ({"class_weights": WEIGHTS}, {"weights": torch.tensor(WEIGHTS, dtype=torch.float64)}),
    "all of them": (
        {"head_lr": 0.3, "clip_norm": 0.2, "no_decay_bias": True, "class_weights": "0.5,3,1.5"},
        {"rates": {"head": 0.3}, "clip": 0.2, "spare": True, "weights": torch.tensor(WEIGHTS, dtype=torch.float64)},
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_every_option_is_what_torch_makes_of_it(case: str, engine: str) -> None:
    """FedRep's head phase (kept features, gradient written out where there are no weights) and its body phase."""
    given, expected = CASES[case]
    options = {"head_epochs": 4}
    whole = train_whole("fedrep", problem(), model=network(), engine=engine, options=options, **SETTINGS, **given)
    plain = by_torch(0, [(HEAD, 4), (BODY, 3)])
    found = [by_torch(client, [(HEAD, 4), (BODY, 3)], **expected) for client in range(3)]
    assert not torch.allclose(plain["fc.weight"], found[0]["fc.weight"], atol=1e-6)
    for client, tensors in enumerate(whole.personal):
        assert_tensors_close(tensors, {n: found[client][n] for n in HEAD}, 1e-12)
    assert_tensors_close(whole.run.shared, {n: sum(f[n] for f in found) / 3 for n in BODY}, 1e-12)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_head_and_body_at_once(engine: str) -> None:
    given, expected = CASES["all of them"]
    whole = train_whole("local", problem(), model=network(), engine=engine, **SETTINGS, **given)
    for client, tensors in enumerate(whole.personal):
        assert_tensors_close(tensors, by_torch(client, [(ALL, 3)], **expected), 1e-12)


# -- warm-up --------------------------------------------------------------------------------------------------------


def test_the_learning_rate_rises_over_the_first_rounds() -> None:
    run = train("fedavg", digits(), rounds=5, lr=0.08, warmup=3)
    assert [row["lr"] for row in run.history] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.08], abs=0)
    assert run.summary["warmup"] == 3


def test_warm_up_does_not_hang_on_the_number_of_rounds(tmp_path: Path) -> None:
    for rounds in (4, 7):
        longer = train("fedavg", digits(), rounds=rounds, warmup=3, out=tmp_path / "run", resume=True)
    once = train("fedavg", digits(), rounds=7, warmup=3)
    assert longer.summary["weights_sha256"] == once.summary["weights_sha256"]


# -- losses ---------------------------------------------------------------------------------------------------------


def weighted(output: Tensor, target: Tensor) -> Tensor:
    """As class weights are."""
    return F.cross_entropy(output, target, reduction="none") * torch.tensor(WEIGHTS, dtype=output.dtype)[target]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_of_ones_own(engine: str) -> None:
    own = train_whole("fedrep", problem(), model=network(), engine=engine, loss=weighted, **SETTINGS)
    other = train_whole("fedrep", problem(), model=network(), engine=engine, class_weights=WEIGHTS, **SETTINGS)
    assert_tensors_close(own.run.shared, other.run.shared, 1e-12)
    assert own.run.summary["loss"] == "weighted"
    tested = [[row["test_loss"] for row in run.run.clients] for run in (own, other)]
    assert tested[0] == pytest.approx(tested[1], abs=1e-9)  # the task's own loss, without weights


def squared(output: Tensor, target: Tensor) -> Tensor:
    """As a regression's own loss is written down."""
    return (output - target).square().mean(1)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_loss_of_standardised_numbers_has_both_in_one_unit(engine: str) -> None:
    """Targets of a table, large and far from zero: the task's formula as one's own is the task's loss."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=90), "site": np.repeat(["a", "b", "c"], 30)})
    rows["price"] = 4000 + 70 * rows.x + rng.normal(size=90)
    data = load_data(rows, client_column="site", target="price", task="regression")
    settings: dict[str, Any] = {"rounds": 3, "lr": 0.05, "dtype": "float64", "engine": engine, "seed": 1}
    own, task = (train("fedavg", data, loss=loss, **settings) for loss in (squared, None))
    assert_tensors_close(own.shared, task.shared, 1e-12)
    assert own.summary["metrics"]["rmse"]["mean"] == pytest.approx(task.summary["metrics"]["rmse"]["mean"])
    absolute = train("fedavg", data, loss=lambda o, t: (o - t).abs().mean(1), **(settings | {"rounds": 20}))
    assert absolute.predict(rows, client="a").mean() == pytest.approx(4000, abs=50)


def test_methods_that_add_to_the_loss_add_to_this_one() -> None:
    for method in ("flute", "fedcp"):
        shas = {
            train_whole(method, problem(), model=network(), class_weights=w, **SETTINGS).sha for w in (None, WEIGHTS)
        }
        assert len(shas) == 2, method


def test_a_loss_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch.nn.functional as F\n"
        "def smooth(output, target):\n"
        "    return F.cross_entropy(output, target, reduction='none', label_smoothing=0.2)\n"
    )
    out = tmp_path / "run"
    run = train("fedavg", digits(), rounds=1, loss=f"{file}:smooth", out=out)
    plain = train("fedavg", digits(), rounds=1)
    assert run.summary["weights_sha256"] != plain.summary["weights_sha256"]
    assert load_run(out).predict(digits().x_test[:2]).shape == (2, 10)
    with pytest.raises(RunError, match="was started with loss = "):
        train("fedavg", digits(), rounds=2, out=out, resume=True)
    with pytest.raises(ConfigError, match="no function 'other'"):
        train("fedavg", digits(), rounds=1, loss=f"{file}:other")
    with pytest.raises(ConfigError, match=r"write it as file.py:function"):
        train("fedavg", digits(), rounds=1, loss="smooth")


def test_a_loss_of_another_shape_is_refused() -> None:
    with pytest.raises(ModelError, match=r"one number for each of \d+ rows, not a tensor of shape \(\)"):
        train("fedavg", digits(), rounds=1, engine="serial", loss=F.cross_entropy)


def test_balanced_weights_are_of_all_clients_rows() -> None:
    """n/(k·n_c), so that the mean over the training rows is 1; who has which is not asked."""
    counts = digits().class_counts("train").sum(0)
    run = train("fedavg", digits(), rounds=1, class_weights="balanced")
    weights = np.array(list(run.summary["class_weights"].values()))
    np.testing.assert_allclose(weights, counts.sum() / (10 * counts))
    assert (weights * counts).sum() == pytest.approx(counts.sum())
    assert "added up over all clients" in run.summary["class_weights_from"]
    messages = train("fedavg", digits(), rounds=1, class_weights="balanced", engine="messages")
    serial = train("fedavg", digits(), rounds=1, class_weights="balanced", engine="serial")
    assert messages.summary["weights_sha256"] == serial.summary["weights_sha256"]


# -- sentences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "given", "sentence"),
    [
        ("scaffold", {"clip_norm": 1.0}, "SCAFFOLD takes plain steps: .+; leave out --clip-norm"),
        ("perfedavg", {"head_lr": 1.0}, "PerFedAvg takes plain steps: .+; leave out --head-lr"),
        ("fedrod", {"class_weights": "balanced"}, "FedRoD has a loss of its own: .+; leave out --class-weights"),
        ("fedrod", {"loss": weighted}, "FedRoD has a loss of its own: .+; leave out --loss"),
        ("fedavg", {"warmup": 1}, "--warmup 1 leaves none of the 1 rounds at the full rate"),
        ("fedavg", {"no_decay_bias": True}, "there is no weight decay"),
        ("fedavg", {"class_weights": "1,2"}, "names 2 weights, and the data has 10 classes"),
        ("fedavg", {"class_weights": "heavy"}, "'heavy' is neither balanced nor numbers of at least 0"),
        ("fedavg", {"class_weights": "1,-2"}, "neither balanced nor numbers of at least 0"),
        ("fedavg", {"clip_norm": 0.0}, "clip_norm"),
        ("fedavg", {"loss": 3}, "loss must be a function"),
        ("fedavg", {"server_lr": 0.1}, "--server-lr 0.1 is a setting of --server-optimizer momentum and adam"),
        ("fedavg", {"server_momentum": 0.5}, "--server-momentum 0.5 is a setting of"),
        ("fedavg", {"server_optimizer": "momentum", "server_beta2": 0.9}, "--server-beta2 0.9 .*is momentum here"),
        ("fedavg", {"server_epsilon": 0.1}, "--server-epsilon 0.1 is a setting of --server-optimizer adam"),
        ("fedavg", {"precision": "bf16", "dtype": "float64"}, "--precision bf16 .* and --dtype is float64"),
        ("fedavg", {"loss": "smooth"}, "write it as file.py:function"),
        ("lora", {"options": {"head": "frozen"}, "finetune_epochs": 3}, "no head to tune; take --finetune all"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(algorithm: str, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        train(algorithm, digits(), rounds=1, **given)


def test_what_is_built_or_read_already_takes_no_settings_of_that() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for algorithm, given, sentence in (
        (FedRep(head_epochs=2), {"options": {"head_epochs": 5}}, r"give them to the object: FedRep\(…\)"),
        ("fedavg", {"model": net, "model_options": {"hidden": 5}}, "this one is built already"),
        ("fedavg", {"target": "zz"}, "target='zz' says how a table is read; this data set is read already"),
        ("fedavg", {"scaling": "none"}, "scaling='none' says how a table is read"),
        ("fedavg", {"test_share": 0.5}, "test_share=0.5 says how a table is read"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            train(algorithm, digits(), rounds=1, **given)


def test_numpy_numbers_are_as_good_as_python_s(tmp_path: Path) -> None:
    plain = train("fedrep", digits(), rounds=1, options={"head_epochs": 2}, model_options={"hidden": [8]})
    for place, (method, given) in enumerate(
        (
            ("fedrep", {"options": {"head_epochs": np.int64(2)}, "model_options": {"hidden": np.array([8])}}),
            (FedRep(head_epochs=np.int64(2)), {"model_options": {"hidden": np.int64(8)}}),  # type: ignore[arg-type]
        )
    ):
        run = train(method, digits(), rounds=1, out=tmp_path / str(place), **given)  # type: ignore[arg-type]
        assert run.summary["weights_sha256"] == plain.summary["weights_sha256"]
        assert load_run(tmp_path / str(place)).config.options["head_epochs"] == 2


def test_a_comparison_takes_a_loss_by_name() -> None:
    with pytest.raises(ConfigError, match=r"is a function, which train\(…, loss=f\) takes"):
        compare(["fedavg"], digits(), 1, loss=weighted)


def direction(output: Tensor, target: Tensor) -> Tensor:
    """Of outputs scaled to norm 1, which those of padding, all zero, have not."""
    return F.cross_entropy(output / output.norm(dim=1, keepdim=True), target, reduction="none")


def test_a_loss_never_sees_padding(tmp_path: Path) -> None:
    """Clients of unequal size whose rows pass a frozen model together."""
    model = tiny_model("bert", tmp_path / "bert")
    runs = [
        train_whole(
            "lora", token_data(), model=model, model_options={"rank": 2}, engine=engine, dtype="float64", rounds=1,
            batch_size=4, loss=direction,
        )
        for engine in ("serial", "batched")
    ]  # fmt: skip
    assert_same_run(runs[0], runs[1], 1e-8)


def test_a_method_that_finds_nothing_to_share_says_so() -> None:
    """A linear model is all head: FedRep on it is every client alone."""
    heard: list[str] = []

    class Ear:
        def note(self, text: str) -> None:
            heard.append(text)

    flags: dict[str, Any] = {"rounds": 1, "observer": Ear()}
    run = train("fedrep", digits(), model="linear", **flags)
    assert heard == [
        "FedRep shares the body of a model, and this one has none: nothing is shared, and every client learns alone"
    ]
    assert run.summary["bytes_up"] == 0
    for algorithm, model in (("fedrep", "mlp"), ("fedavg", "linear"), ("local", "linear"), ("lg-fedavg", "linear")):
        heard.clear()
        train(algorithm, digits(), model=model, **flags)
        assert not heard
