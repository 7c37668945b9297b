"""Values that float16 keys and values cannot hold: the command reports them and keeps nothing;
the server answers 500 and keeps running.

    overflow.py STET ROOT
"""
import array
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from api import MODEL, STET, Server, request_of

SAYS = ("--kv f16: expected keys and values below 65520 in magnitude (--kv f32, bf16 or q8 holds larger ones), "
        "found a larger one at position 0, layer 0")


def write_large(path):
    """Writes the model with values 2^24 times as large. The attention output divides by the same
    factor, so that the function is unchanged."""
    shutil.copytree(MODEL, path)
    file = os.path.join(path, "model.safetensors")
    os.chmod(file, 0o644)
    data = bytearray(open(file, "rb").read())
    size = struct.unpack("<Q", data[:8])[0]
    for name, tensor in json.loads(data[8 : 8 + size]).items():
        by = 24 if name.endswith("v_proj.weight") else -24 if name.endswith("o_proj.weight") else 0
        if not by:
            continue
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        bits = array.array("H", bytes(data[begin:end]))
        for i, x in enumerate(bits):
            exponent = x >> 7 & 0xFF  # of bfloat16
            bits[i] = x + (by << 7) if 0 < exponent and 0 < exponent + by < 255 else x & 0x8000
        data[begin:end] = bits.tobytes()
    open(file, "wb").write(data)


class Overflow(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.large = os.path.join(cls.scratch.name, "large")
        write_large(cls.large)

    def run_stet(self, *arguments):
        return subprocess.run([STET, *arguments, "-m", self.large, "--threads", "1"], capture_output=True, text=True,
                              timeout=120)

    def test_the_command_keeps_nothing(self):
        state = os.path.join(self.scratch.name, "s.stet")
        for arguments in (
            ["generate", "--say", "Let a = 3. What is a?", "-n", "4"],
            ["save", "-p", "Let a = 3.", "-o", state],
            ["logits", "--digest", "-p", "Let a = 3."],
        ):
            run = self.run_stet(*arguments, "--kv", "f16")
            self.assertEqual((run.returncode, run.stdout, run.stderr), (1, "", "stet: " + SAYS + "\n"), arguments)
        self.assertEqual(os.listdir(self.scratch.name), ["large"])
        plain = subprocess.run([STET, "generate", "-m", MODEL, "--say", "Let a = 3. What is a?", "-n", "12"],
                               capture_output=True, text=True, timeout=120)
        for kind in ("f32", "bf16", "q8"):
            run = self.run_stet("generate", "--say", "Let a = 3. What is a?", "-n", "12", "--kv", kind)
            self.assertEqual((run.returncode, run.stdout), (0, plain.stdout), run.stderr)

    def test_the_server_is_at_fault(self):
        server = Server("--kv", "f16", "--threads", "1", model=self.large)
        try:
            for path, body in (
                ("/v1/chat/completions", request_of("Hi", n=2)),
                ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
            ):
                status, answer = server.call("POST", path, body)
                self.assertEqual((status, answer["error"]["type"], answer["error"]["code"]),
                                 (500, "server_error", "kv_overflow"), answer)
                self.assertEqual(answer["error"]["message"], SAYS)
            self.assertEqual(server.call("GET", "/health")[0], 200)
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
