"""A Ray cluster: every part is a task, and the parts of a node that is lost run elsewhere.

All nodes see the folders of weights, images and results under the same paths (a shared file system). Units
are whole or absent there too, so one that ran twice after a loss was merely stored twice, with the same rows.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import SILENCE, Job
from gramloop.evaluate.plan import Part, Workload
from gramloop.evaluate.runner import Done, Missed, Runner, make_runner
from gramloop.evaluate.store import Store
from gramloop.util.files import RESUME_HINT

_RETRIES = 5  # lost nodes that one part may survive
_POLL = 1.0  # seconds
_NO_NODE = 120.0  # seconds in which a cluster that grows may start a node that is large enough
_PATIENCE = 20.0  # seconds for a cluster to answer

_T = TypeVar("_T")


def run_ray(job: Job, address: str | None = None) -> Iterator[Done | Missed]:
    """Run the job's parts as tasks of the cluster at ``address`` (``auto`` for the one this machine is in)."""
    try:
        import ray
    except ImportError as error:
        raise GramLoopError(
            "--engine ray needs the package ray, which is not installed: pip install ray"
        ) from error
    owns = not ray.is_initialized()
    if owns:
        _connect(ray, address)
    prepare = _preparing(ray, job)
    needs = {"CPU": job.workload.threads + prepare, "GPU": 1 if job.workload.device == "cuda" else 0}
    task = ray.remote(_run_part).options(max_retries=_RETRIES, num_cpus=needs["CPU"], num_gpus=needs["GPU"])
    shared = ray.put((job.workload, job.store, prepare))
    pending: list[Any] = [task.remote(shared, part) for part in job.parts]
    watch = _Watch(ray, job, _head(ray, address), needs)
    try:
        while pending:
            ready, pending = ray.wait(pending, num_returns=1, timeout=_POLL)
            for reference in ready:
                done = _result(ray, reference)
                job.listener.images(len(done.part))
                watch.reported = time.monotonic()
                yield done
            if not ready:
                watch.check(len(pending))
    finally:
        _leave(ray, pending if watch.has_head else [], owns or not watch.has_head)


def _head(ray: Any, address: str | None) -> str:
    """Where the cluster's head listens, or nothing where Ray does not say."""
    if (address or "").startswith("ray://"):
        return str(address)
    return str(getattr(ray.get_runtime_context(), "gcs_address", ""))


class _Watch:
    """Reports what is waited for, and gives up where nothing can come."""

    def __init__(self, ray: Any, job: Job, head: str, needs: dict[str, int]) -> None:
        self._ray, self._job, self._head, self._needs = ray, job, head, needs
        self.reported = self._reachable = self._held = time.monotonic()
        self.has_head = True

    def check(self, pending: int) -> None:
        """Raise where the head is gone or no node is large enough, each for a while; report every minute."""
        now = time.monotonic()
        try:
            check_address(self._head)
            self._reachable = now
        except GramLoopError as error:
            if now - self._reachable > _PATIENCE:
                self.has_head = False
                raise GramLoopError(f"the Ray cluster's head is gone ({error}); {RESUME_HINT}") from error
            return
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= many for name, many in self._needs.items()) for node in nodes):
            self._held = now
        wanted = " and ".join(f"{many} {name}" for name, many in self._needs.items() if many)
        sizes = ", ".join(f"{node.get('CPU', 0):.0f} CPU and {node.get('GPU', 0):.0f} GPU" for node in nodes)
        state = f"its nodes have {sizes or 'nothing'}"
        if now - self._held > _NO_NODE:
            raise GramLoopError(f"no node of the Ray cluster has {wanted}, which a part needs; {state}")
        if now - self.reported >= SILENCE:
            self.reported = now
            lacking = "" if self._held == now else f"no node has {wanted}; "
            self._job.listener.message(f"waiting for {pending} parts from Ray: {lacking}{state}")


def _leave(ray: Any, pending: Sequence[Any], owns: bool) -> None:
    """Cancel what is left and leave the cluster; Ray waits long for one that is gone."""

    def leave() -> None:
        for reference in pending:
            ray.cancel(reference, force=False)
        if owns:
            ray.shutdown()

    with suppress(TimeoutError):
        _within_patience(leave)


def _within_patience(function: Callable[[], _T]) -> _T:
    """What a function returns, in a thread, since Ray itself never gives up; TimeoutError where it takes too long."""
    answer: Future[_T] = Future()

    def call() -> None:
        try:
            answer.set_result(function())
        except Exception as error:  # raised by the thread that waits
            answer.set_exception(error)

    Thread(target=call, daemon=True).start()
    return answer.result(timeout=_PATIENCE)


def _preparing(ray: Any, job: Job) -> int:
    """Processes that read images for a task: no more than every node has cores for, or the task would never run."""
    if job.prepare is not None:
        return job.prepare
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    cores = [int(node.get("CPU", 0) // node["GPU"]) - job.workload.threads for node in nodes]
    return max(0, min([job.cluster_prepare, *cores]))


def check_address(address: str | None) -> None:
    """Refuse an address at which nothing listens: Ray itself would keep trying for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto", or something that Ray knows better
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE / 2).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise GramLoopError(f"there is no Ray cluster at {address}: {reason}") from error


def _connect(ray: Any, address: str | None) -> None:
    """Join the cluster."""
    check_address(address)
    try:
        _within_patience(lambda: ray.init(address=address, log_to_driver=False, logging_level="ERROR"))
    except (TimeoutError, ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error) or f"it did not answer in {_PATIENCE:.0f} s"
        raise GramLoopError(f"there is no Ray cluster at {address}: {reason}") from error


def _result(ray: Any, reference: Any) -> Done | Missed:
    try:
        done: Done | Missed = ray.get(reference)
        return done
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, GramLoopError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise GramLoopError(
            f"the Ray cluster lost a part {_RETRIES + 1} times ({type(error).__name__}); {RESUME_HINT}"
        ) from error


_runner: tuple[str, Runner] | None = None  # of this worker process, which runs many parts


def _run_part(shared: tuple[Workload, Store[Any], int], part: Part) -> Done | Missed:
    global _runner
    workload, store, prepare = shared
    if _runner is None or _runner[0] != workload.hash:
        _runner = workload.hash, make_runner(workload, store, prepare=prepare)
    [done] = _runner[1].run([part])
    return done
