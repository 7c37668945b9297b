"""Computes every example of docs/contracts from those pages alone and compares it with the
printed result.

    contract_examples.py ROOT [STET]

With STET, the command checks fingerprints and identities, too.
tests/kernels/contract_examples.cpp compares stet's kernels with the same examples.
"""

import glob
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np

import contract_arithmetic as a
import contract_digests as names
import contract_products as products
from contract_arithmetic import F32, F64, vector
from contract_config import canonical, read_config
from contract_model import attention, store_row


def read_examples(root):
    """Returns (page, line number, name, arguments, results) of each example."""
    for path in sorted(glob.glob(os.path.join(root, "docs/contracts/*.md"))):
        name = None
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.startswith("```"):
                    found = re.fullmatch(r"```example (\S+)", line.strip())
                    name = found.group(1) if found else None
                elif name:
                    arguments, _, results = line.partition(" ; ")[0].strip().partition(" -> ")
                    yield os.path.basename(path), number, name, arguments.split(), results.split()


# ---------------------------------------------------------------- numbers as text

def f32(text):
    return a.from_bits32(int(text, 16)).reshape(1)


def f64(text):
    return struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0]


def text32(x):
    return [f"{bits:08x}" for bits in np.asarray(x, F32).reshape(-1).view(np.uint32)]


def text64(x):
    return f"{struct.unpack('<Q', struct.pack('<d', x))[0]:016x}"


def text16(bits):
    return [f"{int(b):04x}" for b in np.asarray(bits).reshape(-1)]


def integers(x):
    return [str(int(v)) for v in np.asarray(x).reshape(-1)]


def named(arguments):
    return dict(argument.split("=") for argument in arguments if "=" in argument)


# ---------------------------------------------------------------- examples by name

def unary(f):
    return lambda x: text32(f(f32(x)))


def fma_flushed(w, x, acc):
    w, x = (a.flush(a.widen_bf16([int(t, 16)])) for t in (w, x))
    product = w.astype(F64) * x.astype(F64)
    return text32(a.fma64_flushed(product, f32(acc).astype(F64)))


def vectors(n, *seeds):
    return [vector(int(n), int(s)) for s in seeds]


def rms_norm(n, s, t, eps):
    return text32(a.rms_norm(*vectors(n, s, t), float(eps))[:4])


def layer_norm(n, s, t, u, eps):
    return text32(a.layer_norm(*vectors(n, s, t, u), float(eps))[:4])


def product(kind):
    def compute(k, s, t):
        x, w = vectors(k, s, t)
        if kind == "bf16":
            w = a.widen_bf16(a.round_bf16(w))
        return text32(products.make(w[None], kind, "attention").product(x[None]))
    return compute


def thirty_two(values):
    """Returns v(32, s), or the given numbers padded with zeros."""
    if len(values) == 1:
        return vector(32, int(values[0]))[None]
    return np.array([[float(v) for v in values] + [0.0] * (32 - len(values))], F32)


def quantize(*values):
    q, scale = products.quantize(thirty_two(values))
    return text32(scale) + integers(q)


def block(round_block):
    def compute(*values):
        d, q = round_block(thirty_two(values))
        return text16(d) + integers(q)
    return compute


def block_mxfp4(*values):
    exponents, codes = products.round_mxfp4(thirty_two(values))
    return integers(exponents) + integers(codes)


def six_bits(s, t):
    s, t = ([int(v) for v in x] for x in (s, t))
    return bytes([s[j] | (s[j + 4] >> 4) << 6 for j in range(4)] + [t[j] | (t[j + 4] >> 4) << 6 for j in range(4)] +
                 [(s[j + 4] & 15) | (t[j + 4] & 15) << 4 for j in range(4)])


def nibbles(u, distance):
    """Packs weights in groups of twice `distance`, the second half of a group in the upper four
    bits."""
    u = u.reshape(-1, 2, distance) & 15
    return (u[:, 0] | u[:, 1] << 4).astype(np.uint8).tobytes()


def super_block(top, first, steps):
    def compute(s):
        d, m, scale, minimum, u = (x[0] for x in products.round_super(vector(256, int(s))[None], top, first, steps))
        u = u.astype(int)
        fifth = np.bitwise_or.reduce(u >> 4 << np.arange(8)[:, None]).astype(np.uint8).tobytes() if top == 31 else b""
        return [(struct.pack("<HH", d, m) + six_bits(scale, minimum) + fifth + nibbles(u, 32)).hex()]
    return compute


