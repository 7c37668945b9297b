"""Identities of states."""
from __future__ import annotations

import ctypes as c
import dataclasses


class CDigests(c.Structure):
    """The struct stet_digests."""
    _fields_ = [("struct_size", c.c_size_t), ("tokens", c.c_char * 40), ("logits", c.c_char * 40),
                ("kv", c.c_char * 40), ("state", c.c_char * 40), ("id", c.c_char * 72)]


@dataclasses.dataclass(frozen=True)
class Digests:
    """A state's digests. `id` identifies the state: equal ids mean equal continuations."""
    tokens: str
    logits: str
    kv: str
    state: str
    id: str

    @classmethod
    def _of(cls, d: CDigests) -> "Digests":
        return cls(*(getattr(d, name).decode() for name in ("tokens", "logits", "kv", "state", "id")))
