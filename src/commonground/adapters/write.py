"""One adapter as a folder in peft's format, one merged model as a folder of transformers."""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from commonground.adapters.factors import Factors, update_of
from commonground.adapters.format import CONFIG, PREFIX, WEIGHTS
from commonground.algorithms import Tensors
from commonground.errors import ConfigError
from commonground.extras import pip_install
from commonground.models.adapted import AdaptedModel
from commonground.models.lora import LoRALinear

__all__ = ["base_name", "copy_tokenizer", "merged", "write_adapter", "write_merged"]

# What a tokenizer is made of; a model's folder may hold any of these.
_TOKENIZER = (
    "tokenizer*.json",
    "tokenizer*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "sentencepiece*.model",
    "chat_template.*",
)


def base_name(model: AdaptedModel) -> str:
    """What an adapter says its base is: a local folder in full, or the name on the Hugging Face hub."""
    local = Path(model.location)
    return str(local.resolve()) if local.is_dir() else model.location


def write_adapter(folder: Path, model: AdaptedModel, values: Tensors, factors: Factors) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``.

    Args:
        folder: an existing folder.
        model: the adapted model.
        values: its tensors by name, with the head.
        factors: of every adapted layer.

    Raises:
        ConfigError: peft is not installed.
    """
    tensors = {f"{PREFIX}{name}.lora_A.weight": a for name, a in factors.a.items()}
    tensors |= {f"{PREFIX}{name}.lora_B.weight": b for name, b in factors.b.items()}
    whole = model.state_dict()
    # Weights of the base that its own folder lacks (a pooler) would be drawn anew by whoever loads the adapter.
    saved = {name: whole[f"base.{name}"] for name in model.drawn}
    saved |= {name.removeprefix("base."): values[name] for name in model.head_names}
    tensors |= {PREFIX + name: value for name, value in saved.items()}
    modules = sorted({_saved_module(model, name) for name in saved})
    _lora_config(model, factors, modules).save_pretrained(str(folder))
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    if isinstance(config["target_modules"], list):  # a set in peft: in an order of its own every time
        config["target_modules"].sort()
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    about = {
        "format": "pt",
        "base_sha256": model.base_sha256,
        "base_dtype": str(model.base_dtype).removeprefix("torch."),
    }
    # Not save_file, which writes a file that nobody else may read.
    (folder / WEIGHTS).write_bytes(save({name: value.detach().contiguous() for name, value in tensors.items()}, about))


def _saved_module(model: AdaptedModel, name: str) -> str:
    """The module that peft's ``modules_to_save`` names for a tensor: the whole head, or the tensor's own module."""
    head = {n.removeprefix("base.").split(".")[0] for n in model.head_names}
    first = name.split(".")[0]
    return first if first in head else name.rpartition(".")[0]


def _lora_config(model: AdaptedModel, factors: Factors, modules_to_save: list[str]) -> Any:
    """The LoraConfig with which peft adapts exactly the layers that were adapted here, as short as possible."""
    try:
        import peft
    except ImportError:
        raise ConfigError(f"writing an adapter needs the extra: {pip_install('llm')}") from None
    options = model.options
    names = [name.removeprefix("base.") for name in model.adapted]
    given, ends = options.target_modules, sorted({name.rpartition(".")[2] for name in names})
    listed = given if isinstance(given, str) else ",".join(given)
    tries: list[tuple[str | list[str], list[int] | None]] = [
        ([end.strip() for end in listed.split(",") if end.strip()] or ends, options.layers),
        (ends, options.layers),
        (names, None),
    ]
    if listed.startswith("re:"):
        tries[0] = (listed[3:], None)  # a pattern does not go with numbers of layers in peft
    alpha: Any = int(factors.alpha) if float(factors.alpha).is_integer() else factors.alpha
    for targets, layers in tries:
        config = peft.LoraConfig(
            task_type=model.task_type,
            base_model_name_or_path=base_name(model),
            inference_mode=True,
            r=factors.rank,
            lora_alpha=alpha,
            lora_dropout=options.dropout,
            use_rslora=factors.rslora,
            target_modules=targets,
            layers_to_transform=layers,
            modules_to_save=modules_to_save or None,
        )
        if _hit(config, model) == set(names):
            return config
    raise ConfigError(f"peft cannot name the adapted layers of {type(model.base).__name__}; export with --merge")


def _hit(config: Any, model: AdaptedModel) -> set[str]:
    """The base model's modules that peft would adapt."""
    from peft.tuners.tuners_utils import check_target_module_exists

    inner = tuple(f"{name.removeprefix('base.')}." for name in model.adapted)
    modules = [name for name, _ in model.base.named_modules() if name and not name.startswith(inner)]
    return {name for name in modules if check_target_module_exists(config, name)}


def write_merged(
    folder: Path, model: AdaptedModel, values: Tensors, class_names: Sequence[str] = (), pad_token: int | None = None
) -> None:
    """Write a plain transformers model whose weights hold the update; they keep the base's number type.

    Args:
        folder: an existing folder.
        model: the adapted model; it is as before afterwards.
        values: its tensors by name.
        class_names: what the model's configuration calls the classes; those of the base if empty.
        pad_token: what its configuration calls the token for padding; the base's if None.
    """
    transformers: Any = importlib.import_module("transformers")
    with merged(model, values), _named(model, class_names, pad_token), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about generation settings of the base, which are not ours
        before = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        try:
            model.base.save_pretrained(str(folder))  # type: ignore[operator]  # a method, which PyTorch takes for a tensor
        finally:
            transformers.logging.set_verbosity(before)


@contextmanager
def _named(model: AdaptedModel, class_names: Sequence[str], pad_token: int | None) -> Iterator[None]:
    """While open, the base's configuration has these names of classes, and this token for padding."""
    if not (model.head_names and class_names):
        yield
        return
    config = model.config
    own = getattr(config, "pad_token_id", None)
    before = config.id2label, config.label2id, own
    config.id2label = dict(enumerate(class_names))
    config.label2id = {name: number for number, name in enumerate(class_names)}
    config.pad_token_id = own if pad_token is None else pad_token
    try:
        yield
    finally:
        config.id2label, config.label2id, config.pad_token_id = before


@contextmanager
def merged(model: AdaptedModel, values: Tensors) -> Iterator[None]:
    """While open, the base of a model has plain linear layers with the update in them, and the head given."""
    own = {name: model.get_submodule(name) for name in model.adapted}
    head = {name: model.get_parameter(name) for name in model.head_names}
    kept = {name: value.data for name, value in head.items()}
    try:
        for name, layer in own.items():
            assert isinstance(layer, LoRALinear)
            plain = nn.Linear(
                layer.base.in_features, layer.base.out_features, bias=layer.base.bias is not None, device="meta"
            )
            weight = layer.base.weight.double() + update_of(model, name, values)
            plain.weight = nn.Parameter(weight.to(layer.base.weight.dtype), requires_grad=False)
            plain.bias = layer.base.bias
            _put(model, name, plain)
        for name, value in head.items():
            value.data = values[name].to(model.base_dtype)
        yield
    finally:
        for name, layer in own.items():
            _put(model, name, layer)
        for name, value in head.items():
            value.data = kept[name]


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def copy_tokenizer(model: AdaptedModel, folder: Path) -> None:
    """Copy the tokenizer's files, if the base is a local folder."""
    source = Path(model.location)
    if not source.is_dir():
        return
    for pattern in _TOKENIZER:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
