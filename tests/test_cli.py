"""The command line: answers for people and for machines, and one line for what is wrong."""

import json
from pathlib import Path

import pytest

from placer.devices import DeviceTopology, Link
from placer.files import save_placement, save_profile
from placer.placement import Placement
from tests.builders import make_profile
from tests.command_line import assert_one_line, loggers, placer

__all__ = ["loggers", "placer"]

UNIFORM = """\
[uniform]
devices = 2
latency_s = 0.5
bandwidth_bytes_per_s = 100.0
"""


@pytest.fixture
def chain(tmp_path) -> Path:
    """A profile file: a feeds b with 100 bytes; 1 s and 2 s; memory 10 and 20 bytes."""
    topology = DeviceTopology.uniform(2, Link(100.0, 0.5))
    profile = make_profile([1.0, 2.0], [(0, (1,), 100)], topology, memory_bytes=[10, 20])
    save_profile(profile, tmp_path / "chain.json")
    return tmp_path / "chain.json"


@pytest.fixture
def uniform(tmp_path) -> Path:
    path = tmp_path / "uniform.toml"
    path.write_text(UNIFORM)
    return path


def write_placement(path: Path, device_of_op: dict[str, str], **changes: object) -> Path:
    document = {
        "version": 1,
        "graph": None,
        "devices": ["device:0", "device:1"],
        "device_of_op": device_of_op,
        **changes,
    }
    path.write_text(json.dumps(document))
    return path


def test_simulate_tells_makespan_busy_time_and_peak_memory(placer, chain, uniform, tmp_path):
    # a: 0-1 on device:0; transfer of 100 bytes: 0.5 s + 1 s; b: 2.5-4.5 on device:1.
    placement = write_placement(tmp_path / "p.json", {"a": "device:0", "b": "device:1"})

    answer = placer(
        "simulate", "--graph", chain, "--topology", uniform, "--placement", placement,
        "--json", tmp_path / "out.json",
    )  # fmt: skip

    result = json.loads((tmp_path / "out.json").read_text())
    assert answer.code == 0
    assert result["makespan_s"] == 4.5
    assert result["outcome"] == "OK"
    assert result["busy_s"] == {"device:0": 1.0, "device:1": 2.0}
    assert result["peak_memory_bytes"] == {"device:0": 110, "device:1": 120}
    assert "makespan 4.5 s" in answer.out


def test_search_answers_with_the_best_placement_and_its_trajectory(placer, tmp_path, uniform):
    # a and b of 2 s each exchange nothing: a device each takes 2 s, one device 4 s, and no
    # placement takes less than the longer of the two.
    profile = make_profile([2.0, 2.0], [], DeviceTopology.uniform(2, Link(100.0, 0.5)))
    save_profile(profile, tmp_path / "pair.json")

    answer = placer(
        "search", "--graph", "pair.json", "--topology", uniform, "--trials", "10",
        "--json", "found.json", "--out", "best.json",
    )  # fmt: skip

    assert answer.code == 0
    assert "makespan 2 s, found by auto" in answer.out
    assert "no placement takes less than 2 s (critical path), this one is 0.0% above" in answer.out
    found = json.loads(Path("found.json").read_text())
    assert found["best_makespan_s"] == found["lower_bound_s"] == found["trajectory"][-1] == 2.0
    assert found["gap"] == 0.0
    assert len(found["trajectory"]) == found["num_evaluations"] == 2
    assert found["placement"] == json.loads(Path("best.json").read_text())
    assert set(found["placement"]["device_of_op"].values()) == {"device:0", "device:1"}


def test_search_by_a_heuristic_is_one_evaluation(placer, chain):
    answer = placer(
        "search", "--graph", chain, "--method", "single device:0", "--json", "found.json"
    )

    assert answer.code == 0
    assert json.loads(Path("found.json").read_text())["trajectory"] == [3.0]


def test_search_names_the_nearest_method(placer, chain):
    answer = placer("search", "--graph", chain, "--method", "genetics")

    assert_one_line(answer, "unknown search method 'genetics'; did you mean 'genetic'?")


def test_search_that_finds_nothing_that_fits_says_so(placer, chain, tmp_path):
    small = tmp_path / "small.toml"
    small.write_text(UNIFORM + "memory_bytes = 5\n")

    answer = placer("search", "--graph", chain, "--topology", small, "--trials", "3")

    assert_one_line(answer, "none of", "'auto' fits the devices' memory")


