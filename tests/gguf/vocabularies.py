"""Tokenizers from GGUF: the published vocabularies of Gemma 3, Llama 3.1 and GPT-2, written as
GGUF, give the ids of the original tokenizer files. Skipped where the fixtures are missing.

    vocabularies.py STET FIXTURES [TEXTS]

TEXTS is the number of generated texts for each vocabulary (2,000), beside those of the goldens.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_writer  # noqa: E402
from gguf_writer import pair  # noqa: E402

STET, FIXTURES = sys.argv[1:3]
TEXTS = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz   ", "ABC xyz 0123456789.,;:!?'\"-_()[]{}", " \t\r\n\u00a0\u2003", "äöüßéñçøæœ ÀÉ",
    "кириллица ΑΒΓ אבג عربي", "漢字かなカナ한국어", "🙂👩‍👩‍👧🇩🇪e\u0301\u200d\ufe0f", "<>|/\\_▁#@$%^&*~`+=",
    "\u0000\u0007\u007f\ufffd\ue000"
]


def published(directory):
    with open(os.path.join(directory, "tokenizer.json")) as file:
        tokenizer = json.load(file)
    with open(os.path.join(directory, "tokenizer_config.json")) as file:
        return tokenizer, json.load(file)


def tokens_and_types(tokenizer):
    """Returns tokens and sentencepiece's types: 1 normal, 2 unknown, 3 control, 4 user-defined, 6
    byte."""
    by_id = {i: t for t, i in tokenizer["model"]["vocab"].items()}
    types = {
        i: 6 if tokenizer["model"].get("byte_fallback") and len(t) == 6 and t.startswith("<0x") else 1
        for i, t in by_id.items()
    }
    for added in tokenizer["added_tokens"]:
        by_id[added["id"]] = added["content"]
        types[added["id"]] = 3 if added["special"] else 4
    unknown = tokenizer["model"].get("unk_token")
    if unknown is not None:
        types[tokenizer["model"]["vocab"][unknown]] = 2
    last = max(by_id) + 1
    return [by_id.get(i, f"[PAD{i}]") for i in range(last)], [types.get(i, 5) for i in range(last)]


def write(directory, path, pre, published_too=False, gemma4=False):
    """Writes a model with this tokenizer and embeddings of two numbers. `pre` is None for sentencepiece's or Gemma 4's
    rules."""
    tokenizer, config = published(directory)
    tokens, types = tokens_and_types(tokenizer)
    keys = [pair("general.architecture", "text", "llama")]
    for name, value in (("embedding_length", 2), ("block_count", 1), ("feed_forward_length", 2),
                        ("context_length", 64), ("attention.head_count", 1)):
        keys.append(pair("llama." + name, "u32", value))
    keys.append(pair("llama.attention.layer_norm_rms_epsilon", "f32", 1e-6))
    keys += [pair("tokenizer.ggml.tokens", "text", tokens), pair("tokenizer.ggml.token_type", "i32", types)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    if gemma4:
        keys += [pair("tokenizer.ggml.model", "text", "gemma4"), pair("tokenizer.ggml.merges", "text", merges)]
    elif pre is None:
        # Scores fall with growing ids, so that pieces merge in the order in which they were
        # learned.
        keys += [
            pair("tokenizer.ggml.model", "text", "llama"),
            pair("tokenizer.ggml.add_space_prefix", "bool", False),
            pair("tokenizer.ggml.scores", "f32", [float(-i) for i in range(len(tokens))])
        ]
    else:
        keys += [
            pair("tokenizer.ggml.model", "text", "gpt2"),
            pair("tokenizer.ggml.pre", "text", pre),
            pair("tokenizer.ggml.merges", "text", merges),
        ]
    for key, name in (
        ("bos_token_id", "bos_token"),
        ("eos_token_id", "eos_token"),
        ("unknown_token_id", "unk_token"),
    ):
        if isinstance(config.get(name), str) and config[name] in tokens:
            keys.append(pair("tokenizer.ggml." + key, "u32", tokens.index(config[name])))
    keys.append(pair("tokenizer.ggml.add_bos_token", "bool", config.get("bos_token") != config["eos_token"]))
    if config.get("chat_template"):
        keys.append(pair("tokenizer.chat_template", "text", config["chat_template"]))
    if published_too:
        with open(os.path.join(directory, "tokenizer.json"), "rb") as file:
            keys.append(pair("tokenizer.huggingface.json", "text", file.read()))
    gguf_writer.write_file(path, keys, [("token_embd.weight", np.zeros((len(tokens), 2)), "F16")])


def generated(count, seed, tokens):
    """Generates texts from alphabets and from pieces of the vocabulary, which include special tokens and word
    borders."""
    draws = random.Random(seed)
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(draws.randrange(1, 9)):
            if draws.random() < 0.4:
                parts.append(draws.choice(tokens).replace("Ġ", " ").replace("Ċ", "\n"))
            else:
                alphabet = draws.choice(ALPHABETS)
                parts.append("".join(draws.choice(alphabet) for _ in range(draws.randrange(1, 12))))
        texts.append("".join(parts))
    return texts


def ids(model, texts):
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    done = subprocess.run([STET, "tokenize", "-m", model, "--jsonl"], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class Vocabularies(unittest.TestCase):
    def equal_ids(self, name, pre, published_too=False, gemma4=False):
        directory = os.path.join(FIXTURES, "tokenizers", name)
        if not os.path.isdir(directory):
            self.skipTest(directory + " is missing")
        with open(os.path.join(directory, "golden.json")) as file:
            golden = json.load(file)
        texts = [g["text"] for g in golden["encode"]]
        texts += [c["text"] for c in golden.get("chat", []) if c.get("text")]
        texts += generated(TEXTS, name, tokens_and_types(published(directory)[0])[0])
        with tempfile.TemporaryDirectory() as scratch:
            file = os.path.join(scratch, "m.gguf")
            write(directory, file, pre, published_too, gemma4)
            found, expected = ids(file, texts), ids(directory, texts)
            for text, a, b in zip(texts, found, expected):
                self.assertEqual(a, b, repr(text))
            self.assertEqual(len(found), len(texts))
            bos = golden["encode"][0]["with_special"][:1]
            for g, a in zip(golden["encode"], found):  # transformers' ids without a second bos
                twice = bos and g["with_special"][:2] == bos * 2
                self.assertEqual(json.loads(a), g["with_special"][1 if twice else 0:], repr(g["text"]))

    def test_gemma_3(self):
        self.equal_ids("gemma3", None)

    def test_gemma_3_as_gemma_4(self):
        self.equal_ids("gemma3", None, gemma4=True)

    def test_llama_3_1(self):
        self.equal_ids("llama3_1", "llama-bpe")

    def test_gpt_2(self):
        self.equal_ids("gpt2", "gpt-2")

    def test_digits_one_by_one(self):
        directory = os.path.join(FIXTURES, "tokenizers", "gpt2")
        if not os.path.isdir(directory):
            self.skipTest(directory + " is missing")
        tokenizer, config = published(directory)
        tokenizer["pre_tokenizer"] = {
            "type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                  tokenizer["pre_tokenizer"]]
        }
        texts = ["123 4567 a1b2", " 007"] + generated(TEXTS, "digits", tokens_and_types(tokenizer)[0])
        with tempfile.TemporaryDirectory() as scratch:
            for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
                with open(os.path.join(scratch, name), "w") as file:
                    json.dump(content, file)
            file = os.path.join(scratch, "m.gguf")
            write(scratch, file, "refact")
            self.assertEqual(ids(file, texts), ids(scratch, texts))
            self.assertNotEqual(ids(scratch, texts), ids(directory, texts))

    def test_the_published_file_goes_before(self):
        self.equal_ids("llama3_1", "llama-bpe", published_too=True)
        # With a published tokenizer.json in the file, the rules of the name are not used.
        self.equal_ids("gpt2", "of-no-model", published_too=True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
