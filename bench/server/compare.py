#!/usr/bin/env python3
"""Compares stet serve with the server of llama.cpp or ik_llama.cpp, one after the other, with the same weights
and token ids.

    compare.py STET -m DIR [-- stet's options] [--peer LLAMA_SERVER --gguf FILE] [--rounds N]

Starts both on loopback, with two threads and 16 slots. Each waits idle while the other works.
"""
import argparse
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time


class Server:
    """A server process. `ask` streams a reply and returns the times of its tokens."""

    folder = None  # its working directory, for its logs

    def __init__(self, command, port, ready):
        self.command, self.port, self.ready = command, port, ready
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while True:
            try:
                if self.call("GET", self.ready)[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() - began > 300:
                raise SystemExit("%s: expected a server, found status %s" % (self.command[0], self.process.poll()))
            time.sleep(0.1)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, None if body is None else json.dumps(body),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def ask(self, ids, tokens):
        path, body = self.request(ids, tokens)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        times = [time.monotonic()]
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit("%s: %s" % (path, answer.read()))
        for line in answer:
            if line.startswith(b"data: {"):
                times += [time.monotonic()] * self.tokens_of(json.loads(line[6:]))
        connection.close()
        return times


class Stet(Server):
    def __init__(self, command, port):
        super().__init__(command + ["--port", str(port)], port, "/ready")

    def request(self, ids, tokens):
        return "/v1/completions", {
            "prompt": ids, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True, "logprobs": 0
        }

    def tokens_of(self, event):
        return sum(len(c["logprobs"]["tokens"]) for c in event.get("choices", []) if c.get("logprobs"))


class Peer(Server):
    def __init__(self, command, port):
        super().__init__(command + ["--host", "127.0.0.1", "--port", str(port)], port, "/health")

    def request(self, ids, tokens):
        return "/completion", {
            "prompt": ids, "n_predict": tokens, "ignore_eos": True, "temperature": 0, "top_k": 1,
            "samplers": ["top_k"], "stream": True, "cache_prompt": True
        }

    def tokens_of(self, event):
        return 0 if event.get("stop") else 1


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def together(jobs):
    results = [None] * len(jobs)

    def run(i):
        try:
            results[i] = jobs[i]()
        except OSError as e:
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results:
        if isinstance(r, OSError):
            raise SystemExit("a server stopped answering: %s" % r)
    return results


def throughput(server, prompts, tokens):
    began = time.monotonic()
    together([lambda ids=ids: server.ask(ids, tokens) for ids in prompts])
    return len(prompts) * tokens / (time.monotonic() - began)


def gaps(times, begin, end):
    return [b - a for a, b in zip(times[1:], times[2:]) if a >= begin and b <= end]


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(p * len(values)))]


