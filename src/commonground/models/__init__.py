"""The papers' networks, parameter groups, and what the engines need to know about any model."""

from commonground.models.build import available_models, build_model, keyed_weights, load_class, prepare
from commonground.models.calling import arguments, call
from commonground.models.dropout import KeyedDropout, use_keyed_dropout
from commonground.models.groups import Groups, tensors_of
from commonground.models.networks import MLP, ConvNet, Linear
from commonground.models.recurrent import LSTM
from commonground.models.resnet import ResNet18
from commonground.models.split import Split, find_split

__all__ = [
    "LSTM",
    "MLP",
    "ConvNet",
    "Groups",
    "KeyedDropout",
    "Linear",
    "ResNet18",
    "Split",
    "arguments",
    "available_models",
    "build_model",
    "call",
    "find_split",
    "keyed_weights",
    "load_class",
    "prepare",
    "tensors_of",
    "use_keyed_dropout",
]
