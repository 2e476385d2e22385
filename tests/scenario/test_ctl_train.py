#!/usr/bin/env python3
"""fp8ctl trains: contexts, backward, gradients, against numpy in float64. TAP.

What must come out is computed from the same operands, cast to FP8 by ml_dtypes with the scales that
the replies report: docs/numerics.md 1 and 5. The bounds are those of the CPU backend. Needs numpy and
ml_dtypes.
"""
import json
import os
import subprocess
import sys
import tempfile

from ctl_rig import Daemon, read_tensors, write_tensors, with_numpy

OUTS, INS, TOKENS = 48, 32, 24
SHAPE = [2, 12]  # of the tokens: more than one dimension
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}

CAST_KEYS = {"format", "scale", "scale_inv", "amax", "saturated", "flushed", "nonfinite",
             "uncalibrated"}
TENSOR_KEYS = {"dtype", "shape", "max_abs", "nonfinite", "file"}
BACKWARD_KEYS = {"fp8ctl_json", "context", "incarnation", "weight_version", "grad_input", "casts",
                 "accumulated", "dropped", "scales_applied", "queue_us", "run_us"}
GRADIENT_KEYS = {"fp8ctl_json", "model", "layer", "incarnation", "weight_version", "part",
                 "gradient", "contributions", "grad_output_nonfinite"}

# --- what must come out ---


class Numbers:
    """The tensors of the test in BF16, and what follows from them in float64."""

    def __init__(self, np, ml_dtypes):
        self.np, self.ml = np, ml_dtypes
        rng = np.random.default_rng(1)

        def draw(scale, *shape):
            return (scale * rng.standard_normal(shape)).astype(ml_dtypes.bfloat16)

        self.w, self.other_w = draw(0.2, OUTS, INS), draw(0.2, OUTS, INS)
        self.bias = draw(1, OUTS)
        self.plain = draw(0.2, INS, OUTS)  # a layer without bias
        self.x = [draw(2.0 * (i + 1), TOKENS, INS) for i in range(3)]
        self.g = [draw(1e-3 * (i + 1), TOKENS, OUTS) for i in range(3)]
        self.odd = self.g[0].copy()
        self.odd[4, 3], self.odd[7, 5] = np.nan, np.inf

    def write(self, folder):
        """The files model and data; returns a function from a name in data to FILE:TENSOR."""
        write_tensors(os.path.join(folder, "model"), {
            "a.weight": ([OUTS, INS], self.w.tobytes()), "a.bias": ([OUTS], self.bias.tobytes()),
            "b.weight": ([INS, OUTS], self.plain.tobytes())})
        data = {"other_w": ([OUTS, INS], self.other_w.tobytes()),
                "odd": (SHAPE + [OUTS], self.odd.tobytes()),
                "short": ([TOKENS - 1, OUTS], self.g[0][1:].tobytes()),
                "flat": ([TOKENS, OUTS], self.g[0].tobytes()),
                "narrow": (SHAPE + [INS], self.x[0].tobytes())}
        for i in range(3):
            data[f"x{i}"] = (SHAPE + [INS], self.x[i].tobytes())
            data[f"g{i}"] = (SHAPE + [OUTS], self.g[i].tobytes())
        path = os.path.join(folder, "data")
        write_tensors(path, data)
        return lambda name: f"{path}:{name}"

    def cast(self, x, made):
        """As FP8 with the factors of a reply's cast, back in float64."""
        np, top = self.np, LARGEST[made["format"]]
        code = {"e4m3": self.ml.float8_e4m3fn, "e5m2": self.ml.float8_e5m2}[made["format"]]
        v = x.astype(np.float32) * np.float32(made["scale"])
        return (np.clip(v, -top, top).astype(code).astype(np.float64) *
                np.float64(np.float32(made["scale_inv"])))

    def product(self, a, b):
        """a b, and what float32 sums and the roundings behind them may be off."""
        np = self.np
        want = a @ b
        bound = (a.shape[1] + 2) * 2.0**-24 * (np.abs(a) @ np.abs(b)) + 2.0**-22 * np.abs(want)
        return want, bound + 2.0**-149

    def dgrad(self, g, w, forward, backward):
        return self.product(self.cast(g, backward["casts"]["grad_output"]),
                            self.cast(w, forward["casts"]["weight"]))

    def wgrad(self, g, x, forward, backward):
        return self.product(self.cast(g, backward["casts"]["grad_output"]).T,
                            self.cast(x, forward["casts"]["input"]))

    def bgrad(self, g):
        """Column sums of grad_output as it came: nothing was cast."""
        np = self.np
        wide = g.astype(np.float64)
        return wide.sum(0), (len(g) + 2) * 2.0**-24 * np.abs(wide).sum(0)

    def total(self, *parts):
        """The sum of gradients, each added in float32."""
        want = sum(p[0] for p in parts)
        magnitude = sum(self.np.abs(p[0]) for p in parts)
        return want, sum(p[1] for p in parts) + len(parts) * 2.0**-24 * magnitude

    def to_bf16(self, part):
        return part[0], part[1] + 2.0**-8 * self.np.abs(part[0])

    def amax(self, *tensors):
        return max(float(self.np.abs(t.astype(self.np.float32)).max()) for t in tensors)


