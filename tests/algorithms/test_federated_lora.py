"""The federated LoRA methods: rounds by hand, exactness, bytes, what travels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import commonground as cg
from commonground.algorithms import Server, Update, make_algorithm, registry
from commonground.algorithms.federated_lora import aggregation_error, factor_pairs
from commonground.algorithms.flexlora import revived, truncated_factors
from commonground.errors import ConfigError, ModelError
from commonground.models.lora import LoRALinear
from tests.helpers import digits

METHODS = ["lora", "ffa-lora", "rolora", "flexlora", "flora"]
A0, LR, SCALE = 0.5, 0.8, 2.0


class Scalar(nn.Module):
    """Logits (z, 0) with z = (W + s·b·a) x, W = 0: one number of each."""

    def __init__(self) -> None:
        super().__init__()
        base = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(base.weight)
        self.lin = LoRALinear(base, 1, SCALE)
        nn.init.constant_(self.lin.lora_A, A0)
        self.constants = frozenset({"lin.base.weight"})
        self.groups: dict[str, tuple[str, ...]] = {"lora_A": ("lin.lora_A",), "lora_B": ("lin.lora_B",)}
        self.groups |= {"body": ("lin.lora_A", "lin.lora_B"), "head": ()}

    def forward(self, x: Tensor) -> Tensor:
        z = self.lin(x)
        return torch.cat([z, torch.zeros_like(z)], 1)


def scalar_data() -> cg.FederatedDataset:
    """Two clients with one sample each, x = 1 and x = 3, both of class 0."""
    one = [(np.array([[x]]), np.array([0]), np.array([[x]]), np.array([0])) for x in (1.0, 3.0)]
    return cg.FederatedDataset.from_arrays(one, classes=2)


def scalar_run(algorithm: str, rounds: int, engine: str = "serial", **settings: Any) -> cg.Run:
    return cg.train(
        algorithm, scalar_data(), model=Scalar(), rounds=rounds, lr=LR, batch_size=1, momentum=0.0, dtype="float64",
        engine=engine, **settings,
    )  # fmt: skip


def pull(w: float, x: float) -> float:
    """−∂loss/∂z of log(1 + e^−z) at z = w x: 1 − σ(z)."""
    return float(1 / (1 + np.exp(w * x)))


def steps_b(a: float, b: float) -> list[float]:
    """Each client's b after one gradient step: b + η s a x (1 − σ(s b a x))."""
    return [b + LR * SCALE * a * x * pull(SCALE * b * a, x) for x in (1.0, 3.0)]


def steps_a(a: float, b: float) -> list[float]:
    return [a + LR * SCALE * b * x * pull(SCALE * b * a, x) for x in (1.0, 3.0)]


ENGINES = ["serial", "processes", "batched", "messages"]


@pytest.mark.parametrize("engine", ENGINES)
def test_rolora_by_hand(engine: str) -> None:
    # Round 1 (odd): b₁ = mean of η s a x / 2, since σ(0) = 1/2; a stays. Round 2 (even): a moves, b stays.
    b = float(np.mean(steps_b(A0, 0.0)))
    assert b == pytest.approx(LR * SCALE * A0 * (1 + 3) / 2 / 2)
    run = scalar_run("rolora", 1, engine)
    assert (float(run.shared["lin.lora_A"]), float(run.shared["lin.lora_B"])) == pytest.approx((A0, b))
    a = np.mean(steps_a(A0, b))
    run = scalar_run("rolora", 2, engine)
    assert (float(run.shared["lin.lora_A"]), float(run.shared["lin.lora_B"])) == pytest.approx((a, b))
    assert [row["aggregation_error"] for row in run.history] == pytest.approx([0, 0], abs=1e-15)


