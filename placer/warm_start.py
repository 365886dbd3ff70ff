"""Warm starts: a policy that knows something before its first trial.

It may imitate the placement of a heuristic: updates that make this one placement likelier, until
a choice agrees with it nine times in ten. Then samples are that placement with a few groups
elsewhere, which is where a training finds out what to change; a policy that imitates perfectly
would find nothing. Or it may be the policy that an earlier training ended with.

Both depend on the settings alone, so a training that is resumed begins as it first did.
"""

import logging

import numpy as np

from placer.batch_trainer import policy_state
from placer.environment import Environment
from placer.errors import InfeasibleError, InvalidValueError, UnknownNameError
from placer.grouping import Grouping
from placer.heuristics import heuristic_placements, heuristic_rules
from placer.placement import Placement
from placer.policy import Actions, Policy
from placer.profile import Profile
from placer.trials import Checkpoint

BEST_HEURISTIC = "best heuristic"
"""Stands for the name of the heuristic whose placement is the fastest."""

_LIKELY = 0.9

_log = logging.getLogger(__name__)


def placement_to_imitate(
    name: str, profile: Profile, grouping: Grouping, environment: Environment, *, seed: int
) -> Actions:
    """Return the actions of a heuristic, ``[G]``.

    Args:
        name: Of the heuristic, or ``BEST_HEURISTIC``.
        profile: What is placed.
        grouping: Its groups.
        environment: Finds out which is the best: each heuristic is measured once.
        seed: Of heuristics that draw.

    Raises:
        UnknownNameError: If there is no such heuristic for this profile.
        InfeasibleError: If the heuristic does not apply, or none of them runs.
    """
    if name != BEST_HEURISTIC:
        rules = heuristic_rules(profile, grouping, seed=seed)
        if name not in rules:
            raise UnknownNameError("warm start", name, [BEST_HEURISTIC, *rules])
        return rules[name]()
    placements = heuristic_placements(profile, grouping, seed=seed)
    found = environment.measure(
        [Placement.from_groups(grouping, actions) for actions in placements.values()]
    )
    ran = [
        (each.step_time_s, rule)
        for rule, each in zip(placements, found, strict=True)
        if each.step_time_s is not None
    ]
    if not ran:
        raise InfeasibleError("no heuristic's placement runs: there is nothing to imitate")
    _, best = min(ran)
    _log.info("of %d heuristics %r is the best and is imitated", len(placements), best)
    return placements[best]


def imitate(policy: Policy, actions: Actions, *, max_updates: int, batch_size: int) -> int:
    """Make one placement likelier, until a mean choice of it has a probability of 0.9.

    Args:
        policy: What is to imitate.
        actions: The placement, ``[G]``.
        max_updates: Updates at most.
        batch_size: Rows of an update; one that the policy is compiled for anyway costs least.

    Returns:
        How many updates were made.
    """
    rows = np.tile(np.asarray(actions, dtype=np.int32), (batch_size, 1))
    for update in range(max_updates):
        if float(policy.log_probs(rows).mean()) >= np.log(_LIKELY):
            return update
        policy.update(rows, np.ones(batch_size))
    return max_updates


def restore_policy(policy: Policy, checkpoint: Checkpoint | None, *, run_id: str) -> None:
    """Begin with the policy that an earlier training ended with.

    Args:
        policy: Of the same network and sizes.
        checkpoint: The last one of that training.
        run_id: Of that training, for messages.

    Raises:
        InvalidValueError: If there is no checkpoint, or its policy has other variables or shapes.
    """
    if checkpoint is None:
        raise InvalidValueError(f"training {run_id} cannot be the start: it has no checkpoint")
    try:
        policy.restore(policy_state(checkpoint))
    except InvalidValueError as error:
        raise InvalidValueError(f"training {run_id} cannot be the start: {error}") from error
