"""Differential privacy of clients: what bounds a client's influence, what hides it, and how much is given away; that
of single examples is in ``examples.py``.

*McMahan, Ramage, Talwar, Zhang 2018, Algorithm 1 (DP-FedAvg, flat clipping), with equal weights.* In round t a set S
of n clients is sent θ_t. Client i trains to θ_i and sends a change that is cut to the length C, over all tensors
together:

    Δ_i = θ_i − θ_t,    Δ̄_i = Δ_i · min(1, C / ‖Δ_i‖₂),    θ_{t+1} = θ_t + 1/n (Σ_{i∈S} Δ̄_i + N(0, (Z·C)² I)).

Z is the noise multiplier. The noise on the mean has the standard deviation Z·C/n; where a client adds its own (local
noise), it sends Δ̄_i + N(0, (Z·C)² I), and the mean has Z·C/√n.

*Andrew, Thakkar, McMahan, Ramaswamy 2021, Algorithm 1 (adaptive clipping).* C follows the quantile γ of the changes'
lengths. Client i also tells b_i = 1 if ‖Δ_i‖₂ ≤ C_t, else 0, and

    b̃ = 1/n (Σ b_i + N(0, σ_b²)),    C_{t+1} = C_t · exp(−η (b̃ − γ)),    η = 0.2.

Both are released, so the changes get the multiplier z_Δ = (Z⁻² − (2σ_b)⁻²)^(−1/2) > Z, with which the two together
give away as much as the changes alone did with Z.

*By hand.* θ_t = (1, 1), n = 2, C = 1. The change (3, 4) of length 5 becomes (0.6, 0.8), (0.3, 0.4) of length 0.5
stays; the mean moves to (1.45, 1.6), and with Z = 2 each number of it gets noise of the standard deviation 2·1/2 = 1.
One of two changes is within C, so with γ = 1/2 and no noise C stays 1; with γ = 1 it becomes e^0.1.

``mechanism.py`` has these formulas, ``noise.py`` where noise comes from, ``accounting.py`` what ε they amount to and
why.
"""

from commonground.privacy.accounting import Budget, noise_for, usual_delta
from commonground.privacy.examples import ExamplePrivacy, clipped_sums, noisy_means
from commonground.privacy.mechanism import CLIP, WITHIN, ClientPrivacy, clipped, is_private_part, next_clip
from commonground.privacy.noise import KeyedNoise, NoiseSource, SecretNoise, noise_for_numbers
from commonground.privacy.told import about_privacy, short_epsilon

__all__ = [
    "CLIP",
    "WITHIN",
    "Budget",
    "ClientPrivacy",
    "ExamplePrivacy",
    "KeyedNoise",
    "NoiseSource",
    "SecretNoise",
    "about_privacy",
    "clipped",
    "clipped_sums",
    "is_private_part",
    "next_clip",
    "noise_for",
    "noise_for_numbers",
    "noisy_means",
    "short_epsilon",
    "usual_delta",
]
