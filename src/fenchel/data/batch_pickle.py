"""CIFAR's python batches: pickles, read without letting them make any object but their own arrays."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fenchel.data.file_content import file_content
from fenchel.errors import InputError

__all__ = ["read_batch_pickle"]

_DTYPES = {
    "u1": torch.uint8,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
}


def read_batch_pickle(path: Path) -> dict[str, Any]:
    """Reads a python batch: a dictionary of lists, integers, byte strings and arrays of integers.

    The file can name the functions with which numpy rebuilds an array, and nothing else; those are answered by
    stand-ins that only keep the bytes, so nothing that the file says is run.

    Args:
        path: The file.

    Returns:
        Its entries; names are decoded, arrays are tensors, byte strings stay so.

    Raises:
        InputError: If the file is not a whole pickle of a dictionary, or names anything else.
    """
    content = file_content(path)
    try:
        _check_memo(content)
        found = _BatchUnpickler(path, content).load()
        if isinstance(found, dict):
            return {_text(key): _opened(value, path) for key, value in found.items()}
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can make any of its instructions fail
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise InputError(
            f"{path} is truncated or corrupt: {reason}; expected a whole pickled dictionary. Fetch it again."
        ) from None
    raise InputError(
        f"{path} holds a {type(found).__name__}; expected a dictionary, as the python version of CIFAR has. "
        "Fetch it again."
    )


def _check_memo(content: bytes) -> None:
    """Refuses places in the memo beyond any that a file of that size can fill: room is made up to the largest."""
    for instruction, argument, _ in pickletools.genops(content):
        if instruction.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise pickle.UnpicklingError(f"it keeps an object under the number {argument}")


class _BatchUnpickler(pickle.Unpickler):
    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str, /) -> Any:
        allowed = _ALLOWED.get((module.replace("numpy._core", "numpy.core"), name))
        if allowed is None:
            self._refuse(f"{module}.{name}")
        # A new one each time, as a pickle can set attributes of what it was given.
        return lambda *arguments: allowed(*arguments)

    def persistent_load(self, pid: Any, /) -> NoReturn:
        self._refuse(f"the object {pid!r} outside the file")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{self._path} asks for {what}, which no CIFAR batch needs, and was not read further. "
            "Fetch the official file again, and do not unpickle this one."
        )


class _Dtype:
    """Stands in for ``numpy.dtype``."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])


class _Array:
    """Stands in for ``numpy.ndarray``."""

    shape: tuple[int, ...]
    dtype: _Dtype
    columns_first: bool
    content: bytes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, self.dtype, self.columns_first, self.content = state
        self.shape = tuple(int(size) for size in shape)

    def tensor(self, path: Path) -> Tensor:
        """The numbers, if they are integers and all there."""
        kind = _DTYPES.get(self.dtype.code)
        if kind is None or (self.dtype.order == ">" and kind.itemsize > 1):
            raise InputError(
                f"{path} holds an array of type {self.dtype.order}{self.dtype.code}; expected integers, lowest byte "
                "first. Fetch it again."
            )
        expected = math.prod(self.shape) * kind.itemsize
        if len(self.content) != expected or min(self.shape, default=1) < 0:
            raise InputError(
                f"{path} holds an array of shape {self.shape} with {len(self.content)} bytes; expected {expected}. "
                "It is corrupt: fetch it again."
            )
        if not expected:
            return torch.empty(self.shape, dtype=kind)
        flat = torch.frombuffer(bytearray(self.content), dtype=kind)
        if self.columns_first:
            return flat.reshape(self.shape[::-1]).permute(*reversed(range(len(self.shape))))
        return flat.reshape(self.shape)


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(content: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, dtype, _text(order) == "F", bytes(content)))
    return array


def _encode(text: str, encoding: str | bytes = "latin1") -> bytes:
    # Python 3 writes byte strings so, where it is to be read by Python 2.
    if _text(encoding) not in {"latin1", "latin-1"}:
        raise pickle.UnpicklingError(f"unexpected encoding {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    # And so, where there are none.
    return b""


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _opened(value: Any, path: Path) -> Any:
    return value.tensor(path) if isinstance(value, _Array) else value
