import math

import numpy as np
import pytest

from placer.devices import DeviceTopology, Link
from placer.errors import InvalidValueError, UnknownNameError
from placer.graph import OpGraph
from placer.group_ops import group_ops
from placer.heuristics.expert import expert
from placer.profile import OpCosts, Profile
from profiling.step import CapturedStep
from profiling.workloads import WORKLOADS, capture_workload, inception_v3, resnet50, transformer
from profiling.workloads.lstm import module_of_op
from tests.captured_steps import losses, opened, run_step, value_of, values_of

pytestmark = pytest.mark.slow

RNNLM = {"layers": 2, "units": 8, "batch_size": 3, "steps": 4, "vocabulary_size": 11}
NMT = {
    "layers": 2,
    "units": 6,
    "batch_size": 3,
    "source_steps": 4,
    "target_steps": 3,
    "vocabulary_size": 11,
}
TRANSFORMER = {
    "layers": 2,
    "units": 8,
    "heads": 2,
    "inner_units": 12,
    "batch_size": 3,
    "source_steps": 4,
    "target_steps": 5,
    "vocabulary_size": 11,
}


@pytest.fixture(scope="module")
def rnnlm() -> CapturedStep:
    return capture_workload("rnnlm", **RNNLM)


@pytest.fixture(scope="module")
def nmt() -> CapturedStep:
    return capture_workload("nmt", **NMT)


@pytest.fixture(scope="module")
def inception() -> CapturedStep:
    return capture_workload("inception_v3", batch_size=2, image_size=75, classes=5)


@pytest.fixture(scope="module")
def resnet() -> CapturedStep:
    return capture_workload("resnet50", batch_size=3, image_size=64, classes=5)


@pytest.fixture(scope="module")
def small_transformer() -> CapturedStep:
    return capture_workload("transformer", **TRANSFORMER)


@pytest.fixture(params=list(WORKLOADS))
def step(request, rnnlm, nmt, inception, resnet, small_transformer) -> CapturedStep:
    steps = dict(zip(WORKLOADS, (rnnlm, nmt, inception, resnet, small_transformer), strict=True))
    return steps[request.param]


def modules(graph: OpGraph) -> set[str]:
    return {op.module for op in graph.ops}


def types_in(graph: OpGraph, module: str) -> set[str]:
    return {op.type for op in graph.ops if op.module == module}


def bytes_in_variables(graph: OpGraph) -> int:
    return int(graph.memory_bytes.sum())


def test_every_op_has_a_module(step):
    assert [op.name for op in step.op_graph.ops if not op.module] == []
    assert all(op.module.count("/") == 1 for op in step.op_graph.ops)


def test_every_op_may_run_on_either_kind_of_device(step):
    assert [op.name for op in step.op_graph.ops if op.device_kinds != ("CPU", "GPU")] == []


def test_every_shape_is_known(step):
    shapes = [shape for op in step.op_graph.ops for shape in op.output_shapes]

    assert min(size for shape in shapes for size in shape) >= 0


def test_no_op_is_told_to_be_with_another_but_for_a_variables_handle(step):
    graph = step.op_graph

    for ops in graph.colocations:
        handles = [graph.ops[op].name for op in ops if graph.ops[op].type == "VarHandleOp"]
        # One, unless an optimiser keeps more of the same variable.
        variable = min(handles, key=len)
        assert all(name == variable or name.startswith(f"{variable}/") for name in handles)
        assert len({graph.ops[op].module for op in ops}) == 1


def test_the_loss_starts_at_ignorance_and_falls(step):
    found = losses(step, 4)

    # Near-zero logits give each of C classes the probability 1 / C; those after a normalised
    # layer are not so small, but below a few units.
    is_normalised = not step.name.startswith(("rnnlm", "nmt"))
    num_classes = 5 if step.name.startswith(("inception", "resnet")) else 11
    tolerance = 2.0 if is_normalised else 0.3
    assert found[0] == pytest.approx(math.log(num_classes), abs=tolerance)
    assert found[-1] < found[0]


