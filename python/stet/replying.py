"""Replies of a session: settings, stops, and replies as a whole or token by token."""
from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence

from . import _arguments as arguments
from ._calls import Call
from ._library import CText, P, copied_ids, sized, taken_text
from ._session import SessionBase, Setting, progress_callback
from .generation import CReply, CSampling, Recorder, Reply, Sampling, Speculator, Stream, settings_of

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class Replying(SessionBase):
    """A session's sampling settings and replies."""

    def append_prompt(self, ids: arguments.Ids, progress: Optional[Callable[[int], None]] = None) -> None:
        """Appends a prompt for a reply. Closes an open reply before it as it is."""
        array = arguments.ids_of(ids)
        if progress is None:
            self._long_call("stet_session_append_prompt", arguments.pointer(array, c.c_int32),
                            arguments.size(array.size))
            return
        of = Call()
        told = progress_callback(progress, of)
        self._long_call("stet_session_append_prompt_watched", arguments.pointer(array, c.c_int32),
                        arguments.size(array.size), told, None, of=of)

    @property
    def sampling(self) -> Sampling:
        """Sampling settings. Assign another Sampling to change them."""
        with self._lock():
            s = sized(CSampling())
            self._call("stet_session_get_sampling", c.byref(s))
            return Sampling._of(s)

    @sampling.setter
    def sampling(self, new: Sampling) -> None:
        settings = settings_of(new)
        self._call("stet_session_set_sampling", c.byref(settings))

    def use_recommended(self) -> None:
        """Sets the sampling and stop ids that the checkpoint recommends. Keeps the seed and the
        stop strings."""
        self._call("stet_session_use_recommended")

    def _stop_ids(self) -> List[int]:
        """Tokens that end a reply. Assign others to change them."""
        with self._lock():
            ids, count = P(c.c_int32)(), c.c_size_t()
            self._call("stet_session_stop_ids", c.byref(ids), c.byref(count))
            return [int(id) for id in copied_ids(ids, count.value)]

    def _set_stop_ids(self, ids: arguments.Ids) -> None:
        array = arguments.ids_of(ids, "stop_ids")
        self._call("stet_session_set_stop_ids", arguments.pointer(array, c.c_int32), arguments.size(array.size))

    stop_ids = Setting(_stop_ids, _set_stop_ids)

    def _stop_strings(self) -> List[str]:
        """Texts that end a reply and are not part of it. Assign others to change them. They need
        a tokenizer."""
        found = []
        with self._lock():
            for index in range(self._info().stop_strings):
                text = CText()
                self._call("stet_session_stop_string", arguments.size(index), c.byref(text))
                found.append(str(text))
        return found

    def _set_stop_strings(self, strings: Sequence[str]) -> None:
        held = [
            arguments.text(s, "stop_strings[%d]" % i)
            for i, s in enumerate(arguments.sequence(strings, "stop_strings", "texts"))
        ]
        texts = (CText * len(held))(*[CText(c.cast(c.c_char_p(data), c.c_void_p), len(data)) for data in held])
        self._call("stet_session_set_stop_strings", texts, arguments.size(len(held)))

    stop_strings = Setting(_stop_strings, _set_stop_strings)

    def generate(self, tokenizer: Optional["Tokenizer"] = None, max_tokens: int = 256, ignore_eos: bool = False,
                 on_text: Optional[Callable[[str], Optional[bool]]] = None, log_probabilities: bool = False,
                 speculator: Optional[Speculator] = None) -> Reply:
        """Draws a reply. A reply that was cut continues at the next call. Without a tokenizer
        `text` is "".

        `on_text` receives text as it becomes final. If it returns False, the reply ends with stop
        "callback". After a KeyboardInterrupt the session keeps the tokens drawn before it.

        A `speculator` can make the reply come sooner. It is the same reply."""
        with self._lock():
            of, at = Call(), P(CReply)()
            recorder = Recorder(max_tokens, ignore_eos, log_probabilities, on_text, of, speculator)
            by = arguments.handle_or_none(tokenizer, "Tokenizer", "tokenizer")
            reply = recorder.run(
                lambda: self._long_call("stet_session_generate", by, c.byref(recorder.options), c.byref(at), of=of), at)
            of.raise_first()  # an exception of the callback that ended the reply
            return reply

    def stream(self, tokenizer: Optional["Tokenizer"] = None, max_tokens: int = 256,
               ignore_eos: bool = False) -> Stream:
        """Returns the reply of generate() token by token, with text and log-probability, for
        `for` and `async for`."""
        arguments.handle_or_none(tokenizer, "Tokenizer", "tokenizer")
        arguments.flag(ignore_eos, "ignore_eos")
        return Stream(lambda: self.generate(tokenizer, 1, ignore_eos, log_probabilities=True), max_tokens)

    def end_reply(self, tokenizer: Optional["Tokenizer"] = None) -> str:
        """Closes an open reply that will not continue. Returns the end of its text that was held
        back."""
        text, size = c.c_void_p(), c.c_size_t()
        self._call("stet_session_end_reply", arguments.handle_or_none(tokenizer, "Tokenizer", "tokenizer"),
                   c.byref(text), c.byref(size))
        return taken_text(text, size)
