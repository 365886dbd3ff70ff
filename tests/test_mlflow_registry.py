"""The champion of a graph in the real model registry, and the graph as a run's dataset."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
import uuid
import zipfile
from collections.abc import Sequence
from pathlib import Path

import mlflow.data
import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from placer.config import TrainSettings
from placer.environment import REAL
from placer.files import load_placement, save_profile
from placer.grouping import Grouping
from placer.mlflow_inputs import log_graph
from placer.mlflow_registry import register_policy, registered_name
from placer.mlflow_store import OpenRun, Store, open_store
from placer.policies.graph import pretrained
from placer.profile import Profile
from placer.simulator import simulate
from placer.tracking_names import (
    BEST_STEP_TIME_S,
    ENVIRONMENT,
    MODEL_TAGS,
    POLICY_MODEL_FOLDER,
    PROFILE_FINGERPRINT,
    TRAINING_RUN,
)
from placer.trials import Checkpoint, Trial
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology
from tests.tracking import ok, remote_store, server_uri, store, store_root, too_large

__all__ = ["remote_store", "server_uri", "store", "store_root"]

pytestmark = pytest.mark.slow

SETTINGS = TrainSettings.model_validate({"policy": {"network": "graph"}})
PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()


def chains(num_chains: int, seconds: float = 1.0) -> Profile:
    """Return chains of two ops on two devices; a tensor of one second between the two."""
    tensors = [(2 * chain, (2 * chain + 1,), 1) for chain in range(num_chains)]
    times_s = [seconds] * (2 * num_chains)
    return make_profile(times_s, tensors, make_topology(2, SECOND_PER_BYTE))


@dataclasses.dataclass(frozen=True)
class Inputs:
    graph_name: str
    profile: Profile
    grouping: Grouping


def inputs_of(profile: Profile) -> Inputs:
    """Return a profile under a name that no other test has."""
    by_chain = Grouping(np.arange(profile.graph.num_ops) // 2)
    return Inputs(f"graph {uuid.uuid4().hex}", profile, by_chain)


@pytest.fixture
def inputs() -> Inputs:
    return inputs_of(chains(4))


@pytest.fixture(params=["embedded", "server"])
def any_store(request: pytest.FixtureRequest) -> Store:
    name = {"embedded": "store", "server": "remote_store"}[request.param]
    found = request.getfixturevalue(name)
    assert isinstance(found, Store)
    return found


def new_run(store: Store) -> str:
    with store.stage("train", uuid.uuid4().hex, name="registered", params={}, tags={}) as run:
        return run.run_id


def trials_of(times_s: Sequence[float | None], environment: str = "simulated") -> list[Trial]:
    """Return trials of four groups with these step times; None for one that failed."""
    return [
        Trial(
            number=number,
            update=0,
            device_of_group=(0, 0, 1, 1),
            environment=environment,
            measurement=too_large() if time_s is None else ok(time_s),
        )
        for number, time_s in enumerate(times_s)
    ]


def checkpoint_of(inputs: Inputs) -> Checkpoint:
    policy = pretrained(inputs.profile, inputs.grouping)
    in_flight = {"in_flight/actions": np.zeros((1, 4), dtype=np.int32)}
    return Checkpoint(update=1, num_trials=1, arrays=policy.state() | in_flight, scalars={})


def register(
    store: Store,
    inputs: Inputs,
    times_s: Sequence[float | None],
    *,
    environment: str = "simulated",
    run_id: str | None = None,
) -> str | None:
    """Register what a training found; of a new run unless one is named."""
    return register_policy(
        store,
        run_id or new_run(store),
        inputs,
        SETTINGS,
        trials_of(times_s, environment),
        checkpoint_of(inputs),
    )


def name_of(inputs: Inputs) -> str:
    return registered_name(inputs.graph_name, inputs.profile.topology.name)


def champion(store: Store, inputs: Inputs) -> int:
    client = store.connection.client
    return int(client.get_model_version_by_alias(name_of(inputs), "champion").version)


def versions(store: Store, inputs: Inputs) -> list[int]:
    found = store.connection.client.search_model_versions(f"name = '{name_of(inputs)}'")
    return sorted(int(version.version) for version in found)


# Who becomes the champion


def test_the_first_training_is_the_champion_and_says_what_it_is(any_store, inputs):
    run_id = new_run(any_store)

    uri = register(any_store, inputs, [None, 5.0, 4.5], run_id=run_id)

    assert uri == f"models:/{name_of(inputs)}/1"
    found = any_store.connection.client.get_model_version_by_alias(name_of(inputs), "champion")
    assert found.run_id == run_id
    assert found.tags.keys() == MODEL_TAGS.keys()
    assert found.tags[TRAINING_RUN] == run_id
    assert found.tags[PROFILE_FINGERPRINT] == inputs.profile.fingerprint
    assert (found.tags[ENVIRONMENT], float(found.tags[BEST_STEP_TIME_S])) == ("simulated", 4.5)
    assert "Best of 3 placements in the simulation" in found.description


def test_a_better_training_takes_the_alias_and_a_worse_one_is_no_version(any_store, inputs):
    first = register(any_store, inputs, [5.0])
    worse_run = new_run(any_store)

    worse = register(any_store, inputs, [5.5, None], run_id=worse_run)
    equal = register(any_store, inputs, [5.0])
    better = register(any_store, inputs, [6.0, 4.0])

    name = name_of(inputs)
    assert [first, worse, equal, better] == [f"models:/{name}/1", None, None, f"models:/{name}/2"]
    assert champion(any_store, inputs) == 2
    assert versions(any_store, inputs) == [1, 2]
    assert any_store.artifacts.names(worse_run, POLICY_MODEL_FOLDER) == []


def test_a_training_is_registered_once(any_store, inputs):
    run_id = new_run(any_store)
    first = register(any_store, inputs, [5.0], run_id=run_id)

    assert register(any_store, inputs, [5.0], run_id=run_id) == first
    assert versions(any_store, inputs) == [1]


def test_what_was_interrupted_before_the_alias_is_completed(store, inputs):
    run_id = new_run(store)
    register(store, inputs, [5.0], run_id=run_id)
    store.connection.client.delete_registered_model_alias(name_of(inputs), "champion")

    assert register(store, inputs, [5.0], run_id=run_id) == f"models:/{name_of(inputs)}/1"
    assert champion(store, inputs) == 1
    assert versions(store, inputs) == [1]


def test_an_extended_training_is_another_version_and_leaves_the_first_as_it_is(store, inputs):
    run_id = new_run(store)
    register(store, inputs, [5.0], run_id=run_id)
    first = store.download(run_id, f"{POLICY_MODEL_FOLDER}/trials-1/policy/model.json").read_text()

    assert register(store, inputs, [5.0, 5.0], run_id=run_id) is None
    assert register(store, inputs, [5.0, 5.0, 4.0], run_id=run_id)

    assert versions(store, inputs) == [1, 2]
    assert store.artifacts.names(run_id, POLICY_MODEL_FOLDER) == [
        f"{POLICY_MODEL_FOLDER}/trials-{number}" for number in (1, 3)
    ]
    kept = store.download(run_id, f"{POLICY_MODEL_FOLDER}/trials-1/policy/model.json").read_text()
    assert kept == first


def test_a_graph_that_changed_has_a_new_champion_however_fast(store, inputs):
    register(store, inputs, [4.0])
    slower = dataclasses.replace(inputs, profile=chains(4, seconds=2.0))

    assert register(store, slower, [8.0]) == f"models:/{name_of(inputs)}/2"
    assert champion(store, inputs) == 2


def test_the_grouping_does_not_matter(store, inputs):
    register(store, inputs, [4.0])
    other = dataclasses.replace(inputs, grouping=Grouping([0, 1, 2, 3, 3, 3, 3, 3]))

    assert register(store, other, [4.5]) is None
    assert register(store, other, [3.5]) is not None


def test_a_measurement_counts_before_a_simulation(store, inputs):
    register(store, inputs, [4.0])

    assert register(store, inputs, [6.0], environment=REAL) is not None
    assert register(store, inputs, [3.0]) is None
    assert register(store, inputs, [5.0], environment=REAL) is not None
    assert champion(store, inputs) == 3


def test_a_champion_that_somebody_chose_is_what_counts(store, inputs):
    register(store, inputs, [5.0])
    register(store, inputs, [3.0])
    store.connection.client.set_registered_model_alias(name_of(inputs), "champion", "1")

    assert register(store, inputs, [5.5]) is None
    assert register(store, inputs, [4.0]) == f"models:/{name_of(inputs)}/3"
    assert champion(store, inputs) == 3


def test_a_champion_that_placer_did_not_make_gives_way(store, inputs):
    client = store.connection.client
    client.create_registered_model(name_of(inputs))
    client.create_model_version(name_of(inputs), "file:///elsewhere")
    client.set_registered_model_alias(name_of(inputs), "champion", "1")

    assert register(store, inputs, [5.0]) == f"models:/{name_of(inputs)}/2"


def test_nothing_is_registered_of_a_training_in_which_nothing_ran(store, inputs):
    assert register(store, inputs, [None, None]) is None
    assert versions(store, inputs) == []
    run_id, trials = new_run(store), trials_of([4.0])
    assert register_policy(store, run_id, inputs, SETTINGS, trials, None) is None


def test_a_better_training_that_ends_between_look_and_alias_keeps_it(
    store, store_root, inputs, monkeypatch
):
    other = open_store(store_root)
    client = store.connection.client
    set_alias = client.set_registered_model_alias
    uris = []

    def set_alias_late(*given: str) -> None:
        if not uris:
            uris.append(register(other, inputs, [4.0]))
        set_alias(*given)

    monkeypatch.setattr(client, "set_registered_model_alias", set_alias_late)
    uris.append(register(store, inputs, [5.0]))

    # The slower one made version 1, and took the alias from version 2 for a moment.
    assert uris == [f"models:/{name_of(inputs)}/2", None]
    assert champion(store, inputs) == 2


def test_of_trainings_that_end_at_the_same_time_the_best_is_the_champion(store, store_root, inputs):
    times_s = [5.0, 4.0, 4.5]
    runs = [new_run(store) for _ in times_s]
    stores = [open_store(store_root) for _ in times_s]
    start = threading.Barrier(len(times_s))
    failures: list[BaseException] = []

    def end(index: int) -> None:
        try:
            start.wait()
            register(stores[index], inputs, [times_s[index]], run_id=runs[index])
        except BaseException as error:  # noqa: BLE001 - a thread's errors are told below
            failures.append(error)

    threads = [threading.Thread(target=end, args=(index,)) for index in range(len(times_s))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    found = store.connection.client.get_model_version_by_alias(name_of(inputs), "champion")
    assert found.run_id == runs[1]


def test_a_store_that_refuses_is_a_warning(store, inputs, monkeypatch, caplog):
    def refuse(*_: object, **__: object) -> None:
        raise MlflowException("Permission denied", PERMISSION_DENIED)

    run_id = new_run(store)
    monkeypatch.setattr(store.connection.client, "create_registered_model", refuse)

    assert register(store, inputs, [4.0], run_id=run_id) is None
    assert f"the policy of run {run_id} is not registered: " in caplog.text
    assert "Permission denied" in caplog.text


# Names


@pytest.mark.parametrize(
    ("graph", "topology", "expected"),
    [
        ("rnnlm-small", "local", "placer-rnnlm-small-on-local"),
        ("rnnlm-small-batch_size=2", "its own", "placer-rnnlm-small-batch_size=2-on-its-own"),
        ("a/b:c@d'e", "..", "placer-a-b-c-d-e-on-.."),
        ("größe", "x" * 300, "placer-größe-on-" + "x" * 100),
    ],
)
def test_names_are_what_a_uri_can_say(graph, topology, expected):
    assert registered_name(graph, topology) == expected


def test_a_model_of_an_odd_name_is_found_by_it(any_store, inputs):
    odd = dataclasses.replace(inputs, graph_name=f"50% größe/a:b@c'd {inputs.graph_name}")

    assert register(any_store, odd, [5.0]) is not None
    assert register(any_store, odd, [6.0]) is None
    assert champion(any_store, odd) == 1


# Loading it back

LOADING = """
import json, sys
import mlflow, pandas as pd

