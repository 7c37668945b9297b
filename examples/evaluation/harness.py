"""An adapter for EleutherAI's lm-evaluation-harness, whose three kinds of requests stet answers.

    pip install lm-eval
    python3 examples/evaluation/harness.py assets/pocket-gemma3 --tasks lambada_openai --limit 100

The class depends only on the shape of the harness's requests (`request.args`), so other programs
can use it, too.
"""
import sys

import stet

try:
    from lm_eval.api.model import LM
except ImportError:
    LM = object


class StetLM(LM):
    def __init__(self, checkpoint, batch_size=16, max_length=None, max_gen_toks=256, **session):
        super().__init__()
        self.model, self.tokenizer = stet.Model(checkpoint), stet.Tokenizer(checkpoint)
        self.batch_size, self.session, self.max_gen_toks = int(batch_size), session, max_gen_toks
        self.max_length = max_length or self.model.max_positions
        self.prefix = next(id for id in (self.tokenizer.bos, self.tokenizer.eos, 0) if id is not None)

    # ---- the harness's requests

    def loglikelihood(self, requests, **_):
        """Returns (log-probability of the continuation, whether it is greedy) for each (context,
        continuation)."""
        return [(s.sum, s.greedy) for s in self.score([self.pair(*r.args) for r in requests])]

    def loglikelihood_rolling(self, requests, **_):
        """Returns the log-probability of each whole text. A text longer than the model's context
        is scored in windows."""
        windows = [self.windows(r.args[0]) for r in requests]
        scores = iter(self.score([w for text in windows for w in text]))
        return [sum(next(scores).sum for _ in text) for text in windows]

    def generate_until(self, requests, **_):
        """Returns a reply to each (context, settings), cut at the first of the texts in
        settings["until"]."""
        replies = []
        for at in range(0, len(requests), self.batch_size):
            rows = [self.row(*r.args) for r in requests[at:at + self.batch_size]]
            replies += [reply.text for reply in stet.generate_batch(rows, self.tokenizer)]
        return replies

    # ---- chat templates (--apply_chat_template)

    @property
    def tokenizer_name(self):
        return self.tokenizer.fingerprint.replace(":", "-")

    def chat_template(self, chat_template=False):
        return self.tokenizer.chat_template()

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return stet.ChatTemplate(self.tokenizer).render(chat_history, add_generation_prompt).text

    # ---- texts as tokens, split as the harness does

    def score(self, requests):
        with self.model.session(capacity=self.max_length, **self.session) as before:
            return stet.score(before, requests, batch=self.batch_size)

    def pair(self, context, continuation):
        ids, begin = stet.encode_pair(self.tokenizer, context, continuation)
        if begin == 0:
            ids, begin = [self.prefix, *ids], 1
        cut = max(0, len(ids) - self.max_length - 1)  # the harness also drops the beginning of a long text
        return ids[cut:begin], ids[max(cut, begin):]

    def windows(self, text):
        ids = self.tokenizer.encode(text, bos=False)
        first, rest = ids[:self.max_length], ids[self.max_length:]
        yielded = [([self.prefix], first)] if len(first) else []
        for at in range(0, len(rest), self.max_length):
            end = self.max_length + min(at + self.max_length, len(rest))
            begin = self.max_length + at
            yielded.append((ids[end - self.max_length - 1:begin], ids[begin:end]))
        return yielded

    def row(self, context, settings):
        until = settings.get("until") or []
        most = int(settings.get("max_gen_toks", self.max_gen_toks))
        temperature = (
            float(settings.get("temperature", 0)) if settings.get("do_sample", "temperature" in settings) else 0
        )
        sampling = stet.Sampling(
            greedy=temperature == 0,
            temperature=temperature or 1,
            top_p=settings.get("top_p", 1.0),
            top_k=settings.get("top_k", 0),
        )
        session = self.model.session(capacity=self.max_length, **self.session)
        session.use_recommended()  # sets its stop ids
        prompt = self.tokenizer.encode(context)[-max(1, self.max_length - most):]
        return stet.Row(session, prompt, most, sampling=sampling,
                        stop_strings=[until] if isinstance(until, str) else list(until))


if __name__ == "__main__":
    import argparse

    import lm_eval

    options = argparse.ArgumentParser()
    options.add_argument("checkpoint")
    options.add_argument("--tasks", required=True)
    options.add_argument("--limit", type=float)
    options.add_argument("--batch-size", type=int, default=16)
    chosen = options.parse_args()
    results = lm_eval.simple_evaluate(StetLM(chosen.checkpoint, chosen.batch_size), tasks=chosen.tasks.split(","),
                                      limit=chosen.limit)
    print(lm_eval.utils.make_table(results) if results else "", file=sys.stdout)
