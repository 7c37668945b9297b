"""GGUF files whose keys and tensors do not fit each other, and the keys that scale rotary positions.

    unfit.py STET ROOT
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_gemma4  # noqa: E402
import gguf_recurrent  # noqa: E402
import gguf_writer  # noqa: E402
from gguf_writer import pair, text  # noqa: E402

STET, ROOT = sys.argv[1:3]
MODELS = os.path.join(ROOT, "tests", "data", "models")
IDS = ["--ids", ",".join(str(7 * i % 250) for i in range(40)), "--digest"]


def run(*command, status=0):
    done = subprocess.run([STET, *command], capture_output=True, text=True)
    assert done.returncode == status, (command, done.returncode, done.stdout[-500:], done.stderr[-500:])
    return done.stdout if status == 0 else done.stderr


class Unfit(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.directory.name, "m.gguf")

    def tearDown(self):
        self.directory.cleanup()

    def write(self, name, writer=gguf_writer, drop=(), tensors=(), **keys):
        """Writes a model with these keys in place of its own of the same names or of `drop`, and with more tensors."""
        prefixes = tuple(text(key) for key in (*keys, *drop))
        added = [pair(key, *value) for key, value in keys.items()]
        original = gguf_writer.write_file

        def write_file(path, own, those):
            kept = [key for key in own if not key.startswith(prefixes)] if prefixes else own
            original(path, kept + added, those + list(tensors))

        model = os.path.join(MODELS, name)
        with mock.patch.object(writer, "write_file", write_file):
            if writer is gguf_writer:
                writer.write(model, self.file, "F32", with_tokenizer=False)
            else:
                writer.write(model, self.file, "F32")

    def logits(self, model=None):
        return run("logits", "-m", model or self.file, *IDS)

    def refused(self, message):
        self.assertEqual(run("logits", "-m", self.file, *IDS, status=1), f"stet: {self.file}: {message}\n")

    def copy(self, name, **fields):
        """Returns the path of a copy of a model, with these fields in its config."""
        path = os.path.join(self.directory.name, name)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(os.path.join(MODELS, name), path)
        with open(os.path.join(path, "config.json")) as file:
            config = json.load(file)
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump({**config, **fields}, file)
        return path

    def test_the_factor_of_positions_has_two_names_and_its_type_is_linear(self):
        plain, linear = (self.logits(self.copy("llama2-tiny-f16", rope_scaling=scaling))
                         for scaling in (None, {"rope_type": "linear", "factor": 4.0}))
        self.assertNotEqual(plain, linear)
        old, new, kind = "llama.rope.scale_linear", "llama.rope.scaling.factor", "llama.rope.scaling.type"
        for expected, keys in ((linear, {kind: ("text", "linear"), new: ("f32", 4)}),
                               (linear, {kind: ("text", "linear"), old: ("f32", 4)}),
                               (linear, {new: ("f32", 4)}), (linear, {old: ("f32", 4)}),
                               (linear, {new: ("f32", 4), old: ("f32", 2)}),
                               (plain, {old: ("f32", 0)}), (plain, {old: ("f32", 1)}), (plain, {new: ("f32", 0)}),
                               (plain, {new: ("f32", 1)}), (plain, {kind: ("text", "none"), new: ("f32", 4)}),
                               (plain, {kind: ("text", "linear")}),
                               (plain, {kind: ("text", "linear"), new: ("f32", 1)})):
            self.write("llama2-tiny-f16", **keys)
            self.assertEqual(self.logits(), expected, keys)
        self.write("llama2-tiny-f16", **{old: ("f32", -2)})
        self.assertIn("factor: expected a number in ", run("logits", "-m", self.file, *IDS, status=1))
        self.write("llama2-tiny-f16", **{kind: ("text", "longrope")})
        self.refused(f"{kind}: expected none, linear or yarn, found longrope")

    def test_the_factor_is_of_the_layers_without_a_window(self):
        expected = self.logits(self.copy("gemma3-tiny", rope_scaling={"rope_type": "linear", "factor": 8.0}))
        self.write("gemma3-tiny")
        self.assertNotEqual(self.logits(), expected)
        for name in ("gemma3.rope.scale_linear", "gemma3.rope.scaling.factor"):
            self.write("gemma3-tiny", **{name: ("f32", 8)})
            self.assertEqual(self.logits(), expected, name)

    def test_divisors_of_frequencies_exclude_another_scaling(self):
        expected = self.logits(os.path.join(MODELS, "llama31-tiny"))
        linear = {"llama.rope.scaling.type": ("text", "linear")}
        for factor in (0, 1):
            self.write("llama31-tiny", **linear, **{"llama.rope.scaling.factor": ("f32", factor)})
            self.assertEqual(self.logits(), expected)
        self.write("llama31-tiny", **linear, **{"llama.rope.scaling.factor": ("f32", 4)})
        self.refused("llama.rope.scaling.factor: expected no scaling beside that of rope_freqs.weight, "
                     "found linear by 4")
        self.write("llama31-tiny", **{"llama.rope.scale_linear": ("f32", 2)})
        self.refused("llama.rope.scale_linear: expected no scaling beside that of rope_freqs.weight, found linear by 2")
        self.write("gemma4-small-tiny", gguf_gemma4, **{"gemma4.rope.scale_linear": ("f32", 2)})
        self.refused("gemma4.rope.scale_linear: expected no scaling beside that of Gemma 4, found linear by 2")

    def llama3(self, **fields):
        with open(os.path.join(MODELS, "llama31-tiny", "config.json")) as file:
            return self.copy("llama31-tiny", rope_scaling={**json.load(file)["rope_scaling"], **fields})

    def test_lengths_that_the_divisors_tell(self):
        ids = ["--tokenizer", "none"]
        for length in (20, 64, 300, 5000, 8192):  # one wavelength, if not of 64, is between the two bounds
            model = self.llama3(original_max_position_embeddings=length)
            config = json.loads(run("inspect", model, "--json"))["config"]
            run("convert-model", model, "-o", self.file, *ids)
            self.assertEqual(json.loads(run("inspect", self.file, "--json"))["config"], config, length)
            self.assertEqual(self.logits(), self.logits(model), length)

    def test_what_the_divisors_do_not_tell_is_refused_in_terms_of_the_config(self):
        for fields, found in (({"original_max_position_embeddings": 100},  # no wavelength is between the two bounds
                               "factor 8, low_freq_factor 1, high_freq_factor 4, length 100"),
                              ({"low_freq_factor": 2.0}, "factor 8, low_freq_factor 2, high_freq_factor 4, length 64"),
                              ({"high_freq_factor": 8.0}, "factor 8, low_freq_factor 1, high_freq_factor 8, length 64"),
                              ({"low_freq_factor": 2.0, "high_freq_factor": 8.0,
                                "original_max_position_embeddings": 128},
                               "factor 8, low_freq_factor 2, high_freq_factor 8, length 128")):
            model = self.llama3(**fields)
            error = run("convert-model", model, "-o", self.file, "--tokenizer", "none", status=1)
            self.assertTrue(error.startswith(f"stet: {model}/config.json: rope_scaling: expected "), error)
            self.assertTrue(error.endswith(f", found {found}\n"), error)
            self.assertEqual(os.listdir(self.directory.name), ["llama31-tiny"])

    def test_a_granite_rotates_unless_its_key_says_otherwise(self):
        key = "granitehybrid.rope.scaling.finetuned"
        still, rotated = (self.logits(self.copy("granite-h-tiny", position_embedding_type=how))
                          for how in ("nope", "rope"))
        self.assertNotEqual(still, rotated)
        self.write("granite-h-tiny", gguf_recurrent)
        self.assertEqual(self.logits(), still)
        for keys in ({"drop": [key]}, {key: ("bool", True)}):
            self.write("granite-h-tiny", gguf_recurrent, **keys)
            self.assertEqual(self.logits(), rotated)

    def test_a_block_that_the_keys_do_not_count(self):
        self.write("llama2-tiny-f16", **{"llama.block_count": ("u32", 2)})
        self.refused("blk.2.attn_norm.weight: expected a block below llama.block_count, 2, found 2")
        stacked = ("blk.3.ffn_up_exps.weight", np.zeros((2, 4, 64), np.float32), "F32")
        self.write("llama2-tiny-f16", tensors=[stacked])
        self.refused("blk.3.ffn_up_exps.weight: expected a block below llama.block_count, 3, found 3")

    def test_blocks_that_predict_several_tokens_are_not_of_the_model(self):
        expected = self.logits(os.path.join(MODELS, "qwen35moe-tiny"))
        more = [(f"blk.4.{name}.weight", np.ones(shape, np.float32), "F32")
                for name, shape in (("attn_norm", 64), ("ffn_gate_exps", (8, 24, 64)), ("nextn.eh_proj", (64, 128)))]
        keys = {"qwen35moe.block_count": ("u32", 5), "qwen35moe.nextn_predict_layers": ("u32", 1)}
        self.write("qwen35moe-tiny", gguf_recurrent, tensors=more, **keys)
        self.assertEqual(self.logits(), expected)
        self.write("qwen35moe-tiny", gguf_recurrent, tensors=[("blk.5.attn_norm.weight", *more[0][1:])], **keys)
        self.refused("blk.5.attn_norm.weight: expected a block below qwen35moe.block_count, 5, found 5")

    def test_a_tensor_that_no_part_of_the_model_uses(self):
        unused = "no part of a llama model with these keys uses the tensor"
        for name, shape in (("blk.0.attn_q_norm.weight", 16), ("blk.1.attn_output.bias", 64),
                            ("blk.0.post_ffw_norm.weight", 64), ("blk.2.ffn_gate_inp.weight", (2, 64))):
            self.write("llama2-tiny-f16", tensors=[(name, np.ones(shape, np.float32), "F32")])
            self.refused(f"{name}: {unused}")
            for command in (["prepare", "-m", self.file], ["convert-model", self.file]):
                out = os.path.join(self.directory.name, "out")
                self.assertIn(f"{name}: {unused}", run(*command, "-o", out, status=1))
                self.assertFalse(os.path.exists(out))
        self.write("llama2-tiny-f16", tensors=[("rope_factors_long.weight", np.ones(8, np.float32), "F32")])
        self.refused("rope_factors_long.weight: the architecture llama has no such tensor")

    def test_layers_that_read_the_keys_of_another_may_have_their_own(self):
        """llama.cpp's files of Gemma 3n have them."""
        for name in ("gemma4-small-tiny", "gemma3n-tiny"):
            with open(os.path.join(MODELS, name, "config.json")) as file:
                config = json.load(file)
            last = config["num_hidden_layers"] - 1
            self.assertGreater(config["num_kv_shared_layers"], 0)
            expected = self.logits(os.path.join(MODELS, name))
            self.write(name, gguf_gemma4)
            present = {tensor[0] for tensor in gguf_writer.header_of(self.file)}
            kinds = [(f"blk.{last}.attn_k.weight", (16, 64)), (f"blk.{last}.attn_v.weight", (16, 64)),
                     (f"blk.{last}.attn_k_norm.weight", 16)]
            self.write(name, gguf_gemma4, tensors=[(tensor, np.ones(shape, np.float32), "F32")
                                                   for tensor, shape in kinds if tensor not in present])
            self.assertEqual(self.logits(), expected, name)

    def test_a_part_of_each_head_in_a_family_that_rotates_all(self):
        for name, arch, dim in (("llama2-tiny-f16", "llama", 16), ("qwen3-tiny", "qwen3", 24),
                                ("gemma3-tiny", "gemma3", 16)):
            key = arch + ".rope.dimension_count"
            self.write(name)
            expected = self.logits()
            self.write(name, drop=[key])
            self.assertEqual(self.logits(), expected)
            for other in (dim // 2, 2 * dim, 0):
                self.write(name, **{key: ("u32", other)})
                self.refused(f"{key}: expected {dim}, all of a head, found {other}")

    def test_the_width_of_inputs_beside_the_stream(self):
        key = "gemma4.embedding_length_per_layer_input"
        self.write("gemma4-small-tiny", gguf_gemma4, drop=[key])
        self.refused(f"{key}: expected the width of the layers' inputs in per_layer_token_embd.weight, found nothing")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
