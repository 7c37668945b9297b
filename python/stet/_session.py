"""The base of sessions: the handle, options, and calls that callbacks and signals can interrupt."""
from __future__ import annotations

import ctypes as c
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Generic,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    overload,
)

from . import _arguments as arguments
from ._calls import Call, Caller
from ._library import F32, I32, Capture, Error, Handle, P, call, copied_ids, sized, taken_ids
from ._locks import with_locks
from .message import CMessage, Message
from .model import CONTRACTS, THREADS, Model

if TYPE_CHECKING:
    from .snapshot import RestoreReport

KV_TYPES = {"": 0, "f32": 1, "bf16": 2, "f16": 3, "q8": 4}
KV_NAMES = {number: name for name, number in KV_TYPES.items()}


class CSessionOptions(c.Structure):
    """The struct stet_session_options."""
    _fields_ = [("struct_size", c.c_size_t), ("capacity", c.c_int64), ("threads", c.c_int64), ("chunk", c.c_int64),
                ("isa", c.c_char_p), ("kv_type", c.c_int32), ("contract", c.c_int32), ("window_only", c.c_int32),
                ("recompute", c.c_int32), ("checkpoint_every", c.c_int64), ("anchor_bytes", c.c_int64)]


class _CSessionInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("size", c.c_int64), ("capacity", c.c_int64), ("floor", c.c_int64),
                ("visible", c.c_int64), ("drawn", c.c_int64), ("threads", c.c_int64), ("chunk", c.c_int64),
                ("isa", c.c_char_p), ("contract_name", c.c_char_p), ("contract", c.c_int32), ("kv_type", c.c_int32),
                ("stop_ids", c.c_size_t), ("stop_strings", c.c_size_t),
                ("turns", c.c_size_t), ("messages", c.c_size_t), ("prunes", c.c_size_t), ("edits", c.c_size_t),
                ("interventions", c.c_size_t), ("recurrent_arrays", c.c_size_t), ("anchors", c.c_size_t)]


OnProgress = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64)
OnLogits = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, P(c.c_float), c.c_size_t)


def session_options(capacity: int = 0, threads: int = 0, chunk: int = 0, isa: str = "", kv_type: str = "",
                    contract: str = "", window_only: bool = False, recompute: bool = False,
                    checkpoint_every: int = 0, anchor_bytes: int = 0) -> Any:
    """Returns stet_session_options with the values that Model.session describes."""
    return sized(
        CSessionOptions(capacity=arguments.integer(capacity, "capacity",
                                                   0), threads=arguments.integer(threads, "threads", *THREADS),
                        chunk=arguments.integer(chunk, "chunk", 0), isa=arguments.word(isa, "isa") or None,
                        kv_type=arguments.choice(kv_type, KV_TYPES, "kv_type"),
                        contract=arguments.choice(contract, CONTRACTS, "contract"),
                        window_only=arguments.flag(window_only, "window_only"),
                        recompute=arguments.flag(recompute, "recompute"),
                        checkpoint_every=arguments.integer(checkpoint_every, "checkpoint_every", -1),
                        anchor_bytes=arguments.integer(anchor_bytes, "anchor_bytes", -1)))


def progress_callback(function: Optional[Callable[[int], None]], of: Call) -> Any:
    """Returns the stet_progress_callback of a function, or a null callback."""
    if arguments.function(function, "progress") is None:
        return c.cast(0, OnProgress)
    wanted: Any = function

    def on_progress(_: object, done: int) -> None:
        wanted(done)

    return OnProgress(of.guard(on_progress))


class _CTurn(c.Structure):
    _fields_ = [("prompt", c.c_int64), ("reply", c.c_int64), ("end", c.c_int64), ("open", c.c_int32)]


class Turn(NamedTuple):
    """A prompt and the reply to it, as positions: prompt .. reply - 1 and reply .. end - 1. If
    `open`, the reply can continue."""
    prompt: int
    reply: int
    end: int
    open: bool


_Owner = TypeVar("_Owner")
_Got = TypeVar("_Got")
_Set = TypeVar("_Set")
_Self = TypeVar("_Self")


class Setting(Generic[_Owner, _Got, _Set]):
    """An attribute of sessions that accepts other types than it returns, unlike a property for mypy."""

    def __init__(self, get: Callable[[_Owner], _Got], set: Callable[[_Owner, _Set], None]) -> None:
        self._get, self._set, self.__doc__ = get, set, get.__doc__

    @overload
    def __get__(self: _Self, session: None, owner: object) -> _Self:
        ...

    @overload
    def __get__(self, session: _Owner, owner: object) -> _Got:
        ...

    def __get__(self, session: Optional[_Owner], owner: object) -> Any:
        return self if session is None else self._get(session)

    def __set__(self, session: _Owner, value: _Set) -> None:
        self._set(session, value)


