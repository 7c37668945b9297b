"""The C interface (stet/c.h) by ctypes."""
from __future__ import annotations

import ctypes as c
import ctypes.util
import contextlib
import dataclasses
import fnmatch
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

import numpy as np

P = c.POINTER
Ids = Union[Sequence[int], np.ndarray]


def _load() -> c.CDLL:
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.environ.get("STET_LIBRARY"), os.path.join(here, "libstet.so.0"), ctypes.util.find_library("stet"), "libstet.so.0"):
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
    raise ImportError("expected libstet.so.0 in STET_LIBRARY, beside this package or where the system looks, found none")


_lib = _load()


class _CError(c.Structure):
    _fields_ = [("kind", c.c_int32), ("message", c.c_char_p), ("file", c.c_char_p), ("field", c.c_char_p), ("expected", c.c_char_p), ("found", c.c_char_p)]


class Error(Exception):
    """What stet refuses: `kind` ("format", "argument", ...), and where known file, field, expected, found."""

    def __init__(self, kind: str, message: str, file: str = "", field: str = "", expected: str = "", found: str = ""):
        super().__init__(message)
        self.kind, self.file, self.field, self.expected, self.found = kind, file, field, expected, found


_lib.stet_status_name.restype = c.c_char_p
_lib.stet_error_free.argtypes = [P(_CError)]
_lib.stet_free.argtypes = [c.c_void_p]
_lib.stet_version.restype = c.c_char_p


def version() -> str:
    """Of the library."""
    return _lib.stet_version().decode()


def _call(name: str, *arguments) -> None:
    error = P(_CError)()
    function = getattr(_lib, name)
    function.restype = c.c_int32
    status = function(*arguments, c.byref(error))
    if status == 0:
        return
    e = error.contents
    parts = [text.decode("utf-8", "replace") if text else "" for text in (e.message, e.file, e.field, e.expected, e.found)]
    _lib.stet_error_free(error)
    raise Error(_lib.stet_status_name(status).decode(), *parts)


class _Text(c.Structure):
    _fields_ = [("data", c.c_void_p), ("size", c.c_size_t)]

    def __str__(self) -> str:
        return c.string_at(self.data, self.size).decode("utf-8", "replace") if self.size else ""


def _sized(struct):
    struct.struct_size = c.sizeof(struct)
    return struct


def _taken_text(data: c.c_void_p, size: c.c_size_t) -> str:
    text = c.string_at(data, size.value).decode("utf-8", "replace")
    _lib.stet_free(data)
    return text


def _ids(ids: Ids) -> np.ndarray:
    return np.ascontiguousarray(ids, dtype=np.int32)


def _pointer(array: np.ndarray, kind):
    return array.ctypes.data_as(P(kind))


_Self = TypeVar("_Self", bound="_Handle")


class _Handle:
    """Something of the library's, freed once: by close(), by `with`, or with the last reference."""
    _free = ""

    def __init__(self) -> None:
        self._at = c.c_void_p()

    def close(self) -> None:
        """Frees it now; nothing else may be asked of it then."""
        if self._at:
            free = getattr(_lib, self._free)
            free.argtypes, free.restype = [c.c_void_p], None
            free(self._at)
            self._at = c.c_void_p()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is ending
            pass


class _View(_Handle):
    """Memory that the library owns, as long as an array over it lives: the base of read-only arrays."""
    _free = "stet_view_free"

    def array(self, address: Optional[int], shape: Tuple[int, ...], kind: str = "<f4") -> np.ndarray:
        """The memory at an address as an array that cannot be written to."""
        if not address or 0 in shape:
            return np.zeros(shape, kind)
        return np.asarray(_Memory(self, {"data": (address, True), "shape": shape, "typestr": kind, "version": 3}))


class _Memory:
    """What numpy asks for an address; it keeps the owner alive."""

    def __init__(self, owner: object, interface: Dict[str, Any]):
        self.owner, self.__array_interface__ = owner, interface


class _Capture(_View):
    _free = "stet_capture_free"

    def __init__(self, at: Optional[int] = None) -> None:
        super().__init__()
        self._at.value = at


CONTRACTS = {"": 0, "f32": 1, "f32-blas": 2, "bf16": 3, "q8": 4, "q4": 5, "ggml": 6}
KV_TYPES = {"": 0, "f32": 1, "bf16": 2, "f16": 3, "q8": 4}
_PLAIN = {1: "<f4", 2: "<u2", 3: "<f2"}  # those whose blocks are plain arrays
FORMS = {"full": 0, "delta": 1, "recipe": 2}


class _ModelOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("threads", c.c_int64), ("contract", c.c_int64)]


class _ModelInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("family", c.c_char_p), ("architecture", c.c_char_p), ("source", c.c_char_p), ("fingerprint", c.c_char_p),
                ("vocab_size", c.c_int64), ("hidden_size", c.c_int64), ("intermediate_size", c.c_int64), ("layers", c.c_int64), ("heads", c.c_int64),
                ("kv_heads", c.c_int64), ("head_dim", c.c_int64), ("max_positions", c.c_int64), ("weight_bytes", c.c_uint64), ("contract", c.c_int64),
                ("fingerprint_count", c.c_size_t)]


