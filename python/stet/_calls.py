"""Calls that may take long: their callbacks, exceptions, and signals that arrive meanwhile."""
from __future__ import annotations

import ctypes as c
import signal
import sys
import threading
from typing import Any, Callable, ContextManager, Generator, List, Optional, Sequence, Tuple

from ._library import Error, Handle, call, free_after_use, lib
from ._locks import NO_LOCK
from ._uses import Using

_Interrupt = c.CFUNCTYPE(c.c_int32, c.c_void_p)
lib.stet_set_interrupt.argtypes, lib.stet_set_interrupt.restype = [_Interrupt, c.c_void_p], None


class _Held(threading.local):
    """The locks that the callback running on this thread need not take: its call holds them."""
    locks: Tuple[Any, ...] = ()


_held = _Held()


def lock_unless_held(lock: Any) -> ContextManager[Any]:
    """Returns the lock, or nothing to wait for if a callback of a call that holds it runs on this
    thread. That may be another thread than the one that made the call."""
    free: ContextManager[Any] = NO_LOCK if any(held is lock for held in _held.locks) else lock
    return free


class _Lost(List[Any]):
    """The arguments of sys.unraisablehook during a call, in order. Its append is the hook: a signal's
    handler cannot run in it."""
    hook: Any = None  # the one before


_MARK = "<function callback of stet"  # begins what Python prints for guarded functions


class Call:
    """One call of the library: the locks that it holds, and the exceptions of its callbacks.

    A signal's handler can run, and raise, at the first bytecode of a callback. The callback then has
    not started, and ctypes passes the exception to sys.unraisablehook. Such exceptions are lost ones."""

    def __init__(self) -> None:
        self.locks: Tuple[Any, ...] = ()
        self.errors: List[BaseException] = []
        self.caught = _Lost()

    def lost(self, changes: bool = False) -> List[BaseException]:
        """Returns the lost exceptions, or those of functions that change activations."""
        mark = _MARK + " that changes" if changes else _MARK
        # Some releases of Python give the function, others name it in the message.
        return [x.exc_value for x in self.caught if mark in "%s %r" % (x.err_msg, x.object)]

    def guard(self, function: Callable[..., Optional[int]]) -> Callable[..., int]:
        """Wraps the function as a callback of this call for C. An exception in it is kept and
        cancels the call."""
        running = Running()
        running.call = self
        return running.guard(function)

    def raise_first(self) -> None:
        """Raises the first exception that was kept or lost, if there is one."""
        first = (self.errors + self.lost())[:1]
        self.errors.clear()
        if first:
            raise first[0] from None

    def raise_lost(self) -> None:
        """Raises the first lost exception, if there is one."""
        for error in self.lost():
            raise error from None


class Running:
    """The call that a session is in. Functions attached to the session are callbacks of this call,
    whichever thread computes."""

    def __init__(self) -> None:
        self.call: Optional[Call] = None

    def guard(self, function: Callable[..., Optional[int]], what: str = "") -> Callable[..., int]:
        """Wraps the function as a callback for C of the call that runs at the time."""

        def guarded(*arguments: Any) -> int:
            call, before = self.call or Call(), _held.locks
            try:
                _held.locks = before + call.locks
                return 1 if call.caught and call.lost() else function(*arguments) or 0
            except BaseException as error:
                call.errors.append(error)
                return 1
            finally:
                _held.locks = before

        guarded.__qualname__ = _MARK[len("<function "):] + what
        return guarded


