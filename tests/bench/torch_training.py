"""Forward and backward of a linear layer in PyTorch, for torch_peers.py: what fp8d's is held to.

Functions of tensors alone, without autograd's book-keeping, the weight's gradient in float32, nothing
added up: the best case of each. Names:

    train_bf16            y, dx, dw by three matrix products of bf16, eager
    train_bf16_compiled   the same, compiled
    train_scaled_mm       an FP8 linear with delayed scales as one writes it today: x to E4M3, dy to E5M2 with
                          scales that are known, their amax for the next ones, torch._scaled_mm, fast
                          accumulation forward, precise for gradients; the weight is there in FP8 both ways
                          round. Compiled.
"""
import torch

BURST = 10
BLOCKER_BYTES = 1 << 30
ROTATE_BYTES = 256 << 20
E4M3_MAX, E5M2_MAX = 448.0, 57344.0
MOST_ERROR = 0.1


def bf16(s):
    y = s["x"] @ s["w"].t()
    dx = s["dy"] @ s["w"]
    dw = torch.mm(s["dy"].t(), s["x"], out_dtype=torch.float32)
    return y, dx, dw


def scaled_mm(s):
    amax = s["x"].abs().amax(), s["dy"].abs().amax()
    x = (s["x"].float() * s["x_scale"]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    g = (s["dy"].float() * s["g_scale"]).clamp(-E5M2_MAX, E5M2_MAX).to(torch.float8_e5m2)
    y = torch._scaled_mm(x, s["wq"].t(), scale_a=s["x_inv"], scale_b=s["w_inv"],
                         out_dtype=torch.bfloat16, use_fast_accum=True)
    dx = torch._scaled_mm(g, s["wq_t"].t(), scale_a=s["g_inv"], scale_b=s["w_inv"],
                          out_dtype=torch.bfloat16, use_fast_accum=False)
    dw = torch._scaled_mm(g.t().contiguous(), x.t().contiguous().t(), scale_a=s["g_inv"],
                          scale_b=s["x_inv"], out_dtype=torch.float32, use_fast_accum=False)
    return y, dx, dw, amax


WORK = {"train_bf16": bf16, "train_bf16_compiled": bf16, "train_scaled_mm": scaled_mm}


class Training:
    """Operands of one shape, in sets used in turn, and what has been compiled for them."""

    def __init__(self, m, n, k):
        torch.manual_seed(1)
        self.count = 0
        self.calls = {}
        self.ready = []
        self.blocker = torch.empty(BLOCKER_BYTES, device="cuda", dtype=torch.uint8)
        sets = 3 + ROTATE_BYTES // (2 * (m * k + m * n + n * k))
        self.sets = [self.operands(m, n, k) for _ in range(sets)]

    @staticmethod
    def operands(m, n, k):
        s = {name: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
             for name, shape in (("x", (m, k)), ("w", (n, k)), ("dy", (m, n)))}
        for name, of, top in (("x", "x", E4M3_MAX), ("w", "w", E4M3_MAX), ("g", "dy", E5M2_MAX)):
            s[f"{name}_scale"] = top / s[of].abs().amax().float()
            s[f"{name}_inv"] = 1.0 / s[f"{name}_scale"]
        s["wq"] = (s["w"].float() * s["w_scale"]).to(torch.float8_e4m3fn)
        s["wq_t"] = s["wq"].t().contiguous()
        return s

    def make(self, name):
        """Compile what `name` needs, and see that it computes the three products."""
        work = WORK[name]
        self.calls[name] = work if name == "train_bf16" else torch.compile(work, dynamic=False)
        got = self.calls[name](self.sets[0])[:3]
        for what, y, want in zip(("y", "dx", "dw"), got, bf16(self.sets[0])):
            error = ((y.float() - want.float()).norm() / want.float().norm()).item()
            if not error <= MOST_ERROR:
                raise RuntimeError(f"{name}: {what} is {error:.3g} off the product")
        for _ in range(2):
            self.run(name)

    def run(self, name):
        """Microseconds of one forward and backward."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.blocker.fill_(self.count % 256)
        begin.record()
        for _ in range(BURST):
            self.count += 1
            self.calls[name](self.sets[self.count % len(self.sets)])
        end.record()
        end.synchronize()
        return 1000.0 * begin.elapsed_time(end) / BURST
