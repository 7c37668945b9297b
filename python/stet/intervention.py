"""Interventions: changes of activations that are declared in a state."""
from __future__ import annotations

import ctypes as c
import dataclasses
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from ._library import F32, Error, P, refuse, sized

if TYPE_CHECKING:
    from .model import Model, Point
    from .attaching import Attaching

# C_OPS are the library's operations in the order of their numbers. The other OPS are expressed by
# one of them.
C_OPS = ["set", "add", "scale", "project_out", "clamp"]
OPS = ["set", "replace", "zero", "mean", "add", "scale", "project_out", "clamp", "knock_out"]


class CIntervention(c.Structure):
    """The struct stet_intervention."""
    _fields_ = [("struct_size", c.c_size_t), ("point", c.c_char_p), ("layers", P(c.c_int64)),
                ("layer_count", c.c_size_t), ("heads", P(c.c_int64)),
                ("head_count", c.c_size_t), ("begin", c.c_int64), ("end", c.c_int64), ("op", c.c_int32),
                ("amount", c.c_float), ("bias", c.c_float), ("threshold", c.c_float), ("values", P(c.c_float)),
                ("value_count", c.c_size_t), ("key_begin", c.c_int64), ("key_end", c.c_int64)]


@dataclasses.dataclass
class Intervention:
    """A change of activations (docs/lab.md). It is part of the state that it is attached to.

    `point` includes a layer ("blocks.3.attn.hook_z"), or omits it and applies to `layers` (none:
    all). `op` is one of
      set (or replace), zero
      mean          sets the mean of the rows in `values`
      add           adds `amount` times the values
      scale         multiplies by `amount`
      project_out   removes the component along `values`
      clamp         sets a feature of a sparse autoencoder; values [2, width] are its encoder and decoder
    Positions are begin .. end - 1; end 0 means without end.

    `values` is a row of the point, [width] or [heads, head_dim]. For set it can have a row for
    each position, [positions, ...]; for mean, any number of rows. With `heads`, it is one of
    these:
      [head_dim]                          one row for all of them
      [len(heads), head_dim]              a row for each, or [positions, len(heads), head_dim]
      [heads, head_dim]                   a capture with all heads of the point, or [positions, heads, head_dim];
                                          the rows of `heads` are used

    Scores and patterns (attn.hook_attn_scores, attn.hook_pattern) accept set, zero, add and scale
    for the attended positions key_begin .. key_end - 1. `values` is one number, or one for each
    of them. For scores, knock_out hides these positions, and the others share their weight."""
    point: str
    op: str = "add"
    values: Optional[npt.ArrayLike] = None
    amount: float = 1.0
    begin: int = 0
    end: int = 0  # 0: without end
    layers: arguments.Ids = ()
    heads: arguments.Ids = ()
    bias: float = 0.0
    threshold: float = 0.0
    key_begin: int = 0
    key_end: int = 0  # 0: to the last position

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        arguments.word(self.point, "point")
        if self.op not in OPS:
            refuse("op", "one of %s" % ", ".join(OPS), self.op)
        # Read once, because they may be iterators.
        self.layers = arguments.integers(self.layers, "layers").tolist()
        self.heads = arguments.integers(self.heads, "heads").tolist()
        if self.layers and self.point.startswith("blocks."):
            refuse("layers", "none beside a point of one layer, %s" % self.point, self.layers)
        for begin, end in (("begin", "end"), ("key_begin", "key_end")):
            first, last = (arguments.integer(getattr(self, name), name, 0) for name in (begin, end))
            if last and last <= first:
                refuse(end, "0, or a position after %s %d" % (begin, first), last)
        for name in ("amount", "bias", "threshold"):
            arguments.single(getattr(self, name), name)
        if self.op in ("zero", "scale", "knock_out") and self.values is not None:
            refuse("values", "none for %s" % self.op, "an array of shape %s" % (np.shape(self.values),))
        if self.op not in ("zero", "scale", "knock_out") and self.values is None:
            refuse("values", "numbers for %s" % self.op, "none")

    def __repr__(self) -> str:
        parts = [repr(self.point), repr(self.op)]
        for f in dataclasses.fields(self)[2:]:
            value = getattr(self, f.name)
            if f.name == "values" and value is not None:
                parts.append("values=<%s>" % " x ".join(str(n) for n in np.shape(value)))
            elif f.name != "values" and (len(value) > 0 if f.name in ("layers", "heads") else value != f.default):
                parts.append("%s=%r" % (f.name, value if f.name not in ("layers", "heads") else list(value)))
        return "Intervention(%s)" % ", ".join(parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervention):
            return NotImplemented
        same = [f.name for f in dataclasses.fields(self) if f.name not in ("values", "layers", "heads")]
        mine, its = (np.zeros(0, np.float32) if x.values is None else np.asarray(x.values, np.float32)
                     for x in (self, other))
        return (all(getattr(self, name) == getattr(other, name) for name in same)
                and list(self.layers) == list(other.layers) and list(self.heads) == list(other.heads)
                and mine.shape == its.shape and mine.tobytes() == its.tobytes())


