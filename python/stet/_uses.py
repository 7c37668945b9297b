"""Handles that calls use now. A callback or another thread may close one of them, which then lives on
until these calls end."""
from __future__ import annotations

import ctypes as c
import threading
from typing import Any, Callable, Dict, Iterable, List, Tuple

# Calls that use a handle, and the handles closed meanwhile, by the identity of the pointer's object.
_calls: Dict[int, int] = {}
_closed: Dict[int, Tuple[Callable[[c.c_void_p], Any], c.c_void_p]] = {}
_lock = threading.RLock()  # the collector may close a handle at any allocation


class Using:
    """A call that uses handles. It frees those that were closed meanwhile if no other uses them."""

    def __init__(self, pointers: Iterable[c.c_void_p]) -> None:
        self._pointers: List[c.c_void_p] = list(pointers)

    def __enter__(self) -> None:
        with _lock:
            for pointer in self._pointers:
                _calls[id(pointer)] = _calls.get(id(pointer), 0) + 1

    def __exit__(self, *_: object) -> None:
        ended = []
        with _lock:
            for pointer in self._pointers:
                _calls[id(pointer)] -= 1
                if _calls[id(pointer)] == 0:
                    del _calls[id(pointer)]
                    if id(pointer) in _closed:
                        ended.append(_closed.pop(id(pointer)))
        for free, pointer in ended:
            free(pointer)


def free_with(free: Callable[[c.c_void_p], Any], pointer: c.c_void_p) -> None:
    """Frees a handle: now, or at the end of the calls that use it."""
    with _lock:
        if id(pointer) in _calls:
            _closed[id(pointer)] = free, pointer
            return
    free(pointer)
