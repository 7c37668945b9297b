"""Exceptions of signals' handlers, at each place where Python runs a handler, leave nothing locked."""
import itertools
import signal
import sys
import threading

import common
import numpy as np
import stet
import stet._calls as library
import stet._uses as uses


class Signal(Exception):
    """Raised by the handler."""


def interrupted(call, at):
    """Runs the call. Raises a Signal at the place of this number, or returns False if there are fewer. A
    place is the begin of a function or the end of one in C."""
    left = at

    def handler(frame, event, argument):
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise Signal

    try:
        sys.setprofile(handler)
        call()
    except Signal:
        pass
    finally:
        sys.setprofile(None)
    return left < 0


class Interrupted(common.Case):
    def everywhere(self, call, *handles, before=lambda: None):
        """Interrupts the call, which follows before(), at each place in turn. Another thread can use the
        handles afterwards."""
        locks = [h._lock_of_threads if hasattr(h, "_lock_of_threads") else h._lock._lock for h in handles]
        hook, unraisable = sys.unraisablehook, []
        sys.unraisablehook = quiet = unraisable.append  # a finalizer drops the exception
        self.addCleanup(setattr, sys, "unraisablehook", hook)
        for at in itertools.count():
            before()
            reached = interrupted(call, at)
            taken = []
            other = threading.Thread(target=lambda: taken.extend(lock.acquire(False) and not lock.release()
                                                                for lock in locks))
            other.start()
            other.join()
            self.assertEqual(taken, [True] * len(locks), "place %d" % at)
            self.assertEqual((uses._used(), uses._closed), (set(), []), "place %d" % at)
            self.assertEqual(library.long_call.__self__._depth, 0)
            self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
            self.assertEqual(sys.unraisablehook, quiet)
            if not reached:
                break
        self.assertGreater(at, 9)

    def setUp(self):
        self.small = stet.Model(common.tiny("llama31-tiny"))
        self.begun = self.started()

    def started(self):
        s = self.small.session(capacity=256)
        s.append([1, 2, 3])
        return s

    def test_a_reply_with_a_speculator(self):
        s, speculator = self.begun, stet.Speculator()
        self.everywhere(lambda: s.generate(max_tokens=1, speculator=speculator), s, speculator,
                        before=lambda: s.rewind(2))

    def test_a_reply_of_a_chat(self):
        chat, speculator = stet.Chat(self.model.session(capacity=2048), self.tokenizer), stet.Speculator()
        chat.say("Let a = 3.")
        self.everywhere(lambda: chat.reply(1, True, speculator=speculator), chat, speculator)

    def test_batches(self):
        s, other, speculators = self.begun, self.started(), [stet.Speculator() for _ in range(2)]
        rows = [stet.Row(s, speculator=speculators[0]), stet.Row(other, speculator=speculators[1])]

        def everywhere(call):
            self.everywhere(call, s, other, *speculators, before=lambda: (s.rewind(2), other.rewind(3)))

        everywhere(lambda: stet.generate_batch(rows, max_tokens=1))
        everywhere(lambda: stet.append_batch([(s, [1]), (other, [2])]))
        everywhere(lambda: s.difference(other))

    def test_handles_without_a_session(self):
        sampler, logits = stet.Sampler(32), np.zeros(32, np.float32)
        self.everywhere(lambda: sampler.sample(logits, stet.Sampling(), 0), sampler)
        self.everywhere(lambda: sampler.probabilities(logits, stet.Sampling()), sampler)
        self.everywhere(lambda: sampler.set_drawn([1, 2]), sampler)
        stream = stet.TextStream(self.tokenizer)
        self.everywhere(lambda: stream.push(9), stream)
        self.everywhere(lambda: stream.restore(stream.state()), stream)
        self.everywhere(lambda: stream.finish(), stream)

    def test_traces(self):
        trace = stet.Trace(self.begun, [4, 5])
        change = stet.Intervention("blocks.1.hook_resid_post", "zero")
        self.everywhere(lambda: trace.run([change]), trace)
        self.everywhere(lambda: trace.run([stet.TraceRun([change])]), trace)

    def test_a_callback_is_refused_and_others_wait(self):
        s, speculator, refused = self.session(3), stet.Speculator(), []

        def again(text):
            try:
                self.started().generate(max_tokens=1, speculator=speculator)
            except stet.ArgumentError as error:
                refused.append(error.field)

        s.generate(self.tokenizer, max_tokens=4, on_text=again, speculator=speculator, ignore_eos=True)
        self.assertEqual(set(refused), {"speculator"})

    def test_many_locks(self):
        count, held = 3000, []
        lock = threading.RLock()
        self.assertEqual(stet._locks.with_locks([lock] * count, lambda: held.append(lock._is_owned()) or 7), 7)
        self.assertEqual((held, lock._is_owned()), ([True], False))


if __name__ == "__main__":
    common.main()
