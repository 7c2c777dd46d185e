"""BatchNorm and recurrent layers over stacked clients: the layers' own numbers, padding or not."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonground import FederatedDataset, train
from commonground.algorithms import registry
from commonground.config import RunConfig
from commonground.engine.backends.factory import choose_engine
from commonground.engine.clients.stacked_layers import stackable_layers
from commonground.engine.clients.stacking_trial import _believed, check_stackable
from commonground.engine.prepare import prepare_setup
from commonground.errors import ModelError
from commonground.models import KeyedDropout
from tests.helpers import assert_same_run, images, made_data, normed, seeded, train_whole

TWO_MODELS = {"apfl", "ditto"}  # refuse BatchNorm whose statistics are averaged
WORKING = sorted(name for name in set(registry) - TWO_MODELS if "lora" not in name)


# -- one layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 4, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_of_the_rows_that_are_there(shape: tuple[int, ...], affine: bool) -> None:
    """Outputs, gradients and running statistics are those of the layer on its own rows; padding changes nothing."""
    torch.manual_seed(0)
    kind: type[nn.BatchNorm1d] | type[nn.BatchNorm2d] = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    layer = kind(3, affine=affine, momentum=0.3).double()
    other = deepcopy(layer)
    own = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    padded = torch.cat([own.detach(), torch.full((2, *shape[1:]), 1e3, dtype=torch.float64)]).requires_grad_()
    expected = layer(own)
    with stackable_layers(other, torch.tensor([1.0] * 5 + [0.0] * 2)):
        found = other(padded)[:5]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for mine, theirs in ((layer.running_mean, other.running_mean), (layer.running_var, other.running_var)):
        torch.testing.assert_close(theirs, mine, rtol=0, atol=1e-12)
    direction = torch.randn_like(expected)
    one, two = (torch.autograd.grad((out * direction).sum(), x)[0] for out, x in ((expected, own), (found, padded)))
    torch.testing.assert_close(two[:5], one, rtol=0, atol=1e-12)
    assert not two[5:].any()


def test_statistics_stay_where_no_row_is_there() -> None:
    layer = nn.BatchNorm1d(3)
    with stackable_layers(layer, torch.zeros(4)):
        out = layer(torch.randn(4, 3))
    assert layer.running_mean is not None
    assert not layer.running_mean.any()
    assert out.isfinite().all()


RECURRENT = [
    (nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {"bias": False}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}), (nn.GRU, {"num_layers": 2, "batch_first": True}),
]  # fmt: skip


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(("kind", "options"), RECURRENT)
def test_recurrent(kind: Callable[..., nn.RNNBase], options: dict[str, Any], rank: int, begun: bool) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, **options).double()
    x = torch.randn((6, 3) if rank == 2 else (6, 5, 3), dtype=torch.float64)
    first = layer(x)
    start = first[1] if begun else None
    expected = layer(x, start)
    with stackable_layers(layer):
        found = layer(x, start)
    assert "forward" not in vars(layer)
    flat: list[list[Tensor]] = []
    for out, state in (expected, found):
        flat.append([out, *state] if isinstance(state, tuple) else [out, state])
    for mine, theirs in zip(*flat, strict=True):
        torch.testing.assert_close(theirs, mine, rtol=0, atol=1e-12)


# -- whole runs -----------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Numbers of a row as a sequence, two layers of a GRU, an LSTM on them, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 3, num_layers=2, batch_first=True)
        self.lstm = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [rows, 3] of rows [rows, numbers]."""
        out, _ = self.lstm(self.gru(x.unsqueeze(-1))[0])
        logits: Tensor = self.head(out[:, -1])
        return logits


def normed_image_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 5), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )


def same(algorithm: Any, model: Any, data: FederatedDataset, **settings: Any) -> None:
    """Serial and batched agree up to rounding in double precision."""
    go = partial(train_whole, algorithm, data, rounds=2, dtype="float64", **settings)
    assert_same_run(go(model=seeded(model), engine="serial"), go(model=seeded(model), engine="batched"), 1e-9)


@pytest.mark.parametrize("algorithm", WORKING)
def test_every_method_with_batch_norm(algorithm: str) -> None:
    """Clients of unequal sizes, whose last batches are shorter and who have fewer of them."""
    same(algorithm, normed, made_data((6, 4, 8, 2)))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "pfedme", "fedbabu", "fedala", "perfedavg"])
def test_with_statistics_that_clients_keep(algorithm: str) -> None:
    same(algorithm, normed, made_data((6, 4, 8, 2)), batch_norm="local")


