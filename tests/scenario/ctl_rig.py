"""What Python scenarios of fp8ctl share: TAP, a daemon that can be killed, files with tensors."""
import json
import os
import random
import signal
import struct
import subprocess
import time

BUILD = os.environ.get("FP8D_BUILDDIR", ".")
SOURCE = os.environ.get("FP8D_SRCDIR", ".")
FP8CTL = os.environ.get("FP8CTL", os.path.join(BUILD, "fp8ctl"))
FP8D = os.environ.get("FP8D", os.path.join(BUILD, "fp8d"))


class Tap:
    """Counts and prints cases."""

    def __init__(self):
        self.count = 0
        self.failed = 0

    def is_(self, name, good, seen=""):
        self.count += 1
        print(f"{'ok' if good else 'not ok'} {self.count} - {name}", flush=True)
        if not good:
            self.failed += 1
            for line in str(seen).splitlines()[:20]:
                print("#", line[:400])

    def skip(self, name, why):
        self.count += 1
        print(f"ok {self.count} - {name} # SKIP {why}", flush=True)


def with_numpy(run):
    """A main: run(tap, numpy, ml_dtypes) where the packages are there; a failure in CI where not."""
    tap = Tap()
    try:
        import ml_dtypes
        import numpy as np
    except ImportError as e:
        if not os.environ.get("CI"):
            print(f"1..0 # SKIP no Python package {e.name}")
            return 0
        tap.is_("the Python packages are there", False, e.name)
    else:
        run(tap, np, ml_dtypes)
    print(f"1..{tap.count}")
    return 1 if tap.failed else 0


class Daemon:
    """An fp8d on the CPU with a socket in `folder`."""

    def __init__(self, folder, config=None, limit=None):
        self.sock = os.path.join(folder, "fp8d.sock")
        self.log = os.path.join(folder, "log")
        self.config = config
        self.limit = limit  # called in the child, before fp8d
        self.process = None

    def start(self):
        words = [FP8D, "--socket", self.sock, "--backend", os.environ.get("FP8D_TEST_BACKEND", "cpu")]
        if self.config:
            words += ["--config", self.config]
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, preexec_fn=self.limit)
        for _ in range(300):
            if self.ctl("ping")[0] == 0:
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        with open(self.log, encoding="utf-8") as log:
            raise RuntimeError("fp8d does not answer:\n" + log.read())

    def stop(self):
        """End it as a service manager would; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=60)

    def words(self, *args):
        return [FP8CTL, "--socket", self.sock, *args]

    def ctl(self, *args, stdin="", **more):
        """Run fp8ctl; returns exit code, stdout, stderr."""
        done = subprocess.run(self.words(*args), input=stdin, capture_output=True, text=True,
                              timeout=120, check=False, **more)
        return done.returncode, done.stdout, done.stderr

    def must(self, *args, stdin=""):
        """As ctl, of a command that is no case itself; returns stdout."""
        code, out, err = self.ctl(*args, stdin=stdin)
        if code:
            raise RuntimeError(f"fp8ctl {' '.join(args)}: exit code {code}\n{err}")
        return out

    def scaling(self, model):
        """All of the scaling state, histories included, but what no save keeps."""
        got = json.loads(self.must("--json", "scaling", model, "--history"))
        del got["incarnation"]
        for layer in got["layers"].values():
            for site in layer["tensors"].values():
                del site["uncalibrated_casts"]
        return got

    def forward(self, target, tensor, folder):
        """The bytes of y, in eval."""
        output = os.path.join(folder, "y")
        self.must("forward", target, "--input", tensor, "--output", output)
        data = read(output)
        os.unlink(output)
        return data


def read(path):
    with open(path, "rb") as file:
        return file.read()


def bf16(seed, count):
    """`count` BF16 values of both signs between 2^-7 and 2."""
    size = 2 * count
    noise = int.from_bytes(random.Random(seed).randbytes(size), "little")
    keep = int.from_bytes(b"\xff\x83" * count, "little")
    exponent = int.from_bytes(b"\x00\x3c" * count, "little")
    return (noise & keep | exponent).to_bytes(size, "little")


def write_tensors(path, tensors, dtype="BF16"):
    """{name: (shape, bytes)}, all of one dtype, as a safetensors file."""
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)


def read_tensors(path):
    """{name: array} of a safetensors file of F32 and BF16. Needs numpy and ml_dtypes."""
    import ml_dtypes
    import numpy as np
    dtypes = {"F32": np.float32, "BF16": ml_dtypes.bfloat16}
    data = read(path)
    start = 8 + struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, t in json.loads(data[8:start]).items():
        if name != "__metadata__" and t["dtype"] in dtypes:
            first, last = t["data_offsets"]
            array = np.frombuffer(data[start + first:start + last], dtypes[t["dtype"]])
            tensors[name] = array.reshape(t["shape"])
    return tensors


def model_file(path, layers, outs, ins):
    """Linear layers l0, l1, ... with biases."""
    tensors = {}
    for i in range(layers):
        tensors[f"l{i}.weight"] = ([outs, ins], bf16(2 * i, outs * ins))
        tensors[f"l{i}.bias"] = ([outs], bf16(2 * i + 1, outs))
    write_tensors(path, tensors)
