"""Models by name, with weights drawn by key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from commonground.ambient import usual_numbers
from commonground.catalogue import unknown_model
from commonground.errors import ConfigError, ModelError
from commonground.generators import keyed_generators
from commonground.models.convolution import use_safe_convolutions
from commonground.models.dropout import use_keyed_dropout
from commonground.models.frozen_base import FrozenBaseModel
from commonground.models.low_rank import LowRank
from commonground.models.networks import MLP, ConvNet, Linear
from commonground.models.recurrent import LSTM
from commonground.models.resnet import ResNet18
from commonground.models.start import check_weights
from commonground.suggest import meant
from commonground.user_code import failing_as, load_object

__all__ = [
    "available_models",
    "build_model",
    "is_pretrained",
    "keyed_weights",
    "load_class",
    "model_options_class",
    "prepare",
]

_MODELS: dict[str, type[nn.Module]] = {
    "linear": Linear,
    "mlp": MLP,
    "cnn": ConvNet,
    "resnet18": ResNet18,
    "lstm": LSTM,
    "low-rank": LowRank,
}
ADAPTED = {"hf:NAME_OR_FOLDER": "a pretrained Hugging Face model with LoRA factors."}
GIVEN = ("shape", "classes")  # arguments of a network that are no options
PRESET = ("generative",)  # those of LoRAOptions


def available_models() -> dict[str, str]:
    """Names of the built-in models, each with its one-line description."""
    names = {name: (inspect.getdoc(cls) or "").splitlines()[0] for name, cls in _MODELS.items()}
    return names | ADAPTED


def model_options_class(name: str) -> tuple[type[Any], tuple[str, ...]]:
    """The class whose docstring and arguments say what options a model has, and those arguments that are none.

    Args:
        name: of :func:`available_models`.
    """
    if is_pretrained(name):
        from commonground.models.lora_options import LoRAOptions

        return LoRAOptions, PRESET
    return _MODELS[name], GIVEN


def load_class(text: str, base: type, what: str) -> type[Any]:
    """The class named by ``file.py:Class``.

    Raises:
        ConfigError: the file or the class is missing, or the class does not derive from ``base``.
    """
    cls = load_object(text, what, "class")
    if not (isinstance(cls, type) and issubclass(cls, base)):
        path, _, name = text.rpartition(":")
        raise ConfigError(f"the file '{path}' has no class '{name}' derived from {base.__name__}")
    return cls


def is_pretrained(name: str | None) -> bool:
    """Whether a model's name is that of a pretrained one (``hf:…``), which reads texts."""
    return name is not None and name.startswith("hf:")


