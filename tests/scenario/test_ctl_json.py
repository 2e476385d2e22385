#!/usr/bin/env python3
"""fp8ctl against a running fp8d: exit codes, the exact keys of --json, batches, files. TAP."""
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

from ctl_rig import FP8CTL, FP8D, SOURCE, Tap, bf16, write_tensors

DATA = os.path.join(SOURCE, "examples", "data")
LAYER = "encoder.layer.2.intermediate.dense"
INPUT = os.path.join(DATA, "minilm-activations.safetensors") + ":" + LAYER + ".input"
CHECKPOINT = os.path.join(DATA, "minilm-layer.safetensors")

MODEL_KEYS = {"name", "incarnation", "weight_version", "layers", "parameters", "bytes", "recipe",
              "creator_uid", "scope_open", "calibrating", "contexts"}
RECIPE_KEYS = {"kind", "fp8_format", "amax_history_len", "amax_algo", "margin", "fprop_accumulation"}
CAST_KEYS = {"format", "scale", "scale_inv", "amax", "saturated", "flushed", "nonfinite",
             "uncalibrated"}
SITE_KEYS = {"format", "set", "scale", "scale_inv", "scale_inv_in_use", "amax_last", "history",
             "collecting", "updates", "skipped_updates", "saturated", "flushed", "nonfinite",
             "uncalibrated_casts"}
LOAD_KEYS = ["model", "incarnation", "weight_version", "layers", "parameters", "bytes_read",
             "read_us", "recipe", "loaded", "converted", "nan_codes", "ignored", "ignored_total",
             "notes"]
FORWARD_KEYS = ["model", "layer", "incarnation", "weight_version", "mode", "context", "output",
                "casts", "weight_copy", "scales_applied", "queue_us", "run_us"]
SCALING_KEYS = ["model", "incarnation", "weight_version", "recipe", "frozen", "calibrating",
                "scope_open", "layers"]

# --- helpers ---

tap = Tap()


