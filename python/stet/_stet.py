"""The C interface (stet/c.h) by ctypes."""
from __future__ import annotations

import ctypes as c
import ctypes.util
import dataclasses
import fnmatch
import os
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

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


class _Handle:
    """Something of the library's, freed once."""
    _free = ""

    def __init__(self) -> None:
        self._at = c.c_void_p()

    def close(self) -> None:
        if self._at:
            free = getattr(_lib, self._free)
            free.argtypes, free.restype = [c.c_void_p], None
            free(self._at)
            self._at = c.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is ending
            pass


CONTRACTS = {"": 0, "f32": 1, "f32-blas": 2, "bf16": 3, "q8": 4, "q4": 5}
KV_TYPES = {"": 0, "f32": 1, "bf16": 2, "f16": 3, "q8": 4}
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

    def session(self, **options) -> "Session":
        """Options: capacity, threads, chunk, isa, kv_type, contract, window_only, recompute, checkpoint_every."""
        return Session(self, **options)

    def points(self, pattern: str = "*") -> List[str]:
        """Names of this model's points (docs/points.md), in the order of the forward pass."""
        layer = ["hook_resid_pre", "ln1.hook_normalized", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_attn_scores",
                 "attn.hook_pattern", "attn.hook_z", "hook_attn_out", "hook_resid_mid", "ln2.hook_normalized", "mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post",
                 "hook_mlp_out", "hook_resid_post"]
        if self.family == "gpt2":
            layer = [p for p in layer if p not in ("attn.hook_rot_q", "attn.hook_rot_k", "mlp.hook_pre_linear")]
        names = ["hook_embed"] + (["hook_pos_embed"] if self.family == "gpt2" else [])
        names += ["blocks.%d.%s" % (i, p) for i in range(self.layers) for p in layer] + ["ln_final.hook_normalized"]
        return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


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


def _session_options(capacity=0, threads=0, chunk=0, isa="", kv_type="", contract="", window_only=False, recompute=False, checkpoint_every=0):
    return _sized(_SessionOptions(capacity=capacity, threads=threads, chunk=chunk, isa=isa.encode() or None, kv_type=KV_TYPES[kv_type], contract=CONTRACTS[contract],
                                  window_only=window_only, recompute=recompute, checkpoint_every=checkpoint_every))


class _SessionInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("size", c.c_int64), ("capacity", c.c_int64), ("floor", c.c_int64), ("visible", c.c_int64), ("drawn", c.c_int64), ("threads", c.c_int64),
                ("chunk", c.c_int64), ("isa", c.c_char_p), ("contract_name", c.c_char_p), ("contract", c.c_int32), ("kv_type", c.c_int32), ("stop_ids", c.c_size_t),
                ("stop_strings", c.c_size_t), ("turns", c.c_size_t), ("messages", c.c_size_t), ("prunes", c.c_size_t), ("edits", c.c_size_t), ("interventions", c.c_size_t)]


_PointCallback = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_size_t, c.c_int64, P(c.c_float), c.c_size_t)
_LogitsCallback = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, P(c.c_float), c.c_size_t)


class _Watch(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("context", c.c_void_p), ("on_logits", _LogitsCallback), ("on_hidden", c.c_void_p), ("on_progress", c.c_void_p),
                ("points", P(c.c_char_p)), ("point_count", c.c_size_t), ("on_point", _PointCallback)]


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


class _CSampling(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("temperature", c.c_double), ("top_p", c.c_double), ("min_p", c.c_double), ("typical_p", c.c_double), ("repetition_penalty", c.c_double),
                ("seed", c.c_uint64), ("top_k", c.c_int32), ("greedy", c.c_int32)]


