"""The logit lens in ten lines: the most likely next token after each layer."""
import sys

import stet

model, tokenizer = stet.Model(sys.argv[1]), stet.Tokenizer(sys.argv[1])
session = model.session()
seen = session.append(tokenizer.encode("Let a = 3. Let b = 8."), points=["blocks.*.hook_resid_post"])
for name, rows in seen.items():
    best = session.lens(rows).argmax(axis=-1)
    print("%-26s %s" % (name, " ".join(repr(tokenizer.decode([i])) for i in best[-6:])))
assert (session.lens(rows[-1]) == session.logits()).all()  # the last layer's logits equal the model's, bit for bit
