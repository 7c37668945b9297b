"""Linear layers of docs/contracts/products.md, written from that page alone: weights rounded to
few bits, activations, products."""

import numpy as np

from contract_arithmetic import (F32, F64, fma64, fma64_flushed, flush, nearest, round_bf16, round_f16, widen_bf16,
                                 widen_f16)

COLUMNS = 128  # outputs computed at once, so that they stay in a cache


def padded(x, unit):
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % unit)])


# ---------------------------------------------------------------- floats

def chain(x, w, step=fma64):
    """Returns y [rows][n] of x [rows][k] and w [n][k], float64 arrays of float32 values. The odd
    input of a pair comes first."""
    x, w = padded(x, 2), padded(w, 2)
    y = np.zeros((len(x), len(w)))
    order = [i ^ 1 for i in range(x.shape[1])]
    for first in range(0, len(w), COLUMNS):
        part = np.ascontiguousarray(w[first:first + COLUMNS].T)
        acc = np.zeros((len(x), part.shape[1]))
        for i in order:
            acc = step(x[:, i, None] * part[i], acc)
        y[:, first:first + COLUMNS] = acc
    return y.astype(F32)


class Floats:
    """Float32 weights, [n][k]. `name` is the contract, f32 or bf16."""

    def __init__(self, w, name="f32"):
        self.w, self.name = w, name

    def rows(self, ids):
        return self.w[ids]

    def product(self, x):
        if self.name == "f32":
            return chain(x.astype(F64), self.w.astype(F64))
        rounded = flush(widen_bf16(round_bf16(flush(x))))
        return chain(rounded.astype(F64), flush(self.w).astype(F64), fma64_flushed)


# ---------------------------------------------------------------- activations

def quantize(x):
    """Rounds x [rows][k], k a multiple of 32, to int8. Returns the integers as float64
    [rows][k/32][32], and scales [rows][k/32]."""
    x = x.reshape(len(x), -1, 32)
    a = np.abs(x).max(axis=-1)
    finite = np.isfinite(x).all(axis=-1)
    zero = ~finite | (a < F32(2.0**-100))
    with np.errstate(all="ignore"):
        q = nearest(x * (F32(127) / a)[..., None])
        scale = a / F32(127)
    q = np.where(zero[..., None], F32(0), q)
    scale = np.where(zero, F32(0), scale)
    return q.astype(F64), np.where(finite, scale, F32(np.nan))


def sums(q, u):
    """Returns exact integer dot products of blocks, [blocks][rows][n]."""
    return np.matmul(q.transpose(1, 0, 2), u.transpose(1, 2, 0))


# ---------------------------------------------------------------- q8 and q4

def round_q8(w):
    """Rounds blocks [..., 32]. Returns d as float16 bits [...], and integers [..., 32]."""
    top = np.abs(w).max(axis=-1)
    d = round_f16(top / F32(127))
    d = np.where(top > F32(127.5) * widen_f16(d), d + 1, d).astype(np.uint16)
    return d, np.clip(nearest(w * _inverse(widen_f16(d))[..., None]), -127, 127)


def _inverse(d):
    with np.errstate(divide="ignore"):
        return np.where(d == 0, F32(0), F32(1) / d)


def round_q4(w):
    at = np.abs(w).argmax(axis=-1)  # the first of equal magnitudes
    top = np.take_along_axis(w, at[..., None], axis=-1)[..., 0] + F32(0)  # turns -0 into +0
    tried = []
    for divisor in (-8, 7):
        d = round_f16(top / F32(divisor))
        wide = widen_f16(d)
        u = np.clip(nearest(w * _inverse(wide)[..., None]), -8, 7)
        miss = w - u * wide[..., None]
        error = np.zeros(top.shape, F32)
        for i in range(32):
            error = error + miss[..., i] * miss[..., i]
        tried.append((d, u, error))
    (d0, u0, e0), (d1, u1, e1) = tried
    return np.where(e1 < e0, d1, d0), np.where((e1 < e0)[..., None], u1, u0)


MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


def round_mxfp4(w):
    """Rounds blocks [..., 32]. Returns the exponents [...] and the codes [..., 32]."""
    top = np.abs(w).max(axis=-1).astype(F64)
    with np.errstate(divide="ignore"):
        power = np.floor(np.log2(top).astype(F32))
    e = np.where(top > 0, np.clip(power + F32(125), 0, 252), 0).astype(int)
    values = MXFP4 * np.ldexp(1.0, e - 128)[..., None]
    codes = np.abs(values[..., None, :] - w[..., None].astype(F64)).argmin(axis=-1)  # the first of equally near ones
    return e, np.where((w == 0) & np.signbit(w), 8, codes)


