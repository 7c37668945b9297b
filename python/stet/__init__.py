"""stet: transformer state that can be saved, moved and verified, bit for bit.

    import stet
    model = stet.Model("assets/pocket-gemma3")
    tokenizer = stet.Tokenizer("assets/pocket-gemma3")
    with model.session() as s:
        seen = s.append(tokenizer.encode("Let a = 3."), points=["blocks.*.hook_resid_post"])
        print(s.generate(tokenizer, max_tokens=8).text)
        s.save("s.stet", tokenizer)

Arrays are numpy arrays. Activations are float32, [positions, ...], as read-only views of the
library's memory. A handle frees its memory with its last reference, by close(), or at the end of
`with`. Failures raise Error.
"""
from ._library import ArgumentError, Error, isa_names, version
from ._session import Turn
from .batch import Row, append_batch, compare, generate_batch, splice
from .chat import Chat, PromptReport
from .comparison import Comparison, Difference, LayerDeviation, VerifyReport
from .digests import Digests
from .generation import Reply, Sampler, Sampling, Speculator, Stream, Token, log_probability, log_softmax
from .intervention import Attached, Attachment, Intervention
from .keys_values import Block
from .message import Message
from .model import Model, Point, check_packed, pack
from .recurrent import Anchor, RecurrentArrays
from .scoring import Score, encode_pair, score
from .session import BlockIdentity, Session
from .snapshot import CheckReport, RestoreReport, Snapshot, SnapshotInfo
from .tokenizer import ChatTemplate, Rendered, TextStream, Tokenizer
from .trace import Trace, TraceRun

__all__ = [
    "Anchor", "ArgumentError", "Attached", "Attachment", "Block", "BlockIdentity", "Chat", "ChatTemplate",
    "CheckReport", "Comparison", "Difference", "Digests", "Error", "Intervention", "LayerDeviation", "Message",
    "Model", "Point", "PromptReport", "RecurrentArrays", "Rendered", "Reply", "RestoreReport", "Row", "Sampler",
    "Sampling", "Score", "Session", "Snapshot", "SnapshotInfo", "Speculator", "Stream", "TextStream", "Token",
    "Tokenizer", "Trace", "TraceRun", "Turn", "VerifyReport", "append_batch", "check_packed", "compare", "encode_pair",
    "generate_batch", "isa_names", "log_probability", "log_softmax", "pack", "score", "splice", "version"
]
__version__ = version()