@pytest.mark.parametrize("algorithm", ["fedbn", "fedper", "scaffold"])
def test_images(algorithm: str) -> None:
    same(algorithm, normed_image_net, images())


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep"])
def test_residual_network(algorithm: str) -> None:
    options = {"stem": "cifar", "width": 2, "blocks": [1, 1]}
    go = partial(train_whole, algorithm, images(), rounds=1, dtype="float64", model="resnet18", model_options=options)
    assert_same_run(go(engine="serial"), go(engine="batched"), 1e-9)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "lg-fedavg", "perfedavg", "ditto"])
def test_recurrent_models(algorithm: str) -> None:
    same(algorithm, Recurrent, made_data((6, 4, 8, 2)))


def test_fine_tuning_with_batch_norm() -> None:
    same("fedavg", normed, made_data((6, 4, 8, 2)), finetune_epochs=2)


def test_a_batch_of_one_is_refused_by_client() -> None:
    said = []
    for engine in ("serial", "batched"):
        with pytest.raises(ModelError, match="BatchNorm has no statistics") as caught:
            train_whole("fedavg", made_data((4, 5)), model=seeded(normed), engine=engine)
        said.append(str(caught.value).partition(" (")[0])
    assert said[0] == said[1]
    assert "client 1 " in said[0]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (nn.BatchNorm1d(4, momentum=None), "momentum=None"),
        (nn.BatchNorm1d(4, track_running_stats=False), "keeps no statistics"),
        (nn.LSTM(4, 4, proj_size=2), "recurrent layer '0'"),
        (nn.Embedding(4, 4, scale_grad_by_freq=True), "embedding '0'"),
        (nn.Embedding(4, 4, sparse=True), "embedding '0'"),
    ],
)
def test_what_still_cannot_be_stacked_is_named(layer: nn.Module, says: str) -> None:
    class Model(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            embeds = isinstance(self[0], nn.Embedding)
            out = self[0](x.long().clamp(0, 3)).mean(1) if embeds else self[0](x)
            logits: Tensor = self[1](out[0] if isinstance(out, tuple) else out)
            return logits

    width = 2 if isinstance(layer, nn.LSTM) else 4
    config = RunConfig.make({"algorithm": "fedavg", "model": "custom", "data": "custom"})
    setup = prepare_setup(config, made_data((4, 4)), Model(layer, nn.Linear(width, 3)))
    with pytest.raises(ModelError, match=says):
        check_stackable(setup)


def test_small_models_with_batch_norm_are_stacked_by_default() -> None:
    config = RunConfig.make({"algorithm": "fedavg", "model": "custom", "data": "custom"})
    assert choose_engine(prepare_setup(config, made_data((4, 4, 4)), seeded(normed))) == "batched"


class JoinsRows(nn.Module):
    """Normalises pairs of numbers of all rows as one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.reshape(-1, 2)).reshape(len(x), -1))


@pytest.mark.parametrize("sizes", [(1, 13, 14, 15), (13, 14, 1, 15)])
def test_a_first_client_of_one_row_does_not_hide_that_rows_are_joined(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 6)).astype(np.float32), np.arange(n) % 3) for n in sizes]
    data = FederatedDataset.from_arrays([(x, y, x, y) for x, y in parts], classes=3)
    setup = prepare_setup(RunConfig.make({"algorithm": "fedavg", "model": "m", "data": "d"}), data, JoinsRows())
    assert choose_engine(setup) != "batched"


# -- what a row sees ------------------------------------------------------------------------------------------------


class Company(nn.Module):
    """Hidden numbers that are changed by those of the rows beside them, behind BatchNorm or not, before a head that
    starts at zero or not.
    """

    def __init__(
        self, joined: Callable[[Tensor], Tensor], *, always: bool = True, norm: bool = False, zero: bool = False
    ):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Linear(6, 3)
        self.joined, self.always = joined, always
        if zero:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.body(x))
        logits: Tensor = self.head(torch.tanh(self.joined(hidden) if self.training or self.always else hidden))
        return logits


def centred(hidden: Tensor) -> Tensor:
    return hidden - hidden.mean(0)


def below_the_largest(hidden: Tensor) -> Tensor:
    return hidden - hidden.amax(0)


def of_the_largest(hidden: Tensor) -> Tensor:
    return hidden / hidden.abs().max()


def coarse(hidden: Tensor) -> Tensor:
    """Of each row alone, and to three digits."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return nn.functional.linear(hidden, torch.eye(6, dtype=hidden.dtype)).to(hidden.dtype)


def without_statistics() -> nn.Sequential:
    return normed(track_running_stats=False)


def set_up(model: nn.Module, data: FederatedDataset) -> Any:
    return prepare_setup(RunConfig.make({"algorithm": "fedavg", "model": "m", "data": "d"}), data, model)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("joined", [centred, below_the_largest, of_the_largest])
def test_a_model_that_joins_rows_is_not_stacked(
    joined: Callable[[Tensor], Tensor], always: bool, norm: bool, zero: bool
) -> None:
    """Padding rows of shorter batches would be among those that a row sees."""
    setup = set_up(seeded(Company, joined, always=always, norm=norm, zero=zero), made_data((6, 4, 8, 2)))
    with pytest.raises(ModelError, match="outputs for a client are not the same beside other clients' and padding"):
        check_stackable(setup)
    assert choose_engine(setup) != "batched"
    assert setup.behaviour.joins_tested is always


@pytest.mark.parametrize("norm", [False, True])
def test_rounding_inside_of_a_model_is_no_joining(norm: bool) -> None:
    setup = set_up(seeded(Company, coarse, norm=norm), made_data((6, 4, 8, 2)))
    check_stackable(setup)
    assert not setup.behaviour.joins_tested


def test_nearly_constant_features_before_batch_norm_are_no_joining() -> None:
    class Faint(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 1e-6 * x + 1

    net = nn.Sequential(nn.Linear(4, 6), Faint(), nn.BatchNorm1d(6), nn.Linear(6, 3))
    check_stackable(set_up(net, made_data((6, 4, 8, 2))))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "fedbabu"])
