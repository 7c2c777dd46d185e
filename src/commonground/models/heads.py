"""Models whose head is one linear layer: finding it, and putting something larger in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy

from torch import Tensor, nn

from commonground.errors import ModelError
from commonground.models.groups import Groups, aliases_of, groups_of, set_groups, tensors_of

__all__ = ["find_linear_head", "head_module", "inputs_of", "replace_head"]


def head_module(model: nn.Module, groups: Groups) -> nn.Module | None:
    """The submodule that holds exactly the head, so that its input is the representation; None if there is none."""
    names, also = set(groups.whole("head")), aliases_of(model)
    modules: list[tuple[str, nn.Module]] = list(model.named_modules())
    for name, module in modules:
        inner = [f"{name}.{t}" for t in tensors_of(module)]
        if name and {also.get(t, t) for t in inner} == names:
            return module
    return None


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """While open, what a module is given first is added to the list, call by call."""
    given: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    try:
        yield given
    finally:
        handle.remove()


def find_linear_head(model: nn.Module, groups: Groups, who: str) -> tuple[str, nn.Linear]:
    """Name and module of a model's head, which has to be one ``nn.Linear``.

    Args:
        model: the model.
        groups: its groups.
        who: the method that asks, for the error.

    Raises:
        ModelError: the head is something else, or the model as a whole.
    """
    names = set(groups.names("head"))
    for name, module in model.named_modules():
        plain = isinstance(module, nn.Linear) and "weight" in module._parameters  # not computed from other tensors
        if name and plain and {f"{name}.{t}" for t in tensors_of(module)} == names:
            return name, module
    instead = f"not {', '.join(sorted(names))}" if names else "and this model has no head"
    raise ModelError(f"{who} needs a model whose head is one nn.Linear inside it, {instead}")


def replace_head(
    model: nn.Module,
    groups: Groups,
    who: str,
    make: Callable[[nn.Linear], nn.Module],
    parts: Mapping[str, Sequence[str]],
) -> nn.Module:
    """A copy of a model with something else in place of its linear head.

    A chain stays a chain, and what the new head sees is what the old one saw.

    Args:
        model, groups, who: as in :func:`find_linear_head`.
        make: from the old head to the new one.
        parts: further groups, as names of parts of the new head.
    """
    path, _ = find_linear_head(model, groups, who)
    extended = deepcopy(model)
    parent, _, name = path.rpartition(".")
    head = extended.get_submodule(path)
    assert isinstance(head, nn.Linear)
    setattr(extended.get_submodule(parent), name, make(head))
    patterns = {group: names for group, names in groups_of(model).items() if group != "body"}
    patterns["head"] = (path,)
    patterns |= {group: tuple(f"{path}.{part}" for part in names) for group, names in parts.items()}
    set_groups(extended, patterns)
    return extended
