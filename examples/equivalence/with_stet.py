"""Tests stet itself through its Python package: with_stet.py MODEL"""
import os
import sys
import tempfile

import stet
from adapter import pieces, serve

model = stet.Model(sys.argv[1])


def logits(ids, cuts, question):
    session, done = model.session(), 0
    others = [(model.session(), other) for other in question.get("batch", [])]
    if others:
        stet.append_batch(others + [(session, ids)])
        return session.logits()
    for piece in pieces(ids, cuts):
        session.append(piece)
        done += len(piece)
        if question.get("save_at") == done:
            with tempfile.TemporaryDirectory() as directory:
                session.save(os.path.join(directory, "s.stet"))
                session = stet.Snapshot(os.path.join(directory, "s.stet")).restore(model)
        if question.get("fork_at") == done:
            other, session = session, session.fork()
            other.append(ids[:3])
        if question.get("rewind_at") == done and done < len(ids):
            session.append(ids[:5])
            session.rewind(done)
    return session.logits()


serve(logits)
