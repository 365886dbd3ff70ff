import math

import numpy as np
import pytest
from hypothesis import given

from placer.errors import InfeasibleError, InvalidValueError
from placer.features import MAX_OUTPUTS, MAX_RANK, GroupFeatures, group_features
from placer.graph import Op
from placer.grouping import Grouping
from tests.grouped_profiles import profile_of, profiles


def three_ops():
    """a feeds b twice and c; b controls c. Groups: {a}, {b, c}."""
    return profile_of(
        [
            Op("a", "MatMul", output_shapes=((2, 3), (-1, 7), (4, 4, 4, 4, 4))),
            Op("b", "Relu", device_kinds=("GPU",)),
            Op("c", "MatMul", output_shapes=((),)),
        ],
        [(0, (1, 2), 100), (0, (1,), 20), (1, (2,), 0)],
    )


def test_types_are_counted_over_the_graphs_own_vocabulary():
    features = group_features(three_ops(), Grouping([0, 1, 1]))

    assert features.op_types == ("MatMul", "Relu")
    assert features.type_shares.tolist() == [[1, 0], [0.5, 0.5]]


def test_output_shapes_are_logarithms_of_the_largest_outputs_padded_with_zeros():
    features = group_features(three_ops(), Grouping([0, 1, 1]))

    shapes = features.output_shapes.reshape(2, MAX_OUTPUTS, MAX_RANK)
    # 1024 elements (of rank 5, cut to 4), then 6, then the one whose size is not known.
    assert shapes[0, 0] == pytest.approx([math.log(5)] * 4)
    assert shapes[0, 1] == pytest.approx([math.log(3), math.log(4), 0, 0])
    assert shapes[0, 2] == pytest.approx([0, math.log(8), 0, 0])
    assert not shapes[0, 3].any()
    assert not shapes[1].any()


def test_a_group_with_many_outputs_shows_its_largest():
    ops = [Op(f"op{i}", "Relu", output_shapes=((10 * i,),)) for i in range(6)]

    features = group_features(profile_of(ops, []), Grouping([0] * 6))

    sizes = np.expm1(features.output_shapes.reshape(MAX_OUTPUTS, MAX_RANK))
    assert sizes[:, 0] == pytest.approx([50, 40, 30, 20])


def test_a_tensor_counts_once_for_a_group_however_many_ops_consume_it():
    features = group_features(three_ops(), Grouping([0, 1, 1]))

    assert features.traffic_bytes.tolist() == [[0, 120], [0, 0]]
    assert features.adjacent.tolist() == [[False, True], [False, False]]


def test_a_tensor_counts_for_each_group_that_consumes_it_and_a_control_edge_is_adjacency():
    features = group_features(three_ops(), Grouping([0, 1, 2]))

    assert features.traffic_bytes.tolist() == [[0, 120, 100], [0, 0, 0], [0, 0, 0]]
    assert features.adjacent.tolist() == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]


def test_a_group_may_go_where_all_its_ops_may():
    features = group_features(three_ops(), Grouping([0, 1, 1]))

    # Devices: one CPU and two GPUs; b has no CPU kernel.
    assert features.allowed.tolist() == [[True, True, True], [False, True, True]]
    assert (features.num_groups, features.num_devices) == (2, 3)


def test_a_group_with_nowhere_to_go_is_infeasible():
    profile = profile_of(
        [Op("a", "A", device_kinds=("CPU",)), Op("b", "B", device_kinds=("GPU",))], []
    )

    with pytest.raises(InfeasibleError, match="group 0"):
        group_features(profile, Grouping([0, 0]))


def test_a_grouping_of_another_graph_is_refused():
    with pytest.raises(InvalidValueError, match="2 ops"):
        group_features(three_ops(), Grouping([0, 1]))


@given(profiles())
def test_what_a_group_sends_is_what_each_tensor_sends_to_every_other_group(profile):
    graph = profile.graph
    grouping = Grouping.in_topological_order(
        graph, [op.colocation or index for index, op in enumerate(graph.ops)]
    )
    group_of_op = grouping.group_of_op.tolist()

    features = group_features(profile, grouping)

    sent = [0] * grouping.num_groups
    pairs = set()
    for tensor in graph.tensors:
        source = group_of_op[tensor.producer]
        others = {group_of_op[op] for op in tensor.consumers} - {source}
        sent[source] += tensor.size_bytes * len(others)
        pairs |= {(source, other) for other in others}
    assert features.traffic_bytes.sum(axis=1).tolist() == sent
    assert set(map(tuple, np.argwhere(features.adjacent).tolist())) == pairs
    assert features.type_shares.sum(axis=1) == pytest.approx(np.ones(grouping.num_groups))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("type_shares", np.ones((2, 2)), "type_shares must have shape"),
        ("output_shapes", np.ones((2, 3)), "output_shapes must have shape"),
        ("traffic_bytes", np.ones((2, 3)), "traffic_bytes must have shape"),
        ("adjacent", np.ones((1, 2), dtype=np.bool_), "adjacent must have shape"),
        ("allowed", np.array([[True], [False]]), "group 1 has no permitted device"),
    ],
)
def test_features_of_wrong_shapes_are_refused(field, value, message):
    right = {
        "op_types": ("MatMul",),
        "type_shares": np.ones((2, 1)),
        "output_shapes": np.zeros((2, MAX_OUTPUTS * MAX_RANK)),
        "traffic_bytes": np.zeros((2, 2)),
        "adjacent": np.zeros((2, 2), dtype=np.bool_),
        "allowed": np.ones((2, 1), dtype=np.bool_),
    }

    with pytest.raises(InvalidValueError, match=message):
        GroupFeatures(**right | {field: value})
