"""Tests Hugging Face transformers on a CPU: with_transformers.py MODEL (packages torch and
transformers)"""
import copy
import sys

import torch
from adapter import pieces, serve
from transformers import AutoModelForCausalLM, DynamicCache

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype=torch.float32).eval()


@torch.no_grad()
def logits(ids, cuts, question):
    if "batch" in question:
        rows = question["batch"] + [ids]
        longest = max(map(len, rows))
        padded = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        positions = (mask.cumsum(-1) - 1).clamp(min=0)  # forward() would count the padding, too
        return model(padded, attention_mask=mask, position_ids=positions).logits[-1, -1].tolist()
    cache, done = DynamicCache(), 0
    for piece in pieces(ids, cuts):
        out = model(torch.tensor([piece]), past_key_values=cache, use_cache=True).logits
        done += len(piece)
        if question.get("save_at") == done or question.get("fork_at") == done:
            cache = copy.deepcopy(cache)
        if question.get("rewind_at") == done and done < len(ids):
            model(torch.tensor([ids[:5]]), past_key_values=cache, use_cache=True)
            cache.crop(done)
    return out[0, -1].tolist()


serve(logits)
