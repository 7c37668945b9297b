"""Writes Gemma 4 and Gemma 3n as GGUF for tests, as llama.cpp's converter does. Layers of one model differ in shape."""
import json
import os
import statistics

import numpy as np
from gguf_writer import decoded, pair, read_safetensors, write_file

LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_feedforward_layernorm": "post_ffw_norm",
         "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
         "router.proj": "ffn_gate_inp", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
         "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
         "altup.correction_coefs": "altup_correct_coef", "altup.prediction_coefs": "altup_predict_coef",
         "altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm",
         "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
         "laurel.post_laurel_norm": "laurel_post_norm"}
# Tensors whose published names lack ".weight".
WHOLE = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
         "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
         "experts.down_proj": "ffn_down_exps.weight", "altup.correct_output_scale": "altup_correct_scale.weight"}
STACKS = {"altup_projections": "altup_proj.weight", "altup_unembed_projections": "altup_unembd_proj.weight"}
ENDS = {"embed_tokens": "token_embd", "norm": "output_norm", "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm"}


def name_of(published):
    rest = published.removeprefix("model.")
    if rest.removesuffix(".weight") in ENDS:
        return ENDS[rest.removesuffix(".weight")] + ".weight"
    _, layer, part = rest.split(".", 2)
    if part in WHOLE:
        return f"blk.{layer}.{WHOLE[part]}"
    return f"blk.{layer}.{LAYER[part.removesuffix('.weight')]}.weight"


def one_or_all(values):
    return values[0] if len(set(values)) == 1 else values


def common_keys(c, numbers, floats):
    """Returns keys of the architecture: those that Gemma 4 and 3n share, and `numbers` and `floats`."""
    arch = c["model_type"].removesuffix("_text")
    numbers |= {"embedding_length": c["hidden_size"], "block_count": c["num_hidden_layers"],
                "context_length": c["max_position_embeddings"], "attention.head_count": c["num_attention_heads"],
                "attention.shared_kv_layers": c["num_kv_shared_layers"],
                "attention.sliding_window": c["sliding_window"],
                "embedding_length_per_layer_input": c["hidden_size_per_layer_input"]}
    floats |= {"attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
               "final_logit_softcapping": c["final_logit_softcapping"]}
    keys = [pair("general.architecture", "text", arch), pair("general.alignment", "u32", 32)]
    keys += [pair(f"{arch}.{k}", "i32" if isinstance(v, list) else "u32", v) for k, v in numbers.items()]
    keys += [pair(f"{arch}.{k}", "f32", v) for k, v in floats.items()]
    keys.append(pair(f"{arch}.attention.sliding_window_pattern", "bool",
                     [t == "sliding_attention" for t in c["layer_types"]]))
    return keys + [pair("tokenizer.ggml.bos_token_id", "u32", c["bos_token_id"]),
                   pair("tokenizer.ggml.eos_token_id", "u32", c["eos_token_id"])]


def gemma3n_keys(c):
    # llama.cpp's converter stores a quantile for each sparsity: minus infinity for 0.
    quantiles = [statistics.NormalDist().inv_cdf(part) if part > 0 else -np.inf
                 for part in c["activation_sparsity_pattern"]]
    return common_keys(
        c, {"feed_forward_length": one_or_all(c["intermediate_size"]),
            "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"],
            "attention.value_length": c["head_dim"], "altup.active_idx": c["altup_active_idx"],
            "altup.num_inputs": c["altup_num_inputs"]},
        {"rope.freq_base": c["rope_theta"], "activation_sparsity_scale": quantiles})


def gemma4_keys(c):
    slides = [t == "sliding_attention" for t in c["layer_types"]]
    full_heads = c["num_global_key_value_heads"] if c["attention_k_eq_v"] else c["num_key_value_heads"]
    first = c["num_hidden_layers"] - c["num_kv_shared_layers"]
    wide = lambda i: 2 if c["use_double_wide_mlp"] and i >= first else 1  # noqa: E731
    full, window = (c["rope_parameters"][k]["rope_theta"] for k in ("full_attention", "sliding_attention"))
    numbers = {"feed_forward_length": one_or_all([c["intermediate_size"] * wide(i) for i in range(len(slides))]),
               "attention.head_count_kv": one_or_all([c["num_key_value_heads"] if s else full_heads for s in slides]),
               "attention.key_length": c["global_head_dim"], "attention.value_length": c["global_head_dim"],
               "attention.key_length_swa": c["head_dim"], "attention.value_length_swa": c["head_dim"],
               "rope.dimension_count": c["global_head_dim"], "rope.dimension_count_swa": c["head_dim"]}
    if c.get("enable_moe_block"):
        numbers |= {"expert_count": c["num_experts"], "expert_used_count": c["top_k_experts"],
                    "expert_feed_forward_length": c["moe_intermediate_size"]}
    return common_keys(c, numbers, {"rope.freq_base": full, "rope.freq_base_swa": window})


def write(directory, path, kind):
    """Writes a directory as GGUF; `kind` is the type of the matrices. Returns the weights as the file
    has them, by their published names."""
    with open(os.path.join(directory, "config.json")) as file:
        c = json.load(file)
    tensors, has, stacks = [], {}, {}
    if c["model_type"] == "gemma4_text":
        pairs = c["global_head_dim"] // 2
        rotated = int(c["rope_parameters"]["full_attention"]["partial_rotary_factor"] * pairs)
        divisors = np.array([1.0] * rotated + [1e30] * (pairs - rotated), np.float32)
        tensors.append(("rope_freqs.weight", divisors, "F32"))
    for name, x in read_safetensors(os.path.join(directory, "model.safetensors")).items():
        whole = x.ndim > 1 and x.shape[-1] % 32 == 0 and "router" not in name
        used = kind if whole else "F32"
        has[name] = decoded(x, used)
        stack = name.removeprefix("model.").split(".")[0]
        if stack in STACKS:
            stacks.setdefault(stack, []).append(x)
        else:
            tensors.append((name_of(name), x, used))
    tensors += [(STACKS[stack], np.stack(parts), kind) for stack, parts in stacks.items()]
    write_file(path, gemma4_keys(c) if c["model_type"] == "gemma4_text" else gemma3n_keys(c), tensors)
    return has
