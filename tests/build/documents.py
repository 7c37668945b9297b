"""Runs the commands of a page of documentation as a reader would: from top to bottom, in one directory.

    documents.py STET LIBRARY ROOT PAGE

The directory is empty except for links to assets, examples and tests. `stet` and `python3` are in PATH. A chat without
another input gets one message. Blocks:

    ```sh        run by bash; a command that fails ends the page. Lines that begin with # are comments
    ```python    run after the commands, all blocks of the page in one interpreter
    ```c, cpp    must be lines of a file of examples/, apart from white space
    ```json      parsed
    ```text      ignored, as is ```example

A comment on the line above a block, or alone, says more:

    <!-- not run: REASON -->     the block below needs something that a test does not have
    <!-- file: NAME -->          the block below is the content of this file
    <!-- before: COMMAND -->     bash runs this here: it makes what a reader would have

Port 8080 is replaced by a free one. Indented lines are never run, so they must not look like commands.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile

COMMAND = re.compile(r"    (?:\$ )?(?:stet|curl|cmake|cpack|ctest|pip|python3?|hf|export|tools/\w+)\s")
WRAPPER = """#!/bin/sh
if [ "$1" = chat ] && [ /dev/stdin -ef /dev/null ]; then
  printf 'Let k = 5.\\n' | {stet} "$@"
else
  exec {stet} "$@"
fi
"""
COMMENT = re.compile(r"<!-- (not run|file|before): (.*) -->")
LANGUAGES = ("sh", "python", "c", "cpp", "json", "text", "example")


class Page:
    """The blocks of a page. Programs keep the page's line numbers, so that errors name them."""

    def __init__(self, name, text, port):
        self.name, self.faults, self.commands = name, [], 0
        lines = text.replace("8080", str(port)).split("\n")
        self.shell, self.python, self.quoted = [""] * len(lines), [""] * len(lines), []
        at, above = 0, ("", "")
        while at < len(lines):
            line = lines[at]
            comment = COMMENT.fullmatch(line)
            if line.startswith("```"):
                end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("```")), None)
                if end is None:
                    self.fault(at, "a block without an end")
                    return
                self.block(line[3:], lines, at, end, *above)
                at, above = end, ("", "")
            elif comment and comment[1] == "before":
                self.shell[at] = comment[2]
            elif comment:
                above = comment[1], comment[2]
            elif COMMAND.match(line):
                self.fault(at, "an indented command, which no test runs: put it into a block of ```sh")
            if not comment and line.strip():
                above = ("", "")
            at += 1

    def fault(self, at, text):
        self.faults.append(f"{self.name}:{at + 1}: {text}")

    def block(self, language, lines, at, end, comment, value):
        body = lines[at + 1:end]
        if language not in LANGUAGES:
            self.fault(at, f"a block of {language or 'nothing'}: expected {', '.join(LANGUAGES)}")
        elif comment == "not run":
            return
        elif comment == "file":
            self.shell[at:end + 1] = [f"cat >{value} <<'END_OF_BLOCK'", *body, "END_OF_BLOCK"]
        elif language == "sh":
            self.shell[at + 1:end] = body
            self.commands += sum(1 for line in body if line.strip() and not line.startswith("#"))
        elif language == "python":
            self.python[at + 1:end] = body
            self.commands += 1
        elif language in ("c", "cpp"):
            self.quoted.append((at, "".join("".join(body).split())))
        if language == "json":
            try:
                json.loads("\n".join(body))
            except ValueError as error:
                self.fault(at, str(error))


def examples(root):
    """Yields the C and C++ files of examples/ without white space."""
    for folder, _, names in os.walk(os.path.join(root, "examples")):
        for name in names:
            if name.endswith((".c", ".cpp")):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    yield "".join(file.read().split())


def run(arguments, scratch, environment):
    """Returns a list with the error of the program, or an empty one."""
    done = subprocess.run(arguments, cwd=scratch, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300, check=False)
    if done.returncode == 0:
        return []
    return [f"{arguments[0]}: status {done.returncode}: {(done.stderr or done.stdout).strip()[-1500:]}"]


def main():
    stet, library, root, name = sys.argv[1:5]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(os.path.join(root, name), encoding="utf-8") as file:
        page = Page(name, file.read(), port)
    files = list(examples(root))
    for at, text in page.quoted:
        if not any(text in content for content in files):
            page.fault(at, "no file of examples/ has these lines")
    with tempfile.TemporaryDirectory() as scratch:
        programs, home = os.path.join(scratch, ".programs"), os.path.join(scratch, ".home")
        os.mkdir(programs)
        os.mkdir(home)
        with open(os.path.join(programs, "stet"), "w", encoding="utf-8") as file:
            file.write(WRAPPER.replace("{stet}", shlex.quote(stet)))
        os.chmod(os.path.join(programs, "stet"), 0o755)
        os.symlink(sys.executable, os.path.join(programs, "python3"))
        for folder in ("assets", "examples", "tests"):
            os.symlink(os.path.join(root, folder), os.path.join(scratch, folder))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STET_")}
        environment.update(
            STET_LIBRARY=library, PYTHONPATH=os.path.join(root, "python"), MPLBACKEND="Agg", HOME=home,
            XDG_CONFIG_HOME=os.path.join(home, ".config"), PATH=programs + os.pathsep + os.environ["PATH"],
            PYTHONDONTWRITEBYTECODE="1")
        called = os.path.join(scratch, ".programs", os.path.basename(name))
        # Ends the server that a page started. Names the command that failed.
        traps = "trap 'kill $(jobs -p) 2>/dev/null || :' EXIT; "
        traps += f"""trap 'echo "{name}:$LINENO: $BASH_COMMAND" >&2' ERR; """
        for lines, before, program in ((page.shell, traps, ["bash", "-eu", "-o", "pipefail"]),
                                       (page.python, "", [sys.executable])):
            if not any(lines):
                continue
            with open(called, "w", encoding="utf-8") as file:
                file.write(before + "\n".join(lines) + "\n")
            page.faults += run([*program, called], scratch, environment)
    for fault in page.faults:
        print(fault)
    print(f"{name}: {page.commands} commands, {len(page.quoted)} quotations, {len(page.faults)} faults")
    return 1 if page.faults else 0


if __name__ == "__main__":
    sys.exit(main())
