"""A new algorithm in one file: FedPer with a warm head, beside FedRep and FedPer.

python examples/new_algorithm.py
commonground train examples/new_algorithm.py:WarmHead --set head_epochs=3    # the same, from the command line
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import commonground as cg
from commonground import Algorithm, Client, Tensors


@dataclass(frozen=True)
class WarmHead(Algorithm):
    """A client's own head is trained alone at first, then head and body together, the body held near the shared one.

    Args:
        head_epochs: epochs on the head alone, on the body as it was received.
        joint_epochs: epochs on both.
        mu: μ of the penalty μ/2 · ‖φ − φᵗ‖², φ being the body and φᵗ the received one.
    """

    head_epochs: int = 5
    joint_epochs: int = 1
    mu: float = 0.01

    name = "warm-head"
    title = "WarmHead"
    source = "example"
    shared = ("body",)  # travels and is averaged
    personal = ("head",)  # never leaves its client

    def client_update(self, client: Client, round: int) -> Tensors:
        """One client's round, in the order in which a paper would write it."""

        def near(own: Tensors, received: Tensors) -> Tensor:
            moved = [(own[name] - received[name]).square().sum() for name in received]
            return 0.5 * self.mu * torch.stack(moved).sum()

        client.fit("head", epochs=self.head_epochs)
        client.fit("all", epochs=self.joint_epochs, penalty=near)
        return client.send("body")


def main() -> None:
    """All on the same splits, starts and client samples, with paired tests."""
    data = cg.load_data("digits", clients=10, classes_per_client=3, seed=0)
    comparison = cg.compare([WarmHead(), "fedrep", "fedper"], data, seeds=2, rounds=5)
    columns = ["title", "personal_accuracy_mean", "p10_mean", "bytes_up", "difference_mean", "difference_p_adjusted"]
    print(comparison.to_pandas()[columns].round(3).to_string(index=False))


if __name__ == "__main__":
    main()
