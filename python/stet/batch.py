"""Many sessions in shared passes, with the same bits as each alone."""
from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from . import _arguments as arguments
from ._calls import Call, calls_of
from ._library import F32, Capture, Error, P, refuse, sized
from ._session import seen, with_sessions
from ._locks import with_locks
from ._uses import Using
from .comparison import Comparison
from .generation import CGenerateOptions, CReply, Recorder, Reply, Sampling, Speculator, settings_of
from .intervention import Intervention
from .session import CCaptureOptions, Session
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class _CBatchEntry(c.Structure):
    _fields_ = [("session", c.c_void_p), ("ids", P(c.c_int32)), ("count", c.c_size_t)]


class _CBatchReply(c.Structure):
    _fields_ = [("session", c.c_void_p), ("options", P(CGenerateOptions))]


class _CCut(c.Structure):
    _fields_ = [("from_session", c.c_void_p), ("begin", c.c_int64), ("end", c.c_int64)]


@dataclasses.dataclass
class Row:
    """A row of generate_batch: a session and the settings for its reply. None keeps the session's
    own. Settings and interventions stay with the session afterwards.

    Interventions are attached before the prompt is processed."""
    session: Session
    prompt: Optional[arguments.Ids] = None
    max_tokens: Optional[int] = None
    ignore_eos: Optional[bool] = None
    sampling: Optional[Sampling] = None
    stop_ids: Optional[arguments.Ids] = None
    stop_strings: Optional[Sequence[str]] = None
    interventions: Sequence[Intervention] = ()
    speculator: Optional[Speculator] = None

    def _checked(self, name: str) -> "Row":
        """Returns the row with lists in place of iterators, before anything is changed. `name` is that
        of the row."""
        if not isinstance(self.session, Session):
            refuse(name, "a Session or a Row", type(self.session).__name__)
        new = dataclasses.replace(self)
        if self.prompt is not None:
            new.prompt = arguments.ids_of(self.prompt, name + ".prompt")
        if self.sampling is not None:
            with _named(name + ".sampling"):
                settings_of(self.sampling)
        if self.stop_ids is not None:
            new.stop_ids = arguments.ids_of(self.stop_ids, name + ".stop_ids").tolist()
        if self.stop_strings is not None:
            new.stop_strings = arguments.sequence(self.stop_strings, name + ".stop_strings", "texts")
            for i, text in enumerate(new.stop_strings):
                arguments.text(text, "%s.stop_strings[%d]" % (name, i))
        if self.speculator is not None and not isinstance(self.speculator, Speculator):
            refuse(name + ".speculator", "a Speculator", repr(self.speculator))
        new.interventions = arguments.sequence(self.interventions, name + ".interventions", "Interventions")
        for i, change in enumerate(new.interventions):
            if not isinstance(change, Intervention):
                refuse("%s.interventions[%d]" % (name, i), "an Intervention", type(change).__name__)
        return new

    def _prepare(self, name: str = "row") -> None:
        """Gives the session the settings and the prompt of the row."""
        s = self.session
        if self.sampling is not None:
            with _named(name + ".sampling"):
                s.sampling = self.sampling
        if self.stop_ids is not None:
            with _named(name + ".stop_ids", "stop_ids"):
                s.stop_ids = self.stop_ids
        if self.stop_strings is not None:
            with _named(name + ".stop_strings", "stop_strings"):
                s.stop_strings = self.stop_strings
        for i, change in enumerate(self.interventions):
            with _named("%s.interventions[%d]" % (name, i)):
                s.attach(change)
        if self.prompt is not None:
            with _named(name + ".prompt", "ids"):
                s.append_prompt(self.prompt)


@contextlib.contextmanager
def _named(name: str, own: str = "") -> Iterator[None]:
    """Puts the name of a row's member into errors that name a field. `own` is the member's name in the
    function that gets it."""
    try:
        yield
    except Error as error:
        if not error.field or error.file:
            raise
        field = name + (error.field[len(own):] if own and error.field.startswith(own) else ": " + error.field)
        message = str(error).replace(error.field + ":", field + ":", 1)
        raise type(error)(error.kind, message, "", field, error.expected, error.found) from None


