"""From an ONNX file and a route to TensorRT's serialised engine, every setting read back.

TensorRT's setters mostly log a refusal and go on with the default: a build that was not what was asked
for would be measured under another's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpt_search.backends.base import BuildError, MemoryLimitError
from gpt_search.backends.tensorrt_log import RouteLog
from gpt_search.backends.tensorrt_options import Profile, Range, Shape, TensorRTOptions
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.workload import Workload

if TYPE_CHECKING:
    import tensorrt as trt

_OUT_OF_MEMORY = ("out of memory", "outofmemory", "cudaerrormemoryallocation", "bad_alloc")


def parse_model(
    trt: Any, builder: trt.Builder, logger: trt.ILogger, workload: Workload, options: TensorRTOptions, log: RouteLog
) -> tuple[trt.INetworkDefinition, trt.OnnxParser]:
    """The model as a strongly typed network; keep the parser alive while the network is, it holds the weights.

    Raises BuildError naming every node that TensorRT cannot take, with the reason.
    """
    network = builder.create_network()  # strongly typed, always, from TensorRT 11 on
    parser = trt.OnnxParser(network, logger)
    if options.native_instancenorm:
        parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    else:
        parser.clear_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    # From the file, not from bytes: external weights are found beside it.
    if not parser.parse_from_file(str(workload.model)):
        errors = [parser_error(parser.get_error(i)) for i in range(parser.num_errors)]
        # The parser logs its own errors too; what others log, such as a file that is missing, stands there only.
        errors += [" ".join(e.split()) for e in log.errors if not e.startswith(("ModelImporter.cpp", "In node "))]
        raise BuildError("\n".join(["TensorRT cannot take this model:", *(errors or ["it gave no reason"])]))
    return network, parser


def parser_error(error: trt.ParserError) -> str:
    """One line: the node, its operator, what is wrong, and TensorRT's own code for it."""
    name = error.node_name()
    where = f"node {error.node()}" if error.node() >= 0 else "the model as a whole"
    if name:
        where += f" {name!r}"
    if error.node_operator():
        where += f" (operator {error.node_operator()})"
    inside = error.local_function_stack()
    if inside:
        where += f" in function {' > '.join(inside)}"
    code = error.code().name
    # A failed check shows its C++ condition; "false" stands for an operator that is not there at all.
    reason = error.desc().strip()
    reason = "TensorRT does not support this operator" if reason in ("", "false") else " ".join(reason.split())
    return f"{where}: {reason} [{code}]"


def add_profiles(
    builder: trt.Builder,
    config: trt.IBuilderConfig,
    network: trt.INetworkDefinition,
    workload: Workload,
    options: TensorRTOptions,
) -> None:
    """Adds the optimisation profiles, where the network has inputs of variable shape or shape tensors.

    Without the option `profiles`, and for inputs that it does not name, a range spans the workload's shape points.
    Raises InputError for a profile that does not fit the network, and for a shape point that none covers.
    """
    inputs = {t.name: t for t in (network.get_input(i) for i in range(network.num_inputs))}
    variable = [n for n, t in inputs.items() if t.is_shape_tensor or -1 in tuple(t.shape)]
    for profile in options.profiles:
        for name, given in profile.items():
            if name not in inputs:
                raise InputError(
                    f"TensorRT option profiles: the model has no input {name!r}{did_you_mean(name, inputs)} "
                    f"(it has {', '.join(inputs)})"
                )
            _check_range(name, given, inputs[name])
    shape_tensors = [n for n in variable if inputs[n].is_shape_tensor]
    for number, profile in enumerate(options.profiles or ({},)):
        added: trt.IOptimizationProfile | None = None
        for name in variable:
            asked = profile.get(name)
            if asked is None and name in shape_tensors:
                raise InputError(
                    f"input {name!r} is a shape tensor: its values decide what is built; give them with "
                    f"--option 'profiles=[{{\"{name}\": [[...], [...], [...]]}}]' (smallest, typical, largest values)"
                )
            if asked is None:
                asked = span_of(name, workload)
            added = builder.create_optimization_profile() if added is None else added
            if name in shape_tensors:
                added.set_shape_input(name, asked.min, asked.opt, asked.max)
            else:
                added.set_shape(name, asked.min, asked.opt, asked.max)
        if added is not None and config.add_optimization_profile(added) != number:
            raise BuildError(f"TensorRT did not take optimisation profile {number}")
    for shapes in workload.all_shapes:
        _check_covered({n: shapes[n] for n in variable if n not in shape_tensors}, options.profiles)


