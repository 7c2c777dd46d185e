"""What else goes on in the process does not change a run: other threads, and what a user set for all of PyTorch."""

from __future__ import annotations

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
        with pytest.raises(ZeroDivisionError), usual_numbers():
            1 / 0  # noqa: B018
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
