"""Ops, tensors, and the graph they form."""

import networkx as nx
import pytest
from hypothesis import given

from placer.errors import InvalidValueError
from placer.graph import Op, OpGraph, Tensor
from tests.builders import make_graph
from tests.strategies import op_graphs


def as_networkx(graph: OpGraph) -> nx.DiGraph:
    digraph = nx.DiGraph()
    digraph.add_nodes_from(range(graph.num_ops))
    for tensor in graph.tensors:
        digraph.add_edges_from((tensor.producer, consumer) for consumer in tensor.consumers)
    return digraph


class TestOp:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"name": ""}, "an op must have a name"),
            ({"memory_bytes": -1}, "op 'a': memory_bytes must not be negative, got -1"),
            ({"device_kinds": ()}, "op 'a' has no kind of device"),
            ({"device_kinds": ("GPU", "TPU")}, r"op 'a': device kinds .* got \['TPU'\]"),
        ],
    )
    def test_wrong_contents_are_refused(self, fields: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            Op(**{"name": "a", "type": "MatMul", **fields})


class TestTensor:
    def test_a_negative_size_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match=r"tensor of op 3: size_bytes .* got -4"):
            Tensor(3, (4,), -4)

    @pytest.mark.parametrize("consumers", [(2, 1), (1, 1)])
    def test_consumers_out_of_order_or_repeated_are_refused(
        self, consumers: tuple[int, ...]
    ) -> None:
        with pytest.raises(InvalidValueError, match="must ascend without repetition"):
            Tensor(0, consumers, 1)


class TestOpGraph:
    def test_a_graph_without_ops_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="at least one op"):
            OpGraph((), ())

    def test_two_ops_of_one_name_are_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="two ops are called 'x'"):
            OpGraph((Op("y", "A"), Op("x", "A"), Op("x", "B")), ())

    @pytest.mark.parametrize("tensor", [(0, (2,), 1), (2, (0,), 1), (-1, (0,), 1)])
    def test_a_tensor_of_an_op_that_is_not_there_is_refused(
        self, tensor: tuple[int, tuple[int, ...], int]
    ) -> None:
        with pytest.raises(
            InvalidValueError, match=r"names op (2|-1), but the graph has ops 0 to 1"
        ):
            make_graph(2, [tensor])

    def test_a_cycle_is_refused_and_an_op_on_it_named(self) -> None:
        # a feeds the cycle b, c; d hangs behind it.
        tensors = [(0, (1,), 1), (1, (2,), 1), (2, (1, 3), 1)]

        with pytest.raises(InvalidValueError, match=r"a cycle through op '[bc]'"):
            make_graph(4, tensors)

    def test_an_op_that_waits_for_itself_is_a_cycle(self) -> None:
        with pytest.raises(InvalidValueError, match="a cycle through op 'a'"):
            make_graph(1, [(0, (0,), 1)])

    def test_the_topological_order_takes_the_smallest_ready_index_first(self) -> None:
        # d feeds a: b and c are ready before d, a only after it.
        graph = make_graph(4, [(3, (0,), 1)])

        assert graph.topological_order.tolist() == [1, 2, 3, 0]
        assert graph.topological_index.tolist() == [3, 0, 1, 2]

    @given(op_graphs(max_ops=15))
    def test_the_topological_order_is_that_of_networkx(self, graph: OpGraph) -> None:
        expected = list(nx.lexicographical_topological_sort(as_networkx(graph)))

        assert graph.topological_order.tolist() == expected

    @given(op_graphs(max_ops=15))
    def test_successors_and_predecessors_are_those_of_networkx(self, graph: OpGraph) -> None:
        digraph = as_networkx(graph)

        for op in range(graph.num_ops):
            assert graph.successors[op] == tuple(sorted(digraph.successors(op)))
            assert graph.predecessors[op] == tuple(sorted(digraph.predecessors(op)))

    def test_colocations_are_the_sets_of_two_or_more_ops_with_one_key(self) -> None:
        ops = tuple(
            Op(name, "A", colocation=key)
            for name, key in [("a", "x"), ("b", ""), ("c", "x"), ("d", "y"), ("e", "")]
        )

        assert OpGraph(ops, ()).colocations == ((0, 2),)

    def test_the_index_of_a_name_leads_back_to_the_op(self) -> None:
        graph = make_graph(3, [])

        assert [graph.index_of_name[op.name] for op in graph.ops] == [0, 1, 2]

    def test_arrays_of_a_graph_cannot_be_written_to(self) -> None:
        graph = make_graph(2, [], memory_bytes=[1, 2])

        for array in (graph.topological_order, graph.topological_index, graph.memory_bytes):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 7


class TestFingerprint:
    def test_names_and_memory_are_no_part_of_it(self) -> None:
        first = OpGraph((Op("a", "A", memory_bytes=1), Op("b", "B")), (Tensor(0, (1,), 4),))
        second = OpGraph((Op("c", "A", memory_bytes=2), Op("d", "B")), (Tensor(0, (1,), 4),))

        assert first.fingerprint == second.fingerprint

    @pytest.mark.parametrize(
        "other",
        [
            OpGraph((Op("a", "A"), Op("b", "C")), (Tensor(0, (1,), 4),)),
            OpGraph((Op("a", "A"), Op("b", "B")), (Tensor(0, (1,), 5),)),
            OpGraph((Op("a", "A"), Op("b", "B")), (Tensor(1, (0,), 4),)),
            OpGraph((Op("a", "A"), Op("b", "B")), ()),
            OpGraph((Op("a", "A", device_kinds=("CPU",)), Op("b", "B")), (Tensor(0, (1,), 4),)),
            OpGraph((Op("a", "A", output_shapes=((1,),)), Op("b", "B")), (Tensor(0, (1,), 4),)),
            OpGraph(
                (Op("a", "A", colocation="x"), Op("b", "B", colocation="x")), (Tensor(0, (1,), 4),)
            ),
        ],
    )
    def test_everything_else_is(self, other: OpGraph) -> None:
        graph = OpGraph((Op("a", "A"), Op("b", "B")), (Tensor(0, (1,), 4),))

        assert graph.fingerprint != other.fingerprint
