"""APFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from commonground.algorithms.base import Algorithm, Client, RunSettings, Tensors, prefixed, unprefixed
from commonground.errors import ConfigError


@dataclass(frozen=True)
class APFL(Algorithm):
    """APFL: each client's model is a mixture of its own and the global one (Deng et al. 2020, Algorithm 1).

    On each mini-batch ξ a participant steps on its copy of the global model and on its own model v_i,

    - w ← w − η ∇f_i(w; ξ),
    - v_i ← v_i − η α ∇f_i(v̄_i; ξ) with v̄_i = α v_i + (1 − α) w, both as they were before the two steps,

    sends w, which the server averages, and keeps v_i. It is tested with α v_i + (1 − α) w of the averaged w. Both steps
    use the run's momentum, each with its own buffer (Collins et al. 2021, App. A.2; the paper has none).

    A mini-batch costs two gradients. BatchNorm statistics of v_i are those of the client's w.

    Args:
        alpha: α, or where it starts if it adapts (Collins et al. 2021, App. A.2: 0.25 in most cases).
        adaptive: learn α_i per client, α_i ← α_i − η ⟨∇f_i(v̄_i; ξ), v_i − w⟩ at each step, kept in [0, 1] (§4.2).
        authors_code: train with v̄_i = α v_i + α w as the code of FedRep's authors does, which tests with
            α v_i + (1 − α) w all the same.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.25
    adaptive: bool = False
    authors_code: bool = False

    name = "apfl"
    title = "APFL"
    source = "Deng, Kamani, Mahdavi 2020"
    shared = ("all",)
    needs_sgd = "its two models step side by side along their gradients"

    def check(self, config: RunSettings) -> None:
        """Refuse one set of BatchNorm statistics for two models."""
        if config.batch_norm == "local":
            raise ConfigError(
                f"{self.title} trains two models at each client, and --batch-norm local keeps one set of statistics; "
                "use --batch-norm averaged"
            )

    def client_state(self, initial: Tensors) -> Tensors:
        """v_i = w_0, and α_i if it adapts."""
        like = next(iter(initial.values()))
        return prefixed("own", initial) | ({"mix/alpha": like.new_tensor(self.alpha)} if self.adaptive else {})

    def client_update(self, client: Client, round: int) -> Tensors:
        """Both models side by side on the same mini-batches."""
        speed_w: Tensors = {}
        speed_v: Tensors = {}
        for batch in client.batches():
            w, v = client.get("all"), unprefixed("own", client.state)
            alpha: Tensor | float = client.state["mix/alpha"] if self.adaptive else self.alpha
            mine, rest = client.scale(v, alpha), client.scale(w, alpha if self.authors_code else 1 - alpha)
            at_mixture = client.gradient("all", batch, at={name: mine[name] + rest[name] for name in w})
            at_w = client.gradient("all", batch)
            speed_w = _faster(client, speed_w, at_w, w)
            speed_v = _faster(client, speed_v, client.scale(at_mixture, alpha), v)
            client.step(speed_w)
            client.keep(prefixed("own", {name: v[name] - client.lr * speed for name, speed in speed_v.items()}))
            if self.adaptive:
                slope = client.dot(at_mixture, {name: v[name] - w[name] for name in at_mixture})
                client.keep({"mix/alpha": (alpha - client.lr * slope).clamp(0, 1)})
        if speed_v:
            untrained = {name: value for name, value in client.get("all").items() if name not in speed_v}
            client.keep(prefixed("own", untrained))
        return client.send("all")

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """α v_i + (1 − α) w."""
        mixed: Tensors = {}
        for name, v in unprefixed("own", own).items():
            alpha = own["mix/alpha"] if self.adaptive else self.alpha
            mixed[name] = alpha * v + (1 - alpha) * shared[name]
        return mixed


def _faster(client: Client, speed: Tensors, gradient: Tensors, at: Tensors) -> Tensors:
    """Momentum and weight decay as in SGD; ``speed`` is empty before the first step."""
    decayed = {name: value + client.weight_decay * at[name] for name, value in gradient.items()}
    return {name: client.momentum * speed[name] + value for name, value in decayed.items()} if speed else decayed
