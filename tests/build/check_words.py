"""Runs tools/check_words on files with known findings: python3 check_words.py ROOT."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(sys.argv.pop(1))
WORDS_25 = " ".join(["be"] * 25)


class CheckWords(unittest.TestCase):
    def findings(self, name, text):
        """Returns "LINE: FINDING" for a file of this name and text."""
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["git", "init", "-q", directory], check=True)
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(text)
            run = subprocess.run([os.path.join(ROOT, "tools/check_words"), name], cwd=directory,
                                 capture_output=True, text=True, check=False)
        self.assertEqual(run.stderr, "")
        lines = [line.removeprefix(name + ":") for line in run.stdout.splitlines()]
        self.assertEqual(run.returncode, 1 if lines else 0)
        return lines

    def test_a_comment_that_opens_with_a_fragment_is_found(self):
        for comment in ("// What a name stands before.\n", "/* Of a file. */\n", "int x;  // Whether it is\n",
                        "// The same of another file.\n", "// as in other files\n"):
            self.assertIn("opens with", " ".join(self.findings("a.cpp", comment)), comment)
        self.assertIn("opens with", self.findings("a.py", '"""How it works."""\n')[0])
        self.assertIn("opens with", self.findings("a.sh", "#!/bin/sh\n# Where it is.\n")[0])
        self.assertIn("opens with", self.findings("a.js", "// Who calls.\n")[0])

    def test_sentences_labels_and_strings_are_none(self):
        for text in ("// Returns the name.\n", "int x;  // as the file has it\n", "int x;  // [heads, head_dim]\n",
                     'const char* s = "// What is this?";\n', "const char* s = R\"(// Of this)\";\n",
                     "// Returns x.\n// What follows is the same comment.\n"):
            self.assertEqual(self.findings("a.cpp", text), [], text)

    def test_a_sentence_has_at_most_25_words(self):
        self.assertEqual(self.findings("a.md", WORDS_25 + ".\n"), [])
        self.assertEqual(self.findings("a.md", "A sentence.\n" + WORDS_25 + "\nword.\n"), ["2: a sentence of 26 words"])
        self.assertEqual(self.findings("a.cpp", "// " + WORDS_25 + "\n// word.\n"), ["1: a sentence of 26 words"])
        for text in (WORDS_25[3:] + " `a span of code`.\n", WORDS_25[3:] + " [a](https://example.org/a b).\n",
                     "| " + WORDS_25 + " word |\n", "```\n" + WORDS_25 + " word\n```\n",
                     "- " + WORDS_25 + "\n- word\n"):
            self.assertEqual(self.findings("a.md", text), [], text)

    def test_a_line_has_at_most_120_columns(self):
        wide = "x" * 121
        self.assertEqual(self.findings("a.py", "s = '%s'\n" % wide), ["1: 127 columns"])
        self.assertEqual(self.findings("a.cpp", "// %s\n" % wide), ["1: 124 columns"])
        self.assertEqual(self.findings("a.md", wide + "\n"), ["1: 121 columns"])
        self.assertEqual(self.findings("a.cpp", 'const char* s = "%s";\n' % wide), [])
        self.assertEqual(self.findings("a.md", "| %s |\n" % wide), [])
        self.assertEqual(self.findings("a.json", '"%s"\n' % wide), [])

    def test_words_of_the_list_are_found(self):
        self.assertEqual(self.findings("a.cpp", "// The client is gone.\n"),
                         ['1: "gone": cancelled, disconnected, deleted or freed'])
        self.assertEqual(self.findings("a.cpp", "// The handler\n// goes on\n// with it.\n"),
                         ['2: "goes on with": continues'])
        self.assertEqual(self.findings("a.cpp", "// Calls `gone` and foregone(gone).\n"), [])


if __name__ == "__main__":
    unittest.main()
