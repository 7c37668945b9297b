"""Writes models with recurrent layers as GGUF for tests, as llama.cpp's converter does."""
import json
import os

import numpy as np
from gguf_writer import decoded, pair, read_safetensors, write_file, write_safetensors

ATTENTION = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output"}
MLP = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
QWEN = {**ATTENTION, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
        "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba",
        "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
        "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        **{"mlp." + k: v for k, v in MLP.items()}, **{"mlp.shared_expert." + k: v + "_shexp" for k, v in MLP.items()}}
LFM2 = {**ATTENTION, "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
        "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
        "feed_forward.gate": "ffn_gate_inp"}
GRANITE = {**ATTENTION, "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm",
           "mamba.out_proj": "ssm_out", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
           "block_sparse_moe.router.layer": "ffn_gate_inp"}
BARE = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias", "feed_forward.expert_bias": "exp_probs_b.bias"}
ARCHITECTURES = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
                 "lfm2": "lfm2", "lfm2_moe": "lfm2moe", "granitemoehybrid": "granitehybrid"}


def tiles(c, x, first, width):
    """Reorders the value heads in the rows from `first` on: the first head of every group, then the second ones."""
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
    heads = x[first:].reshape(keys, values // keys, width, *x.shape[1:])
    return np.concatenate([x[:first], np.swapaxes(heads, 0, 1).reshape(-1, *x.shape[1:])])


def tiled(c, part, x):
    width, first = c["linear_value_head_dim"], 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
    if part in ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
        return tiles(c, x, first, width)
    if part == "linear_attn.in_proj_z.weight":
        return tiles(c, x, 0, width)
    if part in ("linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight", "linear_attn.A_log",
                "linear_attn.dt_bias"):
        return tiles(c, x, 0, 1)
    return tiles(c, x.T, 0, width).T if part == "linear_attn.out_proj.weight" else x


def rotated(x, heads):
    """Reorders the two halves of Llama's heads so that a rotary pair is adjacent."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def layer_tensors(c, architecture, part, x):
    """Yields the tensors of the file that correspond to one published tensor of a layer."""
    granite, qwen = architecture == "granitehybrid", architecture.startswith("qwen")
    stem = part.removesuffix(".weight").removesuffix(".bias")
    if architecture in ("qwen35", "qwen35moe"):
        x = tiled(c, part, x)
    if stem == "linear_attn.in_proj_qkvz":  # newer files of Qwen3-Next; older ones have it as ssm_in
        keys, dim = c["linear_num_key_heads"], c["linear_key_head_dim"]
        width = c["linear_num_value_heads"] // keys * c["linear_value_head_dim"]
        q, k, v, z = (y.reshape(-1, x.shape[1])
                      for y in np.split(x.reshape(keys, -1, x.shape[1]), [dim, 2 * dim, 2 * dim + width], axis=1))
        yield "attn_qkv.weight", np.concatenate([q, k, v])
        yield "attn_gate.weight", z
        return
    if stem.endswith("conv1d") or stem == "conv.conv":
        x = x.reshape(len(x), -1) if x.ndim == 3 else x
    if part.rsplit(".", 1)[-1] in BARE or part in BARE:
        name = BARE.get(part) or BARE[part.rsplit(".", 1)[-1]]
        if name == "ssm_a":
            x = (-np.exp(x.astype(np.float64))).astype(np.float32)
        yield name, x.reshape(-1, 1) if granite and name != "ssm_dt.bias" else x
    elif part == "shared_mlp.input_linear.weight" or part == "shared_mlp.output_linear.weight":
        end = "_shexp.weight" if c["num_local_experts"] else ".weight"
        names = ("ffn_gate", "ffn_up") if "input" in part else ("ffn_down",)
        yield from ((n + end, half) for n, half in zip(names, np.split(x, len(names))))
    elif part in ("block_sparse_moe.input_linear.weight", "mlp.experts.gate_up_proj"):
        yield from zip(("ffn_gate_exps.weight", "ffn_up_exps.weight"), np.split(x, 2, axis=1))
    elif part in ("block_sparse_moe.output_linear.weight", "mlp.experts.down_proj"):
        yield "ffn_down_exps.weight", x
    else:
        if granite and stem in ("self_attn.q_proj", "self_attn.k_proj"):
            x = rotated(x, c["num_attention_heads" if "q_proj" in stem else "num_key_value_heads"])
        if qwen and "norm" in stem and "linear_attn" not in stem:
            x = x + np.float32(1)
        if granite and stem == "mamba.norm":
            x = x.reshape(c["mamba_n_groups"], -1)
        yield (QWEN if qwen else GRANITE if granite else LFM2)[stem] + part[len(stem):], x


def sizes(c, architecture):
    recurrent = [t not in ("full_attention", "attention") for t in c["layer_types"]]
    numbers = {"embedding_length": c["hidden_size"], "block_count": c["num_hidden_layers"],
               "context_length": c["max_position_embeddings"], "attention.head_count": c["num_attention_heads"],
               "attention.head_count_kv": c["num_key_value_heads"]}
    if architecture.startswith("qwen"):
        values = c["linear_num_value_heads"]
        numbers.update({"attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
                        "rope.dimension_count": c["head_dim"] // 4, "full_attention_interval": 4,
                        "ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"],
                        "ssm.group_count": c["linear_num_key_heads"], "ssm.time_step_rank": values,
                        "ssm.inner_size": values * c["linear_value_head_dim"]})
        if "intermediate_size" in c:
            numbers["feed_forward_length"] = c["intermediate_size"]
        if "num_experts" in c:
            numbers.update({"expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"],
                            "expert_feed_forward_length": c["moe_intermediate_size"],
                            "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"]})
        return numbers
    numbers["attention.head_count_kv"] = [0 if r else c["num_key_value_heads"] for r in recurrent]
    if architecture == "granitehybrid":
        heads, dim = c["mamba_n_heads"], c["mamba_d_head"]
        numbers.update({"feed_forward_length": c["shared_intermediate_size"], "ssm.conv_kernel": c["mamba_d_conv"],
                        "ssm.state_size": c["mamba_d_state"], "ssm.group_count": c["mamba_n_groups"],
                        "ssm.time_step_rank": heads, "ssm.inner_size": heads * dim})
        if c["num_local_experts"]:
            numbers.update({"expert_count": c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"]})
        return numbers
    numbers["shortconv.l_cache"] = c["conv_L_cache"]
    if architecture == "lfm2":
        unit = c["block_multiple_of"]
        numbers["feed_forward_length"] = -(-(2 * c["block_ff_dim"] // 3) // unit) * unit
    else:
        numbers.update({"feed_forward_length": c["intermediate_size"], "expert_count": c["num_experts"],
                        "expert_used_count": c["num_experts_per_tok"], "expert_gating_func": 2,
                        "expert_feed_forward_length": c["moe_intermediate_size"],
                        "leading_dense_block_count": c["num_dense_layers"]})
    return numbers


def keys_of(c, architecture):
    theta = c["rope_theta"] if "rope_theta" in c else c["rope_parameters"]["rope_theta"]
    floats = {"attention.layer_norm_rms_epsilon": c.get("rms_norm_eps", c.get("norm_eps")), "rope.freq_base": theta}
    if architecture == "granitehybrid":
        floats.update({"embedding_scale": c["embedding_multiplier"], "attention.scale": c["attention_multiplier"],
                       "residual_scale": c["residual_multiplier"], "logit_scale": c["logits_scaling"]})
    keys = [pair("general.architecture", "text", architecture), pair("general.alignment", "u32", 32)]
    keys += [pair(f"{architecture}.{k}", "i32" if isinstance(v, list) else "u32", v)
             for k, v in sizes(c, architecture).items()]
    keys += [pair(f"{architecture}.{k}", "f32", v) for k, v in floats.items()]
    if architecture == "granitehybrid":
        keys.append(pair(architecture + ".rope.scaling.finetuned", "bool", False))
    return keys + [pair("tokenizer.ggml.eos_token_id", "u32", c["eos_token_id"])]


def write(directory, path, kind):
    """Writes a directory as GGUF; `kind` is the type of the matrices whose rows are whole blocks."""
    with open(os.path.join(directory, "config.json")) as file:
        c = json.load(file)
    c.setdefault("layer_types", ["linear_attention" if (i + 1) % 4 else "full_attention"
                                 for i in range(c["num_hidden_layers"])])
    architecture = ARCHITECTURES[c["model_type"]]
    ends = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight",
            "embedding_norm": "token_embd_norm.weight"}
    tensors, experts = [], {}
    for name, x in read_safetensors(os.path.join(directory, "model.safetensors")).items():
        rest = name.removeprefix("model.")
        if name == "lm_head.weight" or rest.removesuffix(".weight") in ends:
            if rest == "norm.weight" and architecture.startswith("qwen"):
                x = x + np.float32(1)
            tensors.append((ends.get(rest.removesuffix(".weight"), "output.weight"), x))
            continue
        _, layer, part = rest.split(".", 2)
        if ".experts." in part and part.endswith(".weight"):
            _, number, matrix = part.removesuffix(".weight").rsplit(".", 2)
            stem = {**MLP, "w1": "ffn_gate", "w2": "ffn_down", "w3": "ffn_up"}[matrix]
            experts.setdefault(f"blk.{layer}.{stem}_exps.weight", {})[int(number)] = x
            continue
        tensors += [(f"blk.{layer}.{n}", y) for n, y in layer_tensors(c, architecture, part, x)]
    tensors += [(name, np.stack([of[i] for i in range(len(of))])) for name, of in experts.items()]
    # ssm_out's columns are reordered by heads. Blocks of them would round other numbers together, so they stay float32.
    floats = ("ssm_out.weight", "ssm_norm.weight")
    blocks = lambda n, x: in_blocks(x) and not n.endswith(floats) and kind != "F32"  # noqa: E731
    write_file(path, keys_of(c, architecture), [(n, x, kind if blocks(n, x) else "F32") for n, x in tensors])


def without_attention(directory, to):
    """Writes a directory again with the recurrence of the first recurrent layer in place of every layer's attention."""
    with open(os.path.join(directory, "config.json")) as file:
        c = json.load(file)
    layers = c["num_hidden_layers"]
    types = c.get("layer_types") or ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)]
    first = next(i for i, t in enumerate(types) if t not in ("full_attention", "attention"))
    has, recurrence = {}, {}
    for name, x in read_safetensors(os.path.join(directory, "model.safetensors")).items():
        if ".self_attn." in name:
            continue
        has[name] = x
        if name.startswith(f"model.layers.{first}.") and name.split(".")[3] in ("mamba", "conv", "linear_attn"):
            recurrence[name.split(".", 3)[3]] = x
    for i, t in enumerate(types):
        if t != types[first]:
            has.update({f"model.layers.{i}.{name}": x for name, x in recurrence.items()})
    os.makedirs(to)
    with open(os.path.join(to, "config.json"), "w") as file:
        json.dump({**c, "layer_types": [types[first]] * layers}, file)
    write_safetensors(os.path.join(to, "model.safetensors"), has)


def in_blocks(x):
    return x.ndim > 1 and x.shape[-1] % 32 == 0


def round_weights(directory, to):
    """Writes a directory again with matrices rounded to Q8_0, which a file of that type keeps."""
    has = read_safetensors(os.path.join(directory, "model.safetensors"))
    for name, x in has.items():
        if in_blocks(x):
            has[name] = decoded(x, "Q8_0")
    with open(os.path.join(directory, "config.json")) as file, open(os.path.join(to, "config.json"), "w") as copy:
        copy.write(file.read())
    write_safetensors(os.path.join(to, "model.safetensors"), has)
