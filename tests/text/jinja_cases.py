#!/usr/bin/env python3
"""Renders every template of the tables in tests/data/jinja with jinja2, set up as in
transformers, and writes the results beside them. A line is [template, variables, result]. A
template "@NAME" stands for the text of the file NAME. The result is the text, {"refused":
message} if raise_exception was called, or null for any other error.

    python3 tests/text/jinja_cases.py tests/data/jinja/*.jsonl
"""
import json
import pathlib
import sys

from jinja2 import TemplateError, ext, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Refusal(TemplateError):
    pass


class Generation(ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def refuse(message):
    raise Refusal(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=[Generation, ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = refuse


def result(template, variables, folder):
    if template.startswith("@"):
        template = (folder / template[1:]).read_text(encoding="utf-8")
    try:
        return environment.from_string(template).render(**variables)
    except Refusal as e:
        return {"refused": str(e)}
    except Exception:
        return None


for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    with open(path, "w", encoding="utf-8") as f:
        for template, variables, *_ in cases:
            f.write(
                json.dumps(
                    [template, variables, result(template, variables,
                                                 pathlib.Path(path).parent)], ensure_ascii=False) + "\n")