class Model(_Handle):
    """A checkpoint directory: weights that any number of sessions share."""
    _free = "stet_model_free"

    family: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    weight_bytes: int

    def __init__(self, directory: str, contract: str = "", threads: int = 0):
        super().__init__()
        options = _sized(_ModelOptions(contract=CONTRACTS[contract], threads=threads))
        _call("stet_model_load", os.fsencode(directory), c.byref(options), c.byref(self._at))
        self._info()

    def _info(self) -> None:
        info = _sized(_ModelInfo())
        _call("stet_model_get_info", self._at, c.byref(info))
        self.family, self.fingerprint = info.family.decode(), info.fingerprint.decode()
        for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim", "max_positions", "weight_bytes"):
            setattr(self, name, getattr(info, name))

    def session(self, capacity: int = 0, threads: int = 0, chunk: int = 0, isa: str = "", kv_type: str = "", contract: str = "",
                window_only: bool = False, recompute: bool = False, checkpoint_every: int = 0) -> "Session":
        """A new session: positions (0: all that the model has), and how to compute, of which only contract and kv_type change bits."""
        return Session(self, capacity=capacity, threads=threads, chunk=chunk, isa=isa, kv_type=kv_type, contract=contract,
                       window_only=window_only, recompute=recompute, checkpoint_every=checkpoint_every)

    def points(self, pattern: str = "*") -> List[str]:
        """Names of this model's points (docs/points.md), in the order of the forward pass."""
        text, size = c.c_void_p(), c.c_size_t()
        _call("stet_model_points", self._at, c.byref(text), c.byref(size))
        names = _taken_text(text, size).splitlines()
        return [name for name in names if fnmatch.fnmatchcase(name, pattern)]

    def _matching(self, patterns: Iterable[str]) -> List[str]:
        names: List[str] = []
        for pattern in patterns:
            found = self.points(pattern)
            if not found:
                raise Error("argument", "points: expected names of points of family %s, found %s" % (self.family, pattern), "", "points", "names of points", pattern)
            names += [name for name in found if name not in names]
        return names


class Tokenizer(_Handle):
    """The tokenizer of a checkpoint directory."""
    _free = "stet_tokenizer_free"

    def __init__(self, directory: str):
        super().__init__()
        _call("stet_tokenizer_load", os.fsencode(directory), c.byref(self._at))

    def encode(self, text: str) -> np.ndarray:
        """Token ids, with bos where the model has one."""
        data, ids, count = text.encode(), P(c.c_int32)(), c.c_size_t()
        _call("stet_tokenizer_encode", self._at, data, c.c_size_t(len(data)), None, c.byref(ids), c.byref(count))
        array = np.ctypeslib.as_array(ids, (count.value,)).copy() if count.value else np.zeros(0, np.int32)
        _lib.stet_free(c.cast(ids, c.c_void_p))
        return array

    def decode(self, ids: Ids, skip_special: bool = False) -> str:
        """The text of tokens: valid Unicode, whatever they are."""
        array, out, size = _ids(ids), c.c_void_p(), c.c_size_t()
        _call("stet_tokenizer_decode", self._at, _pointer(array, c.c_int32), c.c_size_t(array.size), c.c_int32(skip_special), c.byref(out), c.byref(size))
        return _taken_text(out, size)

    def id(self, piece: str) -> int:
        """Of a token as the vocabulary writes it; -1: none."""
        data, id = piece.encode(), c.c_int32()
        _call("stet_tokenizer_id", self._at, data, c.c_size_t(len(data)), c.byref(id))
        return id.value


class _SessionOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("capacity", c.c_int64), ("threads", c.c_int64), ("chunk", c.c_int64), ("isa", c.c_char_p), ("kv_type", c.c_int32), ("contract", c.c_int32),
                ("window_only", c.c_int32), ("recompute", c.c_int32), ("checkpoint_every", c.c_int64)]


def _range(layers: Sequence[int] = (), heads: Sequence[int] = (), begin: int = 0, end: int = 0, keys: bool = True, values: bool = True) -> _CRange:
    of_layers, of_heads = np.asarray(layers, np.int64), np.asarray(heads, np.int64)
    if not keys and not values:
        raise Error("argument", "range: expected keys, values or both, found neither", "", "range", "keys, values or both", "neither")
    r = _sized(_CRange(layers=_pointer(of_layers, c.c_int64), layer_count=of_layers.size, heads=_pointer(of_heads, c.c_int64), head_count=of_heads.size, begin=begin, end=end, keys=keys, values=values))
    r.kept = (of_layers, of_heads)
    return r


def _session_options(capacity: int = 0, threads: int = 0, chunk: int = 0, isa: str = "", kv_type: str = "", contract: str = "",
                     window_only: bool = False, recompute: bool = False, checkpoint_every: int = 0) -> "_SessionOptions":
    return _sized(_SessionOptions(capacity=capacity, threads=threads, chunk=chunk, isa=isa.encode() or None, kv_type=KV_TYPES[kv_type], contract=CONTRACTS[contract],
                                  window_only=window_only, recompute=recompute, checkpoint_every=checkpoint_every))


