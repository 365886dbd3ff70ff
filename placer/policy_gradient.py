"""The arithmetic of REINFORCE, as pure functions.

A placement's reward falls with its step time; its advantage is how far the reward lies
above a moving baseline; the policy climbs the expected reward along
``advantage · ∇ log p(placement)`` (Williams, 1992; Mirhoseini et al., 2017, equation 2).

Array shapes: B placements, G groups, D devices.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placer.environment import Measurement
from placer.errors import InvalidValueError
from placer.graph import BoolArray, FloatArray


def reward_of_step_time(step_time_s: float) -> float:
    """Return ``-√(step time)``, which the policy maximises.

    The root keeps a few very slow placements from drowning the differences between good
    ones (Mirhoseini et al., 2017, section 3.1, where √(step time) is a cost).

    Raises:
        InvalidValueError: If the time is negative or not finite.
    """
    if not 0 <= step_time_s < np.inf:
        raise InvalidValueError(f"a step time must be finite and not negative, got {step_time_s} s")
    return -float(np.sqrt(step_time_s))


def rewards_of(measurements: Sequence[Measurement], failing_step_time_s: float) -> FloatArray:
    """Return the reward of each placement, ``[B]``.

    A placement that could not run is rewarded as if its step had taken
    ``failing_step_time_s``: the failing signal (Mirhoseini et al., 2017, section 3.1).
    """
    return np.array(
        [
            reward_of_step_time(
                failing_step_time_s if found.step_time_s is None else found.step_time_s
            )
            for found in measurements
        ]
    )


def moving_baseline(baseline: float, rewards: FloatArray, *, decay: float) -> float:
    """Return ``decay · baseline + (1 - decay) · mean(rewards)``.

    Args:
        baseline: The average so far.
        rewards: Rewards of one update's placements, ``[B]``; without any the average stays.
        decay: Share of the old average that is kept.
    """
    if rewards.size == 0:
        return baseline
    return decay * baseline + (1 - decay) * float(np.mean(rewards))


def advantages_of(rewards: FloatArray, baseline: float, counted: BoolArray) -> FloatArray:
    """Return ``(reward - baseline) / spread`` of each counted placement, else 0, ``[B]``.

    The spread is the root mean square of the counted differences. Dividing by it gives the
    entropy bonus the same meaning on graphs that step in microseconds and in seconds; the
    sign and the order of the paper's ``reward - baseline`` stay. If all differences are
    zero there is nothing to learn, and the advantages are zero.

    Args:
        rewards: Reward of each placement, ``[B]``.
        baseline: What an average placement earns.
        counted: False for placements that must not move the policy, ``[B]``.
    """
    differences = np.where(counted, rewards - baseline, 0.0)
    spread = np.sqrt(np.sum(differences**2) / max(int(counted.sum()), 1))
    if spread == 0:
        return np.zeros_like(differences)
    return np.asarray(differences / spread)


def reinforce_loss(log_probs: FloatArray, advantages: FloatArray) -> float:
    """Return the REINFORCE surrogate loss ``-mean_b(advantage_b · Σ_g log p_bg)``.

    Its gradient is the policy gradient estimated from B placements, negated (Williams,
    1992; Mirhoseini et al., 2017, equation 2).

    Args:
        log_probs: Log-probability of each chosen device, ``[B, G]``.
        advantages: Advantage of each placement, ``[B]``; a constant.

    Raises:
        InvalidValueError: If the batch dimensions differ.
    """
    if log_probs.ndim != 2 or advantages.shape != log_probs.shape[:1]:
        raise InvalidValueError(
            f"log_probs [B, G] and advantages [B] must share B,"
            f" got {log_probs.shape} and {advantages.shape}"
        )
    return -float(np.mean(advantages * log_probs.sum(axis=1)))


def gumbel_noise(
    seed: int, trial_numbers: npt.NDArray[np.int64], shape: tuple[int, ...]
) -> FloatArray:
    """Return standard Gumbel noise for each trial, ``[B, *shape]``.

    ``argmax(logits + noise)`` is a draw from ``softmax(logits)`` (Gumbel, 1954). The noise
    of a trial depends on the seed and its own number alone: it is keyed by them in a
    counter-based generator (Salmon et al., 2011), so a trial can be drawn again by itself.
    """
    rows = [
        np.random.Generator(np.random.Philox(key=[seed, int(number)])).random(shape)
        for number in trial_numbers
    ]
    # Uniforms lie in [0, 1): the smallest positive double stands for a zero.
    uniform = np.maximum(np.array(rows), np.finfo(np.float64).tiny)
    return np.asarray(-np.log(-np.log(uniform)))
