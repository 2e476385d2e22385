#!/usr/bin/env python3
"""State survives: fp8ctl save and create against a running fp8d, which restarts and dies. TAP."""
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time

from ctl_rig import Daemon, Tap, bf16, model_file, read, write_tensors

TEMPORARY = ".t.safetensors.fp8d-save"
KILLS = 12  # at delays spread over the time that a save takes

tap = Tap()

# --- helpers ---


class Place:
    """A folder with a daemon, a model file, an input, and a folder for targets."""

    def __init__(self, top, layers=3, outs=64, ins=128, limit=None):
        self.top = top
        self.out = os.path.join(top, "out")
        self.model = os.path.join(top, "model.safetensors")
        self.input = os.path.join(top, "x")
        self.target = os.path.join(self.out, "t.safetensors")
        config = os.path.join(top, "conf")
        self.roots = os.path.join(top, "roots")
        os.mkdir(self.out)
        os.mkdir(self.roots)
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"load_roots = {self.roots}\n")
        model_file(self.model, layers, outs, ins)
        write_tensors(self.input, {"x": ([5, ins], bf16(99, 5 * ins))})
        self.daemon = Daemon(top, config, limit).start()

    def load(self, path, *options):
        """As a new model: one that replaces another has a higher weight version."""
        self.daemon.ctl("unload", "m")
        self.daemon.must("load", "m", path, *options)

    def names(self):
        return sorted(os.listdir(self.out))


def step(place, first):
    """A line of a batch: a train forward of each of the first two layers."""
    return "".join(f"forward m/l{i} --mode train --first-microbatch {first} --input {place.input}\n"
                   for i in (0, 1))


def train(place, steps):
    for _ in range(steps):
        place.daemon.must("batch", "-", stdin="scope begin m\n" + step(place, "yes") +
                          step(place, "no") + "scope end m\n")