# --- fp8ctl ---


class Trainer:
    """A daemon, and a folder for what comes back."""

    def __init__(self, tap, numbers, daemon, folder, at):
        self.tap, self.numbers, self.daemon, self.folder, self.at = tap, numbers, daemon, folder, at

    def load(self, *options):
        self.daemon.must("load", "m", os.path.join(self.folder, "model"), "--amax-history-len", "4",
                         *options)

    def file(self, name):
        return os.path.join(self.folder, name)

    def tensor(self, name, key):
        return read_tensors(self.file(name))[key]

    def batch(self, name, *lines):
        """One object for each line; a case that fails where the batch does."""
        code, out, err = self.daemon.ctl("--json", "batch", "-", stdin="\n".join(lines) + "\n")
        rows = [json.loads(row) for row in out.splitlines()]
        self.tap.is_(f"{name}: the batch runs", code == 0 and len(rows) == len(lines),
                     f"{code}\n{err}")
        if code:
            raise RuntimeError(f"{name} cannot go on")
        return rows

    def refused(self, name, code, words, *lines):
        """The batch ends at its last line, with this code and these words in the sentence."""
        got, out, err = self.daemon.ctl("--json", "batch", "-", stdin="\n".join(lines) + "\n")
        rows = [json.loads(row) for row in out.splitlines()]
        error = rows[-1].get("error", {}) if rows else {}
        self.tap.is_(name, got == 1 and len(rows) == len(lines) and error.get("code") == code and
                     all(w in error["message"] for w in words), f"{got}\n{out}\n{err}")

    def near(self, name, got, expected):
        np = self.numbers.np
        want, bound = expected
        worst = (np.abs(got.astype(np.float64).reshape(want.shape) - want) / bound).max()
        print(f"# {name}: {worst:.3f} of the bound", flush=True)
        self.tap.is_(name, worst <= 1, worst)

    def forward(self, x, context, more=""):
        return f"forward m/a --mode train --input {self.at(x)} --context {context} {more}"

    def backward(self, g, context, more=""):
        return f"backward {context} --grad-output {self.at(g)} {more}"


# --- cases ---


def nothing_held(t):
    t.load()
    t.refused("a layer that saw no backward has no gradient", "FAILED_PRECONDITION", ["gradient"],
              "gradient m/a")
    [row] = t.batch("zero-grad of nothing", "zero-grad m")
    t.tap.is_("zero-grad of nothing: keys, no layer",
              set(row) == {"fp8ctl_json", "model", "incarnation", "weight_version", "layers"} and
              (row["model"], row["layers"]) == ("m", 0), row)


