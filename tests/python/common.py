"""Paths, the package and a model that the tests of the Python package share.

    TEST.py STET LIBRARY ROOT [unittest's arguments]
"""
import os
import sys
import unittest

STET, LIBRARY, ROOT = sys.argv[1:4]
os.environ.update(STET_LIBRARY=LIBRARY, PYTHONPATH=os.path.join(ROOT, "python"))
sys.path.insert(0, os.path.join(ROOT, "python"))
import stet  # noqa: E402

POCKET = os.path.join(ROOT, "assets/pocket-gemma3")
POCKET_LLAMA = os.path.join(ROOT, "assets/pocket-llama3")


def tiny(name):
    return os.path.join(ROOT, "tests/data/models", name)


def files(directory):
    """Returns the files of a checkpoint by name."""
    found = {}
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), "rb") as file:
            found[name] = file.read()
    return found


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.tokenizer = stet.Model(POCKET), stet.Tokenizer(POCKET)
        cls.ids = cls.tokenizer.encode("Let a = 3. Let b = 8. What is a? " * 8)

    def session(self, count=None, **options):
        s = self.model.session(capacity=512, **options)
        s.append(self.ids[:count])
        return s

    def refused(self, call, field, *words):
        """Asserts that the call raises an Error of one line about this argument."""
        with self.assertRaises(stet.Error) as caught:
            call()
        self.assertEqual((caught.exception.kind, caught.exception.field), ("argument", field), str(caught.exception))
        self.assertIsInstance(caught.exception, ValueError)
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))


def main():
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
