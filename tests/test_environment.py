"""Outcomes and measurements."""

import math

import pytest

from placer.environment import Environment, Measurement, Outcome
from placer.errors import InvalidValueError
from placer.profile import Profile
from placer.simulator import SimulatedEnvironment, Simulator


def test_an_outcome_is_its_name_wherever_text_is_wanted() -> None:
    assert [str(outcome) for outcome in Outcome] == ["OK", "OUT_OF_MEMORY", "TIMED_OUT", "CRASHED"]
    assert Outcome("TIMED_OUT") is Outcome.TIMED_OUT


def test_a_step_that_ran_has_a_step_time() -> None:
    with pytest.raises(InvalidValueError, match="step time belongs to outcome OK alone, got None"):
        Measurement(outcome=Outcome.OK)


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT, Outcome.CRASHED])
def test_a_step_that_did_not_run_has_none(outcome: Outcome) -> None:
    assert Measurement(outcome=outcome, detail="why").step_time_s is None

    with pytest.raises(InvalidValueError, match=f"got 1.0 with {outcome}"):
        Measurement(outcome=outcome, step_time_s=1.0)


@pytest.mark.parametrize("step_time_s", [-1.0, math.inf, math.nan])
def test_a_step_time_is_finite_and_not_negative(step_time_s: float) -> None:
    with pytest.raises(InvalidValueError, match="finite and not negative"):
        Measurement(outcome=Outcome.OK, step_time_s=step_time_s)


def test_measurements_are_values() -> None:
    first, second = (Measurement(outcome=Outcome.OK, step_time_s=0.5) for _ in range(2))

    assert first == second
    assert len({first, second}) == 1
    with pytest.raises(AttributeError):
        first.step_time_s = 0.4


def test_the_simulation_is_an_environment(diamond: Profile) -> None:
    environment: Environment = SimulatedEnvironment(Simulator(diamond))

    assert environment.name == "simulated"
    assert environment.measure([]) == []