def accumulate(t):
    """Two contexts, used in the other order; scales move in between."""
    n = t.numbers
    rows = t.batch(
        "two microbatches",
        t.forward("x0", 1, "--first-microbatch yes"), t.forward("x1", 2, "--first-microbatch no"),
        t.backward("g1", 2, f"--output {t.file('dx1')} --output-dtype f32"),
        f"gradient m/a --output {t.file('dw1')}", f"gradient m/a --bias --output {t.file('db1')}",
        t.backward("g0", 1, f"--output {t.file('dx0')}"),
        f"gradient m/a --output {t.file('dw')}", f"gradient m/a --bias --output {t.file('db')}")
    first, second, back1, held1, bias1, back0, held, bias = rows
    keys_and_words(t, first, back1, held)
    t.near("grad_input in F32", t.tensor("dx1", "grad_input"), n.dgrad(n.g[1], n.w, second, back1))
    t.near("grad_input in BF16, of the earlier context", t.tensor("dx0", "grad_input"),
           n.to_bf16(n.dgrad(n.g[0], n.w, first, back0)))
    part1, part0 = n.wgrad(n.g[1], n.x[1], second, back1), n.wgrad(n.g[0], n.x[0], first, back0)
    t.near("the first backward's weight gradient", t.tensor("dw1", "gradient"), part1)
    t.near("the second adds to it", t.tensor("dw", "gradient"), n.total(part1, part0))
    t.near("the first backward's bias gradient", t.tensor("db1", "gradient"), n.bgrad(n.g[1]))
    t.near("the second adds to it, too", t.tensor("db", "gradient"),
           n.total(n.bgrad(n.g[1]), n.bgrad(n.g[0])))
    t.tap.is_("each backward says whether it added, and counts",
              (back1["accumulated"], back0["accumulated"]) == (False, True) and
              [r["contributions"] for r in (held1, bias1, held, bias)] == [1, 1, 2, 2], rows)
    scales(t, back1, back0)


def keys_and_words(t, forward, backward, gradient):
    t.tap.is_("forward: the context it kept", forward["context"] == 1, forward)
    t.tap.is_("backward: keys as documented",
              set(backward) == BACKWARD_KEYS and set(backward["grad_input"]) == TENSOR_KEYS and
              set(backward["casts"]) == {"grad_output"} and
              set(backward["casts"]["grad_output"]) == CAST_KEYS, backward)
    t.tap.is_("backward: the context, and the input's dimensions",
              backward["context"] == 2 and backward["grad_input"]["shape"] == SHAPE + [INS] and
              backward["grad_input"]["dtype"] == "F32", backward)
    t.tap.is_("gradient: keys as documented",
              set(gradient) == GRADIENT_KEYS and
              set(gradient["gradient"]) == TENSOR_KEYS | {"norm"}, gradient)
    np, dw = t.numbers.np, t.tensor("dw", "gradient")
    shown = gradient["gradient"]
    t.tap.is_("gradient: shape, dtype, max and norm are those of the file",
              (shown["shape"], shown["dtype"], gradient["part"]) ==
              ([OUTS, INS], "F32", "weight") and
              np.float32(shown["max_abs"]) == np.abs(dw).max() and
              abs(shown["norm"] / np.linalg.norm(dw.astype(np.float64)) - 1) < 1e-8, gradient)


def scales(t, back1, back0):
    """The site grad_output: E5M2, scale 1 at first, then from the largest |g| so far."""
    n, np = t.numbers, t.numbers.np
    casts = [b["casts"]["grad_output"] for b in (back1, back0)]
    moved = np.float32(57344) / np.float32(n.amax(n.g[1]))
    t.tap.is_("grad_output is cast to E5M2, with scale 1, then with that of the first maximum",
              [c["format"] for c in casts] == ["e5m2", "e5m2"] and casts[0]["scale"] == 1 and
              np.float32(casts[1]["scale"]) == moved and
              all(b["scales_applied"] for b in (back1, back0)), casts)
    site = t.daemon.scaling("m")["layers"]["a"]["tensors"]["grad_output"]
    want = np.float32(57344) / np.float32(n.amax(n.g[0], n.g[1]))
    t.tap.is_("its site has both maxima in its history, and the scale of the larger",
              site["set"] and np.float32(site["scale"]) == want and site["updates"] == 2 and
              [np.float32(h) for h in site["history"]] == [n.amax(n.g[0]), n.amax(n.g[1]), 0], site)


