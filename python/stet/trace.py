"""Sweeps: recompute the end of a run under many changes."""
from __future__ import annotations

import ctypes as c
import dataclasses
from typing import Any, Callable, Dict, List, Optional, Sequence, Union, overload

import numpy as np

from . import _arguments as arguments
from ._calls import Call, long_call
from ._library import F32, ArgumentError, Error, Handle, P, refuse
from ._locks import HandleLock
from ._session import OnLogits, SessionBase
from .intervention import CIntervention, Intervention, c_interventions


class _CIds(c.Structure):
    _fields_ = [("ids", P(c.c_int32)), ("count", c.c_size_t)]


class _CTraced(c.Structure):
    _fields_ = [("changes", P(CIntervention)), ("change_count", c.c_size_t), ("prompt", c.c_size_t),
                ("positions", P(c.c_int64)), ("position_count", c.c_size_t)]


_OnTraced = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_size_t, c.c_int64, P(c.c_float), c.c_size_t)


@dataclasses.dataclass
class TraceRun:
    """A prompt of a trace under changes that apply together, attached in order. `positions` are
    those whose logits are returned; none means the last."""
    changes: Sequence[Intervention]
    prompt: int = 0
    positions: arguments.Ids = ()


class Trace(Handle):
    """Tokens processed after a session's content, kept so that their end can be recomputed under
    changes. With a list of prompts, each follows the session's content."""

    _free = "stet_trace_free"
    _instead = "; make one there"

    def __init__(self, before: SessionBase, ids: Union[arguments.Ids, Sequence[arguments.Ids]]) -> None:
        super().__init__()
        arguments.handle(before, "Session", "before")
        self.model = before.model
        several = isinstance(ids, (list, tuple)) and len(ids) > 0 and not isinstance(ids[0], (int, np.integer, str))
        arrays = ([arguments.ids_of(one, "ids[%d]" % i) for i, one in enumerate(ids)] if several
                  else [arguments.ids_of(ids)])  # type: ignore[arg-type]
        self._lock = HandleLock("trace")
        self._count, self._prompts = sum(a.size for a in arrays), len(arrays)
        with before._lock():
            if several:
                prompts = (_CIds * len(arrays))(*[_CIds(arguments.pointer(a, c.c_int32), a.size) for a in arrays])
                long_call("stet_trace_new_prompts", before._at, prompts, arguments.size(len(arrays)), c.byref(self._at))
            else:
                long_call("stet_trace_new", before._at, arguments.pointer(arrays[0], c.c_int32),
                          arguments.size(arrays[0].size), c.byref(self._at))

    def __repr__(self) -> str:
        if self.closed:
            return "<stet.Trace, closed>"
        return "<stet.Trace of %d tokens%s>" % (self._count,
                                                ", %d prompts" % self._prompts if self._prompts > 1 else "")

    @overload
    def run(
        self, changes: Sequence[Intervention], function: Optional[Callable[[int, F32], None]] = None
    ) -> Optional[F32]:
        ...

    @overload
    def run(
        self, changes: Sequence[TraceRun], function: Optional[Callable[[int, F32], None]] = None
    ) -> Optional[List[F32]]:
        ...

    def run(self, changes: Any, function: Optional[Callable[[int, F32], None]] = None) -> Any:
        """Returns the logits after the last token under each change alone, [changes, vocab]. The
        bits are those of attaching the change before the tokens. If that is too much memory,
        `function(index, logits)` receives each in any order. Changes are computed from their
        layer and position on, in shared passes.

        For TraceRuns, returns a list with the logits of each run's positions in ascending order,
        [positions, vocab], or passes them to the function."""
        changes = arguments.sequence(changes, "changes", "Interventions or TraceRuns")
        arguments.function(function, "function")
        if any(isinstance(change, TraceRun) for change in changes):
            return self._run_all(changes, function)
        kept = []
        for i, change in enumerate(changes):
            if not isinstance(change, Intervention):
                refuse("changes[%d]" % i, "an Intervention", type(change).__name__)
            try:
                parts = c_interventions(self.model, change)
            except ArgumentError as error:
                refuse("changes[%d]: %s" % (i, error.field), error.expected, error.found)
            if len(parts) != 1:
                refuse("changes[%d]" % i, "one row for all heads: what has a row for each head is several changes",
                       "%d heads" % len(parts))
            kept += parts
        all = np.empty((len(kept), self.model.vocab_size), np.float32) if function is None else None
        raised = Call()

        def on_logits(_: object, index: int, row: "c.Array[c.c_float]", count: int) -> None:
            logits = np.ctypeslib.as_array(row, (count,))
            if all is not None:
                all[index] = logits
            elif function is not None:
                function(index, logits.copy())

        try:
            with self._lock():
                long_call("stet_trace_run", self._at, (CIntervention * len(kept))(*kept), arguments.size(len(kept)),
                          OnLogits(raised.guard(on_logits)), None, of=raised)
            raised.raise_lost()
        except Error:
            raised.raise_first()
            raise
        return all

    def _run_all(self, runs: Sequence[TraceRun], function: Optional[Callable[[int, F32], None]]) -> Optional[List[F32]]:
        held: List[Any] = []
        all = (_CTraced * len(runs))()
        for i, run in enumerate(runs):
            name = "changes[%d]" % i
            if not isinstance(run, TraceRun):
                refuse(name, "a TraceRun, as the others", type(run).__name__)
            parts = []
            for j, change in enumerate(arguments.sequence(run.changes, name + ".changes", "Interventions")):
                if not isinstance(change, Intervention):
                    refuse("%s.changes[%d]" % (name, j), "an Intervention", type(change).__name__)
                try:
                    parts += c_interventions(self.model, change)
                except ArgumentError as error:
                    refuse("%s.changes[%d]: %s" % (name, j, error.field), error.expected, error.found)
            array, positions = (CIntervention * len(parts))(*parts), np.unique(
                arguments.integers(run.positions, name + ".positions"))
            held.append((parts, array, positions))
            all[i] = _CTraced(array, len(parts), arguments.integer(run.prompt, name + ".prompt", 0),
                              arguments.pointer(positions, c.c_int64), positions.size)
        rows: Dict[int, List[F32]] = {}
        found: List[F32] = [np.zeros((0, self.model.vocab_size), np.float32)] * len(runs)
        raised = Call()

        def on_logits(_: object, index: int, position: int, row: "c.Array[c.c_float]", count: int) -> None:
            some = rows.setdefault(index, [])
            some.append(np.ctypeslib.as_array(row, (count,)).copy())
            if len(some) < max(1, len(held[index][2])):
                return
            logits = np.stack(rows.pop(index))
            if function is not None:
                function(index, logits)
            else:
                found[index] = logits

        try:
            with self._lock():
                long_call("stet_trace_run_all", self._at, all, arguments.size(len(runs)),
                          _OnTraced(raised.guard(on_logits)), None, of=raised)
            raised.raise_lost()
        except Error:
            raised.raise_first()
            raise
        return found if function is None else None
