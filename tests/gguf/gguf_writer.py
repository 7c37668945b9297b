"""Writes a checkpoint directory as GGUF like llama.cpp's converter, for tests. Types: F32, F16,
BF16, Q8_0, Q4_0 and K types."""
import json
import os
import re
import struct

import gguf_k_types
import numpy as np

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "BF16": 30, "MXFP4": 39, **gguf_k_types.TYPES}
KINDS = {"u32": 4, "f32": 6, "bool": 7, "text": 8}


def read_safetensors(path):
    with open(path, "rb") as file:
        raw = file.read()
    length = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, t in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + x for x in t["data_offsets"])
        data = raw[begin:end]
        if t["dtype"] == "BF16":
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, np.float16 if t["dtype"] == "F16" else np.float32).astype(np.float32)
        tensors[name] = values.reshape(t["shape"])
    return tensors


def encode(x, kind):
    if kind == "MXFP4":  # blocks already, [..., 17]
        return np.ascontiguousarray(x, np.uint8).tobytes()
    x = np.ascontiguousarray(x, np.float32)
    if kind in gguf_k_types.TYPES:
        return gguf_k_types.encode(x, kind)
    if kind == "F32":
        return x.tobytes()
    if kind == "F16":
        return x.astype(np.float16).tobytes()
    if kind == "BF16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    blocks = x.reshape(-1, 32)
    if kind == "Q8_0":
        d = (np.abs(blocks).max(1) / 127).astype(np.float16)
        inverse = np.where(d == 0, 0, 1 / np.where(d == 0, 1, d.astype(np.float32)))
        q = np.clip(np.rint(blocks * inverse[:, None]), -127, 127).astype(np.int8)
        return np.concatenate([d.view(np.uint8).reshape(-1, 2), q.view(np.uint8)], 1).tobytes()
    most = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)[:, 0]
    d = (most / -8).astype(np.float16)
    inverse = np.where(d == 0, 0, 1 / np.where(d == 0, 1, d.astype(np.float32)))
    q = np.clip(np.floor(blocks * inverse[:, None] + 8.5), 0, 15).astype(np.uint8)
    packed = q[:, :16] | q[:, 16:] << 4
    return np.concatenate([d.view(np.uint8).reshape(-1, 2), packed], 1).tobytes()


def decoded(x, kind):
    """Returns the values that a reader decodes, as float32."""
    x = np.ascontiguousarray(x, np.float32)
    if kind in gguf_k_types.TYPES:
        return gguf_k_types.decoded(x, kind)
    raw = encode(x, kind)
    if kind == "F32":
        return x
    if kind == "F16":
        return np.frombuffer(raw, np.float16).astype(np.float32).reshape(x.shape)
    if kind == "BF16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(x.shape)
    block = np.frombuffer(raw, np.uint8).reshape(-1, 34 if kind == "Q8_0" else 18)
    d = block[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        return (block[:, 2:].copy().view(np.int8) * d).astype(np.float32).reshape(x.shape)
    q = np.concatenate([block[:, 2:] & 15, block[:, 2:] >> 4], 1).astype(np.int32) - 8
    return (q * d).astype(np.float32).reshape(x.shape)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, kind, value):
    pack = {"u32": lambda v: struct.pack("<I", v), "f32": lambda v: struct.pack("<f", v),
            "bool": lambda v: struct.pack("<?", v), "text": text, "i32": lambda v: struct.pack("<i", v)}[kind]
    number = {**KINDS, "i32": 5}[kind]
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, number, len(value)) + b"".join(map(pack, value))
    return text(key) + struct.pack("<I", number) + pack(value)


def spm_pieces(path):
    """Returns the pieces of a sentencepiece model: (text, score, type)."""
    with open(path, "rb") as file:
        raw = file.read()

    def fields(data):
        at = 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value

        while at < len(data):
            tag = varint()
            if tag & 7 == 0:
                yield tag >> 3, varint()
            elif tag & 7 == 5:
                at += 4
                yield tag >> 3, struct.unpack("<f", data[at - 4 : at])[0]
            else:
                size = varint()
                at += size
                yield tag >> 3, data[at - size : at]

    pieces = []
    for field, value in fields(raw):
        if field == 1:
            piece = dict(fields(value))
            pieces.append((piece[1], piece.get(2, 0.0), piece.get(3, 1)))
    return pieces


