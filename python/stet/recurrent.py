"""The arrays of recurrent layers, and anchors, of a session."""
from __future__ import annotations

import ctypes as c
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from ._library import F32, refuse, sized
from ._session import SessionBase


class _CArray(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("layer", c.c_int64), ("name", c.c_char_p), ("shape", c.c_int64 * 4),
                ("dimensions", c.c_int32), ("count", c.c_size_t)]


class _CAnchor(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("position", c.c_int64), ("bytes", c.c_uint64),
                ("replayable", c.c_int32)]


class Anchor(NamedTuple):
    """The arrays of all recurrent layers, kept after `position` tokens: a rewind to there processes
    no tokens again. If not `replayable`, tokens may give other arrays, and anchor_bytes does not
    limit it."""
    position: int
    bytes: int
    replayable: bool


class RecurrentArrays(Mapping[int, Dict[str, F32]]):
    """The arrays of a session's recurrent layers after its last token: layer -> {name: array}.

    "state" is [heads, key_dim, value_dim]; Mamba-2's is [heads, head_dim, d_state]. "conv" is
    [taps - 1, channels], the oldest inputs first. Each access copies the session's present arrays;
    set_recurrent() replaces them."""

    def __init__(self, session: "Recurrent") -> None:
        self._session = session
        self._places: Dict[int, Dict[str, Tuple[int, Tuple[int, ...]]]] = {}
        for index in range(session._info().recurrent_arrays):
            a = sized(_CArray())
            session._call("stet_session_recurrent_array", arguments.size(index), c.byref(a))
            self._places.setdefault(a.layer, {})[a.name.decode()] = (index, tuple(a.shape[:a.dimensions]))

    def __getitem__(self, layer: int) -> Dict[str, F32]:
        found: Dict[str, F32] = {}
        with self._session._lock():
            for name, (index, shape) in self._places[layer].items():
                x = np.empty(shape, np.float32)
                self._session._call("stet_session_get_recurrent", arguments.size(index),
                                    arguments.pointer(x, c.c_float), arguments.size(x.size))
                found[name] = x
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        arrays: Dict[str, Tuple[int, Tuple[int, ...]]] = next(iter(self._places.values()), {})
        return "<stet.RecurrentArrays of %d layers%s>" % (len(self), "".join(
            "%s %s %s" % (", each" if i == 0 else " and", name, list(shape))
            for i, (name, (_, shape)) in enumerate(arrays.items())))

    def _place(self, layer: int, name: str) -> Tuple[int, Tuple[int, ...]]:
        layer = arguments.integer(layer, "layer")
        if layer not in self._places:
            refuse("layer", "one of the recurrent layers %s" % (", ".join(map(str, self)) or "(none)"), layer)
        if not isinstance(name, str) or name not in self._places[layer]:
            refuse("name", " or ".join(self._places[layer]), repr(name))
        return self._places[layer][name]


class Recurrent(SessionBase):
    """Access to the arrays of recurrent layers, which these keep in place of keys and values."""

    @property
    def recurrent(self) -> RecurrentArrays:
        """Arrays of the recurrent layers: layer -> {name: array}. Empty for models without them."""
        return RecurrentArrays(self)

    def set_recurrent(self, layer: int, name: str, x: npt.ArrayLike) -> None:
        """Replaces an array after the last token. An edit, which also keeps an anchor."""
        array: Any = arguments.floats(x, "x")
        with self._lock():
            index, shape = self.recurrent._place(layer, name)
            if array.shape != shape:
                refuse("x", "shape %s" % (shape,), "shape %s" % (array.shape,))
            self._long_call("stet_session_set_recurrent", arguments.size(index), arguments.pointer(array, c.c_float),
                            arguments.size(array.size))

    @property
    def anchors(self) -> List[Anchor]:
        """Anchors, in ascending order of position. rewind_cost() says what they save."""
        found = []
        with self._lock():
            for index in range(self._info().anchors):
                a = sized(_CAnchor())
                self._call("stet_session_anchor", arguments.size(index), c.byref(a))
                found.append(Anchor(a.position, a.bytes, bool(a.replayable)))
        return found

    def keep_anchor(self) -> None:
        """Keeps an anchor at the session's size. Does nothing in models without recurrent layers."""
        self._call("stet_session_keep_anchor")
