#!/usr/bin/env python3
"""Reduces a tokenizer.json to the parts that its golden texts need, and writes the short texts
with their ids.

    reduce_tokenizer.py DIRECTORY OUT

DIRECTORY holds tokenizer.json, tokenizer_config.json and golden.json, transformers' results. A
merge can only apply to a text that contains its result, so leaving out all others changes
nothing. Ids are renumbered in the old order.
"""
import json
import os
import sys

LONGEST = 40  # characters of a text that is kept


def byte_alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def main(directory, out):
    tokenizer = json.load(open(f"{directory}/tokenizer.json", encoding="utf-8"))
    config = json.load(open(f"{directory}/tokenizer_config.json", encoding="utf-8"))
    golden = json.load(open(f"{directory}/golden.json", encoding="utf-8"))["encode"]
    golden = [e for e in golden if len(e["text"]) <= LONGEST]
    model = tokenizer["model"]
    alphabet = byte_alphabet()
    if model.get("byte_fallback"):
        texts = [e["text"].replace(" ", "\u2581") for e in golden]
        always = {f"<0x{b:02X}>" for b in range(256)}
    else:
        texts = ["".join(alphabet[b] for b in e["text"].encode()) for e in golden]
        always = set(alphabet.values())
    parts = {t[i:i + n] for t in texts for n in range(1, 65) for i in range(len(t) - n + 1)}

    used = {i for e in golden for i in e["ids"] + e["with_special"]}
    named = {v for v in config.values() if isinstance(v, str)} | {model.get("unk_token")}
    model["vocab"] = {p: i for p, i in model["vocab"].items() if p in parts or p in always or p in named or i in used}
    pairs = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    model["merges"] = [
        " ".join(p) if not isinstance(m, list) else p for m, p in zip(model["merges"], pairs)
        if all(x in model["vocab"] for x in (p[0], p[1], p[0] + p[1]))
    ]
    added = [
        a for a in tokenizer["added_tokens"]
        if a["id"] in used or a["content"] in named or any(a["content"] in t for t in texts)
    ]
    ids = {i: n for n, i in enumerate(sorted(set(model["vocab"].values()) | {a["id"] for a in added}))}
    model["vocab"] = {p: ids[i] for p, i in model["vocab"].items()}
    tokenizer["added_tokens"] = [a | {"id": ids[a["id"]]} for a in added]

    def renumber(node):
        if isinstance(node, dict):
            for special in (node.get("special_tokens") or {}).values() if isinstance(
                    node.get("special_tokens"), dict) else ():
                special["ids"] = [ids[i] for i in special["ids"]]
            for value in node.values():
                renumber(value)
        elif isinstance(node, list):
            for value in node:
                renumber(value)

    renumber(tokenizer["post_processor"])
    for e in golden:
        for name in ("ids", "with_special"):
            e[name] = [ids[i] for i in e[name]]
    kept = ("bos_token", "eos_token", "unk_token", "add_bos_token", "add_eos_token", "tokenizer_class",
            "clean_up_tokenization_spaces")
    os.makedirs(out, exist_ok=True)
    for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json",
                                                        {k: config[k] for k in kept
                                                         if k in config}), ("golden.json", {"encode": golden})):
        with open(f"{out}/{name}", "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
