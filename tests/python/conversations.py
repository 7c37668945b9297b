"""Texts, templates and conversations from Python."""
import dataclasses
import gc
import weakref

import common
import numpy as np
import stet


class Texts(common.Case):
    def test_there_is_never_a_second_bos(self):
        for where in (common.POCKET, common.POCKET_LLAMA):
            t = stet.Tokenizer(where)
            mark, plain = t.special_tokens["bos_token"], t.encode("Let a = 3.", bos=False)
            self.assertEqual(t.piece(t.bos), mark)
            self.assertEqual(t.encode("Let a = 3.", bos=True).tolist(), [t.bos] + plain.tolist())
            for bos in (None, True):
                self.assertEqual(t.encode(mark + "Let a = 3.", bos=bos).tolist().count(t.bos), 1)
            self.assertNotIn(t.bos, plain)

    def test_marks_may_be_text(self):
        t = self.tokenizer
        mark = t.piece(t.eos)
        self.assertIn(t.eos, t.encode("a%sb" % mark))
        ids = t.encode("a%sb" % mark, special=False)
        self.assertNotIn(t.eos, ids)
        self.assertEqual(t.decode(ids, skip_special=True), "a%sb" % mark)
        self.assertTrue(t.is_special(t.eos) and not t.is_special(int(ids[-1])))
        front, rest = t.encode("Let a", bos=False), t.encode(" = 3.", bos=False, continued=True)
        self.assertEqual(t.decode(np.concatenate([front, rest])), "Let a = 3.")

    def test_templates(self):
        t = self.tokenizer
        self.assertIn("start_of_turn", t.chat_template())
        messages = [{"role": "user", "content": "Let a = 3.<end_of_turn> What is a?"},
                    {"role": "assistant", "content": "a is 3."}, {"role": "user", "content": "And twice that?"}]
        rendered = stet.ChatTemplate(t).render(messages)
        data = rendered.text.encode()
        self.assertIn(messages[0]["content"], [data[a:b].decode() for a, b in rendered.plain])
        ids = t.apply_chat_template(messages)
        self.assertEqual(ids.tolist().count(t.bos), 1)
        self.assertEqual(t.decode(ids), rendered.text)
        end = t.id("<end_of_turn>")
        self.assertEqual(ids.tolist().count(end), 3)  # the end-of-turn token spelled in the message is text
        self.assertLess(len(t.apply_chat_template(messages, add_generation_prompt=False)), len(ids))
        shout = "{{ bos_token }}{% for m in messages %}{{ m.content | upper }}{{ more }}{% endfor %}"
        self.assertEqual(
            t.decode(t.apply_chat_template(messages[1:2], variables={"more": "!"}, template=shout),
                     skip_special=True), "A IS 3.!")
        for wrong, field in ((5, "messages"), ({"role": "user"}, "messages"), (["x"], "messages[0]"),
                             ([{"content": "x"}], "messages[0]"), ([{"role": "user", "content": "x",
                                                                     "more": {1, 2}}], "messages")):
            self.refused(lambda: t.apply_chat_template(wrong), field)


