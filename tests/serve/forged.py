"""Snapshots with keys and values that their tokens do not give, and no other fault: their digests and names
are right."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "snapshot"))
from read_snapshot import Snapshot  # noqa: E402


def forged(original):
    """Returns a full snapshot of float32 keys and values with the signs of the first layer's first block
    inverted."""
    snapshot, data = Snapshot(original), bytearray(original)
    begin, end = snapshot.part_of(0)
    _, offset, _ = snapshot.places[0]
    for sign in range(offset + begin + 3, offset + end, 4):
        data[sign] ^= 0x80
    return snapshot.with_block(data, 0, 0)
