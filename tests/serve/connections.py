"""stet serve as an HTTP/1.1 server: requests are framed unambiguously, refused before their
bodies are read, and no client can occupy the server.

    connections.py STET ROOT
"""
import concurrent.futures
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from api import STET, MODEL, Server  # noqa: E402

BODY = b'{"ids":[1,2]}'
JSON = b"Content-Type: application/json\r\n"


def head(line, *fields, host=b"Host: localhost\r\n"):
    return line + b" HTTP/1.1\r\n" + host + b"".join(fields) + b"\r\n"


def post(path=b"/v1/states", body=BODY, fields=JSON):
    return head(b"POST " + path, fields, b"Content-Length: %d\r\n" % len(body)) + body


class Raw(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def connect(self, seconds=20):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=seconds)

    def ask(self, data):
        """Sends data and returns everything until the server closes. The connection stays open on
        this side."""
        with self.connect() as s:
            try:
                s.sendall(data)
            except OSError:
                pass  # refused before all of it was sent
            answer = b""
            try:
                while piece := s.recv(65536):
                    answer += piece
            except ConnectionResetError:
                pass
            return answer

    def states(self):
        return self.server.get("/v1/status")["states"]


class Framing(Raw):
    def test_what_two_programs_could_read_differently_is_refused(self):
        smuggled = post()
        length = b"Content-Length: %d\r\n" % len(BODY)
        chunked = b"Transfer-Encoding: chunked\r\n"
        whole = b"d\r\n" + BODY + b"\r\n0\r\n\r\n"
        cases = {
            "two lengths": head(b"POST /tokenize", JSON, length, b"Content-Length: 5\r\n") + BODY,
            "one length twice": head(b"POST /tokenize", JSON, length, length) + BODY,
            "a list of lengths": head(b"POST /tokenize", JSON, b"Content-Length: 13, 13\r\n") + BODY,
            "a length and chunks": head(b"POST /tokenize", JSON, length, chunked) + whole,
            "chunks and a length": head(b"POST /tokenize", JSON, chunked, length) + whole,
            "identity, chunked": head(b"POST /tokenize", JSON, b"Transfer-Encoding: identity, chunked\r\n") + whole,
            "gzip, chunked": head(b"POST /tokenize", JSON, b"Transfer-Encoding: gzip, chunked\r\n") + whole,
            "xchunked": head(b"POST /tokenize", JSON, b"Transfer-Encoding: xchunked\r\n") + whole,
            "an empty coding": head(b"POST /tokenize", JSON, b"Transfer-Encoding:\r\n") + whole,
            "chunked twice": head(b"POST /tokenize", JSON, chunked, chunked) + whole,
            "chunks of HTTP/1.0": head(b"POST /tokenize", JSON, chunked).replace(b"HTTP/1.1", b"HTTP/1.0") + whole,
            "a space before the colon": head(b"POST /tokenize", JSON, b"Content-Length : 13\r\n") + BODY,
            "a coding with a space before the colon":
                head(b"POST /tokenize", JSON, b"Transfer-Encoding : chunked\r\n") + whole,
            "a folded field": head(b"POST /tokenize", JSON, length, b"X: a\r\n b\r\n") + BODY,
            "a folded first field":
                head(b"POST /tokenize", JSON, length, host=b" Host: localhost\r\nHost: localhost\r\n") + BODY,
            "a line end without CR": head(b"POST /tokenize", JSON, length).replace(b"\r\n", b"\n") + BODY,
            "one line end without CR": head(b"POST /tokenize", JSON, length, b"X: a\n") + BODY,
            "a CR inside": head(b"POST /tokenize", JSON, length, b"X: a\rb\r\n") + BODY,
            "a zero byte": head(b"POST /tokenize", JSON, length, b"X: a\0b\r\n") + BODY,
            "no Host": head(b"POST /tokenize", JSON, length, host=b"") + BODY,
            "two Hosts": head(b"POST /tokenize", JSON, length, b"Host: localhost\r\n") + BODY,
            "HTTP/1.0 without a Host": head(b"GET /v1/states", host=b"").replace(b"HTTP/1.1", b"HTTP/1.0"),
            "HTTP/9.9": head(b"GET /health").replace(b"HTTP/1.1", b"HTTP/9.9"),
            "no version": b"GET /health\r\n\r\n",
            "a whole URL": head(b"GET http://localhost/health"),
            "another method": head(b"POSt /tokenize", JSON, length) + BODY,
            "another server": head(b"CONNECT localhost:80"),
            "a fragment": head(b"GET /health#x"),
            "half an escape": head(b"GET /%4"),
            "a GET with a body": head(b"GET /health", JSON, length) + BODY,
            "an OPTIONS with a body": head(b"OPTIONS /health", JSON, chunked) + whole,
            **{"a length of " + n: head(b"POST /tokenize", JSON, b"Content-Length: %s\r\n" % n.encode()) + BODY
               for n in ("+13", "-5", "13abc", "0x3", "1 3", "", "99999999999999999999999")},
            "a chunk without its end": head(b"POST /tokenize", JSON, chunked) + b"d\r\n" + BODY + b"XX0\r\n\r\n",
            "a chunk that is too long": head(b"POST /tokenize", JSON, chunked) + b"c\r\n" + BODY + b"\r\n0\r\n\r\n",
            "a chunk with an extension":
                head(b"POST /tokenize", JSON, chunked) + b"d;a=b\r\n" + BODY + b"\r\n0\r\n\r\n",
            "a chunk with a line end without CR": head(b"POST /tokenize", JSON, chunked) + b"d\n" + BODY + b"\n0\n\n",
            "a last chunk with a line end without CR": head(b"POST /tokenize", JSON, chunked) + whole[:-2] + b"\n",
            "a chunk of no number": head(b"POST /tokenize", JSON, chunked) + b"+d\r\n" + BODY + b"\r\n0\r\n\r\n",
            "a chunk of too large a number":
                head(b"POST /tokenize", JSON, chunked) + b"fffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n",
            "a field behind the chunks":
                head(b"POST /tokenize", JSON, chunked) + whole[:-2] + b"Host: evil.example\r\n\r\n",
        }
        before = self.states()
        for name, data in cases.items():
            answer = self.ask(data + smuggled)
            self.assertRegex(answer[:13], rb"HTTP/1\.1 (4\d\d|501)", (name, answer[:200]))
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1, (name, answer))
            self.assertIn(b"Connection: close\r\n", answer, name)
            self.assertIn("message", json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"], name)
        self.assertEqual(self.states(), before)

    def test_requests_follow_one_another(self):
        last = head(b"GET /health", b"Connection: close\r\n")
        chunks = (head(b"POST /v1/states", JSON, b"Transfer-Encoding: chunked\r\n")
                  + b"4\r\n" + BODY[:4] + b"\r\n9\r\n" + BODY[4:] + b"\r\n0\r\n\r\n")
        answer = self.ask(post() + b"\r\n" + chunks + post(b"/nowhere") + head(b"HEAD /health") + last)
        kinds = re.findall(rb"HTTP/1\.1 (\d+)", answer)
        # An unwanted body ends the connection, so that its content is never taken as a request.
        self.assertEqual(kinds, [b"200", b"200", b"404"])
        answer = self.ask(post() + head(b"HEAD /health") + head(b"GET /nowhere") + last)
        kinds = re.findall(rb"HTTP/1\.1 (\d+)", answer)
        self.assertEqual(kinds, [b"200", b"200", b"404", b"200"])

    def test_older_clients_are_answered(self):
        self.assertTrue(self.ask(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200"))
        stream = json.dumps({"prompt": "Let", "max_tokens": 2, "stream": True}).encode()
        answer = self.ask(head(b"POST /v1/completions", JSON,
                               b"Content-Length: %d\r\n" % len(stream)).replace(b"HTTP/1.1", b"HTTP/1.0") + stream)
        self.assertIn(b"Connection: close\r\n", answer)
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))

    def test_a_part_of_an_answer_can_be_asked_for(self):
        state = self.server.post("/v1/states", {"ids": [5, 6, 7]})["id"]
        path = "/v1/states/%s/snapshot" % state
        whole = self.server.get(path)
        for asked, part in (("bytes=0-9", whole[:10]), ("bytes=100-", whole[100:]), ("bytes=-7", whole[-7:]),
                            ("bytes=5-99999999", whole[5:])):
            status, answer = self.server.call("GET", path, headers={"Range": asked})
            self.assertEqual((status, answer), (206, part), asked)
        for asked in ("bytes=0-1,5-6", "lines=1-2", "bytes=9-3", "bytes=", "bytes=" + "0-,".join([""] * 5000)):
            status, answer = (self.server.call("GET", path, headers={"Range": asked}) if len(asked) < 9000
                              else (200, whole))
            self.assertEqual((status, answer), (200, whole), asked)
        self.assertEqual(self.server.call("GET", path, headers={"Range": "bytes=99999999-"})[0], 416)

    def test_bodies_of_other_types_are_refused(self):
        for kind in (b"", b"Content-Type: text/plain\r\n", b"Content-Type: application/x-www-form-urlencoded\r\n",
                     b"Content-Type: multipart/form-data\r\n",
                     b"Content-Type: application/jsonp\r\n", b"Content-Type: text/plain; application/json\r\n"):
            before = self.states()
            answer = self.ask(post(fields=kind) + post())
            self.assertIn(b" 415 ", answer[:20], kind)
            self.assertIn(b"send Content-Type: application/json", answer)
            self.assertEqual(self.states(), before)
        for kind in (b"Content-Type: application/json; charset=utf-8\r\n", b"Content-Type: Application/JSON\r\n"):
            self.assertIn(b" 200 ", self.ask(post(fields=kind + b"Connection: close\r\n"))[:20], kind)

    def test_random_bytes_are_refused_or_framed(self):
        draws = random.Random(11)
        good = post() + head(b"GET /health")
        for _ in range(int(os.environ.get("STET_SERVE_MALFORMED", "300"))):
            raw = bytearray(good)
            for _ in range(draws.randrange(1, 5)):
                at = draws.randrange(len(raw))
                raw[at:at + draws.randrange(3)] = draws.choice(
                    [b"\r", b"\n", b"\r\n", b" ", b":", b"\0", b"0", bytes([draws.randrange(256)])])
            with self.connect() as s:
                s.sendall(raw)
                s.shutdown(socket.SHUT_WR)
                answer = b""
                try:
                    while piece := s.recv(65536):
                        answer += piece
                except ConnectionResetError:
                    pass
            for part in answer.split(b"HTTP/1.1 ")[1:]:
                self.assertIn(part[:3], (b"200", b"400", b"403", b"404", b"405", b"408", b"413", b"415", b"417", b"431",
                                         b"499", b"501"), (raw, part))
        self.assertEqual(self.server.get("/health")["status"], "ok")


class Refusals(unittest.TestCase):
    """A request head is refused before any byte of its body is sent."""

    def asked(self, server, data):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            s.sendall(data)
            return s.recv(65536)

    def test_before_the_body(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("anna 0123456789\n")
            keys.flush()
            os.chmod(keys.name, 0o600)
            server = Server("--api-key-file", keys.name)
            key, long, expects = (b"Authorization: Bearer 0123456789\r\n", b"Content-Length: 1000000\r\n",
                                  b"Expect: 100-continue\r\n")
            for status, data in ((401, head(b"POST /v1/states", JSON, long)),
                                 (401, head(b"POST /v1/states", JSON, long, expects)),
                                 (403, head(b"POST /v1/states", JSON, long, key, host=b"Host: evil.example\r\n")),
                                 (403, head(b"POST /v1/states", JSON, long, key, b"Origin: http://evil.example\r\n")),
                                 (404, head(b"POST /nowhere", JSON, long, key)),
                                 (405, head(b"PUT /v1/states", JSON, long, key)),
                                 (415, head(b"POST /v1/states", long, key)),
                                 (413, head(b"POST /v1/states", JSON, b"Content-Length: 99999999999\r\n", key)),
                                 (417, head(b"POST /v1/states", JSON, long, key, b"Expect: more\r\n"))):
                answer = self.asked(server, data)
                self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), (data, answer))
                self.assertIn(b"Connection: close\r\n", answer)
            self.assertTrue(self.asked(server, head(b"POST /v1/states", JSON, long, key, expects))
                            .startswith(b"HTTP/1.1 100 Continue\r\n\r\n"))
            self.assertTrue(
                self.asked(server, head(b"GET /health", b"X: " + b"y" * 20000 + b"\r\n")).startswith(b"HTTP/1.1 431 "))
            # Without a key the server does not accept megabytes.
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s, self.assertRaises(OSError):
                s.sendall(head(b"POST /v1/states", JSON, b"Content-Length: 100000000\r\n"))
                for _ in range(200):
                    s.sendall(bytes(1 << 20))
            server.stop()

    def test_pages_of_others(self):
        page = {"Origin": "https://page.example"}
        server = Server("--allow-origin", "https://page.example")
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("OPTIONS", "/v1/states", headers={**page, "Access-Control-Request-Method": "POST"})
        answer = connection.getresponse()
        answer.read()
        self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (204, "https://page.example"))
        self.assertIn("POST", answer.headers["Access-Control-Allow-Methods"])
        # Clients in JavaScript add fields of their own. The star does not stand for Authorization.
        allowed = answer.headers["Access-Control-Allow-Headers"].split(", ")
        self.assertTrue({"Authorization", "*"} <= set(allowed), allowed)
        connection.request("GET", "/v1/models", headers=page)
        answer = connection.getresponse()
        answer.read()
        self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (200, "https://page.example"))
        for origin in ("null", "https://page.example.evil", "http://page.example", "https://page.example:444", "*"):
            self.assertEqual(server.call("GET", "/v1/models", headers={"Origin": origin})[0], 403, origin)
        server.stop()
        for origin in ("*", "null", "page.example", "", "https://", "https://page.example/", "https://page.example/a",
                       "https://*.example", "https://me@page.example"):
            self.refused("--allow-origin", origin)

    def refused(self, *options):
        done = subprocess.run([STET, "serve", "-m", MODEL, "--port", "0", *options], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual((done.returncode, options[0] in done.stderr), (2, True), (options, done.stderr))

    def test_options_that_would_protect_or_answer_nothing(self):
        for options in (("--api-key-file", ""), ("--state-dir", ""), ("--allow-host", ""), ("--deadline", "-1"),
                        ("--deadline", "nan"), ("--streams", "0")):
            self.refused(*options)

    def test_names_that_no_request_could_give(self):
        for name in ("example.org:443", "https://example.org", "example.org/", "[::1]", "a b", "me@example.org"):
            done = subprocess.run([STET, "serve", "-m", MODEL, "--port", "0", "--allow-host", name],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr),
                             (2, "stet: --allow-host: expected a host name without scheme, port or path, as "
                              "example.org, found %s (stet --help)\n" % name))

    def test_names_have_no_case(self):
        server = Server("--allow-host", "Example.org", "--allow-origin", "https://Example.org")
        for name in ("example.org", "EXAMPLE.ORG:443", "LOCALHOST"):
            self.assertEqual(server.call("GET", "/v1/models", headers={"Host": name})[0], 200, name)
        self.assertEqual(server.call("GET", "/v1/models", headers={"Origin": "https://example.org"})[0], 200)
        self.assertEqual(server.call("GET", "/v1/models", headers={"Host": "example.com"})[0], 403)
        server.stop()

    def test_names_that_only_begin_like_one_of_the_server(self):
        server = Server()
        for name, status in ((b"localhost:80", 200), (b"[::1]:80", 200), (b"[::1]", 200), (b"localhost:", 200),
                             (b"localhost:x", 403), (b"localhost:80:80", 403), (b"[::1].evil.example", 403),
                             (b"[::1]evil.example:80", 403), (b"[::1", 403), (b"[::1]x", 403),
                             (b"localhost.evil.example", 403)):
            answer = self.asked(server, head(b"GET /v1/status", host=b"Host: " + name + b"\r\n"))
            self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), (name, answer))
        server.stop()


