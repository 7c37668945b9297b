"""Kills a --durable server with kill -9 at random moments. Everything it acknowledged must
survive: states, names, pins and deletions. STET_SERVE_KILLS sets the number of kills (default 4).

    kills.py STET ROOT
"""
import http.client
import os
import random
import sys
import tempfile
import threading
import unittest

from api import Server, request_of

KILLS = int(os.environ.get("STET_SERVE_KILLS", "4"))
TEXTS = ["Let a = %d." % i
         for i in range(24)] + ["Let a = 3. Let b = 4. Let c = 5. " * 4 + "What is %s?" % c for c in "abc"]


class Known:
    """A state's acknowledged properties. Each set holds the last acknowledged value, and all
    values requested since without an answer."""

    def __init__(self):
        self.exists, self.name, self.pinned, self.digest = {False}, {None}, {False}, None


class Answers:
    """Counts answers; a thread can wait until there are n."""

    def __init__(self):
        self.count, self.changed = 0, threading.Condition()

    def add(self):
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def wait(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= count, timeout=60)


class Client(threading.Thread):
    """Makes, names, pins and deletes its own states until the server dies. `asked` maps texts to
    their states."""

    def __init__(self, server, texts, known, asked, draws, answers):
        super().__init__()
        self.server, self.texts, self.known, self.asked, self.draws, self.answers, self.fault = (
            server,
            texts,
            known,
            asked,
            draws,
            answers,
            None,
        )
        self.start()

    def run(self):
        try:
            while True:
                self.step()
                self.answers.add()
        except (OSError, http.client.HTTPException, ValueError):
            pass  # the server was killed
        except BaseException as error:  # the test reports it
            self.fault = error

    def step(self):
        what, states = self.draws.choice("aaannpdd"), sorted(i for i, k in self.known.items() if k.exists == {True})
        if what == "a" or not states:
            self.ask(self.draws.choice(self.texts))
        elif what == "d":
            self.delete(self.draws.choice(states))
        else:
            self.change(self.draws.choice(states), what)

    def ask(self, text):
        # The same text gives the same id, so a deleted state may be made again. Until the answer
        # its existence is unknown.
        before = self.asked.get(text)
        if before:
            self.known[before].exists |= {True}
        status, answer = self.server.call("POST", "/v1/chat/completions", request_of(text, n=3))
        assert status == 200, answer
        state = answer["state_id"]
        known = self.known.setdefault(state, Known())
        assert known.digest in (None, answer["choices"][0]["state_digest"])
        self.asked[text], known.digest = state, answer["choices"][0]["state_digest"]
        if known.exists != {True}:  # a new state; one that may have existed can keep its properties
            known.name, known.pinned = known.name | {None}, known.pinned | {False}
        known.exists = {True}

    def delete(self, state):
        known = self.known[state]
        known.exists |= {False}
        status, answer = self.server.call("DELETE", "/v1/states/" + state)
        assert status == 200, answer
        known.exists, known.name, known.pinned = {False}, {None}, {False}

    def change(self, state, what):
        known = self.known[state]
        field, value = (
            ("name", "n%d" % self.draws.randrange(1000))
            if what == "n"
            else ("pinned", self.draws.choice([True, False]))
        )
        setattr(known, field, getattr(known, field) | {value})
        status, answer = self.server.call("PATCH", "/v1/states/" + state, {field: value})
        assert status == 200, answer
        setattr(known, field, {value})


class Kills(unittest.TestCase):
    def test_what_was_acknowledged_survives_a_kill(self):
        draws = random.Random(23)
        with tempfile.TemporaryDirectory() as directory:
            server = Server("--state-dir", directory, "--durable", "--memory", "1")
            parts = [({}, {}) for _ in range(4)]
            for _ in range(KILLS):
                answers = Answers()
                clients = [
                    Client(server, TEXTS[i::4], *part, random.Random(draws.random()), answers)
                    for i, part in enumerate(parts)
                ]
                answers.wait(draws.randrange(1, 40))
                server.kill()
                for client in clients:
                    client.join()
                    self.assertIsNone(client.fault)
                server.start()
                there = {s["id"]: s for s in server.get("/v1/states")["data"]}
                for known, _ in parts:
                    for state, k in known.items():
                        found = there.get(state)
                        self.assertIn(found is not None, k.exists, state)
                        k.exists = {found is not None}
                        if found:
                            self.assertEqual(found["digest"], k.digest)
                            self.assertIn(found["name"], k.name, state)
                            self.assertIn(found["pinned"], k.pinned, state)
                        k.name, k.pinned = {found["name"] if found else None}, {found["pinned"] if found else False}
                if there:
                    some = draws.choice(sorted(there))
                    self.assertTrue(server.post("/v1/states/%s/verify" % some, {})["same_bits"])
            server.stop()
            left = {name for name in os.listdir(directory) if name.startswith("st_")}
            self.assertEqual({name[:-5] for name in left if name.endswith(".json")}, set(there))
            self.assertEqual({name[:-7] for name in left if name.endswith(".recipe")}, set(there))
            self.assertEqual([name for name in left if ".tmp-" in name], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
