"""Replies as clients of OpenAI's and Anthropic's servers expect them: settings, seeds, prefilled
replies, held-back text, streams, fields.

    replies.py STET ROOT
"""
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

STET, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from api import Server  # noqa: E402

GEMMA, LLAMA = (os.path.join(ROOT, "assets", name) for name in ("pocket-gemma3", "pocket-llama3"))
SEEDS = 2 ** 53 - 10 ** 6


def user(text):
    return [{"role": "user", "content": text}]


def assistant(text):
    return [{"role": "assistant", "content": text}]


def said(answer):
    return (
        answer["output_text"]
        if "output_text" in answer
        else answer["content"][0]["text"]
        if "content" in answer
        else answer["choices"][0]["message"]["content"]
    )


def events(content):
    """Returns (event name or None, data) for each event of a stream, without checking for [DONE]."""
    found = []
    for block in content.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in lines and lines["data"] != "[DONE]":
            found.append((lines.get("event"), json.loads(lines["data"])))
    return found


class WithServer(unittest.TestCase):
    MODEL, OPTIONS = LLAMA, ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.OPTIONS, model=cls.MODEL)
        cls.post, cls.get = cls.server.post, cls.server.get

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def refused(self, path, body, status=400):
        found, answer = self.server.call("POST", path, body)
        self.assertEqual(found, status, (path, body, answer))
        return answer["error"]

    def stream(self, path, body):
        status, content = self.server.call("POST", path, {**body, "stream": True})
        self.assertEqual(status, 200, content)
        return events(content)

    def state(self, id):
        return self.get("/v1/states/" + id)

    def text_of(self, id):
        return self.post("/detokenize", {"tokens": self.state(id)["ids"]})["text"]

    def chat(self, messages, **fields):
        return self.post("/v1/chat/completions", {"messages": messages, **fields})

    def ways(self):
        """Returns, for each address that replies to messages, a body with the question, the field
        of the id, and the way to continue."""
        return (("/v1/chat/completions", lambda text, **f: {"messages": user(text), **f}, "resume_from",
                 lambda a: a["state_id"]),
                ("/v1/messages", lambda text, **f: {"messages": user(text), "max_tokens": 12, **f}, "resume_from",
                 lambda a: a["state_id"]), ("/v1/responses", lambda text, **f: {"input": text, **f},
                                            "previous_response_id", lambda a: a["id"]))


class Settings(WithServer):
    def test_those_of_an_earlier_request_do_not_come_back(self):
        for path, ask, field, id_of in self.ways():
            stop = "stop_sequences" if path == "/v1/messages" else "stop"
            plain = self.post(path, ask("Let a = 3."))
            odd = self.post(path, ask("Let a = 3.", temperature=0.0001, top_p=0.9, top_k=3, seed=7, **{stop: ["zzz"]}))
            answers = [self.post(path, ask("What is a?", **{field: id_of(a)})) for a in (plain, odd)]
            self.assertEqual(
                self.state(answers[0]["state_id"])["sampling"],
                self.state(answers[1]["state_id"])["sampling"], path)
            self.assertEqual(*(self.state(a["state_id"])["digest"] for a in answers), path)

    def test_a_stop_string_of_an_earlier_request_stops_nothing(self):
        for path, ask, field, id_of in self.ways():
            stop = "stop_sequences" if path == "/v1/messages" else "stop"
            plain = self.post(path, ask("Let a = 3."))
            told, then = said(plain), said(self.post(path, ask("What is a?", **{field: id_of(plain)})))
            inside = then[1:5]
            self.assertNotIn(inside, told)
            first = self.post(path, ask("Let a = 3.", **{stop: [inside]}))
            self.assertEqual(
                (said(first), said(self.post(path, ask("What is a?", **{field: id_of(first)})))), (told, then), path
            )
            self.assertNotIn(
                inside, said(self.post(path, ask("What is a?", **{field: id_of(first), stop: [inside]}))), path
            )

    def test_text_goes_on_with_settings_of_its_own(self):
        first = self.post("/v1/completions",
                          {"prompt": "Let a", "max_tokens": 3, "temperature": 2, "seed": 3, "stop": "zzz"})
        second = self.post("/v1/completions", {"prompt": " and", "max_tokens": 3, "resume_from": first["state_id"]})
        sampling = self.state(second["state_id"])["sampling"]
        self.assertEqual((sampling["greedy"], sampling["seed"]), (True, 0))

    def test_a_state_keeps_its_own_for_those_who_continue_it(self):
        made = self.post("/v1/states", {"messages": user("Hello"), "temperature": 3, "seed": 11})
        first = self.post("/v1/states/%s/continue" % made["id"], {"n": 5})
        sampling = self.state(first["state"]["id"])["sampling"]
        self.assertEqual((sampling["greedy"], sampling["temperature"], sampling["seed"]), (False, 3, 11))
        self.assertEqual(
            self.post("/v1/states/%s/continue" % made["id"], {"n": 5})["state"]["id"], first["state"]["id"])

    def test_instructions_stay_and_cannot_be_others(self):
        first = self.post("/v1/responses", {"input": "Let a = 3.", "instructions": "Be kind."})
        for fields in ({}, {"instructions": "Be kind."}, {"instructions": ""}, {"instructions": None}):
            second = self.post("/v1/responses",
                               {"input": "What is a?", "previous_response_id": first["id"], **fields})
            self.assertEqual([m["role"] for m in self.state(second["state_id"])["messages"]],
                             ["system", "user", "assistant"] + ["user", "assistant"])
        for stream in (False, True):
            error = self.refused("/v1/responses", {
                "input": "What is a?", "previous_response_id": first["id"], "instructions": "Be rude.",
                "stream": stream
            })
            self.assertEqual(error["param"], "/instructions")


class TemplateSettings(WithServer):
    MODEL = GEMMA

    def test_those_of_a_state_stay_and_cannot_be_others(self):
        variables = {"x": {"b": 1, "a": 2}}
        state = self.post("/v1/states", {"messages": user("Hi"), "now": 1000, "template_variables": variables})["id"]
        state = self.post("/v1/states/%s/continue" % state, {"n": 2})["state"]["id"]
        for path, body, *_ in self.ways():
            body = {**body("And?"), "resume_from": state}
            for same in ({}, {"now": 1000}, {"now": None, "template_variables": None}, {"template_variables": {}},
                         {"template_variables": variables}):
                self.post(path, {**body, **same})
            for field, value in (("now", 2000), ("template_variables", {"x": 2}),
                                 ("template_variables", {"x": {"a": 2, "b": 1}})):
                error = self.refused(path, {**body, field: value})
                self.assertEqual((error["param"], error["code"]), ("/" + field, "unsupported_field"))


class Temperatures(WithServer):
    def test_one_that_is_too_small_is_refused_by_name(self):
        for path, body, *_ in self.ways():
            for value in (1e-31, 1e-300, -1, 2e30):
                self.assertEqual(self.refused(path, {**body("Hi"), "temperature": value})["param"], "/temperature")
            for value in (0, 1e-30):
                self.post(path, {**body("Hi"), "temperature": value})


