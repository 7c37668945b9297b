"""The Python package, its examples, and the adapter for `stet equivalence --against`.

    package.py STET LIBRARY ROOT
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zipfile

import numpy as np
from common import LIBRARY, POCKET, ROOT, STET, Case, main, stet, tiny

TINY = tiny("gpt2-tiny")


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


def tensors(path):
    """Returns the tensors of a safetensors file by name."""
    raw = read(path)
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    kinds = {"F32": "<f4", "I32": "<i4"}
    return {
        name: np.frombuffer(raw[begin:][slice(*t["data_offsets"])], kinds[t["dtype"]]).reshape(t["shape"])
        for name, t in header.items() if name != "__metadata__"
    }


class Package(Case):
    def test_states_are_values(self):
        with tempfile.TemporaryDirectory() as directory:
            s = self.session()
            fork = s.fork()
            reply = s.generate(self.tokenizer, 12)
            self.assertEqual(fork.generate(self.tokenizer, 12).text, reply.text)
            self.assertIsNone(s.difference(fork))
            self.assertTrue(s.verify().whole)
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

    def test_penalties_and_biases_are_part_of_the_state(self):
        s, plain = self.session(), self.session()
        plain.sampling = stet.Sampling(logit_bias={7: 0})
        self.assertEqual(plain.digests().id, s.digests().id)
        first = s.fork().generate(self.tokenizer, 1, ignore_eos=True).ids[0]
        s.sampling = stet.Sampling(frequency_penalty=0.5, presence_penalty=-0.25,
                                   logit_bias={int(first): -100, 3: 1.5, 2: 0})
        self.assertEqual(s.sampling.logit_bias, {int(first): -100.0, 3: 1.5})
        self.assertEqual((s.sampling.frequency_penalty, s.sampling.presence_penalty), (0.5, -0.25))
        self.assertNotIn(first, s.generate(self.tokenizer, 5, ignore_eos=True).ids)
        for field, wrong in (
            ("frequency_penalty", {"frequency_penalty": 2.5}),
            ("logit_bias", {"logit_bias": {1 << 32: 1}}),
            ("logit_bias", {"logit_bias": {10**6: 1}}),
            ("logit_bias[5]", {"logit_bias": {5: 101}}),
        ):
            with self.assertRaises(stet.Error) as e:
                s.sampling = stet.Sampling(**wrong)
            self.assertEqual(e.exception.field, field)

    def test_captures_are_those_of_the_command_and_of_any_chunks(self):
        points = ["blocks.*.hook_resid_post", "blocks.2.attn.hook_pattern", "blocks.1.attn.hook_k"]
        one = self.model.session(chunk=1).append(self.ids, points=points, logits=True)
        many = self.model.session(chunk=64, threads=2).append(self.ids, points=points, logits=True)
        with tempfile.TemporaryDirectory() as directory:
            run(STET, "capture", "-m", POCKET, "--ids", ",".join(map(str, self.ids)), "--points", ",".join(points),
                "-o", directory + "/npy/")
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

    def test_keys_and_values_of_layers_that_differ(self):
        for name, missing in (("gemma4-dense-tiny", []), ("gemma4-small-tiny", None), ("gemma3n-tiny", None),
                              ("qwen35-tiny", [0, 1, 2])):
            model = stet.Model(os.path.join(ROOT, "tests/data/models", name))
            for kv_type in ("f32", "bf16", "q8"):
                with tempfile.TemporaryDirectory() as d, model.session(capacity=100, kv_type=kv_type) as s:
                    s.append(range(3, 73))
                    s.save(d + "/s.stet")
                    run(STET, "export", d + "/s.stet", "-o", d + "/f.safetensors")
                    exported, without = tensors(d + "/f.safetensors"), []
                    for layer in range(model.layers):
                        if "blocks.%d.k" % layer not in exported:
                            without.append(layer)
                            for wrong in (s.keys, s.values):
                                with self.assertRaises(stet.Error):
                                    wrong(layer)
                            continue
                        self.assertTrue(np.array_equal(s.keys(layer), exported["blocks.%d.k" % layer]), (name, layer))
                        self.assertTrue(np.array_equal(s.values(layer), exported["blocks.%d.v" % layer]), (name, layer))
                    self.assertTrue(without if missing is None else without == missing, (name, without))
                    with self.assertRaises(stet.Error) as caught:
                        s.block(0)
                    self.assertEqual(caught.exception.field, "kv_type" if kv_type == "q8" else "model")

    def test_views_stay_as_they_are_and_cannot_be_written(self):
        for kv_type, dtype in (("f32", np.float32), ("f16", np.float16), ("bf16", np.uint16)):
            s = self.session(100, kv_type=kv_type)
            logits, block, seen = s.logits(), s.block(1), s.append(self.ids[:3], points=["blocks.0.attn.hook_z"],
                                                                   logits=True)
            kept = logits.copy(), block.keys.copy(), block.values.copy()
            self.assertEqual((block.keys.dtype, block.keys.shape),
                             (dtype, (self.model.layers, self.model.kv_heads, self.model.head_dim, 64)))
            for view in (logits, block.keys, block.values, *seen.values()):
                self.assertFalse(view.flags.writeable or view.flags.owndata)
                with self.assertRaises(ValueError):
                    view[...] = 0
                with self.assertRaises(ValueError):
                    view.flags.writeable = True
            s.append(self.ids[:60])
            s.zero_kv()
            s.close()
            for view, copy in zip((logits, block.keys, block.values), kept):
                self.assertEqual(view.tobytes(), copy.tobytes())
            self.assertEqual(seen["logits"].shape, (3, self.model.vocab_size))
        s = self.session(100)
        self.assertEqual(s.block(0).keys[2, 0, :, 7].tobytes(), s.keys(2)[7, 0].tobytes())
        self.assertEqual(s.block(1).values[2, 0, 9].tobytes(), s.values(2)[73, 0].tobytes())
        self.assertEqual(s.block(0).keys.ctypes.data, s.fork().block(0).keys.ctypes.data)  # shared, not copied
        for wrong in (-1, 2):
            with self.assertRaises(stet.Error):
                s.block(wrong)

    def test_all_points_have_their_shapes(self):
        for directory in (POCKET, TINY):
            model = stet.Model(directory)
            seen = model.session().append([5, 6, 7], points=["*"])
            self.assertEqual(list(seen), model.points())
            one = {name.split(".", 2)[-1]: rows.shape for name, rows in seen.items()}
            self.assertEqual(one["ln1.hook_scale"], (3, 1))
            self.assertEqual(one["attn.hook_result"], (3, model.heads, model.hidden_size))
            self.assertEqual(one["mlp.hook_post"], (3, model.intermediate_size))
            last = model.layers - 1
            scaled = seen["ln_final.hook_scale"] ** 2
            x = seen["blocks.%d.hook_resid_post" % last].astype(np.float64)
            x = x - x.mean(-1, keepdims=True) if model.family == "gpt2" else x
            self.assertLess(abs((x * x).mean(-1, keepdims=True) / scaled - 1).max(), 1e-4)

    def test_callbacks(self):
        at, extra = "blocks.3.hook_resid_mid", np.linspace(-1, 1, self.model.hidden_size, dtype=np.float32)
        declared = self.session(40)
        declared.attach(stet.Intervention(at, "add", extra))
        declared.append(self.ids[40:])
        for returns in (False, True):
            s, calls = self.session(40, chunk=8, threads=2), []

            def add(point, first, rows):
                calls.append((point, first, rows.shape))
                if returns:
                    return rows + extra
                rows += extra

            with s.changing([at], add):
                s.append(self.ids[40:])
                fork = s.fork()
                fork.append([5])
            self.assertEqual({c[0] for c in calls}, {at})
            self.assertEqual([c[1] for c in calls[:2]], [40, 48])
            self.assertEqual(calls[0][2], (8, self.model.hidden_size))
            self.assertEqual(s.logits().tobytes(), declared.logits().tobytes())
            self.assertEqual((s.edits, declared.edits), (1, 0))
            count = len(calls)
            s.append([5])
            self.assertEqual(len(calls), count)
            self.assertNotEqual(s.logits().tobytes(), fork.logits().tobytes())
        with tempfile.TemporaryDirectory() as d:
            s.save(d + "/s.stet")
            said = json.loads(run(STET, "inspect", d + "/s.stet", "--json"))
            self.assertEqual([(e["what"], e["position"]) for e in said["edits"]], [("callback", 40)])
            self.assertFalse(said["replayable"])
            run(STET, "check", d + "/s.stet")
            again = stet.Snapshot(d + "/s.stet").restore(self.model)
            self.assertIsNone(again.difference(s))
        s, before = self.session(40), self.session(40).digests()

        def fails(point, first, rows):
            raise KeyError("enough")

        for function, kind in ((fails, KeyError), (lambda point, first, rows: rows * np.nan, stet.Error),
                               (lambda point, first, rows: rows[:, :3], ValueError),
                               (lambda point, first, rows: rows * 1j, stet.ArgumentError)):
            with self.assertRaises(kind), s.changing([at], function):
                s.append(self.ids[40:])
            self.assertEqual(s.digests(), before)
        with s.changing([at], fails), self.assertRaises(KeyError):
            stet.append_batch([(s, self.ids[40:])])
        self.assertEqual(s.digests(), before)
        with s.changing(["*.hook_mlp_out"], fails):
            with self.assertRaises(KeyError):
                s.generate(self.tokenizer, 4)
        for wrong in ("hook_nowhere", "blocks.0.attn.hook_pattern", "blocks.99.hook_mlp_out"):
            with self.assertRaises(stet.Error) as caught:
                s.attach_callback([wrong], fails)
            self.assertIn(wrong, str(caught.exception))

    def test_keys_and_values_are_material(self):
        s, other = self.session(80), self.model.session()
        other.append(self.ids[::-1][:80])
        before = s.keys(2).copy()
        s.scale_kv(0.5, layers=[2], begin=3, end=9, values=False)
        self.assertTrue(np.array_equal(s.keys(2)[3:9], before[3:9] * 0.5))
        self.assertTrue(np.array_equal(s.keys(2)[9:], before[9:]))
        s.zero_kv(layers=[0], heads=[0], begin=70)
        self.assertFalse(s.values(0)[70:].any() or s.keys(0)[70:].any())
        s.copy_kv(other, begin=10, end=20)
        self.assertTrue(np.array_equal(s.values(4)[10:20], other.values(4)[10:20]))
        s.set_kv(np.ones((2, self.model.kv_heads, self.model.head_dim)), layers=[1], begin=4, end=6, keys=False)
        self.assertTrue((s.values(1)[4:6] == 1).all())
        self.assertEqual(s.edits, 6)
        for shape in ((self.model.kv_heads, 2, self.model.head_dim), (2, 1, 1, self.model.head_dim), (2, 64)):
            with self.assertRaises(stet.ArgumentError) as caught:
                s.set_kv(np.ones(shape), layers=[1], begin=4, end=6)
            self.assertEqual(caught.exception.field, "x")
        kv_heads, dim = self.model.kv_heads, self.model.head_dim
        for shape in ((3, dim, kv_heads), (1, kv_heads, 3 * dim), (3, kv_heads * dim), (3 * kv_heads * dim,),
                      (3, 3, dim), (3 * dim,), (), (1, dim)):
            with self.assertRaises(stet.ArgumentError) as caught:
                s.set_kv(np.ones(shape), begin=4, end=7)
            self.assertEqual((caught.exception.field, s.edits), ("x", 6))
        gemma4 = stet.Model(os.path.join(ROOT, "tests/data/models/gemma4-dense-tiny"))
        g = gemma4.session(capacity=64)
        g.append(list(range(5, 15)))
        for layer, shape in ((0, (2, 2, 16)), (2, (2, 1, 32))):
            rows = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            g.set_kv(rows, layers=iter([layer]), heads=iter(range(shape[1])), begin=3, end=5, values=False)
            self.assertTrue(np.array_equal(g.keys(layer)[3:5], rows))
            with self.assertRaises(stet.ArgumentError):
                g.set_kv(rows.reshape(2, shape[2] // 16, -1)[:, :, ::-1].reshape(2, 4, -1), layers=[layer], begin=3,
                         end=5)
        self.assertGreater(s.truth().layers[2].key_largest, 0)
        for wrong in (dict(layers=[99]), dict(begin=9, end=3), dict(heads=[0, 0]), dict(keys=False, values=False)):
            with self.assertRaises(stet.Error):
                s.zero_kv(**wrong)
        joined = stet.splice([(other, 0, 30), (self.session(80), 10, 80)])
        self.assertEqual(joined.tokens().tolist(), other.tokens()[:30].tolist() + self.ids[10:80].tolist())
        self.assertTrue(np.array_equal(joined.values(0)[30:], self.session(80).values(0)[10:]))
        truth = joined.truth()
        self.assertEqual(truth.equal_positions, 30)
        self.assertGreater(truth.a_from_b, 0)
        self.assertEqual(sorted(truth.differences), ["edits", "keys", "logits", "values"])
        self.assertTrue(stet.compare(other, other.fork()).equal)

    def test_traces_give_the_bits_of_the_long_way(self):
        before = self.session(20)
        ids = self.ids[20:60]
        row = np.full(self.model.hidden_size, 0.25, np.float32)
        changes = [
            stet.Intervention("blocks.%d.hook_resid_pre" % layer, "set", row, begin=p, end=p + 1)
            for layer in range(self.model.layers) for p in (20, 41, 59)
        ]
        found = before.trace(ids).run(changes)
        for change, logits in zip(changes, found):
            plain = before.fork()
            plain.attach(change)
            plain.append(ids)
            self.assertEqual(plain.logits().tobytes(), logits.tobytes())
        with self.assertRaises(ZeroDivisionError):
            before.trace(ids).run(changes, lambda index, logits: 1 // 0)
        with self.assertRaises(stet.Error) as caught:
            before.trace(ids).run([stet.Intervention("blocks.0.hook_resid_pre", "set", row[:3])])
        self.assertIn("changes[0]", str(caught.exception))

    def test_snapshots_are_checked_verified_and_compared(self):
        with tempfile.TemporaryDirectory() as d:
            self.session(70).save(d + "/a.stet")
            self.session(80).save(d + "/b.stet", form="recipe")
            with stet.Snapshot(d + "/a.stet") as a, stet.Snapshot(d + "/b.stet") as b:
                a.check()
                self.assertTrue(a.verify(self.model).whole)
                self.assertTrue(b.verify(self.model, bisect=True).whole)
                both = stet.compare(a, b)
                self.assertEqual((both.equal, both.common_tokens), (False, 70))
            with self.assertRaises(stet.Error):
                stet.compare(stet.Snapshot(d + "/a.stet"), self.session())

    def test_verifying_says_what_was_proved_of_how_much(self):
        with tempfile.TemporaryDirectory() as d:
            s = self.session()
            report = s.verify()
            self.assertEqual((bool(report), report.blocks, report.of, report.logits, report.position, report.reason),
                             (False, 3, 3, True, None, ""))
            s.scale_kv(0.5, begin=70, end=71)
            s.save(d + "/edited.stet")
            with stet.Snapshot(d + "/edited.stet") as snapshot:
                for report in (s.verify(), snapshot.verify(self.model), snapshot.verify(self.model, bisect=True)):
                    self.assertEqual(
                        (bool(report), report.whole, report.blocks, report.of, report.logits, report.position),
                        (False, False, 2, 3, True, 70))
                    self.assertIn("were scaled", report.reason)
                    self.assertIn("2 of 3 blocks and the logits were recomputed from the tokens", str(report))

    def test_everything_public_says_what_it_is_and_takes(self):
        for name in stet.__all__:
            thing = getattr(stet, name)
            self.assertTrue(thing.__doc__, name)
            members = vars(thing).items() if isinstance(thing, type) else [(name, thing)]
            for member, value in members:
                value = getattr(value, "fget", None) or getattr(value, "__wrapped__", None) or value
                if callable(value) and hasattr(
                        value,
                        "__code__") and not member.startswith("_") and "<string>" not in value.__code__.co_filename:
                    self.assertTrue(value.__doc__, (name, member))
                    self.assertIn("return", value.__annotations__, (name, member))

    def test_batches_mix_interventions(self):
        change = stet.Intervention("hook_resid_mid", "add", np.full(self.model.hidden_size, 0.5, np.float32),
                                   layers=[2, 3], begin=4)
        alone, a, b = self.model.session(), self.model.session(), self.model.session()
        for s in (alone, a):
            s.attach(change)
        points = ["blocks.1.attn.hook_pattern", "blocks.*.hook_resid_post"]
        first, _ = stet.append_batch([(a, self.ids), (b, self.ids)], points)
        seen = alone.append(self.ids, points)
        self.assertEqual([*first], [*seen])
        for name in seen:
            self.assertEqual(first[name].tobytes(), seen[name].tobytes(), name)
        self.assertIsNone(alone.difference(a))
        self.assertIsNone(self.session().difference(b))
        self.assertIsNotNone(a.difference(b))

    def test_errors_say_what_was_expected(self):
        for call, kind, found in (
            (lambda: stet.Model("/nowhere"), "io", ""), (lambda: self.session().append([1 << 20]), "argument",
                                                         str(1 << 20)),
            (lambda: self.session().append([1], points=["blocks.99.hook_z"]), "argument", "blocks.99.hook_z"),
            (lambda: self.session().attach(stet.Intervention("attn.hook_z", "add", np.zeros(3))), "argument",
             "3"), (lambda: self.session().attach(stet.Intervention("attn.hook_z", "turn")), "argument",
                    "turn"), (lambda: self.session().rewind(-1), "argument", "-1")):
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

    def test_the_guide_of_the_laboratory_runs(self):
        guide = read(os.path.join(ROOT, "docs/lab.md")).decode()
        (code,) = [part.split("```")[0] for part in guide.split("```python\n")[1:]]
        said = run(sys.executable, "-c", code)  # run in the root, because its paths are relative
        reply, edits = said.rstrip("\n").rsplit("\n", 1)
        self.assertRegex(reply, r"[0-9a-f]{64}$")
        self.assertRegex(edits, r"^[1-9][0-9]* [0-9.e+-]+$")

    def test_notebooks_say_what_they_said(self):
        here = os.getcwd()
        for name in ("logit_lens", "steering", "patching"):
            with open(os.path.join(ROOT, "examples/python", name + ".ipynb")) as file:
                notebook = json.load(file)
            space = {}
            os.chdir(os.path.join(ROOT, "examples/python"))
            try:
                for number, cell in enumerate(notebook["cells"]):
                    if cell["cell_type"] != "code":
                        continue
                    said = io.StringIO()
                    with contextlib.redirect_stdout(said):
                        exec(compile("".join(cell["source"]), "%s.ipynb[%d]" % (name, number), "exec"), space)
                    kept = "".join("".join(o["text"]) for o in cell["outputs"] if o["output_type"] == "stream")
                    self.assertEqual(said.getvalue(), kept, (name, number))
            finally:
                os.chdir(here)

    def test_equivalence_of_another_program(self):
        adapter = "%s examples/equivalence/with_stet.py %s" % (sys.executable, POCKET)
        prompt = ["-p", "Let a = 3. Let b = 9. What is a? What is b? Tell me more."]
        rows = json.loads(run(STET, "equivalence", "-m", POCKET, *prompt, "--json", "--against", adapter))
        self.assertEqual(len(rows), 10)
        self.assertTrue(all(row["same_bits"] and row["same_token"] for row in rows), rows)
        rows = json.loads(run(STET, "equivalence", "-m", POCKET, "-p", prompt[1] * 4, "--json", "--against", adapter))
        self.assertEqual([row["way"] for row in rows if "edge" in row["way"]], [
            "cut before, at and behind the window's edge", "saved and restored at the window's edge",
            "rewound from other tokens to the window's edge"
        ])
        self.assertTrue(all(row["same_bits"] for row in rows), rows)
        # One adapter computes differently when tokens come one by one; another cannot save.
        other = adapter + """ | %s -uc 'import json,sys
