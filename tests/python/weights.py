"""Weights by TransformerLens's names: the points are computed from them."""
import tempfile

import common
import numpy as np
import stet


def near(a, b, tolerance=2e-4):
    """Returns True if two arrays are equal up to the order of float32 sums."""
    return np.abs(np.asarray(a, np.float64) - b).max() <= tolerance * max(1, np.abs(b).max())


class Weights(common.Case):
    families = ("gemma3-tiny", "gemma2-tiny", "gemma-tiny", "gpt2-tiny", "llama31-tiny", "qwen2-tiny", "qwen3-tiny",
                "pythia-tiny", "phi3-tiny", "olmo2-tiny", "granite-tiny")

    def models(self):
        yield self.model
        for name in self.families:
            yield stet.Model(common.tiny(name))

    def test_points_are_what_the_weights_give(self):
        for model in self.models():
            with self.subTest(model.source):
                s = model.session()
                ids = [5, 9, 17, 6, 30, 11]
                points = [
                    "hook_embed", "blocks.*.attn.hook_z", "blocks.*.attn.hook_result", "blocks.*.mlp.hook_post",
                    "ln_final.hook_normalized"
                ]
                reads = {"q": "hook_q", "k": "hook_k", "v": "hook_v"}
                normal = "blocks.0.ln1.hook_normalized" in model.points()
                points += ["blocks.*.attn." + hook for hook in reads.values()] + ([
                    "blocks.*.ln1.hook_normalized", "blocks.*.ln2.hook_normalized", "blocks.*.mlp.hook_pre"
                ] if normal else ["blocks.*.hook_resid_pre"])
                seen = s.append(ids, points, logits=True)
                rows = seen["hook_embed"]
                self.assertEqual(model.W_E[ids].tobytes(), rows.tobytes())
                for layer in range(model.layers):
                    x = seen["blocks.%d.%s" % (layer, "ln1.hook_normalized" if normal else "hook_resid_pre")].astype(
                        np.float64)
                    for letter, hook in reads.items():
                        w = model.weight("blocks.%d.attn.%sW_%s" %
                                         (layer, "_" if letter != "q" else "", letter.upper()))
                        found = np.einsum("pi,hio->pho", x, w)
                        bias = "blocks.%d.attn.%sb_%s" % (layer, "_" if letter != "q" else "", letter.upper())
                        if bias.replace("_b", "b") in model.weights():
                            found = found + model.weight(bias)
                        self.assertTrue(near(found, seen["blocks.%d.attn.%s" % (layer, hook)]), (layer, letter))
                    z = seen["blocks.%d.attn.hook_z" % layer].astype(np.float64)
                    self.assertTrue(
                        near(np.einsum("phd,hdo->pho", z, model.W_O[layer]),
                             seen["blocks.%d.attn.hook_result" % layer]))
                    if normal and model.weights("blocks.%d.mlp.W_*" % layer):
                        x = seen["blocks.%d.ln2.hook_normalized" % layer].astype(np.float64)
                        first = "gate" if "blocks.%d.mlp.W_gate" % layer in model.weights() else "in"
                        found = x @ model.weight("blocks.%d.mlp.W_%s" % (layer, first))
                        if "blocks.%d.mlp.b_%s" % (layer, first) in model.weights():
                            found = found + model.weight("blocks.%d.mlp.b_%s" % (layer, first))
                        self.assertTrue(near(found, seen["blocks.%d.mlp.hook_pre" % layer]), layer)
                logits = seen["ln_final.hook_normalized"].astype(np.float64) @ model.W_U
                if model.family not in ("gemma2", "granite"):  # these change logits afterwards
                    self.assertTrue(near(logits, seen["logits"]))

    def test_names_and_shapes(self):
        m = self.model
        names = m.weights()
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual((names[0], names[-1]), ("embed.W_E", "unembed.W_U"))
        self.assertEqual(m.weights("blocks.0.*"), [
            "blocks.0." + n
            for n in ("attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O", "mlp.W_gate", "mlp.W_in", "mlp.W_out", "ln1.w",
                      "ln1_post.w", "ln2.w", "ln2_post.w", "attn.q_norm.w", "attn.k_norm.w")
        ])
        hidden, dim, inter = m.hidden_size, m.head_dim, m.intermediate_size
        self.assertEqual(m.W_Q.shape, (m.layers, m.heads, hidden, dim))
        self.assertEqual((m.W_K.shape, m.W_O.shape), (m.W_Q.shape, (m.layers, m.heads, dim, hidden)))
        self.assertEqual(m.weight("blocks.0.attn._W_K").shape, (m.kv_heads, hidden, dim))
        self.assertTrue((m.W_V[3, 2] == m.weight("blocks.3.attn._W_V")[2 * m.kv_heads // m.heads]).all())
        self.assertEqual((m.W_in.shape, m.W_gate.shape, m.W_out.shape),
                         ((m.layers, hidden, inter), (m.layers, hidden, inter), (m.layers, inter, hidden)))
        self.assertEqual((m.W_E.shape, m.W_U.shape, m.weight("ln_final.w").shape),
                         ((m.vocab_size, hidden), (hidden, m.vocab_size), (hidden, )))
        gpt2 = stet.Model(common.tiny("gpt2-tiny"))
        self.assertEqual(
            (gpt2.W_pos.shape, gpt2.b_Q.shape, gpt2.weight("blocks.0.attn.b_O").shape),
            ((gpt2.max_positions, gpt2.hidden_size), (gpt2.layers, gpt2.heads, gpt2.head_dim), (gpt2.hidden_size, )))
        for missing in ("b_Q", "W_pos", "W_X", "weights_of"):
            with self.assertRaises(AttributeError):
                getattr(m, missing)

    def test_layers_may_differ(self):
        m = stet.Model(common.tiny("gemma4-dense-tiny"))
        for layer in range(m.layers):
            name = "blocks.%d.attn." % layer
            heads, kv_heads = m.point(name + "hook_q").heads, m.point(name + "hook_k").heads
            whole, own = m.weight(name + "W_K"), m.weight(name + "_W_K")
            self.assertEqual((len(whole), len(own)), (heads, kv_heads))
            self.assertTrue((whole == np.repeat(own, heads // kv_heads, axis=0)).all())
        with self.assertRaisesRegex(stet.Error, r"\[4, 64, 16\] in layers 0, 1, 3, 4; \[4, 64, 32\] in layers 2, 5"):
            m.W_K
        self.assertEqual(m.W_in.shape, (m.layers, m.hidden_size, m.intermediate_size))

    def test_layers_without_attention_have_no_weights_of_it(self):
        for name in ("lfm2-tiny", "qwen35-tiny"):
            m = stet.Model(common.tiny(name))
            attention = [layer for layer in range(m.layers) if "blocks.%d.attn.hook_z" % layer in m.points()]
            recurrent = ", ".join(str(layer) for layer in range(m.layers) if layer not in attention)
            with self.assertRaisesRegex(stet.Error, "none in layers " + recurrent):
                m.W_O
        lfm2 = stet.Model(common.tiny("lfm2-tiny"))
        layer = 2
        points = ["blocks.%d.%s" % (layer, hook) for hook in ("attn.hook_z", "attn.hook_result", "mlp.hook_pre",
                                                              "ln2.hook_normalized")]
        z, result, pre, x = (rows.astype(np.float64) for rows in lfm2.session().append([5, 9, 17], points).values())
        self.assertTrue(near(np.einsum("phd,hdo->pho", z, lfm2.weight("blocks.%d.attn.W_O" % layer)), result))
        self.assertTrue(near(x @ lfm2.weight("blocks.%d.mlp.W_gate" % layer), pre))
        self.assertEqual(lfm2.weights("layers.%d.*" % layer), [])
        self.assertIn("ln_final.w", lfm2.weights())

    def test_they_cannot_be_written_and_outlive_the_model(self):
        m = stet.Model(common.tiny("llama31-tiny"))
        arrays = [m.W_E, m.W_Q, m.W_K, m.weight("blocks.0.attn.W_K"), m.weight("ln_final.w")]
        copies = [a.copy() for a in arrays]
        for a in arrays:
            self.assertEqual((a.dtype, a.flags.writeable), (np.float32, False))
            with self.assertRaises(ValueError):
                a[...] = 0
        m.close()
        for a, b in zip(arrays, copies):
            self.assertEqual(a.tobytes(), b.tobytes())

    def test_rounded_weights_are_those_that_are_multiplied(self):
        with tempfile.TemporaryDirectory() as d:
            stet.pack(common.POCKET, d + "/packed", "q8")
            plain, rounded, packed = self.model, stet.Model(common.POCKET, "q8"), stet.Model(d + "/packed")
            self.assertEqual(rounded.weights(), packed.weights())
            self.assertEqual(rounded.weights(), plain.weights())
            for name in plain.weights():
                a, b, c = (m.weight(name) for m in (plain, rounded, packed))
                self.assertEqual(b.tobytes(), c.tobytes(), name)
                self.assertEqual(a.shape, b.shape)
                self.assertTrue(near(b, a, 0.02), name)
            self.assertFalse((plain.W_Q == rounded.W_Q).all())

    def test_direct_attribution_and_circuits_are_a_line_each(self):
        m, ids = self.model, self.tokenizer.encode("Let a = 3. What is a?")
        seen = m.session().append(ids, points=["blocks.*.attn.hook_z"])
        z = np.stack([seen["blocks.%d.attn.hook_z" % layer] for layer in range(m.layers)])
        per_head = np.einsum("lphd,lhdo->lpho", z, m.W_O)
        ov = m.W_V[3, 1] @ m.W_O[3, 1]
        qk = m.W_Q[3, 1] @ m.W_K[3, 1].T
        self.assertEqual((per_head.shape, ov.shape, qk.shape),
                         ((m.layers, ids.size, m.heads, m.hidden_size), (m.hidden_size, m.hidden_size),
                          (m.hidden_size, m.hidden_size)))


if __name__ == "__main__":
    common.main()
