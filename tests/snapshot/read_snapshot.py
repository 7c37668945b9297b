#!/usr/bin/env python3
"""A reader of snapshots that shares no code with stet, written from docs/formats.md with
the standard library only.

    read_snapshot.py FILE [--parent FILE] [--key LAYER HEAD POSITION] [--value LAYER HEAD POSITION]
                     [--array LAYER NAME]

It compares every digest, computes the state digest and the id again, and prints the content as
JSON. For a delta, name the parent if --key or --value need a block that only the parent has. A
fault gives one line on stderr and exit status 1.
"""

import argparse
import hashlib
import json
import math
import struct
import sys
import zlib

from xxh3_128 import xxh3_128

MAGIC, ARCHIVE_MAGIC = b"\x93STET\r\n\x1a", b"\x93STAR\r\n\x1a"
HEADER, ENTRY, PAGE, POSITIONS = 192, 64, 4096, 64
ELSEWHERE, COMPRESSED, EDITED, WINDOWED, WEIGHS_TOKENS, RECURRENT = 1, 2, 4, 16, 32, 64
KNOWN = ("META TOKENS VISIBLE PRUNES REMOVED LOGITS BLOCKS CONTENT KEPT KVINDEX STATE ANCHORS WEIGHTS TOKENIZR "
         "KV").split()
BY_CONTENT, IN_PARENT = 1, 8  # flags of an anchor
ALWAYS = "META TOKENS VISIBLE LOGITS BLOCKS KV".split()
ELEMENTS = {"f32": "<f", "bf16": None, "f16": "<e"}


class Fault(Exception):
    pass


def expect(field, expected, found):
    if expected != found:
        raise Fault(f"{field}: expected {expected}, found {found}")


def digest_text(digest):
    return "xxh3:" + digest[::-1].hex()


