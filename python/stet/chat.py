"""Conversations through a checkpoint's chat template."""
from __future__ import annotations

import ctypes as c
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Union

from . import _arguments as arguments
from ._calls import Before, Call, Caller
from ._library import CText, P, call, refuse, sized, taken_text
from ._session import progress_callback
from .generation import CReply, Recorder, Reply, Speculator, Stream
from .message import CMessage, Message, Messages, c_messages
from .session import Session
from .tokenizer import Tokenizer, c_text


class _CChatOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("variables", CText), ("chat_template", CText),
                ("now", c.c_int64)]


class _CPromptReport(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("kept", c.c_int64), ("recomputed", c.c_int64), ("added", c.c_int64)]


class PromptReport(NamedTuple):
    """Numbers of a prompt's tokens: kept in the cache; recomputed, of unchanged messages after a
    change; and added, of new or changed messages."""
    kept: int
    recomputed: int
    added: int


class _ChatSession(Session):
    """The session of a chat. It keeps the chat alive."""

    _owner: "Chat"

    @property
    def _at(self) -> c.c_void_p:
        if self._pointer is None or getattr(self, "_owner", None) is not None and self._owner.closed:
            refuse("chat", "one that is open", "one that was closed")
        if getattr(self, "_owner", None) is not None:  # whose session is another one if its state was restored
            call("stet_chat_session", self._owner._at, c.byref(self._pointer))
        return self._pointer

    def _handles(self) -> List[c.c_void_p]:
        return [self._owner._at, self._at]

    def _before(self) -> Before:
        return self._owner._before()

    @property
    def closed(self) -> bool:
        """True after the chat is closed."""
        return self._owner.closed

    def close(self) -> None:
        """Does nothing, because the chat owns the session."""