class _SessionInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("size", c.c_int64), ("capacity", c.c_int64), ("floor", c.c_int64), ("visible", c.c_int64), ("drawn", c.c_int64), ("threads", c.c_int64),
                ("chunk", c.c_int64), ("isa", c.c_char_p), ("contract_name", c.c_char_p), ("contract", c.c_int32), ("kv_type", c.c_int32), ("stop_ids", c.c_size_t),
                ("stop_strings", c.c_size_t), ("turns", c.c_size_t), ("messages", c.c_size_t), ("prunes", c.c_size_t), ("edits", c.c_size_t), ("interventions", c.c_size_t)]


_LogitsCallback = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, P(c.c_float), c.c_size_t)


_ChangeCallback = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_size_t, c.c_int64, P(c.c_float), c.c_size_t, c.c_size_t, c.c_size_t)


class _CCallback(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("points", P(c.c_char_p)), ("point_count", c.c_size_t), ("context", c.c_void_p), ("change", _ChangeCallback), ("release", c.c_void_p)]


class _CRange(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("layers", P(c.c_int64)), ("layer_count", c.c_size_t), ("heads", P(c.c_int64)), ("head_count", c.c_size_t), ("begin", c.c_int64), ("end", c.c_int64),
                ("keys", c.c_int32), ("values", c.c_int32)]


class _CCut(c.Structure):
    _fields_ = [("from_session", c.c_void_p), ("begin", c.c_int64), ("end", c.c_int64)]


class _CIntervention(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("point", c.c_char_p), ("layers", P(c.c_int64)), ("layer_count", c.c_size_t), ("heads", P(c.c_int64)), ("head_count", c.c_size_t),
                ("begin", c.c_int64), ("end", c.c_int64), ("op", c.c_int32), ("amount", c.c_float), ("bias", c.c_float), ("threshold", c.c_float), ("values", P(c.c_float)), ("value_count", c.c_size_t)]


@dataclasses.dataclass
class Intervention:
    """A change of activations (docs/lab.md): op is set, add, scale, project_out or clamp. Part of the state that it is attached to."""
    point: str
    op: str = "add"
    values: Optional[np.ndarray] = None
    amount: float = 1.0
    begin: int = 0
    end: int = 0  # 0: from `begin` on for ever
    layers: Sequence[int] = ()
    heads: Sequence[int] = ()
    bias: float = 0.0
    threshold: float = 0.0


def _c_intervention(change: Intervention) -> _CIntervention:
    ops = ["set", "add", "scale", "project_out", "clamp"]
    if change.op not in ops:
        raise Error("argument", "op: expected one of %s, found %s" % (", ".join(ops), change.op), "", "op", ", ".join(ops), change.op)
    values = np.ascontiguousarray(change.values if change.values is not None else [], np.float32)
    layers, heads = np.asarray(change.layers, np.int64), np.asarray(change.heads, np.int64)
    w = _sized(_CIntervention(point=change.point.encode(), layers=_pointer(layers, c.c_int64), layer_count=layers.size, heads=_pointer(heads, c.c_int64), head_count=heads.size,
                              begin=change.begin, end=change.end, op=ops.index(change.op), amount=change.amount, bias=change.bias, threshold=change.threshold,
                              values=_pointer(values, c.c_float), value_count=values.size))
    w.kept = (values, layers, heads)
    return w


@dataclasses.dataclass(frozen=True)
class Block:
    """64 positions: keys [layers, kv_heads, head_dim, 64], values [layers, kv_heads, 64, head_dim], of the cache's type; bfloat16 as its bits, uint16. Slots that hold no position are 0."""
    keys: np.ndarray
    values: np.ndarray


def _split(all: np.ndarray, part: int, shape: Tuple[int, int]) -> np.ndarray:
    half = all[:, :, part]
    view = half.view()
    view.shape = half.shape[:2] + shape  # an error, never a copy, where that cannot be
    return view


class _CTokenBias(c.Structure):
    _fields_ = [("id", c.c_int32), ("bias", c.c_double)]


class _CSampling(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("temperature", c.c_double), ("top_p", c.c_double), ("min_p", c.c_double), ("typical_p", c.c_double), ("repetition_penalty", c.c_double),
                ("seed", c.c_uint64), ("top_k", c.c_int32), ("greedy", c.c_int32), ("frequency_penalty", c.c_double), ("presence_penalty", c.c_double),
                ("logit_bias", P(_CTokenBias)), ("logit_bias_count", c.c_size_t)]


@dataclasses.dataclass
class Sampling:
    """How tokens are drawn; draws are a function of seed and position. Frequency and presence penalties count the tokens of the reply so far; logit_bias is added to the logits of single tokens."""
    greedy: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)


class _CReply(c.Structure):
    _fields_ = [("ids", P(c.c_int32)), ("id_count", c.c_size_t), ("text", _Text), ("stop", c.c_int32)]


@dataclasses.dataclass
class Reply:
    """ids: a stop token included; text: special tokens left out; stop: eos, string, length or callback."""
    ids: np.ndarray
    text: str
    stop: str


class _GenerateOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("max_tokens", c.c_int64), ("context", c.c_void_p), ("on_text", c.c_void_p), ("on_token", c.c_void_p)]


class _CDigests(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("tokens", c.c_char * 40), ("logits", c.c_char * 40), ("kv", c.c_char * 40), ("state", c.c_char * 40), ("id", c.c_char * 72)]