def test_rnnlm_has_a_module_for_each_step_of_each_layer(rnnlm):
    expected = {f"layer_{layer}/step_{step}" for layer in range(2) for step in range(4)}
    expected |= {f"layer_1/softmax_step_{step}" for step in range(4)}
    expected |= {f"layer_{layer}/step_variables" for layer in range(2)}
    expected |= {"layer_0/embedding", "layer_1/softmax"}

    assert modules(rnnlm.op_graph) == expected


def test_nmt_keeps_attention_and_softmax_with_the_last_layer(nmt):
    expected = {f"layer_{layer}/encoder_step_{step}" for layer in range(2) for step in range(4)}
    expected |= {f"layer_{layer}/decoder_step_{step}" for layer in range(2) for step in range(3)}
    expected |= {f"layer_1/attention_step_{step}" for step in range(3)}
    expected |= {f"layer_1/softmax_step_{step}" for step in range(3)}
    expected |= {
        f"layer_{layer}/{side}_step_variables"
        for layer in range(2)
        for side in ("encoder", "decoder")
    }
    expected |= {"layer_0/source_embedding", "layer_0/target_embedding"}
    expected |= {"layer_1/attention", "layer_1/softmax"}

    assert modules(nmt.op_graph) == expected


def test_the_gradients_of_a_step_are_with_the_step(rnnlm):
    for step in range(4):
        types = types_in(rnnlm.op_graph, f"layer_1/step_{step}")
        assert {"MatMul", "Sigmoid", "Tanh", "SigmoidGrad", "TanhGrad", "BiasAddGrad"} <= types


def test_variables_are_with_their_updates(rnnlm):
    types = types_in(rnnlm.op_graph, "layer_0/step_variables")

    assert {"VarHandleOp", "ReadVariableOp", "AddN", "ResourceApplyGradientDescent"} <= types
    assert "ResourceScatterSub" in types_in(rnnlm.op_graph, "layer_0/embedding")


def test_rnnlm_holds_the_bytes_that_its_sizes_say(rnnlm):
    layers, units, batch, steps, words = RNNLM.values()
    floats = words * units  # embedding
    floats += layers * (2 * units * 4 * units + 4 * units + units)  # LSTM, zeros
    floats += units * words + words  # softmax

    assert bytes_in_variables(rnnlm.op_graph) == 4 * floats + 8 * 2 * batch * steps


