"""Checkpoints and forward passes of docs/contracts/models.md and attention.md, written from those
pages alone."""

import json
import os
import struct

import numpy as np

import contract_arithmetic as a
from contract_arithmetic import F32, F64
from contract_config import read_config
from contract_products import Floats, Mxfp4, make

BLOCK = 64


# ---------------------------------------------------------------- weights

class Checkpoint:
    """A model.safetensors: tensors by name without the family's prefix."""

    PREFIXES = ("language_model.model.", "model.language_model.", "transformer.", "gpt_neox.", "model.")

    def __init__(self, directory):
        with open(os.path.join(directory, "model.safetensors"), "rb") as file:
            data = file.read()
        size = struct.unpack_from("<Q", data)[0]
        self.header, self.data = json.loads(data[8:8 + size]), data[8 + size:]
        self.header.pop("__metadata__", None)
        self.short = {self._short(name): name for name in self.header}

    def _short(self, name):
        if name.endswith("lm_head.weight"):
            return "lm_head.weight"
        return next((name[len(p):] for p in self.PREFIXES if name.startswith(p)), name)

    def raw(self, name):
        """Returns the dtype and the elements as stored."""
        entry = self.header[self.short[name]]
        begin, end = entry["data_offsets"]
        kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}[entry["dtype"]]
        return entry["dtype"], np.frombuffer(self.data[begin:end], kind).reshape(entry["shape"])

    def __call__(self, name):
        dtype, x = self.raw(name)
        return a.widen_bf16(x) if dtype == "BF16" else x.astype(F32)

    def has(self, name):
        return name in self.short

    def of_stack(self, experts, i, name):
        """Returns the matrix (float32 or Mxfp4) and the bias of expert i of gpt-oss."""
        stack = experts + ("down_proj" if name == "down_proj" else "gate_up_proj")
        part = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2), "down_proj": slice(None)}[name]
        bias = self(stack + "_bias")[i][part]
        if not self.has(stack + "_blocks"):
            return self(stack)[i].T[part], bias
        codes = self.raw(stack + "_blocks")[1][i][part]
        pairs = np.stack([codes & 15, codes >> 4], axis=-1)  # the low half of a byte comes first
        return Mxfp4(pairs.reshape(*codes.shape[:-1], 32), self.raw(stack + "_scales")[1][i][part]), bias


class Linear:
    def __init__(self, w, kind, group, bias=None):
        if isinstance(w, Mxfp4):
            self.matrix = w if kind == "ggml" else make(w.wide(), kind, group)
        else:
            self.matrix = Floats(w) if kind == "ggml" else make(np.ascontiguousarray(w), kind, group)
        self.bias = bias

    def __call__(self, x):
        y = self.matrix.product(x)
        return y if self.bias is None else y + self.bias


# ---------------------------------------------------------------- keys, values, attention

class Cache:
    """Keys and values of all positions as attention takes them, and the bytes of their blocks."""

    def __init__(self, c, kind):
        self.c, self.kind, self.layers, self.size, self.hidden = c, kind, [None] * c.layers, 0, set()

    def store(self, layer, k, v):
        """Appends k and v, [T][kv_heads][head_dim] each. Returns all stored keys and values, each
        with scales [P][kv_heads] or None."""
        new, old = [store_row(x, self.kind) for x in (k, v)], self.layers[layer]
        if old is not None:
            new = [tuple(None if y is None else np.concatenate([x, y]) for x, y in zip(*pair))
                   for pair in zip(old, new)]
        self.layers[layer] = new
        return new

    def prune(self, begin, end, shift, ropes):
        """Removes positions. With `shift` the later ones move up; otherwise they are hidden and
        zeroed."""
        for layer, stored in enumerate(self.layers):
            if stored is None:  # it reads another layer's
                continue
            keys, values = stored
            if not shift:
                for x in (*keys, *values):
                    if x is not None:
                        x[begin:end] = 0
                continue
            k = read_row(keys, self.kind)[end:]
            cos, sin = a.angles([end - begin], ropes[self.c.rope_of[layer]][0])
            moved = store_row(a.rotate(k, cos[:, None], F32(0) - sin[:, None]), self.kind)
            keys = tuple(None if x is None else np.concatenate([x[:begin], y]) for x, y in zip(keys, moved))
            self.layers[layer] = [keys,
                                  tuple(None if x is None else np.delete(x, range(begin, end), axis=0) for x in values)]
        if shift:
            self.size -= end - begin
        else:
            self.hidden.update(range(begin, end))

    def bytes(self):
        out = bytearray()
        for first in range(0, self.size, BLOCK):
            block = bytearray()
            for stored in self.layers:
                for head in range(self.c.kv_heads):
                    for (x, scale), key in zip(stored, (True, False)):
                        part = x[first:first + BLOCK, head]
                        part = np.pad(part, ((0, BLOCK - len(part)), (0, 0)))
                        block += np.ascontiguousarray(part.T if key else part).tobytes()
                        if scale is not None:
                            some = scale[first:first + BLOCK, head]
                            block += np.pad(some, (0, BLOCK - len(some))).tobytes()
            out += block + bytes(-len(block) % 4096)
        return bytes(out)


