"""The arithmetic of docs/contracts, written from those pages alone. It shares no code with stet.

Functions take and return numpy arrays of float32 unless they say otherwise. Each numpy operation
on float32 or float64 is one operation of IEEE 754. fma() is exact because it rounds to odd.
"""

import math
import struct

import numpy as np

F32, F64 = np.float32, np.float64
LEAST = 2.0**-126  # the least normal float32


# ---------------------------------------------------------------- docs/contracts/numbers.md

def bits32(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits32(bits):
    return np.array(bits, np.uint32).view(F32)


def to_odd(p, c):
    """Returns p + c in float64, rounded to odd wherever rounding to nearest could round twice on
    the way to float32."""
    s = np.add(p, c)
    bits = s.view(np.int64)
    doubtful = ((bits & 0x1FFFFFFF) == 0x10000000) | ((bits & 0x7FFFFFFFFFFFFFFF) < 0x3810000000000000)
    if doubtful.any():
        at = np.nonzero(doubtful)
        some, one, other = s[at], np.broadcast_to(p, s.shape)[at], np.broadcast_to(c, s.shape)[at]
        back = some - one
        error = (one - (some - back)) + (other - back)  # Knuth's two-sum, exact
        fix = (error != 0) & ((some.view(np.int64) & 1) == 0)
        # Steps by one in the direction of the error: away from zero if both have the same sign.
        step = np.where((error > 0) == (some > 0), 1, -1)
        s[at] = (some.view(np.int64) + np.where(fix, step, 0)).view(F64)
    return s


def fma64(p, c):
    """Returns the float32 nearest to p + c, as float64. p is an exact product of two float32."""
    return to_odd(p, c).astype(F32).astype(F64)


def fma(a, b, c):
    a, b, c = np.broadcast_arrays(*(np.asarray(x, F32) for x in (a, b, c)))
    p = np.atleast_1d(a.astype(F64) * b.astype(F64))
    return fma64(p, np.atleast_1d(c.astype(F64))).astype(F32).reshape(a.shape)


def fma64_flushed(p, c):
    """Returns fma64(p, c), with results that round to less than 2^-126 in 24 bits flushed to
    zeros of their sign."""
    s = to_odd(p, c)
    tiny = np.abs(s) < LEAST * (1 - 2.0**-25)
    return np.where(tiny, np.copysign(0.0, s), s.astype(F32).astype(F64))


def flush(x):
    return np.where(np.abs(x) < F32(LEAST), np.copysign(F32(0), x), x)


def round_bf16(x):
    """Returns the bits of the nearest bfloat16, ties to even."""
    bits = np.asarray(x, F32).view(np.uint32)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(nan, bits >> 16 | 0x40, rounded).astype(np.uint16)


def widen_bf16(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(F32)


def round_f16(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, F32).astype(np.float16).view(np.uint16)


def widen_f16(bits):
    return np.asarray(bits, np.uint16).view(np.float16).astype(F32)


def nearest(x):
    """Rounds to integers as float32, ties to even; zero is +0."""
    return np.rint(np.asarray(x, F32)) + F32(0)


def vector(n, s):
    """Returns the vector v(n, s) of the examples."""
    return ((np.arange(n) * 37 + s * 11) % 101 - 50).astype(F32) / F32(47)


# ---------------------------------------------------------------- docs/contracts/functions.md, float64

KROUND = float.fromhex("0x1.8p52")


def _bits64(x):
    return struct.unpack("<q", struct.pack("<d", x))[0]


def _power_of_two(n):
    return math.ldexp(1.0, n)


def two_sum(a, b):
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fast_two_sum(a, b):
    s = a + b
    return s, b - (s - a)


def two_product(a, b):
    split = float.fromhex("0x1.0000002p+27")
    a1, b1 = a * split, b * split
    ah, bh = a1 - (a1 - a), b1 - (b1 - b)
    al, bl = a - ah, b - bh
    p = a * b
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def pair_add(a, b):
    s, e = two_sum(a[0], b[0])
    return fast_two_sum(s, e + (a[1] + b[1]))


def pair_mul(a, b):
    p, e = two_product(a[0], b[0])
    return fast_two_sum(p, e + (a[0] * b[1] + a[1] * b[0]))


def pair_div(a, b):
    q = a[0] / b[0]
    p, e = two_product(q, b[0])
    return fast_two_sum(q, (((a[0] - p) - e) + (a[1] - q * b[1])) / b[0])


def _exp_pair(x, tail):
    shifted = x * float.fromhex("0x1.71547652b82fep+0") + KROUND
    k = shifted - KROUND
    near = x - k * float.fromhex("0x1.62e42fefa38p-1")
    far = k * float.fromhex("0x1.ef35793c76730p-45") - tail
    r = near - far
    low = (near - r) - far
    r2 = r * r
    r4 = r2 * r2
    f = [1.0 / math.factorial(i) for i in range(14)]
    q = [f[i + 2] + r * f[i + 3] for i in range(0, 12, 2)]
    total = (q[0] + r2 * q[1]) + r4 * ((q[2] + r2 * q[3]) + r4 * (q[4] + r2 * q[5]))
    s = 1 + r
    y = s + (((1 - s) + r) + (low * s + r2 * total))
    n = int(k)
    if n > 1023:
        return y * _power_of_two(1023) * _power_of_two(n - 1023)
    if n < -1022:
        return y * _power_of_two(n + 1022) * _power_of_two(-1022)
    return y * _power_of_two(n)


def exp64(x):
    return _exp_pair(x, 0.0) if -746 < x < 710 else math.inf if x >= 710 else 0.0 if x <= -746 else math.nan


def _log_pair(x):
    k = 0
    if x < 2.0**-1022:
        x, k = x * 2.0**54, -54
    bits = _bits64(x)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = struct.unpack("<d", struct.pack("<q", bits - (exponent << 52)))[0]
    k += exponent
    s = pair_div((m - 1, 0.0), two_sum(m, 1.0))
    s2 = pair_mul(s, s)
    series = (0.0, 0.0)
    for n in range(14, -1, -1):
        series = pair_add(pair_mul(series, s2), pair_div((1.0, 0.0), (2.0 * n + 1, 0.0)))
    log_m = pair_mul((2 * s[0], 2 * s[1]), series)
    ln2 = (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56"))
    return pair_add(pair_mul(ln2, (float(k), 0.0)), log_m)


def log64(x):
    if 0 < x < math.inf:
        high, low = _log_pair(x)
        return high + low
    return -math.inf if x == 0 else x if x > 0 else math.nan


def pow64(base, y):
    if y == 0 or base == 1:
        return 1.0
    log = _log_pair(base)
    estimate = y * log[0]
    if estimate >= 710:
        return math.inf
    if estimate <= -746:
        return 0.0
    return _exp_pair(*pair_mul((y, 0.0), log))


def sincos64(x):
    if not abs(x) <= 1e7:
        return math.nan, math.nan
    if abs(x) < 2.0**-27:
        return x, 1.0
    shifted = x * float.fromhex("0x1.45f306dc9c883p-1") + KROUND
    k = shifted - KROUND
    part = [
        float.fromhex(h) for h in ("0x1.921fb54p+0", "0x1.10b46118p-30", "0x1.313198ap-61", "0x1.701b839a25205p-92")
    ]
    r = two_sum(x - k * part[0], -(k * part[1]))
    r = pair_add(pair_add(r, (-(k * part[2]), 0.0)), (-(k * part[3]), 0.0))
    z = r[0] * r[0]
    p = q = 0.0
    for i in range(17, 1, -2):  # 1/17!, -1/15!, ... -1/3!
        p = p * z + (-1) ** (i // 2) / math.factorial(i) if i < 17 else 1 / math.factorial(17)
    for i in range(16, 2, -2):
        q = q * z + (-1) ** (i // 2) / math.factorial(i) if i < 16 else 1 / math.factorial(16)
    half = 0.5 * z
    w = 1 - half
    sine = r[0] + (r[0] * z * p + r[1] * w)
    cosine = w + (((1 - w) - half) + (z * z * q - r[0] * r[1]))
    quadrant = int(k) & 3
    s, c = (cosine, sine) if quadrant & 1 else (sine, cosine)
    return (-s if quadrant >= 2 else s), (-c if quadrant in (1, 2) else c)


# ---------------------------------------------------------------- docs/contracts/functions.md, float32

def _hex(text):
    return [F32(float.fromhex(h)) for h in text.split()]


MAGIC, = _hex("0x1.8p+23")
EXP = _hex("0x1.a01a02p-13 0x1.6c16c2p-10 0x1.111112p-7 0x1.555556p-5 0x1.555556p-3 0x1p-1 0x1p+0 0x1p+0")
SMALL_TANH, SMALL_ERF = _hex("0x1.4p-1 0x1.ccccccp-1")
TANH = _hex("-0x1.75e1d4p-8 0x1.52269cp-6 -0x1.b83c5ap-5 0x1.110726p-3 -0x1.555532p-2")
ERF_SMALL = _hex("0x1.6512ap-14 -0x1.aca43p-11 0x1.550a5ap-8 -0x1.b81526p-6 0x1.ce2e54p-4 -0x1.812744p-2 0x1.06eba8p-3")
ERF_LARGE = _hex(
    "-0x1.5d724ep-16 0x1.c4596p-12 -0x1.106266p-8 0x1.9aebbep-6 "
    "-0x1.bb454cp-4 -0x1.444d1ep-1 -0x1.212626p+0 0x1.62d96ep-13")


def _horner(coefficients, z):
    p = np.full_like(z, coefficients[0])
    for c in coefficients[1:]:
        p = fma(p, z, c)
    return p


def exp(x):
    x = np.asarray(x, F32)
    x = np.where(x < F32(-104), F32(-104), x)
    x = np.where(x > F32(89), F32(89), x)
    n = fma(x, _hex("0x1.715476p+0")[0], MAGIC) - MAGIC
    r = fma(n, _hex("-0x1.62e400p-1")[0], x)
    r = fma(n, _hex("-0x1.7f7d1cp-20")[0], r)
    p = _horner(EXP, r)
    with np.errstate(over="ignore"):
        return np.ldexp(p.astype(F64), np.where(np.isnan(n), 0, n).astype(np.int64)).astype(F32)


def tanh(x):
    x = np.asarray(x, F32)
    a, z = np.abs(x), x * x
    small = fma(_horner(TANH, z) * z, x, x)
    large = F32(1) - F32(2) / (exp(a + a) + F32(1))
    return np.copysign(np.where(a < SMALL_TANH, small, large), x)


def erf(x):
    x = np.asarray(x, F32)
    a, z = np.abs(x), x * x
    large = F32(1) - exp(_horner(ERF_LARGE, np.where(F32(4) < a, F32(4), a)))
    return np.copysign(np.where(a < SMALL_ERF, fma(_horner(ERF_SMALL, z), a, a), large), x)


def silu(g):
    return g / (F32(1) + exp(F32(0) - g))


def clamped(g, u, limit):
    s, t = np.minimum(g, F32(limit)), np.maximum(np.minimum(u, F32(limit)), F32(-limit))
    return (t + F32(1)) * (s / (F32(1) + exp(F32(0) - F32(float.fromhex("0x1.b3b646p+0")) * s)))


def gelu_tanh(g):
    cube = (g * g) * g
    return (F32(0.5) * g) * (
        F32(1) + tanh(F32(float.fromhex("0x1.988454p-1")) * fma(F32(float.fromhex("0x1.6e4e26p-5")), cube, g)))


def gelu(g):
    return (F32(0.5) * g) * (F32(1) + erf(F32(float.fromhex("0x1.6a09e6p-1")) * g))


def softcap(x, cap):
    return F32(cap) * tanh(x / F32(cap))


def lanes(x, f, pad=0.0):
    """Sums rows [..., n]: f adds element i to lane i mod 16, and a tree adds the lanes."""
    n = x.shape[-1]
    x = np.concatenate([x, np.broadcast_to(np.asarray(pad, F32), x.shape[:-1] + (-n % 16,))], axis=-1)
    sums = np.zeros(x.shape[:-1] + (16,), F32)
    for i in range(0, x.shape[-1], 16):
        sums = f(x[..., i:i + 16], sums)
    return tree(sums)


def tree(sums):
    for half in (8, 4, 2, 1):
        sums = sums[..., :half] + sums[..., half:2 * half]
    return sums[..., 0]


def rms_norm(x, w, eps):
    mean = lanes(x, lambda a, s: fma(a, a, s)) / F32(x.shape[-1])
    inverse = F32(1) / np.sqrt(mean + F32(eps))
    return (x * inverse[..., None]) * w


def layer_norm(x, w, b, eps):
    mean = lanes(x, lambda a, s: s + a) / F32(x.shape[-1])
    d = x - mean[..., None]
    variance = lanes(d, lambda a, s: fma(a, a, s)) / F32(x.shape[-1])
    inverse = F32(1) / np.sqrt(variance + F32(eps))
    return (d * inverse[..., None]) * w + b


# ---------------------------------------------------------------- docs/contracts/attention.md: RoPE

def frequencies(rope, dim):
    """Returns the frequencies of the pairs. `rope` holds theta, and a scaling with its numbers."""
    kind, theta = rope.get("scaling", "none"), float(rope["theta"])
    result = []
    for i in range(0, dim, 2):
        power = F32(pow64(theta, float(F32(i) / F32(dim))))
        f = F32(1) / power
        if kind == "linear":
            f = f / F32(rope["factor"])
        elif kind == "llama3":
            f = _llama3(rope, f)
        elif kind == "yarn":
            f = _yarn(rope, dim, i // 2, f)
        elif kind == "longrope":
            f = F32(1) / (F32(rope["factors"][i // 2]) * power)
        result.append(f)
    return np.array(result, F32)


def _llama3(rope, f):
    original = float(rope["original_positions"])
    low, high, factor = float(rope["low_freq_factor"]), float(rope["high_freq_factor"]), F32(rope["factor"])
    wavelength = F32(6.283185307179586) / f
    if wavelength > F32(original / low):
        return f / factor
    if wavelength < F32(original / high):
        return f
    smooth = (F32(original) / wavelength - F32(low)) / F32(high - low)
    return (F32(1) - smooth) * f / factor + smooth * f


def _yarn(rope, dim, pair, f):
    def pair_of(turns):
        return dim * log64(rope["original_positions"] / (turns * 6.283185307179586)) / (2 * log64(rope["theta"]))

    low, high = pair_of(float(rope["beta_fast"])), pair_of(float(rope["beta_slow"]))
    if rope["truncate"]:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, dim - 1.0)
    if low == high:
        high += 0.001
    part = (F32(pair) - F32(low)) / (F32(high) - F32(low))
    kept = F32(1) - min(max(part, F32(0)), F32(1))
    return f / F32(rope["factor"]) * (F32(1) - kept) + f * kept


def angles(positions, freq, magnitude=1.0):
    """Returns cos and sin, [positions][pairs]."""
    turned = [[sincos64(float(F32(p) * f)) for f in freq] for p in positions]
    both = np.array(turned, F64).astype(F32).reshape(len(positions), len(freq), 2)
    sin, cos = both[..., 0], both[..., 1]
    if F32(magnitude) != 1:
        sin, cos = sin * F32(magnitude), cos * F32(magnitude)
    return cos, sin


def rotate(x, cos, sin):
    """Rotates x [..., head_dim] by cos and sin [..., pairs]."""
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half:2 * half]
    y = x.copy()
    y[..., :half] = fma(a, cos, F32(0) - b * sin)
    y[..., half:2 * half] = fma(b, cos, a * sin)
    return y
