"""ResNet-18: torchvision's layout and names, values written out by hand, and the same numbers in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commonground import FederatedDataset
from commonground.engine.setup import Setup
from commonground.errors import ConfigError, ModelError
from commonground.models import Groups, ResNet18, available_models, build_model, find_split, tensors_of
from tests.helpers import assert_same_run, made_data, rows_without_time, seeded, train_whole

TINY: dict[str, Any] = {"stem": "cifar", "width": 4, "blocks": [1, 1]}


def tiny(shape: tuple[int, ...] = (2, 8, 8), **options: Any) -> nn.Module:
    return build_model("resnet18", shape, 3, options={**TINY, **options})


def torchvision_names() -> list[str]:
    """The keys of ``torchvision.models.resnet18().state_dict()``, in its order."""

    def bn(name: str) -> list[str]:
        return [f"{name}.{t}" for t in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *bn("bn1")]
    for stage in range(1, 5):
        for block in range(2):
            at = f"layer{stage}.{block}"
            names += [f"{at}.conv1.weight", *bn(f"{at}.bn1"), f"{at}.conv2.weight", *bn(f"{at}.bn2")]
            if stage > 1 and block == 0:
                names += [f"{at}.downsample.0.weight", *bn(f"{at}.downsample.1")]
    return [*names, "fc.weight", "fc.bias"]


# -- the network ----------------------------------------------------------------------------------------------------


def test_the_layout_is_torchvisions() -> None:
    model = ResNet18((3, 224, 224), 1000)
    state = model.state_dict()
    assert list(state) == torchvision_names()
    assert len(state) == 122
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer2.0.conv1.weight"] == (128, 64, 3, 3)
    assert shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert shapes["layer4.1.conv2.weight"] == (512, 512, 3, 3)
    assert shapes["fc.weight"] == (1000, 512)


def test_width_and_stages() -> None:
    """Channels double from stage to stage; a stage of three blocks has one shortcut with a convolution."""
    state = tiny(width=6, blocks=[1, 3]).state_dict()
    assert state["layer1.0.conv1.weight"].shape == (6, 6, 3, 3)
    assert state["layer2.2.conv2.weight"].shape == (12, 12, 3, 3)
    assert [name for name in state if "downsample.0" in name] == ["layer2.0.downsample.0.weight"]
    assert not any(name.startswith("layer3") for name in state)
    assert state["fc.weight"].shape == (3, 12)


def by_hand(w: dict[str, Tensor], x: Tensor, stem: str, blocks: list[int]) -> Tensor:
    """Figure 2 and Section 3.4 of He et al. 2016 with the batch's own statistics, as formulas."""

    def norm(y: Tensor, name: str) -> Tensor:
        mean, var = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), unbiased=False, keepdim=True)
        scale, shift = (w[f"{name}.{t}"].view(1, -1, 1, 1) for t in ("weight", "bias"))
        return (y - mean) / (var + 1e-5).sqrt() * scale + shift

    if stem == "imagenet":
        x = F.conv2d(x, w["conv1.weight"], stride=2, padding=3)
        x = F.max_pool2d(F.relu(norm(x, "bn1")), 3, stride=2, padding=1)
    else:
        x = F.relu(norm(F.conv2d(x, w["conv1.weight"], padding=1), "bn1"))
    for stage, count in enumerate(blocks):
        for block in range(count):
            at, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y = F.relu(norm(F.conv2d(x, w[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.bn1"))
            y = norm(F.conv2d(y, w[f"{at}.conv2.weight"], padding=1), f"{at}.bn2")
            if stride == 2:
                x = norm(F.conv2d(x, w[f"{at}.downsample.0.weight"], stride=2), f"{at}.downsample.1")
            x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_values_by_hand(stem: str) -> None:
    model = build_model(
        "resnet18", (2, 12, 15), 3, options={"stem": stem, "width": 3, "blocks": [1, 2]}, dtype=torch.float64
    )
    x = torch.randn(5, 2, 12, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "bn" in name or "downsample.1" in name:  # so that a forgotten scale or shift shows
                value.add_(torch.linspace(-0.5, 0.5, value.numel(), dtype=torch.float64).sin())
    wanted = by_hand(dict(model.named_parameters()), x, stem, [1, 2])
    torch.testing.assert_close(model.train()(x), wanted, rtol=0, atol=1e-10)


def test_initial_weights() -> None:
    """Convolutions N(0, 2/(outputs · k²)); scales 1, shifts 0."""
    model = build_model("resnet18", (3, 32, 32), 10)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            std = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
            weight, n = module.weight.detach(), module.weight.numel()
            assert float(weight.std()) == pytest.approx(std, rel=6 / (2 * n) ** 0.5), name
            assert abs(float(weight.mean())) < 6 * std / n**0.5, name
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert bool((module.bias == 0).all())
    same, other = (build_model("resnet18", (2, 8, 8), 3, options=TINY, seed=s) for s in (0, 1))
    assert torch.equal(same.get_parameter("conv1.weight"), tiny().get_parameter("conv1.weight"))
    assert not torch.equal(same.get_parameter("conv1.weight"), other.get_parameter("conv1.weight"))


def test_group_norm_keeps_the_names_and_has_no_statistics() -> None:
    batch, group = tiny(norm="batch"), tiny(norm="group")
    kept = [n for n in batch.state_dict() if not n.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    assert list(group.state_dict()) == kept
    assert isinstance(group.get_submodule("bn1"), nn.GroupNorm)
    assert Groups(group).statistics == ()
    assert len(Groups(batch).statistics) == 2 * 6  # of bn1, two in each block, and the shortcut's
    x = torch.randn(4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(group.train()(x)[:1], group(x[:1]))  # a sample does not see the rest of its batch


@pytest.mark.parametrize(
    ("width", "given", "number"), [(64, None, 32), (48, None, 24), (4, None, 4), (37, None, 1), (12, 3, 3)]
)
def test_groups_of_group_norm(width: int, given: int | None, number: int) -> None:
    model = tiny(norm="group", width=width, norm_groups=given)
    assert {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)} == {number}


def test_without_norm_the_convolutions_have_biases() -> None:
    model = tiny(norm="none")
    assert not any("bn" in name for name in model.state_dict())
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 6
    assert all(m.bias is not None and bool((m.bias == 0).all()) for m in convolutions)


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stem", "blocks", "least"),
    [
        ("imagenet", [2, 2, 2, 2], 17),
        ("imagenet", [1, 1, 1], 9),
        ("imagenet", [1], 3),
        ("cifar", [1, 1, 1, 1], 5),
        ("cifar", [1, 1], 2),
        ("cifar", [1], 1),
    ],
)
def test_the_smallest_images(stem: str, blocks: list[int], least: int) -> None:
    """The last halving finds two pixels of the smallest image, and one of a smaller."""
    options = {"stem": stem, "width": 2, "blocks": blocks}
    model = build_model("resnet18", (1, least, least + 3), 3, options=options).eval()
    assert model(torch.zeros(1, 1, least, least + 3)).shape == (1, 3)
    if least == 1:
        return
    with pytest.raises(ModelError, match=rf"stem={stem} and {len(blocks)} stages .* at least {least}×{least} as"):
        build_model("resnet18", (1, least + 3, least - 1), 3, options=options)


@pytest.mark.parametrize("shape", [(64,), (8, 8)])
def test_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"needs images .* not samples of shape .*; use 'mlp'"):
        tiny(shape)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stem": "large"}, "has no stem 'large'; known are imagenet, cifar"),
        ({"norm": "layer"}, "has no norm 'layer'; known are batch, group, none"),
        ({"width": 0}, "width must be a whole number of at least 1, not 0"),
        ({"width": 2.5}, r"width must be a whole number of at least 1, not 2\.5"),
        ({"blocks": []}, r"blocks must be a number of at least 1 for each stage.* not \[\]"),
        ({"blocks": [1, 0]}, r"not \[1, 0\]"),
        ({"blocks": 2}, "not 2"),
        ({"norm": "group", "norm_groups": 3}, "norm_groups must divide the width, 4, and 3 does not"),
        ({"norm": "group", "norm_groups": 0}, "and 0 does not"),
        ({"norm_groups": 2}, "norm_groups=2 is for norm=group, and norm is batch"),
    ],
)
def test_bad_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        tiny(**options)


def test_by_name() -> None:
    assert "ResNet-18" in available_models()["resnet18"]
    with pytest.raises(ConfigError, match="has no option 'depth'; it has stem, width, blocks, norm, norm_groups"):
        tiny(depth=18)


# -- in the engines -------------------------------------------------------------------------------------------------


def images() -> FederatedDataset:
    return made_data((6, 4), (8, 8, 2), dtype=np.float32)


def go(algorithm: str, engine: str, norm: str, **settings: Any) -> Any:
    options = {"head_epochs": 2} if algorithm == "fedrep" else {}
    settings = {"options": options, "rounds": 2, "model": "resnet18"} | settings
    return train_whole(algorithm, images(), engine=engine, model_options={**TINY, "norm": norm}, **settings)


@pytest.mark.engine
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "local"])
def test_the_same_numbers(algorithm: str, norm: str) -> None:
    serial = go(algorithm, "serial", norm)
    for engine in ("processes", "messages"):
        other = go(algorithm, engine, norm)
        assert other.sha == serial.sha
        assert rows_without_time(other.run.history) == rows_without_time(serial.run.history)
    one, other = (go(algorithm, engine, norm, dtype="float64") for engine in ("serial", "batched"))
    assert_same_run(one, other, 1e-9)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_frozen_body_is_cut_off(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedRep's head epochs run on features computed once, and that changes no number."""
    model = tiny(norm=norm)
    split = find_split(model, frozenset(Groups(model, ResNet18.groups).names("head")), {"x": torch.ones(2, 2, 8, 8)})
    assert split is not None
    assert split.rest is model.get_submodule("fc")
    cut = go("fedrep", "serial", norm, dtype="float64")
    monkeypatch.setattr(Setup, "split", lambda self, trained: None)
    assert_same_run(cut, go("fedrep", "serial", norm, dtype="float64"), 1e-10)


def test_the_head_is_the_last_layer() -> None:
    groups = Groups(seeded(ResNet18, (2, 8, 8), 3, **TINY), ResNet18.groups)
    assert groups.names("head") == ("fc.weight", "fc.bias")
    assert set(groups.names("body")) == set(tensors_of(tiny())) - {"fc.weight", "fc.bias"}