class Mxfp4:
    """Codes [n][k/32][32] of 0 .. 15, and exponents [n][k/32]."""

    def __init__(self, codes, exponents):
        self.v, self.d = MXFP4[codes].astype(F64), np.ldexp(1.0, exponents.astype(int) - 128).astype(F32)

    def wide(self):
        return (self.v * self.d[..., None].astype(F64)).astype(F32).reshape(len(self.v), -1)

    def product(self, x):
        q, scale = quantize(x)
        s = sums(q, self.v)
        acc = np.zeros((len(x), len(self.v)))
        for b in range(s.shape[0]):
            factor = scale[:, b, None] * self.d[:, b]  # rounded to float32
            acc = fma64(s[b] * factor.astype(F64), acc)
        return acc.astype(F32)


class Blocks:
    """Weights in blocks of 32: integers u, and a float16 scale for each block."""

    def __init__(self, w, round_block):
        self.columns = w.shape[1]
        w = padded(w, 64)
        self.d, self.u = round_block(w.reshape(len(w), -1, 32))
        self.d = widen_f16(self.d)

    def rows(self, ids):
        return (self.u[ids] * self.d[ids][..., None]).reshape(len(ids), -1)[:, :self.columns]

    def product(self, x):
        q, scale = quantize(padded(x, 64))
        s = sums(q, self.u.astype(F64))
        acc = np.zeros((len(x), len(self.u)))
        for b in range(s.shape[0]):
            factor = scale[:, b, None] * self.d[:, b]  # rounded to float32
            acc = fma64(s[b] * factor.astype(F64), acc)
        return acc.astype(F32)


# ---------------------------------------------------------------- K types

def round_super(x, top, first, steps):
    """Rounds x [rows][256] to Q4_K (15, -1, 20) or Q5_K (31, -0.5, 15). Returns d, m, scales,
    minimums, integers."""
    part = x.reshape(-1, 32)
    scale, minimum, u = _search(part, F32(top), F32(first), steps)
    scale, minimum, u = scale.reshape(-1, 8), minimum.reshape(-1, 8), u.reshape(-1, 8, 32)
    results = []
    for values in (scale, minimum):
        most = np.maximum(values.max(axis=1), F32(0))
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = np.where(most > 0, F32(63) / most, F32(0))
        results += [round_f16(most / F32(63)), np.clip(_near(inverse[:, None] * values), 0, 63)]
    d, s, m, t = results
    ds, mt = widen_f16(d)[:, None] * s, widen_f16(m)[:, None] * t
    with np.errstate(divide="ignore", invalid="ignore"):
        again = np.clip(_near((x.reshape(-1, 8, 32) + mt[..., None]) / ds[..., None]), 0, top)
    return d, m, s, t, np.where((ds == 0)[..., None], u, again)


def _near(x):
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x) <= F32(4194303), nearest(x), F32(0))


def _summed(terms):
    total = np.zeros(terms.shape[0], F32)
    for i in range(terms.shape[1]):
        total = total + terms[:, i]
    return total


def _search(x, top, first, steps):
    typical = np.sqrt(_summed(x * x) / F32(32))
    weight = typical[:, None] + np.abs(x)
    most, least = x.max(axis=1), np.minimum(x.min(axis=1), F32(0))
    flat = most - least < F32(1e-10)
    with np.errstate(all="ignore"):
        def integers(n):
            return np.clip(_near((n / (most - least))[:, None] * (x - least[:, None])), 0, top)

        def error_of(u, scale, low):
            miss = (scale[:, None] * u + low[:, None]) - x
            return _summed(weight * (miss * miss))

        u = integers(top)
        scale = F32(1) / (top / (most - least))
        error = error_of(u, scale, least)
        for step in range(steps + 1):
            other = integers((first + F32(0.1) * F32(step)) + top)
            fits, s, low = _least_squares(x, weight, other)
            e = error_of(other, s, low)
            take = fits & (e < error) & ~flat
            error, least, scale = np.where(take, e, error), np.where(take, low, least), np.where(take, s, scale)
            u = np.where(take[:, None], other, u)
    return np.where(flat, F32(0), scale), F32(0) - least, np.where(flat[:, None], F32(0), u)


def _least_squares(x, w, u):
    wu = w * u
    w1, wx, u1, u2, xu = _summed(w), _summed(w * x), _summed(wu), _summed(wu * u), _summed(wu * x)
    determinant = w1 * u2 - u1 * u1
    scale, low = (w1 * xu - wx * u1) / determinant, (u2 * wx - u1 * xu) / determinant
    above = low > 0
    return determinant > 0, np.where(above, xu / u2, scale), np.where(above, F32(0), low)


def round_six(x):
    """Rounds x [rows][256] to Q6_K. Returns d, scales [16], and integers minus 32."""
    part = x.reshape(-1, 16)
    scale = _search_six(part).reshape(-1, 16)
    at = np.abs(scale).argmax(axis=1)
    most = np.take_along_axis(scale, at[:, None], axis=1)[:, 0]
    none = np.abs(most) < F32(1e-15)
    with np.errstate(all="ignore"):
        inverse = F32(-128) / most
        d = np.where(none, 0, round_f16(F32(1) / inverse)).astype(np.uint16)
        s = np.where(none[:, None], F32(0), np.clip(_near(inverse[:, None] * scale), -128, 127))
        ds = widen_f16(d)[:, None] * s
        u = np.clip(_near(x.reshape(-1, 16, 16) / ds[..., None]), -32, 31)
    u = np.where((ds == 0)[..., None], F32(0), u)
    return d, s, np.where(none[:, None, None], F32(-32), u)


