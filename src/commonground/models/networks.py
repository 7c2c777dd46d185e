"""The networks of the papers. Each is a plain chain of layers, which lets the engines cut it anywhere; none has a
softmax before the cross-entropy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import prod

from torch import nn

from commonground.errors import ModelError
from commonground.models.dropout import KeyedDropout

__all__ = ["MLP", "ConvNet", "Linear"]


_NORMS: dict[str, type[nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class Linear(nn.Sequential):
    """Softmax regression: flatten, one linear layer, which is the head; the body is empty.

    Args:
        shape: one sample's shape.
        classes: number of classes.
    """

    groups: Mapping[str, Sequence[str]] = {"head": ["head"]}

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(prod(shape), classes)))


class MLP(nn.Sequential):
    """Fully connected ReLU network; the head is the last layer.

    Args:
        shape: one sample's shape, flattened first.
        classes: number of classes.
        hidden: widths of the hidden layers. By default (512, 256, 64), FedRep's network for FEMNIST (Collins et al.
            2021; their code, without its softmax), and (128, 64) for inputs of fewer than 256 numbers.
        norm: ``batch`` or ``layer``: normalisation of that kind before each ReLU, as FedBN needs it; none by default.
        softmax: whether probabilities leave the network instead of logits. The cross-entropy takes the softmax of them
            once more, so that its gradients are small: FedRep's code for FEMNIST does so.
    """

    groups: Mapping[str, Sequence[str]] = {"head": ["head"]}

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        hidden: int | Sequence[int] = (),
        norm: str = "none",
        softmax: bool = False,
    ) -> None:
        if norm not in ("none", *_NORMS):
            raise ModelError(f"the model 'mlp' has norm=batch, layer or none, not {norm!r}")
        size = prod(shape)
        hidden = _widths(hidden, "hidden") or ((512, 256, 64) if size >= 256 else (128, 64))
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for i, width in enumerate(hidden, 1):
            layers[f"fc{i}"] = nn.Linear(size, width)
            if norm != "none":
                layers[f"norm{i}"] = _NORMS[norm](width)
            layers[f"relu{i}"] = nn.ReLU()
            size = width
        layers["head"] = nn.Linear(size, classes)
        if softmax:
            layers["softmax"] = nn.Softmax(dim=1)
        super().__init__(layers)


def _widths(value: int | Sequence[int], name: str) -> tuple[int, ...]:
    widths = (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(width, int) and width >= 1 for width in widths):
        raise ModelError(f"{name} widths must be at least 1, whole numbers as in [64,32], not {value!r}")
    return widths


class ConvNet(nn.Sequential):
    """The papers' 5-layer CNN: two 5×5 convolutions, each with 2×2 max-pooling, then three linear layers.

    The head is the last linear layer. LG-FedAvg's local part (``lower``) is the two convolutions, its global part
    (``upper``) the linear layers (Collins et al. 2021, App. A.2).

    Args:
        shape: one image's shape (channels, height, width), at least 16×16.
        classes: number of classes.
        channels: output channels of the convolutions; (64, 64), or (64, 128) for 100 classes.
        hidden: widths of the hidden linear layers; (120, 64), or (256, 128) for 100 classes.
        dropout: probability of the dropout behind a hidden linear layer; 0, or 0.6 for 100 classes.
        dropout_after: which hidden linear layer it is behind. It is the second one (2) in the code of FedRep's and of
            FLUTE's authors; FLUTE's App. C names it after the first pooling, FedRep's paper not at all.
        head_bias: whether the last layer has biases.
    """

    groups: Mapping[str, Sequence[str]] = {"head": ["head"], "lower": ["conv1", "conv2"]}

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        channels: Sequence[int] = (),
        hidden: Sequence[int] = (),
        dropout: float | None = None,
        dropout_after: int = 2,
        head_bias: bool = True,
    ) -> None:
        if dropout_after not in (1, 2):
            raise ModelError(f"the model 'cnn' has dropout_after=1 or 2, not {dropout_after!r}")
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise ModelError(
                f"the model 'cnn' needs images of at least 16×16 as (channels, height, width), not samples of shape "
                f"{tuple(shape)}; use 'mlp'"
            )
        many = classes >= 100
        c1, c2 = _widths(channels, "channel") or ((64, 128) if many else (64, 64))
        h1, h2 = _widths(hidden, "hidden") or ((256, 128) if many else (120, 64))
        p = (0.6 if many else 0.0) if dropout is None else dropout
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            # Pooling before the ReLU gives the same values and gradients as after it, on a quarter of the numbers.
            conv1=nn.Conv2d(shape[0], c1, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(c1, c2, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(c2 * rows * columns, h1),
            relu3=nn.ReLU(),
        )
        drop = {"dropout": KeyedDropout(p)} if p > 0 else {}
        if dropout_after == 1:
            layers.update(drop)
        layers.update(fc2=nn.Linear(h1, h2), relu4=nn.ReLU())
        if dropout_after == 2:
            layers.update(drop)
        layers["head"] = nn.Linear(h2, classes, bias=head_bias)
        super().__init__(layers)
