"""Rows of differing length through a transformer without their padding, and its last layer only where it is needed.

The tokens of a batch are laid end to end as one long row [1, T, …]. Everything a transformer does to a token alone
(projections, feed-forward, norms: nearly all of the work) then costs what the real tokens cost; attention, where tokens
of a row meet, is done on padded rows (:func:`attention`, registered with transformers as one more implementation). The
head of a classifier reads one token of every row, a language model's head the tokens before an answer's: the last layer
is computed for these alone, from the keys and values of all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from commonground.data.inputs import to_device

__all__ = ["ATTENTION", "Packing", "PartialLayer", "attending", "partial_layer", "register"]

ATTENTION = "commonground_packed"  # its name among transformers' attention implementations


class Packing:
    """Some tokens of a padded batch laid end to end, row after row.

    It is planned on the host, which knows the rows, and moved to where the tokens are computed with: no step waits for
    a device to say how long its rows are.

    Args:
        chosen: [n, L] on the host, true for the tokens; at least one in every row.
        device: where the tokens are computed with.

    Attributes:
        row: [T] row of every token, on the host.
        position: [T] its place in that row, on the host.
        at: both, on the device, as are all others.
        padded: [n, L] number of the token at a place; the nearest earlier one (or the row's first) where none is.
        rank: [T] how many tokens of its row come before it.
        slots: [n, most] numbers of each row's tokens, the last one repeated.
        places: [n, most] their places in the row.
        filled: [n, most] which of these are no repetition.
    """

    def __init__(self, chosen: Tensor, device: torch.device) -> None:
        self.row, self.position = torch.nonzero(chosen, as_tuple=True)
        counts = chosen.sum(1, keepdim=True)
        starts = counts.cumsum(0) - counts
        self._number = starts + (chosen.cumsum(1) - 1).clamp(min=0)
        rank = torch.arange(len(self.row), device="cpu") - starts[self.row, 0]
        most = torch.arange(int(counts.max()), device="cpu")
        slots = starts + most.minimum(counts - 1)
        self._device = device
        self.at = self._moved(self.row), self._moved(self.position)
        self.padded, self.rank, self.slots = self._moved(self._number), self._moved(rank), self._moved(slots)
        self.places, self.filled = self._moved(self.position[slots]), self._moved(most < counts)

    def _moved(self, value: Tensor) -> Tensor:
        return to_device(value, self._device)

    def __len__(self) -> int:
        return len(self.row)

    def pack(self, x: Tensor) -> Tensor:
        """[n, L, …] to [1, T, …], on the device; from there or from the host."""
        if x.device == self._device:
            return x[self.at].unsqueeze(0)
        return self._moved(x[self.row, self.position].unsqueeze(0))

    def unpack(self, x: Tensor) -> Tensor:
        """[1, T, …] to [n, L, …]; what stands where no token is means nothing."""
        return x[0][self.padded]

    def within(self, whole: Packing) -> Tensor:
        """[T] numbers of these tokens in a packing that has them all."""
        return self._moved(whole._number[self.row, self.position])

    def by_owner(self, route: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens gathered by owner.

        Args:
            route: [n] owner of each row, on the host.

        Returns:
            The owners [C], the numbers of each owner's tokens [C, M] (repeated to fill), and for each token its place
            [T] among these C · M.
        """
        owners, owner = torch.unique(route[self.row], return_inverse=True)
        order = torch.argsort(owner, stable=True)
        counts = torch.bincount(owner, minlength=len(owners))
        starts = counts.cumsum(0) - counts
        most = int(counts.max())
        places = torch.arange(most, device="cpu")
        index = order[starts.unsqueeze(1) + places.minimum(counts.unsqueeze(1) - 1)]
        place = torch.empty_like(owner)
        place[order] = torch.arange(len(order), device="cpu") - starts[owner[order]] + owner[order] * most
        return self._moved(owners), self._moved(index), self._moved(place)


CHANGING = ("softcap", "position_bias", "s_aux", "sinks", "bias", "indices", "block_indices", "head_mask")
"""What some models' layers ask of their attention that :func:`attention` does not do."""

_current: ContextVar[tuple[Packing, Packing]] = ContextVar("packing")


@contextmanager
def attending(queries: Packing, keys: Packing) -> Iterator[None]:
    """While open, :func:`attention` is given queries and keys in these packings."""
    token = _current.set((queries, keys))
    try:
        yield
    finally:
        _current.reset(token)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention of packed tokens to the tokens of their own row, as an attention function of transformers.

    Args:
        module: the attention layer.
        query: [1, heads, S, d].
        key: [1, heads or fewer, T, d].
        value: as ``key``.
        attention_mask: not used; rows are known from :func:`attending`.
        dropout: must be 0: the frozen model's own dropout is off.
        scaling: of the scores.
        is_causal: whether a token sees only those before it; by default the layer's own.
        sliding_window: how many tokens back a token sees.
        more: of these, what would change the outputs is refused (:data:`CHANGING`).

    Raises:
        NotImplementedError: the layer asks for something else.
    """
    asked = [name for name in CHANGING if more.get(name) is not None]
    if dropout or asked:
        raise NotImplementedError(f"attention with {', '.join(asked) or 'dropout'}")
    queries, keys = _current.get()
    q = query[0].transpose(0, 1)[queries.slots].transpose(1, 2)  # [n, heads, most, d]
    k, v = (x[0].transpose(0, 1)[keys.slots].transpose(1, 2) for x in (key, value))
    seen = keys.filled[:, None, None, :]
    if getattr(module, "is_causal", True) if is_causal is None else is_causal:
        at = queries.places[:, None, :, None]
        before = keys.places[:, None, None, :]
        seen = seen & (before <= at)
        if sliding_window is not None:
            seen = seen & (before > at - sliding_window)
    if k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scaling).transpose(1, 2)
    return out[queries.at[0], queries.rank].unsqueeze(0), None


def register() -> None:
    """Make :data:`ATTENTION` known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attention)


