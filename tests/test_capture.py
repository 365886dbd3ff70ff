import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from placer.errors import InvalidValueError
from profiling.capture import capture
from profiling.flattening import InputSpec, flatten
from profiling.initial_values import (
    Constant,
    Kept,
    Normal,
    Uniform,
    Variable,
    customary,
    initializer_nodes,
    resembling,
)
from profiling.rewriting import copy_constants, needed
from profiling.step import CapturedStep
from tests.captured_steps import line_fit, losses, opened, run_step, value_of

pytestmark = pytest.mark.slow


def types_of(step: CapturedStep) -> list[str]:
    return [op.type for op in step.op_graph.ops]


def readers(graph_def: tf.compat.v1.GraphDef, name: str) -> list[str]:
    return [node.name for node in graph_def.node if name in node.input]


def two_layer_net() -> tuple[tf.types.experimental.PolymorphicFunction, list[InputSpec]]:
    rng = np.random.default_rng(7)
    weights = [
        tf.Variable(rng.normal(0, 0.3, shape).astype(np.float32), name=f"w{number}")
        for number, shape in enumerate([(6, 16), (16, 3)])
    ]

    @tf.function
    def step(x, labels):
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(x @ weights[0]) @ weights[1]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.5 * gradient)
        return loss

    return step, [InputSpec((20, 6)), InputSpec((20,), "int64", high=3)]


def test_the_captured_step_computes_what_the_function_says():
    # w = 1: errors -1 and -2, loss (1 + 4) / 2; slope mean(2 · error · x) = -5; w = 1.5.
    # Then errors -1/2 and -1, loss 5/8, slope -5/2, w = 7/4; then loss 5/32.
    step = line_fit()

    assert losses(step, 3) == pytest.approx([2.5, 0.625, 0.15625])


def test_updates_are_run_beside_the_loss_and_not_by_it():
    step = line_fit()

    with opened(step) as session:
        for _ in range(3):
            session.run(step.fetches)
        untouched = value_of(session, "slope")
        run_step(session, step)
        updated = value_of(session, "slope")

    assert untouched == 1.0
    assert updated == pytest.approx(1.5)


def test_the_rewritten_graph_has_the_losses_of_the_traced_one_and_they_fall():
    function, inputs = two_layer_net()
    flat = flatten(function, inputs, name="net")
    traced = tf.compat.v1.GraphDef()
    traced.CopyFrom(flat.graph_def)
    for variable in flat.variables:
        traced.node.extend(initializer_nodes(variable))
    step = capture(function, inputs, name="net")
    initializers = tuple(variable.initializer for variable in flat.variables)
    before = CapturedStep(
        "traced", traced, step.op_graph, (flat.loss,), flat.updates, initializers, 0
    )

    losses_after, losses_before = losses(step, 6), losses(before, 6)

    assert losses_after == pytest.approx(losses_before, rel=1e-5)
    assert sorted(losses_after, reverse=True) == losses_after
    assert losses_after[-1] < losses_after[0]


def test_nothing_is_fed_and_no_device_is_named():
    step = line_fit()

    assert not [node.name for node in step.graph_def.node if node.op == "Placeholder"]
    assert not [node.name for node in step.graph_def.node if node.device]


def test_variables_and_inputs_are_handles_with_their_own_names():
    step = line_fit()

    handles = {
        n.name: n.attr["shared_name"].s for n in step.graph_def.node if n.op == "VarHandleOp"
    }

    assert handles == {"slope": b"slope", "input/x": b"input/x", "input/y": b"input/y"}
    assert sorted(step.initializers) == ["init/input/x", "init/input/y", "init/slope"]


def test_the_op_graph_is_the_graph_without_the_initialisers():
    step = line_fit()

    outside = {node.name for node in step.graph_def.node} - set(step.op_graph.index_of_name)

    assert outside
    assert all(name.startswith("init/") for name in outside)


def test_equal_steps_give_equal_graphs():
    first, second = line_fit(), line_fit()

    assert first.op_graph.fingerprint == second.op_graph.fingerprint
    assert first.graph_def == second.graph_def


def test_variables_of_one_name_are_told_apart():
    twins = [tf.Variable(float(number), name="w") for number in range(2)]

    step = capture(lambda: twins[0] + 10.0 * twins[1], [], name="twins")

    assert {"w", "w_1"} <= set(step.op_graph.index_of_name)
    assert losses(step, 1) == [10.0]


