"""Steps of training recorded once as CUDA graphs and replayed.

A step of a round's clients side by side is some hundred small kernels, and to start each of them from Python takes
longer than to compute it. A graph starts them all at once. It holds for ever what Python decided while it was recorded,
so only steps go into one whose code is all this library's or PyTorch's, and that differ in nothing but tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from commonground.engine.clients.optimizers import Rates
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.models.behaviour import has_own_code
from commonground.registration import is_ours

__all__ = ["RecordedStep", "StepGraphs", "alike_steps", "step_graphs"]

_FEWEST = 4  # steps of a call that are worth recording one


class StepGraphs:
    """Where graphs of steps are recorded: a stream of their own, and memory that one takes over from the one before.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._last: torch.cuda.CUDAGraph | None = None  # while it lives, the pool does

    def record(self, function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        """A graph of what a function computes, and its result, which every replay writes anew; nothing is computed.

        Raises:
            RuntimeError: it does something that cannot be recorded, such as waiting for the device.
        """
        # Not torch.cuda.graph, which waits for the device and gives all cached memory back at every entry.
        graph, present = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = function()
            except BaseException:
                _give_up(graph)
                raise
            graph.capture_end()
        present.wait_stream(self._stream)
        self._last = graph
        return graph, result


def _give_up(graph: torch.cuda.CUDAGraph) -> None:
    try:
        graph.capture_end()
    except RuntimeError:  # says again that the recording failed
        return


class RecordedStep:
    """A function of tensors that is computed as it is when it is first called, then recorded, and replayed after that.

    Each structure of arguments (shapes, number types, what is None, other values) has a graph of its own. What cannot
    be recorded is computed as it is.

    Args:
        function: changes tensors in place, always the same ones, and gives some or None; any code in it is run at most
            twice for all calls alike.
        graphs: where it is recorded; None computes it as it is.
    """

    def __init__(self, function: Callable[..., Any], graphs: StepGraphs | None) -> None:
        self._function, self._graphs = function, graphs
        self._known: dict[Any, _Recording | None] = {}

    def __call__(self, *given: Any) -> Any:
        """The function's result for these arguments."""
        if self._graphs is None:
            return self._function(*given)
        leaves, structure = tree_flatten(given)
        key = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if key not in self._known:  # the first call also makes what kernels need beside their arguments
            self._known[key] = None
            return self._function(*given)
        if (recording := self._known[key]) is None:
            inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            call = tree_unflatten(inputs, structure)
            try:
                graph, result = self._graphs.record(lambda: self._function(*call))
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ModelError):
                self._graphs = None
                return self._function(*given)
            recording = self._known[key] = _Recording(graph, inputs, result)
        return recording.replay(leaves)


class _Recording:
    """A graph with the tensors that it reads and the one that it writes."""

    def __init__(self, graph: torch.cuda.CUDAGraph, inputs: list[Any], result: Tensor | None) -> None:
        self._graph, self._result = graph, result
        self._places = [place for place, value in enumerate(inputs) if isinstance(value, Tensor)]
        self._inputs = [inputs[place] for place in self._places]

    def replay(self, leaves: list[Any]) -> Tensor | None:
        if self._inputs:
            torch._foreach_copy_(self._inputs, [leaves[place] for place in self._places])
        self._graph.replay()
        return None if self._result is None else self._result.clone()


def step_graphs(setup: Setup) -> StepGraphs | None:
    """Where a run's steps are recorded; None where they cannot be: not on a CUDA device, or with a user's own code, of
    which a graph would keep what it did at one step.
    """
    if setup.device.type != "cuda" or setup.folds or setup.objective.of_user:
        return None
    theirs = not is_ours(type(setup.algorithm)) or has_own_code(setup.model)
    return None if theirs else StepGraphs(setup.device)


def alike_steps(rates: Rates, lrs: Sequence[float]) -> bool:
    """Whether the steps of a call differ in nothing but tensors (those of SGD with one learning rate), and are many
    enough to be worth recording one.
    """
    return len(lrs) >= _FEWEST and rates.optimizer == "sgd" and len(set(lrs)) == 1