class Attached(NamedTuple):
    """An intervention of a session: its index, the intervention, and the session's size when it
    was attached."""
    place: int
    intervention: Intervention
    at: int


def _alike(a: Attached, b: Attached) -> bool:
    """Returns True if two entries differ at most in their place and their end."""
    first, second = (dataclasses.replace(one.intervention, end=0) for one in (a, b))
    return a.at == b.at and first == second


class Attachment:
    """The interventions that Session.attach() attached. detach(), or the end of `with`, ends
    them."""

    def __init__(self, session: "Attaching", before: List[Attached], entries: List[Attached]) -> None:
        self._session, self._entries = session, entries
        # The number of earlier ones that differ at most in their end, for each that was attached.
        self._left = [(entry, sum(_alike(entry, other) for other in before + entries[:i]))
                      for i, entry in enumerate(entries)]

    def __repr__(self) -> str:
        return "<stet.Attachment: %s>" % ", ".join(repr(e.intervention) for e in self._entries)

    def detach(self, position: Optional[int] = None) -> None:
        """Ends the interventions at a position not before the session's size (None: at that
        size). Those that a rewind has removed, or that are already detached, stay as they are."""
        with self._session._lock():
            while self._left:
                entry, earlier = self._left[-1]
                alike = [now for now in self._session.attached() if _alike(entry, now)]
                # Earlier ones may have been removed. Equal ones have equal effects.
                for now in reversed(alike[:earlier + 1]):
                    if now.intervention.end == entry.intervention.end:
                        self._session.detach(now.place, position)
                        break
                self._left.pop()

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._session.closed:
            self.detach()


def c_intervention(point: str, op: str, values: F32, change: Intervention, heads: Sequence[int]) -> Any:
    """Returns a stet_intervention."""
    layers, some = arguments.integers(change.layers, "layers"), arguments.integers(heads, "heads")
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if op == "add" and np.isfinite(flat).all():  # the library refuses values that are not
        with np.errstate(over="ignore"):
            if not np.isfinite(flat * np.float32(change.amount)).all():
                refuse("values", "numbers whose products with the amount are finite in float32",
                       "the amount %s" % change.amount)
    w = sized(
        CIntervention(point=point.encode(), layers=arguments.pointer(layers, c.c_int64), layer_count=layers.size,
                      heads=arguments.pointer(some, c.c_int64), head_count=some.size, begin=change.begin,
                      end=change.end, op=C_OPS.index(op), amount=change.amount, bias=change.bias,
                      threshold=change.threshold, key_begin=change.key_begin, key_end=change.key_end,
                      values=arguments.pointer(flat, c.c_float), value_count=flat.size))
    w.kept = (flat, layers, some)
    return w


def c_interventions(model: "Model", change: Intervention) -> List[Any]:
    """Returns the C structs of an intervention: one, or one for each head that has its own row."""
    change._check()
    point = _shape(model, change)
    for head in change.heads:
        if point.heads == 0:
            refuse("heads", "none: %s has no heads" % change.point, list(change.heads))
        arguments.integer(head, "heads", 0, point.heads - 1)
    heads = [int(h) for h in change.heads]
    if point.of_positions:
        return [_of_attention(change, heads)]
    if change.op == "knock_out":
        refuse("op", "knock_out of attn.hook_attn_scores alone", change.point)
    width = point.width // point.heads if heads else point.width
    if change.op == "zero":
        return [c_intervention(change.point, "set", np.zeros(width, np.float32), change, heads)]
    if change.op == "scale":
        return [c_intervention(change.point, "scale", np.zeros(0, np.float32), change, heads)]
    op = "set" if change.op in ("replace", "mean") else change.op
    values = arguments.floats(change.values, "values")
    if change.op == "clamp":
        if values.shape not in ((2, width), (2 * width,)):
            refuse("values", "encoder and decoder, shape %s" % ((2, width),), "shape %s" % (values.shape,))
        return [c_intervention(change.point, op, values, change, heads)]
    count = change.end - change.begin if change.end else 0
    if not heads:
        rows = _rows(values, point, width, change)
        if change.op == "mean":
            rows = _mean(rows)
        return [c_intervention(change.point, op, _per_position(rows, op, count), change, heads)]
    by_head = _rows_of_heads(values, point, width, heads, change, count)  # [rows][heads or 1][head_dim]
    if change.op == "mean":
        by_head = _mean(by_head)
    if by_head.shape[1] == 1:
        return [c_intervention(change.point, op, _per_position(by_head[:, 0], op, count), change, heads)]
    return [
        c_intervention(change.point, op, _per_position(by_head[:, i], op, count), change, [head])
        for i, head in enumerate(heads)
    ]