uri, model_uri, *texts = json.load(sys.stdin)
mlflow.set_tracking_uri(uri)
model = mlflow.pyfunc.load_model(model_uri)
answers = model.predict(pd.DataFrame({"graph": texts}))
signature = model.metadata.signature
result = {
    "answers": answers.to_dict("records"),
    "inputs": signature.inputs.to_dict(),
    "outputs": [column["name"] for column in signature.outputs.to_dict()],
    "tensorflow": "tensorflow" in sys.modules,
}
print(json.dumps(result))
"""


def test_the_champion_is_loaded_in_another_process_and_places_graphs(any_store, inputs, tmp_path):
    register(any_store, inputs, [4.0])
    other = chains(6)
    texts = []
    for profile in (inputs.profile, other):
        save_profile(profile, tmp_path / "profile.json")
        texts.append((tmp_path / "profile.json").read_text())
    question = [any_store.uri, f"models:/{name_of(inputs)}@champion", *texts]

    finished = subprocess.run(
        [sys.executable, "-c", LOADING],
        input=json.dumps(question),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout.splitlines()[-1])
    assert found["inputs"] == [{"type": "string", "name": "graph", "required": True}]
    assert found["outputs"] == list(found["answers"][0])
    assert not found["tensorflow"]
    # The trials put two of the four chains on either device: four seconds, the optimum.
    assert found["answers"][0]["makespan_s"] == 4.0
    assert found["answers"][0]["found_by"] == "training"
    for profile, answer in zip((inputs.profile, other), found["answers"], strict=True):
        (tmp_path / "placement.json").write_text(answer["placement"])
        placement = load_placement(tmp_path / "placement.json", profile.graph, profile.topology)
        assert simulate(profile, placement).makespan_s == answer["makespan_s"]
        assert answer["outcome"] == "OK"


def test_no_file_of_a_registered_policy_is_a_pickle(store, inputs):
    run_id = new_run(store)
    register(store, inputs, [4.0], run_id=run_id)

    folder = store.download(run_id, f"{POLICY_MODEL_FOLDER}/trials-1")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {"", ".json", ".npz", ".txt", ".yaml"}
    for path in files:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                assert all(not archive[name].dtype.hasobject for name in archive.files)
                assert not any(name.startswith("in_flight/") for name in archive.files)
            assert {Path(name).suffix for name in zipfile.ZipFile(path).namelist()} == {".npy"}
        else:
            assert path.read_text().isprintable() or "\n" in path.read_text()
            assert not path.read_bytes().startswith(b"\x80")
    assert "loader_module: placer.placement_model" in (folder / "MLmodel").read_text()
    assert "tensorflow" not in (folder / "requirements.txt").read_text()


# The graph as a dataset


def test_a_run_shows_the_graph_as_its_dataset(any_store, inputs):
    run_id = new_run(any_store)

    for _ in range(2):
        log_graph(OpenRun(any_store, run_id), inputs.graph_name, inputs.profile)

    (shown,) = any_store.connection.client.get_run(run_id).inputs.dataset_inputs
    graph, topology = inputs.profile.graph, inputs.profile.topology
    assert (shown.dataset.name, shown.dataset.digest) == (inputs.graph_name, graph.fingerprint)
    assert json.loads(shown.dataset.profile) == {"num_ops": 8, "num_tensors": 4}
    assert {tag.key: tag.value for tag in shown.tags} == {
        "mlflow.data.context": "training",
        "placer.topology": topology.name,
        "placer.topology_fingerprint": topology.fingerprint,
        "placer.profile_fingerprint": inputs.profile.fingerprint,
    }
    assert mlflow.data.get_source(shown).to_dict()["tags"]


def test_runs_of_one_graph_on_two_topologies_share_the_dataset(store, inputs):
    run_ids = [new_run(store), new_run(store)]
    tensors = [(2 * chain, (2 * chain + 1,), 1) for chain in range(4)]
    wider = make_profile([1.0] * 8, tensors, make_topology(4, SECOND_PER_BYTE))

    for run_id, profile in zip(run_ids, (inputs.profile, wider), strict=True):
        log_graph(OpenRun(store, run_id), inputs.graph_name, profile)

    found = store.connection.client.search_runs(
        [store.connection.experiment_id],
        f"dataset.name = '{inputs.graph_name}' and"
        f" dataset.digest = '{inputs.profile.graph.fingerprint}'",
    )
    assert {run.info.run_id for run in found} == set(run_ids)
    tags = [{tag.key: tag.value for tag in run.inputs.dataset_inputs[0].tags} for run in found]
    assert {tag["placer.topology_fingerprint"] for tag in tags} == {
        profile.topology.fingerprint for profile in (inputs.profile, wider)
    }


# The documentation


def test_the_page_explains_the_tags_of_a_registered_policy():
    section = PAGE.partition("\n## Registered policies\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE))

    assert rows.keys() == MODEL_TAGS.keys()
    assert all(len(text.split()) >= 4 for text in rows.values())
    assert f"`{POLICY_MODEL_FOLDER}/" in section