class Seeds(WithServer):
    def test_without_a_seed_one_is_drawn_and_told(self):
        for path, ask, _, _ in self.ways():
            answers = [self.post(path, ask("Hello", temperature=5)) for _ in range(4)]
            seeds = {a["seed"] for a in answers}
            self.assertEqual(len(seeds), 4)
            self.assertTrue(all(isinstance(s, int) and 0 <= s < SEEDS for s in seeds), seeds)
            self.assertEqual(len({a["state_id"] for a in answers}), 4)
            for a in answers:
                self.assertEqual(self.state(a["state_id"])["sampling"]["seed"], a["seed"])
                again = self.post(path, ask("Hello", temperature=5, seed=a["seed"]))
                self.assertEqual((again["seed"], self.state(again["state_id"])["digest"]),
                                 (a["seed"], self.state(a["state_id"])["digest"]))

    def test_every_event_that_tells_the_end_tells_the_seed(self):
        for path, ask, _, _ in self.ways():
            stream = self.stream(path, ask("Hello", temperature=5))
            told = {
                d[key]["seed"] if key else d["seed"] for _, d in stream for key in ("response", "message", None)
                if "seed" in (d.get(key, {}) if key else d)
            }
            self.assertEqual(len(told), 1, (path, stream))

    def test_greedy_replies_have_seed_0(self):
        for path, ask, _, _ in self.ways():
            answer = self.post(path, ask("Hello"))
            self.assertEqual((answer["seed"], self.state(answer["state_id"])["sampling"]["seed"]), (0, 0))
        answer = self.chat(user("Hello"), n=3, max_tokens=4)
        self.assertEqual(len({c["state_id"] for c in answer["choices"]}), 1)

    def test_choices_count_up_from_the_seed_that_is_told(self):
        answer = self.chat(user("Hello"), n=3, temperature=5, max_tokens=8)
        for i, choice in enumerate(answer["choices"]):
            self.assertEqual(self.state(choice["state_id"])["sampling"]["seed"], answer["seed"] + i)
            alone = self.chat(user("Hello"), temperature=5, max_tokens=8, seed=answer["seed"] + i)
            self.assertEqual(alone["choices"][0]["state_digest"], choice["state_digest"])


class Beginnings(WithServer):
    """A last message of the assistant prefills the reply."""
    MODEL = GEMMA

    def asked(self, path, messages, **fields):
        return self.post(path,
                         {"max_tokens": 20, ("input" if path == "/v1/responses" else "messages"): messages, **fields}
                         if path != "/v1/responses" else {"max_output_tokens": 20, "input": messages, **fields})

    def test_it_is_gone_on_with(self):
        messages = user("Let a = 3. What is a?")
        whole = self.chat(messages, max_tokens=40)["choices"][0]["message"]["content"]
        for cut in range(1, len(whole)):
            if whole[:cut] != whole[:cut].strip():
                continue
            for path, *_ in self.ways():
                answer = self.asked(path, messages + assistant(whole[:cut]))
                text = self.text_of(answer["state_id"])
                self.assertEqual(text.count("<start_of_turn>model"), 1, text)
                self.assertIn("<start_of_turn>model\n" + whole[:cut] + said(answer), text)
                self.assertEqual(self.state(answer["state_id"])["messages"][-1]["content"], whole[:cut] + said(answer))
            if cut > 3:
                break

    def test_a_beginning_that_was_drawn_ends_as_the_whole_reply_does(self):
        messages = user("Let a = 3. What is a?")
        whole = self.chat(messages, max_tokens=40)["choices"][0]
        state = self.post("/v1/states", {"messages": messages})
        drawn = self.post("/v1/states/%s/continue" % state["id"], {"n": 2})
        beginning = self.state(drawn["state"]["id"])["messages"][-1]["content"].strip()
        answer = self.chat(messages + assistant(beginning), max_tokens=40)
        self.assertEqual(self.state(answer["state_id"])["ids"], self.state(whole["state_id"])["ids"])
        self.assertEqual(beginning + answer["choices"][0]["message"]["content"], whole["message"]["content"])
        self.assertEqual(answer["choices"][0]["state_digest"], whole["state_digest"])

    def test_stop_strings_are_found_behind_it(self):
        answer = self.post("/v1/messages", {
            "messages": user("Let a = 3. What is a?") + assistant("a is"), "max_tokens": 20, "stop_sequences": ["."]
        })
        self.assertEqual((answer["stop_reason"], answer["stop_sequence"], said(answer)), ("stop_sequence", ".", " 3"))

    def test_the_stop_string_that_ended_a_reply_is_named(self):
        whole = said(self.post("/v1/messages", {"messages": user("Hi"), "max_tokens": 5}))
        first, second = whole[0], whole[1]
        self.assertNotEqual(first, second)
        for stops in ([second, first], [first, second]):
            body = {"messages": user("Hi"), "max_tokens": 5, "stop_sequences": stops}
            answer = self.post("/v1/messages", body)
            self.assertEqual((said(answer), answer["stop_reason"], answer["stop_sequence"]),
                             ("", "stop_sequence", first), (whole, stops))
            delta = [d["delta"] for _, d in self.stream("/v1/messages", body) if d["type"] == "message_delta"]
            self.assertEqual(delta, [{"stop_reason": "stop_sequence", "stop_sequence": first}])

    def test_a_stream_says_the_same(self):
        messages = user("Let a = 3. What is a?") + assistant("a is")
        whole = self.chat(messages, max_tokens=20)
        pieces = self.stream("/v1/chat/completions", {"messages": messages, "max_tokens": 20})
        self.assertEqual("".join(d["choices"][0]["delta"].get("content", "") for _, d in pieces),
                         whole["choices"][0]["message"]["content"])
        self.assertEqual(pieces[-1][1]["choices"][0]["state_digest"], whole["choices"][0]["state_digest"])

    def test_text_of_many_bytes_at_the_end_is_not_told_again(self):
        for end in ("🙂", "a is 🙂", "é", "«", "日本"):
            messages = user("Hello") + assistant(end)
            answer = self.chat(messages, max_tokens=8)
            said = answer["choices"][0]["message"]["content"]
            self.assertIn("<start_of_turn>model\n" + end + said, self.text_of(answer["state_id"]))
            pieces = self.stream("/v1/chat/completions", {"messages": messages, "max_tokens": 8})
            self.assertEqual("".join(d["choices"][0]["delta"].get("content", "") for _, d in pieces), said)

    def test_white_space_that_the_template_strips_is_refused_by_name(self):
        for content in ("a is ", " a is", "a is\n", " "):
            for path, *_ in self.ways():
                for more in ({}, {"stream": True}):
                    field = "input" if path == "/v1/responses" else "messages"
                    error = self.refused(path, {
                        **({} if field == "input" else {"max_tokens": 4}), field: user("Hi") + assistant(content),
                        **more
                    })
                    self.assertIn("template", error["message"])
                    self.assertIn("pocket-gemma3", error["message"])
                    self.assertIn("continue_final_message", error["message"])

    def test_another_turn_where_that_is_asked_for(self):
        error = self.refused("/v1/chat/completions",
                             {"messages": user("Hi") + assistant("Hello."), "continue_final_message": "no"})
        self.assertEqual(error["param"], "/continue_final_message")
        answer = self.chat(user("Hi") + assistant("Hello. "), continue_final_message=False, max_tokens=4)
        self.assertEqual(self.text_of(answer["state_id"]).count("<start_of_turn>model"), 2)
        self.assertIn("Hello.<end_of_turn>", self.text_of(answer["state_id"]))

    def test_an_empty_one_begins_with_nothing(self):
        for content in ("", None, []):
            answer = self.chat(user("Let a = 3.") + assistant(content), max_tokens=30)
            self.assertEqual(answer["choices"][0]["state_digest"],
                             self.chat(user("Let a = 3."), max_tokens=30)["choices"][0]["state_digest"])

    def test_states_and_templates_know_it_too(self):
        messages = user("Let a = 3. What is a?") + assistant("a is")
        prompt = self.post("/apply-template", {"messages": messages})
        self.assertTrue(prompt["prompt"].endswith("<start_of_turn>model\na is"))
        self.assertTrue(
            self.post(
                "/apply-template",
                {"messages": messages, "continue_final_message": False})["prompt"].endswith("<start_of_turn>model\n"))
        made = self.post("/v1/states", {"messages": messages})
        self.assertEqual(self.state(made["id"])["ids"], prompt["tokens"])
        reply = self.post("/v1/states/%s/continue" % made["id"], {"n": 20})
        answer = self.chat(messages, max_tokens=20)["choices"][0]
        self.assertEqual((reply["text"], reply["state"]["digest"]),
                         (answer["message"]["content"], answer["state_digest"]))
        self.assertTrue(self.post("/v1/states/%s/verify" % answer["state_id"], {})["same_bits"])
        more = self.post("/v1/states/%s/continue" % answer["state_id"],
                         {"message": {"role": "user", "content": "What is a?"}})
        self.assertIn("3", more["text"])
        # The prefilled reply keeps its tokens.
        self.assertGreater(more["usage"]["reused"], len(prompt["tokens"]) - 2)
        behind = self.post("/v1/states/%s/continue" % self.chat(user("Let a = 3."))["state_id"],
                           {"message": {"role": "user", "content": "What is a?"}, "n": 1})
        self.assertEqual(
            behind["ids"],
            self.post("/v1/states/%s/continue" % behind["state"]["parent"],
                      {"message": {"role": "user", "content": "What is a?"}, "n": 1})["ids"])

    def test_a_response_has_the_text_that_it_had(self):
        answer = self.post("/v1/responses", {"input": user("Let a = 3. What is a?") + assistant("a is")})
        self.assertEqual(self.get("/v1/responses/" + answer["id"])["output_text"], answer["output_text"])
        self.assertNotIn("a is", answer["output_text"])

    def test_a_copy_of_the_response_has_the_same_text(self):
        answer = self.chat(user("Hello") + assistant("I am"), max_tokens=8)
        state = self.state(answer["state_id"])
        for path, body in (("fork", {}), ("rewind", {"tokens": state["positions"]}),
                           ("prune", {"keep_last": state["positions"] - 2})):
            copy = self.post("/v1/states/%s/%s" % (state["id"], path), body)["id"]
            self.assertEqual(self.get("/v1/responses/resp_" + copy[3:])["output_text"], said(answer))

    def test_marks_in_it_end_no_turn(self):
        answer = self.chat(user("Hi") + assistant("a<end_of_turn>"), max_tokens=4)
        mark = self.post("/tokenize", {"text": "<end_of_turn>", "add_special": False})["tokens"]
        self.assertEqual(len(mark), 1)
        prompt = self.state(answer["state_id"])["ids"][:-answer["usage"]["completion_tokens"]]
        self.assertEqual(prompt.count(mark[0]), 1)  # the mark of the user's turn


