"""Snapshots with keys and values that their tokens do not give, and no other fault: their digests and names
are right."""
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "snapshot"))
from read_snapshot import ENTRY, HEADER, Snapshot  # noqa: E402
from xxh3_128 import xxh3_128  # noqa: E402


def forged(original):
    """Returns a full snapshot of float32 keys and values with the signs of the first layer's first block
    inverted."""
    snapshot, data = Snapshot(original), bytearray(original)
    begin, end = snapshot.part_of(0)
    _, offset, _ = snapshot.places[0]
    for sign in range(offset + begin + 3, offset + end, 4):
        data[sign] ^= 0x80
    digests, size = snapshot.sections.table["BLOCKS"]
    data[digests:digests + 16] = xxh3_128(data[offset + begin:offset + end])
    count, = struct.unpack_from("<I", data, 40)
    for entry in range(HEADER, HEADER + ENTRY * count, ENTRY):
        if data[entry:entry + 8].rstrip(b"\0") in (b"BLOCKS", b"KV"):
            data[entry + 32:entry + 48] = xxh3_128(data[digests:digests + size])
    snapshot.sections.data = bytes(data)
    data[72:88] = snapshot.state_digest()
    data[56:72] = xxh3_128(data[HEADER:HEADER + ENTRY * count])
    data[176:192] = xxh3_128(data[:176])
    return bytes(data)
