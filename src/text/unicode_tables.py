#!/usr/bin/env python3
"""unicode_tables.py: writes src/text/unicode_tables.inc from Python's unicodedata.

It requires the Python whose unicodedata has the VERSION below, which is 3.11. Another version of Unicode would mean
other ids for some texts.
"""
import os
import sys
import unicodedata

VERSION = "14.0.0"
BLOCK = 128  # code points of a block
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "unicode_tables.inc")
SURROGATES = range(0xD800, 0xE000)


def character_class(char):
    category = unicodedata.category(char)
    if category[0] in "LN":
        return 1 + "LN".index(category[0])
    return 3 if category[0] == "Z" or char in "\t\n\v\f\r\x85" else 0


def later_parts():
    """Returns the code points that canonical compositions have anywhere but at their beginning."""
    parts = set()
    for code in range(0x110000):
        if code not in SURROGATES:
            parts.update(unicodedata.normalize("NFD", chr(code))[1:])
    return parts


def main():
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"unicode_tables.py: expected Unicode {VERSION}, found {unicodedata.unidata_version}")
    composed = later_parts()

    def entry(code):
        char = chr(code)
        # NFC leaves a text unchanged under these conditions, and no later version of Unicode may change that (UAX #15,
        # stability). Each character is assigned, has combining class 0, is its own NFC and ends no composition.
        nfc_may_change = (code in SURROGATES or unicodedata.category(char) == "Cn" or unicodedata.combining(char) != 0
                          or char in composed or unicodedata.normalize("NFC", char) != char)
        return character_class(char) | (4 if nfc_may_change else 0)

    blocks, places = {}, []
    for first in range(0, 0x110000, BLOCK):
        block = tuple(entry(code) for code in range(first, first + BLOCK))
        places.append((block, any(value & 3 for value in block)))
    while not places[-1][1]:
        places.pop()
    index = [blocks.setdefault(block, len(blocks)) for block, _ in places]
    assert len(blocks) <= 256
    words = []
    for block in blocks:
        for first in range(0, BLOCK, 16):
            words.append(sum(value << 4 * i for i, value in enumerate(block[first:first + 16])))

    def rows(items, count):
        return [" ".join(items[i:i + count]) + "\n" for i in range(0, len(items), count)]

    with open(OUT, "w", encoding="ascii") as out:
        out.write(f"// Written by src/text/unicode_tables.py from Unicode {VERSION}.\n// clang-format off\n")
        out.write(f'const char kUnicodeVersion[] = "{VERSION}";\n')
        out.write(f"const uint8_t kUnicodeBlocks[] = {{  // of {BLOCK} code points each\n")
        out.writelines(rows([f"{i}," for i in index], 32))
        out.write("};\n")
        out.write("const uint64_t kUnicodeNibbles[] = {  // one for each code point of a block, the lowest first\n")
        out.writelines(rows([f"0x{word:x}," for word in words], 8))
        out.write("};\n")
    print(f"{len(index)} blocks, {len(blocks)} of them different")


if __name__ == "__main__":
    main()
