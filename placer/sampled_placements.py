"""Placements of every kind, from all groups on one device to all at random.

A policy that learns in the simulation meets all of them, so the simulation is calibrated with
some and judged by others.

Array shapes: G groups, D devices.
"""

import dataclasses
import enum
import itertools
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from placer.errors import InfeasibleError, InvalidValueError
from placer.evaluation import SINGLE_DEVICE
from placer.graph import IntArray
from placer.grouping import Grouping
from placer.heuristics import heuristic_placements, random_placement, single_device
from placer.heuristics.permitted import permitted
from placer.placement import Placement
from placer.profile import Profile

_DRAWS_FOR_EACH = 64
_MOVED_SHARES = (0.05, 0.4)


class Kind(enum.StrEnum):
    """How a placement was made; the order is that of the figures' legends."""

    ONE_DEVICE = "one device"
    HEURISTIC = "heuristic"
    CUT = "cut"
    BLOCKS = "blocks"
    MIXTURE = "mixture"
    RANDOM = "random"


@dataclasses.dataclass(frozen=True, slots=True)
class ChosenPlacement:
    """A placement to simulate and to measure.

    Attributes:
        name: For people; no other placement of the same choice has it.
        kind: How it was made.
        device_of_group: The action of each group, ``[G]``.
        placement: The same, by op.
    """

    name: str
    kind: Kind
    device_of_group: tuple[int, ...]
    placement: Placement


def reference_placement(profile: Profile, grouping: Grouping) -> Placement:
    """Return all groups on the first device; those that may not, on their fastest."""
    return Placement.from_groups(grouping, single_device(profile, grouping, 0))


def sample_placements(
    profile: Profile,
    grouping: Grouping,
    count: int,
    *,
    kinds: Collection[Kind] = tuple(Kind),
    exclude: Collection[str] = (),
    seed: int = 0,
) -> list[ChosenPlacement]:
    """Return distinct placements of all kinds, on permitted devices alone.

    The kinds take turns until there are enough; those of which there are few (one device,
    heuristics) drop out.

    Args:
        profile: Of at least two devices.
        grouping: Of its ops.
        count: How many placements.
        kinds: Those that take turns.
        exclude: Fingerprints of placements to leave out.
        seed: All randomness derives from it.

    Raises:
        InvalidValueError: If ``count`` is not positive, or there is only one device.
        InfeasibleError: If there are not as many distinct placements.
    """
    if count < 1:
        raise InvalidValueError(f"count must be at least 1, got {count}")
    if profile.topology.num_devices < 2:
        raise InvalidValueError(
            f"topology {profile.topology.name!r} has one device: there is nothing to choose"
        )
    chosen: dict[Placement, ChosenPlacement] = {}
    for drawn in itertools.zip_longest(*_Families(profile, grouping, seed).all(count)):
        for kind, name, actions in filter(None, drawn):
            placement = Placement.from_groups(grouping, actions)
            if kind not in kinds or placement in chosen or placement.fingerprint in exclude:
                continue
            chosen[placement] = ChosenPlacement(name, kind, tuple(actions.tolist()), placement)
            if len(chosen) == count:
                return list(chosen.values())
    raise InfeasibleError(
        f"{count} placements are wanted, but only {len(chosen)} distinct ones were found of"
        f" {grouping.num_groups} groups on {profile.topology.num_devices} devices"
    )


_Draws = Iterator[tuple[Kind, str, npt.NDArray[np.integer]]]


