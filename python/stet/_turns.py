"""Turns of threads at handles that the library allows one thread at a time."""
from __future__ import annotations

import threading

from ._library import refuse


class Turn:
    """A lock for `with`. Other threads wait for it. A callback of the call that holds it is refused,
    because it would wait for itself."""

    def __init__(self, name: str) -> None:
        self._name, self._lock, self._owner = name, threading.Lock(), 0

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            refuse(self._name, "a call after the running one has returned", "a call from its callback")
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = 0
        self._lock.release()
