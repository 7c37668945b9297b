"""GGUF files load as ordinary models, with the names and bits of the originals.

    files.py STET ROOT
"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_gemma4  # noqa: E402
import gguf_recurrent  # noqa: E402
import gguf_gpt_oss  # noqa: E402
import gguf_writer  # noqa: E402

STET, ROOT = sys.argv[1:3]
ALL_WAYS = "STET_ALL_WAYS" in os.environ
POCKETS = [os.path.join(ROOT, "assets", name) for name in ("pocket-gemma3", "pocket-llama3")]
TEXTS = ["Let a = 3.", " two  spaces", "Größe: 12345 ß🙂\n\n\ttab", "I'll don't WE'VE", "<end_of_turn><|eot_id|><bos>",
         "", "a" * 300, "漢字 и кириллица"]


def with_pockets(kinds):
    """Returns each kind with one of the checkpoints in turn, or with all of them under
    STET_ALL_WAYS."""
    if ALL_WAYS:
        return [(pocket, kind) for pocket in POCKETS for kind in kinds]
    return [(POCKETS[i % len(POCKETS)], kind) for i, kind in enumerate(kinds)]


def run(*command, status=0):
    done = subprocess.run([STET, *command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == status, (command, done.returncode, done.stdout[-500:], done.stderr[-500:])
    return done.stdout if status == 0 else done.stderr


class Gguf(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.directory.name, "m.gguf")

    def tearDown(self):
        self.directory.cleanup()

    def say(self, model, *more):
        return json.loads(run("generate", "-m", model, "--say", "Let a = 3. What is a?", "-n", "12", "--json", *more))

    def qwen3_moe(self):
        """Returns the path of qwen3moe-tiny with experts in place of its dense layer, which llama.cpp does not load."""
        to, has = os.path.join(self.directory.name, "qwen3moe"), {}
        shutil.copytree(os.path.join(ROOT, "tests", "data", "models", "qwen3moe-tiny"), to)
        weights = os.path.join(to, "model.safetensors")
        for name, x in gguf_writer.read_safetensors(weights).items():
            if not name.startswith("model.layers.1.mlp."):
                has[name] = x
            if name.startswith("model.layers.0.mlp."):
                has[name.replace(".0.", ".1.", 1)] = x
        gguf_writer.write_safetensors(weights, has)
        with open(os.path.join(to, "config.json")) as file:
            config = json.load(file)
        with open(os.path.join(to, "config.json"), "w") as file:
            json.dump({**config, "mlp_only_layers": []}, file)
        return to

    def fingerprint(self, model):
        return json.loads(run("inspect", model, "--json"))["fingerprints"]["model"]

    def test_a_bf16_file_is_the_same_model(self):
        for pocket in POCKETS:
            gguf_writer.write(pocket, self.file, "BF16")
            for contract in ("f32", "bf16"):
                expected, found = (self.say(model, "--compute", contract) for model in (pocket, self.file))
                for part in ("tokens", "logits", "kv"):  # a GGUF file has no recommended sampling
                    self.assertEqual(expected["digests"][part], found["digests"][part], pocket)
                self.assertEqual(expected["text"], found["text"])
            self.assertEqual(self.fingerprint(pocket), self.fingerprint(self.file))

    def test_every_type_has_the_values_that_the_file_says(self):
        for pocket, kind in with_pockets(("F32", "F16", "Q8_0", "Q4_0")):
            has = gguf_writer.write(pocket, self.file, kind, with_tokenizer=False)
            same = os.path.join(self.directory.name, "same")
            os.makedirs(same, exist_ok=True)
            shutil.copy(os.path.join(pocket, "config.json"), same)
            gguf_writer.write_safetensors(os.path.join(same, "model.safetensors"), has)
            ids = ["--ids", "2,5,9,17,33,65,129", "--digest"]
            self.assertEqual(run("logits", "-m", same, *ids), run("logits", "-m", self.file, "--compute", "f32", *ids),
                             (pocket, kind))

    def test_every_architecture_is_the_model_that_it_was_made_from(self):
        for name in ("gemma", "gemma2", "gpt2", "granite", "mistral", "olmo2", "olmo3", "qwen2", "qwen3", "smollm3"):
            model = os.path.join(ROOT, "tests", "data", "models", name + "-tiny")
            if name == "qwen2":  # GGUF cannot say which layers slide
                shutil.copytree(model, model := os.path.join(self.directory.name, "q"))
                with open(os.path.join(model, "config.json")) as file:
                    config = json.load(file)
                with open(os.path.join(model, "config.json"), "w") as file:
                    json.dump({**config, "use_sliding_window": False}, file)
            gguf_writer.write(model, self.file, "F32", with_tokenizer=False)
            ids = ["--ids", ",".join(str(7 * i % 320) for i in range(100)), "--digest"]
            self.assertEqual(run("logits", "-m", model, *ids), run("logits", "-m", self.file, *ids), name)
            # Float32 norms lose bits when 1 is added and subtracted again.
            if name != "gemma2":
                self.assertEqual(self.fingerprint(model), self.fingerprint(self.file), name)

    def test_experts_stand_in_one_tensor_or_in_many(self):
        ids = ["--ids", ",".join(str(7 * i % 300) for i in range(60)), "--digest"]
        for name in ("qwen3moe", "mixtral"):
            model = os.path.join(ROOT, "tests", "data", "models", name + "-tiny")
            expected, fingerprint = run("logits", "-m", model, *ids), self.fingerprint(model)
            for how in ("stacked", "gate_up", "one") if name == "mixtral" else ("stacked", "gate_up"):
                gguf_writer.write(model, self.file, "F32", with_tokenizer=False, experts=how)
                self.assertEqual(expected, run("logits", "-m", self.file, *ids), (name, how))
                self.assertEqual(fingerprint, self.fingerprint(self.file), (name, how))
        # Experts of a layer in tensors of their own may have different types.
        mixtral = os.path.join(ROOT, "tests", "data", "models", "mixtral-tiny")
        one = os.path.join(self.directory.name, "one-type")
        odd = lambda to: "F32" if "down" in to else "Q8_0" if "gate.1." in to else "Q4_0"  # noqa: E731
        has = gguf_writer.write(mixtral, self.file, odd, with_tokenizer=False, experts="one")
        os.makedirs(one)
        shutil.copy(os.path.join(mixtral, "config.json"), one)
        gguf_writer.write_safetensors(os.path.join(one, "model.safetensors"), has)
        self.assertEqual(run("logits", "-m", one, *ids), run("logits", "-m", self.file, "--compute", "f32", *ids))
        # Quantized experts are computed under the contract of their types, which may differ between gates and ups.
        # Converted again, they give the same file.
        model = self.qwen3_moe()
        mixed = lambda to: "Q8_0" if "ffn_up_exps" in to else "Q4_0"  # noqa: E731
        for kind in ("Q4_0", "Q8_0", mixed):
            has = gguf_writer.write(model, self.file, kind, with_tokenizer=False)
            same, packed, again = (
                os.path.join(self.directory.name, f"{part}-{kind if isinstance(kind, str) else 'mixed'}")
                for part in ("same", "packed", "again"))
            os.makedirs(same)
            shutil.copy(os.path.join(model, "config.json"), same)
            gguf_writer.write_safetensors(os.path.join(same, "model.safetensors"), has)
            self.assertEqual(run("logits", "-m", same, *ids), run("logits", "-m", self.file, "--compute", "f32", *ids))
            self.assertEqual(self.fingerprint(same), self.fingerprint(self.file))
            expected = run("logits", "-m", self.file, *ids)
            for more in (["--isa", "portable"], ["--chunk", "7"], ["--chunk", "1", "--threads", "1"]):
                self.assertEqual(expected, run("logits", "-m", self.file, *ids, *more), more)
            run("prepare", "-m", self.file, "-o", packed)
            self.assertEqual(expected, run("logits", "-m", packed, *ids))
            run("convert-model", packed, "-o", again)
            self.assertEqual(gguf_writer.tensors_of(again), gguf_writer.tensors_of(self.file))

    def test_gpt_oss_in_both_of_its_forms(self):
        ids = ["--ids", ",".join(str(7 * i % 300) for i in range(60)), "--digest"]
        again = os.path.join(self.directory.name, "again.gguf")
        for name in ("gptoss-tiny", "gptoss-mxfp4-tiny"):
            model = os.path.join(ROOT, "tests", "data", "models", name)
            gguf_gpt_oss.write(model, self.file)
            self.assertEqual(self.fingerprint(model), self.fingerprint(self.file), name)
            for contract in ("f32", "bf16", "ggml") if "mxfp4" in name else ("f32", "bf16"):
                found = [run("logits", "-m", m, "--compute", contract, *ids) for m in (model, self.file)]
                self.assertEqual(*found, (name, contract))
            run("convert-model", model, "-o", again)  # routers, biases and sinks become float32 there, too
            self.assertEqual(gguf_writer.tensors_of(again), gguf_writer.tensors_of(self.file), name)
        # MXFP4 weights are used as they are unless another contract is requested, and so are those of packed files.
        self.assertEqual(found[0], run("logits", "-m", model, *ids))
        self.assertEqual(found[0], run("logits", "-m", self.file, *ids, "--isa", "portable", "--chunk", "7"))
        packed = os.path.join(self.directory.name, "packed")
        run("prepare", "-m", model, "-o", packed)
        self.assertEqual(found[0], run("logits", "-m", packed, *ids))
        cache = os.path.join(self.directory.name, "cache")
        for made, contract in enumerate(("f32", "bf16"), 1):
            command = ["logits", "-m", model, *ids, "--compute", contract]
            wide = run(*command)
            for more in ([], [], ["--check"]):  # packed, then mapped
                self.assertEqual(wide, run(*command, "--cache-dir", cache, *more))
            self.assertEqual(len(self.entries(cache)), made)
        self.assertEqual(run("logits", "-m", packed, *ids, "--compute", "bf16", status=1),
                         f"stet: {packed}/packed.safetensors: model.layers.0.mlp.experts.0.gate_proj.weight: expected "
                         "dtype BF16 for the contract bf16, found mxfp4; take the checkpoint that this one was packed "
                         "from\n")

    def test_a_gpt_oss_file_without_scaling_has_none(self):
        for name in ("gptoss-tiny", "gptoss-mxfp4-tiny"):
            model, again = (os.path.join(self.directory.name, end) for end in (name, "again.gguf"))
            shutil.copytree(os.path.join(ROOT, "tests", "data", "models", name), model)
            with open(os.path.join(model, "config.json")) as file:
                config = json.load(file)
            prints = []
            for scaling in (config["rope_scaling"], None):
                config["rope_scaling"] = scaling
                with open(os.path.join(model, "config.json"), "w") as file:
                    json.dump(config, file)
                gguf_gpt_oss.write(model, self.file)
                run("convert-model", model, "-o", again)
                prints.append(self.fingerprint(model))
                self.assertEqual([prints[-1]] * 2, [self.fingerprint(self.file), self.fingerprint(again)])
            self.assertNotEqual(*prints)

    def test_what_gguf_cannot_say_of_gpt_oss_is_refused(self):
        changes = (("ropes[0].truncate", lambda c: c["rope_scaling"].update(truncate=True), "false", "true"),
                   ("gate_limit", lambda c: c.update(swiglu_limit=8.0), "7.0", "8.0"))
        for field, change, assumed, value in changes:
            model = os.path.join(self.directory.name, field)
            shutil.copytree(os.path.join(ROOT, "tests", "data", "models", "gptoss-tiny"), model)
            with open(os.path.join(model, "config.json")) as file:
                config = json.load(file)
            change(config)
            with open(os.path.join(model, "config.json"), "w") as file:
                json.dump(config, file)
            said = run("convert-model", "-m", model, "-o", self.file, status=1)
            self.assertIn(f"config.json: {field}: llama.cpp assumes {assumed}, the model has {value}: a GGUF file "
                          "cannot say that; use the checkpoint itself, or stet prepare", said)
            self.assertFalse(os.path.exists(self.file))

    def test_an_infinite_block_of_mxfp4_is_refused(self):
        gguf_gpt_oss.write(os.path.join(ROOT, "tests", "data", "models", "gptoss-mxfp4-tiny"), self.file)
        name = "blk.1.ffn_up_exps.weight"
        at = next(begin for tensor, _, _, begin in gguf_writer.header_of(self.file) if tensor == name)
        with open(self.file, "r+b") as file:  # block 1 of row 5 of expert 3, each of 64 rows of 2 blocks
            file.seek(at + ((3 * 64 + 5) * 2 + 1) * 17)
            file.write(b"\xfc")
        run("logits", "-m", self.file, "--ids", "2,5", "--digest")
        with open(self.file, "r+b") as file:
            file.seek(at + ((3 * 64 + 5) * 2 + 1) * 17)
            file.write(b"\xfd")
        said = run("logits", "-m", self.file, "--ids", "2,5", "--digest", status=1)
        self.assertIn("model.layers.1.mlp.experts.3.up_proj.weight, row 5, block 1: ", said)
        self.assertIn("at most 252", said)

    def test_layers_that_differ_are_those_of_the_checkpoint(self):
        ids = ["--ids", ",".join(str(7 * i % 320) for i in range(100)), "--digest"]
        for name in ("gemma4-dense-tiny", "gemma4-small-tiny", "gemma4-moe-tiny", "gemma3n-tiny"):
            model = os.path.join(ROOT, "tests", "data", "models", name)
            gguf_gemma4.write(model, self.file, "F32")
            self.assertEqual(run("logits", "-m", model, *ids), run("logits", "-m", self.file, *ids), name)
            self.assertEqual(self.fingerprint(model), self.fingerprint(self.file), name)
            # Tables of embeddings, which are looked up in the file, may be quantized, too.
            has = gguf_gemma4.write(model, self.file, "Q8_0")
            same = os.path.join(self.directory.name, name)
            os.makedirs(same)
            shutil.copy(os.path.join(model, "config.json"), same)
            gguf_writer.write_safetensors(os.path.join(same, "model.safetensors"), has)
            self.assertEqual(run("logits", "-m", same, *ids), run("logits", "-m", self.file, "--compute", "f32", *ids),
                             name)
            # A file written by stet is the same model again.
            written = os.path.join(self.directory.name, "written.gguf")
            run("convert-model", "-m", model, "-o", written, "--tokenizer", "none")
            self.assertEqual(self.fingerprint(model), self.fingerprint(written), name)
            self.assertEqual(run("logits", "-m", model, *ids), run("logits", "-m", written, "--compute", "f32", *ids),
                             name)

    def test_keys_that_layers_need_are_named(self):
        for name, keys in (("gemma4-moe-tiny", ("gemma4.attention.sliding_window_pattern", "gemma4.expert_used_count")),
                           ("gemma3n-tiny", ("gemma3n.attention.sliding_window_pattern", "gemma3n.altup.num_inputs",
                                             "gemma3n.activation_sparsity_scale"))):
            gguf_gemma4.write(os.path.join(ROOT, "tests", "data", "models", name), self.file, "F32")
            with open(self.file, "rb") as file:
                raw = file.read()
            for key in keys:
                with open(self.file, "wb") as file:
                    file.write(raw.replace(key.encode(), key.encode()[:-1] + b"_", 1))
                self.assertIn(f"{key}: expected ", run("logits", "-m", self.file, "--ids", "2", "--digest", status=1))
    def test_recurrent_layers_are_those_of_the_checkpoint(self):
        ids = ["--ids", ",".join(str(7 * i % 300) for i in range(40)), "--digest"]
        for name in ("qwen3next-tiny", "qwen35-tiny", "qwen35-odd-tiny", "qwen35moe-tiny", "qwen35moe-fused-tiny",
                     "lfm2-tiny", "lfm2-odd-tiny", "lfm2moe-tiny", "granite-h-tiny", "granite-hd-tiny"):
            model = os.path.join(ROOT, "tests", "data", "models", name)
            gguf_recurrent.write(model, self.file, "F32")
            self.assertEqual(run("logits", "-m", model, *ids), run("logits", "-m", self.file, *ids), name)
            self.assertEqual(
                *[json.loads(run("inspect", m, "--json"))["fingerprints"]["model"] for m in (model, self.file)], name)
            rounded = os.path.join(self.directory.name, name)
            os.makedirs(rounded)
            gguf_recurrent.round_weights(model, rounded)
            gguf_recurrent.write(rounded, self.file, "Q8_0")
            self.assertEqual(run("logits", "-m", rounded, *ids),
                             run("logits", "-m", self.file, "--compute", "f32", *ids), name)
        # A file written by stet is the same model again.
        for name in ("qwen3next-tiny", "qwen35-tiny", "qwen35moe-tiny", "lfm2-tiny", "lfm2moe-tiny",
                     "granite-h-tiny", "granite-hd-tiny", "granite-dense-tiny"):
            model = os.path.join(ROOT, "tests", "data", "models", name)
            run("convert-model", "-m", model, "-o", self.file, "--tokenizer", "none")
            self.assertEqual(run("logits", "-m", model, *ids), run("logits", "-m", self.file, "--compute", "f32", *ids),
                             name)
            self.assertEqual(
                *[json.loads(run("inspect", m, "--json"))["fingerprints"]["model"] for m in (model, self.file)], name)
        limited = os.path.join(ROOT, "tests", "data", "models", "granite-odd-tiny")
        self.assertIn("recurrence",
                      run("convert-model", "-m", limited, "-o", self.file, "--tokenizer", "none", status=1))

    def test_models_without_attention_layers_are_those_of_the_checkpoint(self):
        ids = ["--ids", ",".join(str(7 * i % 300) for i in range(40)), "--digest"]
        for name in ("qwen35-tiny", "lfm2-tiny", "lfm2moe-tiny", "granite-h-tiny"):
            model = os.path.join(self.directory.name, name)
            gguf_recurrent.without_attention(os.path.join(ROOT, "tests", "data", "models", name), model)
            expected = run("logits", "-m", model, *ids)
            gguf_recurrent.write(model, self.file, "F32")  # llama.cpp's converter
            self.assertEqual(expected, run("logits", "-m", self.file, *ids), name)
            run("convert-model", "-m", model, "-o", self.file, "--tokenizer", "none")
            self.assertEqual(expected, run("logits", "-m", self.file, "--compute", "f32", *ids), name)
            self.assertEqual(
                *[json.loads(run("inspect", m, "--json"))["fingerprints"] for m in (model, self.file)], name)

    def test_layers_with_attention_need_heads_for_keys_and_values(self):
        model = os.path.join(ROOT, "tests", "data", "models", "lfm2-tiny")
        gguf_recurrent.write(model, self.file, "F32")
        with open(os.path.join(model, "config.json")) as file:
            c = json.load(file)
        kv, layers = c["num_key_value_heads"], c["num_hidden_layers"]
        attends = c["layer_types"].index("full_attention")
        with open(self.file, "rb") as file:
            raw = file.read()
        at = raw.index(b"head_count_kv") + len("head_count_kv") + 4 + 4 + 8
        zeros = struct.pack(f"<{layers}i", *[0] * layers)
        self.assertEqual(max(struct.unpack_from(f"<{layers}i", raw, at)), kv)
        with open(self.file, "wb") as file:
            file.write(raw[:at] + zeros + raw[at + len(zeros):])
        self.assertIn(f"lfm2.attention.head_count_kv: expected the key and value heads of layer {attends}, which has "
                      "attention, found 0 for every layer", run("inspect", self.file, status=1))

    def test_q8_0_and_q4_0_go_into_their_contracts_without_loss(self):
        for pocket, (kind, contract) in with_pockets((("Q8_0", "q8"), ("Q4_0", "q4"))):
            gguf_writer.write(pocket, self.file, kind, with_tokenizer=False)
            packed = os.path.join(self.directory.name, os.path.basename(pocket) + contract)
            run("quantize", "-m", self.file, "--to", contract, "-o", packed)
            digests = ["--compute", contract, "--ids", "2,5,9,17", "--digest"]
            self.assertEqual(run("logits", "-m", packed, *digests), run("logits", "-m", self.file, *digests))
            # Fingerprints cover exact values, so nothing was lost when the weights became those of
            # the contract.
            self.assertEqual(self.fingerprint(self.file), self.fingerprint(packed))

    def test_k_types_are_computed_with_as_they_are(self):
        pocket, ids = POCKETS[0], ["--ids", ",".join(str(7 * i % 1620) for i in range(80)), "--digest"]
        mixed = lambda name: (  # noqa: E731
            "Q6_K" if "attn_v" in name or ".3.ffn_down" in name or "token_embd" in name else "Q4_K")
        names = {"Q4_K": "ggml(*=q4_k)", "Q5_K": "ggml(*=q5_k)", "Q6_K": "ggml(*=q6_k)", "Q8_0": "ggml(*=q8_0)",
                 mixed: "ggml(*=q4_k,attn_v=q6_k,blk.3.ffn_down=q6_k,token_embd=q6_k)"}
        for number, (kind, name) in enumerate(names.items()):
            if kind in ("Q4_K", "Q6_K") and not ALL_WAYS:  # the mixed file has both
                continue
            has = gguf_writer.write(pocket, self.file, kind)
            same, packed, state = (os.path.join(self.directory.name, f"{part}{number}")
                                   for part in ("same", "packed", "state"))
            os.makedirs(same)
            shutil.copy(os.path.join(pocket, "config.json"), same)
            gguf_writer.write_safetensors(os.path.join(same, "model.safetensors"), has)
            self.assertEqual(run("logits", "-m", same, *ids), run("logits", "-m", self.file, "--compute", "f32", *ids),
                             name)
            self.assertEqual(self.fingerprint(same), self.fingerprint(self.file))
            # The default contract is that of the file's types, with the same bits for every
            # instruction set and chunk size.
            expected = run("logits", "-m", self.file, *ids)
            self.assertNotEqual(expected, run("logits", "-m", same, *ids))
            for more in (["--isa", "portable"], ["--chunk", "7"], ["--chunk", "1", "--threads", "1"]):
                self.assertEqual(expected, run("logits", "-m", self.file, *ids, *more), (name, more))
            run("prepare", "-m", self.file, "-o", packed)
            self.assertEqual(expected, run("logits", "-m", packed, *ids), name)
            run("save", "-m", self.file, "--ids", "2,5,9", "-o", state)
            self.assertEqual(json.loads(run("inspect", state, "--json"))["contract"], name + " version 1")
            for model in (self.file, packed):
                run("resume", state, "-m", model, "-n", "1")
            self.assertIn("ggml", run("resume", state, "-m", same, "-n", "1", status=1))

    def test_token_ids_are_those_of_the_published_tokenizer(self):
        draws = random.Random(5)
        for pocket in POCKETS:
            gguf_writer.write(pocket, self.file, "BF16")
            texts = TEXTS + ["".join(draws.choice("abc XYZ019.,\n'äß🙂漢_-<>|") for _ in range(draws.randrange(40)))
                             for _ in range(2000)]
            lines = "\n".join(json.dumps(t) for t in texts) + "\n"
            ids = [subprocess.run([STET, "tokenize", "-m", model, "--jsonl"], input=lines, capture_output=True,
                                  text=True, check=True).stdout for model in (pocket, self.file)]
            self.assertEqual(*ids)
            self.assertEqual(*[run("template", "-m", model, "-p", "Hi") for model in (pocket, self.file)])

    def test_what_a_file_says_wrong_is_overridden(self):
        gguf_writer.write(POCKETS[1], self.file, "BF16")
        template, state, again = (os.path.join(self.directory.name, name)
                                  for name in ("t.jinja", "s.stet", "again.stet"))
        with open(os.path.join(POCKETS[1], "tokenizer_config.json")) as file:
            published = json.load(file)["chat_template"]
        with open(template, "w") as file:
            file.write(published)
        with open(self.file, "rb") as file:
            raw = file.read()
        with open(self.file, "wb") as file:  # the key has another name, so there is no template
            file.write(raw.replace(b"tokenizer.chat_template", b"tokenizer.chat_tempxxxx", 1))
        say = ["-m", self.file, "--say", "Hi", "-n", "3"]
        self.assertIn("chat_template", run("generate", *say, status=1))
        expected = self.say(POCKETS[1])
        self.assertEqual(self.say(self.file, "--chat-template", template)["prompt_ids"], expected["prompt_ids"])
        # Overrides given on the command line are part of the state, of inspect's output and of
        # packed files.
        run("save", *say[:4], "--chat-template", template, "--eos", "5,7", "-o", state)
        described = json.loads(run("inspect", state, "--json"))
        self.assertEqual(described["stop_ids"], [5, 7])
        checkpoint = json.loads(run("inspect", self.file, "--chat-template", template, "--eos", "5,7", "--json"))
        self.assertEqual(checkpoint["stop_ids"], [5, 7])
        self.assertEqual(checkpoint["fingerprints"]["tokenizer"], described["fingerprints"]["tokenizer"])
        self.assertNotEqual(checkpoint["fingerprints"]["tokenizer"],
                            json.loads(run("inspect", self.file, "--json"))["fingerprints"]["tokenizer"])
        self.assertIn("tokenizer", run("resume", state, "-m", self.file, "-n", "1", status=1))
        run("resume", state, "-m", self.file, "--chat-template", template, "--eos", "9", "-n", "1", "-o", again)
        self.assertEqual(json.loads(run("inspect", again, "--json"))["stop_ids"], [9])
        packed = os.path.join(self.directory.name, "packed")
        run("prepare", "-m", self.file, "--chat-template", template, "--eos", "5,7", "-o", packed)
        self.assertEqual(json.loads(run("inspect", packed, "--json"))["stop_ids"], [5, 7])
        self.assertEqual(self.say(packed)["prompt_ids"], expected["prompt_ids"])
        self.assertIn("--eos: expected token ids in 0..", run("generate", *say, "--eos", "99999", status=2))

    def test_what_is_written_is_the_same_model(self):
        for pocket in POCKETS:
            states = [os.path.join(self.directory.name, name) for name in ("a.stet", "b.stet")]
            for source in (pocket, self.file):  # the file itself is a source, too
                out = os.path.join(self.directory.name, "out.gguf")
                run("convert-model", source, "-o", out)
                shutil.move(out, self.file)
                for contract in ("f32", "bf16"):
                    expected, found = (self.say(model, "--compute", contract) for model in (pocket, self.file))
                    expected.pop("timings"), found.pop("timings")
                    self.assertEqual(expected, found, pocket)  # including sampling, stop tokens and digests
                for model, state in zip((pocket, self.file), states):
                    run("save", "-m", model, "--say", "Let a = 3.", "-o", state)
                self.assertEqual(*[json.loads(run("inspect", s, "--json"))["fingerprints"] for s in states])
                run("resume", states[0], "-m", self.file, "-n", "4")  # the file has the tokenizer
            for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0"):  # compares with the other writer tensor by tensor
                run("convert-model", "-m", pocket, "-o", self.file, "--type", kind.lower(), "--threads", "3")
                other = os.path.join(self.directory.name, "other.gguf")
                gguf_writer.write(pocket, other, kind)
                mine, theirs = gguf_writer.tensors_of(self.file), gguf_writer.tensors_of(other)
                self.assertEqual(set(mine), set(theirs))
                for name in theirs:
                    if kind == "Q4_0" and name in ("token_embd.weight", "output.weight"):
                        self.assertEqual(mine[name][1], 8)  # Q8_0
                    elif name == "rope_freqs.weight" or theirs[name][1] in (2, 8):  # computed, or rounded differently
                        self.assertEqual(mine[name][:2], theirs[name][:2])
                    else:
                        self.assertEqual(mine[name], theirs[name], (pocket, kind, name))

    def test_packed_checkpoints_are_written_without_loss(self):
        for pocket, command in with_pockets((["prepare"], ["quantize", "--to", "q8"], ["quantize", "--to", "q4"])):
            packed = os.path.join(self.directory.name, os.path.basename(pocket) + command[-1])
            run(*command, "-m", pocket, "-o", packed)
            run("convert-model", packed, "-o", self.file)
            contract = command[-1] if len(command) > 1 else "f32"
            digests = ["--compute", contract, "--ids", "2,5,9,17", "--digest"]
            self.assertEqual(run("logits", "-m", packed, *digests), run("logits", "-m", self.file, *digests))

    def test_k_types_are_those_of_quantize(self):
        pocket = next(p for p in POCKETS if p.endswith("gemma3"))
        text = os.path.join(self.directory.name, "text")
        with open(text, "w") as file:
            file.write("Let a = 3. What is a? a is 3.")
        digests = ["--ids", "2,5,9,17", "--digest"]
        found = []
        for kind in ("q4_k", "q5_k", "q6_k"):
            for more in ([], ["--importance", text]):
                if bool(more) != (kind == "q5_k") and not ALL_WAYS:
                    continue
                packed = os.path.join(self.directory.name, "packed-%s-%d" % (kind, len(more)))
                run("quantize", "-m", pocket, "--to", kind.replace("_", ""), "-o", packed, *more)
                run("convert-model", pocket, "-o", self.file, "--type", kind, "--threads", "3", *more)
                found.append(run("logits", "-m", packed, *digests))
                self.assertEqual(found[-1], run("logits", "-m", self.file, *digests))
                again = os.path.join(self.directory.name, "again.gguf")
                run("convert-model", packed, "-o", again)
                self.assertEqual(gguf_writer.tensors_of(again), gguf_writer.tensors_of(self.file))
                self.assertEqual(
                    *[json.loads(run("inspect", m, "--json"))["fingerprints"]["model"] for m in (packed, self.file)])
        self.assertEqual(len(set(found)), 6 if ALL_WAYS else 3)
        self.assertIn("--importance",
                      run("convert-model", pocket, "-o", self.file, "--type", "q8_0", "--importance", text, status=2))

    def test_a_prepared_file_of_several_types_is_written_without_loss(self):
        for pocket, kind in with_pockets(("q4_k", "q5_k")):
            prepared, again = (os.path.join(self.directory.name, name % kind)
                               for name in (os.path.basename(pocket) + "-%s", "again-%s.gguf"))
            run("convert-model", pocket, "-o", self.file, "--type", kind)
            run("prepare", "-m", self.file, "-o", prepared)
            run("convert-model", prepared, "-o", again)
            self.assertEqual(gguf_writer.tensors_of(again), gguf_writer.tensors_of(self.file))

    def test_every_family_can_be_written(self):
        for name in ("gemma-tiny", "gemma2-tiny", "gemma3-tiny", "gemma3-tiny-bf16", "gpt2-tiny", "granite-tiny",
                     "llama2-tiny-f16", "llama31-tiny", "mistral-tiny", "olmo2-tiny",
                     "olmo3-tiny", "qwen3-tiny", "smollm3-tiny", "pythia-tiny", "phi3-tiny", "phi4-tiny",
                     "qwen3moe-tiny", "mixtral-tiny", "olmoe-tiny", "gptoss-tiny", "gptoss-mxfp4-tiny",
                     "gemma4-dense-tiny", "gemma4-small-tiny", "gemma4-moe-tiny", "gemma3n-tiny"):
            model = self.qwen3_moe() if name == "qwen3moe-tiny" else os.path.join(ROOT, "tests/data/models", name)
            ids = ["--ids", ",".join(str(7 * i % 250) for i in range(100)), "--digest"]
            expected = run("logits", "-m", model, *ids)
            sources = [model]
            if ALL_WAYS or name in ("gemma2-tiny", "gpt2-tiny", "llama31-tiny", "phi3-tiny", "mixtral-tiny",
                                    "gptoss-mxfp4-tiny"):
                sources.append(os.path.join(self.directory.name, name))  # prepared
                run("prepare", "-m", model, "-o", sources[-1])
            for source in sources:
                run("convert-model", source, "-o", self.file)
                self.assertEqual(expected, run("logits", "-m", self.file, *ids), name)
                # Their float32 norms lose bits when 1 is added and subtracted again.
                if name not in ("gemma2-tiny", "gemma3-tiny", "gemma-tiny"):
                    self.assertEqual(self.fingerprint(model), self.fingerprint(self.file), name)

    def test_what_a_file_cannot_say_is_refused(self):
        model = os.path.join(ROOT, "tests/data/models/qwen2-tiny")  # its last layers slide
        with open(self.file, "w") as file:
            file.write("before")
        self.assertIn("window", run("convert-model", model, "-o", self.file, status=1))
        # This model has a factor for queries that GGUF cannot express.
        model = os.path.join(ROOT, "tests/data/models/gemma3-vision-tiny")
        self.assertIn("attention_scale", run("convert-model", model, "-o", self.file, status=1))
        packed = os.path.join(self.directory.name, "p")
        run("convert-model", POCKETS[1], "-o", self.file + "2.gguf")
        self.assertIn("a file that is not read",
                      run("convert-model", self.file + "2.gguf", "-o", self.file + "2.gguf", status=2))
        self.assertIn("--type", run("convert-model", POCKETS[1], "-o", self.file, "--type", "q3", status=2))
        shutil.copytree(POCKETS[1], packed)
        with open(os.path.join(packed, "tokenizer.json")) as file:
            tokenizer = json.load(file)
        tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\\\p{L}+|."
        with open(os.path.join(packed, "tokenizer.json"), "w") as file:
            json.dump(tokenizer, file)
        self.assertIn("pre_tokenizer", run("convert-model", packed, "-o", self.file, status=1))
        with open(self.file) as file:
            self.assertEqual(file.read(), "before")
        self.assertEqual(sorted(os.listdir(self.directory.name)), ["m.gguf", "m.gguf2.gguf", "p"])
        run("convert-model", packed, "-o", self.file, "--tokenizer", "none")
        self.assertIn(self.file + ": tokenizer.ggml.tokens: expected a vocabulary, found none",
                      run("tokenize", "-m", self.file, "a", status=1))
        self.assertIn(self.file + ": tokenizer.ggml.tokens: expected a vocabulary (or use --ids), found none",
                      run("generate", "-m", self.file, "-p", "a", status=1))

    def entries(self, cache):
        packed = os.path.join(cache, "packed")
        return [os.path.join(packed, name) for name in sorted(os.listdir(packed)) if not name.endswith(".lock")]

    def test_a_cache_keeps_the_packed_form(self):
        cache = os.path.join(self.directory.name, "cache", "deep")
        gguf_writer.write(POCKETS[1], self.file, "Q4_0")
        for model in (self.file, POCKETS[0]):
            with_cache = ["-m", model, "--cache-dir", cache]
            for contract in ("f32", "q8"):
                digest = ["--compute", contract, "--ids", "2,5,9", "--digest"]
                expected = run("logits", "-m", model, *digest)
                for _ in range(2):
                    self.assertEqual(expected, run("logits", *with_cache, *digest))
        entries = self.entries(cache)
        self.assertEqual(len(entries), 4)
        # The cache is keyed by content, so the name and time of the file do not matter.
        copy = os.path.join(self.directory.name, "copy.gguf")
        shutil.copy(self.file, copy)
        ids = ["--compute", "f32", "--ids", "2,5,9", "--digest"]
        expected = run("logits", "-m", self.file, *ids)
        self.assertEqual(expected, run("logits", "-m", copy, "--cache-dir", cache, *ids))
        self.assertEqual(self.entries(cache), entries)
        # Different content under the same name is a different entry.
        gguf_writer.write(POCKETS[1], self.file, "Q8_0")
        other = run("logits", "-m", self.file, *ids)
        self.assertNotEqual(other, expected)
        self.assertEqual(other, run("logits", "-m", self.file, "--cache-dir", cache, *ids))
        self.assertEqual(len(self.entries(cache)), 5)
        # Overrides such as --eos are part of an entry's key.
        run("generate", "-m", self.file, "--compute", "f32", "--eos", "7", "--cache-dir", cache, "--ids", "2",
            "-n", "1")
        self.assertEqual(len(self.entries(cache)), 6)
        # Without a contract, each tensor keeps the file's type.
        own = ["--ids", "2,5,9", "--digest"]
        expected = run("logits", "-m", self.file, *own)
        for _ in range(2):
            self.assertEqual(expected, run("logits", "-m", self.file, "--cache-dir", cache, *own))
        self.assertEqual(len(self.entries(cache)), 7)

    def test_a_damaged_cache_is_made_anew(self):
        cache = os.path.join(self.directory.name, "cache")
        gguf_writer.write(POCKETS[1], self.file, "BF16")
        command = ["logits", "-m", self.file, "--cache-dir", cache, "--ids", "2,5,9", "--digest"]
        expected = run(*command)
        (entry,) = self.entries(cache)
        def damage(name, at, how):
            with open(os.path.join(entry, name), "r+b") as file:
                how(file, at)
        def flip(file, at):
            file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        for name, at, how in (("packed.safetensors", -5000, flip), ("packed.safetensors", 100, flip),
                              ("config.json", 40, flip), ("tokenizer.json", 3000, flip), ("stamp", 1, flip),
                              ("packed.safetensors", 70000, lambda file, n: file.truncate(n)),
                              ("config.json", 0, lambda file, n: file.truncate(n))):
            damage(name, at, how)
            self.assertEqual(expected, run(*command), name)
            self.assertEqual(self.entries(cache), [entry])
            run("check", entry)
        for name in ("config.json", "packed.safetensors", "stamp"):
            os.unlink(os.path.join(entry, name))
            self.assertEqual(expected, run(*command), name)
        for name in os.listdir(os.path.join(cache, "files")):
            with open(os.path.join(cache, "files", name), "w") as file:
                file.write("../../../etc")
        self.assertEqual(expected, run(*command))
        # Leftovers of a killed process do no harm.
        shutil.rmtree(entry)
        os.makedirs(entry + ".making/x")
        self.assertEqual(expected, run(*command))
        self.assertEqual(self.entries(cache), [entry])
        # One of many processes makes the entry.
        shutil.rmtree(cache)
        processes = [subprocess.Popen([STET, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      cwd=ROOT) for _ in range(6)]
        for p in processes:
            out, err = p.communicate()
            self.assertEqual((p.returncode, out, err), (0, expected, ""))
        self.assertEqual(self.entries(cache), [entry])

    def test_split_files(self):
        gguf_writer.write(POCKETS[1], self.file, "BF16")
        whole = self.say(self.file)["digests"]
        parts = [os.path.join(self.directory.name, "m-0000%d-of-00002.gguf" % i) for i in (1, 2)]
        gguf_writer.write(POCKETS[1], parts, "BF16")
        self.assertEqual(self.say(parts[0])["digests"]["kv"], whole["kv"])
        os.unlink(parts[1])
        self.assertIn("m-00002-of-00002.gguf", run("generate", "-m", parts[0], "-p", "Hi", status=1))

    def test_what_stet_does_not_know_is_refused_by_name(self):
        gguf_writer.write(POCKETS[1], self.file, "BF16")
        with open(self.file, "rb") as file:
            raw = file.read()
        for old, new, word in ((b"llama-bpe", b"lyrics-bp", "tokenizer.ggml.pre"),
                               (b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0zebra", "general.architecture"),
                               (b"blk.0.attn_q.weight", b"blk.0.attn_x.weight", "attn_x"),
                               (b"GGUF\x03", b"GGUF\x09", "version"), (b"GGUF", b"GGML", "magic")):
            self.assertIn(old, raw)
            with open(self.file, "wb") as file:
                file.write(raw.replace(old, new, 1))
            error = run("generate", "-m", self.file, "-p", "Hi", "-n", "1", status=1)
            self.assertIn(word, error)
            self.assertEqual(error.count("\n"), 1, error)

    def test_damaged_files(self):
        gguf_writer.write(POCKETS[1], self.file, "Q4_0")
        with open(self.file, "rb") as file:
            raw = file.read()
        expected = run("logits", "-m", self.file, "--ids", "2,5", "--digest")
        draws = random.Random(9)
        header = raw.index(b"blk.7.") + 400
        for i in range(int(os.environ.get("STET_GGUF_DAMAGED", "60"))):
            damaged = bytearray(raw)
            if i % 5 == 0:
                damaged = damaged[: draws.randrange(len(damaged))]
            else:
                for _ in range(draws.randrange(1, 4)):
                    at = draws.randrange(header)
                    damaged[at] = draws.choice([0, 255, 127, damaged[at] ^ 1 << draws.randrange(8)])
            with open(self.file, "wb") as file:
                file.write(damaged)
            done = subprocess.run([STET, "logits", "-m", self.file, "--ids", "2,5", "--digest"], capture_output=True,
                                  text=True)
            self.assertIn(done.returncode, (0, 1), done)
            if done.returncode == 1:
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(expected)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
