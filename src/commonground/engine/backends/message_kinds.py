"""What server and clients say to each other: the fields of every message and of every answer, typed.

Each goes with tensors, which ``received.py`` checks on the client's side and ``checks.py`` on the server's. A field of
another type, out of its range, missing or unknown is refused; what depends on the run (its rounds, a client's samples)
is compared where the run is known.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from commonground.errors import UpdateError
from commonground.quoting import escaped, quoted

__all__ = [
    "Acknowledged",
    "Answer",
    "Digest",
    "Digested",
    "Evaluate",
    "Failed",
    "Question",
    "Reply",
    "Tested",
    "Train",
    "TrainAnswer",
    "read_answer",
    "read_question",
]

Count = Annotated[int, Field(ge=1)]
Done = Annotated[int, Field(ge=0)]


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# -- from the server ------------------------------------------------------------------------------------------------


class Train(_Fields):
    """Train for a round, with the shared tensors as this message has them; answered by :class:`TrainAnswer`.

    Attributes:
        round: 1-based round.
        safe: the round to which the server may still fall back; older states need not be kept.
        since: the round from which the client still has the shared tensors that are not sent again, if there are any.
        last: the round in which the client last took part; 0 for none.
    """

    kind: Literal["train"] = "train"
    round: Count
    safe: Done
    since: Count | None
    last: Done

    @model_validator(mode="after")
    def _earlier(self) -> Self:
        for name in ("safe", "since", "last"):
            if (getattr(self, name) or 0) >= self.round:
                raise ValueError(f"{name}={getattr(self, name)} is not before round {self.round}")
        return self


class Reply(_Fields):
    """Replace personal tensors after a round by these; answered by :class:`Acknowledged`."""

    kind: Literal["reply"] = "reply"
    round: Count


class Evaluate(_Fields):
    """Test the client's own model or the global one after ``round`` rounds; answered by :class:`Tested`.

    Attributes:
        last: the round in which the client last took part; 0 for none.
        detailed: whether the answer shall hold the finer figures as well (:mod:`.fine_answers`).
        took_part: at the end of a run, in how many rounds that counted.
    """

    kind: Literal["evaluate"] = "evaluate"
    round: Done
    which: Literal["personal", "global", "validation"]
    last: Done
    detailed: bool = False
    took_part: Done = 0


class Digest(_Fields):
    """Tell the sha256 of the personal tensors after ``round``; answered by :class:`Digested`.

    Attributes:
        round: rounds done.
        last: as in :class:`Train`.
    """

    kind: Literal["digest"] = "digest"
    round: Done
    last: Done


Question = Annotated[Train | Reply | Evaluate | Digest, Field(discriminator="kind")]
_QUESTION: TypeAdapter[Train | Reply | Evaluate | Digest] = TypeAdapter(Question)


# -- from a client --------------------------------------------------------------------------------------------------


class Answer(_Fields):
    """What a client answers."""


class TrainAnswer(Answer):
    """A client's round, with the update's tensors.

    Attributes:
        client: its number.
        round: of the message it answers.
        samples: its training samples.
        loss: mean training loss, None if it did not train. One that is not finite is told as a divergence.
    """

    client: Done
    round: Count
    samples: Count
    loss: float | None


class Acknowledged(Answer):
    """A reply's tensors are kept."""


def _figure(value: Any) -> Any:
    """A number, or lists of numbers of equal lengths."""
    numbers = _numbers(value)
    try:
        np.shape(numbers)
    except ValueError:
        raise ValueError("Input should be lists of equal lengths") from None
    return numbers


def _numbers(value: Any) -> Any:
    if isinstance(value, list) and value:
        return [_numbers(part) for part in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("Input should be a number or a list of numbers")
    return float(value)


class Tested(Answer):
    """A client's test; if it was asked for more, with tensors that say so.

    Attributes:
        sums: by name, what the task scores, added up over the client's test samples.
        count: test samples.
        loss: their mean loss.
    """

    sums: dict[str, Annotated[Any, AfterValidator(_figure)]]
    count: Count
    loss: float


class Digested(Answer):
    """The sha256 of a client's personal tensors."""

    digest: Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]


class Failed(Answer):
    """In place of any answer: a client could not do what it was asked to.

    Attributes:
        error: why, in its own words.
    """

    error: str


A = TypeVar("A", bound=Answer)


def read_question(fields: dict[str, Any]) -> Train | Reply | Evaluate | Digest:
    """The server's message that these fields are.

    Raises:
        UpdateError: they are none.
    """
    try:
        return _QUESTION.validate_python(fields)
    except ValidationError as error:
        raise UpdateError(_sentence(error)) from None


class FailedError(UpdateError):
    """A client could not do what it was asked to.

    Args:
        said: why, in its own words, quoted.
    """

    def __init__(self, said: str) -> None:
        super().__init__(f"it failed, and says {said}")
        self.said = said


def read_answer(kind: type[A], fields: dict[str, Any]) -> A:
    """The client's answer of a kind that these fields are.

    Raises:
        UpdateError: they are none, or the client says that it failed.
    """
    try:
        if set(fields) == {"error"}:
            raise FailedError(quoted(Failed.model_validate(fields).error, 300))
        return kind.model_validate(fields)
    except ValidationError as error:
        raise UpdateError(_sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, with what others wrote quoted and cut."""
    first = error.errors(include_url=False)[0]
    reason = escaped(first["msg"].removeprefix("Value error, "))
    if not first["loc"]:
        return reason
    where = quoted(".".join(map(str, first["loc"])))
    if first["type"] in ("missing", "extra_forbidden"):
        return f"the field {where} is {'missing' if first['type'] == 'missing' else 'not known'}"
    return f"the field {where} is {escaped(repr(first['input']))}: {reason[0].lower()}{reason[1:]}"