@dataclasses.dataclass(frozen=True)
class Digests:
    """What tells a state from others; equal ids mean equal continuations."""
    tokens: str
    logits: str
    kv: str
    state: str
    id: str

    @classmethod
    def _of(cls, d: _CDigests) -> "Digests":
        return cls(*(getattr(d, name).decode() for name in ("tokens", "logits", "kv", "state", "id")))


class _CDifference(c.Structure):
    _fields_ = [("text", c.c_char_p), ("where", c.c_char_p), ("what", c.c_char_p), ("expected", c.c_char_p), ("found", c.c_char_p), ("position", c.c_int64), ("layer", c.c_int64),
                ("head", c.c_int64), ("element", c.c_int64), ("expected_number", c.c_double), ("found_number", c.c_double)]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first place where two states differ; -1: does not apply."""
    text: str
    what: str
    position: int
    layer: int
    head: int
    element: int

    @classmethod
    def _of(cls, at) -> Optional["Difference"]:
        if not at:
            return None
        d = at.contents
        difference = cls(d.text.decode("utf-8", "replace"), d.what.decode(), d.position, d.layer, d.head, d.element)
        _lib.stet_difference_free.argtypes = [P(_CDifference)]
        _lib.stet_difference_free(at)
        return difference


class _PruneOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("keep_last", c.c_int64), ("sinks", c.c_int64)]


class _SaveOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("parent", c.c_void_p), ("threads", c.c_int64), ("mode", c.c_int64), ("form", c.c_int32), ("compress", c.c_int32)]


class Session(_Handle):
    """A conversation with a model: all that changes while it runs."""
    _free = "stet_session_free"

    def __init__(self, model: Model, **options: Any):
        super().__init__()
        self.model = model
        self._callbacks: List[Any] = []
        self._raised: List[BaseException] = []
        options = _session_options(**options)
        _call("stet_session_new", model._at, c.byref(options), c.byref(self._at))

    @classmethod
    def _adopt(cls, model: Model, at: c.c_void_p) -> "Session":
        session = cls.__new__(cls)
        session.model, session._at, session._callbacks, session._raised = model, at, [], []
        return session

    def _info(self) -> _SessionInfo:
        info = _sized(_SessionInfo())
        _call("stet_session_get_info", self._at, c.byref(info))
        return info

    def __len__(self) -> int:
        return self._info().size

    @property
    def capacity(self) -> int:
        """Positions that it can hold."""
        return self._info().capacity

    @property
    def edits(self) -> int:
        """Entries of the log of what its tokens do not give: keys and values that were set, callbacks, splices."""
        return self._info().edits

    @property
    def interventions(self) -> int:
        """How many are attached."""
        return self._info().interventions

    def tokens(self) -> np.ndarray:
        """Those that are there."""
        ids, count = P(c.c_int32)(), c.c_size_t()
        _call("stet_session_tokens", self._at, c.byref(ids), c.byref(count))
        return np.ctypeslib.as_array(ids, (count.value,)).copy() if count.value else np.zeros(0, np.int32)

    def append(self, ids: Ids, points: Iterable[str] = (), logits: bool = False) -> Dict[str, np.ndarray]:
        """Processes tokens. Returns what was at these points (names or patterns), [positions, ...]; heads and scores by head; and "logits" where asked for.

        The arrays are read-only views of memory that the library filled; they keep it for as long as they live."""
        array = _ids(ids)
        names = self.model._matching(points)
        if not names and not logits:
            self._append("stet_session_append", _pointer(array, c.c_int32), c.c_size_t(array.size))
            return {}
        capture = _Capture()
        self._append("stet_session_capture", _pointer(array, c.c_int32), c.c_size_t(array.size), (c.c_char_p * len(names))(*[n.encode() for n in names]), c.c_size_t(len(names)),
                     c.c_int32(logits), c.byref(capture._at))
        return self._seen(capture, names + (["logits"] if logits else []))

    def _seen(self, capture: "_Capture", names: List[str]) -> Dict[str, np.ndarray]:
        seen = {}
        for index, name in enumerate(names):
            rows, count, width = P(c.c_float)(), c.c_size_t(), c.c_size_t()
            _call("stet_capture_rows", capture._at, c.c_size_t(index), c.byref(rows), c.byref(count), c.byref(width))
            shape = self._shape(name, count.value, len(self))
            seen[name] = capture.array(c.cast(rows, c.c_void_p).value, shape)
        return seen

    def _append(self, function: str, *arguments: Any) -> None:
        _call_of([self], function, self._at, *arguments)

    def _shape(self, name: str, rows: int, positions: int) -> Tuple[int, ...]:
        m, last = self.model, name.rsplit(".", 1)[-1]
        heads = {"hook_q": m.heads, "hook_rot_q": m.heads, "hook_z": m.heads, "hook_result": m.heads, "hook_k": m.kv_heads, "hook_rot_k": m.kv_heads, "hook_v": m.kv_heads}
        if last in ("hook_pattern", "hook_attn_scores"):
            return rows, m.heads, positions
        if last in heads:
            return rows, heads[last], m.hidden_size if last == "hook_result" else m.head_dim
        widths = {"hook_scale": 1, "logits": m.vocab_size, "hook_pre": m.intermediate_size, "hook_pre_linear": m.intermediate_size, "hook_post": m.intermediate_size}
        return rows, widths.get(last, m.hidden_size)

    @contextlib.contextmanager
    def changing(self, points: Iterable[str], function: Callable[[str, int, np.ndarray], Optional[np.ndarray]]) -> Iterator[None]:
        """While this lasts, `function(point, first, rows)` changes activations of what is processed: rows, [positions, width] from position `first` on, in place, or by returning others.

        No file holds such a function, so what it had part in counts as edited (`edits`) and cannot be computed again. What it raises is raised by the call that it ran in, and leaves the
        session as it was. Numbers that are not finite are an Error."""
        self.attach_callback(points, function)
        try:
            yield
        finally:
            self.detach_callbacks()

    def attach_callback(self, points: Iterable[str], function: Callable[[str, int, np.ndarray], Optional[np.ndarray]]) -> None:
        """As `changing`, until detach_callbacks(); forks carry it, snapshots do not."""
        names = self.model._matching(points)
        raised = self._raised

        def change(_: object, index: int, first: int, data: Any, count: int, width: int, stride: int) -> int:
            try:
                rows = np.ctypeslib.as_array(data, (count * stride,))[: count * stride].reshape(count, stride)[:, :width]
                copy = rows.copy()
                returned = function(names[index], first, copy)
                rows[...] = copy if returned is None else returned
                return 0
            except BaseException as error:  # raised again by the call that this is part of
                raised.append(error)
                return 1

        kept = _ChangeCallback(change)
        callback = _sized(_CCallback(points=(c.c_char_p * len(names))(*[n.encode() for n in names]), point_count=len(names), change=kept))
        _call("stet_session_attach_callback", self._at, c.byref(callback))
        self._callbacks.append(kept)

    def detach_callbacks(self) -> None:
        """Ends what attach_callback() began, in this session."""
        _call("stet_session_detach_callbacks", self._at)
        self._callbacks = []

    def append_prompt(self, ids: Ids) -> None:
        """Tokens that a reply is to follow."""
        array = _ids(ids)
        self._append("stet_session_append_prompt", _pointer(array, c.c_int32), c.c_size_t(array.size))

    def attach(self, change: Intervention) -> None:
        """Changes activations of what is processed from here on; forks, snapshots and replays carry it."""
        _call("stet_session_attach", self._at, c.byref(_c_intervention(change)))

    def logits(self) -> np.ndarray:
        """Of what follows the last token, [vocab_size]: a read-only view, which stays as it is whatever becomes of the session."""
        view, data, count = _View(), P(c.c_float)(), c.c_size_t()
        _call("stet_session_view_logits", self._at, c.byref(view._at), c.byref(data), c.byref(count))
        return view.array(c.cast(data, c.c_void_p).value, (count.value,))

    def block(self, index: int) -> "Block":
        """Keys and values of positions 64 index .. 64 index + 63, as they lie in memory: read-only views."""
        m, view, data, size = self.model, _View(), c.c_void_p(), c.c_size_t()
        _call("stet_session_view_block", self._at, c.c_int64(index), c.byref(view._at), c.byref(data), c.byref(size))
        kind = _PLAIN.get(self._info().kv_type)
        if kind is None or size.value != m.layers * m.kv_heads * 2 * m.head_dim * 64 * np.dtype(kind).itemsize:
            raise Error("unsupported", "kv type: expected f32, bf16 or f16, whose blocks are plain arrays, found another", "", "kv type", "f32, bf16 or f16", "another")
        all = view.array(data.value, (m.layers, m.kv_heads, 2, m.head_dim * 64), kind)
        return Block(_split(all, 0, (m.head_dim, 64)), _split(all, 1, (64, m.head_dim)))

    def lens(self, residual: np.ndarray) -> np.ndarray:
        """The final norm and head over rows of the residual stream: [..., hidden] -> [..., vocab]."""
        rows = np.ascontiguousarray(residual, np.float32).reshape(-1, self.model.hidden_size)
        data, count = P(c.c_float)(), c.c_size_t()
        _call("stet_session_lens", self._at, _pointer(rows, c.c_float), c.c_size_t(rows.shape[0]), c.byref(data), c.byref(count))
        array = np.ctypeslib.as_array(data, (count.value,)).copy().reshape(*np.shape(residual)[:-1], self.model.vocab_size)
        _lib.stet_free(c.cast(data, c.c_void_p))
        return array

    def _kv(self, keys: bool, layer: int) -> np.ndarray:
        m, count = self.model, len(self)
        if not 0 <= layer < m.layers:
            raise Error("argument", "layer: expected 0..%d, found %d" % (m.layers - 1, layer), "", "layer", "0..%d" % (m.layers - 1), str(layer))
        all = np.empty((count, m.kv_heads, m.head_dim), np.float32)
        if self._info().kv_type not in _PLAIN:
            for position, head in np.ndindex(count, m.kv_heads):
                _call("stet_session_get_key" if keys else "stet_session_get_value", self._at, c.c_int64(layer), c.c_int64(head), c.c_int64(position), _pointer(all[position, head], c.c_float),
                      c.c_size_t(m.head_dim))
            return all
        for begin in range(0, count, 64):
            block, end = self.block(begin // 64), min(count, begin + 64)
            part = block.keys[layer].transpose(2, 0, 1) if keys else block.values[layer].transpose(1, 0, 2)
            part = part[: end - begin]
            all[begin:end] = (part.astype(np.uint32) << 16).view(np.float32) if part.dtype == np.uint16 else part
        return all

    def keys(self, layer: int) -> np.ndarray:
        """As the cache has them, [positions, kv_heads, head_dim]."""
        return self._kv(True, layer)

    def values(self, layer: int) -> np.ndarray:
        """Likewise."""
        return self._kv(False, layer)

    def set_key(self, layer: int, head: int, position: int, x: np.ndarray) -> None:
        """An edit: the state says from then on that its tokens do not give it."""
        x = np.ascontiguousarray(x, np.float32)
        _call("stet_session_set_key", self._at, c.c_int64(layer), c.c_int64(head), c.c_int64(position), _pointer(x, c.c_float), c.c_size_t(x.size))

    def set_value(self, layer: int, head: int, position: int, x: np.ndarray) -> None:
        """An edit, as set_key()."""
        x = np.ascontiguousarray(x, np.float32)
        _call("stet_session_set_value", self._at, c.c_int64(layer), c.c_int64(head), c.c_int64(position), _pointer(x, c.c_float), c.c_size_t(x.size))

    def zero_kv(self, **where: Any) -> None:
        """Keys and values of a range become zeros: layers, heads (all), begin, end (all positions), keys, values (both). An edit, as all of these are."""
        _call("stet_session_zero_kv", self._at, c.byref(_range(**where)))

    def scale_kv(self, factor: float, **where: Any) -> None:
        """Multiplies keys and values of a range."""
        _call("stet_session_scale_kv", self._at, c.byref(_range(**where)), c.c_float(factor))

    def set_kv(self, x: np.ndarray, **where: Any) -> None:
        """Sets keys or values of a range: one vector [head_dim] for each, or [positions, heads, head_dim] for each layer."""
        x = np.ascontiguousarray(x, np.float32)
        _call("stet_session_set_kv", self._at, c.byref(_range(**where)), _pointer(x, c.c_float), c.c_size_t(x.size))

    def copy_kv(self, source: "Session", position: Optional[int] = None, **where: Any) -> None:
        """Copies a range from another session of the model, from `position` (None: the same) on; keys that move are rotated to where they are then."""
        _call("stet_session_copy_kv", self._at, c.byref(_range(**where)), source._at, c.c_int64(where.get("begin", 0) if position is None else position))

    def truth(self) -> "Comparison":
        """How far edits have taken this state (b) from what its tokens give when all is computed again (a)."""
        return Comparison._made("stet_session_compare_truth", self._at)

    def trace(self, ids: Ids) -> "Trace":
        """Processes tokens after what is there, in a fork, and keeps what changes of them need to be computed from their layer and position on."""
        return Trace(self, ids)

    def fork(self) -> "Session":
        """A second session, which shares every full block."""
        at = c.c_void_p()
        _call("stet_session_fork", self._at, c.byref(at))
        fork = Session._adopt(self.model, at)
        fork._callbacks, fork._raised = list(self._callbacks), self._raised
        return fork

    def rewind(self, size: int) -> None:
        """As if the tokens from there on had never been."""
        _call("stet_session_rewind", self._at, c.c_int64(size))

    def rewind_cost(self, size: int) -> int:
        """How many tokens that processes again: 0 unless window_only."""
        tokens = c.c_int64()
        _call("stet_session_rewind_cost", self._at, c.c_int64(size), c.byref(tokens))
        return tokens.value

    def prune(self, keep_last: int, sinks: int = 0, shift: bool = False) -> int:
        """Takes positions out of the middle; returns how many."""
        options, pruned = _sized(_PruneOptions(flags=1 if shift else 0, keep_last=keep_last, sinks=sinks)), c.c_int64()
        _call("stet_session_prune", self._at, c.byref(options), c.byref(pruned))
        return pruned.value

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn; set another to change it."""
        s = _sized(_CSampling())
        _call("stet_session_get_sampling", self._at, c.byref(s))
        plain = {f.name: getattr(s, f.name) for f in dataclasses.fields(Sampling) if f.name not in ("greedy", "logit_bias")}
        return Sampling(greedy=bool(s.greedy), logit_bias={s.logit_bias[i].id: s.logit_bias[i].bias for i in range(s.logit_bias_count)}, **plain)

    @sampling.setter
    def sampling(self, new: Sampling) -> None:
        for id in new.logit_bias:  # which C would cut to 32 bits
            if not 0 <= id < 1 << 31:
                raise Error("argument", "logit_bias: expected token ids, found %s" % id, "", "logit_bias", "token ids", str(id))
        biases = (_CTokenBias * len(new.logit_bias))(*new.logit_bias.items())
        s = _sized(_CSampling(**{**vars(new), "greedy": int(new.greedy), "logit_bias": biases, "logit_bias_count": len(biases)}))
        _call("stet_session_set_sampling", self._at, c.byref(s))

    def generate(self, tokenizer: Optional[Tokenizer] = None, max_tokens: int = 256, ignore_eos: bool = False) -> Reply:
        """Draws a reply; one that was cut goes on at the next call."""
        options, at = _sized(_GenerateOptions(flags=1 if ignore_eos else 0, max_tokens=max_tokens)), P(_CReply)()
        self._append("stet_session_generate", tokenizer._at if tokenizer else None, c.byref(options), c.byref(at))
        r = at.contents
        ids = np.ctypeslib.as_array(r.ids, (r.id_count,)).copy() if r.id_count else np.zeros(0, np.int32)
        reply = Reply(ids, str(r.text), {1: "eos", 2: "string", 3: "length", 4: "callback"}[r.stop])
        _lib.stet_reply_free.argtypes = [P(_CReply)]
        _lib.stet_reply_free(at)
        return reply

    def digests(self) -> Digests:
        """What tells this state from others."""
        d = _sized(_CDigests())
        _call("stet_session_get_digests", self._at, c.byref(d))
        return Digests._of(d)

    def save(self, path: str, tokenizer: Optional[Tokenizer] = None, form: str = "full", parent: Optional["Snapshot"] = None, compress: int = 0) -> Digests:
        """Writes all that the session is to a file: full, delta (to a parent) or recipe."""
        options, d = _sized(_SaveOptions(form=FORMS[form], compress=compress, parent=parent._at if parent else None)), _sized(_CDigests())
        _call("stet_session_save", self._at, tokenizer._at if tokenizer else None, os.fsencode(path), c.byref(options), c.byref(d))
        return Digests._of(d)

    def verify(self) -> Optional[Difference]:
        """Computes the state again from its tokens; None: the same bits."""
        at = P(_CDifference)()
        _call("stet_session_verify", self._at, c.byref(at))
        return Difference._of(at)

    def difference(self, other: "Session", tolerance: float = 0) -> Optional[Difference]:
        """The first place where `other` is not as this one; None: equal."""
        at = P(_CDifference)()
        _call("stet_session_first_difference", self._at, other._at, c.c_double(tolerance), c.byref(at))
        return Difference._of(at)


