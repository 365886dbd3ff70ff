"""Captured steps as files: a folder with ``graph.pb`` and ``step.json``.

``graph.pb`` is TensorFlow's graph definition, byte for byte the same for the same step.
``step.json`` has the ops, the tensors and how to run the step, and the hash of ``graph.pb``: it
is written last, so that a folder is a whole step or none.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tensorflow.core.framework import graph_pb2

from placer.errors import FileFormatError, MissingFileError
from placer.graph import Op, OpGraph, Tensor
from profiling.step import CapturedStep

VERSION = 1
KIND = "placer.step"


def save_step(step: CapturedStep, folder: Path) -> None:
    """Write a step into a folder, which is made if it is missing.

    Args:
        step: What to write.
        folder: Where; a step that was there is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph_bytes = step.graph_def.SerializeToString(deterministic=True)
    document = {
        "version": VERSION,
        "kind": KIND,
        "name": step.name,
        "graph_sha256": hashlib.sha256(graph_bytes).hexdigest(),
        "fetches": step.fetches,
        "targets": step.targets,
        "initializers": step.initializers,
        "num_captured_ops": step.num_captured_ops,
        "ops": [_op_to_json(op) for op in step.op_graph.ops],
        "tensors": [[t.producer, t.consumers, t.size_bytes] for t in step.op_graph.tensors],
    }
    _write(folder / "graph.pb", graph_bytes)
    _write(folder / "step.json", json.dumps(document).encode())


def load_step(folder: Path) -> CapturedStep:
    """Read a step from the folder that ``save_step`` wrote.

    Raises:
        MissingFileError: If the folder or one of its files does not exist.
        FileFormatError: If a file is damaged, of another version, or not of this step.
    """
    path = folder / "step.json"
    try:
        document = json.loads(_read(path))
    except ValueError as error:
        raise FileFormatError(f"{path} is no JSON, or cut short: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise FileFormatError(f"{path} is no captured step: its kind is not {KIND!r}")
    if document.get("version") != VERSION:
        raise FileFormatError(
            f"{path} is of version {document.get('version')!r}, expected {VERSION}"
        )
    graph_bytes = _read(folder / "graph.pb")
    if hashlib.sha256(graph_bytes).hexdigest() != document.get("graph_sha256"):
        raise FileFormatError(f"{folder / 'graph.pb'} is damaged, or not the graph of {path}")
    try:
        return _step_from_json(document, graph_pb2.GraphDef.FromString(graph_bytes))
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} does not describe a step: {error!r}") from error


def _op_to_json(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "type": op.type,
        "memory_bytes": op.memory_bytes,
        "colocation": op.colocation,
        "device_kinds": op.device_kinds,
        "module": op.module,
        "output_shapes": op.output_shapes,
    }


def _op_from_json(fields: dict[str, Any]) -> Op:
    kinds, shapes = fields.pop("device_kinds"), fields.pop("output_shapes")
    return Op(
        **fields,
        device_kinds=tuple(kinds),
        output_shapes=tuple(tuple(shape) for shape in shapes),
    )


def _step_from_json(document: dict[str, Any], graph_def: graph_pb2.GraphDef) -> CapturedStep:
    ops = tuple(_op_from_json(fields) for fields in document["ops"])
    tensors = tuple(
        Tensor(producer, tuple(consumers), size_bytes)
        for producer, consumers, size_bytes in document["tensors"]
    )
    return CapturedStep(
        name=document["name"],
        graph_def=graph_def,
        op_graph=OpGraph(ops, tensors),
        fetches=tuple(document["fetches"]),
        targets=tuple(document["targets"]),
        initializers=tuple(document["initializers"]),
        num_captured_ops=document["num_captured_ops"],
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {path}") from error


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
