"""The knobs of ONNX Runtime on the CPU: names, finite values, defaults, and what each one sets.

ONNX Runtime publishes no such list and validates hardly any value (a bad `mlas.*` value even aborts
the process), so the list is kept here and checked against the installed runtime by
`onnxruntime_probe.validate_catalogue`. Sources: the runtime's session-option headers and optimiser
registry (microsoft/onnxruntime, include/onnxruntime/core/session and onnxruntime/core/optimizer).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpt_search.domain.knob import Knob, KnobDatabase

Sends = dict[str, str | int | bool | None]
ON_OFF = ("on", "off")
OFF_ON = ("off", "on")


class Target(enum.Enum):
    """What a setting is handed to."""

    CONFIG = "a session config entry"
    OPTION = "an attribute of SessionOptions"
    RUN = "a run config entry"
    PASS = "a step of our own before the session is made"


class Role(enum.Enum):
    """Where a setting's effect shows, which decides whether the fingerprint must name it."""

    GRAPH = "in the optimised graph only"
    RUNTIME = "in speed or bits, with the same graph"
    BUILD = "in the time that a build takes only"


@dataclass(frozen=True)
class Setting:
    """A knob that is not an optimiser switch. sends: knob value -> what the target gets; None sets nothing."""

    name: str
    sends: Mapping[str, str | int | bool | None]
    default: str
    target: Target
    key: str
    role: Role
    help: str

    @property
    def knob(self) -> Knob:
        """The knob as the database lists it."""
        return Knob(self.name, tuple(self.sends), self.default, self.help)


# Rewrite rules: they run inside Level1_RuleBasedTransformer and Level2_RuleBasedTransformer.
RULES: dict[str, str] = {
    "EliminateIdentity": "Removes Identity nodes.",
    "EliminateSlice": "Removes Slice nodes that keep everything.",
    "UnsqueezeElimination": "Folds Unsqueeze of a constant into the constant.",
    "EliminateDropout": "Removes Dropout nodes, which do nothing at inference.",
    "ExpandElimination": "Removes Expand nodes that do not change the shape.",
    "CastElimination": "Removes casts to the type that the tensor has already.",
    "CastChainElimination": "Shortens chains of casts; needs session:cast_chain_elimination=on to be registered.",
    "PreShapeNodeElimination": "Removes nodes before Shape that cannot change the shape.",
    "NoopElimination": "Removes arithmetic that does nothing: adding 0, multiplying by 1.",
    "DivMulFusion": "Turns (1 / x) * y into y / x.",
    "FuseReluClip": "Merges Relu into a Clip that follows it.",
    "GemmSumFusion": "Turns Gemm followed by Sum into a Gemm with a bias.",
    "GemmTransposeFusion": "Lets Gemm read or write transposed matrices instead of a Transpose node.",
    "NotWhereFusion": "Removes Not before Where by swapping the branches.",
    "ConvAddFusion": "Folds an Add of constants into the bias of the Conv before it.",
    "ConvMulFusion": "Folds a Mul by constants into the weights of the Conv before it.",
    "ConvBNFusion": "Folds batch normalisation into the weights of the Conv before it.",
    "Pad_Fusion": "Moves a Pad into the padding of the Conv or pooling node after it.",
    "MatMul_BatchNormalization_Fusion": "Folds batch normalisation into the weights of the MatMul before it.",
    "LabelEncoderFusion": "Merges two LabelEncoder nodes in a row.",
    "ClipQuantRewrite": "Removes Clip before QuantizeLinear when quantisation clips as much anyway.",
    "ReluQuantRewrite": "Removes Relu before QuantizeLinear when quantisation clips at zero anyway.",
}