class _ComparisonInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("parts", c.c_size_t), ("layers", c.c_size_t), ("equal", c.c_int64), ("common_tokens", c.c_int64), ("equal_positions", c.c_int64),
                ("a_from_b", c.c_double), ("b_from_a", c.c_double)]


class _ComparisonPart(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("note", c.c_char_p), ("difference", P(_CDifference)), ("compared", c.c_int64)]


class _ComparisonLayer(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("key_largest", c.c_double), ("key_rms", c.c_double), ("value_largest", c.c_double), ("value_rms", c.c_double)]


@dataclasses.dataclass(frozen=True)
class LayerDeviation:
    """How far keys and values of a layer are apart: the largest difference, and the root of the mean square."""
    key_largest: float
    key_rms: float
    value_largest: float
    value_rms: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two states, a and b, part by part. Divergences are of the next token's distributions, in nats; NaN where a state has no logits."""
    equal: bool
    common_tokens: int
    equal_positions: int
    a_from_b: float
    b_from_a: float
    differences: Dict[str, str]  # by the name of the part, the first of each
    layers: List[LayerDeviation]

    @classmethod
    def _made(cls, function: str, *arguments: Any) -> "Comparison":
        at, info = c.c_void_p(), _sized(_ComparisonInfo())
        _call(function, *arguments, c.byref(at))
        try:
            _call("stet_comparison_get_info", at, c.byref(info))
            differences, layers = {}, []
            for i in range(info.parts):
                part = _sized(_ComparisonPart())
                _call("stet_comparison_get_part", at, c.c_size_t(i), c.byref(part))
                if part.difference:
                    differences[part.name.decode()] = part.difference.contents.text.decode("utf-8", "replace")
            for i in range(info.layers):
                layer = _sized(_ComparisonLayer())
                _call("stet_comparison_get_layer", at, c.c_size_t(i), c.byref(layer))
                layers.append(LayerDeviation(layer.key_largest, layer.key_rms, layer.value_largest, layer.value_rms))
        finally:
            _lib.stet_comparison_free.argtypes, _lib.stet_comparison_free.restype = [c.c_void_p], None
            _lib.stet_comparison_free(at)
        return cls(bool(info.equal), info.common_tokens, info.equal_positions, info.a_from_b, info.b_from_a, differences, layers)