def span_of(name: str, workload: Workload) -> Range:
    """The range of an input over all shape points of the workload; typical is the point of the largest weight."""
    shapes = [point[name] for point in workload.all_shapes]
    heaviest = max(range(len(shapes)), key=lambda i: workload.weights[i])  # the first of equal ones
    sizes = list(zip(*shapes, strict=True))
    return Range(tuple(map(min, sizes)), shapes[heaviest], tuple(map(max, sizes)))


def _check_range(name: str, given: Range, tensor: trt.ITensor) -> None:
    shape = tuple(tensor.shape)
    if tensor.is_shape_tensor:
        if len(given.opt) != math.prod(shape):
            raise InputError(
                f"input {name!r} is a shape tensor of {math.prod(shape)} values; {len(given.opt)} were given"
            )
        return
    for one in (given.min, given.opt, given.max):
        if len(one) != len(shape) or any(want not in (-1, got) for want, got in zip(shape, one, strict=True)):
            model = "x".join("?" if n == -1 else str(n) for n in shape) or "a scalar"
            raise InputError(
                f"TensorRT option profiles: input {name!r} is {model} in the model, not {'x'.join(map(str, one))}"
            )


def _check_covered(shapes: Mapping[str, Shape], profiles: tuple[Profile, ...]) -> None:
    if profiles and not any(all(_within(shapes[n], r) for n, r in p.items() if n in shapes) for p in profiles):
        given = ", ".join(f"{n} {'x'.join(map(str, s))}" for n, s in shapes.items())
        raise InputError(
            f"no optimisation profile covers what is to be timed: {given}; change --shape, --point or profiles"
        )


def _within(shape: Shape, given: Range) -> bool:
    return len(shape) == len(given.min) and all(
        low <= n <= high for low, n, high in zip(given.min, shape, given.max, strict=True)
    )