for i, line in enumerate(sys.stdin):
    a = json.loads(line)
    if i == 2: a["logits"][0] += 1e-3
    print(json.dumps({"unsupported": True} if i == 7 else a), flush=True)'""" % sys.executable
        rows = json.loads(run(STET, "equivalence", "-m", POCKET, *prompt, "--json", "--against", other, status=1))
        self.assertEqual([row["way"] for row in rows if not row.get("same_bits", True)], ["one token at a time"])
        self.assertTrue(any(row.get("unsupported") for row in rows))
        for broken in ("true", "echo nothing", "echo '{}'", "echo '{\"logits\": [\"x\"]}'"):
            done = subprocess.run([STET, "equivalence", "-m", POCKET, *prompt, "--against", broken],
                                  capture_output=True, text=True, cwd=ROOT)
            errors = [line for line in done.stderr.splitlines() if line.startswith("stet: ")]
            self.assertEqual((done.returncode, len(errors)), (1, 1), done.stderr)


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


    def test_pip_installs_it(self):
        with tempfile.TemporaryDirectory() as d:
            made = subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", d + "/env"],
                                  capture_output=True, text=True)
            if made.returncode != 0:
                self.skipTest("no venv: " + made.stdout[-200:])
            python, alone = d + "/env/bin/python", {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--no-deps", ROOT,
                env=alone)
            alone.pop("STET_LIBRARY")
            code = "import stet, sys; print(stet.__file__, stet.Model(sys.argv[1]).layers, stet.__version__)"
            self.assertIn(d + "/env", run(python, "-c", code, POCKET, env=alone))
            self.assertIn("stet", run(python, "-m", "pip", "list", env=alone))


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
            done = subprocess.run([STET, "import", d + "/s.stet", d + "/g.safetensors", "-o", d + "/u.stet"],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("finite", done.stderr)
            for name in ("tokens", "visible", "logits"):  # import sets none of these
                raw = bytearray(read(d + "/f.safetensors"))
                raw[8 + length + header[name]["data_offsets"][0]] ^= 1
                write(d + "/g.safetensors", raw)
                done = subprocess.run([STET, "import", d + "/s.stet", d + "/g.safetensors", "-o", d + "/u.stet"],
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"g.safetensors: {name}: expected those of {d}/s.stet, found others", done.stderr)
            self.assertFalse(os.path.exists(d + "/u.stet"))

    def test_interventions_from_a_file(self):
        with tempfile.TemporaryDirectory() as d:
            text = ["-m", POCKET, "-p", "Let a = 3. What is a?"]
            run(STET, "capture", *text, "--points", "blocks.3.hook_resid_post", "-o", d + "/c.safetensors")
            changes = [{
                "point": "blocks.4.hook_resid_pre", "from": 2, "op": "add", "amount": 0.5,
                "values": {"file": "c.safetensors", "tensor": "blocks.3.hook_resid_post", "rows": [3, 4]}
            }, {"point": "attn.hook_z", "layers": [1], "heads": [0, 2], "op": "zero"},
                       {"point": "mlp.hook_post", "layers": [0], "op": "scale", "amount": 0.5, "positions": [0, 5]}]
            write(d + "/i.json", changes)
            run(STET, "generate", *text, "-n", "6", "--intervene", d + "/i.json", "--save", d + "/s.stet")
            self.assertEqual(len(json.loads(run(STET, "inspect", d + "/s.stet", "--json"))["interventions"]), 3)
            run(STET, "verify", d + "/s.stet", "-m", POCKET)
            run(STET, "resume", d + "/s.stet", "-m", POCKET, "-n", "3")
            plain, changed = (json.loads(run(STET, "measure", *text, "--tokens", "--json", *more))
                              for more in ([], ["--intervene", d + "/i.json"]))
            self.assertNotEqual(plain, changed)
            row = [float(x) for x in np.linspace(-1, 1, 256, dtype=np.float32)]
            header = json.dumps({"v": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}}).encode()
            write(d + "/v.safetensors",
                  len(header).to_bytes(8, "little") + header + np.array(row, np.float32).tobytes())
            found = []
            for op in ("set", "add", "mean"):
                for values in (row, {"file": "v.safetensors", "tensor": "v"}):
                    write(d + "/v.json", [{"point": "blocks.2.hook_resid_post", "op": op, "values": values}])
                    found.append(
                        json.loads(run(STET, "measure", *text, "--tokens", "--json", "--intervene", d + "/v.json")))
                self.assertEqual(*found[-2:])
                self.assertNotEqual(found[-1], plain)
            for bad, word in (([{"point": "hook_nowhere",
                                 "op": "zero"}], "point"), ([{"point": "hook_z", "op": "zero"}], "point"),
                              ([{"point": "attn.hook_z",
                                 "op": "turn"}], "op"), ([{"point": "attn.hook_z", "heads": [9],
                                                           "op": "zero"}], "heads"),
                              ([{"point": "hook_resid_mid", "op": "add", "values": [1, 2]}], "256 numbers, found 2"),
                              ([{"point": "hook_resid_mid", "op": "add", "values": "x"}], "values"), ([{
                                  "point": "hook_resid_mid", "op": "add",
                                  "values": {"file": "c.safetensors", "tensor": "x"}
                              }], "x"), ([{"point": "attn.hook_pattern", "op": "turn"}], "op")):
                write(d + "/b.json", bad)
                done = subprocess.run([STET, "generate", *text, "--intervene", d + "/b.json"], capture_output=True,
                                      text=True)
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
            same = json.loads(
                run(STET, "measure", "-m", POCKET, "--from", d + "/s.stet", "--kl", d + "/s.stet", "--json"))
            self.assertEqual((same["kl"], same["same_bits"]), (0, True))
            for what in ("--attention", "--norms", "--lens", "--attribution"):
                run(STET, "measure", *text, what, "--html", d + "/p.html")
                page = read(d + "/p.html").decode()
                self.assertNotIn("http", page.replace("http://www.w3.org", ""))
                maps = json.loads(page.split('id="data">')[1].split("</script>")[0])["maps"]
                self.assertGreater(len(maps), 0)
                run(STET, "measure", *text, what, "--svg", d + "/p.svg")
                svg = xml.etree.ElementTree.fromstring(read(d + "/p.svg"))  # well-formed
                texts = [e.text for e in svg.iter("{http://www.w3.org/2000/svg}text")]
                for m in maps:
                    self.assertIn(m["title"], texts)
                    self.assertTrue(any(t.endswith(" " + m["unit"]) for t in texts), m["unit"])
                width, height = float(svg.get("width")), float(svg.get("height"))
                for e in svg.iter("{http://www.w3.org/2000/svg}rect"):
                    if e.get("x"):
                        self.assertLessEqual(float(e.get("x")) + float(e.get("width")), width)
                        self.assertLessEqual(float(e.get("y")) + float(e.get("height")), height)
            for wrong in (["--tokens", "--svg", d + "/p.svg"], ["--lens", "--layer", "1"], ["--lens", "--target", "4"]):
                done = subprocess.run([STET, "measure", *text, *wrong], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)

    def test_a_state_goes_before_any_prompt(self):
        with tempfile.TemporaryDirectory() as d:
            ids = list(range(20, 60))
            text = lambda part: ",".join(map(str, part))
            run(STET, "save", "-m", POCKET, "--ids", text(ids[:25]), "-o", d + "/s.stet")
            run(STET, "logits", "-m", POCKET, "--ids", text(ids), "-o", d + "/all.safetensors")
            run(STET, "logits", "-m", POCKET, "--from", d + "/s.stet", "--ids", text(ids[25:]), "-o",
                d + "/rest.safetensors")
            whole, rest = (tensors(d + name)["logits"] for name in ("/all.safetensors", "/rest.safetensors"))
            self.assertEqual(whole[-15:].tobytes(), rest.tobytes())
            other = ids[:30] + [7] + ids[31:]
            sweep = ["--answer", "3", "--wrong", "8", "--json", "-m", POCKET]
            long = json.loads(
                run(STET, "patch", "--clean-ids", text(ids), "--corrupt-ids", text(other), "--positions", "30,39",
                    *sweep))
            short = json.loads(
                run(STET, "patch", "--from", d + "/s.stet", "--clean-ids", text(ids[25:]), "--corrupt-ids",
                    text(other[25:]), "--positions", "5,14", *sweep))
            self.assertEqual(long["scores"], short["scores"])
            for wrong in ("2", "1..", "0..2", "1..0", "x", "0,", "-1"):
                run(STET, "patch", "--clean-ids", "5,6", "--corrupt-ids", "5,7", *sweep, "--positions", wrong, status=2)

    def test_a_capture_keeps_the_rows_and_heads_that_were_asked_for(self):
        points = "blocks.2.attn.hook_q,blocks.2.attn.hook_pattern,blocks.5.attn.hook_attn_scores"
        what = ["capture", "-m", POCKET, "--ids", ",".join(map(str, range(20, 90))), "-n", "5", "--points"]
        with tempfile.TemporaryDirectory() as d:
            run(STET, *what, points + ",hook_embed", "-o", d + "/all.safetensors")
            run(STET, *what, points, "--positions", "72..74,3,40..41", "--heads", "3,1", "-o", d + "/some.safetensors")
            everything, some = tensors(d + "/all.safetensors"), tensors(d + "/some.safetensors")
            self.assertEqual(everything["positions"].tolist(), list(range(75)))
            self.assertEqual(some["positions"].tolist(), [3, 40, 41, 72, 73, 74])
            self.assertEqual(some["input_ids"].tolist(), everything["input_ids"].tolist())
            for name in points.split(","):
                self.assertEqual(some[name].tobytes(), everything[name][some["positions"]][:, [3, 1]].tobytes(), name)
            run(STET, "save", "-m", POCKET, "--ids", ",".join(map(str, range(20, 60))), "-o", d + "/s.stet")
            behind = ["capture", "-m", POCKET, "--from", d + "/s.stet", "--ids", ",".join(map(str, range(60, 90)))]
            run(STET, *behind, "--points", points, "--positions", "41", "-o", d + "/one.safetensors")
            for name in points.split(","):
                columns = slice(0, 64) if "hook_q" in name else slice(0, 70)
                self.assertEqual(
                    tensors(d + "/one.safetensors")[name].tobytes(),
                    everything[name][41:42, :, columns].tobytes(),
                    name,
                )
            run(STET, *behind, "--points", "*" * 40 + "x", "-o", d + "/no.safetensors", status=1)
            for wrong in (
                ["--positions", "39"],
                ["--positions", "70"],
                ["--heads", "4"],
                ["--heads", "[]"],
                ["--heads", "0..2"],
                ["--heads", "-1"],
                ["--heads", "0", "--points", "hook_embed"],
                ["--heads", "1", "--points", "blocks.0.attn.hook_k"],
            ):
                done = subprocess.run(
                    [
                        STET,
                        *behind,
                        *([] if "--points" in wrong else ["--points", points]),
                        *wrong,
                        "-o",
                        d + "/no.safetensors",
                    ],
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(
                    (done.returncode, done.stderr.count("\n"), os.path.exists(d + "/no.safetensors")),
                    (2, 1, False),
                    done.stderr,
                )

    def test_a_message_is_a_prompt_of_the_laboratory(self):
        say = ["-m", POCKET, "--system", "Be brief.", "--say", "Let a = 3. What is a?"]
        with tempfile.TemporaryDirectory() as d:
            run(STET, "generate", *say, "--say", "And twice that?", "-n", "6", "--save", d + "/two.stet")
            run(STET, "generate", *say, "-n", "6", "--save", d + "/one.stet")
            run(STET, "logits", *say, "-o", d + "/one.safetensors")
            run(STET, "logits", "-m", POCKET, "--from", d + "/one.stet", "--say", "And twice that?", "-o",
                d + "/two.safetensors")
            two = stet.Snapshot(d + "/two.stet").tokens().tolist()
            one, behind = (tensors(d + "/%s.safetensors" % name)["input_ids"].tolist() for name in ("one", "two"))
            self.assertEqual(two[: len(one)], one)
            self.assertIn(",".join(map(str, behind)), ",".join(map(str, two)))
            seen = json.loads(run(STET, "measure", *say, "--tokens", "--json"))
            self.assertEqual([row["best"] for row in seen],
                             tensors(d + "/one.safetensors")["logits"].argmax(1).tolist())
            run(STET, "capture", *say, "--points", "hook_embed", "-o", d + "/c.safetensors")
            self.assertEqual(tensors(d + "/c.safetensors")["input_ids"].tolist(), one)
            run(STET, "save", "-m", POCKET, "-p", "raw", "-o", d + "/raw.stet")
            for status, wrong in (
                (2, [*say, "--say", "More."]),
                (1, ["-m", POCKET, "--from", d + "/raw.stet", "--say", "Hi"]),
                (2, ["-m", POCKET, "-p", "x", "--say", "Hi"]),
            ):
                done = subprocess.run([STET, "logits", *wrong, "--digest"], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr.count("\n"), done.stdout), (status, 1, ""), done.stderr)

    def test_edits(self):
        with tempfile.TemporaryDirectory() as d:
            for name, text in (("a", "Let a = 3. Let b = 8. What is a?"), ("b", "Let c = 5. Let d = 2. What is d?")):
                run(STET, "save", "-m", POCKET, "-p", text, "-o", d + "/%s.stet" % name)
            edit = lambda *more, **how: run(STET, "edit", d + "/a.stet", "-m", POCKET, "-o", d + "/t.stet", *more, **
                                            how)
            tokens = len(stet.Snapshot(d + "/a.stet").tokens())
            said = json.loads(edit("--scale", "0.5", "--layers", "2,3", "--positions", "4..5", "--keys", "--json"))
            self.assertEqual((said["edits"], said["equal_positions"], said["value_difference"]), (2, 4, 0))
            self.assertGreater(said["key_difference"], 0)
            self.assertGreater(said["kl"], 0)
            t = json.loads(run(STET, "inspect", d + "/t.stet", "--json"))
            self.assertEqual([(e["what"], e["layer"], e["position"], e["end"], e["how"]) for e in t["edits"]],
                             [("key", 2, 4, 6, "scale"), ("key", 3, 4, 6, "scale")])
            run(STET, "resume", d + "/t.stet", "-m", POCKET, "-n", "3")
            said = json.loads(edit("--scale", "1", "--json"))
            self.assertEqual((said["key_difference"], said["kl"], said["equal_positions"]), (0, 0, tokens))
            # A pruned state cannot be rewound to before the end of the prune, and can still be edited.
            run(STET, "prune", d + "/a.stet", "--keep-last", "4", "-o", d + "/p.stet")
            pruned = json.loads(
                run(STET, "edit", d + "/p.stet", "-m", POCKET, "-o", d + "/t.stet", "--zero", "--layers", "0",
                    "--json"))
            self.assertGreater(pruned["kl"], 0)
            edit("--copy", d + "/b.stet", "--positions", "3..9")
            t = json.loads(run(STET, "inspect", d + "/t.stet", "--json"))
            self.assertEqual(t["edits"][0]["source"], json.loads(run(STET, "inspect", d + "/b.stet", "--json"))["id"])
            said = json.loads(edit("--splice", d + "/b.stet", "--take", "0..9", "--resume-at", "1", "--json"))
            self.assertEqual((said["tokens"], said["equal_positions"]), (tokens + 9, 10))
            self.assertIn(
                "nats", run(STET, "lab", "edit", d + "/a.stet", "-m", POCKET, "-o", d + "/t.stet", "--zero")
            )
            for status, wrong in (
                (2, ["--zero", "--scale", "1"]),
                (2, []),
                (2, ["--zero", "--positions", "3..99"]),
                (2, ["--splice", d + "/b.stet", "--layers", "1"]),
                (1, ["--zero", "--layers", "99"]),
                (2, ["--splice", d + "/b.stet", "--at", "999"]),
                (1, ["--scale", "nan"]),
                (1, ["--copy", d + "/nowhere.stet"]),
            ):
                done = subprocess.run(
                    [STET, "edit", d + "/a.stet", "-m", POCKET, "-o", d + "/u.stet", *wrong],
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(
                    (done.returncode, done.stdout, os.path.exists(d + "/u.stet")),
                    (status, "", False),
                    (wrong, done.stderr),
                )

    def test_the_laboratory_lists_what_it_holds(self):
        said = run(STET, "lab")
        for name in ("capture", "measure", "patch", "edit", "export", "import", "experiment", "equivalence"):
            self.assertRegex(said, r"\b%s\b" % name)
        self.assertEqual(run(STET, "lab", "capture", "--list", "-m", POCKET),
                         run(STET, "capture", "--list", "-m", POCKET))


if __name__ == "__main__":
    main()
