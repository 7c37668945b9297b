"""Compares the package with stet/c.h, and checks its types."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import common
import stet

# Functions that the package need not call, and the more general ones that it calls instead.
MORE = {"stet_batch_capture": "stet_batch_capture_with",
        "stet_session_verify": "stet_session_verify_with_report"}
PACKAGE = os.path.join(common.ROOT, "python/stet")


def read(path):
    with open(path) as file:
        return file.read()


class Interface(unittest.TestCase):
    def test_every_function_of_c_is_called_by_the_package(self):
        header = re.sub(r"/\*.*?\*/", "", read(os.path.join(common.ROOT, "include/stet/c.h")), flags=re.S)
        declared = set(re.findall(r"STET_API[^;]*?\b(stet_[a-z0-9_]+)\(", header))
        self.assertEqual(len(declared), len(re.findall(r"^STET_API", header, flags=re.M)))
        self.assertGreater(len(declared), 100)
        source = "".join(read(os.path.join(PACKAGE, name))
                         for name in sorted(os.listdir(PACKAGE)) if name.endswith(".py"))
        called = (set(re.findall(r"[\"'](stet_[a-z0-9_]+)[\"']", source))
                  | set(re.findall(r"\b(?:lib|library)\.(stet_[a-z0-9_]+)", source)))
        called |= {less for less, more in MORE.items() if more in called and less in declared}
        self.assertEqual(sorted(declared - called), [], "functions of stet/c.h that nothing in python/stet calls")
        self.assertEqual(sorted(called - declared), [], "functions that python/stet calls and stet/c.h does not have")

    def test_files_have_one_purpose(self):
        for name in sorted(os.listdir(PACKAGE)):
            if name.endswith(".py"):
                text = read(os.path.join(PACKAGE, name))
                self.assertTrue(text.startswith('"""'), name)
                self.assertLessEqual(text.count("\n"), 400, name)

    def test_everything_public_is_described(self):
        for name in stet.__all__:
            thing = getattr(stet, name)
            self.assertTrue(thing.__doc__, name)
            if not isinstance(thing, type):
                continue
            for kind in thing.__mro__[:-1]:
                if not kind.__module__.startswith("stet"):
                    continue
                for member, value in vars(kind).items():
                    value = (getattr(value, "fget", None) or getattr(value, "__func__", None)
                             or getattr(value, "__wrapped__", None) or value)
                    if (not member.startswith("_") and hasattr(value, "__code__")
                            and "<string>" not in value.__code__.co_filename):
                        self.assertTrue(value.__doc__, (name, member))
                        self.assertIn("return", value.__annotations__, (name, member))

    def test_the_page_runs_as_it_stands(self):
        parts = [part.split("```")[0]
                 for part in read(os.path.join(common.ROOT, "docs/c-and-python.md")).split("```python\n")[1:]]
        self.assertEqual(len(parts), 5)
        done = subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(parts)], cwd=common.ROOT,
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("b is 8", done.stdout)
        count = len(stet.Tokenizer(common.POCKET).encode("Let a = 3. What is a?"))
        self.assertIn("(9, %d, 4, 256) (256, 256) (256, 256) (256,)" % count, done.stdout)

    def test_types_are_strict(self):
        mypy = shutil.which("mypy", path="/usr/bin:" + os.environ.get("PATH", ""))
        if mypy is None:
            self.skipTest("no mypy")
        program = '''
from typing import List
import numpy as np
import numpy.typing as npt
import stet

model, tokenizer = stet.Model("m"), stet.Tokenizer("m")
with model.session(capacity=64) as s:
    rows: npt.NDArray[np.float32] = s.append(tokenizer.encode("a", bos=True), points=["hook_embed"])["hook_embed"]
    with s.attach(stet.Intervention("hook_embed", "set", rows[-1])) as attached:
        texts: List[str] = [token.text for token in s.stream(tokenizer)]
    replies: List[stet.Reply] = stet.generate_batch([s, stet.Row(s, max_tokens=3)], tokenizer)
    traced = s.trace([[1, 2], [3]]).run([stet.TraceRun([stet.Intervention("hook_embed", "zero")], prompt=1)])
    s.zero_kv(layers=[1], begin=3, keys=False)
    chat: stet.Chat = stet.Chat(s, tokenizer)
    weights: npt.NDArray[np.float32] = model.W_Q[0, 1]
    s.stop_ids, s.stop_strings = np.array([1, 2]), ("a", "b")
    stops: List[int] = s.stop_ids
    words: List[str] = s.stop_strings
    stet.Row(s, stop_ids=np.array([1]), prompt=np.array([1]))
    stet.Intervention("attn.hook_z", "zero", heads=np.array([1]), layers=range(3))
    s.zero_kv(layers=np.array([1]))
    drawn: int = stet.Sampler(4).sample(np.zeros(4), stet.Sampling(), 0)
    drawn = stet.Sampler(4).sample([1.0, 2.0, 0.5, 0.0], stet.Sampling(), 0)
'''
        page = "\n".join(part.split("```")[0] for part in
                         read(os.path.join(common.ROOT, "docs/c-and-python.md")).split("```python\n")[1:])
        with tempfile.TemporaryDirectory() as d:
            for name, text in (("program", program), ("page", page),
                               ("wrong", program + "s.rewind('x')\ns.stop_ids = ['x']\n")):
                with open(os.path.join(d, name + ".py"), "w") as file:
                    file.write(text)
            done = subprocess.run([mypy, "--strict", "--python-executable", sys.executable, "--cache-dir", d + "/cache",
                                   PACKAGE, d + "/program.py", d + "/page.py", d + "/wrong.py"],
                                  capture_output=True, text=True,
                                  env={**os.environ, "MYPYPATH": os.path.join(common.ROOT, "python")}, cwd=d)
            errors = [line for line in done.stdout.splitlines() if ": error:" in line]
            self.assertEqual((len(errors), done.stderr), (2, ""), done.stdout)
            self.assertRegex(errors[0],
                             r'wrong\.py:\d+: error: Argument 1 to "rewind" of "Session" has incompatible type "str"')


if __name__ == "__main__":
    common.main()
