"""Models: immutable weights, their points and their arrays."""
from __future__ import annotations

import ctypes as c
import fnmatch
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, TypeVar

import numpy as np

from . import _arguments as arguments
from ._library import F32, Error, Shared, View, call, lend, refuse, sized, taken_text

if TYPE_CHECKING:
    from .chat import Chat
    from .session import Session
    from .tokenizer import Tokenizer

CONTRACTS = {"": 0, "f32": 1, "f32-blas": 2, "bf16": 3, "q8": 4, "q4": 5, "ggml": 6}
CONTRACT_NAMES = {number: name for name, number in CONTRACTS.items()}
THREADS = (0, 1 << 31)


class CModelOptions(c.Structure):
    """The struct stet_model_options."""
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("threads", c.c_int64), ("contract", c.c_int64)]


class _CModelInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("family", c.c_char_p), ("architecture", c.c_char_p),
                ("source", c.c_char_p), ("fingerprint", c.c_char_p),
                ("vocab_size", c.c_int64), ("hidden_size", c.c_int64), ("intermediate_size", c.c_int64),
                ("layers", c.c_int64), ("heads", c.c_int64),
                ("kv_heads", c.c_int64), ("head_dim", c.c_int64), ("max_positions", c.c_int64),
                ("weight_bytes", c.c_uint64), ("contract", c.c_int64),
                ("fingerprint_count", c.c_size_t)]


class _CPointInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("heads", c.c_int64), ("width", c.c_int64), ("of_positions", c.c_int32),
                ("can_be_changed", c.c_int32)]


class _CWeight(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("data", c.c_void_p), ("shape", c.c_int64 * 4), ("dimensions", c.c_int32)]


class CFile(c.Structure):
    """The struct stet_file."""
    _fields_ = [("name", c.c_char_p), ("data", c.c_void_p), ("size", c.c_size_t)]


class Point(NamedTuple):
    """The shape of a row at a point: `width` numbers, consecutive for each of `heads` heads (0:
    no heads). If `of_positions`, it is a score or pattern, [heads, positions]. A head of hook_state is
    the matrix of Session.recurrent, row by row."""
    heads: int
    width: int
    of_positions: bool
    can_be_changed: bool


def model_options(contract: str, threads: int, in_memory: bool) -> Any:
    """Returns stet_model_options with these values."""
    return sized(CModelOptions(flags=arguments.flag(in_memory, "in_memory"),
                               threads=arguments.integer(threads, "threads", *THREADS),
                               contract=arguments.choice(contract, CONTRACTS, "contract")))


def c_files(files: Mapping[str, bytes]) -> Tuple[Any, object]:
    """Returns a stet_file[] of files in memory, and the objects that must live while they are
    read."""
    held = []
    for name, data in arguments.mapping(files, "files", "a mapping of names to bytes").items():
        if not isinstance(data, bytes):
            refuse("files[%r]" % name, "bytes", "a %s" % type(data).__name__)
        held.append((arguments.word(name, "files"), data))
    return (CFile * len(held))(
        *[CFile(name, c.cast(c.c_char_p(data), c.c_void_p), len(data)) for name, data in held]), held


_Self = TypeVar("_Self", bound="Model")


