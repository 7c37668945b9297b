"""Messages of a conversation in Python and in C."""
from __future__ import annotations

import ctypes as c
import dataclasses
import json
from typing import Any, Dict, Mapping, Sequence, Tuple, Union

from . import _arguments as arguments
from ._library import CText, refuse


class CMessage(c.Structure):
    """The struct stet_message."""
    _fields_ = [("role", CText), ("content", CText), ("fields", CText), ("begin", c.c_int64), ("end", c.c_int64),
                ("drawn", c.c_int32)]


@dataclasses.dataclass(frozen=True)
class Message:
    """A message. `fields` are further members for the template ("tool_calls", ...). It occupies
    begin .. end - 1 in the transcript (0 for a new message). If `drawn`, it is a reply of the
    model and keeps its tokens."""
    role: str
    content: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    begin: int = 0
    end: int = 0
    drawn: bool = False

    @classmethod
    def _of(cls, m: CMessage) -> "Message":
        more = str(m.fields)
        return cls(str(m.role), str(m.content), json.loads(more) if more else {}, m.begin, m.end, bool(m.drawn))


Messages = Sequence[Union[Message, Mapping[str, Any]]]


def message_of(x: Union[Message, Mapping[str, Any]], name: str) -> Message:
    """Returns a Message from a Message, or from a dict with "role" and "content" whose other
    members become `fields`."""
    if isinstance(x, Message):
        return x
    if not isinstance(x, Mapping) or not isinstance(x.get("role"), str):
        refuse(name, "a Message, or a dict with role and content", repr(x))
    more = {key: value for key, value in x.items() if key not in ("role", "content")}
    content = x.get("content")
    if isinstance(content, str):
        return Message(x["role"], content, more)
    if "content" in x:
        more["content"] = content  # parts, or null beside tool calls; the template handles both
    return Message(x["role"], "", more)


def all_messages(messages: Messages) -> Sequence[Message]:
    """Returns all messages as Message objects."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        refuse("messages", "a sequence of messages", repr(messages))
    return [message_of(x, "messages[%d]" % i) for i, x in enumerate(messages)]


def json_of_messages(messages: Messages) -> bytes:
    """Returns the JSON array that a chat template gets."""
    all: Sequence[Dict[str, Any]] = [{"role": m.role, "content": m.content, **m.fields} for m in all_messages(messages)]
    return arguments.json_text(all, "messages")


def c_messages(messages: Messages) -> Tuple[Any, object]:
    """Returns a stet_message[] and the objects that must outlive it."""
    held, made = [], []
    for i, m in enumerate(all_messages(messages)):
        parts = [arguments.text(m.role, "messages[%d].role" % i), arguments.text(m.content, "messages[%d].content" % i),
                 arguments.json_text(dict(m.fields), "messages[%d].fields" % i) if m.fields else b""]
        held.append(parts)
        texts = [CText(c.cast(c.c_char_p(part), c.c_void_p), len(part)) for part in parts]
        made.append(
            CMessage(*texts, arguments.integer(m.begin, "messages[%d].begin" % i),
                     arguments.integer(m.end, "messages[%d].end" % i), int(m.drawn)))
    return (CMessage * len(made))(*made), held
