#!/usr/bin/env python3
"""fp8ctl moves weights: SGD on whole numbers exactly, Adam against numpy in float64, what is skipped,
repeated, clipped, refused. TAP.

Weights are read from saves. While scales are frozen at 1, products of small whole numbers are exact
in FP8, so that gradients are known beforehand. The rules are PyTorch's; Needs numpy and ml_dtypes.
"""
import json
import os
import sys
import tempfile

from ctl_rig import Daemon, read_tensors, write_tensors, with_numpy

OUTS, INS, TOKENS = 16, 32, 16
MICROBATCHES = 8  # different ones in the data file
PLACES = 9  # layers of the model with many problems
LISTED = 16  # of its problems: docs/man/fp8d-protocol.7

STEP_KEYS = {"fp8ctl_json", "model", "incarnation", "weight_version", "step", "outcome", "layers",
             "grad_norm", "clip", "problems", "problems_total", "updates", "next_step"}
SHOWN_KEYS = {"fp8ctl_json", "model", "incarnation", "weight_version", "kind", "rate", "momentum",
              "dampening", "beta1", "beta2", "eps", "weight_decay", "nesterov", "updates", "next_step",
              "layers"}
OPTIMIZER_KEYS = {"fp8ctl_json", "model", "incarnation", "weight_version", "kind", "updates",
                  "next_step"}

# --- what must come out ---


class Numbers:
    """Weights in eighths, inputs and gradients of outputs in whole numbers, all exact in FP8."""

    def __init__(self, np, ml_dtypes):
        self.np, self.ml = np, ml_dtypes
        rng = np.random.default_rng(7)
        self.w = {name: rng.integers(-8, 9, (OUTS, INS)) / 8.0 for name in "ab"}
        self.bias = rng.integers(-8, 9, OUTS) / 8.0
        self.x = [rng.integers(-2, 3, (TOKENS, INS)) for _ in range(MICROBATCHES)]
        self.g = [rng.integers(-2, 3, (TOKENS, OUTS)) for _ in range(MICROBATCHES)]

    def write(self, folder):
        """Files: f32, bf16, many (models), data (inputs and gradients)."""
        np = self.np
        tensors = {"a.weight": self.w["a"], "a.bias": self.bias, "b.weight": self.w["b"]}
        many = {f"l{i}.{part}": tensors[f"a.{part}"] for i in range(PLACES)
                for part in ("weight", "bias")}
        data = {f"x{i}": x for i, x in enumerate(self.x)} | {f"g{i}": g for i, g in enumerate(self.g)}
        data["odd"] = self.g[0].astype(np.float32)
        data["odd"][3, 2], data["odd"][5, 2] = np.inf, np.nan
        for name, of, dtype in (("f32", tensors, "F32"), ("bf16", tensors, "BF16"),
                                ("many", many, "F32"), ("data", data, "BF16")):
            kind = np.float32 if dtype == "F32" else self.ml.bfloat16
            write_tensors(os.path.join(folder, name),
                          {k: (list(v.shape), v.astype(kind).tobytes()) for k, v in of.items()},
                          dtype)

    def gradient(self, i):
        """Of layer a for microbatch i; of layer b without the bias."""
        return {"weight": (self.g[i].T @ self.x[i]).astype(float),
                "bias": self.g[i].sum(0).astype(float)}

    def norm(self, *parts):
        return sum((p**2).sum() for p in parts)**0.5


class Adam:
    """torch.optim.Adam and AdamW as documented, in float64, of one tensor."""

    def __init__(self, np, w, rate, decay, decoupled):
        self.np, self.w, self.m, self.v, self.n = np, w.copy(), 0.0 * w, 0.0 * w, 0
        self.rate, self.decay, self.decoupled = rate, decay, decoupled

    def step(self, g):
        self.n += 1
        if self.decoupled:
            self.w -= self.rate * self.decay * self.w
        else:
            g = g + self.decay * self.w
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.99 * self.v + 0.01 * g * g
        m, v = self.m / (1 - 0.9**self.n), self.v / (1 - 0.99**self.n)
        self.w -= self.rate * m / (self.np.sqrt(v) + 1e-6)


