#!/usr/bin/env python3
"""Checks an object of g++ for inline functions whose lambdas have other names by another compiler.

    lambda_names.py OBJECT

g++ 12 numbers all lambdas of a function in order; clang and g++ 13 number those of each signature. A program
and a library by two compilers then have functions of one name that differ, and the linker keeps one of them.
"""
import collections
import re
import subprocess
import sys

LAMBDA = re.compile(r"::\{lambda\(")


def closing(text, at):
    """Returns the index behind the parenthesis that closes the one before `at`."""
    depth = 1
    while depth > 0:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def function_before(text, end):
    """Returns the name of the function that contains the lambda at `end`."""
    at, depth = end, 0
    while at > 0 and (depth > 0 or text[at - 1] not in "(<{[" and text[at - 2:at] != ", "):
        depth += {")": 1, ">": 1, "}": 1, "]": 1, "(": -1, "<": -1, "{": -1, "[": -1}.get(text[at - 1], 0)
        at -= 1
    return text[at:end]


def lambdas(symbols):
    """Returns the numbers of the lambdas of each function and signature."""
    found = collections.defaultdict(set)
    for symbol in symbols:
        for match in LAMBDA.finditer(symbol):
            end = closing(symbol, match.end())
            number = re.match(r"#(\d+)\}", symbol[end:])
            if number:
                found[function_before(symbol, match.start()), symbol[match.end():end - 1]].add(int(number[1]))
    return found


def main(path):
    listed = subprocess.run(["nm", "--defined-only", "-C", path], capture_output=True, text=True, check=True)
    found = lambdas(line.partition(" ")[2][2:] for line in listed.stdout.splitlines())
    if not found:
        sys.exit("no lambda was found")
    bad = {key for key, numbers in found.items()
           if any(number != other and other in numbers for other, number in enumerate(sorted(numbers), 1))}
    for function, signature in sorted(bad):
        print(f"{function}: lambda({signature}): put these before lambdas of other signatures", file=sys.stderr)
    return 1 if bad else 0


sys.exit(main(sys.argv[1]))
