"""Attachments of a session: interventions, which are part of its state, and the program's own
functions."""
from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
from typing import Any, Callable, Iterable, Iterator, List, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from ._calls import calls_of
from ._library import F32, Error, P, refuse, sized
from ._session import SessionBase
from .intervention import Attached, Attachment, CIntervention, Intervention, c_interventions, intervention_of

_OnChange = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_size_t, c.c_int64, P(c.c_float), c.c_size_t, c.c_size_t, c.c_size_t)


class _CCallback(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("points", P(c.c_char_p)), ("point_count", c.c_size_t),
                ("context", c.c_void_p), ("change", _OnChange), ("release", c.c_void_p)]


@dataclasses.dataclass(frozen=True, eq=False)
class _Function:
    """A function that is attached, and its callback for C."""
    points: List[str]
    function: Callable[[str, int, F32], Optional[npt.ArrayLike]]
    callback: Any


class Attaching(SessionBase):
    """A session's interventions and callbacks."""

    def attach(self, *changes: Intervention) -> Attachment:
        """Attaches interventions, which change activations of tokens processed from here on.
        Forks, snapshots and replays keep them. Either all are attached or none.

        The returned Attachment detaches them, by detach() or at the end of `with`."""
        if not changes or not all(isinstance(change, Intervention) for change in changes):
            refuse("changes", "one Intervention or more", ", ".join(type(change).__name__ for change in changes)
                   or "none")
        all_of_c = [w for change in changes for w in c_interventions(self.model, change)]
        with self._lock():
            before = self.interventions
            try:
                for w in all_of_c:
                    self._long_call("stet_session_attach", c.byref(w))
            except BaseException:
                for index in reversed(range(before, self.interventions)):
                    self.detach(index)
                raise
            now = self.attached()
            return Attachment(self, now[:before], now[before:])

    def attached(self) -> List[Attached]:
        """Returns the attached interventions in order. One with a row for each head is listed
        once for each head."""
        found = []
        with self._lock():
            for index in range(self.interventions):
                w, at = sized(CIntervention()), c.c_int64()
                self._call("stet_session_intervention", arguments.size(index), c.byref(w), c.byref(at))
                found.append(Attached(index, intervention_of(w), at.value))
        return found

    def detach(self, which: Union[int, Attached, None] = None, position: Optional[int] = None) -> None:
        """Ends intervention `which` of attached() (None: all) at `position` (None: the session's
        size). The position must not precede the session's size. The state equals that of an
        intervention attached with this end, and a later rewind keeps the end. An intervention
        that has not changed anything is removed, and those after it move up."""
        with self._lock():
            end = len(self) if position is None else arguments.integer(position, "position")
            count = self.interventions
            one = which.place if isinstance(which, Attached) else which
            if one is not None:
                one = arguments.integer(one, "which", 0, max(0, count - 1))
            for index in reversed(range(count)) if one is None else [one]:
                self._long_call("stet_session_detach", arguments.size(index), c.c_int64(end))

    @contextlib.contextmanager
    def changing(self, points: Iterable[str], function: Callable[[str, int, F32],
                                                                 Optional[npt.ArrayLike]]) -> Iterator[None]:
        """Lets `function(point, first, rows)` change activations inside the `with` block. `rows`
        is [positions, width], starting at position `first`. The function changes it in place or
        returns other values.

        A file cannot hold a function. All tokens from the first one on that it saw therefore count as
        edited (`edits`) and cannot be recomputed, also if it changed nothing. The enclosing
        call raises the function's exceptions and leaves the session unchanged. Values that are not
        finite raise an Error. The function may only read the session.

        Blocks can be nested, and functions run in the order in which they were attached. The end of
        the block detaches this function alone. It marks no token as edited."""
        one = self._attach_function(points, function)
        try:
            yield
        finally:
            if not self.closed:
                self._detach_function(one)

    def attach_callback(self, points: Iterable[str], function: Callable[[str, int, F32],
                                                                        Optional[npt.ArrayLike]]) -> None:
        """Attaches a function as `changing` does, until detach_callbacks(). Forks keep it,
        snapshots do not."""
        self._attach_function(points, function)

    def _attach_function(self, points: Iterable[str], function: Callable[[str, int, F32], Optional[npt.ArrayLike]]
                         ) -> _Function:
        names = self.model._matching(points)
        if not names:
            refuse("points", "one name or more", "none")
        if not callable(function):
            refuse("function", "a function", repr(function))

        def change(_: object, index: int, first: int, data: Any, count: int, width: int, stride: int) -> None:
            rows = np.ctypeslib.as_array(data, (count * stride,)).reshape(count, stride)[:, :width]
            copy = rows.copy()
            returned = function(names[index], first, copy)
            if returned is not None and np.iscomplexobj(returned):
                refuse("function", "one that returns real numbers", "complex ones")
            rows[...] = copy if returned is None else returned

        kept = _Function(names, function, _OnChange(self._running.guard(change, " that changes activations")))
        with self._lock():
            self._callbacks.append(kept)  # before the call, which a signal's exception may follow
            try:
                self._attach_to_library(kept)
            except Error:
                self._callbacks.remove(kept)
                raise
        return kept

    def _attach_to_library(self, one: _Function) -> None:
        callback = sized(_CCallback(points=arguments.words(one.points), point_count=len(one.points),
                                    change=one.callback))
        self._long_call("stet_session_attach_callback", c.byref(callback))

    def _detach_function(self, one: _Function) -> None:
        """Detaches one function. The library detaches all, so the others are attached again."""
        with self._lock():
            if not any(other is one for other in self._callbacks):
                return  # detach_callbacks() has detached it
            others = [other for other in self._callbacks if other is not one]
            self._long_call("stet_session_detach_callbacks")
            for other in others:
                self._attach_to_library(other)
            self._callbacks[:] = others  # in place, because a chat and its sessions share the list

    def _attach_those_of(self, original: SessionBase) -> None:
        """Attaches the functions of the session that this one was forked from. Its copies of their
        callbacks belong to calls of that session."""
        if not original._callbacks:
            return
        calls_of([self, original], "stet_session_detach_callbacks", self._at)
        for one in list(original._callbacks):
            self.attach_callback(one.points, one.function)

    def detach_callbacks(self) -> None:
        """Detaches the functions of attach_callback() from this session."""
        with self._lock():
            self._long_call("stet_session_detach_callbacks")
            self._callbacks.clear()  # in place, because a chat and its sessions share the list
