"""The names of docs/contracts/names.md, written from that page alone: digests of bytes,
fingerprints of models."""

import hashlib
import os
import struct
import sys

import numpy as np

from contract_config import canonical, read_config
from contract_model import Checkpoint

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "snapshot"))
import xxh3_128 as xxh3  # made from the specification of xxHash  # noqa: E402

_STRIPE, _BLOCK = 64, 1024


def digest(data):
    """Returns the XXH3-128 of bytes. Long inputs are hashed many stripes at a time."""
    if len(data) <= _BLOCK:
        return xxh3.xxh3_128(data)
    full = (len(data) - 1) // _BLOCK
    lanes = np.frombuffer(data, "<u8", full * _BLOCK // 8).reshape(full, 16, 8)
    keys = np.array([struct.unpack_from("<8Q", xxh3._SECRET, 8 * i) for i in range(16)], np.uint64)
    mixed = lanes ^ keys
    added = (mixed & np.uint64(0xFFFFFFFF)) * (mixed >> np.uint64(32)) + lanes[..., [1, 0, 3, 2, 5, 4, 7, 6]]
    mask = xxh3._MASK
    sums = [xxh3._P32[2], *xxh3._P64[:4], xxh3._P32[1], xxh3._P64[4], xxh3._P32[0]]
    scramble = struct.unpack_from("<8Q", xxh3._SECRET, 128)
    for block in added.sum(axis=1, dtype=np.uint64).tolist():
        sums = [(((s + x) & mask) ^ ((s + x) & mask) >> 47 ^ k) * xxh3._P32[0] & mask
                for s, x, k in zip(sums, block, scramble)]
    for stripe in range((len(data) - 1) // _STRIPE - full * 16):
        xxh3._accumulate(sums, data, full * _BLOCK + stripe * _STRIPE, 8 * stripe)
    xxh3._accumulate(sums, data, len(data) - _STRIPE, 121)
    n = len(data)
    halves = (xxh3._merge(sums, 11, n * xxh3._P64[0] & mask), xxh3._merge(sums, 117, ~(n * xxh3._P64[1]) & mask))
    return struct.pack("<QQ", *halves)


def digest_text(data):
    low, high = struct.unpack("<QQ", digest(data))
    return f"xxh3:{high:016x}{low:016x}"


def sha256(data):
    return hashlib.sha256(data).digest()


# ---------------------------------------------------------------- a model's fingerprint

def leaf(dtype, x):
    """Returns a u8 type and the digest of some rows, in the first type that holds all their
    values."""
    if dtype == "BF16":
        return b"\0" + digest(x.tobytes())
    bits = x.astype(np.float32).view(np.uint32)
    if not (bits & 0xFFFF).any():
        return b"\0" + digest((bits >> 16).astype(np.uint16).tobytes())
    if dtype == "F16":
        return b"\1" + digest(x.tobytes())
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    if (half.astype(np.float32).view(np.uint32) == bits).all():
        return b"\1" + digest(half.tobytes())
    return b"\2" + digest(x.tobytes())


def tensor_hash(dtype, x):
    step = 16 if x.ndim == 2 else len(x)
    return sha256(b"".join(leaf(dtype, x[first:first + step]) for first in range(0, len(x), step)))


def group_of(name):
    if name in ("embed_tokens.weight", "embed_in.weight", "wte.weight", "wpe.weight"):
        return "embeddings"
    if name in ("lm_head.weight", "embed_out.weight"):
        return "head"
    if "norm" in name or ".ln_" in name or name.startswith("ln_f"):
        return "norms"
    if "self_attn" in name or ".attn." in name or ".attention." in name:
        return "attention"
    return "mlp"


def used(c, names):
    """Returns those tensors of a checkpoint that the model reads."""
    kept = [n for n in names if not (n in ("lm_head.weight", "embed_out.weight") and c.tied_head)]
    return [n for n in kept if not n.startswith(("vision_tower", "multi_modal_projector")) and not n.endswith(
        ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", "attention.bias", "attention.masked_bias"))]


def fingerprints(directory):
    c, t = read_config(directory), Checkpoint(directory)
    groups = {}
    for name in used(c, t.short):
        groups.setdefault(group_of(name), []).append(name)
    result = {}
    for group in ("embeddings", "norms", "attention", "mlp", "head"):
        if group not in groups:
            continue
        data = b"stet tensors 1\n"
        for name in sorted(groups[group]):
            dtype, x = t.raw(name)
            data += f"{name} {shape_text(x.shape)}\n".encode() + tensor_hash(dtype, x)
        result[group] = sha256(data)
    result["config"] = sha256(canonical(c).encode())
    result["model"] = sha256(b"stet model 1\n" + b"".join(g.encode() + b"\n" + h for g, h in result.items()))
    return {g: "sha256:" + h.hex() for g, h in result.items()}


def shape_text(shape):
    return "[" + ", ".join(str(n) for n in shape) + "]"
