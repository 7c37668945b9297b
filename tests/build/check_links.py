#!/usr/bin/env python3
"""Checks the documents. Every relative link must lead to a file, and every #part of one to a
heading. Every path of this repository in `backticks` or in a drawing must exist.

    check_links.py ROOT
"""

import os
import re
import shutil
import subprocess
import sys

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
DRAWN = re.compile(r">([^<>]+)</t(?:ext|span)>")
CODE = re.compile(r"`([^`\n]+)`")
TOP = ("assets", "bench", "cmake", "docs", "examples", "include", "kernels", "models", "src", "tests", "tools")
PATH = re.compile(rf"(?:(?:{'|'.join(TOP)})(?:/[\w.+*-]+)*/?|README\.md|LICENSE|CMakeLists\.txt|CMakePresets\.json)")


def documents(root):
    command = ["git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.md", "*.svg"]
    if shutil.which("git") and os.path.exists(os.path.join(root, ".git")):
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        return [name for name in listed.stdout.splitlines() if os.path.exists(os.path.join(root, name))]
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith((".", "build"))]
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith((".md", ".svg"))]
    return found


def prose(text):
    """Returns the lines outside of fenced and indented code."""
    fenced, lines = False, []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            lines.append((number, line))
    return lines


def anchors(path):
    """Returns the anchors that GitHub makes of the headings."""
    with open(path, encoding="utf-8") as file:
        headings = [line.lstrip("# ") for _, line in prose(file.read()) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


def is_there(root, path):
    if "*" not in path:
        return os.path.exists(os.path.join(root, path))
    folder, pattern = os.path.split(os.path.join(root, path))
    pattern = re.compile(re.escape(pattern).replace(r"\*", ".*"))
    return os.path.isdir(folder) and any(pattern.fullmatch(name) for name in os.listdir(folder))


def faults_of(root, name):
    folder = os.path.dirname(os.path.join(root, name))
    with open(os.path.join(root, name), encoding="utf-8") as file:
        text = file.read()
    if name.endswith(".svg"):
        for drawn in DRAWN.findall(text):
            if PATH.fullmatch(drawn) and not is_there(root, drawn):
                yield f"{name}: {drawn}: expected a file, found none"
        return
    for number, line in prose(text):
        for target in LINK.findall(CODE.sub("", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, part = target.partition("#")
            path = os.path.normpath(os.path.join(folder, path)) if path else os.path.join(root, name)
            if not os.path.exists(path):
                yield f"{name}:{number}: {target}: expected a file, found none"
            elif part and part not in anchors(path):
                yield f"{name}:{number}: {target}: expected a heading of {os.path.relpath(path, root)}, found none"
        for code in CODE.findall(line):
            path = code.split(":")[0]
            if PATH.fullmatch(path) and not is_there(root, path):
                yield f"{name}:{number}: `{code}`: expected a file, found none"


def main():
    root = os.path.abspath(sys.argv[1])
    names = documents(root)
    faults = [fault for name in names for fault in faults_of(root, name)]
    for fault in faults:
        print(fault)
    if not names:
        sys.exit("no documents")
    print(f"{len(names)} documents, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
