"""How an instruction is put to a language model."""

from __future__ import annotations

__all__ = ["alpaca_prompt"]

_ALONE = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request."
    "\n\n### Instruction:\n{instruction}\n\n### Response:\n"
)
_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request."
    "\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)


def alpaca_prompt(instruction: str, input: str = "") -> str:
    """The text that the answer follows: Alpaca's format (Taori et al. 2023), with or without an input.

    Alpaca's own code has no line break after ``### Response:``.

    >>> print(alpaca_prompt("Name a colour.").splitlines()[-1])
    ### Response:
    """
    return _WITH_INPUT.format(instruction=instruction, input=input) if input else _ALONE.format(instruction=instruction)
