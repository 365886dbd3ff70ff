import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.devices import DeviceTopology, Link
from placer.errors import InfeasibleError, InvalidValueError, UnknownNameError
from placer.graph import Op
from placer.group_ops import (
    GroupingConfig,
    cap_groups,
    colocate,
    common_kinds,
    group_ops,
    join_modules,
    join_sole_consumers,
)
from placer.profile import Profile
from tests.grouped_profiles import (
    BOTH,
    chain_of,
    msr_profile,
    profile_of,
    profiles,
    topology_of,
)

CPU, EITHER = 1, 3
"""Permitted kinds as bits: the CPU alone, and the CPU or a GPU."""


def sole_consumer_groups(profile: Profile, *, max_time_s: float = np.inf) -> list[int]:
    groups = colocate(profile.graph)
    kinds = common_kinds(profile.graph, groups)
    time_s = profile.compute_time_s[:, -1]
    joined = join_sole_consumers(profile.graph, groups, kinds, time_s=time_s, max_time_s=max_time_s)
    return [int(group) for group in joined]


class TestColocation:
    def test_ops_with_the_same_key_share_a_group(self) -> None:
        keys = ["w", "", "w", "b", "", "b"]
        profile = profile_of([Op(f"op{i}", "Op", colocation=key) for i, key in enumerate(keys)], [])

        assert colocate(profile.graph).tolist() == [0, 1, 0, 2, 3, 2]

    def test_a_set_may_run_where_all_its_members_may(self) -> None:
        ops = [
            Op("handle", "VarHandleOp", colocation="w"),
            Op("read", "ReadVariableOp", colocation="w", device_kinds=("CPU",)),
            Op("other", "MatMul"),
        ]
        profile = profile_of(ops, [])

        kinds = common_kinds(profile.graph, colocate(profile.graph))

        assert kinds.tolist() == [CPU, CPU, EITHER]

    def test_a_set_without_a_common_kind_names_the_ops_that_exclude_each_other(self) -> None:
        ops = [
            Op("free", "Op", colocation="w"),
            Op("host", "Op", colocation="w", device_kinds=("CPU",)),
            Op("card", "Op", colocation="w", device_kinds=("GPU",)),
        ]

        with pytest.raises(InfeasibleError, match="'w' have no kind of device in common"):
            group_ops(profile_of(ops, []))

    @pytest.mark.parametrize(
        ("name", "num_groups"),
        [("gnmt_training", 96), ("bert_l-3_training", 142), ("bert_l-12_training", 456)],
    )
    def test_published_graphs_have_their_published_number_of_groups(
        self, name: str, num_groups: int
    ) -> None:
        profile = msr_profile(name)

        result = group_ops(profile, GroupingConfig(method="colocation", max_groups=512))

        assert result.grouping.num_groups == num_groups
        first_op_positions = [
            profile.graph.topological_index[ops].min() for ops in result.grouping.ops_of_group
        ]
        assert first_op_positions == sorted(first_op_positions)


class TestModules:
    def test_ops_of_one_module_are_one_group_wherever_they_are(self) -> None:
        # Forward and backward of a module lie at opposite ends of the graph.
        profile = chain_of(["a/1", "b/1", "b/1", "a/1"])

        result = group_ops(profile)

        assert result.grouping.group_of_op.tolist() == [0, 1, 1, 0]

    def test_a_variable_that_all_steps_read_does_not_fuse_the_steps(self) -> None:
        # The handle and its reads share a device; the multiplications of two steps do not.
        ops = [
            Op("handle", "VarHandleOp", colocation="w", module="layer_0/step_0"),
            Op("read_0", "ReadVariableOp", colocation="w", module="layer_0/step_0"),
            Op("read_1", "ReadVariableOp", colocation="w", module="layer_0/step_1"),
            Op("multiply_0", "MatMul", module="layer_0/step_0"),
            Op("add_0", "Add", module="layer_0/step_0"),
            Op("multiply_1", "MatMul", module="layer_0/step_1"),
            Op("update", "Assign", colocation="w", module="layer_0/step_0"),
        ]
        tensors = [
            (0, (1, 2, 6), 8),
            (1, (3,), 100),
            (2, (5,), 100),
            (3, (4,), 10),
            (4, (5,), 10),
            (5, (6,), 100),
        ]

        result = group_ops(profile_of(ops, tensors))

        assert result.grouping.group_of_op.tolist() == [0, 0, 0, 1, 1, 2, 0]

    def test_a_variable_of_one_module_joins_it_although_its_handle_names_none(self) -> None:
        ops = [
            Op("handle", "VarHandleOp", colocation="w"),
            Op("read", "ReadVariableOp", colocation="w", module="mixed0/conv"),
            Op("convolve", "Conv2D", module="mixed0/conv"),
        ]
        profile = profile_of(ops, [(0, (1,), 8), (1, (2,), 100)])
        groups = colocate(profile.graph)

        joined = join_modules(profile.graph, groups, common_kinds(profile.graph, groups))

        assert joined.tolist() == [0, 0, 0]

    def test_ops_of_a_module_that_need_the_cpu_form_a_group_of_their_own(self) -> None:
        permitted = [BOTH, ("CPU",), BOTH, ("CPU",)]
        ops = [
            Op(f"op{i}", "Op", module="a/1", device_kinds=kinds)
            for i, kinds in enumerate(permitted)
        ]
        profile = profile_of(ops, [(0, (1,), 8), (1, (2,), 8), (2, (3,), 8)])

        result = group_ops(profile)

        assert result.grouping.group_of_op.tolist() == [0, 1, 0, 1]
        allowed = result.grouping.allowed(profile)
        assert allowed.tolist() == [[True, True, True], [True, False, False]]

    def test_an_op_without_module_joins_the_module_that_alone_consumes_it(self) -> None:
        profile = chain_of(["a/1", "", "", "b/1"])

        result = group_ops(profile)

        assert result.grouping.group_of_op.tolist() == [0, 1, 1, 1]
        assert list(result.num_groups_after.items()) == [
            ("ops", 4),
            ("colocation", 4),
            ("modules", 4),
            ("sole consumers", 2),
        ]

    def test_modules_are_never_joined_to_each_other_below_the_cap(self) -> None:
        profile = chain_of(["a/1", "a/2", "a/3"])

        result = group_ops(profile)

        assert result.grouping.num_groups == 3


