"""Tensors that all clients of a stacked cohort have in common, known by their type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["Common", "plain"]


class Common(Tensor):
    """What the server sent to all clients, and what is computed of such tensors and of numbers alone.

    Side by side with others it has no leading axis, which its shape does not tell: of four clients a tensor of four
    rows looks as if it had one. An operation with a stacked tensor gives a stacked one, which is a plain tensor.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            alone = all(isinstance(tensor, Common) or tensor.ndim == 0 for tensor in given)
            kind = Common if alone else Tensor
            return tree_map_only(Tensor, lambda t: t if type(t) is kind else t.as_subclass(kind), result)


def plain(tensor: Tensor) -> Tensor:
    """The same tensor as one of no kind."""
    if not isinstance(tensor, Common):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)