# Graph transformers, in the order in which they run.
TRANSFORMERS: dict[str, str] = {
    "Level1_RuleBasedTransformer": "Runs all rewrite rules of level 1 (see the knobs rule:*).",
    "DoubleQDQPairsRemover": "Removes the inner of two quantise/dequantise pairs in a row.",
    "ConstantSharing": "Lets equal small constants share one initializer.",
    "CommonSubexpressionElimination": "Computes equal subexpressions once.",
    "ConstantFolding": "Computes nodes whose inputs are all constant while building.",
    "MatMulAddFusion": "Turns MatMul followed by Add into Gemm.",
    "ReshapeFusion": "Replaces a shape that is computed from Shape, Gather and Concat by a constant with 0 and -1.",
    "FreeDimensionOverrideTransformer": "Writes fixed sizes in place of symbolic dimensions (see input:free_dims).",
    "SliceConcatToSpaceToDepthFusion": "Turns strided Slices joined by Concat into SpaceToDepth.",
    "GeluFusionL1": "Fuses GELU into ONNX's own Gelu (opset 20 and later).",
    "LayerNormFusionL1": "Fuses layer normalisation into ONNX's own LayerNormalization (opset 17 and later).",
    "QDQPropagationTransformer": "Moves quantise/dequantise pairs past nodes that only move data.",
    "WeightBiasQuantization": "Quantises float weights and biases of nodes whose inputs are quantised.",
    "WhereDummyDq": "Adds a dequantise node to the constant branch of Where, so that the node can be quantised.",
    "DQMatMulNBitsFusion": "Fuses dequantised 4-bit weights into MatMulNBits; needs session:dq_matmulnbits=on.",
    "TransposeOptimizer": "Pushes Transpose nodes through the graph until they cancel.",
    "Level2_RuleBasedTransformer": "Runs all rewrite rules of level 2 (ClipQuantRewrite, ReluQuantRewrite and others).",
    "TransposeOptimizer_CPUExecutionProvider": "Pushes Transpose nodes again, knowing what the CPU kernels can absorb.",
    "QDQS8ToU8Transformer": "Turns signed 8-bit quantised activations into unsigned ones, which x86 kernels prefer.",
    "QDQSelectorActionTransformer": "Replaces dequantise, float node, quantise by one integer kernel.",
    "GemmActivationFusion": "Merges an activation into the Gemm before it.",
    "MatMulIntegerToFloatFusion": "Merges MatMulInteger with the scaling after it.",
    "DynamicQuantizeMatMulFusion": "Merges dynamic quantisation of the input with the integer MatMul after it.",
    "ConvActivationFusion": "Merges an activation into the Conv before it.",
    "GeluFusionL2": "Fuses the GELU pattern into one contrib Gelu node.",
    "LayerNormFusionL2": "Fuses the layer normalisation pattern into one node.",
    "SimplifiedLayerNormFusion": "Fuses the RMS normalisation pattern into one node.",
    "AttentionFusion": "Fuses a whole multi-head attention block into one node.",
    "EmbedLayerNormFusion": "Fuses embedding lookups, their sum and its normalisation into one node.",
    "GatherSliceToSplitFusion": "Turns several Gather or Slice nodes over one tensor into Split.",
    "GatherToSliceFusion": "Turns a Gather of consecutive indices into Slice.",
    "MatmulTransposeFusion": "Lets MatMul read transposed operands instead of a Transpose node.",
    "BiasGeluFusion": "Merges a bias Add with the GELU after it.",
    "GroupQueryAttentionFusion": "Fuses rotary embedding and packed weights into grouped-query attention.",
    "SkipLayerNormFusion": "Merges a residual Add with the layer normalisation after it.",
    "BiasSkipLayerNormFusion": "Merges a bias Add into SkipLayerNormalization.",
    "FastGeluFusion": "Fuses the tanh form of GELU into one node.",
    "QuickGeluFusion": "Fuses x * sigmoid(a * x) into one node.",
    "SwiGluFusion": "Fuses the SwiGLU pattern into one node.",
    "GeluApproximation": "Replaces Gelu by its tanh approximation; needs session:gelu_approximation=on.",
    "BiasSoftmaxFusion": "Merges an Add of a mask with the Softmax after it.",
    "BiasDropoutFusion": "Merges bias, residual and Dropout.",
    "MatMulScaleFusion": "Folds a scaling by a constant into the MatMul beside it.",
    "MatMulActivationFusion": "Merges an activation into the MatMul before it.",
    "Avx2WeightS8ToU8Transformer": "Makes signed 8-bit weights unsigned; needs session:x64_quant_precision=on.",
    "MatMulNBitsFusion": "Merges a bias into MatMulNBits.",
    "GroupQueryAttentionPreNormFusion": "Merges the normalisation of query and key into grouped-query attention.",
    "QDQFinalCleanupTransformer": "Removes leftover quantise/dequantise pairs (see session:qdq_cleanup).",
    "NchwcTransformer": "Runs convolutions in the blocked NCHWc layout.",
    "NhwcTransformer": "Runs integer convolutions in the NHWC layout.",
    "ConvAddActivationFusion": "Merges a residual Add and an activation into the Conv before it.",
    "FuseFp16InitializerToFp32NodeTransformer": "Makes half-precision weights float where the node runs in float.",
}