def six_block(s):
    d, scale, u = (x[0] for x in products.round_six(vector(256, int(s))[None]))
    u = (u.astype(int) + 32).reshape(-1)
    high = np.bitwise_or.reduce(u.reshape(2, 4, 32) >> 4 << 2 * np.arange(4)[:, None],
                                axis=1).astype(np.uint8).tobytes()
    return [(nibbles(u, 64) + high + scale.astype(np.int8).tobytes() + struct.pack("<H", d)).hex()]


def rope_frequencies(kind, *arguments):
    given = named(arguments)
    rope = {"scaling": kind, "theta": float(given["theta"]), "factor": float(given.get("factor", 1)), "truncate": True}
    for name, short in (("low_freq_factor", "low"), ("high_freq_factor", "high"), ("original_positions", "original"),
                        ("beta_fast", "fast"), ("beta_slow", "slow")):
        rope[name] = float(given.get(short, 0))
    rope["factors"] = [float(F32(float(x))) for x in given.get("divisors", "").split(",") if x]
    return text32(a.frequencies(rope, int(given["dim"])))


def rope_angles(position, frequency):
    return text32([x[0, 0] for x in a.angles([int(position)], f32(frequency))])


def rotate(n, s, theta, position, back=False):
    cos, sin = a.angles([int(position)], a.frequencies({"theta": float(theta)}, int(n)))
    return text32(a.rotate(vector(int(n), int(s))[None], cos, F32(0) - sin if back else sin))


def store_q8(n, s):
    q, scale = store_row(vector(int(n), int(s))[None], "q8")
    return text32(scale) + integers(q)


def attend(*arguments):
    given = named(arguments)
    width, last, kind = int(given["D"]), int(given["t"]), given.get("type", "f32")
    keys = np.array([vector(width, 3 * p + 1) for p in range(last + 1)])
    values = np.array([vector(width, 5 * p + 2) for p in range(last + 1)])
    begin, end = (int(x) for x in given.get("pruned", "0,0").split(","))
    y = attention(vector(width, 7)[None], store_row(keys, kind), store_row(values, kind), float(given["scale"]),
                  float(given.get("cap", 0)), int(given.get("window", 0)), kind, last, range(begin, end))
    return text32(y[0, :4])


def chained(x, y):
    total = np.zeros(1, F32)
    for one, other in zip(x, y):
        total = a.fma(one, other, total)
    return total


def add(x, v, amount):
    return np.where((v == 0) | (amount == 0), x, a.fma(amount, v, x))


def project_out(n, s, t):
    x, v = vectors(n, s, t)
    return text32(add(x, v, -(chained(x, v) / chained(v, v)))[:4])


def clamp(n, s, t, u, bias, threshold, amount):
    x, encoder, decoder = vectors(n, s, t, u)
    total = chained(x, encoder) + F32(float(bias))
    return text32(add(x, decoder, F32(float(amount)) - np.where(total > F32(float(threshold)), total, F32(0)))[:4])


def fingerprint(directory, group):
    return [names.fingerprints(os.path.join(ROOT, directory))[group]]


def block_identity(directory, contract, kv, count):
    def text(x):
        return struct.pack("<Q", len(x)) + x.encode()

    model = names.fingerprints(os.path.join(ROOT, directory))["model"]
    link = names.sha256(b"stet blocks 1\n" + text(contract) + struct.pack("<I", 1) + text(kv) + struct.pack("<I", 1) +
                        text(model))
    for first in range(1, int(count) - 62, 64):
        link = names.sha256(b"B" + link + struct.pack("<64i", *range(first, first + 64)))
    return ["sha256:" + link.hex()]


