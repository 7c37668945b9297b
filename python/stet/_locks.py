"""Locks of handles that the library allows one thread at a time.

A signal's handler can raise an exception at the begin of every function and after every call. The
`with` statement takes and releases these locks in one step. Python code around a lock, such as a
context manager or an ExitStack, can be left between the two, and would leave the lock taken."""
from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, List, TypeVar

from ._library import refuse

_Result = TypeVar("_Result")
NO_LOCK: ContextManager[None] = nullcontext()


class HandleLock:
    """Makes the lock of a handle. Other threads wait for it. A callback of the call that holds it is
    refused, because the library cannot run both."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock: Any = threading.RLock()

    def __call__(self) -> ContextManager[Any]:
        """Returns the lock, for `with`."""
        if self._lock._is_owned():
            refuse(self._name, "a call after the running one has returned", "a call from its callback")
        lock: ContextManager[Any] = self._lock
        return lock


def with_locks(locks: List[ContextManager[Any]], work: Callable[[], _Result]) -> _Result:
    """Returns the result of work(), which runs with the locks, taken in this order."""
    if not locks:
        return work()
    a, b, c, d, e, f, g, h = (locks + [NO_LOCK] * 7)[:8]  # eight a call, because Python limits their depth
    with a, b, c, d, e, f, g, h:
        return with_locks(locks[8:], work)
