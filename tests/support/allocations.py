"""What the CPU's own allocator had to give at once, by PyTorch's profiler: the truth beside counted tensors."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def allocated_peak(run: Callable[[], object]) -> int:
    """Bytes at the most, scratch memory inside kernels included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = [each for each in found.profiler.kineto_results.events() if each.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