def tokenizer_keys(directory, vocab):
    with open(os.path.join(directory, "tokenizer_config.json")) as file:
        config = json.load(file)
    keys = []
    if os.path.exists(os.path.join(directory, "tokenizer.model")):
        pieces = spm_pieces(os.path.join(directory, "tokenizer.model"))
        tokens, scores, types = ([p[i] for p in pieces] for i in range(3))
        keys += [pair("tokenizer.ggml.model", "text", "llama"), pair("tokenizer.ggml.add_space_prefix", "bool", False),
                 pair("tokenizer.ggml.scores", "f32", scores)]
    else:
        with open(os.path.join(directory, "tokenizer.json")) as file:
            published = json.load(file)
        by_id = {i: t for t, i in published["model"]["vocab"].items()}
        special = {t["id"]: t for t in published["added_tokens"]}
        by_id.update({i: t["content"] for i, t in special.items()})
        tokens = [by_id[i] for i in range(len(by_id))]
        types = [(3 if special[i]["special"] else 4) if i in special else 1 for i in range(len(tokens))]
        merges = [m if isinstance(m, str) else " ".join(m) for m in published["model"]["merges"]]
        keys += [pair("tokenizer.ggml.model", "text", "gpt2"), pair("tokenizer.ggml.pre", "text", "llama-bpe"),
                 pair("tokenizer.ggml.merges", "text", merges)]
    keys += [pair("tokenizer.ggml.tokens", "text", tokens), pair("tokenizer.ggml.token_type", "i32", types),
             pair("tokenizer.ggml.add_bos_token", "bool", True)]
    if config.get("chat_template"):
        keys.append(pair("tokenizer.chat_template", "text", config["chat_template"]))
    return keys