@contextlib.contextmanager
def _unchanged_if_nothing_is_drawn(sessions: Sequence[Session]) -> Iterator[Callable[[], None]]:
    """Restores the sessions if the block fails before one of them has drawn a token. The block calls
    the function that it gets before it draws."""
    sizes: List[int] = []
    with Using([pointer for session in sessions for pointer in session._handles()]):
        before = []
        try:
            for session in {id(s): s for s in sessions}.values():
                before.append(session._before())
            yield lambda: sizes.extend(session.drawn for session in sessions)
        except BaseException:
            if not any(not session.closed and session.drawn != size for session, size in zip(sessions, sizes)):
                for state in reversed(before):
                    state.restore()
            raise
        finally:
            for state in before:
                state.free()


def generate_batch(rows: Sequence[Union[Session, Row]], tokenizer: Optional["Tokenizer"] = None,
                   max_tokens: int = 256, ignore_eos: bool = False, points: Iterable[str] = (),
                   log_probabilities: bool = True) -> List[Reply]:
    """Draws a reply for each session in shared passes. Each has the bits of a separate reply,
    with its session's own sampling, stops and interventions. A Row can have its own max_tokens
    and ignore_eos.

    Returns a Reply for each row. `captured` holds the rows at `points` (names or patterns) for
    the drawn tokens, [ids, ...]. After a failure, tokens drawn so far stay in the sessions. If none
    was drawn, all sessions are unchanged."""
    all = [row if isinstance(row, Row) else Row(row) for row in arguments.sequence(rows, "rows", "Sessions or Rows")]
    all = [row._checked("rows[%d]" % i) for i, row in enumerate(all)]
    for i, row in enumerate(all):
        if row.speculator is not None and any(row.speculator is before.speculator for before in all[:i]):
            refuse("rows[%d].speculator" % i, "each speculator once", "one twice")
    of = arguments.handle_or_none(tokenizer, "Tokenizer", "tokenizer")
    if not all:
        return []
    sessions = [row.session for row in all]
    names = sessions[0].model._matching(points)
    one = Call()
    recorders = [
        Recorder(max_tokens if row.max_tokens is None else row.max_tokens,
                 ignore_eos if row.ignore_eos is None else row.ignore_eos, log_probabilities, None,
                 one, row.speculator) for row in all
    ]

    def draw() -> List[Reply]:
        captures, replies = (c.c_void_p * len(all))(), (P(CReply) * len(all))()
        with Using([handle for r in recorders for handle in r.handles]), _unchanged_if_nothing_is_drawn(
                sessions) as begin:
            for i, row in enumerate(all):
                row._prepare("rows[%d]" % i)
            begin()
            entries = (_CBatchReply * len(all))(
                *[_CBatchReply(s._at, c.pointer(r.options)) for s, r in zip(sessions, recorders)]
            )
            speculators = sorted({id(r.speculator): r for r in recorders}.items())
            with_locks([r.lock() for _, r in speculators],
                     lambda: calls_of(sessions, "stet_batch_generate", entries, arguments.size(len(all)), of,
                                      arguments.words(names), arguments.size(len(names)), captures, replies, of=one))
        made = []
        for session, recorder, capture, reply in zip(sessions, recorders, captures, replies):
            whole, kept = recorder.reply(reply), Capture(capture)
            whole.captured = seen(session, kept, names, len(session))
            made.append(whole)
        return made

    made = with_sessions(sessions, draw)
    one.raise_first()
    return made


