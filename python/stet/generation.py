"""Drawing tokens: settings, whole replies, and replies token by token."""
from __future__ import annotations

import asyncio
import ctypes as c
import dataclasses
import threading
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
)

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from ._calls import Call
from ._library import F32, F64, I32, CText, Handle, P, call, copied_ids, lib, refuse, sized
from ._locks import NO_LOCK, HandleLock
from ._uses import Using

if TYPE_CHECKING:
    from .model import Model

STOPS = {1: "eos", 2: "string", 3: "length", 4: "callback"}


class CTokenBias(c.Structure):
    """The struct stet_token_bias."""
    _fields_ = [("id", c.c_int32), ("bias", c.c_double)]


class CSampling(c.Structure):
    """The struct stet_sampling."""
    _fields_ = [("struct_size", c.c_size_t), ("temperature", c.c_double), ("top_p", c.c_double),
                ("min_p", c.c_double), ("typical_p", c.c_double), ("repetition_penalty", c.c_double),
                ("seed", c.c_uint64), ("top_k", c.c_int32), ("greedy", c.c_int32), ("frequency_penalty", c.c_double),
                ("presence_penalty", c.c_double), ("logit_bias", P(CTokenBias)), ("logit_bias_count", c.c_size_t)]


class CReply(c.Structure):
    """The struct stet_reply."""
    _fields_ = [("ids", P(c.c_int32)), ("id_count", c.c_size_t), ("text", CText), ("stop", c.c_int32),
                ("drafted", c.c_uint64), ("accepted", c.c_uint64)]


OnToken = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32, P(c.c_float), c.c_size_t)
OnText = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.c_size_t)


class CGenerateOptions(c.Structure):
    """The struct stet_generate_options."""
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint64), ("max_tokens", c.c_int64),
                ("context", c.c_void_p), ("on_text", OnText), ("on_token", OnToken), ("speculator", c.c_void_p)]


@dataclasses.dataclass
class Sampling:
    """Sampling settings. Draws depend only on seed and position. The frequency and presence
    penalties count tokens of the current reply. logit_bias maps a token id to a number added to
    its logit."""
    greedy: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def initial(cls) -> "Sampling":
        """Returns the library's settings for a new session."""
        s = sized(CSampling())
        call("stet_sampling_init", c.byref(s))
        return cls._of(s)

    @classmethod
    def _of(cls, s: CSampling) -> "Sampling":
        plain = {
            f.name: getattr(s, f.name) for f in dataclasses.fields(cls) if f.name not in ("greedy", "logit_bias")
        }
        return cls(greedy=bool(s.greedy),
                   logit_bias={s.logit_bias[i].id: s.logit_bias[i].bias for i in range(s.logit_bias_count)}, **plain)

    def _struct(self) -> Any:
        all = arguments.mapping(self.logit_bias, "logit_bias", "a mapping of token ids to numbers")
        pairs = [(arguments.integer(id, "logit_bias", 0, (1 << 31) - 1,
                                    "token ids"), arguments.number(bias, "logit_bias[%s]" % id))
                 for id, bias in all.items()]
        biases = (CTokenBias * len(pairs))(*[CTokenBias(id, bias) for id, bias in pairs])
        floats = {
            name: arguments.number(getattr(self, name), name)
            for name in ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "frequency_penalty",
                         "presence_penalty")
        }
        return sized(
            CSampling(greedy=arguments.flag(self.greedy, "greedy"),
                      seed=arguments.integer(self.seed, "seed", 0, (1 << 64) - 1, "an integer of 64 bits, 0 or more"),
                      top_k=arguments.integer(self.top_k, "top_k", -1 << 31, (1 << 31) - 1), logit_bias=biases,
                      logit_bias_count=len(pairs), **floats))


def settings_of(sampling: Sampling) -> Any:
    """Returns the stet_sampling of a Sampling."""
    if not isinstance(sampling, Sampling):
        refuse("sampling", "a Sampling", repr(sampling))
    return sampling._struct()


@dataclasses.dataclass
class Reply:
    """A reply. `ids` include a stop token; `text` omits special tokens. `stop` is eos, string,
    length or callback.

    log_probabilities, [ids], are those of the drawn tokens under the softmax of the raw logits,
    if they were requested. `captured` maps a point to its rows, [ids, ...], for a batch with
    points. Of `drafted` tokens, which a Speculator gave and passes processed, `accepted` were
    drawn."""
    ids: I32
    text: str
    stop: str
    log_probabilities: Optional[F64] = None
    captured: Dict[str, F32] = dataclasses.field(default_factory=dict)
    drafted: int = 0
    accepted: int = 0


