"""Snapshots: states in files or in memory."""
from __future__ import annotations

import ctypes as c
import json
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from . import _arguments as arguments
from ._calls import long_call
from ._library import F32, I32, P, Shared, call, copied_ids, lend, refuse, sized
from ._session import KV_NAMES, KV_TYPES, session_options
from .comparison import CDifference, CVerifyReport, VerifyReport
from .digests import CDigests, Digests
from .message import CMessage, Message
from .model import THREADS, Model, model_options
from .session import FORMS, CPruneOptions, Session, save_options

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

FORM_NAMES = {number: name for name, number in FORMS.items()}


class _CSnapshotInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("path", c.c_char_p), ("contract_name", c.c_char_p),
                ("architecture", c.c_char_p), ("config", c.c_char_p), ("model_fingerprint", c.c_char_p),
                ("tokenizer_fingerprint", c.c_char_p), ("checkpoint", c.c_char_p), ("parent_id", c.c_char_p),
                ("parent_file", c.c_char_p), ("file_size", c.c_uint64), ("stored_kv_bytes", c.c_uint64),
                ("positions", c.c_int64), ("capacity", c.c_int64), ("layers", c.c_int64), ("kv_heads", c.c_int64),
                ("head_dim", c.c_int64), ("form", c.c_int32), ("format_version", c.c_int32), ("contract", c.c_int32),
                ("contract_version", c.c_int32), ("kv_type", c.c_int32), ("has_logits", c.c_int32),
                ("has_weights", c.c_int32), ("has_tokenizer", c.c_int32), ("messages", c.c_size_t),
                ("prunes", c.c_size_t), ("edits", c.c_size_t)]


class _CCheckReport(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("blocks", c.c_uint64), ("files", c.c_uint64)]


class _CRestoreOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64)]


class _CRestoreReport(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("reused", c.c_int64), ("recomputed", c.c_int64), ("healed", c.c_int64),
                ("checked", c.c_int64)]


class _CConvertOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("prune", P(CPruneOptions)), ("capacity", c.c_int64),
                ("kv_type", c.c_int64)]


class _CVerifyOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64)]


class CheckReport(NamedTuple):
    """The checked parts: blocks of keys and values, those of parents among them, and files of a
    self-contained snapshot."""
    blocks: int
    files: int


class RestoreReport(NamedTuple):
    """Tokens that were reused and processed again, healed blocks, and whether every digest was
    already compared (otherwise each is compared before first use)."""
    reused: int
    recomputed: int
    healed: int
    checked: bool


class SnapshotInfo(NamedTuple):
    """Metadata of a snapshot. `config` is the model's shape. parent_id and parent_file are those
    of a delta, "" if unknown."""
    path: str
    contract: str
    contract_version: int
    format_version: int
    architecture: str
    config: Dict[str, Any]
    model_fingerprint: str
    tokenizer_fingerprint: str
    checkpoint: str
    parent_id: str
    parent_file: str
    file_size: int
    stored_kv_bytes: int
    positions: int
    capacity: int
    layers: int
    kv_heads: int
    head_dim: int
    form: str
    kv_type: str
    has_logits: bool
    has_weights: bool
    has_tokenizer: bool
    prunes: int
    edits: int