_SIGNALS = sorted(signal.valid_signals())
_handler_of = getattr(signal.getsignal, "__wrapped__", signal.getsignal)  # without its slow search for names


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
        self._of = Call()
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
                    answer = 1 if self._pressed or self._of.caught and self._of.lost() else 0
            except GeneratorExit:
                raise
            except BaseException as error:
                # Drops this frame from the traceback, because clearing it would end the generator.
                trace = error.__traceback__
                self._raised.append(error.with_traceback(trace.tb_next if trace is not None else None))
                answer = 1

    def _note(self, number: int, frame: object) -> None:
        self._pressed = True

    def may_raise(self) -> bool:
        """Returns True if a signal's handler may raise an exception in the present thread."""
        if threading.current_thread() is not threading.main_thread():
            return False
        return any(callable(handler) and handler not in (signal.default_int_handler, self._note)
                   for handler in map(_handler_of, _SIGNALS))

    def call(self, name: str, *arguments: Any, of: Optional[Call] = None) -> None:
        """Calls a function that may take long, and lets signals interrupt it. Raises like call(), and
        leaves exceptions of callbacks to the Call."""
        if threading.current_thread() is not threading.main_thread():
            return call(name, *arguments)
        if not self._set:
            lib.stet_set_interrupt(self._ask, None)
            self._set = True
        one, outer, depth, hook = of or Call(), self._of, self._depth, sys.unraisablehook
        left = getattr(hook, "__self__", None)
        if depth == 0 and isinstance(left, _Lost):
            hook = left.hook  # an exception kept the last call from restoring it
        one.caught.hook = hook
        ours = depth == 0 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ended = False

        def end() -> None:
            nonlocal ended
            self._of, self._depth = outer, depth
            if sys.unraisablehook == one.caught.append:
                sys.unraisablehook = hook
            self._raised.clear()
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            ended = True

        try:
            try:
                self._of, self._depth = one, depth + 1
                sys.unraisablehook = one.caught.append
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
                end()
        finally:
            if not ended:  # an exception of a handler left it
                end()
            if ours and self._pressed:  # too late to end the call
                self._pressed = False
                signal.raise_signal(signal.SIGINT)
            for other in [x for x in one.caught if _MARK not in "%s %r" % (x.err_msg, x.object)]:
                hook(other)


_interrupts = _Interrupts()
long_call = _interrupts.call


class Before:
    """A fork of a session or chat, made before a call, whose state it can restore."""

    def __init__(self, kind: str, at: c.c_void_p) -> None:
        self._kind, self._at, self._fork = kind, at, c.c_void_p()
        call("stet_%s_fork" % kind, at, c.byref(self._fork))

    def restore(self) -> None:
        """Exchanges the two, so that the handle has the state of the fork."""
        self._at.value, self._fork.value = self._fork.value, self._at.value

    def free(self) -> None:
        """Frees the state that is not the handle's."""
        free_after_use("stet_%s_free" % self._kind, self._fork)


class Caller(Handle):
    """A handle whose calls run callbacks. Threads take turns at it."""

    def _make_lock(self) -> None:
        self._callbacks: List[Any] = []  # functions that are attached
        self._running = Running()
        self._lock_of_threads: Any = threading.RLock()

    def _lock(self) -> ContextManager[Any]:
        """Returns the lock between threads."""
        return lock_unless_held(self._lock_of_threads)

    def _handles(self) -> List[c.c_void_p]:
        """Returns the handles that a call uses."""
        return [self._at]

    def _before(self) -> Before:
        """Returns a fork that can restore the present state."""
        return Before("session", self._at)

    def _call(self, function: str, *arguments: Any) -> None:
        with self._lock():
            call(function, self._at, *arguments)

    def _long_call(self, function: str, *arguments: Any, of: Optional[Call] = None) -> None:
        """Calls a function that callbacks and signals can interrupt. Raises their exception here."""
        with self._lock():
            calls_of([self], function, self._at, *arguments, of=of)

    def close(self) -> None:
        """Frees the object, after the calls that use it now. Any later use raises an Error."""
        if not hasattr(self, "_lock_of_threads"):
            super().close()
            return
        with self._lock():
            super().close()
            if self._running.call is None:  # otherwise, one of them may be running
                self._callbacks.clear()


def calls_of(callers: Sequence[Caller], function: str, *arguments: Any, of: Optional[Call] = None) -> None:
    """Calls a function that callbacks of these handles can interrupt, and those of `of`. Raises
    their exception here. If an exception was lost, a function may not have changed what it should
    have. The handles then have the state from before the call."""
    one, before = of or Call(), []
    one.locks = tuple(caller._lock_of_threads for caller in callers)
    outer = [(caller._running, caller._running.call) for caller in callers]
    try:
        for caller in callers:
            caller._running.call = one
        with Using([pointer for caller in callers for pointer in caller._handles()]):
            if any(caller._callbacks for caller in callers) and _interrupts.may_raise():
                before = [caller._before() for caller in callers]
            try:
                long_call(function, *arguments, of=one)
            finally:
                if before and one.lost(changes=True):
                    for state in before:
                        state.restore()
        one.raise_lost()
    except Error:
        one.raise_first()
        raise
    finally:
        for running, last in outer:
            running.call = last
        for state in before:
            state.free()
