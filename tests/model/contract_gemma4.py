"""Gemma 4 and Gemma 3n, written from docs/contracts/models.md alone."""

import json
import math
import os
import statistics

import numpy as np

import contract_arithmetic as a
from contract_arithmetic import F32
from contract_config import plain_rope
from contract_model import BLOCK, Cache, Checkpoint, Model, attention
from contract_products import make

FAMILIES = {"Gemma4ForCausalLM": "gemma4", "Gemma4ForConditionalGeneration": "gemma4", "Gemma3nForCausalLM": "gemma3n",
            "Gemma3nForConditionalGeneration": "gemma3n"}


class Config:
    pass


def read_config(directory, name="config.json"):
    with open(os.path.join(directory, name), encoding="utf-8") as file:
        whole = json.load(file)
    j = whole.get("text_config") or whole
    c = Config()
    c.family = FAMILIES[whole["architectures"][0]]
    get = lambda name, absent=None: absent if j.get(name) is None else j[name]
    c.vocab_size, c.hidden_size, c.layers, c.heads = (j[n] for n in ("vocab_size", "hidden_size", "num_hidden_layers",
                                                                     "num_attention_heads"))
    c.max_positions, c.norm_eps = j["max_position_embeddings"], float(get("rms_norm_eps", 1e-6))
    every = 6 if c.family == "gemma4" else 5
    types = get("layer_types", ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(c.layers)])
    c.window = [0 if t == "full_attention" else get("sliding_window", 512) for t in types]
    if c.family == "gemma4":
        c.window[-1] = 0
    full = [w == 0 for w in c.window]
    c.k_is_v = [f and get("attention_k_eq_v", False) for f in full]
    exceptions = j.get("per_layer_config")
    c.dim, c.kv = [], []
    for i in range(c.layers):
        dim, kv = j["head_dim"], j["num_key_value_heads"]
        if exceptions is not None:
            own = exceptions.get(str(i), {})
            dim, kv = own.get("head_dim", dim), own.get("num_key_value_heads", kv)
        elif full[i] and c.family == "gemma4":
            dim = j.get("global_head_dim", 512) or dim
            kv = get("num_global_key_value_heads", kv) if c.k_is_v[i] else kv
        c.dim.append(dim)
        c.kv.append(kv)
    first = c.layers - get("num_kv_shared_layers", 0)
    c.owner = [i if i < first else max(o for o in range(first) if c.window[o] == c.window[i]) for i in range(c.layers)]
    c.inputs = get("hidden_size_per_layer_input", 256)
    c.softcap = float(get("final_logit_softcapping", 0 if c.family == "gemma4" else 30))
    c.tied = get("tie_word_embeddings", whole.get("tie_word_embeddings", True))
    c.ropes = [rope_of(j, full[i], c.dim[i]) for i in range(c.layers)]
    c.kv_heads, c.rope_of = None, range(c.layers)  # here they differ by layer
    c.experts = ({"count": j["num_experts"], "chosen": j["top_k_experts"], "rule": 1}
                 if get("enable_moe_block", False) else None)
    if c.family == "gemma3n":
        c.streams, c.active = get("altup_num_inputs", 4), get("altup_active_idx", 0)
        c.scaled = get("altup_correct_scale", True)
        c.sparsity = get("activation_sparsity_pattern", [0.0] * c.layers)
    return c


def rope_of(j, full, dim):
    kind = "full_attention" if full else "sliding_attention"
    given = (j.get("rope_parameters") or {}).get(kind, {})
    absent = j.get("rope_theta", 1e6) if full else j.get("rope_local_base_freq", 1e4)
    f = a.frequencies(plain_rope(float(given.get("rope_theta", absent))), dim)
    if given.get("rope_type") == "proportional":
        f[int(given.get("partial_rotary_factor", 1.0) * dim / 2):] = 0
    return f


