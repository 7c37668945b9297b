#!/usr/bin/env python3
"""Measures the quality of each type of keys and values on the 40 pocket conversations. Prints how
many greedy replies equal those of float32, the divergence from float32 (KL, nats), and the
likelihood.

    PYTHONPATH=python STET_LIBRARY=build/release/libstet.so.0 bench/kv_types.py      (from the root of the repository)
"""

import json

import numpy as np

import stet


def log_probabilities(model, kv, ids):
    logits = model.session(kv_type=kv).append(ids, logits=True)["logits"].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def greedy(model, kv, prompt, count):
    session, ids = model.session(kv_type=kv), []
    session.append(prompt)
    while len(ids) < count:
        ids.append(int(np.argmax(session.logits())))
        session.append(ids[-1:])
    return ids


def main():
    print("| model | kv | replies equal | KL, mean | KL, worst token | nats per token |\n|---|---|---|---|---|---|")
    for name in ("gemma3", "llama3"):
        model = stet.Model(f"assets/pocket-{name}")
        with open(f"tests/data/pocket/golden-{name}/conversations.json", encoding="utf-8") as file:
            conversations = json.load(file)
        exact = [log_probabilities(model, "f32", c["ids"]) for c in conversations]
        for kv in ("f32", "bf16", "f16", "q8"):
            equal = sum(greedy(model, kv, c["prompt_ids"], len(c["greedy"])) == c["greedy"] for c in conversations)
            far, surprise = [], []
            for c, p in zip(conversations, exact):
                q = log_probabilities(model, kv, c["ids"])
                far.append((np.exp(p) * (p - q)).sum(axis=1))
                surprise.append(-q[np.arange(len(q) - 1), c["ids"][1:]])
            far, surprise = np.concatenate(far), np.concatenate(surprise)
            print(f"| pocket-{name} | {kv} | {equal} of {len(conversations)} | {far.mean():.1e} | {far.max():.1e} | "
                  f"{surprise.mean():.6f} |", flush=True)


if __name__ == "__main__":
    main()