# --- fp8ctl ---


class Trainer:
    """A daemon, and a folder for what comes back."""

    def __init__(self, tap, numbers, daemon, folder):
        self.tap, self.numbers, self.daemon, self.folder = tap, numbers, daemon, folder

    def file(self, name):
        return os.path.join(self.folder, name)

    def load(self, name="f32", frozen=True):
        """Model m anew, with scales that stay 1."""
        self.daemon.must("load", "m", self.file(name))
        if frozen:
            self.daemon.must("scaling", "m", "--freeze")

    def optimizer(self, *options):
        return json.loads(self.daemon.must("--json", "optimizer", "m", *options))

    def batch(self, *lines):
        out = self.daemon.must("--json", "batch", "-", stdin="\n".join(lines) + "\n")
        return [json.loads(row) for row in out.splitlines()]

    def microbatch(self, i, layer="a", g=None):
        data = self.file("data")
        return (f"forward m/{layer} --mode train --context 1 --input {data}:x{i}",
                f"backward 1 --no-grad-input --grad-output {data}:{g or f'g{i}'}")

    def step(self, n, *lines, more=""):
        """What a step says that follows these lines."""
        return self.batch(*lines, f"step m --step {n} {more}")[-1]

    def weights(self, model="m"):
        self.daemon.must("save", model, self.file("saved"))
        return read_tensors(self.file("saved"))

    def exact(self, name, want):
        got, np = self.weights(), self.numbers.np
        self.tap.is_(name, all(np.array_equal(got[k].astype(float), w) for k, w in want.items()),
                     {k: np.abs(got[k].astype(float) - w).max() for k, w in want.items()})

    def refused(self, name, code, words, *args):
        got, out, err = self.daemon.ctl("--json", *args)
        error = json.loads(out).get("error", {}) if out else {}
        self.tap.is_(name, got == 1 and error.get("code") == code and
                     all(w in error["message"] for w in words), f"{got}\n{out}\n{err}")


# --- cases ---


def sgd(t):
    """Rate 1 takes the gradient off; with momentum a half of the last move is added."""
    n, np = t.numbers, t.numbers.np
    t.load()
    got = t.optimizer("--kind", "sgd", "--rate", "1", "--freeze", "b")
    t.tap.is_("optimizer: keys as documented",
              set(got) == OPTIMIZER_KEYS and
              (got["kind"], got["updates"], got["next_step"]) == ("sgd", 0, 1), got)
    one, two = n.gradient(0), n.gradient(1)
    got = t.step(1, *t.microbatch(0), *t.microbatch(1), *t.microbatch(2, "b"))
    total = {k: one[k] + two[k] for k in one}
    t.tap.is_("step: keys as documented, one of the two layers is frozen",
              set(got) == STEP_KEYS and got["outcome"] == "applied" and got["layers"] == 1 and
              (got["step"], got["next_step"], got["updates"]) == (1, 2, 1) and
              (got["problems"], got["problems_total"], got["clip"]) == ([], 0, 1), got)
    t.tap.is_("the norm is over weight and bias",
              abs(got["grad_norm"] / n.norm(*total.values()) - 1) < 1e-8, got)
    w, b = n.w["a"] - total["weight"], n.bias - total["bias"]
    t.exact("SGD, two microbatches: exact; the frozen layer stays",
            {"a.weight": w, "a.bias": b, "b.weight": n.w["b"]})
    t.refused("the gradient of the frozen layer is forgotten, too", "FAILED_PRECONDITION", [],
              "gradient", "m/b")
    t.optimizer("--kind", "sgd", "--rate", "0.5", "--momentum", "0.5")
    move = {k: np.zeros_like(v) for k, v in one.items()}
    for i in range(3):
        t.step(2 + i, *t.microbatch(i))
        move = {k: 0.5 * move[k] + v for k, v in n.gradient(i).items()}
        w, b = w - 0.5 * move["weight"], b - 0.5 * move["bias"]
    t.exact("SGD with momentum, three steps: exact", {"a.weight": w, "a.bias": b})


