"""Arrays of recurrent layers, and anchors, in Python."""
import json
import os
import subprocess
import tempfile
import unittest

import common
import numpy as np
import stet
from package import tensors

IDS = [(i * 97 + 13) % 300 for i in range(150)]


class Recurrent(unittest.TestCase):
    refused = common.Case.refused

    def session(self, name="qwen35-tiny", count=150, **options):
        s = stet.Model(common.tiny(name)).session(**options)
        s.append(IDS[:count])
        return s

    def test_arrays_are_those_of_export(self):
        for name in ("qwen35-tiny", "granite-odd-tiny", "lfm2-tiny"):
            s = self.session(name)
            with tempfile.TemporaryDirectory() as d:
                path, out = os.path.join(d, "s.stet"), os.path.join(d, "s.safetensors")
                s.save(path)
                subprocess.run([common.STET, "export", path, "-o", out], check=True, capture_output=True)
                found = tensors(out)
            expected = {key for key in found if key.startswith("layers.")}
            self.assertEqual(expected, {"layers.%d.%s" % (layer, key) for layer in s.recurrent
                                        for key in s.recurrent[layer]}, name)
            for layer, arrays in s.recurrent.items():
                for key, x in arrays.items():
                    self.assertTrue(np.array_equal(x, found["layers.%d.%s" % (layer, key)]), (name, layer, key))
                    self.assertEqual(x.dtype, np.float32)

    def test_a_prune_computes_again(self):
        s = self.session(count=20)
        with self.assertRaises(stet.Error) as caught:
            s.prune(5)
        self.assertEqual(str(caught.exception), "prune: expected recompute, which processes the tokens that stay "
                         "anew: recurrent layers cannot forget tokens, found family qwen3_5")
        self.refused(lambda: s.prune(5, shift=True, recompute=True), "recompute", "expected False with shift")
        self.assertEqual(s.prune(5, sinks=4, recompute=True), 11)
        expected = self.session(count=4)
        expected.append(IDS[15:20])
        self.assertEqual(s.digests(), expected.digests())

    def test_a_set_array_is_an_edit(self):
        s = self.session("granite-odd-tiny", 100)
        plain = s.fork()
        x = s.recurrent[2]["state"]
        self.assertEqual(x.shape, (4, 32, 24))
        x[0] *= 0.5
        self.assertFalse(np.array_equal(s.recurrent[2]["state"], x))  # a copy
        s.set_recurrent(2, "state", x)
        self.assertTrue(np.array_equal(s.recurrent[2]["state"], x))
        self.assertEqual(s.edits, 1)
        self.assertNotEqual(s.digests().id, plain.digests().id)
        self.assertEqual(s.anchors[-1][::2], (100, False))
        s.append(IDS[100:])
        s.rewind(100)
        self.assertTrue(np.array_equal(s.recurrent[2]["state"], x))
        s.rewind(99)
        plain.rewind(99)
        self.assertEqual(s.digests(), plain.digests())
        for call, field, words in (
            (lambda: s.set_recurrent(1, "state", x), "layer", "0, 2, 3"),
            (lambda: s.set_recurrent(2, "keys", x), "name", "state or conv"),
            (lambda: s.set_recurrent(2, "state", x[0]), "x", "(4, 32, 24)"),
            (lambda: s.set_recurrent(2, "state", x * np.nan), "state", "finite"),
            (lambda: s.set_recurrent(0.5, "state", x), "layer", "integer"),
        ):
            self.refused(call, field, words)
        with self.assertRaises(KeyError):
            s.recurrent[1]
        self.assertEqual(s.digests(), plain.digests())

    def test_anchors_and_what_a_rewind_costs(self):
        s = self.session()
        self.assertEqual([a.position for a in s.anchors], [64, 128])
        self.assertEqual((s.rewind_cost(130), s.rewind_cost(100)), (2, 36))
        s.keep_anchor()
        self.assertEqual(s.anchors[-1], (150, 3 * 4 * (4 * 16 * 16 + 3 * 128), True))
        self.assertEqual([a.position for a in s.fork().anchors], [64, 128, 150])
        none = self.session(anchor_bytes=-1)
        self.assertEqual((none.anchors, none.rewind_cost(130)), ([], 130))
        self.assertEqual(len(self.session(anchor_bytes=20000).anchors), 1)
        none.rewind(130)
        s.rewind(130)
        self.assertEqual(none.digests(), s.digests())

    def test_states_are_captured_where_asked(self):
        s = stet.Model(common.tiny("granite-odd-tiny")).session()
        found = s.append(IDS, points=["blocks.*.hook_state", "blocks.0.*"], state_positions=[20, 149])
        self.assertEqual([name for name in found if "state" in name], ["blocks.%d.hook_state" % i for i in (0, 2, 3)])
        self.assertEqual(found["blocks.0.hook_beta"].shape, (150, 4, 1))
        self.assertEqual(found["blocks.0.hook_conv"].shape, (150, 4 * 32 + 2 * 2 * 24))
        for layer, arrays in s.recurrent.items():
            x = found["blocks.%d.hook_state" % layer]
            self.assertEqual(x.shape, (2, 4, 32 * 24))
            self.assertTrue(np.array_equal(x[1].reshape(4, 32, 24), arrays["state"]))
        patterns = stet.Model(common.tiny("granite-odd-tiny")).session().append(IDS[:9], points=["*"])
        self.assertFalse([name for name in patterns if name.endswith("hook_state")])
        self.refused(lambda: s.append([5], points=["*.hook_state"]), "points[0]", "state_positions", "12288 bytes")
        self.refused(lambda: stet.append_batch([(s, [5])], points=["blocks.0.hook_state"]), "points[0]",
                     "state_positions")
        self.refused(lambda: s.append([5], points=["*.hook_state"], state_positions=[0.5]), "state_positions[0]")
        for positions, field in (([150, 151], "[1]"), ([149], "[0]"), ([-1], "[0]"), ([150, 150], "[1]")):
            self.refused(lambda: s.append([5], points=["*.hook_state"], state_positions=positions),
                         "state_positions" + field)
        self.refused(lambda: s.append([5], points=["hook_embed"], state_positions=[150]), "state_positions",
                     "hook_state")
        self.assertEqual(len(s), 150)

    def test_states_are_captured_in_a_batch(self):
        model, points = stet.Model(common.tiny("granite-odd-tiny")), ["*.hook_state", "blocks.0.hook_beta"]
        sessions, alone = [model.session() for _ in range(2)], [model.session() for _ in range(2)]
        for s in (sessions[1], alone[1]):
            s.append(IDS[:20])
        entries, positions = [(sessions[0], IDS), (sessions[1], IDS[20:30])], [[149, 3], [29]]
        for (_, ids), one, at, found in zip(entries, alone, positions,
                                            stet.append_batch(entries, points, state_positions=positions)):
            expected = one.append(ids, points, state_positions=at)
            self.assertEqual([*found], [*expected])
            for name, rows in expected.items():
                self.assertEqual((found[name].shape, found[name].tobytes()), (rows.shape, rows.tobytes()), name)
        self.assertEqual([s.digests() for s in sessions], [s.digests() for s in alone])
        two = [(s, [5]) for s in sessions]
        for given, field in (([[150]], "state_positions"), ([[150], [31]], "state_positions[1][0]"),
                             ([[150], 30], "state_positions[1]"), (5, "state_positions")):
            self.refused(lambda: stet.append_batch(two, points, given), field)
        self.refused(lambda: stet.append_batch(two, ["hook_embed"], [[150], []]), "state_positions[0]", "hook_state")
        self.refused(lambda: stet.generate_batch(sessions, points=["*.hook_state"]), "points[0]", "drawn token")
        self.assertEqual([len(s) for s in sessions], [150, 30])

    def test_an_edit_whose_logits_cannot_be_had_says_so(self):
        s = self.session(count=5)
        with s.changing(["hook_embed"], lambda point, first, rows: None):
            s.append(IDS[5:9])
        with tempfile.TemporaryDirectory() as d:
            a, b = os.path.join(d, "a.stet"), os.path.join(d, "b.stet")
            s.save(a)
            edit = [common.STET, "edit", a, "-m", common.tiny("qwen35-tiny"), "--scale", "2", "-o", b]
            said = subprocess.run(edit, check=True, capture_output=True, text=True).stdout
            self.assertIn("next token: unknown", said)
            self.assertNotIn("KL", said)
            said = json.loads(subprocess.run(edit + ["--json"], check=True, capture_output=True).stdout)
            self.assertEqual((said["kl"], said["best"]), (None, None))
            with stet.Snapshot(b) as snapshot:
                self.assertEqual(snapshot.digests().logits, s.digests().logits)

    def test_states_can_be_changed(self):
        s, plain = (stet.Model(common.tiny("granite-odd-tiny")).session() for _ in range(2))
        point = "blocks.2.hook_state"
        before = plain.append(IDS, points=[point], state_positions=[30])[point][0]
        s.append(IDS[:20])
        s.attach(stet.Intervention(point, "set", before[[1]] * np.float32(0.5), heads=[1], begin=30, end=31),
                 stet.Intervention(point, "zero", begin=40, end=41, heads=[0, 3]))
        found = s.append(IDS[20:], points=[point], state_positions=[30, 40])[point]
        self.assertTrue(np.array_equal(found[0, 1], before[1] * np.float32(0.5)))
        self.assertFalse(found[1, [0, 3]].any())
        self.assertTrue(found[1, [1, 2]].all())
        self.assertNotEqual(s.digests().id, plain.digests().id)
        self.assertTrue(s.verify().whole)
        self.assertEqual(s.edits, 0)
        self.refused(lambda: s.attach(stet.Intervention(point, "add", before)), "intervention: op", "set or scale")

    def test_everything_says_what_it_is(self):
        s = self.session()
        self.assertEqual(repr(s.recurrent),
                         "<stet.RecurrentArrays of 3 layers, each state [4, 16, 16] and conv [3, 128]>")
        self.assertEqual((list(s.recurrent), len(s.recurrent)), ([0, 1, 2], 3))
        self.assertIn(", 2 anchors>", repr(s))
        plain = stet.Model(common.tiny("gemma3-tiny")).session()
        self.assertEqual((dict(plain.recurrent), plain.anchors), ({}, []))
        self.assertEqual(repr(plain.recurrent), "<stet.RecurrentArrays of 0 layers>")
        plain.keep_anchor()
        self.refused(lambda: plain.set_recurrent(0, "state", []), "layer", "(none)")
        self.assertNotIn("anchor", repr(plain))


if __name__ == "__main__":
    common.main()
