"""The arithmetic of REINFORCE and PPO, as pure functions.

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


def truncated_importance(log_ratios: FloatArray) -> FloatArray:
    """Return ``min(1, ratio)`` of each placement, ``[B]``: V-trace's, with bound 1.

    It corrects for a placement that was drawn by an older policy, as far as that is possible
    without the variance of large ratios (Espeholt et al., 2018, equation 1).

    Args:
        log_ratios: Logarithm of the placement's probability now over the one when it was
            drawn, ``[B]``.
    """
    return np.asarray(np.exp(np.minimum(log_ratios, 0.0)))


def clipped_surrogate(log_ratios: FloatArray, advantages: FloatArray, *, clip: float) -> float:
    """Return PPO's objective, ``G · mean_b min(r_b A_b, clip(r_b, 1 ± ε) A_b)``.

    Schulman et al. (2017), equation 7. ``r`` is the mean ratio of a choice, geometric over the
    groups of a placement, as in Zheng et al. (2025) for the tokens of a sequence: the ratio of
    a whole placement of hundreds of groups leaves any interval around 1 with the first step,
    that of a mean choice says how far the policy has moved, however many groups there are.
    The factor G gives the first step the size of REINFORCE's.

    Args:
        log_ratios: Logarithm of each choice's probability now over the one when it was drawn,
            ``[B, G]``.
        advantages: Of each placement, ``[B]``.
        clip: ε.
    """
    ratios = np.exp(log_ratios.mean(axis=1))
    clipped = np.clip(ratios, 1 - clip, 1 + clip)
    gains = np.minimum(ratios * advantages, clipped * advantages)
    return float(log_ratios.shape[1] * np.mean(gains))


def clipped_advantages(
    log_ratios: FloatArray, advantages: FloatArray, *, clip: float
) -> FloatArray:
    """Return the advantages whose policy gradient is that of ``clipped_surrogate``, ``[B]``.

    Where the minimum takes the ratio itself, the gradient of ``G · r · A`` is
    ``r · A · ∇ Σ_g log p_g``, because ``log r`` is the mean of the log-ratios; where it takes the
    clipped one, a constant, it is zero. So ``Policy.update`` needs no other rule than
    REINFORCE's. Arguments as of ``clipped_surrogate``.
    """
    ratios = np.exp(log_ratios.mean(axis=1))
    is_beyond = np.where(advantages > 0, ratios > 1 + clip, ratios < 1 - clip)
    return np.where(is_beyond, 0.0, ratios * advantages)


def divergence_of_choices(log_ratios: FloatArray) -> float:
    """Return how far the policy has moved: the mean divergence of a choice, in nats.

    ``mean(r - 1 - log r)`` over choices drawn by the earlier policy estimates the divergence of
    Kullback and Leibler from it to the present one; it is unbiased and never negative.

    Args:
        log_ratios: As of ``clipped_surrogate``.
    """
    return float(np.mean(np.expm1(log_ratios) - log_ratios))


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
