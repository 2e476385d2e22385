#!/usr/bin/env python3
"""Make tests/data/evil_layers: good safetensors files that a load as layers must take or must refuse.

Usage: make_evil_layers.py [DIRECTORY]   (default: evil_layers, beside this script)

Standard library only, same bytes every time. Beside the files it writes manifest.txt, one line a
file: its name, a space, and `ok` or parts of the sentence that refuses it, joined by "|". The rules
are those of docs/numerics.md 1 and 3 and of the key scheme in daemon/engine/state.h and
state_optimizer.h.
"""
import json
import struct
import sys
from pathlib import Path

from make_evil import blob, entry

# name -> (dtype, shape, bytes); parts of the sentence are joined by "|".
LAYER_CASES = []
CODES = bytes(i % 0x7f for i in range(256))
HIGH = b"\x80\x3f" * 256  # 1.0 of BF16
INF, NAN = float("inf"), float("nan")
BELOW = struct.unpack("<f", struct.pack("<I", 0x001fffff))[0]  # just under 2^-128
RECIPE = ('{"kind":"delayed","fp8_format":"hybrid","amax_algo":"max","amax_history_len":4,'
          '"margin":0}')


def f32(*values):
    return struct.pack("<%df" % len(values), *values)


def u64(*values):
    return struct.pack("<%dQ" % len(values), *values)


def layer_file(tensors, meta=None):
    header, data = {}, b""
    if meta is not None:
        header["__metadata__"] = meta
    for name, (dtype, shape, raw_bytes) in tensors.items():
        header[name] = entry(dtype, shape, (len(data), len(data) + len(raw_bytes)))
        data += raw_bytes
    return blob(header, data)


def layer_case(name, tensors, expect="ok", meta=None):
    LAYER_CASES.append((name + ".safetensors", layer_file(tensors, meta), expect))


def fp8(**change):
    """One FP8 layer "l"; change: tensor name with "__" for ".", None takes it out."""
    t = {"l.weight": ("F8_E4M3", (16, 16), CODES), "l.weight_scale": ("F32", (), f32(0.5))}
    return changed(t, change)


def changed(t, change):
    for key, value in change.items():
        name = key.replace("__", ".")
        t.pop(name, None)
        if value is not None:
            t[name] = value
    return t


def save(**change):
    """A save of one BF16 layer "l" with a cached copy."""
    t = {"l.weight": ("BF16", (16, 16), HIGH)}
    for site in ("input", "weight", "grad_output"):
        t["l.fp8d.%s.scaling" % site] = ("F32", (4,), f32(2, 0.5, 224, 0))
        t["l.fp8d.%s.amax_history" % site] = ("F32", (4,), f32(0, 0, 1, 224))
        t["l.fp8d.%s.counters" % site] = ("U64", (8,), u64(1, 0, 2, 0, 0, 0, 0, 0))
    t["l.fp8d.cached.weight"] = ("F8_E4M3", (16, 16), b"\x38" * 256)
    t["l.fp8d.cached.weight_scale"] = ("F32", (), f32(1))
    t["l.fp8d.cached.cast"] = ("F32", (2,), f32(1, 1))
    t["l.fp8d.cached.counters"] = ("U64", (6,), u64(0, 0, 1, 0, 0, 0))
    t["fp8d.model"] = ("U64", (4,), u64(1, 9, 0, 0))
    return changed(t, change)


META = {"format": "pt", "fp8d_format": "1", "fp8d_recipe": RECIPE}


