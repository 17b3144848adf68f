"""Converts dense tensors of numpy and torch to plain bytes, and back, bit for bit.

Bytes are in C order, little-endian. A dtype is encoded by the name that both libraries use (`float32`, `bfloat16`,
`bool`, …), from a fixed list: no name from outside is ever looked up in a library. The receiver chooses the library of
its tensors; torch is imported only for torch tensors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mmcached.wire.errors import InvalidRequest, RemoteProtocolError

Bytes1D = npt.NDArray[np.uint8]
Description = tuple[str, tuple[int, ...]]
"""Dtype and shape, as a head has them."""

NUMPY_ITEMSIZES = {
    **{"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8},
    **{"float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16},
}
_TORCH_ITEMSIZES = {
    **{"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1},
    **{"float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1},
}
ITEMSIZES = NUMPY_ITEMSIZES | _TORCH_ITEMSIZES
_NUMPY_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in NUMPY_ITEMSIZES}
_NUMPY_NAMES = {dtype: name for name, dtype in _NUMPY_DTYPES.items()}
_BYTE = np.dtype(np.uint8)
_MAX_DIMS = 64
_MAX_ELEMENTS = 1 << 48


@dataclass(frozen=True, slots=True)
class TensorType:
    """Dtype and shape of a tensor's bytes. Construction checks nothing; `checked` does."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", ITEMSIZES[self.dtype] * math.prod(self.shape))

    @classmethod
    def checked(cls, dtype: object, shape: object, field: str) -> TensorType:
        """Create it from a peer's values; raise RemoteProtocolError for an unknown dtype or an impossible shape."""
        if not isinstance(dtype, str) or dtype not in ITEMSIZES:
            raise RemoteProtocolError("not a dtype that is carried", f"{field}.dtype")
        if not isinstance(shape, list) or len(shape) > _MAX_DIMS:
            raise RemoteProtocolError(f"a shape is a list of at most {_MAX_DIMS} sizes", f"{field}.shape")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise RemoteProtocolError("sizes are non-negative integers", f"{field}.shape")
        if math.prod(max(1, size) for size in shape) > _MAX_ELEMENTS:
            raise RemoteProtocolError("too many elements", f"{field}.shape")
        return cls(dtype, tuple(shape))


class NotCarried(Exception):
    """Unsupported value; callers add the steps of its path, so that supported values cost nothing.

    Attributes:
        steps: List indexes and dict keys, innermost first.
    """

    def __init__(self, found: str | int, limit: str) -> None:
        super().__init__(limit)
        self.found = found
        self.limit = limit
        self.steps: list[int | str] = []


def is_tensor(value: object) -> bool:
    """Return whether this is a numpy array or a torch tensor; does not import torch."""
    if isinstance(value, np.ndarray):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def dense_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's elements in contiguous form, regardless of its present layout."""
    return int(tensor.nbytes if isinstance(tensor, np.ndarray) else tensor.numel() * tensor.element_size())


def to_bytes(tensor: Any) -> tuple[Description, Bytes1D]:
    """Return dtype and shape, and the bytes, `(nbytes,)`; without a copy if it is contiguous and little-endian.

    Raises:
        NotCarried: Unsupported dtype, layout or device.
    """
    return _numpy_to_bytes(tensor) if isinstance(tensor, np.ndarray) else _torch_to_bytes(tensor)


def _numpy_to_bytes(array: npt.NDArray[Any]) -> tuple[Description, Bytes1D]:
    name = _NUMPY_NAMES.get(array.dtype)
    if name is not None and type(array) is np.ndarray and array.flags.c_contiguous and array.nbytes:  # the usual case
        return (name, array.shape), np.frombuffer(array, np.uint8)
    if name is None:
        name = array.dtype.name  # built by numpy at each access; here another byte order or an unsupported dtype
        if name not in NUMPY_ITEMSIZES:
            raise NotCarried(name, f"dtypes are {sorted(NUMPY_ITEMSIZES)}")
    if isinstance(array, np.ma.MaskedArray):
        raise NotCarried("masked array", "its mask would be lost; fill it first")
    # `order="C"` and not `ascontiguousarray`, which gives a 0-d array one dimension.
    dense = np.asarray(array, _NUMPY_DTYPES[name], order="C")
    return (name, array.shape), dense.reshape(-1).view(np.uint8)


