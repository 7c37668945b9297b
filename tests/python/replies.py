"""Replies from Python: settings, stops, streams, batches, and interruption from outside."""
import asyncio
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading

import common
import numpy as np
import stet


class Settings(common.Case):
    def test_stops_are_set_and_read(self):
        s = self.session()
        reply = s.fork().generate(self.tokenizer, 12, ignore_eos=True)
        self.assertEqual((s.stop_ids, s.stop_strings), ([], []))
        one = s.fork()
        one.stop_ids = [int(reply.ids[2]), np.int64(7)]
        self.assertEqual(one.stop_ids, [int(reply.ids[2]), 7])
        first = reply.ids.tolist().index(reply.ids[2])
        stopped = one.generate(self.tokenizer, 12)
        self.assertEqual((stopped.ids.tolist(), stopped.stop), (reply.ids[: first + 1].tolist(), "eos"))
        two = s.fork()
        word = reply.text[3:5]
        two.stop_strings = [word, "never"]
        self.assertEqual(two.stop_strings, [word, "never"])
        stopped = two.generate(self.tokenizer, 12, ignore_eos=True)
        self.assertEqual((stopped.text, stopped.stop), (reply.text[: reply.text.index(word)], "string"))
        with self.assertRaises(stet.Error):
            two.generate(None, 3)
        two.stop_strings = []
        self.assertEqual(two.generate(None, 3).text, "")

    def test_recommended_settings(self):
        s = self.session(4)
        s.sampling = stet.Sampling(seed=2 ** 64 - 1, greedy=False)
        s.stop_strings = ["x"]
        s.use_recommended()
        self.assertEqual((s.sampling.greedy, s.sampling.top_k, s.sampling.top_p, s.sampling.seed),
                         (True, 64, 0.95, 2**64 - 1))
        self.assertEqual((s.stop_ids, s.stop_strings), ([1, 6], ["x"]))
        self.assertEqual(stet.Sampling.initial(), stet.Sampling())

    def test_prompts_turns_and_open_replies(self):
        s = self.model.session(capacity=512, chunk=16)
        told = []
        s.append_prompt(self.ids[:40], progress=told.append)
        self.assertEqual(told, [16, 32, 40])
        reply = s.generate(self.tokenizer, 5, ignore_eos=True)
        self.assertEqual(s.turns, [stet.Turn(0, 40, 45, True)])
        rest = s.end_reply(self.tokenizer)
        self.assertEqual(s.turns, [stet.Turn(0, 40, 45, False)])
        self.assertEqual(reply.text + rest, self.tokenizer.decode(reply.ids, skip_special=True))
        before = s.digests()

        def fails(done):
            raise KeyError(done)

        for call in (lambda: s.append_prompt(self.ids[:40], progress=fails),
                     lambda: s.append(self.ids[:40], progress=fails),
                     lambda: s.append(self.ids[:40], ["hook_embed"], progress=fails)):
            with self.assertRaisesRegex(KeyError, "16"):
                call()
            self.assertEqual(s.digests(), before)
        told.clear()
        seen = s.append(self.ids[:20], ["hook_embed"], logits=True, progress=told.append)
        self.assertEqual((told, seen["hook_embed"].shape, seen["logits"].shape),
                         ([16, 20], (20, 256), (20, self.model.vocab_size)))

    def test_a_rewind_takes_a_reply_back(self):
        for append in (lambda s, ids: s.append(ids), lambda s, ids: s.append_prompt(ids)):
            s = self.model.session(capacity=512)
            for ids in (self.ids[:40], self.ids[40:60]):
                append(s, ids)
                size, before = len(s), (s.digests(), s.turns)
                s.generate(self.tokenizer, 5, ignore_eos=True)
                s.rewind(size)
                self.assertEqual((s.digests(), s.turns), before)

    def test_pruning_a_range(self):
        s = self.session(100)
        s.prune_range(10, 20)
        self.assertEqual((len(s), s.visible, s.prunes, s.drawn), (100, 90, 1, 100))
        s.prune_range(30, 40, shift=True)
        self.assertEqual((len(s), s.floor, s.drawn), (90, 90, 100))
        self.assertEqual(s.transcript().tolist(), self.ids[:100].tolist())
        self.assertFalse(s.verify())
        self.refused(lambda: s.prune_range(50, 200), "begin")

    def test_a_sampler_draws_what_the_session_draws(self):
        s, sampler = self.session(), stet.Sampler(self.model.vocab_size)
        s.sampling = settings = stet.Sampling(greedy=False, temperature=2.0, seed=5, repetition_penalty=1.25, top_k=50)
        for _ in range(4):
            logits, tokens = s.logits(copy=True), s.tokens()
            id = sampler.sample(logits, settings, len(tokens), tokens)
            p = sampler.probabilities(logits, settings, tokens)
            self.assertAlmostEqual(float(p.sum()), 1, places=5)
            self.assertGreater(p[id], 0)
            self.assertAlmostEqual(stet.log_probability(logits, id), stet.log_softmax(logits)[id], places=9)
            self.assertEqual(s.generate(max_tokens=1, ignore_eos=True).ids.tolist(), [id])


