"""A trained policy in its folder, and as a model: graphs in, placements out."""

import dataclasses
import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from placer.config import PolicySettings
from placer.environment import REAL
from placer.errors import (
    FileFormatError,
    InvalidValueError,
    MissingFileError,
    UnknownNameError,
)
from placer.files import load_graph_file, load_placement, save_profile
from placer.group_ops import group_ops
from placer.grouping import Grouping
from placer.placement import Placement
from placer.placement_model import NUM_SAMPLES, PlacementModel, _load_pyfunc
from placer.policies.by_name import policy_by_name
from placer.policies.graph import pretrained
from placer.profile import Profile
from placer.simulator import SimulatedEnvironment, Simulator, simulate
from placer.trained_policy import TrainedPolicy
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology

EIGHT = (0, 0, 1, 1, 2, 2, 3, 3)


def chains(num_chains: int, num_devices: int = 2, **limits: int) -> Profile:
    """Return chains of two ops, a second each; a tensor of one second between the two."""
    tensors = [(2 * chain, (2 * chain + 1,), 1) for chain in range(num_chains)]
    memory_bytes = [1] * (2 * num_chains)
    topology = make_topology(num_devices, SECOND_PER_BYTE, **limits)
    return make_profile([1.0] * (2 * num_chains), tensors, topology, memory_bytes)


def trained_on(profile: Profile, device_of_op: list[int], **changes: object) -> TrainedPolicy:
    """Return the untrained graph policy as if a training had found a placement with it."""
    grouping = group_ops(profile).grouping
    policy = pretrained(profile, grouping)
    rng = np.random.default_rng(1)
    for _ in range(3):  # so that the variables are not those that come with Placer
        actions = policy.sample(0, rng.integers(1000, size=8))
        policy.update(actions, rng.normal(size=8))
    found = TrainedPolicy(
        profile=profile,
        grouping=grouping,
        network="graph",
        settings=PolicySettings().model_dump(exclude={"network"}),
        seed=3,
        state=policy.state(),
        placement=Placement(device_of_op),
        environment="simulated",
        step_time_s=4.0,
    )
    return dataclasses.replace(found, **changes)


def text_of(profile: Profile, folder: Path) -> str:
    save_profile(profile, folder / "graph.json")
    return (folder / "graph.json").read_text()


def predict(trained: TrainedPolicy, *texts: object) -> pd.DataFrame:
    return PlacementModel(trained).predict(pd.DataFrame({"graph": texts}))


# The folder


def test_what_is_saved_is_loaded_again(tmp_path):
    first = trained_on(chains(4), [0, 0, 0, 0, 1, 1, 1, 1])

    first.save(tmp_path)
    second = TrainedPolicy.load(tmp_path)

    for name in ("network", "settings", "seed", "environment", "step_time_s", "placement"):
        assert getattr(second, name) == getattr(first, name), name
    assert second.profile.fingerprint == first.profile.fingerprint
    assert second.grouping.fingerprint == first.grouping.fingerprint
    assert second.state.keys() == first.state.keys()
    for name, array in first.state.items():
        assert np.array_equal(second.state[name], array), name


def test_no_file_of_the_folder_is_a_pickle(tmp_path):
    trained_on(chains(4), [0] * 8).save(tmp_path)

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "model.json", "profile.json", "grouping.json", "placement.json", "policy.npz",
    }  # fmt: skip
    for name in names - {"policy.npz"}:
        assert isinstance(json.loads((tmp_path / name).read_text()), dict)
    with zipfile.ZipFile(tmp_path / "policy.npz") as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                assert np.lib.format.read_magic(member) == (1, 0)
                assert not np.lib.format.read_array_header_1_0(member)[2].hasobject


def test_pickled_variables_are_refused(tmp_path):
    trained_on(chains(4), [0] * 8).save(tmp_path)
    np.savez(tmp_path / "policy.npz", table=np.array([{}], dtype=object))

    with pytest.raises(FileFormatError, match=r"policy\.npz is no archive of variables: Object"):
        TrainedPolicy.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"text"])
def test_damaged_variables_are_one_line(tmp_path, content):
    trained_on(chains(4), [0] * 8).save(tmp_path)
    (tmp_path / "policy.npz").write_bytes(content)

    with pytest.raises(FileFormatError, match=r"policy\.npz is no archive of variables") as caught:
        TrainedPolicy.load(tmp_path)

    assert "\n" not in str(caught.value)


