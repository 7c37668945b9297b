"""Writes a checkpoint directory of gpt-oss as GGUF, as llama.cpp's converter does.

Experts are stacked by matrix, gates and ups apart. MXFP4 has ggml's order.
"""
import json
import os
import struct

import gguf_writer
import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
}
ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def read(path):
    """Returns name -> array: float32, or bytes as they are."""
    with open(path, "rb") as file:
        raw = file.read()
    length = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, t in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            data = raw[8 + length + t["data_offsets"][0] : 8 + length + t["data_offsets"][1]]
            if t["dtype"] == "U8":
                x = np.frombuffer(data, np.uint8)
            else:
                assert t["dtype"] == "BF16"
                x = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
            tensors[name] = x.reshape(t["shape"])
    return tensors


def in_order_of_ggml(codes, scales):
    """Joins [..., blocks, 16] and [..., blocks] to [..., blocks, 17].

    Byte j holds inputs 2 j and 2 j + 1 before, and j and j + 16 behind the exponent afterwards.
    """
    one = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 32)
    return np.concatenate([scales[..., None], one[..., :16] | one[..., 16:] << 4], -1)


def write(directory, path, kind="BF16"):
    """Writes a directory as GGUF; `kind` is the type of the matrices that are not in MXFP4."""
    with open(os.path.join(directory, "config.json")) as file:
        c = json.load(file)
    weights = read(os.path.join(directory, "model.safetensors"))
    keys = gguf_writer.architecture_keys(c, "gpt-oss")
    keys += [
        gguf_writer.pair("gpt-oss.attention.sliding_window", "u32", c["sliding_window"]),
        gguf_writer.pair("tokenizer.ggml.eos_token_id", "u32", c["eos_token_id"]),
    ]
    tensors = []
    for name, x in weights.items():
        if name in ENDS:
            tensors.append((ENDS[name], x, kind if x.ndim == 2 else "F32"))
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        at = f"blk.{layer}."
        if rest == "self_attn.sinks":
            tensors.append((at + "attn_sinks.weight", x, "F32"))
        elif not rest.startswith("mlp.experts."):
            part, suffix = rest.rsplit(".", 1)
            used = kind if x.ndim == 2 and part != "mlp.router" else "F32"
            tensors.append((f"{at}{NAMES[part]}.{suffix}", x, used))
        elif not rest.endswith("_scales"):
            stack = rest.removeprefix("mlp.experts.")
            if stack.endswith("_blocks"):
                scales = weights[name.removesuffix("_blocks") + "_scales"]
                x, used, suffix = in_order_of_ggml(x, scales), "MXFP4", "weight"
            elif stack.endswith("_bias"):
                used, suffix = "F32", "bias"
            else:
                x, used, suffix = x.swapaxes(1, 2), kind, "weight"
            both = not stack.startswith("down")
            parts = {"gate": x[:, 0::2], "up": x[:, 1::2]} if both else {"down": x}
            tensors += [(f"{at}ffn_{part}_exps.{suffix}", y, used) for part, y in parts.items()]
    gguf_writer.write_file(path, keys, tensors)
