"""Messages that are not honest ones: damaged bytes, made-up headers, wrong fields, wrong tensors.

A lie is made of an honest message by ``(draw, fields, tensors, message)``; None where this message cannot be bent so.
All of them can be told from the truth: a wrong number within all bounds, which nobody can, is not among them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from commonground.algorithms import Tensors
from commonground.engine.state.digests import digest

__all__ = ["HOSTILE", "Lie", "lies_of", "sealed"]

Lie = Callable[[np.random.Generator, dict[str, Any], Tensors, bytes], Any]

HOSTILE = "\x1b[2J\x1b]0;x\x07\u202eegassem\u2066\nTraceback (most recent call last):\n\ud800" + "x" * 5000

# Values as JSON: what no field with a number, a name or a list of them can be …
NEVER = ['"3"', "[]", "{}", '{"a": 1}', "true", "[null]", "[[1], 2]", "1e400", "-1e400", "1" + "0" * 400,
         json.dumps(HOSTILE), "[" * 50_000 + "]" * 50_000, '{"a": ' * 20 + "1" + "}" * 20]  # fmt: skip
# … no count …
NO_COUNT = [*NEVER, "null", "-1", "0", "1.5", "NaN", "1000000", "9223372036854775808", "1e308", "[1]"]
# … no loss (that of a client that did not train is null), no sum of what is right or wrong.
NO_LOSS = [*NEVER, "NaN", "-Infinity", "1e300", "[1]"]
NO_SUM = [*NO_LOSS, "null"]
FIELDS: dict[str, dict[str, list[str]]] = {
    # of messages …
    "train": {"kind": NO_COUNT, "round": NO_COUNT, "safe": [*NO_COUNT[:-6], "99"], "since": [*NEVER, "0", "99", "-1"],
              "last": [*NEVER, "null", "-1", "99", "1.5"]},
    "reply": {"kind": NO_COUNT, "round": [*NO_COUNT, "3"]},
    "evaluate": {"kind": NO_COUNT, "round": [*NEVER, "null", "-1", "1.5", "99"],
                 "which": [*NO_COUNT, '"both"', '"validation"']},
    "digest": {"kind": NO_COUNT, "round": [*NEVER, "null", "-1", "1.5", "99"], "last": [*NEVER, "null", "-1", "1.5"]},
    # … and of answers.
    "trained": {"client": [*NEVER, "null", "-1", "1.5", "99"], "round": NO_COUNT, "samples": NO_COUNT, "loss": NO_LOSS},
    "tested": {"count": NO_COUNT, "loss": NO_SUM, "sums": [*NO_COUNT, '{"accuracy": 1, "more": 1}']},
    "digested": {"digest": [*NO_COUNT, json.dumps("0" * 63), json.dumps("g" * 64), json.dumps("0" * 64 + "\n")]},
    "kept": {},
}  # fmt: skip
BEYOND = {
    "accuracy": ["-1", "1e6", "0.5"],
    "squared": ["[-1]", "[1, 1]"],
    "y": ["1", "[1, 1]", "[[1]]"],
    "true": ["-1", "1e6", "0.5"],
}


def sealed(text: str, tensors: Tensors) -> bytes:
    """A message with this text as its fields' JSON, and the sha256 that goes with it."""
    whole = {name: value.contiguous().clone() for name, value in tensors.items()}
    sha = hashlib.sha256(f"{text}\n{digest(whole)}".encode()).hexdigest()
    return save(whole, metadata={"fields": text, "sha256": sha})


def lies_of(kind: str, fields: dict[str, Any], tensors: Tensors) -> list[tuple[str, Lie]]:
    """All kinds of lies about one message, by name.

    Args:
        kind: of the message, as in ``FIELDS``.
        fields, tensors: of the honest one.
    """
    found: list[tuple[str, Lie]] = [(f"bytes: {lie.__name__}", lie) for lie in BYTES]
    found += [(f"header: {name}", partial(_made_up, name)) for name in HEADERS]
    for field, values in FIELDS[kind].items():
        found += [(f"{field} = {value[:20]}", partial(_field, field, value)) for value in values]
    for name in fields.get("sums", {}):
        found += [(f"{name} = {v[:20]}", partial(_sum, name, v)) for v in [*NO_SUM, *BEYOND.get(name, [])]]
    names = [*FIELDS[kind], "more", HOSTILE]
    found += [(f"another {name[:5]!r}", partial(_another, name)) for name in names]
    of_answers = [_with_value(3e38)] if kind == "trained" else []
    found += [(f"tensors: {lie.__name__}", lie) for lie in [*TENSORS, *of_answers]]
    return found


# -- fields ---------------------------------------------------------------------------------------------------------


def _field(
    field: str, value: str, draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, _: bytes
) -> Any:
    if json.dumps(fields[field]) == value or (field == "since" and fields[field] is None and value == "99"):
        return None
    return sealed(json.dumps(fields | {field: "?here?"}).replace('"?here?"', value), tensors)


def _sum(name: str, value: str, draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, _: bytes) -> Any:
    changed = fields | {"sums": fields["sums"] | {name: "?here?"}}
    return sealed(json.dumps(changed).replace('"?here?"', value), tensors)


def _another(name: str, draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, _: bytes) -> Any:
    """Without a field; or with one that does not belong there."""
    if name in fields:
        return sealed(json.dumps({n: v for n, v in fields.items() if n != name}), tensors)
    return sealed(json.dumps(fields | {name: 1}), tensors)


