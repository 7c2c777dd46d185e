"""Parameter groups: every tensor in exactly one of body and head, whatever the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

from commonground.errors import ModelError
from commonground.models import ConvNet, Groups, Linear, tensors_of
from tests.helpers import normed


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def test_defaults() -> None:
    groups = Groups(chain())
    assert groups.names("head") == ("4.weight", "4.bias")
    assert groups.names("body") == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert groups.names("lower") == groups.names("body")
    assert groups.names("upper") == groups.names("head")
    assert groups.names("all") == tuple(chain().state_dict())
    assert groups.names(["head", "body"]) == groups.names("all")  # in the model's order, not the caller's
    assert "head" in groups
    assert "tail" not in groups


@pytest.mark.parametrize(
    ("patterns", "head"),
    [
        ({"head": ["4"]}, ["4.weight", "4.bias"]),  # a submodule
        ({"head": ["4.bias"]}, ["4.bias"]),  # a tensor
        ({"head": ["*.bias"]}, ["0.bias", "2.bias", "4.bias"]),  # a shell pattern
        ({"head": ["[24].weight"]}, ["2.weight", "4.weight"]),
        ({"head": ["2", "4"]}, ["2.weight", "2.bias", "4.weight", "4.bias"]),
        ({"body": ["0"]}, ["2.weight", "2.bias", "4.weight", "4.bias"]),  # the rest
        ({"body": ["0", "2"], "head": ["4"]}, ["4.weight", "4.bias"]),
        ({"head": ["*"]}, list(chain().state_dict())),
    ],
)
def test_patterns(patterns: Mapping[str, Sequence[str]], head: list[str]) -> None:
    groups = Groups(chain(), patterns)
    assert list(groups.names("head")) == head
    assert set(groups.names("body")) == set(chain().state_dict()) - set(head)


def test_a_name_is_not_a_prefix() -> None:
    """The module ``1`` is not the module ``10``."""
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(11)])
    assert Groups(model, {"head": ["1"]}).names("head") == ("1.weight", "1.bias")


def test_further_groups() -> None:
    groups = Groups(chain(), {"middle": ["2"], "lower": ["0"]})
    assert groups.names("middle") == ("2.weight", "2.bias")
    assert groups.names("upper") == ("2.weight", "2.bias", "4.weight", "4.bias")
    assert Groups(chain(), {"upper": ["4"]}).names("lower") == ("0.weight", "0.bias", "2.weight", "2.bias")


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        ({"head": ["9"]}, "the pattern '9' of the group 'head' matches no tensor of the model, which has 0.weight"),
        ({"head": ["4", "tail"]}, "the pattern 'tail' of the group 'head' matches no tensor"),
        ({"body": ["0", "2", "4"], "head": ["4"]}, "'4.bias' is both in 'body' and in 'head'"),
        ({"body": ["0"], "head": ["4"]}, "'2.weight' is in none of the groups 'body', 'head'"),
        ({"lower": ["0"], "upper": ["4"]}, "'2.weight' is in none of the groups 'lower', 'upper'"),
    ],
)
def test_groups_that_do_not_cover(patterns: Mapping[str, Sequence[str]], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        Groups(chain(), patterns)


def test_a_group_that_does_not_exist() -> None:
    with pytest.raises(ModelError, match="no group 'tail'; it has all, body, head, lower, upper"):
        Groups(chain()).names("tail")
    with pytest.raises(ModelError, match=r"no nn\.Linear to take as its head"):
        Groups(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten()))


def test_buffers_follow_their_module() -> None:
    """Running statistics are in the body, counters in no group."""
    model = normed()
    groups = Groups(model)
    assert {"1.running_mean", "1.running_var"} <= set(groups.names("body"))
    assert not {"1.running_mean", "1.running_var"} & set(groups.trainable("body"))
    assert "1.num_batches_tracked" in model.state_dict()
    assert "1.num_batches_tracked" not in groups.names("all")
    assert Groups(model, {"head": ["1", "3"]}).names("head")[2:4] == ("1.running_mean", "1.running_var")


def test_statistics_that_clients_keep_are_in_no_group() -> None:
    running = ("1.running_mean", "1.running_var")
    plain, local = Groups(normed()), Groups(normed(), local_statistics=True)
    assert plain.statistics == local.statistics == local.local_statistics == running
    assert plain.local_statistics == ()
    assert plain.whole("all") == plain.names("all") == local.whole("all")
    assert set(local.whole("all")) - set(local.names("all")) == set(running)
    assert set(local.whole("body")) - set(local.names("body")) == set(running)
    assert local.trainable("all") == plain.trainable("all")
    local.check_cover(["body"], ["head"])
    assert Groups(chain(), local_statistics=True).local_statistics == ()
    # Under InstanceNorm as it usually is and LayerNorm, and in BatchNorm without statistics, there is nothing to keep.
    others = nn.Sequential(
        nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4, track_running_stats=False), nn.InstanceNorm1d(4)
    )
    assert Groups(others).statistics == ()
    for layer in (nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)):
        assert Groups(nn.Sequential(layer, nn.Linear(4, 3))).statistics == ("0.running_mean", "0.running_var")


def test_buffers_that_are_not_saved_and_integers_are_left_out() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.ones(2), persistent=False)
    model.register_buffer("count", torch.tensor(3))
    model.register_buffer("scale", torch.ones(()))
    assert list(tensors_of(model)) == ["weight", "bias", "scale"]
    assert tensors_of(model)["weight"] is model.weight  # live, not copies


def test_frozen_parameters_travel_but_are_not_trained() -> None:
    model = chain()
    model[0].weight.requires_grad_(False)
    groups = Groups(model)
    assert "0.weight" in groups.names("body")
    assert "0.weight" not in groups.trainable("body")


def test_groups_of_the_papers_networks() -> None:
    groups = Groups(ConvNet((3, 32, 32), 10), ConvNet.groups)
    convolutions = ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")
    linear = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "head.weight", "head.bias")
    assert groups.names("lower") == convolutions  # Collins et al. 2021, App. A.2
    assert groups.names("upper") == linear
    assert groups.names("head") == ("head.weight", "head.bias")
    assert Groups(Linear((4,), 3), Linear.groups).names("body") == ()