def test_the_profile_of_another_training_is_refused(tmp_path):
    trained_on(chains(4), [0] * 8).save(tmp_path)
    save_profile(chains(4, num_devices=3), tmp_path / "profile.json")

    with pytest.raises(FileFormatError, match="which the policy was trained on"):
        TrainedPolicy.load(tmp_path)


def test_a_file_that_is_missing_is_named(tmp_path):
    trained_on(chains(4), [0] * 8).save(tmp_path)
    (tmp_path / "policy.npz").unlink()

    with pytest.raises(MissingFileError, match=r"policy\.npz"):
        TrainedPolicy.load(tmp_path)


def test_variables_of_another_network_cannot_be_loaded():
    trained = trained_on(chains(4), [0] * 8)

    with pytest.raises(InvalidValueError, match="the state is of another policy"):
        PlacementModel(dataclasses.replace(trained, state={"logits": np.zeros((4, 2))}))


def test_an_unknown_network_is_one_line():
    with pytest.raises(UnknownNameError, match="unknown network 'grap'; did you mean 'graph'"):
        policy_by_name("grap", chains(4), Grouping(EIGHT), {}, seed=0)


# The graph that it was trained on


def test_the_best_placement_of_the_training_is_returned_if_nothing_drawn_is_faster(tmp_path):
    # Eight seconds of work on two devices, no transfers: nothing is faster than four.
    optimum = [0, 0, 0, 0, 1, 1, 1, 1]
    trained = trained_on(chains(4), optimum)

    answer = predict(trained, text_of(trained.profile, tmp_path)).iloc[0]

    assert (answer.makespan_s, answer.outcome, answer.found_by) == (4.0, "OK", "training")
    assert set(json.loads(answer.placement)["device_of_op"].values()) == {"gpu:0", "gpu:1"}


def test_what_the_policy_draws_is_returned_if_it_is_faster(tmp_path):
    # All sixteen ops on one device take 16 s; any split of whole chains takes less.
    trained = trained_on(chains(8), [0] * 16)
    policy = PlacementModel(trained)._policy
    drawn = [policy.greedy(), *policy.sample(trained.seed, np.arange(NUM_SAMPLES))]
    placements = [Placement.from_groups(trained.grouping, actions) for actions in drawn]
    times_s = [simulate(trained.profile, one).makespan_s for one in placements]

    answer = predict(trained, text_of(trained.profile, tmp_path)).iloc[0]

    assert min(times_s) < 16
    assert answer.makespan_s == min(times_s)
    names = ["policy, likeliest", *(f"policy, sample {n}" for n in range(NUM_SAMPLES))]
    assert answer.found_by == names[times_s.index(min(times_s))]


def test_a_placement_that_was_measured_counts_before_a_faster_simulated_one(tmp_path):
    trained = trained_on(chains(8), [0] * 16, environment=REAL)

    answer = predict(trained, text_of(trained.profile, tmp_path)).iloc[0]

    assert (answer.makespan_s, answer.found_by) == (16.0, "training")


def test_equal_questions_have_equal_answers(tmp_path):
    trained = trained_on(chains(8), [0] * 16)
    trained.save(tmp_path)
    text = text_of(trained.profile, tmp_path)

    first, second = predict(trained, text), predict(TrainedPolicy.load(tmp_path), text)

    assert first.equals(second)


def test_a_published_graph_is_placed_on_the_topology_of_the_training(tmp_path):
    nodes = [{"id": op, "fpgaLatency": 1000.0, "cpuLatency": 1000.0, "size": 1} for op in range(8)]
    edges = [{"sourceId": 2 * op, "destId": 2 * op + 1, "cost": 1.0} for op in range(4)]
    text = json.dumps({"nodes": nodes, "edges": edges})
    (tmp_path / "published.json").write_text(text)
    profile = load_graph_file(tmp_path / "published.json").profile(make_topology(2))
    trained = trained_on(profile, [0, 0, 0, 0, 1, 1, 1, 1])

    answer = predict(trained, text).iloc[0]

    assert answer.found_by == "training"
    assert answer.makespan_s == pytest.approx(4.0)


# Other graphs


def test_another_graph_is_placed_by_what_is_known_of_any_graph(tmp_path):
    trained = trained_on(chains(4), [0] * 8)
    other = chains(6, num_devices=3)

    answers = predict(trained, text_of(other, tmp_path), text_of(chains(4), tmp_path))

    assert answers.found_by[0].startswith("policy")
    (tmp_path / "placement.json").write_text(answers.placement[0])
    placement = load_placement(tmp_path / "placement.json", other.graph, other.topology)
    assert simulate(other, placement).makespan_s == answers.makespan_s[0]
    # Twelve seconds of work on three devices; all on one takes twelve.
    assert 4 <= answers.makespan_s[0] <= 12


