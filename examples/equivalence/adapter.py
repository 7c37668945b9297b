"""The loop that adapters for `stet equivalence --against` share: one question a line in, one
answer a line out (docs/lab.md)."""
import json
import sys


def serve(whole):
    """Answers questions until the end of input. `whole(ids, cuts, question)` returns the logits
    after the last token, or None if it does not support the question."""
    for line in sys.stdin:
        question = json.loads(line)
        logits = whole(question["ids"], question["cuts"], question)
        print(json.dumps({"unsupported": True} if logits is None else {"logits": [float(x) for x in logits]}),
              flush=True)


def pieces(ids, cuts):
    ends = list(cuts) + [len(ids)]
    return [ids[begin:end] for begin, end in zip([0] + ends[:-1], ends)]
