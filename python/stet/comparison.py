"""Comparison and verification of states."""
from __future__ import annotations

import ctypes as c
import dataclasses
from typing import Any, Dict, List, Optional

from ._calls import long_call
from ._library import P, call, lib, sized


class CDifference(c.Structure):
    """The struct stet_difference."""
    _fields_ = [("text", c.c_char_p), ("where", c.c_char_p), ("what", c.c_char_p), ("expected", c.c_char_p),
                ("found", c.c_char_p), ("position", c.c_int64), ("layer", c.c_int64), ("head", c.c_int64),
                ("element", c.c_int64), ("expected_number", c.c_double), ("found_number", c.c_double)]


class _CComparisonInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("parts", c.c_size_t), ("layers", c.c_size_t), ("equal", c.c_int64),
                ("common_tokens", c.c_int64), ("equal_positions", c.c_int64), ("a_from_b", c.c_double),
                ("b_from_a", c.c_double)]


class _CComparisonPart(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("note", c.c_char_p),
                ("difference", P(CDifference)), ("compared", c.c_int64)]


class _CComparisonLayer(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("key_largest", c.c_double), ("key_rms", c.c_double),
                ("value_largest", c.c_double), ("value_rms", c.c_double)]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference between two states. -1 marks fields that do not apply. The numbers are
    NaN if the difference is not between numbers."""
    text: str
    what: str
    position: int
    layer: int
    head: int
    element: int
    expected: str = ""
    found: str = ""
    expected_number: float = float("nan")
    found_number: float = float("nan")

    @classmethod
    def _of(cls, at: Any) -> Optional["Difference"]:
        """Copies a stet_difference and frees it. Returns None for NULL."""
        if not at:
            return None
        d = at.contents
        texts = [text.decode("utf-8", "replace") for text in (d.text, d.what, d.expected, d.found)]
        difference = cls(texts[0], texts[1], d.position, d.layer, d.head, d.element, texts[2], texts[3],
                         d.expected_number, d.found_number)
        lib.stet_difference_free.argtypes = [P(CDifference)]
        lib.stet_difference_free(at)
        return difference


class CVerifyReport(c.Structure):
    """The struct stet_verify_report."""
    _fields_ = [("struct_size", c.c_size_t), ("tokens", c.c_int64), ("blocks", c.c_int64), ("of", c.c_int64),
                ("by_digests", c.c_int64), ("logits", c.c_int64), ("whole", c.c_int64), ("position", c.c_int64),
                ("reason", c.c_char * 256)]


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """The result of verify(): the verified part of a state, and why the rest was not verified. It
    is true if a difference was found."""
    difference: Optional[Difference]  # the first one; later parts were not compared
    tokens: int  # tokens processed again
    blocks: int  # blocks of keys and values equal to those of the tokens
    of: int  # all blocks
    by_digests: int  # those of `blocks` compared by digests, at least in some layers
    logits: bool  # the last token's logits equal the recomputed ones
    whole: bool  # the whole state was verified
    position: Optional[int]  # the tokens do not reproduce the state from here on; None: they do
    reason: str  # the reason for `position`

    @classmethod
    def _of(cls, r: Any, difference: Any) -> "VerifyReport":
        """Copies a report, and its stet_difference, which is freed."""
        return cls(Difference._of(difference), r.tokens, r.blocks, r.of, r.by_digests, bool(r.logits), bool(r.whole),
                   None if r.position < 0 else r.position, r.reason.decode("utf-8", "replace"))

    def __bool__(self) -> bool:
        return self.difference is not None

    def __str__(self) -> str:
        if self.difference is not None:
            return "different: " + self.difference.text
        rest = "" if self.position is None else "; not proved, from position %d on: %s" % (self.position, self.reason)
        return "%d of %d blocks%s were recomputed from the tokens and are equal%s" % (
            self.blocks,
            self.of,
            " and the logits" if self.logits else "",
            rest,
        )


@dataclasses.dataclass(frozen=True)
class LayerDeviation:
    """Deviations of a layer's keys and values: the largest difference, and the root mean square."""
    key_largest: float
    key_rms: float
    value_largest: float
    value_rms: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The comparison of two states, a and b, by parts. Divergences are those of the next token's
    distributions, in nats, and NaN if a state has no logits.

    `differences` holds the first difference of each differing part, and `notes` the reason why a
    part was not compared. Both use the parts' names as keys."""
    equal: bool
    common_tokens: int
    equal_positions: int
    a_from_b: float
    b_from_a: float
    differences: Dict[str, str]
    layers: List[LayerDeviation]
    notes: Dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def _made(cls, function: str, *arguments: Any) -> "Comparison":
        at, info = c.c_void_p(), sized(_CComparisonInfo())
        long_call(function, *arguments, c.byref(at))
        try:
            call("stet_comparison_get_info", at, c.byref(info))
            differences, layers, notes = {}, [], {}
            for i in range(info.parts):
                part = sized(_CComparisonPart())
                call("stet_comparison_get_part", at, c.c_size_t(i), c.byref(part))
                name = part.name.decode()
                if part.difference:
                    differences[name] = part.difference.contents.text.decode("utf-8", "replace")
                if part.note:
                    notes[name] = part.note.decode("utf-8", "replace")
            for i in range(info.layers):
                layer = sized(_CComparisonLayer())
                call("stet_comparison_get_layer", at, c.c_size_t(i), c.byref(layer))
                layers.append(LayerDeviation(layer.key_largest, layer.key_rms, layer.value_largest, layer.value_rms))
        finally:
            lib.stet_comparison_free.argtypes, lib.stet_comparison_free.restype = [c.c_void_p], None
            lib.stet_comparison_free(at)
        return cls(bool(info.equal), info.common_tokens, info.equal_positions, info.a_from_b, info.b_from_a,
                   differences, layers, notes)