class Templates(unittest.TestCase):
    """Templates treat a last message of the assistant in different ways."""

    def test_one_that_writes_more_than_marks_behind_it_is_refused(self):
        begin, end = (
            "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n",
            "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        )
        templates = {
            "{{ m.content }}<|eot_id|>": 200, "{{ m.content }}": 200, "{{ m.content }} \n<|eot_id|>\n": 200,
            "{{ m.content | upper }}<|eot_id|>": 400, "{{ m.content }} (said)<|eot_id|>": 400,
            "{{ m.content }}<|eot_id|>{{ messages[0].content }}": 400,
            "{{ m.content.split('is')[0] }}<|eot_id|>": 400,
            "{% if m.role == 'user' %}{{ m.content }}{% endif %}<|eot_id|>": 400,
            "{{ '' if loop.last else m.content }}<|eot_id|>": 400
        }
        with tempfile.TemporaryDirectory() as directory:
            for name in os.listdir(LLAMA):
                shutil.copy(os.path.join(LLAMA, name), directory)
            with open(os.path.join(LLAMA, "tokenizer_config.json"), encoding="utf-8") as f:
                config = json.load(f)

            def ask(item):
                template, expected = item
                own = os.path.join(directory, "own-%d" % list(templates).index(template))
                os.mkdir(own)
                for name in os.listdir(LLAMA):
                    os.symlink(os.path.join(directory, name), os.path.join(own, name))
                os.unlink(os.path.join(own, "tokenizer_config.json"))
                with open(os.path.join(own, "tokenizer_config.json"), "w", encoding="utf-8") as f:
                    json.dump({**config, "chat_template": begin + template + end}, f)
                server = Server(model=own)
                status, answer = server.call(
                    "POST", "/v1/chat/completions",
                    {"messages": user("Let a = 3. What is a?") + assistant("a is"), "max_tokens": 4})
                self.assertEqual(status, expected, (template, answer))
                if status == 400:
                    self.assertIn("template", answer["error"]["message"])
                    self.assertEqual(answer["error"]["code"], "altered_by_template")
                self.assertEqual(
                    server.call("POST", "/v1/chat/completions", {
                        "messages": user("Hi") + assistant("a is"), "max_tokens": 1, "continue_final_message": False
                    })[0], 200)
                server.stop()

            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(ask, templates.items()))


