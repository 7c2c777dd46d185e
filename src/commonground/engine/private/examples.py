"""What ``--dp example`` gives away: how often a run uses each example, found before it trains, and the noise for an ε.

A method's round is gone through with a client that counts and does not train (:class:`Counting`), as it is before its
first round. What a method may do under ``--dp example`` is call ``fit``, and compute with tensors; its lengths may
depend on the round, and on nothing else, for a ``fit`` that was not counted is refused when it comes
(:class:`~commonground.engine.clients.hiding.Hiding`). It also says at once, and not in the first round, that a method
asks for more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from commonground.algorithms import Server
from commonground.engine.clients.base import Phase, Pool
from commonground.engine.clients.batches import Length, passes
from commonground.engine.clients.sent import sent_by
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.sampling import sample_clients
from commonground.engine.setup import Setup
from commonground.errors import ConfigError
from commonground.models import FrozenBaseModel, ModelCut, tensors_of
from commonground.privacy import Budget, ExamplePrivacy, noise_for
from commonground.user_code import failing_as

__all__ = ["check_model", "epsilons", "passes_of", "with_noise_found"]


class Counting(SequentialClient):
    """A client that notes how much it is asked to train, and does not.

    Attributes:
        lengths: of the calls of ``fit`` since it began.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.lengths: list[Length] = []

    def _take_up(self, round: int, clients: Sequence[int], keys: Sequence[int]) -> None:
        """As it is, without the samples, which may be elsewhere."""
        self.round, self.keys, self.lr, self._phases = round, list(keys), self.setup.lr_at(round), [0] * len(keys)
        self._hidden, self.sizes = self.setup.examples, np.asarray(self.setup.data.train_sizes)[list(clients)]

    def _class_counts(self) -> Tensor:
        return torch.zeros(1, self.setup.data.classes, dtype=self.dtype, device=self.device)

    def _spend(self, length: Length) -> None:
        self.lengths.append(length)

    def _pool(self, split: ModelCut | None, names: Sequence[str]) -> Pool:
        return Pool(self.model, {}, {}, self._zero, self._zero)

    def _descend_privately(self, phase: Phase, privacy: ExamplePrivacy) -> None:
        """Nothing."""


def check_model(setup: Setup) -> None:
    """Refuse models that have no gradient of a single example.

    Raises:
        ConfigError: says why.
    """
    if isinstance(setup.model, FrozenBaseModel):
        raise ConfigError(
            f"--dp example has no gradients of single texts from the pretrained model '{setup.config.model}'; take "
            "--dp client, or a model trained from the start"
        )
    for name, module in setup.model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"--dp example hides an example that enters one gradient, and the BatchNorm layer '{name}' lets it "
                "enter those of its whole batch; take a model that normalises within samples"
            )
        if isinstance(module, nn.RNNBase):
            raise ConfigError(
                f"--dp example needs gradients of single examples, which torch.func does not give for the recurrent "
                f"layer '{name}'; take another model, or --dp client"
            )
        if isinstance(module, nn.Embedding) and (module.scale_grad_by_freq or module.max_norm is not None):
            raise ConfigError(
                f"--dp example needs gradients of single examples, and those of the embedding '{name}' are scaled by a "
                "whole batch, or its rows are kept short; take another model, or --dp client"
            )
    if setup.behaviour.draws or setup.behaviour.counters:
        what = "draws random numbers" if setup.behaviour.draws else f"changes '{setup.behaviour.counters[0]}'"
        raise ConfigError(
            f"--dp example takes the gradient of each example by itself, and the model's forward {what}, which is one "
            "for a whole batch; take another model"
        )


def with_noise_found(setup: Setup, federation: int) -> Setup:
    """The setup with the noise of ``--dp example``: as it is given, or as the wanted ε needs it; else unchanged.

    Args:
        setup: of the run.
        federation: how many clients the run has, of which the setup may know one alone.

    Raises:
        ConfigError: model or method do not let an example be hidden, or noise and ε do not fit each other.
    """
    config = setup.config
    if config.dp != "example" or not setup.sends:
        return setup
    check_model(setup)
    delta, noise = config.dp_delta, config.dp_noise
    assert delta is not None, "privacy is resolved before a setup is built"
    if noise is None:
        setup = _with_noise(setup, 1.0)  # any: what counts does not train
    setup = replace(setup, counted=_counted(setup))
    most = int(passes_of(setup, range(1, config.rounds + 1)).max())
    if config.dp_epsilon is None:
        assert noise is not None
        _epsilon(noise, most, delta)  # so that a missing accountant is told now, and not at the end
        return setup
    if noise is not None and setup.data.clients < federation:
        return setup  # a client of a federation that it does not see whole takes the noise it is told
    needed = noise_for(config.dp_epsilon, delta, Budget(1.0, max(1, most), 1, 1))
    if noise is not None and abs(noise - needed) > 1e-3 * needed:
        raise ConfigError(
            f"--dp-noise {noise:g} is not the noise of --dp-epsilon {config.dp_epsilon:g} in {most:,} passes over "
            f"the data, which is {needed:g}; give one of the two"
        )
    return _with_noise(setup, needed if noise is None else noise)


def _with_noise(setup: Setup, noise: float) -> Setup:
    return replace(setup, config=setup.config.model_copy(update={"dp_noise": noise}))


def passes_of(setup: Setup, rounds: Sequence[int]) -> npt.NDArray[np.int64]:
    """[clients] in how many steps of these rounds (1-based) one of a client's examples is used at most."""
    sizes = np.asarray(setup.data.train_sizes)
    kinds, kind = np.unique(sizes, return_inverse=True)
    total = np.zeros(len(sizes), np.int64)
    for round in rounds:
        lengths = setup.counted[min(round, len(setup.counted)) - 1]  # one beyond the run's, as its last
        of_kind = np.array([passes(lengths, int(size)) for size in kinds], np.int64)
        here = sample_clients(setup.config, len(sizes), round)
        total[here] += of_kind[kind][here]
    return total


def _counted(setup: Setup) -> tuple[tuple[Length, ...], ...]:
    """The calls of ``fit`` in each of a run's rounds.

    Raises:
        ConfigError: the method asks for more of the examples than noisy steps.
    """
    counting = Counting(setup)
    server = Server(dict(setup.initial_shared), clients=max(2, setup.data.clients), seed=setup.config.seed)
    found = tuple(_lengths(counting, server, round) for round in range(1, setup.config.rounds + 1))
    with torch.no_grad():
        for name, value in tensors_of(setup.model).items():
            value.copy_(setup.initial[name])
    return found


def _lengths(counting: Counting, server: Server, round: int) -> tuple[Length, ...]:
    setup = counting.setup
    server.round = round
    shared = setup.initial_shared | setup.algorithm.message_to(server, 0)
    counting.lengths = []
    with failing_as(f"counting the steps of round {round} failed"), setup.keyed("counting", round):
        counting.begin(round, 0, 0, shared, setup.initial_personal)
        sent_by(setup.algorithm, counting, round)
    return tuple(counting.lengths)


def epsilons(passes: npt.NDArray[np.int64], noise: float, delta: float) -> list[float]:
    """ε of each client, from its passes."""
    return [_epsilon(noise, int(count), delta)[0] for count in passes]


@lru_cache(maxsize=1024)
def _epsilon(noise: float, passes: int, delta: float) -> tuple[float, str]:
    """ε of so many Gaussian releases, and how it was found."""
    return Budget(noise, passes, 1, 1).epsilon(delta)