class Snapshot(Shared):
    """A state in a file, immutable. Copying returns the same snapshot. `parent` is the file that
    a delta is relative to; None looks for it next to the snapshot. Raises Error if the file is
    damaged."""

    _free = "stet_snapshot_free"
    _instead = "; open its file there"

    def __init__(self, path: arguments.Path, parent: Optional[arguments.Path] = None) -> None:
        super().__init__()
        call("stet_snapshot_open", arguments.path(path), None if parent is None else arguments.path(parent, "parent"),
             c.byref(self._at))

    @classmethod
    def from_bytes(cls, data: arguments.Buffer, name: str = "memory",
                   parent: Optional["Snapshot"] = None) -> "Snapshot":
        """Opens a snapshot in memory, without opening a file. Bytes are kept alive as long as needed;
        other buffers (bytearray, memoryview, mmap, arrays) are copied. Errors use `name` as the file.
        `parent` is the snapshot that a delta is relative to."""
        held, label = arguments.buffer(data, "data"), arguments.word(name, "name")
        over = arguments.handle_or_none(parent, "Snapshot", "parent")
        snapshot = cls.__new__(cls)
        Shared.__init__(snapshot)
        release, context = lend(held)
        if over is None:
            call("stet_snapshot_open_bytes", held, arguments.size(len(held)), label, release, context,
                 c.byref(snapshot._at))
        else:
            call("stet_snapshot_open_bytes_over", held, arguments.size(len(held)), label, over, release, context,
                 c.byref(snapshot._at))
        return snapshot

    def __repr__(self) -> str:
        if self.closed:
            return "<stet.Snapshot, closed>"
        i = self.info()
        return "<stet.Snapshot %r: %s, %d positions, %s>" % (i.path, i.form, i.positions, i.contract)

    def _read_info(self) -> Any:
        info = sized(_CSnapshotInfo())
        call("stet_snapshot_get_info", self._at, c.byref(info))
        return info

    def info(self) -> SnapshotInfo:
        """Metadata from the file."""
        i = self._read_info()
        plain: Dict[str, Any] = {
            name: getattr(i, name).decode("utf-8", "replace")
            for name in ("path", "architecture", "model_fingerprint", "tokenizer_fingerprint", "checkpoint",
                         "parent_id", "parent_file")
        }
        numbers = {
            name: getattr(i, name)
            for name in ("contract_version", "format_version", "file_size", "stored_kv_bytes", "positions",
                         "capacity", "layers", "kv_heads", "head_dim", "prunes", "edits")
        }
        flags: Dict[str,
                    Any] = {name: bool(getattr(i, name)) for name in ("has_logits", "has_weights", "has_tokenizer")}
        return SnapshotInfo(contract=i.contract_name.decode(), config=json.loads(i.config), form=FORM_NAMES[i.form],
                            kv_type=KV_NAMES[i.kv_type], **plain, **numbers, **flags)

    def tokens(self) -> I32:
        """Returns the token ids of the state, [positions]."""
        ids, count = P(c.c_int32)(), c.c_size_t()
        call("stet_snapshot_tokens", self._at, c.byref(ids), c.byref(count))
        return copied_ids(ids, count.value)

    def logits(self) -> F32:
        """Returns the logits for the token after the last one, [vocab]. A recipe, or a state
        without tokens, has [0]."""
        data, count = P(c.c_float)(), c.c_size_t()
        call("stet_snapshot_logits", self._at, c.byref(data), c.byref(count))
        return np.ctypeslib.as_array(data, (count.value,)).copy() if count.value else np.zeros(0, np.float32)

    @property
    def messages(self) -> List[Message]:
        """Messages of the chat that the snapshot holds."""
        found = []
        for index in range(self._read_info().messages):
            m = CMessage()
            call("stet_snapshot_message", self._at, arguments.size(index), c.byref(m))
            found.append(Message._of(m))
        return found

    def digests(self) -> Digests:
        """Returns the digests stated in the file. check() verifies them."""
        d = sized(CDigests())
        call("stet_snapshot_get_digests", self._at, c.byref(d))
        return Digests._of(d)

    def check(self, threads: int = 0) -> CheckReport:
        """Verifies every byte of the file without a model, compressed blocks by the bytes that they
        expand to. Raises an Error that names the first fault."""
        report = sized(_CCheckReport())
        long_call("stet_snapshot_check", self._at, c.c_int32(arguments.integer(threads, "threads", *THREADS)),
                  c.byref(report))
        return CheckReport(report.blocks, report.files)

    def verify(self, model: Model, bisect: bool = False, **options: Any) -> VerifyReport:
        """Recomputes the state from its tokens, as far as they reproduce it, and compares the
        file with it. `bisect` names the block and layer from digests only."""
        at, wanted, how, report = P(CDifference)(), session_options(**options), sized(
            _CVerifyOptions(flags=arguments.flag(bisect, "bisect"))), sized(CVerifyReport())
        of = arguments.handle(model, "Model", "model")
        long_call("stet_snapshot_verify", self._at, of, c.byref(wanted), c.byref(how), c.byref(report),
                  c.byref(at))
        return VerifyReport._of(report, at)

    def load_model(self, contract: str = "", threads: int = 0, in_memory: bool = False) -> Model:
        """Loads the model from a self-contained snapshot."""
        at, options = c.c_void_p(), model_options(contract, threads, in_memory)
        call("stet_snapshot_load_model", self._at, c.byref(options), c.byref(at))
        return Model._adopt(at)

    def load_tokenizer(self) -> "Tokenizer":
        """Loads the tokenizer from a self-contained snapshot."""
        from .tokenizer import Tokenizer
        at = c.c_void_p()
        call("stet_snapshot_load_tokenizer", self._at, c.byref(at))
        return Tokenizer._adopt(at, self.info().path)

    def restore(self, model: Model, tokenizer: Optional["Tokenizer"] = None, in_memory: bool = False,
                check: bool = False, heal: bool = False, trust: bool = False, replay: bool = False,
                **options: Any) -> Session:
        """Returns a session equal to the saved one. Its `restored` attribute is a RestoreReport.
        `options` are those of Model.session.

        in_memory copies the blocks instead of mapping the file. `check` checks all blocks at
        once, not at first use. `heal` recomputes damaged blocks. `trust` accepts blocks
        unchecked, and excludes `check` and `heal`. `replay` recomputes everything, also under
        another model, contract or kv_type. Otherwise another model, tokenizer or contract raises
        an Error with all differences."""
        flags = sum(bit for bit, on, name in ((1, in_memory, "in_memory"), (2, check, "check"), (4, heal, "heal"),
                                              (8, trust, "trust"), (16, replay, "replay")) if arguments.flag(on, name))
        of = arguments.handle(model, "Model", "model")
        by = arguments.handle_or_none(tokenizer, "Tokenizer", "tokenizer")
        at, wanted, how, report = c.c_void_p(), session_options(**options), sized(
            _CRestoreOptions(flags=flags)), sized(_CRestoreReport())
        long_call("stet_snapshot_restore", self._at, of, by, c.byref(wanted), c.byref(how), c.byref(report),
                  c.byref(at))
        session = Session._adopt(model, at)
        session.restored = RestoreReport(report.reused, report.recomputed, report.healed, bool(report.checked))
        return session

    def convert(self, path: arguments.Path, form: str = "full", parent: Optional["Snapshot"] = None,
                compress: int = 0, keep_last: Optional[int] = None, sinks: int = 0, shift: bool = False,
                capacity: int = 0, kv_type: str = "", threads: int = 0, mode: int = 0) -> Tuple[Digests, int]:
        """Writes the same state in another form, pruned (keep_last, sinks, shift as in
        Session.prune), rounded to another kv_type (an edit), or with another capacity. Needs no
        model. Returns the new state's digests and the number of pruned positions."""
        save, d, pruned = save_options(form, parent, compress, False, False, threads,
                                       mode), sized(CDigests()), c.c_int64()
        options = sized(
            _CConvertOptions(capacity=arguments.integer(capacity, "capacity", 0),
                             kv_type=arguments.choice(kv_type, KV_TYPES, "kv_type")))
        shift, first = arguments.flag(shift, "shift"), arguments.integer(sinks, "sinks")
        if keep_last is not None:
            prune = sized(
                CPruneOptions(flags=1 if shift else 0, keep_last=arguments.integer(keep_last, "keep_last"),
                              sinks=first))
            options.prune = c.pointer(prune)
        long_call("stet_snapshot_convert", self._at, arguments.path(path), c.byref(options), c.byref(save),
                  c.byref(pruned), c.byref(d))
        return Digests._of(d), pruned.value