def test_a_step_too_large_for_this_machine_is_captured():
    huge = UninitializedVariable(shape=[10**6, 10**6], dtype=tf.float32, name="huge")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.linalg.matvec(huge, x))
        huge.assign_sub(tape.gradient(loss, huge))
        return loss

    captured = capture(step, [InputSpec((10**6,))], name="huge")

    assert captured.op_graph.ops[captured.op_graph.index_of_name["huge"]].memory_bytes == 4 * 10**12


def test_int32_inputs_live_in_int64_variables_so_that_a_gpu_can_hold_them():
    table = tf.Variable([10.0, 20.0, 30.0], name="table")

    step = capture(
        lambda rows: tf.reduce_sum(tf.gather(table, rows)),
        [np.array([2, 0], np.int32)],
        name="rows",
    )

    assert losses(step, 1) == [40.0]
    assert all("GPU" in op.device_kinds for op in step.op_graph.ops)


def test_functions_that_the_step_calls_are_inlined_and_their_updates_run():
    count = tf.Variable(0.0, name="count")

    @tf.function
    def forward(x):
        count.assign_add(1.0)
        return x * x, x + 1.0, tf.reduce_sum(x)

    def step(x):
        square, _, _ = forward(x)
        return tf.reduce_sum(square)

    captured = capture(step, [np.array([1.0, 2.0], np.float32)], name="calls")
    with opened(captured) as session:
        found = [run_step(session, captured) for _ in range(3)]
        counted = value_of(session, "count")

    assert found == [5.0] * 3
    assert counted == 3.0
    assert not {"PartitionedCall", "StatefulPartitionedCall", "IdentityN"} & set(types_of(captured))


def test_a_loop_stays_one_op():
    def step(x, n):
        total = tf.constant(0.0)
        for _ in tf.range(n[0]):
            total += tf.reduce_sum(x)
        return total

    captured = capture(step, [np.ones(2, np.float32), np.array([3], np.int32)], name="loop")

    assert [kind for kind in types_of(captured) if "While" in kind] in (
        ["While"],
        ["StatelessWhile"],
    )
    assert losses(captured, 1) == [6.0]


def test_captured_constants_become_constants():
    offset = tf.constant([1.0, 2.0])

    step = capture(lambda x: tf.reduce_sum(x * offset), [np.array([3, 4], np.float32)], name="c")

    assert losses(step, 1) == [11.0]


def test_a_keras_model_with_adam_and_dropout_is_captured_and_learns():
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8,)),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dropout(0.1),
            tf.keras.layers.Dense(1),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.02)
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(0)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    x = rng.normal(size=(32, 8)).astype(np.float32)
    found = losses(capture(step, [x, x[:, :1]], name="keras"), 40)

    assert np.mean(found[-5:]) < 0.5 * np.mean(found[:5])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x, r"step 'bad' must return a scalar float as its loss, got shape \(2,\)"),
        (lambda x: tf.shape(x)[0], r"scalar float as its loss, got shape \(\) of int32"),
        (lambda _: None, r"step 'bad' must return its loss, got nothing"),
    ],
)
def test_a_step_that_returns_no_loss_is_refused(function, message):
    with pytest.raises(InvalidValueError, match=message):
        capture(function, [np.ones(2, np.float32)], name="bad")


def test_a_resource_that_is_no_variable_is_refused():
    pairs = tf.lookup.KeyValueTensorInitializer([1, 2], [0.5, 1.5], tf.int64, tf.float32)
    table = tf.lookup.StaticHashTable(pairs, 0.0)

    with pytest.raises(InvalidValueError, match="which is no variable"):
        capture(lambda x: tf.reduce_sum(table[x]), [np.array([1, 2])], name="table")


@pytest.mark.parametrize("spec", [{"shape": (0,)}, {"shape": (2,), "high": 0}])
def test_an_input_without_room_is_refused(spec):
    with pytest.raises(InvalidValueError, match="must be at least 1"):
        InputSpec(**spec)


def test_each_reader_of_a_small_constant_has_its_own():
    with tf.Graph().as_default() as graph:
        shared = tf.constant([1.0, 2.0], name="shared")
        tf.add(shared, shared, name="first")
        tf.negative(shared, name="second")

    copied = copy_constants(graph.as_graph_def())

    inputs = {node.name: list(node.input) for node in copied.node}
    assert inputs["first"] == ["shared", "shared"]
    assert inputs["second"] == ["shared/copy_1"]
    assert inputs["shared/copy_1"] == []


def test_a_large_constant_stays_shared():
    with tf.Graph().as_default() as graph:
        shared = tf.constant(np.arange(2**15, dtype=np.float32), name="shared")  # 128 KiB
        tf.negative(shared, name="first")
        tf.abs(shared, name="second")

    copied = copy_constants(graph.as_graph_def())

    assert readers(copied, "shared") == ["first", "second"]