class Token(NamedTuple):
    """A drawn token, the text that it completes (often ""), and the natural logarithm of its
    probability under the softmax of the raw logits."""
    id: int
    text: str
    log_probability: float


def log_probability(logits: npt.ArrayLike, id: int) -> float:
    """Returns the natural logarithm of a token's probability under the softmax of logits,
    [vocab]."""
    array, result = arguments.row(logits, "logits"), c.c_double()
    call("stet_log_probability", arguments.pointer(array, c.c_float), arguments.size(array.size),
         c.c_int32(arguments.integer(id, "id", -1 << 31, (1 << 31) - 1)), c.byref(result))
    return result.value


def log_softmax(logits: npt.ArrayLike) -> F64:
    """Returns the log-softmax along the last axis, in float64."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    result: F64 = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return result


class Recorder:
    """The options of one reply as C structs, and the values that its callbacks record."""

    def __init__(self, max_tokens: int, ignore_eos: bool, log_probabilities: bool,
                 on_text: Optional[Callable[[str], Optional[bool]]], of: Call,
                 speculator: Optional["Speculator"] = None) -> None:
        self.log_probabilities: List[float] = []
        self._record = log_probabilities = arguments.flag(log_probabilities, "log_probabilities")
        arguments.function(on_text, "on_text")
        more: Dict[str, Any] = {}

        def token(_: object, id: int, logits: Any, count: int) -> None:
            result = c.c_double()
            call("stet_log_probability", logits, arguments.size(count), c.c_int32(id), c.byref(result))
            self.log_probabilities.append(result.value)

        def text(_: object, data: int, size: int) -> int:
            said = c.string_at(data, size).decode("utf-8", "replace") if size else ""
            return int(on_text(said) is False) if on_text is not None and said else 0

        if log_probabilities:
            more["on_token"] = OnToken(of.guard(token))
        if on_text is not None:
            more["on_text"] = OnText(of.guard(text))
        self.handles: List[c.c_void_p] = []  # those in the options, which the call uses
        if speculator is not None:
            if not isinstance(speculator, Speculator):
                refuse("speculator", "a Speculator", repr(speculator))
            more["speculator"] = speculator._at
            self.handles.append(speculator._at)
        most = arguments.integer(max_tokens, "max_tokens", 1, (1 << 62))
        flags = arguments.flag(ignore_eos, "ignore_eos")
        self.options = sized(CGenerateOptions(flags=flags, max_tokens=most, **more))
        self.speculator, self._kept = speculator, more

    def lock(self) -> ContextManager[Any]:
        """Returns the lock of the speculator, for `with`."""
        return NO_LOCK if self.speculator is None else self.speculator._lock()

    def run(self, draw: Callable[[], None], at: Any) -> Reply:
        """Runs a call that gives a stet_reply at `at`, and returns the reply. Frees that of a call that
        gave one and raised all the same."""
        with Using(self.handles), self.lock():
            try:
                draw()
            except BaseException:
                if at:
                    self.reply(at)
                raise
        return self.reply(at)

    def reply(self, at: Any) -> Reply:
        """Copies a stet_reply and frees it."""
        r = at.contents
        made = Reply(copied_ids(r.ids, r.id_count), str(r.text), STOPS[r.stop],
                     np.array(self.log_probabilities) if self._record else None, drafted=int(r.drafted),
                     accepted=int(r.accepted))
        lib.stet_reply_free.argtypes = [P(CReply)]
        lib.stet_reply_free(at)
        return made


class Stream(Iterator[Token], AsyncIterator[Token]):
    """Iterates over a reply token by token, with `for`, or with `async for` outside of the event
    loop's thread.

    Between two tokens the session's state is that of a reply cut there, so it can be saved,
    forked or left. `reply` holds the reply so far. Its `stop` is "length" until the end."""

    def __init__(self, step: Callable[[], Reply], max_tokens: int) -> None:
        self._step, self._left = step, arguments.integer(max_tokens, "max_tokens", 1)
        self._ended, self._lock = False, threading.Lock()
        self.reply = Reply(np.zeros(0, np.int32), "", "length", np.zeros(0))

    def __iter__(self) -> "Stream":
        return self

    def __aiter__(self) -> "Stream":
        return self

    def __repr__(self) -> str:
        return "<stet.Stream: %d tokens, %s>" % (self.reply.ids.size, self.reply.stop if self._ended else "going on")

    def __copy__(self) -> "Stream":
        raise TypeError("a Stream cannot be copied: fork its session")

    def __deepcopy__(self, memo: object) -> "Stream":
        return self.__copy__()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Stream cannot be pickled: save its session")

    def _next(self) -> Optional[Token]:
        with self._lock:
            return self._draw()

    def _draw(self) -> Optional[Token]:
        if self._ended or self._left <= 0:
            self._ended = True
            return None
        one, whole = self._step(), self.reply
        ended = one.stop != "length"
        if one.ids.size == 0:  # a full session, or a stop string that was set in between
            self._ended = True
            self.reply = Reply(whole.ids, whole.text + one.text, one.stop, whole.log_probabilities)
            return None
        self._left -= 1
        self._ended = ended
        self.reply = Reply(np.append(whole.ids, one.ids), whole.text + one.text, one.stop,
                           np.append(whole.log_probabilities, one.log_probabilities))  # type: ignore[arg-type]
        assert one.log_probabilities is not None
        return Token(int(one.ids[0]), one.text, float(one.log_probabilities[0]))

    def __next__(self) -> Token:
        token = self._next()
        if token is None:
            raise StopIteration
        return token

    async def __anext__(self) -> Token:
        token = await asyncio.get_running_loop().run_in_executor(None, self._next)
        if token is None:
            raise StopAsyncIteration
        return token


class Speculator(Handle):
    """Drafts the tokens that a reply may have next, so that a pass can process several. Replies and
    states are the same as without; only the time differs.

    Without a model it continues earlier occurrences of the last tokens. `draft` is a smaller model
    of the same vocabulary; its session has `capacity` positions and that many `threads`. Use a
    speculator for one reply at a time: other threads wait, and a batch takes each once."""

    _free = "stet_speculator_free"
    _instead = "; make one there"

    def __init__(self, draft: Optional["Model"] = None, capacity: int = 0, threads: int = 0) -> None:
        super().__init__()
        from ._session import CSessionOptions  # not above: sessions import this module
        for name, value in (("capacity", capacity), ("threads", threads)):
            if draft is None and value != 0:
                refuse(name, "a draft model to apply it to", value)
        options = sized(
            CSessionOptions(capacity=arguments.integer(capacity, "capacity", 0),
                            threads=arguments.integer(threads, "threads", 0, 1 << 31)))
        self._lock = HandleLock("speculator")
        call("stet_speculator_new", arguments.handle_or_none(draft, "Model", "draft"), c.byref(options),
             c.byref(self._at))


class Sampler(Handle):
    """Draws tokens from logits without a session. It keeps the tokens given to set_drawn(), and
    so does a copy."""

    _free = "stet_sampler_free"
    _instead = "; make one there"

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self._vocab_size = arguments.integer(vocab_size, "vocab_size", 1, (1 << 31) - 1)
        self._drawn: I32 = np.zeros(0, np.int32)
        self._lock = HandleLock("sampler")
        call("stet_sampler_new", c.c_int32(self._vocab_size), c.byref(self._at))

    def set_drawn(self, ids: arguments.Ids) -> None:
        """Sets the tokens of the reply so far, which the frequency and presence penalties count."""
        array = arguments.ids_of(ids)
        with self._lock():
            call("stet_sampler_set_drawn", self._at, arguments.pointer(array, c.c_int32), arguments.size(array.size))
            self._drawn = array

    def sample(self, logits: npt.ArrayLike, sampling: Sampling, position: int, previous: arguments.Ids = ()) -> int:
        """Returns the token for a position. `logits`, [vocab], are finite or -inf. The repetition
        penalty applies to `previous`."""
        array, before, id = arguments.row(logits, "logits"), arguments.ids_of(previous, "previous"), c.c_int32()
        settings = settings_of(sampling)
        place = c.c_uint64(arguments.integer(position, "position", 0))
        with self._lock():
            call("stet_sampler_sample", self._at, c.byref(settings), arguments.pointer(array, c.c_float),
                 arguments.size(array.size), arguments.pointer(before, c.c_int32), arguments.size(before.size), place,
                 c.byref(id))
        return id.value

    def probabilities(self, logits: npt.ArrayLike, sampling: Sampling, previous: arguments.Ids = ()) -> F32:
        """Returns the distribution from which a token is drawn, [vocab]."""
        array, before = arguments.row(logits, "logits"), arguments.ids_of(previous, "previous")
        settings, out = settings_of(sampling), np.zeros(array.size, np.float32)
        with self._lock():
            call("stet_sampler_probabilities", self._at, c.byref(settings), arguments.pointer(array, c.c_float),
                 arguments.size(array.size), arguments.pointer(before, c.c_int32), arguments.size(before.size),
                 arguments.pointer(out, c.c_float))
        return out

    def __copy__(self) -> "Sampler":
        copy = Sampler(self._vocab_size)
        copy.set_drawn(self._drawn)
        return copy