@pytest.mark.parametrize("engine", ENGINES)
def test_lora_and_ffa_lora_by_hand(engine: str) -> None:
    b = float(np.mean(steps_b(A0, 0.0)))
    ffa = scalar_run("ffa-lora", 2, engine)
    assert float(ffa.shared["lin.lora_A"]) == A0
    assert float(ffa.shared["lin.lora_B"]) == pytest.approx(np.mean(steps_b(A0, b)))
    # Both factors move at once, from the same point.
    lora = scalar_run("lora", 2, engine)
    ones, others = steps_a(A0, b), steps_b(A0, b)
    assert float(lora.shared["lin.lora_A"]) == pytest.approx(np.mean(ones))
    assert float(lora.shared["lin.lora_B"]) == pytest.approx(np.mean(others))
    product = np.mean([x * y for x, y in zip(ones, others, strict=True)])
    expected = abs(product - np.mean(ones) * np.mean(others)) / abs(product)
    assert lora.history[1]["aggregation_error"] == pytest.approx(expected)
    assert lora.history[0]["aggregation_error"] == pytest.approx(0, abs=1e-12)  # with b = 0, a does not move


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("split", "power"), [("balanced", 0.5), ("B", 1.0), ("A", 0.0)])
def test_flexlora_by_hand(engine: str, split: str, power: float) -> None:
    # In one dimension the SVD of the mean product p is |p|, shared out by the power.
    product = float(np.mean([A0 * b for b in steps_b(A0, 0.0)]))
    run = scalar_run("flexlora", 1, engine, options={"split": split})
    a, b = float(run.shared["lin.lora_A"]), float(run.shared["lin.lora_B"])
    assert a * b == pytest.approx(product)
    assert abs(b) == pytest.approx(abs(product) ** power)


@pytest.mark.parametrize("engine", ENGINES)
def test_flora_by_hand(engine: str) -> None:
    # The sum of products goes into the weight; then b is zero again and a is new.
    run = scalar_run("flora", 1, engine)
    merged = float(np.mean([A0 * b for b in steps_b(A0, 0.0)]))
    assert float(run.shared["lin.merged"]) == pytest.approx(merged)
    assert float(run.shared["lin.lora_B"]) == 0
    a = float(run.shared["lin.lora_A"])
    assert a != A0
    assert abs(a) <= 1
    # Round 2 starts from W = s·merged.
    moved = [LR * SCALE * a * x * pull(SCALE * merged, x) for x in (1.0, 3.0)]
    again = scalar_run("flora", 2, engine)
    assert float(again.shared["lin.merged"]) == pytest.approx(merged + np.mean([a * b for b in moved]))


def test_the_truncation_is_the_best_of_its_rank() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(9, 7, generator=generator, dtype=torch.float64)
    b = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    u, s, v = torch.linalg.svd(b @ a, full_matrices=False)
    for rank in (1, 3, 6):
        for power in (0.0, 0.5, 1.0):
            new_a, new_b = truncated_factors(a, b, rank, power)
            torch.testing.assert_close(new_b @ new_a, (u[:, :rank] * s[:rank]) @ v[:rank])
    new_a, new_b = truncated_factors(a[:2], b[:, :2], 4, 0.5)  # a product of rank 2 has nothing more to give
    torch.testing.assert_close(new_b @ new_a, b[:, :2] @ a[:2])


def test_what_a_round_leaves_unused_starts_again() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(4, 9, generator=generator), torch.randn(6, 4, generator=generator)
    fresh = torch.rand(4, 9, generator=generator)
    full = truncated_factors(a, b, 4, 0.5)
    assert all(torch.equal(one, other) for one, other in zip(revived(*full, fresh), full, strict=True))
    b[:, 2:] = b[:, :2]  # a product of rank 2
    new_a, new_b = truncated_factors(a, b, 4, 0.5)
    again_a, again_b = revived(new_a, new_b, fresh)
    assert torch.equal(again_a[:2], new_a[:2])
    assert torch.equal(again_a[2:], fresh[2:])
    assert torch.equal(again_b[:, :2], new_b[:, :2])
    assert not again_b[:, 2:].any()
    torch.testing.assert_close(again_b @ again_a, b @ a)
    assert torch.equal(revived(torch.zeros(4, 9), torch.zeros(6, 4), fresh)[0], fresh)  # nothing was learnt at all