class _Families:
    """Draws placements of each kind: their kind, their name, and the actions, ``[G]``."""

    def __init__(self, profile: Profile, grouping: Grouping, seed: int) -> None:
        self._profile, self._grouping, self._seed = profile, grouping, seed
        self._rules = heuristic_placements(profile, grouping, seed=seed)
        first_op = np.full(grouping.num_groups, profile.graph.num_ops)
        np.minimum.at(first_op, grouping.group_of_op, profile.graph.topological_index)
        self._place_of_group = first_op.argsort().argsort()

    def all(self, count: int) -> list[_Draws]:
        """Return a family for each kind, with enough draws for ``count`` distinct placements."""
        endless = (self._cuts(), self._blocks(), self._mixtures(), self._random())
        return [
            self._singles(),
            self._heuristics(),
            *(itertools.islice(family, _DRAWS_FOR_EACH * count) for family in endless),
        ]

    def _singles(self) -> _Draws:
        for name, actions in self._rules.items():
            if name.startswith(SINGLE_DEVICE):
                yield Kind.ONE_DEVICE, name, actions

    def _heuristics(self) -> _Draws:
        for name, actions in self._rules.items():
            if not name.startswith(SINGLE_DEVICE) and name != Kind.RANDOM:
                yield Kind.HEURISTIC, name, actions

    def _cuts(self) -> _Draws:
        """The groups in topological order, cut into one part for each device."""
        num_devices = self._profile.topology.num_devices
        shares = (self._place_of_group + 0.5) / self._grouping.num_groups
        for number in itertools.count(1):
            generator = self._generator(Kind.CUT, number)
            bounds = np.sort(generator.uniform(0.05, 0.95, num_devices - 1))
            parts = np.searchsorted(bounds, shares)
            points = ", ".join(f"{bound:.0%}" for bound in bounds)
            yield self._draw(Kind.CUT, number, f"at {points}", generator, parts)

    def _blocks(self) -> _Draws:
        """Runs of groups in topological order, dealt to the devices in turn."""
        num_devices = self._profile.topology.num_devices
        longest = max(2.0, self._grouping.num_groups / num_devices)
        for number in itertools.count(1):
            generator = self._generator(Kind.BLOCKS, number)
            # From 2 up, as many short ones as long ones: evenly distributed in logarithms.
            length = round(float(np.exp(generator.uniform(np.log(2), np.log(longest)))))
            parts = self._place_of_group // length % num_devices
            yield self._draw(Kind.BLOCKS, number, f"of {length} groups", generator, parts)

    def _mixtures(self) -> _Draws:
        """A placement with sense, and a share of its groups on some other device."""
        singles = [name for name in self._rules if name.startswith(SINGLE_DEVICE)]
        sensible = [name for name in ("expert", "metis") if name in self._rules]
        num_groups, num_devices = self._grouping.num_groups, self._profile.topology.num_devices
        for number in itertools.count(1):
            generator = self._generator(Kind.MIXTURE, number)
            base = [*sensible, str(generator.choice(singles))][number % (len(sensible) + 1)]
            share = generator.uniform(*_MOVED_SHARES)
            moved = generator.choice(num_groups, max(1, round(share * num_groups)), replace=False)
            wanted = self._rules[base].astype(np.int64)
            wanted[moved] += generator.integers(1, num_devices, len(moved))
            actions = permitted(self._profile, self._grouping, wanted % num_devices)
            yield Kind.MIXTURE, f"mixture {number}: {base}, {share:.0%} moved", actions

    def _random(self) -> _Draws:
        for number in itertools.count(1):
            seed = int(self._generator(Kind.RANDOM, number).integers(2**31))
            actions = random_placement(self._profile, self._grouping, seed=seed)
            yield Kind.RANDOM, f"random {number}", actions

    def _draw(
        self,
        kind: Kind,
        number: int,
        what: str,
        generator: np.random.Generator,
        part_of_group: IntArray,
    ) -> tuple[Kind, str, npt.NDArray[np.integer]]:
        """Return the placement that gives each part a device, in a random order of devices."""
        devices = generator.permutation(self._profile.topology.num_devices)
        actions = permitted(self._profile, self._grouping, devices[part_of_group])
        return kind, f"{kind} {number}: {what}", actions

    def _generator(self, kind: Kind, number: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, list(Kind).index(kind), number])
