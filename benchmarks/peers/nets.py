"""The networks, as chains of the same layers for all who can be given one; the last layer is the head."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def cnn() -> OrderedDict[str, nn.Module]:
    """FedRep's network for CIFAR-10, in the order of ours: pooling before the ReLU gives the same numbers sooner."""
    return OrderedDict(
        conv1=nn.Conv2d(3, 64, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(64, 64, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(1600, 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 64),
        relu4=nn.ReLU(),
        head=nn.Linear(64, 10),
    )


def pfllib() -> OrderedDict[str, nn.Module]:
    """What PFLlib takes for CIFAR-10: two convolutions of 32 and 64 channels, one hidden layer of 512."""
    return OrderedDict(
        conv1=nn.Conv2d(3, 32, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(1600, 512),
        relu3=nn.ReLU(),
        head=nn.Linear(512, 10),
    )


def layers(net: str) -> OrderedDict[str, nn.Module]:
    """The layers of a network of :attr:`benchmarks.peers.common.Work.net`."""
    return {"cnn": cnn, "pfllib": pfllib}[net]()


def whole(net: str) -> nn.Sequential:
    """The network."""
    return nn.Sequential(layers(net))


def cut(net: str) -> tuple[nn.Sequential, nn.Linear]:
    """Body and head."""
    body = layers(net)
    head = body.popitem()[1]
    assert isinstance(head, nn.Linear)
    return nn.Sequential(body), head