def _search_six(x):
    at = np.abs(x).argmax(axis=1)
    top = np.take_along_axis(x, at[:, None], axis=1)[:, 0]
    weight = x * x
    l, sx, sl, scale, best = np.zeros_like(x), *(np.zeros(len(x), F32) for _ in range(4))
    with np.errstate(all="ignore"):
        def take(ok, ox, ol):
            nonlocal sx, sl, scale, best
            ok = ok & (ol > 0) & (ox * ox > best * ol)
            sx, sl = np.where(ok, ox, sx), np.where(ok, ol, sl)
            scale = np.where(ok, sx / sl, scale)
            best = np.where(ok, scale * sx, best)
            return ok

        for inverse in [F32(-32) / top] + [
                v for step in range(-9, 10)
                for v in (-(F32(32) + F32(0.1) * F32(step)) / top, (F32(31) + F32(0.1) * F32(step)) / top)
        ]:
            other = np.clip(_near(inverse[:, None] * x), -32, 31)
            ok = take(True, _summed((weight * x) * other), _summed((weight * other) * other))
            l = np.where(ok[:, None], other, l)
        active = np.abs(top) >= F32(1e-15)
        scale = np.where(active, scale, F32(0))
        rows = np.arange(len(x))
        for _ in range(16 * 63):
            off = (scale[:, None] * weight) * (x - scale[:, None] * l)
            off = np.where(((off > 0) & (l < 31)) | ((off < 0) & (l > -32)), off, F32(0))
            at = np.abs(off).argmax(axis=1)
            furthest = off[rows, at]
            sign = np.where(furthest > 0, F32(1), F32(-1))
            w, old = weight[rows, at], l[rows, at]
            mx, ml = w * x[rows, at], w * (F32(2) * sign * old + F32(1))
            active = active & (furthest != 0)
            active = take(active, np.where(sign > 0, sx + mx, sx - mx), sl + ml)
            if not active.any():
                break
            l[rows[active], at[active]] += sign[active]
    return scale


class Supers:
    """Weights of q4k and q5k in super-blocks of 256, (d s) u - m t."""

    def __init__(self, w, top, first, steps):
        n, k = w.shape
        d, m, s, t, u = round_super(w.reshape(-1, 256), top, first, steps)
        self.u = u.reshape(n, k // 32, 32).astype(F64)
        self.ds = (widen_f16(d)[:, None] * s).reshape(n, -1)
        self.mt = (widen_f16(m)[:, None] * t).reshape(n, -1)

    def product(self, x):
        q, scale = quantize(x)
        offset = -(scale * q.sum(axis=-1).astype(F32))
        s = sums(q, self.u)
        acc = np.zeros((len(x), len(self.u)))
        for b in range(s.shape[0]):
            factor = scale[:, b, None] * self.ds[:, b]
            acc = fma64(s[b] * factor.astype(F64), acc)
            acc = fma64(self.mt[:, b].astype(F64) * offset[:, b, None].astype(F64), acc)
        return acc.astype(F32)


class Sixes:
    """Weights of q6k, (d s) (u - 32), with a scale for each 16."""

    def __init__(self, w):
        n, k = w.shape
        d, s, u = round_six(w.reshape(-1, 256))
        self.u = u.reshape(n, k // 16, 16).astype(F64)
        self.ds = (widen_f16(d)[:, None] * s).reshape(n, -1)

    def rows(self, ids):
        return (self.ds[ids][..., None] * self.u[ids].astype(F32)).reshape(len(ids), -1)

    def product(self, x):
        q, scale = quantize(x)
        s = sums(q.reshape(len(x), -1, 16), self.u)
        acc = np.zeros((len(x), len(self.u)))
        for b in range(s.shape[0]):
            factor = scale[:, b // 2, None] * self.ds[:, b]
            acc = fma64(s[b] * factor.astype(F64), acc)
        return acc.astype(F32)


def make(w, kind, group):
    """Returns the matrix of float32 weights [n][k] in `kind`, a contract or a K type. `group` is
    the group's name in fingerprints."""
    sensitive = group in ("embeddings", "head")
    if kind in ("f32", "bf16"):
        return Floats(w, kind)
    if kind == "q8" or (kind == "q4" and sensitive):
        return Blocks(w, round_q8)
    if kind == "q4":
        return Blocks(w, round_q4)
    if kind == "q6k" or sensitive:
        return Sixes(w)
    return Supers(w, *{"q4k": (15, -1.0, 20), "q5k": (31, -0.5, 15)}[kind])