class Trace(_Handle):
    """Tokens that went through a model after a session, kept so that their end can be computed again under changes."""
    _free = "stet_trace_free"

    def __init__(self, before: Session, ids: Ids):
        super().__init__()
        self.model = before.model
        array = _ids(ids)
        _call("stet_trace_new", before._at, _pointer(array, c.c_int32), c.c_size_t(array.size), c.byref(self._at))

    def run(self, changes: Sequence[Intervention], function: Optional[Callable[[int, np.ndarray], None]] = None) -> Optional[np.ndarray]:
        """The logits after the last token under each change alone, [changes, vocab_size], with the bits that attaching it before the tokens gives; or `function(index, logits)` for each, in
        any order, where that would be too many numbers. Changes begin at their layer and position, and share passes."""
        kept = [_c_intervention(change) for change in changes]
        all = np.empty((len(kept), self.model.vocab_size), np.float32) if function is None else None
        raised: List[BaseException] = []

        def on_logits(_: object, index: int, row: Any, count: int) -> int:
            try:
                logits = np.ctypeslib.as_array(row, (count,))
                if all is not None:
                    all[index] = logits
                else:
                    function(index, logits.copy())
                return 0
            except BaseException as error:
                raised.append(error)
                return 1

        try:
            _call("stet_trace_run", self._at, (_CIntervention * len(kept))(*kept), c.c_size_t(len(kept)), _LogitsCallback(on_logits), None)
        except Error:
            if raised:
                raise raised[0] from None
            raise
        return all