def test_simulate_takes_the_topology_of_a_profile_file_by_default(placer, chain, tmp_path):
    placement = write_placement(tmp_path / "p.json", {"a": "device:0", "b": "device:0"})

    answer = placer("simulate", "--graph", chain, "--placement", placement)

    assert answer.code == 0
    assert "makespan 3 s" in answer.out


def test_a_graph_without_a_topology_of_its_own_needs_one(placer, tmp_path):
    node = {"id": 1, "name": "x", "supportedOnFpga": 1, "fpgaLatency": 1.0, "cpuLatency": 1.0,
            "isBackwardNode": 0, "size": 0.0}  # fmt: skip
    graph = tmp_path / "g.json"
    limits = {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1}
    graph.write_text(json.dumps({**limits, "nodes": [node], "edges": []}))
    placement = write_placement(tmp_path / "p.json", {"x": "device:0"})

    answer = placer("simulate", "--graph", graph, "--placement", placement)

    assert_one_line(answer, "no topology of its own", "--topology")


def test_a_device_that_is_too_small_is_an_outcome_and_not_an_error(placer, chain, tmp_path):
    small = tmp_path / "small.toml"
    small.write_text(UNIFORM + "memory_bytes = 115\n")
    placement = write_placement(tmp_path / "p.json", {"a": "device:0", "b": "device:1"})

    answer = placer(
        "simulate", "--graph", chain, "--topology", small, "--placement", placement,
        "--json", tmp_path / "out.json",
    )  # fmt: skip

    result = json.loads((tmp_path / "out.json").read_text())
    assert answer.code == 0
    assert result["outcome"] == "OUT_OF_MEMORY"
    assert "'device:1' needs 120 bytes" in result["detail"]
    assert "115" in result["detail"]


def test_a_written_placement_is_read_back(placer, chain, tmp_path):
    topology = DeviceTopology.uniform(2, Link(100.0, 0.5))
    profile = make_profile([1.0, 2.0], [(0, (1,), 100)], topology, memory_bytes=[10, 20])
    save_placement(Placement([1, 1]), profile.graph, topology, tmp_path / "p.json")

    answer = placer("simulate", "--graph", chain, "--placement", tmp_path / "p.json")

    assert answer.code == 0


def test_divided_colocations_are_simulated_with_a_warning(placer, tmp_path, uniform):
    nodes = [
        {"id": 1, "name": "x", "supportedOnFpga": 1, "fpgaLatency": 1.0, "cpuLatency": 1.0,
         "isBackwardNode": 0, "colorClass": 7, "size": 0.0},
        {"id": 2, "name": "y", "supportedOnFpga": 1, "fpgaLatency": 1.0, "cpuLatency": 1.0,
         "isBackwardNode": 0, "colorClass": 7, "size": 0.0},
    ]  # fmt: skip
    graph = tmp_path / "g.json"
    limits = {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1}
    graph.write_text(json.dumps({**limits, "nodes": nodes, "edges": []}))
    placement = write_placement(tmp_path / "p.json", {"x": "device:0", "y": "device:1"})

    answer = placer("simulate", "--graph", graph, "--topology", uniform, "--placement", placement)

    assert answer.code == 0
    assert "warning: the placement divides the ops colocated as 'class 7'" in answer.err


def test_an_op_that_no_device_can_run_is_named(placer, tmp_path, uniform):
    node = {"id": 1, "name": "lookup", "supportedOnFpga": 0, "fpgaLatency": 0.0,
            "cpuLatency": 1.0, "isBackwardNode": 0, "size": 0.0}  # fmt: skip
    graph = tmp_path / "g.json"
    limits = {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1}
    graph.write_text(json.dumps({**limits, "nodes": [node], "edges": []}))
    placement = write_placement(tmp_path / "p.json", {"lookup": "device:0"})

    answer = placer("simulate", "--graph", graph, "--topology", uniform, "--placement", placement)

    assert_one_line(answer, "'lookup'", "CPU")


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("--workload", "rnnml"), ("unknown workload 'rnnml'", "did you mean 'rnnlm'?")),
        (("--size", "papre"), ("unknown size 'papre'", "did you mean 'paper'?")),
        (("--topology", "haswel-2xk80"), ("'haswel-2xk80'", "did you mean 'haswell-2xk80'?")),
        (("--topology", "absent.toml"), ("there is no file absent.toml",)),
        (("--graph", "absent.json"), ("there is no file absent.json",)),
        (("--trials", "0"), ("trials", "greater than or equal to 1", "0")),
        (("--seed", "-1"), ("seed", "-1")),
        (("--environment", "reel"), ("unknown environment 'reel'", "did you mean 'real'?")),
        (("--network", "grap"), ("unknown network 'grap'", "did you mean 'graph'?")),
        (("--trainer", "pp"), ("unknown trainer 'pp'", "did you mean 'ppo'?")),
        (("--environment", "staged", "--real-trials", "0"), ("real_trials", "0")),
        (("--set", "batch_size"), ("NAME=WHOLE_NUMBER", "'batch_size'")),
        (("--set", "batch_size=many"), ("NAME=WHOLE_NUMBER", "'batch_size=many'")),
    ],
)
def test_bad_options_of_optimize_are_one_line(placer, arguments, texts):
    answer = placer("optimize", *arguments)

    assert_one_line(answer, *texts)


