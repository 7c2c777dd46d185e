"""FedBN."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from torch import nn

from commonground.algorithms.base import Algorithm, Client, Tensors
from commonground.errors import ModelError
from commonground.models import Groups, groups_of, set_groups, tensors_of

_BATCH = (nn.modules.batchnorm._BatchNorm,)
# _NormBase is what BatchNorm and InstanceNorm have in common.
_ALL = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class FedBN(Algorithm):
    """FedBN: FedAvg in which every client keeps its normalisation layers (Li, Jiang, et al. 2021, Algorithm 1).

    Scale, shift and running statistics of these layers never leave their client, so that clients whose inputs are
    distributed differently (another scanner, another writer) each bring them to their own common scale; all other
    tensors are trained along and averaged. Where the layers are is found in the model itself. A client that has not
    taken part has them as they were at the start. There is no global model. (``--batch-norm local`` with FedAvg keeps
    the running statistics alone, as SiloBN does.)

    The paper has BatchNorm in mind; the authors' code (med-air/FedBN) keeps back what has ``bn`` in its name, and
    weighs all clients alike, as the default ``--weighting uniform`` does. Layers that normalise within a sample have
    scale and shift too, and are kept as well unless ``layers`` says otherwise.

    Args:
        layers: which normalisation layers are personal: ``all`` (BatchNorm, InstanceNorm, GroupNorm, LayerNorm and
            RMSNorm) or the paper's, ``batch``.
    """

    layers: Literal["all", "batch"] = "all"

    name = "fedbn"
    title = "FedBN"
    source = "Li, Jiang, Zhang, Kamp, Dou 2021"
    shared = ("common",)
    personal = ("norm",)

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        """A copy of the model with the groups ``norm`` and ``common``.

        Raises:
            ModelError: it has no normalisation layer of the kind.
        """
        kinds = _ALL if self.layers == "all" else _BATCH
        found = {
            f"{name}.{tensor}".removeprefix(".")
            for name, module in model.named_modules()
            if isinstance(module, kinds)
            for tensor in tensors_of(module)
        }
        tensors = groups.whole("all")
        norm = tuple(name for name in tensors if name in found)
        if not norm:
            kind = "normalisation" if self.layers == "all" else "BatchNorm"
            raise ModelError(
                f"FedBN keeps each client's {kind} layers, and this model has none with weights that change; choose "
                "one that has, such as --model resnet18 or mlp with --set model.norm=batch, or another method"
            )
        extended = deepcopy(model)
        common = tuple(name for name in tensors if name not in norm)
        set_groups(extended, {**groups_of(model), "head": groups.whole("head"), "norm": norm, "common": common})
        return extended

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs on the whole model; all but the normalisation layers is sent."""
        client.fit("all")
        return client.send("common")