class PartialLayer:
    """A transformer layer computed for some of its tokens from the keys and values of all.

    Args:
        layer: laid out like BERT's (also RoBERTa's) or like Llama's (also Mistral's and Qwen2's).
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer: Any = layer
        self.bert = hasattr(layer, "attention")
        if not self.bert:
            self.rotate = sys.modules[type(layer).__module__].apply_rotary_pos_emb

    def __call__(self, hidden: Tensor, index: Tensor, fold: Any, need: Packing, whole: Packing, kwargs: Any) -> Tensor:
        """Outputs [1, S, d].

        Args:
            hidden: the layer's input [1, T, d].
            index: [S] numbers of the tokens wanted.
            fold: tells the adapted layers which tokens they are given.
            need: packing of the tokens wanted.
            whole: packing of all.
            kwargs: what the model gives its layers.
        """
        return (self._bert if self.bert else self._llama)(hidden, index, fold, need, whole, kwargs)

    def _attend(
        self, block: Any, names: str, x: Tensor, index: Tensor, fold: Any, need: Packing, whole: Packing, turn: Any
    ) -> Tensor:
        to_query, to_key, to_value = (getattr(block, name) for name in names.split())

        def heads(y: Tensor) -> Tensor:
            return y.view(*y.shape[:2], -1, width).transpose(1, 2)

        width = block.attention_head_size if self.bert else block.head_dim
        key, value = heads(to_key(x)), heads(to_value(x))
        with fold.packed(need):
            query = heads(to_query(x[:, index]))
        query, key = turn(query, key)
        window = _window(block)
        with attending(need, whole):
            out, _ = attention(block, query, key, value, None, scaling=block.scaling, sliding_window=window)
        return out.reshape(1, len(index), -1)

    def _bert(self, hidden: Tensor, index: Tensor, fold: Any, need: Packing, whole: Packing, kwargs: Any) -> Tensor:
        layer = self.layer
        names = "query key value"
        x = self._attend(layer.attention.self, names, hidden, index, fold, need, whole, lambda q, k: (q, k))
        with fold.packed(need):
            out: Tensor = layer.feed_forward_chunk(layer.attention.output(x, hidden[:, index]))
        return out

    def _llama(self, hidden: Tensor, index: Tensor, fold: Any, need: Packing, whole: Packing, kwargs: Any) -> Tensor:
        layer, (cos, sin) = self.layer, kwargs["position_embeddings"]

        def turn(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
            query = self.rotate(query, query, cos[:, index], sin[:, index])[0]
            return query, self.rotate(key, key, cos, sin)[0]

        block, names = layer.self_attn, "q_proj k_proj v_proj"
        x = self._attend(block, names, layer.input_layernorm(hidden), index, fold, need, whole, turn)
        with fold.packed(need):
            x = hidden[:, index] + block.o_proj(x)
            out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return out


def _window(block: Any) -> int | None:
    """How far back a block's tokens look; some blocks leave that to the model's configuration."""
    if hasattr(block, "sliding_window"):
        return block.sliding_window  # type: ignore[no-any-return]
    config = getattr(block, "config", None)
    kinds, number = getattr(config, "layer_types", None), getattr(block, "layer_idx", None)
    if kinds and number is not None and kinds[number] != "sliding_attention":
        return None
    return getattr(config, "sliding_window", None)


def partial_layer(layer: nn.Module) -> PartialLayer | None:
    """For a layer whose layout is known; whether it computes what it should is for the caller to check."""
    bert = ("attention.self.query", "attention.output.dense", "intermediate", "output")
    llama = ("self_attn.q_proj", "self_attn.o_proj", "mlp", "input_layernorm", "post_attention_layernorm")
    there = {name for name, _ in layer.named_modules()}
    if there.issuperset(bert) and hasattr(layer, "feed_forward_chunk"):
        return PartialLayer(layer)
    module = sys.modules[type(layer).__module__]
    # Others of this layout do more in ways that a few tokens do not show (sinks, caps, scales by position).
    known = type(layer).__module__.rpartition(".")[2] in ("modeling_llama", "modeling_mistral", "modeling_qwen2")
    return (
        PartialLayer(layer) if known and there.issuperset(llama) and hasattr(module, "apply_rotary_pos_emb") else None
    )