@pytest.mark.parametrize("model", [partial(Company, centred), without_statistics])
def test_rows_are_joined_with_those_of_their_client_alone(model: Callable[[], nn.Module], algorithm: str) -> None:
    """A client's test is the same in every engine, and what a module on the client's rows says."""
    data = made_data((6, 4, 8, 2), test=7)
    go = partial(train_whole, algorithm, data, rounds=2, dtype="float64")
    one, other = (go(model=seeded(model), engine=engine) for engine in ("serial", "messages"))
    assert_same_run(one, other, 1e-12)
    for client in range(4):
        rows = data.test_indices(client)
        own = one.run.model(client).eval()
        right = own(torch.from_numpy(data.x_test[rows]).double()).argmax(1).numpy() == data.y_test[rows]
        if algorithm != "fedbabu":  # whose client tunes its model for the test
            assert one.run.clients[client]["personal_accuracy"] == pytest.approx(right.mean())


def test_many_images_of_a_client_are_joined_as_one() -> None:
    """More than go through a convolution at once."""
    data = made_data((6, 8), (5, 5, 1), test=60)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(36, 3)
    )
    run = train_whole("fedavg", data, model=net, rounds=1, dtype="float64").run
    for client in range(2):
        rows = data.test_indices(client)
        x = torch.from_numpy(data.x_test[rows]).double().movedim(-1, 1)
        right = run.model(client).eval()(x).argmax(1).numpy() == data.y_test[rows]
        assert run.clients[client]["personal_accuracy"] == pytest.approx(right.mean())


def test_a_single_test_row_that_cannot_be_taken_is_told_before_training() -> None:
    data = made_data((6, 4), test=1)
    with pytest.raises(ModelError, match="joins rows and cannot take a single one, as client 0 has for its test"):
        set_up(seeded(without_statistics), data)
    assert set_up(seeded(Company, centred), data).behaviour.joins_tested  # of one row the mean is the row


def test_models_whose_rows_are_alone_are_tested_together() -> None:
    for model in (nn.Linear(4, 3), seeded(normed), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))):
        assert not set_up(model, made_data((6, 4))).behaviour.joins_tested


class Words(nn.Module):
    """The mean of a row's words; the first word is padding, by a layer or a function that knows it."""

    def __init__(self, layer: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4, padding_idx=0 if layer else None), nn.Linear(4, 3)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        index = x.long().clamp(0, 4)
        found = self.words(index) if self.layer else nn.functional.embedding(index, self.words.weight, padding_idx=0)
        logits: Tensor = self.head(found.mean(1))
        return logits


def words(sizes: tuple[int, ...]) -> FederatedDataset:
    rng = np.random.default_rng(1)
    parts = [(rng.integers(0, 5, (n, 6)).astype(np.float32), rng.integers(0, 3, n)) for n in sizes]
    return FederatedDataset.from_arrays([(x, y, x, y) for x, y in parts], classes=3)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "scaffold"])
def test_the_padding_word_of_an_embedding_stays_where_it_is(algorithm: str) -> None:
    go = partial(train_whole, algorithm, words((6, 4, 9)), rounds=2, dtype="float64")
    one, other = (go(model=seeded(Words, True), engine=engine) for engine in ("serial", "batched"))
    assert_same_run(one, other, 1e-12)
    weight = one.run.model(0).get_parameter("words.weight")
    assert not weight[0].any()
    assert weight[1].any()