def test_an_unknown_environment_of_train_is_told_before_the_grouping_is_looked_for(placer):
    answer = placer("train", "--grouping", "none", "--environment", "stage")

    assert_one_line(answer, "unknown environment 'stage'", "did you mean 'staged'?")


@pytest.mark.parametrize("command", ["optimize", "train"])
def test_what_a_real_training_costs_is_said_where_it_is_chosen(placer, command):
    answer = placer(command, "--help")

    text = " ".join(answer.out.replace("│", " ").split())
    assert "seconds to minutes each" in text
    assert "--real-trials" in text


def test_a_bad_option_leaves_nothing_behind(placer, tmp_path):
    placer("optimize", "--workload", "rnnml")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"device_of_op": {"a": "device:0", "b": "devise:1"}}, ("'devise:1'", "'device:1'")),
        ({"device_of_op": {"a": "device:0"}}, ("'b'",)),
        ({"device_of_op": {"a": "device:0", "b": "device:0", "c": "device:0"}}, ("'c'",)),
        ({"version": 9}, ("version", "9")),
        ({"graph": "0123456789abcdef"}, ("0123456789abcdef",)),
    ],
)
def test_a_bad_placement_file_is_one_line(placer, chain, uniform, tmp_path, changes, texts):
    placement = write_placement(
        tmp_path / "p.json", **{"device_of_op": {"a": "device:0", "b": "device:1"}, **changes}
    )

    answer = placer(
        "simulate", "--graph", chain, "--topology", uniform, "--placement", placement,
        "--json", tmp_path / "out.json",
    )  # fmt: skip

    assert_one_line(answer, "p.json", *texts)
    assert not (tmp_path / "out.json").exists()


def test_a_truncated_graph_file_is_one_line(placer, chain, uniform, tmp_path):
    chain.write_text(chain.read_text()[:-40])
    placement = write_placement(tmp_path / "p.json", {"a": "device:0", "b": "device:1"})

    answer = placer("simulate", "--graph", chain, "--topology", uniform, "--placement", placement)

    assert_one_line(answer, "chain.json")


def test_a_result_that_cannot_be_written_is_one_line(placer, chain, tmp_path):
    placement = write_placement(tmp_path / "p.json", {"a": "device:0", "b": "device:1"})
    (tmp_path / "file").write_text("")

    answer = placer(
        "simulate", "--graph", chain, "--placement", placement, "--json", tmp_path / "file" / "o"
    )

    assert_one_line(answer, "file")


def test_a_prefect_server_that_is_away_is_one_line(placer, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")

    answer = placer("profile")

    assert_one_line(answer, "PREFECT_API_URL=http://127.0.0.1:9/api does not answer")


def test_topologies_lists_every_packaged_one(placer):
    answer = placer("topologies")

    assert answer.code == 0
    for name in ("haswell-2xk80", "haswell-4xk80", "4xa100-nvlink"):
        assert name in answer.out


@pytest.mark.parametrize(
    "command", ["optimize", "profile", "group", "train", "evaluate", "simulate", "ui"]
)
def test_every_command_explains_itself(placer, command):
    answer = placer(command, "--help")

    assert answer.code == 0
    assert "Usage: placer" in answer.out


def test_an_unknown_option_is_a_usage_error(placer):
    answer = placer("optimize", "--devices", "4")

    assert answer.code == 2
    assert "--devices" in answer.err
