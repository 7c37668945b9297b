"""The Python package, its examples, and the adapter for `stet equivalence --against`.

    test_python.py STET LIBRARY ROOT
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

STET, LIBRARY, ROOT = sys.argv[1:4]
os.environ.update(STET_LIBRARY=LIBRARY, PYTHONPATH=os.path.join(ROOT, "python"))
sys.path.insert(0, os.path.join(ROOT, "python"))
import numpy as np  # noqa: E402
import stet  # noqa: E402

POCKET = os.path.join(ROOT, "assets/pocket-gemma3")
TINY = os.path.join(ROOT, "tests/data/models/gpt2-tiny")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, content):
    with open(path, "wb") as file:
        file.write(content if isinstance(content, (bytes, bytearray)) else json.dumps(content).encode())


def run(*command, status=0, **more):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **more)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.tokenizer = stet.Model(POCKET), stet.Tokenizer(POCKET)
        cls.ids = cls.tokenizer.encode("Let a = 3. Let b = 8. What is a? " * 4)

    def session(self, count=None, **options):
        s = self.model.session(capacity=512, **options)
        s.append(self.ids[:count])
        return s

    def test_states_are_values(self):
        with tempfile.TemporaryDirectory() as directory:
            s = self.session()
            fork = s.fork()
            reply = s.generate(self.tokenizer, 12)
            self.assertEqual(fork.generate(self.tokenizer, 12).text, reply.text)
            self.assertIsNone(s.difference(fork))
            self.assertIsNone(s.verify())
            for form in ("full", "recipe"):
                path = os.path.join(directory, form + ".stet")
                digests = s.save(path, self.tokenizer, form)
                with stet.Snapshot(path) as snapshot:
                    self.assertEqual(snapshot.digests().id, digests.id)
                    again = snapshot.restore(self.model, self.tokenizer)
                self.assertEqual(again.digests(), s.digests())
            said = json.loads(run(STET, "verify", path, "-m", POCKET, "--json"))
            self.assertTrue(said["equal"] if "equal" in said else said)
            s.rewind(self.ids.size)
            self.assertEqual(s.digests().kv, self.session().digests().kv)
            self.assertGreater(s.prune(16, sinks=4), 0)
            self.assertEqual(s.difference(fork).what, "prunes[0]")

    def test_sampling_is_a_function_of_seed_and_position(self):
        replies = []
        for seed in (1, 1, 2):
            s = self.session()
            s.sampling = stet.Sampling(greedy=False, temperature=3.0, seed=seed)
            self.assertEqual(s.sampling.seed, seed)
            replies.append(s.generate(self.tokenizer, 10, ignore_eos=True).ids.tolist())
        self.assertEqual(replies[0], replies[1])
        self.assertNotEqual(replies[0], replies[2])

    def test_captures_are_those_of_the_command_and_of_any_chunks(self):
        points = ["blocks.*.hook_resid_post", "blocks.2.attn.hook_pattern", "blocks.1.attn.hook_k"]
        one = self.model.session(chunk=1).append(self.ids, points=points, logits=True)
        many = self.model.session(chunk=64, threads=2).append(self.ids, points=points, logits=True)
        with tempfile.TemporaryDirectory() as directory:
            run(STET, "capture", "-m", POCKET, "--ids", ",".join(map(str, self.ids)), "--points", ",".join(points), "-o", directory + "/npy/")
            for name in one:
                self.assertTrue(np.array_equal(one[name], many[name]), name)
                if name != "logits":
                    self.assertTrue(np.array_equal(one[name], np.load(directory + "/npy/" + name + ".npy")), name)
        self.assertEqual(one["blocks.2.attn.hook_pattern"].shape, (self.ids.size, self.model.heads, self.ids.size))
        self.assertLess(abs(one["blocks.2.attn.hook_pattern"].sum(-1) - 1).max(), 1e-5)
        last = one["blocks.%d.hook_resid_post" % (self.model.layers - 1)]
        self.assertTrue(np.array_equal(self.session().lens(last), one["logits"]))

    def test_keys_and_values(self):
        s = self.model.session()
        seen = s.append(self.ids[:20], points=["blocks.1.attn.hook_rot_k", "blocks.1.attn.hook_v"])
        self.assertTrue(np.array_equal(s.keys(1), seen["blocks.1.attn.hook_rot_k"]))
        self.assertTrue(np.array_equal(s.values(1), seen["blocks.1.attn.hook_v"]))
        x = np.arange(self.model.head_dim, dtype=np.float32)
        s.set_key(1, 0, 5, x)
        self.assertTrue(np.array_equal(s.keys(1)[5, 0], x))
        self.assertEqual(s.edits, 1)

    def test_batches_mix_interventions(self):
        change = stet.Intervention("hook_resid_mid", "add", np.full(self.model.hidden_size, 0.5, np.float32), layers=[2, 3], begin=4)
        alone, a, b = self.model.session(), self.model.session(), self.model.session()
        for s in (alone, a):
            s.attach(change)
        alone.append(self.ids)
        stet.append_batch([(a, self.ids), (b, self.ids)])
        self.assertIsNone(alone.difference(a))
        self.assertIsNone(self.session().difference(b))
        self.assertIsNotNone(a.difference(b))

    def test_errors_say_what_was_expected(self):
        for call, kind, found in ((lambda: stet.Model("/nowhere"), "io", ""), (lambda: self.session().append([1 << 20]), "argument", str(1 << 20)),
                                  (lambda: self.session().append([1], points=["blocks.99.hook_z"]), "argument", "blocks.99.hook_z"),
                                  (lambda: self.session().attach(stet.Intervention("attn.hook_z", "add", np.zeros(3))), "argument", "3"),
                                  (lambda: self.session().attach(stet.Intervention("attn.hook_z", "turn")), "argument", "turn"),
                                  (lambda: self.session().rewind(-1), "argument", "-1")):
            with self.assertRaises(stet.Error) as caught:
                call()
            self.assertEqual(caught.exception.kind, kind)
            self.assertIn(found, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        self.assertNotIn("blocks.0.attn.hook_rot_q", stet.Model(TINY).points())


class Examples(unittest.TestCase):
    def test_the_logit_lens_ends_in_the_models_own_logits(self):
        self.assertIn("blocks.8.hook_resid_post", run(sys.executable, "examples/python/logit_lens.py", POCKET))

    def test_a_steered_state_is_kept(self):
        self.assertIn("the same bits", run(sys.executable, "examples/python/steering.py", POCKET))

    def test_where_the_value_is_read(self):
        said = run(sys.executable, "examples/python/patching.py", POCKET)
        self.assertIn("the value is kept at position 9, and read into position 23 by the layers before layer 6", said)
        said = run(sys.executable, "examples/python/patching.py", os.path.join(ROOT, "assets/pocket-llama3"))
        self.assertIn("the value is kept at position 20, and read into position 56 by the layers before layer 2", said)

    def test_equivalence_of_another_program(self):
        adapter = "%s examples/equivalence/with_stet.py %s" % (sys.executable, POCKET)
        prompt = ["-p", "Let a = 3. Let b = 9. What is a? What is b? Tell me more."]
        rows = json.loads(run(STET, "equivalence", "-m", POCKET, *prompt, "--json", "--against", adapter))
        self.assertEqual(len(rows), 10)
        self.assertTrue(all(row["same_bits"] and row["same_token"] for row in rows), rows)
        # One that computes otherwise when tokens come one by one, and one that cannot save.
        other = adapter + """ | %s -uc 'import json,sys
