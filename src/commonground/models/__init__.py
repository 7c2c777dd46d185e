"""The papers' networks, parameter groups, and what the engines need to know about any model."""

from commonground.models.build import (
    available_models,
    build_model,
    is_pretrained,
    keyed_weights,
    load_class,
    model_options_class,
    prepare,
)
from commonground.models.calling import arguments, call, call_with
from commonground.models.dropout import KeyedDropout, use_keyed_dropout
from commonground.models.frozen_base import FrozenBaseModel, base_sha256_of, vocab_size_of
from commonground.models.groups import (
    Groups,
    aliases_of,
    constants_of,
    groups_of,
    set_constants,
    set_groups,
    tensors_of,
)
from commonground.models.networks import MLP, ConvNet, Linear
from commonground.models.recurrent import LSTM
from commonground.models.resnet import ResNet18
from commonground.models.split import ModelCut, find_split
from commonground.models.start import own_copy, reset_counters, restored, start_of

__all__ = [
    "LSTM",
    "MLP",
    "ConvNet",
    "FrozenBaseModel",
    "Groups",
    "KeyedDropout",
    "Linear",
    "ModelCut",
    "ResNet18",
    "aliases_of",
    "arguments",
    "available_models",
    "base_sha256_of",
    "build_model",
    "call",
    "call_with",
    "constants_of",
    "find_split",
    "groups_of",
    "is_pretrained",
    "keyed_weights",
    "load_class",
    "model_options_class",
    "own_copy",
    "prepare",
    "reset_counters",
    "restored",
    "set_constants",
    "set_groups",
    "start_of",
    "tensors_of",
    "use_keyed_dropout",
    "vocab_size_of",
]