def _flag(values: tuple[str, str] = OFF_ON, on: str = "1", off: str = "0") -> Sends:
    """A switch whose default (the first value) sets nothing."""
    sends: Sends = {"on": on, "off": off}
    sends[values[0]] = None
    return {v: sends[v] for v in values}


def _config(
    name: str, key: str, role: Role, text: str, sends: Mapping[str, str | int | bool | None] | None = None
) -> Setting:
    values = dict(sends) if sends is not None else _flag()
    return Setting(name, values, next(iter(values)), Target.CONFIG, key, role, text)


def _numbers(default: str, *values: str) -> Sends:
    """Numbers that are sent as they are, after the default, which sets nothing."""
    sends: Sends = {default: None}
    sends.update((v, v) for v in values)
    return sends


def _option(name: str, key: str, role: Role, text: str, sends: Mapping[str, str | int | bool | None]) -> Setting:
    return Setting(name, dict(sends), next(iter(sends)), Target.OPTION, key, role, text)


_THREADS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_BOOLEAN: dict[str, str | int | bool | None] = {"on": True, "off": False}
_SPIN_US = _numbers("default", "0", "50", "200", "1000", "5000")
_BACKOFF = _numbers("1", "2", "4", "8", "16", "64")

SETTINGS: tuple[Setting, ...] = (
    # -- before the session ------------------------------------------------------------------
    Setting(
        "model:quantize_dynamic",
        {v: v for v in ("off", "u8", "u8_per_channel", "s8", "s8_per_channel", "s8_reduced", "s8_per_channel_reduced")},
        "off", Target.PASS, "quantize", Role.GRAPH,
        "Quantises weights to 8 bits before building; activations are quantised while running. u8 or s8 weights, one "
        "scale per tensor or per channel; reduced keeps 7 bits, against saturation on CPUs without VNNI.",
    ),
    Setting(
        "model:quantize_scope", {v: v for v in ("all", "matmul")}, "all", Target.PASS, "scope", Role.GRAPH,
        "Which nodes model:quantize_dynamic quantises: every kind that it can, or MatMul only.",
    ),
    Setting(
        "input:free_dims", {v: v for v in ("open", "fixed")}, "open", Target.PASS, "free_dims", Role.GRAPH,
        "fixed writes the workload's shapes into the model's named symbolic dimensions: the engine takes only these.",
    ),
    # -- graph optimisation ------------------------------------------------------------------
    _option(
        "session:graph_level", "graph_optimization_level", Role.GRAPH,
        "How far the graph is optimised; a lower level makes the switches of the levels above it inert.",
        {"all": "ORT_ENABLE_ALL", "layout": "ORT_ENABLE_LAYOUT", "extended": "ORT_ENABLE_EXTENDED",
         "basic": "ORT_ENABLE_BASIC", "disable": "ORT_DISABLE_ALL"},
    ),
    _config("session:optimization_loops", "session.graph_optimizations_loop_level", Role.GRAPH,
            "Whether levels are run again after a later one changed the graph: 0 never, 1 after layout changes, 2 "
            "after any.", _numbers("1", "0", "2")),
    _config("session:minimal_build_optimizations", "optimization.minimal_build_optimizations", Role.GRAPH,
            "apply restricts extended optimisation to what a minimal build of the runtime contains.",
            {"off": None, "apply": "apply"}),
    _config("session:gelu_approximation", "optimization.enable_gelu_approximation", Role.GRAPH,
            "Allows GELU to be computed by its tanh approximation."),
    _config("session:cast_chain_elimination", "optimization.enable_cast_chain_elimination", Role.GRAPH,
            "Registers the rule CastChainElimination; may change rounding."),
    _config("session:constant_folding_limit", "optimization.constant_folding_max_output_size_in_bytes", Role.GRAPH,
            "Largest result in bytes that constant folding keeps; default is the runtime's own limit.",
            _numbers("default", "1", "1024", "65536", "1048576", "16777216")),
    _config("session:aot_inlining", "session.disable_aot_function_inlining", Role.GRAPH,
            "Whether the model's own functions are inlined before optimisation.", _flag(ON_OFF, off="1")),
    _config("session:strict_shape_inference", "session.strict_shape_type_inference", Role.BUILD,
            "Makes contradictions in shape inference errors instead of warnings."),
    # -- quantised models --------------------------------------------------------------------
    _config("session:qdq", "session.disable_quant_qdq", Role.GRAPH,
            "Whether quantise/dequantise pairs are turned into integer kernels.", _flag(ON_OFF, off="1")),
    _config("session:qdq_int8_allowed", "session.qdqisint8allowed", Role.GRAPH,
            "Keeps signed 8-bit activations signed instead of turning them into unsigned ones."),
    _config("session:qdq_cleanup", "session.enable_quant_qdq_cleanup", Role.GRAPH,
            "Removes quantise/dequantise pairs that are left over; changes rounding, usually to the better."),
    _config("session:double_qdq_remover", "session.disable_double_qdq_remover", Role.GRAPH,
            "Whether the inner of two quantise/dequantise pairs is removed.", _flag(ON_OFF, off="1")),
    _config("session:qdq_constant_folding", "session.disable_qdq_constant_folding", Role.GRAPH,
            "Whether constants behind quantise/dequantise pairs are folded.", _flag(ON_OFF, off="1")),
    _config("session:x64_quant_precision", "session.x64quantprecision", Role.GRAPH,
            "On x86 without VNNI: slower unsigned weights that cannot saturate."),
    _config("session:dq_matmulnbits", "session.enable_dq_matmulnbits_fusion", Role.GRAPH,
            "Fuses dequantised 4-bit weights with the MatMul that reads them."),
    _config("session:matmulnbits_accuracy", "session.qdq_matmulnbits_accuracy_level", Role.GRAPH,
            "Arithmetic of fused 4-bit MatMul: 1 float32, 2 float16, 3 bfloat16, 4 int8; 0 lets the kernel choose.",
            _numbers("4", "0", "1", "2", "3")),
    _config("session:matmulnbits_block", "session.qdq_matmulnbits_block_size", Role.GRAPH,
            "Block size of 4-bit weights that are fused from per-channel ones; default is the runtime's choice.",
            _numbers("default", "16", "32", "64", "128", "256")),
    # -- threads -----------------------------------------------------------------------------
    _option("session:execution_mode", "execution_mode", Role.RUNTIME,
            "parallel runs independent branches at once on the inter-op threads.",
            {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}),
    _option("session:execution_order", "execution_order", Role.RUNTIME,
            "Order of nodes in sequential mode: depth first, or by priority.",
            {"default": "DEFAULT", "priority": "PRIORITY_BASED"}),
    _option("session:intra_threads", "intra_op_num_threads", Role.RUNTIME,
            "Threads inside one node, the caller included; 0 is one per physical core, each pinned to its core.",
            {str(n): n for n in _THREADS}),
    _option("session:inter_threads", "inter_op_num_threads", Role.RUNTIME,
            "Threads across nodes in parallel mode; 0 is one per physical core.", {str(n): n for n in _THREADS}),
    _config("session:intra_spinning", "session.intra_op.allow_spinning", Role.RUNTIME,
            "Idle threads inside a node spin for a while before they sleep.", _flag(ON_OFF)),
    _config("session:inter_spinning", "session.inter_op.allow_spinning", Role.RUNTIME,
            "Idle threads across nodes spin for a while before they sleep.", _flag(ON_OFF)),
    _config("session:intra_spin_us", "session.intra_op.spin_duration_us", Role.RUNTIME,
            "How long threads inside a node spin, in microseconds.", _SPIN_US),
    _config("session:inter_spin_us", "session.inter_op.spin_duration_us", Role.RUNTIME,
            "How long threads across nodes spin, in microseconds.", _SPIN_US),
    _config("session:intra_spin_backoff", "session.intra_op.spin_backoff_max", Role.RUNTIME,
            "Largest pause, in pause instructions, between two looks for work inside a node.", _BACKOFF),
    _config("session:inter_spin_backoff", "session.inter_op.spin_backoff_max", Role.RUNTIME,
            "Largest pause, in pause instructions, between two looks for work across nodes.", _BACKOFF),
    _config("session:force_spinning_stop", "session.force_spinning_stop", Role.RUNTIME,
            "Stops spinning as soon as a call returns: idle CPU for a slower start of the next call."),
    _config("session:dynamic_block_base", "session.dynamic_block_base", Role.RUNTIME,
            "Splits loops into shrinking blocks, starting from an n-th of a thread's share; 0 splits evenly.",
            _numbers("0", "1", "2", "4", "8", "16")),
    # -- memory ------------------------------------------------------------------------------
    _option("session:mem_pattern", "enable_mem_pattern", Role.RUNTIME,
            "Plans all intermediate tensors in one block when shapes repeat.", _BOOLEAN),
    _option("session:mem_reuse", "enable_mem_reuse", Role.RUNTIME,
            "Lets intermediate tensors reuse each other's memory.", _BOOLEAN),
    _option("session:cpu_arena", "enable_cpu_mem_arena", Role.RUNTIME,
            "Takes tensor memory from an arena that is kept, instead of from the system each time.", _BOOLEAN),
    Setting("run:arena_shrinkage", {"off": None, "on": "cpu:0"}, "off", Target.RUN,
            "memory.enable_memory_arena_shrinkage", Role.RUNTIME,
            "Gives unused arena memory back after every call; inert without session:cpu_arena=on."),
    _config("session:initializer_allocator", "session.use_device_allocator_for_initializers", Role.RUNTIME,
            "Where weights are kept: arena, or device for an allocation of its own for each.",
            {"arena": None, "device": "1"}),
    _config("session:prepacking", "session.disable_prepacking", Role.RUNTIME,
            "Rearranges constant weights for the kernels while building.", _flag(ON_OFF, off="1")),
    _config("session:parallel_prepacking", "session.prepack.enable_parallel", Role.BUILD,
            "Rearranges weights on several threads."),
    # -- arithmetic and kernels --------------------------------------------------------------
    _config("session:denormal_as_zero", "session.set_denormal_as_zero", Role.RUNTIME,
            "Treats denormal floats as zero, in the calling thread too."),
    _option("session:deterministic_compute", "use_deterministic_compute", Role.RUNTIME,
            "Chooses deterministic kernels where there is a choice.", {"off": False, "on": True}),
    _config("session:kernel_dispatch_policy", "session.kernel_dispatch_policy", Role.RUNTIME,
            "What kernels favour where there is a choice.",
            {"default": None, "auto": "auto", "latency": "latency", "memory": "memory", "safe": "safe"}),
    _config("mlas:nchwc_depthwise_sliding", "mlas.nchwc_depthwise_sliding", Role.RUNTIME,
            "Sliding-window kernel for depthwise convolution in the NCHWc layout (AVX-512).", _flag(ON_OFF)),
    _config("mlas:nchwc_pointwise_batch", "mlas.nchwc_pointwise_conv_max_input_channel_batch", Role.RUNTIME,
            "Most input channels that a 1x1 convolution in the NCHWc layout takes at once.",
            _numbers("default", "16", "32", "64", "128", "256", "512")),
    _config("mlas:use_lut_gemm", "mlas.use_lut_gemm", Role.RUNTIME,
            "Table look-up kernels for MatMul with 2-bit weights."),
    _config("mlas:qnbit_force_fp32", "mlas.qnbit.force_fp32", Role.RUNTIME,
            "Computes MatMul with few-bit weights in float32."),
    _config("mlas:kleidiai", "mlas.disable_kleidiai", Role.RUNTIME,
            "Arm's KleidiAI kernels (Arm CPUs only).", _flag(ON_OFF, off="1")),
)  # fmt: skip

