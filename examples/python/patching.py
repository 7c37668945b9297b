"""Finds where the pocket model stores "k = 5" and where it reads it. Patches activations of one
prompt into another, layer by layer and position by position."""
import sys

import numpy as np
import stet

model, tokenizer = stet.Model(sys.argv[1]), stet.Tokenizer(sys.argv[1])


def prompt(value):  # the chat template's form, up to where the reply states the value
    return tokenizer.encode("<start_of_turn>user\nLet k = %d. What is k?<end_of_turn>\n<start_of_turn>model\nk is " %
                            value)


clean, corrupt = prompt(5), prompt(7)
five, seven = (tokenizer.id(str(value)) for value in (5, 7))
said = int(np.flatnonzero(clean != corrupt)[0])  # the position of the value
last = clean.size - 1


def score(session):
    logits = session.logits()
    return float(logits[five] - logits[seven])


points = ["blocks.%d.hook_resid_pre" % layer for layer in range(model.layers)]
right, wrong = model.session(), model.session()
rows = right.append(clean, points=points)
wrong.append(corrupt)
restored = np.zeros((model.layers, clean.size))
prefix = model.session()
for position in range(clean.size):
    runs = []
    for point in points:  # positions before the change are computed once; layers share passes
        run = prefix.fork()
        run.attach(stet.Intervention(point, "set", rows[point][position], begin=position, end=position + 1))
        runs.append((run, corrupt[position:]))
    stet.append_batch(runs)
    restored[:, position] = [(score(run) - score(wrong)) / (score(right) - score(wrong)) for run, _ in runs]
    prefix.append(corrupt[position : position + 1])

print("logit difference between 5 and 7: %.2f after 5, %.2f after 7" % (score(right), score(wrong)))
for layer in range(model.layers):
    best = int(np.abs(restored[layer]).argmax())
    print("layer %d: %3.0f %% where the value is said (%r), %3.0f %% at the end, most at position %d" % (
        layer, 100 * restored[layer, said], tokenizer.decode([clean[said]]), 100 * restored[layer, last], best))
read = next(layer for layer in range(model.layers) if restored[layer, last] > restored[layer, said])
print("the value is kept at position %d, and read into position %d by the layers before layer %d" % (said, last, read))