class Streams(common.Case):
    def test_drafts_change_no_reply(self):
        for make in (stet.Speculator, lambda: stet.Speculator(self.model, capacity=512, threads=1)):
            with make() as speculator:
                a, b = self.session(), self.session()
                for s in (a, b):
                    s.sampling = stet.Sampling(greedy=False, temperature=0.4, seed=5)
                expected = a.generate(self.tokenizer, 40, ignore_eos=True)
                reply = b.generate(self.tokenizer, 40, ignore_eos=True, speculator=speculator)
                self.assertEqual((reply.ids.tolist(), reply.text), (expected.ids.tolist(), expected.text))
                self.assertEqual(a.digests(), b.digests())
                self.assertEqual((expected.drafted, expected.accepted), (0, 0))
                self.assertLessEqual(reply.accepted, reply.drafted)
                rows = [stet.Row(a, max_tokens=9), stet.Row(b, max_tokens=9, speculator=speculator)]
                replies = stet.generate_batch(rows, self.tokenizer, ignore_eos=True)
                self.assertEqual(replies[0].ids.tolist(), replies[1].ids.tolist())
                self.assertEqual(a.digests(), b.digests())
        with self.assertRaises(stet.Error):
            b.generate(self.tokenizer, 1, speculator=speculator)
        with self.assertRaises(stet.Error):
            b.generate(self.tokenizer, 1, speculator="suffix")

    def test_a_stream_is_the_reply(self):
        s = self.session()
        s.sampling = stet.Sampling(greedy=False, temperature=1.5, seed=3)
        whole, plain = s.fork(), s.fork()
        reply = whole.generate(self.tokenizer, 10, ignore_eos=True, log_probabilities=True)
        logits = []
        for id in reply.ids:
            logits.append(plain.logits(copy=True))
            plain.append([id])
        expected = [stet.log_softmax(row)[id] for row, id in zip(logits, reply.ids)]
        self.assertTrue(np.allclose(reply.log_probabilities, expected, rtol=0, atol=1e-9))
        stream = s.stream(self.tokenizer, 10, ignore_eos=True)
        tokens = list(stream)
        self.assertEqual([t.id for t in tokens], reply.ids.tolist())
        self.assertEqual("".join(t.text for t in tokens), reply.text)
        self.assertEqual([t.log_probability for t in tokens], reply.log_probabilities.tolist())
        self.assertEqual((stream.reply.text, stream.reply.stop, list(stream)), (reply.text, "length", []))
        self.assertEqual(s.digests(), whole.digests())

    def test_a_stream_ends_where_the_reply_does(self):
        s = self.session()
        reply = s.fork().generate(self.tokenizer, 6, ignore_eos=True)
        s.stop_ids = [int(reply.ids[4])]
        end = reply.ids.tolist().index(reply.ids[4])
        stream = s.stream(self.tokenizer)
        self.assertEqual([t.id for t in stream], reply.ids[: end + 1].tolist())
        self.assertEqual((stream.reply.stop, s.turns[-1].open), ("eos", False))
        full = self.model.session(capacity=12)
        full.append(self.ids[:8])
        self.assertEqual(len(list(full.stream(self.tokenizer, ignore_eos=True))), 4)

    def test_a_stream_that_is_left_goes_on_later(self):
        s = self.session()
        whole = s.fork().generate(self.tokenizer, 8, ignore_eos=True)
        for token in s.stream(self.tokenizer, 8, ignore_eos=True):
            if len(s) == self.ids.size + 3:
                break
        fork = s.fork()
        for one in (s, fork):
            self.assertEqual(one.generate(self.tokenizer, 5, ignore_eos=True).ids.tolist(), whole.ids[3:].tolist())

    def test_streams_are_awaited(self):
        s, other = self.session(), self.session()
        expected = list(s.fork().stream(self.tokenizer, 6, ignore_eos=True))
        ticks = []

        async def read(session):
            return [token async for token in session.stream(self.tokenizer, 6, ignore_eos=True)]

        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        async def both():
            ticking = asyncio.ensure_future(tick())
            found = await asyncio.gather(read(s), read(other))
            ticking.cancel()
            return found

        self.assertEqual(asyncio.run(both()), [expected, expected])
        self.assertGreater(len(ticks), 1)

    def test_text_is_told_and_may_end_the_reply(self):
        s = self.session()
        whole = s.fork().generate(self.tokenizer, 8, ignore_eos=True)
        said = []
        self.assertEqual(s.fork().generate(self.tokenizer, 8, ignore_eos=True, on_text=said.append).text, whole.text)
        self.assertEqual("".join(said), whole.text)
        cut = s.fork().generate(self.tokenizer, 8, ignore_eos=True, on_text=lambda text: False)
        self.assertEqual((cut.stop, cut.text), ("callback", said[0]))

        def fails(text):
            raise KeyError(text)

        with self.assertRaises(KeyError):
            s.generate(self.tokenizer, 8, ignore_eos=True, on_text=fails)
        self.assertEqual(s.tokens()[self.ids.size:].tolist(), cut.ids.tolist())