def drop_override():
    """Root too shall be stopped by permissions: without CAP_DAC_OVERRIDE after the exec."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0 and libc.prctl(24, 1, 0, 0, 0):  # PR_CAPBSET_DROP
        raise OSError(ctypes.get_errno(), "prctl")


# --- cases: resume ---


def resume(place):
    """Calibrated, trained, with one layer unset: after a restart all goes on as before."""
    d = place.daemon
    place.load(place.model, "--amax-history-len", "4", "--margin", "1")
    for layer in ("l0", "l1"):
        d.must("forward", f"m/{layer}", "--mode", "calibrate", "--input", place.input)
    d.must("calibration", "finish", "m")
    train(place, 3)
    code, out, err = d.ctl("save", "m", place.target)
    tap.is_("save: exit code 0, one file", code == 0 and place.names() == ["t.safetensors"],
            err + str(place.names()))
    tap.is_("save: says what it did", out.startswith(f"saved m as {place.target}: "), out)
    before = d.scaling("m")
    y = [d.forward(f"m/l{i}", place.input, place.top) for i in range(3)]
    after_save = d.scaling("m")
    tap.is_("save: the model is as it was", before == after_save)
    tap.is_("the daemon stops cleanly", d.stop() == 0)
    d.start()
    place.load(place.target)
    tap.is_("load after a restart: the scaling state is the same", d.scaling("m") == before,
            f"{before}\n{d.scaling('m')}")
    again = [d.forward(f"m/l{i}", place.input, place.top) for i in range(3)]
    tap.is_("... and so is every byte that eval computes", again == y)
    copy = os.path.join(place.out, "copy.safetensors")
    d.must("save", "m", copy)
    tap.is_("... and so is the next save", read(copy) == read(place.target))
    os.unlink(copy)
    # the same steps from here, in the model that was loaded and in one that never stopped
    train(place, 2)
    went_on = d.scaling("m")
    place.load(place.target)
    train(place, 2)
    tap.is_("... and so are the steps that follow", d.scaling("m") == went_on,
            f"{went_on}\n{d.scaling('m')}")


def unfinished(place):
    d = place.daemon
    place.load(place.model)
    d.must("forward", "m/l0", "--mode", "calibrate", "--input", place.input)
    d.must("save", "m", place.target)
    d.must("calibration", "finish", "m")
    finished = d.scaling("m")
    place.load(place.target)
    shown = json.loads(d.must("--json", "scaling", "m"))
    tap.is_("a calibration that was saved unfinished still is", shown["calibrating"], shown)
    d.must("calibration", "finish", "m")
    tap.is_("... and finishes to the same scales", d.scaling("m") == finished)
    place.load(place.target, "--finish-calibration")
    tap.is_("... or at once, with --finish-calibration", d.scaling("m") == finished)
    os.unlink(place.target)


# --- cases: refusals ---


def refused(place, name, args, says, want=None, **more):
    """This save fails with exit code 1 and a sentence; model, target and folder are unchanged."""
    d = place.daemon
    before, old, names = d.scaling("m"), read(place.target), place.names()
    code, _, err = d.ctl(*args, **more)
    same = d.scaling("m") == before and read(place.target) == old and place.names() == names
    tap.is_(f"{name}: refused, named, nothing changed",
            code == 1 and all(s in err for s in says) and len(err.splitlines()) == (want or 1) and
            same, f"exit code {code}\n{err}{place.names()}")


def refusals(place):
    d = place.daemon
    place.load(place.model)
    d.must("save", "m", place.target)
    refused(place, "no such model", ["save", "nobody", place.target], ["nobody", "NOT_FOUND"])
    refused(place, "no such folder", ["save", "m", place.out + "/none/t"], ["/none", "ENOENT"])
    refused(place, "the target is a folder", ["save", "m", place.out],
            [place.out, "no regular file"])
    refused(place, "a file in place of the folder", ["save", "m", place.target + "/t"],
            ["t.safetensors", "ENOTDIR"])
    refused(place, "a scope is open", ["batch", "-"], ["open scope", "FAILED_PRECONDITION"], 2,
            stdin=f"scope begin m\nsave m {place.target}\n")
    read_only(place)
    full_disk(place)
    server_paths(place)


def read_only(place):
    os.chmod(place.out, 0o555)
    try:
        refused(place, "a read-only folder", ["save", "m", place.target],
                [place.target, "EACCES"], preexec_fn=drop_override)
    finally:
        os.chmod(place.out, 0o755)


def full_disk(place):
    """The folder is a tiny tmpfs, which fp8ctl alone sees: it passes the open file."""
    name = "a full disk"
    small = os.path.join(place.top, "small")
    os.mkdir(small)
    mount = f"mount -t tmpfs -o size=16k none {small}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True,
                      check=False).returncode:
        tap.skip(name, "no tmpfs can be mounted here")
        return
    before = place.daemon.scaling("m")
    script = f'{mount} && echo old >{small}/t && "$@"; code=$?; cat {small}/t; ls -A {small}; exit $code'
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh",
                           *place.daemon.words("save", "m", small + "/t")],
                          capture_output=True, text=True, timeout=60, check=False)
    tap.is_(name + ": refused, named, the old file stays, nothing beside it",
            done.returncode == 1 and "No space left" in done.stderr and done.stdout == "old\nt\n" and
            place.daemon.scaling("m") == before, f"{done.returncode}\n{done.stderr}{done.stdout}")


def server_paths(place):
    d = place.daemon
    for folder in (place.roots, os.path.join(place.roots, "sub")):
        os.makedirs(folder, exist_ok=True)
        inside = os.path.join(folder, "t")
        code, _, err = d.ctl("save", "m", inside, "--server-path")
        tap.is_(f"--server-path in {os.path.basename(folder)}: the same bytes", code == 0 and
                read(inside) == read(place.target) and
                set(os.listdir(folder)) - {"sub"} == {"t"}, err)
    refused(place, "--server-path outside the roots", ["save", "m", place.target, "--server-path"],
            [place.target, "PERMISSION_DENIED"])
    os.symlink(place.out, os.path.join(place.roots, "link"))
    for way in ("/../out/t.safetensors", "/link/t.safetensors"):
        refused(place, f"--server-path {way}", ["save", "m", place.roots + way, "--server-path"],
                [way])


def file_size_limit(top):
    """A daemon that may write 100 KiB to a file."""
    place = Place(top, outs=512, ins=512,
                  limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10)))
    try:
        place.load(place.model)
        with open(place.target, "w", encoding="utf-8") as file:
            file.write("old")
        refused(place, "a file-size limit", ["save", "m", place.target],
                ["t.safetensors", "File too large"])
        refused(place, "a file-size limit at the server",
                ["save", "m", place.roots + "/t", "--server-path"], ["File too large"])
        tap.is_("... where no temporary stays", not os.listdir(place.roots), place.roots)
    finally:
        place.daemon.stop()


# --- cases: kills ---


class Kills:
    """Saves that are killed: two states of a model, and the save that each must give."""

    def __init__(self, place):
        self.place = place
        self.want = []
        self.seen = {"old": 0, "new": 0, "left": 0}
        for margin in (0, 1):
            self.set(margin)
            start = time.monotonic()
            place.daemon.must("save", "m", place.target)
            self.took = time.monotonic() - start
            self.want.append(read(place.target))
        self.now = 1  # what the target has

    def set(self, margin):
        self.place.load(self.place.model, "--margin", str(margin))

    def once(self, delay, client, server):
        """True if the target is the old file or the new one, with at most the one temporary."""
        place, d = self.place, self.place.daemon
        nxt = 1 - self.now
        self.set(nxt)
        process = subprocess.Popen(d.words("save", "m", place.target), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        if client:
            process.kill()
        if server:
            d.kill()
        _, err = process.communicate(timeout=60)
        if server:
            d.start()
        data = read(place.target)
        good = data in self.want and set(place.names()) <= {"t.safetensors", TEMPORARY}
        if not client:  # it knew: a failure is the old file, no temporary, a sentence
            good = good and place.names() == ["t.safetensors"]
            good = good and (data == self.want[nxt]) == (process.returncode == 0)
            good = good and (process.returncode == 0 or
                             process.returncode in (1, 3) and err.startswith("fp8ctl: save: "))
        self.seen["new" if data == self.want[nxt] else "old"] += 1
        self.seen["left"] += TEMPORARY in place.names()
        self.now = nxt if data == self.want[nxt] else self.now
        return good, f"delay {delay:.4f}\n{place.names()}\n{process.returncode} {err}"

    def finish(self):
        """The next save takes the temporary over, once the daemon has let go of it."""
        code, err = 1, ""
        for _ in range(100):
            code, _, err = self.place.daemon.ctl("save", "m", self.place.target)
            if "ABORTED" not in err:
                break
            time.sleep(0.05)
        return code == 0 and self.place.names() == ["t.safetensors"], f"{code} {err}"


def kills(top, name, client, server):
    place = Place(top, layers=4, outs=1024, ins=1280)
    try:
        k = Kills(place)
        bad = []
        for i in range(KILLS):
            good, seen = k.once(1.2 * k.took * i / KILLS, client, server)
            if not good:
                bad.append(seen)
        tap.is_(f"{name}: the target is the old file or the new one, whole", not bad,
                "\n".join(bad))
        print(f"# {len(k.want[0]) >> 20} MiB in {k.took:.3f} s; {k.seen}")
        k.set(1)
        good, seen = k.finish()
        tap.is_(f"{name}: the next save takes over what was left", good and
                read(place.target) == k.want[1], seen)
    finally:
        place.daemon.stop()


def two_at_once(place):
    """Two clients save to one target: each ends well or is told of the other."""
    d = place.daemon
    place.load(place.model)
    d.must("save", "m", place.target)
    want, seen = read(place.target), []

    def save():
        for _ in range(10):
            seen.append(d.ctl("save", "m", place.target))

    threads = [threading.Thread(target=save) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    odd = [s for s in seen if s[0] and "another save to this file" not in s[2]]
    tap.is_("two saves to one target at once: whole, and nothing stays beside it",
            not odd and read(place.target) == want and place.names() == ["t.safetensors"] and
            any(s[0] == 0 for s in seen), f"{odd}\n{place.names()}")


# --- cases: create ---


def write_spec(place, **members):
    path = os.path.join(place.top, "spec.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(members, file)
    return path


def create(place):
    d = place.daemon
    layers = [{"name": f"l{i}", "weight": f"model.safetensors:l{i}.weight",
               "bias": f"model.safetensors:l{i}.bias"} for i in range(3)]
    recipe = {"kind": "delayed", "fp8_format": "e4m3", "amax_algo": "most_recent",
              "amax_history_len": 7, "margin": 2, "fprop_accumulation": "precise"}
    spec = write_spec(place, layers=layers, recipe=recipe)
    place.load(place.model, "--fp8-format", "e4m3", "--amax-algo", "most_recent",
               "--amax-history-len", "7", "--margin", "2", "--accumulation", "precise")
    code, out, err = d.ctl("create", "c", spec)
    tap.is_("create: says what it made", code == 0 and out.startswith("created c: 3 layers, "),
            out + err)
    shown = json.loads(d.must("--json", "recipe", "c"))["recipe"]
    tap.is_("create: the recipe of the spec", shown == recipe, shown)
    same = [d.forward(f"c/l{i}", place.input, place.top) ==
            d.forward(f"m/l{i}", place.input, place.top) for i in range(3)]
    tap.is_("create: forward equals that of the loaded model, to the bit", all(same), same)
    made, loaded = d.scaling("c"), d.scaling("m")
    tap.is_("create: the scaling state, too", made["layers"] == loaded["layers"],
            f"{made}\n{loaded}")
    d.must("save", "c", place.target)
    place.load(place.target)
    tap.is_("create: a save of it loads", d.forward("m/l1", place.input, place.top) ==
            d.forward("c/l1", place.input, place.top))
    code, _, err = d.ctl("create", "c", spec)
    tap.is_("create: a name that is taken is refused", code == 1 and "ALREADY_EXISTS" in err, err)
    lines = [json.loads(s) for s in d.must(
        "--json", "batch", "-",
        stdin=f"status\ncreate b {spec}\nunload b\ncreate b {spec}\nunload b\nstatus\n").splitlines()]
    tap.is_("create: in a batch, no tensor stays at the server",
            lines[0]["memory_used"] == lines[-1]["memory_used"], lines)
    create_refused(place, layers)
    d.must("unload", "c")


def create_refused(place, layers):
    d = place.daemon
    bad = {
        "an unknown member": (dict(layers=layers, modle=1), ["spec.json", "modle"]),
        "an unknown member of a layer": (dict(layers=[dict(layers[0], scale=1)]),
                                         ["layers[0].scale"]),
        "a tensor that is not there": (dict(layers=[dict(layers[0], weight="model.safetensors:w")]),
                                       ["model.safetensors", '"w"', "l0.weight"]),
        "a file that is not there": (dict(layers=[{"name": "l", "weight": "none:w"}]), ["none"]),
        "features that are no multiples of 16": (
            dict(layers=[{"name": "l", "weight": "x:x"}]), ["5", "16"]),
        "a bias that does not fit": (dict(layers=[dict(layers[0], bias="x:x")]), ["bias"]),
        "one name twice": (dict(layers=[layers[0], layers[0]]), ["layers[1].name"]),
    }
    for name, (members, says) in bad.items():
        code, _, err = d.ctl("create", "bad", write_spec(place, **members))
        models = json.loads(d.must("--json", "models"))["models"]
        tap.is_(f"create: {name} is refused", code == 1 and all(s in err for s in says) and
                "bad" not in [m["name"] for m in models], err)


def main():
    with tempfile.TemporaryDirectory() as top:
        place = Place(top)
        try:
            resume(place)
            unfinished(place)
            refusals(place)
            two_at_once(place)
            create(place)
        finally:
            code = place.daemon.stop()
        tap.is_("the daemon stopped cleanly", code == 0, code)
    for name, client, server in (("kill the client", True, False), ("kill the daemon", False, True),
                                 ("kill both", True, True)):
        with tempfile.TemporaryDirectory() as top:
            kills(top, name, client, server)
    with tempfile.TemporaryDirectory() as top:
        file_size_limit(top)
    print(f"1..{tap.count}")
    return tap.failed != 0


if __name__ == "__main__":
    sys.exit(main())
