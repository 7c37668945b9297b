"""Log-probabilities of the tokens of many texts."""
from __future__ import annotations

import ctypes as c
import dataclasses
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _arguments as arguments
from ._calls import Call
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
    """The scores of a text's tokens, [tokens], each given all tokens before it.

    `ids` are the tokens, `log_probabilities` their natural logarithms, and `best` the most likely
    token at each place. `sum` is the sum of the log-probabilities in order. `greedy` is True if
    each token is the most likely one."""
    sum: float
    greedy: bool
    ids: I32
    log_probabilities: F64
    best: I32

    def __repr__(self) -> str:
        return "Score(sum=%r, greedy=%r, <%d tokens>)" % (self.sum, self.greedy, len(self.ids))


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str, bos: Optional[bool] = None,
                special: bool = True) -> Tuple[I32, int]:
    """Returns the tokens of a context with its continuation, and the number of tokens that belong
    to the context, as lm-evaluation-harness splits them. White space at the end of the context
    moves to the continuation. The context then has as many of the joint tokens as it has tokens
    alone."""
    first, second = arguments.text(context, "context"), arguments.text(continuation, "continuation")
    of, special = arguments.handle(tokenizer, "Tokenizer", "tokenizer"), arguments.flag(special, "special")
    if bos is not None and not isinstance(bos, bool):
        refuse("bos", "True, False or None", repr(bos))
    if bos and special and first.startswith(tokenizer.special_tokens.get("bos_token", "\0").encode()):
        bos = None  # the text begins with bos already
    options = sized(
        _CEncodeOptions(flags=(0 if bos is None else _BOS if bos else _NO_BOS) | (0 if special else _PLAIN)))
    ids, count, begin = P(c.c_int32)(), c.c_size_t(), c.c_size_t()
    call("stet_tokenizer_encode_pair", of, first, arguments.size(len(first)), second,
         arguments.size(len(second)), c.byref(options), c.byref(ids), c.byref(count), c.byref(begin))
    return taken_ids(ids, count), begin.value


def score(before: Union[Model, SessionBase], requests: Sequence[Scored], tokenizer: Optional[Tokenizer] = None, *,
          batch: int = 16, bos: Optional[bool] = None, special: bool = True) -> List[Score]:
    """Scores texts after the session's content, or after nothing for a model. The session does
    not change. A request is one of

        "text"                     scored as a whole, except the first token if nothing precedes it (rolling)
        ("context", "text")        the text after a context, split as encode_pair() does
        ids, (ids, ids)            the same with token ids

    At most `batch` texts are processed together, and shared beginnings are processed once.
    Neither changes a bit. `bos` and `special` are those of Tokenizer.encode. Returns a Score for
    each request."""
    if isinstance(before, Model):
        with before.session() as session:
            return score(session, requests, tokenizer, batch=batch, bos=bos, special=special)
    if not isinstance(before, SessionBase):
        refuse("before", "a Model or a Session", type(before).__name__)
    arguments.handle_or_none(tokenizer, "Tokenizer", "tokenizer")
    with before._lock():
        first = 0 if len(before) else 1
        if not first and bos is None:
            bos = False
        pairs = [
            _request(request, "requests[%d]" % i, tokenizer, bos, special, first)
            for i, request in enumerate(arguments.sequence(requests, "requests", "them"))
        ]
        all = (_CRequest * len(pairs))(
            *[_CRequest(arguments.pointer(ids, c.c_int32), ids.size, begin) for ids, begin in pairs]
        )
        scores: List[Optional[Score]] = [None] * len(pairs)
        of = Call()

        def on_score(_: object, index: int, tokens: Any, count: int) -> None:
            rows = (
                np.frombuffer(c.string_at(tokens, count * c.sizeof(_CToken)), _TOKENS)
                if count
                else np.zeros(0, _TOKENS)
            )
            total = 0.0
            for x in rows["log_probability"].tolist():
                total += x
            scores[index] = Score(total, bool((rows["id"] == rows["best"]).all()), rows["id"].copy(),
                                  rows["log_probability"].copy(), rows["best"].copy())

        options = sized(_COptions(batch=arguments.integer(batch, "batch", 1)))
        before._long_call("stet_session_score", all, arguments.size(len(pairs)), c.byref(options),
                          _OnScore(of.guard(on_score)), None, of=of)
    return [one for one in scores if one is not None]


def _request(request: Any, name: str, tokenizer: Optional[Tokenizer], bos: Optional[bool], special: bool,
             first: int) -> Tuple[I32, int]:
    """Returns the ids of a request and the index of the first scored token."""
    pair = isinstance(request,
                      tuple) and len(request) == 2 and not all(isinstance(x, (int, np.integer)) for x in request)
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
