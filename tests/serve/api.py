"""Runs stet serve over its socket. Replies, and the states after them, equal those of `stet
generate` alone, whatever other requests run.

    api.py STET ROOT
"""
import base64
import concurrent.futures
import gzip
import http.client
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

from forged import forged

STET, ROOT = sys.argv[1], sys.argv[2]
MODEL = os.path.join(ROOT, "assets/pocket-llama3")


class Server:
    def __init__(self, *options, model=MODEL, port=0):
        self.options, self.model, self.port = options, model, port
        self.start()

    def start(self):
        self.process = subprocess.Popen([STET, "serve", "-m", self.model, "--port", str(self.port), *self.options],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise AssertionError("no address: " + line + self.process.stderr.read())
        self.port = int(line.rsplit(":", 1)[1].strip("/\n"))

    def call(self, method, path, body=None, key=None, raw=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = dict(headers)
        if key:
            headers["Authorization"] = "Bearer " + key
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if data and not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = "application/json"
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kind = answer.headers["Content-Type"]
        return answer.status, json.loads(content) if kind == "application/json" else content

    def post(self, path, body, **more):
        status, answer = self.call("POST", path, body, **more)
        assert status == 200, (path, body, status, answer)
        return answer

    def get(self, path, **more):
        status, answer = self.call("GET", path, **more)
        assert status == 200, (path, status, answer)
        return answer

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, (self.process.returncode, err)
        return err

    def kill(self):
        self.process.kill()
        self.process.communicate()


def alone(message, seed=None, temperature=None, n=64, system=None, stop=None):
    """Returns the reply and the state's id from the command alone."""
    command = [STET, "generate", "-m", MODEL, "--say", message, "--json", "-n", str(n)]
    for option, value in (("--seed", seed), ("--temperature", temperature), ("--system", system), ("--stop", stop)):
        if value is not None:
            command += [option, str(value)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer["text"], answer["digests"]["id"]


def request_of(message, seed=None, temperature=None, n=64, system=None, stop=None):
    body = {"messages": ([{"role": "system", "content": system}] if system else [])
            + [{"role": "user", "content": message}], "max_tokens": n}
    for name, value in (("seed", seed), ("temperature", temperature), ("stop", stop)):
        if value is not None:
            body[name] = value
    return body


def mixed(count):
    """Returns requests of many lengths, seeds and settings. Some are prefixes of others."""
    draws = random.Random(7)
    for i in range(count):
        message = " ".join("Let %s = %d." % (draws.choice("abcdxyz"), draws.randrange(20))
                           for _ in range(draws.choice([1, 1, 2, 5, 20])))
        yield {"message": message + " What is a?", "seed": i, "temperature": draws.choice([0, 0.5, 1, 3]),
               "n": draws.choice([3, 20, 60]),
               "system": draws.choice([None, "You are helpful."])}


def unread_reply(server, **fields):
    """Returns the connection of a client that reads little of a long reply. The reply goes on, and keeps its place
    among the streams, until the connection is closed."""
    body = json.dumps({**request_of("Hi", n=1800), "stream": True, "ignore_eos": True, "logprobs": True,
                       "top_logprobs": 20, **fields}).encode()
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.connect(("127.0.0.1", server.port))
    stream.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    content = b""
    while b"logprobs" not in content:
        content += stream.recv(1)
    assert content.startswith(b"HTTP/1.1 200 "), content
    return stream


def events(content):
    lines = [line[6:] for line in content.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"], "[DONE]" in lines


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.post, cls.get = cls.server.post, cls.server.get

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def conversation(self, *messages):
        return self.post("/v1/states", {"messages": [{"role": "user", "content": m} for m in messages]})

    def test_a_reply_is_that_of_the_command_alone(self):
        for case in ({"message": "Let b = 7."},
                     {"message": "Let a = 3. What is a?", "seed": 5, "temperature": 2, "n": 9},
                     {"message": "Hello", "stop": "elc", "system": "Be kind."}):
            answer = self.post("/v1/chat/completions", request_of(**case))
            choice = answer["choices"][0]
            self.assertEqual((choice["message"]["content"], choice["state_digest"]), alone(**case))

    def test_a_stream_says_the_same(self):
        whole = self.post("/v1/chat/completions", request_of("Let c = 4. What is c?"))
        status, content = self.server.call("POST", "/v1/chat/completions",
                                           {**request_of("Let c = 4. What is c?"), "stream": True,
                                            "stream_options": {"include_usage": True}})
        pieces, done = events(content)
        self.assertTrue(done)
        self.assertEqual("".join(p["choices"][0]["delta"].get("content", "") for p in pieces if p["choices"]),
                         whole["choices"][0]["message"]["content"])
        self.assertEqual(pieces[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
        self.assertEqual(pieces[-2]["choices"][0]["state_digest"], whole["choices"][0]["state_digest"])

    def test_load_does_not_show(self):
        cases = list(mixed(64))
        expected = [alone(**case) for case in cases]

        def ask(case):
            choice = self.post("/v1/chat/completions", request_of(**case))["choices"][0]
            return choice["message"]["content"], choice["state_digest"]

        with concurrent.futures.ThreadPoolExecutor(64) as clients:
            self.assertEqual(list(clients.map(ask, cases)), expected)

    def test_clients_that_leave_disturb_nobody(self):
        case = {"message": "Let a = 3. Let b = 8. What is a?", "seed": 3, "temperature": 1, "n": 40}
        expected = alone(**case)

        def leave(i):
            s = socket.create_connection(("127.0.0.1", self.server.port))
            body = json.dumps(
                {**request_of("Tell me about %d." % i, i, 3, 1900), "stream": i % 2 == 0, "ignore_eos": True}).encode()
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                      b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                      + body[: len(body) - i % 3])
            s.recv(1 + i % 7) if i % 2 == 0 and i % 3 == 0 else None
            s.close()

        def ask(_):
            choice = self.post("/v1/chat/completions", request_of(**case))["choices"][0]
            return choice["message"]["content"], choice["state_digest"]

        with concurrent.futures.ThreadPoolExecutor(16) as clients:
            gone = [clients.submit(leave, i) for i in range(40)]
            replies = [clients.submit(ask, i) for i in range(20)]
            for g in gone:
                g.result()
            for r in replies:
                self.assertEqual(r.result(), expected)
        for _ in range(600):
            status = self.get("/v1/status")
            if status["running"] + status["queued"] == 0:
                break
        self.assertEqual((status["running"], status["queued"]), (0, 0))

    def test_choices_draw_with_seeds_of_their_own(self):
        answer = self.post("/v1/chat/completions", {**request_of("Hello", seed=10, temperature=3, n=12), "n": 3})
        for i, choice in enumerate(answer["choices"]):
            self.assertEqual((choice["message"]["content"], choice["state_digest"]),
                             alone("Hello", seed=10 + i, temperature=3, n=12))

    def test_text_completions_and_their_ids(self):
        answer = self.post("/v1/completions", {"prompt": "Let a", "max_tokens": 6, "logprobs": 2})
        command = [STET, "generate", "-m", MODEL, "-p", "Let a", "-n", "6", "--json"]
        expected = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        self.assertEqual((answer["choices"][0]["text"], answer["choices"][0]["state_digest"]),
                         (expected["text"], expected["digests"]["id"]))
        self.assertEqual(len(answer["choices"][0]["logprobs"]["tokens"]), 6)
        by_ids = self.post("/v1/completions", {"prompt": expected["prompt_ids"], "max_tokens": 6})
        self.assertEqual(by_ids["choices"][0]["state_digest"], expected["digests"]["id"])

    def test_logprobs_are_the_models(self):
        answer = self.post("/v1/chat/completions",
                           {**request_of("Let a = 3. What is a?"), "logprobs": True, "top_logprobs": 3})
        content = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual("".join(bytes(t["bytes"]).decode() for t in content[:-1]),
                         answer["choices"][0]["message"]["content"])
        for t in content:
            self.assertEqual(len(t["top_logprobs"]), 3)
            self.assertEqual(t["top_logprobs"][0]["logprob"], t["logprob"])  # sampling is greedy
        state = answer["state_id"]
        tokens = self.get("/v1/states/%s/tokens?logprobs=true" % state)["data"]
        self.assertEqual([t["logprob"] for t in tokens if t["generated"]], [t["logprob"] for t in content[:-1]])

    def test_a_known_prefix_is_reused_and_told(self):
        long = " ".join("Let x = %d." % i for i in range(40))
        first = self.post("/v1/chat/completions", request_of(long, n=4))
        second = self.post("/v1/chat/completions", request_of(long + " And?", n=4))
        self.assertGreater(second["usage"]["prompt_tokens_details"]["cached_tokens"], 200)
        self.assertEqual(second["usage"]["reused"] + second["usage"]["new"], second["usage"]["prompt_tokens"])
        self.assertEqual(second["choices"][0]["state_digest"], alone(long + " And?", n=4)[1])

    def test_responses_keep_the_state(self):
        first = self.post("/v1/responses", {"input": "Let a = 6."})
        second = self.post("/v1/responses", {"input": "What is a?", "previous_response_id": first["id"]})
        self.assertIn("6", second["output_text"])
        self.assertEqual(second["previous_response_id"], first["id"])
        self.assertEqual(self.get("/v1/responses/" + second["id"])["output_text"], second["output_text"])
        status, content = self.server.call("POST", "/v1/responses",
                                           {"input": "What is a?", "previous_response_id": first["id"], "stream": True})
        pieces, _ = events(content)
        self.assertEqual([p["sequence_number"] for p in pieces], list(range(len(pieces))))
        self.assertEqual(pieces[-1]["response"]["state_digest"], second["state_digest"])
        self.assertTrue(self.server.call("DELETE", "/v1/responses/" + second["id"])[1]["deleted"])
        self.assertEqual(self.server.call("GET", "/v1/responses/" + second["id"])[0], 404)

    def test_a_response_names_the_previous_one_of_its_request(self):
        say = {"input": "Let a = 61.", "max_output_tokens": 8}
        first = self.post("/v1/responses", say)
        ask = {"input": "What is a?", "max_output_tokens": 8, "previous_response_id": first["id"]}
        second = self.post("/v1/responses", ask)
        self.server.call("DELETE", "/v1/responses/" + first["id"])
        self.assertEqual(self.post("/v1/responses", say)["id"], first["id"])
        again = self.post("/v1/responses", ask)
        self.assertEqual((again["id"], again["previous_response_id"]), (second["id"], first["id"]))

    def test_anthropics_messages(self):
        body = {"max_tokens": 50, "system": "Be kind.",
                "messages": [{"role": "user", "content": "Let a = 2. What is a?"}]}
        answer = self.post("/v1/messages", body)
        self.assertEqual((answer["content"][0]["text"], answer["state_digest"]),
                         alone("Let a = 2. What is a?", system="Be kind.", n=50))
        pieces, _ = events(self.server.call("POST", "/v1/messages", {**body, "stream": True})[1])
        self.assertEqual("".join(p["delta"]["text"] for p in pieces if p["type"] == "content_block_delta"),
                         answer["content"][0]["text"])
        stopped = self.post("/v1/messages", {**body, "stop_sequences": ["zz", "is"]})
        self.assertEqual((stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", "is"))

    def test_embeddings(self):
        plain = self.post("/v1/embeddings", {"input": ["Hello", "a = 3"], "layer": 2, "pooling": "last"})
        packed = self.post("/v1/embeddings",
                           {"input": ["Hello", "a = 3"], "layer": 2, "pooling": "last", "encoding_format": "base64"})
        for x, y in zip(plain["data"], packed["data"]):
            raw = base64.b64decode(y["embedding"])
            self.assertEqual(struct.unpack("<%df" % len(x["embedding"]), raw),
                             tuple(struct.unpack("<f", struct.pack("<f", v))[0] for v in x["embedding"]))
        self.assertEqual((plain["layer"], plain["pooling"], plain["normalized"]), (2, "last", True))

    def test_an_embedding_of_nothing_is_refused_by_its_place(self):
        for value, place in (([[1], []], "/input/1"), ([[], [1]], "/input/0"), (["a", ""], "/input/1")):
            status, answer = self.server.call("POST", "/v1/embeddings", {"input": value})
            self.assertEqual((status, answer["error"]["param"]), (400, place))

    def test_a_state_is_a_value(self):
        start = self.conversation("Let a = 3.")
        reply = self.post("/v1/states/%s/continue" % start["id"], {})
        again = self.post("/v1/states/%s/continue" % start["id"], {})
        self.assertEqual(reply["state"]["id"], again["state"]["id"])
        self.assertEqual((reply["text"], reply["state"]["digest"]), alone("Let a = 3."))
        steps = start["id"]
        for id in reply["ids"]:
            steps = self.post("/v1/states/%s/continue" % steps, {"n": 1})
            self.assertEqual(steps["ids"], [id])
            steps = steps["state"]["id"]
        self.assertEqual(self.get("/v1/states/" + steps)["digest"], reply["state"]["digest"])
        fork = self.post("/v1/states/%s/fork" % start["id"], {})
        self.assertNotEqual(fork["id"], start["id"])
        self.assertEqual((fork["digest"], fork["parent"]), (start["digest"], start["id"]))
        two = self.post("/v1/states/%s/continue" % reply["state"]["id"],
                        {"message": {"role": "user", "content": "What is a?"}})
        self.assertIn("3", two["text"])
        back = self.post("/v1/states/%s/rewind" % two["state"]["id"], {"message": 2})
        self.assertEqual(self.get("/v1/states/" + back["id"])["messages"][-1]["content"], reply["text"])
        retried = self.post("/v1/states/%s/continue" % two["state"]["id"], {"retry": True})
        self.assertEqual(retried["text"], two["text"])
        edited = self.post("/v1/states/%s/edit" % two["state"]["id"], {"message": 0, "content": "Let a = 9."})
        edited = self.post("/v1/states/%s/continue" % edited["id"], {})
        self.assertIn("9", edited["text"])
        pruned = self.post("/v1/states/%s/prune" % two["state"]["id"], {"sinks": 4, "keep_last": 16})
        self.assertGreater(pruned["pruned"], 0)
        for state in (two["state"], pruned, edited["state"]):
            self.assertTrue(self.post("/v1/states/%s/verify" % state["id"], {})["same_bits"])
        self.assertTrue(self.get("/v1/states/%s/diff/%s" % (start["id"], fork["id"]))["equal"])
        diff = self.get("/v1/states/%s/diff/%s" % (two["state"]["id"], edited["state"]["id"]))
        self.assertFalse(diff["equal"])
        self.assertTrue(any(not layer["equal"] for layer in diff["layers"]))

    def test_the_list_tells_which_state_each_one_continues(self):
        server = Server()
        try:
            self.check_tree(server)
        finally:
            server.stop()

    def check_tree(self, server):
        def then(path, body):
            answer = server.post("/v1/states" + path, body)
            return answer.get("state", answer)["id"]

        asked = then("", {"messages": [{"role": "user", "content": "Let a = 3."}]})
        reply = then("/%s/continue" % asked, {})
        more = then("/%s/continue" % reply, {"message": {"role": "user", "content": "What is a?"}})
        retry = then("/%s/continue" % more, {"retry": True, "temperature": 9, "seed": 1, "n": 20})
        edit = then("/%s/edit" % more, {"message": 2, "content": "What is a + a?"})
        edited = then("/%s/continue" % edit, {})
        first = then("/%s/edit" % more, {"message": 0, "content": "Let b = 4."})
        fork = then("/%s/fork" % more, {})
        of_fork = then("/%s/continue" % fork, {"message": {"role": "user", "content": "And b?"}})
        pruned = then("/%s/prune" % more, {"sinks": 4, "keep_last": 16, "shift": True})
        of_pruned = then("/%s/continue" % pruned, {"message": {"role": "user", "content": "And a?"}})
        place = {asked: None, reply: asked, more: reply, retry: reply, edit: reply, edited: edit, first: None,
                 fork: reply, of_fork: fork, pruned: reply, of_pruned: pruned}

        def listed():
            return {s["id"]: s for s in server.get("/v1/states")["data"]}

        self.assertEqual({id: s["continues"] for id, s in listed().items()}, place)
        self.assertEqual([(listed()[id]["question"], listed()[id]["role"]) for id in (asked, more, edit)],
                         [("Let a = 3.", "user"), ("What is a?", "assistant"), ("What is a + a?", "user")])
        # The continuation of a deleted state keeps its place in the tree, and an uploaded file
        # finds the same place.
        status, file = server.call("GET", "/v1/states/%s/snapshot" % more)
        for id in (reply, more):
            server.call("DELETE", "/v1/states/" + id)
        self.assertEqual({listed()[id]["continues"] for id in (retry, edit, fork, pruned)}, {asked})
        again = server.post("/v1/states/upload", None, raw=file,
                            headers={"Content-Type": "application/octet-stream"})["id"]
        self.assertEqual((again, listed()[again]["continues"], listed()[of_fork]["continues"]), (more, asked, fork))

    def metric(self, name):
        return next(float(line.split()[1]) for line in self.get("/metrics").decode().split("\n")
                    if line.startswith("stet_" + name + " "))

    def long_state(self):
        return self.post("/v1/states", {"ids": [(7 * i) % 900 for i in range(1900)]})

    def test_verifying_shares_passes_with_replies(self):
        state = self.long_state()
        body = json.dumps({**request_of("Tell me.", 1, 5, 1900), "ignore_eos": True, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                      b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            while b"delta" not in s.recv(65536):
                pass
            drawn, prompts, verified = (self.metric(n)
                                        for n in ("drawn_tokens_total", "prompt_tokens_total", "tokens_verified_total"))
            self.assertTrue(self.post("/v1/states/%s/verify" % state["id"], {})["same_bits"])
            self.assertEqual(self.metric("prompt_tokens_total"), prompts + 1900)
            self.assertEqual(self.metric("tokens_verified_total"), verified + 1900)
            # Verifying takes passes of at most 512 tokens, and each pass draws a token of the reply.
            self.assertGreaterEqual(self.metric("drawn_tokens_total"), drawn + 3)

    def test_verifying_ends_when_nobody_waits(self):
        state, verified = self.long_state(), self.metric("tokens_verified_total")
        for body in (b"{}", b'{"stream": true}'):
            with socket.create_connection(("127.0.0.1", self.server.port)) as s:
                s.sendall(b"POST /v1/states/%s/verify HTTP/1.1\r\nHost: localhost\r\n"
                          b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                          % (state["id"].encode(), len(body)) + body)
        for _ in range(600):
            if self.get("/v1/status")["running"] == 0:
                break
        self.assertEqual(self.metric("tokens_verified_total"), verified)
        self.assertTrue(self.post("/v1/states/%s/verify" % state["id"], {})["same_bits"])

    def test_what_goes_on_inside(self):
        start = self.conversation(" ".join("Let x = %d." % i for i in range(20)) + " What is x?")
        state = "/v1/states/%s" % self.post("/v1/states/%s/continue" % start["id"], {})["state"]["id"]
        tokens = self.get(state + "/tokens?logprobs=true")["data"]
        n = len(tokens)
        short, long = (self.get(state + "/attention?layer=3&head=1&last=5"),
                       self.get(state + "/attention?layer=3&head=1&last=2000"))
        self.assertEqual((short["first"], long["first"], len(long["values"])), (n - 5, 0, n))
        # Values do not depend on how much was already computed, bit for bit.
        self.assertEqual(short["values"], long["values"][-5:])
        for i, row in enumerate(long["values"]):
            self.assertEqual(len(row), i + 1)
            self.assertAlmostEqual(sum(row), 1, places=5)
        lens = self.get(state + "/lens?last=9")
        self.assertEqual(lens["tokens"], [t["text"] for t in tokens[-9:]])
        best = self.get(state + "/top?n=1")["data"][0]
        self.assertEqual({k: lens["values"][-1][-1][k] for k in ("id", "logprob")},
                         {k: best[k] for k in ("id", "logprob")})
        self.assertEqual([c["next_logprob"] for c in lens["values"][-1]], [t["logprob"] for t in tokens[-8:]] + [None])
        norms = self.get(state + "/norms")
        kv = [self.get(state + "/kv?layer=2&head=%d&what=v" % h) for h in range(self.get(state + "/kv")["heads"])]
        for p in range(n):
            self.assertAlmostEqual(norms["values"][2][p], sum(x * x for head in kv for x in head["values"][p]) ** 0.5,
                                   places=6)
        for query in ("/attention?layer=99", "/attention?head=-1", "/attention?last=0", "/lens?last=many",
                      "/norms?last=3", "/kv?what=x", "/tokens?logprobs=yes"):
            self.assertEqual(self.server.call("GET", state + query)[0], 400, query)
        for path in ("/attention?last=30", "/lens", "/norms"):  # a pruned state can be inspected, too
            pruned = self.post(state + "/prune", {"sinks": 4, "keep_last": 16})
            self.get("/v1/states/%s" % self.post("/v1/states/%s/continue" % pruned["id"],
                                                 {"message": {"role": "user", "content": "Hi"}})["state"]["id"] + path)

    def test_where_a_difference_is_kept(self):
        both = []
        for a in (3, 7):
            state = self.conversation("Let a = %d. What is a?" % a)
            reply = self.post("/v1/states/%s/continue" % state["id"], {})
            at = next(i for i, id in enumerate(reply["ids"])
                      if self.post("/detokenize", {"tokens": [id]})["text"] == str(a))
            both.append(self.post("/v1/states/%s/continue" % state["id"], {"n": at})["state"])
        ids = [self.get("/v1/states/" + s["id"])["ids"] for s in both]
        different = [i for i, (x, y) in enumerate(zip(*ids)) if x != y]
        self.assertEqual(len(different), 1)
        patch = self.get("/v1/states/%s/patch/%s?last=64" % tuple(s["id"] for s in both))
        self.assertEqual((patch["answer"]["text"], patch["wrong"]["text"], patch["first"]), ("3", "7", 0))
        # The tokens are equal from there on, and so are the bits.
        self.assertEqual(patch["values"][0][different[0]], 1)
        for row in patch["values"]:
            self.assertEqual(row[:different[0]], [0] * different[0])
        self.assertEqual(self.server.call("GET", "/v1/states/%s/patch/%s" % (both[0]["id"], both[0]["id"]))[0], 400)

    def test_choosing_another_token(self):
        start = self.conversation("Let a = 3.")
        top = self.get("/v1/states/%s/top?n=5" % start["id"])["data"]
        chosen = self.post("/v1/states/%s/continue" % start["id"], {"n": 1, "choose": top[1]["id"]})
        self.assertEqual(chosen["ids"], [top[1]["id"]])
        self.assertTrue(self.post("/v1/states/%s/verify" % chosen["state"]["id"], {})["same_bits"])

    def test_looking_at_a_state(self):
        start = self.conversation("Let ä = 3 🙂.")
        whole = self.get("/v1/states/" + start["id"])
        self.assertEqual(len(whole["elements"]), 12)
        tokens = self.get("/v1/states/%s/tokens" % start["id"])["data"]
        self.assertIn("Let ä = 3 🙂.", bytes(b for t in tokens for b in t["bytes"]).decode())
        kv = self.get("/v1/states/%s/kv?layer=1&head=0&what=v" % start["id"])
        self.assertEqual((len(kv["values"]), len(kv["values"][0])), (len(tokens), kv["head_dim"]))

    def test_files_come_and_go(self):
        reply = self.post("/v1/states/%s/continue" % self.conversation("Let q = 1.")["id"], {})
        data = self.get("/v1/states/%s/snapshot" % reply["state"]["id"])
        self.post("/v1/states/%s/fork" % reply["state"]["id"], {})
        self.server.call("DELETE", "/v1/states/" + reply["state"]["id"])
        status, uploaded = self.server.call("POST", "/v1/states/upload", raw=data)
        self.assertEqual((status, uploaded["origin"], uploaded["digest"]), (200, "uploaded", reply["state"]["digest"]))
        self.post("/v1/states/%s/verify" % uploaded["id"], {})
        self.assertEqual(self.get("/v1/states/" + uploaded["id"])["origin"], "verified")
        recipe = self.get("/v1/states/%s/snapshot?form=recipe" % uploaded["id"])
        self.assertLess(len(recipe), len(data) // 4)
        again = self.server.call("POST", "/v1/states/upload", raw=recipe)[1]
        self.assertEqual((again["id"], again["origin"]), (uploaded["id"], "verified"))
        for cut in (0, 10, len(data) // 2, len(data) - 1):
            self.assertEqual(self.server.call("POST", "/v1/states/upload", raw=data[:cut])[0], 400)

    def test_deltas_go_down_and_up(self):
        start = self.conversation(" ".join("Let x = %d." % i for i in range(40)))
        reply = self.post("/v1/states/%s/continue" % start["id"], {})["state"]
        other = self.conversation("Hello")
        snapshot = "/v1/states/%s/snapshot" % reply["id"]
        full, delta = self.get(snapshot), self.get(snapshot + "?over=" + start["id"])
        self.assertLess(len(delta), len(full) // 2)
        self.assertEqual(delta, self.get(snapshot + "?form=delta&over=" + start["id"]))
        with tempfile.TemporaryDirectory() as directory:  # a client joins tensors by their names
            for name, content in (("delta.stet", delta),
                                  (start["id"] + ".stet", self.get("/v1/states/%s/snapshot" % start["id"]))):
                with open(os.path.join(directory, name), "wb") as f:
                    f.write(content)
            told = subprocess.run([STET, "inspect", os.path.join(directory, "delta.stet"), "--json"], check=True,
                                  capture_output=True, text=True).stdout
            self.assertIn(reply["digest"], told)
            subprocess.run([STET, "verify", "-m", MODEL, os.path.join(directory, "delta.stet")], check=True,
                           capture_output=True)
        self.server.call("DELETE", "/v1/states/" + reply["id"])
        refusals = (("", 400, start["digest"]), ("?over=" + other["id"], 400, other["digest"]),
                    ("?over=st_0", 404, "st_0"))
        for query, expected, what in refusals:
            status, answer = self.server.call("POST", "/v1/states/upload" + query, raw=delta)
            self.assertEqual((status, answer["error"]["param"]), (expected, "?over"))
            self.assertIn(what, answer["error"]["message"])
        status, uploaded = self.server.call("POST", "/v1/states/upload?over=" + start["id"], raw=delta)
        self.assertEqual((status, uploaded["id"], uploaded["digest"]), (200, reply["id"], reply["digest"]))
        self.assertEqual((uploaded["origin"], uploaded["parent"]), ("uploaded", start["id"]))
        self.assertTrue(self.post("/v1/states/%s/verify" % reply["id"], {})["same_bits"])
        self.assertEqual(self.server.call("POST", "/v1/states/upload?over=" + start["id"], raw=full)[0], 400)
        for query in ("?form=delta", "?form=full&over=" + start["id"], "?form=recipe&over=" + start["id"], "?over=st_0",
                      "?form=banana"):
            self.assertIn(self.server.call("GET", snapshot + query)[0], (400, 404))
        for cut in range(0, len(delta), len(delta) // 9):
            self.assertEqual(self.server.call("POST", "/v1/states/upload?over=" + start["id"], raw=delta[:cut])[0], 400)

    def test_names_pins_and_deletion(self):
        changes = [self.get("/v1/status")["changes"]]

        def changed():
            """Returns True if a client that knows the number of changes sees that its list is
            outdated."""
            changes.append(self.get("/v1/status")["changes"])
            return changes[-1] > changes[-2]

        state = self.conversation("Let n = 2.")
        self.assertTrue(changed())
        self.get("/v1/states/" + state["id"])
        self.assertFalse(changed())
        named = self.server.call("PATCH", "/v1/states/" + state["id"], {"name": "begin", "pinned": True})[1]
        self.assertEqual((named["name"], named["pinned"]), ("begin", True))
        self.assertTrue(changed())
        self.assertIsNone(self.server.call("PATCH", "/v1/states/" + state["id"], {"name": None})[1]["name"])
        self.assertTrue(self.server.call("DELETE", "/v1/states/" + state["id"])[1]["deleted"])
        self.assertTrue(changed())
        self.assertEqual(self.server.call("GET", "/v1/states/" + state["id"])[0], 404)

    def test_tokens_and_templates(self):
        ids = self.post("/tokenize", {"text": "Let a = 3."})["tokens"]
        self.assertEqual(self.post("/detokenize", {"tokens": ids, "skip_special": True})["text"], "Let a = 3.")
        prompt = self.post("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})
        state = self.conversation("Hi")
        self.assertEqual(self.get("/v1/states/" + state["id"])["ids"], prompt["tokens"])

    def test_what_is_not_there_is_refused_by_name(self):
        good = request_of("Hi", n=2)
        for field, value, pointer in (
            ("tools", [{"type": "function"}], "/tools"), ("banana", 1, "/banana"),
            ("n", 0, "/n"), ("temperature", -1, "/temperature"), ("temperature", "hot", "/temperature"),
            ("max_tokens", 0, "/max_tokens"),
            ("messages", [], "/messages"), ("messages", [{"role": "user"}], "/messages/0/content"),
            ("messages", [{"role": "cat", "content": ""}], "/messages/0/role"),
            ("stop", [1], "/stop/0"), ("stop", ["a", ""], "/stop/1"), ("stop", "a" * 65537, "/stop"),
            ("seed", 1.5, "/seed"), ("response_format", {"type": "json_object"}, "/response_format"),
            ("model", "gpt", "/model"), ("resume_from", "st_0", "/resume_from"), ("stream", "yes", "/stream")):
            status, answer = self.server.call("POST", "/v1/chat/completions", {**good, field: value})
            self.assertIn(status, (400, 404), (field, value, answer))
            self.assertEqual(answer["error"]["param"], pointer, answer)
        for field, value in (("tools", []), ("frequency_penalty", 0), ("logit_bias", {}),
                             ("response_format", {"type": "text"}), ("user", "me"), ("tool_choice", "none"),
                             ("stop", None), ("stop", "")):
            self.post("/v1/chat/completions", {**good, field: value})

    def test_too_long_a_prompt_tells_both_numbers(self):
        for stream in (False, True):
            status, answer = self.server.call("POST", "/v1/chat/completions",
                                              {**request_of("word " * 5000), "stream": stream})
            self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
            self.assertIn("2048", answer["error"]["message"])

    def test_bad_requests_get_an_error(self):
        draws = random.Random(3)
        good = json.dumps(request_of("Hi", n=1)).encode()
        for i in range(300):
            body = bytearray(good)
            for _ in range(draws.randrange(1, 4)):
                at = draws.randrange(len(body))
                draws.choice([lambda: body.__setitem__(at, draws.randrange(256)),
                              lambda: body.__delitem__(slice(at, at + 3)),
                              lambda: body.insert(at, draws.choice(b'{}[]",:0'))])()
            status, answer = self.server.call("POST",
                                              draws.choice(["/v1/chat/completions", "/v1/states", "/v1/messages",
                                                            "/v1/responses", "/tokenize"]), raw=bytes(body))
            self.assertTrue(status == 200 or "message" in answer["error"], answer)
        for raw in (b"[" * 100000, b"{\"a\":" * 5000, b"", b"null", b"\xff\xfe"):
            self.assertEqual(self.server.call("POST", "/v1/chat/completions", raw=raw)[0], 400)
        for line in (b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                     b"POST /v1/states HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                     b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", self.server.port)) as s:
                s.sendall(line)
                s.shutdown(socket.SHUT_WR)
                while s.recv(4096):
                    pass
        self.assertEqual(self.get("/health"), {"status": "ok"})

    def test_a_length_has_one_name(self):
        path = "/v1/states/%s/continue" % self.post("/v1/states", {"ids": [1, 2]})["id"]
        for body in ({"n": 3}, {"max_tokens": 3}, {"n": 3, "max_tokens": None}):
            self.assertEqual(len(self.post(path, dict(body, ignore_eos=True))["ids"]), 3)
        status, answer = self.server.call("POST", path, {"n": 2, "max_tokens": 9})
        self.assertEqual((status, answer["error"]["param"]), (400, "/n"), answer)

    def test_token_ids_that_are_none_are_said_by_their_place(self):
        for path, body, where in (("/v1/completions", {"prompt": [1, 10 ** 9]}, "/prompt/1"),
                                  ("/v1/completions", {"prompt": [[1, -1]]}, "/prompt/0/1"),
                                  ("/v1/completions", {"prompt": ["a", 5]}, "/prompt/1"),
                                  ("/v1/states", {"ids": [10 ** 9]}, "/ids/0"),
                                  ("/v1/embeddings", {"input": [1, 2, 10 ** 30]}, "/input/2"),
                                  ("/v1/embeddings", {"input": [[1], [2, "a"]]}, "/input/1/1"),
                                  ("/detokenize", {"tokens": [10 ** 9]}, "/tokens/0")):
            status, answer = self.server.call("POST", path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, where), answer)
        state = self.post("/v1/states", {"ids": [1, 2]})
        self.assertEqual(self.server.call("POST", "/v1/states/%s/continue" % state["id"],
                                          {"ids": [10 ** 9]})[1]["error"]["param"], "/ids/0")
        one, two = (self.post("/v1/embeddings", {"input": ids})["data"][0]["embedding"]
                    for ids in ([1, 2], [[1, 2], [3]]))
        self.assertEqual(one, two)

    def test_compressed_bodies(self):
        body = {"prompt": "Let a = 3.", "max_tokens": 2}
        packed, headers = gzip.compress(json.dumps(body).encode()), {"Content-Encoding": "gzip"}
        self.assertEqual(self.post("/v1/completions", None, raw=packed, headers=headers)["choices"],
                         self.post("/v1/completions", body)["choices"])
        bomb = gzip.compress(bytes(257 << 20), 1)  # larger than any body may be
        for raw, expected, said in ((packed[: len(packed) // 2], 400, "the body does not follow its Content-Encoding"),
                                    (b"{}", 400, "the body does not follow its Content-Encoding"),
                                    (bomb, 413, "the uncompressed body has more than")):
            status, answer = self.server.call("POST", "/v1/completions", raw=raw, headers=headers)
            self.assertEqual(status, expected, answer)
            self.assertIn(said, answer["error"]["message"])
        self.assertEqual(self.get("/health")["status"], "ok")

    def test_requests_that_are_broken_slow_or_half_sent(self):
        draws = random.Random(5)
        good = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 64\r\n\r\n"
                + json.dumps(request_of("Hi", n=1)).encode()[:64])

        def one(seed):
            d = random.Random(seed)
            raw = bytearray(good)
            for _ in range(d.randrange(0, 6)):
                at = d.randrange(len(raw))
                raw[at:at + d.randrange(3)] = bytes(d.choice([d.randrange(256), 10, 13, 58, 48])
                                                    for _ in range(d.randrange(3)))
            if d.random() < 0.3:
                raw = raw[:d.randrange(len(raw))]
            elif d.random() < 0.1:
                raw = raw[:20] + b"X: " + b"y" * d.choice([9000, 100000]) + raw[20:]
            try:
                with socket.create_connection(("127.0.0.1", self.server.port)) as s:
                    s.settimeout(60)
                    step = d.choice([len(raw) + 1, 50, 7])
                    for at in range(0, min(len(raw), 20000), step):
                        s.sendall(raw[at:at + step])
                    if d.random() < 0.5:
                        s.shutdown(socket.SHUT_WR)
                        answer = b""
                        while piece := s.recv(65536):
                            answer += piece
                        if answer.startswith(b"HTTP/1.1 4"):
                            body = answer.split(b"\r\n\r\n", 1)[1]
                            if body:
                                json.loads(body.split(b"HTTP/1.1")[0])
            except ConnectionError:
                pass

        with concurrent.futures.ThreadPoolExecutor(16) as clients:
            list(clients.map(
                one, [draws.randrange(1 << 30) for _ in range(int(os.environ.get("STET_SERVE_MALFORMED", "300")))]))
        case = {"message": "Let a = 3. What is a?"}
        choice = self.post("/v1/chat/completions", request_of(**case))["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["state_digest"]), alone(**case))
        status = self.get("/v1/status")
        self.assertEqual((status["running"], status["queued"]), (0, 0))

    def test_other_names_and_other_pages_are_refused(self):
        self.assertEqual(self.server.call("GET", "/v1/states", headers={"Host": "evil.example"})[0], 403)
        self.assertEqual(self.server.call("POST", "/v1/states", {}, headers={"Origin": "http://evil.example"})[0], 403)

    def test_openapi_says_what_is_there(self):
        for path, methods in self.get("/openapi.json")["paths"].items():
            for method in methods:
                address = path.replace("{id}", "st_0").replace("{other}", "st_0")
                status, answer = self.server.call(method.upper(), address, {} if method != "get" else None)
                self.assertNotEqual(answer["error"]["code"] if isinstance(answer, dict) and "error" in answer else "",
                                    "no_such_address", path)
        self.assertEqual(self.server.call("PUT", "/v1/states", {})[0], 405)

    def test_openapi_names_every_parameter_and_no_other(self):
        state = self.conversation("Let a = 1.")["id"]
        good = {"layer": "0", "head": "0", "last": "1", "n": "1", "what": "v", "logprobs": "true", "form": "full",
                "over": ""}
        for path, methods in self.get("/openapi.json")["paths"].items():
            known = {p["name"] for p in methods.get("get", {}).get("parameters", []) if p["in"] == "query"}
            if "get" not in methods or "/patch/" in path or "responses" in path:
                continue
            for name in [*good, "banana"]:
                status, answer = self.server.call("GET", path.replace("{id}", state).replace("{other}", state)
                                                  + "?%s=%s" % (name, good.get(name, "1")))
                self.assertEqual(status, 200 if name in known else 400, (path, name, answer))

    def test_openapi_names_every_field_and_no_other(self):
        state = self.conversation("Let a = 1.")["id"]
        good = {"/v1/chat/completions": request_of("Hi", n=1), "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
                "/v1/embeddings": {"input": "Hi"},
                "/v1/responses": {"input": "Hi", "max_output_tokens": 1}, "/v1/messages": request_of("Hi", n=1),
                "/v1/states": {"text": "Hi"},
                "/v1/messages/count_tokens": request_of("Hi", n=1),
                "/v1/states/{id}/continue": {"n": 1}, "/v1/states/{id}/rewind": {"tokens": 1},
                "/v1/states/{id}/prune": {"keep_last": 8},
                "/v1/states/{id}/edit": {"message": 0, "content": "Let b = 1."}, "/tokenize": {"text": "Hi"},
                "/detokenize": {"tokens": [5]},
                "/apply-template": {"messages": [{"role": "user", "content": "Hi"}]}}
        asked = {}
        for path, methods in self.get("/openapi.json")["paths"].items():
            for method, operation in methods.items():
                if "requestBody" in operation:
                    asked[method.upper(), path] = operation["requestBody"]["content"]["application/json"]["schema"]
        every = {name for schema in asked.values() for name in schema["properties"]} | {"banana"}
        self.assertGreater(len(every), 60)
        for (method, path), schema in asked.items():
            body = good.get(path, {})
            status, answer = self.server.call(method, path.replace("{id}", state), body)
            self.assertEqual(status, 200, (path, answer))
            for name in every:
                status, answer = self.server.call(method, path.replace("{id}", state), {**body, name: {"\0": [0]}})
                known = (status == 200
                         or (answer["error"]["code"], answer["error"]["param"]) != ("unknown_field", "/" + name))
                self.assertEqual(known, name in schema["properties"], (path, name, answer))
                if status != 200 and name in schema["properties"]:
                    self.assertTrue((answer["error"]["param"] or "").startswith("/"), (path, name, answer))
            for name in schema.get("required", []):
                status, answer = self.server.call(method, path.replace("{id}", state),
                                                  {n: v for n, v in body.items() if n != name})
                self.assertEqual((status, answer["error"]["param"]), (400, "/" + name), (path, name))

    def test_metrics_and_the_page_are_there(self):
        self.assertIn(b"stet_drawn_tokens_total", self.get("/metrics"))
        self.assertIn(b"<!doctype html>", self.get("/"))


class WithoutTokenizer(unittest.TestCase):
    def test_ids_go_in_and_out_and_the_rest_is_refused(self):
        server = Server(model=os.path.join(ROOT, "tests/data/models/llama31-tiny"))
        answer = server.post("/v1/completions",
                             {"prompt": [1, 2, 3], "max_tokens": 4, "logprobs": 2, "ignore_eos": True})
        self.assertEqual(len(answer["choices"][0]["logprobs"]["tokens"]), 4)
        state = answer["state_id"]
        asked = {"/tokenize": {"text": "Hi"}, "/detokenize": {"tokens": [1]}, "/apply-template": request_of("Hi"),
                 "/v1/states": {"text": "Hi"}, "/v1/completions": {"prompt": "Hi"},
                 "/v1/chat/completions": request_of("Hi"), "/v1/responses": {"input": "Hi"},
                 "/v1/messages": request_of("Hi"), "/v1/embeddings": {"input": "Hi"},
                 "/v1/states/%s/continue" % state: {"text": "Hi"},
                 "/v1/states/%s/edit" % state: {"message": 0, "content": "Hi"}}
        for path, body in asked.items():
            self.assertEqual(server.call("POST", path, body)[0], 400, path)
        for path in ("", "/tokens?logprobs=true", "/top?n=3", "/kv?layer=0&head=0&what=k", "/diff/" + state,
                     "/snapshot", "/attention", "/lens", "/norms"):
            self.assertEqual(server.call("GET", "/v1/states/" + state + path)[0], 200, path)
        self.assertEqual(len(server.post("/v1/states/%s/continue" % state, {"n": 3, "ignore_eos": True})["ids"]), 3)
        self.assertTrue(server.post("/v1/states/%s/verify" % state, {})["same_bits"])
        server.stop()


class SeveralStreams(unittest.TestCase):
    def test_a_head_that_joins_streams_has_no_lens(self):
        server = Server(model=os.path.join(ROOT, "tests/data/models/gemma3n-tiny"))
        self.addCleanup(server.kill)
        state = "/v1/states/" + server.post("/v1/states", {"ids": [2, 3, 4]})["id"]
        status, answer = server.call("GET", state + "/lens")
        self.assertEqual((status, answer["error"]["code"]), (400, "several_streams"))
        self.assertEqual(server.call("GET", state + "/attention")[0], 200)


class Recurrent(unittest.TestCase):
    def test_bytes_of_a_state_include_recurrent_arrays_and_those_of_anchors(self):
        with tempfile.TemporaryDirectory() as directory:
            model = os.path.join(directory, "model")
            subprocess.run([os.path.join(os.path.dirname(STET), "make_checkpoint"),
                            os.path.join(ROOT, "tests/data/models/lfm2-tiny/config.json"), "-o", model], check=True,
                           capture_output=True)
            server = Server("--state-dir", os.path.join(directory, "states"), model=model)
            self.addCleanup(server.kill)
            block = 2 * 64 * 2 * (16 + 16) * 4  # attention layers, positions, heads, keys and values, float32
            arrays = 3 * 2 * 64 * 4             # convolutions, kept inputs, channels, float32
            short = server.post("/v1/states", {"ids": list(range(2, 42))})
            self.assertEqual(short["bytes"], block + arrays)
            # Two anchors: the end of the shorter state, and the end of a block.
            long = server.post("/v1/states", {"ids": list(range(2, 106))})
            self.assertEqual(long["bytes"], 2 * block + 3 * arrays)
            fork = server.post("/v1/states/%s/fork" % long["id"], {})
            self.assertEqual((fork["bytes"], fork["shared_bytes"]), (long["bytes"], long["bytes"]))
            server.stop()
            server.start()
            for state in (short, long):
                self.assertEqual(server.get("/v1/states/" + state["id"])["bytes"], state["bytes"])

    def test_layers_without_attention_have_no_norms_and_no_patterns(self):
        for name, period in (("qwen35-tiny", "linear_attention"), ("lfm2-tiny", "conv"), ("granite-h-tiny", "mamba")):
            with self.subTest(model=name), tempfile.TemporaryDirectory() as directory:
                shape = os.path.join(ROOT, "tests/data/models", name, "config.json")
                with open(shape) as file:
                    config = json.load(file)
                kinds = config.get("text_config", config).get("layer_types") or config["layers_block_type"]
                model = os.path.join(directory, "model")
                subprocess.run([os.path.join(os.path.dirname(STET), "make_checkpoint"), shape, "-o", model], check=True,
                               capture_output=True)
                server = Server(model=model)
                self.addCleanup(server.kill)
                state = "/v1/states/" + server.post("/v1/states", {"ids": list(range(2, 72))})["id"]
                norms = server.get(state + "/norms")
                for layer, kind in enumerate(kinds):
                    recurrent = kind == period
                    for row in (norms["keys"][layer], norms["values"][layer]):
                        self.assertEqual(None if row is None else len(row), None if recurrent else 70)
                    for path in ("/kv", "/attention"):
                        status, answer = server.call("GET", "%s%s?layer=%d" % (state, path, layer))
                        self.assertEqual(status, 400 if recurrent else 200, answer)
                        if recurrent:
                            self.assertEqual(answer["error"]["param"], "?layer")
                            self.assertIn("%d, which has no attention" % layer, answer["error"]["message"])
                self.assertIn(None, norms["keys"])
                attending = [layer for layer, kind in enumerate(kinds) if kind != period]
                kv, attention = (server.get(state + path) for path in ("/kv", "/attention"))
                self.assertEqual((attention["layer"], attention["attention_layers"]), (attending[0], attending))
                self.assertEqual((kv["layer"], kv["own_layers"]), (attending[0], attending))
                status, answer = server.call("POST", state + "/prune", {"keep_last": 2})
                self.assertEqual((status, answer["error"]["code"]), (400, "recurrent_model"), answer)


class Clients(unittest.TestCase):
    def test_keys_part_clients(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("anna 0123456789\nbert abcdefghij\n")
            keys.flush()
            server = Server("--api-key-file", keys.name)
            self.assertEqual(server.call("GET", "/v1/models")[0], 401)
            self.assertEqual(server.call("GET", "/v1/models", key="0123456788")[0], 401)
            self.assertEqual(server.call("GET", "/health")[0], 200)
            for scheme, status in (("Bearer ", 200), ("bearer ", 200), ("BEARER ", 200), ("Basic ", 401),
                                   ("bearer", 401)):
                headers = {"Authorization": scheme + "0123456789"}
                self.assertEqual(server.call("GET", "/v1/models", headers=headers)[0], status, scheme)
            body = request_of("Let a = 3. Let b = 4. Let c = 5.")
            mine = server.post("/v1/chat/completions", body, key="0123456789")
            theirs = server.post("/v1/chat/completions", body, key="abcdefghij")
            self.assertEqual(theirs["usage"]["reused"], 0)
            self.assertNotEqual(mine["state_id"], theirs["state_id"])
            self.assertEqual(mine["choices"][0]["state_digest"], theirs["choices"][0]["state_digest"])
            self.assertEqual(server.call("GET", "/v1/states/" + mine["state_id"], key="abcdefghij")[0], 404)
            self.assertEqual(len(server.get("/v1/states", key="abcdefghij")["data"]), 1)
            server.stop()

    def test_another_address_needs_keys(self):
        done = subprocess.run([STET, "serve", "-m", MODEL, "--host", "0.0.0.0", "--port", "0"], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--api-key-file", done.stderr)

    def test_a_full_queue_says_so(self):
        server = Server("--streams", "1", "--queue", "1")
        long = {**request_of("Hi", n=1900), "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            answers = [a.result()
                       for a in [clients.submit(server.call, "POST", "/v1/chat/completions", long) for _ in range(8)]]
        self.assertIn(429, [status for status, _ in answers])
        good = {a["choices"][0]["state_digest"] for status, a in answers if status == 200}
        self.assertEqual(len(good), 1)
        server.stop()

    def test_a_deadline_ends_a_request(self):
        server = Server("--deadline", "0.02")
        long = {**request_of("Hi", n=1900), "ignore_eos": True}
        for _ in range(3):
            status, answer = server.call("POST", "/v1/chat/completions", long)
            self.assertEqual((status, answer["error"]["code"]), (504, "deadline_exceeded"))
            self.assertIn("within 0.02 s (--deadline)", answer["error"]["message"])
            status, content = server.call("POST", "/v1/chat/completions", {**long, "stream": True})
            self.assertIn(b"deadline_exceeded", content)
        server.stop()


class Uploads(unittest.TestCase):
    """Uploaded keys and values that are not those of their tokens."""

    TEXT = "Let a = 3. Let b = 4. Let c = 5. " * 6

    def setUp(self):
        honest = self.server()
        state = honest.post("/v1/states", {"messages": request_of(self.TEXT)["messages"]})
        self.reply = honest.post("/v1/chat/completions", request_of(self.TEXT, n=8))
        self.snapshots = [honest.get("/v1/states/%s/snapshot" % s) for s in (state["id"], self.reply["state_id"])]

    def server(self, *options):
        server = Server(*options)
        self.addCleanup(server.stop)
        return server

    def upload(self, server, data, **more):
        status, state = server.call("POST", "/v1/states/upload", raw=data, **more)
        self.assertEqual((status, state["origin"]), (200, "uploaded"))
        return "/v1/states/" + state["id"]

    def check_honest(self, server, **more):
        answer = server.post("/v1/chat/completions", request_of(self.TEXT, n=8), **more)
        self.assertEqual(answer["usage"]["reused"], 0, answer["usage"])
        self.assertEqual(answer["choices"][0]["message"], self.reply["choices"][0]["message"])
        self.assertTrue(server.post("/v1/states/%s/verify" % answer["state_id"], {}, **more)["same_bits"])

    def test_what_is_made_of_one_serves_only_itself(self):
        ask = {"message": {"role": "user", "content": "What is a?"}, "n": 2}
        for path, body in (("continue", {"n": 1}), ("continue", ask), ("fork", {}), ("rewind", {"tokens": 80}),
                           ("prune", {"keep_last": 30}), ("edit", {"message": 0, "content": self.TEXT + "And d?"})):
            with self.subTest(path=path, body=body):
                server = self.server()
                made = server.post(self.upload(server, forged(self.snapshots[0])) + "/" + path, body)
                made = made.get("state", made)
                self.assertEqual(made["origin"], "uploaded")
                # The parent's origin passes down also after its end.
                server.call("DELETE", "/v1/states/" + made["parent"])
                self.assertEqual(server.post("/v1/states/%s/fork" % made["id"], {})["origin"], "uploaded")
                self.check_honest(server)

    def test_replies_that_continue_one_serve_only_themselves(self):
        for path, body in (("/v1/chat/completions", request_of("What is a?", n=2)),
                           ("/v1/responses", {"input": "What is a?", "max_output_tokens": 2}),
                           ("/v1/completions", {"prompt": "What", "max_tokens": 2})):
            with self.subTest(path=path):
                server = self.server()
                above = self.upload(server, forged(self.snapshots[0])).rsplit("/", 1)[1]
                answer = server.post(path, {**body, "resume_from": above})
                self.assertEqual(server.get("/v1/states/" + answer["state_id"])["origin"], "uploaded")
                self.check_honest(server)

    def test_a_reply_that_is_drawn_from_one_serves_only_itself(self):
        server = self.server()
        above = self.upload(server, forged(self.snapshots[0]))
        with unread_reply(server, resume_from=above.rsplit("/", 1)[1]):
            self.check_honest(server)

    def test_other_clients_get_nothing_of_one(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("anna annas-key-1\nben bens-key-22\n")
            keys.flush()
            server = self.server("--api-key-file", keys.name, "--share-prefixes")
            above = self.upload(server, forged(self.snapshots[0]), key="annas-key-1")
            server.post(above + "/continue", {"n": 1}, key="annas-key-1")
            self.check_honest(server, key="bens-key-22")

    def test_what_keeps_none_of_its_tokens_is_computed(self):
        server = self.server()
        empty = server.post(self.upload(server, forged(self.snapshots[0])) + "/rewind", {"tokens": 0})
        self.assertEqual((empty["origin"], empty["positions"]), ("computed", 0))
        child = server.post("/v1/states/%s/continue" % empty["id"], {"ids": [5, 6], "n": 1})["state"]
        self.assertEqual(child["origin"], "computed")

    def test_the_computed_state_of_its_tokens_is_another_one(self):
        for directory in ([], ["--state-dir", tempfile.mkdtemp(), "--durable", "--memory", "0"]):
            with self.subTest(directory=directory):
                server = Server(*directory)
                self.addCleanup(server.kill)
                uploaded = self.upload(server, forged(self.snapshots[1]))
                digest = server.get(uploaded)["digests"]["state"]
                self.check_honest(server)
                answer = server.post("/v1/chat/completions", request_of(self.TEXT, n=8))
                self.assertNotEqual("/v1/states/" + answer["state_id"], uploaded)
                self.assertEqual(server.get("/v1/states/" + answer["state_id"])["origin"], "verified")
                if directory:
                    server.stop()
                    server.start()
                there = server.get(uploaded)
                self.assertEqual((there["origin"], there["digests"]["state"]), ("uploaded", digest))
                self.assertFalse(server.post(uploaded + "/verify", {})["same_bits"])
                self.assertTrue(server.post("/v1/states/%s/verify" % answer["state_id"], {})["same_bits"])
                again = server.post("/v1/chat/completions", request_of(self.TEXT, n=8))
                self.assertEqual(again["state_id"], answer["state_id"])
                if directory:
                    shutil.rmtree(directory[1])

    def test_a_recipe_of_its_tokens_is_computed(self):
        server = self.server()
        recipe = self.server()
        recipe = recipe.get("/v1/states/%s/snapshot?form=recipe" % self.upload(recipe, self.snapshots[0])[11:])
        for data, same in ((self.snapshots[0], True), (forged(self.snapshots[0]), False)):
            uploaded = self.upload(server, data)
            status, computed = server.call("POST", "/v1/states/upload", raw=recipe)
            self.assertEqual((status, computed["origin"], "/v1/states/" + computed["id"] == uploaded),
                             (200, "verified", same))
            self.assertEqual(server.get(uploaded)["origin"], "verified" if same else "uploaded")
            self.assertTrue(server.post("/v1/states/%s/verify" % computed["id"], {})["same_bits"])
            server.call("DELETE", uploaded)

    def test_the_files_of_a_deleted_one_are_not_taken_over(self):
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        server = Server("--state-dir", directory, "--memory", "0", "--durable")
        self.addCleanup(server.kill)
        uploaded = self.upload(server, forged(self.snapshots[0]))
        child = server.post(uploaded + "/continue", {"text": "And d? " * 20, "n": 1})["state"]  # a delta on it
        server.call("DELETE", uploaded)
        for _ in range(2):
            state = server.post("/v1/states", {"messages": request_of(self.TEXT)["messages"]})
            server.post("/v1/states", {"ids": [9, 9, 2]})  # evicts the others
            self.assertTrue(server.post("/v1/states/%s/verify" % state["id"], {})["same_bits"])
            self.assertFalse(server.post("/v1/states/%s/verify" % child["id"], {})["same_bits"])
            server.call("DELETE", "/v1/states/" + state["id"])
            server.stop()
            server.start()


class OtherTypes(unittest.TestCase):
    """States whose keys and values have another type than those of new prompts."""

    TEXT = "Let a = 3. Let b = 4. Let c = 5. " * 6

    def server(self, *options):
        server = Server(*options)
        self.addCleanup(server.kill)
        return server

    def check_reply(self, server):
        answers = [s.post("/v1/chat/completions", request_of(self.TEXT, n=8)) for s in (server, self.server())]
        self.assertEqual([a["usage"]["reused"] for a in answers], [0, 0])
        self.assertEqual(*[(a["choices"][0]["message"], a["choices"][0]["state_digest"]) for a in answers])

    def test_those_of_an_earlier_start_serve_no_new_prompt(self):
        with tempfile.TemporaryDirectory() as directory:
            server = self.server("--state-dir", directory, "--kv", "q8")
            server.post("/v1/chat/completions", request_of(self.TEXT, n=4))
            server.stop()
            server = self.server("--state-dir", directory, "--kv", "f32")
            self.check_reply(server)
            server.stop()

    def test_those_of_recipes_and_their_replies_serve_no_new_prompt(self):
        other = self.server("--kv", "q8")
        state = other.post("/v1/states", {"messages": request_of(self.TEXT)["messages"]})["id"]
        recipe = other.get("/v1/states/%s/snapshot?form=recipe" % state)
        server = self.server()
        status, uploaded = server.call("POST", "/v1/states/upload", raw=recipe)
        self.assertEqual((status, uploaded["origin"]), (200, "verified"))
        with unread_reply(server, resume_from=uploaded["id"]):
            self.check_reply(server)


class Evicted(unittest.TestCase):
    """States that are not in memory: what asks for them computes them again, as any other request."""

    LOOKS = ("", "/top", "/kv", "/norms", "/tokens", "/tokens?logprobs=true", "/snapshot", "/attention", "/lens")
    MAKES = (("fork", {}), ("rewind", {"tokens": 60}), ("prune", {"keep_last": 40}))

    def requests(self, state, other):
        """Returns all requests that need one or two states."""
        return ([("GET", "/v1/states/%s%s" % (state, look), None) for look in self.LOOKS]
                + [("GET", "/v1/states/%s/diff/%s" % pair, None) for pair in ((state, other), (other, state))]
                + [("GET", "/v1/states/%s/snapshot?over=%s" % (other, state), None)]
                + [("POST", "/v1/states/%s/%s" % (state, path), body) for path, body in self.MAKES])

    def test_they_take_a_place_among_the_streams(self):
        server = Server("--memory", "0", "--streams", "1", "--queue", "0")
        self.addCleanup(server.kill)
        state, other = (server.post("/v1/states", {"ids": list(range(first, first + 99))})["id"] for first in (2, 3))
        with unread_reply(server):
            for request in self.requests(state, other):
                self.assertEqual(server.call(*request)[0], 429, request)
            for look in ("", "/top", "/kv", "/norms", "/tokens", "/snapshot"):  # what is in memory is had at once
                server.get("/v1/states/" + other + look)
            for path, body in self.MAKES[:2]:
                other = server.post("/v1/states/%s/%s" % (other, path), body)["id"]
            self.assertEqual(server.get("/v1/status")["running"], 1)

    def test_a_deadline_ends_them(self):
        with tempfile.TemporaryDirectory() as directory:
            server = Server("--state-dir", directory, "--durable")
            state, other = (server.post("/v1/states", {"ids": [7 * i % 400 + first for i in range(1500)]})["id"]
                            for first in (2, 3))
            server.kill()
            server = Server("--state-dir", directory, "--deadline", "0.001")
            self.addCleanup(server.kill)
            for request in self.requests(state, other):
                status, answer = server.call(*request)
                self.assertEqual((status, answer["error"]["code"]), (504, "deadline_exceeded"), request)


class Kept(unittest.TestCase):
    def test_what_a_reply_named_survives_a_kill(self):
        draws = random.Random(11)
        with tempfile.TemporaryDirectory() as directory:
            server = Server("--state-dir", directory, "--durable", "--memory", "1")
            known = {}
            for round in range(int(os.environ.get("STET_SERVE_KILLS", "6"))):
                def ask(i):
                    try:
                        a = server.post("/v1/chat/completions", request_of("Let a = %d." % i, i, 1, 20))
                        return a["state_id"], a["choices"][0]["state_digest"]
                    except (OSError, http.client.HTTPException, ValueError):
                        return None
                with concurrent.futures.ThreadPoolExecutor(8) as clients:
                    asked = [clients.submit(ask, draws.randrange(100)) for _ in range(12)]
                    asked[draws.randrange(12)].result()
                    server.kill()
                    known.update(a.result() for a in asked if a.result())
                server.start()
                for state, digest in known.items():
                    self.assertEqual(server.get("/v1/states/" + state)["digest"], digest)
                some = draws.choice(list(known))
                self.assertTrue(server.post("/v1/states/%s/verify" % some, {})["same_bits"])
            server.stop()

    def test_files_of_a_long_conversation_are_deltas_and_go_when_nobody_needs_them(self):
        with tempfile.TemporaryDirectory() as directory:
            server = Server("--state-dir", directory)
            state = server.post("/v1/states", {"messages": [
                {"role": "user", "content": " ".join("Let x = %d." % i for i in range(40))}]})
            chain = []
            for i in range(4):
                state = server.post("/v1/states/%s/continue" % state["id"],
                                    {"message": {"role": "user", "content": "Let a = %d." % i}} if i else {})["state"]
                chain.append((state["id"], state["digest"]))
                server.stop()
                server.start()
            files = {name: os.path.getsize(os.path.join(directory, name))
                     for name in os.listdir(directory) if name.endswith(".stet")}
            self.assertGreater(len(files), len(chain))
            self.assertLess(files[chain[-1][0] + ".stet"], max(files.values()) // 2)
            for s in server.get("/v1/states")["data"]:  # all but the last of the chain
                if s["id"] != chain[-1][0]:
                    server.call("DELETE", "/v1/states/" + s["id"])
            server.stop()
            server.start()
            self.assertEqual([s["id"] for s in server.get("/v1/states")["data"]], [chain[-1][0]])
            self.assertTrue(server.post("/v1/states/%s/verify" % chain[-1][0], {})["same_bits"])
            needed = [name for name in os.listdir(directory) if name.endswith(".stet")
                      and name != chain[-1][0] + ".stet"]
            self.assertGreater(len(needed), 0)
            server.stop()
            os.unlink(os.path.join(directory, needed[0]))  # losing a file costs time, but no bit
            server.start()
            more = server.post("/v1/states/%s/continue" % chain[-1][0],
                               {"message": {"role": "user", "content": "What is a?"}})
            self.assertIn("computed again", more["usage"]["reason"])
            self.assertTrue(server.post("/v1/states/%s/verify" % chain[-1][0], {})["same_bits"])
            server.call("DELETE", "/v1/states/" + chain[-1][0])
            server.call("DELETE", "/v1/states/" + more["state"]["id"])
            self.assertEqual([name for name in os.listdir(directory) if name.startswith("st_")], [])
            server.stop()

    def test_what_left_memory_is_the_same_when_it_comes_back(self):
        for kept in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                server = Server("--memory", "1", *(["--state-dir", directory] if kept else []))
                states = {}
                for i in range(12):
                    a = server.post("/v1/chat/completions", request_of("Let a = %d. Let b = 2." % i, i, 1, 30))
                    states[a["state_id"]] = a["choices"][0]["state_digest"], i
                self.assertTrue(any(not s["resident"] for s in server.get("/v1/states")["data"]))
                for s in server.get("/v1/states")["data"]:
                    if s["resident"] or kept:
                        continue
                    told = server.get("/metrics").decode()
                    server.get("/v1/states/%s/top" % s["id"])  # computed again, in passes
                    for name in ("prompt_tokens_total", "tokens_recomputed_total"):
                        counts = [next(int(line.split()[1]) for line in text.split("\n")
                                       if line.startswith("stet_" + name + " "))
                                  for text in (told, server.get("/metrics").decode())]
                        self.assertEqual(counts[1], counts[0] + s["positions"])
                    break
                for state, (digest, i) in states.items():
                    self.assertEqual(server.post("/v1/states/%s/verify" % state, {})["digest"], digest)
                    a = server.post("/v1/chat/completions", request_of("Let a = %d. Let b = 2." % i, i, 1, 30))
                    self.assertEqual(a["choices"][0]["state_digest"], digest)
                server.stop()
                if not kept:
                    continue
                server.start()
                for state, (digest, _) in states.items():
                    self.assertEqual(server.get("/v1/states/" + state)["digest"], digest)
                server.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
