"""Which of several trials is the best: a measurement counts before a prediction.

A training may go through two environments, the simulation and the real devices. Their step
times are of different kinds: one says what a step should take, the other what it took. So
trials are compared within one environment, and the real devices have the last word: the
best trial is the fastest real one, and only where none ran the fastest simulated one.
"""

from collections.abc import Iterable, Sequence

from placer.environment import REAL
from placer.trials import Trial


def step_time_s(trial: Trial | None) -> float | None:
    """Return the step time of a trial in seconds; None if it did not run, or is none."""
    if trial is None or trial.measurement is None:
        return None
    return trial.measurement.step_time_s


def fastest_first(trials: Iterable[Trial | None]) -> list[Trial]:
    """Return the trials that ran: real ones first, then the fastest, then the earliest."""
    ran = [
        (trial.environment != REAL, time_s, trial.number, trial)
        for trial in trials
        if trial is not None and (time_s := step_time_s(trial)) is not None
    ]
    return [entry[-1] for entry in sorted(ran, key=lambda entry: entry[:-1])]


def fastest(trials: Iterable[Trial | None]) -> Trial | None:
    """Return the best trial, the first of equals; None if none ran."""
    return next(iter(fastest_first(trials)), None)


def without_outdated(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials without the simulated ones of placements that real trials tried.

    What a placement did on the real devices, failures included, stands for it.
    """
    tried = {trial.device_of_group for trial in trials if trial.environment == REAL}
    return [
        trial for trial in trials if trial.environment == REAL or trial.device_of_group not in tried
    ]
