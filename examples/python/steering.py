"""Finds and applies a steering vector: the difference between two prompts, added to a third one
from a position on. The state keeps it."""
import sys
import tempfile

import numpy as np
import stet

model, tokenizer = stet.Model(sys.argv[1]), stet.Tokenizer(sys.argv[1])
POINT = "blocks.%d.hook_resid_post" % (model.layers // 2)


def last_row(text):
    return model.session().append(tokenizer.encode(text), points=[POINT])[POINT][-1]


direction = last_row("Let a = 3. What is a? 3") - last_row("Let a = 3. What is a? 8")
prompt = tokenizer.encode("Let b = 5. What is b?")
plain, steered = model.session(), model.session()
steered.attach(stet.Intervention(POINT, "add", direction, amount=8.0, begin=len(prompt) - 1))
for session in (plain, steered):
    session.append_prompt(prompt)
shift = np.abs(plain.logits() - steered.logits()).max()
print("the largest change of a logit: %.3f" % shift)
assert shift > 0 and plain.digests().id != steered.digests().id

with tempfile.TemporaryDirectory() as directory:
    steered.save(directory + "/s.stet", tokenizer)
    again = stet.Snapshot(directory + "/s.stet").restore(model, tokenizer)
    assert again.interventions == 1 and again.verify().whole
    assert again.generate(tokenizer, 12).text == steered.generate(tokenizer, 12).text
    assert again.digests() == steered.digests()
print("saved, restored, verified and continued: the same bits")
