"""Pretraining: what a lesson knows, and that training on it gets better at it."""

import numpy as np
import pytest

from placer.grouping import Grouping
from placer.heuristics import heuristic_placements
from placer.policies.graph_model import new_parameters
from placer.pretraining import Lesson, Pretraining, generated_lesson
from tests.builders import make_profile, make_topology


def pairs():
    """Return two chains of two ops of a second; a byte between the ops of a chain takes 2 s.

    Both on one device take 4 s, each on its own takes 2 s, and everything else longer than that.
    """
    profile = make_profile([1.0] * 4, [(0, (1,), 2), (2, (3,), 2)], make_topology(2))
    return profile, Grouping(np.arange(4))


def array(*rows):
    return np.array(rows, dtype=np.int32)


def test_a_lesson_keeps_the_best_placement_that_it_sees():
    lesson = Lesson(*pairs(), best=array([0, 0, 0, 0])[0])
    assert lesson.best_s == 4

    parameters = new_parameters()
    for seed in range(8):
        actions, costs_s = lesson.sample(parameters, seed)
        assert costs_s == pytest.approx(lesson.costs_s(actions))

    assert lesson.best_s == 2
    assert lesson.best[0] == lesson.best[1] != lesson.best[2] == lesson.best[3]


def test_what_does_not_fit_costs_more_than_anything_that_does_the_more_it_lacks():
    # Two ops of 3 bytes on devices of 4: apart they fit; a third byte lacks more.
    profile = make_profile(
        [1.0, 1.0, 1.0], [], make_topology(2, memory_bytes=6), memory_bytes=[3, 3, 3]
    )
    lesson = Lesson(profile, Grouping([0, 1, 2]), best=array([0, 0, 1])[0])

    fits, too_much = lesson.costs_s(array([0, 0, 1], [0, 0, 0]))

    assert fits == 2
    assert too_much > 3


def test_a_generated_lesson_begins_with_no_worse_than_the_best_heuristic():
    lesson = generated_lesson((1, 2), ("inception",), max_groups=40, num_trials=100)
    again = generated_lesson((1, 2), ("inception",), max_groups=40, num_trials=100)

    profile = lesson.profile
    heuristics = heuristic_placements(profile, lesson.grouping)
    assert lesson.best_s <= lesson.costs_s(np.stack(list(heuristics.values()))).min()
    assert np.array_equal(lesson.best, again.best)


def test_training_on_a_graph_makes_its_likeliest_placement_the_best():
    lesson = Lesson(*pairs(), best=array([0, 0, 0, 0])[0])
    parameters = new_parameters()
    # Untrained, it stays on one device.
    assert lesson.greedy_s(parameters) == 4

    training = Pretraining(parameters, [lesson], num_steps=60, imitation=0.3, seed=0)
    seen = [training.step() for _ in range(60)]

    assert lesson.greedy_s(parameters) == 2
    assert seen[-1].imitation < seen[0].imitation
    assert seen[-1].sampled < seen[0].sampled


def test_equal_seeds_train_equal_variables():
    def trained(seed):
        parameters = new_parameters()
        lesson = Lesson(*pairs(), best=array([0, 0, 0, 0])[0])
        training = Pretraining(parameters, [lesson], num_steps=5, imitation=0.3, seed=seed)
        for _ in range(5):
            training.step()
        return parameters

    first, again, other = trained(0), trained(0), trained(1)

    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)
