"""Tokenizers and templates of GGUF files whose keys are incomplete or contradictory.

    texts.py STET ROOT
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gguf_writer import pair  # noqa: E402

STET, ROOT = sys.argv[1:3]
GEMMA, LLAMA = (os.path.join(ROOT, "assets", name) for name in ("pocket-gemma3", "pocket-llama3"))
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def run(*command, status=0):
    done = subprocess.run([STET, *command], capture_output=True, text=True)
    assert done.returncode == status, (command, done.returncode, done.stdout[-500:], done.stderr[-500:])
    return done


class File:
    """A GGUF file taken apart: its keys as bytes, and everything after them."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.raw = file.read()
        self.at = 8
        self.tensors, count = self.take("Q"), self.take("Q")
        self.keys = {}
        for _ in range(count):
            begin = self.at
            name = self.text().decode()
            self.skip(self.take("I"))
            self.keys[name] = self.raw[begin:self.at]
        begin = self.at
        for _ in range(self.tensors):
            self.text()
            dimensions = self.take("I")
            self.at += 8 * dimensions + 12
        self.declared = self.raw[begin:self.at]
        self.data = self.raw[-(-self.at // 32) * 32:]

    def take(self, kind):
        value = struct.unpack_from("<" + kind, self.raw, self.at)[0]
        self.at += struct.calcsize("<" + kind)
        return value

    def text(self):
        length = self.take("Q")
        self.at += length
        return self.raw[self.at - length:self.at]

    def skip(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, length = self.take("I"), self.take("Q")
            for _ in range(length):
                self.skip(inner)
        else:
            self.at += SIZES[kind]

    def write(self, path, drop=(), **pairs):
        """Writes the file without stet's keys and those of `drop`, and with `pairs`. A name without a dot is in
        tokenizer.ggml."""
        keys = {k: v for k, v in self.keys.items() if k not in drop and not k.startswith("stet.")}
        for name, (kind, value) in pairs.items():
            key = name if "." in name else "tokenizer.ggml." + name
            keys[key] = pair(key, kind, value)
        raw = struct.pack("<4sIQQ", b"GGUF", 3, self.tensors, len(keys)) + b"".join(keys.values()) + self.declared
        with open(path, "wb") as file:
            file.write(raw + bytes(-len(raw) % 32) + self.data)


class Texts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.whole = {}
        for directory in (GEMMA, LLAMA):
            path = os.path.join(cls.scratch.name, os.path.basename(directory) + ".gguf")
            run("convert-model", directory, "-o", path)
            cls.whole[directory] = File(path)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def setUp(self):
        self.file = os.path.join(self.scratch.name, "m.gguf")

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def ids(self, model, text, *more):
        return json.loads(run("tokenize", "-m", model, "--json", *more, text).stdout)

    def inspect(self, model=None):
        return json.loads(run("inspect", model or self.file, "--json").stdout)

    def test_bos_that_a_pre_tokenizer_implies(self):
        expected = self.ids(LLAMA, "hi")
        self.whole[LLAMA].write(self.file, ["tokenizer.ggml.add_bos_token"])
        self.assertEqual(self.ids(self.file, "hi"), expected)
        self.assertEqual(self.inspect()["tokenizer"]["bos_is_added_by"], "tokenizer.ggml.pre llama-bpe")
        for pre, adds in (("llama3", True), ("llama-v3", True), ("tekken", True), ("lfm2", True), ("qwen2", False),
                          ("gpt-2", False), ("deepseek-llm", False)):
            self.whole[LLAMA].write(self.file, ["tokenizer.ggml.add_bos_token"], pre=("text", pre))
            self.assertEqual(self.ids(self.file, "hi")[0] == expected[0], adds, pre)
        self.whole[LLAMA].write(self.file, add_bos_token=("bool", False))
        self.assertEqual(self.ids(self.file, "hi"), expected[1:])
        self.assertEqual(self.inspect()["tokenizer"]["bos_is_added_by"], "tokenizer.ggml.add_bos_token")

    def stops(self, directory, drop=(), **pairs):
        self.whole[directory].write(self.file, drop, **pairs)
        found = self.inspect()
        self.assertEqual([s["id"] for s in found["stop_tokens"]], found["stop_ids"])
        return {s["token"]: s["from"] for s in found["stop_tokens"]}

    def test_the_end_of_a_turn(self):
        ggml = "tokenizer.ggml."
        self.assertEqual(self.stops(GEMMA), {"<eos>": ggml + "eos_token_id", "<end_of_turn>": ggml + "eot_token_id"})
        by_text = "tokenizer.chat_template, which ends a turn with "
        self.assertEqual(self.stops(GEMMA, [ggml + "eot_token_id"]),
                         {"<eos>": ggml + "eos_token_id", "<end_of_turn>": by_text + "<end_of_turn>"})
        self.assertEqual(self.stops(GEMMA, [ggml + "eot_token_id"], eos_token_ids=("i32", [1, 6, 99999, -1])),
                         {"<eos>": ggml + "eos_token_id", "<end_of_turn>": ggml + "eos_token_ids"})
        # A token is no stop token if the template never writes it, or writes it elsewhere.
        for template in ("{% for m in messages %}{{ m.content }}\n{% endfor %}",
                         "<end_of_turn>{% for m in messages %}{{ m.content }}<eos>{% endfor %}"):
            self.assertEqual(
                self.stops(GEMMA, [ggml + "eot_token_id"], **{"tokenizer.chat_template": ("text", template)}),
                {"<eos>": ggml + "eos_token_id"})
        # For a template that stet cannot render, its source decides.
        self.assertIn(
            "<end_of_turn>",
            self.stops(GEMMA, [ggml + "eot_token_id"],
                       **{"tokenizer.chat_template": ("text", "{{ raise_exception('no') }}<end_of_turn>")}))
        end = self.ids(LLAMA, "<|end_of_text|>", "--bos", "off")[0]
        self.assertEqual(list(self.stops(LLAMA, [ggml + "eot_token_id"], eos_token_id=("u32", end))),
                         ["<|end_of_text|>", "<|eot_id|>"])

    def test_replies_end_where_the_template_ends_a_turn(self):
        def reply():
            return json.loads(
                run("generate", "-m", self.file, "--say", "Let x be 5. What is x?", "-n", "30", "--greedy",
                    "--json").stdout)["text"]

        self.whole[GEMMA].write(self.file)
        expected = reply()
        self.whole[GEMMA].write(self.file, ["tokenizer.ggml.eot_token_id"])
        self.assertEqual(reply(), expected)

    def test_ids_out_of_range_name_no_token(self):
        expected = self.ids(GEMMA, "hi")
        self.whole[GEMMA].write(self.file, padding_token_id=("i32", -1), unknown_token_id=("u32", 2**32 - 1),
                                eot_token_id=("u32", 10**6), eom_token_id=("i32", -1))
        self.assertEqual(self.ids(self.file, "hi"), expected)
        self.assertEqual([s["token"] for s in self.inspect()["stop_tokens"]], ["<eos>", "<end_of_turn>"])

    def test_templates_by_name(self):
        tools = self.path("tools.json")
        with open(tools, "w") as file:
            file.write('[{"name": "f"}]')
        named = "TOOLS:{% for x in tools %}{{ x.name }};{% endfor %}"
        self.whole[LLAMA].write(self.file, **{"tokenizer.chat_template.tool_use": ("text", named)})

        def rendered(model, *more):
            return run("template", "-m", model, "-p", "Hi", *more).stdout

        self.assertEqual(rendered(self.file, "--tools", tools), "TOOLS:f;")
        self.assertEqual(rendered(self.file), rendered(LLAMA))
        # Errors name the key.
        for key in ("tokenizer.chat_template", "tokenizer.chat_template.tool_use"):
            self.whole[LLAMA].write(self.path("b.gguf"), **{"tokenizer.chat_template.tool_use": ("text", named),
                                                            key: ("text", "{% if x %}")})
            failed = run("template", "-m", self.path("b.gguf"), "-p", "Hi", "--tools", tools, status=1).stderr
            self.assertIn(f"b.gguf: {key}: line 1 column 11: expected", failed)
        # A conversion keeps the stop tokens of a directory's list.
        directory = self.path("listed")
        shutil.copytree(LLAMA, directory)
        config = os.path.join(directory, "tokenizer_config.json")
        with open(config) as file:
            published = json.load(file)
        published["chat_template"] = [{"name": "default", "template": published["chat_template"]},
                                      {"name": "tool_use", "template": named}, {"name": "rag", "template": "R"}]
        with open(config, "w") as file:
            json.dump(published, file)
        converted, again = self.path("n.gguf"), self.path("again.gguf")
        run("convert-model", directory, "-o", converted)
        run("convert-model", converted, "-o", again)
        for path in (converted, again):
            self.assertEqual(rendered(path, "--tools", tools), "TOOLS:f;")
            self.assertIn("tokenizer.chat_template.rag", File(path).keys)
            self.assertIn("tokenizer.chat_templates", File(path).keys)

    def test_special_tokens_without_embeddings_are_left_out(self):
        directory, converted = self.path("more tokens"), self.path("fewer.gguf")
        shutil.copytree(LLAMA, directory)
        path = os.path.join(directory, "tokenizer.json")
        with open(path) as file:
            tokenizer = json.load(file)
        with open(os.path.join(directory, "config.json")) as file:
            rows = json.load(file)["vocab_size"]
        more = dict(tokenizer["added_tokens"][0], id=rows, content="<image>", special=True)
        tokenizer["added_tokens"].append(more)
        with open(path, "w") as file:
            json.dump(tokenizer, file)
        said = run("convert-model", directory, "-o", converted).stderr
        self.assertEqual(said, "warning: the file has no token <image>: the model has no embedding for it\n")
        self.assertEqual(self.ids(converted, "Let k = 5."), self.ids(directory, "Let k = 5."))
        tokenizer["added_tokens"].pop()
        tokenizer["model"]["vocab"]["more"] = rows  # a token of texts, without which they would have other ids
        with open(path, "w") as file:
            json.dump(tokenizer, file)
        said = run("convert-model", directory, "-o", self.path("none.gguf"), status=1).stderr
        self.assertIn("tokenizer: tokens: expected at most %d, found %d" % (rows, rows + 1), said)
        self.assertFalse(os.path.exists(self.path("none.gguf")))

    def test_templates_of_a_folder(self):
        directory, packed, tools = self.path("folder"), self.path("packed"), self.path("tools.json")
        shutil.copytree(LLAMA, directory)
        os.mkdir(os.path.join(directory, "additional_chat_templates"))
        with open(os.path.join(directory, "additional_chat_templates", "tool_use.jinja"), "w") as file:
            file.write("T{{ tools[0].name }}")
        with open(tools, "w") as file:
            file.write('[{"name": "f"}]')
        run("prepare", "-m", directory, "-o", packed)
        for model in (directory, packed):
            self.assertEqual(run("template", "-m", model, "-p", "Hi", "--tools", tools).stdout, "Tf")

    def test_marks_of_an_ordinary_type_are_warned_of(self):
        types = File.__new__(File)
        types.raw, types.at = self.whole[GEMMA].keys["tokenizer.ggml.token_type"], 0
        types.text()
        kind, inner, length = types.take("I"), types.take("I"), types.take("Q")
        values = list(struct.unpack_from("<%di" % length, types.raw, types.at))
        self.assertEqual((kind, inner), (9, 5))
        values[5] = values[6] = 1
        self.whole[GEMMA].write(self.file, token_type=("i32", values))
        warned = run("template", "-m", self.file, "-p", "Hi").stderr
        self.assertIn("warning: the vocabulary has <end_of_turn>, <start_of_turn> of the chat template", warned)
        self.assertEqual(warned.count("\n"), 1)
        self.whole[GEMMA].write(self.file)
        self.assertEqual(run("template", "-m", self.file, "-p", "Hi").stderr, "")

    def test_the_marks_of_phi_3_take_white_space(self):
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + [
            "\u2581", "H", "i", "Hi", "\u2581Hi", "<|endoftext|>", "<|user|>", "<|end|>", "<|assistant|>"
        ]
        types = [2, 3, 3] + [6] * 256 + [1] * 5 + [3] * 4
        plain = self.path("phi3.gguf")
        run("convert-model", os.path.join(ROOT, "tests", "data", "models", "phi3-tiny"), "--tokenizer", "none", "-o",
            plain)
        for name in ("Phi3", "any"):  # the architecture implies it, too
            File(plain).write(self.file, model=("text", "llama"), pre=("text", "default"), tokens=("text", tokens),
                              scores=("f32", [-float(i) if t == 1 else 0.0 for i, t in enumerate(types)]),
                              token_type=("i32", types), bos_token_id=("u32", 1), eos_token_id=("u32", 264),
                              unknown_token_id=("u32", 0), **{"general.name": ("text", name)})
            user, end, assistant = (tokens.index(t) for t in ("<|user|>", "<|end|>", "<|assistant|>"))
            self.assertEqual(self.ids(self.file, "<|user|>\nHi<|end|>\n<|assistant|>\n"),
                             [1, user, tokens.index("\u2581Hi"), end, assistant])

    def test_work_with_ids_needs_no_tokenizer(self):
        """Covers a tokenizer with unknown rules, a broken one, one of an unsupported kind, and
        none."""
        directory = self.path("broken")
        shutil.copytree(GEMMA, directory)
        for name in ("tokenizer.json", "tokenizer.model"):
            if os.path.exists(os.path.join(directory, name)):
                os.unlink(os.path.join(directory, name))
        with open(os.path.join(directory, "tokenizer.json"), "w") as file:
            file.write('{"model": {"type": "WordPiece"}')
        cases = {directory: "tokenizer.json"}
        for name, pairs, word in (("pre", {"pre": ("text", "lyrics")}, "tokenizer.ggml.pre"),
                                  ("kind", {"model": ("text", "rwkv")}, "tokenizer.ggml.model")):
            cases[self.path(name + ".gguf")] = word
            self.whole[LLAMA].write(self.path(name + ".gguf"), **pairs)
        for model, word in cases.items():
            published = GEMMA if model == directory else LLAMA
            digest = run("logits", "-m", published, "--ids", "2,5,9", "--digest").stdout
            self.assertEqual(run("logits", "-m", model, "--ids", "2,5,9", "--digest").stdout, digest)
            self.assertIn(word, self.inspect(model)["tokenizer"]["refused"])
            state = self.path("s.stet")
            run("save", "-m", model, "--ids", "2,5,9", "-o", state)
            done = run("convert-model", model, "-o", self.path("converted.gguf"))
            self.assertIn("the file has no tokenizer", done.stderr)
            self.assertIn(word, done.stderr)
            self.assertEqual(
                run("logits", "-m", self.path("converted.gguf"), "--ids", "2,5,9", "--digest").stdout, digest)
            for command in (("tokenize", "-m", model, "hi"), ("generate", "-m", model, "-p", "hi", "-n", "1"),
                            ("template", "-m", model, "-p", "hi")):
                error = run(*command, status=1).stderr
                self.assertIn(word, error)
                self.assertEqual(error.count("\n"), 1, error)

    def test_rules_that_the_user_names(self):
        expected = self.ids(LLAMA, "I've 12345 apples")
        self.whole[LLAMA].write(self.file, pre=("text", "lyrics"))
        error = run("tokenize", "-m", self.file, "hi", status=1).stderr
        self.assertIn("llama-bpe", error)
        self.assertIn("--pre NAME", error)
        self.assertEqual(self.ids(self.file, "I've 12345 apples", "--pre", "llama-bpe"), expected)
        self.assertIn("lyrics", run("tokenize", "-m", self.file, "hi", "--pre", "lyrics", status=2).stderr)
        self.assertIn("--pre", run("tokenize", "-m", LLAMA, "hi", "--pre", "gpt-2", status=1).stderr)
        # Without the key, text is split as llama.cpp does in that case, with a warning.
        self.whole[LLAMA].write(self.file, ["tokenizer.ggml.pre"])
        done = run("tokenize", "-m", self.file, "--json", "hi")
        self.assertIn("tokenizer.ggml.pre", done.stderr)

    def test_gemma_4s_kind(self):
        """Gemma 4 merges pieces of text. The pocket model's scores express the same merges."""
        with open(os.path.join(LLAMA, "tokenizer.json")) as file:
            published = json.load(file)
        letters = sorted({c for t in published["model"]["vocab"] for c in t if c.isascii()})
        tokens = ["<unk>", "<bos>", "<eos>"] + [f"<0x{b:02X}>" for b in range(256)
                                                ] + ["\u2581", "\n", "\n\n"] + letters + ["th", "the", "\u2581the"]
        types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
        self.whole[LLAMA].write(self.file,
                                ["tokenizer.ggml.pre", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.add_bos_token"],
                                model=("text", "gemma4"), tokens=("text", tokens), token_type=("i32", types),
                                merges=("text", ["t h", "th e", "\u2581 the", "\n \n"]), bos_token_id=("u32", 1),
                                eos_token_id=("u32", 2), unknown_token_id=("u32", 0))
        at = tokens.index
        self.assertEqual(
            self.ids(self.file, "the the\n\n\u00e9"),
            [1, at("the"), at("\u2581the"), at("\n\n"),
             at("<0xC3>"), at("<0xA9>")])
        self.assertEqual(
            run("detokenize", "-m", self.file, "--skip-special", "--ids",
                ",".join(map(str, self.ids(self.file, "the the\n\n\u00e9")))).stdout, "the the\n\n\u00e9\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
