"""The tensors of one execution context: where they lie, which shapes they have, how they get there and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt_search.backends.cuda_runtime import TO_DEVICE, TO_HOST, DeviceBuffer, HostBuffer, Stream
from gpt_search.domain.errors import InputError
from gpt_search.domain.workload import Array

if TYPE_CHECKING:
    import tensorrt as trt

# By the name of the member of DataType; the narrow floats are ml_dtypes'.
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "FP8": "float8_e4m3fn",
    "E8M0": "float8_e8m0fnu",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


class ShapeError(InputError):
    """The inputs do not fit the engine: the message says which, what it got, and what the engine takes."""


def numpy_dtype(data_type: trt.DataType, name: str) -> np.dtype[Any]:
    """NumPy's type for a member of TensorRT's DataType. Raises InputError for 4-bit types, which NumPy cannot hold."""
    found = _DTYPES.get(data_type.name)
    if found is None:
        raise InputError(f"tensor {name!r} has type {data_type.name}, which cannot be given or taken as an array")
    if hasattr(np, found):
        return np.dtype(found)
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, found))
    return dtype


class _Allocation:
    """Memory for an output whose shape only the run tells; it grows, and never shrinks."""

    def __init__(self) -> None:
        self.buffer: DeviceBuffer | None = None
        self.shape: tuple[int, ...] | None = None
        self.error: Exception | None = None
        self.owner: Any = None  # TensorRT keeps a bare pointer to the allocator

    def take(self, size: int) -> int:
        """The address of at least `size` bytes; 0, which TensorRT takes as a failure, where there are none."""
        try:
            if self.buffer is None or self.buffer.size < size:
                if self.buffer is not None:
                    self.buffer.close()  # cudaFree waits for the device: nothing in flight uses it any more
                    self.buffer = None
                self.buffer = DeviceBuffer(size)
            return self.buffer.address
        except Exception as error:  # it must not travel through TensorRT's C++
            self.error = error
            return 0


def _output_allocator(trt: Any, allocation: _Allocation) -> Any:
    """TensorRT's interface over an _Allocation; its base class is known only when the library is."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            return allocation.take(size)

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            return allocation.take(size)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            allocation.shape = tuple(int(n) for n in shape)

    return Allocator()


class _Tensor:
    """One input or output: its type and place, and the buffers behind it."""

    def __init__(self, name: str, dtype: np.dtype[Any], on_host: bool) -> None:
        self.name, self.dtype, self.on_host = name, dtype, on_host
        self.shape: tuple[int, ...] = ()
        self.host: HostBuffer | None = None
        self.device: DeviceBuffer | None = None
        self.allocation: _Allocation | None = None
        self.alias: _Tensor | None = None

    @property
    def size(self) -> int:
        """Bytes in its present shape."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def address(self) -> int:
        """What TensorRT is given: on the host for shape tensors, the input's for an output that aliases one."""
        if self.alias is not None:
            return self.alias.address
        if self.on_host:
            assert self.host is not None
            return self.host.address
        if self.allocation is not None:
            assert self.allocation.buffer is not None
            return self.allocation.buffer.address
        assert self.device is not None
        return self.device.address


