"""The pocket models in float64 with numpy, written from transformers' modeling_gemma3.py and
modeling_llama.py. A whole text is computed at once, without a cache and without stet."""
import json
import os

import numpy as np


def tensors_of(path):
    with open(path, "rb") as file:
        raw = file.read()
    begin = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, t in json.loads(raw[8:begin]).items():
        if name == "__metadata__":
            continue
        data = raw[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            numbers = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            numbers = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
        tensors[name.removeprefix("model.")] = numbers.astype(np.float64).reshape(t["shape"])
    return tensors


class Float64:
    def __init__(self, directory):
        with open(os.path.join(directory, "config.json")) as file:
            self.c = json.load(file)
        self.w = tensors_of(os.path.join(directory, "model.safetensors"))
        self.gemma = self.c["model_type"].startswith("gemma")

    def norm(self, x, name):
        w = self.w[name + ".weight"] + (1 if self.gemma else 0)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * w

    def frequencies(self, local):
        dim = self.c["head_dim"]
        speed = (self.c["rope_local_base_freq"] if local else self.c["rope_theta"]) ** (-np.arange(0, dim, 2) / dim)
        scaling = self.c["rope_scaling"]
        if scaling is None:
            return speed
        length = scaling["original_max_position_embeddings"] * speed / (2 * np.pi)  # in turns
        smooth = (length - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
        return speed / scaling["factor"] * (1 - np.clip(smooth, 0, 1)) + speed * np.clip(smooth, 0, 1)

    def rotated(self, x, local):
        angle = (np.arange(len(x), dtype=np.float32)[:, None] *
                 self.frequencies(local).astype(np.float32))[:, None].astype(np.float64)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    def attention(self, n, at, local):
        heads, kv_heads, dim = self.c["num_attention_heads"], self.c["num_key_value_heads"], self.c["head_dim"]
        q, k, v = ((n @ self.w[at + name + "_proj.weight"].T).reshape(len(n), -1, dim) for name in "qkv")
        if self.gemma:
            q, k = self.norm(q, at + "q_norm"), self.norm(k, at + "k_norm")
        q, k = self.rotated(q, local), self.rotated(k, local)
        k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.c.get("query_pre_attn_scalar", dim))
        behind = np.arange(len(n))[:, None] - np.arange(len(n))
        seen = (behind >= 0) & (behind < self.c["sliding_window"] if local else True)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        z = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        return z.reshape(len(n), -1) @ self.w[at + "o_proj.weight"].T

    def mlp(self, n, at):
        gate, up = n @ self.w[at + "gate_proj.weight"].T, n @ self.w[at + "up_proj.weight"].T
        if self.gemma:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return gate * up @ self.w[at + "down_proj.weight"].T

    def log_probabilities(self, ids):
        """Returns the log-probabilities of the token after each position, [len(ids), vocab]."""
        x = self.w["embed_tokens.weight"][ids]
        if self.gemma:
            x = x * np.float64(np.float32(np.sqrt(self.c["hidden_size"])))
        for layer in range(self.c["num_hidden_layers"]):
            at, local = "layers.%d." % layer, self.gemma and (layer + 1) % self.c["sliding_window_pattern"] != 0
            attended = self.attention(self.norm(x, at + "input_layernorm"), at + "self_attn.", local)
            if self.gemma:
                x = x + self.norm(attended, at + "post_attention_layernorm")
                x = x + self.norm(self.mlp(self.norm(x, at + "pre_feedforward_layernorm"), at + "mlp."),
                                  at + "post_feedforward_layernorm")
            else:
                x = x + attended
                x = x + self.mlp(self.norm(x, at + "post_attention_layernorm"), at + "mlp.")
        logits = self.norm(x, "norm") @ self.w["embed_tokens.weight"].T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
