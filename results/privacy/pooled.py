"""The model of the CIFAR-10 figures: a perceptron on pictures of 8×8 pixels, few enough weights to hide under noise."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from torch import nn


class Pooled(nn.Sequential):
    """Mean over squares of 4×4 pixels, two hidden layers, and the head.

    Args:
        shape: one picture's shape (channels, height, width).
        classes: number of classes.
        hidden: widths of the two hidden layers.
    """

    groups: Mapping[str, Sequence[str]] = {"head": ["head"]}

    def __init__(self, shape: Sequence[int], classes: int, hidden: Sequence[int] = (32, 16)) -> None:
        channels, height, width = shape
        first, second = hidden
        layers = OrderedDict[str, nn.Module](pool=nn.AvgPool2d(4), flatten=nn.Flatten())
        layers.update(fc1=nn.Linear(channels * (height // 4) * (width // 4), first), relu1=nn.ReLU())
        layers.update(fc2=nn.Linear(first, second), relu2=nn.ReLU(), head=nn.Linear(second, classes))
        super().__init__(layers)
