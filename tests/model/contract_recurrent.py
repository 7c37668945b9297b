"""Families with recurrent layers, written from docs/contracts/models.md alone: Qwen3-Next, Qwen3.5, LFM2,
Granite 4."""

import json
import math
import os

import numpy as np

import contract_arithmetic as a
from contract_arithmetic import F32, F64
from contract_config import plain_rope
from contract_gemma4 import LayerCache
from contract_model import Checkpoint, Linear, Model, attention
from contract_products import make

FAMILIES = {"Qwen3NextForCausalLM": "qwen3_next", "Qwen3_5ForCausalLM": "qwen3_5",
            "Qwen3_5ForConditionalGeneration": "qwen3_5", "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
            "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe", "Lfm2ForCausalLM": "lfm2",
            "Lfm2MoeForCausalLM": "lfm2_moe", "GraniteMoeHybridForCausalLM": "granitemoehybrid"}


class Config:
    pass


def read_config(directory, name="config.json"):
    with open(os.path.join(directory, name), encoding="utf-8") as file:
        whole = json.load(file)
    j = whole.get("text_config") or whole
    c = Config()
    c.j, c.family = j, FAMILIES[whole["architectures"][0]]
    get = c.get = lambda name, absent=None: absent if j.get(name) is None else j[name]
    c.vocab_size, c.hidden_size, c.layers, c.heads = (j[n] for n in ("vocab_size", "hidden_size", "num_hidden_layers",
                                                                     "num_attention_heads"))
    c.kv_heads, c.max_positions = get("num_key_value_heads", c.heads), get("max_position_embeddings", 2048)
    lfm2 = c.family.startswith("lfm2")
    c.head_dim = get("head_dim", c.hidden_size // c.heads)
    c.norm_eps = float(get("norm_eps" if lfm2 else "rms_norm_eps", 1e-5 if lfm2 else 1e-6))
    c.tied = get("tie_word_embeddings", whole.get("tie_word_embeddings", get("tie_embedding", lfm2)))
    rope = get("rope_scaling") or get("rope_parameters") or {}
    theta = float(rope.get("rope_theta", get("rope_theta", get("theta", 1e6 if lfm2 else 10000))))
    part = rope.get("partial_rotary_factor", get("partial_rotary_factor", 0.25)) if "qwen" in c.family else 1
    c.frequencies = a.frequencies(plain_rope(theta), int(c.head_dim * part))
    c.rope_of = None
    c.attention_scale, c.embedding_scale, c.residual_scale, c.logit_divisor = 1 / math.sqrt(float(c.head_dim)), 1, 1, 1
    if c.family == "granitemoehybrid":
        c.attention_scale, c.embedding_scale = float(get("attention_multiplier", 1)), get("embedding_multiplier", 1)
        c.residual_scale, c.logit_divisor = get("residual_multiplier", 1), get("logits_scaling", 1)
    c.rotates = c.family != "granitemoehybrid" or get("position_embedding_type") == "rope"
    every = get("full_attention_interval", 4)
    types = get("layers_block_type", get("layer_types")) or ["linear_attention" if (i + 1) % every else "full_attention"
                                                             for i in range(c.layers)]
    c.recurrent = [t not in ("full_attention", "attention") for t in types]
    c.experts = read_experts(c, get)
    return c


def read_experts(c, get):
    count = get("num_experts", get("num_local_experts", 0))
    if not count:
        return None
    qwen, granite = "qwen" in c.family, c.family == "granitemoehybrid"
    varies = c.family != "qwen3_5_moe"
    plain, step = (get("mlp_only_layers", []), get("decoder_sparse_step", 1)) if varies else ([], 1)
    dense = [i for i in range(c.layers) if (i in plain or (i + 1) % step != 0 if qwen
                                            else i < get("num_dense_layers", 0))]
    divided = get("norm_topk_prob", True) if varies else True
    return {"count": count, "chosen": get("num_experts_per_tok"), "dense": dense,
            "rule": 2 if granite else (1 if divided else 0) if qwen else (4 if divided else 3)}


# ---------------------------------------------------------------- docs/contracts/functions.md

def sigmoid(x):
    return F32(1) / (F32(1) + a.exp(F32(0) - x))


def softplus(x):
    t = a.exp(F32(0) - np.abs(x))
    s = t / (t + F32(2))
    z = s * s
    p = np.full(x.shape, F32(1) / F32(15), F32)
    for n in (13, 11, 9, 7, 5, 3):
        p = a.fma(p, z, F32(1) / F32(n))
    twice = s + s
    return np.maximum(F32(0), x) + a.fma(p * z, twice, twice)


def l2_norm(x, factor):
    total = a.lanes(x, lambda e, s: a.fma(e, e, s))
    return (x * (F32(1) / np.sqrt(total + F32(1e-6)))[..., None]) * F32(factor)


def convolution(x, before, w, bias=None):
    """Returns the convolution of x [T][channels] and its last inputs. w is [channels][taps]."""
    taps = w.shape[1]
    rows = np.concatenate([before, x])
    y = np.zeros(x.shape, F32)
    for t in range(taps):
        y = a.fma(w[:, t], rows[t:t + len(x)], y)
    return (y if bias is None else y + bias), rows[len(rows) - (taps - 1):]


def chain(k, s):
    """Sums k[..., i] s[..., i, :] over i ascending."""
    acc = np.zeros(s.shape[:-2] + s.shape[-1:], F64)
    for i in range(s.shape[-2]):
        acc = a.fma64(k[..., i, None].astype(F64) * s[..., i, :].astype(F64), acc)
    return acc.astype(F32)


def delta_rule(s, q, k, v, decay, beta):
    """Processes one token in all heads. s is [heads][key_dim][value_dim]; returns the new s and the output."""
    s = decay[:, None, None] * s
    u = beta[:, None] * (v - chain(k, s))
    s = a.fma(k[:, :, None], u[:, None, :], s)
    return s, chain(q, s)


def mamba2(s, c, b, x, decay, dt, skip):
    s = a.fma(b[:, :, None], (dt[:, None] * x)[:, None, :], decay[:, None, None] * s)
    return s, a.fma(skip[:, None], x, chain(c, s))


# ---------------------------------------------------------------- docs/contracts/models.md

class RecurrentCache(LayerCache):
    def __init__(self, c, kind):
        super().__init__(c, kind)
        self.state, self.conv = {}, {}

    def recurrent(self):
        """Returns the bytes of all arrays, layer by layer."""
        return b"".join(x[i].tobytes() for i in sorted(self.conv) for x in (self.state, self.conv) if i in x)


class Recurrent(Model):
    def __init__(self, directory, kind="f32"):
        self.c, self.t, self.kind = read_config(directory), Checkpoint(directory), kind
        self.qwen, self.lfm2 = "qwen" in self.c.family, self.c.family.startswith("lfm2")
        self.offset, self.names = F32(1) if self.qwen else None, ("embed_tokens.weight", "norm", "layers.")
        self.embedding = make(self.t("embed_tokens.weight"), kind, "embeddings")
        self.head = self.embedding if self.c.tied else make(self.t("lm_head.weight"), kind, "head")
        self.ropes = [(self.c.frequencies, 1.0)]

    def norm(self, name):
        w = self.t(name + ".weight")
        w = w if self.offset is None else w + self.offset
        return lambda x: a.rms_norm(x, w, self.c.norm_eps)

    def at(self, name, group, x, rows=None):
        """Multiplies x by NAME.weight, or by some of its rows."""
        w = self.t(name + ".weight")
        bias = self.t(name + ".bias") if self.t.has(name + ".bias") else None
        return Linear(w if rows is None else w[rows], self.kind, group, bias)(x)

    def forward(self, ids, kv="f32", cache=None):
        c = self.c
        cache = cache or RecurrentCache(c, kv)
        positions = range(cache.size, cache.size + len(ids))
        x = self.embedding.rows(np.array(ids))
        if c.embedding_scale != 1:
            x = x * F32(c.embedding_scale)
        names = ("operator_norm", "ffn_norm") if self.lfm2 else ("input_layernorm", "post_attention_layernorm")
        scaled = lambda y: y * F32(c.residual_scale) if c.residual_scale != 1 else y
        for i in range(c.layers):
            at = f"layers.{i}."
            h = self.norm(at + names[0])(x)
            mixer = self.attend if not c.recurrent[i] else (
                self.delta_net if self.qwen else self.short_conv if self.lfm2 else self.mamba)
            x = x + scaled(mixer(i, h, cache, positions))
            x = x + scaled(self.feed_forward(i, self.norm(at + names[1])(x)))
        cache.size += len(ids)
        y = self.head.product(self.norm("embedding_norm" if self.lfm2 else "norm")(x))
        return (y / F32(c.logit_divisor) if c.logit_divisor != 1 else y), cache

    def attend(self, i, h, cache, positions):
        c, at = self.c, f"layers.{i}.self_attn."
        heads = lambda x: x.reshape(len(x), -1, c.head_dim)
        q, k, v = (self.at(at + n, "attention", h) for n in ("q_proj", "k_proj", "v_proj"))
        if self.qwen:  # each head has its query, then its gate
            q, gate = (x.reshape(len(h), -1) for x in np.split(q.reshape(len(h), c.heads, -1), 2, axis=2))
        q, k, v = heads(q), heads(k), heads(v)
        norms = ("q_norm", "k_norm") if self.qwen else ("q_layernorm", "k_layernorm") if self.lfm2 else None
        if norms:
            q, k = self.norm(at + norms[0])(q), self.norm(at + norms[1])(k)
        if c.rotates:
            cos, sin = (x[:, None] for x in a.angles(positions, *self.ropes[0]))
            q, k = a.rotate(q, cos, sin), a.rotate(k, cos, sin)
        keys, values = cache.store(i, k, v)
        one = lambda pair, g: (pair[0][:, g], None if pair[1] is None else pair[1][:, g])
        z = np.concatenate([attention(q[:, n], one(keys, g), one(values, g), c.attention_scale, 0.0, 0, cache.kind,
                                      cache.size, list(cache.hidden))
                            for n in range(c.heads) for g in [n // (c.heads // c.kv_heads)]], axis=1)
        if self.qwen:
            z = z * sigmoid(gate)
        return self.at(at + ("out_proj" if self.lfm2 else "o_proj"), "attention", z)

    def convolve(self, i, name, x, cache):
        """[channels, 1, taps]"""
        w = self.t(name + ".weight")[:, 0]
        before = cache.conv.get(i, np.zeros((w.shape[1] - 1, x.shape[1]), F32))
        bias = self.t(name + ".bias") if self.t.has(name + ".bias") else None
        y, cache.conv[i] = convolution(x, before, w, bias)
        return y

    def decays(self, at):
        return np.array([F32(-a.exp64(float(x))) for x in self.t(at + "A_log")], F32), self.t(at + "dt_bias")

    def delta_net(self, i, h, cache, positions):
        c, at = self.c, f"layers.{i}.linear_attn."
        nk, nv, dk, dv = (c.get("linear_" + n) for n in ("num_key_heads", "num_value_heads", "key_head_dim",
                                                         "value_head_dim"))
        r = nv // nk
        if self.t.has(at + "in_proj_qkvz.weight"):  # each key head has q, k, v and z; b and a
            packed = self.at(at + "in_proj_qkvz", "attention", h).reshape(len(h), nk, -1)
            q, k, v, z = (x.reshape(len(h), -1) for x in np.split(packed, [dk, 2 * dk, 2 * dk + r * dv], axis=2))
            mixed = np.concatenate([q, k, v], axis=1)
            b, alpha = (x.reshape(len(h), nv) for x in
                        np.split(self.at(at + "in_proj_ba", "attention", h).reshape(len(h), nk, -1), 2, axis=2))
        else:
            mixed, z, b, alpha = (self.at(at + "in_proj_" + n, "attention", h) for n in ("qkv", "z", "b", "a"))
        y = self.convolve(i, at + "conv1d", mixed, cache)
        q, k, v = np.split(a.silu(y), [nk * dk, 2 * nk * dk], axis=1)
        q = np.repeat(l2_norm(q.reshape(len(h), nk, dk), 1 / math.sqrt(float(dk))), r, axis=1)
        k = np.repeat(l2_norm(k.reshape(len(h), nk, dk), 1), r, axis=1)
        v = v.reshape(len(h), nv, dv)
        rate, bias = self.decays(at)
        beta, decay = sigmoid(b), a.exp(softplus(alpha + bias) * rate)
        s, o = cache.state.get(i, np.zeros((nv, dk, dv), F32)), np.zeros((len(h), nv, dv), F32)
        for t in range(len(h)):
            s, o[t] = delta_rule(s, q[t], k[t], v[t], decay[t], beta[t])
        cache.state[i] = s
        o = a.silu(z.reshape(o.shape)) * a.rms_norm(o, self.t(at + "norm.weight"), c.norm_eps)
        return self.at(at + "out_proj", "attention", o.reshape(len(h), -1))

    def mamba(self, i, h, cache, positions):
        c, at = self.c, f"layers.{i}.mamba."
        n, d, size, groups = (c.get("mamba_" + x) for x in ("n_heads", "d_head", "d_state", "n_groups"))
        d = c.get("mamba_expand", 2) * c.hidden_size // n if d in (None, "auto") else d
        z, mixed, dt = np.split(self.at(at + "in_proj", "attention", h),
                                [n * d, 2 * n * d + 2 * groups * size], axis=1)
        y = a.silu(self.convolve(i, at + "conv1d", mixed, cache))
        x, b, key = np.split(y, [n * d, n * d + groups * size], axis=1)
        b, key = (np.repeat(t.reshape(len(h), groups, size), n // groups, axis=1) for t in (b, key))
        x = x.reshape(len(h), n, d)
        rate, bias = self.decays(at)
        dt = softplus(dt + bias)
        low, high = ((t if not isinstance(t, dict) else math.inf) for t in c.get("time_step_limit", [0, math.inf]))
        dt = np.minimum(F32(high), np.maximum(F32(low), dt))
        decay = a.exp(dt * rate)
        s, o = cache.state.get(i, np.zeros((n, size, d), F32)), np.zeros((len(h), n, d), F32)
        for t in range(len(h)):
            s, o[t] = mamba2(s, key[t], b[t], x[t], decay[t], dt[t], self.t(at + "D"))
        cache.state[i] = s
        o = a.silu(z) * o.reshape(len(h), -1)
        o = a.rms_norm(o, self.t(at + "norm.weight"), c.norm_eps)
        return self.at(at + "out_proj", "attention", o)

    def short_conv(self, i, h, cache, positions):
        at = f"layers.{i}.conv."
        b, gate, x = np.split(self.at(at + "in_proj", "attention", h), 3, axis=1)
        return self.at(at + "out_proj", "attention", gate * self.convolve(i, at + "conv", b * x, cache))

    # ------------------------------------------------------------ feed-forward layers

    def gated(self, name, x, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = names
        return self.at(name + down, "mlp",
                       a.silu(self.at(name + gate, "mlp", x)) * self.at(name + up, "mlp", x))

    def halves(self, x, both, down):
        """Returns the output of an MLP whose gates and ups are one matrix, gates first."""
        gate, up = np.split(make(np.ascontiguousarray(both), self.kind, "mlp").product(x), 2, axis=1)
        return make(np.ascontiguousarray(down), self.kind, "mlp").product(a.silu(gate) * up)

    def feed_forward(self, i, x):
        c, at = self.c, f"layers.{i}."
        sparse = c.experts is not None and i not in c.experts["dense"]
        if self.lfm2:
            names = ("w1", "w3", "w2")
            if not sparse:
                return self.gated(at + "feed_forward.", x, names)
            return self.mixture(x, at + "feed_forward.gate", at + "feed_forward.experts.", names,
                                self.t(at + "feed_forward.expert_bias") if c.get("use_expert_bias", True) else None)
        if not self.qwen:
            shared = self.halves(x, self.t(at + "shared_mlp.input_linear.weight"),
                                 self.t(at + "shared_mlp.output_linear.weight"))
            moe = at + "block_sparse_moe."
            return self.mixture(x, moe + "router.layer", moe, None) + shared if sparse else shared
        if not sparse:
            return self.gated(at + "mlp.", x)
        y = self.mixture(x, at + "mlp.gate", at + "mlp.experts.", ("gate_proj", "up_proj", "down_proj"))
        gate = make(self.t(at + "mlp.shared_expert_gate.weight"), "f32", "mlp").product(x)
        return y + self.gated(at + "mlp.shared_expert.", x) * sigmoid(gate)

    def expert(self, x, e, at, names):
        if self.t.has(at + "gate_up_proj"):
            return self.halves(x, self.t(at + "gate_up_proj")[e], self.t(at + "down_proj")[e])
        if names is None:
            return self.halves(x, self.t(at + "input_linear.weight")[e], self.t(at + "output_linear.weight")[e])
        return self.gated(f"{at}{e}.", x, names)

    def mixture(self, x, router, at, names, bias=None):
        logits = make(self.t(router + ".weight"), "f32", "mlp").product(x)
        weights = np.array([self.route_of(row, bias) for row in logits])
        z = np.zeros(x.shape, F32)
        for e in range(self.c.experts["count"]):
            rows = np.nonzero(weights[:, e])[0]
            if len(rows):
                z[rows] = a.fma(weights[rows, e, None], self.expert(x[rows], e, at, names), z[rows])
        return z

    def route_of(self, logits, bias):
        e = self.c.experts
        if e["rule"] < 3:
            return self.route(logits)
        score = sigmoid(logits)
        chosen = np.sort(np.argsort(-(score if bias is None else score + bias), kind="stable")[:e["chosen"]])
        w = score[chosen]
        if e["rule"] == 4:
            total = F32(0)
            for x in w:
                total = total + x
            w = w / (total + F32(1e-6))
        factor = F32(self.c.get("routed_scaling_factor", 1))
        weights = np.zeros(e["count"], F32)
        weights[chosen] = w * factor if factor != 1 else w
        return weights
