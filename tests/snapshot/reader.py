#!/usr/bin/env python3
"""Compares docs/formats.md with stet. The output of read_snapshot.py, written from that
page, must equal that of `stet inspect --json`. An element addressed by the page's formulas must
be the one that `stet diff` names.

    reader.py STET        (from the root of the repository)
"""

import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

from read_snapshot import Fault, Snapshot, read

SNAPSHOTS = "tests/data/snapshots"
MODEL = "tests/data/models/llama2-tiny-f16"


def run(stet, *arguments, status=0):
    done = subprocess.run([stet, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{arguments}: status {done.returncode}\n{done.stderr}"
    return done.stdout


def compare(stet, path):
    """Compares everything that both report."""
    ours, theirs = read(path).as_json(), json.loads(run(stet, "inspect", path, "--json"))
    theirs["sections"] = [{k: s[k] for k in ("name", "offset", "bytes")} for s in theirs["sections"]]
    # `stet inspect` lists the arrays of recurrent layers beside the table.
    arrays = [{"name": f"layers.{i}.{a['name']}", "shape": a["shape"]}
              for i, row in enumerate(ours["kv"].get("table", [])) for a in row.pop("state", [])]
    assert arrays == theirs.get("recurrent", []), f"{path}: read {arrays}, stet has {theirs.get('recurrent')}"
    for field in ("format_version", "form", "positions", "tokens", "capacity", "config", "contract", "kv", "id",
                  "replayable", "blocks", "prunes", "digests", "sections"):
        assert ours[field] == theirs[field], f"{path}: {field}: read {ours[field]}, stet has {theirs[field]}"
    mask, = [e["stored"] for e in theirs["elements"] if e["element"] == "visibility mask"]
    assert mask == f"{ours['visible_positions']} of {ours['positions']} positions", f"{path}: {mask}"


def with_element(snapshot, what, layer, head, position, element, bits):
    """Returns the file with one element replaced and all digests corrected."""
    data, b = bytearray(snapshot.sections.data), position // 64
    at, t, dim = (snapshot.offsets[layer] + head * snapshot.head_size(layer), position % 64,
                  snapshot.table[layer]["key_dim"])
    index = element * 64 + t if what == "key" else 64 * dim + t * dim + element
    _, offset, _ = snapshot.places[b]
    struct.pack_into("<H", data, offset + at + index * 2, bits)
    return snapshot.with_block(data, b, layer)


def address(stet, scratch):
    """Checks corners of the layout and some elements between: stet must name the replaced element
    and its value."""
    original, changed = f"{SNAPSHOTS}/v3-full.stet", os.path.join(scratch, "changed.stet")
    for what, *place in [("key", 0, 0, 0, 0), ("key", 2, 3, 99, 15), ("key", 1, 2, 37, 5), ("value", 0, 0, 0, 0),
                         ("value", 2, 3, 99, 15), ("value", 1, 2, 37, 5), ("value", 0, 3, 64, 1),
                         ("key", 2, 0, 63, 14)]:
        layer, head, position, element = place
        with open(changed, "wb") as file:
            file.write(with_element(read(original), what, *place, 0x5640))  # 100 as a float16
        elements = read(changed).elements(what, layer, head, position)
        assert elements[element] == 100 and elements.count(100) == 1, f"{what} {place}: {elements}"
        found = json.loads(run(stet, "diff", original, changed, "--json", status=1))["difference"]
        expected = {"what": what, "position": position, "layer": layer, "head": head, "element": element,
                    "expected": read(original).elements(what, layer, head, position)[element], "found": 100}
        assert found == expected, f"{what} {place}: stet says {found}"


def of_q8(stet, scratch):
    """Checks integer keys and values with scales: stet's report on the file, and its difference
    from float32."""
    q8, wide, packed = (os.path.join(scratch, name) for name in ("q8.stet", "wide.stet", "packed.stet"))
    ids = ",".join(str(7 * i % 250) for i in range(100))
    run(stet, "save", "-m", MODEL, "--ids", ids, "--kv", "q8", "-o", q8)
    run(stet, "convert", q8, "--kv", "f32", "-o", wide)
    run(stet, "convert", q8, "--compress", "zlib", "-o", packed)
    for file in (q8, wide, packed):
        compare(stet, file)
    for what, layer, head, position in [("key", 0, 0, 0), ("key", 2, 3, 99), ("value", 1, 2, 64), ("value", 2, 3, 63)]:
        place = (what, layer, head, position)
        elements = read(q8).elements(*place)
        assert any(elements) and elements == read(wide).elements(*place) == read(packed).elements(*place), place


def of_windows(stet, scratch):
    """Checks blocks without the layers that have a window: the same state, with the other layers
    readable."""
    whole, windows, packed = (os.path.join(scratch, name)
                              for name in ("whole.stet", "windows.stet", "windows-z.stet"))
    save = [
        "save", "-m", "tests/data/models/gemma3-tiny", "--ids", ",".join(str(7 * i % 250) for i in range(300)), "-o"
    ]
    run(stet, *save, whole)
    run(stet, *save, windows, "--window-only", "--checkpoint-every", "0")
    run(stet, "convert", windows, "--compress", "zlib", "-o", packed)
    layer = read(whole).held[0]
    for file in (windows, packed):
        compare(stet, file)
        run(stet, "check", file)
        run(stet, "diff", whole, file)
        assert read(file).as_json()["digests"] == read(whole).as_json()["digests"], file
        assert os.path.getsize(file) < os.path.getsize(whole), file
        for position in (0, 100, 299):
            assert read(file).elements("key", layer, 0, position) == read(whole).elements(
                "key", layer, 0, position
            ), position


def long_logs(stet, scratch):
    """Checks the chain of identities with prunes and an edit between tokens."""
    path = lambda name: os.path.join(scratch, name + ".stet")
    ids = lambda first, count: ",".join(str(3 + (first + i) % 200) for i in range(count))
    run(stet, "save", "-m", MODEL, "--ids", ids(0, 300), "--ctx", "700", "-o", path("a"))
    run(stet, "prune", path("a"), "--sinks", "10", "--keep-last", "200", "--positions", "shift", "-o", path("b"))
    run(stet, "resume", path("b"), "-m", MODEL, "--ids", ids(7, 150), "-n", "0", "--save", path("c"))
    run(stet, "prune", path("c"), "--sinks", "70", "--keep-last", "100", "-o", path("d"))
    run(stet, "resume", path("d"), "-m", MODEL, "--ids", ids(9, 90), "-n", "0", "--save", path("e"))
    run(stet, "prune", path("e"), "--sinks", "130", "--keep-last", "250", "--positions", "shift", "-o", path("f"))
    run(stet, "resume", path("f"), "-m", MODEL, "--ids", ids(5, 80), "-n", "0", "--save", path("g"))
    run(stet, "convert", path("g"), "--kv", "bf16", "-o", path("h"))
    for name in "abcdefgh":
        compare(stet, path(name))
    assert read(path("g")).as_json()["replayable"] and not read(path("h")).as_json()["replayable"]
    run(stet, "verify", path("g"), "-m", MODEL)


def of_penalties(stet, scratch):
    """Checks settings that weigh tokens: fields of `generation`, and the feature bit."""
    plain, weighed = (os.path.join(scratch, name) for name in ("plain.stet", "weighed.stet"))
    generate = ["generate", "-m", MODEL, "--ids", "1,2,3", "-n", "5", "--ignore-eos", "--save"]
    run(stet, *generate, plain, "--frequency-penalty", "0", "--logit-bias", "7=0")
    run(stet, *generate, weighed, "--frequency-penalty", "0.5", "--presence-penalty", "-0.25", "--logit-bias",
        "7=-100,17=2.5")
    for file in (plain, weighed):
        compare(stet, file)
        run(stet, "check", file)
    assert read(plain).sections.required & 32 == 0 and read(weighed).sections.required & 32 == 32
    settings = json.loads(run(stet, "inspect", weighed, "--json"))["sampling"]
    assert settings["logit_bias"] == {"7": -100, "17": 2.5} and settings["presence_penalty"] == -0.25, settings


def refuses_damage(scratch):
    """Checks that one changed byte anywhere in the file is found."""
    with open(f"{SNAPSHOTS}/v3-full.stet", "rb") as file:
        data = file.read()
    for at in (0, 9, 60, 80, 100, 180, 200, 600, 2400, 2820, 2900, 3910, 10000, 65536, 120000, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 16
        try:
            Snapshot(bytes(damaged))
        except (Fault, ValueError, KeyError, struct.error):
            continue
        raise AssertionError(f"byte {at}: damage was not found")


def main():
    stet = sys.argv[1]
    files = sorted(glob.glob(f"{SNAPSHOTS}/v[34]-*.stet"))
    assert len(files) >= 17, f"{SNAPSHOTS}: {len(files)} files"
    for path in files:
        compare(stet, path)
    delta, parent = read(f"{SNAPSHOTS}/v3-delta.stet"), read(f"{SNAPSHOTS}/v3-full.stet")
    assert delta.elements("key", 1, 2, 5) is None
    assert delta.elements("key", 1, 2, 5, parent) == parent.elements("key", 1, 2, 5)
    with tempfile.TemporaryDirectory() as scratch:
        address(stet, scratch)
        of_q8(stet, scratch)
        of_windows(stet, scratch)
        long_logs(stet, scratch)
        of_penalties(stet, scratch)
        refuses_damage(scratch)
    print(f"{len(files)} files read as stet reads them")


if __name__ == "__main__":
    main()
