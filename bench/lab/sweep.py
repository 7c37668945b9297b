"""Compares the cost of an activation-patching sweep with computing each patched prompt
separately, and that of a capture with a prefill.

    sweep.py MODEL [STEP]

Times are processor seconds of all threads, so that other programs matter little. STEP is the
distance between the patched positions (default 16, which is 32 of 512)."""
import sys
import time

import numpy as np
import stet

model, step = stet.Model(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 16
random = np.random.default_rng(1)
clean, corrupt = (random.integers(0, model.vocab_size, 512).astype(np.int32) for _ in range(2))
points = ["blocks.%d.hook_resid_pre" % layer for layer in range(model.layers)]


def new():
    return model.session(capacity=520)


def seconds(work, times=5):
    all = []
    for _ in range(times):
        start = time.process_time()
        work()
        all.append(time.process_time() - start)
    return sorted(all)[times // 2]


rows = new().append(clean, points=points)
plain = seconds(lambda: new().append(corrupt))
seen = seconds(lambda: new().append(corrupt, points=["blocks.%d.hook_resid_post" % (model.layers // 2)]))
print("a prompt of 512: %.3f s; with one residual point captured %.3f s" % (plain, seen))
trace = new().trace(corrupt)
for name, positions in (
    ("evenly spread", range(step // 2, 512, step)),
    ("last", range(480, 512, max(1, step // 16))),
):
    changes = [
        stet.Intervention(point, "set", rows[point][p], begin=p, end=p + 1) for point in points for p in positions
    ]
    found = {}
    start = time.process_time()
    trace.run(changes, lambda index, logits: found.__setitem__(index, logits))
    spent = time.process_time() - start
    print(
        "%s: %d runs of %.4f s, %.2f times as fast as each prompt anew" %
        (name, len(changes), spent / len(changes), plain * len(changes) / spent), flush=True)
    for index in (1, len(changes) // 2, len(changes) - 1):
        session = new()
        session.attach(changes[index])
        session.append(corrupt)
        assert session.logits().tobytes() == found[index].tobytes()