def masters(t):
    """Moves too small for BF16 add up in the master."""
    n = t.numbers
    t.load("bf16")
    t.optimizer("--kind", "sgd", "--rate", str(2.0**-12))
    for i in range(12):
        t.step(1 + i, *t.microbatch(3))
    moved = {k: 12 * 2.0**-12 * v for k, v in n.gradient(3).items()}
    want = {"a.weight": n.w["a"] - moved["weight"], "a.bias": n.bias - moved["bias"]}
    t.exact("a BF16 weight is its float32 master, rounded to nearest",
            {k: v.astype(n.ml.bfloat16).astype(float) for k, v in want.items()})


def adam(t, kind):
    """Ten steps, with decay, a loss scale and two microbatches each."""
    n, np = t.numbers, t.numbers.np
    t.load()
    t.optimizer("--kind", kind, "--rate", "0.01", "--beta2", "0.99", "--eps", "1e-6",
                "--weight-decay", "0.1")
    twins = {f"a.{part}": Adam(np, w, 0.01, 0.1, kind == "adamw")
             for part, w in (("weight", n.w["a"]), ("bias", n.bias))}
    for i in range(10):
        first, second = i % MICROBATCHES, (i + 3) % MICROBATCHES
        got = t.step(1 + i, *t.microbatch(first), *t.microbatch(second), more="--loss-scale 1024")
        for name, twin in twins.items():
            part = name[2:]
            twin.step((n.gradient(first)[part] + n.gradient(second)[part]) / 1024)
    got = t.weights()
    worst = max(np.abs(got[name].astype(float) - twin.w).max() for name, twin in twins.items())
    print(f"# {kind}: {worst:.3g}", flush=True)
    t.tap.is_(f"{kind}, ten steps: within 1e-6 of float64", worst < 1e-6, worst)


def resumed(t):
    """Saved amid Adam, read by numpy, loaded over itself: the next steps go on; left out: they begin."""
    n, np = t.numbers, t.numbers.np
    t.load()
    t.optimizer("--kind", "adam", "--rate", "0.01", "--beta2", "0.99", "--eps", "1e-6",
                "--weight-decay", "0.1")
    twin = Adam(np, n.w["a"], 0.01, 0.1, False)

    def step(i):
        twin.step(n.gradient(i % MICROBATCHES)["weight"])
        return t.step(1 + i, *t.microbatch(i % MICROBATCHES))

    for i in range(4):
        step(i)
    t.batch(*t.microbatch(1))
    saved = t.weights()
    off = {k: np.abs(saved[f"a.fp8d.optimizer.weight_{k}"] - x).max() / np.abs(x).max() for k, x in
           (("m", twin.m), ("v", twin.v))}
    t.tap.is_("moments in the file: four roundings a step from float64",
              max(off.values()) < 4 * 4 * 2.0**-24, off)
    t.tap.is_("the gradient in the file: exact",
              np.array_equal(saved["a.fp8d.gradient.weight"].astype(float), n.gradient(1)["weight"]))
    out = t.daemon.must("load", "m", t.file("saved"))
    t.tap.is_("the report says what goes on", "optimizer adam goes on after step 4" in out and
              "gradients of 1 layer wait for a step" in out, out)
    twin.step(n.gradient(1)["weight"])
    got = t.step(5)
    t.tap.is_("the next step takes the gradient of the file",
              (got["outcome"], got["updates"], got["next_step"]) == ("applied", 5, 6), got)
    got = t.step(5)
    t.tap.is_("and its number is taken", got["outcome"] == "repeated", got)
    for i in range(5, 8):
        step(i)
    worst = np.abs(t.weights()["a.weight"].astype(float) - twin.w).max()
    t.tap.is_("eight steps over a save and a load: within 1e-6 of float64", worst < 1e-6, worst)
    t.daemon.must("save", "m", t.file("weights"), "--no-optimizer")
    names = set(read_tensors(t.file("weights")))
    t.tap.is_("save --no-optimizer: weights and scaling state alone",
              {"a.weight", "a.bias", "a.fp8d.input.scaling"} <= names and
              not any(".optimizer." in k or ".gradient." in k for k in names), names)
    t.batch(*t.microbatch(1))
    t.daemon.must("save", "m", t.file("saved"))
    out = t.daemon.must("load", "m", t.file("saved"), "--no-optimizer")
    t.tap.is_("load --no-optimizer: said in the report",
              "the optimizer and gradients of the file were left out" in out, out)
    t.refused("and there is no optimizer", "FAILED_PRECONDITION", ["no optimizer"], "step", "m",
              "--step", "1")


