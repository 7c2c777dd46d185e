"""Messages as bytes: safetensors with a small JSON header. Nothing is ever unpickled.

Whoever sends them may be broken or lie, so the header is read with bounds on everything before a tensor is made of it:
its length, its depth, its numbers, every tensor's type, shape and place. A sha256 of the content finds what was damaged
on the way.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from commonground.algorithms import Tensors
from commonground.engine.state.digests import digest
from commonground.engine.state.files import tensor_file
from commonground.errors import UpdateError
from commonground.quoting import escaped, quoted

__all__ = ["pack", "unpack"]

LONGEST_HEADER = 1 << 23  # bytes; fifty thousand tensors
LONGEST_FIELDS = 1 << 20  # characters of the fields' JSON
DEEPEST = 8  # lists and objects within one another
LONGEST_NUMBER = 40  # characters
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


class TensorEntry(BaseModel):
    """What the header says of one tensor."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    dtype: str
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=16)]
    data_offsets: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


class MessageHeader(BaseModel):
    """What the header says of the whole message."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    fields: Annotated[str, Field(max_length=LONGEST_FIELDS)]
    sha256: str


ENTRIES = TypeAdapter(dict[str, TensorEntry])


def pack(fields: dict[str, Any], tensors: Tensors) -> bytes:
    """Fields (anything JSON can say) and tensors as one byte string, the same for the same ones."""
    text = json.dumps(fields)
    return b"".join(tensor_file(tensors, {"fields": text, "sha256": _sha256(text, tensors)}))


def unpack(message: bytes) -> tuple[dict[str, Any], Tensors]:
    """The fields and tensors of a byte string.

    Raises:
        UpdateError: the bytes are not a message, or not what was packed.
    """
    if not isinstance(message, bytes):
        raise UpdateError(f"something was received that is not a message but of type {type(message).__name__}")
    try:
        header, content = _header(message)
        about = MessageHeader.model_validate(header.pop("__metadata__", {}))
        _check_layout(ENTRIES.validate_python(header), content)
        fields = _read_json(about.fields)
        tensors: Tensors = load_tensors(message)
        if _sha256(about.fields, tensors) != about.sha256:
            raise ValueError("its content is not what its sha256 says")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = quoted(".".join(map(str, first["loc"])))
        raise UpdateError(f"{_what(message)} ({where} in its header: {escaped(first['msg'])})") from None
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise UpdateError(f"{_what(message)} ({escaped(str(error))})") from None
    if not isinstance(fields, dict):
        raise UpdateError(f"{_what(message)} (its fields are a {type(fields).__name__})")
    return fields, tensors


def _what(message: bytes) -> str:
    return f"{len(message)} bytes were received that are not a message"


def _sha256(fields: str, tensors: Tensors) -> str:
    return hashlib.sha256(f"{fields}\n{digest(tensors)}".encode()).hexdigest()


def _header(message: bytes) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and how many bytes follow it."""
    length = int.from_bytes(message[:8], "little")
    if len(message) < 8 or length > len(message) - 8:
        raise ValueError("it is cut short")
    if length > LONGEST_HEADER:
        raise ValueError(f"its header of {length} bytes is longer than {LONGEST_HEADER}")
    header = _read_json(message[8 : 8 + length].decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header, len(message) - 8 - length


def _read_json(text: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_whole, parse_float=_number)
    except RecursionError:
        raise ValueError(f"its JSON is nested more than {DEEPEST} deep") from None
    if _is_deeper(value, DEEPEST):
        raise ValueError(f"its JSON is nested more than {DEEPEST} deep")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"{quoted(twice)} stands in it twice")
    return found


def _whole(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number in it has {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if len(text) > LONGEST_NUMBER or math.isinf(value):
        raise ValueError(f"the number {escaped(text, LONGEST_NUMBER)} in it is too large or too long")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(part, depth - 1) for part in inner)


def _check_layout(entries: dict[str, TensorEntry], content: int) -> None:
    """Refuse tensors that leave gaps, overlap, are not of their shape's size, or do not fill the content."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in BYTES:
            raise ValueError(f"the tensor {quoted(name)} is of the type {quoted(entry.dtype)}")
        if math.prod(max(1, n) for n in entry.shape) >= 1 << 60:
            raise ValueError(f"the tensor {quoted(name)} has a shape beyond every size")
        begin, after = entry.data_offsets
        if begin != end or after - begin != math.prod(entry.shape) * BYTES[entry.dtype]:
            raise ValueError(f"the tensor {quoted(name)} is not of the size that its shape says")
        end = after
    if end != content:
        raise ValueError(f"{content} bytes follow its header, and its tensors have {end}")
