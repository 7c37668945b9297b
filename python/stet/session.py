"""Sessions: all that changes while a model runs."""
from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from ._library import F32, Capture, P, View, call, lib, refuse, sized, taken_text
from ._session import OnLogits, OnProgress, Turn, progress_callback, seen, session_options, turns_of
from .attaching import Attaching
from .comparison import CDifference, Comparison, CVerifyReport, Difference, VerifyReport
from .digests import CDigests, Digests
from .keys_values import KeysAndValues
from .model import THREADS, Model
from .replying import Replying

if TYPE_CHECKING:
    from .snapshot import Snapshot
    from .tokenizer import Tokenizer
    from .trace import Trace

__all__ = ["BlockIdentity", "Session", "Turn", "save_options"]
FORMS = {"full": 0, "delta": 1, "recipe": 2}


class _CWatch(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("context", c.c_void_p), ("on_logits", OnLogits), ("on_hidden", c.c_void_p), ("on_progress", OnProgress), ("points", P(c.c_char_p)),
                ("point_count", c.c_size_t), ("on_point", c.c_void_p)]


class _CCaptureOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("points", P(c.c_char_p)), ("point_count", c.c_size_t), ("logits", c.c_int32), ("on_progress", OnProgress), ("context", c.c_void_p)]


class CPruneOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("keep_last", c.c_int64), ("sinks", c.c_int64)]


class CSaveOptions(c.Structure):
    """stet_save_options."""
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("parent", c.c_void_p), ("threads", c.c_int64), ("mode", c.c_int64), ("form", c.c_int32), ("compress", c.c_int32)]


class _CBlockIdentity(c.Structure):
    _fields_ = [("id", c.c_uint8 * 32), ("replayable", c.c_int32)]


class BlockIdentity(NamedTuple):
    """The name of 64 positions that are full (docs/identity.md), "sha256:...". `replayable`: their tokens give them; otherwise it is that of their bytes."""
    id: str
    replayable: bool


def save_options(form: str, parent: Optional["Snapshot"], compress: int, with_weights: bool, with_tokenizer: bool, threads: int, mode: int) -> Any:
    """stet_save_options, as Session.save describes them."""
    flags = (1 if with_weights else 0) | (2 if with_tokenizer else 0)
    return sized(CSaveOptions(flags=flags, parent=parent._at if parent is not None else None, threads=arguments.integer(threads, "threads", *THREADS), mode=arguments.integer(mode, "mode", 0),
                              form=arguments.choice(form, FORMS, "form"), compress=arguments.integer(compress, "compress", 0, 9)))


