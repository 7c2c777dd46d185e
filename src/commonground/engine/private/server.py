"""The server's side: noise on the mean of a round's changes, and the clip norm of the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from commonground.algorithms import Server, Tensors, Update
from commonground.engine.setup import Setup
from commonground.privacy import CLIP, WITHIN, is_private_part, next_clip, noise_for_numbers
from commonground.privacy.mechanism import wide, with_noise

__all__ = ["opened"]


def opened(setup: Setup, server: Server, updates: Sequence[Update], round: int) -> list[Update]:
    """The updates as the method's server may see them; unchanged where a run has no ``--dp``.

    The server's noise on the mean of n changes is added to each of them, the same to all. Their mean then has it, and
    their sum n times it; a method that takes nothing of the updates but these (``Algorithm.not_private``) computes with
    what is private already.

    Args:
        setup: of the run.
        server: holds what was sent, and is given the next clip norm.
        updates: of the round, cut by the clients.
        round: 1-based round.
    """
    privacy = setup.privacy
    if privacy is None:
        return list(updates)
    count, central = len(updates), privacy.where == "server"
    bits = [update.tensors[WITHIN] for update in updates if WITHIN in update.tensors]
    parts = [{n: v for n, v in update.tensors.items() if not is_private_part(n)} for update in updates]
    if central:
        clip = wide(server.shared[CLIP]) if privacy.quantile is not None else privacy.clip
        names = setup.algorithm.change_of(server.shared, parts[0], setup.buffers)
        nothing = {name: torch.zeros_like(wide(parts[0][name])) for name in names}
        std = privacy.change_noise(count) * clip / count
        # A round that is repeated with other answers must not have the same noise on another sum.
        source = noise_for_numbers(setup.noise, *({n: part[n] for n in names} for part in parts), *_scales(clip, bits))
        noise = with_noise(nothing, std, source, "server", round)
        parts = [{n: (wide(v) + noise[n]).to(v.dtype) if n in noise else v for n, v in part.items()} for part in parts]
    if privacy.quantile is not None:
        share = {WITHIN: wide(torch.stack(bits)).mean()}
        if central:
            share = with_noise(share, privacy.bits_std(count) / count, source, "server", round)
        server.shared[CLIP] = next_clip(server.shared[CLIP], share[WITHIN], privacy.quantile)
    return [replace(update, tensors=part) for update, part in zip(updates, parts, strict=True)]


def _scales(clip: Tensor | float, bits: Sequence[Tensor]) -> list[Tensors]:
    """What else a release follows from: the clip norm, and who was within it."""
    return [{"clip": wide(torch.as_tensor(clip))}, *({"within": bit} for bit in bits)]
