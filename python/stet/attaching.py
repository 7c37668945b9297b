"""What is attached to a session: interventions, which are part of its state, and functions of the program."""
from __future__ import annotations

import contextlib
import ctypes as c
from typing import Any, Callable, Iterable, Iterator, List, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from ._library import F32, P, refuse, sized
from ._session import SessionBase
from .intervention import Attached, Attachment, CIntervention, Intervention, c_interventions, intervention_of

_OnChange = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_size_t, c.c_int64, P(c.c_float), c.c_size_t, c.c_size_t, c.c_size_t)


class _CCallback(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("points", P(c.c_char_p)), ("point_count", c.c_size_t), ("context", c.c_void_p), ("change", _OnChange), ("release", c.c_void_p)]


class Attaching(SessionBase):
    """Changes of activations of what a session processes."""

    def attach(self, *changes: Intervention) -> Attachment:
        """Changes activations of what is processed from here on; forks, snapshots and replays carry it. All are attached, or none.

        The result detaches them, with detach() or where a `with` ends."""
        if not changes or not all(isinstance(change, Intervention) for change in changes):
            refuse("changes", "one Intervention or more", ", ".join(type(change).__name__ for change in changes) or "none")
        all_of_c = [w for change in changes for w in c_interventions(self.model, change)]
        with self._turn():
            before = self.interventions
            try:
                for w in all_of_c:
                    self._long_call("stet_session_attach", c.byref(w))
            except BaseException:
                for index in reversed(range(before, self.interventions)):
                    self.detach(index)
                raise
            return Attachment(self, self.attached()[before:])

    def attached(self) -> List[Attached]:
        """The interventions that are attached, in that order. One with a row for each head is listed as one for each."""
        found = []
        with self._turn():
            for index in range(self.interventions):
                w, at = sized(CIntervention()), c.c_int64()
                self._call("stet_session_intervention", arguments.size(index), c.byref(w), c.byref(at))
                found.append(Attached(index, intervention_of(w), at.value))
        return found

    def detach(self, which: Union[int, Attached, None] = None, position: Optional[int] = None) -> None:
        """Intervention `which` of attached() (None: all) ends at a position, which is not before the session's size (None: there): the state is then what it would be, had it been attached with
        that end, which a later rewind leaves where it is. One that has changed nothing by then is forgotten, and those behind it move up."""
        with self._turn():
            end = len(self) if position is None else arguments.integer(position, "position")
            count = self.interventions
            one = which.place if isinstance(which, Attached) else which
            if one is not None:
                one = arguments.integer(one, "which", 0, max(0, count - 1))
            for index in reversed(range(count)) if one is None else [one]:
                self._long_call("stet_session_detach", arguments.size(index), c.c_int64(end))

    @contextlib.contextmanager
    def changing(self, points: Iterable[str], function: Callable[[str, int, F32], Optional[npt.ArrayLike]]) -> Iterator[None]:
        """While this lasts, `function(point, first, rows)` changes activations of what is processed: rows, [positions, width] from position `first` on, in place, or by returning others.

        No file holds such a function, so what it had part in counts as edited (`edits`) and cannot be computed again. What it raises is raised by the call that it ran in, and leaves the
        session as it was. Numbers that are not finite are an Error. It may only read the session."""
        self.attach_callback(points, function)
        try:
            yield
        finally:
            if not self.closed:
                self.detach_callbacks()

    def attach_callback(self, points: Iterable[str], function: Callable[[str, int, F32], Optional[npt.ArrayLike]]) -> None:
        """As `changing`, until detach_callbacks(); forks carry it, snapshots do not."""
        names = self.model._matching(points)
        if not callable(function):
            refuse("function", "a function", repr(function))

        def change(_: object, index: int, first: int, data: Any, count: int, width: int, stride: int) -> None:
            rows = np.ctypeslib.as_array(data, (count * stride,)).reshape(count, stride)[:, :width]
            copy = rows.copy()
            returned = function(names[index], first, copy)
            rows[...] = copy if returned is None else returned

        kept = _OnChange(self._raised.guard(change))
        callback = sized(_CCallback(points=arguments.words(names), point_count=len(names), change=kept))
        with self._turn():
            self._long_call("stet_session_attach_callback", c.byref(callback))
            self._callbacks.append(kept)

    def detach_callbacks(self) -> None:
        """Ends what attach_callback() began, in this session."""
        with self._turn():
            self._long_call("stet_session_detach_callbacks")
            self._callbacks = []