def recipes(t):
    """Random gradients of each format and kind of recipe, of layers with high-precision and FP8 weights,
    in the second step of each, when the scales have moved: within the bound of float32 sums."""
    n = t.numbers
    for words, wide, narrow in (("--fp8-format e4m3", "e4m3", "e4m3"),
                                ("--fp8-format hybrid --primary-fp8", "e4m3", "e5m2"),
                                ("--recipe current", "e4m3", "e5m2"),
                                ("--recipe current --fp8-format e4m3 --primary-fp8", "e4m3", "e4m3")):
        t.load(*words.split())
        rows = t.batch(words, t.forward("x1", 1), t.backward("g1", 1), "zero-grad m",
                       t.forward("x0", 2), t.backward("g0", 2, f"--output {t.file('dx')} --output-dtype f32"),
                       f"gradient m/a --output {t.file('dw')}")
        forward, back = rows[3], rows[4]
        casts = [forward["casts"]["input"], forward["casts"]["weight"], back["casts"]["grad_output"]]
        t.tap.is_(f"{words}: formats of the casts", [c["format"] for c in casts] == [wide, wide, narrow] and
                  all(c["scale"] != 1 for c in casts), casts)
        t.near(f"{words}: grad_input", t.tensor("dx", "grad_input"), n.dgrad(n.g[0], n.w, forward, back))
        t.near(f"{words}: the weight's gradient", t.tensor("dw", "gradient"),
               n.wgrad(n.g[0], n.x[0], forward, back))
    t.load()


def overwrite(t):
    """zero-grad, then a backward: nothing of before is left."""
    n = t.numbers
    zeroed, forward, back, held = t.batch(
        "zero-grad", "zero-grad m", t.forward("x2", 1), t.backward("g2", 1, "--no-grad-input"),
        f"gradient m/a --output {t.file('dw2')}")
    t.tap.is_("zero-grad counts the layers that held a gradient", zeroed["layers"] == 1, zeroed)
    t.tap.is_("the backward behind it overwrites, and makes no grad_input if none is asked for",
              not back["accumulated"] and back["grad_input"] is None and
              held["contributions"] == 1, [back, held])
    t.near("the gradient is that of the last backward alone", t.tensor("dw2", "gradient"),
           n.wgrad(n.g[2], n.x[2], forward, back))
    _, out, _ = t.daemon.ctl("gradient", "m/a")
    t.tap.is_("what people read", out.startswith(f"weight   F32 [{OUTS}, {INS}], max|g| ") and
              "\nnorm     " in out and out.endswith("\nsum of   1 backward request\n"), out)
    t.batch("zero-grad at the end", "zero-grad m")
    t.refused("after zero-grad there is no gradient", "FAILED_PRECONDITION", ["gradient"],
              "gradient m/a")


def old_weight(t):
    """An edit between forward and backward does not reach the context."""
    n = t.numbers
    forward, _, back = t.batch(
        "an edit in between", t.forward("x0", 1), f"set-weight m/a --input {t.at('other_w')}",
        t.backward("g0", 1, f"--output {t.file('dx')} --output-dtype f32"))
    t.near("grad_input is that of the weight that was multiplied", t.tensor("dx", "grad_input"),
           n.dgrad(n.g[0], n.w, forward, back))