def shown(t):
    """What is set, what is due, and what layers have of their own or hold."""
    t.load()
    got = json.loads(t.daemon.must("--json", "optimizer", "m"))
    t.tap.is_("no optimizer: keys as documented, nulls",
              set(got) == SHOWN_KEYS and got["kind"] is None and got["next_step"] is None and
              [layer["name"] for layer in got["layers"]] == ["a", "b"], got)
    _, out, _ = t.daemon.ctl("optimizer", "m")
    t.tap.is_("no optimizer, for people", out == "optimizer of m: none\n", out)
    t.optimizer("--kind", "sgd", "--rate", "0.25", "--momentum", "0.5", "--freeze", "b")
    t.step(1, *t.microbatch(0))
    t.batch(*t.microbatch(0), *t.microbatch(1))
    got = json.loads(t.daemon.must("--json", "optimizer", "m"))
    a, b = got["layers"]
    t.tap.is_("options, counts, and each layer's",
              (got["kind"], got["rate"], got["momentum"], got["nesterov"], got["weight_decay"]) ==
              ("sgd", 0.25, 0.5, False, 0) and (got["updates"], got["next_step"]) == (1, 2) and
              a == {"name": "a", "frozen": False, "rate": None, "weight_decay": None,
                    "gradients": 2} and b["frozen"] and b["gradients"] == 0, got)
    _, out, _ = t.daemon.ctl("optimizer", "m")
    t.tap.is_("options, counts, and each layer's, for people", out.split() == (
        "optimizer of m: sgd; 1 updates so far, next step 2 rate 0.25 momentum 0.5, dampening 0 decay 0 "
        "LAYER STEPS RATE DECAY GRADIENTS a moves - - 2 b frozen - - 0").split(), out)
    t.refused("of a model that is not there", "NOT_FOUND", ["nobody"], "optimizer", "nobody")
    t.optimizer("--kind", "sgd", "--rate", "1", "--layer-rate", "a=0.5", "--freeze", "b",
                "--layer-decay", "b=0", "--layer-decay", "a=0.125")
    rows = json.loads(t.daemon.must("--json", "optimizer", "m"))["layers"]
    t.tap.is_("rates and decays of layers", [(r["frozen"], r["rate"], r["weight_decay"]) for r in rows] ==
              [(False, 0.5, 0.125), (True, None, 0)], rows)
    t.refused("a rate that is given twice", "INVALID_ARGUMENT", ["a is there twice"], "optimizer", "m",
              "--kind", "sgd", "--layer-rate", "a=1", "--layer-rate", "a=2")
    t.refused("a layer that is not there", "NOT_FOUND", ["nobody"], "optimizer", "m", "--kind", "sgd",
              "--layer-decay", "nobody=1")
    t.optimizer("--kind", "adamw")
    got = json.loads(t.daemon.must("--json", "optimizer", "m"))
    t.tap.is_("defaults are filled in", [got[k] for k in ("rate", "beta1", "beta2", "eps", "weight_decay")]
              == [0.001, 0.9, 0.999, 1e-8, 0.01] and not got["layers"][1]["frozen"], got)