def test_variables_of_the_training_serve_another_graph(tmp_path):
    # With the variables that come with Placer the answer is what those draw on the other graph.
    profile, other = chains(4), chains(6, num_devices=3)
    fresh = pretrained(profile, group_ops(profile).grouping).state()
    trained = trained_on(profile, [0] * 8, state=fresh)
    grouping = group_ops(other).grouping
    policy = pretrained(other, grouping)
    drawn = [policy.greedy(), *policy.sample(trained.seed, np.arange(NUM_SAMPLES))]
    found = SimulatedEnvironment(Simulator(other)).measure(
        [Placement.from_groups(grouping, actions) for actions in drawn]
    )

    answer = predict(trained, text_of(other, tmp_path)).iloc[0]

    assert answer.makespan_s == min(each.step_time_s for each in found)


def test_a_graph_that_fits_nowhere_has_an_outcome(tmp_path):
    # Every op needs a byte; two devices of one byte hold two ops of eight.
    full = chains(4, memory_bytes=1)

    answer = predict(trained_on(chains(6), [0] * 12), text_of(full, tmp_path)).iloc[0]

    assert answer.outcome == "OUT_OF_MEMORY"
    assert answer.makespan_s >= 4
    assert len(json.loads(answer.placement)["device_of_op"]) == 8


# Input


def test_the_answers_have_the_rows_of_the_question(tmp_path):
    trained = trained_on(chains(4), [0, 0, 0, 0, 1, 1, 1, 1])
    texts = [text_of(chains(number), tmp_path) for number in (4, 3)]
    frame = pd.DataFrame({"graph": texts, "more": [1, 2]}, index=["x", "y"])

    answers = PlacementModel(trained).predict(frame)

    assert list(answers.index) == ["x", "y"]
    assert list(answers.columns) == ["placement", "makespan_s", "outcome", "found_by"]
    assert PlacementModel(trained).predict(frame[:0]).empty


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "graph of row 1 is not valid JSON: it ends too early; is it truncated?"),
        ("[]", r"graph of row 1 should hold a JSON object, got \[\]"),
        ('{"version": 1}', "graph of row 1: expected kind 'placer.profile', the file has none"),
        (None, "graph of row 1 should be the text of a JSON file, got nan"),
        ('{"nodes": [], "edges": []}', "graph of row 1: "),
    ],
)
def test_a_text_that_is_no_graph_is_one_line_that_names_the_row(tmp_path, text, message):
    trained = trained_on(chains(4), [0] * 8)

    with pytest.raises(FileFormatError, match=message) as caught:
        predict(trained, text_of(trained.profile, tmp_path), text)

    assert "\n" not in str(caught.value)


def test_a_frame_without_graphs_is_refused():
    with pytest.raises(InvalidValueError, match=r"takes a column 'graph', got \['graphs'\]"):
        PlacementModel(trained_on(chains(4), [0] * 8)).predict(pd.DataFrame({"graphs": []}))


# Networks that know one graph


@pytest.mark.slow
@pytest.mark.parametrize("network", ["seq2seq", "hierarchical"])
def test_a_network_of_one_graph_places_it_and_refuses_others(tmp_path, network):
    profile, other = chains(8), chains(6)
    grouping = group_ops(profile).grouping
    settings = PolicySettings(
        hidden_size=8, attention_size=4, embedding_size=4, unit_groups=2, jit_compile=False
    ).model_dump(exclude={"network"})
    policy = policy_by_name(network, profile, grouping, settings, seed=5)
    greedy = Placement.from_groups(grouping, policy.greedy())
    trained = trained_on(
        profile, [0] * 16, network=network, settings=settings, seed=5, state=policy.state()
    )
    trained.save(tmp_path)
    model = _load_pyfunc(str(tmp_path))

    answer = model.place(profile)

    assert np.array_equal(model._policy.greedy(), policy.greedy())
    assert answer.makespan_s <= min(16, simulate(profile, greedy).makespan_s)
    message = f"{other.fingerprint}.*{network!r}.*{profile.fingerprint}"
    with pytest.raises(InvalidValueError, match=message) as caught:
        model.place(other)
    assert "\n" not in str(caught.value)
