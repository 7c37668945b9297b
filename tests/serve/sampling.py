"""Sampling and embedding options of requests, texts that begin with bos, JSON bodies, and key
files.

    sampling.py STET ROOT
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest

from api import MODEL, ROOT, STET, Server, request_of

WEIGHED = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {"5": 2, "17": -100}}
OPTIONS = ["--frequency-penalty", "1.5", "--presence-penalty", "0.5", "--logit-bias", "5=2,17=-100"]


def command(*arguments):
    return json.loads(
        subprocess.run([STET, *arguments, "-m", MODEL, "--json"], check=True, capture_output=True, text=True).stdout)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def unit_length(x):
    """Returns x divided by its length. Squares are summed in 16 lanes and a tree in double, as
    the kernel's header says."""
    lanes = [0.0] * 16
    for i, value in enumerate(x):
        lanes[i % 16] += value * value
    for half in (8, 4, 2, 1):
        for i in range(half):
            lanes[i] += lanes[i + half]
    return [f32(value / math.sqrt(lanes[0])) for value in x]


class Sampling(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.post, cls.get, cls.call = cls.server.post, cls.server.get, cls.server.call

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def complete(self, **more):
        return self.post(
            "/v1/completions",
            {"prompt": "Once", "max_tokens": 40, "temperature": 0, "ignore_eos": True, **more})["choices"][0]

    def test_penalties_and_biases_are_those_of_the_command(self):
        ask = ["generate", "-p", "Once", "-n", "40", "--ignore-eos", "--greedy"]
        weighed, plain = self.complete(**WEIGHED), self.complete()
        self.assertEqual(weighed["state_digest"], command(*ask, *OPTIONS)["digests"]["id"])
        self.assertEqual(plain["state_digest"], command(*ask)["digests"]["id"])
        self.assertNotEqual(weighed["text"], plain["text"])
        state = self.get("/v1/states/" + weighed["state_id"])
        self.assertEqual({name: state["sampling"][name] for name in WEIGHED}, WEIGHED)

    def test_what_asks_for_nothing_leaves_no_trace(self):
        plain = self.complete()["state_digest"]
        for nothing in ({}, {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
                        {"frequency_penalty": None, "presence_penalty": -0.0,
                         "logit_bias": None}, {"logit_bias": {"5": 0, "17": None}}):
            self.assertEqual(self.complete(**nothing)["state_digest"], plain, nothing)

    def test_a_reply_in_pieces_is_drawn_as_one(self):
        start = state = self.post("/v1/states", {"text": "Once", "temperature": 0, **WEIGHED})["id"]
        whole = self.post("/v1/states/%s/continue" % start, {"n": 40, "ignore_eos": True})
        for n in (1, 22, 17):
            piece = self.post("/v1/states/%s/continue" % state, {"n": n, "ignore_eos": True})
            state = piece["state"]["id"]
        self.assertEqual(self.get("/v1/states/" + state)["digest"], self.complete(**WEIGHED)["state_digest"])
        self.assertEqual(whole["ids"][-17:], piece["ids"])
        back = self.post("/v1/states/%s/rewind" % state,
                         {"tokens": len(self.get("/v1/states/" + state)["ids"]) - 17})["id"]
        self.assertEqual(
            self.post("/v1/states/%s/continue" % back, {"n": 17, "ignore_eos": True})["ids"], piece["ids"])

    def test_the_next_tokens_are_shown_as_they_will_be_drawn(self):
        state = self.post("/v1/states", {"text": "Once", "temperature": 1})["id"]
        best = self.get("/v1/states/%s/top?n=1" % state)["data"][0]
        barred = self.post("/v1/states",
                           {"text": "Once", "temperature": 1, "logit_bias": {str(best["id"]): -100}})["id"]
        same = self.get("/v1/states/%s/top?n=1" % barred)["data"][0]
        self.assertEqual((same["id"], same["logprob"]), (best["id"], best["logprob"]))
        self.assertLess(same["probability"], 1e-30)
        seen = 0
        for token in [t["id"] for t in self.get("/v1/states/%s/top?n=20" % state)["data"]]:
            shown = []
            for penalty in (0, 2):
                after = self.post(
                    "/v1/states/%s/continue" % state,
                    {"n": 1, "choose": token, "presence_penalty": penalty, "frequency_penalty": penalty
                     })["state"]["id"]
                shown.append({t["id"]: t["probability"]
                              for t in self.get("/v1/states/%s/top?n=200" % after)["data"]}.get(token, 0))
            self.assertLessEqual(shown[1], shown[0])
            seen += shown[1] < shown[0]
        self.assertGreater(seen, 0)

    def test_older_readers_refuse_a_state_that_weighs_tokens(self):
        for more, bit in ((WEIGHED, 32), ({}, 0)):
            state = self.complete(**more)["state_id"]
            file = self.get("/v1/states/%s/snapshot" % state)
            self.assertEqual(struct.unpack_from("<Q", file, 16)[0] & 32, bit)

    def test_wrong_values_are_said_by_their_place(self):
        for field, value, pointer in (("frequency_penalty", 2.5, ""), ("frequency_penalty", "1", ""),
                                      ("presence_penalty", -2.01, ""), ("logit_bias", [], ""),
                                      ("logit_bias", {"x": 1}, "/x"), ("logit_bias", {"5": 101}, "/5"),
                                      ("logit_bias", {"5": "1"}, "/5"), ("logit_bias", {"05": 1}, "/05"),
                                      ("logit_bias", {"-1": 1}, "/-1"), ("logit_bias", {"10000000": 1}, "/10000000"),
                                      ("logit_bias", {"a/b~": 1}, "/a~1b~0")):
            for path, body in (("/v1/chat/completions", request_of("Hi", n=1)),
                               ("/v1/completions", {"prompt": "Hi",
                                                    "max_tokens": 1}), ("/v1/states", {"text": "Hi"})):
                for stream in (False, True)[:1 if path == "/v1/states" else 2]:
                    status, answer = self.call("POST", path,
                                               {**body, **({"stream": True} if stream else {}), field: value})
                    self.assertEqual((status, answer["error"]["param"]), (400, "/" + field + pointer), answer)

    def test_embeddings_have_unit_length(self):
        for more in ({}, {"pooling": "last"}, {"layer": 1}, {"pooling": "last", "layer": 2}):
            raw = self.post("/v1/embeddings", {"input": ["Hello", "a = 3"], "normalize": False, **more})
            unit = self.post("/v1/embeddings", {"input": ["Hello", "a = 3"], **more})
            self.assertEqual((raw["normalized"], unit["normalized"]), (False, True))
            for x, y in zip(raw["data"], unit["data"]):
                self.assertEqual([f32(v) for v in y["embedding"]], unit_length([f32(v) for v in x["embedding"]]))
                self.assertAlmostEqual(sum(v * v for v in y["embedding"]), 1, 5)
        width = len(unit["data"][0]["embedding"])
        self.assertEqual(
            self.post("/v1/embeddings", {"input": "Hello", "dimensions": width})["data"],
            self.post("/v1/embeddings", {"input": "Hello"})["data"])
        for value, code in ((width - 1, "unsupported_field"), (0, "invalid_value"), (width + 1, "invalid_value"),
                            ("8", "invalid_value")):
            status, answer = self.call("POST", "/v1/embeddings", {"input": "Hello", "dimensions": value})
            self.assertEqual((status, answer["error"]["param"], answer["error"]["code"]), (400, "/dimensions", code),
                             answer)
        self.assertEqual(
            self.call("POST", "/v1/embeddings", {"input": "Hello", "normalize": 1})[1]["error"]["param"],
            "/normalize")

    def test_embeddings_of_many_inputs(self):
        one = self.post("/v1/embeddings", {"input": "a"})["data"][0]["embedding"]
        many = self.post("/v1/embeddings", {"input": ["a"] * 65})["data"]  # clients send hundreds
        self.assertEqual([(m["index"], m["embedding"]) for m in many], [(i, one) for i in range(65)])
        for inputs in (["a"] * 2049, [[5]] * 2049):
            self.assertEqual(self.call("POST", "/v1/embeddings", {"input": inputs})[1]["error"]["param"], "/input")
        status, answer = self.call("POST", "/v1/embeddings", {"input": "word " * 20000})
        self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))

    def test_a_model_says_to_how_many_dimensions_it_may_be_cut(self):
        with open(os.path.join(MODEL, "config.json")) as file:
            config = json.load(file)
        for declared, good, bad in (
            ({"matryoshka_dimensions": [8, 16]}, (8, 16), (9,)),
            ({"is_matryoshka": True}, (1, 9), (0,)),
        ):
            with tempfile.TemporaryDirectory() as model:
                for name in os.listdir(MODEL):
                    os.symlink(os.path.join(MODEL, name), os.path.join(model, name))
                os.remove(os.path.join(model, "config.json"))
                with open(os.path.join(model, "config.json"), "w") as file:
                    json.dump({**config, **declared}, file)
                server = Server(model=model)
                whole = [
                    f32(v) for v in server.post("/v1/embeddings", {"input": "Hello", "normalize": False})["data"][0]
                    ["embedding"]
                ]
                for n in good:
                    cut = server.post("/v1/embeddings", {"input": "Hello", "dimensions": n})["data"][0]["embedding"]
                    self.assertEqual([f32(v) for v in cut], unit_length(whole[:n]))
                for n in bad:
                    self.assertEqual(
                        server.call("POST", "/v1/embeddings",
                                    {"input": "Hello", "dimensions": n})[1]["error"]["param"], "/dimensions")
                server.stop()

    def test_a_rendered_template_gets_no_second_bos(self):
        text = self.post("/apply-template", {"messages": [{"role": "user", "content": "Let a = 3. What is a?"}]})
        count, prompt = len(text["tokens"]), text["prompt"]
        self.assertEqual(self.post("/tokenize", {"text": prompt})["tokens"], text["tokens"])
        self.assertEqual(self.post("/tokenize", {"text": prompt, "add_special": False})["tokens"], text["tokens"])
        self.assertEqual(
            self.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})["usage"]["prompt_tokens"], count)
        self.assertEqual(
            self.get("/v1/states/" + self.post("/v1/states", {"text": prompt})["id"])["ids"], text["tokens"])
        self.assertEqual(
            self.post("/v1/embeddings", {"input": [prompt, prompt]})["usage"]["prompt_tokens"], 2 * count)
        self.assertEqual(command("generate", "-p", prompt, "-n", "1")["prompt_ids"], text["tokens"])
        plain = self.post("/tokenize", {"text": "Let a = 3."})["tokens"]
        self.assertEqual(plain[0], text["tokens"][0])  # a text without bos gets one

    def refused(self, raw):
        status, answer = self.call("POST", "/v1/completions", raw=raw)
        self.assertEqual((status, answer["error"]["code"]), (400, "invalid_json"), answer)
        return answer["error"]["message"]

    def test_errors_say_where_the_json_is_wrong(self):
        for raw, message in (
            (b"", "line 1, column 1: expected a JSON object, found the end of the body"),
            (b"[1]", "line 1, column 1: expected a JSON object, found [1]"),
            (b'{"a": 1', "line 1, column 8: expected ',' or '}', found the end of the body"),
            (b'{"a": 1,}', "line 1, column 9: expected a key in quotes, found }"),
            (b'{\n  "a" 1}', "line 2, column 7: expected ':', found 1}"),
            (b'{"a": [1 2]}', "line 1, column 10: expected ',' or ']', found 2]}"),
            (b'{"a": [1, ]}', "line 1, column 11: expected a value, or ']' where the list ends, found ]}"),
            (b'{"a": tru}', "line 1, column 7: expected a value, found tru}"),
            (b"{'a': 1}", "line 1, column 2: expected a key in quotes, or '}', found 'a': 1}"),
            (b'{"a": 1} x', "line 1, column 10: expected the end of the body, found x"),
            (b'{"a": "x}', "line 1, column 10: expected '\"' at the end of a string, found the end of the body"),
            (b'{"a": NaN}', "line 1, column 7: expected a value, found NaN}"),
            (
                b'{"a": "x\ny"}',
                "line 1, column 9: expected an escape such as \\n in place of a control character, found \\ny\"}",
            ),
            (b'{"a": "\\q"}', "line 1, column 9: expected valid JSON, found '\"\\q'"),
            (b'{"a": 1e999}', "line 1, column 11: expected a number that fits a double, found '1e999'"),
            (b'{"a": 01}', "line 1, column 8: expected valid JSON, found"),
            (b'{"a": "\xff"}', "line 1, column 8: expected valid JSON"),
            (b'{"a": {"b": 1, "b": 2}}', "a.b: expected each key once, found a second value"),
            (
                b'{"a":' + b"[" * 32 + b"]" * 32 + b"}",
                "line 1, column 37: expected JSON of at most 32 levels, found more",
            ),
            (b'{"a":' * 100000, "expected JSON of at most 32 levels, found more"),
        ):
            self.assertIn(message, self.refused(raw), raw[:40])
        self.assertEqual(self.call("POST", "/tokenize", raw=b'\xef\xbb\xbf {"text" : "a\\u00e9\\"]}" }\r\n')[0], 200)
        self.assertEqual(
            self.call("POST", "/tokenize",
                      raw=b'{"text": "", "x": ' + b"[" * 31 + b"]" * 31 + b"}")[1]["error"]["param"], "/x")

    # A parser that compares each value with all earlier ones takes minutes for these bodies.
    def test_large_bodies_are_read_in_linear_time(self):
        status, answer = self.call("POST", "/v1/chat/completions", raw=b'{"messages":[' + b"{}," * 60000 + b"{}]}")
        self.assertEqual((status, answer["error"]["param"]), (400, "/messages"), answer)
        keys = ",".join('"%d":0' % i for i in range(200000))
        self.assertEqual(
            self.call("POST", "/tokenize", raw=("{" + keys + "}").encode())[1]["error"]["param"], "/text")
        self.assertEqual(
            self.complete(logit_bias={str(i): 0 for i in range(900)})["state_digest"],
            self.complete()["state_digest"])
        for one in (b"{}", b"[]", b"1", b'""', b'{"a":1}'):
            message = self.refused(b'{"a":[' + (one + b",") * ((1 << 20) // (1 + one.count(b":"))) + b"1]}")
            self.assertIn("expected JSON of at most 1048576 values, found more", message)
            message = self.refused(b'{"a":[' + (one + b",") * (1000000 // (1 + one.count(b":"))) + b"1]}")
            self.assertIn("expected JSON whose values take at most", message)


class KeyFiles(unittest.TestCase):
    def test_a_file_of_keys_is_its_owners_alone(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "keys")
            for text, error in (("anna 0123456789\n", None), ("", "keys: expected at least one, found none"),
                                ("# nobody\n", "keys: expected at least one, found none"),
                                ("anna 0123456789\nbert 1234567\n",
                                 "line 2: expected a key of at least 8 characters, found a shorter one"),
                                ("anna 0123456789\n  bert \t0123456789\r\n",
                                 "line 2: expected each key once, found one of an earlier line")):
                with open(path, "w") as file:
                    file.write(text)
                for mode in (0o644, 0o640, 0o604, 0o602, 0o610)[:5 if error is None else 0]:
                    os.chmod(path, mode)
                    done = subprocess.run([STET, "serve", "-m", MODEL, "--port", "0", "--api-key-file", path],
                                          capture_output=True, text=True)
                    self.assertEqual(
                        (done.returncode, done.stderr),
                        (1, "stet: %s: permissions: expected 600: keys that their owner alone can read, found %o\n" %
                         (path, mode)))
                os.chmod(path, 0o600)
                if error is not None:
                    done = subprocess.run([STET, "serve", "-m", MODEL, "--port", "0", "--api-key-file", path],
                                          capture_output=True, text=True)
                    self.assertEqual((done.returncode, done.stderr), (1, "stet: %s: %s\n" % (path, error)))
                    continue
                server = Server("--api-key-file", path)
                self.assertEqual(server.call("GET", "/v1/models")[0], 401)
                self.assertEqual(server.call("GET", "/v1/models", key="0123456789")[0], 200)
                server.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
