"""Reads and edits the keys and values of a session."""
from __future__ import annotations

import ctypes as c
import dataclasses
from typing import Any, Optional, Tuple

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from ._library import F32, Error, P, View, refuse, sized
from ._session import SessionBase, with_sessions

_PLAIN = {1: "<f4", 2: "<u2", 3: "<f2"}  # types that are stored as plain arrays


class CRange(c.Structure):
    """The struct stet_kv_range."""
    _fields_ = [("struct_size", c.c_size_t), ("layers", P(c.c_int64)), ("layer_count", c.c_size_t),
                ("heads", P(c.c_int64)), ("head_count", c.c_size_t), ("begin", c.c_int64), ("end", c.c_int64),
                ("keys", c.c_int32), ("values", c.c_int32)]


@dataclasses.dataclass(frozen=True)
class Block:
    """The keys, [layers, kv_heads, head_dim, 64], and values, [layers, kv_heads, 64, head_dim],
    of 64 positions in the cache's type. bfloat16 is given as uint16 bit patterns. Slots without a
    position are 0."""
    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]


def _split(all: npt.NDArray[Any], part: int, shape: Tuple[int, int]) -> npt.NDArray[Any]:
    half = all[:, :, part]
    view = half.view()
    view.shape = half.shape[:2] + shape  # raises instead of copying if the view is impossible
    return view


def _range(layers: arguments.Ids = (), heads: arguments.Ids = (), begin: int = 0, end: int = 0, keys: bool = True,
           values: bool = True) -> Any:
    of_layers, of_heads = arguments.integers(layers, "layers"), arguments.integers(heads, "heads")
    keys, values = arguments.flag(keys, "keys"), arguments.flag(values, "values")
    if not keys and not values:
        refuse("keys", "keys, values or both", "neither")
    r = sized(
        CRange(layers=arguments.pointer(of_layers, c.c_int64), layer_count=of_layers.size,
               heads=arguments.pointer(of_heads, c.c_int64), head_count=of_heads.size,
               begin=arguments.integer(begin, "begin",
                                       0), end=arguments.integer(end, "end",
                                                                 0), keys=keys, values=values))
    r.kept = (of_layers, of_heads)
    return r


