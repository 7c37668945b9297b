"""Compares the adapter for lm-evaluation-harness (examples/evaluation/harness.py), and scoring,
with the pocket models in float64.

    evaluation.py STET LIBRARY ROOT [DIALOGUES]
"""
import json
import os
import subprocess
import sys
import types
import unittest

STET, LIBRARY, ROOT = sys.argv[1:4]
DIALOGUES = int(sys.argv[4]) if len(sys.argv) > 4 else 12
os.environ.update(STET_LIBRARY=LIBRARY)
sys.path[:0] = [
    os.path.join(ROOT, "python"),
    os.path.join(ROOT, "examples/evaluation"),
    os.path.join(ROOT, "tests/python")
]
import numpy as np  # noqa: E402
import stet  # noqa: E402
from float64 import Float64  # noqa: E402
from harness import StetLM  # noqa: E402

MODELS = [os.path.join(ROOT, "assets", name) for name in ("pocket-gemma3", "pocket-llama3")]


def request(*args):
    return types.SimpleNamespace(args=args)


def dialogues(lm, count):
    """Returns (context, continuation) pairs from the chat template, with right and wrong replies."""
    made = []
    for i in range(count):
        a, b, name = 3 + i % 17, 2 + i % 11, "kmxyz"[i % 5]
        messages = [{
            "role": "user",
            "content": "Let's start by defining a variable %s equal to %d. What is %s?" % (name, a, name)
        }, {"role": "assistant", "content": "%s is %d." % (name, a)}, {
            "role": "user", "content": "Now set a new variable n equal to %s multiplied by %d. What is n?" % (name, b)
        }][:1 + i % 2 * 2]
        right = a if len(messages) == 1 else a * b
        made.append((lm.apply_chat_template(messages),
                     "%s is %d." % (name if len(messages) == 1 else "n", right + i // 3 % 2)))
    return made


class Evaluation(unittest.TestCase):
    def check(self, directory):
        lm, reference = StetLM(directory, batch_size=7), Float64(directory)
        asked = dialogues(lm, DIALOGUES)
        found = lm.loglikelihood([request(*pair) for pair in asked])
        self.assertEqual(found, StetLM(directory, batch_size=1).loglikelihood([request(*pair) for pair in asked]))
        greedy = 0
        for (context, continuation), (total, is_greedy) in zip(asked, found):
            ids, begin = stet.encode_pair(lm.tokenizer, context, continuation)
            self.assertLess(begin, len(ids))
            rows = reference.log_probabilities(ids[:-1])[begin - 1:]
            expected = rows[np.arange(len(rows)), ids[begin:]].sum()
            self.assertAlmostEqual(total, expected, delta=1e-3 * max(1, abs(expected)))
            self.assertEqual(is_greedy, bool((rows.argmax(-1) == ids[begin:]).all()))
            greedy += is_greedy
        self.assertTrue(0 < greedy < len(found))

    def test_likelihoods_are_those_of_float64(self):
        for directory in MODELS:
            with self.subTest(directory):
                self.check(directory)

    def test_rolling_windows_cover_every_token_once(self):
        lm, reference = StetLM(MODELS[0], max_length=32), Float64(MODELS[0])
        text = "Let a = 3. What is a? a is 3. " * 6
        ids = lm.tokenizer.encode(text, bos=False)
        windows = lm.windows(text)
        self.assertGreater(len(windows), 2)
        self.assertEqual([i for _, scored in windows for i in scored], ids.tolist())
        self.assertEqual(max(len(context) + len(scored) for context, scored in windows), 33)
        expected = 0
        for context, scored in windows:
            all = np.array([*context, *scored])
            rows = reference.log_probabilities(all[:-1])[len(context) - 1:]
            expected += rows[np.arange(len(rows)), all[len(context):]].sum()
        self.assertAlmostEqual(lm.loglikelihood_rolling([request(text)])[0], expected, delta=1e-3 * abs(expected))
        self.assertEqual(lm.loglikelihood_rolling([request("")]), [0])

    def test_replies_end_where_they_are_told_to(self):
        lm = StetLM(MODELS[0], batch_size=2)
        context = lm.apply_chat_template([{"role": "user", "content": "Let a = 3. What is a?"}])
        whole, cut, short = lm.generate_until([
            request(context, {"until": [], "max_gen_toks": 20}),
            request(context, {"until": [" is"], "max_gen_toks": 20}),
            request(context, {"until": [], "max_gen_toks": 2})
        ])
        self.assertIn(" is", whole)
        self.assertEqual(cut, whole[:whole.index(" is")])
        self.assertTrue(short != whole and whole.startswith(short))

    def test_scores_are_the_same_everywhere(self):
        model, tokenizer = stet.Model(MODELS[0]), stet.Tokenizer(MODELS[0])
        pairs = [("Let a = 3. What is a?", " a is 3."), ("Let a = 3. What is a?", " a is 4."),
                 ("Let b = 5.", " What is b?")]
        texts = ["Let a = 3. What is a?", "Let b"]
        found = stet.score(model, [*pairs, *texts], tokenizer)
        for batch in (1, 2, 64):
            again = stet.score(model, [*pairs, *texts], tokenizer, batch=batch)
            self.assertEqual(
                [(s.sum, s.log_probabilities.tolist(), s.best.tolist()) for s in again],
                [(s.sum, s.log_probabilities.tolist(), s.best.tolist()) for s in found],
            )
        lines = [{"context": a, "continuation": b} for a, b in pairs] + [
            {"text": t, "id": i} for i, t in enumerate(texts)
        ]
        said = subprocess.run(
            [STET, "score", "-m", MODELS[0], "--jsonl", "--batch", "3"],
            input="\n".join(map(json.dumps, lines)),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for line, score in zip(map(json.loads, said.splitlines()), found):
            self.assertEqual((line["sum"], line["greedy"], line["logprobs"]),
                             (score.sum, score.greedy, score.log_probabilities.tolist()))
            self.assertEqual((line["ids"], line["best"]), (score.ids.tolist(), score.best.tolist()))
        with model.session() as before:
            before.append(tokenizer.encode(texts[0]))
            ids = stet.encode_pair(tokenizer, *pairs[0])[0]
            behind = stet.score(before, [ids[len(before):], (ids[len(before):-2], ids[-2:])])
            self.assertEqual((behind[0].sum, behind[1].log_probabilities.tolist()),
                             (found[0].sum, found[0].log_probabilities[-2:].tolist()))
            self.assertEqual(len(before), len(tokenizer.encode(texts[0])))
        for wrong, field in (([("a", [1])], "requests"), (["a"], "tokenizer"), ([[1, 99999]], "requests"),
                             ("text", "requests")):
            with self.assertRaises(stet.Error) as raised:
                stet.score(model, wrong, None if field == "tokenizer" else tokenizer)
            self.assertTrue(str(raised.exception).startswith(field), raised.exception)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