def test_only_what_is_waited_for_is_needed():
    with tf.Graph().as_default() as graph:
        a = tf.constant(1.0, name="a")
        b = tf.constant(2.0, name="b")
        tf.negative(a, name="unused")
        with tf.control_dependencies([b]):
            tf.identity(a, name="loss")

    part = needed(graph.as_graph_def(), "loss:0", ())

    assert [node.name for node in part.node] == ["a", "b", "loss"]


def test_a_constraint_to_be_with_an_op_that_is_not_needed_is_dropped():
    with tf.Graph().as_default() as graph:
        gone, kept = tf.constant(1.0, name="gone"), tf.constant(2.0, name="kept")
        with graph.colocate_with(gone.op), graph.colocate_with(kept.op):
            tf.identity(kept, name="loss")

    part = needed(graph.as_graph_def(), "loss:0", ())

    assert list(part.node[-1].attr["_class"].list.s) == [b"loc:@kept"]


def test_a_value_resembles_in_constancy_range_or_moments():
    rng = np.random.default_rng(0)

    assert resembling(np.full((3, 4), 2.5)) == Constant(2.5)
    assert resembling(np.array([-1.0, 3.0])) == Normal(1.0, 2.0)
    assert resembling(np.array([0.25, 4.0])) == Uniform(0.25, 4.0)
    assert resembling(rng.permutation(np.arange(-2, 6))) == Uniform(-2, 6)
    assert isinstance(resembling(np.array([1, 2]), max_kept_bytes=16), Kept)
    assert isinstance(resembling(np.array([1, 2]), max_kept_bytes=15), Uniform)
    assert isinstance(resembling(np.array([True, False])), Kept)


@given(hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(0, 1e6, width=32)))
def test_what_never_is_negative_stays_so(array):
    value = resembling(array)

    assert value.number >= 0 if isinstance(value, Constant) else value.low >= 0


def test_a_variable_without_a_value_starts_as_is_customary():
    # fan_in 2 · 3 = 6, fan_out 2: sqrt(2 / 8) = 1/2.
    assert customary((2, 3, 2)) == Normal(0.0, 0.5)
    assert customary((7,)) == Constant(0)
    assert customary(()) == Constant(0)


def initial_numbers(variable: Variable) -> np.ndarray:
    with tf.Graph().as_default() as alone:
        tf.raw_ops.VarHandleOp(
            dtype=variable.dtype, shape=variable.shape, shared_name="v", name=variable.name
        )
    graph_def = alone.as_graph_def()
    graph_def.node.extend(initializer_nodes(variable))
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(graph.get_operation_by_name(variable.initializer))
            return value_of(session, variable.name)


@pytest.mark.parametrize(
    ("value", "dtype", "mean", "stddev"),
    [
        (Constant(3), tf.int64, 3.0, 0.0),
        (Normal(1.0, 2.0), tf.float32, 1.0, 2.0),
        (Normal(1.0, 2.0), tf.bfloat16, 1.0, 2.0),
        (Uniform(0.0, 6.0), tf.float32, 3.0, 6 / 12**0.5),
        # 0 … 4: variance (25 - 1) / 12 = 2.
        (Uniform(0, 5), tf.int16, 2.0, 2**0.5),
    ],
)
def test_initial_numbers_have_the_moments_that_were_asked_for(value, dtype, mean, stddev):
    numbers = initial_numbers(Variable("v", (100, 100), dtype, value)).astype(np.float64)

    # Ten thousand numbers: a mean is off by 1 % of the deviation; five times that is allowed.
    assert numbers.mean() == pytest.approx(mean, abs=0.05 * stddev)
    assert numbers.std() == pytest.approx(stddev, rel=0.05)


def test_initial_numbers_depend_on_the_variables_name_alone():
    first, again, other = (
        initial_numbers(Variable(name, (5,), tf.float32, Normal(0.0, 1.0))) for name in "aab"
    )

    assert (first == again).all()
    assert (first != other).all()


def test_initialisers_are_colocated_with_their_variable_and_small():
    nodes = initializer_nodes(Variable("v", (10**4, 10**5), tf.float32, Normal(0.0, 1.0)))

    assert all(list(node.attr["_class"].list.s) == [b"loc:@v"] for node in nodes)
    assert all(node.name.startswith("init/v") for node in nodes)
    assert sum(node.ByteSize() for node in nodes) < 10_000
