"""Adapted models by what they are for: classes of texts, or answers to prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from commonground.data.inputs import to_device
from commonground.errors import ModelError
from commonground.models.adapted import HEADS, AdaptedModel
from commonground.models.lora import FoldedLinear, LoRALinear

__all__ = ["AnsweringModel", "ClassifyingModel", "pooling_by_mask"]


class ClassifyingModel(AdaptedModel):
    """Classes of texts: outputs are logits [n, classes] of a trained head."""

    auto_class = "SequenceClassification"
    task_type = "SEQ_CLS"

    def _new_head(self) -> list[str]:
        """Make the classifier's linear layers foldable; the names of its tensors in this module."""
        name = _head_name(self.base)
        head = getattr(self.base, name)
        if isinstance(head, nn.Linear):
            setattr(self.base, name, FoldedLinear.of(head, self.fold))
        else:
            for inner, module in list(head.named_modules()):
                if isinstance(module, nn.Linear):
                    parent, _, child = inner.rpartition(".")
                    setattr(head.get_submodule(parent), child, FoldedLinear.of(module, self.fold))
        return [f"base.{name}.{tensor}" for tensor, _ in getattr(self.base, name).named_parameters()]

    def segments(self, marks: Tensor) -> dict[str, Tensor]:
        """See :meth:`AdaptedModel.segments`."""
        return {"token_type_ids": marks} if getattr(self.config, "type_vocab_size", 0) > 1 else {}

    def _outputs(self, inputs: dict[str, Any], marks: Tensor) -> Tensor:
        with pooling_by_mask(self.base, inputs["attention_mask"]):
            logits: Tensor = self.base(**inputs).logits
        return logits.to(self._dtype)

    @contextlib.contextmanager
    def states_for(self, head: nn.Module) -> Iterator[list[Tensor]]:
        """While open, what the head answers by [n, hidden] is added to the list, call by call: what it is given, and of
        all tokens' states that of the one that it looks at.
        """
        shown: list[Tensor] = []
        looked: list[Tensor] = []

        def see(module: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
            looked[:] = [self._looked_at(inputs["input_ids"].unsqueeze(-1), inputs["attention_mask"].bool())]

        def show(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            shown.append(args[0] if args[0].ndim == 2 else args[0][looked[0]])

        # Before what moves states within a row, which is put there during each call.
        handles = [self.base.register_forward_pre_hook(see, with_kwargs=True), head.register_forward_pre_hook(show)]
        try:
            yield shown
        finally:
            for handle in handles:
                handle.remove()

    def _looked_at(self, tokens: Tensor, there: Tensor) -> Tensor:
        looked = torch.zeros_like(there)
        if not hasattr(self.base, "score"):
            looked[:, 0] = True
            return looked
        # transformers' heads of this name pool the last token that is no padding
        real = there if self.pad_token is None else there & (tokens[..., 0] != self.pad_token)
        looked[torch.arange(len(there), device=there.device), _last_of(real)] = True
        return looked


class AnsweringModel(AdaptedModel):
    """Answers to prompts: outputs are scores [n, A, vocabulary] at the places of an answer's tokens, each from those
    before it. There is no head of its own.
    """

    auto_class = "CausalLM"
    task_type = "CAUSAL_LM"

    def _new_head(self) -> list[str]:
        return []

    def segments(self, marks: Tensor) -> dict[str, Tensor]:
        """See :meth:`AdaptedModel.segments`."""
        return {}

    def _outputs(self, inputs: dict[str, Any], marks: Tensor) -> Tensor:
        """What the model's own ``forward`` says, as some scale or bound what their last layer gives; that layer is
        given the places of answers alone.
        """
        predicts = marks[:, 1:] == 1  # position t predicts token t + 1
        rows, positions = torch.nonzero(predicts, as_tuple=True)
        shape = len(marks), int(predicts.sum(1).max().clamp(min=1))
        places = (predicts.cumsum(1) - 1)[predicts]
        row, position, place = (to_device(index, self.device) for index in (rows, positions, places))
        last = self.base.get_output_embeddings()  # type: ignore[operator]
        by_rows = isinstance(last, LoRALinear)  # whose factors may be each row's own client's

        def chosen(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            hidden = args[0][row, position]
            placed = args[0].new_zeros(*shape, hidden.shape[1])
            return (placed.index_put((row, place), hidden) if by_rows else hidden.unsqueeze(0),)

        handle = last.register_forward_pre_hook(chosen)
        try:
            scores: Tensor = self.base(**inputs, use_cache=False).logits.float()
        finally:
            handle.remove()
        if by_rows:
            return scores * _ones(shape, row, place).unsqueeze(2)
        answers: Tensor = scores.new_zeros(*shape, scores.shape[2]).index_put((row, place), scores[0])
        return answers

    def _looked_at(self, tokens: Tensor, there: Tensor) -> Tensor:
        looked = torch.zeros_like(there)
        looked[:, :-1] = (tokens[:, 1:, 1] == 1) & there[:, 1:]
        looked[:, 0] = True
        return looked


@contextlib.contextmanager
def pooling_by_mask(base: nn.Module, there: Tensor) -> Iterator[None]:
    """While open, a head that answers by the last of a row's own tokens does so also where the model has no token for
    padding, by which transformers would know it: no token is padding then, so that the last place counts, and what
    stands at a row's end is put there.

    Args:
        base: a transformers classifier.
        there: [n, L], its attention mask.
    """
    config: Any = base.config
    own = getattr(config, "pad_token_id", None)
    if own is not None and own >= 0:
        yield
        return
    rows, places = (torch.arange(size, device=there.device) for size in there.shape)
    ends, last = _last_of(there), (places == there.shape[1] - 1).unsqueeze(1)  # not cut and joined: exporters see sizes

    def to_the_end(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        hidden = args[0]
        if hidden.ndim != 3:  # of one token already, or of all together
            return None
        return (torch.where(last, hidden[rows, ends].unsqueeze(1), hidden),)

    handle = base.get_submodule(_head_name(base)).register_forward_pre_hook(to_the_end)
    config.pad_token_id = -1
    try:
        yield
    finally:
        config.pad_token_id = own
        handle.remove()


def _head_name(base: nn.Module) -> str:
    """What a classifier of transformers' calls its head."""
    name = next((n for n in HEADS if hasattr(base, n)), None)
    if name is None:
        raise ModelError(f"{type(base).__name__} has no task head named 'classifier' or 'score'")
    return name


def _last_of(there: Tensor) -> Tensor:
    """The last place of each row [n] at which [n, L] is true."""
    return (torch.arange(there.shape[1], device=there.device) * there).argmax(1)


def _ones(shape: tuple[int, int], row: Tensor, place: Tensor) -> Tensor:
    """1 at some places, 0 elsewhere."""
    return torch.zeros(shape, device=row.device).index_put((row, place), torch.ones((), device=row.device))
