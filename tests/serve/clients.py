"""Replays the requests of other projects' clients (tests/serve/transcript.json, which clients.mjs
writes). The responses must have the same fields and values, and streams the same events, except
for ids that the server makes, and times.

    clients.py STET ROOT
"""
import json
import os
import re
import sys
import unittest

STET, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from api import Server  # noqa: E402

HANDLE = re.compile(r"(st_|resp_|msg_(?:resp_)?|chatcmpl-|cmpl-)[0-9a-f]{32}")
TIMES = {"created", "created_at", "now"}


class Clients(unittest.TestCase):
    def same(self, told, now, names, where):
        """Asserts that `told` equals `now`. Ids that correspond to each other are added to
        `names`."""
        self.assertEqual(type(told), type(now), where)
        if isinstance(told, dict):
            self.assertEqual(sorted(told), sorted(now), where)
            for key in told:
                if key not in TIMES:
                    self.same(told[key], now[key], names, where + "/" + key)
        elif isinstance(told, list):
            self.assertEqual(len(told), len(now), where)
            for i, (t, n) in enumerate(zip(told, now)):
                self.same(t, n, names, "%s/%d" % (where, i))
        elif isinstance(told, str):
            self.assertEqual(HANDLE.sub(r"\1", told), HANDLE.sub(r"\1", now), where)
            names.update(zip((m.group() for m in HANDLE.finditer(told)), (m.group() for m in HANDLE.finditer(now))))
        else:
            self.assertEqual(told, now, where)

    def piece_of(self, data):
        """Returns the object that holds an event's piece of text, and the name of its field."""
        if not isinstance(data, dict):
            return None
        if data.get("type") == "response.output_text.delta":
            return data, "delta"
        if data.get("type") == "content_block_delta":
            return data["delta"], "text"
        if data.get("choices") and data["choices"][0].get("delta", {}).get("content"):
            return data["choices"][0]["delta"], "content"
        return None

    def events(self, text):
        """Returns (event, data) of each event. Consecutive pieces are joined, because their
        number depends on timing."""
        found = []
        for part in text.split("\n\n"):
            lines = [line for line in part.split("\n") if line and not line.startswith(":")]
            if not lines:
                continue
            data = lines[-1].removeprefix("data: ")
            event = [lines[0] if len(lines) > 1 else "", data if data == "[DONE]" else json.loads(data)]
            if isinstance(event[1], dict):
                event[1].pop("sequence_number", None)
            before = self.piece_of(found[-1][1]) if found else None
            piece = self.piece_of(event[1])
            if before and piece:
                before[0][before[1]] += piece[0][piece[1]]
            else:
                found.append(event)
        return found

    def test_what_they_asked_is_answered_as_it_was(self):
        with open(os.path.join(ROOT, "tests/serve/transcript.json"), encoding="utf-8") as f:
            transcript = json.load(f)
        self.assertEqual({e["client"] for e in transcript}, {"openai", "anthropic", "AI SDK"})
        server = Server()
        names = {}
        for i, e in enumerate(transcript):
            if e.get("left"):
                continue
            with self.subTest(client=e["client"], path=e["path"], number=i):
                mapped = json.loads(
                    HANDLE.sub(lambda m: names.get(m.group(), m.group()), json.dumps([e["path"], e["body"]])))
                status, answer = server.call(
                    e["method"], mapped[0], mapped[1],
                    headers={"Accept": e["accept"] or "*/*", "Content-Type": "application/json"})
                self.assertEqual(status, e["status"], answer)
                if e["type"] == "application/json":
                    self.same(json.loads(e["answer"]), answer, names, "")
                else:
                    self.same(self.events(e["answer"]), self.events(answer.decode()), names, "")
        server.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