for i, line in enumerate(sys.stdin):
    a = json.loads(line)
    if i == 2: a["logits"][0] += 1e-3
    print(json.dumps({"unsupported": True} if i == 7 else a), flush=True)'""" % sys.executable
        rows = json.loads(run(STET, "equivalence", "-m", POCKET, *prompt, "--json", "--against", other, status=1))
        self.assertEqual([row["way"] for row in rows if not row.get("same_bits", True)], ["one token at a time"])
        self.assertTrue(any(row.get("unsupported") for row in rows))
        for broken in ("true", "echo nothing", "echo '{}'", "echo '{\"logits\": [\"x\"]}'"):
            done = subprocess.run([STET, "equivalence", "-m", POCKET, *prompt, "--against", broken], capture_output=True, text=True, cwd=ROOT)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)


class Wheel(unittest.TestCase):
    def test_the_wheel_holds_the_library_and_runs(self):
        with tempfile.TemporaryDirectory() as d:
            run(sys.executable, os.path.join(ROOT, "python/backend.py"), d)
            (name,) = os.listdir(d)
            self.assertRegex(name, r"^stet-[0-9.]+-py3-none-.*\.whl$")
            with zipfile.ZipFile(os.path.join(d, name)) as wheel:
                wheel.extractall(d + "/site")
            alone = {k: v for k, v in os.environ.items() if k != "STET_LIBRARY"}
            alone["PYTHONPATH"] = d + "/site"
            code = "import stet, sys; print(stet.__file__, stet.Model(sys.argv[1]).layers)"
            self.assertIn(d + "/site", run(sys.executable, "-c", code, POCKET, env=alone))


