#!/usr/bin/env python3
"""PyTorch's FP8 linear, run and timed on request beside fp8d's. Started by tests/bench/torch_peer.c.

Lines on standard input, each answered by one line on standard output:

    open M N K NAME...   operands for y[M, N] = x[M, K] w[N, K]^T; compile, compare, warm up: "ready ..."
                         with the names that can be run
    run NAME             "MICROSECONDS" of one call, or "none" if it cannot be run

    error WORDS          what went wrong; nothing more is to be asked then

Names, all with x in bf16, w in E4M3 with a factor, y in bf16, fast accumulation:

    dynamic        compiled: amax of x, scale, cast, torch._scaled_mm; a burst by events on the device
    static         the same with a scale that is known
    dynamic_graph  the two captured as CUDA graphs, which have no gaps between the kernels
    static_graph
    eager          static, not compiled, one call and a wait for it, by the host's clock, median
    train_...      forward and backward: see torch_training.py; not together with the others

Normal data, sets used in turn that together are larger than any L2; what PyTorch allocates itself (the
cast x, and y) it uses again and again, to its advantage.
"""
import os
import statistics
import sys
import time

try:
    import torch
except ImportError as e:
    torch, lacking = None, e

BURST = 20
BLOCKER_BYTES = 1 << 30  # written ahead, so that the calls are queued when the clock starts
ROTATE_BYTES = 256 << 20
CALLS = 100  # of eager
FP8_MAX = 448.0
MOST_ERROR = 0.06


# --- the work; functions of tensors alone, for the compiler ---


def multiply(x, w, scale, inverse, factor):
    codes = (x.float() * scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return torch._scaled_mm(codes, w.t(), scale_a=inverse, scale_b=factor,
                            out_dtype=torch.bfloat16, use_fast_accum=True)


def static(x, w, scale, inverse, factor):
    return multiply(x, w, scale, inverse, factor)


def dynamic(x, w, _scale, _inverse, factor):
    amax = x.abs().amax().float()
    return multiply(x, w, FP8_MAX / amax, amax / FP8_MAX, factor)


class Peer:
    """Operands, and what has been compiled for them."""

    def __init__(self, m, n, k):
        self.count = 0
        torch.manual_seed(1)
        sets = 4 + ROTATE_BYTES // (2 * m * k + n * k + 2 * m * n)
        self.x = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        self.factor = torch.tensor(5.0 / FP8_MAX, device="cuda")
        self.scale = FP8_MAX / torch.stack([x.abs().amax() for x in self.x]).amax().float()
        self.inverse = 1.0 / self.scale
        self.w = [(torch.randn(n, k, device="cuda") / self.factor).clamp(-FP8_MAX, FP8_MAX)
                  .to(torch.float8_e4m3fn) for _ in range(sets)]
        self.blocker = torch.empty(BLOCKER_BYTES, device="cuda", dtype=torch.uint8)
        self.calls = {}
        self.graphs = {}
        self.ready = []

    def make(self, name):
        """Compile what `name` needs, and see that it computes the product."""
        base = name.removesuffix("_graph")
        if base not in self.calls:
            work = dynamic if base == "dynamic" else static
            self.calls[base] = work if base == "eager" else torch.compile(work, dynamic=False)
            self.check(base)
        if name.endswith("_graph"):
            self.graphs[name] = self.capture(base)
        for _ in range(3):
            self.run(name)

    def call(self, name, i):
        return self.calls[name](self.x[i], self.w[i], self.scale, self.inverse, self.factor)

    def check(self, base):
        y = self.call(base, 0).float()
        want = self.x[0].float() @ (self.w[0].float() * self.factor).t()
        error = ((y - want).norm() / want.norm()).item()
        if not error <= MOST_ERROR:
            raise RuntimeError(f"{base} is {error:.3g} off the product")

    def next(self, name):
        self.count += 1
        self.call(name, self.count % len(self.x))

    def burst(self, name):
        for _ in range(BURST):
            self.next(name)

    def capture(self, base):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.burst(base)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.burst(base)
        return graph

    # --- time ---

    def run(self, name):
        """Microseconds of one call."""
        if name == "eager":
            return self.run_eager()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.blocker.fill_(self.count % 256)
        begin.record()
        if name in self.graphs:
            self.graphs[name].replay()
        else:
            self.burst(name)
        end.record()
        end.synchronize()
        return 1000.0 * begin.elapsed_time(end) / BURST

    def run_eager(self):
        us = []
        for _ in range(CALLS):
            start = time.perf_counter()
            self.next("eager")
            torch.cuda.synchronize()
            us.append(1e6 * (time.perf_counter() - start))
        return statistics.median(us)


peers = []  # one at most


def make_all(peer, names):
    """Those that work; why others do not goes to stderr."""
    ready = []
    for name in names:
        try:
            peer.make(name)
            ready.append(name)
        except Exception as e:  # of a compiler, say: the others may do without
            print(f"no {name}: {one_line(e)}", file=sys.stderr, flush=True)
    return ready


def answer(words):
    if words[0] == "run":
        return f"{peers[0].run(words[1]):.3f}" if words[1] in peers[0].ready else "none"
    if words[0] != "open" or len(words) < 5:
        raise ValueError(f"not understood: {' '.join(words)}")
    peers.clear()
    torch.cuda.empty_cache()
    kind = Peer
    if words[4].startswith("train_"):
        from torch_training import Training as kind  # it needs torch, which may lack
    peers.append(kind(*(int(w) for w in words[1:4])))
    peers[0].ready = make_all(peers[0], words[4:])
    return " ".join(["ready", *peers[0].ready])


def one_line(e):
    return " ".join(f"{type(e).__name__}: {e}".split())[:900]


def main():
    # Whatever libraries print goes to stderr; the answers go where stdout was.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        if not torch:
            raise lacking
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no GPU")
        torch.set_grad_enabled(False)
        print(f"torch {torch.__version__}", file=sys.stderr, flush=True)
        for line in sys.stdin:
            print(answer(line.split()), file=out, flush=True)
    except Exception as e:  # whatever it is, the benchmark that asked goes on and says why
        try:
            print("error", one_line(e), file=out, flush=True)
        except OSError:
            pass  # it asks no more
    return 0


if __name__ == "__main__":
    sys.exit(main())
