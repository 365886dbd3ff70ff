"""A training's result in words."""

from placer.training_summary import training_summary
from tests.test_ranking import trial


def test_a_simulated_training_is_one_sentence():
    trials = [trial(number, 2.0) for number in range(1999)] + [trial(1999, 0.5)]

    assert training_summary(trials) == (
        "Best of 2,000 placements in the simulation: 500 ms a step (trial 1,999)."
    )


def test_a_staged_training_tells_both_parts_and_does_not_mix_them():
    trials = [trial(0, 0.5), trial(1, 0.75), trial(2, 1.5, "real"), trial(3, 1.25, "real")]

    assert training_summary(trials) == (
        "Best of 2 placements in the simulation: 500 ms a step (trial 0)."
        " Best of 2 placements on the real devices: 1.25 s a step (trial 3)."
    )


def test_placements_that_did_not_run_are_told_as_such():
    trials = [trial(0, 0.5), trial(1, None, "real"), trial(2, None, "real")]

    assert training_summary(trials).endswith("None of 2 placements ran on the real devices.")


def test_another_environment_is_called_by_its_name():
    assert training_summary([trial(0, 1.0, "noisy")]) == (
        "Best of 1 placements by 'noisy': 1 s a step (trial 0)."
    )