class HeldBack(WithServer):
    """Text that may become a stop string or a character is held back when the length limit ends a
    reply."""
    PROMPT = "Let a = 3. What is a?"

    def cuts(self):
        """Yields stop strings that begin where the reply to PROMPT ends after n tokens, but never
        complete."""
        whole = self.chat(user(self.PROMPT), max_tokens=60, logprobs=True)["choices"][0]
        tokens = [t["token"] for t in whole["logprobs"]["content"]]
        for n in range(2, len(tokens) - 1):
            yield n, tokens[n - 1] + "\u0001", "".join(tokens[:n])

    def test_it_is_told_at_the_end_and_never_again(self):
        for n, stop, text in list(self.cuts())[:4]:
            body = {"messages": user(self.PROMPT), "max_tokens": n, "stop": [stop]}
            whole = self.post("/v1/chat/completions", body)
            self.assertEqual(whole["choices"][0]["message"]["content"], text)
            pieces = self.stream("/v1/chat/completions", body)
            self.assertEqual("".join(d["choices"][0]["delta"].get("content", "") for _, d in pieces), text)
            self.assertEqual(pieces[-1][1]["choices"][0]["state_id"], whole["state_id"])
            on = self.post("/v1/states/%s/continue" % whole["state_id"], {"n": 60})
            self.assertEqual(text + on["text"],
                             self.chat(user(self.PROMPT), max_tokens=60)["choices"][0]["message"]["content"])
            streamed = self.stream("/v1/states/%s/continue" % whole["state_id"], {"n": 60})
            self.assertEqual("".join(d.get("text", "") for _, d in streamed[:-1]), on["text"])
            fork = self.post("/v1/states/%s/fork" % whole["state_id"], {})
            self.assertEqual(self.post("/v1/states/%s/continue" % fork["id"], {"n": 60})["text"], on["text"])
            said = self.chat(user("What is a?"), resume_from=whole["state_id"])["choices"][0]["message"]["content"]
            self.assertIn("3", said)
            self.assertFalse(
                said.startswith(stop[:-1])
                and not self.chat(user("What is a?"), resume_from=self.chat(user(
                    self.PROMPT), max_tokens=n)["state_id"])["choices"][0]["message"]["content"].startswith(
                        stop[:-1]))

    def test_states_with_the_same_end_do_not_tell_it_again(self):
        for n, stop, text in list(self.cuts())[:3]:
            state = "/v1/states/" + self.chat(user(self.PROMPT), max_tokens=n, stop=[stop])["state_id"]
            rest = self.post(state + "/continue", {"n": 60})["text"]
            size = self.get(state)["positions"]
            for path, body in (("rewind", {"tokens": size}), ("prune", {"keep_last": size}),
                               ("prune", {"keep_last": 0, "sinks": size})):
                made = self.post("%s/%s" % (state, path), body)
                self.assertEqual(self.post("/v1/states/%s/continue" % made["id"], {"n": 60})["text"], rest)
            pruned = [self.post(s + "/prune", {"keep_last": size - 4})["id"] for s in (
                state, "/v1/states/" + self.post("/v1/states/%s/continue" % self.post(
                    "/v1/states", {"messages": user(self.PROMPT), "stop": [stop]})["id"], {"n": n})["state"]["id"])]
            told, untold = (self.post("/v1/states/%s/continue" % s, {"n": 60})["text"] for s in pruned)
            self.assertEqual(stop[:-1] + told, untold)

    def test_other_addresses_tell_it_too(self):
        n, stop, text = list(self.cuts())[1]
        message = self.post("/v1/messages", {"messages": user(self.PROMPT), "max_tokens": n, "stop_sequences": [stop]})
        self.assertEqual((message["content"][0]["text"], message["stop_reason"]), (text, "max_tokens"))
        pieces = self.stream("/v1/messages", {"messages": user(self.PROMPT), "max_tokens": n, "stop_sequences": [stop]})
        self.assertEqual("".join(d["delta"]["text"] for _, d in pieces if d["type"] == "content_block_delta"), text)
        response = self.post("/v1/responses", {"input": self.PROMPT, "max_output_tokens": n, "stop": [stop]})
        self.assertEqual((response["output_text"], response["status"]), (text, "incomplete"))
        self.assertEqual(self.get("/v1/responses/" + response["id"])["output_text"], text)
        pieces = self.stream("/v1/responses", {"input": self.PROMPT, "max_output_tokens": n, "stop": [stop]})
        self.assertEqual("".join(d["delta"] for _, d in pieces if d["type"] == "response.output_text.delta"), text)
        self.assertEqual(pieces[-1][1]["response"]["output_text"], text)

    def test_who_continues_a_state_gets_it_with_the_rest(self):
        n, stop, text = list(self.cuts())[1]
        state = self.post("/v1/states", {"messages": user(self.PROMPT), "stop": [stop]})
        first = self.post("/v1/states/%s/continue" % state["id"], {"n": n})
        self.assertEqual(first["text"] + stop[:-1], text)
        second = self.post("/v1/states/%s/continue" % first["state"]["id"], {"n": 60})
        whole = self.chat(user(self.PROMPT), max_tokens=60)["choices"][0]["message"]["content"]
        self.assertEqual(first["text"] + second["text"], whole)
        # Other stop strings release the text at once, as a piece of the stream.
        freed = self.stream("/v1/states/%s/continue" % first["state"]["id"], {"n": 60, "stop": ["zzz"]})
        self.assertEqual(first["text"] + "".join(d.get("text", "") for _, d in freed[:-1]), whole)
        self.assertEqual(first["text"] + freed[-1][1]["text"], whole)
        # The states have equal digests but different ids, because the held-back text differs.
        told = self.chat(user(self.PROMPT), max_tokens=n, stop=[stop])["choices"][0]
        self.assertEqual(told["state_digest"], first["state"]["digest"])
        self.assertNotEqual(told["state_id"], first["state"]["id"])

    def test_half_a_character(self):
        found = 0
        for seed in range(200):
            body = {"prompt": "Hello", "max_tokens": 7, "temperature": 1e9, "seed": seed, "ignore_eos": True}
            whole = self.post("/v1/completions", body)["choices"][0]
            ids = self.state(whole["state_id"])["ids"][-7:]
            self.assertEqual(whole["text"], self.post("/detokenize", {"tokens": ids, "skip_special": True})["text"])
            pieces = self.stream("/v1/completions", body)
            self.assertEqual("".join(d["choices"][0]["text"] for _, d in pieces), whole["text"])
            found += whole["text"].endswith("\ufffd")
            if found == 3:
                break
        self.assertEqual(found, 3)

    def test_the_command_says_the_same(self):
        n, stop, text = list(self.cuts())[1]
        alone = json.loads(
            subprocess.run(
                [STET, "generate", "-m", LLAMA, "--say", self.PROMPT, "--json", "-n",
                 str(n), "--stop", stop], check=True, capture_output=True, text=True).stdout)
        choice = self.chat(user(self.PROMPT), max_tokens=n, stop=[stop])["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["state_digest"]),
                         (alone["text"], alone["digests"]["id"]))


