"""Compares the digests of the second implementation and the command on random models of odd
shapes and extreme weights.

    contract_random_models.py STET SEED COUNT
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

from contract_arithmetic import F32, round_bf16
from contract_digests import digest_text
from contract_model import Model


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, x) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for _, x in tensors.values()))


def weights(rng, dtype, extreme, *shape):
    x = rng.standard_normal(shape).astype(F32) / np.sqrt(F32(shape[-1]))
    if extreme:  # denormals and their neighbours, zeros, products below 2^-126, large numbers
        m = rng.random(shape)
        for begin, end, factor in ((0, 0.1, 2.0**-126), (0.1, 0.2, 0), (0.2, 0.25, 2.0**-70), (0.99, 1, 30)):
            x = np.where((m >= begin) & (m < end), x * F32(factor), x)
    return dtype, round_bf16(x) if dtype == "BF16" else x.astype(np.float16) if dtype == "F16" else x


def write_model(directory, rng, dtype):
    """Writes a Llama with biases. Returns the size of its vocabulary, and a description for
    errors."""
    heads, head_dim = int(rng.choice([1, 2, 3, 4, 6])), int(rng.choice([2, 6, 10, 16, 20, 34]))
    kv = int(rng.choice([h for h in range(1, heads + 1) if heads % h == 0]))
    hidden, inter, vocab, layers = (int(rng.integers(*r)) for r in ((3, 90), (3, 120), (20, 150), (1, 3)))
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inter,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head_dim,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True
    }
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    extreme = bool(rng.random() < 0.5)
    make = lambda *shape: weights(rng, dtype, extreme, *shape)
    tensors = {
        "model.embed_tokens.weight": make(vocab, hidden), "model.norm.weight": make(hidden),
        "lm_head.weight": make(vocab, hidden)
    }
    width, kv_width = heads * head_dim, kv * head_dim
    for i in range(layers):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[at + name + ".weight"] = make(hidden)
        for name, rows, columns in (("self_attn.q_proj", width, hidden), ("self_attn.k_proj", kv_width, hidden),
                                    ("self_attn.v_proj", kv_width, hidden), ("self_attn.o_proj", hidden, width),
                                    ("mlp.gate_proj", inter, hidden), ("mlp.up_proj", inter,
                                                                       hidden), ("mlp.down_proj", hidden, inter)):
            tensors[at + name + ".weight"], tensors[at + name + ".bias"] = make(rows, columns), make(rows)
    write_safetensors(os.path.join(directory, "model.safetensors"), tensors)
    return vocab, f"{config}, {dtype}{', extreme' if extreme else ''}"


def main():
    stet, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng, failed = np.random.default_rng(seed), 0
    for _ in range(count):
        dtype = str(rng.choice(["F32", "BF16", "F16"]))
        contract = str(rng.choice(["f32", "q8", "q4", "bf16"] if dtype == "BF16" else ["f32", "q8", "q4"]))
        kv = str(rng.choice(["f32", "bf16", "f16", "q8"]))
        with tempfile.TemporaryDirectory() as directory:
            vocab, what = write_model(directory, rng, dtype)
            ids = rng.integers(0, vocab, size=int(rng.integers(1, 140))).tolist()
            said = subprocess.run([
                stet, "logits", "-m", directory, "--compute", contract, "--kv", kv, "--ids", ",".join(map(str, ids)),
                "--digest"
            ], check=True, capture_output=True, text=True).stdout
            logits, cache = Model(directory, contract).forward(ids, kv)
        for part, data in (("logits", np.ascontiguousarray(logits).tobytes()), ("keys and values", cache.bytes())):
            if digest_text(data) not in said:
                failed += 1
                print(f"{what}, {contract}, keys and values {kv}, {len(ids)} tokens: "
                      f"{part}: {digest_text(data)}; by the command\n{said}")
    print(f"{count} models, {failed} differences")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
