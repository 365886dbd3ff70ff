"""Grouping files: JSON with the group of every op of one graph.

``{"version": 1, "kind": "placer.grouping", "graph": FINGERPRINT, "group_of_op": [0, …]}``
"""

from typing import Annotated

from pydantic import Field

from placer.files.documents import (
    VERSION,
    Document,
    StrPath,
    check,
    check_graph,
    check_kind,
    check_version,
    naming,
    read_json,
    write_compact_json,
)
from placer.graph import OpGraph
from placer.grouping import Grouping

_KIND = "placer.grouping"


class _GroupingDocument(Document):
    version: int
    kind: str
    graph: str
    group_of_op: list[Annotated[int, Field(ge=0, lt=2**31)]]


def save_grouping(grouping: Grouping, graph: OpGraph, path: StrPath) -> None:
    """Write a grouping of a graph.

    Raises:
        InvalidValueError: If it is not a grouping of the graph.
        StoreError: If the file cannot be written.
    """
    grouping.check(graph)
    document = {
        "version": VERSION,
        "kind": _KIND,
        "graph": graph.fingerprint,
        "group_of_op": grouping.group_of_op.tolist(),
    }
    write_compact_json(document, path)


def load_grouping(path: StrPath, graph: OpGraph) -> Grouping:
    """Return the grouping of a file that was written for the graph.

    Raises:
        MissingFileError: If there is no such file.
        FileFormatError: If it is not a grouping, or is one of another graph.
    """
    document = read_json(path)
    check_kind(document, path, _KIND)
    check_version(document, path)
    checked = check(_GroupingDocument, document, path)
    check_graph(checked.graph, graph, path, "grouping")
    with naming(path):
        grouping = Grouping(checked.group_of_op)
        grouping.check(graph)
    return grouping