# -- tensors --------------------------------------------------------------------------------------------------------


def _one(draw: np.random.Generator, tensors: Tensors) -> str | None:
    floats = [name for name, value in tensors.items() if value.is_floating_point() and value.numel()]
    return floats[draw.integers(len(floats))] if floats else None


def _with_value(value: float) -> Lie:
    def lie(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, _: bytes) -> Any:
        name = _one(draw, tensors)
        if name is None:
            return None
        changed = tensors[name].clone()
        changed.view(-1)[draw.integers(changed.numel())] = value
        return sealed(json.dumps(fields), tensors | {name: changed})

    lie.__name__ = f"a value is {value}"
    return lie


def _changed(title: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Lie:
    def lie(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, _: bytes) -> Any:
        name = _one(draw, tensors)
        if name is None:
            return None
        return sealed(json.dumps(fields), tensors | {name: change(tensors[name])})

    lie.__name__ = title
    return lie


def _renamed(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, _: bytes) -> Any:
    name = _one(draw, tensors)
    if name is None or (fields.get("since") is not None):
        return None
    other = {n: v for n, v in tensors.items() if n != name}
    return sealed(json.dumps(fields), other | {"\x1b[1m\u202e" + "n" * 999: tensors[name]})


def _added(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, _: bytes) -> Any:
    return sealed(json.dumps(fields), tensors | {"more": torch.ones(3)})


TENSORS: list[Lie] = [
    *map(_with_value, (float("nan"), float("inf"), float("-inf"))),
    _changed("longer", lambda v: torch.cat([v.reshape(-1), v.reshape(-1)])),
    _changed("one axis more", lambda v: v.unsqueeze(0)),
    _changed("empty", lambda v: v.new_zeros(0)),
    _changed("whole numbers", lambda v: v.long()),
    _changed("halves", lambda v: v.half()),
    _changed("bits", lambda v: v > 0),
    _renamed,
    _added,
]


# -- bytes ----------------------------------------------------------------------------------------------------------


def flipped(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, message: bytes) -> bytes:
    changed = bytearray(message)
    for place in draw.integers(len(message), size=draw.integers(1, 4)):
        changed[place] ^= 1 << draw.integers(8)
    return bytes(changed)


def cut(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, message: bytes) -> bytes:
    return message[: draw.integers(len(message))]


def longer(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, message: bytes) -> bytes:
    place = draw.integers(len(message) + 1)
    return message[:place] + draw.bytes(int(draw.integers(1, 20))) + message[place:]


def without_some(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, message: bytes) -> bytes:
    place = draw.integers(len(message))
    return message[:place] + message[place + draw.integers(1, 20) :]


def any_bytes(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, message: bytes) -> bytes:
    return draw.bytes(int(draw.integers(0, 300)))


def another_length(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, message: bytes) -> bytes:
    length = [0, 1, 2**63, 2**64 - 1, len(message), len(message) - 7][draw.integers(6)]
    return length.to_bytes(8, "little") + message[8:]


def no_bytes(draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, message: bytes) -> Any:
    return [None, "text", 3, [message], bytearray(message)][draw.integers(5)]


BYTES: list[Lie] = [flipped, cut, longer, without_some, any_bytes, another_length, no_bytes]

# -- headers --------------------------------------------------------------------------------------------------------

ABOUT = '"__metadata__": {"fields": "{}", "sha256": "0"}'
HEADERS = {
    "nothing": "",
    "no object": "[]",
    "nothing about it": "{}",
    "more about it": '{"__metadata__": {"fields": "{}", "sha256": "", "more": ""}}',
    "twice": f"{{{ABOUT}, {ABOUT}}}",
    "deep": "[" * 500_000,
    "deep objects": '{"a":' * 500_000,
    "a tensor twice": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, '
    '"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    "a huge tensor": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}}}}',
    "a flat huge tensor": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [0, 9223372036854775807, 9], '
    '"data_offsets": [0, 0]}}',
    "a long number": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [1{"0" * 5000}], "data_offsets": [0, 4]}}}}',
    "a negative size": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}}}',
    "a true size": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}}}',
    "many axes": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": {[1] * 5000}, "data_offsets": [0, 4]}}}}',
    "another type": f'{{{ABOUT}, "a": {{"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}}}',
    "an unknown type": f'{{{ABOUT}, "a": {{"dtype": {json.dumps(HOSTILE)}, "shape": [1], "data_offsets": [0, 4]}}}}',
    "overlapping": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, '
    '"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    "backwards": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}}}',
    "one offset": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [1], "data_offsets": [4]}}}}',
    "a wrong sha256": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}}}',
    "more than fits": f'{{{ABOUT}, "a": {{"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}}}',
    "a hostile name": f'{{{ABOUT}, {json.dumps(HOSTILE)}: {{"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}}}',
    "a byte order mark": f"\ufeff{{{ABOUT}}}",
    "long": " " * (1 << 25),
}


def _made_up(name: str, draw: np.random.Generator, fields: dict[str, Any], tensors: Tensors, _: bytes) -> bytes:
    header = HEADERS[name].encode("utf-8", "surrogatepass")
    return len(header).to_bytes(8, "little") + header + b"\x00\x00\x80\x3f"
