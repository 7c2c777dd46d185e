"""The papers' networks: sizes worked out by hand, weights by key, dropout by mask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from commonground import load_data, train
from commonground.errors import ConfigError, ModelError
from commonground.models import (
    MLP,
    ConvNet,
    KeyedDropout,
    Linear,
    available_models,
    build_model,
    tensors_of,
    use_keyed_dropout,
)


def numbers(model: nn.Module) -> dict[str, int]:
    """Weights per layer."""
    return {name: sum(p.numel() for p in layer.parameters()) for name, layer in model.named_children()}


def learnt(model: nn.Module) -> dict[str, int]:
    return {name: n for name, n in numbers(model).items() if n}


def test_the_cnn_for_cifar10() -> None:
    """32 → 28 → 14 → 10 → 5: 64·5·5 = 1600 numbers enter the first linear layer."""
    assert learnt(ConvNet((3, 32, 32), 10)) == {
        "conv1": 3 * 64 * 25 + 64,  # 4,864
        "conv2": 64 * 64 * 25 + 64,  # 102,464
        "fc1": 1600 * 120 + 120,  # 192,120
        "fc2": 120 * 64 + 64,  # 7,744
        "head": 64 * 10 + 10,  # 650
    }
    assert sum(numbers(ConvNet((3, 32, 32), 10)).values()) == 307_842
    assert not any(isinstance(m, KeyedDropout) for m in ConvNet((3, 32, 32), 10).modules())


def test_the_cnn_for_cifar100() -> None:
    """128·5·5 = 3200 numbers enter the first linear layer; dropout 0.6 behind the second, or by choice the first."""
    model = ConvNet((3, 32, 32), 100)
    assert learnt(model) == {
        "conv1": 3 * 64 * 25 + 64,
        "conv2": 64 * 128 * 25 + 128,
        "fc1": 3200 * 256 + 256,
        "fc2": 256 * 128 + 128,
        "head": 128 * 100 + 100,
    }
    assert sum(numbers(model).values()) == 1_075_044
    dropout = model.get_submodule("dropout")
    assert isinstance(dropout, KeyedDropout)
    assert dropout.p == 0.6
    names = [name for name, _ in model.named_children()]
    assert names.index("relu4") < names.index("dropout") < names.index("head")
    names = [name for name, _ in ConvNet((3, 32, 32), 100, dropout_after=1).named_children()]
    assert names.index("relu3") < names.index("dropout") < names.index("fc2")
    with pytest.raises(ModelError, match="dropout_after=1 or 2, not 3"):
        ConvNet((3, 32, 32), 100, dropout_after=3)


def test_the_mlp_for_femnist() -> None:
    assert learnt(MLP((28, 28), 10)) == {
        "fc1": 784 * 512 + 512,
        "fc2": 512 * 256 + 256,
        "fc3": 256 * 64 + 64,
        "head": 64 * 10 + 10,
    }
    assert sum(numbers(MLP((28, 28), 10)).values()) == 550_346
    assert learnt(MLP((8, 8, 1), 10)) == {"fc1": 64 * 128 + 128, "fc2": 128 * 64 + 64, "head": 650}
    assert learnt(MLP((5,), 2, hidden=[7])) == {"fc1": 42, "head": 16}
    assert learnt(Linear((8, 8, 1), 10)) == {"head": 650}


def test_probabilities_leave_the_mlp_where_asked() -> None:
    """As in FedRep's code for FEMNIST: the cross-entropy then takes their softmax once more."""
    plain, twice = MLP((6,), 3, hidden=[4]), MLP((6,), 3, hidden=[4], softmax=True)
    assert list(plain.state_dict()) == list(twice.state_dict())
    twice.load_state_dict(plain.state_dict())
    x, y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 0, 2])
    assert torch.equal(twice(x), plain(x).softmax(1))
    by_hand = -plain(x).softmax(1).log_softmax(1)[range(5), y].mean()
    assert F.cross_entropy(twice(x), y).item() == pytest.approx(by_hand.item(), rel=1e-6)


