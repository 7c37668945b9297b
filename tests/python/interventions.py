"""Interventions from Python: their arguments, lists of them, and where they end."""
import json
import subprocess
import tempfile
import warnings

import common
import numpy as np
import stet
from stet import Intervention


class Interventions(common.Case):
    def changed(self, *changes, at=40, count=100):
        s = self.session(at)
        s.attach(*changes)
        s.append(self.ids[at:count])
        return s

    def same(self, a, b):
        self.assertEqual(a.logits().tobytes(), b.logits().tobytes())
        self.assertEqual(a.digests().kv, b.digests().kv)

    def test_a_point_with_its_layer_takes_no_layers(self):
        self.refused(lambda: Intervention("blocks.0.hook_resid_post", "add", np.zeros(256), layers=[1]), "layers",
                     "blocks.0.hook_resid_post")
        change = Intervention("blocks.0.hook_resid_post", "add", np.zeros(256))
        change.layers = [1]
        self.refused(lambda: self.session(4).attach(change), "layers")

    def test_fields_are_checked_by_name(self):
        row = np.zeros(256, np.float32)
        for wrong, field in (
            (dict(op="turn", values=row), "op"),
            (dict(op="add"), "values"),
            (dict(op="zero", values=row), "values"),
            (dict(values=row, begin=-1), "begin"),
            (dict(values=row, begin=5, end=3), "end"),
            (dict(values=row, layers=[0.5]), "layers[0]"),
            (dict(values=row, heads="x"), "heads"),
            (dict(values=row, amount="x"), "amount"),
            (dict(values=row, begin=2.5), "begin"),
        ):
            self.refused(lambda: Intervention("hook_resid_post", **wrong), field)
        s = self.session(4)
        for change, field in (
            (Intervention("hook_resid_post", "add", row[:3]), "values"),
            (Intervention("hook_nowhere", "zero"), "point"),
            (Intervention("attn.hook_z", "zero", heads=[4]), "heads"),
            (Intervention("hook_resid_post", "zero", heads=[0]), "heads"),
            (Intervention("hook_resid_post", "set", np.zeros((3, 256))), "values"),
            (Intervention("hook_resid_post", "set", np.zeros((3, 256)), begin=4, end=6), "values"),
            (Intervention("hook_resid_post", "add", np.zeros((2, 256))), "values"),
            (Intervention("attn.hook_z", "set", np.zeros(5), heads=[0]), "values"),
            (Intervention("hook_resid_post", "set", [[1, 2], [3]]), "values"),
            (Intervention("hook_resid_post", "mean", np.zeros((0, 256))), "values"),
            (Intervention("attn.hook_z", "mean", np.zeros((0, 64)), heads=[0]), "values"),
            (Intervention("attn.hook_z", "mean", np.zeros((0, 1, 64)), heads=[0]), "values"),
            (Intervention("hook_resid_post", "add", row + 2, amount=3e38), "values"),
            (Intervention("attn.hook_z", "add", row[:64] - 1e30, amount=-1e30, heads=[0]), "values"),
            (Intervention("attn.hook_attn_scores", "add", [1e30], amount=1e30), "values"),
            (Intervention("hook_resid_post", "clamp", np.zeros((256, 2))), "values"),
            (Intervention("hook_resid_post", "clamp", np.zeros((2, 2, 128))), "values"),
            (Intervention("hook_resid_post", "clamp", row), "values"),
            (Intervention("attn.hook_z", "clamp", np.zeros((64, 2)), heads=[0]), "values"),
            (Intervention("attn.hook_pattern", "set", np.zeros((2, 3)), key_end=6), "values"),
        ):
            self.refused(lambda: s.attach(change), field)
        self.refused(lambda: s.attach(), "changes")
        self.refused(lambda: s.attach("hook_embed"), "changes")
        with self.assertRaises(stet.Error):  # attached together or not at all
            s.attach(Intervention("hook_resid_post", "zero"),
                     Intervention("blocks.2.hook_resid_post", "set", np.full(256, np.nan)))
        self.assertEqual(s.attached(), [])

    def test_shapes_are_those_of_the_layers_of_the_change(self):
        for name, layer, width, heads in (("gemma4-small-tiny", 2, 128, 4), ("qwen35-tiny", 3, 128, 4)):
            model = stet.Model(common.tiny(name))
            self.assertEqual(model.point("blocks.%d.attn.hook_z" % layer)[:2], (heads, width))
            a, b = model.session(), model.session()
            a.attach(Intervention("blocks.%d.attn.hook_z" % layer, "zero"),
                     Intervention("attn.hook_z", "zero", layers=[layer], heads=[1]),
                     Intervention("attn.hook_z", "set", np.ones(width // heads), layers=[layer], heads=[1]),
                     Intervention("attn.hook_z", "set", np.ones((2, width)), layers=[layer], end=2))
            b.attach(*[each.intervention for each in a.attached()])
            self.assertEqual([each.intervention for each in b.attached()], [each.intervention for each in a.attached()])
            self.refused(lambda: b.attach(Intervention("attn.hook_z", "set", np.ones((4, width // 2)), layers=[layer],
                                                       end=2)), "values", "%d numbers" % width)
        self.assertEqual(model.point("attn.hook_z"), model.point("blocks.3.attn.hook_z"))  # layer 0 is recurrent
        self.refused(lambda: b.attach(Intervention("attn.hook_z", "zero", layers=[99])), "intervention: layers")
        self.refused(lambda: b.attach(Intervention("hook_embed", "zero", layers=[0])), "intervention: layers")

    def test_numbers_too_large_for_float32_are_refused_without_a_warning(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.refused(lambda: self.session(4).attach(Intervention("hook_resid_post", "add", [1e300] * 256)),
                         "intervention: values")

    def test_layers_and_heads_may_be_any_sequence(self):
        for given in ((1, 2), np.array([1, 2]), iter([1, 2]), map(int, "12"), (i for i in (1, 2))):
            change = Intervention("attn.hook_z", "zero", heads=given, layers=[3])
            self.assertEqual(change, Intervention("attn.hook_z", "zero", heads=[1, 2], layers=[3]))
            change.heads, change.layers = iter([0]), iter([5])
            s = self.session(4)
            s.attach(change)
            self.assertEqual([(a.intervention.heads, a.intervention.layers) for a in s.attached()], [([0], [5])])

    def test_operations_are_those_of_a_file(self):
        text = "Let a = 3. What is a?"
        ids = self.tokenizer.encode(text)
        rows = (np.arange(3 * 256, dtype=np.float32).reshape(3, 256) % 17 - 8) / 16
        with tempfile.TemporaryDirectory() as d:
            for change, entry in ((Intervention("attn.hook_z", "zero", layers=[1], heads=[0, 2]), {
                    "op": "zero", "point": "attn.hook_z", "layers": [1], "heads": [0, 2]
            }), (Intervention("blocks.2.hook_resid_post", "mean", rows), {
                    "op": "mean", "point": "blocks.2.hook_resid_post", "values": rows.reshape(-1).tolist()
            }), (Intervention("blocks.2.hook_resid_post", "replace", rows[0]), {
                    "op": "replace", "point": "blocks.2.hook_resid_post", "values": rows[0].tolist()
            }), (Intervention("blocks.2.hook_resid_post", "project_out", rows[1], begin=3),
                 {"op": "project_out", "point": "blocks.2.hook_resid_post", "values": rows[1].tolist(),
                  "from": 3}), (Intervention("mlp.hook_post", "scale", amount=0.5, end=5),
                                {"op": "scale", "amount": 0.5, "point": "mlp.hook_post", "positions": [0, 5]})):
                with open(d + "/i.json", "w") as file:
                    json.dump([entry], file)
                subprocess.run([
                    common.STET, "generate", "-m", common.POCKET, "-p", text, "-n", "2", "--intervene", d + "/i.json",
                    "--save", d + "/s.stet"
                ], check=True, capture_output=True)
                saved = stet.Snapshot(d + "/s.stet").restore(self.model)
                s = self.model.session()
                s.attach(change)
                s.append(ids)
                s.append(saved.tokens()[len(ids):])
                self.assertEqual(saved.attached()[0].intervention, s.attached()[0].intervention)
                self.same(s, saved)

    def test_heads_have_rows_of_their_own(self):
        other = self.model.session().append(self.ids[::-1][:100],
                                            points=["blocks.3.attn.hook_z"])["blocks.3.attn.hook_z"]
        heads = [2, 0]
        by_hand = self.changed(*[Intervention("blocks.3.attn.hook_z", "set", other[50, h], heads=[h]) for h in heads])
        for values in (other[50, heads], other[50], other[50][None], other[50:51, heads]):
            self.same(self.changed(Intervention("blocks.3.attn.hook_z", "set", values, heads=heads)), by_hand)
        by_hand = self.changed(*[
            Intervention("blocks.3.attn.hook_z", "set", other[40:90, h], heads=[h], begin=40, end=90) for h in heads
        ])
        for values in (other[40:90], other[40:90][:, heads]):
            self.same(
                self.changed(Intervention("blocks.3.attn.hook_z", "set", values, heads=heads, begin=40, end=90)),
                by_hand)
        one = Intervention("blocks.3.attn.hook_z", "add", other[50, 1], heads=[1, 3])
        self.same(
            self.changed(one),
            self.changed(*[Intervention("blocks.3.attn.hook_z", "add", other[50, 1], heads=[h]) for h in (1, 3)]))
        whole = self.changed(Intervention("blocks.3.attn.hook_z", "set", other[40:90], begin=40, end=90))
        self.same(
            whole,
            self.changed(Intervention("blocks.3.attn.hook_z", "set", other[40:90].reshape(50, -1), begin=40, end=90)))
        self.refused(
            lambda: self.changed(
                Intervention("blocks.3.attn.hook_z", "set", other[40:42, 0], heads=heads, begin=40, end=42)),
            "values", "[positions, heads, head_dim]")
        self.same(self.changed(Intervention("blocks.3.attn.hook_z", "mean", other[40:90], heads=[1])),
                  self.changed(Intervention("blocks.3.attn.hook_z", "mean", other[40:90, 1], heads=[1])))

    def test_they_are_listed(self):
        row = np.linspace(-1, 1, 256, dtype=np.float32)
        changes = [
            Intervention("hook_resid_mid", "add", row, 0.5, layers=[2, 3], begin=4),
            Intervention("attn.hook_z", "zero", heads=[1]),
            Intervention("hook_embed", "scale", amount=2.0, end=90)
        ]
        s = self.session(10)
        s.attach(changes[0])
        s.append(self.ids[10:20])
        s.attach(*changes[1:])
        listed = s.attached()
        self.assertEqual([(a.place, a.at) for a in listed], [(0, 10), (1, 20), (2, 20)])
        self.assertEqual(listed[0].intervention, changes[0])
        self.assertEqual(listed[2].intervention, changes[2])
        zeroed = listed[1].intervention
        self.assertEqual((zeroed.point, zeroed.op, zeroed.heads, np.asarray(zeroed.values).tolist()),
                         ("attn.hook_z", "set", [1], [0] * 64))
        again = self.session(10)
        again.attach(listed[0].intervention)
        again.append(self.ids[10:20])
        again.attach(listed[1].intervention, listed[2].intervention)
        self.assertEqual(again.digests(), s.digests())
        s.rewind(15)
        self.assertEqual([a.intervention for a in s.attached()], changes[:1])

    def test_they_end_where_they_are_detached(self):
        row = np.linspace(-1, 1, 256, dtype=np.float32)
        change = Intervention("blocks.3.hook_resid_mid", "add", row)
        for end in ("with", "detach", "index", "all"):
            s = self.session(40)
            attached = s.attach(change)
            if end == "with":
                with attached:
                    s.append(self.ids[40:70])
            else:
                s.append(self.ids[40:70])
                {"detach": attached.detach, "index": lambda: s.detach(0), "all": s.detach}[end]()
            s.append(self.ids[70:100])
            self.assertEqual(s.digests(),
                             self.changed(Intervention("blocks.3.hook_resid_mid", "add", row, end=70)).digests())
            self.assertFalse(s.verify())
            self.assertEqual(s.edits, 0)
        later = self.session(40)
        later.attach(change).detach(70)
        later.append(self.ids[40:100])
        self.assertEqual(later.digests(), s.digests())
        self.refused(lambda: s.detach(0, 99), "intervention: position")
        self.refused(lambda: s.detach(1), "which")
        self.refused(lambda: s.detach(0.5), "which")

    def test_a_with_ends_what_it_attached_and_nothing_else(self):
        s = self.session(40)
        first = Intervention("hook_embed", "scale", amount=2.0)
        s.attach(first)
        with s.attach(first, Intervention("attn.hook_z", "set", np.ones((4, 64)), layers=[2], heads=[0, 1, 2, 3])):
            self.assertEqual(len(s.attached()), 6)
            s.append(self.ids[40:50])
            s.attach(Intervention("hook_mlp_out", "zero"))
        self.assertEqual([a.intervention.end for a in s.attached()], [0] + [50] * 5 + [0])
        with s.attach(Intervention("hook_mlp_out", "scale")):
            pass
        self.assertEqual(len(s.attached()), 7)
        with s.attach(Intervention("hook_mlp_out", "scale")):
            s.append([5])
            s.rewind(30)
        self.assertEqual(s.attached(), [])
        with self.assertRaises(ZeroDivisionError), s.attach(first):
            s.append([5])
            1 // 0
        self.assertEqual([a.intervention.end for a in s.attached()], [31])

    def test_a_with_ends_each_of_equal_ones(self):
        change = Intervention("blocks.3.hook_resid_post", "add", np.ones(256), amount=0.5)
        bounded = Intervention("blocks.3.hook_resid_post", "add", np.ones(256), amount=0.5, end=90)

        def ends(s):
            return [a.intervention.end for a in s.attached()]

        s = self.session(40)
        with s.attach(change):
            with s.attach(change):
                s.append(self.ids[40:50])
            s.append(self.ids[50:60])
        self.assertEqual(ends(s), [60, 50])
        with s.attach(change, change):
            s.append(self.ids[60:70])
        self.assertEqual(ends(s), [60, 50, 70, 70])
        for pair in ((change, bounded), (bounded, change)):
            for first in (0, 1):
                s = self.session(40)
                attached = [s.attach(one) for one in pair]
                s.append(self.ids[40:50])
                attached[first].detach()
                self.assertEqual(ends(s)[first], 50)
                self.assertEqual(ends(s)[1 - first], pair[1 - first].end)
                attached[first].detach(80)
                attached[1 - first].detach()
                self.assertEqual(ends(s), [50, 50])
        # One that has changed nothing is removed, and those after it move up.
        s = self.session(40)
        first, second, third = s.attach(change), s.attach(change), s.attach(change)
        first.detach()
        first.detach()
        self.assertEqual(ends(s), [0, 0])
        s.append(self.ids[40:50])
        third.detach()
        second.detach()
        self.assertEqual(ends(s), [50, 50])

    def test_a_trace_takes_them(self):
        s = self.session(20)
        trace = s.trace(self.ids[20:60])
        zero = Intervention("blocks.2.attn.hook_z", "zero", heads=[1], begin=30, end=60)
        plain = s.fork()
        plain.attach(zero)
        plain.append(self.ids[20:60])
        self.assertEqual(trace.run([zero])[0].tobytes(), plain.logits().tobytes())
        self.refused(
            lambda: trace.run(
                [Intervention("blocks.2.attn.hook_z", "set", np.zeros((2, 64)), heads=[0, 1], begin=30)]),
            "changes[0]")
        self.refused(lambda: trace.run(["x"]), "changes[0]")
        self.refused(lambda: trace.run([zero, Intervention("hook_embed", "add", [1])]), "changes[1]: values")


if __name__ == "__main__":
    common.main()