class Chat(Caller):
    """A conversation that starts as a fork of a session, with the session's messages. copy.copy()
    is a fork.

    `variables` are further variables of the template ("tools", ...). `chat_template` is a Jinja
    source that replaces the tokenizer's. `now` is the time for templates that ask for it, in
    seconds since 1970. special_in_text says whether special tokens spelled in messages are special;
    a new session has them as text. None keeps the session's own value. For a session that was
    restored from a file of unknown origin, set variables={}, chat_template=tokenizer.chat_template(),
    `now` and special_in_text=False."""

    _free = "stet_chat_free"
    _instead = "; session.save() writes it to a file"

    def __init__(self, session: Session, tokenizer: Tokenizer, variables: Union[str, Mapping[str, Any], None] = None,
                 chat_template: Optional[str] = None, now: Optional[int] = None,
                 special_in_text: Optional[bool] = None) -> None:
        super().__init__()
        more = b"" if variables is None else arguments.json_text(variables, "variables")
        template = b"" if chat_template is None else arguments.text(chat_template, "chat_template")
        of = arguments.handle(session, "Session", "session")
        by = arguments.handle(tokenizer, "Tokenizer", "tokenizer")
        flags = 0 if special_in_text is None else 1 if arguments.flag(special_in_text, "special_in_text") else 2
        options = sized(
            _CChatOptions(flags=flags, variables=c_text(more), chat_template=c_text(template),
                          now=0 if now is None else arguments.integer(now, "now")))
        with session._lock():
            call("stet_chat_new", of, by, c.byref(options), c.byref(self._at))
            self._begin(session, tokenizer)

    def _begin(self, session: Session, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = session.model, tokenizer
        self._make_lock()
        self.session._attach_those_of(session)

    def _before(self) -> Before:
        return Before("chat", self._at)

    def __repr__(self) -> str:
        return "<stet.Chat, closed>" if self.closed else "<stet.Chat: %d messages%s>" % (len(
            self.messages), ", the last reply open" if self.is_open else "")

    def __copy__(self) -> "Chat":
        return self.fork()

    @property
    def session(self) -> Session:
        """The chat's own session, which can be saved, inspected or given other settings. It is
        valid until the chat is closed."""
        at = c.c_void_p()
        call("stet_chat_session", self._at, c.byref(at))
        session = _ChatSession._adopt(self.model, at)
        assert isinstance(session, _ChatSession)
        session._owner, session._callbacks = self, self._callbacks
        session._running, session._lock_of_threads = self._running, self._lock_of_threads
        return session

    def fork(self) -> "Chat":
        """Returns a second conversation with the same state. Both share every full block."""
        fork = Chat.__new__(Chat)
        Caller.__init__(fork)
        with self._lock():
            self._long_call("stet_chat_fork", c.byref(fork._at))
            fork._begin(self.session, self.tokenizer)
        return fork

    # ---- prompts

    @property
    def messages(self) -> List[Message]:
        """Messages of the conversation, in order."""
        count, found = c.c_size_t(), []
        with self._lock():
            call("stet_chat_message_count", self._at, c.byref(count))
            for index in range(count.value):
                m = CMessage()
                call("stet_chat_message", self._at, arguments.size(index), c.byref(m))
                found.append(Message._of(m))
        return found

    def say(self, text: str) -> PromptReport:
        """Adds a message of the user and begins a reply."""
        data, report = arguments.text(text, "text"), sized(_CPromptReport())
        self._long_call("stet_chat_say", data, arguments.size(len(data)), c.byref(report))
        return PromptReport(report.kept, report.recomputed, report.added)

    def prompt(self, messages: Messages, progress: Optional[Callable[[int], None]] = None) -> PromptReport:
        """Sets the conversation to these messages and begins a reply. The cache is kept up to the
        first token that differs. `progress` receives the number of processed tokens.

        `messages` are dicts with "role" and "content", or Message objects. Pass the model's
        replies as they come from `messages`, so that they keep their tokens. A reply whose content
        you change must have drawn=False."""
        all, _held = c_messages(messages)
        report, of = sized(_CPromptReport()), Call()
        told = progress_callback(progress, of)
        self._long_call("stet_chat_prompt", all, arguments.size(len(all)), told, None, c.byref(report), of=of)
        return PromptReport(report.kept, report.recomputed, report.added)

    def plan(self, messages: Messages) -> PromptReport:
        """Returns the numbers of tokens that prompt() would keep, recompute and add."""
        all, _held = c_messages(messages)
        report = sized(_CPromptReport())
        self._long_call("stet_chat_plan", all, arguments.size(len(all)), c.byref(report))
        return PromptReport(report.kept, report.recomputed, report.added)

    def set_system(self, text: str) -> None:
        """Sets, changes or (with "") removes the system message. Takes effect at the next prompt."""
        data = arguments.text(text, "text")
        self._long_call("stet_chat_set_system", data, arguments.size(len(data)))

    # ---- replies

    def reply(self, max_tokens: int = 256, ignore_eos: bool = False,
              on_text: Optional[Callable[[str], Optional[bool]]] = None, log_probabilities: bool = False,
              speculator: Optional[Speculator] = None) -> Reply:
        """Draws a reply, or continues one that was cut. See Session.generate()."""
        with self._lock():
            of, at = Call(), P(CReply)()
            recorder = Recorder(max_tokens, ignore_eos, log_probabilities, on_text, of, speculator)
            reply = recorder.run(
                lambda: self._long_call("stet_chat_reply", c.byref(recorder.options), c.byref(at), of=of), at)
            of.raise_first()
            return reply

    def stream(self, max_tokens: int = 256, ignore_eos: bool = False) -> Stream:
        """Returns the reply token by token. See Session.stream()."""
        arguments.flag(ignore_eos, "ignore_eos")
        return Stream(lambda: self.reply(1, ignore_eos, log_probabilities=True), max_tokens)

    def ask(self, text: str, max_tokens: int = 256) -> str:
        """Says a text and returns the text of the reply."""
        with self._lock():
            self.say(text)
            return self.reply(max_tokens).text

    @property
    def is_open(self) -> bool:
        """True if the last reply was cut and can continue."""
        open = c.c_int32()
        call("stet_chat_is_open", self._at, c.byref(open))
        return bool(open.value)

    def end_reply(self) -> str:
        """Closes a reply that was cut. Returns the end of its text that was held back."""
        text, size = c.c_void_p(), c.c_size_t()
        self._long_call("stet_chat_close", c.byref(text), c.byref(size))
        return taken_text(text, size)

    def rewind(self, turns: int = 1) -> None:
        """Removes the last `turns` messages of the user, and everything after each."""
        self._long_call("stet_chat_rewind", c.c_int64(arguments.integer(turns, "turns")))

    def retry(self) -> None:
        """Removes the last reply, so that another one can be drawn."""
        self._long_call("stet_chat_retry")
