"""Sweeps: the end of a run computed again under many changes."""
from __future__ import annotations

import ctypes as c
from typing import Callable, Optional, Sequence

import numpy as np

from . import _arguments as arguments
from ._library import F32, ArgumentError, Error, Handle, Raised, long_call, refuse
from ._session import OnLogits, SessionBase
from .intervention import CIntervention, Intervention, c_interventions


class Trace(Handle):
    """Tokens that went through a model after a session, kept so that their end can be computed again under changes."""

    _free = "stet_trace_free"
    _instead = "; make one there"

    def __init__(self, before: SessionBase, ids: arguments.Ids) -> None:
        super().__init__()
        self.model = before.model
        array = arguments.ids_of(ids)
        self._count = array.size
        with before._turn():
            long_call("stet_trace_new", before._at, arguments.pointer(array, c.c_int32), arguments.size(array.size), c.byref(self._at))

    def __repr__(self) -> str:
        return "<stet.Trace, closed>" if self.closed else "<stet.Trace of %d tokens>" % self._count

    def run(self, changes: Sequence[Intervention], function: Optional[Callable[[int, F32], None]] = None) -> Optional[F32]:
        """The logits after the last token under each change alone, [changes, vocab], with the bits that attaching it before the tokens gives; or `function(index, logits)` for each, in
        any order, where that would be too many numbers. Changes begin at their layer and position, and share passes."""
        kept = []
        for i, change in enumerate(changes):
            if not isinstance(change, Intervention):
                refuse("changes[%d]" % i, "an Intervention", type(change).__name__)
            try:
                parts = c_interventions(self.model, change)
            except ArgumentError as error:
                refuse("changes[%d]: %s" % (i, error.field), error.expected, error.found)
            if len(parts) != 1:
                refuse("changes[%d]" % i, "one row for all heads: what has a row for each head is several changes", "%d heads" % len(parts))
            kept += parts
        all = np.empty((len(kept), self.model.vocab_size), np.float32) if function is None else None
        raised = Raised()

        def on_logits(_: object, index: int, row: "c.Array[c.c_float]", count: int) -> None:
            logits = np.ctypeslib.as_array(row, (count,))
            if all is not None:
                all[index] = logits
            elif function is not None:
                function(index, logits.copy())

        try:
            long_call("stet_trace_run", self._at, (CIntervention * len(kept))(*kept), arguments.size(len(kept)), OnLogits(raised.guard(on_logits)), None)
        except Error:
            raised.raise_first()
            raise
        return all