class Commands(unittest.TestCase):
    def test_export_import(self):
        with tempfile.TemporaryDirectory() as d:
            run(STET, "save", "-m", POCKET, "-p", "Let a = 3. What is a?", "-o", d + "/s.stet")
            run(STET, "export", d + "/s.stet", "-o", d + "/f.safetensors")
            run(STET, "import", d + "/s.stet", d + "/f.safetensors", "-o", d + "/same.stet")
            names = [json.loads(run(STET, "inspect", d + "/" + f, "--json"))["id"] for f in ("s.stet", "same.stet")]
            self.assertEqual(names[0], names[1])
            raw = bytearray(read(d + "/f.safetensors"))
            length = int.from_bytes(raw[:8], "little")
            header = json.loads(raw[8 : 8 + length])
            at = 8 + length + header["blocks.1.v"]["data_offsets"][0]
            self.assertEqual(header["blocks.1.v"]["shape"][1:], [1, 64])
            raw[at : at + 4] = np.float32(0.25).tobytes()
            write(d + "/g.safetensors", raw)
            run(STET, "import", d + "/s.stet", d + "/g.safetensors", "-o", d + "/t.stet")
            t = json.loads(run(STET, "inspect", d + "/t.stet", "--json"))
            self.assertEqual([(e["what"], e["layer"], e["position"]) for e in t["edits"]], [("value", 1, 0)])
            self.assertFalse(t["replayable"])
            raw[at : at + 4] = np.float32("nan").tobytes()
            write(d + "/g.safetensors", raw)
            done = subprocess.run([STET, "import", d + "/s.stet", d + "/g.safetensors", "-o", d + "/u.stet"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("finite", done.stderr)
            self.assertFalse(os.path.exists(d + "/u.stet"))

    def test_interventions_from_a_file(self):
        with tempfile.TemporaryDirectory() as d:
            text = ["-m", POCKET, "-p", "Let a = 3. What is a?"]
            run(STET, "capture", *text, "--points", "blocks.3.hook_resid_post", "-o", d + "/c.safetensors")
            changes = [{"point": "blocks.4.hook_resid_pre", "from": 2, "op": "add", "amount": 0.5, "values": {"file": "c.safetensors", "tensor": "blocks.3.hook_resid_post", "rows": [3, 4]}},
                       {"point": "attn.hook_z", "layers": [1], "heads": [0, 2], "op": "zero"},
                       {"point": "mlp.hook_post", "layers": [0], "op": "scale", "amount": 0.5, "positions": [0, 5]}]
            write(d + "/i.json", changes)
            run(STET, "generate", *text, "-n", "6", "--intervene", d + "/i.json", "--save", d + "/s.stet")
            self.assertEqual(len(json.loads(run(STET, "inspect", d + "/s.stet", "--json"))["interventions"]), 3)
            run(STET, "verify", d + "/s.stet", "-m", POCKET)
            run(STET, "resume", d + "/s.stet", "-m", POCKET, "-n", "3")
            plain, changed = (json.loads(run(STET, "measure", *text, "--tokens", "--json", *more)) for more in ([], ["--intervene", d + "/i.json"]))
            self.assertNotEqual(plain, changed)
            for bad, word in (([{"point": "hook_nowhere", "op": "zero"}], "point"), ([{"point": "hook_z", "op": "zero"}], "point"), ([{"point": "attn.hook_z", "op": "turn"}], "op"),
                              ([{"point": "attn.hook_z", "heads": [9], "op": "zero"}], "heads"), ([{"point": "hook_resid_mid", "op": "add", "values": [1, 2]}], "values"),
                              ([{"point": "hook_resid_mid", "op": "add", "values": {"file": "c.safetensors", "tensor": "x"}}], "x"), ([{"point": "attn.hook_pattern", "op": "zero"}], "point")):
                write(d + "/b.json", bad)
                done = subprocess.run([STET, "generate", *text, "--intervene", d + "/b.json"], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr.count("\n"), done.stdout), (1, 1, ""), done.stderr)
                self.assertIn(word, done.stderr)

    def test_measures_add_up(self):
        text = ["-m", POCKET, "-p", "Let a = 3. What is a?"]
        j = json.loads(run(STET, "measure", *text, "--attribution", "--json"))
        self.assertAlmostEqual(j["sum"], j["logit"], delta=1e-4 * max(1, abs(j["logit"])))
        lens = json.loads(run(STET, "measure", *text, "--lens", "--json"))
        tokens = json.loads(run(STET, "measure", *text, "--tokens", "--json"))
        self.assertEqual([row["best"] for row in lens if row["layer"] == 8], [row["best"] for row in tokens])
        with tempfile.TemporaryDirectory() as d:
            run(STET, "save", *text, "-o", d + "/s.stet")
            same = json.loads(run(STET, "measure", "-m", POCKET, "--from", d + "/s.stet", "--kl", d + "/s.stet", "--json"))
            self.assertEqual((same["kl"], same["same_bits"]), (0, True))
            for what in ("--attention", "--norms", "--lens"):
                run(STET, "measure", *text, what, "--html", d + "/p.html")
                page = read(d + "/p.html").decode()
                self.assertNotIn("http", page.replace("http://www.w3.org", ""))
                self.assertGreater(len(json.loads(page.split('id="data">')[1].split("</script>")[0])["maps"]), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