def recompute(t):
    """The forward's output again, though scale and weight moved; the context stays."""
    forward, _, _, again, wide, back = t.batch(
        "recompute", t.forward("x0", 1, f"--output {t.file('y')}"), t.forward("x2", 2),
        f"set-weight m/a --input {t.at('other_w')}", f"recompute 1 --output {t.file('y1')}",
        "recompute 1 --output-dtype f32", t.backward("g0", 1, "--no-grad-input"))
    t.tap.is_("recompute: keys as documented",
              set(again) == {"fp8ctl_json", "context", "incarnation", "weight_version", "output",
                             "queue_us", "run_us"} and set(again["output"]) == TENSOR_KEYS, again)
    t.tap.is_("recompute: the bits and the version of the forward",
              t.tensor("y", "output").tobytes() == t.tensor("y1", "output").tobytes() and
              (again["context"], again["weight_version"]) == (1, forward["weight_version"]), again)
    t.tap.is_("recompute: another dtype if asked; the context is still there",
              wide["output"]["dtype"] == "F32" and wide["output"]["shape"] == SHAPE + [OUTS] and
              back["context"] == 1, [wide, back])
    t.refused("recompute of a context that was used", "NOT_FOUND", ["context_id 1"],
              t.forward("x0", 1), t.backward("g0", 1), "recompute 1")
    _, out, _ = t.daemon.ctl("batch", "-", stdin=t.forward("x0", 1) + "\nrecompute 1\n")
    t.tap.is_("what people read of it", f"\noutput BF16 [2, 12, {OUTS}], max|y| " in out, out)


def scope(t):
    t.load()
    rows = t.batch("a scope", "scope begin m", t.forward("x0", 1), t.backward("g0", 1),
                   t.forward("x1", 2), t.backward("g1", 2), "scope end m")
    t.tap.is_("in a scope no backward moves a scale; its end moves three sites, once each",
              not rows[2]["scales_applied"] and not rows[4]["scales_applied"] and
              rows[4]["casts"]["grad_output"]["scale"] == 1 and
              rows[5]["sites_updated"] == 3, rows)
    site = t.daemon.scaling("m")["layers"]["a"]["tensors"]["grad_output"]
    t.tap.is_("what the site took is the larger maximum of the two",
              site["updates"] == 1 and
              t.numbers.np.float32(site["amax_last"]) == t.numbers.amax(*t.numbers.g[:2]), site)


def odd_numbers(t):
    """A NaN stays one, an infinity is cut off by the cast; both are counted."""
    _, _, back, weight, bias = t.batch(
        "NaN and Inf", "zero-grad m", t.forward("x0", 1), t.backward("odd", 1, "--no-grad-input"),
        "gradient m/a", "gradient m/a --bias")
    t.tap.is_("elements of grad_output that are not finite are counted",
              back["casts"]["grad_output"]["nonfinite"] == 2 and
              weight["grad_output_nonfinite"] == bias["grad_output_nonfinite"] == 2, back)
    t.tap.is_("they are in the gradients: a row of the weight's, two elements of the bias'",
              (weight["gradient"]["nonfinite"], bias["gradient"]["nonfinite"]) == (INS, 2),
              [weight, bias])


def gone(t):
    """A model that was replaced since the forward: its gradients went nowhere, and that is said."""
    rows = t.batch("another load in between", t.forward("x0", 1),
                   "load m " + os.path.join(t.folder, "model"), t.backward("g0", 1, "--no-grad-input"))
    t.tap.is_("the gradients of a model that is gone are dropped", rows[2]["dropped"], rows[2])
    lines = [t.forward("x0", 1), "unload m", t.backward("g0", 1, "--no-grad-input")]
    _, out, _ = t.daemon.ctl("batch", "-", stdin="\n".join(lines) + "\n")
    t.tap.is_("and people read it", "gradients  dropped: the model was replaced or unloaded" in out, out)
    t.load()


