"""The experiment on real text: its tokens, its batches, and both trainings side by side."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.experiments.train_on_text import (
    Training,
    batches,
    cut,
    encode,
    input_tensors,
    main,
    moving_mean,
    read_text,
    result,
)
from placer.devices import Device, DeviceTopology, Link
from placer.errors import InvalidValueError
from placer.files import save_placement
from placer.placement import Placement
from profiling.workloads import capture_workload
from profiling.workloads.rnnlm import RnnlmSizes
from tests.captured_steps import line_fit

pytestmark = pytest.mark.slow

TINY = {"batch_size": 2, "units": 8, "steps": 2, "vocabulary_size": 16}


def test_tokens_are_words_digits_blanks_and_single_characters():
    found = cut("if x_1 == 20:\n    return  f(x)")

    assert found == [
        "if", " ", "x", "_", "1", " ", "=", "=", " ", "2", "0", ":", "\n    ",
        "return", "  ", "f", "(", "x", ")",
    ]  # fmt: skip


@given(st.text())
def test_no_character_of_a_text_is_lost(text):
    assert "".join(cut(text)) == text


def test_tokens_are_numbered_by_frequency_and_then_by_their_characters():
    # c three times, a and b twice, d once; the fourth number of four is that of all others.
    words = encode(list("cabcabcd"), vocabulary_size=4)

    assert words.tolist() == [1, 2, 3, 1, 2, 3, 1, 0]


def test_the_text_is_the_same_each_time_and_long():
    text = read_text()

    assert read_text() == text
    assert len(text) > 1_000_000
    assert "def " in text


def test_batches_read_on_in_every_lane_and_begin_again():
    # Lanes 0 1 2 3 4 and 5 6 7 8 9: two batches of two steps fit; the last word only follows.
    sizes = RnnlmSizes(batch_size=2, steps=2)

    first, second, third = itertools.islice(batches(np.arange(11), sizes), 3)

    assert (first[0].tolist(), first[1].tolist()) == ([[0, 1], [5, 6]], [[1, 2], [6, 7]])
    assert (second[0].tolist(), second[1].tolist()) == ([[2, 3], [7, 8]], [[3, 4], [8, 9]])
    assert third[0].tolist() == first[0].tolist()


def test_a_text_that_is_too_short_for_a_batch_is_refused():
    with pytest.raises(InvalidValueError, match="a batch needs 5 tokens, the text has 4"):
        next(batches(np.arange(4), RnnlmSizes(batch_size=2, steps=2)))


def test_a_moving_mean_is_of_the_last_values_or_of_all_so_far():
    assert moving_mean([4.0, 2.0, 6.0, 1.0], 3).tolist() == [4.0, 3.0, 4.0, 3.0]


def training(second_loss: float = 1.0) -> Training:
    """Ten steps of 2 s on one device and of 1 s as placed; only the second loss may differ."""
    losses = {"one": [3.0, 1.0] * 5, "placed": [3.0, second_loss] * 5}
    return Training(losses, {"one": [2.0] * 10, "placed": [1.0] * 10}, reached=True)


def test_the_result_compares_seconds_and_median_steps_with_the_first_placement():
    found = result(training())

    assert found["seconds"] == {"one": 20.0, "placed": 10.0}
    assert found["seconds_ratio"] == found["median_step_time_ratio"] == 2.0
    assert found["median_step_time_ratio_interval"] == pytest.approx([2.0, 2.0])
    assert found["steps"] == 10


def test_small_differences_of_losses_are_told_and_large_ones_refused():
    # Between 1.0 and 1.0005: 0.0005 of the larger one.
    found = result(training(second_loss=1.0005))

    assert found["largest_relative_difference_of_losses"] == pytest.approx(0.0005, rel=0.01)
    with pytest.raises(InvalidValueError, match="they do not do the same training"):
        result(training(second_loss=1.5))


def test_the_inputs_of_the_language_model_are_found_and_those_of_other_steps_are_not():
    assert input_tensors(capture_workload("rnnlm", **TINY)) == ("words:0", "next_words:0")
    with pytest.raises(InvalidValueError, match="'line-fit' must read two inputs once each"):
        input_tensors(line_fit())


def placement_file(folder):
    step = capture_workload("rnnlm", **TINY)
    devices = (Device("cpu:0", "CPU"), Device("cpu:1", "CPU"))
    topology = DeviceTopology(devices, {(0, 1): Link(1.0), (1, 0): Link(1.0)})
    by_layer = [int(op.module.startswith("layer_1")) for op in step.op_graph.ops]
    device_of_set = {op.colocation: by_layer[i] for i, op in enumerate(step.op_graph.ops)}
    placement = Placement(
        [
            device_of_set[op.colocation] if op.colocation else device
            for op, device in zip(step.op_graph.ops, by_layer, strict=True)
        ]
    )
    save_placement(placement, step.op_graph, topology, folder / "layers.json")
    return folder / "layers.json"


def sizes_as_options():
    return [f"--set={name}={size}" for name, size in TINY.items()]


def test_both_placements_learn_the_same_from_real_text(tmp_path, capsys):
    path = placement_file(tmp_path)
    options = ["--placement", str(path), "--out", str(tmp_path), "--window=10"]

    main([*options, "--target-loss=2.3", "--max-steps=60", *sizes_as_options()])

    found = json.loads((tmp_path / "train_on_text.json").read_text())
    on_one, placed = found["losses"]["all on cpu:0"], found["losses"]["layers"]
    np.testing.assert_allclose(placed, on_one, rtol=1e-5)
    # Sixteen words at random: the logarithm of 16.
    assert on_one[0] == pytest.approx(np.log(16), abs=0.3)
    assert found["reached"] is True
    assert np.mean(on_one[-10:]) <= 2.3
    assert {name: len(times) for name, times in found["step_times_s"].items()} == {
        "all on cpu:0": found["steps"], "layers": found["steps"],
    }  # fmt: skip
    assert (tmp_path / "train_on_text.png").read_bytes().startswith(b"\x89PNG")
    assert "reached the target" in capsys.readouterr().out
