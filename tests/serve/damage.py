"""Files of weights that are damaged while a server uses them. Damage of the model is the server's fault.
Damage of a draft model changes no reply.

    damage.py STET ROOT
"""
import os
import subprocess
import sys
import tempfile
import unittest

from api import MODEL, STET, Server, request_of


class Damage(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.packed = os.path.join(scratch.name, "packed")
        subprocess.run([STET, "prepare", "-m", MODEL, "-o", self.packed], check=True, capture_output=True)
        self.file = os.path.join(self.packed, "packed.safetensors")
        with open(self.file, "rb") as file:
            self.whole = file.read()

    def damage(self, truncate):
        with open(self.file, "r+b") as file:
            if truncate:
                file.truncate(len(self.whole) // 2)
            else:
                file.seek(len(self.whole) // 2)
                file.write(bytes(64))

    def mend(self):
        with open(self.file, "r+b") as file:
            file.write(self.whole)

    def test_weights_of_the_model(self):
        server = Server("--threads", "1", model=self.packed)
        asked = request_of("Let a = 3. What is a?", n=4)
        reply = server.post("/v1/chat/completions", asked)["choices"]
        for truncate in (False, True):
            self.damage(truncate)
            status, answer = server.call("POST", "/v1/chat/completions", asked)
            self.assertEqual((status, answer["error"]["type"], answer["error"]["code"]),
                             (500, "server_error", "damaged_weights"), answer)
            self.assertIn("its log names the file", answer["error"]["message"])
            events = server.call("POST", "/v1/chat/completions", dict(asked, stream=True))[1]
            self.assertIn(b'"damaged_weights"', events)
            self.mend()
            if not truncate:  # pages of a truncated file stay lost
                again = server.post("/v1/chat/completions", asked)["choices"]
                self.assertEqual(again[0]["message"], reply[0]["message"])
        log = server.stop().splitlines()
        self.assertEqual([line for line in log if not line.startswith("error: " + self.file)], [])
        self.assertEqual(len(log), 4)

    def test_weights_of_the_draft_model(self):
        server = Server("--threads", "1", "--speculate", self.packed)
        asked = request_of("Let a = 3. What is a?", n=40)
        reply = server.post("/v1/chat/completions", asked)["choices"]
        for truncate in (False, True):
            self.damage(truncate)
            again = server.post("/v1/chat/completions", asked)["choices"]
            self.assertEqual(again[0]["message"], reply[0]["message"])
            self.mend()
        log = server.stop().splitlines()
        failed = self.packed + ": the draft model failed, and replies continue without its drafts: " + self.file
        # The speed of the draft model decides how often it is asked.
        self.assertEqual([line for line in log if not line.startswith(failed)], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