def store_row(x, kind):
    if kind == "bf16":
        return a.round_bf16(x), None
    if kind == "f16":
        return a.round_f16(x), None
    if kind == "f32":
        return x, None
    largest = np.abs(x).max(axis=-1)
    finite = np.isfinite(x).all(axis=-1)
    zero = ~finite | (largest < F32(2.0**-100))
    with np.errstate(all="ignore"):
        q = a.nearest(x * (F32(127) / largest)[..., None])
        scale = largest / F32(127)
    q = np.where(zero[..., None], F32(0), q).astype(np.int8)
    return q, np.where(finite, np.where(zero, F32(0), scale), a.from_bits32(0x7FC00000))


def read_row(stored, kind):
    x, scale = stored
    return widened(x, kind) if scale is None else x.astype(F32) * scale[..., None]


def widened(x, kind):
    return a.widen_bf16(x) if kind == "bf16" else a.widen_f16(x) if kind == "f16" else x.astype(F32)


def attention(q, keys, values, scale, softcap, window, kind="f32", first=0, hidden=(), sink=None):
    """Computes attention of one head. q [T][D] holds the queries of positions first, first + 1,
    ...; keys and values are (x [P][D], scales [P] or None)."""
    (k, k_scale), (v, v_scale) = keys, values
    k, v = widened(k, kind), widened(v, kind)
    rows = len(q)
    m, l, o = np.full(rows, -np.inf, F32), np.zeros(rows, F32), np.zeros(q.shape, F32)
    if sink is not None:
        m, l = np.full(rows, sink, F32), np.ones(rows, F32)
    at = np.arange(first, first + rows)[:, None]
    for begin in range(0, len(k), BLOCK):
        p = np.arange(begin, min(begin + BLOCK, len(k)))
        seen = (p <= at) & ((p > at - window) if window else True) & ~np.isin(p, hidden)
        if not seen.any():
            continue
        s = np.zeros((rows, len(p)))
        for d in range(q.shape[1]):
            s = a.fma64(q[:, d, None].astype(F64) * k[p, d].astype(F64), s)
        s = s.astype(F32)
        if k_scale is not None:
            s = s * k_scale[p]
        s = s * F32(scale)
        if softcap:
            s = a.softcap(s, softcap)
        s = np.where(seen, s, F32(-np.inf))
        mb = s.max(axis=1)
        any_seen = seen.any(axis=1)
        with np.errstate(invalid="ignore"):
            w = np.where(seen, a.exp(s - mb[:, None]), F32(0))
        lb = a.lanes(w, lambda x, total: total + x)
        if v_scale is not None:
            w = w * v_scale[p]
        ob = np.zeros(q.shape)
        for i, position in enumerate(p):
            ob = np.where(seen[:, i, None], a.fma64(w[:, i, None].astype(F64) * v[position].astype(F64), ob), ob)
        ob = ob.astype(F32)
        with np.errstate(invalid="ignore"):
            after = np.maximum(m, mb)
            keep, take = a.exp(m - after), a.exp(mb - after)
        l = np.where(any_seen, a.fma(lb, take, l * keep), l)
        o = np.where(any_seen[:, None], a.fma(ob, take[:, None], o * keep[:, None]), o)
        m = np.where(any_seen, after, m)
    return o / l[:, None]


# ---------------------------------------------------------------- forward passes