def bad_factors():
    for key in ("weight_scale", "input_scale"):
        name = "l." + key
        for what, value, found in (("zero", 0.0, "is 0,"), ("minus_zero", -0.0, "is -0,"),
                                   ("negative", -1.0, "is -1,"), ("nan", NAN, "is nan,"),
                                   ("inf", INF, "is inf,"), ("minus_inf", -INF, "is -inf,"),
                                   ("below", BELOW, "is 2.9387")):
            layer_case("%s_%s" % (key, what), fp8(**{"l__" + key: ("F32", (1,), f32(value))}),
                       'tensor "%s"|%s|needed a finite factor of at least 2^-128' % (name, found))
        for what, dtype, raw_bytes, found in (
                ("bf16_inf", "BF16", b"\x80\x7f", "is inf,"), ("f16_nan", "F16", b"\x00\x7e", "is nan,"),
                ("f16_zero", "F16", b"\0\0", "is 0,"), ("bf16_below", "BF16", b"\x1f\x00", "is 2.8")):
            layer_case("%s_%s" % (key, what), fp8(**{"l__" + key: (dtype, (), raw_bytes)}),
                       'tensor "%s"|%s|needed a finite factor' % (name, found))
        for what, dtype, shape, size in (
                ("vector", "F32", (16,), 64), ("column", "F32", (16, 1), 64), ("two", "F32", (2,), 8),
                ("blocks", "F32", (1, 2), 8), ("rank_3", "F32", (1, 1, 1), 4), ("empty", "F32", (0,), 0),
                ("e8m0", "F8_E8M0", (1,), 1), ("u8", "U8", (), 1), ("f64", "F64", (), 8),
                ("i32", "I32", (1,), 4), ("e4m3", "F8_E4M3", (), 1)):
            shown = ", ".join(str(d) for d in shape)
            layer_case("%s_%s" % (key, what), fp8(**{"l__" + key: (dtype, shape, b"\x38" * size)}),
                       'tensor "%s" is %s [%s], needed one factor|F32, BF16 or F16|[], [1] or [1, 1]'
                       % (name, dtype, shown))
    layer_case("factor_missing", fp8(l__weight_scale=None),
               'tensor "l.weight" is F8_E4M3|no factor|needed l.weight_scale or l.weight_scale_inv')
    layer_case("factor_missing_e5m2", fp8(l__weight_scale=None, l__weight=("F8_E5M2", (16, 16), CODES)),
               'tensor "l.weight" is F8_E5M2|no factor|needed l.weight_scale')
    layer_case("factor_doubled", fp8(l__weight_scale_inv=("F32", (), f32(0.5))),
               'layer "l" has two factors, l.weight_scale and l.weight_scale_inv, needed one')
    layer_case("factor_doubled_unequal", fp8(l__weight_scale_inv=("BF16", (1,), b"\x80\x3f")),
               'layer "l" has two factors|needed one')
    layer_case("factor_of_bf16", fp8(l__weight=("BF16", (16, 16), HIGH)),
               '"l.weight_scale"|bears a layer\'s name and would not be used')
    layer_case("nan_code", fp8(l__weight=("F8_E4M3", (16, 16), CODES[:255] + b"\xff")),
               'tensor "l.weight" holds 1 NaN codes|needed none|allow_nan')
    layer_case("inf_code", fp8(l__weight=("F8_E5M2", (16, 16), bytes(255) + b"\x7c")),
               'tensor "l.weight" holds 0 NaN codes|1 Inf codes|needed none')
    for dtype in ("F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "U8"):
        layer_case("weight_%s" % dtype.lower(), fp8(l__weight=(dtype, (16, 16), CODES)),
                   '"l" (dtype %s, needed F32, BF16, F16, F8_E4M3 or F8_E5M2)' % dtype)


def bad_headers():
    layer_case("format_2", save(), 'metadata fp8d_format is "2", this fp8d knows "1"',
               dict(META, fp8d_format="2"))
    layer_case("format_empty", save(), 'metadata fp8d_format is "", this fp8d knows "1"',
               dict(META, fp8d_format=""))
    layer_case("format_missing", save(), '"l.fp8d.cached.weight"|has no fp8d_format, needed "1"', {})
    layer_case("recipe_missing", save(), "metadata fp8d_recipe is missing", {"fp8d_format": "1"})
    for what, text, found in (
            ("empty", "", "metadata fp8d_recipe"), ("array", "[]", "metadata fp8d_recipe"),
            ("cut", RECIPE[:-1], "metadata fp8d_recipe"),
            ("kind", RECIPE.replace("delayed", "block"), "fp8d_recipe: kind is missing or unknown"),
            ("format", RECIPE.replace("hybrid", "e5m2"), "fp8d_recipe: fp8_format is missing or unknown"),
            ("algo", RECIPE.replace('"max"', "7"), "fp8d_recipe: amax_algo is missing or unknown"),
            ("len_0", RECIPE.replace(":4", ":0"), "amax_history_len is missing or out of range"),
            ("len_65537", RECIPE.replace(":4", ":65537"), "amax_history_len|needed 1 to 65536"),
            ("margin_32", RECIPE.replace('"margin":0', '"margin":32'), "margin|needed 0 to 31"),
            ("margin_real", RECIPE.replace('"margin":0', '"margin":0.5'), "margin is missing"),
            ("sum", RECIPE.replace("}", ',"fprop_accumulation":"slow"}'),
             'fprop_accumulation is missing or unknown|needed "fast" or "precise"'),
            ("sum_number", RECIPE.replace("}", ',"fprop_accumulation":2}'),
             "fprop_accumulation is missing or unknown"),
            ("twice", RECIPE.replace("{", '{"margin":0,'), "metadata fp8d_recipe"),
            ("deep", "[" * 40000, "metadata fp8d_recipe")):
        layer_case("recipe_" + what, save(), found, dict(META, fp8d_recipe=text))
    layer_case("model_missing", save(fp8d__model=None), '"fp8d.model" is missing', META)
    layer_case("model_short", save(fp8d__model=("U64", (3,), u64(1, 9, 0))),
               'tensor "fp8d.model" is U64 [3], needed U64 [4]', META)
    layer_case("model_i64", save(fp8d__model=("I64", (4,), u64(1, 9, 0, 0))),
               'tensor "fp8d.model" is I64 [4], needed U64 [4]', META)
    for what, values, found in (("scheme", (2, 9, 0, 0), "key scheme"),
                                ("version_0", (1, 0, 0, 0), "weight version"),
                                ("version_2p63", (1, 2**63, 0, 0), "weight version"),
                                ("frozen", (1, 9, 2, 0), "frozen"),
                                ("calibrating", (1, 9, 0, 2**64 - 1), "calibrating")):
        layer_case("model_" + what, save(fp8d__model=("U64", (4,), u64(*values))),
                   'tensor "fp8d.model"|' + found, META)


def bad_state():
    for site in ("input", "weight", "grad_output"):
        key = "l__fp8d__%s__" % site
        for part in ("scaling", "amax_history", "counters"):
            layer_case("state_no_%s_%s" % (site, part), save(**{key + part: None}),
                       'tensor "l.fp8d.%s.%s" is missing, needed beside' % (site, part), META)
    gone = {"l__fp8d__weight__" + p: None for p in ("scaling", "amax_history", "counters")}
    layer_case("state_no_site", save(**gone), 'layer "l"|site input but not of weight', META)
    gone = {"l__fp8d__input__" + p: None for p in ("scaling", "amax_history", "counters")}
    layer_case("state_no_first_site", save(**gone), 'layer "l"|site weight but not of input', META)
    name = "l.fp8d.weight.scaling"
    for what, values, found in (
            ("zero", (0, INF, 1, 0), "scale is not"), ("negative", (-2, -0.5, 1, 0), "scale is not"),
            ("nan", (NAN, 0.5, 1, 0), "scale is not"), ("inf", (INF, 0.5, 1, 0), "scale is not"),
            ("subnormal", (1e-40, 0.5, 1, 0), "scale is not"),
            ("inv_zero", (2, 0, 1, 0), "scale_inv is not"), ("inv_nan", (2, NAN, 1, 0), "scale_inv is not"),
            ("inv_below", (2, BELOW, 1, 0), "scale_inv is not"),
            ("apart", (2, 0.25, 1, 0), "do not belong together"),
            ("amax_negative", (2, 0.5, -1, 0), "amax"), ("amax_nan", (2, 0.5, NAN, 0), "amax"),
            ("maximum_inf", (2, 0.5, 1, INF), "amax")):
        layer_case("scaling_" + what, save(l__fp8d__weight__scaling=("F32", (4,), f32(*values))),
                   'tensor "%s"|%s' % (name, found), META)
    for what, values in (("nan", (0, 0, 0, NAN)), ("negative", (0, -1, 0, 0)), ("inf", (INF, 0, 0, 0))):
        layer_case("history_" + what,
                   save(l__fp8d__weight__amax_history=("F32", (4,), f32(*values))),
                   'tensor "%s"|amax history' % name, META)
    for what, at, value in (("set", 0, 2), ("row0", 1, 255), ("seen", 7, 2**63)):
        values = [1, 0, 2, 0, 0, 0, 0, 0]
        values[at] = value
        layer_case("flag_" + what, save(l__fp8d__weight__counters=("U64", (8,), u64(*values))),
                   'tensor "%s"|a flag is neither 0 nor 1' % name, META)
    layer_case("unset_with_scale",
               save(l__fp8d__weight__counters=("U64", (8,), u64(0, 0, 0, 0, 0, 0, 0, 0))),
               'tensor "%s"|unset but has a scale' % name, META)
    for part, bad, found in (
            ("scaling", ("F32", (3,), f32(2, 0.5, 1)), "F32 [3], needed F32 [4]"),
            ("scaling", ("BF16", (4,), bytes(8)), "BF16 [4], needed F32 [4]"),
            ("scaling", ("F32", (1, 4), f32(2, 0.5, 1, 0)), "F32 [1, 4], needed F32 [4]"),
            ("amax_history", ("F32", (0,), b""), "F32 [0], needed F32 of 1 to 65536 rows"),
            ("amax_history", ("F32", (), f32(0)), "F32 [], needed F32 of 1 to"),
            ("amax_history", ("F64", (4,), bytes(32)), "F64 [4], needed F32 of 1 to"),
            ("counters", ("U64", (7,), bytes(56)), "U64 [7], needed U64 [8]"),
            ("counters", ("F32", (8,), bytes(32)), "F32 [8], needed U64 [8]")):
        layer_case("form_%s_%s" % (part, bad[0].lower() + "_" + "x".join(map(str, bad[1]))),
                   save(**{"l__fp8d__input__" + part: bad}),
                   'tensor "l.fp8d.input.%s" is %s' % (part, found), META)
    other = {k.replace("l.", "k.", 1).replace(".", "__"): v for k, v in save().items()
             if ".fp8d.input." in k}
    layer_case("state_of_nothing", save(**other), '"k.fp8d.input.amax_history"|layer that is not in the '
               "file|--skip 'k',", META)
    layer_case("two_input_scales", save(l__input_scale=("F32", (), f32(0.5))),
               'layer "l" has two scales for its input|needed one', META)


def bad_copies():
    for part in ("weight", "weight_scale", "cast", "counters"):
        layer_case("copy_no_" + part, save(**{"l__fp8d__cached__" + part: None}),
                   'tensor "l.fp8d.cached.%s" is missing, needed beside' % part, META)
    layer_case("copy_alone_weight", changed(save(), {
        "l__fp8d__cached__" + p: None for p in ("weight_scale", "cast", "counters")}),
        'tensor "l.fp8d.cached.weight_scale" is missing', META)
    layer_case("copy_alone_factor", changed(save(), {
        "l__fp8d__cached__" + p: None for p in ("weight", "cast", "counters")}),
        'tensor "l.fp8d.cached.weight" is missing', META)
    for what, part, bad, found in (
            ("shape", "weight", ("F8_E4M3", (16, 32), bytes(512)), "F8_E4M3 [16, 32], needed F8_E4M3 [16, 16]"),
            ("dtype", "weight", ("U8", (16, 16), bytes(256)), "U8 [16, 16], needed F8_E4M3 [16, 16]"),
            ("factor_shape", "weight_scale", ("F32", (1,), f32(1)), "F32 [1], needed F32 []"),
            ("factor_dtype", "weight_scale", ("BF16", (), b"\x80\x3f"), "BF16 [], needed F32 []"),
            ("cast_shape", "cast", ("F32", (3,), f32(1, 1, 1)), "F32 [3], needed F32 [2]"),
            ("counters_shape", "counters", ("U64", (5,), bytes(40)), "U64 [5], needed U64 [6]")):
        layer_case("copy_" + what, save(**{"l__fp8d__cached__" + part: bad}),
                   'tensor "l.fp8d.cached.%s" is %s' % (part, found), META)
    for what, value in (("zero", 0), ("nan", NAN), ("inf", INF), ("negative", -1)):
        layer_case("copy_factor_" + what, save(l__fp8d__cached__weight_scale=("F32", (), f32(value))),
                   'tensor "l.fp8d.cached.weight_scale"|needed a finite factor', META)
    for what, part, bad, found in (
            ("apart", "cast", ("F32", (2,), f32(2, 1)), "do not belong together"),
            ("scale_nan", "cast", ("F32", (2,), f32(NAN, 1)), "scale of the cached copy"),
            ("amax_nan", "cast", ("F32", (2,), f32(1, NAN)), "amax of the cached copy"),
            ("flag", "counters", ("U64", (6,), u64(2, 0, 1, 0, 0, 0)), "flag of the cached copy"),
            ("margin", "counters", ("U64", (6,), u64(1, 32, 1, 0, 0, 0)), "margin of the cached copy"),
            ("casts", "counters", ("U64", (6,), u64(0, 0, 2**32, 0, 0, 0)), "casts of the cached copy")):
        layer_case("copy_" + what, save(**{"l__fp8d__cached__" + part: bad}),
                   'tensor "l.fp8d.cached.cast"|' + found, META)
    layer_case("copy_of_fp8", save(l__weight=("F8_E4M3", (16, 16), CODES),
                                   l__weight_scale=("F32", (), f32(0.5))),
               'tensor "l.fp8d.cached.weight" is a copy of a weight that is FP8 itself', META)


ADAM = ('{"kind":"adam","rate":0.001,"momentum":0,"dampening":0,"beta1":0.9,"beta2":0.999,"eps":1e-8,'
        '"weight_decay":0,"nesterov":false,"steps":7,"updates":6}')
TRAINED = dict(META, fp8d_optimizer=ADAM)
ZEROS = ("F32", (16, 16), bytes(1024))
ROW = ("F32", (16,), bytes(64))


def training(**change):
    """A save of the layer "l" with a bias, amid training with Adam: a gradient, masters, moments."""
    t = save(l__bias=("BF16", (16,), HIGH[:32]))
    for part, as_weight, as_bias in (("master", ZEROS, ROW), ("m", ZEROS, ROW), ("v", ZEROS, ROW)):
        t["l.fp8d.optimizer.weight_" + part] = as_weight
        t["l.fp8d.optimizer.bias_" + part] = as_bias
    t["l.fp8d.optimizer.options"] = ("F64", (3,), struct.pack("<3d", 0, 0.5, -1))
    t["l.fp8d.gradient.weight"] = ZEROS
    t["l.fp8d.gradient.bias"] = ROW
    t["l.fp8d.gradient.counters"] = ("U64", (2,), u64(3, 0))
    return changed(t, change)


def bad_optimizers():
    said = "metadata fp8d_optimizer"
    for what, text, found in (
            ("empty", "", said), ("array", "[]", "kind is missing or unknown"), ("cut", ADAM[:-1], said),
            ("kind", ADAM.replace("adam", "lamb"), 'kind is missing or unknown, needed "sgd", "adam" or "adamw"'),
            ("kind_number", ADAM.replace('"adam"', "2"), "kind is missing or unknown"),
            ("no_rate", ADAM.replace('"rate":0.001,', ""), "rate is missing or unknown, needed a number"),
            ("rate_text", ADAM.replace("0.001", '"0.001"'), "rate is missing or unknown, needed a number"),
            ("rate_negative", ADAM.replace("0.001", "-0.001"), "rate is -0.001, needed a finite float32"),
            ("rate_large", ADAM.replace("0.001", "1e39"), "rate is 1e+39, needed a finite float32"),
            ("rate_inf", ADAM.replace("0.001", "1e999"), said),
            ("beta_1", ADAM.replace("0.999", "1"), "beta2 is 1, needed at least 0 and below 1"),
            ("nesterov_0", ADAM.replace("false", "0"), "nesterov is missing or unknown, needed true or false"),
            ("nesterov", ADAM.replace("false", "true"), "nesterov is set, needed unset"),
            ("steps_real", ADAM.replace('"steps":7', '"steps":7.0'), "steps is missing or unknown, needed an integer"),
            ("steps_negative", ADAM.replace('"steps":7', '"steps":-7'), "steps is missing or unknown"),
            ("steps_2p62", ADAM.replace('"steps":7', '"steps":4611686018427387905'), "steps is missing or unknown, "
             "needed an integer from 0 to 2^62"),
            ("steps_2p63", ADAM.replace('"steps":7', '"steps":9223372036854775808'), said),
            ("updates", ADAM.replace('"updates":6', '"updates":8'), "updates is 8, needed at most steps, 7"),
            ("twice", ADAM.replace("{", '{"rate":1,'), said), ("deep", "[" * 30000, said)):
        layer_case("optimizer_" + what, training(), found if said in found else said + "|" + found,
                   dict(META, fp8d_optimizer=text))
    layer_case("optimizer_unmoved", training(), '"l.fp8d.optimizer.weight_master" is moved by an optimizer that has '
               "applied no update, needed none", dict(META, fp8d_optimizer=ADAM.replace('"updates":6', '"updates":0')))
    for part, value in (("weight", (16, 16)), ("bias", (16,))):
        n = 256 if part == "weight" else 16
        layer_case("moment_negative_" + part, training(**{
            "l__fp8d__optimizer__%s_v" % part: ("F32", value, bytes(4 * n - 8) + f32(-1e-30, -INF))}),
            'tensor "l.fp8d.optimizer.%s_v": 2 elements are negative, needed none' % part, TRAINED)
    layer_case("optimizer_missing", training(), '"l.fp8d.optimizer.options" is state of an optimizer|metadata '
               "has no fp8d_optimizer", META)
    layer_case("optimizer_missing_moved", training(l__fp8d__optimizer__options=None),
               '"l.fp8d.optimizer.weight_master" is state of an optimizer|no fp8d_optimizer', META)
    key = "l__fp8d__optimizer__"
    plain = ADAM.replace("adam", "sgd")
    heavy = plain.replace('"momentum":0', '"momentum":0.9')
    layer_case("moment_of_plain_sgd", training(), '"l.fp8d.optimizer.weight_m" is a moment that the optimizer '
               "of the file does not keep", dict(META, fp8d_optimizer=plain))
    layer_case("moment_second_of_sgd", training(), '"l.fp8d.optimizer.weight_v" is a moment that the optimizer '
               "of the file does not keep", dict(META, fp8d_optimizer=heavy))
    for part, beside in (("weight_m", "weight_v"), ("weight_v", "weight_m"), ("bias_m", "bias_v"),
                         ("bias_v", "bias_m")):
        layer_case("moment_no_" + part, training(**{key + part: None}),
                   '"l.fp8d.optimizer.%s" is missing, needed beside "l.fp8d.optimizer.%s"' % (part, beside),
                   TRAINED)
    for part in ("master", "m", "v"):
        for what, bad, found in (("shape", ("F32", (16, 32), bytes(2048)), "F32 [16, 32], needed F32 [16, 16]"),
                                 ("rank", ("F32", (256,), bytes(1024)), "F32 [256], needed F32 [16, 16]"),
                                 ("dtype", ("BF16", (16, 16), HIGH), "BF16 [16, 16], needed F32 [16, 16]")):
            layer_case("weight_%s_%s" % (part, what), training(**{key + "weight_" + part: bad}),
                       'tensor "l.fp8d.optimizer.weight_%s" is %s' % (part, found), TRAINED)
        layer_case("bias_%s_shape" % part, training(**{key + "bias_" + part: ("F32", (8,), bytes(32))}),
                   'tensor "l.fp8d.optimizer.bias_%s" is F32 [8], needed F32 [16]' % part, TRAINED)
    layer_case("master_of_f32", training(l__weight=ZEROS), '"l.fp8d.optimizer.weight_master" is the master of a '
               "tensor that is F32 itself, needed none", TRAINED)
    layer_case("master_of_f32_bias", training(l__bias=ROW), '"l.fp8d.optimizer.bias_master" is the master of a '
               "tensor that is F32 itself, needed none", TRAINED)
    layer_case("moved_bias_of_nothing", training(l__bias=None), '"l.fp8d.optimizer.bias_master" is of a bias, '
               'needed "l.bias" beside it', TRAINED)
    for what, values, found in (("frozen", (2, -1, -1), "frozen is neither 0 nor 1"),
                                ("frozen_nan", (NAN, -1, -1), "frozen is neither 0 nor 1"),
                                ("rate", (0, -2, -1), "rate or weight_decay is neither -1 nor"),
                                ("rate_nan", (0, NAN, -1), "rate or weight_decay is neither -1 nor"),
                                ("decay_inf", (0, -1, INF), "rate or weight_decay is neither -1 nor")):
        layer_case("options_" + what, training(**{key + "options": ("F64", (3,), struct.pack("<3d", *values))}),
                   'tensor "l.fp8d.optimizer.options"|' + found, TRAINED)
    layer_case("options_form", training(**{key + "options": ("F32", (3,), f32(0, 1, 1))}),
               'tensor "l.fp8d.optimizer.options" is F32 [3], needed F64 [3]', TRAINED)


def bad_gradients():
    key = "l__fp8d__gradient__"
    name = "l.fp8d.gradient."
    layer_case("gradient_no_counters", training(**{key + "counters": None}),
               '"%scounters" is missing, needed beside "%sweight"' % (name, name), TRAINED)
    layer_case("gradient_no_weight", training(**{key + "weight": None}),
               '"%sweight" is missing, needed beside "%scounters"' % (name, name), TRAINED)
    layer_case("gradient_bias_alone", training(**{key + "weight": None, key + "counters": None}),
               '"%sweight" is missing, needed beside "%sbias"' % (name, name), TRAINED)
    layer_case("gradient_of_none", training(**{key + "counters": ("U64", (2,), u64(0, 0))}),
               'tensor "%scounters": a gradient of no backward, needed at least 1' % name, TRAINED)
    for what, values in (("backwards", (2**62 + 1, 0)), ("nonfinite", (1, 2**64 - 1))):
        layer_case("gradient_count_" + what, training(**{key + "counters": ("U64", (2,), u64(*values))}),
                   'tensor "%scounters": a count is above 2^62' % name, TRAINED)
    layer_case("gradient_counters_form", training(**{key + "counters": ("U64", (3,), u64(1, 0, 0))}),
               'tensor "%scounters" is U64 [3], needed U64 [2]' % name, TRAINED)
    layer_case("gradient_shape", training(**{key + "weight": ("F32", (32, 16), bytes(2048))}),
               'tensor "%sweight" is F32 [32, 16], needed F32 [16, 16]' % name, TRAINED)
    layer_case("gradient_dtype", training(**{key + "bias": ("F16", (16,), bytes(32))}),
               'tensor "%sbias" is F16 [16], needed F32 [16]' % name, TRAINED)
    layer_case("gradient_bias_of_nothing", changed(training(l__bias=None), {
        "l__fp8d__optimizer__bias_" + p: None for p in ("master", "m", "v")}),
        '"%sbias" is of a bias, needed "l.bias" beside it' % name, TRAINED)
    layer_case("gradient_of_other_layer", training(k__fp8d__gradient__weight=ZEROS),
               '"k.fp8d.gradient.weight"|layer that is not in the file', TRAINED)
    layer_case("gradient_without_format", {"l.weight": ("BF16", (16, 16), HIGH), "l.fp8d.gradient.weight": ZEROS},
               '"l.fp8d.gradient.weight" (is state of a save, but the metadata has no fp8d_format', {})
    origin = ("U64", (1,), u64(2))
    layer_case("origin_of_bf16", training(l__fp8d__origin=origin),
               '"l.fp8d.origin" is the origin of a weight that is BF16, needed none', TRAINED)
    for what, value in (("none", 0), ("e4m3", 4), ("large", 2**32 + 2)):
        layer_case("origin_" + what, fp8(l__fp8d__origin=("U64", (1,), u64(value)),
                                         fp8d__model=("U64", (4,), u64(1, 9, 0, 0))),
                   'tensor "l.fp8d.origin": needed 1 (F32), 2 (BF16) or 3 (F16)', META)
    layer_case("origin_form", fp8(l__fp8d__origin=("U64", (), u64(2)),
                                  fp8d__model=("U64", (4,), u64(1, 9, 0, 0))),
               'tensor "l.fp8d.origin" is U64 [], needed U64 [1]', META)


def good_layers():
    layer_case("ok_fp8", fp8())
    layer_case("ok_fp8_inv", fp8(l__weight_scale=None, l__weight_scale_inv=("BF16", (1, 1), b"\x00\x3f")))
    layer_case("ok_fp8_input", fp8(l__input_scale=("F16", (1,), b"\x00\x38")))
    layer_case("ok_factor_least", fp8(l__weight_scale=("F32", (), f32(2.0**-128))))
    layer_case("ok_factor_largest", fp8(l__weight_scale=("F32", (), b"\xff\xff\x7f\x7f")))
    layer_case("ok_save", save(), meta=META)
    layer_case("ok_save_without_state", changed(save(), {
        "l__fp8d__%s__%s" % (s, p): None for s in ("input", "weight", "grad_output")
        for p in ("scaling", "amax_history", "counters")}), meta=META)
    layer_case("ok_save_other_length", save(
        l__fp8d__weight__amax_history=("F32", (7,), f32(0, 1, 2, 3, 4, 5, 224))), meta=META)
    layer_case("ok_save_e5m2_copy", save(l__fp8d__cached__weight=("F8_E5M2", (16, 16), b"\x3c" * 256)),
               meta=META)
    layer_case("ok_training", training(), meta=TRAINED)
    layer_case("ok_training_diverged", training(
        l__fp8d__optimizer__weight_v=("F32", (16, 16), f32(NAN, INF) * 128),
        l__fp8d__optimizer__weight_m=("F32", (16, 16), f32(NAN, -INF) * 128)), meta=TRAINED)
    layer_case("ok_training_gradient_alone", save(
        l__fp8d__gradient__weight=ZEROS, l__fp8d__gradient__counters=("U64", (2,), u64(1, 5))), meta=META)
    layer_case("ok_training_before_the_first_step", save(), meta=TRAINED)
    layer_case("ok_training_of_fp8", fp8(
        l__fp8d__origin=("U64", (1,), u64(2)), l__fp8d__optimizer__weight_master=ZEROS,
        fp8d__model=("U64", (4,), u64(1, 9, 0, 0))), meta=TRAINED)
    layer_case("ok_no_metadata", {"l.weight": ("BF16", (16, 16), HIGH)})
    layer_case("ok_odd_offsets", {"x": ("U8", (3,), b"abc"), "l.weight": ("BF16", (16, 16), HIGH),
                                  "l.bias": ("F32", (16,), bytes(64))})
    layer_case("ok_empty_and_1d", {"l.weight": ("BF16", (16, 16), HIGH), "e": ("F32", (0, 4), b""),
                                   "n.weight": ("F32", (16,), bytes(64))})
    layer_case("ok_null_metadata", {"l.weight": ("BF16", (16, 16), HIGH)})
    header = {"__metadata__": None, "l.weight": dict(entry("BF16", (16, 16), (0, 512)), note=[1])}
    text = " " + json.dumps(header) + "  \n"
    LAYER_CASES[-1] = ("ok_null_metadata.safetensors", blob(text, HIGH), "ok")


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "evil_layers"
    for make in (good_layers, bad_factors, bad_headers, bad_state, bad_copies, bad_optimizers,
                 bad_gradients):
        make()
    seen = [name.lower() for name, _, _ in LAYER_CASES]
    assert len(set(seen)) == len(seen), "two files of one name"
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.safetensors"):
        old.unlink()
    for name, data, _ in LAYER_CASES:
        assert len(data) <= 65536, name
        (out / name).write_bytes(data)
    lines = ["%s %s\n" % (name, expect) for name, _, expect in sorted(LAYER_CASES)]
    (out / "manifest.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