@dataclasses.dataclass
class Sampling:
    """How tokens are drawn; draws are a function of seed and position."""
    greedy: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0


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

    def __init__(self, model: Model, **options):
        super().__init__()
        self.model = model
        options = _session_options(**options)
        _call("stet_session_new", model._at, c.byref(options), c.byref(self._at))

    @classmethod
    def _adopt(cls, model: Model, at: c.c_void_p) -> "Session":
        session = cls.__new__(cls)
        session.model, session._at = model, at
        return session

    def _info(self) -> _SessionInfo:
        info = _sized(_SessionInfo())
        _call("stet_session_get_info", self._at, c.byref(info))
        return info

    def __len__(self) -> int:
        return self._info().size

    @property
    def capacity(self) -> int:
        return self._info().capacity

    @property
    def edits(self) -> int:
        """Keys and values that were set from outside."""
        return self._info().edits

    @property
    def interventions(self) -> int:
        return self._info().interventions

    def tokens(self) -> np.ndarray:
        ids, count = P(c.c_int32)(), c.c_size_t()
        _call("stet_session_tokens", self._at, c.byref(ids), c.byref(count))
        return np.ctypeslib.as_array(ids, (count.value,)).copy() if count.value else np.zeros(0, np.int32)

    def append(self, ids: Ids, points: Iterable[str] = (), logits: bool = False) -> Dict[str, np.ndarray]:
        """Processes tokens. Returns what was at these points (names or patterns), [positions, ...]; heads and scores by head; and "logits" where asked for."""
        array, first = _ids(ids), len(self)
        names: List[str] = []
        for pattern in points:
            found = self.model.points(pattern)
            if not found:
                raise Error("argument", "points: expected names of points of family %s, found %s" % (self.model.family, pattern), "", "points", "names of points", pattern)
            names += [name for name in found if name not in names]
        rows: List[List[np.ndarray]] = [[] for _ in names]
        of_logits: List[np.ndarray] = []

        def on_point(_, index, position, row, count):
            rows[index].append(np.ctypeslib.as_array(row, (count,)).copy())
            return 0

        def on_logits(_, position, row, count):
            of_logits.append(np.ctypeslib.as_array(row, (count,)).copy())
            return 0

        if not names and not logits:
            _call("stet_session_append", self._at, _pointer(array, c.c_int32), c.c_size_t(array.size))
            return {}
        watch = _sized(_Watch(point_count=len(names), points=(c.c_char_p * len(names))(*[n.encode() for n in names]), on_point=_PointCallback(on_point)))
        if logits:
            watch.on_logits = _LogitsCallback(on_logits)
        _call("stet_session_append_watched", self._at, _pointer(array, c.c_int32), c.c_size_t(array.size), c.byref(watch))
        seen = {name: self._shaped(name, some, first + array.size) for name, some in zip(names, rows)}
        if logits:
            seen["logits"] = np.stack(of_logits) if of_logits else np.zeros((0, self.model.vocab_size), np.float32)
        return seen

    def _shaped(self, name: str, rows: List[np.ndarray], positions: int) -> np.ndarray:
        m, last = self.model, name.rsplit(".", 1)[-1]
        if last in ("hook_pattern", "hook_attn_scores"):
            all = np.full((len(rows), m.heads, positions), 0 if last == "hook_pattern" else -np.inf, np.float32)
            for i, row in enumerate(rows):
                by_head = row.reshape(m.heads, -1)
                all[i, :, : by_head.shape[1]] = by_head
            return all
        all = np.stack(rows) if rows else np.zeros((0, m.hidden_size), np.float32)
        heads = {"hook_q": m.heads, "hook_rot_q": m.heads, "hook_z": m.heads, "hook_k": m.kv_heads, "hook_rot_k": m.kv_heads, "hook_v": m.kv_heads}.get(last)
        return all.reshape(len(rows), heads, m.head_dim) if heads else all

    def append_prompt(self, ids: Ids) -> None:
        """Tokens that a reply is to follow."""
        array = _ids(ids)
        _call("stet_session_append_prompt", self._at, _pointer(array, c.c_int32), c.c_size_t(array.size))

    def attach(self, change: Intervention) -> None:
        """Changes activations of what is processed from here on; forks, snapshots and replays carry it."""
        ops = ["set", "add", "scale", "project_out", "clamp"]
        if change.op not in ops:
            raise Error("argument", "op: expected one of %s, found %s" % (", ".join(ops), change.op), "", "op", ", ".join(ops), change.op)
        values = np.ascontiguousarray(change.values if change.values is not None else [], np.float32)
        layers, heads = np.asarray(change.layers, np.int64), np.asarray(change.heads, np.int64)
        w = _sized(_CIntervention(point=change.point.encode(), layers=_pointer(layers, c.c_int64), layer_count=layers.size, heads=_pointer(heads, c.c_int64), head_count=heads.size,
                                  begin=change.begin, end=change.end, op=ops.index(change.op), amount=change.amount, bias=change.bias, threshold=change.threshold,
                                  values=_pointer(values, c.c_float), value_count=values.size))
        _call("stet_session_attach", self._at, c.byref(w))

    def logits(self) -> np.ndarray:
        """Of what follows the last token, [vocab_size]."""
        data, count = P(c.c_float)(), c.c_size_t()
        _call("stet_session_logits", self._at, c.byref(data), c.byref(count))
        return np.ctypeslib.as_array(data, (count.value,)).copy() if count.value else np.zeros(0, np.float32)

    def lens(self, residual: np.ndarray) -> np.ndarray:
        """The final norm and head over rows of the residual stream: [..., hidden] -> [..., vocab]."""
        rows = np.ascontiguousarray(residual, np.float32).reshape(-1, self.model.hidden_size)
        data, count = P(c.c_float)(), c.c_size_t()
        _call("stet_session_lens", self._at, _pointer(rows, c.c_float), c.c_size_t(rows.shape[0]), c.byref(data), c.byref(count))
        array = np.ctypeslib.as_array(data, (count.value,)).copy().reshape(*np.shape(residual)[:-1], self.model.vocab_size)
        _lib.stet_free(c.cast(data, c.c_void_p))
        return array

    def _kv(self, function: str, layer: int) -> np.ndarray:
        all = np.empty((len(self), self.model.kv_heads, self.model.head_dim), np.float32)
        for position in range(all.shape[0]):
            for head in range(all.shape[1]):
                _call(function, self._at, c.c_int64(layer), c.c_int64(head), c.c_int64(position), _pointer(all[position, head], c.c_float), c.c_size_t(all.shape[2]))
        return all

    def keys(self, layer: int) -> np.ndarray:
        """As the cache has them, [positions, kv_heads, head_dim]."""
        return self._kv("stet_session_get_key", layer)

    def values(self, layer: int) -> np.ndarray:
        return self._kv("stet_session_get_value", layer)

    def set_key(self, layer: int, head: int, position: int, x: np.ndarray) -> None:
        """An edit: the state says from then on that its tokens do not give it."""
        x = np.ascontiguousarray(x, np.float32)
        _call("stet_session_set_key", self._at, c.c_int64(layer), c.c_int64(head), c.c_int64(position), _pointer(x, c.c_float), c.c_size_t(x.size))

    def set_value(self, layer: int, head: int, position: int, x: np.ndarray) -> None:
        x = np.ascontiguousarray(x, np.float32)
        _call("stet_session_set_value", self._at, c.c_int64(layer), c.c_int64(head), c.c_int64(position), _pointer(x, c.c_float), c.c_size_t(x.size))

    def fork(self) -> "Session":
        """A second session, which shares every full block."""
        at = c.c_void_p()
        _call("stet_session_fork", self._at, c.byref(at))
        return Session._adopt(self.model, at)

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
        s = _sized(_CSampling())
        _call("stet_session_get_sampling", self._at, c.byref(s))
        return Sampling(bool(s.greedy), *(getattr(s, f.name) for f in dataclasses.fields(Sampling)[1:]))

    @sampling.setter
    def sampling(self, new: Sampling) -> None:
        s = _sized(_CSampling(**{**dataclasses.asdict(new), "greedy": int(new.greedy)}))
        _call("stet_session_set_sampling", self._at, c.byref(s))

    def generate(self, tokenizer: Optional[Tokenizer] = None, max_tokens: int = 256, ignore_eos: bool = False) -> Reply:
        """Draws a reply; one that was cut goes on at the next call."""
        options, at = _sized(_GenerateOptions(flags=1 if ignore_eos else 0, max_tokens=max_tokens)), P(_CReply)()
        _call("stet_session_generate", self._at, tokenizer._at if tokenizer else None, c.byref(options), c.byref(at))
        r = at.contents
        ids = np.ctypeslib.as_array(r.ids, (r.id_count,)).copy() if r.id_count else np.zeros(0, np.int32)
        reply = Reply(ids, str(r.text), {1: "eos", 2: "string", 3: "length", 4: "callback"}[r.stop])
        _lib.stet_reply_free.argtypes = [P(_CReply)]
        _lib.stet_reply_free(at)
        return reply

    def digests(self) -> Digests:
        d = _sized(_CDigests())
        _call("stet_session_get_digests", self._at, c.byref(d))
        return Digests._of(d)

    def save(self, path: str, tokenizer: Optional[Tokenizer] = None, form: str = "full", parent: Optional["Snapshot"] = None, compress: int = 0) -> Digests:
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


