"""What only TensorRT-RTX has at run time: strategies for graphs and for dynamic shapes, a look before capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpt_search.backends.tensorrt_options import TensorRTOptions

if TYPE_CHECKING:
    import tensorrt_rtx as trt


def set_strategies(trt: Any, config: trt.IRuntimeConfig, options: TensorRTOptions) -> None:
    """Sets the run-time strategies that the options name; the others stay at TensorRT-RTX's defaults."""
    if options.cuda_graph_strategy is not None:
        config.cuda_graph_strategy = getattr(trt.CudaGraphStrategy, options.cuda_graph_strategy.upper())
    if options.dynamic_shapes_kernel_specialization_strategy is not None:
        name = options.dynamic_shapes_kernel_specialization_strategy.upper()
        strategies = trt.DynamicShapesKernelSpecializationStrategy
        config.dynamic_shapes_kernel_specialization_strategy = getattr(strategies, name)


def capturable(context: trt.IExecutionContext, stream: int) -> bool:
    """Whether an enqueue into this stream could be captured now."""
    return bool(context.is_stream_capturable(stream))