EXAMPLES = {
    "fma": lambda *x: text32(a.fma(*(f32(t) for t in x))),
    "fma-flushed": fma_flushed,
    "vector": lambda n, s: text32(vector(int(n), int(s))),
    "bf16": lambda x: text16(a.round_bf16(f32(x))),
    "f16": lambda x: text16(a.round_f16(f32(x))),
    "exp": unary(a.exp), "tanh": unary(a.tanh), "erf": unary(a.erf), "gelu": unary(a.gelu),
    "silu": lambda g, u: text32(a.silu(f32(g)) * f32(u)),
    "gelu-tanh": lambda g, u: text32(a.gelu_tanh(f32(g)) * f32(u)),
    "softcap": lambda x, cap: text32(a.softcap(f32(x), f32(cap)[0])),
    "sum": lambda n, s: text32(a.lanes(vector(int(n), int(s)), lambda x, total: total + x)),
    "squares": lambda n, s: text32(a.lanes(vector(int(n), int(s)), lambda x, total: a.fma(x, x, total))),
    "rms-norm": rms_norm, "layer-norm": layer_norm,
    "exp64": lambda x: [text64(a.exp64(f64(x)))], "log64": lambda x: [text64(a.log64(f64(x)))],
    "pow64": lambda x, y: [text64(a.pow64(f64(x), f64(y)))],
    "sincos64": lambda x: [text64(y) for y in a.sincos64(f64(x))],
    **{f"product-{kind}": product(kind) for kind in ("f32", "bf16", "q8", "q4", "q4k", "q5k", "q6k")},
    "quantize": quantize, "weights-q8": block(products.round_q8), "weights-q4": block(products.round_q4),
    "weights-mxfp4": block_mxfp4,
    "weights-q4k": super_block(15, -1.0, 20), "weights-q5k": super_block(31, -0.5, 15), "weights-q6k": six_block,
    "rope-frequencies": rope_frequencies, "rope-angles": rope_angles, "rotate": rotate,
    "shift": lambda *x: rotate(*x, back=True), "store-q8": store_q8, "attention": attend,
    "embedding-scale": lambda n: text32(np.sqrt(F32(int(n)))),
    "config": lambda at, *file: [canonical(read_config(os.path.join(ROOT, at), *file))],
    "project-out": project_out,
    "clamp": clamp,
    "digest": lambda text: [names.digest_text(json.loads(text).encode())],
    "fingerprint": fingerprint,
    "block": block_identity,
}


def constants(path):
    with open(path, encoding="utf-8") as file:
        return {float.fromhex(x) for x in re.findall(r"0x1(?:\.[0-9a-f]*)?p[+-]?\d+", file.read())}


# ---------------------------------------------------------------- results of the command

def run(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def by_command(stet, name, arguments):
    """Returns the command's results for the examples that need no kernel."""
    if name == "config" and len(arguments) > 1:  # needs a second file beside the one that the command reads
        return by_command(stet, name, arguments[:1])
    if name == "config":
        config = json.loads(run(stet, "inspect", os.path.join(ROOT, arguments[0]), "--json"))["config"]
        return [json.dumps(config, sort_keys=True, separators=(",", ":"))]
    if name == "fingerprint":
        directory, group = arguments
        every = json.loads(run(stet, "inspect", os.path.join(ROOT, directory), "--json"))["fingerprints"]
        return [every[group]]
    directory, contract, kv, count = arguments
    with tempfile.TemporaryDirectory() as scratch:
        state = os.path.join(scratch, "s.stet")
        run(stet, "save", "-m", os.path.join(ROOT, directory), "--compute", contract, "--kv", kv, "--ids",
            ",".join(str(i) for i in range(1, int(count) + 1)), "-o", state)
        return [json.loads(run(stet, "inspect", state, "--json"))["blocks"][-1]["id"]]


def main():
    global ROOT
    ROOT, stet = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    failed, seen = 0, set()
    for page, number, name, arguments, expected in read_examples(ROOT):
        seen.add(name)
        got = {"this page": EXAMPLES[name](*arguments)}
        if stet and name in ("config", "fingerprint", "block"):
            got["stet"] = by_command(stet, name, arguments)
        for who, results in got.items():
            if results != expected:
                failed += 1
                print(
                    f"docs/contracts/{page}:{number}: {name} {' '.join(arguments)}: {' '.join(expected)} stands there, "
                    f"{who} gives {' '.join(results)}")
    page, module = (constants(path) for path in (os.path.join(ROOT, "docs/contracts/functions.md"), a.__file__))
    for x in page ^ module:
        failed += 1
        print(f"docs/contracts/functions.md: the constant {x.hex()} stands "
              f"{'there' if x in page else 'in contract_arithmetic.py'} alone")
    for name in set(EXAMPLES) - seen:
        failed += 1
        print(f"docs/contracts has no example of {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
