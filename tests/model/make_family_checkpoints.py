"""Makes random weights for the small checkpoints of families without goldens (tests/data/models).
They are bfloat16, and large enough that every part of a layer affects the logits. The config.json
of each must exist.

    make_family_checkpoints.py tests/data/models/NAME...
"""
import json
import os
import struct
import sys
import zlib

import numpy as np


def tensors(c, draw):
    hidden, inner, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    queries = hidden
    keys = hidden // c["num_attention_heads"] * c.get("num_key_value_heads", c["num_attention_heads"])
    matrix = lambda rows, columns: draw.normal(0, 1.6 / np.sqrt(columns), (rows, columns))  # noqa: E731
    norm = lambda n: 1 + draw.normal(0, 0.2, n)  # noqa: E731
    olmo, phi = c["model_type"].startswith("olmo"), c["model_type"] == "phi3"
    if c["model_type"] == "gpt_neox":
        yield from neox_tensors(c, draw, matrix, norm)
        return
    linears = (("self_attn.qkv_proj", queries + 2 * keys, hidden), ("self_attn.o_proj", hidden,
                                                                    queries), ("mlp.gate_up_proj", 2 * inner, hidden),
               ("mlp.down_proj", hidden,
                inner)) if phi else (("self_attn.q_proj", queries, hidden), ("self_attn.k_proj", keys, hidden),
                                     ("self_attn.v_proj", keys, hidden), ("self_attn.o_proj", hidden, queries),
                                     ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner,
                                                                        hidden), ("mlp.down_proj", hidden, inner))
    yield "model.embed_tokens.weight", draw.normal(0, 0.5, (vocab, hidden))
    for i in range(c["num_hidden_layers"]):
        at = "model.layers.%d." % i
        for name, rows, columns in linears:
            yield at + name + ".weight", matrix(rows, columns)
        yield at + "post_attention_layernorm.weight", norm(hidden)
        yield at + ("post_feedforward_layernorm.weight" if olmo else "input_layernorm.weight"), norm(hidden)
        if olmo:
            yield at + "self_attn.q_norm.weight", norm(queries)
            yield at + "self_attn.k_norm.weight", norm(keys)
    yield "model.norm.weight", norm(hidden)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", matrix(vocab, hidden)


def neox_tensors(c, draw, matrix, norm):
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    yield "gpt_neox.embed_in.weight", draw.normal(0, 0.5, (c["vocab_size"], hidden))
    for i in range(c["num_hidden_layers"]):
        at = "gpt_neox.layers.%d." % i
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield at + name + ".weight", norm(hidden)
            yield at + name + ".bias", draw.normal(0, 0.2, hidden)
        for name, rows, columns in (
            ("attention.query_key_value", 3 * hidden, hidden),
            ("attention.dense", hidden, hidden),
            ("mlp.dense_h_to_4h", inner, hidden),
            ("mlp.dense_4h_to_h", hidden, inner),
        ):
            yield at + name + ".weight", matrix(rows, columns)
            yield at + name + ".bias", draw.normal(0, 0.3, rows)
    yield "gpt_neox.final_layer_norm.weight", norm(hidden)
    yield "gpt_neox.final_layer_norm.bias", draw.normal(0, 0.2, hidden)
    yield "embed_out.weight", matrix(c["vocab_size"], hidden)


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


for directory in sys.argv[1:]:
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)
    header, data = {}, b""
    for name, x in tensors(config, np.random.default_rng(zlib.crc32(config["model_type"].encode()))):
        raw = bf16(x)
        header[name] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)