class Model(Shared):
    """A checkpoint, whose weights any number of sessions and threads share. Copying returns the
    same model.

    `directory` is a checkpoint in the published Hugging Face layout, a packed checkpoint, or a
    .gguf file. `contract` "q8" or "q4" rounds the weights; "" takes the contract that the weights
    are made for. `in_memory` reads the files instead of mapping them. Raises an Error that names
    file and field."""

    _free = "stet_model_free"
    _instead = "; load its checkpoint there"

    family: str
    architecture: str
    source: str
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
    contract: str

    def __init__(self, directory: arguments.Path, contract: str = "", threads: int = 0,
                 in_memory: bool = False) -> None:
        super().__init__()
        where, options = arguments.path(directory, "directory"), model_options(contract, threads, in_memory)
        call("stet_model_load", where, c.byref(options), c.byref(self._at))
        self._read_info()

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], name: str = "memory", contract: str = "",
                   threads: int = 0) -> "Model":
        """Loads a model from files in memory, name -> bytes ("config.json", "model.safetensors",
        ...). Their bytes are kept alive as long as needed. Errors use `name` as the directory."""
        model = cls.__new__(cls)
        Shared.__init__(model)
        entries, held = c_files(files)
        options = model_options(contract, threads, False)
        label = arguments.word(name, "name")
        release, context = lend(held)
        call("stet_model_load_files", entries, arguments.size(len(files)), label, release, context, c.byref(options),
             c.byref(model._at))
        model._read_info()
        return model

    @classmethod
    def _adopt(cls, at: c.c_void_p) -> "Model":
        model = cls.__new__(cls)
        model._pointer = at
        model._read_info()
        return model

    def _read_info(self) -> None:
        info = sized(_CModelInfo())
        call("stet_model_get_info", self._at, c.byref(info))
        for name in ("family", "architecture", "source", "fingerprint"):
            setattr(self, name, getattr(info, name).decode("utf-8", "replace"))
        for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim",
                     "max_positions", "weight_bytes"):
            setattr(self, name, getattr(info, name))
        self.contract = CONTRACT_NAMES[info.contract]
        self._fingerprints = info.fingerprint_count
        self._shapes: Dict[str, Point] = {}
        self._plain: Optional[bool] = None
        self._stacks: Dict[str, F32] = {}

    def __repr__(self) -> str:
        if self.closed:
            return "<stet.Model, closed>"
        return "<stet.Model %s from %r: %d layers, %d heads, hidden size %d, vocabulary %d>" % (
            self.family, self.source, self.layers, self.heads, self.hidden_size, self.vocab_size)

    @property
    def fingerprints(self) -> Dict[str, str]:
        """Digests of the weights' values: group -> "sha256:...", for "embeddings", "norms", ...,
        "config" and, over all of them, "model"."""
        found = {}
        for index in range(self._fingerprints):
            group, text = c.c_char_p(), c.c_char_p()
            call("stet_model_fingerprint", self._at, arguments.size(index), c.byref(group), c.byref(text))
            found[(group.value or b"").decode()] = (text.value or b"").decode()
        return found

    def session(self, capacity: int = 0, threads: int = 0, chunk: int = 0, isa: str = "", kv_type: str = "",
                contract: str = "",
                window_only: bool = False, recompute: bool = False, checkpoint_every: int = 0,
                anchor_bytes: int = 0) -> "Session":
        """Returns a new session. `capacity` is its number of positions (0: all that the model
        supports). Of the other options only contract and kv_type change bits.

        With window_only, layers with a sliding window keep only that window, and the one before
        each multiple of checkpoint_every positions (0: 8192; -1: none). A call that needs an
        evicted window raises an Error or, with `recompute`, processes tokens again. Anchors of
        recurrent layers take at most anchor_bytes (0: 1 GiB; -1: none)."""
        from .session import Session
        return Session(self, capacity=capacity, threads=threads, chunk=chunk, isa=isa, kv_type=kv_type,
                       contract=contract,
                       window_only=window_only, recompute=recompute, checkpoint_every=checkpoint_every,
                       anchor_bytes=anchor_bytes)

    def chat(self, tokenizer: "Tokenizer", capacity: int = 0, **options: Any) -> "Chat":
        """Returns a conversation through the checkpoint's chat template, in a new session with
        the checkpoint's recommended settings. `options` are those of Chat."""
        from .chat import Chat
        with self.session(capacity=capacity) as session:
            session.use_recommended()
            return Chat(session, tokenizer, **options)

    # ---- points

    def points(self, pattern: str = "*") -> List[str]:
        """Returns the names of this model's points (docs/lab.md) that match, in the order of
        the forward pass."""
        wanted, text, size = arguments.word(pattern, "pattern").decode(), c.c_void_p(), c.c_size_t()
        call("stet_model_points", self._at, c.byref(text), c.byref(size))
        names = taken_text(text, size).splitlines()
        return [name for name in names if fnmatch.fnmatchcase(name, wanted)]

    def point(self, name: str) -> Point:
        """Returns the shape of a row at a point. A name without a layer stands for the first
        layer that has the point."""
        asked = arguments.word(name, "point")
        found = self._shapes.get(name)
        if found is None:
            info = sized(_CPointInfo())
            call("stet_model_point", self._at, asked, c.byref(info))
            found = self._shapes[name] = Point(info.heads, info.width, bool(info.of_positions),
                                               bool(info.can_be_changed))
        return found

    def _has_plain_blocks(self) -> bool:
        """Returns True if each layer keeps kv_heads keys and values of head_dim numbers."""
        if self._plain is None:
            own = {name for name in self.points("*.attn.hook_[kv]")}
            names = ["blocks.%d.attn.hook_%s" % (layer, part) for layer in range(self.layers) for part in "kv"]
            self._plain = all(
                name in own and self._row_shape(name, 0) == (self.kv_heads, self.head_dim) for name in names)
        return self._plain

    def _matching(self, patterns: Iterable[str]) -> List[str]:
        names: List[str] = []
        some = sorted(patterns) if isinstance(patterns, (set, frozenset)) else patterns  # points have their own order
        for pattern in arguments.sequence(some, "points", "names"):
            name = arguments.word(pattern, "points").decode()
            found = [point for point in self.points(name)
                     if name.endswith("hook_state") or not point.endswith(".hook_state")]
            if not found:
                refuse("points", "names of points of family %s" % self.family, pattern)
            names += [name for name in found if name not in names]
        return names

    def _row_shape(self, name: str, positions: int) -> Tuple[int, ...]:
        """Returns the shape of one position's row at a point when there are `positions`
        positions."""
        point = self.point(name)
        if point.of_positions:
            return point.heads, positions
        return (point.heads, point.width // point.heads) if point.heads else (point.width,)

    # ---- weights

    def weights(self, pattern: str = "*") -> List[str]:
        """Returns the names of matching weights in TransformerLens's form ("embed.W_E",
        "blocks.0.attn.W_Q", ...). A tensor without such a name keeps its name in the checkpoint."""
        wanted, text, size = arguments.word(pattern, "pattern").decode(), c.c_void_p(), c.c_size_t()
        call("stet_model_weights", self._at, c.byref(text), c.byref(size))
        return [name for name in taken_text(text, size).splitlines() if fnmatch.fnmatchcase(name, wanted)]

    def weight(self, name: str) -> F32:
        """Returns the values that the model multiplies by, widened to float32, as a read-only
        array that owns its memory.

        W_Q, W_K and W_V are [heads, hidden, head_dim], W_O is [heads, head_dim, hidden]. W_in and
        W_gate are [hidden, intermediate], W_out is [intermediate, hidden]. W_E is [vocab,
        hidden], scaled as the family scales embeddings, and W_U is [hidden, vocab]. If a model
        has fewer kv heads, W_K and W_V are repeated for each head that reads them, as in
        TransformerLens. The underscored names ("blocks.0.attn._W_K") have them unrepeated,
        [kv_heads, ...]."""
        asked = arguments.word(name, "name").decode()
        front, _, last = asked.rpartition(".")
        bare = last[1:] if last in ("_W_K", "_W_V", "_b_K", "_b_V") else last
        view, about = View(), sized(_CWeight())
        call("stet_model_weight", self._at, (front + "." + bare if front else bare).encode(), c.byref(view._at),
             c.byref(about))
        array = view.array(about.data, tuple(about.shape[: about.dimensions]))
        if last in ("W_K", "W_V", "b_K", "b_V"):
            heads = self.point(front + ".hook_q").heads  # those of this layer
            if len(array) < heads:
                array = np.repeat(array, heads // len(array), axis=0)
                array.flags.writeable = False
        return array

    def _stack(self, name: str) -> F32:
        """Returns a weight of all layers, [layers, ...], and caches it. Raises an Error if layers differ
        in shape."""
        found = self._stacks.get(name)
        if found is None:
            names = ["blocks.%d.%s" % (layer, name) for layer in range(self.layers)]
            have = set(self.weights("blocks.*." + name))
            each = [self.weight(full) for full in names if full in have]
            arrays = iter(each)
            of: Dict[str, List[int]] = {}
            for layer, full in enumerate(names):
                of.setdefault(str(list(next(arrays).shape)) if full in have else "none", []).append(layer)
            if len(of) > 1:
                shapes = "; ".join("%s in layers %s" % (shape, ", ".join(map(str, layers)))
                                   for shape, layers in of.items())
                raise Error("unsupported", "%s: expected layers of one shape, found %s; weight() returns that of one "
                            "layer" % (name, shapes), "", name, "layers of one shape", shapes)
            found = np.stack(each)
            found.flags.writeable = False
            self._stacks[name] = found
        return found

    def __getattr__(self, name: str) -> F32:
        # The weights of all layers as attributes, as in TransformerLens: W_Q, W_K, W_V, W_O, b_...,
        # W_in, W_gate, W_out; and W_E, W_pos, W_U.
        if name.startswith(("W_", "b_")) and not self.closed:
            for front, names in (("attn.", ("Q", "K", "V", "O")), ("mlp.", ("in", "gate", "out"))):
                if name[2:] in names and self.weights("blocks.*.%s%s" % (front, name)):
                    return self._stack(front + name)
            for whole in ("embed.W_E", "pos_embed.W_pos", "unembed.W_U"):
                if whole.endswith("." + name) and self.weights(whole):
                    return self.weight(whole)
        raise AttributeError("%r has no attribute %r" % (type(self).__name__, name))


def pack(directory: arguments.Path, output: arguments.Path, contract: str = "", threads: int = 0) -> None:
    """Packs a checkpoint for a contract into `output`, a new or empty directory, which then loads
    in milliseconds. "" keeps the weights unrounded."""
    call("stet_model_pack", arguments.path(directory, "directory"), arguments.path(output, "output"),
         c.c_int32(arguments.choice(contract, CONTRACTS, "contract")),
         c.c_int32(arguments.integer(threads, "threads", *THREADS)))


def check_packed(directory: arguments.Path, threads: int = 0) -> int:
    """Compares all weights of a packed checkpoint with their digests. Returns the number of bytes
    compared. Raises an Error that names the first differing tensor."""
    count = c.c_uint64()
    call("stet_model_check_packed", arguments.path(directory, "directory"),
         c.c_int32(arguments.integer(threads, "threads", *THREADS)), c.byref(count))
    return count.value
