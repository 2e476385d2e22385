#!/usr/bin/env python3
"""The examples do what their first lines say, on a running fp8d. TAP. Needs numpy and ml_dtypes."""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

from ctl_rig import BUILD, SOURCE, Daemon, read_tensors, with_numpy

DATA = os.path.join(SOURCE, "examples", "data", "minilm-layer.safetensors")

# --- helpers ---


def run(daemon, name, *args):
    """Exit code, stdout, stderr of an example; a socket comes last."""
    program = os.path.join(BUILD, "examples", name)
    done = subprocess.run([program, *args, daemon.sock], capture_output=True, text=True,
                          timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def models(daemon):
    return [m["name"] for m in json.loads(daemon.must("--json", "models"))["models"]]


# --- cases ---


def train(tap, daemon):
    code, out, err = run(daemon, "train")
    losses = [float(x) for x in re.findall(r"^step +\d+  loss (\S+)$", out, re.M)]
    tap.is_("train: exit code 0, eleven losses, the last below a hundredth of the first",
            code == 0 and not err and len(losses) == 11 and losses[-1] < 0.01 * losses[0],
            f"{code}\n{out}\n{err}")
    tap.is_("train: no step was skipped", "skipped" not in out, out)
    tap.is_("train: its model is gone", models(daemon) == [], models(daemon))
    again = run(daemon, "train")
    if os.environ.get("FP8D_TEST_BACKEND", "cpu") == "cpu":
        tap.is_("train: the same numbers in every run", again == (code, out, err), again[1])
    daemon.must("load", "train-example", DATA)
    code, out, err = run(daemon, "train")
    tap.is_("train: a model of its name is left alone, with exit code 1",
            code == 1 and "ALREADY_EXISTS" in err and models(daemon) == ["train-example"], err)
    daemon.must("unload", "train-example")


def calibrated(tap, daemon, folder, np):
    """Transformer Engine PR 771: the factor is that of the calibration, by numpy from the file."""
    file = os.path.join(folder, "calibrated.safetensors")
    code, out, err = run(daemon, "calibrated", file)
    loads = re.findall(r"^load \d  weight scale_inv (\S+)  error (\S+)$", out, re.M)
    tap.is_("calibrated: exit code 0, two loads, the same bits",
            code == 0 and not err and len(loads) == 2 and "the same bits" in out,
            f"{code}\n{out}\n{err}")
    weight = read_tensors(file)["linear.weight"]
    amax = np.abs(weight.astype(np.float32)).max()
    want = np.float32(1) / (np.float32(448) / amax)
    tap.is_("calibrated: a trained weight of BF16, cast with the scale of its own amax",
            weight.dtype.name == "bfloat16" and weight.shape == (16, 16) and 0.1 < amax < 10
            and [np.float32(x) for x, _ in loads] == [want, want], f"{loads}, needed {want}")
    tap.is_("calibrated: its models are gone", models(daemon) == [], models(daemon))


def accumulate(tap, daemon):
    """Transformer Engine issue 1047: bytes keep the factor they were cast with, while the site's
    moves; numbers are compared by the program, in float64."""
    code, out, err = run(daemon, "accumulate")
    rows = [line.split() for line in out.splitlines()]
    rows = [r for r in rows if len(r) == 8 and r[2] in ("cast", "reused")]
    tap.is_("accumulate: exit code 0, three steps of four microbatches",
            code == 0 and not err and len(rows) == 12 and out.count("gradient of 4") == 3,
            f"{code}\n{out}\n{err}")
    tap.is_("accumulate: cast once a step, and reused with the factor of that cast",
            [r[2] for r in rows] == ["cast", "reused", "reused", "reused"] * 3
            and all(len({r[3] for r in rows[i:i + 4]}) == 1 for i in (0, 4, 8))
            and len({r[3] for r in rows}) == 3, out)
    tap.is_("accumulate: the site's factor is another, and would spoil every output",
            all(r[3] != r[4] and float(r[7]) > 0.1 > 0.07 > max(float(r[5]), float(r[6]))
                for r in rows), out)
    tap.is_("accumulate: its model is gone", models(daemon) == [], models(daemon))


def charlm(tap, daemon, folder):
    """The same losses with linears in FP8 as in float32: within 2 % at the end."""
    steps = 100 if os.environ.get("FP8D_TEST_SMALL") else 300
    text = os.path.join(folder, "text")
    licences = glob.glob("/usr/share/common-licenses/*")
    with open(text, "wb") as out:
        for path in [os.path.join(SOURCE, "LICENSE"), *sorted(licences)]:
            with open(path, "rb") as f:
                out.write(f.read())
    code, out, err = run(daemon, "charlm", text, str(steps), "fp8d")
    code32, out32, err32 = run(daemon, "charlm", text, str(steps), "float32")
    fp8, here = ([float(x) for x in re.findall(r"loss (\S+)$", o, re.M)] for o in (out, out32))
    tap.is_("charlm: both runs have a loss a step, which falls",
            code == code32 == 0 and not err + err32 and len(fp8) == len(here) == steps
            and fp8[-1] < 0.8 * fp8[0] and here[-1] < 0.8 * here[0], out[-300:] + err + err32)
    last = [sum(losses[-20:]) / 20 for losses in (fp8, here)]
    tap.is_("charlm: the last losses are within 2 %", abs(last[0] / last[1] - 1) < 0.02, last)
    tap.is_("charlm: its model is gone", models(daemon) == [], models(daemon))


def others(tap, daemon):
    for name, args in (("microbatch", [DATA]), ("forward", [DATA]), ("hello", [])):
        code, out, err = run(daemon, name, *args)
        tap.is_(f"{name}: exit code 0, and says something", code == 0 and out,
                f"{code}\n{out}\n{err}")


def run_all(tap, np):
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder).start()
        try:
            train(tap, daemon)
            calibrated(tap, daemon, folder, np)
            accumulate(tap, daemon)
            charlm(tap, daemon, folder)
            others(tap, daemon)
        finally:
            tap.is_("the daemon stops clean", daemon.stop() == 0)


if __name__ == "__main__":
    sys.exit(with_numpy(lambda tap, np, _: run_all(tap, np)))