class Streams(WithServer):
    def test_the_id_of_a_response_that_is_streamed_stays(self):
        stream = [d for _, d in self.stream("/v1/responses", {"input": "Let a = 6."})]
        ids = {d["response"]["id"] for d in stream if "response" in d}
        self.assertEqual(len(ids), 1)
        id = ids.pop()
        items = {d["item_id"] for d in stream if "item_id" in d} | {
            d["item"]["id"] for d in stream if "item" in d
        } | {i["id"] for d in stream if "response" in d for i in d["response"]["output"]}
        self.assertEqual(len(items), 1)
        self.assertEqual(self.get("/v1/responses/" + id)["output_text"], stream[-1]["response"]["output_text"])
        self.assertEqual(
            self.state("st_" + id[5:])["digest"],
            self.post("/v1/responses", {"input": "Let a = 6."})["state_digest"])
        second = self.post("/v1/responses", {"input": "What is a?", "previous_response_id": id})
        self.assertIn("6", second["output_text"])
        self.assertEqual(second["previous_response_id"], id)
        again = [d for _, d in self.stream("/v1/responses", {"input": "Let a = 6."})]
        self.assertNotEqual(again[0]["response"]["id"], id)
        self.assertTrue(self.server.call("DELETE", "/v1/responses/" + id)[1]["deleted"])
        self.assertEqual(self.server.call("GET", "/v1/responses/" + id)[0], 404)
        self.assertEqual(
            self.get("/v1/responses/" + again[0]["response"]["id"])["output_text"],
            stream[-1]["response"]["output_text"])

    def test_what_is_refused_is_refused_before_the_first_byte(self):
        long = "word " * 3000
        state = self.chat(user("Hello"), max_tokens=4)["state_id"]
        raw = self.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4})["state_id"]
        first = self.post("/v1/responses", {"input": "Hello", "max_output_tokens": 4})["id"]
        edited = self.post("/v1/states/%s/continue" % self.post("/v1/states", {"messages": user("Hi")})["id"],
                           {})["state"]["id"]
        for path, body in (("/v1/chat/completions", {"messages": user(long)}), ("/v1/completions", {"prompt": long}),
                           ("/v1/completions", {"prompt": ["a", long]}), ("/v1/completions", {"prompt": [5] * 3000}),
                           ("/v1/completions", {"prompt": long,
                                                "resume_from": raw}), ("/v1/completions", {"prompt": []}),
                           ("/v1/chat/completions", {"messages": user(long), "resume_from": state}),
                           ("/v1/chat/completions", {"messages": user("Hi"), "resume_from": raw}), ("/v1/messages", {
                               "messages": user(long), "max_tokens": 4
                           }), ("/v1/messages", {"messages": user(long), "max_tokens": 4,
                                                 "resume_from": state}), ("/v1/responses", {"input": long}),
                           ("/v1/responses", {"input": long, "previous_response_id": first
                                              }), ("/v1/states/%s/continue" % state, {"message": user(long)[0]}),
                           ("/v1/states/%s/continue" % raw, {"text": long}), ("/v1/states/%s/continue" % raw, {
                               "ids": [5] * 3000
                           }), ("/v1/states/%s/continue" % edited,
                                {}), ("/v1/states/%s/continue" % raw,
                                      {"retry": True}), ("/v1/states/%s/continue" % raw, {"message": user("Hi")[0]}),
                           ("/v1/chat/completions", {"messages": user("Hi"), "template_variables": {"messages": 1}})):
            plain, (status, answer) = self.server.call("POST", path,
                                                       body), self.server.call("POST", path, {**body, "stream": True})
            self.assertEqual((plain[0], status), (400, 400), (path, str(body)[:100], plain, answer))
            self.assertEqual(answer["error"], plain[1]["error"])

    def test_refusals_name_the_field_of_the_request(self):
        def processed():
            return next(line for line in self.get("/metrics").decode().split("\n")
                        if line.startswith("stet_prompt_tokens_total"))
        long = "word " * 3000
        chat = "/v1/states/" + self.post("/v1/states", {"messages": user("Hi")})["id"]
        raw = "/v1/states/" + self.post("/v1/states", {"text": "Hi"})["id"]
        size = self.get(raw)["positions"]
        before = processed()
        for path, body, code, message in (
            ("/v1/embeddings", {"input": ["a", "b " * 2900]}, "context_length_exceeded", "/input/1: the prompt has "),
            ("/v1/embeddings", {"input": [5] * 3000}, "context_length_exceeded",
             "/input: the prompt has 3000 tokens and must have fewer than 2049 (--ctx)"),
            ("/v1/embeddings", {"input": [[5], [5] * 3000]}, "context_length_exceeded",
             "/input/1: the prompt has 3000 tokens and must have fewer than 2049 (--ctx)"),
            ("/v1/embeddings", {"input": []}, "invalid_value",
             "/input: expected text, a list of texts, or token ids, found an empty list"),
            ("/v1/completions", {"prompt": [[5], [5] * 3000]}, "context_length_exceeded",
             "/prompt/1: the prompt has 3000 tokens and must have fewer than 2048 (--ctx)"),
            (raw + "/rewind", {"tokens": 400}, "invalid",
             "/tokens: rewind: expected a position in 0..%d, found 400" % size),
            (raw + "/rewind", {"message": 0}, "not_a_conversation",
             "/message: this state holds raw text, which has no messages"),
            (raw + "/edit", {"message": 0, "content": "a"}, "not_a_conversation",
             "/message: this state holds raw text, which has no messages"),
            (raw + "/continue", {"message": user("a")[0]}, "not_a_conversation",
             "/message: this state holds raw text; send text or ids instead of messages"),
            (chat + "/continue", {"message": {"role": "cat", "content": "a"}}, "unsupported_role",
             "/message/role: expected system, developer, user or assistant, found cat"),
            (chat + "/continue", {"message": user(long)[0]}, "context_length_exceeded", "/message: the prompt has "),
            (chat + "/continue", {"retry": True}, "invalid_value",
             "/retry: expected a reply to draw again, found none"),
            (chat + "/edit", {"message": 0, "content": "a " * 300000}, "context_length_exceeded",
             "/content: the prompt of 600000 bytes has at least "),
            ("/v1/chat/completions", {}, "missing_field", "/messages is missing: give a list of at least one message"),
        ):
            error = self.refused(path, body)
            self.assertTrue(error["message"].startswith(message), (path, error))
            self.assertEqual((error["code"], error["param"]), (code, error["message"].split(" ")[0].rstrip(":")), error)
        self.assertEqual(processed(), before)

    def test_errors_in_a_stream_are_named(self):
        server = Server("--deadline", "0.05")
        for path, ask, _, _ in self.ways():
            most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            body = {**ask("Hello"), most: 1900, "temperature": 5, "seed": 1, "stream": True}
            if path == "/v1/chat/completions":
                body["ignore_eos"] = True
            for _ in range(20):
                status, content = server.call("POST", path, body)
                if status == 200 and b"deadline_exceeded" in content:
                    break
                body["seed"] += 1
            else:
                continue
            name, last = events(content)[-1]
            self.assertEqual((name, last["type"], last["error"]["code"]), ("error", "error", "deadline_exceeded"))
            if path == "/v1/responses":
                self.assertEqual([d["sequence_number"] for _, d in events(content)], list(range(len(events(content)))))
                self.assertEqual((last["code"], last["param"]), ("deadline_exceeded", None))
                self.assertIn("--deadline", last["message"])
            if path != "/v1/chat/completions":
                self.assertTrue(all(name == d["type"] for name, d in events(content)))
        status, content = server.call(
            "POST", "/v1/chat/completions",
            {"messages": user("Hi"), "max_tokens": 1900, "ignore_eos": True, "stream": True})
        self.assertIn((status, events(content)[-1][0] if status == 200 else None), ((200, "error"), (504, None)))
        server.stop()


class Offsets(WithServer):
    MODEL = GEMMA

    def offsets(self, server, body):
        whole = server.post("/v1/completions", body)["choices"]
        streamed = {}
        for _, d in events(server.call("POST", "/v1/completions", {**body, "stream": True})[1]):
            c = d["choices"][0]
            into = streamed.setdefault(c["index"], {"text": "", "logprobs": {}})
            into["text"] += c["text"]
            for name, values in c["logprobs"].items():
                into["logprobs"].setdefault(name, []).extend(values)
        for c in whole:
            self.assertEqual(streamed[c["index"]]["text"], c["text"])
            self.assertEqual(streamed[c["index"]]["logprobs"], c["logprobs"])
            self.assertEqual(len({len(v) for v in c["logprobs"].values()}), 1)
        return whole

    def test_they_count_characters_of_the_whole_stream(self):
        for model in (GEMMA, LLAMA):
            server = self.server if model == GEMMA else Server(model=model)
            halves = 0
            for seed in range(60):
                c = self.offsets(
                    server, {
                        "prompt": "Hello", "max_tokens": 60, "logprobs": 0, "temperature": 1e9, "seed": seed,
                        "ignore_eos": True
                    })[0]
                text, tokens, offsets = c["text"], c["logprobs"]["tokens"], c["logprobs"]["text_offset"]
                self.assertEqual(offsets, sorted(offsets))
                self.assertLessEqual(offsets[-1], len(text))
                for token, at in zip(tokens, offsets):
                    # Special tokens are left out, and the first space may be.
                    if "\ufffd" not in token and text[at:at + len(token)] != token:
                        self.assertTrue(
                            token.startswith("<") or token[1:] == text[:len(token) - 1] and at == 0,
                            (token, text[at:at + 9]))
                if "".join(tokens) == text and "\ufffd" in "".join(tokens[:-1]):
                    halves += 1
                    self.assertEqual([text[at:at + len(t)] for t, at in zip(tokens, offsets)], tokens)
            self.assertGreater(halves, 0)
            if model != GEMMA:
                server.stop()

    def test_characters_of_several_tokens(self):
        body = {"prompt": "é 🙂 日本 é", "max_tokens": 0, "echo": True, "logprobs": 0}
        c = self.offsets(self.server, body)[0]
        self.assertEqual(c["text"], body["prompt"])
        offsets = c["logprobs"]["text_offset"]
        self.assertEqual(offsets, sorted(offsets))
        for token, at in zip(c["logprobs"]["tokens"], offsets):
            if "\ufffd" not in token and token != "<bos>":
                self.assertEqual(body["prompt"][at:at + len(token.lstrip())], token.lstrip())