class SessionBase(Caller):
    """The common base of a session's parts: the handle, the lock between threads, and properties."""

    _free = "stet_session_free"
    _instead = "; save() writes it to a file"

    def _begin(self, model: Model) -> None:
        self.model = model
        self.restored: Optional["RestoreReport"] = None
        self._make_lock()

    # ---- properties

    def _info(self) -> Any:
        info = sized(_CSessionInfo())
        self._call("stet_session_get_info", c.byref(info))
        return info

    def __len__(self) -> int:
        return int(self._info().size)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if self.closed:
            return "<stet.Session, closed>"
        i = self._info()
        more = "".join(", %d %s" % (n, what if n > 1 else what[:-1])
                       for n, what in ((i.interventions, "interventions"), (i.prunes, "prunes"), (i.edits, "edits"),
                                         (i.anchors, "anchors"))
                       if n)
        return "<stet.Session of %s: %d of %d positions, %s, keys and values %s%s>" % (
            self.model.family, i.size, i.capacity, i.contract_name.decode(), KV_NAMES[i.kv_type], more)

    @property
    def capacity(self) -> int:
        """Number of positions that the session can hold."""
        return int(self._info().capacity)

    @property
    def floor(self) -> int:
        """The session's size after its last prune, or 0. A rewind to this size or below is refused,
        except to 0 without a prune."""
        return int(self._info().floor)

    @property
    def visible(self) -> int:
        """Number of visible positions, which are all but the pruned ones."""
        return int(self._info().visible)

    @property
    def drawn(self) -> int:
        """Number of tokens appended and not rewound, including those removed by a shift."""
        return int(self._info().drawn)

    @property
    def contract(self) -> str:
        """Full name of the numeric contract: "f32", "bf16", ..."""
        return str(self._info().contract_name.decode())

    @property
    def kv_type(self) -> str:
        """Type in which keys and values are stored."""
        return KV_NAMES[self._info().kv_type]

    @property
    def prunes(self) -> int:
        """Number of entries in the log of prunes."""
        return int(self._info().prunes)

    @property
    def edits(self) -> int:
        """Number of entries in the log of edits: keys, values and recurrent arrays set from
        outside, callbacks, splices. An edited state cannot be computed from its tokens."""
        return int(self._info().edits)

    @property
    def interventions(self) -> int:
        """Number of attached interventions. attached() lists them."""
        return int(self._info().interventions)

    @property
    def messages(self) -> List[Message]:
        """Messages of the chat that the session holds."""
        with self._lock():
            return [self._message(index) for index in range(self._info().messages)]

    def _message(self, index: int) -> Message:
        m = CMessage()
        self._call("stet_session_message", arguments.size(index), c.byref(m))
        return Message._of(m)

    @property
    def turns(self) -> List[Turn]:
        """Prompts and the replies to them."""
        found = []
        with self._lock():
            for index in range(self._info().turns):
                t = _CTurn()
                self._call("stet_session_turn", arguments.size(index), c.byref(t))
                found.append(Turn(t.prompt, t.reply, t.end, bool(t.open)))
        return found

    def tokens(self) -> I32:
        """Returns the ids of all positions, [positions]."""
        with self._lock():
            ids, count = P(c.c_int32)(), c.c_size_t()
            self._call("stet_session_tokens", c.byref(ids), c.byref(count))
            return copied_ids(ids, count.value)

    def transcript(self) -> I32:
        """Returns the ids of all tokens, [tokens], including those removed by a shift."""
        ids, count = P(c.c_int32)(), c.c_size_t()
        self._call("stet_session_transcript", c.byref(ids), c.byref(count))
        return taken_ids(ids, count)

    def set_compute(self, threads: int = 0, chunk: int = 0, isa: str = "", contract: str = "") -> None:
        """Sets threads, chunk, instruction set and contract for later calls. Only the contract
        changes bits, and it can change only while the session has no tokens."""
        options = session_options(threads=threads, chunk=chunk, isa=isa, contract=contract)
        self._call("stet_session_set_compute", c.byref(options))


def with_sessions(sessions: Sequence[SessionBase], work: Callable[[], _Got]) -> _Got:
    """Returns the result of work(), which runs with the locks of the sessions. Takes them always in the
    same order."""
    return with_locks([session._lock() for session in sorted({id(s): s for s in sessions}.values(), key=id)], work)


def seen(session: SessionBase, capture: Capture, names: List[str], positions: int) -> Dict[str, F32]:
    """Returns the arrays of a capture by the names of their points."""
    found: Dict[str, F32] = {}
    for index, name in enumerate(names):
        rows, count, width = P(c.c_float)(), c.c_size_t(), c.c_size_t()
        call("stet_capture_rows", capture._at, arguments.size(index), c.byref(rows), c.byref(count), c.byref(width))
        shape: Tuple[int, ...] = (session.model.vocab_size, ) if name == "logits" else session.model._row_shape(
            name, positions)
        found[name] = capture.array(c.cast(rows, c.c_void_p).value, (count.value, ) + shape)
    return found