def configure(trt: Any, config: trt.IBuilderConfig, options: TensorRTOptions) -> None:
    """Sets every option but the route, the cache and the profiles. Raises BuildError for what TensorRT did not take."""
    # The fingerprint is made of the inspector's answer, which holds tactics at this verbosity only.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    wanted: list[tuple[str, Any, Any]] = []
    if options.builder_optimization_level is not None:
        config.builder_optimization_level = options.builder_optimization_level
        wanted.append(
            ("builder_optimization_level", options.builder_optimization_level, config.builder_optimization_level)
        )
    if options.avg_timing_iterations is not None:
        config.avg_timing_iterations = options.avg_timing_iterations
        wanted.append(("avg_timing_iterations", options.avg_timing_iterations, config.avg_timing_iterations))
    if options.max_num_tactics is not None:
        config.max_num_tactics = options.max_num_tactics
        wanted.append(("max_num_tactics", options.max_num_tactics, config.max_num_tactics))
    if options.max_aux_streams is not None:
        config.max_aux_streams = options.max_aux_streams
        wanted.append(("max_aux_streams", options.max_aux_streams, config.max_aux_streams))
    if options.l2_limit_for_tiling is not None:
        config.l2_limit_for_tiling = options.l2_limit_for_tiling
        wanted.append(("l2_limit_for_tiling", options.l2_limit_for_tiling, config.l2_limit_for_tiling))
    if options.tiling_optimization_level is not None:
        tiling = _member(trt.TilingOptimizationLevel, "tiling_optimization_level", options.tiling_optimization_level)
        config.tiling_optimization_level = tiling
        wanted.append(("tiling_optimization_level", tiling, config.tiling_optimization_level))
    if options.hardware_compatibility_level is not None:
        hardware = _member(
            trt.HardwareCompatibilityLevel, "hardware_compatibility_level", options.hardware_compatibility_level
        )
        config.hardware_compatibility_level = hardware
        wanted.append(("hardware_compatibility_level", hardware, config.hardware_compatibility_level))
    for option, pool, size in (
        ("workspace_mib", trt.MemoryPoolType.WORKSPACE, _bytes(options.workspace_mib, 1 << 20)),
        ("tactic_dram_mib", trt.MemoryPoolType.TACTIC_DRAM, _bytes(options.tactic_dram_mib, 1 << 20)),
        (
            "tactic_shared_memory_kib",
            trt.MemoryPoolType.TACTIC_SHARED_MEMORY,
            _bytes(options.tactic_shared_memory_kib, 1 << 10),
        ),
    ):
        if size is not None:
            config.set_memory_pool_limit(pool, size)
            wanted.append((option, size, config.get_memory_pool_limit(pool)))
    if options.tactic_sources is not None:
        bits = 0
        for name in options.tactic_sources:
            bits |= 1 << int(_member(trt.TacticSource, "tactic_sources", name))
        config.set_tactic_sources(bits)
        wanted.append(("tactic_sources", bits, config.get_tactic_sources()))
    for option, flag in (
        ("tf32", trt.BuilderFlag.TF32),
        ("sparse_weights", trt.BuilderFlag.SPARSE_WEIGHTS),
        ("strict_nans", trt.BuilderFlag.STRICT_NANS),
        ("distributive_independence", trt.BuilderFlag.DISTRIBUTIVE_INDEPENDENCE),
        ("refit", trt.BuilderFlag.REFIT),
        ("refit_identical", trt.BuilderFlag.REFIT_IDENTICAL),
        ("version_compatible", trt.BuilderFlag.VERSION_COMPATIBLE),  # before the flag that depends on it
        ("exclude_lean_runtime", trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME),
        ("weight_streaming", trt.BuilderFlag.WEIGHT_STREAMING),
    ):
        on = bool(getattr(options, option))
        if on:
            config.set_flag(flag)
        else:
            config.clear_flag(flag)
        wanted.append((option, on, config.get_flag(flag)))
    if options.plugins and options.version_compatible:  # other engines cannot carry plugins with them
        config.plugins_to_serialize = [p.path for p in options.plugins]
    refused = [f"{name}: asked for {ask}, it has {got}" for name, ask, got in wanted if ask != got]
    if refused:
        raise BuildError("\n".join(["TensorRT did not take these options:", *refused]))


def _bytes(amount: float | None, unit: int) -> int | None:
    return None if amount is None else int(amount * unit)


def _member(kind: Any, option: str, name: str) -> Any:
    members = {str(n).lower(): m for n, m in kind.__members__.items()}
    if name not in members:
        raise InputError(
            f"TensorRT option {option}: {name!r} is not one of {', '.join(members)}{did_you_mean(name, members)}"
        )
    return members[name]


def set_route(config: trt.IBuilderConfig, route: str) -> None:
    """Sets the build route and reads it back: the setter drops the refusal of a name. Raises BuildError."""
    if not route:
        return
    config.build_route = route
    taken = config.build_route
    if taken != route:
        raise BuildError(
            f"TensorRT refused the build route: set to {route!r}, it reads back as {taken!r}, so the engine would be "
            "the default's"
        )


def load_plugins(registry: trt.IPluginRegistry, options: TensorRTOptions, loaded: set[str], log: RouteLog) -> None:
    """Loads the plugin libraries into this process, each once. Raises BuildError when one cannot be loaded."""
    for plugin in options.plugins:
        if plugin.path in loaded:
            continue
        if registry.load_library(plugin.path) is None:
            raise BuildError("\n".join([f"plugin library {plugin.path} cannot be loaded:", *log.errors]))
        loaded.add(plugin.path)


def serialise(
    builder: trt.Builder, network: trt.INetworkDefinition, config: trt.IBuilderConfig, log: RouteLog
) -> bytes:
    """Builds. Raises BuildError with TensorRT's errors, or MemoryLimitError when an allocation failed."""
    plan = builder.build_serialized_network(network, config)
    if plan is not None:
        return memoryview(plan).tobytes()
    errors = log.errors or ["TensorRT gave no reason"]
    if any(sign in line.lower() for line in errors for sign in _OUT_OF_MEMORY):
        raise MemoryLimitError("\n".join(errors))
    raise BuildError("\n".join(["TensorRT built no engine:", *errors]))