class Bindings:
    """All tensors of one context for inputs of one set of shapes."""

    def __init__(self, trt: Any, engine: trt.ICudaEngine, context: trt.IExecutionContext, stream: Stream) -> None:
        """Looks at the engine's tensors; `give` allocates. Raises InputError for tensors that arrays cannot hold."""
        self._trt, self._engine, self._context, self._stream = trt, engine, context, stream
        self._inputs: list[_Tensor] = []
        self._outputs: list[_Tensor] = []
        for i in range(engine.num_io_tensors):
            name = engine.get_tensor_name(i)
            if engine.get_tensor_format(name) != trt.TensorFormat.LINEAR:
                raise InputError(f"tensor {name!r} is not in linear format: {engine.get_tensor_format_desc(name)}")
            on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
            tensor = _Tensor(name, numpy_dtype(engine.get_tensor_dtype(name), name), on_host)
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            (self._inputs if is_input else self._outputs).append(tensor)
        by_name = {t.name: t for t in self._inputs}
        for output in self._outputs:
            output.alias = by_name.get(engine.get_aliased_input_tensor(output.name) or "")

    @property
    def data_dependent(self) -> tuple[str, ...]:
        """Outputs whose shape only a run tells; known after `give`."""
        return tuple(t.name for t in self._outputs if t.allocation is not None)

    def fixed(self, inputs: Mapping[str, Array]) -> dict[str, object]:
        """What a captured graph holds for: the shapes of inputs, and values where the engine reads them on the host."""
        on_host = {t.name for t in self._inputs if t.on_host}
        shapes: dict[str, object] = {name: np.shape(value) for name, value in inputs.items()}
        return shapes | {f"{n}'s values": np.asarray(inputs[n]).tolist() for n in on_host & set(inputs)}

    def give(self, inputs: Mapping[str, Array]) -> None:
        """Sets profile, shapes and addresses for these inputs, and copies them to where the engine reads them.

        Raises ShapeError, CudaError.
        """
        arrays = self._checked(inputs)
        self._choose_profile(arrays)
        for tensor in self._inputs:
            array = arrays[tensor.name]
            tensor.shape = array.shape
            self._allocate(tensor)
            assert tensor.host is not None
            tensor.host.array(array.shape, tensor.dtype)[...] = array
            if not self._context.set_input_shape(tensor.name, tensor.shape):
                raise ShapeError(f"input {tensor.name!r}: the engine does not take the shape {tensor.shape}")
            self._set_address(tensor)
        lacking = self._context.infer_shapes()
        if lacking:
            raise ShapeError(f"the engine needs more to know its shapes: {', '.join(lacking)}")
        for tensor in self._outputs:
            shape = _sizes_of(self._context.get_tensor_shape(tensor.name))
            if any(n < 0 for n in shape):
                self._let_it_allocate(tensor)
                continue
            tensor.shape = shape
            self._allocate(tensor)
            self._set_address(tensor)
        self.upload()
        self._stream.synchronize()

    def upload(self) -> None:
        """Puts the copies of the inputs to the device into the stream."""
        for tensor in self._inputs:
            if not tensor.on_host:
                assert tensor.host is not None
                self._stream.copy(tensor.address, tensor.host.address, tensor.size, TO_DEVICE)

    def download(self) -> None:
        """Puts the copies of the outputs to the host into the stream. Raises what an output's allocation raised."""
        self.raise_failed_allocation()
        for tensor in self._outputs:
            if tensor.allocation is not None:
                if tensor.allocation.shape is None or tensor.allocation.buffer is None:
                    raise RuntimeError(f"TensorRT did not say which shape output {tensor.name!r} has")
                tensor.shape = tensor.allocation.shape
                self._grow_host(tensor)
            if not tensor.on_host:
                assert tensor.host is not None
                self._stream.copy(tensor.host.address, tensor.address, tensor.size, TO_HOST)

    def raise_failed_allocation(self) -> None:
        """Raises what the allocation of an output raised, where one failed."""
        for tensor in self._outputs:
            if tensor.allocation is not None and tensor.allocation.error is not None:
                raise tensor.allocation.error

    def outputs(self) -> dict[str, Array]:
        """Copies of the outputs, by name, once the stream has done what `download` put into it."""
        found: dict[str, Array] = {}
        for tensor in self._outputs:
            assert tensor.host is not None
            found[tensor.name] = tensor.host.array(tensor.shape, tensor.dtype).copy()
        return found

    def close(self) -> None:
        """Frees all buffers."""
        for tensor in (*self._inputs, *self._outputs):
            for owned in (tensor.host, tensor.device, tensor.allocation.buffer if tensor.allocation else None):
                if owned is not None:
                    owned.close()

    # -- helpers -------------------------------------------------------------------------------
    def _checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = {t.name for t in self._inputs}
        if names != set(inputs):
            takes, got = ", ".join(sorted(names)), ", ".join(sorted(inputs))
            raise ShapeError(f"the engine takes the inputs {takes or 'none'}; it got {got or 'none'}")
        arrays = {}
        for tensor in self._inputs:
            array = np.ascontiguousarray(inputs[tensor.name]).reshape(np.shape(inputs[tensor.name]))
            if array.dtype != tensor.dtype:
                raise ShapeError(f"input {tensor.name!r} has type {array.dtype}; the engine takes {tensor.dtype}")
            arrays[tensor.name] = array
        return arrays

    def _choose_profile(self, arrays: Mapping[str, Array]) -> None:
        """Makes an optimisation profile the context's: the one made for just these sizes, else the first that fits."""
        count = self._engine.num_optimization_profiles
        sizes = {name: self._sizes(name, array) for name, array in arrays.items()}
        ranges = [{name: self._range(number, name) for name in arrays} for number in range(count)]
        fitting = [i for i, one in enumerate(ranges) if all(_holds(one[n], sizes[n]) for n in arrays)]
        if not fitting:
            shapes = ", ".join(f"{n} {tuple(a.shape)}" for n, a in arrays.items())
            words = (", ".join(f"{n} {low} to {high}" for n, (low, _, high) in one.items()) for one in ranges)
            has = "; ".join(f"profile {i}: {text}" for i, text in enumerate(words))
            raise ShapeError(f"no optimisation profile of the engine holds {shapes}; it has {has}")
        exact = [i for i in fitting if all(ranges[i][n][1] == sizes[n] for n in arrays)]
        number = (exact or fitting)[0]
        if self._context.active_optimization_profile != number:
            if not self._context.set_optimization_profile_async(number, self._stream.address):
                raise RuntimeError(f"TensorRT did not switch to optimisation profile {number}")
            self._stream.synchronize()

    def _values_decide(self, name: str) -> bool:
        """Whether a profile speaks of the input's values, as for a shape tensor."""
        at = self._engine.get_tensor_location(name)
        return bool(at == self._trt.TensorLocation.HOST and self._engine.is_shape_inference_io(name))

    def _sizes(self, name: str, array: Array) -> tuple[int, ...]:
        return tuple(int(n) for n in array.reshape(-1)) if self._values_decide(name) else array.shape

    def _range(self, number: int, name: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Smallest, typical and largest sizes of an input in a profile."""
        engine = self._engine
        if self._values_decide(name):
            found = [tuple(int(n) for n in v) for v in engine.get_tensor_profile_values(number, name)]
        else:
            own = _sizes_of(engine.get_tensor_shape(name))
            if all(n >= 0 for n in own):  # no profile has to name it
                return own, own, own
            found = [_sizes_of(dims) for dims in engine.get_tensor_profile_shape(name, number)]
        if len(found) != 3:
            raise RuntimeError(f"TensorRT does not say which sizes input {name!r} has in profile {number}")
        return found[0], found[1], found[2]

    def _allocate(self, tensor: _Tensor) -> None:
        self._grow_host(tensor)
        if tensor.on_host or tensor.alias is not None:
            return
        if tensor.device is None or tensor.device.size < tensor.size:
            if tensor.device is not None:
                tensor.device.close()
            tensor.device = DeviceBuffer(tensor.size)

    def _grow_host(self, tensor: _Tensor) -> None:
        if tensor.host is None or tensor.host.size < tensor.size:
            if tensor.host is not None:
                tensor.host.close()
            tensor.host = HostBuffer(tensor.size)

    def _set_address(self, tensor: _Tensor) -> None:
        if not self._context.set_tensor_address(tensor.name, tensor.address):
            raise RuntimeError(f"TensorRT did not take the address of tensor {tensor.name!r}")

    def _let_it_allocate(self, tensor: _Tensor) -> None:
        if tensor.allocation is None:
            tensor.allocation = _Allocation()
            tensor.allocation.owner = _output_allocator(self._trt, tensor.allocation)
            if not self._context.set_output_allocator(tensor.name, tensor.allocation.owner):
                raise RuntimeError(f"TensorRT did not take an allocator for output {tensor.name!r}")


def _sizes_of(dims: trt.Dims) -> tuple[int, ...]:
    return tuple(int(dims[i]) for i in range(len(dims)))


def _holds(given: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> bool:
    low, _, high = given
    return len(low) == len(sizes) and all(a <= n <= b for a, n, b in zip(low, sizes, high, strict=True))
