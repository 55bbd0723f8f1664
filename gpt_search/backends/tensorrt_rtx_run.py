"""What only TensorRT-RTX has at run time: strategies for graphs and for dynamic shapes, a look before capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpt_search.backends.base import BuildError
from gpt_search.backends.tensorrt_options import TensorRTOptions

if TYPE_CHECKING:
    import tensorrt_rtx as trt


def set_strategies(trt: Any, config: trt.IRuntimeConfig, options: TensorRTOptions) -> None:
    """Sets the run-time strategies that the options name; the others stay at TensorRT-RTX's defaults.

    Raises BuildError for one that reads back differently.
    """
    wanted: list[tuple[str, Any, Any]] = []
    if options.cuda_graph_strategy is not None:
        graphs = getattr(trt.CudaGraphStrategy, options.cuda_graph_strategy.upper())
        config.cuda_graph_strategy = graphs
        wanted.append(("cuda_graph_strategy", graphs, config.cuda_graph_strategy))
    if options.dynamic_shapes_kernel_specialization_strategy is not None:
        name = options.dynamic_shapes_kernel_specialization_strategy.upper()
        kernels = getattr(trt.DynamicShapesKernelSpecializationStrategy, name)
        config.dynamic_shapes_kernel_specialization_strategy = kernels
        taken = config.dynamic_shapes_kernel_specialization_strategy
        wanted.append(("dynamic_shapes_kernel_specialization_strategy", kernels, taken))
    refused = [f"{option}: asked for {ask}, it has {got}" for option, ask, got in wanted if ask != got]
    if refused:
        raise BuildError("\n".join(["TensorRT-RTX did not take these options:", *refused]))


def capturable(context: trt.IExecutionContext, stream: int) -> bool:
    """Whether an enqueue into this stream could be captured now."""
    return bool(context.is_stream_capturable(stream))