class Completions(WithServer):
    def test_prompts_of_a_list_are_answered_as_each_alone(self):
        prompts = ["Let a", "Let b = 4. What", [930, 5, 6], "Let a"]
        for more in ({}, {"n": 2, "temperature": 3, "seed": 5}):
            body = {"max_tokens": 5, **more}
            answer = self.post("/v1/completions", {"prompt": prompts, **body})
            n = more.get("n", 1)
            self.assertEqual([c["index"] for c in answer["choices"]], list(range(len(prompts) * n)))
            for k, prompt in enumerate(prompts):
                alone = self.post("/v1/completions", {"prompt": prompt, **body})
                for i in range(n):
                    self.assertEqual({**answer["choices"][k * n + i], "index": i}, alone["choices"][i])
            self.assertEqual(answer["usage"]["completion_tokens"], sum(5 for _ in answer["choices"]))
            texts = {}
            for _, d in self.stream("/v1/completions", {"prompt": prompts, **body}):
                texts[d["choices"][0]["index"]] = texts.get(d["choices"][0]["index"], "") + d["choices"][0]["text"]
            self.assertEqual(texts, {c["index"]: c["text"] for c in answer["choices"]})

    def test_lists_that_are_none(self):
        for prompt, where in (([], "/prompt"), ([[]], "/prompt/0"), (["a", 5], "/prompt/1"), ([["a"]], "/prompt/0/0"),
                              ([[1], [2, -1]], "/prompt/1/1"), (["a"] * 257, "/prompt"), ({}, "/prompt"),
                              (5, "/prompt"), ([None], "/prompt/0")):
            self.assertEqual(self.refused("/v1/completions", {"prompt": prompt})["param"], where, prompt)

    def test_nothing_is_drawn_of_no_tokens(self):
        answer = self.post("/v1/completions", {"prompt": "Let a", "max_tokens": 0})
        choice = answer["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"]),
                         ("", "length", 0))
        self.assertEqual(self.state(choice["state_id"])["ids"], self.post("/tokenize", {"text": "Let a"})["tokens"])
        full = [5] * 2048
        self.assertEqual(
            self.post("/v1/completions", {"prompt": full, "max_tokens": 0})["usage"]["prompt_tokens"], 2048)
        self.assertEqual(self.refused("/v1/completions", {"prompt": full})["code"], "context_length_exceeded")

    def test_echo(self):
        plain = self.post("/v1/completions", {"prompt": "Let a", "max_tokens": 4})["choices"][0]
        for stream in (False, True):
            if stream:
                text = "".join(
                    d["choices"][0]["text"]
                    for _, d in self.stream("/v1/completions", {"prompt": "Let a", "max_tokens": 4, "echo": True}))
            else:
                text = self.post("/v1/completions",
                                 {"prompt": "Let a", "max_tokens": 4, "echo": True})["choices"][0]["text"]
            self.assertEqual(text, "Let a" + plain["text"])

    def test_log_probabilities_of_prompts(self):
        drawn = self.post("/v1/completions",
                          {"prompt": "Let a = 3. What is a?", "max_tokens": 9, "logprobs": 3})["choices"][0]
        ids = self.state(drawn["state_id"])["ids"]
        echoed = self.post("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 3})
        scores = echoed["choices"][0]["logprobs"]
        self.assertEqual(len(scores["tokens"]), len(ids))
        self.assertIsNone(scores["token_logprobs"][0])
        self.assertIsNone(scores["top_logprobs"][0])
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            self.assertEqual(scores[name][-9:], drawn["logprobs"][name])  # bit for bit
        told = self.get("/v1/states/%s/tokens?logprobs=true" % drawn["state_id"])["data"]
        self.assertEqual([t["logprob"] for t in told], scores["token_logprobs"])
        self.assertEqual(echoed["usage"]["prompt_tokens"], len(ids))
        both = self.post(
            "/v1/completions",
            {"prompt": "Let a = 3. What is a?", "max_tokens": 9, "logprobs": 3, "echo": True})["choices"][0]
        self.assertEqual(both["logprobs"], {**scores, "text_offset": both["logprobs"]["text_offset"]})
        self.assertEqual(both["state_digest"], drawn["state_digest"])
        text = both["text"]
        for token, at in zip(both["logprobs"]["tokens"], both["logprobs"]["text_offset"]):
            self.assertTrue(token.startswith("<|") or text[at:at + len(token)] == token, (token, at))
        behind = self.post(
            "/v1/completions", {
                "prompt": ids[6:], "max_tokens": 0, "echo": True, "logprobs": 0, "resume_from": self.post(
                    "/v1/completions", {"prompt": ids[:6], "max_tokens": 0})["state_id"]
            })
        self.assertEqual(behind["choices"][0]["logprobs"]["token_logprobs"], scores["token_logprobs"][6:])
        many = self.post("/v1/completions",
                         {"prompt": [ids, ids[:5]], "max_tokens": 0, "echo": True, "logprobs": 3})["choices"]
        self.assertEqual(many[0]["logprobs"], scores)
        self.assertEqual(many[1]["logprobs"]["token_logprobs"], scores["token_logprobs"][:5])
        said = subprocess.run([STET, "score", "-m", self.MODEL, "--jsonl"], input=json.dumps({"ids": ids}),
                              capture_output=True, text=True, check=True).stdout
        self.assertEqual([None] + json.loads(said)["logprobs"], scores["token_logprobs"])

    def test_log_probabilities_of_a_changed_state_are_those_that_it_draws_by(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/i.json", "w") as file:
                json.dump([{"point": "ln_final.hook_normalized", "op": "scale", "amount": 0.5}], file)
            subprocess.run([
                STET, "save", "-m", self.MODEL, "--ids", "5,6,7", "--intervene", folder + "/i.json", "-o",
                folder + "/s.stet"
            ], check=True, capture_output=True)
            with open(folder + "/s.stet", "rb") as file:
                start = self.server.call("POST", "/v1/states/upload", raw=file.read())[1]["id"]
        drawn = self.post("/v1/completions", {"prompt": [8, 9], "max_tokens": 4, "logprobs": 0, "resume_from": start})
        ids = self.state(drawn["state_id"])["ids"][5:]
        plain, changed = (self.post("/v1/completions",
                                    {"prompt": [8, 9] + ids, "max_tokens": 0, "echo": True, "logprobs": 0, **more
                                     })["choices"][0]["logprobs"]["token_logprobs"][2:]
                          for more in ({}, {"resume_from": start}))
        self.assertEqual(changed, drawn["choices"][0]["logprobs"]["token_logprobs"])
        self.assertNotEqual(plain, changed)

    def test_long_prompts_are_scored_in_parts(self):
        ids = [(7 * i) % 900 for i in range(700)]
        scores = self.post(
            "/v1/completions",
            {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0})["choices"][0]["logprobs"]["token_logprobs"]
        state = self.post("/v1/states", {"ids": ids})
        self.assertEqual([t["logprob"] for t in self.get("/v1/states/%s/tokens?logprobs=true" % state["id"])["data"]],
                         scores)


class Fields(WithServer):
    def test_what_asks_for_nothing_is_accepted(self):
        nothing = (None, "", [], {})
        fields = {
            "/v1/chat/completions": {
                "tools": [None, [], {}], "tool_choice": [None, "none", "auto", ""], "functions": nothing,
                "function_call": [None, "none", "auto"], "parallel_tool_calls": [None, True, False],
                "response_format": [None, {}, {"type": "text"},
                                    {"type": "text", "json_schema": None}], "modalities": [None, [], ["text"]],
                "audio": nothing, "prediction": nothing, "stop": nothing[:3], "logprobs": [None, False],
                "top_logprobs": [None, 0], "store": [None, False], "service_tier": [None, "auto", "default", ""],
                "web_search_options": nothing, "reasoning_effort": [None, "none", ""], "verbosity": [None, "medium"],
                "user": nothing, "metadata": nothing, "n": [None, 1], "seed": [None], "stream_options": [None, {}],
                "logit_bias": [None, {}], "model": [None, ""], "resume_from": [None, ""],
                "unheard_of": [*nothing, {"edits": [], "more": None}],
                "max_completion_tokens": [None], "temperature": [None], "prompt_cache_retention": [None, "24h"]
            }, "/v1/completions": {
                "suffix": [None, ""], "best_of": [None, 1], "echo": [None, False], "logprobs": [None],
                "stop": nothing[:3], "user": nothing, "resume_from": [None, ""], "logit_bias": [None, {}]
            }, "/v1/responses": {
                "tools": nothing, "tool_choice": [None, "none", "auto"], "truncation": [None, "auto", "disabled"],
                "text": [None, {}, {"format": {"type": "text"}}, {"format": {"type": "text"}, "verbosity": "medium"}],
                "reasoning": [None, {}, {"effort": None, "summary": None}, {"effort": "none"}], "include": [None, []],
                "instructions": [None, ""], "previous_response_id": [None, ""], "background": [None, False],
                "conversation": [None], "prompt": [None], "max_tool_calls": [None], "service_tier": [None, "auto"],
                "metadata": nothing, "stream_options": [None,
                                                        {"include_obfuscation": False}], "top_logprobs": [None, 0]
            }, "/v1/messages": {
                "tools": nothing, "tool_choice": [
                    None, {"type": "none"}, {"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": True}
                ], "thinking": [None, {"type": "disabled"}], "system": [None, "", []], "stop_sequences": nothing[:3],
                "mcp_servers": [[]], "context_management": [{"edits": []}],
                "metadata": [None, {}, {"user_id": "me"}], "service_tier": [None, "auto", "standard_only"],
                "resume_from": [None, ""]
            }
        }
        good = {
            "/v1/chat/completions": {"messages": user("Hi"),
                                     "max_tokens": 1}, "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
            "/v1/responses": {"input": "Hi",
                              "max_output_tokens": 1}, "/v1/messages": {"messages": user("Hi"), "max_tokens": 1}
        }
        for path, all in fields.items():
            digest = self.state(self.post(path, good[path])["state_id"])["digest"]
            for name, values in all.items():
                for value in values:
                    answer = self.post(path, {**good[path], name: value})
                    self.assertEqual(self.state(answer["state_id"])["digest"], digest, (path, name, value))

    def test_what_asks_for_something_is_not_supported(self):
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        chat = "/v1/chat/completions"
        cases = [
            (chat, {"messages": user("w"), "tools": [{"type": "function"}]}, "/tools", "tools is not supported"),
            (chat, {"messages": user("w"),
                    "tool_choice": "required"}, "/tool_choice", "tool_choice is not supported"),
            (chat, {"messages": user("w"), "response_format": {"type": "json_object"}}, "/response_format",
             "response_format is not supported by this server; send {\"type\":\"text\"} or leave it out"),
            (chat, {"messages": user("w"), "banana": 1}, "/banana", "banana is not supported"),
            (chat, {"messages": user("w"), "banana": {"a": False}}, "/banana", "banana is not supported"),
            (chat, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
             "/messages/0/content/0/type", "image_url is not supported"),
            ("/v1/responses", {"input": [{"type": "function_call", "name": "f", "call_id": "c",
                                          "arguments": "{}"}]}, "/input/0/type", "function_call is not supported"),
            ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "c",
                                          "output": "3"}]}, "/input/0/type", "function_call_output is not supported"),
            ("/v1/messages", {
                "max_tokens": 1, "messages": [{
                    "role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "3"}]
                }]
            }, "/messages/0/content/0/type", "tool_result is not supported"),
            ("/v1/messages", {
                "max_tokens": 1,
                "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "citations": [{}]}]}]
            }, "/messages/0/content/0/citations", "citations is not supported")
        ]
        for content in (None, "", "text", "absent"):
            message = {"role": "assistant", "content": content, "tool_calls": [call]}
            if content == "absent":
                del message["content"]
            cases.append(
                (chat, {"messages": user("w") + [message]}, "/messages/1/tool_calls", "tool_calls is not supported"))
            cases.append((chat, {
                "messages": user("w") + assistant("x") + [{"role": "tool", "tool_call_id": "c1", "content": content}]
            }, "/messages/2/role", "role tool is not supported"))
        for path, body, where, said in cases:
            for stream in (False, True):
                error = self.refused(path, {**body, "stream": stream})
                self.assertEqual(error["param"], where, body)
                self.assertIn(said, error["message"])

    def test_a_template_that_refuses_messages_is_named(self):
        server = Server(model=GEMMA)
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/apply-template"):
            body = {"messages": user("a") + user("b")}
            if path != "/apply-template":
                body["max_tokens"] = 1
            status, answer = server.call("POST", path, body)
            self.assertEqual(
                (status, answer["error"]["code"], answer["error"]["param"], answer["error"]["message"]),
                (400, "refused_by_template", "/messages",
                 "/messages: the chat template of pocket-gemma3 refuses them: user and assistant turns must alternate"))
        server.stop()

    def test_histories_come_back_as_servers_gave_them(self):
        replies = [{
            "role": "assistant", "content": "3", "refusal": None, "annotations": [], "audio": None,
            "function_call": None, "tool_calls": None, "name": None, "reasoning_content": None
        }, {"role": "assistant", "content": "3", "tool_calls": [], "refusal": ""}, {
            "role": "assistant", "content": [{"type": "text", "text": "3", "citations": None}], "unheard_of": None,
            "reasoning_details": [], "provider_specific_fields": {}
        },
                   self.post("/v1/responses", {"input": "Let a = 3."})["output"][0],
                   self.chat(user("Let a = 3."))["choices"][0]["message"]]
        for reply in replies:
            self.chat(user("Let a = 3.") + [reply] + user("What is a?"))
            self.post("/v1/responses", {"input": user("Let a = 3.") + [reply] + user("What is a?")})
        content = self.post("/v1/messages", {"messages": user("Let a = 3."), "max_tokens": 9})["content"]
        self.post(
            "/v1/messages", {
                "messages": user("Let a = 3.") + [{"role": "assistant", "content": content}] + user("What is a?"),
                "max_tokens": 9
            })

    def test_addresses_that_sdks_call(self):
        body = {"messages": user("Let a = 3."), "system": "Be kind.", "max_tokens": 4}
        for query in ("", "?beta=true"):
            answer = self.post("/v1/messages" + query, body)
            count = self.post("/v1/messages/count_tokens" + query,
                              {name: body[name] for name in ("messages", "system")})
            self.assertEqual(
                count, {"input_tokens": answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"]})
        behind = self.post("/v1/messages/count_tokens",
                           {"messages": user("What is a?"), "resume_from": answer["state_id"]})
        self.assertGreater(behind["input_tokens"], count["input_tokens"])
        # An estimate may exceed the limit.
        self.assertGreater(
            self.post("/v1/messages/count_tokens", {"messages": user("word " * 3000)})["input_tokens"], 2048)
        self.assertEqual(self.server.call("POST", "/v1/messages?banana=1", body)[0], 400)
        self.assertEqual(self.server.call("GET", "/v1/models?beta=true")[0], 200)

    def test_each_reply_has_an_id_of_its_own(self):
        # Clients keep messages by their ids.
        for path, body in (("/v1/chat/completions", {"messages": user("Hi"), "max_tokens": 1}),
                           ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
                           ("/v1/messages", {"messages": user("Hi"), "max_tokens": 1})):
            ids = [self.post(path, body)["id"] for _ in range(2)]
            self.assertNotEqual(ids[0], ids[1], path)
            self.assertRegex(ids[0], "^(chatcmpl-|cmpl-|msg_)[0-9a-f]{32}$")


class Names(unittest.TestCase):
    def test_a_model_has_aliases(self):
        server = Server("--alias", "gpt-4o", "--alias", "anthropic/claude", "--alias", "gpt-4o", "--alias",
                        "pocket-llama3")
        names = ["pocket-llama3", "gpt-4o", "anthropic/claude"]
        self.assertEqual([m["id"] for m in server.get("/v1/models")["data"]], names)
        for name in names:
            for path, body in (("/v1/chat/completions", {"messages": user("Hi"), "max_tokens": 1
                                                         }), ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
                               ("/v1/messages", {"messages": user("Hi"), "max_tokens": 1}),
                               ("/v1/responses", {"input": "Hi",
                                                  "max_output_tokens": 1}), ("/v1/embeddings", {"input": "Hi"})):
                self.assertEqual(server.post(path, {**body, "model": name})["model"], name)
                self.assertEqual(server.call("POST", path, {**body, "model": "gpt-5"})[0], 404)
        self.assertEqual(server.get("/v1/models/gpt-4o")["root"], "pocket-llama3")
        for name in ("anthropic/claude", "anthropic%2Fclaude"):
            self.assertEqual(server.get("/v1/models/" + name)["id"], "anthropic/claude")
        self.assertEqual(server.call("GET", "/v1/models/anthropic/claude/x")[0], 404)
        for query, page, more in (("limit=1000", names, False), ("limit=2", names[:2], True),
                                  ("limit=2&after_id=gpt-4o", names[2:], False),
                                  ("after_id=anthropic/claude", [], False),
                                  ("before_id=anthropic/claude&limit=20", names[:2], False)):
            told = server.get("/v1/models?" + query)
            self.assertEqual(([m["id"] for m in told["data"]], told["has_more"]), (page, more), query)
            self.assertEqual((told["first_id"], told["last_id"]),
                             (page[0], page[-1]) if page else (None, None), query)
        for query in ("limit=0", "limit=1001", "limit=x", "limit="):
            self.assertEqual(server.call("GET", "/v1/models?" + query)[1]["error"]["param"], "?limit")
        self.assertEqual(server.call("GET", "/v1/models/gpt-5")[0], 404)
        server.stop()
        done = subprocess.run([STET, "serve", "-m", LLAMA, "--port", "0", "--alias", ""], capture_output=True,
                              text=True)
        self.assertEqual((done.returncode, "--alias" in done.stderr), (2, True), done.stderr)


class Bounds(WithServer):
    OPTIONS = ("--streams", "1", "--queue", "8")

    def peak(self):
        with open("/proc/%d/status" % self.server.process.pid, encoding="utf-8") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))

    def test_texts_are_bounded_before_they_become_tokens(self):
        self.post("/tokenize", {"text": "a"})
        before = self.peak()
        answer = self.post("/tokenize", {"text": "a b c d " * (1 << 17)})
        self.assertEqual((len(answer["tokens"]), len(answer["pieces"])), (answer["count"], answer["count"]))
        self.assertEqual(
            answer["pieces"][1], {
                "id": answer["tokens"][1], "bytes": list(
                    self.post("/detokenize", {"tokens": [answer["tokens"][1]]})["text"].encode())
            })
        self.assertLess(self.peak() - before, 100_000)
        error = self.refused("/tokenize", {"text": "a" * ((1 << 20) + 1)})
        self.assertEqual(error["param"], "/text")
        before = self.peak()
        for path, body in (("/v1/completions", {"prompt": "a b c d " * (1 << 18)}), ("/v1/chat/completions", {
                "messages": user("a b c d " * (1 << 18))
        }), ("/v1/states", {"text": "a b c d " * (1 << 18)}), ("/v1/embeddings", {"input": "a " * 30000}),
                           ("/v1/responses", {"input": "a b c d " * (1 << 18)}),
                           ("/v1/messages", {"messages": user("a b c d " * (1 << 18)), "max_tokens": 1})):
            self.assertEqual(self.refused(path, body)["code"], "context_length_exceeded", path)
        self.assertLess(self.peak() - before, 40_000)

    def test_whoever_makes_tokens_waits_for_a_place(self):
        import socket
        body = json.dumps({
            "messages": user("Hi"), "max_tokens": 1900, "ignore_eos": True, "temperature": 1, "seed": 1,
            "stream": True
        }).encode()
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                      b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            while b"delta" not in s.recv(65536):
                pass
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                waiting = [
                    pool.submit(self.post, path, b)
                    for path, b in (("/tokenize", {"text": "Hi"}), ("/v1/messages/count_tokens",
                                                                    {"messages": user("Hi")}))
                ]
                while self.get("/v1/status")["queued"] < 2:
                    pass
                s.close()
                for w in waiting:
                    w.result()


