"""A device that is none: its tensors have values, which are computed on the host, and may not meet the host's tensors.

What PyTorch's ``meta`` device cannot show is seen on it: whole runs, with tests and everything that is read back, and
whether they end where a run on the host does. It replaces functions of PyTorch, so that it has a process of its own:

    python -m tests.devices.pretend ENGINE KIND [METHOD …]

prints by how much each method's final weights, of a run on ``vectors``, ``images``, ``texts`` or ``answers``, differ
from those of the engine ``serial`` on the host.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import commonground.device_names as device_names
import commonground.devices as devices

NAME = "pretended"
_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
_backend: Any = _DummyBackendModule
_backend.get_rng_state = lambda self, *_: torch.zeros(1, dtype=torch.uint8)
_backend.set_rng_state = lambda self, *_: None

MIXED = {"copy_", "set_", "index_put_"}
"""Operations that take tensors of both devices, besides those that take an index."""


class Pretended(Tensor):
    """A tensor of the device, around one of the host."""

    host: Tensor
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretended:
        made: Pretended = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.host = inner
        return made

    def __getitem__(self, index: Any) -> Any:
        each = index if isinstance(index, tuple) else (index,)
        moved = tuple(_real_tensor(one).to(DEVICE) if isinstance(one, list) else one for one in each)
        return super().__getitem__(moved)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made: Tensor = Pretended(self.host.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        return memo.setdefault(id(self), made.requires_grad_(self.requires_grad))

    def tolist(self) -> Any:
        return self.host.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("a tensor of a device has no NumPy array")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a tensor of a device is no NumPy array")

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, *_: Any, **__: Any) -> Tensor:
        return _real_tensor(data, dtype=dtype or self.dtype).to(DEVICE)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's own annotation lacks the class
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(func, args, kwargs or {})


class Watching(TorchDispatchMode):
    """While open, tensors are made on the device where that is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, on the tensors inside; refused where tensors of both devices meet."""
    name, tensors = func.overloadpacket.__name__, [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    here = [one for one in tensors if isinstance(one, Pretended)]
    if name == "_pin_memory" and here:
        raise RuntimeError("only dense CPU tensors can be pinned")
    if name == "_local_scalar_dense":
        return func(_inner(args[0]))
    if name == "_to_copy":
        source = args[0] if tensors else torch.scalar_tensor(args[0], dtype=kwargs.get("dtype"))
        to = torch.device(kwargs.get("device") or source.device)
        copied = func(_inner(source), **tree_map(_inner, kwargs | {"device": to, "non_blocking": False}))
        return Pretended(copied) if to.type == NAME else copied
    if name == "copy_":
        _inner(args[0]).copy_(_inner(args[1]))
        return args[0]
    if here and name not in MIXED and not (name in ("index", "_unsafe_index") and args[0] in here):
        mixed = [one for one in tensors if not isinstance(one, Pretended) and (one.ndim or name.startswith("_foreach"))]
        if mixed:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
    made = func(*tree_map(_inner, tuple(args)), **tree_map(_inner, dict(kwargs)))
    asked = kwargs.get("device")
    if name == "equal" or not (here or (asked is not None and torch.device(asked).type == NAME)):
        return made
    made = tree_map(lambda x: Pretended(x) if isinstance(x, Tensor) and not isinstance(x, Pretended) else x, made)
    return return_and_correct_aliasing(func, args, kwargs, made) if here else made


def _inner(value: Any) -> Any:
    if isinstance(value, Pretended):
        return value.host
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


# -- what PyTorch does in C for devices that it knows -----------------------------------------------------------------

_real_tensor, _real_as_tensor, _real_as_subclass = torch.tensor, torch.as_tensor, Tensor.as_subclass
_real_deepcopy = torch.nn.Parameter.__deepcopy__


def _tensor(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    made = _real_tensor(data, *args, **kwargs)
    return made.to(DEVICE) if device is not None and torch.device(device).type == NAME else made


def _as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    if isinstance(data, Pretended):
        return data.to(device=device or DEVICE, dtype=dtype or data.dtype)
    made = _real_as_tensor(data, dtype=dtype)
    return made if device is None else made.to(device)


def _as_subclass(self: Tensor, cls: Any) -> Any:
    return self if isinstance(self, Pretended) else _real_as_subclass(self, cls)


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    return Pretended.__deepcopy__(self, memo) if isinstance(self, Pretended) else _real_deepcopy(self, memo)


def pretend() -> None:
    """From now on ``--device pretended`` is a device; before the rest of the library is imported."""
    module: Any = torch
    module.tensor, module.as_tensor = _tensor, _as_tensor
    classes: Any = Tensor, torch.nn.Parameter
    classes[0].as_subclass, classes[1].__deepcopy__ = _as_subclass, _deepcopy
    checked, resolved = device_names.check_device, devices.resolve_device
    known: Any = device_names, devices
    known[0].check_device = lambda text: 0 if text == NAME else checked(text)
    known[1].resolve_device = lambda text: DEVICE if text == NAME else resolved(text)


def largest_difference(method: str, kind: str, **settings: Any) -> float:
    """Between the final shared weights of a short run on the device and on the host.

    Args:
        method: by name.
        kind: of data and model: ``vectors``, ``images``, or the ``texts`` or ``answers`` of a pretrained model.
        settings: of the run on the device; the one on the host has the engine ``serial``.
    """
    from commonground import train
    from tests.helpers import fitting

    def final(device: str, **settings: Any) -> dict[str, Tensor]:
        settings = {"batch_size": 4, "rounds": 2, "participation": 0.8, "seed": 1, **settings}
        return train(method, device=device, **fitting(method, {**given_for(kind, method), **settings})).shared

    there, here = final(NAME, **settings), final("cpu", **{**settings, "engine": "serial"})
    return max((float((there[n].cpu() - v).abs().max()) for n, v in here.items() if v.numel()), default=0.0)


def given_for(kind: str, method: str) -> dict[str, Any]:
    """Data, model and number type of a run."""
    from commonground.models import ConvNet
    from tests.helpers import TwoLayer, images, made_data, seeded, suited
    from tests.language import token_data

    if kind == "vectors":
        model = suited(method, seeded(TwoLayer))
        return {"data": made_data((5, 3, 8, 2, 6)), "model": model, "dtype": "float64", "metrics": "full"}
    if kind in ("texts", "answers"):
        data, model = token_data(language=kind == "answers"), copy.deepcopy(loaded[kind])
        return {"data": data, "model": model, "dtype": "float64", "lr": 0.1, "optimizer": "sgd"}
    model = seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=0.3)
    return {"data": images((7, 12, 4)), "model": model, "dtype": "float64", "augment": "flip-crop"}


loaded: dict[str, torch.nn.Module] = {}
"""Pretrained models by kind, loaded before PyTorch's functions are replaced, by which transformers fills them."""


def load(kind: str) -> None:
    """Load a tiny pretrained model with LoRA factors, in some layers of three alone."""
    from commonground.models.huggingface import build_adapted
    from commonground.models.lora_options import LoRAOptions
    from tests.language import tiny_model

    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        torch.manual_seed(0)
        answers = kind == "answers"
        options = LoRAOptions(rank=2, layers="1,2", dropout=0.0 if answers else 0.1, max_length=11, generative=answers)
        name = tiny_model("llama-lm" if answers else "bert", Path(folder))
        loaded[kind] = build_adapted(name, 2, options, torch.float64)


def main(engine: str, kind: str, methods: list[str]) -> None:
    """Print the differences of methods, by default of all, as JSON."""
    if kind in ("texts", "answers"):
        load(kind)
    pretend()
    from commonground.algorithms import registry

    with Watching():
        found = {method: largest_difference(method, kind, engine=engine) for method in methods or sorted(registry)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
