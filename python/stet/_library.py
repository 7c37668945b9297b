"""Finds, loads and calls the library (stet/c.h) through ctypes, and owns the memory that it
returns."""
from __future__ import annotations

import ctypes as c
import ctypes.util
import os
import sys
from typing import Any, Dict, List, NoReturn, Optional, Tuple, Type, TypeVar

import numpy as np
import numpy.typing as npt

from ._names import named
from ._uses import Using, free_with

P = c.POINTER
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


def _load() -> c.CDLL:
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.environ.get("STET_LIBRARY"), os.path.join(here, "libstet.so.0"), ctypes.util.find_library("stet"),
                 "libstet.so.0"):
        if not path:
            continue
        try:
            library = c.CDLL(path)
        except OSError:
            continue
        library.stet_abi_version.restype = c.c_uint32
        if library.stet_abi_version() != 1:
            raise ImportError("%s: expected ABI version 1, found %d" % (path, library.stet_abi_version()))
        return library
    raise ImportError(
        "expected libstet.so.0 in STET_LIBRARY, beside this package or where the system looks, found none")


lib = _load()
_functions: Dict[str, Any] = {}


class CError(c.Structure):
    """The struct stet_error."""
    _fields_ = [("kind", c.c_int32), ("message", c.c_char_p), ("file", c.c_char_p), ("field", c.c_char_p),
                ("expected", c.c_char_p), ("found", c.c_char_p)]


class CText(c.Structure):
    """The struct stet_text."""
    _fields_ = [("data", c.c_void_p), ("size", c.c_size_t)]

    def __str__(self) -> str:
        return c.string_at(self.data, self.size).decode("utf-8", "replace") if self.size else ""


class Error(Exception):
    """A failure that the library reports. `kind` is "format", "argument", ...; file, field,
    expected and found are set where they are known."""

    def __init__(self, kind: str, message: str, file: str = "", field: str = "", expected: str = "",
                 found: str = "") -> None:
        super().__init__(message)
        self.kind, self.file, self.field, self.expected, self.found = kind, file, field, expected, found

    def __reduce__(self) -> Tuple[Type["Error"], Tuple[str, ...]]:
        return type(self), (self.kind, str(self), self.file, self.field, self.expected, self.found)


class ArgumentError(Error, ValueError):
    """An Error of kind "argument". `field` names the faulty argument."""


def refuse(field: str, expected: str, found: object) -> NoReturn:
    """Raises an ArgumentError that names the argument."""
    text = str(found)
    text = text if len(text) <= 200 else text[:200] + "..."
    text = "".join(x if x.isprintable() else repr(x)[1:-1] for x in text)
    raise ArgumentError("argument", "%s: expected %s, found %s" % (field, expected, text), "", field, expected, text)


lib.stet_status_name.restype = c.c_char_p
lib.stet_error_free.argtypes = [P(CError)]
lib.stet_free.argtypes = [c.c_void_p]
lib.stet_version.restype = c.c_char_p
lib.stet_isa_name.restype = c.c_char_p
lib.stet_isa_name.argtypes = [c.c_size_t]


