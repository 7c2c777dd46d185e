"""Answers that were changed on the way: refused by client and round, none counts, none ends the run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground.algorithms import Tensors
from commonground.config import RunConfig
from commonground.data.part import part_of
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.prepare import prepare_setup
from commonground.engine.setup import Setup
from commonground.errors import RunError, UpdateError
from commonground.network import Answering, Limits, NetworkEngine
from commonground.network.answering import Begin
from commonground.network.post import Letter, Questions, question_id
from tests.helpers import made_data

RUN = "ab" * 16
LIMITS = Limits(seconds=5, patience=0.1, pause=0.01)


def data_of() -> Any:
    return made_data((6, 5, 7), dtype=np.float32, client_names=["north", "south", "west"])


@cache
def setup() -> Setup:
    return prepare_setup(
        RunConfig.make({"algorithm": "scaffold", "model": "mlp", "rounds": 4, "data": "made"}), data_of()
    )


class Lying:
    """A post of three honest clients, whose answers ``change`` makes false."""

    def __init__(self, folder: Path, change: Callable[[int, Letter, Letter], Letter]) -> None:
        self.clients = [Answering(part_of(data_of(), [c]), f"client {c}", folder / str(c)) for c in range(3)]
        self.change = change
        self.heard: list[tuple[int, Letter, Letter]] = []

    def nodes(self) -> list[int]:
        return [0, 1, 2]

    def exchange(
        self, letters: Mapping[int, Letter], seconds: float, check_stop: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, Letter | UpdateError]]:
        for node, letter in letters.items():
            if letter.kind == "begin":
                body = self.clients[node].begin(letter.body)
            elif not self.clients[node].has_begun(letter.run):
                yield node, Letter("not-begun", question_id(letter), b"")
                continue
            else:
                body = self.clients[node].ask(letter.run, letter.body)
            answer = Letter("ok", question_id(letter), body)
            self.heard.append((node, letter, answer))
            yield node, self.change(node, letter, answer)


def engine_of(folder: Path, change: Callable[[int, Letter, Letter], Letter]) -> tuple[NetworkEngine, Lying]:
    post = Lying(folder, change)
    config = json.loads(setup().config.model_dump_json(exclude_none=True))

    def begin(client: int) -> bytes:
        start = Begin(run=RUN, config=config, number=client, class_names=setup().data.class_names)
        return start.model_dump_json().encode()

    return NetworkEngine(setup(), Questions(post, RUN, post.nodes(), begin), LIMITS), post


def honest(node: int, asked: Letter, answer: Letter) -> Letter:
    return answer


def spoilt_tensors(kind: str, rng: np.random.Generator, tensors: Tensors) -> Tensors:
    name = sorted(tensors)[rng.integers(len(tensors))]
    value = tensors[name].clone()
    if kind == "shape":
        value = value.unsqueeze(0) if rng.random() < 0.5 else value.flatten()[:-1]
    elif kind == "type":
        value = value.double()
    elif kind in ("nan", "inf", "huge"):
        value = value.contiguous()
        spot = {"nan": float("nan"), "inf": float("-inf"), "huge": 1e30}[kind]
        value.view(-1)[rng.integers(value.numel())] = spot
    changed = {**tensors, name: value}
    if kind == "missing":
        del changed[name]
    elif kind == "extra":
        changed[f"head.{rng.integers(9)}.more"] = torch.zeros(2)
    return changed


FIELDS: dict[str, tuple[tuple[str, Any], ...]] = {
    "round": (("round", 3), ("round", 0), ("round", -1), ("round", 10**40), ("round", "1"), ("round", 1.0)),
    "client": (("client", 2), ("client", -1), ("client", True)),
    "samples": (("samples", 500), ("samples", 0), ("samples", 2**70), ("samples", None)),
    "loss": (("loss", "low"), ("loss", 1e300), ("loss", [1.0])),
    "unknown": (("weight", 1000),),
}
TENSORS = ("shape", "type", "nan", "inf", "huge", "missing", "extra")
BYTES = ("cut", "flipped", "claimed", "empty", "replay", "another run", "another kind", "grown")


def spoilt(kind: str, rng: np.random.Generator, answer: Letter, earlier: Letter) -> Letter:
    body = answer.body
    if kind in TENSORS:
        fields, tensors = unpack(body)
        return answer._replace(body=pack(fields, spoilt_tensors(kind, rng, tensors)))
    if kind in FIELDS:
        fields, tensors = unpack(body)
        name, value = FIELDS[kind][rng.integers(len(FIELDS[kind]))]
        return answer._replace(body=pack({**fields, name: value}, tensors))
    if kind == "cut":
        return answer._replace(body=body[: rng.integers(len(body))])
    if kind == "flipped":
        place = int(rng.integers(len(body)))
        return answer._replace(body=body[:place] + bytes([body[place] ^ (1 << rng.integers(8))]) + body[place + 1 :])
    if kind == "claimed":  # a header of 2 GB
        return answer._replace(body=(2 << 30).to_bytes(8, "little") + body[8:])
    if kind == "empty":
        return answer._replace(body=b"")
    if kind == "grown":
        return answer._replace(body=body + bytes(int(rng.integers(1, 99))))
    if kind == "replay":
        return earlier
    if kind == "another run":
        return answer._replace(run=question_id(Letter("ask", "cd" * 16, b"")))
    return answer._replace(kind="busy")


def one_lie(folder: Path, seed: int) -> str:
    """One round in which client 1 lies; why it was not held, or nothing."""
    rng = np.random.default_rng(seed)
    kinds = [*TENSORS, *FIELDS, *BYTES]
    kind = kinds[seed % len(kinds)]
    engine, post = engine_of(folder / str(seed), honest)
    everyone = [0, 1, 2]
    shared = setup().initial_shared
    engine.train(1, everyone, shared)
    earlier = next(answer for node, asked, answer in post.heard if node == 1 and asked.kind == "ask")
    post.change = lambda node, asked, answer: (
        spoilt(kind, rng, answer, earlier) if node == 1 and asked.kind == "ask" else answer
    )
    results: list[ClientResult] = engine.train(2, everyone, shared)
    if [r.update.client for r in results] != [0, 2] or set(engine.missing) != {1}:
        return f"{kind}: counted {[r.update.client for r in results]}, missing {engine.missing}"
    if "south in round 2" not in engine.missing[1]:
        return f"{kind}: said {engine.missing[1]!r}"
    return ""


@pytest.mark.parametrize("part", range(4))
def test_no_lie_counts_and_none_ends_the_run(part: int, tmp_path: Path) -> None:
    found = [one_lie(tmp_path, seed) for seed in range(15 * part, 15 * part + 15)]
    assert [text for text in found if text] == []


@pytest.mark.parametrize("seed", [29, 49, 89])
def test_what_a_method_alone_knows_may_not_be_left_out_by_one(seed: int, tmp_path: Path) -> None:
    """SCAFFOLD's control variates are no tensors of the model: without those of one client nothing can be averaged."""
    assert one_lie(tmp_path, seed) == ""


