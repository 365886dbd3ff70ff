"""What the documents show can be used as it stands."""

import re
from pathlib import Path

import pytest

from flows.cli import app
from placer.files import load_topology
from placer.files.hosts import load_hosts

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TOML_BLOCKS = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", TOML_BLOCKS)
def test_every_topology_and_hosts_file_of_the_readme_can_be_read(block, tmp_path):
    path = tmp_path / "shown.toml"
    path.write_text(block)

    if "[[hosts]]" in block:
        assert len(load_hosts(path)) == 2
    else:
        assert load_topology(str(path)).num_devices >= 2


def test_the_readme_shows_both_forms_of_a_topology():
    assert sum("[[devices]]" in block for block in TOML_BLOCKS) == 1
    assert sum("[uniform]" in block for block in TOML_BLOCKS) == 1


def test_the_readme_lists_every_command():
    commands = {
        info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands
    }
    table = README.partition("## Commands")[2].partition("```console")[0]

    assert {name for name in commands if f"`{name}`" in table or f"placer {name}`" in table} == (
        commands
    )


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]))
def test_every_file_that_a_page_links_to_is_there(page):
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []
