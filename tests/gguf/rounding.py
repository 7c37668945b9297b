"""Matrices whose columns are no whole super-blocks of K types become Q8_0. quantize and convert-model round them each
by its own rule.

    rounding.py STET ROOT
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_writer  # noqa: E402

STET = sys.argv[1]
COLUMNS, WIDTH, VOCABULARY = 288, 64, 96


def run(*command):
    done = subprocess.run([STET, *command], capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr[-500:])


def blocks_of(x, q, d):
    d = d.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return np.concatenate([d, q.astype(np.int8).view(np.uint8)], 1).tobytes()


def by_contract(x):
    """The rule of q8: integers are those of the rounded scale, and ties go to even ones."""
    x = x.reshape(-1, 32)
    largest = np.abs(x).max(1)
    d = (largest / np.float32(127)).astype(np.float16)
    d = np.where(largest > np.float32(127.5) * d.astype(np.float32), np.nextafter(d, np.float16(np.inf)), d)
    inverse = np.float32(1) / d.astype(np.float32)
    return blocks_of(x, np.clip(np.rint(x * inverse[:, None]), -127, 127), d)


def by_ggml(x):
    """The rule of ggml's reference: integers are those of the scale before it is rounded, and ties go away from 0."""
    x = x.reshape(-1, 32)
    d = np.abs(x).max(1) / np.float32(127)
    scaled = (x * (np.float32(1) / d)[:, None]).astype(np.float64)
    return blocks_of(x, np.copysign(np.floor(np.abs(scaled) + 0.5), scaled), d)


class Rounding(unittest.TestCase):
    def write_model(self, directory):
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
                  "hidden_size": COLUMNS, "intermediate_size": WIDTH, "num_hidden_layers": 1,
                  "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 64,
                  "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
        draw = np.random.default_rng(7).normal
        layer, shapes = "model.layers.0.", {"model.embed_tokens": (VOCABULARY, COLUMNS), "model.norm": (COLUMNS,)}
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[layer + name] = (COLUMNS,)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            shapes[layer + name] = (WIDTH, COLUMNS)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            shapes[layer + name] = (COLUMNS, WIDTH)
        weights = {name + ".weight": draw(size=shape).astype(np.float32) for name, shape in shapes.items()}
        os.makedirs(directory)
        with open(os.path.join(directory, "config.json"), "w") as file:
            json.dump(config, file)
        gguf_writer.write_safetensors(os.path.join(directory, "model.safetensors"), weights)
        return weights

    def test_each_command_has_its_own_rule(self):
        with tempfile.TemporaryDirectory() as scratch:
            model, packed, by_packed, direct = (os.path.join(scratch, name) for name in ("m", "p", "p.gguf", "d.gguf"))
            weights = self.write_model(model)
            for to, kind in (("q4k", "q4_k"), ("q6k", "q6_k")):
                run("quantize", "-m", model, "--to", to, "-o", packed + to)
                run("convert-model", packed + to, "-o", by_packed, "--tokenizer", "none")
                run("convert-model", model, "-o", direct, "--type", kind, "--tokenizer", "none")
                quantized, converted = gguf_writer.tensors_of(by_packed), gguf_writer.tensors_of(direct)
                for name, published in (("token_embd", "model.embed_tokens"),
                                        ("blk.0.attn_v", "model.layers.0.self_attn.v_proj"),
                                        ("blk.0.attn_output", "model.layers.0.self_attn.o_proj"),
                                        ("blk.0.ffn_down", "model.layers.0.mlp.down_proj")):
                    x = weights[published + ".weight"]
                    for tensors, rule in ((quantized, by_contract), (converted, by_ggml)):
                        shape, stored, raw = tensors[name + ".weight"]
                        self.assertEqual((tuple(shape), stored), (x.shape, gguf_writer.TYPES["Q8_0"]), name)
                        self.assertEqual(raw, rule(x), (to, name, rule.__name__))
                    self.assertNotEqual(by_contract(x), by_ggml(x))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