def test_nmt_holds_the_bytes_that_its_sizes_say(nmt):
    layers, units, batch, source, target, words = NMT.values()
    floats = 2 * words * units  # embeddings
    floats += 2 * layers * (2 * units * 4 * units + 4 * units)  # LSTM
    floats += layers * units  # the encoder's zeros
    floats += units * units * (1 + 1 + 2) + units  # attention
    floats += units * words + words  # softmax

    assert bytes_in_variables(nmt.op_graph) == 4 * floats + 8 * batch * (source + 2 * target)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def numpy_unroll(session, name, inputs, state):
    kernel, bias = (value_of(session, f"{name}_variables/{part}") for part in ("kernel", "bias"))
    hidden, cell = state
    outputs = []
    for vectors in inputs:
        gates = np.hstack([vectors, hidden]) @ kernel + bias
        enter, forget, candidate, leave = np.split(gates, 4, axis=1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
        hidden = sigmoid(leave) * np.tanh(cell)
        outputs.append(hidden)
    return outputs, (hidden, cell)


def numpy_loss(session, outputs, words):
    kernel, bias = (value_of(session, f"layer_1/softmax/{part}") for part in ("kernel", "bias"))
    losses_of_step = []
    for step, hidden in enumerate(outputs):
        logits = hidden @ kernel + bias
        right = logits[np.arange(len(hidden)), words[:, step]]
        losses_of_step.append(np.mean(np.log(np.exp(logits).sum(axis=1)) - right))
    return np.mean(losses_of_step)


def test_rnnlm_computes_what_numpy_does(rnnlm):
    with opened(rnnlm) as session:
        run_step(session, rnnlm)  # so that biases and all else have moved
        words, next_words = (value_of(session, f"input/{name}") for name in ("words", "next_words"))
        outputs = list(value_of(session, "layer_0/embedding/table")[words].swapaxes(0, 1))
        zeros = np.zeros((3, 8))
        for layer in range(2):
            outputs, _ = numpy_unroll(session, f"layer_{layer}/step", outputs, (zeros, zeros))
        expected = numpy_loss(session, outputs, next_words)

        assert run_step(session, rnnlm) == pytest.approx(expected, rel=1e-5)


def numpy_attend(session, source, target):
    source_kernel, target_kernel, score_kernel, output_kernel = (
        value_of(session, f"layer_1/attention/{part}_kernel")
        for part in ("source", "target", "score", "output")
    )
    states = np.stack(source, axis=1)
    vectors = []
    for hidden in target:
        energy = np.tanh(states @ source_kernel + (hidden @ target_kernel)[:, None])
        shares = np.exp(energy @ score_kernel)
        context = (states * shares / shares.sum(axis=1, keepdims=True)).sum(axis=1)
        vectors.append(np.tanh(np.hstack([context, hidden]) @ output_kernel))
    return vectors


def test_nmt_computes_what_numpy_does(nmt):
    with opened(nmt) as session:
        run_step(session, nmt)
        source, target, next_target = (
            list(value_of(session, f"layer_0/{side}_embedding/table")[words].swapaxes(0, 1))
            if side
            else words
            for side, words in (
                ("source", value_of(session, "input/source")),
                ("target", value_of(session, "input/target")),
                ("", value_of(session, "input/next_target")),
            )
        )
        zeros = np.zeros((3, 6))
        for layer in range(2):
            name = f"layer_{layer}"
            source, state = numpy_unroll(session, f"{name}/encoder_step", source, (zeros, zeros))
            target, _ = numpy_unroll(session, f"{name}/decoder_step", target, state)
        expected = numpy_loss(session, numpy_attend(session, source, target), next_target)

        assert run_step(session, nmt) == pytest.approx(expected, rel=1e-5)


def test_equal_sizes_give_equal_graphs(rnnlm):
    again = capture_workload("rnnlm", **RNNLM)

    assert again.graph_def == rnnlm.graph_def
    assert again.op_graph == rnnlm.op_graph


def test_inceptions_units_are_its_blocks(inception):
    units = {module.split("/")[0] for module in modules(inception.op_graph)}

    assert units == {"stem", "head", *(f"mixed{number}" for number in range(11))}


def test_inceptions_parts_are_its_94_convolutions_with_normalisation_and_activation(inception):
    parts = [module for module in modules(inception.op_graph) if "/conv2d" in module]

    assert len(parts) == 94
    for part in parts:
        types = types_in(inception.op_graph, part)
        assert {"Conv2D", "Conv2DBackpropFilter", "Rsqrt", "Relu", "ReluGrad"} <= types
        assert {"VarHandleOp", "ResourceApplyGradientDescent"} <= types


def test_inception_holds_kerass_variables(inception):
    # Keras counts 23,851,784 parameters with 1,000 classes; 995 of 2,048 + 1 each are not here.
    # The images are 2 × 75 × 75 × 3 floats, the labels 2 integers of 8 bytes.
    num_parameters = 23_851_784 - 995 * (2048 + 1)
    inputs_bytes = 4 * 2 * 75 * 75 * 3 + 8 * 2

    assert bytes_in_variables(inception.op_graph) == 4 * num_parameters + inputs_bytes


def test_inceptions_names_do_not_depend_on_what_keras_made_before():
    sizes = inception_v3.InceptionV3Sizes(batch_size=1, image_size=75, classes=2)

    rules = [inception_v3.build(sizes).module_of_op for _ in range(2)]

    for rule in rules:
        assert rule("inception_v3_1/conv2d_1/convolution") == "stem/conv2d"
        assert rule("inception_v3_1/conv2d_1_2/convolution") == "stem/conv2d_1"
        assert rule("gradient_tape/inception_v3_1/conv2d_93_1/Conv2D") == "mixed10/conv2d_93"
        assert rule("batch_normalization_5/beta/update/alpha") == "mixed0/conv2d_5"
        assert rule("AddN_3") == ""


def test_a_layer_belongs_to_the_block_that_ends_after_it():
    names = ["conv2d", "max_pooling2d", "max_pooling2d_1", "activation_5", "mixed0", "mixed9_0"]
    names += ["mixed9", "predictions"]

    found = inception_v3.module_of_layer(names)

    assert list(found.values()) == [
        "stem/conv2d",
        "stem/max_pooling2d",
        "stem/max_pooling2d_1",
        "mixed0/conv2d_5",
        "mixed0/mixed0",
        "mixed9/mixed9_0",
        "mixed9/mixed9",
        "head/predictions",
    ]


def test_resnets_units_are_the_blocks_of_the_published_table(resnet):
    units = {module.split("/")[0] for module in modules(resnet.op_graph)}

    assert units == {"stem", *resnet_blocks(), "head"}


def test_resnets_parts_are_its_53_convolutions_with_normalisation_and_update(resnet):
    # 49 of table 1, and a projection around the first block of each of four stages.
    parts = [module for module in modules(resnet.op_graph) if "/conv" in module or "/sh" in module]

    assert len(parts) == 53
    for part in parts:
        types = types_in(resnet.op_graph, part)
        assert {"Conv2D", "Conv2DBackpropFilter", "FusedBatchNormV3"} <= types
        assert {"FusedBatchNormGradV3", "AssignSubVariableOp", "ResourceApplyMomentum"} <= types


def test_resnet_holds_the_published_parameters_and_their_velocities():
    step = capture_workload("resnet50", "paper")

    # 25,557,032 parameters (torchvision's count; Keras's 25,636,712 has 26,560 biases and the
    # 53,120 averages on top), one velocity each. Images and labels are inputs.
    floats = 2 * 25_557_032 + 53_120 + 32 * 224 * 224 * 3

    assert bytes_in_variables(step.op_graph) == 4 * floats + 8 * 32
    # The published network multiplies 3.8e9 times for an image.
    assert multiplications(step.op_graph) / 32 == pytest.approx(3.8e9, rel=0.02)


def multiplications(graph: OpGraph) -> int:
    """Of the convolutions: places of the output times numbers in the kernel."""
    found = 0
    for op, each in enumerate(graph.ops):
        if each.type == "Conv2D":
            inputs = [graph.ops[producer] for producer in graph.predecessors[op]]
            (shape,) = (one.output_shapes[0] for one in inputs if f"{each.module}/R" in one.name)
            found += math.prod(each.output_shapes[0][:3]) * math.prod(shape)
    return found


def test_the_transformer_has_a_part_for_each_matrix_of_each_layer(small_transformer):
    attention = ("query", "key", "value", "attention", "output")
    expected = {"embedding/table", "embedding/source", "embedding/target"}
    expected |= {"softmax/projection", "softmax/loss"}
    for layer in range(2):
        expected |= {
            f"{side}coder_{layer}/self_{part}" for side in ("en", "de") for part in attention
        }
        expected |= {f"decoder_{layer}/cross_{part}" for part in attention}
        expected |= {
            f"{side}coder_{layer}/{part}" for side in ("en", "de") for part in ("inner", "outer")
        }

    assert modules(small_transformer.op_graph) == expected


def test_the_transformer_holds_the_published_parameters_and_two_moments_of_each():
    step = capture_workload("transformer", "paper")

    # Vaswani et al. (2017), table 3: 65 million; 63,045,632 with no bias in the attentions.
    attention, norm = 4 * 512 * 512, 2 * 512
    feed_forward = 2 * 512 * 2048 + 2048 + 512
    num_parameters = 37_000 * 512
    num_parameters += 6 * (attention + feed_forward + 2 * norm)
    num_parameters += 6 * (2 * attention + feed_forward + 3 * norm)
    words_bytes = 8 * 64 * 3 * 48

    assert num_parameters == 63_045_632
    assert bytes_in_variables(step.op_graph) == 3 * 4 * num_parameters + words_bytes


@pytest.mark.parametrize("name", ["resnet50", "transformer"])
def test_a_step_changes_every_variable(name, resnet, small_transformer):
    step = {"resnet50": resnet, "transformer": small_transformer}[name]
    graph = step.op_graph
    variables = [
        op.name for op in graph.ops if op.type == "VarHandleOp" and not op.name.startswith("input/")
    ]
    # ResNet: 53 kernels, scales and offsets, 2 of the classifier, a velocity of each, and two
    # averages of 53. Transformer: 6 of each of 4 attentions in layers of the encoder and 2
    # decoders, 6 of each feed-forward network, the table, and two moments of each.
    num_trainable = {"resnet50": 3 * 53 + 2, "transformer": 6 * (2 + 4) + 6 * 4 + 1}[name]
    num_variables = {"resnet50": 2 * num_trainable + 2 * 53, "transformer": 3 * num_trainable}

    with opened(step) as session:
        before = values_of(session, variables)
        run_step(session, step)
        after = values_of(session, variables)
    unchanged = [name for name in variables if np.array_equal(before[name], after[name])]

    assert len(variables) == num_variables[name]
    assert unchanged == []


def numpy_norm(values, part, vectors):
    scale, offset = (values[f"{part}/{what}"] for what in ("scale", "offset"))
    centred = vectors - vectors.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    return centred / deviation * scale + offset


def numpy_softmax(scores):
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def numpy_multi_head(values, name, vectors, others, *, only_earlier=False):
    query, key, value, output = (
        values[f"{name}_{part}/kernel"] for part in ("query", "key", "value", "output")
    )
    seen = []
    for head in range(2):
        of_head = slice(4 * head, 4 * head + 4)
        scores = (vectors @ query[:, of_head]) @ (others @ key[:, of_head]).swapaxes(1, 2) / 2
        if only_earlier:
            scores = np.where(np.tri(*scores.shape[1:], dtype=bool), scores, -np.inf)
        seen.append(numpy_softmax(scores) @ (others @ value[:, of_head]))
    total = vectors + np.concatenate(seen, axis=-1) @ output
    return numpy_norm(values, f"{name}_output", total)


def numpy_feed_forward(values, unit, vectors):
    inner, outer = (
        (values[f"{unit}/{part}/kernel"], values[f"{unit}/{part}/bias"])
        for part in ("inner", "outer")
    )
    total = vectors + np.maximum(vectors @ inner[0] + inner[1], 0) @ outer[0] + outer[1]
    return numpy_norm(values, f"{unit}/outer", total)


def numpy_embedded(table, words):
    vectors = table[words] * math.sqrt(8)
    for position in range(words.shape[1]):
        for unit in range(4):
            angle = position / 10_000 ** (2 * unit / 8)
            vectors[:, position, unit] += math.sin(angle)
            vectors[:, position, 4 + unit] += math.cos(angle)
    return vectors


def test_the_transformer_computes_what_numpy_does(small_transformer):
    step = small_transformer
    with opened(step) as session:
        run_step(session, step)
        values = values_of(
            session, [op.name for op in step.op_graph.ops if op.type == "VarHandleOp"]
        )
        table = values["embedding/table"]
        source, target, right = (
            values[f"input/{name}"] for name in ("source", "target", "next_target")
        )
        source, target = numpy_embedded(table, source), numpy_embedded(table, target)
        for layer in range(2):
            source = numpy_multi_head(values, f"encoder_{layer}/self", source, source)
            source = numpy_feed_forward(values, f"encoder_{layer}", source)
        for layer in range(2):
            unit = f"decoder_{layer}"
            target = numpy_multi_head(values, f"{unit}/self", target, target, only_earlier=True)
            target = numpy_multi_head(values, f"{unit}/cross", target, source)
            target = numpy_feed_forward(values, unit, target)
        log_shares = np.log(numpy_softmax(target @ table.T))
        # A tenth of each label is spread over all eleven words.
        of_right = np.take_along_axis(log_shares, right[..., np.newaxis], axis=-1)
        expected = -0.9 * of_right.mean() - 0.1 * log_shares.mean()

        assert run_step(session, step) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["resnet50", "transformer"])
