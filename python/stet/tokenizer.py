"""Tokenizers: conversion between text and ids, and chat templates."""
from __future__ import annotations

import ctypes as c
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import _arguments as arguments
from ._library import I32, CText, Handle, P, Shared, call, lib, refuse, sized, taken_ids, taken_text
from ._locks import HandleLock
from .message import Messages, json_of_messages
from .model import c_files

_BOS, _NO_BOS, _PLAIN, _CONTINUED = 1, 2, 4, 8


class _CRange(c.Structure):
    _fields_ = [("begin", c.c_size_t), ("end", c.c_size_t)]


class _CEncodeOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("plain", P(_CRange)), ("plain_count", c.c_size_t)]


class _CTokenizerInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("fingerprint", c.c_char_p), ("size", c.c_int64), ("bos", c.c_int32),
                ("eos", c.c_int32), ("special_count", c.c_size_t)]


class _CRenderOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("variables", CText), ("now", c.c_int64)]


def c_text(data: bytes) -> CText:
    """Returns a stet_text of bytes, which must outlive it."""
    return CText(c.cast(c.c_char_p(data), c.c_void_p), len(data))


class Tokenizer(Shared):
    """The tokenizer of a checkpoint directory or a .gguf file, immutable. Copying returns the
    same tokenizer.

    `pre` names a pre-tokenizer ("llama-bpe") for a .gguf file whose tokenizer.ggml.pre is
    missing, wrong or unknown to stet.
    """

    _free = "stet_tokenizer_free"
    _instead = "; load its checkpoint there"

    def __init__(self, directory: arguments.Path, pre: Optional[str] = None) -> None:
        super().__init__()
        path = arguments.path(directory, "directory")
        if pre is None:
            call("stet_tokenizer_load", path, c.byref(self._at))
        else:
            call("stet_tokenizer_load_pre", path, arguments.word(pre, "pre"), c.byref(self._at))
        self._from = str(directory)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], name: str = "memory") -> "Tokenizer":
        """Loads a tokenizer from files in memory, name -> bytes. The bytes are not kept. Errors
        use `name` as the directory."""
        tokenizer = cls.__new__(cls)
        Handle.__init__(tokenizer)
        entries, _held = c_files(files)
        call("stet_tokenizer_load_files", entries, arguments.size(len(files)), arguments.word(name, "name"),
             c.byref(tokenizer._at))
        tokenizer._from = name
        return tokenizer

    @classmethod
    def _adopt(cls, at: c.c_void_p, name: str) -> "Tokenizer":
        tokenizer = cls.__new__(cls)
        tokenizer._pointer, tokenizer._from = at, name
        return tokenizer

    def __repr__(self) -> str:
        return (
            "<stet.Tokenizer, closed>"
            if self.closed
            else "<stet.Tokenizer from %r: %d ids>" % (self._from, len(self))
        )

    def _info(self) -> Any:
        info = sized(_CTokenizerInfo())
        call("stet_tokenizer_get_info", self._at, c.byref(info))
        return info

    def __len__(self) -> int:
        return int(self._info().size)

    @property
    def fingerprint(self) -> str:
        """Digest of the vocabulary, merges, special tokens and template."""
        return str(self._info().fingerprint.decode())

    @property
    def bos(self) -> Optional[int]:
        """Id of the token that begins a text, or None."""
        id = self._info().bos
        return None if id < 0 else int(id)

    @property
    def eos(self) -> Optional[int]:
        """Id of the token that ends a text, or None."""
        id = self._info().eos
        return None if id < 0 else int(id)

    @property
    def special_tokens(self) -> Dict[str, str]:
        """Named special tokens as templates see them: "bos_token" -> "<bos>"."""
        found = {}
        for index in range(self._info().special_count):
            name, text = CText(), CText()
            call("stet_tokenizer_special_token", self._at, arguments.size(index), c.byref(name), c.byref(text))
            found[str(name)] = str(text)
        return found

    def chat_template(self, name: str = "") -> str:
        """Returns the Jinja source of the chat template, or of the one with this name
        ("tool_use"). "" means that there is none."""
        source = CText()
        call("stet_tokenizer_chat_template", self._at, arguments.word(name, "name") or None, c.byref(source))
        return str(source)

    def encode(self, text: str, bos: Optional[bool] = None, special: bool = True, continued: bool = False) -> I32:
        """Returns token ids, [tokens].

        `bos` True puts bos first, and False leaves it out. None follows the checkpoint, without a
        second bos if the text begins with one. With `special` False, special tokens spelled in the
        text ("<eos>") are plain text; use it for untrusted text. With `continued`, the text continues another
        one and gets no leading space."""
        return self._encode(arguments.text(text, "text"), bos, special, continued, ())

    def _encode(self, data: bytes, bos: Optional[bool], special: bool, continued: bool,
                plain: Iterable[Tuple[int, int]]) -> I32:
        special, continued = arguments.flag(special, "special"), arguments.flag(continued, "continued")
        if bos is not None and not isinstance(bos, bool):
            refuse("bos", "True, False or None", repr(bos))
        if bos and self.bos is not None:  # the text begins with bos already
            written = self.special_tokens.get("bos_token", "").encode()
            if special and written and data.startswith(written):
                bos = None
        flags = (
            (0 if bos is None else _BOS if bos else _NO_BOS)
            | (0 if special else _PLAIN)
            | (_CONTINUED if continued else 0)
        )
        ranges = [_CRange(begin, end) for begin, end in plain]
        options = sized(_CEncodeOptions(flags=flags, plain=(_CRange * len(ranges))(*ranges), plain_count=len(ranges)))
        ids, count = P(c.c_int32)(), c.c_size_t()
        call("stet_tokenizer_encode", self._at, data, arguments.size(len(data)), c.byref(options), c.byref(ids),
             c.byref(count))
        return taken_ids(ids, count)

    def decode(self, ids: arguments.Ids, skip_special: bool = False) -> str:
        """Returns the text of tokens. It is valid Unicode for any ids."""
        array, out, size = arguments.ids_of(ids), c.c_void_p(), c.c_size_t()
        call("stet_tokenizer_decode", self._at, arguments.pointer(array, c.c_int32), arguments.size(array.size),
             c.c_int32(arguments.flag(skip_special, "skip_special")), c.byref(out), c.byref(size))
        return taken_text(out, size)

    def id(self, piece: str) -> int:
        """Returns the id of a token as spelled in the vocabulary, or -1."""
        data, id = arguments.text(piece, "piece"), c.c_int32()
        call("stet_tokenizer_id", self._at, data, arguments.size(len(data)), c.byref(id))
        return id.value

    def piece(self, id: int) -> str:
        """Returns a token as spelled in the vocabulary, or "" for an unused id."""
        out, size = c.c_void_p(), c.c_size_t()
        call("stet_tokenizer_piece", self._at, c.c_int32(arguments.integer(id, "id", -1 << 31, (1 << 31) - 1)),
             c.byref(out), c.byref(size))
        return taken_text(out, size)

    def is_special(self, id: int) -> bool:
        """Returns True if decoding can omit this token."""
        special = c.c_int32()
        call("stet_tokenizer_is_special", self._at, c.c_int32(arguments.integer(id, "id", -1 << 31, (1 << 31) - 1)),
             c.byref(special))
        return bool(special.value)

    def apply_chat_template(self, messages: Messages, add_generation_prompt: bool = True,
                            variables: Optional[Mapping[str, Any]] = None, now: int = 0,
                            template: Optional[str] = None) -> I32:
        """Returns the token ids of a whole conversation in the chat template's form. Special
        tokens that the template spells are encoded as such, those spelled inside messages stay
        text, and there is one bos.

        `messages` are dicts with "role" and "content", whose other members go to the template, or
        Message objects. `variables` are further variables of the template ("tools", ...).
        `template` is a Jinja source that replaces the tokenizer's."""
        with ChatTemplate(self, template) as t:
            rendered = t.render(messages, add_generation_prompt, variables, now)
        data = rendered.text.encode()
        return self._encode(data, None, True, False, rendered.plain)


