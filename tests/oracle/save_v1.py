#!/usr/bin/env python3
"""What forwards of tests/data/saves/v1-small.safetensors must give, by numpy from the file alone.

    save_v1.py     writes tests/data/saves/v1-small.expected.safetensors

v1-small.safetensors was written by the first fp8d that saved (key scheme 1, daemon/engine/state.h)
and is never made again: it stands for the files that users have. In it: blocks.0.up, BF16 with a
training copy cast at scale 1 while its site moved on; blocks.0.down, FP8 primary, with a calibration
under way; head, FP8 primary with a static input scale. The summation is that of gemm_hash.py.
"""
import json
import struct
from pathlib import Path

import numpy as np
from gemm_hash import TABLES, lanes16, stream

SAVES = Path(__file__).resolve().parent.parent / "data" / "saves"
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8, "U64": np.uint64}
E4M3 = TABLES["F8_E4M3"]
POSITIVE = E4M3[:0x7F].astype(np.float64)  # codes 0 to 0x7e, ascending


def read(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    meta = header.pop("__metadata__")
    out = {}
    for name, e in header.items():
        begin, end = e["data_offsets"]
        a = np.frombuffer(raw[8 + n + begin:8 + n + end], dtype=DTYPES[e["dtype"]]).reshape(e["shape"])
        if e["dtype"] == "BF16":
            a = (a.astype(np.uint32) << 16).view(np.float32)
        out[name] = a
    return out, meta


def quantise(x, scale):
    """Values of the E4M3 codes nearest to float32(x * scale), ties to even, saturating."""
    v = (x.astype(np.float32) * np.float32(scale)).astype(np.float64)
    m = np.minimum(np.abs(v), POSITIVE[-1])
    hi = np.searchsorted(POSITIVE, m)
    lo = np.maximum(hi - 1, 0)
    down, up = m - POSITIVE[lo], POSITIVE[hi] - m
    code = np.where((down < up) | ((down == up) & (lo % 2 == 0)), lo, hi)
    return np.copysign(POSITIVE[code], v).astype(np.float32)


def linear(x, x_inv, w, w_inv, bias):
    both = np.float32(x_inv) * np.float32(w_inv)
    y = lanes16(x, w) * both
    return y if bias is None else y + bias.astype(np.float32)


def inputs(seed, cols):
    z = stream(seed, 4 * cols)
    return (((z >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32)
            * np.float32(2**-21)).reshape(4, cols)


def expected(save, meta):
    recipe = json.loads(meta["fp8d_recipe"])
    target = np.float32(448 * 2.0 ** -recipe["margin"])
    x32, x48 = inputs(1, 32), inputs(2, 48)
    out = {"x32": x32, "x48": x48}

    # blocks.0.up: both sites have scales; eval casts the weight, `first microbatch: no` reuses codes
    up = "blocks.0.up."
    s_in, s_w = save[up + "fp8d.input.scaling"], save[up + "fp8d.weight.scaling"]
    assert save[up + "fp8d.input.counters"][0] == 1 and save[up + "fp8d.weight.counters"][0] == 1
    x = quantise(x32, s_in[0])
    bias = save[up + "bias"]
    out["up.eval"] = linear(x, s_in[1], quantise(save[up + "weight"], s_w[0]), s_w[1], bias)
    cached = E4M3[save[up + "fp8d.cached.weight"]]
    factor = save[up + "fp8d.cached.weight_scale"]
    assert factor == 1 and s_w[0] != 1
    out["up.train_false"] = linear(x, s_in[1], cached, factor, bias)

    # blocks.0.down: the input's site is unset, so that eval takes the scale from the tensor
    down = "blocks.0.down."
    assert save[down + "fp8d.input.counters"][0] == 0
    scale = target / np.abs(x48).max()
    out["down.eval"] = linear(quantise(x48, scale), np.float32(1) / scale, E4M3[save[down + "weight"]],
                              save[down + "weight_scale"], save[down + "bias"])
    # finish sets it from the maximum that the save has
    seen = save[down + "fp8d.input.scaling"][3]
    assert seen > 0
    scale = target / seen
    out["down.finished"] = linear(quantise(x48, scale), np.float32(1) / scale,
                                  E4M3[save[down + "weight"]], save[down + "weight_scale"],
                                  save[down + "bias"])

    # head: a static input scale, whose factor is the file's
    s_in = save["head.fp8d.input.scaling"]
    out["head.eval"] = linear(quantise(x48, s_in[0]), s_in[1], E4M3[save["head.weight"]],
                              save["head.weight_scale"], None)
    return out


def main():
    out = expected(*read(SAVES / "v1-small.safetensors"))
    header, data = {}, b""
    for name, a in out.items():
        raw = a.astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(a.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (SAVES / "v1-small.expected.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
