"""Tests GGUF files of every type, which llama.cpp's llama-quantize makes of the pocket
checkpoints.

    bench/peers/gguf_types.py BUILD IK_BUILD [--type Q4_K_M]... [--model pocket-gemma3]

BUILD is stet's build directory (stet_command and stet_shared), IK_BUILD one of ik_llama.cpp.
Prints lines of a table (bench/RESULTS.md). The first figure of a file counts the weights that
equal ggml's bit for bit. The second counts the greedy replies of tests/data/pocket (of 40) that
equal the checkpoint's. The third is the conversations' negative log-likelihood in nats a token.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path += [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests")]
TYPES = [
    "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS",
    "Q3_K_M", "Q2_K"
]
PURE = ("IQ4_NL", "IQ4_XS")  # ik_llama.cpp otherwise mixes these with types of its own
POCKETS = ["pocket-gemma3", "pocket-llama3"]


def run(*command):
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        sys.exit("%s: %s" % (" ".join(command), done.stderr.decode(errors="replace")[-2000:]))
    return done.stdout


def built(ik, scratch):
    with open(os.path.join(ik, "CMakeCache.txt")) as file:
        tree = next(line.split("=", 1)[1].strip() for line in file if line.startswith("CMAKE_HOME_DIRECTORY"))
    library, program = os.path.join(ik, "ggml/src/libggml.so"), os.path.join(scratch, "ik_widen")
    run(os.environ.get("CXX", "c++"), "-std=c++17", "-O2", "-I", os.path.join(tree, "ggml/include"),
        os.path.join(ROOT, "bench/peers/ik_widen.cpp"), library, "-Wl,-rpath," + os.path.dirname(library), "-o",
        program)
    return program


def differing(stet, widen, gguf, scratch):
    """Returns how many weights differ from ggml's, and how many there are. stet's pass through
    the same names, as float32."""
    from gguf_writer import tensors_of

    wide = os.path.join(scratch, "wide.gguf")
    run(stet, "convert-model", gguf, "-o", wide, "--type", "f32", "--tokenizer", "none")
    ours = tensors_of(wide)
    theirs, at, wrong = np.frombuffer(run(widen, gguf), np.uint32), 0, 0
    for name, shape in names_of(gguf):
        count = int(np.prod(shape))
        if name in ours:  # including rope_freqs
            wrong += int((np.frombuffer(ours[name][2], np.uint32) != theirs[at : at + count]).sum())
        at += count
    return wrong, at


def names_of(path):
    from gguf_writer import header_of

    return [(name, shape) for name, shape, _, _ in header_of(path)]


def text_of(stet, model, conversations):
    """Returns how many greedy replies are equal, and the likelihood of the whole conversations."""
    m = stet.Model(model)
    same, nll, tokens = 0, 0.0, 0
    for c in conversations:
        s = stet.Session(m)
        s.append(c["prompt_ids"])
        s.sampling = stet.Sampling(greedy=True)
        same += list(s.generate(max_tokens=len(c["greedy"]), ignore_eos=True).ids) == c["greedy"]
        ids = np.asarray(c["ids"])
        rows = stet.Session(m).append(ids, logits=True)["logits"].astype(np.float64)
        logs = stet.log_softmax(rows)
        nll -= logs[np.arange(len(ids) - 1), ids[1:]].sum()
        tokens += len(ids) - 1
    return same, nll / tokens


def main():
    options = argparse.ArgumentParser()
    options.add_argument("build")
    options.add_argument("ik")
    options.add_argument("--type", action="append")
    options.add_argument("--model", action="append", choices=POCKETS)
    o = options.parse_args()
    os.environ.setdefault("STET_LIBRARY", os.path.join(o.build, "libstet.so"))
    import stet

    command = os.path.join(o.build, "tools/stet")
    with tempfile.TemporaryDirectory() as scratch:
        widen = built(o.ik, scratch)
        for pocket in o.model or POCKETS:
            with open(
                    os.path.join(ROOT, "tests/data/pocket", pocket.replace("pocket", "golden"),
                                 "conversations.json")) as file:
                conversations = json.load(file)
            whole, gguf = (os.path.join(scratch, name) for name in ("whole.gguf", "typed.gguf"))
            run(command, "convert-model", os.path.join(ROOT, "assets", pocket), "-o", whole)
            for kind in o.type or TYPES:
                run(os.path.join(o.ik, "bin/llama-quantize"), *(["--pure"] if kind in PURE else []), whole, gguf,
                    kind, "2")
                wrong, all_ = differing(command, widen, gguf, scratch)
                same, nll = text_of(stet, gguf, conversations)
                print(
                    "| %s | %s | %.2f | %d of %d | %d of %d | %.4f |" %
                    (pocket, kind, os.path.getsize(gguf) / 1e6, wrong, all_, same, len(conversations), nll),
                    flush=True)


main()