def test_the_expert_places_units_in_the_order_of_the_forward_pass(name, resnet, small_transformer):
    step = {"resnet50": resnet, "transformer": small_transformer}[name]
    units = {
        "resnet50": ["stem", *resnet_blocks(), "head"],
        "transformer": ["embedding", *layers_of("encoder"), *layers_of("decoder"), "softmax"],
    }[name]
    graph = step.op_graph
    costs = OpCosts(
        ("GPU",),
        np.ones((graph.num_ops, 1)),
        np.zeros((graph.num_ops, 1), dtype=np.bool_),
        np.zeros(graph.num_ops, dtype=np.int64),
    )
    profile = Profile(graph, costs, DeviceTopology.uniform(len(units), Link(1e9)))
    grouping = group_ops(profile).grouping

    placed = expert(profile, grouping)[grouping.group_of_op]

    for op, device in zip(graph.ops, placed.tolist(), strict=True):
        assert op.module.split("/")[0] == units[device]


def resnet_blocks() -> list[str]:
    counts = {2: 3, 3: 4, 4: 6, 5: 3}  # He et al. (2016), table 1
    return [f"conv{stage}_{number + 1}" for stage in counts for number in range(counts[stage])]


def layers_of(side: str) -> list[str]:
    return [f"{side}_{number}" for number in range(2)]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("conv2_1/conv_1/Conv2D", "conv2_1/conv_1"),
        ("gradient_tape/conv5_3/conv_3/Conv2DBackpropInput", "conv5_3/conv_3"),
        ("conv3_1/shortcut/moving_mean", "conv3_1/shortcut"),
        ("stem/pool/MaxPool", "stem/pool"),
        ("AddN_3", ""),
    ],
)
def test_names_of_resnets_ops_tell_their_module(name, module):
    assert resnet50.module_of_op(name) == module


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("encoder_0/self_query/kernel/mean", "encoder_0/self_query"),
        ("gradient_tape/decoder_11/cross_attention/MatMul", "decoder_11/cross_attention"),
        ("embedding/table", "embedding/table"),
        ("softmax/loss/Mean", "softmax/loss"),
        ("input/source", ""),
    ],
)
def test_names_of_the_transformers_ops_tell_their_module(name, module):
    assert transformer.module_of_op(name) == module


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("layer_0/step_12/MatMul", "layer_0/step_12"),
        ("gradient_tape/layer_10/step_1/mul/Mul_1", "layer_10/step_1"),
        ("ConstantFolding/gradient_tape/layer_0/step_3/Shape-folded-0", "layer_0/step_3"),
        ("layer_1/softmax/kernel/update/ResourceApplyGradientDescent", "layer_1/softmax"),
        ("AddN_7", ""),
        ("input/words", ""),
    ],
)
def test_names_of_lstm_ops_tell_their_module(name, module):
    assert module_of_op(name) == module