class _RestoreOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64)]


class _VerifyOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64)]


class Snapshot(_Handle):
    """A state in a file."""
    _free = "stet_snapshot_free"

    def __init__(self, path: str, parent: Optional[str] = None):
        super().__init__()
        _call("stet_snapshot_open", os.fsencode(path), os.fsencode(parent) if parent else None, c.byref(self._at))

    def tokens(self) -> np.ndarray:
        """Those of the state."""
        ids, count = P(c.c_int32)(), c.c_size_t()
        _call("stet_snapshot_tokens", self._at, c.byref(ids), c.byref(count))
        return np.ctypeslib.as_array(ids, (count.value,)).copy() if count.value else np.zeros(0, np.int32)

    def digests(self) -> Digests:
        """As the file gives them; check() proves them."""
        d = _sized(_CDigests())
        _call("stet_snapshot_get_digests", self._at, c.byref(d))
        return Digests._of(d)

    def check(self, threads: int = 0) -> None:
        """Proves, without a model, that every byte is what was written; an Error names the first that is not."""
        _call("stet_snapshot_check", self._at, c.c_int32(threads), None)

    def verify(self, model: Model, bisect: bool = False, **options: Any) -> Optional[Difference]:
        """Computes the state again from its tokens and compares; None: what they give is in the file. `bisect` names block and layer by digests alone."""
        at, session_options, how = P(_CDifference)(), _session_options(**options), _sized(_VerifyOptions(flags=1 if bisect else 0))
        _call("stet_snapshot_verify", self._at, model._at, c.byref(session_options), c.byref(how), None, c.byref(at))
        return Difference._of(at)

    def restore(self, model: Model, tokenizer: Optional[Tokenizer] = None, **options: Any) -> Session:
        """A session equal to the one that was saved; options as of Model.session."""
        at, session_options, how = c.c_void_p(), _session_options(**options), _sized(_RestoreOptions())
        _call("stet_snapshot_restore", self._at, model._at, tokenizer._at if tokenizer else None, c.byref(session_options), c.byref(how), None, c.byref(at))
        return Session._adopt(model, at)