def once(t):
    """The number of a step makes it happen once, and in order."""
    n = t.numbers
    t.load()
    t.refused("no optimizer: no step", "FAILED_PRECONDITION", ["no optimizer"], "step", "m",
              "--step", "1")
    t.optimizer("--kind", "sgd", "--rate", "1")
    t.refused("no gradient: no step", "FAILED_PRECONDITION", ["holds a gradient"], "step", "m",
              "--step", "1")
    t.batch(*t.microbatch(0))
    t.refused("a number ahead is refused with the one needed", "FAILED_PRECONDITION",
              ["step is 2, needed 1"], "step", "m", "--step", "2")
    t.step(1)
    t.batch(*t.microbatch(1))
    got = t.step(1)
    t.tap.is_("the last number again, on another connection: repeated",
              got["outcome"] == "repeated" and (got["step"], got["next_step"]) == (1, 2) and
              got["updates"] == 1 and got["grad_norm"] is None and got["clip"] is None, got)
    after = {"a.weight": n.w["a"] - n.gradient(0)["weight"]}
    t.exact("it was not taken twice", after)
    _, out, _ = t.daemon.ctl("step", "m", "--step", "1")
    t.tap.is_("what people read of it", out == "step     1 repeated: it was taken before, nothing "
              "was done now\nupdates  1, next step 2\n", out)
    _, out, _ = t.daemon.ctl("step", "m", "--step", "2", "--max-norm", "1")
    t.tap.is_("the gradient of before the repetition is still there: what people read of a step",
              out.startswith("step     2 applied: 1 layer\nnorm     ") and
              ", gradients clipped by 0.0" in out and out.endswith("\nupdates  2, next step 3\n"),
              out)
    t.refused("an older number is refused", "FAILED_PRECONDITION", ["step is 1, needed 3"], "step",
              "m", "--step", "1")
    got = t.optimizer("--kind", "sgd")
    t.tap.is_("the same kind again: updates and steps go on",
              (got["updates"], got["next_step"]) == (2, 3), got)
    got = t.optimizer("--kind", "adam")
    t.tap.is_("another kind: updates count from 0, steps go on",
              (got["updates"], got["next_step"]) == (0, 3), got)
    t.refused("a layer that is not there", "NOT_FOUND", ["nobody"], "optimizer", "m", "--kind",
              "sgd", "--freeze", "nobody")
    t.refused("a layer that is named twice", "INVALID_ARGUMENT", ["twice"], "optimizer", "m",
              "--kind", "sgd", "--freeze", "a", "--freeze", "a")
    t.refused("a model that is not there", "NOT_FOUND", ["nobody"], "step", "nobody", "--step", "1")


def skipped(t):
    """Inf and NaN anywhere: nothing moves, all is said, exit code 0."""
    n = t.numbers
    t.load()
    t.optimizer("--kind", "sgd", "--rate", "1")
    got = t.step(1, *t.microbatch(0, "b"), *t.microbatch(0, "a", "odd"))
    where = [(p["layer"], p["tensor"], p["nonfinite"]) for p in got["problems"]]
    t.tap.is_("skipped: where, and how many elements",
              got["outcome"] == "skipped" and (got["updates"], got["next_step"]) == (0, 2) and
              where == [("a", "weight", INS), ("a", "bias", 1), ("a", "grad_output", 2)] and
              got["problems_total"] == 3 and got["layers"] == 0, got)
    t.exact("no weight moved, of the other layer neither",
            {"a.weight": n.w["a"], "a.bias": n.bias, "b.weight": n.w["b"]})
    for layer in "ab":
        t.refused(f"the gradient of {layer} is forgotten", "FAILED_PRECONDITION", ["gradient"],
                  "gradient", f"m/{layer}")
    t.tap.is_("a skipped step can be repeated", t.step(1)["outcome"] == "repeated")
    t.step(2, *t.microbatch(0))
    t.exact("the next step works", {"a.weight": n.w["a"] - n.gradient(0)["weight"]})
    many_problems(t)


