"""Reading and writing of everything Placer keeps: one module for each kind of file."""

from placer.files.documents import atomic_write, write_json
from placer.files.graphs import GraphFile, load_graph_file, parse_graph, save_profile
from placer.files.groupings import load_grouping, save_grouping
from placer.files.placements import load_placement, placement_document, save_placement
from placer.files.topologies import load_topology, packaged_topologies, save_topology

__all__ = [
    "GraphFile",
    "atomic_write",
    "load_graph_file",
    "load_grouping",
    "load_placement",
    "load_topology",
    "packaged_topologies",
    "parse_graph",
    "placement_document",
    "save_grouping",
    "save_placement",
    "save_profile",
    "save_topology",
    "write_json",
]