def test_pooling_before_the_relu_changes_nothing() -> None:
    """Max-pooling and ReLU commute: values and gradients equal the papers' order, conv, ReLU, pool."""
    model = ConvNet((2, 16, 16), 3, channels=(3, 4), hidden=(6, 5)).double()
    x = torch.randn(5, 2, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = dict(model.named_children())
    y = F.max_pool2d(F.relu(layer["conv1"](x)), 2)
    y = F.max_pool2d(F.relu(layer["conv2"](y)), 2).flatten(1)
    y = layer["head"](F.relu(layer["fc2"](F.relu(layer["fc1"](y)))))
    assert torch.equal(model(x), y)
    parameters = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(model(x).square().sum(), parameters),
        torch.autograd.grad(y.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", [Linear((64,), 10), MLP((64,), 10), ConvNet((3, 16, 16), 10)])
def test_no_softmax_before_the_cross_entropy(model: nn.Sequential) -> None:
    """Outputs are the last linear layer's: any numbers, not probabilities."""
    assert not any(isinstance(m, nn.Softmax | nn.LogSoftmax | nn.Sigmoid) for m in model.modules())
    assert isinstance(list(model.children())[-1], nn.Linear)
    with torch.no_grad():
        dict(model.named_parameters())["head.bias"].fill_(7.0)
    x = torch.zeros(2, 64) if not isinstance(model, ConvNet) else torch.zeros(2, 3, 16, 16)
    assert (model(x).sum(1) > 10).all()


def test_channels_last_images_are_flattened_alike() -> None:
    """A flattened image has its numbers in the same order, whatever its memory looks like."""
    model = build_model("cnn", (3, 16, 16), 10)
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), model(x.to(memory_format=torch.channels_last)))
    mlp = build_model("mlp", (3, 16, 16), 10)
    assert torch.equal(mlp.get_submodule("flatten")(x.to(memory_format=torch.channels_last)), x.flatten(1))


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 15, 40), (1, 40, 15)])
def test_the_cnn_needs_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"'cnn' needs images of at least 16×16 .* use 'mlp'"):
        build_model("cnn", shape, 10)


def test_images_that_are_not_square() -> None:
    """16 rows → 6 → 1, 20 columns → 8 → 2: 64·1·2 numbers."""
    model = build_model("cnn", (1, 16, 20), 10)
    assert model(torch.zeros(1, 1, 16, 20)).shape == (1, 10)
    assert learnt(model)["fc1"] == 128 * 120 + 120


# -- building -------------------------------------------------------------------------------------------------------


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = tensors_of(build_model("mlp", (4,), 3, seed=5))
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    torch.manual_seed(2)
    same, other = (tensors_of(build_model("mlp", (4,), 3, seed=s)) for s in (5, 6))
    assert all(torch.equal(one[n], same[n]) for n in one)
    assert not any(torch.equal(one[n], other[n]) for n in one)
    wide = tensors_of(build_model("mlp", (4,), 3, seed=5, dtype=torch.float64))
    assert all(torch.equal(wide[n], one[n].double()) for n in one)


def test_options() -> None:
    assert learnt(build_model("mlp", (4,), 3, options={"hidden": [2]})) == {"fc1": 10, "head": 9}
    with pytest.raises(ConfigError, match="the model 'mlp' has no option 'width'; it has hidden, norm"):
        build_model("mlp", (4,), 3, options={"width": 2})
    with pytest.raises(ConfigError, match=r"unknown model 'mpl' \(did you mean 'mlp'\?\); known are linear, mlp, cnn"):
        build_model("mpl", (4,), 3)
    normal = build_model("mlp", (4,), 3, options={"hidden": [2], "norm": "batch"})
    assert [type(layer).__name__ for layer in normal.children()] == [
        "Flatten",
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
    ]
    layered = build_model("mlp", (4,), 3, options={"hidden": [2], "norm": "layer"})
    assert any(isinstance(layer, nn.LayerNorm) for layer in layered.children())
    with pytest.raises(ModelError, match="the model 'mlp' has norm=batch, layer or none, not 'group'"):
        build_model("mlp", (4,), 3, options={"norm": "group"})
    with pytest.raises(ModelError, match="hidden widths must be at least 1"):
        build_model("mlp", (4,), 3, options={"hidden": [0]})
    assert {"linear", "mlp", "cnn"} <= set(available_models())
    assert all(available_models().values())