class Batches(common.Case):
    def test_each_row_replies_as_it_would_alone(self):
        change = stet.Intervention("blocks.3.hook_resid_mid", "add", np.linspace(-1, 1, 256))
        points = ["blocks.1.attn.hook_pattern", "blocks.*.hook_resid_post"]
        reply = self.session().generate(self.tokenizer, 8, ignore_eos=True)

        def rows():
            sessions = [self.session() for _ in range(5)]
            sessions[0].sampling = stet.Sampling(greedy=False, temperature=2.0, seed=9)
            return [
                stet.Row(sessions[0], max_tokens=3),
                stet.Row(sessions[1], stop_strings=[reply.text[3:5]]),
                stet.Row(sessions[2], interventions=[change], prompt=[5, 6, 7]),
                stet.Row(sessions[3], sampling=stet.Sampling(greedy=False, temperature=3.0, seed=4)),
                stet.Row(sessions[4], stop_ids=[int(reply.ids[2])], ignore_eos=False)
            ]

        together, alone = rows(), rows()
        replies = stet.generate_batch(together, self.tokenizer, 6, ignore_eos=True, points=points)
        self.assertEqual([r.stop for r in replies], ["length", "string", "length", "length", "eos"])
        for row, one, reply in zip(together, alone, replies):
            one._prepare()
            before = one.session.fork()
            expected = one.session.generate(self.tokenizer, one.max_tokens or 6,
                                            True if one.ignore_eos is None else one.ignore_eos,
                                            log_probabilities=True)
            self.assertEqual((reply.ids.tolist(), reply.text, reply.stop),
                             (expected.ids.tolist(), expected.text, expected.stop))
            self.assertEqual(reply.log_probabilities.tobytes(), expected.log_probabilities.tobytes())
            self.assertEqual(row.session.digests(), one.session.digests())
            seen = before.append(expected.ids, points)
            self.assertEqual([*reply.captured], [*seen])
            for name, array in seen.items():
                self.assertEqual((name, reply.captured[name].shape, reply.captured[name].tobytes()),
                                 (name, array.shape, array.tobytes()))

    def test_wrong_batches_are_refused(self):
        s = self.session(10)
        self.assertEqual(stet.generate_batch([]), [])
        self.refused(lambda: stet.generate_batch([s, s], self.tokenizer, 2), "batch[1]: session")
        self.refused(lambda: stet.generate_batch([s, "x"], self.tokenizer, 2), "rows[1]")
        self.refused(lambda: stet.generate_batch([s], self.tokenizer, 0), "max_tokens")
        self.refused(lambda: stet.generate_batch([s], self.tokenizer, 2, points=["nowhere"]), "points")
        self.refused(lambda: stet.generate_batch([stet.Row(s, prompt=[2.7])], self.tokenizer, 2), "rows[0].prompt[0]")
        self.assertEqual(len(s), 10)
        plain = stet.generate_batch([s], max_tokens=2, ignore_eos=True, log_probabilities=False)[0]
        self.assertEqual((plain.text, plain.log_probabilities, plain.captured), ("", None, {}))


    def test_a_batch_that_fails_before_it_draws_changes_nothing(self):
        change, many = stet.Intervention("blocks.3.hook_resid_mid", "add", np.linspace(-1, 1, 256)), [5] * 600
        unknown = self.model.vocab_size

        def fails(point, first, rows):
            raise KeyError

        for options, field in (
            (dict(prompt=[unknown]), "rows[1].prompt[0]"),
            (dict(prompt=[5, 2.5]), "rows[1].prompt[1]"),
            (dict(prompt=many), "rows[1].prompt: tokens"),
            (dict(stop_ids=[unknown]), "rows[1].stop_ids[0]"),
            (dict(stop_strings=["a", 5]), "rows[1].stop_strings[1]"),
            (dict(sampling=stet.Sampling(temperature=-1)), "rows[1].sampling: temperature"),
            (dict(interventions=[change, stet.Intervention("hook_embed", "add", [1])]),
             "rows[1].interventions[1]: values"),
            ({}, "batch[2]: session"),
            ({}, None),
        ):
            first, second, chat = self.session(10), self.session(10), stet.Chat(self.session(4), self.tokenizer)
            rows = [stet.Row(first, prompt=[5, 6], sampling=stet.Sampling(seed=9), interventions=[change],
                             stop_strings=["."]),
                    stet.Row(second, **options), stet.Row(second if field == "batch[2]: session" else chat.session,
                                                          prompt=[7])]
            if field is None:
                second.attach_callback(["blocks.0.hook_mlp_out"], fails)
            states = first, second, chat.session
            before = [(s.digests(), s.sampling, s.stop_strings, s.attached(), s.turns) for s in states]
            if field is None:
                with self.assertRaises(KeyError):
                    stet.generate_batch(rows, self.tokenizer, 2)
            else:
                with self.assertRaises(stet.Error) as caught:
                    stet.generate_batch(rows, self.tokenizer, 2)
                self.assertEqual(caught.exception.field, field)
                self.assertTrue(str(caught.exception).startswith(field + ": expected"), caught.exception)
            self.assertEqual([(s.digests(), s.sampling, s.stop_strings, s.attached(), s.turns) for s in states], before)
        s = self.session(10)
        stet.generate_batch([stet.Row(s, prompt=iter([5, 6]), interventions=iter([change]), stop_ids=iter([9]))],
                            max_tokens=1, ignore_eos=True)
        self.assertEqual((len(s), len(s.attached()), s.stop_ids), (13, 1, [9]))


