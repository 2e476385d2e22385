#!/usr/bin/env python3
"""The examples do what their first lines say, on a running fp8d. TAP."""
import json
import os
import re
import subprocess
import sys
import tempfile

from ctl_rig import BUILD, SOURCE, Daemon, Tap

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


def others(tap, daemon):
    for name, args in (("microbatch", [DATA]), ("forward", [DATA]), ("hello", [])):
        code, out, err = run(daemon, name, *args)
        tap.is_(f"{name}: exit code 0, and says something", code == 0 and out,
                f"{code}\n{out}\n{err}")


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder).start()
        try:
            train(tap, daemon)
            others(tap, daemon)
        finally:
            tap.is_("the daemon stops clean", daemon.stop() == 0)
    print(f"1..{tap.count}")
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
