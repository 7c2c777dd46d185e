"""Parts of the shared tensors: of a client that holds less of them than the model has, as factors of a smaller rank.

What a client does not hold is zero for it, and travels neither way. In one process all tensors keep the model's shapes,
so that clients can be stacked; in messages there are the parts alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from commonground.algorithms import Algorithm, Tensors
from commonground.engine.backends.base import payload_bytes
from commonground.engine.backends.checks import check_tensor
from commonground.engine.backends.client_result import ClientResult
from commonground.errors import ModelError, shown
from commonground.quoting import quoted

__all__ = ["bytes_of_parts", "confined", "has_parts", "only_parts", "parts_of", "with_zeros"]


def has_parts(algorithm: Algorithm) -> bool:
    """Whether clients of this method may hold parts of tensors."""
    return type(algorithm).held_part is not Algorithm.held_part


def parts_of(algorithm: Algorithm, tensors: Tensors, client: int) -> Tensors:
    """What travels of tensors that are shared, from or to a client."""
    if not has_parts(algorithm):
        return tensors
    return {name: value[_part(algorithm, name, client, value)] for name, value in tensors.items()}


def bytes_of_parts(algorithm: Algorithm, tensors: Tensors, client: int) -> int:
    """Bytes of :func:`parts_of`."""
    return payload_bytes(parts_of(algorithm, tensors, client))


def only_parts(algorithm: Algorithm, tensors: Tensors, client: int) -> Tensors:
    """The tensors of which a client holds a part alone, in their own shapes with zeros for the rest."""
    found: Tensors = {}
    for name, value in tensors.items() if has_parts(algorithm) else ():
        if part := _part(algorithm, name, client, value):
            found[name] = torch.zeros_like(value)
            found[name][part] = value[part]
    return found


def confined(algorithm: Algorithm, result: ClientResult) -> ClientResult:
    """A client's round, of whose update nothing beyond its parts counts, as nothing of it would have arrived."""
    update = result.update
    own = only_parts(algorithm, update.tensors, update.client)
    return replace(result, update=replace(update, tensors=update.tensors | own)) if own else result


def with_zeros(algorithm: Algorithm, parts: Tensors, like: Tensors, client: int, whose: str) -> Tensors:
    """Parts as they arrived, in tensors of the model's shapes: :func:`parts_of` undone.

    Args:
        algorithm: the method.
        parts: by name; what has another name than ``like`` has stays as it is.
        like: tensors of the whole shapes.
        client: whose parts they are.
        whose: whose tensors they are, for messages.

    Raises:
        UpdateError: a part is of another shape or number type; begins with ``whose``.
    """
    whole = dict(parts)
    for name in like if has_parts(algorithm) else ():  # in their order: messages have none
        if name in parts and (part := _part(algorithm, name, client, like[name])):
            check_tensor(whose, name, parts[name], like[name][part])
            whole[name] = torch.zeros_like(like[name], device=parts[name].device)
            whole[name][part] = parts[name]
    return whole


def _part(algorithm: Algorithm, name: str, client: int, tensor: Tensor) -> tuple[slice, ...]:
    """What a client holds of a tensor.

    Raises:
        ModelError: the method gives no index of slices.
    """
    part: object = algorithm.held_part(name, client)
    if not isinstance(part, tuple) or not all(isinstance(piece, slice) for piece in part) or len(part) > tensor.ndim:
        raise ModelError(
            f"held_part of {algorithm.title} gives {shown(part)} for {quoted(name)}; let it give a "
            f"tuple of slices, at most one for each axis of its shape {tuple(tensor.shape)}"
        )
    return part
