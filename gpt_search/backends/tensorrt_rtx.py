"""What only TensorRT-RTX has: its options as knobs, and engines for GPUs that are not here.

TensorRT-RTX has `all_build_routes`, always empty. What it lets a user choose is little, and it compiles kernels
on the GPU at run time, so some of it takes effect only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpt_search.backends.base import BuildError
from gpt_search.backends.tensorrt_options import MAX_OPTIMIZATION_LEVEL, TensorRTOptions
from gpt_search.domain.errors import InputError
from gpt_search.domain.knob import Knob, KnobDatabase
from gpt_search.domain.route import Route

if TYPE_CHECKING:
    import tensorrt_rtx as trt


_BY_KNOB = {
    "builder:optimization_level": "builder_optimization_level",
    "builder:tiling_optimization_level": "tiling_optimization_level",
    "builder:hardware_compatibility_level": "hardware_compatibility_level",
    "builder:tf32": "tf32",
    "builder:sparse_weights": "sparse_weights",
    "builder:l2_limit_for_tiling": "l2_limit_for_tiling",
    "builder:max_aux_streams": "max_aux_streams",
    "builder:max_num_tactics": "max_num_tactics",
    "runtime:cuda_graph_strategy": "cuda_graph_strategy",
    "runtime:dynamic_shapes_kernel_specialization_strategy": "dynamic_shapes_kernel_specialization_strategy",
}
"""RTX's knobs and the option that each stands for."""

_UNSET = "-1"  # TensorRT's own way of writing "let the builder decide"
_FROM_HEURISTIC = ("max_aux_streams", "max_num_tactics")


def set_targets(trt: Any, config: trt.IBuilderConfig, options: TensorRTOptions) -> None:
    """Sets the compute capabilities to build for. Raises InputError for one that this version cannot build for."""
    wanted = options.compute_capability
    if wanted is None:
        return
    known = {str(name): member for name, member in trt.ComputeCapability.__members__.items() if name != "NONE"}
    config.num_compute_capabilities = len(wanted)
    for index, text in enumerate(wanted):
        name = "CURRENT" if text == "current" else "SM" + text.replace(".", "")
        if name not in known:
            there = ", ".join(_shown(n) for n in known)
            raise InputError(
                f"TensorRT-RTX {trt.__version__} cannot build for compute capability {text}; it builds for {there}"
            )
        member = known[name]
        if not config.set_compute_capability(member, index) or config.get_compute_capability(index) != member:
            raise BuildError(f"TensorRT-RTX did not take compute capability {text}")


def _shown(name: str) -> str:
    return "current" if name == "CURRENT" else f"{name[2:-1]}.{name[-1]}"


def rtx_database(trt: Any, config: trt.IBuilderConfig) -> KnobDatabase:
    """RTX's options as knobs, values and defaults read from the installed library.

    The run-time strategies' defaults are those of the API's reference: the library tells them only of a
    loaded engine. An option that takes any number is open-ended, with the numbers that make sense first.
    """
    levels = tuple(str(n) for n in range(MAX_OPTIMIZATION_LEVEL + 1))
    knobs = [
        Knob(
            "builder:optimization_level",
            levels,
            str(config.builder_optimization_level),
            "how much the builder tries (IBuilderConfig.builder_optimization_level)",
        ),
        Knob(
            "builder:tiling_optimization_level",
            _names(trt.TilingOptimizationLevel),
            config.tiling_optimization_level.name.lower(),
            "how much the builder searches for tilings that stay in the L2 cache",
        ),
        Knob(
            "builder:tf32", ("on", "off"), _on(config.get_flag(trt.BuilderFlag.TF32)), "TF32 tensor cores for float32"
        ),
        Knob(
            "builder:sparse_weights",
            ("on", "off"),
            _on(config.get_flag(trt.BuilderFlag.SPARSE_WEIGHTS)),
            "kernels for structured sparsity",
        ),
        Knob(
            "runtime:cuda_graph_strategy",
            _names(trt.CudaGraphStrategy),
            "disabled",
            "capture of a CUDA graph inside the runtime; both sides of a pair are then enqueued on streams",
        ),
        Knob(
            "runtime:dynamic_shapes_kernel_specialization_strategy",
            _names(trt.DynamicShapesKernelSpecializationStrategy),
            "lazy",
            "when kernels for the shapes that are seen are compiled",
        ),
        _open("builder:l2_limit_for_tiling", config.l2_limit_for_tiling, "bytes of L2 cache that tilings may count on"),
        _open(
            "builder:max_aux_streams", config.max_aux_streams, "streams beside the main one, at most; -1: its choice"
        ),
        _open(
            "builder:max_num_tactics", config.max_num_tactics, "tactics timed for one layer, at most; -1: its choice"
        ),
    ]
    hardware = _hardware_levels(trt, config)
    if len(hardware) > 1:
        text = "GPUs that the engine may run on; fewer leave more kernels to choose from"
        knobs.insert(2, Knob("builder:hardware_compatibility_level", hardware, hardware[0], text))
    return KnobDatabase(f"tensorrt-rtx-{trt.__version__}", tuple(knobs))


def _hardware_levels(trt: Any, config: trt.IBuilderConfig) -> tuple[str, ...]:
    """The levels that the library takes, its default first; version 1.7 has them in its API and takes none."""
    default = config.hardware_compatibility_level
    taken = [default.name.lower()]
    for name, level in trt.HardwareCompatibilityLevel.__members__.items():
        config.hardware_compatibility_level = level
        if config.hardware_compatibility_level == level and level != default:
            taken.append(str(name).lower())
    config.hardware_compatibility_level = default
    return tuple(taken)


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(str(name).lower() for name in kind.__members__)


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _open(name: str, default: int, text: str) -> Knob:
    return Knob(name, (), str(default), text, open_ended=True, integer=True)


def with_knobs(options: TensorRTOptions, route: Route, database: KnobDatabase) -> TensorRTOptions:
    """The options with an RTX route's values in place. Raises BuildError for an unknown knob or a value not allowed."""
    changes: dict[str, object] = {}
    for name, value in route.items_in_order:
        try:
            why = database[name].check(value)
        except InputError as error:
            raise BuildError(str(error)) from None
        if why is not None:
            raise BuildError(f"knob {name!r}: {why}")
        option = _BY_KNOB[name]
        if option in _FROM_HEURISTIC and value == _UNSET:
            continue
        changes[option] = value
    try:
        return TensorRTOptions.parse(options.to_json() | changes)
    except InputError as error:
        raise BuildError(str(error)) from None


def knobs_given_as_options(values: object) -> list[str]:
    """Names of options that are knobs of TensorRT-RTX, each with the knob's name, for a message."""
    given = set(values) if isinstance(values, dict) else set()
    return [f"{option} (knob -{knob})" for knob, option in _BY_KNOB.items() if option in given]
