"""ResNet-18, in torchvision's layout and tensor names, so that its weights can be exchanged.

Written here and not imported: torchvision's builds belong to one build of PyTorch each and are not there for every
platform, and one network is no reason to depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

from torch import Tensor, nn

from commonground.errors import ModelError

__all__ = ["ResNet18"]

Stem = Literal["imagenet", "cifar"]
Norm = Literal["batch", "group", "none"]

MOST_GROUPS = 32  # Wu & He 2018


class _GroupNorm(nn.GroupNorm):
    """GroupNorm that can be stacked over clients: ``vmap`` has none for channels-last images (a step takes 3–7 % longer
    for the copy).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Images [rows, channels, height, width], normalised."""
        return super().forward(x.contiguous())


class _Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut (torchvision's ``BasicBlock``).

    Args:
        inputs, outputs: channels.
        stride: of the first convolution and of the shortcut.
        conv: makes a convolution of (inputs, outputs, kernel size, stride).
        norm: makes a normalisation of so many channels.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        conv: Callable[[int, int, int, int], nn.Conv2d],
        norm: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv(outputs, outputs, 3, 1)
        self.bn2 = norm(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Images [rows, inputs, height, width] to [rows, outputs, height/stride, width/stride]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu(y + (x if self.downsample is None else self.downsample(x)))
        return out


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016), for small images with ``stem=cifar``; the head is the last layer.

    Layout, names and initial distributions are torchvision's: normal convolutions (He et al. 2015, fan-out), scales
    1 and shifts 0 of the norms. Bao, Crawshaw, Liu 2024 train it as it is on CIFAR's 32×32 images.

    Args:
        shape: one image's shape (channels, height, width).
        classes: number of classes.
        stem: ``imagenet``, a 7×7 convolution of stride 2 and max-pooling, or ``cifar``, a 3×3 convolution of stride 1.
        width: channels of the first stage; every further one has twice as many.
        blocks: residual blocks of each stage; every stage but the first halves the image.
        norm: ``batch``, ``group`` (under the same names), or ``none``, with which the convolutions have biases.
        norm_groups: groups of GroupNorm, which must divide ``width``; by default the largest such number up to 32.

    Raises:
        ModelError: an option is out of its range, or a stage has nothing left of the image to halve.
    """

    groups: Mapping[str, Sequence[str]] = {"head": ["fc"]}

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        stem: Stem = "imagenet",
        width: int = 64,
        blocks: Sequence[int] = (2, 2, 2, 2),
        norm: Norm = "batch",
        norm_groups: int | None = None,
    ) -> None:
        super().__init__()
        _check(shape, stem, width, blocks, norm, norm_groups)
        conv = partial(_conv, bias=norm == "none")
        make_norm = _norm(norm, width, norm_groups)
        large = stem == "imagenet"
        self.conv1 = conv(shape[0], width, 7 if large else 3, 2 if large else 1)
        self.bn1 = make_norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        self._stages = [f"layer{i}" for i in range(1, len(blocks) + 1)]
        inputs = width
        for i, (name, count) in enumerate(zip(self._stages, blocks, strict=True)):
            outputs, stride = width << i, 1 if i == 0 else 2
            first = _Block(inputs, outputs, stride, conv, make_norm)
            rest = [_Block(outputs, outputs, 1, conv, make_norm) for _ in range(count - 1)]
            self.add_module(name, nn.Sequential(first, *rest))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes] of images [rows, channels, height, width]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self._stages:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.fc(x.mean((2, 3)))  # an average pool to one pixel, which vmap has no fast rule for
        return logits


def _conv(inputs: int, outputs: int, size: int, stride: int, *, bias: bool) -> nn.Conv2d:
    """A convolution that keeps the image's size but for its stride; a bias only where no norm has a shift."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv


def _norm(kind: Norm, width: int, groups: int | None) -> Callable[[int], nn.Module]:
    if kind == "batch":
        return nn.BatchNorm2d
    if kind == "none":
        return lambda channels: nn.Identity()
    number = groups or max(n for n in range(1, min(MOST_GROUPS, width) + 1) if width % n == 0)
    return lambda channels: _GroupNorm(number, channels)


def _check(
    shape: Sequence[int], stem: object, width: object, blocks: object, norm: object, norm_groups: object
) -> None:
    """Refuse options that make no network, and images that are too small for it."""
    for name, value, known in (("stem", stem, get_args(Stem)), ("norm", norm, get_args(Norm))):
        if value not in known:
            raise ModelError(f"the model 'resnet18' has no {name} {value!r}; known are {', '.join(known)}")
    if not _count(width):
        raise ModelError(f"width must be a whole number of at least 1, not {width!r}")
    if not (isinstance(blocks, Sequence) and not isinstance(blocks, str) and blocks and all(map(_count, blocks))):
        raise ModelError(f"blocks must be a number of at least 1 for each stage, as in [2,2,2,2], not {blocks!r}")
    if norm_groups is not None:
        if norm != "group":
            raise ModelError(f"norm_groups={norm_groups!r} is for norm=group, and norm is {norm}")
        if not _count(norm_groups) or width % norm_groups:  # type: ignore[operator]
            raise ModelError(f"norm_groups must divide the width, {width}, and {norm_groups!r} does not")
    # The last halving needs two pixels: one that finds a single pixel mixes nothing.
    halvings = (2 if stem == "imagenet" else 0) + len(blocks) - 1
    least = 2 ** (halvings - 1) + 1 if halvings else 1
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ModelError(
            f"the model 'resnet18' with stem={stem} and {len(blocks)} stages of blocks needs images of at least "
            f"{least}×{least} as (channels, height, width), not samples of shape {tuple(shape)}; "
            + ("stem=cifar and fewer stages need less" if len(shape) == 3 else "use 'mlp'")
        )


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