class TestSoleConsumers:
    def test_an_op_with_two_consumers_stays_and_one_with_a_single_consumer_joins(self) -> None:
        # 0 -> 1 -> 2 and 0 -> 3: op 1 joins op 2, op 0 has two consumers.
        ops = [Op(f"op{i}", "Op") for i in range(4)]
        profile = profile_of(ops, [(0, (1, 3), 8), (1, (2,), 8)])

        assert sole_consumer_groups(profile) == [0, 1, 1, 2]

    def test_the_rule_is_repeated_on_what_was_joined(self) -> None:
        # A diamond: 1 and 2 join 3, so that 0 has a single consumer left and joins too.
        ops = [Op(f"op{i}", "Op") for i in range(4)]
        profile = profile_of(ops, [(0, (1, 2), 8), (1, (3,), 8), (2, (3,), 8)])

        assert sole_consumer_groups(profile) == [0, 0, 0, 0]

    def test_who_waits_through_a_control_edge_is_a_consumer(self) -> None:
        ops = [Op(f"op{i}", "Op") for i in range(3)]
        profile = profile_of(ops, [(0, (1,), 8), (0, (2,), 0)])

        assert sole_consumer_groups(profile) == [0, 1, 2]

    def test_updates_do_not_join_the_op_that_only_waits_for_them(self) -> None:
        # 0 -> 1 and 2 -> 3 are gradients and updates; op 4 waits for both updates.
        ops = [Op(f"op{i}", "Op") for i in range(5)]
        profile = profile_of(ops, [(0, (1,), 8), (1, (4,), 0), (2, (3,), 8), (3, (4,), 0)])

        assert sole_consumer_groups(profile) == [0, 0, 1, 1, 2]

    def test_an_op_of_the_cpu_does_not_join_a_consumer_that_may_go_elsewhere(self) -> None:
        ops = [Op("read", "ReadFile", device_kinds=("CPU",)), Op("use", "MatMul")]
        profile = profile_of(ops, [(0, (1,), 8)])

        assert sole_consumer_groups(profile) == [0, 1]

    def test_a_chain_is_joined_only_up_to_the_time_limit(self) -> None:
        # Six ops of a second each, joined from the last, no group above two seconds.
        profile = chain_of([""] * 6)

        assert sole_consumer_groups(profile, max_time_s=2) == [0, 0, 1, 1, 2, 2]

    @given(profile=profiles())
    def test_afterwards_no_lone_op_is_left_that_could_still_join(self, profile: Profile) -> None:
        graph = profile.graph
        groups = np.array(sole_consumer_groups(profile))

        kinds = common_kinds(graph, groups)
        for op in range(graph.num_ops):
            if (groups == groups[op]).sum() > 1 or graph.ops[op].module:
                continue
            sent = [t for t in graph.tensors if t.producer == op and t.consumers]
            targets = {int(groups[other]) for t in sent for other in t.consumers}
            if len(targets) == 1 and any(t.size_bytes for t in sent):
                assert kinds[op] != kinds[groups == targets.pop()][0]


