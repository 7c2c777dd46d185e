"""Loading pretrained models of Hugging Face."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from commonground.errors import ConfigError, ModelError
from commonground.extras import pip_install
from commonground.models.adapted import HEADS, AdaptedModel
from commonground.models.adapted_kinds import AnsweringModel, ClassifyingModel
from commonground.models.lora_options import LoRAOptions

__all__ = ["base_location", "build_adapted"]

PREFIX = "hf:"


def base_location(name: str) -> str:
    """The folder or hub name after ``hf:``."""
    return name.removeprefix(PREFIX)


def build_adapted(name: str, classes: int, options: LoRAOptions, dtype: torch.dtype) -> AdaptedModel:
    """Load a pretrained model and put LoRA factors into it; random weights (factors, a new head) come from PyTorch's
    own generator, so key it around this call.

    Args:
        name: ``hf:`` and a local folder or a name on the Hugging Face hub.
        classes: labels of a classification task.
        options: where and how to adapt.
        dtype: of what is trained.

    Raises:
        ConfigError: the extra is not installed, or an option does not fit the model.
        ModelError: the folder holds no model, or its weights are missing.
    """
    try:
        import transformers
    except ImportError:
        raise ConfigError(f"the model '{name}' needs the extra: {pip_install('llm')}") from None
    location = base_location(name)
    local = Path(location).expanduser()
    if local.exists() or location.startswith((".", "/", "~")):
        _check_folder(local, name)
        location = str(local)
    kind = AnsweringModel if options.generative else ClassifyingModel
    auto: Any = getattr(transformers, f"AutoModelFor{kind.auto_class}")
    extra: dict[str, Any] = {"num_labels": classes} if kind is ClassifyingModel else {}
    base_dtype = dtype if options.base_dtype == "same" else getattr(torch, options.base_dtype)
    with _quiet(transformers):
        try:
            base, found = auto.from_pretrained(
                location,
                dtype=base_dtype,
                local_files_only=local.exists(),
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **extra,
            )
        except Exception as error:  # transformers raises many kinds for a model it cannot load
            raise ModelError(f"the model '{name}' cannot be loaded: {str(error).strip().splitlines()[0]}") from None
    drawn = _drawn(name, base, found, kind)
    return kind(base, options, dtype, location, drawn)


def _drawn(name: str, base: Any, found: Mapping[str, Any], kind: type[AdaptedModel]) -> list[str]:
    """Tensors that transformers has drawn at random, besides a head: what stands between the pretrained model and a
    classifier's head, which a model that was trained for something else lacks (a pooler, say).

    Raises:
        ModelError: tensors of the pretrained model itself are missing, or of another shape than its config.json says.
    """
    prefix, classifies = base.base_model_prefix, kind is ClassifyingModel
    inside = f"{prefix}." if hasattr(base, prefix) else ""

    def of_head(tensor: str) -> bool:
        return classifies and tensor.split(".")[0] in HEADS

    def pretrained(tensor: str) -> bool:
        between = classifies and (not tensor.startswith(inside) or "pooler" in tensor.split("."))
        return not between and not of_head(tensor)

    missing, mismatched = sorted(found["missing_keys"]), sorted(found["mismatched_keys"])
    if lost := list(filter(pretrained, missing)):
        others = sorted(found["unexpected_keys"])
        theirs = f"; it has such as '{others[0]}', which the model has not" if others else ""
        raise ModelError(
            f"the weights of the model '{name}' lack {len(lost)} of the {len(base.state_dict())} tensors of "
            f"{type(base).__name__}, such as '{lost[0]}'{theirs}"
        )
    for one, there, wanted in mismatched:
        if pretrained(one):
            raise ModelError(
                f"the weights of the model '{name}' do not fit its config.json: '{one}' is {list(there)}, not "
                f"{list(wanted)}"
            )
    return [one for one in (*missing, *(one for one, _, _ in mismatched)) if not of_head(one)]


def _check_folder(folder: Path, name: str) -> None:
    if not folder.is_dir():
        raise ModelError(f"the model '{name}' names the folder '{folder}', which does not exist")
    if not (folder / "config.json").is_file():
        raise ModelError(f"the folder '{folder}' of the model '{name}' has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"the folder '{folder}' of the model '{name}' has no weights (*.safetensors; pickled ones are not read)"
        )


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no remarks about a head that is new on purpose."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads and forked workers do not mix
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
