"""Scoring: log-probabilities of the tokens of texts, of many at once."""
from __future__ import annotations

import ctypes as c
import dataclasses
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _arguments as arguments
from ._library import F64, I32, P, call, refuse, sized, taken_ids
from ._session import SessionBase
from .model import Model
from .tokenizer import _BOS, _NO_BOS, _PLAIN, Tokenizer, _CEncodeOptions

Scored = Union[str, Tuple[str, str], arguments.Ids, Tuple[arguments.Ids, arguments.Ids]]


class _CRequest(c.Structure):
    _fields_ = [("ids", P(c.c_int32)), ("count", c.c_size_t), ("begin", c.c_size_t)]


class _CToken(c.Structure):
    _fields_ = [("log_probability", c.c_double), ("id", c.c_int32), ("best", c.c_int32)]


class _COptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("batch", c.c_size_t)]


_OnScore = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_size_t, P(_CToken), c.c_size_t)
_TOKENS = np.dtype([("log_probability", np.float64), ("id", np.int32), ("best", np.int32)])


@dataclasses.dataclass(frozen=True, eq=False)
class Score:
    """The tokens that were scored, [tokens], each given all before it: `ids`, their log_probabilities (natural logarithms), and `best`, the likeliest token in the place of each. `sum` is of the
    log-probabilities, in order; `greedy`: each token is the likeliest."""
    sum: float
    greedy: bool
    ids: I32
    log_probabilities: F64
    best: I32

    def __repr__(self) -> str:
        return "Score(sum=%r, greedy=%r, <%d tokens>)" % (self.sum, self.greedy, len(self.ids))


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str, bos: Optional[bool] = None, special: bool = True) -> Tuple[I32, int]:
    """The tokens of a context and of a text that goes on from it, and how many of them are the context's, as the lm-evaluation-harness cuts them: white space at the context's end belongs to the
    continuation; of the tokens of both texts put together, as many are the context's as it has alone."""
    first, second = arguments.text(context, "context"), arguments.text(continuation, "continuation")
    if bos and special and first.startswith(tokenizer.special_tokens.get("bos_token", "\0").encode()):
        bos = None  # the same one, where the text has it already
    options = sized(_CEncodeOptions(flags=(0 if bos is None else _BOS if bos else _NO_BOS) | (0 if special else _PLAIN)))
    ids, count, begin = P(c.c_int32)(), c.c_size_t(), c.c_size_t()
    call("stet_tokenizer_encode_pair", tokenizer._at, first, arguments.size(len(first)), second, arguments.size(len(second)), c.byref(options), c.byref(ids), c.byref(count), c.byref(begin))
    return taken_ids(ids, count), begin.value


def score(before: Union[Model, SessionBase], requests: Sequence[Scored], tokenizer: Optional[Tokenizer] = None, *, batch: int = 16, bos: Optional[bool] = None,
          special: bool = True) -> List[Score]:
    """How likely texts are to the model, or behind what a session holds, which stays as it is. A request is one of

        "text"                     scored as a whole, but for the first token where nothing stands before it (rolling)
        ("context", "text")        what follows a context, cut as encode_pair() cuts it
        ids, (ids, ids)            the same of token ids

    `batch` texts are processed together, at most; what several begin with is processed once. Neither changes a bit. `bos` and `special` are those of Tokenizer.encode."""
    if isinstance(before, Model):
        with before.session() as session:
            return score(session, requests, tokenizer, batch=batch, bos=bos, special=special)
    if not isinstance(before, SessionBase):
        refuse("before", "a Model or a Session", type(before).__name__)
    if isinstance(requests, (str, bytes)):
        refuse("requests", "a sequence of them", repr(requests))
    with before._turn():
        first = 0 if len(before) else 1
        if not first and bos is None:
            bos = False
        pairs = [_request(request, "requests[%d]" % i, tokenizer, bos, special, first) for i, request in enumerate(requests)]
        all = (_CRequest * len(pairs))(*[_CRequest(arguments.pointer(ids, c.c_int32), ids.size, begin) for ids, begin in pairs])
        scores: List[Optional[Score]] = [None] * len(pairs)

        def on_score(_: object, index: int, tokens: Any, count: int) -> None:
            rows = np.frombuffer(c.string_at(tokens, count * c.sizeof(_CToken)), _TOKENS) if count else np.zeros(0, _TOKENS)
            total = 0.0
            for x in rows["log_probability"].tolist():
                total += x
            scores[index] = Score(total, bool((rows["id"] == rows["best"]).all()), rows["id"].copy(), rows["log_probability"].copy(), rows["best"].copy())

        options = sized(_COptions(batch=arguments.integer(batch, "batch", 1)))
        before._long_call("stet_session_score", all, arguments.size(len(pairs)), c.byref(options), _OnScore(before._raised.guard(on_score)), None)
    return [one for one in scores if one is not None]


def _request(request: Any, name: str, tokenizer: Optional[Tokenizer], bos: Optional[bool], special: bool, first: int) -> Tuple[I32, int]:
    """The ids of a request, and where what is scored begins."""
    pair = isinstance(request, tuple) and len(request) == 2 and not all(isinstance(x, (int, np.integer)) for x in request)
    texts = [x for x in (request if pair else [request]) if isinstance(x, str)]
    if texts and tokenizer is None:
        refuse("tokenizer", "a Tokenizer for texts", "None")
    if isinstance(request, str) and tokenizer is not None:
        ids = tokenizer.encode(request, bos, special)
        return ids, min(first, ids.size)
    if not pair:
        ids = arguments.ids_of(request, name)
        return ids, min(first, ids.size)
    if len(texts) == 2 and tokenizer is not None:
        return encode_pair(tokenizer, texts[0], texts[1], bos, special)
    if texts:
        refuse(name, "two texts, or token ids twice", "one of each")
    context, more = arguments.ids_of(request[0], name + "[0]"), arguments.ids_of(request[1], name + "[1]")
    return np.concatenate([context, more]), context.size
