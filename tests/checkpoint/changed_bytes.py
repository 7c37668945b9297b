"""Changes single random bytes of config.json, tokenizer_config.json, generation_config.json and
of a GGUF file's keys. Each changed copy must give the same reply, one line that names the fault,
or another reply of a model that `stet inspect` reports as different. It must need the original's
time and memory.

    changed_bytes.py STET ROOT [COUNT]
"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

STET, ROOT, COUNT = os.path.abspath(sys.argv[1]), os.path.abspath(
    sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 24
MODEL = ROOT + "/assets/pocket-llama3"
FILES = ["config.json", "tokenizer_config.json", "generation_config.json"]
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
GENERATE = ["generate", "--threads", "1", "--json", "-n", "4", "--say", "Let a = 3. What is a?"]

# One line with the place and what is wrong there.
REFUSAL = r"(?s)\Astet: ([^\n]+: )+[^\n]+\Z"


class Run:
    """A finished command: its exit status, output and peak memory in KB."""

    def __init__(self, *arguments):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen([STET, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       env={**os.environ, "OMP_NUM_THREADS": "1"})
            limit = time.monotonic() + 120
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() > limit:
                    process.kill()
                    os.waitpid(process.pid, 0)
                    raise AssertionError("no end after 120 s: %s" % (arguments,))
                time.sleep(0.002)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.status, self.memory = process.returncode, usage.ru_maxrss
            out.seek(0), err.seek(0)
            self.out, self.err = out.read(), err.read().decode("utf-8", "replace")


def described(path):
    run = Run("inspect", "--json", path)
    if run.status != 0:
        return run, None
    shown = json.loads(run.out)
    del shown["checkpoint"]
    return run, shown


def names_in(value):
    """Returns the keys of a JSON value at every depth."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return {name for part in inside for name in names_in(part)} | (set(value) if isinstance(value, dict) else set())


def names_in_text(content):
    """Returns the keys of a JSON text at every depth, or None if it is not a JSON object."""
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return names_in(value) if isinstance(value, dict) else None


def keys_of(path):
    """Returns the range of bytes of a GGUF file that holds its keys."""
    with open(path, "rb") as file:
        data, at = file.read(), 24

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize(form)
        return value

    def skip(kind):
        nonlocal at
        if kind == 8:
            size = take("Q")
            at += size
        elif kind == 9:
            inner, count = take("I"), take("Q")
            if inner == 8:
                for _ in range(count):
                    skip(8)
            else:
                at += SIZES[inner] * count
        else:
            at += SIZES[kind]

    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        size = take("Q")
        at += size
        skip(take("I"))
    return 24, at


class ChangedBytes(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.random = random.Random(42)

    def changed(self, byte, text):
        """Returns a different byte; for text usually one that is valid in text."""
        while True:
            draw = self.random.randrange(4) if text else 3
            new = self.random.choice(b"0123456789") if draw == 0 else self.random.randrange(
                32, 127) if draw < 3 else self.random.choice(
                    [0, 1, 255, byte ^ (1 << self.random.randrange(8)),
                     self.random.randrange(256)])
            if new != byte:
                return new

    def check(self, path, what, original):
        run = Run(*GENERATE, "-m", path)
        inspected, shown = described(path)
        for one in (run, inspected):
            self.assertIn(one.status, (0, 1), "%s: %s" % (what, one.err))
            self.assertLess(one.memory, 2 * original["memory"], what)
            if one.status == 1:
                self.assertRegex(one.err.strip(), REFUSAL, what)
        if run.status == 1:
            return "refused", run.err
        reply = json.loads(run.out)
        if all(reply[name] == original["reply"][name] for name in ("prompt_ids", "ids", "text", "stop")):
            return "the same reply", None
        self.assertEqual(inspected.status, 0, "%s: %s" % (what, inspected.err))
        self.assertNotEqual(shown, original["shown"], "%s: another reply, and inspect does not show why" % what)
        return "another model", None

    def original_of(self, path):
        run = Run(*GENERATE, "-m", path)
        self.assertEqual(run.status, 0, run.err)
        inspected, shown = described(path)
        return {"reply": json.loads(run.out), "shown": shown, "memory": max(run.memory, inspected.memory)}

    def sweep(self, path, file, begin, end, text, count):
        original = self.original_of(path)
        with open(file, "rb") as f:
            whole = f.read()
        seen = {}
        for _ in range(count):
            at = self.random.randrange(begin, end)
            new = self.changed(whole[at], text)
            with open(file, "r+b") as f:
                os.pwrite(f.fileno(), bytes([new]), at)
            what = "%s, byte %d: %r -> %r" % (os.path.basename(file), at, whole[at], new)
            outcome, error = self.check(path, what, original)
            names = names_in_text(whole[:at] + bytes([new]) + whole[at + 1:]) if text else None
            if error and names is not None:  # it must name the key, or a tensor that contradicts the key
                self.assertTrue(".weight: " in error or any(name in error for name in names | names_in_text(whole)),
                                "%s: %s" % (what, error))
            seen[outcome] = seen.get(outcome, 0) + 1
            with open(file, "r+b") as f:
                os.pwrite(f.fileno(), whole[at : at + 1], at)
        print(os.path.basename(file), seen)
        return seen

    def test_files_of_a_directory(self):
        path = os.path.join(self.scratch.name, "m")
        shutil.copytree(MODEL, path)
        for name in FILES:
            file = os.path.join(path, name)
            os.chmod(file, 0o644)
            self.sweep(path, file, 0, os.path.getsize(file), True, COUNT // 6)

    def test_keys_of_a_gguf_file(self):
        path = os.path.join(self.scratch.name, "m.gguf")
        subprocess.run([STET, "convert-model", MODEL, "-o", path], check=True, capture_output=True)
        begin, end = keys_of(path)
        self.sweep(path, path, begin, end, False, COUNT - 3 * (COUNT // 6))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
