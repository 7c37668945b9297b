"""Tests llama.cpp through its Python bindings: with_llama_cpp.py MODEL.gguf (package
llama-cpp-python)"""
import sys

from adapter import pieces, serve
from llama_cpp import Llama

model = Llama(sys.argv[1], logits_all=True, n_ctx=4096, verbose=False)


def logits(ids, cuts, question):
    if "batch" in question:
        return None
    model.reset()
    done = 0
    for piece in pieces(ids, cuts):
        model.eval(piece)
        done += len(piece)
        if question.get("save_at") == done or question.get("fork_at") == done:
            state = model.save_state()
            model.reset()
            model.load_state(state)
        if question.get("rewind_at") == done and done < len(ids):
            model.eval(ids[:5])
            model.n_tokens = done
    return model.scores[model.n_tokens - 1].tolist()


serve(logits)