class Rendered(NamedTuple):
    """The text of a prompt, and the ranges begin .. end - 1 of its UTF-8 bytes that came from
    messages. Special tokens spelled in them are text."""
    text: str
    plain: List[Tuple[int, int]]


class ChatTemplate(Shared):
    """A template that renders messages as a prompt: the tokenizer's own, or a Jinja source for
    the same special tokens."""

    _free = "stet_chat_template_free"

    def __init__(self, tokenizer: Tokenizer, source: Optional[str] = None) -> None:
        super().__init__()
        data = None if source is None else arguments.text(source, "source")
        of = arguments.handle(tokenizer, "Tokenizer", "tokenizer")
        call("stet_chat_template_new", of, data, arguments.size(len(data or b"")), c.byref(self._at))

    def render(self, messages: Messages, add_generation_prompt: bool = True,
               variables: Union[str, Mapping[str, Any], None] = None, now: int = 0) -> Rendered:
        """Renders messages. With add_generation_prompt the text ends where the model's reply
        begins. `now` is the time for templates that ask for it, in seconds since 1970."""
        data = json_of_messages(messages)
        more = b"" if variables is None else arguments.json_text(variables, "variables")
        options = sized(
            _CRenderOptions(flags=arguments.flag(add_generation_prompt, "add_generation_prompt"),
                            variables=c_text(more),
                            now=arguments.integer(now, "now")))
        out, size, plain, count = c.c_void_p(), c.c_size_t(), P(_CRange)(), c.c_size_t()
        call("stet_chat_template_render", self._at, data, arguments.size(len(data)), c.byref(options), c.byref(out),
             c.byref(size), c.byref(plain), c.byref(count))
        ranges = [(plain[i].begin, plain[i].end) for i in range(count.value)]
        lib.stet_free(c.cast(plain, c.c_void_p))
        return Rendered(taken_text(out, size), ranges)


