"""Servers that share states through a store. Any of them continues any state with the tokens of a
single server. This holds even if one is killed during a reply, or if the store is unavailable.

    shared_store.py STET ROOT
"""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from random import Random

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from forged import forged  # noqa: E402

STET, ROOT = sys.argv[1], sys.argv[2]
MODEL = os.path.join(ROOT, "assets/pocket-llama3")
SAYINGS = ["Let a = 17. What is a?", "Let b = a + 4. What is b?", "What is a?", "What is b?"]
ROUNDS = int(os.environ.get("STET_KILLS", "3"))  # how often a server is killed
LONG = "Let a = 17. Let b = 4. " * 12 + "What is a?"  # several blocks


class Server:
    def __init__(self, *options, env=None):
        self.process = subprocess.Popen([STET, "serve", "-m", MODEL, "--port", "0", *options], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=env)
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise AssertionError("no address: " + line + self.process.stderr.read())
        self.port = int(line.rsplit(":", 1)[1].strip("/\n"))

    def end(self, kill=False):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        return self.process.communicate(timeout=60)[1]


def call(port, method, path, body=None, key=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data,
                       {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    kind = answer.headers["Content-Type"]
    return answer.status, (json.loads(content) if kind == "application/json" else content if kind
                           == "application/octet-stream" else content.decode())


def respond(port, text, previous=None, key=None, **more):
    status, answer = call(port, "POST", "/v1/responses",
                          {"input": text, **({"previous_response_id": previous} if previous else {}), **more}, key)
    assert status == 200, answer
    return answer


def ask_in_stream(port, text, previous):
    stream = socket.create_connection(("127.0.0.1", port))
    body = json.dumps({"input": text, "previous_response_id": previous, "stream": True}).encode()
    stream.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return stream


def what_was_said(answer):
    return answer["output"][0]["content"][0]["text"], answer["state_digest"]


def metric(port, name):
    lines = call(port, "GET", "/metrics")[1].splitlines()
    return float(
        next(line for line in lines
             if line.startswith("stet_" + name + " ") or line.startswith("stet_" + name + "{")).rsplit(" ", 1)[1])


def free_port(count=1):
    while True:
        first = socket.socket()
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        first.close()
        try:
            for n in range(count):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port + n))
            return port
        except (OSError, OverflowError):
            continue


