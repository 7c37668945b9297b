"""ggml's K types: makes valid blocks close to given numbers (less close than ggml's search), and
decodes them as a reader does."""
import numpy as np

TYPES = {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14}


def halves(x):
    return x.astype(np.float16)


def six_bits(s, t):
    """Packs eight scales and eight minimums of 6 bits into 12 bytes."""
    out = np.zeros((len(s), 12), np.uint8)
    out[:, 0:4] = s[:, :4] | (s[:, 4:] >> 4) << 6
    out[:, 4:8] = t[:, :4] | (t[:, 4:] >> 4) << 6
    out[:, 8:12] = (s[:, 4:] & 15) | (t[:, 4:] & 15) << 4
    return out


def parts_of(x, kind):
    """Returns d, m, s, t and u of each block."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, 256)
    if kind == "Q6_K":
        sub = blocks.reshape(-1, 16, 16)
        scale = np.abs(sub).max(2) / 31
        d = halves(scale.max(1) / 127)
        s = np.rint(divided(scale, d[:, None])).clip(1, 127).astype(np.int8)
        u = np.rint(divided(sub, (d[:, None].astype(np.float32) * s)[:, :, None])).clip(-32, 31) + 32
        return d, None, s, None, u.astype(np.uint8).reshape(-1, 256)
    sub, top = blocks.reshape(-1, 8, 32), 15 if kind == "Q4_K" else 31
    least = np.minimum(sub.min(2), 0)
    scale = (np.maximum(sub.max(2), 0) - least) / top
    d, m = halves(scale.max(1) / 63), halves(-least.min(1) / 63)
    s = np.rint(divided(scale, d[:, None])).clip(0, 63).astype(np.uint8)
    t = np.rint(divided(-least, m[:, None])).clip(0, 63).astype(np.uint8)
    minimum = m[:, None].astype(np.float32) * t
    u = np.rint(divided(sub + minimum[:, :, None], (d[:, None].astype(np.float32) * s)[:, :, None])).clip(0, top)
    return d, m, s, t, u.astype(np.uint8).reshape(-1, 256)


def divided(a, b):
    b = b.astype(np.float32)
    return np.where(b == 0, 0, a / np.where(b == 0, 1, b))


def encode(x, kind):
    d, m, s, t, u = parts_of(x, kind)
    raw = lambda a: np.ascontiguousarray(a).view(np.uint8).reshape(len(u), -1)  # noqa: E731
    if kind == "Q6_K":
        part = u.reshape(-1, 2, 4, 32)  # two halves of 128, each of four parts of 32
        low = (part[:, :, :2] & 15) | (part[:, :, 2:] & 15) << 4
        high = sum((part[:, :, p] >> 4) << (2 * p) for p in range(4))
        return np.concatenate([raw(low), raw(high.astype(np.uint8)), raw(s), raw(d)], 1).tobytes()
    sub = u.reshape(-1, 4, 2, 32)
    nibbles = (sub[:, :, 0] & 15) | (sub[:, :, 1] & 15) << 4
    front = [raw(d), raw(m), six_bits(s, t)]
    if kind == "Q5_K":
        eight = u.reshape(-1, 8, 32)
        front.append(sum((eight[:, b] >> 4) << b for b in range(8)).astype(np.uint8))
    return np.concatenate(front + [raw(nibbles)], 1).tobytes()


def decoded(x, kind):
    d, m, s, t, u = parts_of(x, kind)
    scale = d[:, None].astype(np.float32) * s.astype(np.float32)
    if kind == "Q6_K":
        return (scale[:, :, None] * (u.reshape(-1, 16, 16).astype(np.float32) - 32)).reshape(x.shape)
    minimum = m[:, None].astype(np.float32) * t.astype(np.float32)
    return (scale[:, :, None] * u.reshape(-1, 8, 32).astype(np.float32) - minimum[:, :, None]).reshape(x.shape)
