"""Traces of several prompts, changes and positions, and changes of attention, compared with full
computations."""
import unittest

import common
import numpy as np
import stet


class Sweeps(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.tokenizer = stet.Model(common.POCKET), stet.Tokenizer(common.POCKET)
        cls.prompts = [
            cls.tokenizer.encode(text) for text in ("Let a = 3. What is a?", "Let b = 8. Let c = 9. What is b?")
        ]

    def long_way(self, changes, ids):
        with self.model.session() as s:
            if changes:
                s.attach(*changes)
            s.append(ids)
            return s.logits().copy()

    def test_runs_of_several_changes_positions_and_prompts(self):
        zero = stet.Intervention("blocks.3.hook_mlp_out", "zero", begin=2)
        cut = stet.Intervention("blocks.5.attn.hook_attn_scores", "knock_out", begin=4, heads=[1], key_begin=1,
                                key_end=4)
        with self.model.session() as before, stet.Trace(before, self.prompts) as trace:
            self.assertEqual(repr(trace), "<stet.Trace of %d tokens, 2 prompts>" % sum(map(len, self.prompts)))
            runs = [stet.TraceRun([zero, cut], 0, [5, 3]), stet.TraceRun([cut], 1), stet.TraceRun([], 1, [2])]
            found = trace.run(runs)
            given = {}
            self.assertIsNone(trace.run(runs, given.__setitem__))
            for i, run in enumerate(runs):
                ids = self.prompts[run.prompt]
                for row, position in zip(found[i], sorted(run.positions) or [len(ids) - 1]):
                    np.testing.assert_array_equal(row, self.long_way(run.changes, ids[:position + 1]))
                np.testing.assert_array_equal(given[i], found[i])
            np.testing.assert_array_equal(trace.run([zero])[0], self.long_way([zero], self.prompts[0]))
            with self.assertRaises(stet.ArgumentError) as raised:
                trace.run([stet.TraceRun([], 2)])
            self.assertIn("runs[0]: prompt: expected one below 2, found 2", str(raised.exception))
            with self.assertRaises(stet.ArgumentError):
                trace.run([stet.TraceRun([]), zero])

    def test_attention_is_changed(self):
        point = "blocks.2.attn.hook_pattern"
        ids = self.prompts[1]
        for change in (stet.Intervention(point, "zero", key_begin=0, key_end=1),
                       stet.Intervention(point, "set", [0.5, 0.25], heads=[3], key_begin=0, key_end=2),
                       stet.Intervention("blocks.2.attn.hook_attn_scores", "knock_out", key_begin=0, key_end=1)):
            with self.model.session() as s:
                s.attach(change)
                self.assertEqual((s.attached()[0].intervention.key_end, s.attached()[0].intervention.heads),
                                 (change.key_end, list(change.heads)))
                pattern = s.append(ids, points=[point])[point][5]
                expected = [0.5, 0.25] if change.op == "set" else [0]
                np.testing.assert_array_equal(pattern[change.heads[0] if change.heads else 0][:len(expected)], expected)
                if change.op == "knock_out":
                    np.testing.assert_allclose(pattern.sum(-1), 1, rtol=1e-5)
                self.assertTrue(s.verify() is None or not s.verify())
        for wrong in (dict(op="mean", values=[1.0]), dict(op="set", values=[1.0, 2.0]), dict(op="knock_out"),
                      dict(op="zero", key_begin=3, key_end=2)):
            with self.assertRaises(stet.Error), self.model.session() as s:
                s.attach(stet.Intervention(point, **wrong))


if __name__ == "__main__":
    common.main()
