"""Adapters in peft's format, read back into a model.

Only names, numbers and shapes are read (``adapter_config.json``, ``adapter_model.safetensors``), so peft itself is not
needed for it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from commonground.adapters.format import CONFIG, PREFIX, WEIGHTS
from commonground.errors import ConfigError, ModelError
from commonground.models.adapted import AdaptedModel

__all__ = ["load_adapter"]

Settings = Mapping[str, Any]

# What would change a layer's output beyond B A, or the layers that have one, by its value where it is not used.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "alora_invocation_tokens": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "layer_replication": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "fan_in_fan_out": (False, None),
    # PiSSA, OLoRA, CorDA and LoftQ change the base's weights as well, and peft does so again when it loads them.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


def load_adapter(folder: str | os.PathLike[str], model: torch.nn.Module, *, check_base: bool = True) -> torch.nn.Module:
    """Put an adapter into a model, in place of its random factors: to start a run from it, or to adapt it further.

    A task head in the folder is taken over if it is for as many classes; otherwise the model keeps its own. In the
    command ``--set model.adapter=FOLDER`` does the same.

    Args:
        folder: as ``commonground export`` or peft's ``save_pretrained`` write it.
        model: an ``hf:…`` model (``build_model``) with the adapter's rank, alpha, target modules and layers.
        check_base: whether the adapter must be of the model's own pretrained weights: of the same sha256 where the
            folder has one (ours have), otherwise of the same name.

    Returns:
        The model.

    Raises:
        ConfigError: the adapter has another rank, scale or other layers than the model.
        ModelError: the folder holds no LoRA adapter, or one of another base.
    """
    folder = Path(folder).expanduser()
    if not isinstance(model, AdaptedModel):
        raise ModelError(f"an adapter is put into a model hf:NAME_OR_FOLDER, not into a {type(model).__name__}")
    config = _config(folder)
    tensors, about = _tensors(folder)
    if check_base:
        _check_base(folder, config, about, tensors, model)
    _check_settings(folder, config, tensors, model)
    live = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    head = set(model.head_names)
    chosen: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name not in live:
            raise ModelError(f"the adapter in '{folder}' holds '{name.removeprefix('base.')}', which the model has not")
        if live[name].shape == value.shape:
            chosen[name] = value
        elif name not in head:
            raise ModelError(
                f"the adapter in '{folder}' is of another base: '{name.removeprefix('base.')}' has the shape "
                f"{tuple(value.shape)}, in the model {tuple(live[name].shape)}"
            )
    if not head <= set(chosen):
        chosen = {name: value for name, value in chosen.items() if name not in head}
    with torch.no_grad():
        for name, value in chosen.items():
            live[name].copy_(value)
    return model


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(f"the folder '{folder}' holds no adapter (it has no {CONFIG})") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise ModelError(f"the adapter in '{folder}' is of the kind {kind}, not LORA")
    for key, plain in _PLAIN.items():
        if config.get(key) not in plain:
            raise ModelError(f"the adapter in '{folder}' has {key} = {config[key]!r}, which is not supported here")
    if not all(isinstance(config.get(key), int | float) and config[key] > 0 for key in ("r", "lora_alpha")):
        raise ModelError(f"'{path}' is damaged: it has no r and lora_alpha")
    return config


def _tensors(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by the names they have in an adapted model, and what the file says about itself."""
    path = folder / WEIGHTS
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            about = dict(file.metadata() or {})
            for key in file.keys():  # noqa: SIM118 (not a mapping)
                name = "base." + key.removeprefix(PREFIX)
                for factor in ("lora_A", "lora_B"):
                    name = name.replace(f".{factor}.weight", f".{factor}")
                tensors[name] = file.get_tensor(key)
    except FileNotFoundError:
        raise ModelError(f"the folder '{folder}' holds no adapter weights (it has no {WEIGHTS})") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"'{path}' cannot be read: {error}") from None
    return tensors, about


def _check_base(
    folder: Path,
    config: Settings,
    about: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    model: AdaptedModel,
) -> None:
    name = str(config.get("base_model_name_or_path") or "")
    sha = about.get("base_sha256")
    # Weights in another number type, or drawn because the base has none, have another sha256.
    factors = (".lora_A", ".lora_B")
    drawn = any(n not in model.head_names and not n.endswith(factors) for n in tensors)
    same_type = about.get("base_dtype") == str(model.base_dtype).removeprefix("torch.")
    if sha is not None and same_type and not drawn:
        if sha == model.base_sha256:
            return
        raise ModelError(
            f"the adapter in '{folder}' is of another base: '{name}' had other pretrained weights than "
            f"'{model.location}' has"
        )
    if name and Path(name).name != Path(model.location).name:
        raise ModelError(f"the adapter in '{folder}' is of another base: '{name}', not '{model.location}'")


def _check_settings(folder: Path, config: Settings, tensors: Mapping[str, Tensor], model: AdaptedModel) -> None:
    rank, alpha = int(config["r"]), float(config["lora_alpha"])
    rslora = bool(config.get("use_rslora"))
    options = model.options
    there = {name.removesuffix(".lora_A") for name in tensors if name.endswith(".lora_A")}
    scale = alpha / (math.sqrt(rank) if rslora else rank)
    own = options.alpha / (math.sqrt(options.rank) if options.rslora else options.rank)
    if rank == options.rank and math.isclose(scale, own, rel_tol=1e-6) and there == set(model.adapted):
        return
    if not there & {f"base.{name}" for name in model.linear_names}:
        first = min((name.removeprefix("base.") for name in there), default="no layer")
        raise ModelError(f"the adapter in '{folder}' is of another base: it adapts '{first}', which the model has not")
    layers = config.get("layers_to_transform")
    layers = [] if layers is None else [layers] if isinstance(layers, int) else layers
    everywhere = "" if layers or options.layers is None else ", in all layers: leave out model.layers"
    needed = [
        f"model.rank={rank}",
        f"model.alpha={alpha:g}",
        f"model.target_modules={','.join(sorted({name.rpartition('.')[2] for name in there}))}",
        *([f"model.layers={','.join(map(str, layers))}"] if layers else []),
        *(["model.rslora=true"] if rslora else []),
    ]
    raise ConfigError(
        f"the adapter in '{folder}' does not fit the model's LoRA settings; it was made with {' '.join(needed)}"
        f"{everywhere}"
    )