def ctl(*args, stdin=""):
    """Run fp8ctl; returns exit code, stdout, stderr."""
    done = subprocess.run([FP8CTL, "--socket", sock, *args], input=stdin, capture_output=True,
                          text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def keys(name, args, want):
    """A command with --json exits 0 and prints one object with exactly these keys; returns it."""
    code, out, err = ctl("--json", *args)
    try:
        got = json.loads(out)
    except ValueError:
        got = {}
    want = set(want) | {"fp8ctl_json"}
    tap.is_(f"{name}: exit code 0, keys as documented",
            code == 0 and set(got) == want and got["fp8ctl_json"] == 1,
            f"{code}\n{sorted(set(got) ^ want)}\n{err}")
    return got


def float32(text):
    return struct.unpack("f", struct.pack("f", float(text)))[0]


def shortest(text):
    """Is this the shortest text of its float32, of at most nine digits?"""
    value = float32(text)
    for digits in range(1, 10):
        short = f"{value:.{digits}g}"
        if float32(short) == value:
            return float(short) == float(text)
    return False


def floats_of(text):
    """The texts of all floats in a JSON document."""
    found = []
    json.loads(text, parse_float=lambda t: found.append(t) or float(t))
    return found


# --- cases ---


def questions():
    keys("status", ["status"],
         ["server_version", "instance", "pid", "uptime_ms", "backend", "device", "backend_reason",
          "plans",
          "memory_used", "memory_limit", "memory_peak", "device_memory_used", "device_memory_total",
          "connections", "models", "parameters", "model_bytes", "contexts",
          "scopes", "queued", "running", "requests_done", "forwards_done", "progress_age_ms",
          "draining"])
    got = keys("models, none", ["models"], ["models"])
    tap.is_("models, none: an empty list", got.get("models") == [])
    keys("ping", ["ping", "--count", "10"], ["count", "min_us", "mean_us", "max_us"])


def load():
    got = keys("load", ["load", "m", CHECKPOINT, "--amax-history-len", "4", "--margin", "1"],
               LOAD_KEYS)
    tap.is_("load: the recipe asked for",
            got.get("recipe") == {"kind": "delayed", "fp8_format": "hybrid", "amax_history_len": 4,
                                  "amax_algo": "max", "margin": 1, "fprop_accumulation": "fast"},
            got.get("recipe"))
    got = keys("models", ["models"], ["models"])
    tap.is_("models: keys of a model", set(got["models"][0]) == MODEL_KEYS, got)
    got = keys("layers", ["layers", "m"], ["model", "layers"])
    row = [r for r in got["layers"] if r["name"] == LAYER][0]
    tap.is_("layers: shape, dtypes, null where there is no cached copy or no FP8 weight",
            (row["in_features"], row["out_features"], row["weight_dtype"], row["bias_dtype"],
             row["cached_version"], row["weight_scale_inv"]) ==
            (384, 1536, "BF16", "BF16", None, None), row)


def compute(tmp):
    output = os.path.join(tmp, "y.safetensors")
    with open(output, "w", encoding="utf-8") as file:
        file.write("old")
    got = keys("forward", ["forward", "m/" + LAYER, "--input", INPUT, "--output", output,
                           "--output-dtype", "bf16"],
               FORWARD_KEYS)
    tap.is_("forward: what the output is",
            (got["output"]["dtype"], got["output"]["shape"], got["output"]["file"]) ==
            ("BF16", [111, 1536], output), got["output"])
    tap.is_("forward: no context was asked for", got["context"] is None, got)
    tap.is_("forward: keys of the casts", set(got["casts"]["input"]) == CAST_KEYS and
            set(got["casts"]["weight"]) == CAST_KEYS, got["casts"])
    with open(output, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        rest = len(file.read())
    tap.is_("forward: the output file was replaced by a safetensors file",
            header["output"]["shape"] == [111, 1536] and rest == 111 * 1536 * 2, header)
    tap.is_("forward: no temporary stays", os.listdir(tmp) == ["y.safetensors"], os.listdir(tmp))
    got = keys("check", ["check", "m/" + LAYER, "--input", INPUT],
               ["target", "incarnation", "weight_version", "max_abs_error", "max_abs_reference",
                "relative_error", "nonfinite_outputs", "input", "weight", "input_elements",
                "weight_elements"])
    tap.is_("check: the error of e4m3 is between 0.1 % and 10 %",
            0.001 < got["relative_error"] < 0.1, got["relative_error"])


def calibrate():
    code, _, err = ctl("calibration", "finish", "m")
    tap.is_("calibration that never began is refused: exit code 1",
            code == 1 and "FAILED_PRECONDITION" in err, err)
    got = keys("forward --mode calibrate",
               ["forward", "m/" + LAYER, "--input", INPUT, "--mode", "calibrate"],
               FORWARD_KEYS)
    tap.is_("calibrate: nothing was cast", got["casts"] == {"input": None, "weight": None}, got)
    got = keys("calibration finish", ["calibration", "finish", "m"],
               ["model", "incarnation", "weight_version", "action", "sites_set", "sites_unset"])
    tap.is_("calibration: two sites set", got["sites_set"] == 2, got)


def scaling():
    got = keys("scaling", ["scaling", "m/" + LAYER, "--history"], SCALING_KEYS)
    layer = got["layers"][LAYER]
    site = layer["tensors"]["input"]
    tap.is_("scaling: keys of recipe, layer, site",
            set(got["recipe"]) == RECIPE_KEYS and set(site) == SITE_KEYS and
            set(layer) == {"weight_version", "cached_version", "tensors"} and
            list(got["layers"]) == [LAYER], layer)
    tap.is_("scaling: five sites", set(layer["tensors"]) ==
            {"input", "weight", "output", "grad_output", "grad_input"}, list(layer["tensors"]))
    tap.is_("scaling: the calibrated scale is fp8_max / 2 / amax",
            site["set"] and float32(site["scale"]) == float32(224 / float32(site["amax_last"]))
            and site["history"] == [site["amax_last"], 0, 0], site)
    _, out, _ = ctl("--json", "scaling", "m", "--history")
    wrong = [t for t in floats_of(out) if not shortest(t)]
    _, table, _ = ctl("scaling", "m/" + LAYER, "--history")
    tap.is_("scaling: the table shows the three sites that are in use",
            [w for w in ("input", "weight", "output", "grad_output", "grad_input")
             if f"{LAYER} {w} " in table] == ["input", "weight", "grad_output"], table)
    tap.is_("scaling: every float is the shortest text of its float32", not wrong, wrong)


def state(tmp):
    got = keys("recipe, shown", ["recipe", "m"],
               ["model", "incarnation", "weight_version", "recipe", "notes"])
    tap.is_("recipe, shown: what it is, no notes",
            set(got["recipe"]) == RECIPE_KEYS and got["recipe"]["margin"] == 1 and
            got["notes"] == [], got)
    got = keys("recipe, changed", ["recipe", "m", "--margin", "0", "--amax-history-len", "5"],
               ["model", "incarnation", "weight_version", "recipe", "notes"])
    tap.is_("recipe, changed: a margin of 0 is meant, the rest is kept, a note says what was",
            got["recipe"] == {"kind": "delayed", "fp8_format": "hybrid", "amax_history_len": 5,
                              "amax_algo": "max", "margin": 0, "fprop_accumulation": "fast"} and
            "margin 1" in got["notes"][0], got)
    got = keys("recipe, accumulation", ["recipe", "m", "--accumulation", "precise"],
               ["model", "incarnation", "weight_version", "recipe", "notes"])
    tap.is_("recipe, accumulation: it is in force, the rest is kept, copies too",
            got["recipe"]["fprop_accumulation"] == "precise" and
            got["recipe"]["amax_history_len"] == 5 and
            "fast accumulation; copies of weights were kept" in got["notes"][0], got)
    got = keys("scaling, precise", ["scaling", "m"], SCALING_KEYS)
    tap.is_("scaling: the recipe has its accumulation",
            got["recipe"]["fprop_accumulation"] == "precise", got["recipe"])
    got = keys("scaling --freeze", ["scaling", "m", "--freeze"],
               ["model", "incarnation", "weight_version", "action", "sites"])
    tap.is_("scaling --freeze: no site was reset", (got["action"], got["sites"]) == ("freeze", 0),
            got)
    got = keys("scaling, frozen", ["scaling", "m"], SCALING_KEYS)
    tap.is_("scaling, frozen: the flags are there",
            (got["frozen"], got["calibrating"], got["scope_open"]) == (True, False, False), got)
    keys("scaling --unfreeze", ["scaling", "m", "--unfreeze"],
         ["model", "incarnation", "weight_version", "action", "sites"])
    saved = os.path.join(tmp, "saved.safetensors")
    got = keys("save", ["save", "m", saved],
               ["model", "incarnation", "weight_version", "file", "tensors", "bytes_written",
                "write_us"])
    tap.is_("save: as many bytes as the file has, and where", got["file"] == saved and
            got["bytes_written"] == os.path.getsize(saved) and got["tensors"] > 6, got)
    got = keys("scaling --reset", ["scaling", "m", "--reset"],
               ["model", "incarnation", "weight_version", "action", "sites"])
    tap.is_("scaling --reset: three sites of six layers", got["sites"] == 18, got)
    _, out, _ = ctl("--json", "scaling", "m")
    sites = [s for l in json.loads(out)["layers"].values() for s in l["tensors"].values()]
    tap.is_("scaling --reset: unset, scale 1",
            all(not s["set"] and s["scale"] == 1 and s["amax_last"] == 0 for s in sites), sites[:1])
    spec = os.path.join(tmp, "spec.json")
    with open(spec, "w", encoding="utf-8") as file:
        json.dump({"primary_fp8": True,
                   "layers": [{"name": "l", "weight": f"{CHECKPOINT}:{LAYER}.weight"}]}, file)
    got = keys("create", ["create", "c", spec],
               ["model", "incarnation", "weight_version", "layers", "parameters"])
    tap.is_("create: one layer", (got["layers"], got["parameters"]) == (1, 384 * 1536), got)
    got = keys("layers, FP8", ["layers", "c"], ["model", "layers"])
    row = got["layers"][0]
    tap.is_("layers, FP8: dtype and factor of the primary weight",
            row["weight_dtype"] == "F8_E4M3" and 0 < row["weight_scale_inv"] < 1, row)
    _, out, _ = ctl("layers", "c")
    tap.is_("layers, FP8: the table has them, too", "F8_E4M3" in out and "SCALE_INV" in out and
            str(row["weight_scale_inv"]) in out, out)
    got = keys("forward, FP8", ["forward", "c/l", "--input", INPUT],
               FORWARD_KEYS)
    tap.is_("forward, FP8: the weight itself was multiplied with", got["weight_copy"] == "primary",
            got)
    keys("load, converted", ["load", "c", saved, "--only", LAYER, "--primary-fp8"], LOAD_KEYS)
    _, out, _ = ctl("scaling", "m", "--reset")
    _, more, _ = ctl("recipe", "m", "--margin", "1")
    tap.is_("what people read", out == "m is reset: 18 sites\n" and
            more.startswith("model     m\nrecipe    delayed hybrid history 5 max margin 1 precise\nnote "),
            out + more)


def batch():
    script = f"""
# one step
scope begin m
forward m/{LAYER} --mode train --first-microbatch yes --input '{INPUT}'
scope end m   # scales move here
forward "m/{LAYER}" --mode train --first-microbatch no --input '{INPUT}'
"""
    code, out, err = ctl("--json", "batch", "-", stdin=script)
    rows = [json.loads(line) for line in out.splitlines()]
    tap.is_("batch: one object a line", code == 0 and len(rows) == 4, f"{code}\n{err}")
    tap.is_("batch: the scope's end updated two sites", rows[2]["sites_updated"] == 2, rows[2])
    tap.is_("batch: the bytes are reused with the factor they carry",
            rows[3]["weight_copy"] == "reused" and
            rows[3]["casts"]["weight"]["scale_inv"] == rows[1]["casts"]["weight"]["scale_inv"], rows)
    code, out, err = ctl("batch", "-", stdin="ping\n\nunload nobody\nping\n")
    tap.is_("batch: stops at the first failure, with its line",
            code == 1 and "stdin:3:" in err and out.count("round trip") == 1, f"{code}\n{out}{err}")
    code, _, err = ctl("batch", "-", stdin="ping\nping 'open\n")
    tap.is_("batch: a quote that does not end is a usage error", code == 2 and "stdin:2:" in err,
            err)
    code, out, err = ctl("batch", "-", stdin="ping\nping --count 2\0 --bogus\nping\n")
    tap.is_("batch: a line with a NUL is a usage error", code == 2 and "stdin:2: the line has a NUL" in err
            and out.count("round trip") == 1, f"{code}\n{out}{err}")
    code, _, err = ctl("batch", "-", stdin="scope end m\n")
    tap.is_("batch: a scope of another batch is not found", code == 1 and "NOT_FOUND" in err, err)


def errors():
    code, out, err = ctl("--json", "layers", "nobody")
    error = json.loads(out)["error"]
    tap.is_("an error is an object with code, stage and sentence",
            code == 1 and error["code"] == "NOT_FOUND" and error["number"] == -1005 and
            set(error) == {"code", "number", "stage", "message", "retry_after_ms"} and
            error["message"] in err, out)
    code, _, err = ctl("load", "m", "/nonexistent.safetensors")
    tap.is_("a file that is not there: exit code 1, named", code == 1 and "/nonexistent" in err, err)
    code, _, err = ctl("load", "m", CHECKPOINT, "--server-path")
    tap.is_("a server path without roots is refused", code == 1 and "PERMISSION_DENIED" in err, err)
    code, _, err = ctl("forward", "m/\x1b[31m", "--input", INPUT)
    tap.is_("foreign text is escaped, once", code == 1 and "\x1b" not in err and "\\x1b[31m" in err and
            "x5c" not in err, repr(err))
    keys("set-weight", ["set-weight", "m/" + LAYER, "--input", f"{CHECKPOINT}:{LAYER}.weight",
                        "--bias", f"{CHECKPOINT}:{LAYER}.bias"],
         ["target", "incarnation", "weight_version"])
    keys("unload", ["unload", "m"], ["unloaded"])


def odd_names(tmp):
    """A backslash in a name is escaped once, in tables, lists and sentences."""
    path = os.path.join(tmp, "odd.safetensors")
    write_tensors(path, {"a\\b.weight": ([16, 16], bf16(1, 256))})
    said = [ctl("load", "odd", path)[1], ctl("layers", "odd")[1], ctl("scaling", "odd")[1],
            ctl("forward", "odd/a\\c", "--input", INPUT)[2]]
    tap.is_("a backslash in a name is escaped once, wherever it is shown",
            all("a\\x5cb" in text for text in said[:3]) and "a\\x5cc" in said[3] and
            not any("x5cx5c" in text for text in said), said)


def wait_for(daemon):
    for _ in range(100):
        if ctl("ping")[0] == 0 or daemon.poll() is not None:
            return
        time.sleep(0.1)


def main():
    global sock
    with tempfile.TemporaryDirectory() as run, tempfile.TemporaryDirectory() as tmp:
        sock = os.path.join(run, "fp8d.sock")
        with open(os.path.join(run, "log"), "w", encoding="utf-8") as log:
            daemon = subprocess.Popen([FP8D, "--socket", sock, "--backend", "cpu"], stdout=log,
                                      stderr=log)
        try:
            wait_for(daemon)
            questions()
            load()
            compute(tmp)
            calibrate()
            scaling()
            state(tmp)
            batch()
            errors()
            odd_names(tmp)
        finally:
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(timeout=60)
        tap.is_("the daemon stopped cleanly", code == 0, code)
    print(f"1..{tap.count}")
    return tap.failed != 0


sock = ""
if __name__ == "__main__":
    sys.exit(main())
