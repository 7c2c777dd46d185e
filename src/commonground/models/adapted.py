"""Hugging Face models with LoRA factors, as modules that the engines train like any other."""

from __future__ import annotations

import contextlib
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from commonground.data.inputs import Inputs, each, to_device
from commonground.errors import ConfigError, ModelError, warn
from commonground.models.activation_cache import ActivationCache
from commonground.models.frozen_base import FrozenBaseModel
from commonground.models.lora import Fold, LoRALinear
from commonground.models.lora_options import LoRAOptions
from commonground.models.packing import ATTENTION, Packing, attending, partial_layer
from commonground.models.packing import register as register_attention
from commonground.models.targets import TransformerLayers, target_layers

__all__ = ["HEADS", "AdaptedModel"]

HEADS = ("classifier", "score")  # what transformers calls the head of a classification model
# Tokens of one pass of a folded batch: on a CPU a pass gains up to about here and larger ones lose again. A device is
# busy with many, and its memory is the bound.
PASS_TOKENS, DEVICE_PASS_TOKENS = 1280, 1 << 15
WIDEST = 2  # places of a pass on a device, to which attention pads its tokens, for each token that it may have
# What a backward pass keeps for a token of one layer, in hidden vectors (measured on BERT and Llama layers).
KEPT_PER_LAYER = 24


