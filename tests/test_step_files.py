import json
from pathlib import Path

import pytest

from placer.errors import FileFormatError, MissingFileError
from profiling.step_files import load_step, save_step
from tests.captured_steps import line_fit, losses

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def step():
    return line_fit()


@pytest.fixture
def folder(step, tmp_path) -> Path:
    save_step(step, tmp_path / "made" / "step")
    return tmp_path / "made" / "step"


def change(folder: Path, **fields: object) -> None:
    path = folder / "step.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_step_comes_back_as_it_was(step, folder):
    loaded = load_step(folder)

    assert loaded.name == step.name
    assert loaded.graph_def == step.graph_def
    assert loaded.op_graph == step.op_graph
    assert loaded.fetches == step.fetches
    assert loaded.targets == step.targets
    assert loaded.initializers == step.initializers
    assert loaded.num_captured_ops == step.num_captured_ops


def test_a_loaded_step_runs(folder):
    assert losses(load_step(folder), 2) == pytest.approx([2.5, 0.625])


def test_equal_steps_are_equal_files(folder, tmp_path):
    save_step(line_fit(), tmp_path / "again")

    for name in ("graph.pb", "step.json"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_saving_leaves_nothing_but_the_two_files(step, folder):
    save_step(step, folder)

    assert sorted(path.name for path in folder.iterdir()) == ["graph.pb", "step.json"]


def test_a_folder_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(MissingFileError, match=r"there is no file .*nowhere/step.json"):
        load_step(tmp_path / "nowhere")


def test_a_step_without_its_graph_is_missing_it(folder):
    (folder / "graph.pb").unlink()

    with pytest.raises(MissingFileError, match=r"there is no file .*graph.pb"):
        load_step(folder)


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_truncated_description_is_refused(folder, kept):
    path = folder / "step.json"
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(FileFormatError, match=r"step.json is no JSON, or cut short"):
        load_step(folder)


def test_bytes_that_are_no_text_are_refused(folder):
    (folder / "step.json").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(FileFormatError, match="is no JSON"):
        load_step(folder)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:0], lambda b: b + b"\0"])
def test_a_damaged_graph_is_refused(folder, damage):
    path = folder / "graph.pb"
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(FileFormatError, match=r"graph.pb is damaged, or not the graph of"):
        load_step(folder)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused(folder, version):
    change(folder, version=version)

    with pytest.raises(FileFormatError, match=rf"is of version {version!r}, expected 1"):
        load_step(folder)


def test_another_kind_of_file_is_refused(folder):
    change(folder, kind="placer.profile")

    with pytest.raises(FileFormatError, match=r"its kind is not 'placer.step'"):
        load_step(folder)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"ops": 3},
        {"ops": [{"name": "a"}]},
        {"ops": []},
        {"tensors": [[0, [1]]]},
        {"tensors": [[0, [10**6], 4]]},
        {"fetches": None},
    ],
    ids=str,
)
def test_a_description_that_makes_no_step_is_refused_in_one_line(folder, nonsense):
    change(folder, **nonsense)

    with pytest.raises(FileFormatError, match="does not describe a step") as error:
        load_step(folder)

    assert "\n" not in str(error.value)