class Gemma4(Model):
    def __init__(self, directory, kind="f32"):
        self.c, self.t, self.kind = read_config(directory), Checkpoint(directory), kind
        self.offset, self.names = None, ("embed_tokens.weight", "norm", "layers.")
        self.embedding = make(self.t("embed_tokens.weight"), kind, "embeddings")
        self.head = self.embedding if self.c.tied else make(self.t("lm_head.weight"), kind, "head")
        self.ropes = [(f, 1.0) for f in self.c.ropes]

    def norm(self, name):
        w = self.t(name + ".weight")
        return lambda x: a.rms_norm(x, w, self.c.norm_eps)

    def at(self, i, name, group, x):
        return self.linear([f"layers.{i}.{name}"], group, False)(x)

    def layer_inputs(self, ids, h):
        """[T][layers][p]"""
        c = self.c
        context = (self.linear(["per_layer_model_projection"], "embeddings", False)(h)
                   * F32(1 / math.sqrt(float(c.hidden_size))))
        context = self.norm("per_layer_projection_norm")(context.reshape(len(ids), c.layers, c.inputs))
        table = self.t("embed_tokens_per_layer.weight")
        rows = table[[i if i < len(table) else 0 for i in ids]] * np.sqrt(F32(c.inputs))
        return (context + rows.reshape(context.shape)) * F32(1 / math.sqrt(2.0))

    def attend(self, i, h, cache, positions):
        c, own = self.c, self.c.owner[i] == i
        heads = lambda x, n: x.reshape(len(x), n, c.dim[i])
        cos, sin = (x[:, None] for x in a.angles(positions, *self.ropes[i]))
        names = ["q_proj"] + (["k_proj"] if own else []) + (["v_proj"] if own and not c.k_is_v[i] else [])
        y = self.linear([f"layers.{i}.self_attn.{n}" for n in names], "attention", False)(h)
        q, k, v = np.split(y, [c.heads * c.dim[i], (c.heads + c.kv[i]) * c.dim[i]], axis=1)
        q = a.rotate(self.norm(f"layers.{i}.self_attn.q_norm")(heads(q, c.heads)), cos, sin)
        if own:
            v = heads(k if c.k_is_v[i] else v, c.kv[i])
            k = a.rotate(self.norm(f"layers.{i}.self_attn.k_norm")(heads(k, c.kv[i])), cos, sin)
            cache.store(i, k, a.rms_norm(v, np.ones(c.dim[i], F32), c.norm_eps))
        keys, values = cache.layers[c.owner[i]]
        one = lambda pair, g: (pair[0][:, g], None if pair[1] is None else pair[1][:, g])
        z = [attention(q[:, n], one(keys, g), one(values, g), 1.0, 0.0, c.window[i], cache.kind, cache.size,
                       list(cache.hidden))
             for n in range(c.heads) for g in [n // (c.heads // c.kv[i])]]
        return self.at(i, "self_attn.o_proj", "attention", np.concatenate(z, axis=1))

    def mlp(self, i, h):
        gate, up = np.split(self.linear([f"layers.{i}.mlp.{n}" for n in ("gate_proj", "up_proj")], "mlp", False)(h), 2,
                            axis=1)
        return self.at(i, "mlp.down_proj", "mlp", a.gelu_tanh(self.gates(i, gate)) * up)

    def gates(self, i, gate):
        return gate

    def gated_input(self, i, x, inputs):
        t = a.gelu_tanh(self.at(i, "per_layer_input_gate", "mlp", x)) * inputs[:, i]
        return self.norm(f"layers.{i}.post_per_layer_input_norm")(self.at(i, "per_layer_projection", "mlp", t))

    def run_layer_of(self, i, x, inputs, cache, positions):
        n = lambda name, y: self.norm(f"layers.{i}.{name}")(y)
        x = x + n("post_attention_layernorm", self.attend(i, n("input_layernorm", x), cache, positions))
        y = self.mlp(i, n("pre_feedforward_layernorm", x))
        if self.c.experts:
            y = n("post_feedforward_layernorm_1", y) + n("post_feedforward_layernorm_2", self.mixture(i, x))
        x = x + n("post_feedforward_layernorm", y)
        if self.c.inputs:
            x = x + self.gated_input(i, x, inputs)
        return x * self.t(f"layers.{i}.layer_scalar")

    def mixture(self, i, x):
        """Returns the output of a layer's experts for the residual stream."""
        c, at = self.c, f"layers.{i}."
        read = a.rms_norm(x, self.t(at + "router.scale"), c.norm_eps) * F32(1 / math.sqrt(float(c.hidden_size)))
        logits = make(self.t(at + "router.proj.weight"), "f32", "mlp").product(read)
        weights = np.array([self.route(row) for row in logits]) * self.t(at + "router.per_expert_scale")
        h = self.norm(at + "pre_feedforward_layernorm_2")(x)
        z = np.zeros(x.shape, F32)
        for e in range(c.experts["count"]):
            rows = np.nonzero(weights[:, e])[0]
            if len(rows) == 0:
                continue
            gates, down = (make(np.ascontiguousarray(self.t(at + "experts." + n)[e]), self.kind, "mlp")
                           for n in ("gate_up_proj", "down_proj"))
            gate, up = np.split(gates.product(h[rows]), 2, axis=1)
            z[rows] = a.fma(weights[rows, e, None], down.product(a.gelu_tanh(gate) * up), z[rows])
        return z

    def enter(self, h):
        return h

    def leave(self, x):
        return x

    def forward(self, ids, kv="f32", cache=None):
        c = self.c
        cache = cache or LayerCache(c, kv)
        positions = range(cache.size, cache.size + len(ids))
        h = self.embedding.rows(np.array(ids)) * np.sqrt(F32(c.hidden_size))
        inputs = self.layer_inputs(ids, h) if c.inputs else None
        x = self.enter(h)
        for i in range(c.layers):
            x = self.run_layer_of(i, x, inputs, cache, positions)
        cache.size += len(ids)
        y = self.head.product(self.norm("norm")(self.leave(x)))
        return (a.softcap(y, c.softcap) if c.softcap else y), cache


class LayerCache(Cache):
    """The cache of a model whose layers differ. Layers that read the keys and values of another have no bytes."""

    def bytes(self):
        out = bytearray()
        for first in range(0, self.size, BLOCK):
            block = bytearray()
            for stored in (s for s in self.layers if s is not None):
                for head in range(stored[0][0].shape[1]):
                    for (x, scale), key in zip(stored, (True, False)):
                        part = x[first:first + BLOCK, head]
                        part = np.pad(part, ((0, BLOCK - len(part)), (0, 0)))
                        block += np.ascontiguousarray(part.T if key else part).tobytes()
                        if scale is not None:
                            some = scale[first:first + BLOCK, head]
                            block += np.pad(some, (0, BLOCK - len(some))).tobytes()
            out += block + bytes(-len(block) % 4096)
        return bytes(out)


class Gemma3n(Gemma4):
    def size(self, x):
        return np.sqrt(a.lanes(x, lambda e, s: a.fma(e, e, s)) / F32(x.shape[-1]) + F32(0))

    def rescale(self, y, like):
        return y * (self.size(like) / np.maximum(self.size(y), np.sqrt(F32(1e-5))))[:, None]

    def enter(self, h):
        project = lambda j: self.linear([f"altup_projections.{j}"], "mlp", False)(h)
        return [h] + [self.rescale(project(j), h) for j in range(self.c.streams - 1)]

    def leave(self, x):
        total = x[0]
        for j in range(self.c.streams - 1):
            back = self.linear([f"altup_unembed_projections.{j}"], "mlp", False)(x[j + 1])
            total = total + self.rescale(back, x[0])
        return total / F32(self.c.streams)

    def modalities(self, i, x):
        y = self.norm(f"layers.{i}.altup.router_norm")(x) / F32(self.c.hidden_size)
        return a.tanh(self.at(i, "altup.modality_router", "mlp", y))

    def gates(self, i, gate):
        if self.c.sparsity[i] == 0:
            return gate
        z, n = F32(statistics.NormalDist().inv_cdf(self.c.sparsity[i])), F32(gate.shape[-1])
        mean = a.lanes(gate, lambda e, s: s + e) / n
        deviation = np.sqrt(self.padded_squares(gate, mean) / n)
        return np.maximum(gate - (mean + z * deviation)[:, None], F32(0))

    def padded_squares(self, gate, mean):
        d = gate - mean[:, None]
        return a.lanes(d, lambda e, s: s + e * e)

    def run_layer_of(self, i, streams, inputs, cache, positions):
        c = self.c
        n = lambda name, y: self.norm(f"layers.{i}.{name}")(y)
        m = self.at(i, "altup.prediction_coefs", "mlp", self.modalities(i, streams[c.active]))
        predicted = []
        for to in range(c.streams):
            s = np.zeros_like(streams[0])
            for j in range(c.streams):
                s = s + m[:, to * c.streams + j, None] * streams[j]
            predicted.append(streams[to] + s)
        active = predicted[c.active]
        h = n("input_layernorm", active)
        laurel = n("laurel.post_laurel_norm",
                   self.at(i, "laurel.linear_right", "mlp", self.at(i, "laurel.linear_left", "mlp", h)))
        x = active + n("post_attention_layernorm", self.attend(i, h, cache, positions))
        x = (x + (laurel + h)) * F32(1 / math.sqrt(2.0))
        x = x + n("post_feedforward_layernorm", self.mlp(i, n("pre_feedforward_layernorm", x)))
        coefficients = self.at(i, "altup.correction_coefs", "mlp", self.modalities(i, x))
        corrected = [p + (F32(1) + coefficients[:, j, None]) * (x - active) for j, p in enumerate(predicted)]
        first = corrected[c.active]
        if c.scaled:
            first = first * self.t(f"layers.{i}.altup.correct_output_scale")
        g = self.gated_input(i, first, inputs)
        return [y if j == 0 else y + g for j, y in enumerate(corrected)]


def load_model(directory, kind="f32"):
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        family = FAMILIES.get((json.load(file).get("architectures") or [""])[0])
    return {"gemma4": Gemma4, "gemma3n": Gemma3n}.get(family, Model)(directory, kind)
