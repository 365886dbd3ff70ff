import itertools

import networkx as nx
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InvalidValueError
from placer.graph import OpGraph, Tensor
from profiling.kernels import device_kinds
from profiling.modules import assign_modules
from profiling.op_graph import build_op_graph, num_bytes

pytestmark = pytest.mark.slow


def no_rule(_: str) -> str:
    return ""


def op_graph(graph: tf.Graph, rule=no_rule) -> OpGraph:
    return build_op_graph(graph.as_graph_def(), rule)


def tensors_of(graph: OpGraph, producer: str) -> list[tuple[list[str], int]]:
    index = graph.index_of_name[producer]
    return [
        ([graph.ops[op].name for op in tensor.consumers], tensor.size_bytes)
        for tensor in graph.tensors
        if tensor.producer == index
    ]


def colocation_of(graph: OpGraph, name: str) -> str:
    return graph.ops[graph.index_of_name[name]].colocation


def node(op: str, name: str = "n", *inputs: str, **types: tf.DType) -> tf.compat.v1.NodeDef:
    result = tf.compat.v1.NodeDef(name=name, op=op, input=inputs)
    for attr, dtype in types.items():
        result.attr[attr].type = dtype.as_datatype_enum
    return result


def test_ops_keep_the_order_and_types_of_the_graph_definition():
    with tf.Graph().as_default() as graph:
        two = tf.constant(2.0, name="two")
        tf.multiply(two, two, name="four")

    ops = op_graph(graph).ops

    assert [(op.name, op.type) for op in ops] == [("two", "Const"), ("four", "Mul")]


def test_each_output_is_one_tensor_with_all_its_consumers():
    with tf.Graph().as_default() as graph:
        rows = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], name="rows")
        upper, _ = tf.split(rows, 2, name="halves")
        tf.negative(upper, name="a")
        tf.multiply(upper, upper, name="b")

    found = op_graph(graph)

    # Two halves of 1 × 3 floats; the second has no consumer.
    assert tensors_of(found, "halves") == [(["a", "b"], 12), ([], 12)]
    assert found.ops[found.index_of_name["halves"]].output_shapes == ((1, 3), (1, 3))


def test_unknown_dimensions_count_as_one_and_are_shown_as_minus_one():
    with tf.Graph().as_default() as graph:
        tf.compat.v1.placeholder(tf.float32, [None, 4], name="batch")
        tf.compat.v1.placeholder(tf.float64, name="anything")

    found = op_graph(graph)

    assert tensors_of(found, "batch") == [([], 16)]
    assert tensors_of(found, "anything") == [([], 8)]
    assert found.ops[0].output_shapes == ((-1, 4),)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((), tf.int64, 8),
        ((3, 5), tf.bfloat16, 30),
        ((3, 0), tf.float32, 0),
        ((2, 2), tf.string, 32),
        ((2,), tf.variant, 16),
        (None, tf.bool, 1),
    ],
)
def test_bytes_are_elements_times_the_size_of_one(shape, dtype, expected):
    assert num_bytes(shape, dtype) == expected


def test_a_control_edge_is_one_tensor_of_no_bytes():
    with tf.Graph().as_default() as graph:
        first = tf.constant(1.0, name="first")
        with tf.control_dependencies([first]):
            tf.constant(2.0, name="second")
            tf.constant(3.0, name="third")

    assert tensors_of(op_graph(graph), "first") == [([], 4), (["second", "third"], 0)]


def variable_graph() -> tf.Graph:
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3, 4], shared_name="w", name="w")
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")
        negative = tf.negative(read, name="negative")
        tf.raw_ops.AssignVariableOp(resource=handle, value=negative, name="assign")
    return graph


def test_a_variable_is_held_where_its_handle_is_made():
    graph = op_graph(variable_graph())

    assert graph.memory_bytes.tolist() == [3 * 4 * 4, 0, 0, 0]


def test_a_handle_never_travels():
    graph = op_graph(variable_graph())

    assert [colocation_of(graph, name) for name in ("w", "read", "assign")] == ["w"] * 3
    assert colocation_of(graph, "negative") == ""
    assert tensors_of(graph, "w") == [(["read", "assign"], 0)]


def test_a_handle_that_passes_through_an_op_takes_that_op_along():
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="w", name="w")
        same = tf.identity(handle, name="same")
        tf.raw_ops.ReadVariableOp(resource=same, dtype=tf.float32, name="read")

    found = op_graph(graph)

    assert [op.colocation for op in found.ops] == ["w"] * 3


def test_tensorflows_colocation_is_merged_with_the_handles():
    graph = variable_graph()
    with graph.as_default(), graph.colocate_with(graph.get_operation_by_name("read")):
        tf.constant(1.0, name="beside")

    found = op_graph(graph)

    assert {colocation_of(found, name) for name in ("w", "read", "assign", "beside")} == {"w"}


def test_a_colocation_with_an_absent_op_is_refused():
    lonely = node("NoOp", "lonely")
    lonely.attr["_class"].list.s.append(b"loc:@gone")

    with pytest.raises(InvalidValueError, match="colocated with unknown node 'gone'"):
        build_op_graph(tf.compat.v1.GraphDef(node=[lonely]), no_rule)


def test_a_graph_that_tensorflow_does_not_know_is_refused_in_one_line():
    strange = tf.compat.v1.GraphDef(node=[node("NoSuchOp", "strange")])

    with pytest.raises(InvalidValueError, match=r"cannot import the graph.*NoSuchOp") as error:
        build_op_graph(strange, no_rule)

    assert "\n" not in str(error.value)