def _shape(model: "Model", change: Intervention) -> "Point":
    """Returns the point's shape in the first of the change's layers."""
    first = change.layers[0] if change.layers else -1
    if 0 <= first < model.layers and not model.points(change.point):  # the point belongs to layers
        return model.point("blocks.%d.%s" % (first, change.point))
    return model.point(change.point)


def _of_attention(change: Intervention, heads: List[int]) -> Any:
    """Returns the values for scores and patterns: one number, or one for each attended position."""
    if change.op == "knock_out":
        return c_intervention(change.point, "set", np.full(1, -np.inf, np.float32), change, heads)
    if change.op in ("zero", "scale"):
        return c_intervention(change.point, "set" if change.op == "zero" else "scale",
                              np.zeros(0 if change.op == "scale" else 1, np.float32), change, heads)
    if change.op not in ("set", "replace", "add"):
        refuse("op", "set, zero, add, scale or knock_out of scores and patterns", change.op)
    values = arguments.floats(change.values, "values")
    count = change.key_end - change.key_begin if change.key_end else 0
    if values.size != 1 and values.shape != (count,):
        refuse("values", "one number%s" % (", or %d" % count if count else ""), "shape %s" % (values.shape,))
    return c_intervention(change.point, "add" if change.op == "add" else "set", values, change, heads)


def _per_position(rows: F32, op: str, count: int) -> F32:
    """Returns rows as C takes them: one or, for `set`, one for each position."""
    if len(rows) == 1:
        return rows
    if op != "set":
        refuse("values", "one row for %s" % op, "%d" % len(rows))
    if len(rows) != count:
        refuse(
            "values", "one row, or one for each of %s" %
            ("%d positions" % count if count else "positions begin .. end - 1, with an end"), "%d" % len(rows))
    return rows


def _rows(values: F32, point: "Point", width: int, change: Intervention) -> F32:
    """Returns values of a whole point as [rows][width]."""
    shapes: List[Tuple[int, ...]] = [(width,)] + ([(point.heads, width // point.heads)] if point.heads else [])
    for shape in shapes:
        if values.shape == shape or values.shape[1:] == shape:
            return values.reshape(-1, width)
    if values.ndim == 1 and values.size and values.size % width == 0:  # flattened rows
        return values.reshape(-1, width)
    refuse(
        "values", "%d numbers for a row of %s, as one of the shapes %s" %
        (width, change.point, ", ".join(str(s) for s in shapes)), "shape %s" % (values.shape, ))


def _rows_of_heads(values: F32, point: "Point", width: int, heads: List[int], change: Intervention, count: int) -> F32:
    """Returns [rows][heads or 1][head_dim]. One head stands for a row that all heads get."""
    every = point.heads
    if values.shape == (width,):
        return values.reshape(1, 1, width)
    if values.shape[-1:] == (width,) and values.ndim == 3:
        if values.shape[1] in (len(heads), 1):
            return values
        if values.shape[1] == every:
            return values[:, heads]
    if values.shape[-1:] == (width,) and values.ndim == 2:
        n = len(values)
        of_positions = change.op == "mean" or (n == count and change.op in ("set", "replace"))
        of_heads = n in (len(heads), every)
        if of_positions and of_heads and len(heads) > 1:
            refuse("values",
                   "rows of heads, or of positions, which %d can be both: give [positions, heads, head_dim]" % n,
                   "shape %s" % (values.shape, ))
        if n == len(heads) and not (of_positions and len(heads) == 1):
            return values.reshape(1, n, width)
        if n == every and not of_positions:
            return values[heads].reshape(1, len(heads), width)
        if of_positions:
            return values.reshape(n, 1, width)
    refuse(
        "values", "%d numbers for a head of %s, a row for each of %d heads, or what was captured of all %d" %
        (width, change.point, len(heads), every), "shape %s" % (values.shape, ))


def _mean(rows: F32) -> F32:
    """Returns the mean of rows, [1][...]. Sums in order in float32, as the command does."""
    if len(rows) == 0:
        refuse("values", "one row or more for mean", "none")
    share = np.float32(1) / np.float32(len(rows))
    mean = np.zeros(rows.shape[1:], np.float32)
    for row in rows:
        mean += row * share
    return mean.reshape(1, *mean.shape)


def intervention_of(w: CIntervention) -> Intervention:
    """Returns the Intervention that a C struct describes."""
    values = np.ctypeslib.as_array(w.values, (w.value_count,)).copy() if w.value_count else None
    op = C_OPS[w.op] if 0 <= w.op < len(C_OPS) else str(w.op)
    if op not in OPS:
        raise Error("unsupported", "op: expected one that this package knows, found %s" % op, "", "op",
                    "one that this package knows", op)
    return Intervention(w.point.decode(), op, values, w.amount, w.begin, w.end,
                        [w.layers[i] for i in range(w.layer_count)], [w.heads[i] for i in range(w.head_count)],
                        w.bias, w.threshold, w.key_begin, w.key_end)