def test_flexlora_goes_on_to_use_its_whole_rank() -> None:
    """Rounds of one client and two samples, whose gradient has rank 2 at most."""
    settings: dict[str, Any] = {"batch_size": 2, "local_steps": 1, "participation": 0.05, "engine": "serial"}
    run = cg.train("flexlora", digits(), rounds=4, lr=0.1, options={"rank": 4}, seed=1, **settings)
    for a_name, b_name in factor_pairs(list(run.shared)):
        values = torch.linalg.svdvals(run.shared[b_name].double() @ run.shared[a_name].double())
        assert values[3] > 1e-4 * values[0]


def test_the_aggregation_error_equals_its_definition() -> None:
    generator = torch.Generator().manual_seed(1)

    def factors() -> dict[str, Tensor]:
        return {
            "one.lora_A": torch.randn(2, 5, generator=generator),
            "one.lora_B": torch.randn(4, 2, generator=generator),
            "two.lora_A": torch.randn(2, 3, generator=generator),
            "two.lora_B": torch.randn(3, 2, generator=generator),
        }

    server = Server(factors(), weighting="samples")
    updates = [Update(c, samples, factors()) for c, samples in enumerate((3, 1, 6))]
    w = [0.3, 0.1, 0.6]
    off = whole = 0.0
    for a, b in factor_pairs(list(server.shared)):
        product = sum(x * u.tensors[b] @ u.tensors[a] for x, u in zip(w, updates, strict=True))
        means = [sum(x * u.tensors[n] for x, u in zip(w, updates, strict=True)) for n in (b, a)]
        off += float((product - means[0] @ means[1]).square().sum())  # type: ignore[operator]
        whole += float(product.square().sum())  # type: ignore[union-attr]
    assert aggregation_error(server, updates) == pytest.approx((off / whole) ** 0.5, rel=1e-5)
    only_b = [Update(u.client, u.samples, {n: v for n, v in u.tensors.items() if n.endswith("B")}) for u in updates]
    assert aggregation_error(server, only_b) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("head", ["personal", "shared", "frozen"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_any_model_and_says_what_its_head_is(method: str, head: str) -> None:
    settings: dict[str, Any] = {"rounds": 2, "options": {"head": head, "rank": 4}, "seed": 2, "dtype": "float64"}
    serial = cg.train(method, digits(), engine="serial", **settings)
    batched = cg.train(method, digits(), engine="batched", **settings)
    for name, value in serial.shared.items():
        torch.testing.assert_close(value, batched.shared[name], rtol=0, atol=1e-10)
    assert serial.summary["head"] == head
    assert (serial.global_accuracy is None) is (head == "personal")
    base = [name for name in serial.shared if "base" in name]
    assert not base  # the frozen weights never travel


@pytest.mark.parametrize("head", ["personal", "shared", "frozen"])
def test_without_a_head_nothing_is_personal(head: str) -> None:
    """As of language models: whatever ``head`` is, there is one model."""
    method = make_algorithm("lora", {"head": head})
    run = cg.train(method, scalar_data(), model=Scalar(), rounds=1, engine="serial")
    assert run.summary["head"] == "none"
    assert run.global_accuracy is not None
    assert run.summary["personal_accuracy_of"].startswith("the global model")
    assert method.personal == (
        ("head",) if head == "personal" else ()
    )  # what the run found is no setting of the object
    tuned = scalar_run("lora", 1, finetune_epochs=1, finetune="all")
    assert tuned.summary["personal_accuracy_of"].startswith("the final global model after 1 epoch on all its layers")
    with pytest.raises(ConfigError, match="there is no head to tune; take --finetune all"):
        scalar_run("lora", 1, finetune_epochs=1)
    with pytest.raises(ConfigError, match="needs a method with one global model; LoRA has none"):
        cg.train("lora", digits(), rounds=1, finetune_epochs=1)


class Encoder(nn.Module):
    """Attention over the rows of an image, one of which is padding."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1).view(len(x), 8, 8)
        padding = torch.arange(8).expand(len(x), 8) > 6
        return self.head(self.encoder(rows, src_key_padding_mask=padding)[:, :7].mean(1))


def test_factors_in_an_encoder_count_in_tests_as_in_training() -> None:
    """PyTorch's fast path for tests would read the weights under the factors."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Encoder((1, 8, 8), 10)
    run = cg.train("lora", digits(), model=module, rounds=1, lr=0.5, engine="serial", options={"head": "shared"})
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in run.shared if name.endswith("lora_A")} == {
        "linear1",
        "linear2",
    }
    model, x = run.model(None), torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        tested, trained = model.eval()(x), model.train()(x)
        torch.testing.assert_close(tested, trained)
        for name, value in model.named_parameters():
            if name.endswith("lora_B"):
                value.zero_()
        assert not torch.allclose(model.eval()(x), tested)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_half_the_bytes(participation: float) -> None:
    runs = {m: cg.train(m, digits(), rounds=4, participation=participation, engine="serial") for m in METHODS[:3]}
    up = {m: run.summary["bytes_up"] for m, run in runs.items()}
    factors = runs["lora"].shared
    sizes = {f: sum(v.numel() for n, v in factors.items() if n.endswith(f)) for f in ("lora_A", "lora_B")}
    each = 4 * len(runs["lora"].history) * round(participation * digits().clients)
    assert up["lora"] == each * (sizes["lora_A"] + sizes["lora_B"])
    assert up["ffa-lora"] == each * sizes["lora_B"]
    assert up["rolora"] == each * (sizes["lora_A"] + sizes["lora_B"]) / 2
    if participation == 1.0:
        # Down: everything in the first round, then only what the round before has changed.
        first = 4 * digits().clients * (sizes["lora_A"] + sizes["lora_B"])
        assert runs["rolora"].history[0]["bytes_down"] == first
        assert runs["rolora"].history[1]["bytes_down"] == 4 * digits().clients * sizes["lora_B"]
        assert runs["rolora"].history[2]["bytes_down"] == 4 * digits().clients * sizes["lora_A"]


def test_ranks_of_their_own() -> None:
    settings: dict[str, Any] = {"rounds": 1, "options": {"ranks": "1,3", "rank": 4}, "dtype": "float64"}
    run, again = (cg.train("flora", digits(), engine=engine, **settings) for engine in ("serial", "batched"))
    for name, value in run.shared.items():
        torch.testing.assert_close(value, again.shared[name], rtol=0, atol=1e-10)
    merged = next(v for n, v in run.shared.items() if n.endswith("merged"))
    assert int(torch.linalg.matrix_rank(merged)) <= sum((1, 3)[c % 2] for c in range(digits().clients))
    with pytest.raises(ConfigError, match="ranks '2,x' is not a list of ranks"):
        cg.train("flora", digits(), options={"ranks": "2,x"})
    with pytest.raises(ConfigError, match=r"largest rank 9 exceeds the model's 4 \(rank\)$"):
        cg.train("flora", digits(), options={"ranks": "9", "rank": 4})
    with pytest.raises(ConfigError, match=r"largest rank 2 exceeds the model's 1 \(model\.rank\)$"):
        scalar_run("flora", 1, options={"ranks": 2})


def test_one_rank_is_a_number_or_text() -> None:
    settings: dict[str, Any] = {"rounds": 1, "engine": "serial"}
    number, text = (cg.train("flora", digits(), options={"ranks": r, "rank": 4}, **settings) for r in (2, "2"))
    assert number.summary["weights_sha256"] == text.summary["weights_sha256"]
    with pytest.raises(ConfigError, match="ranks '0' is not a list of ranks"):
        cg.train("flora", digits(), options={"ranks": 0})


def test_refusals() -> None:
    with pytest.raises(ModelError, match="no linear layer besides its head"):
        cg.train("rolora", digits(), model="linear")
    assert {registry[m].source for m in METHODS}