class KeysAndValues(SessionBase):
    """Access to keys and values. Every change is an edit: the state records that its tokens do
    not reproduce it. Ranges are given as layers, heads (default: all), begin, end (default: all
    positions), keys and values (default: both)."""

    def block(self, index: int) -> Block:
        """Returns read-only views of the keys and values of positions 64 index .. 64 index + 63
        in memory order. Raises Error for a kv type without plain arrays, and for models whose layers
        differ in shape."""
        m, view, data, size = self.model, View(), c.c_void_p(), c.c_size_t()
        with self._lock():
            self._long_call("stet_session_view_block", c.c_int64(arguments.integer(index, "index")),
                            c.byref(view._at), c.byref(data), c.byref(size))
            kind = _PLAIN.get(self._info().kv_type)
        if kind is None:
            raise Error("unsupported",
                        "kv_type: expected f32, bf16 or f16, whose blocks are plain arrays, found another; keys() and "
                        "values() read it", "", "kv_type", "f32, bf16 or f16", "another")
        if not m._has_plain_blocks():
            raise Error("unsupported",
                        "model: expected layers of one shape, found several; keys() and values() read them", "",
                        "model", "layers of one shape", "several")
        all = view.array(data.value, (m.layers, m.kv_heads, 2, m.head_dim * 64), kind)
        return Block(_split(all, 0, (m.head_dim, 64)), _split(all, 1, (64, m.head_dim)))

    def _kv(self, keys: bool, layer: int) -> F32:
        m = self.model
        layer = arguments.integer(layer, "layer", 0, m.layers - 1)
        row = m.point("blocks.%d.attn.hook_%s" % (layer, "k" if keys else "v"))  # refuses layers without keys
        dim = row.width // row.heads
        with self._lock():
            count = len(self)
            all = np.empty((count, row.heads, dim), np.float32)
            if self._info().kv_type not in _PLAIN or not m._has_plain_blocks():
                for position, head in np.ndindex(count, row.heads):
                    self._call("stet_session_get_key" if keys else "stet_session_get_value", c.c_int64(layer),
                               c.c_int64(head), c.c_int64(position),
                               arguments.pointer(all[position, head], c.c_float), arguments.size(dim))
                return all
            for begin in range(0, count, 64):
                block, end = self.block(begin // 64), min(count, begin + 64)
                part = block.keys[layer].transpose(2, 0, 1) if keys else block.values[layer].transpose(1, 0, 2)
                part = part[: end - begin]
                all[begin:end] = (part.astype(np.uint32) << 16).view(np.float32) if part.dtype == np.uint16 else part
            return all

    def keys(self, layer: int) -> F32:
        """Returns the stored keys of a layer, [positions, kv_heads, head_dim]. Raises Error for a layer
        that has none: it is recurrent, or reads those of another layer."""
        return self._kv(True, layer)

    def values(self, layer: int) -> F32:
        """Returns the stored values of a layer, as keys() does."""
        return self._kv(False, layer)

    def _set(self, function: str, layer: int, head: int, position: int, x: npt.ArrayLike) -> None:
        row = arguments.row(x, "x")
        at = [
            c.c_int64(arguments.integer(value, name))
            for value, name in ((layer, "layer"), (head, "head"), (position, "position"))
        ]
        self._long_call(function, *at, arguments.pointer(row, c.c_float), arguments.size(row.size))

    def set_key(self, layer: int, head: int, position: int, x: npt.ArrayLike) -> None:
        """Replaces the stored key of one position, [head_dim]. An edit."""
        self._set("stet_session_set_key", layer, head, position, x)

    def set_value(self, layer: int, head: int, position: int, x: npt.ArrayLike) -> None:
        """Replaces the stored value of one position, [head_dim]. An edit."""
        self._set("stet_session_set_value", layer, head, position, x)

    def zero_kv(self, *, layers: arguments.Ids = (), heads: arguments.Ids = (), begin: int = 0, end: int = 0,
                keys: bool = True, values: bool = True) -> None:
        """Zeroes keys and values of a range. An edit."""
        where = _range(layers, heads, begin, end, keys, values)
        self._long_call("stet_session_zero_kv", c.byref(where))

    def scale_kv(self, factor: float, *, layers: arguments.Ids = (), heads: arguments.Ids = (), begin: int = 0,
                 end: int = 0, keys: bool = True, values: bool = True) -> None:
        """Multiplies keys and values of a range by a factor. An edit."""
        where = _range(layers, heads, begin, end, keys, values)
        self._long_call("stet_session_scale_kv", c.byref(where), c.c_float(arguments.number(factor, "factor")))

    def set_kv(self, x: npt.ArrayLike, *, layers: arguments.Ids = (), heads: arguments.Ids = (), begin: int = 0,
               end: int = 0, keys: bool = True, values: bool = True) -> None:
        """Sets keys or values of a range: one vector [head_dim] for all, or [positions, heads,
        head_dim] for each layer. An edit."""
        rows, where = arguments.floats(x, "x"), _range(layers, heads, begin, end, keys, values)
        with self._lock():
            positions = (end or len(self)) - begin
            shape = self._shape_of(where)
            if shape is not None and positions > 0 and rows.shape not in (shape[1:], (positions, *shape)):
                refuse("x", "shape %s, or %s" % (shape[1:], (positions, *shape)), "shape %s" % (rows.shape,))
            self._long_call("stet_session_set_kv", c.byref(where), arguments.pointer(rows, c.c_float),
                            arguments.size(rows.size))

    def _shape_of(self, where: Any) -> Optional[Tuple[int, int]]:
        """Returns the number of heads in a stet_kv_range and their dimension, in its first layer. Returns
        None if the library refuses the range."""
        for layer in where.kept[0].tolist() or range(self.model.layers):
            try:
                row = self.model.point("blocks.%d.attn.hook_%s" % (layer, "k" if where.keys else "v"))
            except Error:
                continue
            return where.head_count or row.heads, row.width // row.heads
        return None

    def copy_kv(self, source: "KeysAndValues", position: Optional[int] = None, *, layers: arguments.Ids = (),
                heads: arguments.Ids = (), begin: int = 0, end: int = 0, keys: bool = True,
                values: bool = True) -> None:
        """Copies a range from another session of the same model, starting at `position` there
        (None: the same position). Keys that move are rotated to their new positions. An edit."""
        where = _range(layers, heads, begin, end, keys, values)
        at = begin if position is None else arguments.integer(position, "position")
        arguments.handle(source, "Session", "source")
        with_sessions((self, source),
                    lambda: self._long_call("stet_session_copy_kv", c.byref(where), source._at, c.c_int64(at)))