def test_a_model_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, shape, classes, width=3):\n"
        "        super().__init__(nn.Linear(shape[0], width), nn.Dropout(0.5), nn.Linear(width, classes))\n"
        "class Other: ...\n"
    )
    model = build_model(f"{file}:Net", (4,), 2, options={"width": 6})
    assert [tuple(t.shape) for t in tensors_of(model).values()] == [(6, 4), (6,), (2, 6), (2,)]
    assert isinstance(model.get_submodule("1"), KeyedDropout)
    for text, sentence in (
        (f"{file}:Other", "has no class 'Other' derived from Module"),
        (f"{file}:Missing", "has no class 'Missing'"),
        (f"{tmp_path / 'no.py'}:Net", "which does not exist"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            build_model(text, (4,), 2)
    file.write_text("1 / 0")
    with pytest.raises(ConfigError, match="could not be loaded: ZeroDivisionError"):
        build_model(f"{file}:Net", (4,), 2)


# -- dropout --------------------------------------------------------------------------------------------------------


def test_keyed_dropout() -> None:
    layer = KeyedDropout(0.25)
    x = torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    mask = layer.draw(400, (50,), torch.Generator().manual_seed(3), torch.float32)
    assert mask.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert float((mask == 0).float().mean()) == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 20_000) ** 0.5)
    layer.mask = mask
    assert torch.equal(layer(x), x * mask)
    layer.eval()
    assert torch.equal(layer(x), x)
    assert torch.equal(layer.draw(3, (5,), torch.Generator().manual_seed(3), torch.float32), 
                       layer.draw(3, (5,), torch.Generator().manual_seed(3), torch.float32))  # fmt: skip
    assert layer.state_dict() == {}


def test_masks_of_fewer_rows_begin_alike() -> None:
    """A smaller last batch takes the first rows of a full batch's mask."""
    layer = KeyedDropout(0.5)
    full = layer.draw(8, (3,), torch.Generator().manual_seed(1), torch.float64)
    assert torch.equal(layer.draw(5, (3,), torch.Generator().manual_seed(1), torch.float64), full[:5])


def test_every_dropout_is_replaced() -> None:
    model = nn.Sequential(nn.Dropout(0.2), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)))
    use_keyed_dropout(model)
    assert [m.p for m in model.modules() if isinstance(m, KeyedDropout)] == [0.2, 0.3]
    assert not any(isinstance(m, nn.Dropout) for m in model.modules())


def test_a_dropout_used_under_two_names_is_replaced_under_both() -> None:
    """One layer object in two places stays one drawer of masks, and none of PyTorch's own is left."""
    layer = nn.Dropout(0.1)
    model = use_keyed_dropout(nn.Sequential(nn.Linear(2, 2), layer, nn.Linear(2, 2), layer))
    assert not any(isinstance(m, nn.Dropout) for m in model.modules())


def test_a_lazy_layer_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.LazyLinear(10))
    with pytest.raises(ModelError, match=r"weight '2\.weight' has no shape yet"):
        train("fedavg", "digits", model=model, clients=4, rounds=1, head="2")


def test_a_data_set_that_is_split_already_takes_no_split() -> None:
    data = load_data("digits", 4)
    with pytest.raises(ConfigError, match="classes_per_client=2 splits a data set given by name"):
        train("fedavg", data, classes_per_client=2)