def free_after_use(name: str, pointer: c.c_void_p) -> None:
    """Frees a handle by the function of this name: now, or at the end of the calls that use it."""
    free = getattr(lib, name)
    free.argtypes, free.restype = [c.c_void_p], None
    free_with(free, pointer)


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the library. Raises Error if it fails."""
    function = _functions.get(name)
    if function is None:
        function = getattr(lib, name)
        function.restype = c.c_int32
        _functions[name] = function
    error = P(CError)()
    with Using([x for x in arguments if isinstance(x, c.c_void_p)]):
        status = function(*arguments, c.byref(error))
    if status == 0:
        return
    e = error.contents
    parts = [
        text.decode("utf-8", "replace") if text else "" for text in (e.message, e.file, e.field, e.expected, e.found)
    ]
    lib.stet_error_free(error)
    kind = lib.stet_status_name(status).decode()
    raise (ArgumentError if kind == "argument" else Error)(kind, *named(name, *parts))


# ---- memory


_Self = TypeVar("_Self", bound="Handle")


class Handle:
    """An object of the library. It is freed once: by close(), at the end of `with`, or with the
    last reference."""

    _free = ""

    def __init__(self) -> None:
        self._pointer: Optional[c.c_void_p] = c.c_void_p()

    @property
    def _at(self) -> c.c_void_p:
        pointer: Optional[c.c_void_p] = getattr(self, "_pointer", None)
        if pointer is None:
            refuse(type(self).__name__.lower(), "one that is open", "one that was closed")
        return pointer

    @property
    def closed(self) -> bool:
        """True after close()."""
        return getattr(self, "_pointer", None) is None

    def close(self) -> None:
        """Frees the object, after the calls that use it now. Any later use raises an Error."""
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            free_after_use(self._free, pointer)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            if not sys.is_finalizing():
                self.close()
        except Exception:  # the interpreter is shutting down
            pass

    def __copy__(self: _Self) -> _Self:
        raise TypeError("a %s cannot be copied" % type(self).__name__)

    def __deepcopy__(self: _Self, memo: object) -> _Self:
        return self.__copy__()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a %s cannot be pickled: it is memory of this process%s" % (type(self).__name__, self._instead))

    _instead = ""

    def __repr__(self) -> str:
        return "<stet.%s%s>" % (type(self).__name__, ", closed" if self.closed else "")


class Shared(Handle):
    """A handle of an immutable object. Copying returns the same handle."""

    def __copy__(self: _Self) -> _Self:
        return self


class View(Handle):
    """Memory of the library that lives as long as an array over it. It is the base of read-only
    arrays."""

    _free = "stet_view_free"

    def array(self, address: Optional[int], shape: Tuple[int, ...], kind: str = "<f4") -> npt.NDArray[Any]:
        """Returns the memory at an address as a read-only array of this shape and type."""
        if not address or 0 in shape:
            empty = np.zeros(shape, kind)
            empty.flags.writeable = False
            return empty
        return np.asarray(_Memory(self, {"data": (address, True), "shape": shape, "typestr": kind, "version": 3}))


class _Memory:
    """The array interface of an address, for numpy. It keeps the owner alive."""

    def __init__(self, owner: object, interface: Dict[str, Any]) -> None:
        self.owner, self.__array_interface__ = owner, interface


class Capture(View):
    """Rows that a call has captured."""

    _free = "stet_capture_free"

    def __init__(self, at: Optional[int] = None) -> None:
        super().__init__()
        self._at.value = at


def sized(struct: Any) -> Any:
    """Returns a struct with its struct_size set."""
    struct.struct_size = c.sizeof(struct)
    return struct


def taken_text(data: c.c_void_p, size: c.c_size_t) -> str:
    """Returns a text that the library allocated, and frees the original."""
    text = c.string_at(data, size.value).decode("utf-8", "replace")
    lib.stet_free(data)
    return text


def taken_ids(ids: Any, count: c.c_size_t) -> I32:
    """Returns ids that the library allocated, and frees the original."""
    array = copied_ids(ids, count.value)
    lib.stet_free(c.cast(ids, c.c_void_p))
    return array


def copied_ids(ids: Any, count: int) -> I32:
    """Returns a copy of ids that the library owns."""
    return np.ctypeslib.as_array(ids, (count,)).copy() if count else np.zeros(0, np.int32)


# Bytes that the library reads until it calls their release callback, by number.
_lent: Dict[int, object] = {}
_Release = c.CFUNCTYPE(None, c.c_void_p)
_next_lent = iter(range(1, sys.maxsize))
_release = _Release(_lent.pop)  # a built-in function, in which no signal's handler can run


def lend(what: object) -> Tuple[Any, c.c_void_p]:
    """Keeps an object alive until the library releases it. Returns the release callback and its
    context."""
    number = next(_next_lent)
    _lent[number] = what
    return _release, c.c_void_p(number)


def version() -> str:
    """Returns the library's version, such as "0.1.0"."""
    return str(lib.stet_version().decode())


def isa_names() -> List[str]:
    """Returns the names of the instruction sets that this processor supports, the slowest first.
    They are the values of a session's `isa`."""
    names: List[str] = []
    while True:
        name = lib.stet_isa_name(len(names))
        if name is None:
            return names
        names.append(name.decode())
