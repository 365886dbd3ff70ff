"""Which candidates are judged, who gets the credit, and how results are ranked."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from placer.bounds import Bound
from placer.environment import REAL, Measurement, Outcome
from placer.errors import InfeasibleError
from placer.evaluation import SEARCHED, Candidate, Evaluation, Result, candidates, evaluate
from placer.grouping import Grouping
from placer.placement import Placement
from placer.trials import Trial

TWO_GROUPS = Grouping([0, 1])


def actions(*devices: int) -> np.ndarray:
    return np.array(devices, dtype=np.int32)


def ok(step_time_s: float, samples_s: tuple[float, ...] = ()) -> Measurement:
    return Measurement(outcome=Outcome.OK, step_time_s=step_time_s, samples_s=samples_s)


def failed(detail: str = "full") -> Measurement:
    return Measurement(outcome=Outcome.OUT_OF_MEMORY, detail=detail)


def trial(
    number: int,
    devices: tuple[int, ...],
    measurement: Measurement,
    environment: str = "simulated",
) -> Trial:
    return Trial(
        number=number,
        update=0,
        device_of_group=devices,
        environment=environment,
        measurement=measurement,
    )


def result(method: str, predicted: Measurement, measured: Measurement | None = None) -> Result:
    return Result(Candidate(method, (0,), Placement([0])), predicted, measured)


class TableEnvironment:
    """Knows the answer for every placement; remembers what it was asked to compare."""

    name = "table"

    def __init__(self, answers: dict[tuple[int, ...], Measurement]) -> None:
        self.answers = answers
        self.compared: list[tuple[int, ...]] = []
        self.rounds = 0

    def measure(self, placements: Sequence[Placement]) -> list[Measurement]:
        return [self.answers[tuple(p.device_of_op.tolist())] for p in placements]

    def compare(self, placements: Sequence[Placement], *, rounds: int) -> list[Measurement]:
        self.rounds = rounds
        self.compared = [tuple(p.device_of_op.tolist()) for p in placements]
        return self.measure(placements)


def test_the_best_learned_placements_follow_the_heuristics_fastest_first():
    heuristics = {"single a": actions(0, 0)}
    trials = [trial(0, (1, 1), ok(3.0)), trial(1, (0, 1), ok(1.0)), trial(2, (1, 0), ok(2.0))]

    chosen = candidates(heuristics, trials, TWO_GROUPS, num_learned=2)

    assert [c.method for c in chosen] == ["single a", "policy (trial 1)", "policy (trial 2)"]


def test_a_placement_that_a_heuristic_found_is_credited_to_the_heuristic():
    heuristics = {"single a": actions(0, 0), "metis": actions(0, 0)}
    trials = [trial(0, (0, 0), ok(1.0)), trial(1, (1, 0), ok(2.0))]

    chosen = candidates(heuristics, trials, TWO_GROUPS, num_learned=3)

    assert [c.method for c in chosen] == ["single a", "policy (trial 1)"]


def test_what_the_search_and_the_policy_found_is_credited_to_the_search():
    untrained = {"single a": actions(0, 0), SEARCHED: actions(1, 0)}
    trials = [trial(0, (1, 0), ok(1.0)), trial(1, (0, 1), ok(2.0))]

    chosen = candidates(untrained, trials, TWO_GROUPS, num_learned=3)

    assert [c.method for c in chosen] == ["single a", "search", "policy (trial 1)"]


def test_trials_that_did_not_run_or_repeat_are_no_candidates():
    trials = [
        trial(0, (0, 1), failed()),
        trial(1, (1, 0), ok(2.0)),
        trial(2, (1, 0), ok(2.0)),
    ]

    chosen = candidates({}, trials, TWO_GROUPS, num_learned=5)

    assert [c.method for c in chosen] == ["policy (trial 1)"]


def test_no_learned_placement_is_taken_when_none_is_wanted():
    trials = [trial(0, (0, 1), ok(1.0))]

    chosen = candidates({"single a": actions(0, 0)}, trials, TWO_GROUPS, num_learned=0)

    assert [c.method for c in chosen] == ["single a"]


def test_trials_on_real_devices_come_before_faster_simulated_ones():
    trials = [
        trial(0, (0, 1), ok(0.1)),
        trial(1, (1, 0), ok(3.0), REAL),
        trial(2, (1, 1), ok(2.0), REAL),
    ]

    chosen = candidates({}, trials, TWO_GROUPS, num_learned=3)

    assert [c.method for c in chosen] == [f"policy (trial {number})" for number in (2, 1, 0)]


def test_what_failed_on_real_devices_is_no_candidate_however_fast_it_was_predicted():
    trials = [
        trial(0, (0, 1), ok(0.1)),
        trial(1, (0, 1), failed(), REAL),
        trial(2, (1, 0), ok(0.2)),
    ]

    chosen = candidates({}, trials, TWO_GROUPS, num_learned=3)

    assert [c.method for c in chosen] == ["policy (trial 2)"]


def test_what_failed_on_real_devices_once_and_ran_another_time_is_a_candidate():
    trials = [trial(0, (0, 1), failed(), REAL), trial(1, (0, 1), ok(1.0), REAL)]

    chosen = candidates({}, trials, TWO_GROUPS, num_learned=3)

    assert [c.method for c in chosen] == ["policy (trial 1)"]


def test_without_real_devices_the_simulation_decides():
    environment = TableEnvironment({(0, 0): ok(2.0), (1, 1): ok(1.0)})
    heuristics = {"single a": actions(0, 0), "single b": actions(1, 1)}
    chosen = candidates(heuristics, [], TWO_GROUPS, num_learned=0)

    evaluation = evaluate(chosen, environment)

    assert evaluation.best.candidate.method == "single b"
    assert evaluation.best.measured is None


def test_a_measurement_overrules_the_simulation():
    simulated = TableEnvironment({(0, 0): ok(2.0), (1, 1): ok(1.0)})
    real = TableEnvironment({(0, 0): ok(2.1), (1, 1): ok(2.2)})
    heuristics = {"single a": actions(0, 0), "single b": actions(1, 1)}
    chosen = candidates(heuristics, [], TWO_GROUPS, num_learned=0)

    evaluation = evaluate(chosen, simulated, real, rounds=7)

    assert evaluation.best.candidate.method == "single a"
    assert evaluation.best.decisive.step_time_s == 2.1
    assert real.rounds == 7


def test_a_placement_predicted_not_to_run_is_not_tried_and_comes_last():
    simulated = TableEnvironment({(0, 0): failed(), (1, 1): ok(1.0)})
    real = TableEnvironment({(1, 1): ok(9.0)})
    heuristics = {"single a": actions(0, 0), "single b": actions(1, 1)}
    chosen = candidates(heuristics, [], TWO_GROUPS, num_learned=0)

    evaluation = evaluate(chosen, simulated, real)

    assert real.compared == [(1, 1)]
    assert [r.candidate.method for r in evaluation.results] == ["single b", "single a"]


def test_a_placement_that_crashed_comes_after_all_that_ran():
    crashed = Measurement(outcome=Outcome.CRASHED, detail="worker 1 is gone")
    simulated = TableEnvironment({(0, 0): ok(1.0), (1, 1): ok(2.0)})
    real = TableEnvironment({(0, 0): crashed, (1, 1): ok(2.0)})
    heuristics = {"single a": actions(0, 0), "single b": actions(1, 1)}
    chosen = candidates(heuristics, [], TWO_GROUPS, num_learned=0)

    rows = evaluate(chosen, simulated, real).rows()

    assert [row["outcome"] for row in rows] == ["OK", "CRASHED"]
    assert rows[1]["detail"] == "worker 1 is gone"
    assert rows[1]["step_time_s"] is None


def test_speedups_compare_with_the_fastest_single_device_and_the_expert():
    evaluation = Evaluation(
        (
            result("policy (trial 3)", ok(1.0)),
            result("single b", ok(2.0)),
            result("expert", ok(4.0)),
            result("single a", ok(5.0)),
        )
    )

    rows = evaluation.rows()

    # Best single device: 2 s. Expert: 4 s.
    assert [row["speedup_over_single"] for row in rows] == [2.0, 1.0, 0.5, 0.4]
    assert [row["speedup_over_expert"] for row in rows] == [4.0, 2.0, 1.0, 0.8]


def test_there_is_no_speedup_over_what_did_not_run():
    evaluation = Evaluation((result("policy (trial 3)", ok(1.0)), result("single a", failed())))

    rows = evaluation.rows()

    assert rows[0]["speedup_over_single"] is None
    assert rows[0]["speedup_over_expert"] is None
    assert rows[1]["makespan_s"] is None


def timed(*samples_s: float) -> Measurement:
    return ok(float(np.median(samples_s)), samples_s)


def test_a_measured_speedup_has_the_interval_of_its_paired_rounds():
    # In every round one device takes twice as long, and the expert three times.
    rounds = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    evaluation = Evaluation(
        (
            result("policy (trial 3)", ok(1.0), timed(*rounds)),
            result("single a", ok(1.0), timed(*(2 * time_s for time_s in rounds))),
            result("expert", ok(1.0), timed(*(3 * time_s for time_s in rounds))),
        )
    )

    rows = evaluation.rows()

    assert rows[0]["speedup_over_single_interval"] == pytest.approx([2.0, 2.0])
    assert rows[0]["speedup_over_expert_interval"] == pytest.approx([3.0, 3.0])
    assert rows[1]["speedup_over_single_interval"] == pytest.approx([1.0, 1.0])
    assert rows[2]["speedup_over_single_interval"] == pytest.approx([2 / 3, 2 / 3])


def test_the_interval_is_over_the_fastest_single_device():
    evaluation = Evaluation(
        (
            result("single b", ok(1.0), timed(*[2.0] * 6)),
            result("single a", ok(1.0), timed(*[4.0] * 6)),
        )
    )

    rows = evaluation.rows()

    assert rows[1]["speedup_over_single_interval"] == pytest.approx([0.5, 0.5])


def test_an_interval_is_read_from_a_file_as_it_was_written():
    evaluation = Evaluation((result("single a", ok(1.0), timed(*[2.0] * 6)),))

    rows = evaluation.rows()

    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.parametrize(
    ("winner", "single"),
    [
        (ok(1.0), ok(2.0)),
        (timed(*[1.0] * 6), timed(*[2.0] * 7)),
        (timed(*[1.0] * 5), timed(*[2.0] * 5)),
        (failed(), timed(*[2.0] * 6)),
    ],
    ids=["no samples", "other rounds", "too few rounds", "did not run"],
)
def test_there_is_no_interval_without_enough_rounds_in_common(winner, single):
    evaluation = Evaluation(
        (result("policy (trial 3)", ok(1.0), winner), result("single a", ok(1.0), single))
    )

    assert evaluation.rows()[0]["speedup_over_single_interval"] is None


def test_what_was_only_simulated_has_no_interval():
    evaluation = Evaluation((result("metis", ok(1.0)), result("single a", ok(2.0))))

    for row in evaluation.rows():
        assert row["speedup_over_single_interval"] is None
        assert row["speedup_over_expert_interval"] is None


def test_the_spread_is_the_distance_between_the_quartiles_of_the_samples():
    # Of 1, 2, 3, 4, 5 the quartiles are 2 and 4.
    measured = ok(3.0, samples_s=(1.0, 2.0, 3.0, 4.0, 5.0))
    evaluation = Evaluation((result("single a", ok(2.5), measured),))

    row = evaluation.rows()[0]

    assert row["spread_s"] == 2.0
    assert (row["makespan_s"], row["step_time_s"]) == (2.5, 3.0)


def test_a_simulated_row_has_neither_step_time_nor_spread():
    row = Evaluation((result("single a", ok(2.5)),)).rows()[0]

    assert row["step_time_s"] is None
    assert row["spread_s"] is None


def test_each_row_says_how_far_its_makespan_is_above_the_bound_whatever_was_measured():
    simulated = TableEnvironment({(0, 0): ok(2.5), (1, 1): failed()})
    real = TableEnvironment({(0, 0): ok(4.0)})
    heuristics = {"single a": actions(0, 0), "single b": actions(1, 1)}
    chosen = candidates(heuristics, [], TWO_GROUPS, num_learned=0)

    rows = evaluate(chosen, simulated, real, bound=Bound("work", 2.0)).rows()

    assert [row["gap"] for row in rows] == [0.25, None]


def test_without_a_bound_there_is_no_gap():
    assert Evaluation((result("single a", ok(2.5)),)).rows()[0]["gap"] is None


def test_there_is_no_best_where_nothing_ran_and_the_error_says_why():
    evaluation = Evaluation((result("single a", failed("device 'gpu:0' needs 9 bytes")),))

    with pytest.raises(InfeasibleError, match=r"none of 1 placements ran.*'gpu:0' needs 9 bytes"):
        _ = evaluation.best
