"""Checks arguments by name before they reach the library. ctypes would silently cut numbers to 32
bits and texts at a NUL."""
from __future__ import annotations

import collections.abc
import ctypes as c
import json
import mmap
import operator
import os
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._library import F32, I32, Handle, P, refuse

Ids = Union[Sequence[int], npt.NDArray[np.integer[Any]]]
Path = Union[str, "os.PathLike[str]"]
Buffer = Union[bytes, bytearray, memoryview, mmap.mmap, npt.NDArray[Any]]


def ids_of(ids: Ids, name: str = "ids") -> I32:
    """Returns token ids as int32 from integers in a list or a one-dimensional array. Raises
    ArgumentError for other values. The library checks them against the vocabulary."""
    if hasattr(ids, "__array__"):
        return _ids_of_array(np.asarray(ids), name)
    items = sequence(ids, name, "token ids")
    return np.array(
        [integer(x, "%s[%d]" % (name, i), -1 << 31, (1 << 31) - 1, "a token id") for i, x in enumerate(items)],
        np.int32).reshape(len(items))


def _ids_of_array(array: npt.NDArray[Any], name: str) -> I32:
    if array.ndim != 1:
        refuse(name, "one dimension", "an array of shape %s" % (array.shape,))
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.dtype.kind not in "iu":
        refuse(name, "integers", "an array of %s" % array.dtype)
    for edge in (int(array.min()), int(array.max())):
        if not -1 << 31 <= edge < 1 << 31:
            refuse(name, "token ids", edge)
    return np.ascontiguousarray(array, np.int32)


def integer(x: Any, name: str, low: int = -1 << 63, high: int = (1 << 63) - 1, what: str = "") -> int:
    """Returns an integer from `low` to `high`. Accepts numpy's integers but no booleans."""
    if not isinstance(x, (bool, np.bool_)):
        try:
            value = operator.index(x)
        except TypeError:
            pass
        else:
            if low <= value <= high:
                return value
    expected = what or ("an integer of %d or more" % low if high >= 1 << 62 and low > -1 << 62 else
                        "an integer" if low <= -1 << 62 else "an integer in %d..%d" % (low, high))
    refuse(name, expected, repr(x) if isinstance(x, (str, bytes)) else x)


def integers(all: Any, name: str) -> npt.NDArray[np.int64]:
    """Returns a sequence of integers as int64."""
    items = sequence(all, name, "integers")
    return np.array([integer(x, "%s[%d]" % (name, i)) for i, x in enumerate(items)], np.int64).reshape(len(items))


def number(x: Any, name: str) -> float:
    """Returns a number as a float. Refuses arrays, except those without dimensions."""
    if not isinstance(x, (bool, np.bool_, str, bytes)) and not (hasattr(x, "__array__") and np.ndim(x) > 0):
        try:
            return float(x)
        except (TypeError, ValueError):
            pass
    refuse(name, "a number", repr(x))


def single(x: Any, name: str) -> float:
    """Returns a finite number that float32 can hold, as a float."""
    value = number(x, name)
    if not abs(value) <= float(np.finfo(np.float32).max):
        refuse(name, "a finite number of float32", value)
    return value


def flag(x: Any, name: str) -> bool:
    """Returns a boolean. Other values are refused: the text "no" would count as True."""
    if isinstance(x, (bool, np.bool_)) or isinstance(x, int) and x in (0, 1):
        return bool(x)
    refuse(name, "True or False", repr(x))


def sequence(x: Any, name: str, what: str) -> List[Any]:
    """Returns the items of a sequence or iterator, which is not a text. Sets have no order, and
    mappings are not their keys."""
    if (isinstance(x, (str, bytes, collections.abc.Set, Mapping)) or not isinstance(x, Iterable)
            or getattr(x, "ndim", 1) == 0):
        refuse(name, "a sequence of %s" % what, repr(x))
    return list(x)


