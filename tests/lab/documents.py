"""Runs the examples of a document verbatim and in order: shell commands, blocks of Python, lists
of interventions.

    documents.py STET LIBRARY ROOT DOCUMENT
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile

STET, LIBRARY, ROOT, DOCUMENT = sys.argv[1:5]

# Commands that a test cannot run, by document and beginning. Each must occur in the document.
LEFT_OUT = {
    "docs/lab.md": {"pip install .": "builds the library; the package is tested by tests/python"},
    "docs/guide.md": {
        "stet serve": "does not end; tests/serve",
        "stet bench": "measures for minutes",
        "stet chat -m qwen": "a model that is downloaded",
    },
}
# Commands that make the files which the examples read but do not write.
MAKES = {
    "docs/lab.md": """
        stet save -p "Let a = 3. Let b = 8. What is a?" -o S.stet
        stet save -p "Let a = 4. Let c = 9. What is a?" -o OTHER.stet
        stet capture -p "Let a = 4. What is a?" --points blocks.0.hook_mlp_out -o other.safetensors""",
    "docs/guide.md": """
        printf 'Let x be 5.\\nWhat is x?\\n' > turns.txt
        stet save -p "Let a = 3." -o a.stet
        cp a.stet b.stet
        ln -s assets/pocket-gemma3 DIR""",
}


def examples(text):
    """Returns (line number, kind, text) of each example: a shell command, or a block of "python"
    or "json"."""
    lines, at = text.split("\n"), 0
    while at < len(lines):
        line, begin = lines[at], at + 1
        if line.startswith("```"):
            end = lines.index("```", at + 1)
            if line[3:] in ("python", "json"):
                yield begin, line[3:], "\n".join(lines[at + 1:end])
            elif line[3:] in ("sh", "bash", "console"):
                for number, command in enumerate(lines[at + 1:end], begin + 1):
                    yield number, "shell", command.removeprefix("$ ")
            else:
                raise SystemExit(f"{DOCUMENT}:{begin}: this test cannot run a block of {line[3:] or 'nothing'}")
            at = end
        elif re.match(r"    (stet|python3?|pip|make_checkpoint) ", line):
            command = line.strip()
            while command.endswith("\\"):
                at += 1
                command = command[:-1] + lines[at].strip()
            yield begin, "shell", command
        at += 1


def direction(path):
    """Writes a safetensors file with the tensor that the interventions add."""
    values = struct.pack("<256f", *(((37 * i) % 101 - 50) / 50 for i in range(256)))
    header = json.dumps({"direction": {"dtype": "F32", "shape": [256], "data_offsets": [0, len(values)]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + values)


# Runs blocks of Python one after another in one namespace, as a reader would. Answers each with a
# line of JSON.
INTERPRETER = """
import contextlib, io, json, sys, traceback
answers, names = sys.stdout, {"__name__": "__main__"}
for line in sys.stdin:
    error = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(json.loads(line), "example", "exec"), names)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps(error), file=answers, flush=True)
"""


class Place:
    """A directory with the files that the examples need, and `stet` in PATH."""

    def __init__(self, scratch):
        self.scratch, self.interpreter = scratch, None
        programs = os.path.join(scratch, ".programs")
        os.mkdir(programs)
        os.symlink(STET, os.path.join(programs, "stet"))
        os.symlink(sys.executable, os.path.join(programs, "python3"))
        for name in ("assets", "examples"):
            os.symlink(os.path.join(ROOT, name), os.path.join(scratch, name))
        self.environment = {**os.environ, "STET_LIBRARY": LIBRARY, "PYTHONPATH": os.path.join(ROOT, "python"), "MPLBACKEND": "Agg",
                            "PATH": programs + os.pathsep + os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, command):
        """Runs a command. Returns None, or a description of the failure."""
        done = subprocess.run(command, cwd=self.scratch, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=300, check=False)
        return None if done.returncode == 0 else f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"

    def shell(self, command):
        return self.run(["bash", "-euc", command])

    def python(self, text):
        if self.interpreter is None:
            self.interpreter = subprocess.Popen([sys.executable, "-c", INTERPRETER], cwd=self.scratch, env=self.environment,
                                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(json.dumps(text), file=self.interpreter.stdin, flush=True)
        return json.loads(self.interpreter.stdout.readline() or '"the interpreter has ended"')

    def close(self):
        if self.interpreter is not None:
            self.interpreter.communicate(timeout=60)

    def interventions(self, text):
        path = os.path.join(self.scratch, "interventions.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return self.run(["stet", "generate", "-p", "Let a = 3. What is a?", "-n", "2", "--intervene", path])


def main():
    with open(os.path.join(ROOT, DOCUMENT), encoding="utf-8") as file:
        text = file.read()
    left_out, failed, ran, kinds = dict(LEFT_OUT.get(DOCUMENT, {})), 0, 0, {}
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(scratch)
        direction(os.path.join(scratch, "v.safetensors"))
        for command in MAKES.get(DOCUMENT, "").strip().split("\n"):
            error = place.shell(command.strip())
            if error:
                print(f"before the examples: {command.strip()}: {error}")
                return 1
        for number, kind, example in examples(text):
            reason = next((b for b in LEFT_OUT.get(DOCUMENT, {}) if kind == "shell" and example.startswith(b)), None)
            if reason:
                left_out.pop(reason, None)
                continue
            error = {"shell": place.shell, "python": place.python, "json": place.interventions}[kind](example)
            ran += 1
            kinds[kind] = kinds.get(kind, 0) + 1
            if error:
                failed += 1
                print(f"{DOCUMENT}:{number}: {example.splitlines()[0]}\n    {error}")
        place.close()
    for begin in left_out:
        failed += 1
        print(f"{DOCUMENT}: no example begins with {begin!r}, which this test leaves out")
    print(f"{DOCUMENT}: {ran - failed} of {ran} examples ran ({', '.join(f'{n} {k}' for k, n in kinds.items())})")
    return 1 if failed or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
