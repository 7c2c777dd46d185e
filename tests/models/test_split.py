"""Cutting a model: ``rest(first(x))`` is the model, and nothing trained or random lies before the cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from commonground.models import ConvNet, Groups, ModelCut, call, find_split, prepare, tensors_of
from tests.helpers import Dropping, TwoLayer, dropping_chain, seeded

X = torch.linspace(-1, 1, 6 * 4).view(6, 4).sin()
IMAGES = torch.linspace(-3, 3, 3 * 2 * 16 * 16).sin().view(3, 2, 16, 16)


def cut(model: nn.Module, *trained: str, x: Tensor = X) -> ModelCut | None:
    """The cut when the named tensors (or all of the group ``head``) are trained."""
    names = trained or Groups(model, getattr(model, "groups", None)).names("head")
    return find_split(model, frozenset(names), {"x": x[:2]})


def rows_of(split: ModelCut, x: Tensor) -> Tensor:
    return split.rest(split.features(partial(call, split.first), {"x": x}))


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def small_cnn(dropout: float) -> nn.Module:
    return ConvNet((2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=dropout)


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (chain, X),
        (TwoLayer, X),
        (dropping_chain, X),
        (partial(small_cnn, 0.0), IMAGES),
        (partial(small_cnn, 0.5), IMAGES),
    ],
)
def test_exact_in_evaluation(make: Callable[[], nn.Module], x: Tensor) -> None:
    model = prepare(seeded(make), x.shape[1:], torch.float32).eval()
    split = cut(model, x=x)
    assert split is not None
    assert torch.equal(rows_of(split, x), model(x))
    assert set(split.rest_names) <= set(tensors_of(model))
    inner = tensors_of(split.rest)
    assert all(inner[short] is tensors_of(model)[name] for name, short in split.rest_names.items())


def test_exact_and_after_nothing_random_in_training() -> None:
    """In training the first part is still a fixed function: two calls give the same numbers."""
    model = prepare(dropping_chain(), (4,), torch.float32).train()
    split = cut(model)
    assert split is not None
    assert [name for name, _ in split.first.named_children()] == ["0", "1"]
    assert [name for name, _ in split.rest.named_children()] == ["2", "3", "4", "5", "6"]
    dropout, second = model[2], model[5]  # type: ignore[index]
    second.mask = dropout.mask = torch.tensor([2.0, 0.0] * 3)
    assert torch.equal(rows_of(split, X), model(X))


def test_the_cut_is_as_late_as_can_be() -> None:
    names = [name for name, _ in chain().named_children()]
    for trained, at in ((("4.weight",), 4), (("2.bias", "4.weight"), 2), (("4.bias", "2.weight", "4.weight"), 2)):
        split = cut(chain(), *trained)
        assert split is not None
        assert [name for name, _ in split.first.named_children()] == names[:at]
        assert not split.captured


def test_the_convolutional_net_with_dropout_is_cut_before_it() -> None:
    split = cut(prepare(small_cnn(0.5), (2, 16, 16), torch.float32), x=IMAGES)
    assert split is not None
    assert next(name for name, _ in split.rest.named_children()) == "dropout"
    plain = cut(prepare(small_cnn(0.0), (2, 16, 16), torch.float32), x=IMAGES)
    assert plain is not None
    assert [name for name, _ in plain.rest.named_children()] == ["head"]


def test_no_cut() -> None:
    assert cut(chain(), "0.weight", "4.weight") is None  # nothing is frozen before the first layer
    assert find_split(chain(), frozenset(), {"x": X[:2]}) is None  # nothing is trained
    assert cut(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))) is None  # nothing worth computing once
    assert cut(prepare(Dropping(), (4,), torch.float32)) is None  # random somewhere, order unknown
    assert cut(TwoLayer(), "first.weight", "first.bias") is None  # not the last module
    assert cut(TwoLayer(), "head.weight") is None  # a part of a module


class Overridden(nn.Sequential):
    """A chain in name only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 3.0


class Factor(nn.Module):
    """A trained factor that starts at one."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Changing(TwoLayer):
    """The head's output is changed on the way out, in a way that two samples, or fresh weights, do not show."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.after = after
        with torch.no_grad():
            self.head.bias.fill_(5.0)  # so that no small input has a negative output

    def forward(self, x: Tensor) -> Tensor:
        return self.after(super().forward(x))


class Twice(nn.Module):
    """One module used twice: its first input is not its last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.head = nn.Linear(3, 3)
        nn.init.eye_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.head(self.first(x)))


def test_a_chain_with_its_own_forward_is_not_cut_as_a_chain() -> None:
    model = Overridden(*chain().children())
    split = cut(model, "4.weight", "4.bias")
    assert split is None or torch.equal(rows_of(split, X), model(X))


@pytest.mark.parametrize("after", [nn.Hardtanh(-50, 50), nn.ReLU(), Factor()], ids=["clamp", "relu", "factor"])
def test_a_head_whose_output_is_changed_is_not_the_end(after: nn.Module) -> None:
    """Equal values on two samples are no proof: outputs move during training, and factors are trained."""
    assert cut(Changing(after), "head.weight", "head.bias") is None


def test_a_module_that_is_used_twice_is_not_the_end() -> None:
    assert cut(Twice(), "head.weight", "head.bias") is None


def test_probing_leaves_the_mode_as_it_was() -> None:
    model = TwoLayer()
    for mode in (True, False):
        model.train(mode)
        assert cut(model, "head.weight", "head.bias") is not None
        assert model.training is mode
        assert all(m.training is mode for m in model.modules())