def mapping(x: Any, name: str, what: str) -> Mapping[Any, Any]:
    """Returns a mapping."""
    if not isinstance(x, Mapping):
        refuse(name, what, repr(x))
    return x


def function(x: Any, name: str) -> Optional[Callable[..., Any]]:
    """Returns a function, or None."""
    if x is not None and not callable(x):
        refuse(name, "a function", repr(x))
    return x  # type: ignore[no-any-return]


_HANDLES = {"Model": "stet_model_free", "Session": "stet_session_free", "Snapshot": "stet_snapshot_free",
            "Tokenizer": "stet_tokenizer_free"}


def handle(x: Any, kind: str, name: str) -> Any:
    """Returns the address of a Model, Session, Snapshot or Tokenizer. The library cannot tell a handle
    of another kind, and would read its memory."""
    if not isinstance(x, Handle) or x._free != _HANDLES[kind]:
        refuse(name, "a %s" % kind, type(x).__name__)
    return x._at


def handle_or_none(x: Any, kind: str, name: str) -> Any:
    """Returns the address of a handle as handle() does, or None for None."""
    return None if x is None else handle(x, kind, name)


def floats(x: Any, name: str) -> F32:
    """Returns numbers as a contiguous array of float32."""
    try:
        array = np.asarray(x)
    except ValueError:
        refuse(name, "an array of numbers", "rows of different lengths")
    if array.dtype.kind not in "fiu" and array.size:
        refuse(name, "an array of numbers", "an array of %s" % array.dtype)
    with np.errstate(over="ignore"):  # the library refuses infinity where it cannot use it
        return np.ascontiguousarray(array, np.float32)


def row(x: Any, name: str) -> F32:
    """Returns numbers of one dimension as a contiguous array of float32."""
    array = floats(x, name)
    if array.ndim != 1:
        refuse(name, "one dimension", "an array of shape %s" % (array.shape,))
    return array


def choice(x: Any, among: Mapping[str, int], name: str) -> int:
    """Returns the library's number for one of these words."""
    if not isinstance(x, str) or x not in among:
        refuse(name, "one of %s" % ", ".join(repr(word) for word in among), repr(x))
    return among[x]


def text(x: Any, name: str) -> bytes:
    """Returns a text as UTF-8."""
    if not isinstance(x, str):
        refuse(name, "a text", "a %s" % type(x).__name__)
    try:
        return x.encode()
    except UnicodeEncodeError:
        refuse(name, "a text in Unicode", ascii(x))


def word(x: Any, name: str) -> bytes:
    """Returns a text as UTF-8. Refuses a NUL, which would end the text in C."""
    encoded = text(x, name)
    if b"\0" in encoded:
        refuse(name, "a text without NUL", ascii(x))
    return encoded


def path(x: Any, name: str = "path") -> bytes:
    """Returns a path in the system's encoding."""
    try:
        encoded = os.fsencode(x)
    except (TypeError, UnicodeEncodeError):
        refuse(name, "a path", repr(x))
    if b"\0" in encoded or not encoded:
        refuse(name, "a path", ascii(x))
    return encoded


def json_text(x: Any, name: str) -> bytes:
    """Returns a value as JSON in UTF-8. A text is taken as JSON already."""
    if isinstance(x, str):
        return text(x, name)
    try:
        return json.dumps(x, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        refuse(name, "what JSON can say", str(error))


def buffer(x: Any, name: str) -> bytes:
    """Returns the bytes of a buffer. Those that could change meanwhile are copied."""
    if isinstance(x, bytes):
        return x
    try:
        return bytes(memoryview(x))
    except TypeError:
        refuse(name, "bytes or another buffer", "a %s" % type(x).__name__)


def words(names: List[str]) -> Any:
    """Returns a `char* names[]`."""
    return (c.c_char_p * len(names))(*[name.encode() for name in names])


def pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    """Returns the address of an array for C."""
    return array.ctypes.data_as(P(kind))


def size(n: int) -> c.c_size_t:
    """Returns a size_t."""
    return c.c_size_t(n)