class Interrupts(common.Case):
    def interrupted(self, s, call):
        """Returns what the call leaves when a keyboard interrupt arrives during a pass. Another
        thread sends it when a pass has started."""
        import stet._calls as library
        interrupts = library.long_call.__self__
        ask, begun = interrupts._answers, threading.Event()
        sender = threading.Thread(target=lambda: (begun.wait(60), os.kill(os.getpid(), signal.SIGINT)))
        sender.start()
        s.attach_callback(["blocks.5.hook_resid_post"], lambda point, first, rows: begun.set())
        try:
            with self.assertRaises(KeyboardInterrupt):
                while True:
                    call()
        finally:
            begun.set()
            sender.join()
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
        self.assertTrue(ask)

    def test_the_keyboard_ends_a_call(self):
        s = self.session(10)
        self.interrupted(s, lambda: s.fork().append(self.ids))
        s.detach_callbacks()
        self.assertEqual(s.digests(), self.session(10).digests())
        r = self.session(10)
        self.interrupted(r, lambda: r.fork().generate(self.tokenizer, 400, ignore_eos=True))

    def test_the_keyboard_ends_a_pass(self):
        # One long pass: 8192 tokens at once take seconds. The previous pass's progress callback
        # sends the signal.
        code = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
import stet
model = stet.Model(sys.argv[2])
s = model.session(threads=1, chunk=1024)
ids = [5 + i % 1000 for i in range(2048)]
told = []
before = s.digests()
def progress(done):
    told.append(done)
    threading.Timer(0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    s.append(ids, progress=progress)
    print("went through", told)
except KeyboardInterrupt:
    print(len(s), s.digests() == before, told)
s.append([5])
print(len(s))
"""
        said = subprocess.run([sys.executable, "-c", code,
                               os.path.join(common.ROOT, "python"), common.POCKET], capture_output=True, text=True,
                              timeout=120)
        self.assertEqual((said.stdout, said.stderr), ("0 True [1024]\n1\n", ""))

    def test_what_a_handler_raises_ends_a_call(self):
        class Enough(Exception):
            pass

        def handler(number, frame):
            raise Enough

        s = self.session(10)
        before = s.digests()
        old = signal.signal(signal.SIGUSR1, handler)
        try:
            begun = threading.Event()
            sender = threading.Thread(target=lambda: (begun.wait(60), os.kill(os.getpid(), signal.SIGUSR1)))
            sender.start()
            with self.assertRaises(Enough):
                while True:
                    begun.set()
                    s.fork().append(self.ids)
            sender.join()
        finally:
            signal.signal(signal.SIGUSR1, old)
        self.assertEqual(s.digests(), before)


    def test_an_exception_at_the_begin_of_a_callback_ends_the_call(self):
        class Enough(Exception):
            pass

        class Fails:
            def __del__(self):
                raise KeyError("of a destructor")

        count, place, heard = [0], [0], []

        def tracer(frame, event, argument):
            # Raises where the handler of a signal that arrived before raises.
            if frame.f_code.co_name == "guarded":
                count[0] += 1
                if count[0] == place[0]:
                    raise Enough
            return None

        def call(run, at):
            count[0], place[0] = 0, at
            sys.settrace(tracer)
            try:
                return run()
            finally:
                sys.settrace(None)

        points = ["blocks.2.hook_mlp_out", "blocks.8.hook_mlp_out"]

        def half(point, first, rows):
            rows *= 0.5

        def session():
            s = self.session(10, threads=1)
            s.attach_callback(points, half)
            s.append(self.ids[10:20])
            return s

        def chat():
            chat = stet.Chat(self.session(0, threads=1), self.tokenizer)
            chat.session.attach_callback(points, half)
            return chat

        def gone(point, first, rows):
            Fails()

        ids, hook = self.ids[20:30], sys.unraisablehook
        old = signal.signal(signal.SIGUSR1, lambda number, frame: None)
        sys.unraisablehook = mine = lambda x: heard.append(x.exc_type)
        try:
            for make, run, state in (
                (session, lambda s: s.append(ids), lambda s: s),
                (session, lambda s: s.append(ids, ["hook_embed"], progress=lambda done: None), lambda s: s),
                (session, lambda s: s.append_prompt(ids), lambda s: s),
                (session, lambda s: stet.append_batch([(session(), ids), (s, ids)]), lambda s: s),
                (session, lambda s: s.generate(self.tokenizer, 3, True, on_text=lambda text: None), lambda s: s),
                (chat, lambda c: c.say("What is a?"), lambda c: c.session),
                (chat, lambda c: c.session.append(ids), lambda c: c.session),
            ):
                expected = make()
                call(lambda: run(expected), 0)
                of = count[0]
                self.assertGreaterEqual(of, 2)
                for at in range(1, of + 1):
                    one = make()
                    kept, before = state(one), state(one).digests()
                    with self.assertRaises(Enough):
                        call(lambda: run(one), at)
                    self.assertIs(sys.unraisablehook, mine)
                    if kept.digests() == before:
                        run(one)
                    else:  # a reply keeps the tokens that were drawn
                        kept.append(state(expected).tokens()[len(kept):])
                    self.assertEqual(kept.tokens().tolist(), state(expected).tokens().tolist())
                    self.assertEqual(kept.digests().kv, state(expected).digests().kv)
            self.assertEqual(heard, [])
            s = self.session(10, threads=1)
            s.attach_callback(points, gone)
            s.append(ids)
            self.assertEqual(heard, [KeyError] * 2)
        finally:
            sys.unraisablehook = hook
            signal.signal(signal.SIGUSR1, old)


class Files(common.Case):
    def test_states_in_memory(self):
        with tempfile.TemporaryDirectory() as d:
            s = self.session(130)
            path = d + "/s.stet"
            digests = s.save(path, self.tokenizer)
            data = s.save_bytes(self.tokenizer)
            with open(path, "rb") as file:
                self.assertEqual(data, file.read())
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    buffers = [data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), mapped]
                    for buffer in buffers:
                        snapshot = stet.Snapshot.from_bytes(buffer)
                        self.assertEqual(snapshot.restore(self.model).digests(), digests)
                    buffers.clear()
            parent = stet.Snapshot.from_bytes(data)
            s.append(self.ids[:70])
            delta = s.save_bytes(self.tokenizer, form="delta", parent=parent, compress=1)
            self.assertLess(len(delta), len(data))
            # The name is a label: the parent beside the file of that name is not searched for.
            with self.assertRaises(stet.Error) as caught:
                stet.Snapshot.from_bytes(delta, name=path).restore(self.model)
            self.assertEqual(str(caught.exception),
                             "%s: parent: the delta needs the snapshot of state %s; a delta in memory has to be opened "
                             "with its parent" % (path, digests.id))
            again = stet.Snapshot.from_bytes(delta, parent=parent).restore(self.model, self.tokenizer)
            self.assertEqual(again.digests(), s.digests())
            self.refused(lambda: stet.Snapshot.from_bytes(data, parent=parent), "parent",
                         "memory: parent: expected none, since the snapshot is not a delta, found one")
            self.refused(lambda: stet.Snapshot(path, parent=d + "/none"), "parent",
                         path + ": parent: expected none, since the snapshot is not a delta, found one")

    def test_self_contained_snapshots_and_reports(self):
        with tempfile.TemporaryDirectory() as d:
            s = self.session(130)
            s.stop_strings = ["x"]
            path = d + "/all.stet"
            s.save(path, self.tokenizer, with_weights=True, with_tokenizer=True)
            with open(path, "rb") as file:
                data = file.read()
            for snapshot in (stet.Snapshot(path), stet.Snapshot.from_bytes(data, "all")):
                info = snapshot.info()
                self.assertEqual((info.form, info.positions, info.has_weights, info.has_tokenizer, info.kv_type,
                                  info.config["family"]), ("full", 130, True, True, "f32", "gemma3"))
                self.assertGreater(snapshot.check().files, 2)
                model, tokenizer = snapshot.load_model(), snapshot.load_tokenizer()
                self.assertEqual((model.fingerprint, tokenizer.fingerprint),
                                 (self.model.fingerprint, self.tokenizer.fingerprint))
                again = snapshot.restore(model, tokenizer, check=True)
                self.assertEqual((again.restored.reused, again.restored.recomputed, again.restored.checked),
                                 (130, 0, True))
                self.assertEqual((again.digests(), again.stop_strings), (s.digests(), ["x"]))
                self.assertEqual(snapshot.logits().tobytes(), s.logits().tobytes())
                replayed = snapshot.restore(model, tokenizer, replay=True)
                self.assertEqual(replayed.restored.recomputed, 130)
            stet.Snapshot(path).convert(d + "/recipe.stet", form="recipe")
            digests, pruned = stet.Snapshot(path).convert(d + "/pruned.stet", keep_last=20, sinks=4, compress=3)
            self.assertEqual(pruned, 106)
            self.assertEqual(stet.Snapshot(d + "/pruned.stet").digests(), digests)
            s.append(self.ids[:70])
            s.save(d + "/delta.stet", self.tokenizer, form="delta", parent=stet.Snapshot(path))
            delta = stet.Snapshot(d + "/delta.stet", parent=path)
            self.assertEqual((delta.info().form, delta.info().parent_id), ("delta", stet.Snapshot(path).digests().id))
            self.assertEqual(delta.restore(self.model, self.tokenizer).digests(), s.digests())
            self.assertEqual([b.replayable for b in s.block_identities()], [True] * 3)
            self.assertEqual(s.take_healed(), [])
            # Blocks whose bytes are lost are computed again, and a warning reports it.
            mapped = stet.Snapshot(path).restore(self.model)
            os.truncate(path, len(data) // 3)
            mapped.append([5])
            self.assertIn("all.stet", mapped.take_healed()[0])

    def test_reads_heal_what_a_file_has_lost(self):
        for name, kv_type in (("gemma3-tiny-bf16", "f32"), ("gemma3-tiny-bf16", "q8"), ("gemma4-dense-tiny", "f16")):
            model = stet.Model(common.tiny(name))
            whole, other = (model.session(capacity=100, kv_type=kv_type) for _ in range(2))
            whole.append(range(3, 63))
            other.append(range(70, 90))
            for used in (False, True):  # before the file is lost
                with self.subTest(name=name, kv_type=kv_type, used=used), tempfile.TemporaryDirectory() as d:
                    path = d + "/s.stet"
                    whole.save(path)
                    mapped = [stet.Snapshot(path).restore(model) for _ in range(2)]
                    for s in mapped if used else ():
                        s.keys(0)
                    os.truncate(path, 0)
                    self.assertEqual(mapped[0].keys(0).tobytes(), whole.keys(0).tobytes())
                    self.assertEqual(mapped[0].values(1).tobytes(), whole.values(1).tobytes())
                    self.assertIn("s.stet", mapped[0].take_healed()[0])
                    forks = [other.fork(), other.fork()]
                    for to, source in zip(forks, (mapped[1], whole)):
                        to.copy_kv(source, position=5, begin=0, end=3)
                    self.assertEqual(forks[0].digests(), forks[1].digests())

    def test_models_of_files_and_packed_ones(self):
        where = common.tiny("gpt2-tiny")
        files = common.files(where)
        model, plain = stet.Model.from_files(files, "held"), stet.Model(where)
        del files
        self.assertEqual((model.fingerprints, model.architecture, model.contract),
                         (plain.fingerprints, "GPT2LMHeadModel", "f32"))
        self.assertEqual(list(model.fingerprints)[-1], "model")
        a, b = model.session(), plain.session()
        for s in (a, b):
            s.append([5, 6, 7])
        self.assertEqual(a.logits().tobytes(), b.logits().tobytes())
        with tempfile.TemporaryDirectory() as d:
            stet.pack(where, d + "/packed", "q8")
            self.assertGreater(stet.check_packed(d + "/packed"), 1000)
            packed = stet.Model(d + "/packed", in_memory=True)
            self.assertEqual((packed.contract, packed.session().contract), ("q8", "q8"))
        tokenizer = stet.Tokenizer.from_files(common.files(common.POCKET), "held")
        self.assertEqual(tokenizer.encode("Let a = 3.").tolist(), self.tokenizer.encode("Let a = 3.").tolist())

    def test_how_to_compute(self):
        s = self.session(30, threads=1)
        self.assertIn(stet.isa_names()[0], stet.isa_names())
        plain = s.fork()
        s.set_compute(threads=2, chunk=3, isa=stet.isa_names()[0])
        for one in (s, plain):
            one.append(self.ids[30:60])
        self.assertEqual(s.digests(), plain.digests())
        windowed = self.model.session(window_only=True, recompute=True)
        windowed.append(np.resize(self.ids, 400))
        self.assertGreaterEqual(windowed.rewind_cost(100), 0)
        whole = self.model.session()
        whole.append(np.resize(self.ids, 400))
        np.testing.assert_array_equal(windowed.keys(1), whole.keys(1))
        refusing = self.model.session(window_only=True)
        refusing.append(np.resize(self.ids, 400))
        with self.assertRaisesRegex(stet.Error, "permission to process"):
            refusing.keys(1)
        q8 = self.session(10, kv_type="q8")
        self.assertEqual((q8.kv_type, q8.keys(1).shape, q8.values(1).shape), ("q8", (10, 1, 64), (10, 1, 64)))


if __name__ == "__main__":
    common.main()
