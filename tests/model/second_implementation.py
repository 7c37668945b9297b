"""A second implementation of the contracts, made from docs/contracts-and-identity.md and the pages below it
alone, must reach the golden bits.

    second_implementation.py ROOT PATTERN...      of names as in tests/data/golden_bits: "*-tiny*"
    second_implementation.py ROOT --command STET  digests of other tokens, contracts and types, by the command
"""

import fnmatch
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import numpy as np

from contract_digests import digest_text
from contract_gemma4 import load_model


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [line.split() for line in file if line.strip()]


def subjects(root):
    """Returns name -> (directory, kind, kv type, ids)."""
    golden = os.path.join(root, "tests/data/golden_bits")
    found = {}
    for name, directory in lines(os.path.join(golden, "models.txt")):
        plain, _, kind = name.partition("@")
        plain, _, kv = plain.partition("+")
        with open(os.path.join(golden, plain + ".ids.json"), encoding="utf-8") as file:
            found[name] = directory, kind or "f32", kv or "f32", json.load(file)
    for name, *_ in lines(os.path.join(golden, "blocks.txt")):
        plain, _, kind = name.partition("@")
        found[name] = "assets/" + plain, kind, "f32", [i * 7 % 1620 for i in range(70)]
    return found


# (model, contract, keys and values) that have no golden line.
COMBINATIONS = (("gpt2-tiny", "f32", "f16"), ("pythia-tiny", "q4", "bf16"), ("gemma2-tiny", "q8", "q8"))
# (model, contract, keys and values, way of pruning): positions 10 .. 89 of 130 are pruned, and
# tokens follow.
PRUNED = (
    ("phi4-tiny", "f32", "f32", "shift"),
    ("gemma3-tiny", "f32", "q8", "shift"),
    ("qwen2-tiny", "bf16", "q8", "keep"),
    ("gptoss-tiny", "f32", "bf16", "shift"),
    ("gemma4-small-tiny", "f32", "f32", "shift"),
    ("gemma4-dense-tiny", "f32", "q8", "shift"),
)


def run(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def differs(what, logits, cache, said):
    """Returns how many digests the command did not print, and prints which."""
    failed = 0
    for part, data in (("logits", np.ascontiguousarray(logits).tobytes()), ("keys and values", cache.bytes())):
        if digest_text(data) not in said:
            failed += 1
            print(f"{', '.join(what)}: {part} are {digest_text(data)}, the command says\n{said}")
    return failed


def against_command(root, stet):
    failed, draw = 0, random.Random(41)
    for name, contract, kv, *pruned in COMBINATIONS + PRUNED:
        directory = os.path.join(root, "tests/data/models", name)
        model = load_model(directory, contract)
        ids = [draw.randrange(model.c.vocab_size) for _ in range(min(130, model.c.max_positions))]
        logits, cache = model.forward(ids, kv)
        how = ["-m", directory, "--ids", ",".join(map(str, ids)), "--compute", contract, "--kv", kv]
        if not pruned:
            failed += differs((name, contract, kv), logits, cache, run(stet, "logits", *how, "--digest"))
            continue
        cache.prune(10, 90, pruned[0] == "shift", model.ropes)
        more = ids[:5]
        logits, cache = model.forward(more, kv, cache)
        with tempfile.TemporaryDirectory() as scratch:
            whole, left = os.path.join(scratch, "whole.stet"), os.path.join(scratch, "left.stet")
            run(stet, "save", *how, "-o", whole)
            run(stet, "prune", whole, "-o", left, "--sinks", "10", "--keep-last", "40", "--positions", pruned[0])
            said = run(stet, "logits", "-m", directory, "--from", left, "--ids", ",".join(map(str, more)), "--digest")
        failed += differs((name, contract, kv, *pruned), logits, cache, said)
    return 1 if failed else 0


def main():
    root, patterns = sys.argv[1], sys.argv[2:]
    if patterns[0] == "--command":
        return against_command(root, patterns[1])
    golden = os.path.join(root, "tests/data/golden_bits")
    expected = {(name, what): digest for file in ("digests.txt", "blocks.txt")
                for name, what, digest in lines(os.path.join(golden, file))}
    every, failed = subjects(root), 0
    names = [name for name in every if any(fnmatch.fnmatch(name, p) for p in patterns)]
    for name in names:
        directory, kind, kv, ids = every[name]
        begin = time.process_time()
        logits, cache = load_model(os.path.join(root, directory), kind).forward(ids, kv)
        got = {"logits": digest_text(np.ascontiguousarray(logits).tobytes()), "kv": digest_text(cache.bytes())}
        for what, digest in got.items():
            if digest != expected[name, what]:
                failed += 1
                print(f"{name} {what}: expected {expected[name, what]}, got {digest}")
        print(f"{name}: {len(ids)} positions, {time.process_time() - begin:.1f} s", flush=True)
    print(f"{2 * len(names) - failed} of {2 * len(names)} digests reached")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