class TestCap:
    def test_two_cliques_become_two_groups(self) -> None:
        # Ops 0-3 and 4-7 send megabytes among themselves, and 3 sends 4 bytes to 4.
        clique = [(a, b) for a, b in itertools.combinations(range(4), 2)]
        tensors = [(a + 4 * half, (b + 4 * half,), 10**6) for half in (0, 1) for a, b in clique]
        profile = profile_of([Op(f"op{i}", "Op") for i in range(8)], [*tensors, (3, (4,), 4)])
        graph = profile.graph

        groups = colocate(graph)
        capped = cap_groups(profile, groups, common_kinds(graph, groups), 2)

        assert capped.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]

    def test_kinds_never_mix_and_share_the_cap_by_their_numbers(self) -> None:
        # A chain of 16 ops, every fourth for the CPU alone. Each kind has one group of the
        # four at least; of the two left, the 12 movable ops get both.
        ops = [Op(f"op{i}", "Op", device_kinds=("CPU",) if i % 4 == 3 else BOTH) for i in range(16)]
        profile = profile_of(ops, [(i, (i + 1,), 8) for i in range(15)])

        result = group_ops(profile, GroupingConfig(method="colocation", max_groups=4))

        allowed = result.grouping.allowed(profile)
        assert sorted(allowed.sum(axis=1).tolist()) == [1, 3, 3, 3]
        assert result.num_groups_after["cap"] == 4

    def test_a_cap_of_one_still_leaves_a_group_for_each_set_of_kinds(self) -> None:
        ops = [Op(f"op{i}", "Op", device_kinds=("CPU",) if i < 2 else BOTH) for i in range(6)]

        result = group_ops(profile_of(ops, []), GroupingConfig(max_groups=1))

        assert result.grouping.group_of_op.tolist() == [0, 0, 1, 1, 1, 1]

    def test_a_graph_without_modules_is_joined_only_if_it_must_be(self) -> None:
        profile = chain_of([""] * 8)

        below = group_ops(profile, GroupingConfig(max_groups=8))
        above = group_ops(profile, GroupingConfig(max_groups=4))

        assert dict(below.num_groups_after) == {"ops": 8, "colocation": 8}
        # A fair share of eight seconds is two: pairs, and METIS is not needed.
        assert dict(above.num_groups_after) == {"ops": 8, "colocation": 8, "sole consumers": 4}

    def test_colocation_alone_is_capped_too(self) -> None:
        config = GroupingConfig(method="colocation", max_groups=3)

        result = group_ops(chain_of(["a/1"] * 9), config)

        assert dict(result.num_groups_after) == {"ops": 9, "colocation": 9, "cap": 3}
        assert result.grouping.group_of_op.tolist() == [0] * 3 + [1] * 3 + [2] * 3


class TestGroupOps:
    @given(
        profile=profiles(),
        max_groups=st.integers(1, 12),
        method=st.sampled_from(["auto", "colocation"]),
    )
    def test_every_grouping_keeps_the_rules(
        self, profile: Profile, max_groups: int, method: str
    ) -> None:
        config = GroupingConfig(method=method, max_groups=max_groups)

        result = group_ops(profile, config)

        grouping = result.grouping
        grouping.check(profile.graph)
        counts = list(result.num_groups_after.values())
        assert counts == sorted(counts, reverse=True)
        assert counts[0] == profile.graph.num_ops
        assert counts[-1] == grouping.num_groups
        assert np.array_equal(grouping.group_of_op, group_ops(profile, config).grouping.group_of_op)
        # Kinds are narrowed by colocation alone: what an op's set may do, its group may do.
        kinds = common_kinds(profile.graph, colocate(profile.graph))
        assert grouping.num_groups <= max(max_groups, len(set(kinds.tolist())))
        for ops in grouping.ops_of_group:
            assert len(set(kinds[ops].tolist())) == 1

    def test_groups_are_numbered_by_their_first_op_in_topological_order(self) -> None:
        # Op 1 precedes op 0, so its group is number 0.
        profile = profile_of([Op("late", "Op"), Op("early", "Op")], [(1, (0,), 8)])

        assert group_ops(profile).grouping.group_of_op.tolist() == [1, 0]

    def test_one_device_is_enough(self) -> None:
        topology = DeviceTopology.uniform(1, Link(1e9))
        profile = profile_of([Op(f"op{i}", "Op") for i in range(6)], [(0, (5,), 4)], topology)

        assert group_ops(profile, GroupingConfig(max_groups=2)).grouping.num_groups == 2

    def test_a_graph_without_times_or_edges_is_capped_all_the_same(self) -> None:
        ops = [Op(f"op{i}", "Op") for i in range(9)]
        profile = profile_of(ops, [], topology_of("CPU"), time_s=[0.0] * 9)

        assert group_ops(profile, GroupingConfig(max_groups=3)).grouping.num_groups == 3


class TestGroupingConfig:
    def test_an_unknown_method_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(UnknownNameError, match="did you mean 'colocation'"):
            GroupingConfig(method="collocation")

    def test_a_cap_below_one_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="max_groups must be at least 1, got 0"):
            GroupingConfig(max_groups=0)
