#!/usr/bin/env python3
"""Writes the seeds of load_fuzz: files that a load takes, under options that treat them differently.
The other files of the corpus, named by their hash, are what the fuzzer found.

    load_seeds.py FOLDER     tests/fuzz/corpus/load
"""
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "data"))
from make_evil_layers import (ADAM, CODES, HIGH, META, RECIPE, TRAINED, changed, f32, fp8,  # noqa: E402
                              layer_file, save, training, u64)

# The bytes before the file, as load_fuzz.c reads them.
NO_STRICT, PRIMARY, ALLOW_NAN, FINISH, NO_OPTIMIZER, AS_F32, AS_BF16 = 1, 2, 4, 8, 16, 32, 64
DELAYED, CURRENT, HYBRID, E4M3, MOST_RECENT, PRECISE = 1, 2, 1 << 2, 2 << 2, 2 << 4, 2 << 6

LAST = ADAM.replace('"steps":7,"updates":6', '"steps":9223372036854775807,"updates":6')
SGD = ADAM.replace("adam", "sgd").replace('"momentum":0', '"momentum":0.9').replace("false", "true")
ADAMW = ADAM.replace("adam", "adamw")
MOMENTS = [p + "_" + m for p in ("weight", "bias") for m in ("m", "v")]


def floats(n, step):
    return f32(*((i % 9 - 4) * step for i in range(n)))


def moving(t):
    """Weights, moments and gradients that are not zeros."""
    for name, step in (("weight_master", 0.25), ("weight_m", 0.01), ("bias_m", 0.01)):
        key = "l.fp8d.optimizer." + name
        if key in t:
            t[key] = ("F32", t[key][1], floats(len(t[key][2]) // 4, step))
    if "l.fp8d.gradient.weight" in t:
        t["l.fp8d.gradient.weight"] = ("F32", (16, 16), floats(256, 0.5))
    return t


def without(t, *parts):
    for p in parts:
        t.pop("l.fp8d." + p, None)
    return t


def calibrating():
    t = save(fp8d__model=("U64", (4,), u64(1, 9, 0, 1)))
    for site in ("input", "weight"):
        t["l.fp8d.%s.scaling" % site] = ("F32", (4,), f32(2, 0.5, 224, 7))
        t["l.fp8d.%s.counters" % site] = ("U64", (8,), u64(1, 0, 2, 0, 0, 0, 0, 1))
    return t


def of_f32():
    """A weight that is its own master, and an optimizer of one moment."""
    t = without(training(), "optimizer.weight_master", "optimizer.bias_master",
                "optimizer.weight_v", "optimizer.bias_v")
    return moving(changed(t, {"l.weight": ("F32", (16, 16), floats(256, 0.5)),
                              "l.bias": ("F32", (16,), floats(16, 1))}))


def of_fp8():
    t = moving(without(training(), "cached.weight", "cached.weight_scale", "cached.cast",
                       "cached.counters"))
    return changed(t, {"l.weight": ("F8_E4M3", (16, 16), CODES), "l.weight_scale": ("F32", (), f32(0.5)),
                       "l.fp8d.origin": ("U64", (1,), u64(2))})


def two_layers():
    t = moving(training())
    k = without(save(), "cached.weight", "cached.weight_scale", "cached.cast", "cached.counters")
    t.update({"k" + name[1:]: v for name, v in k.items() if name.startswith("l.")})
    t["l.fp8d.optimizer.options"] = ("F64", (3,), struct.pack("<3d", 1, -1, 0.5))
    return t


def many():
    """Layers whose amax histories take more than there is."""
    t = {"fp8d.model": ("U64", (4,), u64(1, 9, 0, 0))}
    for i in range(9):
        t.update({"%d%s" % (i, name[1:]): v for name, v in fp8().items()})
    return t


def named(layer):
    return {layer + name[1:]: v for name, v in fp8().items()}


def foreign():
    return {"l.weight": ("BF16", (16, 16), HIGH), "l.bias": ("F16", (16,), bytes(32)),
            "n.weight": ("F32", (16,), bytes(64)), "l.other": ("U8", (3,), b"abc")}


E5M2 = fp8(l__weight=("F8_E5M2", (16, 16), CODES), l__input_scale=("F32", (1,), f32(0.25)))

SEEDS = {
    "plain": (0, 0, foreign(), None),
    "plain_no_strict": (NO_STRICT, 0, foreign(), None),
    "plain_primary": (NO_STRICT | PRIMARY, 0, foreign(), None),
    "fp8": (0, 0, fp8(l__input_scale=("BF16", (1, 1), b"\x80\x3f")), None),
    "fp8_widened": (AS_BF16, 0, fp8(), None),
    "fp8_name_longest": (0, 0, named("l" * 994), None),
    "fp8_name_too_long": (0, 0, named("l" * 995), None),
    "fp8_nan": (ALLOW_NAN, 0, fp8(l__weight=("F8_E4M3", (16, 16), CODES[:255] + b"\xff")), None),
    "fp8_e5m2": (ALLOW_NAN, CURRENT, E5M2, None),
    "fp8_e5m2_e4m3": (ALLOW_NAN | AS_F32, DELAYED | E4M3, E5M2, None),
    "save": (0, 0, save(), META),
    "save_other_recipe": (0, CURRENT | E4M3 | MOST_RECENT | PRECISE, save(), META),
    "save_finish": (FINISH, 0, calibrating(), META),
    "save_finish_current": (FINISH, CURRENT, calibrating(), META),
    "save_too_large": (0, 0, many(), dict(META, fp8d_recipe=RECIPE.replace(":4", ":65536"))),
    "save_calibrating": (0, 0, calibrating(), META),
    "save_nothing_to_finish": (FINISH, 0, save(), META),
    "save_last_version": (0, 0, save(fp8d__model=("U64", (4,), u64(1, 2**63 - 1, 1, 0))), META),
    "train_adam": (0, 0, moving(training()), TRAINED),
    "train_primary": (PRIMARY, 0, moving(training()), TRAINED),
    "train_left_out": (NO_OPTIMIZER, 0, moving(training()), TRAINED),
    "train_sgd_f32": (0, 0, of_f32(), dict(META, fp8d_optimizer=SGD)),
    "train_sgd_f32_primary": (PRIMARY, 0, of_f32(), dict(META, fp8d_optimizer=SGD)),
    "train_fp8": (0, DELAYED | E4M3, of_fp8(), dict(META, fp8d_optimizer=ADAMW)),
    "train_fp8_widened": (AS_F32, 0, of_fp8(), TRAINED),
    "train_two_layers": (0, 0, two_layers(), dict(META, fp8d_optimizer=ADAMW)),
    "train_last_step": (0, 0, without(moving(training()), *("optimizer." + m for m in MOMENTS)),
                        dict(META, fp8d_optimizer=LAST)),
    "train_last_version": (0, 0, changed(moving(training()), {
        "fp8d.model": ("U64", (4,), u64(1, 2**63 - 1, 0, 0))}), TRAINED),
    "train_last_gradient": (0, 0, save(l__fp8d__gradient__weight=("F32", (16, 16), floats(256, 1)),
                                       l__fp8d__gradient__counters=("U64", (2,), u64(2**64 - 1, 0))), META),
    "train_gradient_alone": (0, 0, save(l__fp8d__gradient__weight=("F32", (16, 16), floats(256, 1)),
                                        l__fp8d__gradient__counters=("U64", (2,), u64(1, 5))), META),
}

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    for name, (options, recipe, tensors, meta) in SEEDS.items():
        (folder / name).write_bytes(bytes([options, recipe]) + layer_file(tensors, meta))