def _torch_to_bytes(tensor: Any) -> tuple[Description, Bytes1D]:
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        array = tensor.numpy()
    except (TypeError, RuntimeError):  # numpy has no such dtype, or it is on a device, needs a gradient, is lazy …
        pass
    else:
        if array.flags.c_contiguous and array.nbytes and name in NUMPY_ITEMSIZES:
            return (name, array.shape), np.frombuffer(array, np.uint8)
    if name not in ITEMSIZES:
        raise NotCarried(name, f"dtypes are {sorted(ITEMSIZES)}")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise NotCarried(f"{tensor.device}, {tensor.layout}", "only dense CPU tensors are carried; call .cpu()")
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    kind = name, tuple(tensor.shape)
    if not dense.numel():
        return kind, np.empty(0, np.uint8)
    # One element counts as contiguous with any stride, but only stride 1 can be viewed as bytes.
    flat = dense.as_strided((dense.numel(),), (1,))
    return kind, flat.view(torch.uint8).numpy()


def to_numpy(kind: TensorType, buffer: memoryview, offset: int, copy: bool) -> npt.NDArray[Any]:
    """Return the bytes from `offset` on as an array; a view of the buffer unless `copy`.

    Raises:
        InvalidRequest: numpy has no such dtype.
    """
    dtype = _NUMPY_DTYPES.get(kind.dtype)
    if dtype is None:
        raise InvalidRequest("tensors", "numpy", f"numpy has no {kind.dtype}: 'torch', or 'bytes'")
    if not kind.nbytes:
        return np.empty(kind.shape, dtype)
    array = np.frombuffer(buffer, dtype, kind.nbytes // dtype.itemsize, offset)  # `np.ndarray` drops the memoryview
    if len(kind.shape) != 1:
        array = array.reshape(kind.shape)
    return array.copy() if copy else array


def bytes_of(kind: TensorType, buffer: memoryview, offset: int, copy: bool) -> npt.NDArray[Any]:
    """Return the bytes from `offset` on, `(nbytes,)` uint8, for any dtype; a view of the buffer unless `copy`."""
    array = np.frombuffer(buffer, np.uint8, kind.nbytes, offset)
    return array.copy() if copy else array


def array_form(
    kind: TensorType, library: str, copy: bool
) -> tuple[tuple[int, ...], np.dtype[Any], Callable[[Any], Any] | None] | None:
    """Return shape and dtype of the array that lies in a tensor's bytes, and what makes the tensor of it.

    Equal to `to_numpy`, `bytes_of` or `to_torch` on the same bytes. None for the function: the array is the tensor.

    Returns:
        None if the tensor has no bytes, or if the library does not have its dtype.
    """
    dtype = _NUMPY_DTYPES.get(kind.dtype)
    if not kind.nbytes or (library == "numpy" and dtype is None):
        return None
    if library == "torch":
        import torch

        if (of_torch := getattr(torch, kind.dtype, None)) is None:
            return None
        if dtype is None:
            return (kind.nbytes,), _BYTE, partial(_torch_from_bytes, of_torch, kind.shape, copy)
        return kind.shape, dtype, _torch_from_array_copied if copy else _torch_from_array
    convert = _copied if copy else None
    if library == "bytes" or dtype is None:
        return (kind.nbytes,), _BYTE, convert
    return kind.shape, dtype, convert


def _copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.copy()


def _torch_from_array(array: npt.NDArray[Any]) -> Any:
    # DLPack takes a read-only array without a warning and keeps it alive; `torch.frombuffer` on a mapping does not. The
    # capsule itself is passed, because torch queries an array four times before it takes one.
    return sys.modules["torch"].from_dlpack(array.__dlpack__(max_version=(1, 0)))


def _torch_from_array_copied(array: npt.NDArray[Any]) -> Any:
    return _torch_from_array(array).clone()


def _torch_from_bytes(dtype: Any, shape: tuple[int, ...], copy: bool, array: npt.NDArray[Any]) -> Any:
    tensor = _torch_from_array(array).view(dtype).view(shape)
    return tensor.clone() if copy else tensor


def to_torch(kind: TensorType, buffer: memoryview, offset: int, copy: bool) -> Any:
    """Return the bytes from `offset` on as a tensor; a view of the buffer, never to be written, unless `copy`.

    Raises:
        InvalidRequest: This version of torch has no such dtype.
    """
    import torch

    dtype = getattr(torch, kind.dtype, None)
    if dtype is None:
        raise InvalidRequest("tensors", "torch", f"torch {torch.__version__} has no {kind.dtype}")
    if not kind.nbytes:
        return torch.empty(kind.shape, dtype=dtype)
    # Dtypes that numpy does not have are converted from bytes.
    numpy_dtype = _NUMPY_DTYPES.get(kind.dtype)
    of_array = numpy_dtype or _BYTE
    array = np.frombuffer(buffer, of_array, kind.nbytes // of_array.itemsize, offset)
    if numpy_dtype is not None and len(kind.shape) != 1:
        array = array.reshape(kind.shape)  # faster than in torch
    tensor = _torch_from_array(array)
    if numpy_dtype is None:
        tensor = tensor.view(dtype).view(kind.shape)
    return tensor.clone() if copy else tensor
