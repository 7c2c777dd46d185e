"""Parameter groups: names such as ``body`` and ``head`` for parts of any ``nn.Module``.

A group is a tuple of tensor names (parameters *and* floating-point buffers, so that BatchNorm statistics follow the
module they belong to, unless every client is to keep its own). Integer buffers (``num_batches_tracked``) belong to no
group: they never travel.

Any module, a user's own too, may say two things about its tensors, as attributes of its class or of itself:

- ``groups``, a mapping from group names to name patterns (see :class:`Groups`): the groups the model suggests;
- ``constants``, a set of tensor names: tensors that are neither trained nor sent, such as the pretrained weights under
  LoRA factors.

Others read and change them by the functions of this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase

from torch import Tensor, nn

from commonground.errors import ModelError
from commonground.suggest import meant

__all__ = ["Groups", "aliases_of", "constants_of", "groups_of", "set_constants", "set_groups", "tensors_of"]


def groups_of(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The groups a module suggests, by name, as name patterns; a copy, empty if it suggests none."""
    groups = getattr(model, "groups", {})
    if not isinstance(groups, Mapping):  # an attribute of another meaning, such as the groups of a convolution
        return {}
    return {name: tuple(patterns) for name, patterns in groups.items()}


def set_groups(model: nn.Module, groups: Mapping[str, Sequence[str]]) -> None:
    """Let a module suggest these groups."""
    vars(model)["groups"] = {name: tuple(patterns) for name, patterns in groups.items()}


def constants_of(model: nn.Module) -> frozenset[str]:
    """Names of the tensors that a module keeps constant."""
    constants = getattr(model, "constants", ())
    return frozenset(constants) if isinstance(constants, Set | Sequence) else frozenset()