def test_what_has_another_gradient_mapped_over_clients_is_not_stacked() -> None:
    setup = set_up(seeded(Words, False), words((6, 4, 9)))
    with pytest.raises(ModelError, match="the model's gradients for a client are not the same"):
        check_stackable(setup)
    assert choose_engine(setup) != "batched"


def test_a_trial_leaves_the_model_alone() -> None:
    """Engines are made anew for fine-tuning, with what the last step has left in the layers."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.ReLU(), nn.Linear(6, 3))
    go = partial(train_whole, "fedavg", made_data((6, 4, 8, 2)), rounds=2, dtype="float64", finetune_epochs=2)
    assert_same_run(go(model=net, engine="serial"), go(model=net, engine="batched"), 1e-9)
    setup = set_up(net, made_data((6, 4, 8, 2)))
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    for layer in setup.model.modules():
        if isinstance(layer, KeyedDropout):
            layer.mask = torch.zeros(9, 6)  # of a step with another number of rows
    check_stackable(setup)
    assert all(torch.equal(value, before[name]) for name, value in setup.model.state_dict().items())
    assert not setup.model.training


class BranchesInTests(nn.Module):
    """Looks at its numbers where it is tested."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        if not self.training and bool((hidden.abs() > 1e4).any()):
            hidden = hidden.clamp(-1e4, 1e4)
        logits: Tensor = self.head(hidden)
        return logits


def test_a_model_that_can_be_mapped_in_training_alone_is_not_stacked() -> None:
    data = made_data((6, 4, 8, 2))
    assert choose_engine(set_up(seeded(BranchesInTests), data)) != "batched"
    run = train_whole("ditto", data, model=seeded(BranchesInTests), engine="auto", rounds=1).run
    assert run.summary["engine"] != "batched"


class Positive(nn.Module):
    """A parameter that must stay above zero, of a small value."""

    def __init__(self, joined: bool = False) -> None:
        super().__init__()
        self.body, self.scale, self.head = nn.Linear(4, 6), nn.Parameter(torch.full((6,), 0.01)), nn.Linear(6, 3)
        self.joined = joined

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x) / self.scale.sqrt() * self.scale.log()
        logits: Tensor = self.head(hidden - hidden.mean(0) if self.joined else hidden)
        return logits


def test_parameters_keep_their_sign_where_they_are_tried() -> None:
    data = made_data((6, 4, 8, 2))
    setup = set_up(seeded(Positive), data)
    check_stackable(setup)
    assert not setup.behaviour.joins_tested
    assert set_up(seeded(Positive, True), data).behaviour.joins_tested


class Keywords(nn.Module):
    """Calls its layers by the names of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(5, 4, padding_idx=0), nn.BatchNorm1d(4)
        self.rnn, self.head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.words(input=x.long().clamp(0, 4))
        states, _ = self.rnn(input=found, hx=found.new_zeros(1, len(x), 4))
        logits: Tensor = self.head(self.norm(input=states[:, -1]))
        return logits


def test_layers_called_by_keyword_are_stacked() -> None:
    go = partial(train_whole, "fedrep", words((6, 4, 9)), rounds=2, dtype="float64", batch_size=10)
    assert_same_run(go(model=seeded(Keywords), engine="serial"), go(model=seeded(Keywords), engine="batched"), 1e-9)


def test_coarse_rounding_with_a_bias_is_no_joining() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            weight, bias = self.body.weight.bfloat16(), self.body.bias.bfloat16()
            logits: Tensor = self.head(nn.functional.linear(x.bfloat16(), weight, bias).to(x.dtype))
            return logits

    setup = set_up(seeded(Half), made_data((6, 4, 8, 2)))
    check_stackable(setup)
    assert not setup.behaviour.joins_tested


def test_a_model_with_statistics_of_each_client_is_compared_as_well() -> None:
    data = made_data((8, 4, 8))
    config = RunConfig.make({"algorithm": "fedavg", "model": "made", "rounds": 1, "batch_norm": "local"})
    setup = prepare_setup(config, data, seeded(normed))
    _, alone = _believed(setup, setup.inputs.arrange(setup.inputs.rows("train", np.array([0, 1]))[0]))
    assert alone is not None
    assert len(alone.gradients) == len(list(setup.model.parameters()))


def test_parameters_without_an_axis_are_clipped_as_others() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    found = [
        train("fedavg", made_data((6, 7, 8)), model=seeded(Scaled), rounds=2, clip_norm=0.1, engine=engine)
        for engine in ("serial", "batched")
    ]
    for name, value in found[0].shared.items():
        torch.testing.assert_close(found[1].shared[name], value)
