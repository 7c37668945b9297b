"""Sessions: all the mutable state of a running model."""
from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from ._calls import Call
from ._library import F32, Capture, P, View, call, lib, refuse, sized, taken_text
from ._session import OnLogits, OnProgress, Turn, progress_callback, seen, session_options, with_sessions
from .attaching import Attaching
from .comparison import CDifference, Comparison, CVerifyReport, Difference, VerifyReport
from .digests import CDigests, Digests
from .keys_values import KeysAndValues
from .model import THREADS, Model
from .recurrent import Recurrent
from .replying import Replying

if TYPE_CHECKING:
    from .snapshot import Snapshot
    from .tokenizer import Tokenizer
    from .trace import Trace

__all__ = ["BlockIdentity", "Session", "Turn", "save_options"]
FORMS = {"full": 0, "delta": 1, "recipe": 2}


class _CWatch(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("context", c.c_void_p), ("on_logits", OnLogits),
                ("on_hidden", c.c_void_p), ("on_progress", OnProgress), ("points", P(c.c_char_p)),
                ("point_count", c.c_size_t), ("on_point", c.c_void_p), ("state_positions", P(c.c_int64)),
                ("state_position_count", c.c_size_t)]


class CCaptureOptions(c.Structure):
    """The struct stet_capture_options."""
    _fields_ = [("struct_size", c.c_size_t), ("points", P(c.c_char_p)), ("point_count", c.c_size_t),
                ("logits", c.c_int32), ("on_progress", OnProgress), ("context", c.c_void_p),
                ("state_positions", P(c.c_int64)), ("state_position_count", c.c_size_t)]


class CPruneOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("keep_last", c.c_int64), ("sinks", c.c_int64)]


class CSaveOptions(c.Structure):
    """The struct stet_save_options."""
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("parent", c.c_void_p), ("threads", c.c_int64),
                ("mode", c.c_int64), ("form", c.c_int32), ("compress", c.c_int32)]


class _CBlockIdentity(c.Structure):
    _fields_ = [("id", c.c_uint8 * 32), ("replayable", c.c_int32)]


class BlockIdentity(NamedTuple):
    """The identity of a full block of 64 positions (docs/contracts-and-identity.md), "sha256:...". If
    `replayable`, it is derived from the tokens, which reproduce the block; otherwise from the
    block's bytes."""
    id: str
    replayable: bool


def save_options(form: str, parent: Optional["Snapshot"], compress: int, with_weights: bool, with_tokenizer: bool,
                 threads: int, mode: int) -> Any:
    """Returns stet_save_options with the values that Session.save describes."""
    flags = ((arguments.flag(with_weights, "with_weights"))
             | (2 if arguments.flag(with_tokenizer, "with_tokenizer") else 0))
    return sized(
        CSaveOptions(flags=flags, parent=arguments.handle_or_none(parent, "Snapshot", "parent"),
                     threads=arguments.integer(threads, "threads", *THREADS), mode=arguments.integer(mode, "mode", 0),
                     form=arguments.choice(form, FORMS, "form"),
                     compress=arguments.integer(compress, "compress", 0, 9)))


