"""The equations by hand, and the noise of a run: as large as the accountant assumes, and added to what was cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from commonground.algorithms import Server, Update
from commonground.config import RunConfig
from commonground.engine.prepare import prepare_setup
from commonground.engine.private.clients import protected
from commonground.engine.private.server import opened
from commonground.engine.setup import Setup
from commonground.privacy import CLIP, WITHIN, ClientPrivacy, KeyedNoise, SecretNoise, clipped, next_clip
from commonground.privacy import noise as noise_module
from tests.helpers import TwoLayer, made_data, seeded

C, Z = 1.0, 2.0


class NoNoise:
    def normal(self, shape: Sequence[int], *key: str | int) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.float64)


class Ones:
    def normal(self, shape: Sequence[int], *key: str | int) -> Tensor:
        return torch.ones(tuple(shape), dtype=torch.float64)


def made_setup(noise: Any = None, **settings: Any) -> Setup:
    values = {"algorithm": "fedavg", "dp": "client", "dp_clip": C, "dp_noise": Z, "dtype": "float64"} | settings
    setup = prepare_setup(RunConfig.make(values), made_data(), seeded(TwoLayer))
    if noise is not None:
        vars(setup)["noise"] = noise
    return setup


def plane(setup: Setup, x: float, y: float) -> dict[str, Tensor]:
    """The shared tensors with (x, y) in place of the head's first two biases, and 0 everywhere else."""
    values = {name: torch.zeros_like(value) for name, value in setup.initial.items()}
    values["head.bias"][:2] = torch.tensor([x, y])
    return values


def hand_round(setup: Setup) -> tuple[Server, list[Update]]:
    """θ = (1, 1); of two clients one moves by (3, 4), the other by (0.3, 0.4)."""
    start = plane(setup, 1, 1) | {n: v for n, v in setup.initial_shared.items() if n == CLIP}
    moved = [plane(setup, 4, 5), plane(setup, 1.3, 1.4)]
    sent = [protected(setup, 1, client, start, {}, each) for client, each in enumerate(moved)]
    server = Server(dict(start), clients=2)
    updates = opened(setup, server, [Update(c, 1, tensors) for c, tensors in enumerate(sent)], 1)
    setup.algorithm.server_update(server, updates, 1)
    return server, [Update(c, 1, tensors) for c, tensors in enumerate(sent)]


def at(tensors: dict[str, Tensor]) -> list[float]:
    return list(tensors["head.bias"][:2].tolist())


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_the_case_of_the_docstring() -> None:
    server, sent = hand_round(made_setup(NoNoise()))
    assert at(sent[0].tensors) == pytest.approx([1.6, 1.8])  # cut before it is averaged
    assert at(sent[1].tensors) == pytest.approx([1.3, 1.4])
    assert at(server.shared) == pytest.approx([1.45, 1.6])
    noisy, _ = hand_round(made_setup(Ones()))
    assert at(noisy.shared) == pytest.approx([1.45 + Z * C / 2, 1.6 + Z * C / 2])


def test_local_noise_by_hand() -> None:
    server, sent = hand_round(made_setup(Ones(), dp_where="client"))
    assert at(sent[1].tensors) == pytest.approx([1.3 + Z * C, 1.4 + Z * C])
    assert at(server.shared) == pytest.approx([1.45 + Z * C, 1.6 + Z * C])  # the server adds none


@pytest.mark.parametrize(("quantile", "factor"), [(0.5, 1.0), (0.9, math.exp(0.2 * 0.4)), (0.2, math.exp(-0.2 * 0.3))])
def test_the_clip_norm_follows_the_quantile(quantile: float, factor: float) -> None:
    server, sent = hand_round(made_setup(NoNoise(), dp_adaptive_clip=quantile))
    assert [float(u.tensors[WITHIN]) for u in sent] == [0, 1]
    assert float(server.shared[CLIP]) == pytest.approx(C * factor)
    assert WITHIN not in server.shared


def test_noise_of_adaptive_clipping() -> None:
    """Andrew et al. 2021, Algorithm 1: z_Δ⁻² + (2σ_b)⁻² = z⁻², and σ_b = m/20 where that is enough."""
    for noise, participants, bits in ((1.0, 100, 5.0), (3.0, 20, 3.0)):
        privacy = ClientPrivacy(C, noise, quantile=0.5)
        assert privacy.bits_std(participants) == bits
        assert privacy.change_noise(participants) ** -2 + (2 * bits) ** -2 == pytest.approx(noise**-2)
    assert ClientPrivacy(C, 3.0).change_noise(20) == 3.0
    noisy, _ = hand_round(made_setup(Ones(), dp_adaptive_clip=0.5))
    z = ClientPrivacy(C, Z, quantile=0.5).change_noise(2)
    assert at(noisy.shared) == pytest.approx([1.45 + z * C / 2, 1.6 + z * C / 2])
    assert float(noisy.shared[CLIP]) == pytest.approx(C * math.exp(-0.2 * (0.5 + Z / 2 - 0.5)))  # σ_b = Z here


