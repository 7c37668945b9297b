#!/usr/bin/env python3
"""Computes the share of its threads' time that a prefill can use, by the division of its work alone.

    bench/shares.py [THREADS,...]

A product is divided into groups of 64 outputs (gate and up together), and its rows into the parts of
row_parts() (include/stet/model/product.hpp). Threads take pieces from a shared counter. The product ends with the
slowest thread, half a piece late on average. Each operation also costs 140 ns for each thread to begin and end
(src/threads/team.cpp). Attention and elementwise operations count as if they were divided evenly. So the share of the
machine's peak is at most that of one thread times the share printed here.
"""
import sys

ROWS, TILE_ROWS, PANEL, OPERATIONS, BARRIER = 512, 6, 64, 17, 140e-9
RATE = 200e9  # operations/s of a thread


def products(hidden, wide, queries, keys):
    """Returns (outputs of the panels, inputs, panels of a group) of each product of a layer."""
    return [(queries + 2 * keys, hidden, 1), (hidden, queries, 1), (wide, hidden, 2), (hidden, wide, 1)]


SHAPES = {
    "gemma3-1b": products(1152, 6912, 1024, 256),
    "llama3.2-1b": products(2048, 8192, 2048, 512),
    "llama3.1-8b": products(4096, 14336, 4096, 1024),
}


def rounds(groups, parts, threads):
    return -(-groups * parts // threads)


def row_parts(groups, threads):
    tiles = -(-ROWS // TILE_ROWS)

    def cost(parts):
        return (2 * rounds(groups, parts, threads) + 1) * (64 + parts - 1)

    best = 1
    for parts in range(2, 9):
        if threads > 1 and parts * 8 <= tiles and cost(parts) * best < cost(best) * parts:
            best = parts
    return best if cost(best) * 25 < cost(1) * best * 24 else 1


def share(shape, threads, divided):
    ideal = used = 0.0
    for outputs, inputs, panels in shape:
        groups = -(-outputs // PANEL)
        one = 2 * ROWS * PANEL * inputs * panels / RATE  # s of a group
        parts = row_parts(groups, threads) if divided else 1
        late = 0.5 if threads > 1 else 0
        ideal += groups * one / threads
        used += (rounds(groups, parts, threads) + late) * one / parts * (1 + (parts - 1) / 64)
    used += OPERATIONS * BARRIER * threads if threads > 1 else 0
    return ideal / used


def main():
    counts = [int(n) for n in (sys.argv[1] if len(sys.argv) > 1 else "1,2,4,8,16,32,64").split(",")]
    print("| threads |" + "".join(f" {name}, panels | and rows |" for name in SHAPES))
    print("|---|" + "---|" * 2 * len(SHAPES))
    for n in counts:
        cells = "".join(f" {share(shape, n, False):.2f} | {share(shape, n, True):.2f} |" for shape in SHAPES.values())
        print(f"| {n} |{cells}")


main()