class AdaptedModel(FrozenBaseModel):
    """A frozen Hugging Face model with trained LoRA factors and what its kind trains beside them (see
    :mod:`commonground.models.adapted_kinds`).

    Parameter groups: ``lora_A``, ``lora_B`` (also together as ``body``) and ``head``. Everything else is constant: it
    is in no group and never travels.

    Inputs are named as for :class:`FrozenBaseModel`.

    Args:
        base: the transformers model.
        options: where and how to adapt.
        dtype: of what is trained.
        location: folder or hub name it came from.
        drawn: tensors of the base, besides its head, that are random because the folder has none of them (a pooler).

    Attributes:
        auto_class: which of transformers' AutoModelFor… loads its base.
        task_type: what peft calls its task.

    Raises:
        ConfigError: a target or layer number matches nothing.
        ModelError: the model cannot be adapted.
    """

    auto_class: ClassVar[str]
    task_type: ClassVar[str]

    def __init__(
        self,
        base: nn.Module,
        options: LoRAOptions,
        dtype: torch.dtype,
        location: str,
        drawn: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.options, self.location, self._dtype = options, location, dtype
        self.drawn = tuple(sorted(drawn))
        self.fold = Fold()
        self.base_sha256 = _digest(base)
        self.base_dtype = next(p.dtype for p in base.parameters())
        self.linear_names = tuple(n for n, m in base.named_modules() if isinstance(m, nn.Linear))
        self.base = base.requires_grad_(False)
        self.config = base.config
        self._transformer = TransformerLayers.of(base)
        self._layers = self._transformer.entries
        self.adapted = self._adapt()
        self._head = self._new_head()
        inside = [n for n in self.adapted if any(name.startswith(f"{n}.") for name in self._head)]
        if inside:
            raise ConfigError(
                f"the target modules match '{inside[0].removeprefix('base.')}' as well, a layer of the task head, "
                "which is trained as a whole; say which layers are meant (--set model.target_modules=re:…)"
            )
        fresh = [n for n in self.adapted if any(f"base.{name}".startswith(f"{n}.") for name in self.drawn)]
        if fresh:
            raise ConfigError(
                f"the target modules match '{fresh[0].removeprefix('base.')}' as well, of which '{location}' has no "
                "weights; say which layers are meant (--set model.target_modules=re:…)"
            )
        for name in self.trained_names:
            parameter = self.get_parameter(name)
            parameter.data = parameter.data.to(dtype)
            parameter.requires_grad_(True)
        trained = set(self.trained_names)
        self.constants = frozenset(n for n in self.state_dict() if n not in trained)
        self.groups = {
            "lora_A": tuple(f"{n}.lora_A" for n in self.adapted),
            "lora_B": tuple(f"{n}.lora_B" for n in self.adapted),
            "body": tuple(f"{n}.{f}" for n in self.adapted for f in ("lora_A", "lora_B")),
            "head": tuple(self._head),
        }
        self.store: ActivationCache | None = None
        embeddings = next((m for m in base.modules() if hasattr(m, "create_position_ids_from_input_ids")), None)
        if embeddings is not None and embeddings.padding_idx is None:
            raise ModelError(
                f"'{location}' counts places from its token for padding, and its config names none (pad_token_id)"
            )
        self._first_position = 0 if embeddings is None else int(embeddings.padding_idx) + 1  # type: ignore[arg-type]
        register_attention()
        self.eval()
        sample = self._sample()
        with torch.no_grad():
            wanted, self._beside = self._seen(sample)
            self._warn_of_padding(sample, wanted)
            self._packs = self._find_packing(sample, wanted)
            self._skips = self.first_adapted > 0 and self._can_skip(sample, wanted)
        self.train()

    # -- structure ----------------------------------------------------------------------------------------------

    @property
    def trained_names(self) -> list[str]:
        """Factors and head, by their names in this module."""
        return [f"{n}.{f}" for n in self.adapted for f in ("lora_A", "lora_B")] + self._head

    @property
    def head_names(self) -> tuple[str, ...]:
        """The task head's tensors, trained or not, by their names in this module; a language model has none."""
        return tuple(self._head)

    @property
    def longest(self) -> int:
        """Most tokens that are read, by the options and by the places that the base knows."""
        return self.options.max_length if self.places is None else min(self.options.max_length, self.places)

    @property
    def places(self) -> int | None:
        """Most tokens for which the base knows places; None where it does not say."""
        known = getattr(self.config, "max_position_embeddings", None)
        return None if known is None or known <= 0 else int(known) - self._first_position

    @property
    def pad_token(self) -> int | None:
        """The base's token for padding, if it has one."""
        own = getattr(self.config, "pad_token_id", None)
        return None if own is None or own < 0 else int(own)

    @property
    def first_adapted(self) -> int:
        """Number of the first transformer layer that is adapted; layers below it never change."""
        numbers = [self._transformer.number_of(name.removeprefix("base.")) for name in self.adapted]
        return min((n for n in numbers if n is not None), default=0) if None not in numbers else 0

    def _adapt(self) -> list[str]:
        """Replace the targets; their names in this module."""
        targets = target_layers(self.base, self._transformer, self.options)
        for name, linear in targets.items():
            parent, _, child = name.rpartition(".")
            layer = LoRALinear(
                linear,
                self.options.rank,
                self.options.alpha,
                dropout=self.options.dropout,
                longest=self.options.max_length,
                rslora=self.options.rslora,
                start=self.options.start,
                fold=self.fold,
            )
            setattr(self.base.get_submodule(parent), child, layer)
        return [f"base.{name}" for name in targets]

    def train(self, mode: bool = True) -> AdaptedModel:
        """Training mode for the factors' dropout; the frozen model stays in evaluation mode, its dropout off."""
        super().train(mode)
        self.base.eval()
        for name in self.adapted:
            self.get_submodule(name).train(mode)
            self.get_submodule(name).base.eval()  # type: ignore[union-attr]
        return self

    @property
    def numbers_per_token(self) -> int:
        """See :class:`FrozenBaseModel`."""
        return KEPT_PER_LAYER * int(self.config.hidden_size) * max(1, len(self._layers) - self.first_adapted)

    @property
    def device(self) -> torch.device:
        """Where it computes; what is known of rows, their tokens too, stays on the host until then."""
        return next(self.base.parameters()).device

    # -- hidden states ------------------------------------------------------------------------------------------

    def keep_hidden(self, lengths: npt.NDArray[np.integer[Any]] | None) -> None:
        """See :class:`FrozenBaseModel`."""
        self.store = None
        if lengths is not None and self.options.keep_hidden and self._skips:
            dtype = next(self._layers[0].parameters()).dtype
            self.store = ActivationCache(lengths, int(self.config.hidden_size), dtype)

    def fill(self, inputs: Inputs) -> None:
        """See :class:`FrozenBaseModel`."""
        if self.store is None:
            return
        numbers, lengths, tokens = inputs["numbers"], inputs["lengths"], _tokens(inputs["input_ids"], inputs["marks"])

        self.store.fill(numbers, lengths, lambda group: self._below(tokens[group, : int(lengths[group[0]])]))

    def _below(self, tokens: Tensor) -> Tensor:
        """What the first adapted layer is given."""
        box: list[Tensor] = []

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            box.append(args[0] if args else kwargs["hidden_states"])
            raise _Stop

        handle = self._layers[self.first_adapted].register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with torch.no_grad(), contextlib.suppress(_Stop):
                self._run(tokens)
        finally:
            handle.remove()
        return box[0]

    @contextlib.contextmanager
    def _skipping(self, hidden: Tensor | None, count: int) -> Iterator[None]:
        """While open, the first layers are replaced by what they would give."""
        skipped = self._layers[: 0 if hidden is None else count]
        hidden = None if hidden is None else to_device(hidden, self.device)
        for layer, beside in zip(skipped, self._beside, strict=False):
            out = hidden if beside is None else (hidden, *beside)
            layer.forward = lambda *args, out=out, **kwargs: out
        try:
            yield
        finally:
            for layer in skipped:
                del layer.forward

    # -- forward ------------------------------------------------------------------------------------------------

    def forward(
        self, input_ids: Tensor, marks: Tensor, lengths: Tensor | None = None, numbers: Tensor | None = None
    ) -> Tensor:
        """Rows of tokens to outputs [n, …] (see the class).

        Args:
            input_ids: [n, L], −1 where a row has ended; as the others best on the host, where passes are planned.
            marks: [n, L].
            lengths: [n], by default counted.
            numbers: [n], for hidden states that are kept; by default none are used.
        """
        tokens = _tokens(input_ids, marks).cpu()
        lengths = (tokens[..., 0] >= 0).sum(1) if lengths is None else lengths.cpu()
        numbers = None if numbers is None else numbers.cpu()
        route, device = self.fold.route, self.device
        # Dropout masks, and what somebody watches, come for all rows in their order.
        whole = self._observed or (self.training and self.options.dropout > 0)
        if whole or (route is None and torch.is_grad_enabled()):
            return self._pass(tokens, lengths, numbers)
        outputs: list[Tensor] = []
        order = torch.argsort(lengths, stable=True)
        try:
            most = PASS_TOKENS if device.type == "cpu" else DEVICE_PASS_TOKENS
            widest = None if device.type == "cpu" else WIDEST * most
            for rows in _passes(lengths[order].tolist(), most, padded=not self._packs, widest=widest):
                index = order[rows]
                if route is not None:
                    self.fold.route = route[index]
                outputs.append(self._pass(tokens[index], lengths[index], None if numbers is None else numbers[index]))
        finally:
            self.fold.route = route
        return _joined(outputs)[to_device(torch.argsort(order), device)]

    def folded(self, inputs: Inputs, route: Tensor) -> Tensor:
        """See :class:`FrozenBaseModel`."""
        self.fold.route = route.cpu()
        try:
            out: Tensor = self(**inputs)
            return out
        finally:
            self.fold.route = None

    @property
    def _observed(self) -> bool:
        """Whether somebody watches what the head is given, so that it has to be given all rows at once."""
        return any(m._forward_pre_hooks for n, m in self.base.named_children() if n in HEADS)

    def _pass(self, tokens: Tensor, lengths: Tensor, numbers: Tensor | None) -> Tensor:
        longest = int(lengths.max())
        tokens = tokens[:, :longest]
        store = self.store
        if store is None or numbers is None or not store.has(numbers):
            if len(tokens) > 1 and self._packs:
                return self._run_packed(tokens, lambda _: None)
            return self._run(tokens)
        if len(tokens) > 1 and self._packs:
            return self._run_packed(tokens, lambda p: store.take_packed(numbers, p.row, p.position))
        with self._skipping(store.take(numbers, longest), self.first_adapted):
            return self._run(tokens)

    def _run(self, tokens: Tensor) -> Tensor:
        """Outputs for tokens [n, L, 2], −1 where a row has ended."""
        ids, marks = tokens[..., 0].long(), tokens[..., 1].long()
        there = ids >= 0
        pad = self.pad_token or 0  # where there is none, any: it is masked, and stands behind a row's own
        inputs: dict[str, Any] = {"input_ids": torch.where(there, ids, pad), "attention_mask": there.long()}
        return self._outputs(self._moved(inputs | self.segments(marks * there)), marks * there)

    def _moved(self, inputs: Inputs) -> Inputs:
        """On the model's device."""
        return each(lambda value: to_device(value, self.device), inputs)

    def _run_packed(self, tokens: Tensor, kept: Callable[[Packing], Tensor | None]) -> Tensor:
        """As :meth:`_run`, the layers given tokens laid end to end.

        Args:
            tokens: [n, L, 2].
            kept: the input of the first adapted layer for packed tokens, if it is known.
        """
        there, device = tokens[..., 0] >= 0, self.device
        whole = Packing(there, device)
        need = Packing(self._looked_at(tokens, there), device) if self._packs == "partial" else whole
        inputs = {
            "input_ids": whole.pack(tokens[..., 0].long()),
            "position_ids": whole.at[1].unsqueeze(0) + self._first_position,
        }
        inputs |= self.segments(whole.pack(tokens[..., 1].long()))
        box: list[Tensor] = []
        last = self._layers[-1]
        partial = partial_layer(last) if self._packs == "partial" else None
        usual = last.forward

        def end(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if partial is None:
                out = usual(hidden_states, *args, **kwargs)
                box.append(out[0] if isinstance(out, tuple) else out)
            else:
                index = need.within(whole)
                box.append(partial(hidden_states, index, self.fold, need, whole, kwargs))
            raise _Stop

        body = getattr(self.base, str(self.base.base_model_prefix))
        with self._attending_packed():
            last.forward = end
            try:
                with (
                    self._skipping(kept(whole), min(self.first_adapted, len(self._layers) - 1)),
                    self.fold.packed(whole),
                    attending(whole, whole),
                    contextlib.suppress(_Stop),
                ):
                    body(**inputs, use_cache=False)
            finally:
                del last.forward
            # No layer attends any more; transformers would wait for the device to look at a mask for it.
            with self._skipping(need.unpack(box[0]), len(self._layers)):
                return self._run(tokens)

    @contextlib.contextmanager
    def _attending_packed(self) -> Iterator[None]:
        """While open, transformers takes our attention, for which it makes no masks."""
        name, self.config._attn_implementation = self.config._attn_implementation, ATTENTION
        try:
            yield
        finally:
            self.config._attn_implementation = name

    # -- what differs between kinds -------------------------------------------------------------------------------

    @abstractmethod
    def _new_head(self) -> list[str]:
        """Make the task head, if there is one, foldable; the names of its tensors in this module."""

    @abstractmethod
    def segments(self, marks: Tensor) -> dict[str, Tensor]:
        """Marks as an input of the base, if they are one, on the device that they are on."""

    @abstractmethod
    def _outputs(self, inputs: dict[str, Any], marks: Tensor) -> Tensor:
        """Outputs [n, …] for the base's inputs.

        Args:
            inputs: on the model's device.
            marks: [n, L] on the host, 0 where a row has ended.
        """

    @abstractmethod
    def _looked_at(self, tokens: Tensor, there: Tensor) -> Tensor:
        """[n, L]: which tokens' last hidden states are read, at least one of each row; all on the host."""

    def _sample(self) -> Tensor:
        """Three short rows [3, 6, 2], on which it is tried what the model can do."""
        ids = torch.full((3, 6, 2), -1, device="cpu")
        ids[..., 1] = 0
        for row, length in enumerate((4, 6, 2)):
            places = torch.arange(5 * row + 5, 5 * row + 5 + length, device="cpu")
            ids[row, :length, 0] = places % int(getattr(self.config, "vocab_size", None) or 100)
            ids[row, length - 1, 1] = 1
        return ids

    def _seen(self, sample: Tensor) -> tuple[Tensor, list[tuple[Any, ...] | None]]:
        """Outputs of a padded pass, and of each layer what it returns beside hidden states; None where it returns
        nothing but these.
        """
        beside: dict[nn.Module, tuple[Any, ...] | None] = {}

        def see(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            beside[layer] = out[1:] if isinstance(out, tuple) else None

        handles = [layer.register_forward_hook(see) for layer in self._layers]
        try:
            return self._run(sample).float(), [beside.get(layer) for layer in self._layers]
        finally:
            for handle in handles:
                handle.remove()

    def _warn_of_padding(self, sample: Tensor, wanted: Tensor) -> None:
        """Say so where a row's outputs change with the padding behind it, and so with the rows beside it."""
        for row, out in zip(sample, wanted, strict=True):
            try:
                alone = self._run(row[row[:, 0] >= 0].unsqueeze(0)).float()[0]
            except Exception:  # so short a row is nothing for some models
                continue
            if not self._close(out[: len(alone)], alone):
                warn(
                    f"outputs of {type(self.base).__name__} change with the padding behind a text, and so with the "
                    "texts that it is computed together with: engines and batch sizes give other numbers"
                )
                return

    def _find_packing(self, sample: Tensor, wanted: Tensor) -> str:
        """How far tokens can be packed with this model: ``partial``ly computed last layer, ``whole`` or "" (not): only
        what gives the padded pass's outputs is used.
        """
        if any(beside is not None for beside in self._beside):
            return ""  # made before transformers had attention functions of others
        for way in ("partial", "whole"):
            if way == "partial" and partial_layer(self._layers[-1]) is None:
                continue
            self._packs = way
            with contextlib.suppress(Exception):  # models fail in many ways at what they are not made for
                if self._close(self._run_packed(sample, lambda _: None).float(), wanted):
                    return way
        return ""

    def _can_skip(self, sample: Tensor, wanted: Tensor) -> bool:
        """Whether the model gives the same where the layers below the first adapted one are not computed again."""
        if any(value is not None for beside in self._beside for value in beside or ()):
            return False  # which hang on the rows
        with contextlib.suppress(Exception), self._skipping(self._below(sample), self.first_adapted):
            return self._close(self._run(sample).float(), wanted)
        return False

    def _close(self, got: Tensor, wanted: Tensor) -> bool:
        return torch.allclose(got, wanted, rtol=0, atol=self._packing_error * float(wanted.abs().max()))

    @property
    def _packing_error(self) -> float:
        return 0.05 if self.base_dtype == torch.bfloat16 else 1e-4


def _tokens(input_ids: Tensor, marks: Tensor) -> Tensor:
    """Tokens and their marks side by side [n, L, 2]."""
    return torch.stack([input_ids, marks], -1)


def _joined(outputs: Sequence[Tensor]) -> Tensor:
    """Outputs of several passes [n, …]; of answers, padded with zeros to the longest of all."""
    if outputs[0].ndim == 3:
        longest = max(out.shape[1] for out in outputs)
        outputs = [nn.functional.pad(out, (0, 0, 0, longest - out.shape[1])) for out in outputs]
    return torch.cat(list(outputs))


class _Stop(Exception):
    """The lower layers are done."""


def _passes(lengths: Sequence[int], most: int, padded: bool, widest: int | None = None) -> Iterator[slice]:
    """Cut rows of ascending length into passes of at most so many tokens, counting padding if there is any; of at most
    ``widest`` places, to which attention pads them.
    """
    start = tokens = 0
    for end in range(1, len(lengths) + 1):
        tokens += lengths[end - 1]
        if end < len(lengths):
            more = lengths[end] * (end + 1 - start) if padded else tokens + lengths[end]
        wide = widest is not None and end < len(lengths) and lengths[end] * (end + 1 - start) > widest
        if end == len(lengths) or more > most or wide:
            yield slice(start, end)
            start, tokens = end, 0


def _digest(base: nn.Module) -> str:
    """sha256 of a pretrained model's weights, by name; its task head, which may be new, is left out."""
    digest = hashlib.sha256()
    for name, value in sorted(base.state_dict().items()):
        if name.split(".")[0] in HEADS:
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().view(torch.uint8).numpy().data if value.ndim else b"")
    return digest.hexdigest()
