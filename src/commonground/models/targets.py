"""Which linear layers of a pretrained model get factors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from commonground.errors import ConfigError, ModelError
from commonground.models.lora_options import LoRAOptions

__all__ = ["TransformerLayers", "target_layers"]


@dataclass(frozen=True)
class TransformerLayers:
    """A model's list of equal layers, its longest ModuleList.

    Attributes:
        name: of the list in the model.
        entries: its layers; not the list itself, which would become a second name of the same weights.
    """

    name: str
    entries: tuple[nn.Module, ...]

    @classmethod
    def of(cls, base: nn.Module) -> TransformerLayers:
        """Those of a model.

        Raises:
            ModelError: it has no such list.
        """
        lists = [(n, m) for n, m in base.named_modules() if isinstance(m, nn.ModuleList) and len(m)]
        if not lists:
            raise ModelError(f"{type(base).__name__} has no list of transformer layers")
        name, layers = max(lists, key=lambda item: len(item[1]))
        return cls(name, tuple(layers))

    def number_of(self, name: str) -> int | None:
        """In which of the layers a module of the model is; None outside of them."""
        match = re.match(re.escape(f"{self.name}.") + r"(\d+)\.", name)
        return int(match[1]) if match else None


def target_layers(base: nn.Module, layers: TransformerLayers, options: LoRAOptions) -> dict[str, nn.Linear]:
    """The layers that options name, by their names in the model.

    Args:
        base: the model.
        layers: its transformer layers.
        options: where to adapt.

    Raises:
        ConfigError: a target or layer number matches nothing, or ``re:`` is followed by no regular expression.
        ModelError: the model has no linear layer there.
    """
    wanted = options.target_modules
    linear = {n: m for n, m in base.named_modules() if isinstance(m, nn.Linear)}
    if not any(layers.number_of(name) is not None for name in linear):
        kinds = sorted({type(m).__name__ for layer in layers.entries for m in layer.modules() if _has_matrix(m)})
        raise ModelError(
            f"{type(base).__name__} has no linear layer in its transformer layers that could be adapted; they "
            f"are made of {', '.join(kinds)}"
        )
    if isinstance(wanted, str) and wanted.startswith("re:"):
        try:
            pattern = re.compile(wanted[3:])
        except re.error as error:
            raise ConfigError(f"the target modules '{wanted}' are no regular expression: {error}") from None
        hit = [n for n in linear if pattern.fullmatch(n)]
    else:
        ends = wanted.split(",") if isinstance(wanted, str) else list(wanted)
        ends = [e.strip() for e in ends if e.strip()] or _query_and_value(linear)
        for end in ends:
            if not any(n == end or n.endswith(f".{end}") for n in linear):
                there = sorted({n.rpartition(".")[2] for n in linear if layers.number_of(n) is not None})
                raise ConfigError(
                    f"the target module '{end}' matches no linear layer of the model; its layers have "
                    f"{', '.join(there)}"
                )
        hit = [n for n in linear if any(n == e or n.endswith(f".{e}") for e in ends)]
    if options.layers is not None:
        outside = [n for n in options.layers if n >= len(layers.entries)]
        if outside:
            raise ConfigError(
                f"layer {outside[0]} is to be adapted, but the model has the layers 0 to {len(layers.entries) - 1}"
            )
        hit = [n for n in hit if layers.number_of(n) in options.layers]
    if not hit:
        raise ConfigError(f"the target modules '{wanted}' match no linear layer of the model")
    return {name: linear[name] for name in hit}


def _has_matrix(module: nn.Module) -> bool:
    return any(parameter.ndim == 2 for parameter in module.parameters(recurse=False))


def _query_and_value(linear: Mapping[str, nn.Module]) -> list[str]:
    """The usual names of the query and value projections that this model has."""
    ends = {n.rpartition(".")[2] for n in linear}
    for pair in (("query", "value"), ("q_proj", "v_proj"), ("q_lin", "v_lin"), ("q", "v")):
        if ends.issuperset(pair):
            return list(pair)
    known = ", ".join(sorted(ends))
    raise ConfigError(f"name the layers to adapt (--set model.target_modules=…); the model has {known}")