def frequencies(config):
    """Returns the numbers by which llama.cpp divides frequencies for Llama 3's scaling."""
    scaling, dim = config["rope_scaling"], config["hidden_size"] // config["num_attention_heads"]
    plain = 1 / config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    factors = []
    for f in plain:
        wave = 2 * np.pi / f
        low, high = (scaling["original_max_position_embeddings"] / scaling["low_freq_factor"],
                     scaling["original_max_position_embeddings"] / scaling["high_freq_factor"])
        smooth = ((scaling["original_max_position_embeddings"] / wave - scaling["low_freq_factor"])
                  / (scaling["high_freq_factor"] - scaling["low_freq_factor"]))
        factors.append(1 if wave < high else scaling["factor"] if wave > low
                       else 1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


# Maps a model_type to llama.cpp's architecture where they differ. NEIGHBOURS store the rotary pairs
# of q and k as neighbours.
ARCHITECTURES = {"gemma3_text": "gemma3", "olmo3": "olmo2", "mixtral": "llama", "qwen3_moe": "qwen3moe"}
NEIGHBOURS = {"llama", "mistral", "granite", "granitemoe", "smollm3"}


def architecture_keys(c, arch):
    k = lambda name: arch + "." + name  # noqa: E731
    keys = [pair("general.architecture", "text", arch), pair("general.alignment", "u32", 32)]
    if arch == "gpt2":
        for name, value in (("embedding_length", c["n_embd"]), ("block_count", c["n_layer"]),
                            ("feed_forward_length", c.get("n_inner") or 4 * c["n_embd"]),
                            ("context_length", c["n_positions"]),
                            ("attention.head_count", c["n_head"])):
            keys.append(pair(k(name), "u32", value))
        return keys + [pair(k("attention.layer_norm_epsilon"), "f32", c["layer_norm_epsilon"])]
    heads, dim = c["num_attention_heads"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    for name, value in (("embedding_length", c["hidden_size"]), ("block_count", c["num_hidden_layers"]),
                        ("feed_forward_length", c["intermediate_size"]),
                        ("context_length", c["max_position_embeddings"]),
                        ("attention.head_count", heads), ("attention.head_count_kv", c["num_key_value_heads"]),
                        ("attention.key_length", dim), ("attention.value_length", dim), ("rope.dimension_count", dim)):
        keys.append(pair(k(name), "u32", value))
    keys += [pair(k("attention.layer_norm_rms_epsilon"), "f32", c["rms_norm_eps"]),
             pair(k("rope.freq_base"), "f32", c["rope_theta"])]
    for name, key in (("embedding_multiplier", "embedding_scale"), ("attention_multiplier", "attention.scale"),
                      ("residual_multiplier", "residual_scale"), ("logits_scaling", "logit_scale"),
                      ("attn_logit_softcapping", "attn_logit_softcapping"),
                      ("final_logit_softcapping", "final_logit_softcapping"),
                      ("rope_local_base_freq", "rope.freq_base_swa")):
        if c.get(name) is not None:
            keys.append(pair(k(key), "f32", c[name]))
    if arch in ("gemma2", "gemma3", "olmo2", "mistral") and c.get("sliding_window"):
        keys.append(pair(k("attention.sliding_window"), "u32", c["sliding_window"]))
    if arch == "gemma3":
        keys.append(pair(k("attention.sliding_window_pattern"), "bool",
                         [(i + 1) % c["sliding_window_pattern"] != 0 for i in range(c["num_hidden_layers"])]))
    if c["model_type"] == "olmo3":
        keys.append(pair(k("attention.sliding_window_pattern"), "bool",
                         [t == "sliding_attention" for t in c["layer_types"]]))
    if "num_experts_per_tok" in c:
        width = c.get("moe_intermediate_size", c["intermediate_size"])
        keys += [pair(k("expert_count"), "u32", c.get("num_experts") or c["num_local_experts"]),
                 pair(k("expert_used_count"), "u32", c["num_experts_per_tok"]),
                 pair(k("expert_feed_forward_length"), "u32", width)]
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type") == "yarn":
        keys += [pair(k("rope.scaling.type"), "text", "yarn"), pair(k("rope.scaling.factor"), "f32", scaling["factor"]),
                 pair(k("rope.scaling.original_context_length"), "u32", scaling["original_max_position_embeddings"])]
    return keys


def gguf_name(name, c, arch):
    ends = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight", "wte.weight": "token_embd.weight",
            "wpe.weight": "position_embd.weight", "ln_f.weight": "output_norm.weight", "ln_f.bias": "output_norm.bias"}
    after_norms = arch in ("gemma2", "gemma3", "olmo2")
    inner = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "self_attn.q_norm": "attn_q_norm",
             "self_attn.k_norm": "attn_k_norm",
             "post_attention_layernorm": "post_attention_norm" if after_norms else "ffn_norm",
             "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
             "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
             "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}
    if name in ends:
        return ends[name]
    layer, rest = name.removeprefix("model.layers.").removeprefix("h.").split(".", 1)
    part, suffix = rest.rsplit(".", 1)
    return "blk.%s.%s.%s" % (layer, inner[part], suffix)


EXPERT = re.compile(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
EXPERT_PARTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}


def expert_tensors(weights, how):
    """Returns name -> (published names, tensor). `how` is "stacked" (a tensor per matrix), "gate_up"
    (gates and ups in one tensor) or "one" (a tensor per expert and matrix)."""
    layers, tensors = {}, {}
    for name in weights:
        if found := EXPERT.fullmatch(name):
            layer, expert, part = found.groups()
            layers.setdefault(layer, {}).setdefault(EXPERT_PARTS[part], {})[int(expert)] = name
    for layer, parts in layers.items():
        if how == "one":
            for part, names in parts.items():
                for expert, name in names.items():
                    tensors[f"blk.{layer}.ffn_{part}.{expert}.weight"] = [name], weights[name]
            continue
        rows = ([("gate_up", ("gate", "up")), ("down", ("down",))] if how == "gate_up"
                else [(part, (part,)) for part in ("gate", "up", "down")])
        for stem, together in rows:
            names = [[parts[part][e] for part in together] for e in sorted(parts["gate"])]
            tensors[f"blk.{layer}.ffn_{stem}_exps.weight"] = (
                sum(names, []), np.stack([np.concatenate([weights[n] for n in one]) for one in names]))
    return tensors


def write(directory, path, kind, float_kind="F32", with_tokenizer=True, experts="stacked"):
    """Writes a directory as GGUF. `kind` is the type of the matrices, or a function from a
    tensor's name in the file to its type. Two paths make a file of two parts. Returns the weights
    as the file has them, by their published names."""
    with open(os.path.join(directory, "config.json")) as file:
        c = json.load(file)
    weights = read_safetensors(os.path.join(directory, "model.safetensors"))
    arch = ARCHITECTURES.get(c["model_type"], c["model_type"])
    gemma = arch.startswith("gemma")
    keys = architecture_keys(c, arch)
    eos = c["eos_token_id"] if isinstance(c["eos_token_id"], list) else [c["eos_token_id"]]
    keys += [pair("tokenizer.ggml.eos_token_id", "u32", eos[0])]
    if "bos_token_id" in c:
        keys.append(pair("tokenizer.ggml.bos_token_id", "u32", c["bos_token_id"]))
    if len(eos) > 1:
        keys.append(pair("tokenizer.ggml.eot_token_id", "u32", eos[1]))
    if with_tokenizer:
        keys += tokenizer_keys(directory, c["vocab_size"])
    tensors, has = [], {}
    if (c.get("rope_scaling") or {}).get("rope_type") == "llama3":
        tensors.append(("rope_freqs.weight", frequencies(c), "F32"))
    for to, (names, x) in expert_tensors(weights, experts).items():
        used = kind(to) if callable(kind) else kind
        tensors.append((to, x, used))
        for name in names:
            has[name] = decoded(weights[name], used)
    for name, x in weights.items():
        if name in has:
            continue
        to = gguf_name(name, c, arch)
        used = float_kind if x.ndim != 2 or "ffn_gate_inp" in to else kind(to) if callable(kind) else kind
        y = x + np.float32(1) if gemma and "norm" in to else x
        if arch in NEIGHBOURS and ".attn_q." in to or arch in NEIGHBOURS and ".attn_k." in to:
            n = c["num_attention_heads"] if "attn_q" in to else c["num_key_value_heads"]
            y = y.reshape(n, 2, y.shape[0] // n // 2, -1).swapaxes(1, 2).reshape(y.shape)
        if arch == "gpt2" and x.ndim == 2 and to.startswith("blk."):
            y = y.T
        tensors.append((to, y, used))
        has[name] = decoded(x, used) if y is x or x.ndim == 2 else decoded(y, used) - np.float32(1)
    if len(paths := [path] if isinstance(path, str) else path) == 1:
        write_file(paths[0], keys, tensors)
    else:
        half = len(tensors) // 2
        split = [pair("split.count", "u32", 2), pair("split.no", "u32", 0)]
        write_file(paths[0], keys + split, tensors[:half])
        write_file(paths[1], split, tensors[half:])
    return has


def write_file(path, keys, tensors):
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    data = bytearray()
    for name, x, used in tensors:
        shape = (*x.shape[:-2], 32 * x.shape[-2]) if used == "MXFP4" else x.shape
        header += (text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
                   + struct.pack("<IQ", TYPES[used], len(data)))
        data += encode(x, used)
        data += b"\0" * (-len(data) % 32)
    with open(path, "wb") as file:
        file.write(header + b"\0" * (-len(header) % 32) + data)


def header_of(path):
    """Returns (name, shape with the outermost dimension first, type, offset of the data) for each
    tensor of a file of one part."""
    with open(path, "rb") as file:
        raw = file.read()
    at = 4

    def take(kind):
        nonlocal at
        at += struct.calcsize("<" + kind)
        return struct.unpack_from("<" + kind, raw, at - struct.calcsize("<" + kind))[0]

    def take_text():
        nonlocal at
        size = take("Q")
        at += size
        return raw[at - size : at].decode()

    def skip(kind):
        if kind == 8:
            take_text()
        elif kind == 9:
            inner, n = take("I"), take("Q")
            for _ in range(n):
                skip(inner)
        else:
            take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    assert take("I") == 3
    count, keys = take("Q"), take("Q")
    for _ in range(keys):
        take_text()
        skip(take("I"))
    found = []
    for _ in range(count):
        name = take_text()
        shape = [take("Q") for _ in range(take("I"))][::-1]
        found.append((name, shape, take("I"), take("Q")))
    data = (at + 31) // 32 * 32
    return [(name, shape, kind, data + offset) for name, shape, kind, offset in found]


def tensors_of(path):
    """Returns name -> (shape, type, bytes) for the types that this module writes."""
    sizes = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 13: (256, 176), 14: (256, 210),
             39: (32, 17)}
    with open(path, "rb") as file:
        raw = file.read()
    return {name: (shape, kind, raw[at : at + int(np.prod(shape)) // sizes[kind][0] * sizes[kind][1]])
            for name, shape, kind, at in header_of(path)}


def write_safetensors(path, tensors):
    header, at, data = {}, 0, []
    for name, x in tensors.items():
        raw = np.ascontiguousarray(x, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    head = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + b"".join(data))