def pace(server, streams, prompt, idle_seconds, tokens):
    """Runs three streams, alone for a while and then beside a long prompt. Returns (p95 of the
    gaps alone, p95 during the prompt, seconds of the prompt)."""
    marks = {}

    def later():
        time.sleep(idle_seconds)
        marks["begin"] = time.monotonic()
        times = server.ask(prompt, 1)
        marks["end"] = times[1]

    all_times = together([lambda ids=ids: server.ask(ids, tokens) for ids in streams] + [later])[:-1]
    warm = max(t[1] for t in all_times) + 0.2
    idle = [g for t in all_times for g in gaps(t, warm, marks["begin"])]
    busy = [g for t in all_times for g in gaps(t, marks["begin"], marks["end"])]
    return percentile(idle, 0.95), percentile(busy, 0.95), marks["end"] - marks["begin"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("stet")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--compute", default="q8")
    p.add_argument("--peer")
    p.add_argument("--gguf")
    p.add_argument("--peer-options", default="")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--only", default="throughput,pace,first,fork")
    o = p.parse_args()
    o.stet, o.model, o.peer, o.gguf = (path and os.path.abspath(path) for path in (o.stet, o.model, o.peer, o.gguf))
    logs = tempfile.TemporaryDirectory()
    Server.folder = logs.name
    draws = random.Random(1)
    vocabulary = json.load(open(o.model + "/config.json"))["vocab_size"]

    def ids(n):
        return [draws.randrange(min(1000, vocabulary // 2), min(vocabulary, 30000)) for _ in range(n)]

    directory = tempfile.TemporaryDirectory()
    sides = {
        "stet": Stet(
            [o.stet, "serve", "-m", o.model, "--compute", o.compute, "--threads", "2", "--state-dir", directory.name],
            free_port())
    }
    if o.peer:
        sides["peer"] = Peer([
            o.peer, "-m", o.gguf, "-t", "2", "-tb", "2", "-np", "16", "-c",
            str(16 * 4608), "-b", "512", "-ub", "512"
        ] + o.peer_options.split(), free_port())
    try:
        if "throughput" in o.only:
            for streams in (1, 4, 16):
                speeds = {name: [] for name in sides}
                for turn in range(o.rounds + 1):
                    prompts = [ids(32) for _ in range(streams)]
                    for name in list(sides) if turn % 2 else list(sides)[::-1]:
                        speed = throughput(sides[name], prompts, o.tokens)
                        if turn:
                            speeds[name].append(speed)
                line = "%2d streams: " % streams + ", ".join("%s %.1f tokens/s" % (name, statistics.median(v))
                                                             for name, v in speeds.items())
                if "peer" in speeds:
                    line += ", ratio %.2f" % statistics.median(a / b for a, b in zip(speeds["stet"], speeds["peer"]))
                print(line, flush=True)
        if "pace" in o.only:
            for name, server in sides.items():
                alone, rows = [], []
                for _ in range(max(1, o.rounds // 2)):
                    times = server.ask(ids(4096), 1)
                    alone.append(times[1] - times[0])
                    rows.append(pace(server, [ids(32) for _ in range(3)], ids(4096), 3, 500))
                print("%s, a prompt of 4096 beside 3 streams: p95 between tokens %.1f ms idle, %.1f ms then (%.2f x); "
                      "the prompt %.1f s, alone %.1f s (%.0f %% of its speed)" % (
                    name, 1e3 * statistics.median(r[0] for r in rows), 1e3 * statistics.median(r[1] for r in rows),
                    statistics.median(r[1] / r[0] for r in rows),
                    statistics.median(r[2] for r in rows), statistics.median(alone),
                    100 * statistics.median(a / r[2] for a, r in zip(alone, rows))), flush=True)
        if "first" in o.only:
            for name, server in sides.items():
                long, more = ids(2048), ids(32)
                first = server.ask(long, 8)
                second = server.ask(long + more, 8)
                server.stop()
                server.start()
                server.ask(ids(8), 2)
                third = server.ask(long + more + ids(32), 8)
                print("%s, time to first token: %.0f ms of 2048 new tokens, %.0f ms of the second turn (32 more), "
                      "%.0f ms after a restart (64 more)" % (
                    name, 1e3 * (first[1] - first[0]), 1e3 * (second[1] - second[0]),
                    1e3 * (third[1] - third[0])), flush=True)
        if "fork" in o.only:
            server = sides["stet"]
            state = json.loads(server.call("POST", "/v1/states", {"ids": ids(4096)})[1])
            took = []
            for _ in range(50):
                began = time.monotonic()
                status, _ = server.call("POST", "/v1/states/%s/fork" % state["id"], {})
                took.append(time.monotonic() - began)
                assert status == 200
            print("stet, a fork of a state of %d tokens: %.1f ms (quartiles %.1f, %.1f)" %
                  (state["tokens"], 1e3 * statistics.median(took), 1e3 * percentile(took, 0.25),
                   1e3 * percentile(took, 0.75)))
    finally:
        for server in sides.values():
            server.process.kill()
            server.process.wait()
        directory.cleanup()
        logs.cleanup()


if __name__ == "__main__":
    main()
