"""Experts in super-blocks of 256 inputs: the command against the second implementation, and files
whose layers have different types.

    experts.py STET ROOT
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "model"))

import gguf_writer  # noqa: E402
from contract_digests import digest_text  # noqa: E402
from contract_model import Model  # noqa: E402

STET, ROOT = sys.argv[1:3]
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 60, "hidden_size": 256,
    "intermediate_size": 256, "moe_intermediate_size": 256, "num_experts": 3, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "norm_topk_prob": True,
    "tie_word_embeddings": False, "eos_token_id": 1, "bos_token_id": 0
}
IDS = ["--ids", ",".join(str(7 * i % 60) for i in range(40))]


def run(*command):
    done = subprocess.run([STET, *command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, (command, done.stdout[-500:], done.stderr[-500:])
    return done.stdout


def weights():
    rng, c = np.random.default_rng(5), CONFIG
    make = lambda *shape: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)  # noqa: E731
    near_one = lambda n: (1 + rng.standard_normal(n) / 8).astype(np.float32)  # noqa: E731
    hidden, inner = c["hidden_size"], c["moe_intermediate_size"]
    found = {"model.embed_tokens.weight": make(60, hidden), "model.norm.weight": near_one(hidden),
             "lm_head.weight": make(60, hidden)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[at + name + ".weight"] = near_one(hidden)
        for name in ("q_norm", "k_norm"):
            found[f"{at}self_attn.{name}.weight"] = near_one(64)
        for name, rows in (("q_proj", 256), ("k_proj", 64), ("v_proj", 64), ("o_proj", 256)):
            found[f"{at}self_attn.{name}.weight"] = make(rows, 256)
        found[at + "mlp.gate.weight"] = make(c["num_experts"], hidden)
        for e in range(c["num_experts"]):
            for name, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)),
                                ("down_proj", (hidden, inner))):
                found[f"{at}mlp.experts.{e}.{name}.weight"] = make(*shape)
    return found


def write(directory, tensors):
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(CONFIG, file)
    gguf_writer.write_safetensors(os.path.join(directory, "model.safetensors"), tensors)
    return directory


class Experts(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.model = write(self.path("model"), weights())
        self.file = self.path("m.gguf")

    def tearDown(self):
        self.directory.cleanup()

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def test_every_type_has_the_bits_of_the_second_implementation(self):
        ids = [7 * i % 60 for i in range(40)]
        for kind in ("q4k", "q5k", "q6k", "q8", "q4"):
            packed = self.path(kind)
            run("quantize", "-m", self.model, "--to", kind, "-o", packed)
            logits, cache = Model(self.model, kind).forward(ids)
            run("convert-model", packed, "-o", self.file)
            contract = ["--compute", kind] if kind in ("q8", "q4") else []
            for model in (packed, self.file):
                said = run("logits", "-m", model, *contract, *IDS, "--digest")
                self.assertIn(digest_text(np.ascontiguousarray(logits).tobytes()), said, (kind, model))
                self.assertIn(digest_text(cache.bytes()), said, (kind, model))

    def test_layers_may_have_different_types(self):
        # llama.cpp's Q4_K_M has the last matrices of some layers in Q6_K.
        mixes = (
            lambda to: "Q6_K" if "blk.0.ffn_down_exps" in to or "output" in to else "Q4_K",
            lambda to: "Q5_K" if "ffn_gate_exps" in to else "Q8_0" if "ffn_up_exps" in to else "Q4_0",
        )
        for number, mix in enumerate(mixes):
            for how in ("stacked", "gate_up"):
                if how == "gate_up" and number == 1:
                    continue  # one tensor has one type
                has = gguf_writer.write(self.model, self.file, mix, with_tokenizer=False, experts=how)
                same = write(self.path(f"same-{number}-{how}"), has)
                digest = [*IDS, "--digest"]
                self.assertEqual(run("logits", "-m", same, *digest),
                                 run("logits", "-m", self.file, "--compute", "f32", *digest))
                expected = run("logits", "-m", self.file, *digest)
                self.assertNotEqual(expected, run("logits", "-m", same, *digest))
                for more in (["--isa", "portable"], ["--chunk", "7"], ["--chunk", "1", "--threads", "1"]):
                    self.assertEqual(expected, run("logits", "-m", self.file, *digest, *more), (number, how, more))
                packed = self.path("packed")
                run("prepare", "-m", self.file, "-o", packed)
                self.assertEqual(expected, run("logits", "-m", packed, *digest))
                run("convert-model", packed, "-o", self.path("again.gguf"))
                self.assertEqual(expected, run("logits", "-m", self.path("again.gguf"), *digest))
                shutil.rmtree(packed)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
