"""Messages as bytes: safetensors with a small JSON header. Nothing is ever unpickled."""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from commonground.algorithms import Tensors
from commonground.errors import UpdateError

__all__ = ["pack", "unpack"]


def pack(fields: dict[str, Any], tensors: Tensors) -> bytes:
    """Fields (anything JSON can say) and tensors as one byte string."""
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return save_tensors(whole, metadata={"fields": json.dumps(fields)})


def unpack(message: bytes) -> tuple[dict[str, Any], Tensors]:
    """The fields and tensors of a byte string.

    Raises:
        UpdateError: the bytes are not a message.
    """
    try:
        length = int.from_bytes(message[:8], "little")
        header = json.loads(message[8 : 8 + length])
        fields: dict[str, Any] = json.loads(header["__metadata__"]["fields"])
        tensors: dict[str, torch.Tensor] = load_tensors(message)
        return fields, tensors
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UpdateError(f"{len(message)} bytes were received that are not a message ({error})") from None
