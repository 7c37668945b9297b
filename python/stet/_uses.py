"""Handles that calls use now. A callback or another thread may close one of them, which then lives on
until these calls end."""
from __future__ import annotations

import ctypes as c
import threading
import weakref
from typing import Any, Callable, Dict, Iterable, List, Set, Tuple

# Calls that use handles, by identity, and the handles that were closed meanwhile.
_calls: Dict[int, "weakref.ref[Using]"] = {}
_closed: List[Tuple[Callable[[c.c_void_p], Any], c.c_void_p]] = []
_lock = threading.RLock()  # the collector may close a handle at any allocation


class Using:
    """A call that uses handles. It frees those that were closed meanwhile if no other uses them.

    An exception of a signal's handler can leave it anywhere. It then ends with its last reference."""

    def __init__(self, pointers: Iterable[c.c_void_p]) -> None:
        self._pointers: List[c.c_void_p] = list(pointers)

    def __enter__(self) -> None:
        with _lock:
            _calls[id(self)] = weakref.ref(self)

    def __exit__(self, *_: object) -> None:
        ended: List[Tuple[Callable[[c.c_void_p], Any], c.c_void_p]] = []
        with _lock:
            self._pointers.clear()
            _calls.pop(id(self), None)
            if _closed:
                used = _used()
                ended = [one for one in _closed if id(one[1]) not in used]
                for one in ended:
                    _closed.remove(one)
        for free, pointer in ended:
            free(pointer)


def _used() -> Set[int]:
    """Returns the identities of the pointers in use."""
    used: Set[int] = set()
    for key, call in list(_calls.items()):
        one = call()
        if one is None:
            del _calls[key]
        else:
            used.update(map(id, one._pointers))
    return used


def free_with(free: Callable[[c.c_void_p], Any], pointer: c.c_void_p) -> None:
    """Frees a handle: now, or at the end of the calls that use it."""
    with _lock:
        if id(pointer) in _used():
            _closed.append((free, pointer))
            return
    free(pointer)
