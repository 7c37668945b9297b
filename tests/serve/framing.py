"""Compares request framing on random byte strings. Whatever the server accepts as requests, Node,
nginx and haproxy must frame in the same way, or the server must refuse it.

    framing.py FRAMES [COUNT]    FRAMES: the program of frames.cpp. Needs node, nginx and haproxy.
"""
import concurrent.futures
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FRAMES, COUNT = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10000

NGINX = """daemon off; error_log %(work)s/nginx.log; pid %(work)s/nginx.pid; worker_processes 1; events {}
http { access_log off; client_body_temp_path %(work)s/b; proxy_temp_path %(work)s/p;
  fastcgi_temp_path %(work)s/f; uwsgi_temp_path %(work)s/u; scgi_temp_path %(work)s/s;
  server { listen 127.0.0.1:%(port)d; client_header_timeout 2s; client_body_timeout 2s;
    lingering_timeout 1s; proxy_ignore_client_abort on;
    location / { proxy_pass http://127.0.0.1:%(to)d; proxy_http_version 1.1;
      proxy_set_header X-From $remote_addr; proxy_set_header Host localhost; } } }
"""
HAPROXY = """defaults
  mode http
  timeout client 2s
  timeout server 5s
  timeout connect 5s
  timeout http-request 2s
frontend f
  bind 127.0.0.1:%(port)d
  http-request set-header X-From %%[src]
  default_backend b
backend b
  server s 127.0.0.1:%(to)d
"""


def seeds():
    host = b"Host: localhost\r\n"
    get = b"GET /a HTTP/1.1\r\n" + host + b"\r\n"
    length = b"POST /b HTTP/1.1\r\n" + host + b"Content-Length: 5\r\n\r\nhello"
    chunks = b"POST /c HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n"
    inner = b"POST /d HTTP/1.1\r\n" + host + b"Content-Length: %d\r\n\r\n" % len(get) + get
    both = (
        b"POST /e HTTP/1.1\r\n"
        + host
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    old = b"POST /f HTTP/1.0\r\n" + host + b"Connection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"
    return [
        get, length, chunks, inner, both, old,
        b"DELETE /g HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ]


def strings(count):
    draws, all = random.Random(17), seeds()
    pieces = [
        b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"0", b"1", b"5", b";", b"+", b"-", b",", b"x", b"\0", b"\x0b",
        b"\xff", b"chunked", b"Content-Length: 3\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding:\r\n chunked\r\n", b"Host: other\r\n", b"0\r\n\r\n",
        b"\r\n\r\n", b"GET /z HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ]
    for _ in range(count):
        text = bytearray(b"".join(draws.choice(all) for _ in range(draws.randrange(1, 4))))
        for _ in range(draws.choice([0, 1, 1, 2, 3])):
            at = draws.randrange(len(text) + 1)
            text[at:at + draws.choice([0, 0, 1, 2])] = draws.choice(pieces)
        yield bytes(text)


def ours(texts):
    said = subprocess.run([FRAMES], input=b"".join(struct.pack("<I", len(t)) + t for t in texts), capture_output=True,
                          check=True).stdout
    return [json.loads(line) for line in said.split(b"\n")[:-1]]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)


def send(port, number, text):
    """Sends text from an address of its own. The connection stays open until nothing arrives for
    a while."""
    with socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(address(number), 0)) as s:
        try:
            s.sendall(text)
            s.settimeout(0.3)
            while s.recv(65536):
                pass
        except OSError:
            pass


def address(number):
    return "127.1.%d.%d" % (number // 250, number % 250 + 1)


def recorded(file):
    requests = {}
    for line in file:
        entry = json.loads(line)
        requests.setdefault(entry["from"], []).append(entry["request"])
    return requests


def compare(name, texts, mine, theirs):
    """Compares requests. `theirs` may lack some that the proxy or the recorder refused."""
    wrong = []
    for number, (text, frame) in enumerate(zip(texts, mine)):
        other = theirs.get(address(number), [])
        rest = iter(frame["requests"])
        known = [any(request == own for own in rest) for request in other]
        if not all(known[:len(frame["requests"])]) or (not all(known) and not frame["refused"]):
            wrong.append((text, frame, other))
    print("%s: %d strings, %d requests here, %d there; %d strings framed otherwise" %
          (name, len(texts), sum(len(f["requests"]) for f in mine), sum(map(len, theirs.values())), len(wrong)))
    for case in wrong[:10]:
        print("  ", *case)
    return not wrong


def main():
    texts = list(strings(COUNT))
    mine, good = ours(texts), True
    for name, config in (("node", None), ("nginx", NGINX), ("haproxy", HAPROXY)):
        with tempfile.TemporaryDirectory() as work, open(work + "/said", "w+") as said:
            recorder, proxy = subprocess.Popen(["node", HERE + "/recorder.mjs"], stdout=said), None
            while not (port := open(work + "/said").readline().strip()):
                time.sleep(0.05)
            port = int(port)
            if config is not None:
                to, port = port, free_port()
                with open(work + "/proxy.conf", "w") as file:
                    file.write(config % {"work": work, "port": port, "to": to})
                proxy = subprocess.Popen(
                    ["nginx", "-c", work +
                     "/proxy.conf", "-p", work] if name == "nginx" else ["haproxy", "-f", work + "/proxy.conf"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                wait_for(port)
            with concurrent.futures.ThreadPoolExecutor(64) as clients:
                list(clients.map(lambda numbered: send(port, *numbered), enumerate(texts)))
            for process in (proxy, recorder):
                if process is not None:
                    process.terminate()
                    process.wait()
            said.seek(0)
            said.readline()
            theirs = recorded(said)
        good = compare(name, texts, mine, theirs) and good
    sys.exit(0 if good else 1)


main()