def test_lengths_beyond_float32_and_at_the_edge() -> None:
    cut, within = clipped({"a": torch.tensor([1e30, 0.0]), "b": torch.zeros(2)}, 0.5)
    assert cut["a"].tolist() == pytest.approx([0.5, 0.0])
    assert float(within) == 0
    same, within = clipped({"a": torch.tensor([3.0, 4.0])}, 5.0)
    assert same["a"].tolist() == [3.0, 4.0]
    assert float(within) == 1
    assert float(next_clip(torch.tensor(1.0), torch.tensor(1e6), 0.5)) == pytest.approx(math.exp(-0.3))


# -- how large the noise is -------------------------------------------------------------------------------------------

DRAWS = 1000


def many(where: str) -> Tensor:
    """[draws, numbers] what 1,000 rounds add to the mean of three changes within C, in a model of 36 numbers."""
    setup = made_setup(dp_where=where, dtype="float32")
    start = setup.initial_shared
    total = []
    for round in range(1, DRAWS + 1):
        sent = [Update(c, 1, protected(setup, round, c, start, {}, dict(start))) for c in range(3)]
        server = Server(dict(start), clients=3)
        setup.algorithm.server_update(server, opened(setup, server, sent, round), round)
        total.append(torch.cat([(server.shared[n] - start[n]).flatten() for n in start]))
    return torch.stack(total).double()


@pytest.mark.parametrize(("where", "std"), [("server", Z * C / 3), ("client", Z * C / 3**0.5)])
def test_the_mean_has_the_noise_that_is_accounted_for(where: str, std: float) -> None:
    noise = many(where)
    # 43,000 draws: the deviation is known to 0.35 %, a single number's to 2.2 %.
    assert float(noise.std()) == pytest.approx(std, rel=0.015)
    assert float((noise.std(0) / std - 1).abs().max()) < 0.12
    assert float(noise.mean().abs()) < 5 * std / noise.numel() ** 0.5
    correlation = torch.corrcoef(noise.T) - torch.eye(noise.shape[1])
    assert float(correlation.abs().max()) < 0.2  # 1/√1000 = 0.03 is one deviation
    assert torch.unique(noise).numel() > 0.99 * noise.numel()  # no key is used twice


def test_secret_noise_is_gaussian_and_follows_from_its_secret() -> None:
    source, key = SecretNoise(), ("server", 1, "w")
    one, other = source.normal((200, 500), *key), SecretNoise().normal((200, 500), *key)
    assert torch.equal(one, source.normal((200, 500), *key))
    assert torch.equal(one, SecretNoise(source.secret).normal((200, 500), *key))
    for drawn in (one, other):
        assert float(drawn.mean().abs()) < 5 / 1e5**0.5
        assert float(drawn.std()) == pytest.approx(1, rel=0.01)
        assert float((drawn.abs() < 1.96).double().mean()) == pytest.approx(0.95, abs=0.004)
        assert float((drawn**4).mean()) == pytest.approx(3, rel=0.05)
    assert not (one == other).any()
    assert float((one * other).mean().abs()) < 0.02
    assert not (one[0] == source.normal((500,), "server", 2, "w")).any()
    assert source.normal((), "x").shape == ()
    assert source.normal((0, 3), "x").shape == (0, 3)
    assert "secret=" not in repr(source)


def test_secret_noise_does_not_repeat_from_block_to_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_module, "_BLOCK", 100)
    drawn = SecretNoise().normal((250,), "x")
    assert drawn.shape == (250,)
    assert drawn.unique().numel() == 250


def test_keyed_noise_follows_from_its_key() -> None:
    source = KeyedNoise(3)
    one = source.normal((4,), "client", 1, 2, "w")
    assert torch.equal(one, KeyedNoise(3).normal((4,), "client", 1, 2, "w"))
    for key in (("client", 1, 3, "w"), ("client", 2, 2, "w"), ("client", 1, 2, "v"), ("server", 1, 2, "w")):
        assert not torch.equal(one, source.normal((4,), *key))
    assert not torch.equal(one, KeyedNoise(4).normal((4,), "client", 1, 2, "w"))