def test_a_step_is_called_by_its_workload_and_what_differs(rnnlm):
    expected = "rnnlm-small,batch_size=3,layers=2,steps=4,units=8,vocabulary_size=11"

    assert rnnlm.name == expected


def test_each_workload_has_a_small_and_a_paper_size():
    for workload in WORKLOADS.values():
        assert set(workload.sizes) == {"small", "paper"}
        assert workload.title
    paper = WORKLOADS["rnnlm"].sizes["paper"]
    assert (paper.layers, paper.units, paper.batch_size, paper.steps) == (2, 2048, 64, 40)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "rnnml"}, "unknown workload 'rnnml'; did you mean 'rnnlm'"),
        ({"name": "rnnlm", "size": "papers"}, "'papers'; did you mean 'paper'"),
        ({"name": "nmt", "batchsize": 3}, "'batchsize'; did you mean 'batch_size'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(arguments, message):
    with pytest.raises(UnknownNameError, match=message):
        capture_workload(**arguments)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("rnnlm", {"layers": 0}, "layers must be a whole number of at least 1, got 0"),
        ("nmt", {"units": -3}, "units must be a whole number of at least 1, got -3"),
        ("nmt", {"units": 1.5}, "units must be a whole number of at least 1, got 1.5"),
        ("rnnlm", {"steps": True}, "steps must be a whole number of at least 1, got True"),
        ("inception_v3", {"image_size": 74}, "image_size must be a whole number of at least 75"),
        ("resnet50", {"image_size": 31}, "image_size must be a whole number of at least 32"),
        ("transformer", {"units": 250}, "units must be an even multiple of the 4 heads, got 250"),
        ("transformer", {"units": 9, "heads": 3}, "an even multiple of the 3 heads, got 9"),
    ],
)
def test_a_size_that_cannot_be_is_refused(name, sizes, message):
    with pytest.raises(InvalidValueError, match=message):
        capture_workload(name, **sizes)
