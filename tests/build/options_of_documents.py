"""Checks that each option of the command, and each CMake option, is in a page of documentation.

    options_of_documents.py STET ROOT
"""

import glob
import os
import re
import subprocess
import sys

PAGES = ("README.md", "docs/*.md", "docs/contracts/*.md", "bench/*.md")
OPTION = re.compile(r"^  (-[^ ].*?)(?:  |$)", re.MULTILINE)  # at the beginning of a line of help


def help_of(stet, *words):
    return subprocess.run([stet, *words, "--help"], check=True, capture_output=True, text=True).stdout


def options(stet):
    """Returns the options with the subcommands that have them."""
    found = {}
    for name in re.findall(r"^  ([a-z][a-z-]+)  ", help_of(stet), re.MULTILINE):
        for names in OPTION.findall(help_of(stet, name)):
            for option in re.findall(r"--[a-z][a-z-]*", names):
                found.setdefault(option, []).append(name)
    return found


def main():
    stet, root = sys.argv[1:]
    text = ""
    for page in (p for pattern in PAGES for p in glob.glob(os.path.join(root, pattern))):
        with open(page, encoding="utf-8") as f:
            text += f.read()
    with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as f:
        wanted = {name: ["CMake"] for name in re.findall(r"^(?:option|set)\((STET_\w+) .*", f.read(), re.MULTILINE)}
    wanted.update(options(stet))
    missing = [name for name in sorted(wanted) if not re.search(r"(?<![a-z-])%s(?![\w-])" % name, text)]
    for name in missing:
        print("%s (%s) is in no page" % (name, ", ".join(wanted[name])))
    print("%d options" % len(wanted))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
