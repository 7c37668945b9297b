"""XXH3-128 with seed 0, written from the specification of xxHash (doc/xxhash_spec.md), for
readers without the library."""

import struct

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
_MASK = (1 << 64) - 1
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def _u32(data, at):
    return struct.unpack_from("<I", data, at)[0]


def _u64(data, at):
    return struct.unpack_from("<Q", data, at)[0]


def _swap64(x):
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def _fold(a, b):
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _avalanche_64(x):
    x = (x ^ x >> 33) * _P64[1] & _MASK
    x = (x ^ x >> 29) * _P64[2] & _MASK
    return x ^ x >> 32


def _avalanche(x):
    x = (x ^ x >> 37) * 0x165667919E3779F9 & _MASK
    return x ^ x >> 32


def _up_to_3(data):
    n = len(data)
    low = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
    swapped = int.from_bytes(low.to_bytes(4, "little"), "big")
    high = (swapped << 13 | swapped >> 19) & 0xFFFFFFFF
    return (_avalanche_64(low ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4)),
            _avalanche_64(high ^ _u32(_SECRET, 8) ^ _u32(_SECRET, 12)))


def _up_to_8(data):
    n = len(data)
    keyed = (_u32(data, 0) | _u32(data, n - 4) << 32) ^ _u64(_SECRET, 16) ^ _u64(_SECRET, 24)
    product = keyed * (_P64[0] + (n << 2))
    low, high = product & _MASK, product >> 64
    high = (high + (low << 1)) & _MASK
    low ^= high >> 3
    low = (low ^ low >> 35) * 0x9FB21C651E98DF25 & _MASK
    return low ^ low >> 28, _avalanche(high)


def _up_to_16(data):
    n = len(data)
    first, last = _u64(data, 0), _u64(data, n - 8)
    product = (first ^ last ^ _u64(_SECRET, 32) ^ _u64(_SECRET, 40)) * _P64[0]
    low, high = product & _MASK, product >> 64
    low = (low + ((n - 1) << 54)) & _MASK
    last ^= _u64(_SECRET, 48) ^ _u64(_SECRET, 56)
    high = (high + last + (last & 0xFFFFFFFF) * (_P32[1] - 1)) & _MASK
    low ^= _swap64(high)
    product = low * _P64[1]
    return _avalanche(product & _MASK), _avalanche(((product >> 64) + high * _P64[1]) & _MASK)


def _mix_16(data, at, secret):
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret), _u64(data, at + 8) ^ _u64(_SECRET, secret + 8))


def _mix_32(low, high, data, a, b, secret):
    low = (low + _mix_16(data, a, secret)) & _MASK
    low ^= (_u64(data, b) + _u64(data, b + 8)) & _MASK
    high = (high + _mix_16(data, b, secret + 16)) & _MASK
    high ^= (_u64(data, a) + _u64(data, a + 8)) & _MASK
    return low, high


def _up_to_240(data):
    n = len(data)
    low, high = n * _P64[0] & _MASK, 0
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            low, high = _mix_32(low, high, data, 16 * i, n - 16 * (i + 1), 32 * i)
    else:
        for i in range(4):
            low, high = _mix_32(low, high, data, 32 * i, 32 * i + 16, 32 * i)
        low, high = _avalanche(low), _avalanche(high)
        for i in range(4, n // 32):
            low, high = _mix_32(low, high, data, 32 * i, 32 * i + 16, 3 + 32 * (i - 4))
        low, high = _mix_32(low, high, data, n - 16, n - 32, 103)
    mixed = (low * _P64[0] + high * _P64[3] + n * _P64[1]) & _MASK
    return _avalanche((low + high) & _MASK), -_avalanche(mixed) & _MASK


def _accumulate(sums, data, at, secret):
    lanes = struct.unpack_from("<8Q", data, at)
    keys = struct.unpack_from("<8Q", _SECRET, secret)
    for i in range(8):
        key = lanes[i] ^ keys[i]
        sums[i ^ 1] = (sums[i ^ 1] + lanes[i]) & _MASK
        sums[i] = (sums[i] + (key & 0xFFFFFFFF) * (key >> 32)) & _MASK


def _merge(sums, secret, start):
    total = start
    for i in range(4):
        total += _fold(sums[2 * i] ^ _u64(_SECRET, secret + 16 * i),
                       sums[2 * i + 1] ^ _u64(_SECRET, secret + 16 * i + 8))
    return _avalanche(total & _MASK)


def _long(data):
    n = len(data)
    sums = [_P32[2], _P64[0], _P64[1], _P64[2], _P64[3], _P32[1], _P64[4], _P32[0]]
    scramble = struct.unpack_from("<8Q", _SECRET, 128)
    stripes = (n - 1) // 64
    for stripe in range(stripes):
        _accumulate(sums, data, 64 * stripe, 8 * (stripe % 16))
        if stripe % 16 == 15:
            sums = [((s ^ s >> 47) ^ k) * _P32[0] & _MASK for s, k in zip(sums, scramble)]
    _accumulate(sums, data, n - 64, 121)
    return _merge(sums, 11, n * _P64[0] & _MASK), _merge(sums, 117, ~(n * _P64[1]) & _MASK)


def xxh3_128(data):
    """Returns the digest as 16 bytes, the low half first, each half little-endian."""
    data = bytes(data)
    n = len(data)
    if n == 0:
        low = _avalanche_64(_u64(_SECRET, 64) ^ _u64(_SECRET, 72))
        high = _avalanche_64(_u64(_SECRET, 80) ^ _u64(_SECRET, 88))
    else:
        rule = _up_to_3 if n < 4 else _up_to_8 if n < 9 else _up_to_16 if n < 17 else _up_to_240 if n < 241 else _long
        low, high = rule(data)
    return struct.pack("<QQ", low, high)