def set_constants(model: nn.Module, names: Iterable[str]) -> None:
    """Let a module keep the tensors of these names constant."""
    vars(model)["constants"] = frozenset(names)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The live parameters and persistent floating-point buffers of a model, in its own order, without constants.

    A tensor that is there under several names (tied weights, a submodule used twice) is there once, under the first.
    """
    live = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    constants = constants_of(model)
    names = [name for name in model.state_dict() if name in live]  # no second names, nothing a module adds to its state
    return {n: live[n] for n in names if n not in constants and live[n].is_floating_point()}


def aliases_of(model: nn.Module) -> dict[str, str]:
    """Further names of tensors that a module holds under several, each with the first name, by which it is known."""
    every = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    first: dict[int, str] = {}
    return {name: known for name, value in every if (known := first.setdefault(id(value), name)) != name}


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(pattern + ".") or fnmatchcase(name, pattern)


class Groups:
    """Named groups of a model's tensors.

    Wherever a group's name is asked for, a pattern will do as well: what is no name of a group stands for the tensors
    that match it.

    Args:
        model: any module.
        patterns: group name to name patterns. A pattern is a tensor's name, a submodule's name (all it holds) or a
            shell pattern (``"layers.*.weight"``). ``head`` defaults to the last ``nn.Linear``; ``body`` to all the
            rest; ``lower``/``upper`` (LG-FedAvg's local and global parts) to ``body``/``head``; ``all`` always exists.
        local_statistics: whether every client keeps the running statistics of BatchNorm layers (and of InstanceNorm
            layers that have them) to itself, as SiloBN does (Andreux et al. 2020), so that no group has them.

    Attributes:
        statistics: names of those running statistics.
        local_statistics: those of them that every client keeps: all or none.

    Raises:
        ModelError: a pattern matches nothing, or ``body`` and ``head`` (``lower`` and ``upper``) overlap or leave
            a tensor out.
    """

    def __init__(
        self,
        model: nn.Module,
        patterns: Mapping[str, Sequence[str]] | None = None,
        *,
        local_statistics: bool = False,
    ) -> None:
        self._all = tuple(tensors_of(model))
        if not any(True for _ in model.parameters()):
            raise ModelError("the model has no parameters, so that nothing can be trained")
        slashed = next((name for name in self._all if "/" in name), None)
        if slashed is not None:
            raise ModelError(f"the model's tensor '{slashed}' has a / in its name, which marks what is no tensor of it")
        self._aliases = {name: known for name, known in aliases_of(model).items() if known in self._all}
        layers = [name for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        running = {f"{name}.{kind}".removeprefix(".") for name in layers for kind in ("running_mean", "running_var")}
        self.statistics = tuple(name for name in self._all if name in running)
        self.local_statistics = self.statistics if local_statistics else ()
        self._trainable = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
        self._groups: dict[str, tuple[str, ...]] = {"all": self._all}
        patterns = dict(patterns or {})
        for group, wanted in patterns.items():
            self._groups[group] = self._select(group, wanted)
        if "head" not in patterns:
            if "body" in patterns:
                self._groups["head"] = self._rest("body")
            else:
                self._groups["head"] = self._select("head", [_last_linear(model)])
        if "body" not in patterns:
            self._groups["body"] = self._rest("head")
        if "lower" not in patterns:
            self._groups["lower"] = self._rest("upper") if "upper" in patterns else self._groups["body"]
        if "upper" not in patterns:
            self._groups["upper"] = self._rest("lower")
        for one, other in (("body", "head"), ("lower", "upper")):
            self.check_cover((one,), (other,))

    def _select(self, group: str, patterns: Sequence[str]) -> tuple[str, ...]:
        chosen: set[str] = set()
        for pattern in patterns:
            found = self._matching(pattern)
            chosen.update(found)
            if not found:
                parts = {name.rsplit(".", level)[0]: None for name in self._all for level in (1, 0)}
                raise ModelError(
                    f"the pattern '{pattern}'{meant(pattern, parts)} of the group '{group}' matches no tensor of the "
                    f"model, which has {', '.join(self._all[:8])}{', …' if len(self._all) > 8 else ''}"
                )
        return tuple(name for name in self._all if name in chosen)

    def _matching(self, pattern: str) -> list[str]:
        """Tensors one of whose names matches."""
        also = {known for name, known in self._aliases.items() if _matches(name, pattern)}
        return [name for name in self._all if name in also or _matches(name, pattern)]

    def _rest(self, group: str) -> tuple[str, ...]:
        return tuple(name for name in self._all if name not in self._groups[group])

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def names(self, groups: str | Iterable[str]) -> tuple[str, ...]:
        """Tensor names of one group (or pattern) or of several, in the model's order, without statistics that clients
        keep.
        """
        return tuple(name for name in self.whole(groups) if name not in self.local_statistics)

    def whole(self, groups: str | Iterable[str]) -> tuple[str, ...]:
        """As :meth:`names`, with the statistics that clients keep, each in the group of its layer."""
        wanted = (groups,) if isinstance(groups, str) else tuple(groups)
        for group in wanted:
            if group not in self._groups and not self._matching(group):
                hint = ""
                if group.startswith("lora_"):
                    hint = "; LoRA factors come with --model hf:NAME_OR_FOLDER"
                    if any(name.endswith(f".{group}") for name in self._all):
                        hint = (
                            "; --head and --body take the place of the model's own groups, so leave them out or choose "
                            "a method that knows head and body alone, such as fedrep or fedper"
                        )
                raise ModelError(f"the model has no group '{group}'; it has {', '.join(sorted(self._groups))}{hint}")
        chosen = {name for group in wanted for name in self._groups.get(group) or self._matching(group)}
        return tuple(name for name in self._all if name in chosen)

    def trainable(self, groups: str | Iterable[str]) -> tuple[str, ...]:
        """As :meth:`names`, parameters only (buffers are not trained by gradients)."""
        return tuple(name for name in self.names(groups) if name in self._trainable)

    def check_cover(self, one: Iterable[str], other: Iterable[str], hint: str = "") -> None:
        """Raise unless every tensor is in exactly one of the two sets of groups; a hint says what they are for."""
        a, b = set(self.names(one)), set(self.names(other))
        if a & b:
            raise ModelError(f"'{sorted(a & b)[0]}' is both in {_said(one)} and in {_said(other)}{hint}")
        left = [name for name in self.names("all") if name not in a | b]
        if left:
            raise ModelError(f"'{left[0]}' is in none of the groups {_said([*one, *other])}{hint}")


def _said(groups: Iterable[str]) -> str:
    return ", ".join(map(repr, groups))


def _last_linear(model: nn.Module) -> str:
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ModelError("the model has no nn.Linear to take as its head; name the head by a pattern (--head PATTERN)")
    return linear[-1] or "*"
