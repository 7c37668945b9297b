"""stet: transformer state that can be saved, moved and proved, bit for bit.

    import stet
    model = stet.Model("assets/pocket-gemma3")
    tokenizer = stet.Tokenizer("assets/pocket-gemma3")
    with model.session() as s:
        seen = s.append(tokenizer.encode("Let a = 3."), points=["blocks.*.hook_resid_post"])
        print(s.generate(tokenizer, max_tokens=8).text)
        s.save("s.stet", tokenizer)

Arrays are numpy's: activations [positions, ...] of float32, read-only views of the library's memory. Handles free themselves, or by `with`.
"""
from ._stet import (Block, Comparison, Difference, Digests, Error, Intervention, LayerDeviation, Model, Reply, Sampling, Session, Snapshot, Tokenizer, Trace, append_batch, compare, log_softmax, splice, version)

__all__ = ["Block", "Comparison", "Difference", "Digests", "Error", "Intervention", "LayerDeviation", "Model", "Reply", "Sampling", "Session", "Snapshot", "Tokenizer", "Trace", "append_batch", "compare", "log_softmax", "splice", "version"]
__version__ = version()
