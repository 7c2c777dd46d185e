"""What else goes on in the process does not change a run: other threads, and what a user set for all of PyTorch."""

from __future__ import annotations

import faulthandler
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from commonground import train
from commonground.ambient import usual_numbers
from commonground.generators import keyed_generators
from commonground.models import build_model
from tests.helpers import made_data

THREADS = 4


def weights(seed: int, engine: str = "serial") -> str:
    run = train("fedrep", made_data(dtype=np.float32), model="mlp", rounds=2, seed=seed, engine=engine)
    return str(run.summary["weights_sha256"])


def test_runs_in_threads_are_those_of_one_after_the_other() -> None:
    wanted = [weights(seed) for seed in range(THREADS)]
    before = torch.get_rng_state(), mtrand.get_state()
    together = threading.Barrier(THREADS)

    def one(seed: int) -> str:
        together.wait()
        return weights(seed)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(one, range(THREADS))) == wanted
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(mtrand.get_state()) == str(before[1])


def test_a_thread_waits_for_the_generators_and_the_same_one_does_not() -> None:
    entered: list[str] = []

    def other() -> None:
        with keyed_generators(0, "other"):
            entered.append("other")

    with keyed_generators(0, "outer"):
        thread = threading.Thread(target=other)
        thread.start()
        with keyed_generators(0, "inner"):
            thread.join(0.3)
            entered.append("inner")
    thread.join()
    assert entered == ["inner", "other"]


@pytest.mark.parametrize("engine", ["serial", "batched", "processes", "messages"])
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_gradients_are_computed_wherever_a_run_is_called(
    around: type[AbstractContextManager[None]], engine: str
) -> None:
    wanted = weights(0, engine)
    with around():
        assert weights(0, engine) == wanted
        assert not torch.is_grad_enabled()


def test_the_usual_number_type_is_no_setting_of_a_run() -> None:
    wanted = weights(0)
    torch.set_default_dtype(torch.float64)
    try:
        assert weights(0) == wanted
        assert torch.get_default_dtype() == torch.float64
        with usual_numbers():
            torch.set_default_dtype(torch.float64)  # a user's file, say
            with usual_numbers():
                assert torch.get_default_dtype() == torch.float32
        with pytest.raises(ZeroDivisionError), usual_numbers():
            1 / 0  # noqa: B018
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_weights_are_drawn_in_the_usual_number_type() -> None:
    def drawn() -> torch.Tensor:
        return torch.cat([value.flatten() for value in build_model("mlp", (1, 8, 8), 3, seed=1).parameters()])

    wanted = drawn()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(drawn(), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_last_of_several_threads_puts_the_number_type_back() -> None:
    inside, first_is_out = threading.Event(), threading.Event()

    def second() -> None:
        with usual_numbers():
            inside.set()
            first_is_out.wait(10)
            assert torch.get_default_dtype() == torch.float32

    torch.set_default_dtype(torch.float64)
    try:
        with ThreadPoolExecutor(1) as pool:
            with usual_numbers():
                other = pool.submit(second)
                assert inside.wait(10)
            first_is_out.set()
            other.result(10)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    ready, done = threading.Event(), threading.Event()

    def holding() -> None:
        with keyed_generators(0, "outer"):
            ready.set()
            done.wait(60)

    thread = threading.Thread(target=holding)
    thread.start()
    try:
        assert ready.wait(10)
        child = os.fork()
        if not child:  # nothing of pytest is to go on here
            faulthandler.dump_traceback_later(20, exit=True)
            with keyed_generators(0, "inner"):
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        thread.join()


def test_what_the_host_draws_hangs_on_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    own = np.random.default_rng(0)
    drawn = []
    for gpus in (0, 1, 3):
        of_devices = tuple(torch.Generator() for _ in range(gpus))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda gpus=gpus: gpus > 0)
        monkeypatch.setattr(torch.cuda, "default_generators", of_devices)
        with keyed_generators(3, "training", 1, others=[own]) as has_drawn:
            drawn.append((torch.rand(1).item(), mtrand.rand(), random.random(), own.random()))
            assert has_drawn()
        with keyed_generators(3, "training", 1) as has_drawn:
            if gpus:
                torch.rand(1, generator=of_devices[-1])
            assert has_drawn() == bool(gpus)
    assert drawn[0] == drawn[1] == drawn[2]
