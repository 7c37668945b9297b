"""Calls that may take long: their callbacks, exceptions, and signals that arrive meanwhile."""
from __future__ import annotations

import contextlib
import ctypes as c
import signal
import threading
from typing import Any, Callable, ContextManager, Generator, List, Optional, Sequence, Tuple

from ._library import Error, Handle, call, lib
from ._uses import Using

_Interrupt = c.CFUNCTYPE(c.c_int32, c.c_void_p)
lib.stet_set_interrupt.argtypes, lib.stet_set_interrupt.restype = [_Interrupt, c.c_void_p], None


class _Held(threading.local):
    """The locks that the callback running on this thread need not take: its call holds them."""
    locks: Tuple[Any, ...] = ()


_held = _Held()
_NOTHING: ContextManager[None] = contextlib.nullcontext()


def turn_at(lock: Any) -> ContextManager[Any]:
    """Returns the lock, or nothing to wait for if a callback of a call that holds it runs on this
    thread. That may be another thread than the one that made the call."""
    turn: ContextManager[Any] = _NOTHING if any(held is lock for held in _held.locks) else lock
    return turn


class Call:
    """One call of the library: the locks that it holds, and the exceptions of its callbacks."""

    def __init__(self) -> None:
        self.locks: Tuple[Any, ...] = ()
        self.errors: List[BaseException] = []

    def guard(self, function: Callable[..., Optional[int]]) -> Callable[..., int]:
        """Wraps the function as a callback of this call for C. An exception in it is kept and
        cancels the call."""
        running = Running()
        running.call = self
        return running.guard(function)

    def raise_first(self) -> None:
        """Raises the first exception that was kept, if there is one."""
        if self.errors:
            first = self.errors[0]
            self.errors.clear()
            raise first from None


class Running:
    """The call that a session is in. Functions attached to the session are callbacks of this call,
    whichever thread computes."""

    def __init__(self) -> None:
        self.call: Optional[Call] = None

    def guard(self, function: Callable[..., Optional[int]]) -> Callable[..., int]:
        """Wraps the function as a callback for C of the call that runs at the time."""

        def guarded(*arguments: Any) -> int:
            call, before = self.call or Call(), _held.locks
            _held.locks = before + call.locks
            try:
                return function(*arguments) or 0
            except BaseException as error:
                call.errors.append(error)
                return 1
            finally:
                _held.locks = before

        return guarded


class _Interrupts:
    """Runs Python's signal handlers while the main thread is inside a call, and ends the call
    with the exception that a handler raises.

    The library asks every few milliseconds. A handler's exception may appear at any bytecode. At
    a callback's first bytecode ctypes would drop it. The answer therefore comes from a generator,
    which is inside its `try` when it resumes. A keyboard interrupt is only recorded until the
    call has ended."""

    def __init__(self) -> None:
        self._raised: List[BaseException] = []
        self._pressed = False
        self._depth = 0
        answers = self._answers()
        next(answers)
        self._ask = _Interrupt(answers.send)
        self._set = False

    def _answers(self) -> Generator[int, Any, None]:
        answer = 0
        while True:
            try:
                while True:
                    yield answer
                    answer = 1 if self._pressed else 0
            except GeneratorExit:
                raise
            except BaseException as error:
                # Drops this frame from the traceback, because clearing it would end the generator.
                trace = error.__traceback__
                self._raised.append(error.with_traceback(trace.tb_next if trace is not None else None))
                answer = 1

    def _note(self, number: int, frame: object) -> None:
        self._pressed = True

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that may take long, and lets signals interrupt it. Raises like call()."""
        if threading.current_thread() is not threading.main_thread():
            return call(name, *arguments)
        if not self._set:
            lib.stet_set_interrupt(self._ask, None)
            self._set = True
        ours = self._depth == 0 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self._depth += 1
        try:
            if ours:
                self._pressed = False
                signal.signal(signal.SIGINT, self._note)
            call(name, *arguments)
        except Error as error:
            if error.kind == "canceled" and self._raised:
                raise self._raised.pop() from None
            if error.kind == "canceled" and ours and self._pressed:
                self._pressed = False
                raise KeyboardInterrupt from None
            raise
        finally:
            self._depth -= 1
            self._raised.clear()
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                if self._pressed:  # too late to end the call
                    self._pressed = False
                    signal.raise_signal(signal.SIGINT)


long_call = _Interrupts().call


class Caller(Handle):
    """A handle whose calls run callbacks. Threads take turns at it."""

    def _begin_turns(self) -> None:
        self._callbacks: List[Any] = []  # functions that are attached
        self._running = Running()
        self._turn_of_threads: Any = threading.RLock()

    def _turn(self) -> ContextManager[Any]:
        """Returns the lock between threads."""
        return turn_at(self._turn_of_threads)

    def _handles(self) -> List[c.c_void_p]:
        """Returns the handles that a call uses."""
        return [self._at]

    def _call(self, function: str, *arguments: Any) -> None:
        with self._turn():
            call(function, self._at, *arguments)

    def _long_call(self, function: str, *arguments: Any, of: Optional[Call] = None) -> None:
        """Calls a function that callbacks and signals can interrupt. Raises their exception here."""
        with self._turn():
            calls_of([self], function, self._at, *arguments, of=of)

    def close(self) -> None:
        """Frees the object, after the calls that use it now. Any later use raises an Error."""
        if not hasattr(self, "_turn_of_threads"):
            super().close()
            return
        with self._turn():
            super().close()
            if self._running.call is None:  # otherwise, one of them may be running
                self._callbacks.clear()


def calls_of(callers: Sequence[Caller], function: str, *arguments: Any, of: Optional[Call] = None) -> None:
    """Calls a function that callbacks of these handles can interrupt, and those of `of`. Raises
    their exception here."""
    one = of or Call()
    one.locks = tuple(caller._turn_of_threads for caller in callers)
    outer = [(caller._running, caller._running.call) for caller in callers]
    try:
        for caller in callers:
            caller._running.call = one
        with Using([pointer for caller in callers for pointer in caller._handles()]):
            long_call(function, *arguments)
    except Error:
        one.raise_first()
        raise
    finally:
        for running, before in outer:
            running.call = before