def build_model(
    name: str,
    shape: Sequence[int],
    classes: int,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A model with initial weights that depend on the seed alone.

    Args:
        name: of :func:`available_models`, or ``file.py:Class``; a class (or function) is called with ``(shape, classes,
            **options)``.
        shape: shape of one sample as the model sees it; images as (channels, height, width).
        classes: number of outputs.
        seed: the run's seed.
        options: further arguments of the model's constructor.
        dtype: floating-point type of the weights.

    Raises:
        ConfigError: the name or an option is unknown.
        ModelError: the model does not fit the samples.
    """
    if is_pretrained(name):
        return _adapted(name, classes, seed, options or {}, dtype)
    if name in _MODELS:
        cls: type[nn.Module] = _MODELS[name]
    elif ":" in name:
        return prepare(_from_file(name, shape, classes, seed, options or {}), shape, dtype)
    else:
        raise unknown_model(name)
    _check_options(name, cls, options or {})
    with keyed_weights(seed, "weights"):
        try:
            model = cls(shape, classes, **(options or {}))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"the model '{name}' could not be built for samples of shape {tuple(shape)}: {error}"
            ) from error
    return prepare(model, shape, dtype)


def _no_option(name: str, option: str, known: Sequence[str]) -> ConfigError:
    has = ", ".join(known) or "none"
    return ConfigError(f"the model '{name}' has no option '{option}'{meant(option, known)}; it has {has}")


def _check_options(name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    known = [p for p in inspect.signature(make).parameters if p not in ("shape", "classes")]
    for option in options:
        if option not in known and "kwargs" not in known:
            raise _no_option(name, option, known)


def _from_file(name: str, shape: Sequence[int], classes: int, seed: int, options: Mapping[str, Any]) -> nn.Module:
    """The module that a class or function of a user's file makes."""
    make = load_object(name, "model", "class")
    path, _, inner = name.rpartition(":")
    derived = not isinstance(make, type) or issubclass(make, nn.Module)
    if not (callable(make) and derived) or isinstance(make, nn.Module):
        raise ConfigError(
            f"the file '{path}' has no class '{inner}' derived from Module, and no function of that name that makes one"
        )
    with failing_as(f"the model '{name}' could not be built for samples of shape {tuple(shape)}"):
        _check_options(name, make, options)
        told, given = _told(name, make, shape, classes, options)
        with keyed_weights(seed, "weights"):
            model = make(*told, **given, **options)
    if not isinstance(model, nn.Module):
        raise ModelError(f"'{name}' must make an nn.Module, and gave {type(model).__name__}")
    return model


def _told(
    name: str, make: Callable[..., Any], shape: Sequence[int], classes: int, options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a user's class or function is told of the data: ``shape`` and ``classes``, if it has parameters of these
    names; else the first that it must be given are these two.

    Returns:
        Without and with names.

    Raises:
        ConfigError: it must be given something else.
    """
    data = {"shape": shape, "classes": classes}
    parameters = inspect.signature(make).parameters
    given = {key: value for key, value in data.items() if key in parameters}
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values()):
        return (shape, classes), {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [
        parameter.name
        for parameter in parameters.values()
        if parameter.kind in named and parameter.default is parameter.empty
        and parameter.name not in {*given, *options}
    ]  # fmt: skip
    left = [key for key in data if key not in given]
    if len(needed) == len(left):
        return (), given | {parameter: data[key] for parameter, key in zip(needed, left, strict=True)}
    if needed:
        raise ConfigError(
            f"'{name}' needs {', '.join(map(repr, needed))}; a model's class is told shape (of a sample) and classes "
            f"if it has parameters of these names, and all else by --set model.{needed[-1]}=VALUE"
        )
    return (), given


def _adapted(name: str, classes: int, seed: int, options: Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    from commonground.models.huggingface import build_adapted
    from commonground.models.lora_options import LoRAOptions

    known = list(inspect.signature(LoRAOptions).parameters)
    for option in options:
        if option not in known:
            raise _no_option(name, option, known)
    with keyed_weights(seed, "weights"):
        return build_adapted(name, classes, LoRAOptions(**options), dtype)


@contextmanager
def keyed_weights(seed: int, purpose: str) -> Iterator[None]:
    """While open, draws of PyTorch, NumPy and Python (initial weights) depend on the seed and the purpose alone, not on
    the number type in which PyTorch makes tensors where none is said.
    """
    with keyed_generators(seed, purpose), usual_numbers():
        yield


def prepare(model: nn.Module, shape: Sequence[int], dtype: torch.dtype) -> nn.Module:
    """Make any module ready for the engines: keyed dropout, safe convolutions, the number type, channels-last images.

    Raises:
        ModelError: a lazy layer has no weights yet.
    """
    check_weights(model)
    if isinstance(model, FrozenBaseModel):
        return model  # it has its own number type and keeps its dropout off
    model = use_safe_convolutions(use_keyed_dropout(model)).to(dtype)
    # Convolutions on channels-last images are 1.4–1.5 times as fast on a CPU; values are the same numbers. (The
    # types that PyTorch names for `to` leave a memory format by itself out.)
    return model.to(memory_format=torch.channels_last) if len(shape) == 3 else model  # type: ignore[call-overload]
