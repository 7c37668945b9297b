"""Reads config.json by the tables of docs/contracts/models.md. Writes the canonical form of
names.md."""

import json
import math
import os

import numpy as np

from contract_arithmetic import F32, log64


class Config:
    pass


def read_config(directory, name="config.json"):
    with open(os.path.join(directory, name), encoding="utf-8") as file:
        whole = json.load(file)
    j = whole.get("text_config") or whole
    named = whole.get("architectures")
    family = FAMILIES[named[0]] if named else whole["model_type"].removesuffix("_text")
    c = Config()
    c.family = family
    if family == "gpt2":
        return _gpt2(c, j)
    get = lambda name, absent=None: absent if j.get(name) is None else j[name]
    gemma = family.startswith("gemma")
    c.vocab_size, c.hidden_size, c.intermediate_size = j["vocab_size"], j["hidden_size"], j["intermediate_size"]
    c.layers, c.heads = j["num_hidden_layers"], j["num_attention_heads"]
    c.kv_heads = get("num_key_value_heads", {"gemma3": 4, "smollm3": 4}.get(family, c.heads))
    c.head_dim = get("head_dim", 256 if gemma else 128 if family == "qwen3" else c.hidden_size // c.heads)
    c.max_positions = get("max_position_embeddings", DEFAULT_POSITIONS.get(family, 2048))
    c.norm_eps = float(get("layer_norm_eps", 1e-5) if family == "gpt_neox" else
                       get("rms_norm_eps", 1e-5 if family in ("olmo2", "olmo3", "olmoe", "phi3", "mixtral", "gpt_oss")
                           else 1e-6))
    c.attention_scale = 1.0 / math.sqrt(float(c.head_dim))
    c.attention_softcap = c.logit_softcap = 0.0
    c.embedding_scale = c.residual_scale = c.logit_divisor = 1.0
    c.tied_head = get("tie_word_embeddings", whole.get("tie_word_embeddings", gemma or family == "smollm3"))
    c.attention_bias = get("attention_bias", family in ("gpt_neox", "gpt_oss")) or family == "qwen2"
    c.mlp_bias = get("mlp_bias", False) or family == "gpt_neox"
    c.parallel_residual = family == "gpt_neox" and get("use_parallel_residual", True)
    c.rotary_dim = 0
    window, slides = 0, lambda i: True
    c.rope_of = [0] * c.layers
    theta = {"gemma3": 1e6, "mixtral": 1e6, "smollm3": 2e6, "gpt_oss": 150000.0}.get(family, 10000.0)
    if gemma:
        c.embedding_scale = float(np.sqrt(F32(c.hidden_size)))
    if family in ("gemma2", "gemma3"):
        c.attention_scale = 1.0 / math.sqrt(float(get("query_pre_attn_scalar", 256)))
        off = {"gemma2": (50, 30), "gemma3": (0, 0)}[family]
        names = ("attn_logit_softcapping", "final_logit_softcapping")
        c.attention_softcap, c.logit_softcap = (float((j[n] or 0) if n in j else d) for n, d in zip(names, off))
        window = get("sliding_window", 4096)
        pattern = get("sliding_window_pattern", get("_sliding_window_pattern", 6))
        slides = (lambda i: i % 2 == 0) if family == "gemma2" else lambda i: (i + 1) % pattern != 0
    elif family in ("mistral", "phi3"):
        window = (j["sliding_window"] or 0) if "sliding_window" in j else 4096 if family == "mistral" else 0
    elif family in ("qwen2", "qwen3") and get("use_sliding_window", False):
        window, first = get("sliding_window", 4096), get("max_window_layers", 28)
        slides = lambda i: i >= first
    elif family == "olmo3":
        window, slides = get("sliding_window", 4096), lambda i: (i + 1) % 4 != 0
    elif family == "mixtral" or (family == "qwen3_moe" and get("use_sliding_window", False)):
        window = get("sliding_window", 0 if family == "mixtral" or "sliding_window" in j else 4096)
    elif family == "gpt_oss":
        window, slides = get("sliding_window", 128), lambda i: i % 2 == 0
    elif family in ("granite", "granitemoe"):
        c.embedding_scale, c.attention_scale = (float(get("embedding_multiplier", 1)),
                                                float(get("attention_multiplier", 1)))
        c.residual_scale, c.logit_divisor = float(get("residual_multiplier", 1)), float(get("logits_scaling", 1))
    elif family == "smollm3":
        every = get("no_rope_layer_interval", 4)
        turns = get("no_rope_layers", [(i + 1) % every for i in range(c.layers)])
        c.rope_of = [0 if t else -1 for t in turns]
    c.qkv_clip = float(get("clip_qkv", 0)) if family == "olmoe" else 0
    c.gate_limit = float(get("swiglu_limit", 7)) if family == "gpt_oss" else 0
    c.experts = read_experts(c, get) if family in EXPERT_RULES else None
    types = get("layer_types", []) if family in ("gemma2", "gemma3", "qwen2", "qwen3", "olmo3", "gpt_oss") else []
    c.window = [window if (types[i] == "sliding_attention" if types else slides(i)) else 0 for i in range(c.layers)]
    if family in ("phi3", "gpt_neox"):
        part = get("partial_rotary_factor", 1 if family == "phi3" else get("rotary_pct", 0.25))
        turned = int(c.head_dim * part)
        c.rotary_dim = 0 if turned == c.head_dim else turned
        theta = float(get("rotary_emb_base", 10000)) if family == "gpt_neox" else theta
    c.ropes = [read_rope(j, theta, "full_attention")]
    if family in ("gemma3", "olmo3"):
        local = get("rope_local_base_freq", 10000) if family == "gemma3" else c.ropes[0]["theta"]
        sliding = (j.get("rope_parameters") or {}).get("sliding_attention")
        c.ropes.append(read_rope({"rope_parameters": sliding}, float(local), ""))
        c.rope_of = [0 if w == 0 else 1 for w in c.window]
    return c


RULES = ("softmax", "divided", "of_chosen")
EXPERT_RULES = {"qwen3_moe": None, "olmoe": None, "mixtral": "divided", "granitemoe": "of_chosen",
                "gpt_oss": "of_chosen"}


def read_experts(c, get):
    rule = EXPERT_RULES[c.family] or ("divided" if get("norm_topk_prob", False) else "softmax")
    qwen, plain = c.family == "qwen3_moe", get("mlp_only_layers", [])
    dense = [i for i in range(c.layers) if qwen and (i in plain or (i + 1) % get("decoder_sparse_step", 1) != 0)]
    return {"count": get("num_experts", get("num_local_experts")), "chosen": get("num_experts_per_tok"),
            "width": get("moe_intermediate_size") if qwen else c.intermediate_size, "rule": RULES.index(rule),
            "dense": dense}


DEFAULT_POSITIONS = {"gemma": 8192, "gemma2": 8192, "gemma3": 131072, "smollm3": 32768, "gpt_oss": 131072}
FAMILIES = {"GemmaForCausalLM": "gemma", "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3",
            "Gemma3ForConditionalGeneration": "gemma3", "GPT2LMHeadModel": "gpt2", "GPTNeoXForCausalLM": "gpt_neox",
            "GptOssForCausalLM": "gpt_oss", "GraniteForCausalLM": "granite", "GraniteMoeForCausalLM": "granitemoe",
            "MixtralForCausalLM": "mixtral",
            "OlmoeForCausalLM": "olmoe", "Qwen3MoeForCausalLM": "qwen3_moe", "LlamaForCausalLM": "llama",
            "MistralForCausalLM": "mistral",
            "Olmo2ForCausalLM": "olmo2", "Olmo3ForCausalLM": "olmo3", "Phi3ForCausalLM": "phi3",
            "Qwen2ForCausalLM": "qwen2",
            "Qwen3ForCausalLM": "qwen3", "SmolLM3ForCausalLM": "smollm3"}
SCALINGS = ("none", "linear", "llama3", "yarn", "longrope")


def _gpt2(c, j):
    c.vocab_size, c.hidden_size, c.layers, c.heads = j["vocab_size"], j["n_embd"], j["n_layer"], j["n_head"]
    c.intermediate_size = j.get("n_inner") or 4 * c.hidden_size
    c.kv_heads, c.head_dim = c.heads, c.hidden_size // c.heads
    c.max_positions = j.get("n_positions", j.get("n_ctx", 1024))
    c.norm_eps = float(j.get("layer_norm_epsilon", 1e-5))
    c.attention_scale = 1.0 / math.sqrt(float(c.head_dim)) if j.get("scale_attn_weights", True) else 1.0
    c.attention_softcap = c.logit_softcap = 0.0
    c.embedding_scale = c.residual_scale = c.logit_divisor = 1.0
    c.attention_bias = c.mlp_bias = True
    c.parallel_residual = False
    c.tied_head = j.get("tie_word_embeddings", True)
    c.rotary_dim, c.window, c.rope_of, c.ropes = 0, [0] * c.layers, [], []
    c.qkv_clip, c.gate_limit, c.experts = 0, 0, None
    return c


def plain_rope(theta):
    return {"theta": theta, "scaling": "none", "factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_positions": 0.0}


def read_rope(j, theta, layer_type):
    newer = j.get("rope_parameters") or {}
    scaling = {**(newer.get(layer_type) or newer), **(j.get("rope_scaling") or {})}
    rope = plain_rope(float(scaling.get("rope_theta", j.get("rope_theta", theta))))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return rope
    rope["scaling"] = "longrope" if kind == "su" else kind
    if rope["scaling"] == "longrope":
        original = float(j.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings")))
        positions = float(j.get("max_position_embeddings", 2048))
        factor = positions / original
        rope.update(original_positions=original, factor=factor, is_long=positions > original,
                    short_factors=[float(F32(f)) for f in scaling["short_factor"]],
                    long_factors=[float(F32(f)) for f in scaling["long_factor"]])
        root = 1.0 / (1.0 / math.sqrt(1 + log64(factor) / log64(original))) if factor > 1 else 1.0
        rope["attention_factor"] = float(scaling.get("attention_factor", root))
        rope["factors"] = rope["long_factors"] if rope["is_long"] else rope["short_factors"]
        return rope
    rope["factor"] = float(scaling["factor"])
    if kind == "linear":
        return rope
    name = "original_max_position_embeddings"
    rope["original_positions"] = float(j.get(name, scaling.get(name, j.get("max_position_embeddings"))))
    if kind == "llama3":
        rope.update(low_freq_factor=float(scaling["low_freq_factor"]),
                    high_freq_factor=float(scaling["high_freq_factor"]))
        return rope
    def magnitude(scale):
        return 0.1 * scale * log64(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0

    given = (magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"]) if scaling.get("mscale")
             else magnitude(1))
    rope.update(beta_fast=float(scaling.get("beta_fast", 32)), beta_slow=float(scaling.get("beta_slow", 1)),
                truncate=scaling.get("truncate", True), attention_factor=float(scaling.get("attention_factor", given)))
    return rope


def canonical(c):
    ropes = []
    for r in c.ropes:
        r = {k: v for k, v in r.items() if k != "factors"}
        ropes.append({**r, "scaling": SCALINGS.index(r["scaling"])})
    names = ("vocab_size hidden_size intermediate_size layers heads kv_heads head_dim max_positions norm_eps "
             "attention_scale attention_softcap logit_softcap embedding_scale tied_head attention_bias mlp_bias "
             "window rope_of family").split()
    j = {n: getattr(c, n) for n in names}
    j["ropes"] = ropes
    for name, absent in (("residual_scale", 1), ("logit_divisor", 1), ("rotary_dim", 0), ("parallel_residual", False),
                         ("qkv_clip", 0), ("gate_limit", 0), ("experts", None)):
        if getattr(c, name) != absent:
            j[name] = getattr(c, name)
    return json.dumps(j, sort_keys=True, separators=(",", ":"))
