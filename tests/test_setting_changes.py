"""Settings by dotted name."""

import pytest

from placer.config import TrainSettings
from placer.errors import UnknownNameError
from placer.setting_changes import differing, flat_settings, with_changes

DEFAULT = TrainSettings()


def test_every_setting_has_a_dotted_name() -> None:
    flat = flat_settings(DEFAULT)

    assert flat["seed"] == 0
    assert flat["ppo.clip"] == 0.2
    assert flat["policy.network"] == "seq2seq"
    assert "ppo" not in flat


def test_changes_are_texts_that_the_settings_understand() -> None:
    changes = {"seed": "3", "ppo.clip": "0.1", "policy.jit_compile": "false", "warm_start": "metis"}

    changed = TrainSettings(**with_changes(DEFAULT, changes))

    assert differing(DEFAULT, changed) == {
        "seed": (0, 3),
        "ppo.clip": (0.2, 0.1),
        "policy.jit_compile": (True, False),
        "warm_start": (None, "metis"),
    }


def test_none_takes_an_optional_setting_back() -> None:
    started = TrainSettings(warm_start="metis", failing_step_time_s=3.0)

    changed = TrainSettings(
        **with_changes(started, {"warm_start": "none", "failing_step_time_s": "none"})
    )

    assert changed == DEFAULT


def test_the_settings_that_are_changed_stay_as_they_are() -> None:
    with_changes(DEFAULT, {"ppo.clip": "0.1"})

    assert TrainSettings() == DEFAULT


@pytest.mark.parametrize("name", ["sed", "ppo", "ppo.clipp", "ppo.clip.x"])
def test_an_unknown_name_is_told_with_what_is_near_it(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown setting '{name}'"):
        with_changes(DEFAULT, {name: "1"})