def many_problems(t):
    t.load("many")
    t.optimizer("--kind", "adam")
    lines = [line for i in range(PLACES) for line in t.microbatch(0, f"l{i}", "odd")]
    code, out, err = t.daemon.ctl("batch", "-", stdin="\n".join([*lines, "step m --step 1"]) + "\n")
    total = 3 * PLACES
    t.tap.is_("what people read of a skipped step, exit code 0", code == 0 and
              f"step     1 SKIPPED: gradients are not finite in {total} places" in out and
              out.count("\nproblem  l") == LISTED and
              f"\nproblem  ... and {total - LISTED} more\n" in out and
              out.endswith("updates  0, next step 2\n"), f"{code}\n{out}\n{err}")


def clipped(t):
    """To the global norm of both layers, after the loss scale."""
    n, np = t.numbers, t.numbers.np
    t.load()
    t.optimizer("--kind", "sgd", "--rate", "1")
    got = t.step(1, *t.microbatch(0), *t.microbatch(1, "b"), more="--loss-scale 4 --max-norm 0.5")
    a, b = n.gradient(0), n.gradient(1)["weight"]
    norm = n.norm(a["weight"], a["bias"], b) / 4
    clip = 0.5 / (norm + 1e-6)
    t.tap.is_("norm and factor", abs(got["grad_norm"] / norm - 1) < 1e-8 and
              abs(got["clip"] / clip - 1) < 1e-8, got)
    now = t.weights()
    moved = [(n.w["a"], a["weight"], "a.weight"), (n.bias, a["bias"], "a.bias"),
             (n.w["b"], b, "b.weight")]
    worst = max(np.abs(now[name] - (old - g * clip / 4)).max() for old, g, name in moved)
    t.tap.is_("what was taken off has the norm asked for", worst < 2e-7, worst)
    got = t.step(2, *t.microbatch(0), more="--max-norm 1e9")
    t.tap.is_("a norm below the limit is left alone", got["clip"] == 1, got)


def state(t):
    """The step after a scope: another version, a training copy of it, its maximum in row 0."""
    np = t.numbers.np
    t.load(frozen=False)
    t.optimizer("--kind", "sgd", "--rate", "0.125")
    t.batch("scope begin m", *t.microbatch(0), "scope end m")
    before = t.daemon.scaling("m")["layers"]["a"]
    got = t.step(1)
    after = t.daemon.scaling("m")["layers"]["a"]
    t.tap.is_("the weight version goes up, the training copy is of it",
              got["weight_version"] == before["weight_version"] + 1 ==
              after["weight_version"] == after["cached_version"], [before, after])
    site = after["tensors"]["weight"]
    top = np.abs(t.weights()["a.weight"]).max()
    t.tap.is_("the new maximum waits in row 0 of the weight's site; no scale moved",
              site["collecting"] == top and
              all(site[k] == before["tensors"]["weight"][k] for k in ("scale", "updates")), site)
    forward = t.batch("scope begin m", *t.microbatch(0), "scope end m")[1]
    site = t.daemon.scaling("m")["layers"]["a"]["tensors"]["weight"]
    t.tap.is_("the next forward reuses the copy; the end of its scope takes the maximum",
              forward["weight_copy"] == "reused" and site["amax_last"] == top, [forward, site])


def run(tap, numbers):
    with tempfile.TemporaryDirectory() as folder:
        numbers.write(folder)
        t = Trainer(tap, numbers, Daemon(folder).start(), folder)
        try:
            sgd(t)
            masters(t)
            adam(t, "adam")
            adam(t, "adamw")
            resumed(t)
            shown(t)
            once(t)
            skipped(t)
            clipped(t)
            state(t)
        except RuntimeError as e:
            tap.is_("every command could run", False, e)
        finally:
            tap.is_("the daemon stops clean", t.daemon.stop() == 0)


if __name__ == "__main__":
    sys.exit(with_numpy(lambda tap, np, ml: run(tap, Numbers(np, ml))))
