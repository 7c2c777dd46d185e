"""What the hooks of a method give, whoever wrote the method: refused in one sentence where it is of another kind."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from commonground.algorithms import Algorithm, Tensors
from commonground.errors import ModelError, shown
from commonground.quoting import quoted

__all__ = ["check_nothing_given", "tensors_given", "what_is"]


def tensors_given(algorithm: Algorithm, hook: str, given: object, of: str = "") -> Tensors:
    """Tensors by name, as a hook of a method has to give them.

    Args:
        algorithm: the method.
        hook: what the hook is called.
        given: by it.
        of: what they are of, for the message.

    Raises:
        ModelError: they are something else, or not finite where they are what a run begins with.
    """
    whose = f"{hook} of {algorithm.title} gives"
    if not isinstance(given, Mapping):
        raise ModelError(f"{whose} {what_is(given)}{of} in place of a dict of tensors by name")
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise ModelError(f"{whose}{of} for {quoted(str(name))} no tensor, but {what_is(value)}: {shown(value)}")
        # What a round begins with: later whoever computes with it would be blamed.
        if hook in ("client_state", "server_state") and value.device.type != "meta" and not torch.isfinite(value).all():
            raise ModelError(f"{whose} for {quoted(str(name))} a value that is not finite")
    return dict(given)


def what_is(given: object) -> str:
    """What a hook has given in place of what it should, in words."""
    if given is None:
        return "nothing"
    kind = type(given).__name__
    return f"{'an' if kind == 'ndarray' or kind[0].lower() in 'aeiou' else 'a'} {kind}"


def check_nothing_given(algorithm: Algorithm, hook: str, given: object, instead: str) -> None:
    """Refuse what a hook returns that has nothing to return: whoever wrote it means it to count.

    Args:
        algorithm: the method.
        hook: what the hook is called.
        given: by it.
        instead: what it should do.

    Raises:
        ModelError: it is not None.
    """
    if given is not None:
        raise ModelError(
            f"{hook} of {algorithm.title} returns {what_is(given)}, of which nothing would come; {instead}"
        )