class Crowds(Raw):
    def test_slow_connections_occupy_nobody(self):
        crowd = [self.connect() for _ in range(300)]  # more than one address may open
        for i, s in enumerate(crowd):
            try:
                s.sendall((b"G", head(b"POST /v1/states", JSON, b"Content-Length: 100\r\n") + b"{", b"")[i % 3])
            except OSError:
                pass  # the server closes the oldest for the newest
        for path in ("/health", "/ready", "/metrics", "/v1/status", "/"):
            self.server.get(path)
        self.assertEqual(self.server.post("/v1/states", {"ids": [1, 2]})["positions"], 2)
        for s in crowd:
            s.close()

    def test_who_leaves_is_noticed_behind_a_byte(self):
        body = json.dumps({"prompt": "Let", "max_tokens": 1900, "ignore_eos": True, "temperature": 0, "n": 16}).encode()
        for more in (b"", b"\r\n", b"GET /health HTTP/1.1\r\n", post()):
            with self.connect() as s:
                s.sendall(head(b"POST /v1/completions", JSON, b"Content-Length: %d\r\n" % len(body)) + body)
                while not self.server.get("/ready")["running"]:
                    time.sleep(0.005)
                s.sendall(more)
            while self.server.get("/ready")["running"]:
                time.sleep(0.005)
            drawn = [line for line in self.server.get("/metrics").decode().split("\n")
                     if line.startswith("stet_drawn_tokens_total")]
            self.assertLess(int(drawn[0].split()[1]), 1900 * 16, more)

    def test_one_port_has_one_server(self):
        done = subprocess.run([STET, "serve", "-m", MODEL, "--port", str(self.server.port)], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(
            done.stderr,
            "stet: --port: port %d of 127.0.0.1 is in use by another program\n" % self.server.port)
        port = self.server.port
        self.server.get("/health")
        self.server.stop()  # right after using a connection, which stays in TIME_WAIT
        self.server.start()  # uses the same port
        self.assertEqual(self.server.port, port)

    def test_compressed_bodies_take_no_more_memory_than_others(self):
        packer, piece = zlib.compressobj(6, zlib.DEFLATED, 31), bytes(1 << 20)
        small = b"".join(packer.compress(piece) for _ in range(250)) + packer.flush()
        server = Server()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: server.call("POST", "/v1/states/upload", raw=small,
                                                          headers={"Content-Encoding": "gzip"}), range(6)))
        full = {"type": "error", "error": {
            "message": "expected room for the bodies of all requests, found none: try again later",
            "type": "server_error", "param": None, "code": "too_many_bodies"}}
        self.assertTrue(all(status == 400 or (status, answer) == (503, full) for status, answer in answers), answers)
        with open("/proc/%d/status" % server.process.pid) as f:
            most = int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1])
        self.assertLess(most, 800_000)  # 512 MB of bodies, and the rest of the server
        # The memory is free again.
        self.assertEqual(server.call("POST", "/v1/states/upload", raw=small,
                                     headers={"Content-Encoding": "gzip"})[0], 400)
        server.stop()

    def test_a_signal_cancels_what_runs_too_long_and_says_so(self):
        body = {"prompt": "a", "max_tokens": 1900, "n": 16, "ignore_eos": True}
        for more in {}, {"stream": True}:
            server = Server("--threads", "1", "--stop-seconds", "4")
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asked = pool.submit(server.call, "POST", "/v1/completions", {**body, **more})
                while not server.get("/ready")["running"]:
                    time.sleep(0.005)
                server.stop()
                status, answer = asked.result()
            error = {"type": "error", "error": {"message": "the server is shutting down", "type": "server_error",
                                                "param": None, "code": "shutting_down"}}
            if more:
                self.assertEqual(status, 200)
                self.assertEqual(answer.decode().split("\n\n")[-2:],
                                 ["event: error\ndata: " + json.dumps(error, separators=(",", ":")), ""])
            else:
                self.assertEqual((status, answer), (503, error))

    def test_a_signal_ends_those_that_wait(self):
        idle, half = self.connect(), self.connect()
        half.sendall(b"POST /v1/states HTTP/1.1\r\n")
        stopping = threading.Thread(target=self.server.stop)
        stopping.start()
        self.assertEqual((idle.recv(10), half.recv(10)), (b"", b""))
        stopping.join()
        idle.close()
        half.close()
        self.server.start()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
