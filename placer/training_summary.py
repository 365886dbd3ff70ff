"""What a training found: one sentence for each environment that it went through."""

from collections.abc import Sequence

from placer.environment import REAL
from placer.ranking import fastest, step_time_s
from placer.report import seconds
from placer.trials import Trial

_WHERE = {"simulated": "in the simulation", REAL: "on the real devices"}


def training_summary(trials: Sequence[Trial]) -> str:
    """Return the best step time of each environment, in the order of their trials.

    Args:
        trials: Measured trials of one training, by number.
    """
    environments = dict.fromkeys(trial.environment for trial in trials)
    return " ".join(
        _sentence(
            _WHERE.get(environment, f"by {environment!r}"),
            [trial for trial in trials if trial.environment == environment],
        )
        for environment in environments
    )


def _sentence(where: str, trials: Sequence[Trial]) -> str:
    best = fastest(trials)
    if best is None:
        return f"None of {len(trials):,} placements ran {where}."
    time = seconds(step_time_s(best))
    return f"Best of {len(trials):,} placements {where}: {time} a step (trial {best.number:,})."
