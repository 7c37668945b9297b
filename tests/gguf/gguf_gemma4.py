"""Writes Gemma 4 as GGUF like llama.cpp's converter, whose layers differ. For tests."""
import json
import os

import numpy as np
from gguf_writer import decoded, pair, read_safetensors, write_file

LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_feedforward_layernorm": "post_ffw_norm",
         "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}
ENDS = {"embed_tokens": "token_embd", "norm": "output_norm", "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm"}


def name_of(published):
    rest = published.removeprefix("model.")
    if rest.removesuffix(".weight") in ENDS:
        return ENDS[rest.removesuffix(".weight")] + ".weight"
    _, layer, part = rest.split(".", 2)
    if part == "layer_scalar":
        return f"blk.{layer}.layer_output_scale.weight"
    return f"blk.{layer}.{LAYER[part.removesuffix('.weight')]}.weight"


def one_or_all(values):
    return values[0] if len(set(values)) == 1 else values


def keys_of(c):
    slides = [t == "sliding_attention" for t in c["layer_types"]]
    full_heads = c["num_global_key_value_heads"] if c["attention_k_eq_v"] else c["num_key_value_heads"]
    first = c["num_hidden_layers"] - c["num_kv_shared_layers"]
    wide = lambda i: 2 if c["use_double_wide_mlp"] and i >= first else 1  # noqa: E731
    full, window = (c["rope_parameters"][k]["rope_theta"] for k in ("full_attention", "sliding_attention"))
    numbers = {"embedding_length": c["hidden_size"], "block_count": c["num_hidden_layers"],
               "context_length": c["max_position_embeddings"],
               "feed_forward_length": one_or_all([c["intermediate_size"] * wide(i) for i in range(len(slides))]),
               "attention.head_count": c["num_attention_heads"],
               "attention.head_count_kv": one_or_all([c["num_key_value_heads"] if s else full_heads for s in slides]),
               "attention.key_length": c["global_head_dim"], "attention.value_length": c["global_head_dim"],
               "attention.key_length_swa": c["head_dim"], "attention.value_length_swa": c["head_dim"],
               "rope.dimension_count": c["global_head_dim"], "rope.dimension_count_swa": c["head_dim"],
               "attention.shared_kv_layers": c["num_kv_shared_layers"], "attention.sliding_window": c["sliding_window"],
               "embedding_length_per_layer_input": c["hidden_size_per_layer_input"]}
    keys = [pair("general.architecture", "text", "gemma4"), pair("general.alignment", "u32", 32)]
    keys += [pair("gemma4." + k, "i32" if isinstance(v, list) else "u32", v) for k, v in numbers.items()]
    keys += [pair("gemma4." + k, "f32", v)
             for k, v in (("attention.layer_norm_rms_epsilon", c["rms_norm_eps"]), ("rope.freq_base", full),
                          ("rope.freq_base_swa", window), ("final_logit_softcapping", c["final_logit_softcapping"]))]
    keys.append(pair("gemma4.attention.sliding_window_pattern", "bool", slides))
    return keys + [pair("tokenizer.ggml.bos_token_id", "u32", c["bos_token_id"]),
                   pair("tokenizer.ggml.eos_token_id", "u32", c["eos_token_id"])]


def write(directory, path, kind):
    """Writes a directory as GGUF; `kind` is the type of the matrices. Returns the weights as the file
    has them, by their published names."""
    with open(os.path.join(directory, "config.json")) as file:
        c = json.load(file)
    pairs = c["global_head_dim"] // 2
    rotated = int(c["rope_parameters"]["full_attention"]["partial_rotary_factor"] * pairs)
    tensors = [("rope_freqs.weight", np.array([1.0] * rotated + [1e30] * (pairs - rotated), np.float32), "F32")]
    has = {}
    for name, x in read_safetensors(os.path.join(directory, "model.safetensors")).items():
        used = kind if x.ndim == 2 and x.shape[1] % 32 == 0 else "F32"
        tensors.append((name_of(name), x, used))
        has[name] = decoded(x, used)
    write_file(path, keys_of(c), tensors)
    return has