def output_targets(t):
    """--output takes the place of a regular file alone, and keeps its permissions."""
    y, target = t.file("y2"), f"forward m/a --input {t.at('x0')} --output "
    with open(y, "wb"):
        os.chmod(y, 0o600)
    t.batch("an output over a file", target + y)
    t.tap.is_("an output over a file keeps its permissions", os.stat(y).st_mode & 0o777 == 0o600)
    os.mkfifo(t.file("fifo"))
    t.refused("an output over a pipe", "INVALID_ARGUMENT", ["fifo", "no regular file"],
              target + t.file("fifo"))
    t.refused("an output over a folder", "INVALID_ARGUMENT", ["no regular file"], target + t.folder)
    t.refused("an output in no folder", "ENOENT", ["cannot open the folder "],
              target + t.file("no/y"))
    left = [n for n in os.listdir(t.folder) if n.startswith(".")]
    t.tap.is_("no temporary stays", not left, left)


def refusals(t):
    one = t.forward("x0", 1)
    t.refused("a context that nobody kept", "NOT_FOUND", ["99"], t.backward("g0", 99))
    t.refused("a context that was used", "NOT_FOUND", ["1"], one, t.backward("g0", 1),
              t.backward("g0", 1))
    t.refused("a context that was dropped", "NOT_FOUND", ["1"], one, "drop-context 1",
              t.backward("g0", 1))
    t.refused("a context that is dropped twice", "NOT_FOUND", ["1"], one, "drop-context 1",
              "drop-context 1")
    t.refused("a context number in use", "ALREADY_EXISTS", ["1"], one, one)
    for bad in ("short", "flat", "narrow"):
        t.refused(f"grad_output of other dimensions: {bad}", "INVALID_ARGUMENT", ["grad_output"],
                  one, t.backward(bad, 1))
    t.refused("a layer without bias has no gradient of it", "FAILED_PRECONDITION", ["bias"],
              f"forward m/b --mode train --input {t.at('g0')} --context 1", t.backward("x0", 1),
              "gradient m/b --bias")
    t.refused("no such layer", "NOT_FOUND", [], "gradient m/nobody")
    t.refused("no such model", "NOT_FOUND", [], "zero-grad nobody")
    [_, row] = t.batch("drop-context", one, "drop-context 1")
    t.tap.is_("drop-context: keys as documented", row == {"fp8ctl_json": 1, "dropped": 1}, row)
    code, _, err = t.daemon.ctl(*t.backward("g0", 1).split())
    t.tap.is_("a backward outside a batch finds no context: exit code 1",
              code == 1 and "NOT_FOUND" in err, err)
    _, out, _ = t.daemon.ctl("batch", "-", stdin=one + "\n" + t.backward("g0", 1) + "\n")
    t.tap.is_("what people read of a step", "\ncontext  1\n" in out and
              f"grad_input BF16 [2, 12, {INS}], max|dx| " in out and
              "; own scope ended\n" in out and "grad_output" in out, out)


class Open:
    """A batch that waits for its next line."""

    def __init__(self, daemon):
        self.process = subprocess.Popen(daemon.words("--json", "batch", "-"), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=60)


def other_scope(t):
    trainer, holder = Open(t.daemon), Open(t.daemon)
    trainer.ask(t.forward("x0", 1))
    holder.ask("scope begin m")
    got = trainer.ask(t.backward("g0", 1))
    t.tap.is_("under another connection's scope a backward is refused",
              got.get("error", {}).get("code") == "FAILED_PRECONDITION", got)
    trainer.end()
    holder.end()


def run(tap, numbers):
    with tempfile.TemporaryDirectory() as folder:
        at = numbers.write(folder)
        t = Trainer(tap, numbers, Daemon(folder).start(), folder, at)
        try:
            for case in (nothing_held, accumulate, overwrite, old_weight, recompute, scope, odd_numbers,
                         refusals, recipes, gone, output_targets, other_scope):
                case(t)
        except RuntimeError as e:
            tap.is_("every batch could run", False, e)
        finally:
            tap.is_("the daemon stops clean", t.daemon.stop() == 0)


if __name__ == "__main__":
    sys.exit(with_numpy(lambda tap, np, ml: run(tap, Numbers(np, ml))))
