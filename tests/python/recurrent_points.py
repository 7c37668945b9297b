"""Compares points of recurrent layers, and changes there, with tests/data/points/recurrent, which a
float64 reference made."""
import glob
import json
import os
import subprocess
import tempfile
import unittest

import common
import numpy as np
import stet
from package import tensors

IDS = [(11 * i + 3) % 300 for i in range(24)]
POSITIONS = [13, 23]  # hook_state: the first of them
CHANGES = {
    "state_scaled": stet.Intervention("blocks.0.hook_state", "scale", amount=0.25, begin=9, end=10, heads=[1]),
    "state_zeroed": stet.Intervention("blocks.0.hook_state", "zero", begin=20, end=22),
    "state_set": stet.Intervention("blocks.0.hook_state", "set", [0.125], begin=12, end=13, heads=[0, 2]),
    "conv_scaled": stet.Intervention("blocks.0.hook_conv", "scale", amount=-0.5, begin=7, end=9),
    "beta_scaled": stet.Intervention("blocks.0.hook_beta", "scale", amount=0.25, begin=5, end=20),
    "decay_set": stet.Intervention("blocks.0.hook_decay", "set", [0.5], begin=5, end=8),
}


class RecurrentPoints(unittest.TestCase):
    def close(self, got, expected, what):
        expected = expected.astype(np.float64)
        limit = 1e-4 * max(1, np.sqrt((expected * expected).mean()))
        self.assertEqual(got.size, expected.size, what)
        self.assertLessEqual(np.abs(got.reshape(expected.shape) - expected).max(), limit, what)

    def test_values_are_those_of_the_reference(self):
        files = sorted(glob.glob(os.path.join(common.ROOT, "tests/data/points/recurrent/*.safetensors")))
        self.assertGreaterEqual(len(files), 3)
        for path in files:
            expected, model = tensors(path), stet.Model(common.tiny(os.path.basename(path)[:-len(".safetensors")]))
            names = {name for name in expected if "hook_" in name}
            self.assertEqual(names, {name for name in model.points() if name.split(".")[-1] in
                                     ("hook_conv", "hook_beta", "hook_decay", "hook_state")})
            has_states = any(name.endswith("hook_state") for name in names)
            found = model.session().append(IDS, points=sorted(names),
                                           state_positions=POSITIONS[:1] if has_states else [])
            for name in names:
                rows = found[name] if name.endswith("hook_state") else found[name][POSITIONS]
                self.close(rows, expected[name], (path, name))
            for name in expected.keys() - names:
                self.changed(model, CHANGES[name], expected[name], (path, name))

    def changed(self, model, change, expected, what):
        """Compares the logits under a change, whose values stand for a whole row."""
        width = model.point(change.point).width // (model.point(change.point).heads if change.heads else 1)
        if change.values is not None:
            change = stet.Intervention(change.point, change.op, np.full(width, change.values[0], np.float32),
                                       begin=change.begin, end=change.end, heads=change.heads)
        s = model.session()
        s.attach(change)
        s.append(IDS)
        self.close(s.logits(), expected, what)
        self.assertTrue(s.verify().whole, what)
        self.assertEqual(s.edits, 0)

    def test_the_command_captures_and_changes_the_same(self):
        path = common.tiny("granite-odd-tiny")
        model, ids = stet.Model(path), ["--ids", ",".join(map(str, IDS))]
        with tempfile.TemporaryDirectory() as d:
            def run(*command, status=0):
                done = subprocess.run([common.STET, *command], cwd=d, capture_output=True, text=True)
                self.assertEqual(done.returncode, status, done.stderr)
                return done.stdout + done.stderr

            with open(os.path.join(d, "change.json"), "w") as file:
                json.dump([{"point": "blocks.0.hook_state", "op": "zero", "positions": [20, 22]}], file)
            run("capture", "-m", path, *ids, "--points", "*.hook_state", "--positions", "13,21", "--heads", "1,3",
                "--intervene", "change.json", "-o", "states.safetensors")
            s = model.session()
            s.attach(CHANGES["state_zeroed"])
            for name, rows in s.append(IDS, points=["*.hook_state"], state_positions=[13, 21]).items():
                found = tensors(os.path.join(d, "states.safetensors"))[name]
                self.assertTrue(np.array_equal(found, rows[:, [1, 3]]), name)
            run("capture", "-m", path, *ids, "--points", "*", "-o", "all.safetensors")
            self.assertFalse([name for name in tensors(os.path.join(d, "all.safetensors")) if "hook_state" in name])
            self.assertIn("blocks.0.hook_state needs --positions: each has 3072 numbers", run(
                "capture", "-m", path, *ids, "--points", "*.hook_state", "-o", "x.safetensors", status=2))
            self.assertIn("blocks.N.hook_state  [4, 768]  changed by interventions alone",
                          run("capture", "-m", path, "--list"))
            run("save", "-m", path, *ids, "--intervene", "change.json", "-o", "s.stet")
            run("verify", "s.stet", "-m", path)
            with stet.Snapshot(os.path.join(d, "s.stet")) as snapshot:
                self.assertEqual(snapshot.digests().kv, s.digests().kv)
                self.assertEqual(snapshot.digests().logits, s.digests().logits)


if __name__ == "__main__":
    common.main()