class TextStream(Handle):
    """Decodes tokens one by one. Bytes of an incomplete character wait for the next token. A copy
    is independent."""

    _free = "stet_text_stream_free"
    _instead = "; state() is what can be kept"

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        super().__init__()
        of = arguments.handle(tokenizer, "Tokenizer", "tokenizer")
        self._tokenizer, self._skip = tokenizer, arguments.flag(skip_special, "skip_special")
        self._lock = HandleLock("stream")
        call("stet_text_stream_new", of, c.c_int32(self._skip), c.byref(self._at))

    def push(self, id: int) -> str:
        """Adds a token. Returns the text that it completes, often ""."""
        text, one = CText(), c.c_int32(arguments.integer(id, "id", -1 << 31, (1 << 31) - 1))
        with self._lock():
            call("stet_text_stream_push", self._at, one, c.byref(text))
            return str(text)

    def finish(self) -> str:
        """Returns the remaining text and resets the stream."""
        text = CText()
        with self._lock():
            call("stet_text_stream_finish", self._at, c.byref(text))
            return str(text)

    def state(self) -> bytes:
        """Returns the stream's whole state."""
        data, size = c.c_void_p(), c.c_size_t()
        with self._lock():
            call("stet_text_stream_save", self._at, c.byref(data), c.byref(size))
        kept = c.string_at(data, size.value)
        lib.stet_free(data)
        return kept

    def restore(self, state: bytes) -> None:
        """Restores a state that state() returned."""
        if not isinstance(state, bytes):
            refuse("state", "bytes", "a %s" % type(state).__name__)
        with self._lock():
            call("stet_text_stream_restore", self._at, state, arguments.size(len(state)))

    def __copy__(self) -> "TextStream":
        copy = TextStream(self._tokenizer, self._skip)
        copy.restore(self.state())
        return copy
