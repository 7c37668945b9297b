"""An agent's history with a model whose layers are recurrent. The client renders all messages again
for each request, and the template drops the thoughts of earlier turns. The server computes at most
64 tokens again where a history branches, also after its process was restarted. Its replies equal
those of a server that has seen nothing before.

    histories.py STET ROOT
"""
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

TURNS, CONTEXT, AGAIN = 12, 8192, 64
# Replies keep their thoughts only after the user's last message, as with Qwen3. Outputs of tools do not count as
# messages of the user.
TEMPLATE = (
    "{{ bos_token }}{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1] | trim }}"
    "{% else %}{{ m.content | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n<think>\n' }}{% endif %}")


def checkpoint(directory):
    """Writes a model of random weights with the tokenizer of pocket-llama3 and the template."""
    with open(os.path.join(ROOT, "tests/data/models/qwen35-tiny/config.json")) as file:
        config = json.load(file)
    config.update(vocab_size=936, max_position_embeddings=CONTEXT, eos_token_id=931, bos_token_id=930)
    shape = os.path.join(directory, "shape.json")
    with open(shape, "w") as file:
        json.dump(config, file)
    model = os.path.join(directory, "model")
    subprocess.run([os.path.join(os.path.dirname(STET), "make_checkpoint"), shape, "-o", model, "--seed", "3"],
                   check=True, capture_output=True)
    llama = os.path.join(ROOT, "assets/pocket-llama3")
    shutil.copy(os.path.join(llama, "tokenizer.json"), model)
    with open(os.path.join(llama, "tokenizer_config.json")) as file:
        tokenizer = json.load(file)
    tokenizer["chat_template"] = TEMPLATE
    with open(os.path.join(model, "tokenizer_config.json"), "w") as file:
        json.dump(tokenizer, file)
    return model


def message(role, content):
    return {"role": role, "content": content}


def task(turn):
    return message("user", "Task %d: let %s be %d and say what it is." % (turn, "abcdxyz"[turn % 7], turn))


def output(turn):
    lines = " ".join("line %d of file %d has %d." % (i, turn, i * turn % 97) for i in range(34))
    return message("user", "<tool_response>\n%s\n</tool_response>" % lines)


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class Histories(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.model = checkpoint(cls.directory.name)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def serve(self, *options):
        return Server("--threads", "1", *options, model=self.model)

    def ask(self, messages):
        """Returns the text of a reply. Fails if more than 64 tokens that an earlier state held were
        computed again."""
        body = {"messages": list(messages), "max_tokens": 12, "temperature": 0.8, "seed": len(messages),
                "ignore_eos": True}
        answer = self.server.post("/v1/chat/completions", body)
        choice, usage = answer["choices"][0], answer["usage"]
        ids = self.server.get("/v1/states/" + choice["state_id"])["ids"]
        known = max([common(ids[:usage["prompt_tokens"]], before) for before in self.states], default=0)
        self.assertLessEqual(known - usage["prompt_tokens_details"]["cached_tokens"], AGAIN, usage)
        self.assertLessEqual(usage["recomputed"], AGAIN, usage)
        self.states.append(ids)
        self.asked.append((body, choice["message"]["content"], choice["state_digest"]))
        self.computed += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        self.longest = max(self.longest, len(ids))
        return choice["message"]["content"]

    def turn(self, history, turn):
        """Adds a turn to a history: a task, a thought with a call, its output, and an answer."""
        history.append(task(turn))
        history.append(message("assistant", "<think>\n%s\n</think>\n\nread file %d" % (self.ask(history), turn)))
        history.append(output(turn))
        history.append(message("assistant", "<think>\n%s\n</think>\n\ndone with %d" % (self.ask(history), turn)))

    def restart(self):
        self.server.stop()
        self.server = self.serve("--state-dir", os.path.join(self.directory.name, "states"))

    def test_branches_cost_at_most_64_tokens_and_change_no_reply(self):
        self.states, self.asked, self.computed, self.longest = [], [], 0, 0
        self.server = self.serve("--state-dir", os.path.join(self.directory.name, "states"))
        self.addCleanup(lambda: self.server.kill())
        history = [message("system", "You are an agent. " + "Be brief. " * 20)]
        for turn in range(1, TURNS + 1):
            self.turn(history, turn)
            if turn % 4 == 0:
                self.restart()
        whole, before = self.longest, len(self.asked)
        for number, turn in enumerate((11, 7, 2, 9, 5)):
            if number % 2 == 0:
                self.restart()
            branch = history[:1 + 4 * (turn - 1)]
            self.turn(branch, 20 + turn)  # another task there
            self.ask(history[:1 + 4 * (turn - 1) + 3])  # back to the first task: asks for its last answer again
        self.assertGreater(whole, CONTEXT * 9 // 10)
        self.server.stop()
        for body, text, digest in self.asked[before:] + self.asked[before - 1:before]:
            fresh = self.serve()
            choice = fresh.post("/v1/chat/completions", body)["choices"][0]
            fresh.kill()
            self.assertEqual((choice["message"]["content"], choice["state_digest"]), (text, digest))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
