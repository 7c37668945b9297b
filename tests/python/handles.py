"""Handles and arguments: copies, pickles, closed handles, and invalid ids."""
import copy
import gc
import os
import pickle
import tempfile
import threading
import time

import common
import numpy as np
import stet


class Handles(common.Case):
    def test_a_copy_of_a_session_is_a_fork(self):
        for copied in (copy.copy, copy.deepcopy):
            s = self.session(40)
            other = copied(s)
            before = s.digests()
            self.assertEqual(other.digests(), before)
            other.append([5, 6])
            self.assertEqual((s.digests(), len(other)), (before, 42))
            s.close()
            gc.collect()
            other.append([7])
            self.assertFalse(other.verify())

    def test_what_never_changes_is_its_own_copy(self):
        with tempfile.TemporaryDirectory() as d:
            self.session(70).save(d + "/s.stet")
            for handle in (self.model, self.tokenizer, stet.Snapshot(d + "/s.stet"), stet.ChatTemplate(self.tokenizer)):
                self.assertIs(copy.copy(handle), handle)
                self.assertIs(copy.deepcopy(handle), handle)

    def test_copies_go_their_own_way_or_are_refused(self):
        stream = stet.TextStream(self.tokenizer)
        ids = self.tokenizer.encode("Straße", bos=False)
        front = stream.push(int(ids[0]))
        other = copy.copy(stream)
        rest = "".join(stream.push(int(id)) for id in ids[1:]) + stream.finish()
        self.assertEqual(front + rest, "Straße")
        self.assertEqual("".join(other.push(int(id)) for id in ids[1:]) + other.finish(), rest)
        sampler = stet.Sampler(4)
        sampler.set_drawn([1, 1])
        self.assertEqual(copy.copy(sampler).sample(np.array([0, 1.5, 1, 0]), stet.Sampling(frequency_penalty=1), 0), 2)
        chat = self.model.chat(self.tokenizer, capacity=512)
        chat.say("Let a = 3.")
        fork = copy.deepcopy(chat)
        fork.reply(3)
        self.assertEqual((len(chat.messages), len(fork.messages)), (1, 2))
        for refused in (self.session(5).trace([6, 7]), self.session(5).stream(self.tokenizer)):
            for copied in (copy.copy, copy.deepcopy):
                with self.assertRaisesRegex(TypeError, "a %s cannot be copied" % type(refused).__name__):
                    copied(refused)

    def test_pickles_are_refused(self):
        with tempfile.TemporaryDirectory() as d:
            s = self.session(70)
            s.save(d + "/s.stet")
            for handle in (self.model, self.tokenizer, s, stet.Snapshot(d + "/s.stet"), s.trace([5]),
                           stet.TextStream(self.tokenizer), stet.Sampler(4), stet.Chat(s, self.tokenizer),
                           stet.ChatTemplate(self.tokenizer), s.stream()):
                with self.assertRaisesRegex(TypeError, "a %s cannot be pickled" % type(handle).__name__):
                    pickle.dumps(handle)
            for value in (s.digests(), s.sampling, stet.Intervention("hook_embed",
                                                                     "zero"), stet.Snapshot(d + "/s.stet").info()):
                self.assertEqual(pickle.loads(pickle.dumps(value)), value)
        with self.assertRaises(stet.Error) as caught:
            stet.Model("/nowhere")
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(again), str(again), again.kind, again.file),
                         (stet.Error, str(caught.exception), "io", caught.exception.file))

    def test_what_was_closed_is_refused_by_name(self):
        s = self.session(10)
        block = s.keys(0)
        for _ in range(2):
            s.close()
        self.assertTrue(s.closed)
        for call in (lambda: len(s), lambda: s.append([5]), s.logits, s.fork, lambda: copy.copy(s), s.digests,
                     lambda: stet.append_batch([(s, [5])]), lambda: stet.splice([(s, 0, 5)]), lambda: s.keys(0),
                     lambda: stet.compare(s, s)):
            self.refused(call, "session", "one that is open")
        self.assertEqual(block.shape, (10, 1, 64))
        tokenizer = stet.Tokenizer(common.POCKET)
        tokenizer.close()
        self.refused(lambda: tokenizer.encode("a"), "tokenizer")
        model = stet.Model(common.tiny("gpt2-tiny"))
        session = model.session()
        model.close()
        self.refused(model.session, "model")
        self.refused(lambda: model.points(), "model")
        session.append([5, 6])  # the session keeps its model alive
        self.assertEqual(session.logits().size, model.vocab_size)

    def test_a_handle_closed_during_a_call_lives_until_its_end(self):
        expected = self.session(20).generate(self.tokenizer, max_tokens=8)
        # A session closed by its own callback, and by a callback of its reply.
        s = self.session(20)
        with s.changing(["blocks.0.hook_mlp_out"], lambda point, first, rows: s.close()):
            s.append([5, 6])
        self.refused(lambda: len(s), "session", "closed")
        s = self.session(20)
        reply = s.generate(self.tokenizer, max_tokens=8, on_text=lambda text: s.close())
        self.assertEqual((reply.ids.tolist(), s.closed), (expected.ids.tolist(), True))
        # Other handles that a call uses.
        drafts, s = stet.Speculator(), self.session(20)
        reply = s.generate(self.tokenizer, max_tokens=8, on_text=lambda text: drafts.close(), speculator=drafts)
        self.assertEqual(reply.ids.tolist(), expected.ids.tolist())
        tokenizer, s = stet.Tokenizer(common.POCKET), self.session(20)
        reply = s.generate(tokenizer, max_tokens=8, on_text=lambda text: tokenizer.close())
        self.assertEqual(reply.text, expected.text)
        one, other = self.session(20), self.session(20)
        with one.changing(["blocks.0.hook_mlp_out"], lambda point, first, rows: other.close()):
            stet.append_batch([(one, [5, 6]), (other, [5, 6])])
        self.assertTrue(other.closed)
        trace, seen = self.session(20).trace([5, 6]), []
        changes = [stet.Intervention("blocks.%d.hook_resid_post" % layer, "zero") for layer in range(3)]
        trace.run(changes, lambda index, logits: seen.append(index) or trace.close())
        self.assertEqual((sorted(seen), trace.closed), ([0, 1, 2], True))
        chat = stet.Chat(self.session(0), self.tokenizer)
        chat.say("Let a = 3. What is a?")
        self.assertTrue(chat.reply(8, on_text=lambda text: chat.close()).text)
        self.refused(lambda: chat.messages, "chat", "closed")

    def test_another_thread_closes_a_handle_after_its_call(self):
        trace = self.session(20).trace([5, 6])
        changes = [stet.Intervention("blocks.%d.hook_resid_post" % layer, "zero") for layer in range(3)]
        expected, threads = trace.run(changes), []

        def close(index, logits):
            threads.append(threading.Thread(target=trace.close))
            threads[-1].start()
            threads[-1].join()
            self.assertTrue(np.array_equal(logits, expected[index]))

        trace.run(changes, close)
        self.assertEqual((len(threads), trace.closed), (3, True))

    def test_everything_says_what_it_is(self):
        s = self.session(70)
        s.attach(stet.Intervention("hook_embed", "scale", amount=2.0))
        with tempfile.TemporaryDirectory() as d:
            s.save(d + "/s.stet")
            for thing, words in (
                (self.model, ["gemma3", "9 layers"]),
                (self.tokenizer, ["1620 ids"]),
                (s, ["70 of 512 positions", "f32", "1 intervention>"]),
                (stet.Snapshot(d + "/s.stet"), ["s.stet", "full", "70 positions"]),
                (s.trace([5, 6]), ["2 tokens"]),
                (stet.Chat(s, self.tokenizer), ["0 messages"]),
                (stet.Sampler(4), ["Sampler"]),
                (s.stream(max_tokens=1), ["0 tokens", "going on"]),
                (s.attached()[0], ["hook_embed", "scale", "amount=2.0", "70"]),
                (
                    stet.Intervention("attn.hook_z", "set", np.zeros((2, 64)), heads=[0, 1], begin=3),
                    ["attn.hook_z", "values=<2 x 64>", "heads=[0, 1]", "begin=3"],
                ),
            ):
                for word in words:
                    self.assertIn(word, repr(thing))
                self.assertNotIn(" at 0x", repr(thing))
        for handle in (s, stet.Sampler(4)):
            handle.close()
            self.assertIn("closed", repr(handle))

    def test_blocks_that_change_are_nested(self):
        s, calls = self.session(4), []

        def named(name):
            return lambda point, first, rows: calls.append(name)

        def ran():
            calls.clear()
            s.append([5])
            return "".join(calls)

        point = ["blocks.3.hook_mlp_out"]
        s.attach_callback(point, named("a"))
        with s.changing(point, named("b")):
            with s.changing(point, named("c")):
                self.assertEqual(ran(), "abc")
            self.assertEqual(ran(), "ab")
            with s.changing(point, named("d")):
                self.assertEqual(ran(), "abd")
                fork = s.fork()
        self.assertEqual(ran(), "a")
        calls.clear()
        fork.append([5])
        self.assertEqual("".join(calls), "abd")
        with s.changing(point, named("e")):
            s.detach_callbacks()
            s.attach_callback(point, named("f"))
        self.assertEqual(ran(), "f")
        s.rewind(4)
        self.assertEqual((s.edits, ran(), s.edits), (0, "f", 1))
        # The end of a block marks nothing as edited.
        s = self.session(4)
        with s.changing(point, named("a")):
            with s.changing(point, named("b")):
                pass
        self.assertEqual((s.edits, ran(), s.edits), (0, "", 0))

    def test_threads_take_turns(self):
        s = self.session(8)
        failed = []

        def work():
            try:
                for _ in range(10):
                    s.append([5])
                    self.assertEqual(s.logits().size, self.model.vocab_size)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((failed, len(s)), ([], 48))
        self.assertFalse(s.verify())

    def test_a_callback_waits_for_other_threads_too(self):
        busy, s, order, begun = self.session(8), self.session(8, threads=4), [], threading.Event()

        def slow(done):
            begun.set()
            time.sleep(0.2)
            order.append("append")

        thread = threading.Thread(target=busy.append, args=([5, 6],), kwargs={"progress": slow})
        thread.start()
        begun.wait(60)
        s.append([5], progress=lambda done: order.append((len(busy), len(s))))
        thread.join()
        self.assertEqual(order, ["append", (10, 9)])
        # A computing thread may run the function. It waits for no turn at the session of its call.
        sizes = []
        with s.changing(["blocks.*.hook_mlp_out"], lambda point, first, rows: sizes.append(s.tokens().size)):
            s.append(self.ids)
        self.assertEqual(set(sizes), {9})

    def test_each_call_raises_its_own_exceptions(self):
        s = self.session(8, threads=1)
        s.attach_callback(["blocks.0.hook_mlp_out"], lambda point, first, rows: fails(first))
        sessions, both, found = [s, s.fork()], threading.Barrier(2, timeout=60), {}

        def fails(done):
            both.wait()
            raise KeyError(threading.get_ident())

        def work(one, options):
            try:
                one.append([5], **options)
            except KeyError as error:
                found[threading.get_ident()] = error.args[0]

        for options in ({}, {"progress": fails}):
            threads = [threading.Thread(target=work, args=(one, options)) for one in sessions]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual((len(found), [*found]), (2, [*found.values()]))
            found.clear()
            for one in sessions:
                one.detach_callbacks()

    def test_threads_take_turns_at_other_handles(self):
        s = self.session(20)
        logits, settings = s.logits(), [stet.Sampling(greedy=False, seed=seed) for seed in range(4)]
        expected = [[stet.Sampler(logits.size).sample(logits, one, p) for p in range(50)] for one in settings]
        replies = [self.session(9 + i).generate(max_tokens=9).ids.tolist() for i in range(4)]
        sampler, drafts, trace, found = stet.Sampler(logits.size), stet.Speculator(), s.trace([5, 6]), {}
        change = stet.Intervention("blocks.0.hook_resid_post", "zero")

        def work(i):
            drawn = [sampler.sample(logits, settings[i], position) for position in range(50)]
            reply = self.session(9 + i).generate(max_tokens=9, speculator=drafts).ids.tolist()
            found[i] = drawn, reply, trace.run([change]).tobytes()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        one = trace.run([change]).tobytes()
        self.assertEqual(found, {i: (expected[i], replies[i], one) for i in range(4)})
        self.refused(lambda: trace.run([change], lambda index, row: trace.run([change])), "trace", "callback")
        chat = self.model.chat(self.tokenizer, capacity=512)
        threads = [threading.Thread(target=chat.ask, args=("Let a = 3. What is a?", 8)) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([m.role for m in chat.messages], ["user", "assistant"] * 3)
        rows = [stet.Row(self.session(9), speculator=drafts) for _ in range(2)]
        self.refused(lambda: stet.generate_batch(rows, max_tokens=9), "rows[1].speculator",
                     "expected each speculator once, found one twice")
        rows[1] = stet.Row(self.session(9), speculator="suffix")
        self.refused(lambda: stet.generate_batch(rows, max_tokens=9), "rows[1].speculator", "a Speculator")


class Arguments(common.Case):
    def path(self, name):
        """Returns the path of a file in a directory that is removed after the test."""
        if not hasattr(self, "scratch"):
            self.scratch = tempfile.TemporaryDirectory()
            self.addCleanup(self.scratch.cleanup)
        return os.path.join(self.scratch.name, name)

    def test_ids_are_integers_that_fit(self):
        s = self.session(4)
        before = s.digests()
        for wrong, field in (
            ([2.7], "ids[0]"),
            ([1, 2**32 + 5], "ids[1]"),
            ([True], "ids[0]"),
            (np.array([True]), "ids"),
            (np.array([2.0, 3.0]), "ids"),
            (np.array([2**32 + 5]), "ids"),
            (["5"], "ids[0]"),
            ("5", "ids"),
            (5, "ids"),
            (None, "ids"),
            (np.array([[1, 2]]), "ids"),
            ([[1, 2]], "ids[0]"),
            ([None], "ids[0]"),
            ([np.float32(3)], "ids[0]"),
            ([np.bool_(True)], "ids[0]"),
            (np.array([2**63 + 5], np.uint64), "ids"),
            ({5, 6}, "ids"),
            (frozenset([5]), "ids"),
            ({5: 6}, "ids"),
            ({5: 6}.keys(), "ids"),
            ([self.model.vocab_size], "ids[0]"),
            ([-1], "ids[0]"),
        ):
            for call in (s.append, s.append_prompt, s.trace, lambda ids: s.append(ids, logits=True)):
                if call != s.trace or repr(wrong) != "[[1, 2]]":  # a trace accepts this as a prompt
                    self.refused(lambda: call(wrong), field)
        self.refused(lambda: stet.append_batch([(s, [2.7])]), "entries[0].ids[0]")
        self.refused(lambda: self.tokenizer.decode([2.7]), "ids[0]")
        self.refused(lambda: setattr(s, "stop_ids", [2.7]), "stop_ids[0]")
        self.refused(lambda: setattr(s, "stop_ids", [10 ** 6]), "stop_ids[0]")
        self.refused(lambda: stet.Sampler(4).set_drawn([0.5]), "ids[0]")
        self.assertEqual(s.digests(), before)
        expected = self.session(4)
        expected.append([5, 6, 7])
        for right in (
            [5, 6, 7],
            (5, 6, 7),
            np.array([5, 6, 7]),
            np.array([5, 6, 7], np.uint8),
            [np.int64(5), np.uint16(6), 7],
            np.array([9, 5, 9, 6, 9, 7])[1::2],
            iter([5, 6, 7]),
        ):
            one = s.fork()
            one.append(right)
            self.assertEqual(one.digests(), expected.digests())
        for none in ([], (), np.array([])):
            s.append(none)
        self.assertEqual(s.digests(), before)

    def test_errors_name_the_argument(self):
        s = self.session(10)
        wide = 2**70
        for call, field in (
            (lambda: s.rewind(2.5), "size"),
            (lambda: s.rewind(wide), "size"),
            (lambda: s.generate(max_tokens=0), "max_tokens"),
            (lambda: s.generate(max_tokens=2.5), "max_tokens"),
            (lambda: s.prune(2**64), "keep_last"),
            (lambda: s.prune_range(0.5, 2), "begin"),
            (lambda: s.block(0.0), "index"),
            (lambda: s.keys(9), "layer"),
            (lambda: s.keys(True), "layer"),
            (lambda: self.model.session(capacity=-1), "capacity"),
            (lambda: self.model.session(threads=2**40), "threads"),
            (lambda: self.model.session(kv_type="f64"), "kv_type"),
            (lambda: self.model.session(contract="bf17"), "contract"),
            (lambda: self.model.session(isa="a\0b"), "isa"),
            (lambda: stet.Model("a\0b"), "directory"),
            (lambda: stet.Model(5), "directory"),
            (lambda: stet.Model(common.POCKET, contract=None), "contract"),
            (lambda: s.save("x.stet", form="fully"), "form"),
            (lambda: s.save("x.stet", compress=10), "compress"),
            (lambda: s.save(""), "path"),
            (lambda: self.tokenizer.encode(5), "text"),
            (lambda: self.tokenizer.encode("\ud800"), "text"),
            (lambda: self.tokenizer.encode("a", bos=1), "bos"),
            (lambda: self.tokenizer.piece(2**40), "id"),
            (lambda: s.append([5], points="blocks.0.hook_resid_post"), "points"),
            (lambda: s.append([5], points=["nowhere"]), "points"),
            (lambda: s.lens(np.zeros(3)), "residual"),
            (lambda: s.set_key(0, 0, 0, "x"), "x"),
            (lambda: s.set_key(0.5, 0, 0, []), "layer"),
            (lambda: s.scale_kv("x"), "factor"),
            (lambda: s.zero_kv(layers=[0.5]), "layers[0]"),
            (lambda: setattr(s, "stop_strings", "x"), "stop_strings"),
            (lambda: setattr(s, "stop_strings", [5]), "stop_strings[0]"),
            (lambda: setattr(s, "sampling", stet.Sampling(seed=-1)), "seed"),
            (lambda: setattr(s, "sampling", stet.Sampling(seed=2**64)), "seed"),
            (lambda: setattr(s, "sampling", stet.Sampling(top_k=2**32)), "top_k"),
            (lambda: setattr(s, "sampling", stet.Sampling(temperature="hot")), "temperature"),
            (lambda: setattr(s, "sampling", 5), "sampling"),
            (lambda: stet.log_probability(np.zeros(3), 2**32), "id"),
            (lambda: stet.Snapshot.from_bytes("x"), "data"),
            (lambda: stet.splice([(s, 0.5, 2)]), "cuts[0].begin"),
            (lambda: stet.append_batch([s]), "entries[0]"),
            (lambda: self.model.weight("nothing"), "name"),
            (lambda: self.model.point("nothing"), "point"),
            (lambda: stet.Model.from_files({"config.json": "text"}), "files['config.json']"),
            (lambda: s.difference(s.fork(), "x"), "tolerance"),
            (lambda: s.rewind(11), "size"),
            (lambda: s.rewind_cost(11), "size"),
            (lambda: s.rewind_cost(-1), "size"),
            (lambda: s.prune(-1), "keep_last"),
            (lambda: s.set_key(0, 0, 0, np.zeros(3)), "x"),
            (lambda: s.set_key(0, 0, 0, np.zeros((4, 16))), "x"),
            (lambda: s.set_kv(np.full(64, np.nan)), "x"),
            (lambda: s.zero_kv(begin=30), "begin"),
            (lambda: s.copy_kv(s, begin=0, end=2, position=99), "position"),
            (lambda: s.scale_kv(np.array([2.0])), "factor"),
            (lambda: self.model.session(capacity=10**9), "capacity"),
            (lambda: self.model.session(window_only=True, checkpoint_every=7), "checkpoint_every"),
            (lambda: self.model.session(anchor_bytes=-2), "anchor_bytes"),
            (lambda: setattr(s, "stop_strings", [""]), "stop_strings[0]"),
            (lambda: setattr(s, "stop_strings", 5), "stop_strings"),
            (lambda: setattr(s, "sampling", stet.Sampling(logit_bias=[1])), "logit_bias"),
            (lambda: s.append([5], points=5), "points"),
            (lambda: s.append([5], progress=5), "progress"),
            (lambda: s.append_prompt([5], progress="x"), "progress"),
            (lambda: s.generate(self.tokenizer, on_text=5), "on_text"),
            (lambda: s.attach_callback([], print), "points"),
            (lambda: self.model.points(5), "pattern"),
            (lambda: self.model.weights(None), "pattern"),
            (lambda: self.model.point([]), "point"),
            (lambda: stet.log_probability(np.zeros((2, 2)), 0), "logits"),
            (lambda: stet.Sampler(4).sample(np.zeros((2, 2)), stet.Sampling(), 0), "logits"),
            (lambda: stet.Sampler(4).sample(np.zeros(4), None, 0), "sampling"),
            (lambda: stet.Sampler(4).probabilities(np.zeros(5), stet.Sampling()), "logits"),
            (lambda: stet.Model.from_files(None), "files"),
            (lambda: stet.splice(None), "cuts"),
            (lambda: stet.append_batch(None), "entries"),
            (lambda: stet.generate_batch(5), "rows"),
            (lambda: stet.generate_batch([stet.Row(s, prompt=[5, 2.5])]), "rows[0].prompt[1]"),
            (lambda: stet.generate_batch([stet.Row(s, stop_ids="x")]), "rows[0].stop_ids"),
            (lambda: stet.generate_batch([stet.Row(s, stop_strings=[5])]), "rows[0].stop_strings[0]"),
            (lambda: stet.generate_batch([stet.Row(s, interventions=[5])]), "rows[0].interventions[0]"),
            (lambda: stet.score(s, 5), "requests"),
            (lambda: s.trace([5, 6]).run(None), "changes"),
            (lambda: s.trace([5, 6]).run([stet.TraceRun("x")]), "changes[0].changes"),
            (lambda: stet.Intervention("hook_resid_post", "scale", amount=float("nan")), "amount"),
            (lambda: stet.Intervention("hook_resid_post", "scale", amount=1e39), "amount"),
            (lambda: stet.Intervention("attn.hook_pattern", "zero", key_begin=2.5), "key_begin"),
            (lambda: stet.Intervention("hook_resid_post", "zero", layers=np.array(3)), "layers"),
        ):
            self.refused(call, field)
        self.assertEqual(len(s), 10)

    def test_flags_are_true_or_false(self):
        s = self.session(10)
        s.save(self.path("flags.stet"), self.tokenizer)
        snapshot = stet.Snapshot(self.path("flags.stet"))
        for call, field in (
            (lambda x: s.append([5], logits=x), "logits"),
            (lambda x: s.logits(copy=x), "copy"),
            (lambda x: s.prune(2, shift=x), "shift"),
            (lambda x: s.prune_range(2, 4, shift=x), "shift"),
            (lambda x: s.zero_kv(keys=x), "keys"),
            (lambda x: s.zero_kv(values=x), "values"),
            (lambda x: s.generate(self.tokenizer, ignore_eos=x), "ignore_eos"),
            (lambda x: s.generate(self.tokenizer, log_probabilities=x), "log_probabilities"),
            (lambda x: s.stream(self.tokenizer, ignore_eos=x), "ignore_eos"),
            (lambda x: s.save(self.path("x.stet"), with_weights=x), "with_weights"),
            (lambda x: s.save(self.path("x.stet"), with_tokenizer=x), "with_tokenizer"),
            (lambda x: setattr(s, "sampling", stet.Sampling(greedy=x)), "greedy"),
            (lambda x: self.model.session(window_only=x), "window_only"),
            (lambda x: self.model.session(recompute=x), "recompute"),
            (lambda x: stet.Model(common.POCKET, in_memory=x), "in_memory"),
            (lambda x: self.tokenizer.encode("a", special=x), "special"),
            (lambda x: self.tokenizer.encode("a", continued=x), "continued"),
            (lambda x: self.tokenizer.decode([5], skip_special=x), "skip_special"),
            (lambda x: self.tokenizer.apply_chat_template([], x), "add_generation_prompt"),
            (lambda x: stet.TextStream(self.tokenizer, skip_special=x), "skip_special"),
            (lambda x: stet.encode_pair(self.tokenizer, "a", "b", special=x), "special"),
            (lambda x: snapshot.verify(self.model, bisect=x), "bisect"),
            (lambda x: snapshot.restore(self.model, heal=x), "heal"),
            (lambda x: snapshot.convert(self.path("x.stet"), keep_last=3, shift=x), "shift"),
        ):
            for wrong in ("no", None, 2, [], np.zeros((2, 2))):
                self.refused(lambda: call(wrong), field, "True or False")
        for wrong in ("no", 2, []):  # None keeps the session's own
            self.refused(lambda: stet.Chat(s, self.tokenizer, special_in_text=wrong), "special_in_text",
                         "True or False")
        self.assertEqual(len(s), 10)

    def test_handles_of_another_kind_are_refused(self):
        s, m, t = self.session(10), self.model, self.tokenizer
        s.save(self.path("kinds.stet"), t)
        snapshot, x = stet.Snapshot(self.path("kinds.stet")), self.path("x.stet")
        for call, field, wrong in (
            (lambda y: s.generate(y, max_tokens=2), "tokenizer", (m, s, "path")),
            (lambda y: s.stream(y, max_tokens=2), "tokenizer", (m, s, "path")),
            (lambda y: s.end_reply(y), "tokenizer", (m, s)),
            (lambda y: s.save(x, y), "tokenizer", (m, "path")),
            (lambda y: s.save(x, t, form="delta", parent=y), "parent", (m, s, "path")),
            (lambda y: s.difference(y), "other", (None, snapshot, m)),
            (lambda y: s.copy_kv(y), "source", (None, snapshot, m)),
            (lambda y: stet.compare(s, y), "b", (None, snapshot, m)),
            (lambda y: stet.Session(y), "model", (None, t, s, snapshot)),
            (lambda y: stet.Chat(y, t), "session", (None, m, snapshot)),
            (lambda y: stet.Chat(s, y), "tokenizer", (None, m, s)),
            (lambda y: m.chat(y), "tokenizer", (None, m, s)),
            (lambda y: stet.ChatTemplate(y), "tokenizer", (None, m, s)),
            (lambda y: stet.TextStream(y), "tokenizer", (None, m, s)),
            (lambda y: stet.encode_pair(y, "a", "b"), "tokenizer", (None, m, s)),
            (lambda y: stet.score(m, ["a b"], y), "tokenizer", (m, s)),
            (lambda y: stet.generate_batch([s], y), "tokenizer", (m, s)),
            (lambda y: stet.Speculator(y), "draft", (t, s, "path")),
            (lambda y: stet.Speculator(capacity=y), "capacity", (77, "x")),
            (lambda y: stet.Speculator(threads=y), "threads", (2, "x")),
            (lambda y: stet.Trace(y, [5]), "before", (None, m, snapshot)),
            (lambda y: snapshot.restore(y), "model", (None, t, s, snapshot)),
            (lambda y: snapshot.restore(m, y), "tokenizer", (m, s)),
            (lambda y: snapshot.verify(y), "model", (None, t, s, snapshot)),
            (lambda y: snapshot.convert(x, form="delta", parent=y), "parent", (m, s, "path")),
        ):
            for one in wrong:
                self.refused(lambda: call(one), field, "found")
        self.assertEqual(len(s), 10)


if __name__ == "__main__":
    common.main()
