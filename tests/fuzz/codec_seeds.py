#!/usr/bin/env python3
"""Writes the seeds of codec_fuzz about training: whole runs of requests that succeed, and their
neighbours that do not. The other files of the corpus are what the fuzzer found.

    codec_seeds.py FOLDER     tests/fuzz/corpus/codec
"""
import pathlib
import struct
import sys

# Types of proto/requests.h; flags of codec_fuzz.c.
FORWARD, BEGIN_SCOPE, END_SCOPE, EDIT = 30, 31, 32, 14
BACKWARD, ZERO_GRAD, GET_GRADIENT, SET_OPTIMIZER, STEP, RECOMPUTE = 40, 41, 42, 43, 44, 45
OTHER, HOLD, LET_GO, LEAVES = 1, 8, 16, 32


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n)


def real(field, x):
    return varint(field << 3 | 1) + struct.pack("<d", x)


def part(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def frame(kind, meta, payload=0, flags=0):
    assert len(meta) < 256 and payload % 8 == 0
    return bytes([kind, flags, len(meta), payload // 8]) + meta


def rows(n):
    """[n, 16] of F32, inline from the payload's start."""
    dims = part(2, varint(n) + varint(16))
    return number(1, 1) + dims + part(3, number(2, n * 64))


def forward(context, n=1, flags=0):
    meta = part(2, "m") + part(3, "a") + number(4, 2) + part(6, rows(n)) + number(9, context)
    return frame(FORWARD, meta, n * 64, flags)


def backward(context, n=1, more=b"", flags=0):
    return frame(BACKWARD, number(2, context) + part(3, rows(n)) + more, n * 64, flags)


def recompute(context, more=b"", flags=0):
    return frame(RECOMPUTE, number(2, context) + more, 0, flags)


def optimizer(kind, more=b"", layers=b"", flags=0):
    return frame(SET_OPTIMIZER, part(2, "m") + part(3, number(1, kind) + more) + layers, 0, flags)


def step(n, more=b"", flags=0):
    return frame(STEP, part(2, "m") + number(3, n) + more, 0, flags)


def gradient(layer="a", which=0):
    return frame(GET_GRADIENT, part(2, "m") + part(3, layer) + number(4, which))


def scope(kind, flags=0):
    return frame(kind, number(2, 1) + (part(3, "m") if kind == BEGIN_SCOPE else b""), 0, flags)


ZERO = frame(ZERO_GRAD, part(2, "m"))
ONE = forward(1) + backward(1)
SEEDS = {
    "train_adam": optimizer(2) + ONE + gradient() + step(1) + ONE + step(2) + step(2) + step(1),
    "train_sgd": optimizer(1, real(3, 0.9) + number(5, 1)) + ONE + step(1) + optimizer(1) + ONE + step(2),
    "train_adamw": optimizer(3, real(9, 0.1)) + ONE + step(1, real(4, 8.0) + real(5, 0.5)) + ZERO + step(2),
    "train_frozen": optimizer(1, real(2, 1.0), part(4, part(1, "a") + number(5, 1))) + ONE + step(1) + gradient(),
    "train_layers": optimizer(2, b"", part(4, part(1, "a") + real(2, 0.5)) * 2) + ONE + step(1),
    "train_orders": forward(1) + forward(2, 3) + backward(2, 3) + backward(1) + backward(1) + gradient("a", 2),
    "train_resident": forward(1) + backward(1, 1, number(5, 7)) + forward(2) + backward(2, 1, number(5, 7) + number(6, 1)),
    "train_recompute": optimizer(1) + recompute(1) + forward(1) + recompute(1, number(3, 2)) + recompute(1, number(4, 7))
    + recompute(1, number(4, 7) + number(5, 1)) + recompute(1, b"", OTHER) + ONE + step(1) + recompute(1),
    "train_scope": scope(BEGIN_SCOPE) + ONE + optimizer(2, b"", b"", OTHER) + scope(END_SCOPE) + optimizer(2) + step(1),
    "train_others_step": optimizer(2) + ONE + step(1, b"", HOLD) + step(1, b"", OTHER) + step(2, b"", OTHER | LET_GO),
    "train_leaves": optimizer(2) + ONE + forward(2) + step(1, b"", HOLD | LEAVES) + step(1, b"", OTHER | LET_GO),
    "train_bad": optimizer(2, real(2, -1.0)) + optimizer(7) + optimizer(1, real(4, float("nan"))) + ONE + step(0)
    + step(1, real(4, float("inf"))) + backward(1, 2) + gradient("b"),
}

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    for name, data in SEEDS.items():
        (folder / name).write_bytes(data)
