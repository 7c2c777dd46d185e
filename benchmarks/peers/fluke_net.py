"""The network as fluke wants it: classes that it finds by their names and calls for each client. Imports fluke."""

from __future__ import annotations

from collections import OrderedDict

from fluke.nets import EncoderHeadNet
from torch import nn

from benchmarks.peers.nets import cut, layers


class Net(EncoderHeadNet):
    """Body and head."""

    def __init__(self) -> None:
        super().__init__(*cut("cnn"))


class Body(nn.Sequential):
    """The body alone: what its FedRep's server keeps."""

    def __init__(self) -> None:
        super().__init__(OrderedDict(cut("cnn")[0].named_children()))


class Whole(nn.Sequential):
    """All layers in a row: what its FedAvg trains."""

    def __init__(self) -> None:
        super().__init__(layers("cnn"))