class SharedStates(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.scratch)
        self.env = {
            **os.environ, "STET_STORE": "dir:" + self.scratch + "/store", "STET_STORE_KEY": self.scratch + "/key"
        }
        subprocess.run([STET, "store", "init"], env=self.env, check=True, capture_output=True)
        self.alone = self.server(env={k: v for k, v in os.environ.items() if not k.startswith("STET_STORE")})

    def server(self, *options, env=None):
        env = env or self.env
        # Stored blocks are fetched however fast this machine computes.
        if "STET_STORE" in env and "--store-fetch" not in options:
            options = ("--store-fetch", "always", *options)
        server = Server(*options, env=env)
        self.addCleanup(server.end)
        return server

    def conversation(self, ports):
        """Sends each message to the next server in turn."""
        previous, said = None, []
        for i, text in enumerate(SAYINGS):
            answer = respond(ports[i % len(ports)], text, previous)
            previous = answer["id"]
            said.append(what_was_said(answer))
        return said

    def test_a_conversation_goes_from_server_to_server(self):
        a, b = self.server(), self.server()
        self.assertEqual(self.conversation([a.port, b.port]), self.conversation([self.alone.port]))
        for server in (a, b):
            self.assertEqual(metric(server.port, "store_blocks_computed_total"), 0)
            self.assertEqual(metric(server.port, "store_failures_total"), 0)

    def test_a_prompt_that_another_server_has_processed_is_not_processed_again(self):
        a, b = self.server(), self.server()
        messages = [{"role": "user", "content": LONG}]
        first = call(a.port, "POST", "/v1/chat/completions", {"messages": messages})[1]
        again = call(b.port, "POST", "/v1/chat/completions", {"messages": messages})[1]
        self.assertEqual(again["choices"][0]["message"], first["choices"][0]["message"])
        self.assertEqual(again["choices"][0]["state_digest"], first["choices"][0]["state_digest"])
        prompt = again["usage"]["prompt_tokens"]
        self.assertGreaterEqual(again["usage"]["reused"], (prompt - 1) // 64 * 64)
        self.assertGreater(metric(b.port, 'store_blocks_total{found="hit"}'), 0)
        self.assertGreaterEqual(metric(b.port, "store_blocks_fetched_total"), (prompt - 1) // 64)
        self.assertGreater(metric(b.port, "store_reads_total"), 0)
        self.assertGreater(metric(b.port, "store_bytes_per_second"), 0)
        self.assertGreater(metric(a.port, "store_token_seconds"), 0)

    def test_how_blocks_are_had_changes_no_reply(self):
        expected = self.conversation([self.alone.port])
        for options in ("--store-fetch", "costs"), ("--store-compress", "always"), ("--store-compress", "never"):
            a, b = self.server(*options), self.server(*options)
            self.assertEqual(self.conversation([a.port, b.port]), expected)
            self.assertEqual(metric(b.port, "store_failures_total"), 0)
            a.end()
            b.end()

    def killed_in_mid_reply(self, rounds):
        """Runs a conversation on three servers. Each round kills one during a reply, and the
        client continues on another."""
        random, servers = Random(1), [self.server() for _ in range(3)]
        previous = expected = None
        for n in range(rounds):
            if n % 8 == 0:
                previous, expected = respond(random.choice(servers).port, LONG), respond(self.alone.port, LONG)
                self.assertEqual(what_was_said(previous), what_was_said(expected))
            text = SAYINGS[n % len(SAYINGS)]
            victim = servers.pop(random.randrange(3))
            stream = ask_in_stream(victim.port, text, previous["id"])
            left = random.randrange(3000)  # a reply's events have about this many bytes
            while left > 0 and (some := stream.recv(min(left, 512))):
                left -= len(some)
            victim.end(kill=True)
            stream.close()
            other = random.choice(servers)
            before = metric(other.port, "prompt_tokens_total")
            answer = respond(other.port, text, previous["id"])
            expected = respond(self.alone.port, text, expected["id"])
            self.assertEqual(what_was_said(answer), what_was_said(expected))
            # All full blocks of the state were stored, so only tokens after them were processed.
            stored = (previous["usage"]["input_tokens"] + previous["usage"]["output_tokens"]) // 64 * 64
            self.assertGreaterEqual(stored, 64)
            self.assertLessEqual(
                metric(other.port, "prompt_tokens_total") - before, answer["usage"]["input_tokens"] - stored)
            self.assertGreaterEqual(answer["usage"]["input_tokens_details"]["cached_tokens"], stored)
            self.assertEqual(metric(other.port, "store_blocks_computed_total"), 0)
            self.assertEqual(metric(other.port, "store_failures_total"), 0)
            previous = answer
            servers.append(self.server())

    def test_a_killed_server_is_replaced_in_mid_reply(self):
        self.killed_in_mid_reply(ROUNDS)

    @unittest.skipUnless(all(map(shutil.which, ("redis-server", "redis-cli"))), "redis-server or redis-cli is missing")
    def test_the_same_on_a_server_of_states(self):
        port = free_port()
        redis = subprocess.Popen(
            ["redis-server", "--port",
             str(port), "--bind", "127.0.0.1", "--save", "", "--dir", self.scratch], stdout=subprocess.DEVNULL)
        self.addCleanup(redis.wait)
        self.addCleanup(redis.kill)
        while subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True).stdout != b"PONG\n":
            self.assertIsNone(redis.poll())
        self.env = {**self.env, "STET_STORE": "redis://127.0.0.1:%d/killed" % port}
        subprocess.run([STET, "store", "init"], env=self.env, check=True, capture_output=True)
        self.killed_in_mid_reply(ROUNDS)

    def test_blocks_that_are_lost_are_computed(self):
        a, b = self.server(), self.server()
        first = respond(a.port, LONG)
        for name in os.listdir(self.scratch + "/store/blocks"):
            os.remove(self.scratch + "/store/blocks/" + name)
        found = respond(b.port, SAYINGS[1], first["id"])
        self.assertEqual(what_was_said(found),
                         what_was_said(respond(self.alone.port, SAYINGS[1],
                                               respond(self.alone.port, LONG)["id"])))
        self.assertGreater(metric(b.port, "store_blocks_computed_total"), 0)

    def test_a_store_that_is_gone_is_done_without(self):
        a = self.server()
        expected = self.conversation([self.alone.port])
        os.rename(self.scratch + "/store", self.scratch + "/elsewhere")
        self.assertEqual(self.conversation([a.port]), expected)
        self.assertGreater(metric(a.port, "store_failures_total"), 0)
        self.assertIn("store: ", a.end())

    def test_a_handle_is_its_clients_alone(self):
        keys = self.scratch + "/keys"
        with open(keys, "w") as f:
            f.write("alice alice-secret\nbob bob-secret\n")
        os.chmod(keys, 0o600)
        a, b = self.server("--api-key-file", keys), self.server("--api-key-file", keys)
        first = respond(a.port, LONG, key="alice-secret")
        self.assertEqual(
            call(b.port, "POST", "/v1/responses", {"input": "x", "previous_response_id": first["id"]},
                 "bob-secret")[0], 404)
        # Reply times must not reveal other users' messages either: their blocks have other names.
        other = call(b.port, "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]},
                     "bob-secret")[1]
        self.assertEqual(other["usage"]["reused"], 0)
        self.assertEqual(
            call(b.port, "POST", "/v1/responses", {"input": "x", "previous_response_id": first["id"]},
                 "alice-secret")[0], 200)

    def test_other_servers_get_nothing_of_an_uploaded_state(self):
        a, b = self.server(), self.server()
        body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 8}
        state = call(self.alone.port, "POST", "/v1/states", {"messages": body["messages"]})[1]["id"]
        snapshot = forged(call(self.alone.port, "GET", "/v1/states/%s/snapshot" % state)[1])
        uploaded = call(a.port, "POST", "/v1/states/upload", snapshot)[1]
        self.assertEqual(uploaded["origin"], "uploaded")
        made = call(a.port, "POST", "/v1/states/%s/continue" % uploaded["id"], {"n": 1})[1]["state"]
        self.assertEqual(call(b.port, "GET", "/v1/states/" + made["id"])[0], 404)
        answers = [call(server.port, "POST", "/v1/chat/completions", body)[1] for server in (b, self.alone)]
        self.assertEqual(answers[0]["usage"]["reused"], 0)
        self.assertEqual(*[a["choices"][0]["message"] for a in answers])

    def test_a_state_that_is_deleted_is_gone_everywhere(self):
        a, b = self.server(), self.server()
        first = respond(a.port, SAYINGS[0])
        self.assertEqual(call(a.port, "DELETE", "/v1/responses/" + first["id"])[0], 200)
        self.assertEqual(
            call(b.port, "POST", "/v1/responses", {"input": "x", "previous_response_id": first["id"]})[0], 404)

    def test_a_state_that_was_read_here_and_deleted_there_is_gone(self):
        a, b = self.server(), self.server()
        state = "/v1/states/" + call(a.port, "POST", "/v1/states", {"text": "My PIN is 5555"})[1]["id"]
        self.assertEqual(call(b.port, "GET", state)[0], 200)
        self.assertEqual(call(a.port, "DELETE", state)[0], 200)
        self.assertEqual(call(b.port, "GET", state)[0], 404)
        self.assertEqual(call(b.port, "POST", state + "/continue", {"n": 1})[0], 404)
        self.assertEqual(call(b.port, "GET", "/v1/states")[1]["data"], [])
        # A state that is made again is there again.
        self.assertEqual("/v1/states/" + call(b.port, "POST", "/v1/states", {"text": "My PIN is 5555"})[1]["id"], state)
        self.assertEqual(call(a.port, "GET", state)[0], 200)
        self.assertEqual(call(b.port, "DELETE", state)[0], 200)
        self.assertEqual("/v1/states/" + call(a.port, "POST", "/v1/states", {"text": "My PIN is 5555"})[1]["id"], state)
        self.assertEqual(call(a.port, "GET", state)[0], 200)
        self.assertEqual(call(b.port, "GET", state)[0], 200)

    def test_a_deletion_is_refused_while_the_store_is_away(self):
        a = self.server()
        made = call(a.port, "POST", "/v1/states", {"text": "My PIN is 5555"})[1]["id"]
        os.rename(self.scratch + "/store", self.scratch + "/elsewhere")
        self.assertEqual(call(a.port, "DELETE", "/v1/states/" + made), (503, {"type": "error", "error": {
            "message": "the state %s is not deleted, because the store is unreachable: try again later" % made,
            "type": "server_error", "param": None, "code": "store_unavailable"}}))
        self.assertEqual(call(a.port, "GET", "/v1/states/" + made)[0], 200)
        # A state that the store never had can be deleted.
        other = call(a.port, "POST", "/v1/states", {"text": "Other"})[1]["id"]
        self.assertEqual(call(a.port, "DELETE", "/v1/states/" + other)[0], 200)
        os.rename(self.scratch + "/elsewhere", self.scratch + "/store")
        until = time.monotonic() + 30
        while call(a.port, "DELETE", "/v1/states/" + made)[0] != 200 and time.monotonic() < until:
            time.sleep(0.1)
        self.assertEqual(call(a.port, "GET", "/v1/states/" + made)[0], 404)
        self.assertEqual(os.listdir(self.scratch + "/store/names"), [])

    def test_a_response_that_is_not_kept_removes_what_it_made_alone(self):
        a, b, c = self.server(), self.server(), self.server()
        kept = respond(a.port, "Let a = 5.", max_output_tokens=4)
        self.assertEqual(respond(b.port, "Let a = 5.", max_output_tokens=4, store=False)["id"], kept["id"])
        respond(c.port, "What is a?", kept["id"])
        made = respond(b.port, "Let a = 6.", max_output_tokens=4, store=False)
        self.assertEqual(call(c.port, "GET", "/v1/responses/" + made["id"])[0], 404)

    @unittest.skipUnless(all(map(shutil.which, ("redis-server", "redis-cli", "haproxy", "curl"))),
                         "redis-server, redis-cli, haproxy or curl is missing")
    def test_the_example_of_three_servers_and_a_balancer(self):
        port, fleet, place = free_port(5), os.path.join(ROOT, "examples/store/fleet"), self.scratch + "/fleet"
        env = {**os.environ, "STET": STET, "STET_MODEL": MODEL}
        try:
            subprocess.run([fleet, "up", place, str(port)], env=env, check=True, capture_output=True, timeout=60)
            self.assertEqual(self.conversation([port]), self.conversation([self.alone.port]))
            first = respond(port, LONG)
            with open(place + "/server2.pid") as f:
                os.kill(int(f.readline()), signal.SIGKILL)
            expected = what_was_said(respond(self.alone.port, SAYINGS[1], respond(self.alone.port, LONG)["id"]))
            for n in (1, 3):
                self.assertEqual(what_was_said(respond(port + n, SAYINGS[1], first["id"])), expected)
        finally:
            subprocess.run([fleet, "down", place], env=env, check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