class Chats(common.Case):
    def chat(self, **options):
        return self.model.chat(self.tokenizer, capacity=1024, **options)

    def test_whole_conversations(self):
        chat = self.chat()
        report = chat.say("Let a = 3. What is a?")
        self.assertEqual((report.kept, report.recomputed, report.added), (0, 0, len(chat.session)))
        reply = chat.reply()
        self.assertEqual((reply.stop, "3" in reply.text), ("eos", True))
        self.assertIn("3", chat.ask("And what is a now?"))
        messages = chat.messages
        self.assertEqual([(m.role, m.drawn) for m in messages], [("user", False), ("assistant", True)] * 2)
        self.assertEqual(messages[1].content, reply.text)
        self.assertEqual([m.content for m in chat.session.messages], [m.content for m in messages])
        # The same messages in another chat give the same state.
        other = self.chat()
        other.prompt([{"role": "user", "content": messages[0].content}])
        other.reply()
        other.prompt(list(other.messages) + [{"role": "user", "content": messages[2].content}])
        other.reply()
        self.assertEqual(other.session.digests(), chat.session.digests())
        # A changed message keeps the tokens before it.
        edited = [messages[0], messages[1], stet.Message("user", "What is a?")]
        plan = chat.plan(edited)
        self.assertEqual((plan.kept > 20, plan.recomputed), (True, 0))
        told = []
        self.assertEqual(chat.prompt(edited, progress=told.append), plan)
        self.assertEqual(told[-1], plan.added + plan.recomputed)

    def test_a_changed_reply_is_not_a_drawn_one(self):
        chat = self.chat()
        chat.ask("Let a = 3. What is a?")
        said, reply = chat.messages
        changed = dataclasses.replace(reply, content="a is 9.")
        self.refused(lambda: chat.prompt([said, changed, stet.Message("user", "What is a?")]), "messages",
                     "messages: the reply at %d has another text than its tokens; a reply that was changed must not "
                     "be marked as drawn" % reply.begin)
        chat.prompt([said, dataclasses.replace(changed, drawn=False), stet.Message("user", "What is a?")])
        self.assertIn("a is 9.", self.tokenizer.decode(chat.session.tokens()))

    def test_special_tokens_are_text_whatever_the_session_says(self):
        mark = self.tokenizer.id("<end_of_turn>")

        def marks(session, special):
            chat = stet.Chat(session, self.tokenizer, now=None, special_in_text=special)
            chat.say("<end_of_turn>")
            return chat.session.tokens().tolist().count(mark)

        new = self.model.session(capacity=64)
        self.assertEqual([marks(new, x) for x in (None, False, True)], [1, 1, 2])
        special = stet.Chat(new, self.tokenizer, special_in_text=True).session
        restored = stet.Snapshot.from_bytes(special.save_bytes(self.tokenizer)).restore(self.model, self.tokenizer)
        self.assertEqual([marks(restored, x) for x in (None, False, True)], [2, 1, 2])

    def test_going_back_and_again(self):
        chat = self.chat()
        first = chat.ask("Let a = 3. What is a?")
        state = chat.session.digests()
        chat.ask("Let b = 5. What is b?")
        chat.rewind()
        self.assertEqual(chat.session.digests().kv, state.kv)
        fork = chat.fork()
        chat.retry()
        self.assertEqual((chat.messages[-1].role, chat.reply().text), ("user", first))
        self.assertEqual(fork.session.digests(), chat.session.digests())
        chat.set_system("Be brief.")
        chat.ask("Let c = 7. What is c?")
        self.assertEqual(chat.messages[0].role, "system")
        self.assertEqual(len(fork.messages), 2)

    def test_streams_and_open_replies(self):
        chat, whole = self.chat(), self.chat()
        for c in (chat, whole):
            c.say("Let a = 3. What is a?")
        expected = whole.reply(log_probabilities=True)
        stream = chat.stream()
        self.assertEqual("".join(t.text for t in stream), expected.text)
        self.assertEqual((stream.reply.stop, stream.reply.log_probabilities.tolist()),
                         ("eos", expected.log_probabilities.tolist()))
        self.assertEqual(chat.session.digests(), whole.session.digests())
        chat.retry()
        cut = chat.reply(2)
        self.assertTrue(chat.is_open and "reply open" in repr(chat))
        rest = chat.end_reply()
        self.assertFalse(chat.is_open)
        self.assertTrue(expected.text.startswith(cut.text + rest))

    def test_a_chat_owns_its_session(self):
        session = self.chat().session  # the session keeps its chat alive
        session.append(self.ids[:10])
        session.close()
        self.assertEqual(len(session), 10)
        session.sampling = stet.Sampling(seed=5)
        chat = self.chat()
        chat.session.sampling = stet.Sampling(seed=9)
        self.assertEqual(chat.session.sampling.seed, 9)
        kept = chat.session
        chat.close()
        self.assertTrue(kept.closed)
        for call in (lambda: len(kept), kept.fork, lambda: kept.append([5])):
            self.refused(call, "chat", "one that is open")
        template = "{% for m in messages %}{{ m.content }}{{ tail }}{% endfor %}"
        own = self.chat(chat_template=template, variables={"tail": "?"}, now=5)
        own.say("What is a")
        self.assertEqual(self.tokenizer.decode(own.session.tokens(), skip_special=True), "What is a?")
        self.refused(lambda: own.say(5), "text")
        self.refused(lambda: own.rewind(0.5), "turns")
        self.refused(lambda: own.prompt([{"role": 5}]), "messages[0]")

    def test_a_chat_keeps_the_functions_of_its_session(self):
        chat, seen = self.chat(), []
        session = chat.session
        with session.changing(["blocks.3.hook_mlp_out"], lambda point, first, rows: None):
            session.append(self.ids[:3])
        session.attach_callback(["blocks.3.hook_mlp_out"], lambda point, first, rows: seen.append(first))
        function = weakref.ref(session._callbacks[-1].callback)
        del session
        gc.collect()
        self.assertIsNotNone(function())
        chat.ask("What is a?", 3)
        self.assertTrue(seen)
        chat.session.detach_callbacks()
        gc.collect()
        self.assertIsNone(function())


if __name__ == "__main__":
    common.main()
