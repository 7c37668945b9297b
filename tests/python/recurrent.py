"""Arrays of recurrent layers, and anchors, in Python."""
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