class Model:
    def __init__(self, directory, kind="f32"):
        self.c, self.t, self.kind = read_config(directory), Checkpoint(directory), kind
        c, t = self.c, self.t
        self.offset = F32(1) if c.family.startswith("gemma") else None
        self.names = {"gpt2": ("wte.weight", "ln_f", "h."),
                      "gpt_neox": ("embed_in.weight", "final_layer_norm", "layers.")}.get(
            c.family, ("embed_tokens.weight", "norm", "layers."))
        kind = "f32" if kind == "ggml" else kind  # only experts have MXFP4
        self.embedding = make(t(self.names[0]), kind, "embeddings")
        head = "embed_out.weight" if c.family == "gpt_neox" else "lm_head.weight"
        self.head = self.embedding if c.tied_head else make(t(head), kind, "head")
        turned = c.rotary_dim or c.head_dim
        self.ropes = [(a.frequencies(r, turned), r.get("attention_factor", 1.0)) for r in c.ropes]

    def norm(self, name):
        w = self.t(name + ".weight")
        w = w if self.offset is None else w + self.offset
        if self.c.family in ("gpt2", "gpt_neox"):
            b = self.t(name + ".bias")
            return lambda x: a.layer_norm(x, w, b, self.c.norm_eps)
        return lambda x: a.rms_norm(x, w, self.c.norm_eps)

    def linear(self, names, group, bias, turn=None):
        w = np.concatenate([self.t(n + ".weight").T if turn == "transposed" else self.t(n + ".weight") for n in names])
        b = np.concatenate([self.t(n + ".bias") for n in names]) if bias else None
        if turn == "interleaved":  # [heads][q, k, v][head_dim] -> q of all heads, k, v
            order = np.arange(len(w)).reshape(self.c.heads, 3, -1).transpose(1, 0, 2).reshape(-1)
            w, b = w[order], None if b is None else b[order]
        return Linear(w, self.kind, group, b)

    def layer(self, i):
        """Returns the layer's matrices: q, k and v in one, output, gate and up (or up alone),
        down."""
        c, at = self.c, self.names[2] + str(i) + "."
        if c.family == "gpt2":
            return [self.linear([at + n], g, True, "transposed") for n, g in
                    (("attn.c_attn", "attention"), ("attn.c_proj", "attention"), ("mlp.c_fc", "mlp"),
                     ("mlp.c_proj", "mlp"))]
        if c.family == "gpt_neox":
            return [self.linear([at + "attention.query_key_value"], "attention", c.attention_bias, "interleaved"),
                    self.linear([at + "attention.dense"], "attention", c.attention_bias),
                    self.linear([at + "mlp.dense_h_to_4h"], "mlp", True),
                    self.linear([at + "mlp.dense_4h_to_h"], "mlp", True)]
        fused = c.family == "phi3"
        qkv = ["qkv_proj"] if fused else ["q_proj", "k_proj", "v_proj"]
        gates = ["gate_up_proj"] if fused else ["gate_proj", "up_proj"]
        bias = c.attention_bias
        attention = [self.linear([at + "self_attn." + n for n in qkv], "attention", bias),
                     self.linear([at + "self_attn.o_proj"], "attention", bias and c.family != "qwen2")]
        if c.experts and i not in c.experts["dense"]:
            return attention + [None, lambda x: self.experts(at, x)]
        return attention + [
                self.linear([at + "mlp." + n for n in gates], "mlp", c.mlp_bias),
                self.linear([at + "mlp.down_proj"], "mlp", c.mlp_bias)]

    def experts(self, at, x):
        """Returns the sum of the experts of a layer."""
        c, e = self.c, self.c.experts
        moe = at + ("mlp." if c.family in ("qwen3_moe", "olmoe", "gpt_oss") else "block_sparse_moe.")
        name = moe + {"granitemoe": "router.layer", "gpt_oss": "router"}.get(c.family, "gate")
        router = Linear(self.t(name + ".weight"), "f32", "mlp",
                        self.t(name + ".bias") if c.family == "gpt_oss" else None)
        weights = np.array([self.route(row) for row in router(x)])
        gate, up, down = ("w1", "w3", "w2") if c.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        z = np.zeros(x.shape, F32)
        for i in range(e["count"]):
            rows = np.nonzero(weights[:, i])[0]
            if len(rows) == 0:
                continue
            if c.family == "gpt_oss":
                g, u, d = (Linear(w, self.kind, "mlp", b)
                           for w, b in (self.t.of_stack(moe + "experts.", i, n) for n in (gate, up, down)))
                y = d(a.clamped(g(x[rows]), u(x[rows]), c.gate_limit))
            else:
                g, u, d = (self.linear([f"{moe}experts.{i}.{n}"], "mlp", False) for n in (gate, up, down))
                y = d(a.silu(g(x[rows])) * u(x[rows]))
            z[rows] = a.fma(weights[rows, i, None], y, z[rows])
        return z

    def route(self, logits):
        """Returns the weights with which the router combines all experts for one row; 0 for those not chosen."""
        e = self.c.experts
        chosen = np.sort(np.argsort(-logits, kind="stable")[:e["chosen"]])

        def softmax(x):
            s = a.exp(x - x.max())
            return s / a.lanes(s[None], lambda x, total: total + x)[0]

        w = softmax(logits[chosen]) if e["rule"] == 2 else softmax(logits)[chosen]
        if e["rule"] == 1:
            total = F32(0)
            for x in w:
                total = total + x
            w = w / total
        all_weights = np.zeros(e["count"], F32)
        all_weights[chosen] = w
        return all_weights

    def attend(self, i, y, cache, positions):
        c = self.c
        q, k, v = np.split(y, [c.heads * c.head_dim, (c.heads + c.kv_heads) * c.head_dim], axis=1)
        at = self.names[2] + str(i) + ".self_attn."
        if c.family in ("olmo2", "olmo3", "olmoe"):
            q, k = self.norm(at + "q_norm")(q), self.norm(at + "k_norm")(k)
        if c.qkv_clip:
            q, k, v = (np.minimum(F32(c.qkv_clip), np.maximum(F32(-c.qkv_clip), x)) for x in (q, k, v))
        q, k, v = (x.reshape(len(x), -1, c.head_dim) for x in (q, k, v))
        if c.family in ("gemma3", "qwen3", "qwen3_moe"):
            q, k = self.norm(at + "q_norm")(q), self.norm(at + "k_norm")(k)
        if c.rope_of and c.rope_of[i] >= 0:
            cos, sin = (x[:, None] for x in a.angles(positions, *self.ropes[c.rope_of[i]]))
            q, k = a.rotate(q, cos, sin), a.rotate(k, cos, sin)
        keys, values = cache.store(i, k, v)
        sinks = self.t(at + "sinks") if c.family == "gpt_oss" else [None] * c.heads
        one = lambda pair, g: (pair[0][:, g], None if pair[1] is None else pair[1][:, g])
        z = [attention(q[:, h], one(keys, g), one(values, g), c.attention_scale, c.attention_softcap, c.window[i],
                       cache.kind,
                       cache.size, list(cache.hidden), sinks[h])
             for h in range(c.heads) for g in [h // (c.heads // c.kv_heads)]]
        return np.concatenate(z, axis=1)

    def forward(self, ids, kv="f32", cache=None):
        """Appends tokens to the cache. Returns their logits [T][vocab] and the cache."""
        c, t = self.c, self.t
        cache = cache or Cache(c, kv)
        positions = range(cache.size, cache.size + len(ids))
        x = self.embedding.rows(np.array(ids))
        if F32(c.embedding_scale) != 1:
            x = x * F32(c.embedding_scale)
        if c.family == "gpt2":
            x = x + t("wpe.weight")[positions.start:positions.stop]
        for i in range(c.layers):
            x = self.run_layer(i, x, cache, positions)
        cache.size += len(ids)
        y = self.head.product(self.norm(self.names[1])(x))
        if c.logit_divisor != 1:
            y = y / F32(c.logit_divisor)
        return (a.softcap(y, c.logit_softcap) if c.logit_softcap else y), cache

    def run_layer(self, i, x, cache, positions):
        c, at = self.c, self.names[2] + str(i) + "."
        family = c.family
        qkv, o, up, down = self.layer(i)
        before = {"gpt2": "ln_1", "gpt_neox": "input_layernorm"}.get(family, "input_layernorm")
        middle = {"gpt2": "ln_2", "gemma2": "pre_feedforward_layernorm", "gemma3": "pre_feedforward_layernorm"}.get(
            family, "post_attention_layernorm")
        olmo, sandwich = family in ("olmo2", "olmo3"), family in ("gemma2", "gemma3")
        y = o(self.attend(i, qkv(x if olmo else self.norm(at + before)(x)), cache, positions))
        if olmo or sandwich:
            y = self.norm(at + "post_attention_layernorm")(y)
        if c.residual_scale != 1:
            y = y * F32(c.residual_scale)
        after = x + y
        z = after if olmo else self.norm(at + middle)(x if c.parallel_residual else after)
        if family in ("gpt2", "gpt_neox"):
            z = a.gelu_tanh(up(z)) if family == "gpt2" else a.gelu(up(z))
        elif up is not None:
            z = up(z)
            gate, rest = np.split(z, 2, axis=1)
            z = (a.gelu_tanh(gate) if family.startswith("gemma") else a.silu(gate)) * rest
        z = down(z)
        if olmo or sandwich:
            z = self.norm(at + "post_feedforward_layernorm")(z)
        if c.residual_scale != 1:
            z = z * F32(c.residual_scale)
        return after + z