def test_a_loop_of_single_ops_is_refused_as_a_cycle():
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="start")
    graph_def = graph.as_graph_def()
    enter = node("Enter", "enter", "start", T=tf.float32)
    enter.attr["frame_name"].s = b"loop"
    merge = node("Merge", "merge", "enter", "next", T=tf.float32)
    merge.attr["N"].i = 2
    graph_def.node.extend([enter, merge, node("NextIteration", "next", "merge", T=tf.float32)])

    with pytest.raises(InvalidValueError, match=r"cycle through op '(merge|next)'"):
        build_op_graph(graph_def, no_rule)


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        (node("MatMul", T=tf.float32), ("CPU", "GPU")),
        (node("Const", dtype=tf.float32), ("CPU", "GPU")),
        (node("Const", dtype=tf.int32), ("CPU", "GPU")),
        (node("NoOp"), ("CPU", "GPU")),
        # Its GPU kernel keeps the numbers in host memory, and is a GPU kernel all the same.
        (node("AddV2", T=tf.int32), ("CPU", "GPU")),
        (node("VarHandleOp", dtype=tf.float32), ("CPU", "GPU")),
        (node("VarHandleOp", dtype=tf.int32), ("CPU",)),
        (node("VarHandleOp", dtype=tf.string), ("CPU",)),
        (node("StringLower"), ("CPU",)),
        (node("MatMul", T=tf.int64), ("CPU",)),
        (node("PartitionedCall"), ("CPU", "GPU")),
        (node("NotEvenAnOp"), ("CPU", "GPU")),
    ],
    ids=lambda value: value if isinstance(value, tuple) else f"{value.op} {value.attr}",
)
def test_kernels_tell_which_kinds_of_device_can_run_an_op(asked, kinds):
    assert device_kinds(asked) == kinds


def test_a_dtype_that_is_left_out_is_the_default():
    # Shape's out_type is int32 unless given.
    given_type = node("Shape", T=tf.float32, out_type=tf.int32)

    assert device_kinds(node("Shape", T=tf.float32)) == device_kinds(given_type)


def modules_of(named: dict[str, str], edges: list[str], colocations: dict[str, str]) -> dict:
    """Modules of ops that are called by one letter, in topological order."""
    names = list(named)
    pairs = [(names.index(a), names.index(b)) for a, b in edges]
    keys = [colocations.get(name, "") for name in names]
    found = assign_modules(list(named.values()), keys, pairs, range(len(names)))
    return dict(zip(names, found, strict=True))


def test_an_unnamed_op_joins_its_first_consumer():
    found = modules_of({"a": "", "b": "", "c": "m/1", "d": "m/2"}, ["ab", "bd", "bc"], {})

    assert found == {"a": "m/1", "b": "m/1", "c": "m/1", "d": "m/2"}


def test_an_op_whose_consumers_are_unnamed_joins_its_first_producer():
    found = modules_of({"a": "m/1", "b": "m/2", "c": "", "d": ""}, ["bc", "ac", "cd"], {})

    assert found == {"a": "m/1", "b": "m/2", "c": "m/1", "d": "m/1"}


def test_colocated_ops_share_the_module_that_one_of_them_is_named_by():
    # The consumer b would say m/2; being with c comes first.
    found = modules_of({"a": "", "b": "m/2", "c": "m/1"}, ["ab"], {"a": "key", "c": "key"})

    assert found["a"] == "m/1"


def test_a_module_found_by_a_neighbour_is_shared_with_the_colocated():
    found = modules_of({"a": "", "b": "", "c": "m/1"}, ["ac"], {"a": "key", "b": "key"})

    assert found["b"] == "m/1"


@given(st.data())
def test_named_ops_keep_their_module_and_others_find_one_upstream_or_downstream(data):
    num_ops = data.draw(st.integers(1, 9))
    named = data.draw(
        st.lists(st.sampled_from(["", "m/1", "m/2"]), min_size=num_ops, max_size=num_ops)
    )
    all_edges = list(itertools.combinations(range(num_ops), 2))
    edges = data.draw(st.lists(st.sampled_from(all_edges), unique=True)) if all_edges else []
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(num_ops))

    found = assign_modules(named, [""] * num_ops, edges, range(num_ops))

    for op in range(num_ops):
        assert not named[op] or found[op] == named[op]
        if not found[op]:
            kin = nx.ancestors(graph, op) | nx.descendants(graph, op)
            assert not [other for other in kin if named[other]]


def test_a_constant_belongs_to_its_reader_whatever_it_is_called():
    with tf.Graph().as_default() as graph:
        axis = tf.constant(1.0, name="far/away")
        tf.negative(axis, name="near/by")

    found = op_graph(graph, rule=lambda name: name)

    assert [op.module for op in found.ops] == ["near/by", "near/by"]


def test_modules_follow_data_and_not_control_edges():
    with tf.Graph().as_default() as graph:
        loose = tf.no_op(name="loose")
        with tf.control_dependencies([loose]):
            tf.constant(1.0, name="later")

    found = op_graph(graph, rule=lambda name: "m/1" if name == "later" else "")

    assert found.ops[found.index_of_name["loose"]].module == ""
    assert Tensor(0, (1,), 0) in found.tensors