class Session(KeysAndValues, Attaching, Replying):
    """A conversation with a model: all that changes while it runs. copy.copy() is a fork.

    Threads take turns: a call waits until the one before has returned. What a failed call would have changed is as it was."""

    _free = "stet_session_free"
    _instead = "; save() writes it to a file"

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__()
        self._begin(model)
        wanted = session_options(**options)
        call("stet_session_new", model._at, c.byref(wanted), c.byref(self._at))

    @classmethod
    def _adopt(cls, model: Model, at: c.c_void_p) -> "Session":
        session = cls.__new__(cls)
        session._begin(model)
        session._pointer = at
        return session

    def __copy__(self) -> "Session":
        return self.fork()

    # ---- tokens

    def append(self, ids: arguments.Ids, points: Iterable[str] = (), logits: bool = False, progress: Optional[Callable[[int], None]] = None) -> Dict[str, F32]:
        """Processes tokens. Returns what was at these points (names or patterns), [positions, ...]; heads and scores by head; and "logits" where asked for, [positions, vocab].

        The arrays are read-only views of memory that the library filled; they keep it for as long as they live. `progress` is told after each chunk how many tokens are done; what it raises
        leaves the session as it was, and so does KeyboardInterrupt, within a token, too."""
        array, names = arguments.ids_of(ids), self.model._matching(points)
        with self._turn():
            told = progress_callback(progress, self._raised)
            if not names and not logits:
                if progress is None:
                    self._long_call("stet_session_append", arguments.pointer(array, c.c_int32), arguments.size(array.size))
                else:
                    watch = sized(_CWatch(on_progress=told))
                    self._long_call("stet_session_append_watched", arguments.pointer(array, c.c_int32), arguments.size(array.size), c.byref(watch))
                return {}
            capture, these = Capture(), arguments.words(names)
            if progress is None:
                self._long_call("stet_session_capture", arguments.pointer(array, c.c_int32), arguments.size(array.size), these, arguments.size(len(names)), c.c_int32(bool(logits)),
                                c.byref(capture._at))
            else:
                options = sized(_CCaptureOptions(points=these, point_count=len(names), logits=bool(logits), on_progress=told))
                self._long_call("stet_session_capture_with", arguments.pointer(array, c.c_int32), arguments.size(array.size), c.byref(options), c.byref(capture._at))
            return seen(self, capture, names + (["logits"] if logits else []), len(self))

    def logits(self, copy: bool = False) -> F32:
        """Of what follows the last token, [vocab]; [0] where there are none: a read-only view, which stays as it is whatever becomes of the session, or a copy."""
        with self._turn():
            data, count = P(c.c_float)(), c.c_size_t()
            if copy:
                self._long_call("stet_session_logits", c.byref(data), c.byref(count))
                return np.ctypeslib.as_array(data, (count.value,)).copy() if count.value else np.zeros(0, np.float32)
            view = View()
            self._long_call("stet_session_view_logits", c.byref(view._at), c.byref(data), c.byref(count))
            return view.array(c.cast(data, c.c_void_p).value, (count.value,))

    def lens(self, residual: npt.ArrayLike) -> F32:
        """The final norm and head over rows of the residual stream: [..., hidden] -> [..., vocab]."""
        given = arguments.floats(residual, "residual")
        if given.shape[-1:] != (self.model.hidden_size,):
            refuse("residual", "rows of %d numbers" % self.model.hidden_size, "shape %s" % (given.shape,))
        rows = given.reshape(-1, self.model.hidden_size)
        data, count = P(c.c_float)(), c.c_size_t()
        self._call("stet_session_lens", arguments.pointer(rows, c.c_float), arguments.size(rows.shape[0]), c.byref(data), c.byref(count))
        array: F32 = np.ctypeslib.as_array(data, (count.value,)).copy() if count.value else np.zeros(0, np.float32)
        lib.stet_free(c.cast(data, c.c_void_p))
        return array.reshape(*given.shape[:-1], self.model.vocab_size)

    def trace(self, ids: arguments.Ids) -> "Trace":
        """Processes tokens after what is there, in a fork, and keeps what changes of them need to be computed from their layer and position on."""
        from .trace import Trace
        return Trace(self, ids)

    # ---- going back, forks

    def fork(self) -> "Session":
        """A second session, which shares every full block."""
        with self._turn():
            at = c.c_void_p()
            self._call("stet_session_fork", c.byref(at))
            fork = Session._adopt(self.model, at)
            fork._callbacks, fork._raised = list(self._callbacks), self._raised
            return fork

    def rewind(self, size: int) -> None:
        """As if the tokens from there on had never been."""
        self._long_call("stet_session_rewind", c.c_int64(arguments.integer(size, "size")))

    def rewind_cost(self, size: int) -> int:
        """How many tokens that processes again: 0 unless window_only."""
        tokens = c.c_int64()
        self._call("stet_session_rewind_cost", c.c_int64(arguments.integer(size, "size")), c.byref(tokens))
        return tokens.value

    def prune(self, keep_last: int, sinks: int = 0, shift: bool = False) -> int:
        """Takes positions out of the middle, and keeps keep_last at the end and `sinks` at the beginning; returns how many are seen no more. `shift` moves later positions up; otherwise the gap is
        masked."""
        options, pruned = sized(CPruneOptions(flags=1 if shift else 0, keep_last=arguments.integer(keep_last, "keep_last"), sinks=arguments.integer(sinks, "sinks"))), c.c_int64()
        self._long_call("stet_session_prune", c.byref(options), c.byref(pruned))
        return pruned.value

    def prune_range(self, begin: int, end: int, shift: bool = False) -> None:
        """Takes out positions begin .. end - 1."""
        self._long_call("stet_session_prune_range", c.c_int64(arguments.integer(begin, "begin")), c.c_int64(arguments.integer(end, "end")), c.c_int32(bool(shift)))

    # ---- names, files, proofs

    def digests(self) -> Digests:
        """What tells this state from others."""
        d = sized(CDigests())
        self._long_call("stet_session_get_digests", c.byref(d))
        return Digests._of(d)

    def block_identities(self) -> List[BlockIdentity]:
        """The names of its full blocks."""
        blocks, count = P(_CBlockIdentity)(), c.c_size_t()
        self._long_call("stet_session_block_identities", c.byref(blocks), c.byref(count))
        found = [BlockIdentity("sha256:" + bytes(blocks[i].id).hex(), bool(blocks[i].replayable)) for i in range(count.value)]
        lib.stet_free(c.cast(blocks, c.c_void_p))
        return found

    def take_healed(self) -> List[str]:
        """What was healed since the last call, a line for each file: blocks of a snapshot that were not what had been saved, and were computed again."""
        text, size = c.c_void_p(), c.c_size_t()
        self._call("stet_session_take_healed", c.byref(text), c.byref(size))
        return taken_text(text, size).splitlines()

    def save(self, path: arguments.Path, tokenizer: Optional["Tokenizer"] = None, form: str = "full", parent: Optional["Snapshot"] = None, compress: int = 0,
             with_weights: bool = False, with_tokenizer: bool = False, threads: int = 0, mode: int = 0) -> Digests:
        """Writes all that the session is to a file, which afterwards is the new snapshot or, after a failure, what it was before.

        `form` is full, delta (to `parent`) or recipe (computed again when it is restored). `compress` is zlib's level; 0 leaves blocks that can be mapped. The model's and the tokenizer's files are put
        in by with_weights and with_tokenizer. `mode`: permissions of a new file; 0: 0600."""
        options, d = save_options(form, parent, compress, with_weights, with_tokenizer, threads, mode), sized(CDigests())
        where = arguments.path(path)
        self._long_call("stet_session_save", tokenizer._at if tokenizer is not None else None, where, c.byref(options), c.byref(d))
        return Digests._of(d)

    def verify(self) -> VerifyReport:
        """Computes the state again from its tokens, as far as they give it, and compares bits."""
        at, report = P(CDifference)(), sized(CVerifyReport())
        self._long_call("stet_session_verify_with_report", c.byref(report), c.byref(at))
        return VerifyReport._of(report, at)

    def difference(self, other: "Session", tolerance: float = 0) -> Optional[Difference]:
        """The first place where `other` is not as this one; None: equal. Numbers are equal when their bits are, or with a tolerance within it times max(1, |expected|)."""
        at, limit = P(CDifference)(), arguments.number(tolerance, "tolerance")
        with turns_of(self, other):
            self._long_call("stet_session_first_difference", other._at, c.c_double(limit), c.byref(at))
            return Difference._of(at)

    def truth(self) -> Comparison:
        """How far edits have taken this state (b) from what its tokens give when all is computed again (a)."""
        with self._turn():
            return Comparison._made("stet_session_compare_truth", self._at)