class _BatchEntry(c.Structure):
    _fields_ = [("session", c.c_void_p), ("ids", P(c.c_int32)), ("count", c.c_size_t)]


def _call_of(sessions: Sequence[Session], function: str, *arguments: Any) -> None:
    """A call that callbacks of these sessions may end: what they raised is raised here."""
    for session in sessions:
        session._raised.clear()
    try:
        _call(function, *arguments)
    except Error:
        for session in sessions:
            if session._raised:
                raise session._raised.pop() from None
        raise


def append_batch(entries: Sequence[Tuple[Session, Ids]], points: Iterable[str] = ()) -> List[Dict[str, np.ndarray]]:
    """Every session goes on by its tokens, in shared passes, with the bits of an append of its own. Returns what Session.append does, for each."""
    arrays = [_ids(ids) for _, ids in entries]
    batch = (_BatchEntry * len(entries))(*[_BatchEntry(s._at, _pointer(a, c.c_int32), a.size) for (s, _), a in zip(entries, arrays)])
    names = entries[0][0].model._matching(points) if entries else []
    captures = (c.c_void_p * len(entries))()
    _call_of([s for s, _ in entries], "stet_batch_capture", batch, c.c_size_t(len(entries)), (c.c_char_p * len(names))(*[n.encode() for n in names]), c.c_size_t(len(names)), captures)
    return [s._seen(_Capture(at), names) for (s, _), at in zip(entries, captures)]


def splice(cuts: Sequence[Tuple[Session, int, int]]) -> Session:
    """A session of positions begin .. end - 1 of others, (session, begin, end) one after the other: tokens, and keys and values as they are there, keys rotated to where they are now. Nothing
    is computed again; `truth()` of it says how far that is from what the tokens give."""
    at = c.c_void_p()
    all = (_CCut * len(cuts))(*[_CCut(session._at, begin, end) for session, begin, end in cuts])
    _call("stet_session_splice", all, c.c_size_t(len(cuts)), c.byref(at))
    return Session._adopt(cuts[0][0].model, at)


def compare(a: Union[Session, Snapshot], b: Union[Session, Snapshot]) -> Comparison:
    """Two sessions, or two snapshots, part by part."""
    of_files = isinstance(a, Snapshot) and isinstance(b, Snapshot)
    if not of_files and not (isinstance(a, Session) and isinstance(b, Session)):
        raise Error("argument", "compare: expected two sessions or two snapshots, found one of each", "", "compare", "two sessions or two snapshots", "one of each")
    return Comparison._made("stet_snapshot_compare" if of_files else "stet_session_compare", a._at, b._at)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last axis, in float64."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