RULE_PREFIX = "rule:"
TRANSFORMER_PREFIX = "opt:"

# Optimisers that the runtime registers only when this setting has this value.
NEEDS: dict[str, tuple[str, str]] = {
    "CastChainElimination": ("session:cast_chain_elimination", "on"),
    "DQMatMulNBitsFusion": ("session:dq_matmulnbits", "on"),
    "GeluApproximation": ("session:gelu_approximation", "on"),
    "Avx2WeightS8ToU8Transformer": ("session:x64_quant_precision", "on"),
}


def optimizer_of(knob: str) -> str | None:
    """The runtime's name of the optimiser that a knob switches, or None for another knob."""
    for prefix in (RULE_PREFIX, TRANSFORMER_PREFIX):
        if knob.startswith(prefix):
            return knob[len(prefix) :]
    return None


@cache
def database_for(version: str) -> KnobDatabase:
    """The knob database for a version of the runtime, "onnxruntime-<version>"."""
    switches = [Knob(RULE_PREFIX + n, ON_OFF, "on", h) for n, h in RULES.items()]
    switches += [Knob(TRANSFORMER_PREFIX + n, ON_OFF, "on", h) for n, h in TRANSFORMERS.items()]
    return KnobDatabase.of(f"onnxruntime-{version}", [s.knob for s in SETTINGS] + switches)
