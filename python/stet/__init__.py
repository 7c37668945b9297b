"""stet: transformer state that can be saved, moved and proved, bit for bit.

    import stet
    model = stet.Model("assets/pocket-gemma3")
    tokenizer = stet.Tokenizer("assets/pocket-gemma3")
    with model.session() as s:
        seen = s.append(tokenizer.encode("Let a = 3."), points=["blocks.*.hook_resid_post"])
        print(s.generate(tokenizer, max_tokens=8).text)
        s.save("s.stet", tokenizer)

Arrays are numpy's: activations [positions, ...] of float32. Handles free themselves, or by `with`.
"""
from ._stet import (Error, Difference, Digests, Intervention, Model, Reply, Sampling, Session, Snapshot, Tokenizer, append_batch, log_softmax, version)

__all__ = ["Error", "Difference", "Digests", "Intervention", "Model", "Reply", "Sampling", "Session", "Snapshot", "Tokenizer", "append_batch", "log_softmax", "version"]
__version__ = version()