class _RestoreOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64)]


class Snapshot(_Handle):
    """A state in a file."""
    _free = "stet_snapshot_free"

    def __init__(self, path: str, parent: Optional[str] = None):
        super().__init__()
        _call("stet_snapshot_open", os.fsencode(path), os.fsencode(parent) if parent else None, c.byref(self._at))

    def tokens(self) -> np.ndarray:
        ids, count = P(c.c_int32)(), c.c_size_t()
        _call("stet_snapshot_tokens", self._at, c.byref(ids), c.byref(count))
        return np.ctypeslib.as_array(ids, (count.value,)).copy() if count.value else np.zeros(0, np.int32)

    def digests(self) -> Digests:
        d = _sized(_CDigests())
        _call("stet_snapshot_get_digests", self._at, c.byref(d))
        return Digests._of(d)

    def restore(self, model: Model, tokenizer: Optional[Tokenizer] = None, **options) -> Session:
        """A session equal to the one that was saved; options as of Model.session."""
        at, session_options, how = c.c_void_p(), _session_options(**options), _sized(_RestoreOptions())
        _call("stet_snapshot_restore", self._at, model._at, tokenizer._at if tokenizer else None, c.byref(session_options), c.byref(how), None, c.byref(at))
        return Session._adopt(model, at)


class _BatchEntry(c.Structure):
    _fields_ = [("session", c.c_void_p), ("ids", P(c.c_int32)), ("count", c.c_size_t)]


def append_batch(entries: Sequence[Tuple[Session, Ids]]) -> None:
    """Every session goes on by its tokens, in shared passes, with the bits of an append of its own."""
    arrays = [_ids(ids) for _, ids in entries]
    batch = (_BatchEntry * len(entries))(*[_BatchEntry(s._at, _pointer(a, c.c_int32), a.size) for (s, _), a in zip(entries, arrays)])
    _call("stet_batch_append", batch, c.c_size_t(len(entries)))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last axis, in float64."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