def append_batch(entries: Sequence[Tuple[Session, arguments.Ids]], points: Iterable[str] = (),
                 state_positions: Sequence[arguments.Ids] = ()) -> List[Dict[str, F32]]:
    """Appends each session's own tokens in shared passes, with the bits of separate appends.
    Returns the results of Session.append for each entry. `state_positions` has the positions of
    each entry. After a failure all sessions are unchanged."""
    entries = arguments.sequence(entries, "entries", "(session, ids)")
    for i, entry in enumerate(entries):
        if not isinstance(entry, tuple) or len(entry) != 2 or not isinstance(entry[0], Session):
            refuse("entries[%d]" % i, "(session, ids)", repr(entry))
    of_states = arguments.sequence(state_positions, "state_positions", "positions for each entry")
    of_states = of_states or [()] * len(entries)
    if len(of_states) != len(entries):
        refuse("state_positions", "positions for each of %d entries" % len(entries), len(of_states))
    if not entries:
        return []
    arrays = [arguments.ids_of(ids, "entries[%d].ids" % i) for i, (_, ids) in enumerate(entries)]
    sessions = [session for session, _ in entries]
    names = sessions[0].model._matching(points)

    def append() -> List[Dict[str, F32]]:
        states = [s._state_positions(of_states[i], names, arrays[i].size, "state_positions[%d]" % i)
                  for i, s in enumerate(sessions)]
        batch = (_CBatchEntry * len(entries))(
            *[_CBatchEntry(s._at, arguments.pointer(a, c.c_int32), a.size) for s, a in zip(sessions, arrays)])
        if not names:
            calls_of(sessions, "stet_batch_append", batch, arguments.size(len(entries)))
            return [{} for _ in entries]
        these = arguments.words(names)
        options = [sized(CCaptureOptions(points=these, point_count=len(names),
                                         state_positions=arguments.pointer(p, c.c_int64),
                                         state_position_count=p.size)) for p in states]
        each = (P(CCaptureOptions) * len(entries))(*[c.pointer(o) for o in options])
        captures = (c.c_void_p * len(entries))()
        calls_of(sessions, "stet_batch_capture_with", batch, arguments.size(len(entries)), each, captures)
        return [seen(s, Capture(at), names, len(s)) for s, at in zip(sessions, captures)]

    return with_sessions(sessions, append)


def splice(cuts: Sequence[Tuple[Session, int, int]]) -> Session:
    """Returns a session made of positions begin .. end - 1 of other sessions, given as (session,
    begin, end), in this order. Tokens, keys and values are copied, and keys are rotated to their
    new positions. Nothing is recomputed; its `truth()` shows the deviation from a computed state."""
    at = c.c_void_p()
    cuts = arguments.sequence(cuts, "cuts", "(session, begin, end)")
    for i, cut in enumerate(cuts):
        if not isinstance(cut, tuple) or len(cut) != 3 or not isinstance(cut[0], Session):
            refuse("cuts[%d]" % i, "(session, begin, end)", repr(cut))
    sessions = [session for session, _, _ in cuts]

    def join() -> None:
        all = (_CCut * len(cuts))(*[
            _CCut(s._at, arguments.integer(begin, "cuts[%d].begin" % i), arguments.integer(end, "cuts[%d].end" % i))
            for i, (s, begin, end) in enumerate(cuts)
        ])
        calls_of(sessions, "stet_session_splice", all, arguments.size(len(cuts)), c.byref(at))

    with_sessions(sessions, join)
    return Session._adopt(sessions[0].model, at)


def compare(a: Union[Session, Snapshot], b: Union[Session, Snapshot]) -> Comparison:
    """Compares two sessions or two snapshots by parts."""
    if isinstance(a, Snapshot) and isinstance(b, Snapshot):
        return Comparison._made("stet_snapshot_compare", a._at, b._at)
    if not isinstance(a, Session) or not isinstance(b, Session):
        refuse("b" if isinstance(a, (Session, Snapshot)) else "a", "two sessions or two snapshots",
               "%s and %s" % (type(a).__name__, type(b).__name__))
    first, second = a, b  # mypy does not know their types in a function
    return with_sessions((a, b), lambda: Comparison._made("stet_session_compare", first._at, second._at))
