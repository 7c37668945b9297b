"""Conversations through a checkpoint's chat template."""
from __future__ import annotations

import ctypes as c
import threading
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Union

from . import _arguments as arguments
from ._library import CText, Error, Handle, P, Raised, call, in_callback, long_call, refuse, sized, taken_text
from ._session import progress_callback
from .generation import CReply, Recorder, Reply, Stream
from .message import CMessage, Message, Messages, c_messages
from .session import Session
from .tokenizer import Tokenizer, c_text


class _CChatOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("variables", CText), ("chat_template", CText), ("now", c.c_int64)]


class _CPromptReport(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("kept", c.c_int64), ("recomputed", c.c_int64), ("added", c.c_int64)]


class PromptReport(NamedTuple):
    """Tokens of a prompt: those that were in the cache and stay; of earlier messages that are processed again, since something before them changed; and of new or changed messages."""
    kept: int
    recomputed: int
    added: int


class _ChatSession(Session):
    """A chat's own session: it belongs to the chat, which it keeps alive."""

    _owner: "Chat"

    @property
    def _at(self) -> c.c_void_p:
        if self._pointer is None or getattr(self, "_owner", None) is not None and self._owner.closed:
            refuse("chat", "one that is open", "one that was closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        """Whether its chat was closed."""
        return self._owner.closed

    def close(self) -> None:
        """Does nothing: the session is its chat's."""


class Chat(Handle):
    """A conversation, which goes on from a fork of a session with the messages that it has. copy.copy() is a fork.

    `variables` are further ones of the template ("tools", ...), `chat_template` is a Jinja source in place of the tokenizer's, `now` the time for a template that asks for it, in seconds since
    1970. Marks in messages are text, unless special_in_text. What is None stays as the session has it."""

    _free = "stet_chat_free"
    _instead = "; session.save() writes it to a file"

    def __init__(self, session: Session, tokenizer: Tokenizer, variables: Union[str, Mapping[str, Any], None] = None, chat_template: Optional[str] = None, now: int = 0,
                 special_in_text: bool = False) -> None:
        super().__init__()
        more = b"" if variables is None else arguments.json_text(variables, "variables")
        template = b"" if chat_template is None else arguments.text(chat_template, "chat_template")
        options = sized(_CChatOptions(flags=1 if special_in_text else 0, variables=c_text(more), chat_template=c_text(template), now=arguments.integer(now, "now")))
        with session._turn():
            call("stet_chat_new", session._at, tokenizer._at, c.byref(options), c.byref(self._at))
        self._begin(session, tokenizer)

    def _begin(self, session: Session, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = session.model, tokenizer
        self._raised, self._callbacks = session._raised, list(session._callbacks)
        self._turn_of_threads = threading.RLock()

    def __repr__(self) -> str:
        return "<stet.Chat, closed>" if self.closed else "<stet.Chat: %d messages%s>" % (len(self.messages), ", the last reply open" if self.is_open else "")

    def __copy__(self) -> "Chat":
        return self.fork()

    def _long_call(self, function: str, *arguments: Any) -> None:
        if in_callback():
            call(function, self._at, *arguments)
            return
        with self._turn_of_threads:
            self._raised.errors.clear()
            try:
                long_call(function, self._at, *arguments)
            except Error:
                self._raised.raise_first()
                raise

    @property
    def session(self) -> Session:
        """The chat's own session, to be saved, looked at or given other settings. It lives as long as the chat is open."""
        at = c.c_void_p()
        call("stet_chat_session", self._at, c.byref(at))
        session = _ChatSession._adopt(self.model, at)
        assert isinstance(session, _ChatSession)
        session._owner, session._raised, session._callbacks, session._turn_of_threads = self, self._raised, self._callbacks, self._turn_of_threads
        return session

    def fork(self) -> "Chat":
        """A second conversation, which shares every full block."""
        fork = Chat.__new__(Chat)
        Handle.__init__(fork)
        self._long_call("stet_chat_fork", c.byref(fork._at))
        fork._begin(self.session, self.tokenizer)
        return fork

    # ---- prompts

    @property
    def messages(self) -> List[Message]:
        """What was said, in order."""
        count, found = c.c_size_t(), []
        with self._turn_of_threads:
            call("stet_chat_message_count", self._at, c.byref(count))
            for index in range(count.value):
                m = CMessage()
                call("stet_chat_message", self._at, arguments.size(index), c.byref(m))
                found.append(Message._of(m))
        return found

    def say(self, text: str) -> PromptReport:
        """One more message of the user, and the beginning of a reply."""
        data, report = arguments.text(text, "text"), sized(_CPromptReport())
        self._long_call("stet_chat_say", data, arguments.size(len(data)), c.byref(report))
        return PromptReport(report.kept, report.recomputed, report.added)

    def prompt(self, messages: Messages, progress: Optional[Callable[[int], None]] = None) -> PromptReport:
        """Makes messages what the chat holds, and begins a reply. What is in the cache stays, up to the first token that differs. `progress` is told how many tokens are done.

        Messages are dicts with "role" and "content", or Messages: replies of the model are best given as `messages` has them, whose tokens are kept."""
        all, _held = c_messages(messages)
        report, told = sized(_CPromptReport()), progress_callback(progress, self._raised)
        self._long_call("stet_chat_prompt", all, arguments.size(len(all)), told, None, c.byref(report))
        return PromptReport(report.kept, report.recomputed, report.added)

    def plan(self, messages: Messages) -> PromptReport:
        """What prompt() would keep, process again and add."""
        all, _held = c_messages(messages)
        report = sized(_CPromptReport())
        self._long_call("stet_chat_plan", all, arguments.size(len(all)), c.byref(report))
        return PromptReport(report.kept, report.recomputed, report.added)

    def set_system(self, text: str) -> None:
        """Puts, changes or (with "") removes the system message, for the next prompt."""
        data = arguments.text(text, "text")
        self._long_call("stet_chat_set_system", data, arguments.size(len(data)))

    # ---- replies

    def reply(self, max_tokens: int = 256, ignore_eos: bool = False, on_text: Optional[Callable[[str], Optional[bool]]] = None, log_probabilities: bool = False) -> Reply:
        """Draws a reply, or goes on with one that was cut; as Session.generate()."""
        with self._turn_of_threads:
            recorder, at = Recorder(max_tokens, ignore_eos, log_probabilities, on_text, self._raised), P(CReply)()
            self._long_call("stet_chat_reply", c.byref(recorder.options), c.byref(at))
            reply = recorder.reply(at)
            self._raised.raise_first()
            return reply

    def stream(self, max_tokens: int = 256, ignore_eos: bool = False) -> Stream:
        """The reply token by token, as Session.stream()."""
        return Stream(lambda: self.reply(1, ignore_eos, log_probabilities=True), max_tokens)

    def ask(self, text: str, max_tokens: int = 256) -> str:
        """Says something and returns the text of the reply."""
        self.say(text)
        return self.reply(max_tokens).text

    @property
    def is_open(self) -> bool:
        """Whether the last reply was cut and can go on."""
        open = c.c_int32()
        call("stet_chat_is_open", self._at, c.byref(open))
        return bool(open.value)

    def end_reply(self) -> str:
        """Closes a reply that was cut. Returns the end of its text that was held back."""
        text, size = c.c_void_p(), c.c_size_t()
        self._long_call("stet_chat_close", c.byref(text), c.byref(size))
        return taken_text(text, size)

    def rewind(self, turns: int = 1) -> None:
        """Forgets the last `turns` messages of the user and all that followed each."""
        self._long_call("stet_chat_rewind", c.c_int64(arguments.integer(turns, "turns")))

    def retry(self) -> None:
        """Forgets the last reply, so that another can be drawn."""
        self._long_call("stet_chat_retry")