def test_a_round_whose_update_fits_no_other_does_not_count_for_the_next(tmp_path: Path) -> None:
    """The client goes on from the last round that counted, as one whose answer never came."""

    def bare(node: int, asked: Letter, answer: Letter) -> Letter:
        fields, tensors = unpack(answer.body) if asked.kind == "ask" else ({}, {})
        if node != 1 or fields.get("round") != 2:
            return answer
        own = {name: value for name, value in tensors.items() if not name.startswith("c/")}
        return answer._replace(body=pack(fields, own))

    engine, post = engine_of(tmp_path, bare)
    for round in (1, 2, 3):
        results = engine.train(round, [0, 1, 2], setup().initial_shared)
        assert [result.update.client for result in results] == ([0, 2] if round == 2 else [0, 1, 2])
    asked = [(node, unpack(letter.body)[0]) for node, letter, _ in post.heard if letter.kind == "ask"]
    assert [(node, fields["last"]) for node, fields in asked if fields["round"] == 3] == [(0, 2), (1, 1), (2, 2)]


def test_an_honest_round_counts(tmp_path: Path) -> None:
    engine, _ = engine_of(tmp_path, honest)
    assert len(engine.train(1, [0, 1, 2], setup().initial_shared)) == 3
    assert engine.missing == {}


def test_a_test_that_cannot_be_is_one_of_no_rows(tmp_path: Path) -> None:
    def perfect(node: int, asked: Letter, answer: Letter) -> Letter:
        if asked.kind != "ask":
            return answer
        fields, tensors = unpack(answer.body)
        if node == 1 and "sums" in fields:
            return answer._replace(body=pack({**fields, "sums": {"accuracy": 1000.0}}, tensors))
        return answer

    engine, _ = engine_of(tmp_path, perfect)
    scores = engine.evaluate([0, 1, 2], setup().initial_shared, "global")
    assert scores.count.tolist() == [4, 0, 4]
    assert np.isnan(scores.headline).tolist() == [False, True, False]
    assert np.isfinite(scores.over_rows["accuracy"])
    assert engine.missing == {}  # its rounds count


def test_a_long_update_is_refused(tmp_path: Path) -> None:
    engine, _ = engine_of(tmp_path, honest)
    engine.limits = Limits(seconds=5, patience=0.1, pause=0.01, max_norm=1e-9)
    with pytest.raises(RunError, match=r"0 of 3 clients gave.*--max-update-norm is 1e-09.*--resume"):
        engine.train(1, [0, 1, 2], setup().initial_shared)


def test_too_few_answers_end_the_run_in_one_sentence(tmp_path: Path) -> None:
    engine, _ = engine_of(tmp_path, lambda node, asked, answer: answer if node == 0 else answer._replace(kind="busy"))
    engine.limits = Limits(seconds=5, patience=0.05, pause=0.01, min_answers=2)
    with pytest.raises(RunError, match=r"1 of 3 clients.*--min-answers is 2"):
        engine.train(1, [0, 1, 2], setup().initial_shared)


def test_a_round_is_repeated_until_enough_have_answered(tmp_path: Path) -> None:
    tries: list[int] = []

    def late(node: int, asked: Letter, answer: Letter) -> Letter:
        tries.append(node)
        return answer._replace(kind="busy") if node == 1 and tries.count(1) < 3 and asked.kind == "ask" else answer

    engine, _ = engine_of(tmp_path, late)
    engine.limits = Limits(seconds=5, patience=30, pause=0.01, min_answers=3)
    assert len(engine.train(1, [0, 1, 2], setup().initial_shared)) == 3
    assert engine.missing == {}


def test_a_first_try_that_takes_all_patience_is_repeated(tmp_path: Path) -> None:
    """A slow client, which is there, takes as long as an answer may; ``deploy server`` has as much patience."""
    tries: list[int] = []

    def slow(node: int, asked: Letter, answer: Letter) -> Letter:
        if asked.kind != "ask" or node != 1:
            return answer
        tries.append(node)
        time.sleep(0.3 if len(tries) == 1 else 0)
        return answer._replace(kind="busy") if len(tries) == 1 else answer

    engine, _ = engine_of(tmp_path, slow)
    engine.limits = Limits(seconds=5, patience=0.2, pause=0.01, min_answers=3)
    assert len(engine.train(1, [0, 1, 2], setup().initial_shared)) == 3
    assert len(tries) == 2
