"""Points of Gemma 4 and Gemma 3n against tests/data/points, which a float64 reference made.

    points_of_gemma.py STET ROOT
"""

import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

STET, ROOT = sys.argv[1:]
IDS = [(11 * i + 3) % 300 for i in range(24)]
# The reference leaves these points out, because others determine them. They are copies of the residual stream,
# scores and patterns, products of single heads, and the numbers within single experts.
EXPERT_IN = "mlp.hook_expert_in"
UNSAID = ("hook_q_input", "hook_k_input", "hook_v_input", "attn.hook_attn_scores", "attn.hook_pattern",
          "attn.hook_result", EXPERT_IN, "mlp.hook_expert_post")


def read(path):
    with open(path, "rb") as file:
        raw = file.read()
    length = struct.unpack("<Q", raw[:8])[0]
    return {name: np.frombuffer(raw[8 + length:], np.float32)[t["data_offsets"][0] // 4:t["data_offsets"][1] // 4]
            .reshape(t["shape"]) for name, t in json.loads(raw[8:8 + length]).items() if name != "__metadata__"}


def run(*command):
    subprocess.run([STET, *command], check=True, capture_output=True, text=True)


def inputs_of_experts(model, points):
    """Compares them with the norm of the residual stream that is theirs alone."""
    for name in points:
        if not name.endswith(EXPERT_IN):
            continue
        layer = name.split(".")[1]
        weights = read(os.path.join(model, "model.safetensors"))
        weight = next(x for w, x in weights.items() if w.endswith(f"layers.{layer}.pre_feedforward_layernorm_2.weight"))
        stream = points[f"blocks.{layer}.hook_resid_mid"].reshape(len(IDS), -1).astype(np.float64)
        want = stream / np.sqrt((stream * stream).mean(1, keepdims=True) + 1e-6) * weight
        if not np.abs(points[name].reshape(want.shape) - want).max() <= 1e-5 * np.abs(want).max():
            yield f"{name}: not the norm of the residual stream"


def failures(name, expected, scratch):
    model, to = os.path.join(ROOT, "tests/data/models", name), os.path.join(scratch, "points.safetensors")
    run("capture", "-m", model, "--ids", ",".join(map(str, IDS)), "--points", "*", "-o", to)
    points = read(to)
    found = {name: x for name, x in points.items() if "hook_" in name and not name.endswith(UNSAID)}
    if missing := set(found) ^ set(expected):
        yield f"points are missing on one side: {sorted(missing)}"
    yield from inputs_of_experts(model, points)
    for point in sorted(set(found) & set(expected)):
        want = expected[point].astype(np.float64)
        got = found[point].reshape(len(IDS), -1)[-len(want):]
        limit = 1e-4 * max(1, np.sqrt((want * want).mean()))
        if got.shape != want.shape or not np.abs(got - want).max() <= limit:
            yield f"{point}: {got.shape}, expected {want.shape}, differences up to {np.abs(got - want).max():g}"


def main():
    files, failed = sorted(glob.glob(os.path.join(ROOT, "tests/data/points/*.safetensors"))), 0
    for path in files:
        name, expected = os.path.basename(path).removesuffix(".safetensors"), read(path)
        with tempfile.TemporaryDirectory() as scratch:
            for failure in failures(name, expected, scratch):
                print(f"{name}: {failure}")
                failed += 1
        print(f"{name}: {len(expected)} points")
    return 1 if failed or len(files) < 4 else 0


if __name__ == "__main__":
    sys.exit(main())