class Operators(unittest.TestCase):
    def test_a_full_disk_is_told_to_the_operator_alone(self):
        import resource
        with tempfile.TemporaryDirectory() as directory:
            states = os.path.join(directory, "states")
            limited = ("import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); "
                       "os.execv(sys.argv[1], sys.argv[1:])")
            process = subprocess.Popen([
                sys.executable, "-c", limited, STET, "serve", "-m", LLAMA, "--port", "0", "--state-dir", states,
                "--durable"
            ], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            server = Server.__new__(Server)
            server.process = process
            server.port = int(process.stdout.readline().rsplit(":", 1)[1].strip("/\n"))
            body = {"messages": user("Let a = 3."), "max_tokens": 4}
            status, answer = server.call("POST", "/v1/chat/completions", body)
            self.assertEqual((status, answer["error"]["code"]), (500, "io"))
            status, content = server.call("POST", "/v1/chat/completions", {**body, "stream": True})
            self.assertEqual(events(content)[-1][1]["error"]["code"], "io")
            self.assertNotIn(b"state_id", content)
            process.terminate()
            _, log = process.communicate(timeout=60)
            self.assertGreaterEqual(log.count("File too large"), 2, log)
            self.assertIn(states, log)
            self.assertNotIn(directory, json.dumps(answer) + content.decode())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