def hash_of(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def hash_text(value):
    return "sha256:" + value.hex()


def u8(x):
    return struct.pack("<B", x)


def u32(x):
    return struct.pack("<I", x)


def u64(x):
    return struct.pack("<Q", x)


def ids_bytes(ids):
    return struct.pack(f"<{len(ids)}i", *ids)


def text(string):
    data = string.encode()
    return u64(len(data)) + data


def members_as_text(document):
    """Returns the members of an object with their original text, which is what digests and hashes
    cover."""
    decoder, at, members = json.JSONDecoder(), 1, {}
    while document[at] != "}":
        at += document[at] == ","
        name, at = decoder.raw_decode(document, at)
        begin = at + 1  # after the colon
        _, at = decoder.raw_decode(document, begin)
        members[name] = document[begin:at]
    return members


class Sections:
    """The header and section table. All digests except those of blocks are compared."""

    def __init__(self, data):
        self.data = data
        expect("magic", MAGIC, data[:8])
        version, size, required, _, file_size, count, _, table = struct.unpack_from("<IIQQQIIQ", data, 8)
        expect("format version", True, version in (3, 4))
        self.version = version
        expect("header", digest_text(data[176:192]), digest_text(xxh3_128(data[:176])))
        expect("header size", HEADER, size)
        known = ELSEWHERE | COMPRESSED | EDITED | WINDOWED | WEIGHS_TOKENS | RECURRENT
        expect("required features", 0, required & ~known)
        expect("file size", file_size, len(data))
        expect("section table", HEADER, table)
        entries = data[table:table + ENTRY * count]
        expect("section table", digest_text(data[56:72]), digest_text(xxh3_128(entries)))
        self.required, self.state, self.id = required, data[72:88], data[88:120]
        self.table, self.index_digests, end = {}, {}, table + len(entries)
        for i in range(count):
            end = self.add(entries[ENTRY * i:ENTRY * (i + 1)], end)
        expect("end of the sections", file_size, end)
        expect("sections", [], [name for name in ALWAYS if name not in self.table])

    def add(self, entry, end):
        name = entry[:8].rstrip(b"\0").decode()
        offset, size, flags, encoding = struct.unpack_from("<QQII", entry, 8)
        expect(f"section {name}", False, name in self.table or (name not in KNOWN and flags & 1 == 1))
        expect(f"{name}: encoding", 0, encoding)
        expect(f"{name}: inside of the file and behind {end}", True, end <= offset <= offset + size <= len(self.data))
        expect(f"bytes before {name}", bytes(offset - end), self.data[end:offset])
        alignment = 64 if name in KNOWN else PAGE
        alignment = {"KV": 65536 if size else 64, "WEIGHTS": PAGE, "TOKENIZR": PAGE}.get(name, alignment)
        expect(f"{name}: offset modulo {alignment}", 0, offset % alignment)
        content = self.data[offset:offset + size]
        covered = self.get("BLOCKS") if name == "KV" else content
        if name in ("WEIGHTS", "TOKENIZR"):
            covered = content[:read_archive(content)[0]]
        if name in ("STATE", "ANCHORS"):
            self.index_digests[name] = entry[32:48]
        else:
            expect(f"{name}: digest", digest_text(entry[32:48]), digest_text(xxh3_128(covered)))
        self.table[name] = (offset, size)
        return offset + size

    def get(self, name):
        offset, size = self.table.get(name, (0, 0))
        return self.data[offset:offset + size]

    def index(self, name, size):
        """Returns the first bytes of STATE or ANCHORS, which their digest covers."""
        index = self.get(name)[:size]
        expect(f"{name}: digest", digest_text(self.index_digests[name]), digest_text(xxh3_128(index)))
        return index


def read_archive(archive):
    """Returns the size of the index, and the bytes of each file by name."""
    expect("archive", ARCHIVE_MAGIC, archive[:8])
    size, count, whole = struct.unpack_from("<IIQ", archive, 8)
    expect("archive: size", len(archive), whole)
    expect("archive: index", digest_text(archive[size - 16:size]), digest_text(xxh3_128(archive[:size - 16])))
    at, end, files = 24, size, {}
    for _ in range(count):
        offset, length = struct.unpack_from("<QQ", archive, at)
        name_size, = struct.unpack_from("<H", archive, at + 32)
        name = archive[at + 34:at + 34 + name_size].decode()
        expect(f"archive: {name}: offset", -(-end // PAGE) * PAGE, offset)
        expect(f"archive: bytes before {name}", bytes(offset - end), archive[end:offset])
        files[name] = archive[offset:offset + length]
        expect(f"archive: {name}", digest_text(archive[at + 16:at + 32]), digest_text(xxh3_128(files[name])))
        at, end = at + 34 + name_size, offset + length
    expect("archive: bytes of the index", size, at + 16)
    expect("archive: end of the last file", whole, end)
    return size, files


def padded(size):
    return -(-size // 64) * 64


class Prune:
    def __init__(self, entry, removed):
        self.at, self.begin, self.end, self.kind, _ = struct.unpack("<QQQII", entry)
        self.removed = [removed.pop(0) for _ in range(self.end - self.begin if self.kind == 1 else 0)]
        self.left = self.at - len(self.removed)

    def hashed(self):
        return u64(self.at) + u64(self.begin) + u64(self.end) + u8(self.kind) + ids_bytes(self.removed)

    def as_json(self):
        return {"at": self.at, "begin": self.begin, "end": self.end, "positions": ("keep", "shift")[self.kind],
                "removed": self.removed}


def content_of_arrays(arrays):
    return hash_of(b"stet recurrent content 1\n", arrays)


class Snapshot:
    def __init__(self, data):
        self.sections = Sections(data)
        get = self.sections.get
        document = get("META").decode()
        self.meta, self.members = json.loads(document), members_as_text(document)
        self.tokens = [x for x, in struct.iter_unpack("<i", get("TOKENS"))]
        self.visible = [x for x, in struct.iter_unpack("<Q", get("VISIBLE"))]
        removed = [x for x, in struct.iter_unpack("<i", get("REMOVED"))]
        log = get("PRUNES")
        self.prunes = [Prune(log[i:i + 32], removed) for i in range(0, len(log), 32)]
        expect("REMOVED: ids of no prune", [], removed)
        self.contents = [get("CONTENT")[i:i + 32] for i in range(0, len(get("CONTENT")), 32)]
        kv = self.meta["kv"]
        self.kv_type, self.layers = kv["type"], kv["layers"]
        expect("format version", 4 if "table" in kv else 3, self.sections.version)
        self.element = {"f32": 4, "q8": 1}.get(self.kv_type, 2)
        self.table = self.table_of(kv)
        sizes = [self.layer_size(l) for l in range(self.layers)]
        self.offsets = [sum(sizes[:l]) for l in range(self.layers + 1)]
        self.block_bytes = -(-self.offsets[-1] // PAGE) * PAGE
        self.last = max([l for l, size in enumerate(sizes) if size], default=-1)  # its digest covers the padding
        readers = [l for l, row in enumerate(self.table) if row["window"] == 0]
        self.held = sorted({self.table[l]["owner"] for l in readers if self.table[l]["owner"] >= 0})
        self.fingerprint = self.meta["fingerprints"][-1]["digest"]
        expect("positions", self.meta["positions"], len(self.tokens))
        for position in range(len(self.tokens), POSITIONS * len(self.visible)):
            expect(f"VISIBLE: bit of position {position}", 1,
                   self.visible[position // POSITIONS] >> position % POSITIONS & 1)
        expect("BLOCKS: bytes", len(self.visible) * self.layers * 16, len(get("BLOCKS")))
        self.places = self.find_blocks()
        self.read_arrays()
        self.read_anchors()
        self.check()

    def read_arrays(self):
        """Compares the arrays of recurrent layers with their digests."""
        self.arrays, numbers = {}, 0  # (layer, name): where its numbers begin, and its shape
        self.recurrent = [l for l, row in enumerate(self.table) if "state" in row]
        begins = []
        for layer in self.recurrent:
            begins.append(numbers)
            for array in self.table[layer]["state"]:
                self.arrays[layer, array["name"]] = (numbers, array["shape"])
                numbers += math.prod(array["shape"])
        expect("required features: recurrent", bool(self.recurrent), bool(self.sections.required & RECURRENT))
        self.array_bytes, section = 4 * numbers, self.sections.get("STATE")
        if not self.recurrent:
            return
        self.array_index = self.sections.index("STATE", 16 * len(self.recurrent))
        if self.meta["form"] == "recipe":
            expect("STATE: bytes", len(self.array_index), len(section))
            return
        begin = padded(len(self.array_index))
        expect("STATE: bytes", begin + self.array_bytes, len(section))
        expect("STATE: zeros", bytes(begin - len(self.array_index)), section[len(self.array_index):begin])
        self.live = section[begin:]
        for i, (layer, first) in enumerate(zip(self.recurrent, begins)):
            last = (begins + [numbers])[i + 1]
            expect(f"arrays of layer {layer}", digest_text(self.array_index[16 * i:16 * i + 16]),
                   digest_text(xxh3_128(self.live[4 * first:4 * last])))

    def read_anchors(self):
        self.anchors, section = [], self.sections.get("ANCHORS")
        if not section:
            return
        count, = struct.unpack_from("<Q", section, 16)
        index = self.sections.index("ANCHORS", 24 + 64 * count)
        if index[:16] != self.sections.state:
            return
        names, end = self.anchor_names(), len(index)
        for at in range(24, len(index), 64):
            name, digest = index[at:at + 32], index[at + 48:at + 64]
            position, flags, numbers = struct.unpack_from("<QII", index, at + 32)
            if not flags & IN_PARENT:
                last = section[padded(end):padded(end) + 4 * numbers]
                end = padded(end) + 4 * numbers
                arrays = section[padded(end):padded(end) + self.array_bytes]
                end = padded(end) + self.array_bytes
                expect(f"anchor at {position}", digest_text(digest), digest_text(xxh3_128(last + arrays)))
            found = content_of_arrays(arrays) if flags & BY_CONTENT else names[position]
            expect(f"anchor at {position}", hash_text(found), hash_text(name))
            self.anchors.append({"position": position, "name": hash_text(name), "by_content": bool(flags & BY_CONTENT)})
        expect("ANCHORS: bytes", padded(end), len(section))

    def anchor_names(self):
        """Returns the name of the state at each position of a state without interventions."""
        link, pending, names = self.start(), [], {}
        for position, token in enumerate(self.tokens, 1):
            pending.append(token)
            if len(pending) == POSITIONS:
                link, pending = hash_of(b"B", link, ids_bytes(pending)), []
            names[position] = hash_of(b"R", link, u64(len(pending)), ids_bytes(pending))
        return names

    def array(self, layer, name):
        begin, shape = self.arrays[layer, name]
        return list(struct.unpack_from(f"<{math.prod(shape)}f", self.live, 4 * begin))

    def table_of(self, kv):
        """Returns the row of each layer."""
        if "table" in kv:
            return kv["table"]
        return [{"owner": l, "heads": kv["heads"], "key_dim": kv["head_dim"], "value_dim": kv["head_dim"],
                 "window": window}
                for l, window in enumerate(self.meta["config"]["window"])]

    def part_size(self, dim):
        """Returns the size in bytes of the keys or the values of one head in a block."""
        return dim * POSITIONS * self.element + (4 * POSITIONS if self.kv_type == "q8" else 0)

    def head_size(self, layer):
        return self.part_size(self.table[layer]["key_dim"]) + self.part_size(self.table[layer]["value_dim"])

    def layer_size(self, layer):
        return self.table[layer]["heads"] * self.head_size(layer) if self.table[layer]["owner"] == layer else 0

    def part_of(self, layer):
        """Returns begin and end of the bytes in a block that a layer's digest covers."""
        return self.offsets[layer], self.block_bytes if layer == self.last else self.offsets[layer + 1]

    def find_blocks(self):
        """Returns encoding, offset and size of each block in this file."""
        kv, size = self.sections.table["KV"]
        if "KVINDEX" not in self.sections.table:
            expect("KV: bytes", len(self.visible) * self.block_bytes, size)
            return {b: (0, kv + b * self.block_bytes, self.block_bytes) for b in range(len(self.visible))}
        places, end = {}, 0
        for block, encoding, offset, length in struct.iter_unpack("<IIQQ", self.sections.get("KVINDEX")):
            expect(f"KVINDEX: offset of block {block}", end, offset)
            places[block] = (encoding, kv + offset, length)
            end += length
        expect("KV: bytes", end, size)
        return places

    def block_digests(self, block):
        digests = self.sections.get("BLOCKS")
        return [digests[i:i + 16] for i in range(block * self.layers * 16, (block + 1) * self.layers * 16, 16)]

    def block(self, number, parent=None):
        """Returns the bytes of a block after comparing their digests, or None if no file at hand
        has them."""
        held = range(self.layers)
        if number in self.places:
            data = self.stored(*self.places[number])
            if self.places[number][0] >= 2:
                held = self.held
                data = self.spread(data)
        elif self.visible[number] == 0:
            data = bytes(self.block_bytes)
        elif parent is not None and parent.block_digests(number) == self.block_digests(number):
            data = parent.block(number)
        else:
            return None
        for layer, digest in enumerate(self.block_digests(number)):
            if layer not in held and self.layer_size(layer):
                continue
            begin, end = self.part_of(layer)
            found = xxh3_128(data[begin:end])
            expect(f"block {number}, layer {layer}", digest_text(digest), digest_text(found))
        return data

    def spread(self, data):
        """Puts layers without a window at their places in a block."""
        block, at = bytearray(self.block_bytes), 0
        for layer in self.held:
            size = self.layer_size(layer)
            block[self.offsets[layer]:self.offsets[layer] + size] = data[at:at + size]
            at += size
        return bytes(block)

    def stored(self, encoding, offset, length):
        data = self.sections.data[offset:offset + length]
        if encoding in (0, 2):
            return data
        expect("KVINDEX: encoding", True, encoding in (1, 3))
        whole = self.block_bytes if encoding == 1 else -(-sum(map(self.layer_size, self.held)) // PAGE) * PAGE
        size, at = whole // self.element, 4 * self.element
        block = bytearray(whole)
        for i, stored in enumerate(struct.unpack_from(f"<{self.element}I", data)):
            plane = data[at:at + stored]
            block[i::self.element] = plane if stored == size else zlib.decompress(plane)
            at += stored
        expect("bytes of a compressed block", length, at)
        return bytes(block)

    def elements(self, what, layer, head, position, parent=None):
        """Returns a key or a value as a list of floats, or None if its block is not at hand."""
        block = self.block(position // POSITIONS, parent)
        if block is None:
            return None
        row, t = self.table[layer], position % POSITIONS
        at, dim = self.offsets[layer] + head * self.head_size(layer), row["key_dim" if what == "key" else "value_dim"]
        if what != "key":
            at += self.part_size(row["key_dim"])
        scales = at + dim * POSITIONS * self.element  # q8 only: 64 float32 after the elements
        scale = struct.unpack_from("<f", block, scales + 4 * t)[0] if self.kv_type == "q8" else None
        if what == "key":
            offsets = [at + (d * POSITIONS + t) * self.element for d in range(dim)]
        else:
            offsets = [at + (t * dim + d) * self.element for d in range(dim)]
        # The product of an int8 and a float32 has 32 bits, so it is rounded once.
        if scale is not None:
            return [
                struct.unpack("<f", struct.pack("<f",
                                                struct.unpack_from("<b", block, o)[0] * scale))[0] for o in offsets
            ]
        if self.kv_type == "bf16":
            return [struct.unpack("<f", b"\0\0" + block[o:o + 2])[0] for o in offsets]
        return [struct.unpack_from(ELEMENTS[self.kv_type], block, o)[0] for o in offsets]

    def logits_digest(self):
        if self.meta["form"] == "recipe":
            return bytes.fromhex(self.meta["logits"][5:])[::-1]
        return xxh3_128(self.sections.get("LOGITS"))

    def with_block(self, data, b, layer):
        """Returns a changed file, a bytearray, whose digests are those of the present bytes of one layer of a block."""
        _, offset, _ = self.places[b]
        begin, end = self.part_of(layer)
        digests, size = self.sections.table["BLOCKS"]
        place = digests + (b * self.layers + layer) * 16
        data[place:place + 16] = xxh3_128(data[offset + begin:offset + end])
        count, = struct.unpack_from("<I", data, 40)
        for entry in range(HEADER, HEADER + ENTRY * count, ENTRY):
            if data[entry:entry + 8].rstrip(b"\0") in (b"BLOCKS", b"KV"):
                data[entry + 32:entry + 48] = xxh3_128(data[digests:digests + size])
        self.sections.data = bytes(data)
        data[72:88] = self.state_digest()
        data[56:72] = xxh3_128(data[HEADER:HEADER + ENTRY * count])
        data[176:192] = xxh3_128(data[:176])
        return bytes(data)

    def state_digest(self):
        words = [self.meta["contract"], str(self.meta["contract_version"]), self.kv_type, self.fingerprint,
                 self.members["generation"]]
        if self.prunes:
            words.append(json.dumps([p.as_json() for p in self.prunes], sort_keys=True, separators=(",", ":")))
        if "edits" in self.members:
            words += ["edits", self.members["edits"]]
        if "dialogue" in self.members:
            words.append(self.members["dialogue"])
        digests = [xxh3_128(self.sections.get("TOKENS")), xxh3_128(self.sections.get("VISIBLE")), self.logits_digest(),
                   xxh3_128(self.sections.get("BLOCKS"))]
        if self.recurrent:
            digests.append(xxh3_128(self.array_index))
        return xxh3_128(" ".join(words).encode() + b"".join(digests))

    def transcript(self):
        slots = [None] * (len(self.tokens) + sum(len(p.removed) for p in self.prunes))
        for prune in self.prunes:
            for token in prune.removed:
                empty = [i for i, slot in enumerate(slots) if slot is None]
                slots[empty[prune.begin]] = token
        rest = iter(self.tokens)
        return [next(rest) if slot is None else slot for slot in slots]

    def start(self):
        return hash_of(b"stet blocks 1\n", text(self.meta["contract"]), u32(self.meta["contract_version"]),
                       text(self.kv_type), u32(self.meta["kv"]["version"]), text(self.fingerprint))

    def chain(self):
        """Returns, for each full block, its identity and its last change (number of prunes,
        number of positions)."""
        link, size, pending, full, links = self.start(), 0, [], [], []
        rest = iter(self.transcript())
        for prune in self.prunes + [None]:
            while size < (len(self.tokens) if prune is None else prune.at):
                pending.append(next(rest))
                size += 1
                if size % POSITIONS == 0:
                    link, pending = hash_of(b"B", link, ids_bytes(pending)), []
                    full.append((link, (len(links), size)))
            if prune is None:
                break
            link, pending = hash_of(b"P", link, u64(len(pending)), ids_bytes(pending), prune.hashed()), []
            links.append(link)
            size = prune.left
            del full[size // POSITIONS:]
        for number, (identity, changed) in enumerate(full):
            for k, prune in enumerate(self.prunes, 1):
                last = len(full) if prune.kind == 1 else -(-prune.end // POSITIONS)
                if prune.begin // POSITIONS <= number < last and changed[0] < k:
                    full[number] = (hash_of(b"T", links[k - 1], u64(number)), (k, prune.left))
        return full

    def replayable(self):
        return "edits" not in self.members and (not self.tokens or self.meta["contract"] != "f32-blas")

    def named_by_content(self, full):
        if self.replayable():
            return []
        edits = self.meta.get("edits", [])
        first = min([(e["prunes"], e["at"]) for e in edits], default=None)
        touched = set()
        for e in edits:
            end = max(e.get("end", -1), e["position"] + 1)
            touched |= set(range(e["position"] // POSITIONS, -(-end // POSITIONS))) if e["position"] >= 0 else {None}
        named = [
            b for b, (_, changed) in enumerate(full)
            if not edits or self.meta["contract"] == "f32-blas" or changed > first or b in touched or None in touched
        ]
        return named + ([len(full)] if len(self.tokens) % POSITIONS else [])

    def identities(self):
        full = self.chain()
        contents = dict(zip(self.named_by_content(full), self.contents))
        return [(contents.get(b, identity), b not in contents) for b, (identity, _) in enumerate(full)]

    def compute_id(self):
        parts = [b"stet state 1\n", self.start(), u64(len(self.tokens)), ids_bytes(self.tokens), u64(len(self.prunes))]
        parts += [p.hashed() for p in self.prunes]
        parts += [text(self.members.get(name, "")) for name in ("edits", "generation", "dialogue")]
        parts += [identity for identity, _ in self.identities()]
        if not self.replayable():
            partial = self.contents[-1] if len(self.tokens) % POSITIONS else bytes(32)
            parts += [partial, hash_of(self.sections.get("LOGITS"))]
            if self.recurrent:
                parts.append(content_of_arrays(self.live))
        return hash_of(*parts)

    def content_of(self, block):
        kv, content = self.meta["kv"], block[:self.offsets[-1]]
        if "table" not in kv:
            return hash_of(b"stet block content 1\n", text(self.kv_type), u64(self.layers), u64(kv["heads"]),
                           u64(kv["head_dim"]), content)
        names = ("owner", "heads", "key_dim", "value_dim", "window")
        rows = [u64(row[name] % 2**64) for row in self.table for name in names]
        return hash_of(b"stet block content 2\n", text(self.kv_type), u64(self.layers), *rows, content)

    def check(self):
        expect("state", digest_text(self.sections.state), digest_text(self.state_digest()))
        named = self.named_by_content(self.chain())
        expect("CONTENT: hashes", len(named), len(self.contents))
        expect("id", hash_text(self.sections.id), hash_text(self.compute_id()))
        for number in range(len(self.visible)):
            block = self.block(number)
            if block is not None and number in named:
                found = self.content_of(block)
                expect(f"block {number}", hash_text(self.contents[named.index(number)]), hash_text(found))

    def as_json(self):
        get = self.sections.get
        return {
            "format_version": self.sections.version, "form": self.meta["form"], "positions": len(self.tokens),
            "tokens": self.tokens,
            "capacity": self.meta["capacity"], "config": self.meta["config"],
            "contract": f"{self.meta['contract']} version {self.meta['contract_version']}",
            "kv": {**self.meta["kv"], "block_bytes": self.block_bytes},
            "visible_positions": sum(self.visible[p // POSITIONS] >> p % POSITIONS & 1
                                     for p in range(len(self.tokens))),
            "id": hash_text(self.compute_id()),
            "replayable": self.replayable(),
            "blocks": [{"id": hash_text(i), "replayable": r} for i, r in self.identities()],
            "prunes": [p.as_json() for p in self.prunes],
            "digests": {"tokens": digest_text(xxh3_128(get("TOKENS"))), "logits": digest_text(self.logits_digest()),
                        "kv": digest_text(xxh3_128(get("BLOCKS"))), "state": digest_text(self.state_digest()),
                        "id": hash_text(self.compute_id())},
            "sections": [{"name": n, "offset": o, "bytes": s} for n, (o, s) in self.sections.table.items()],
            "files": {name: sorted(read_archive(get(name))[1]) for name in ("WEIGHTS", "TOKENIZR")
                      if name in self.sections.table},
            "arrays": [{"layer": l, "name": name, "shape": shape} for (l, name), (_, shape) in self.arrays.items()],
            "anchors": self.anchors,
        }


def read(path):
    with open(path, "rb") as file:
        return Snapshot(file.read())


def main():
    parser = argparse.ArgumentParser(description="Reads a snapshot of format version 3 or 4, as docs/formats.md says.")
    parser.add_argument("file")
    parser.add_argument("--parent", help="of a delta")
    for what in ("key", "value"):
        parser.add_argument(f"--{what}", nargs=3, type=int, metavar=("LAYER", "HEAD", "POSITION"))
    parser.add_argument("--array", nargs=2, metavar=("LAYER", "NAME"), help="of a recurrent layer")
    arguments = parser.parse_args()
    try:
        snapshot = read(arguments.file)
        parent = read(arguments.parent) if arguments.parent else None
        out = snapshot.as_json()
        for what in ("key", "value"):
            if getattr(arguments, what):
                out[what] = snapshot.elements(what, *getattr(arguments, what), parent)
        if arguments.array:
            out["array"] = snapshot.array(int(arguments.array[0]), arguments.array[1])
    except (Fault, OSError, ValueError, KeyError, IndexError, struct.error, zlib.error) as fault:
        sys.exit(f"{arguments.file}: {fault}")
    print(json.dumps(out))


if __name__ == "__main__":
    main()