class Session(KeysAndValues, Recurrent, Attaching, Replying):
    """A conversation with a model: all state that changes while it runs. copy.copy() is a fork.

    Concurrent calls run one after another. A failed call leaves the session unchanged."""

    _free = "stet_session_free"
    _instead = "; save() writes it to a file"

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__()
        of = arguments.handle(model, "Model", "model")
        self._begin(model)
        wanted = session_options(**options)
        call("stet_session_new", of, c.byref(wanted), c.byref(self._at))

    @classmethod
    def _adopt(cls, model: Model, at: c.c_void_p) -> "Session":
        session = cls.__new__(cls)
        session._begin(model)
        session._pointer = at
        return session

    def __copy__(self) -> "Session":
        return self.fork()

    # ---- tokens

    def append(self, ids: arguments.Ids, points: Iterable[str] = (), logits: bool = False,
               progress: Optional[Callable[[int], None]] = None,
               state_positions: arguments.Ids = ()) -> Dict[str, F32]:
        """Processes tokens. Returns the activations at these points (names or patterns),
        [positions, ...], with an axis for heads where there are any, and "logits" if requested,
        [positions, vocab]. hook_state is captured at `state_positions` only, in ascending order,
        and refused without them; a pattern selects it only if it ends with that name.

        The arrays are read-only views of the library's memory, which they keep alive. `progress`
        receives the number of processed tokens after each chunk. An exception from it, or a
        KeyboardInterrupt at any time, leaves the session unchanged."""
        array, names = arguments.ids_of(ids), self.model._matching(points)
        logits = arguments.flag(logits, "logits")
        with self._lock():
            states = self._state_positions(state_positions, names, array.size)
            of = Call()
            told = progress_callback(progress, of)
            if not names and not logits:
                if progress is None:
                    self._long_call("stet_session_append", arguments.pointer(array, c.c_int32),
                                    arguments.size(array.size))
                else:
                    watch = sized(_CWatch(on_progress=told))
                    self._long_call("stet_session_append_watched", arguments.pointer(array, c.c_int32),
                                    arguments.size(array.size), c.byref(watch), of=of)
                return {}
            capture, these = Capture(), arguments.words(names)
            if progress is None and states.size == 0:
                self._long_call("stet_session_capture", arguments.pointer(array, c.c_int32), arguments.size(array.size),
                                these, arguments.size(len(names)), c.c_int32(bool(logits)),
                                c.byref(capture._at))
            else:
                options = sized(
                    CCaptureOptions(points=these, point_count=len(names), logits=bool(logits), on_progress=told,
                                     state_positions=arguments.pointer(states, c.c_int64),
                                     state_position_count=states.size))
                self._long_call("stet_session_capture_with", arguments.pointer(array, c.c_int32),
                                arguments.size(array.size), c.byref(options), c.byref(capture._at), of=of)
            return seen(self, capture, names + (["logits"] if logits else []), len(self))

    def _state_positions(self, positions: arguments.Ids, names: List[str], count: int,
                         of: str = "state_positions") -> Any:
        """Returns the positions of states among the next `count`, each once. `of` is the argument."""
        states = arguments.integers(positions, of)
        if states.size and not any(name.endswith("hook_state") for name in names):
            refuse(of, "none without a point hook_state", states.tolist())
        before = len(self)
        for i, position in enumerate(states.tolist()):
            arguments.integer(position, "%s[%d]" % (of, i), before, before + count - 1)
            if position in states[:i]:
                refuse("%s[%d]" % (of, i), "each position once", position)
        return states

    def logits(self, copy: bool = False) -> F32:
        """Returns the logits for the token after the last one, [vocab], or [0] without tokens.
        The array is a read-only view, which later calls do not change, or a copy."""
        copy = arguments.flag(copy, "copy")
        with self._lock():
            data, count = P(c.c_float)(), c.c_size_t()
            if copy:
                self._long_call("stet_session_logits", c.byref(data), c.byref(count))
                return np.ctypeslib.as_array(data, (count.value,)).copy() if count.value else np.zeros(0, np.float32)
            view = View()
            self._long_call("stet_session_view_logits", c.byref(view._at), c.byref(data), c.byref(count))
            return view.array(c.cast(data, c.c_void_p).value, (count.value,))

    def lens(self, residual: npt.ArrayLike) -> F32:
        """Applies the final norm and the output layer to rows of the residual stream: [...,
        hidden] -> [..., vocab]."""
        given = arguments.floats(residual, "residual")
        if given.shape[-1:] != (self.model.hidden_size,):
            refuse("residual", "rows of %d numbers" % self.model.hidden_size, "shape %s" % (given.shape,))
        rows = given.reshape(-1, self.model.hidden_size)
        data, count = P(c.c_float)(), c.c_size_t()
        self._call("stet_session_lens", arguments.pointer(rows, c.c_float), arguments.size(rows.shape[0]),
                   c.byref(data), c.byref(count))
        array: F32 = np.ctypeslib.as_array(data, (count.value,)).copy() if count.value else np.zeros(0, np.float32)
        lib.stet_free(c.cast(data, c.c_void_p))
        return array.reshape(*given.shape[:-1], self.model.vocab_size)

    def trace(self, ids: Union[arguments.Ids, Sequence[arguments.Ids]]) -> "Trace":
        """Processes tokens, or those of several prompts, in a fork. Keeps the data for recomputing
        changes of them from the changed layer and position."""
        from .trace import Trace
        return Trace(self, ids)

    # ---- rewinding and forks

    def fork(self) -> "Session":
        """Returns a second session with the same state. Both share every full block."""
        with self._lock():
            at = c.c_void_p()
            self._call("stet_session_fork", c.byref(at))
            fork = Session._adopt(self.model, at)
            fork._attach_those_of(self)
            return fork

    def rewind(self, size: int) -> None:
        """Removes the tokens from position `size` on, as if they had never been appended."""
        self._long_call("stet_session_rewind", c.c_int64(arguments.integer(size, "size")))

    def rewind_cost(self, size: int) -> int:
        """Returns the number of tokens that rewind(size) would process again: 0 unless
        window_only, or the model has recurrent layers. Refuses positions that do not exist."""
        tokens = c.c_int64()
        self._call("stet_session_rewind_cost", c.c_int64(arguments.integer(size, "size")), c.byref(tokens))
        return tokens.value

    def prune(self, keep_last: int, sinks: int = 0, shift: bool = False, recompute: bool = False) -> int:
        """Removes positions from the middle. Keeps `keep_last` at the end and `sinks` at the
        beginning. Returns how many became invisible. `shift` moves later positions up; otherwise
        the gap is masked. `recompute` processes later tokens again, as if the removed ones had never
        been there; models with recurrent layers need it. It excludes `shift`."""
        shift, recompute = arguments.flag(shift, "shift"), arguments.flag(recompute, "recompute")
        if shift and recompute:
            refuse("recompute", "False with shift", recompute)
        options, pruned = (sized(CPruneOptions(flags=shift | recompute << 1,
                                               keep_last=arguments.integer(keep_last, "keep_last"),
                                               sinks=arguments.integer(sinks, "sinks"))), c.c_int64())
        self._long_call("stet_session_prune", c.byref(options), c.byref(pruned))
        return pruned.value

    def prune_range(self, begin: int, end: int, shift: bool = False) -> None:
        """Removes positions begin .. end - 1."""
        self._long_call("stet_session_prune_range", c.c_int64(arguments.integer(begin, "begin")),
                        c.c_int64(arguments.integer(end, "end")), c.c_int32(arguments.flag(shift, "shift")))

    # ---- identities, files, verification

    def digests(self) -> Digests:
        """Returns the digests that identify this state."""
        d = sized(CDigests())
        self._long_call("stet_session_get_digests", c.byref(d))
        return Digests._of(d)

    def block_identities(self) -> List[BlockIdentity]:
        """Returns the identities of the full blocks."""
        blocks, count = P(_CBlockIdentity)(), c.c_size_t()
        self._long_call("stet_session_block_identities", c.byref(blocks), c.byref(count))
        found = [BlockIdentity("sha256:" + bytes(blocks[i].id).hex(), bool(blocks[i].replayable))
                 for i in range(count.value)]
        lib.stet_free(c.cast(blocks, c.c_void_p))
        return found

    def take_healed(self) -> List[str]:
        """Returns a line for each file whose blocks were healed since the last call. Healed
        blocks differed from the saved ones and were recomputed."""
        text, size = c.c_void_p(), c.c_size_t()
        self._call("stet_session_take_healed", c.byref(text), c.byref(size))
        return taken_text(text, size).splitlines()

    def save(self, path: arguments.Path, tokenizer: Optional["Tokenizer"] = None, form: str = "full",
             parent: Optional["Snapshot"] = None, compress: int = 0,
             with_weights: bool = False, with_tokenizer: bool = False, threads: int = 0, mode: int = 0) -> Digests:
        """Writes the session to a file. If that fails, the file keeps its previous content.
        Returns the state's digests.

        `form` is full, delta (relative to `parent`) or recipe (recomputed by a restore).
        `compress` is zlib's level; 0 keeps blocks mappable. with_weights and with_tokenizer
        include the model's and the tokenizer's files. `mode` sets a new file's permissions; 0
        means 0600."""
        options, d = (save_options(form, parent, compress, with_weights, with_tokenizer, threads, mode),
                      sized(CDigests()))
        where, of = arguments.path(path), arguments.handle_or_none(tokenizer, "Tokenizer", "tokenizer")
        self._long_call("stet_session_save", of, where, c.byref(options),
                        c.byref(d))
        return Digests._of(d)

    def save_bytes(self, tokenizer: Optional["Tokenizer"] = None, form: str = "full",
                   parent: Optional["Snapshot"] = None, compress: int = 0, threads: int = 0) -> bytes:
        """Returns the bytes that save() would write, for Snapshot.from_bytes."""
        options = save_options(form, parent, compress, False, False, threads, 0)
        of = arguments.handle_or_none(tokenizer, "Tokenizer", "tokenizer")
        data, size = c.c_void_p(), c.c_size_t()
        self._long_call("stet_session_save_bytes", of, c.byref(options), c.byref(data), c.byref(size), None)
        saved = c.string_at(data, size.value)
        lib.stet_free(data)
        return saved

    def verify(self) -> VerifyReport:
        """Recomputes the state from its tokens, as far as they reproduce it, and compares the
        bits."""
        at, report = P(CDifference)(), sized(CVerifyReport())
        self._long_call("stet_session_verify_with_report", c.byref(report), c.byref(at))
        return VerifyReport._of(report, at)

    def difference(self, other: "Session", tolerance: float = 0) -> Optional[Difference]:
        """Returns the first difference of `other` from this session, or None if they are equal.
        Numbers are equal if their bits are or, with a tolerance, if they differ by at most that
        times max(1, |expected|)."""
        at, limit = P(CDifference)(), arguments.number(tolerance, "tolerance")
        arguments.handle(other, "Session", "other")

        def compared() -> Optional[Difference]:
            self._long_call("stet_session_first_difference", other._at, c.c_double(limit), c.byref(at))
            return Difference._of(at)

        return with_sessions((self, other), compared)

    def truth(self) -> Comparison:
        """Compares this state (b) with the one that its tokens give when everything is recomputed
        (a). Shows the effect of edits."""
        with self._lock():
            return Comparison._made("stet_session_compare_truth", self._at)
