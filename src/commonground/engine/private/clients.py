"""The client's side: what it sends is cut, and hidden if it adds noise itself, before anything leaves it."""

from __future__ import annotations

import torch

from commonground.algorithms import Tensors
from commonground.engine.divergence import largest_weight
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.privacy import CLIP, WITHIN, NoiseSource, clipped, noise_for_numbers
from commonground.privacy.mechanism import wide, with_noise
from commonground.quoting import quoted

__all__ = ["kept_state", "protected"]


def protected(
    setup: Setup,
    round: int,
    client: int,
    received: Tensors,
    personal: Tensors,
    sent: Tensors,
    noise: NoiseSource | None = None,
) -> Tensors:
    """What a client sends in place of what its method would send; the same where a run has no ``--dp``.

    Every engine passes here: the one place between a method's ``client_update`` and the update.

    Args:
        setup: of the run.
        round: 1-based round.
        client: its number in the federation, which keys its noise.
        received, personal: what the server sent to it, and what it has kept itself so far.
        sent: what the method sends.
        noise: where local noise comes from; by default from where the run's settings say.

    Raises:
        ModelError: the method sends what it does not declare.
    """
    privacy = setup.privacy
    if sent and setup.config.dp is not None and not setup.sends:
        raise ModelError(
            f"client_update of {setup.algorithm.title} sends {quoted(next(iter(sent)))}, and its hooks (sends, "
            "server_state, upload_state) say that nothing is sent, so that --dp would not hide it"
        )
    if privacy is None or not sent:
        return sent
    received = setup.moved(received)
    start = {name: wide(value) for name, value in setup.algorithm.change_of(received, sent, setup.buffers).items()}
    clip = wide(received[CLIP]) if privacy.quantile is not None else privacy.clip
    cut, within = clipped({name: wide(sent[name]) - value for name, value in start.items()}, clip)
    local = privacy.where == "client"
    # Whoever asks a round again with other tensors must not get the same noise on another change.
    source = noise_for_numbers(noise or setup.noise, start, cut, {"clip": wide(torch.as_tensor(clip))})
    if local:
        cut = with_noise(cut, privacy.change_noise(1) * clip, source, "client", round, client)
    # What is neither cut nor hidden is the client's own and comes back to it alone; it is bounded all the same.
    own = kept_state(setup, personal, {name: value for name, value in sent.items() if name not in cut})
    made = {
        name: (start[name] + cut[name]).to(value.dtype) if name in cut else own[name] for name, value in sent.items()
    }
    if privacy.quantile is not None:
        told = {WITHIN: within}
        if local:
            told = with_noise(told, privacy.bits_std(1), source, "client", round, client)
        made[WITHIN] = told[WITHIN].to(setup.inputs.dtype)
    return made


def kept_state(setup: Setup, before: Tensors, after: Tensors) -> Tensors:
    """What a client has of its own after a round: where a run has ``--dp`` and the new is not finite, what was before.

    It would end the run and name the client, which is an outcome that follows from one client's data. Of rounds in
    which nothing is sent, such as fine-tuning, that is as true. Immense weights count as not finite here, as in what is
    let into a round.

    Args:
        setup: of the run.
        before, after: the client's own tensors, by name.
    """
    if setup.config.dp is None or not after:
        return after
    largest = largest_weight(getattr(torch, setup.config.dtype))
    floats = [value for value in after.values() if value.is_floating_point() or value.is_complex()]
    ends = [(value.abs() <= largest).all() for value in floats]
    usable = torch.stack(ends).all() if ends else torch.ones((), dtype=torch.bool)
    old = setup.moved({name: value for name, value in before.items() if name in after})
    return {name: torch.where(usable, value, old[name]) if name in old else value for name, value in after.items()}
