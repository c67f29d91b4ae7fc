"""A Ray cluster: every part is a task, and the parts of a node that is lost run elsewhere.

All nodes see the folders of weights, images and results under the same paths (a shared file system). Units
are whole or absent there too, so one that ran twice after a loss was merely stored twice, with the same rows.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import SILENCE, Job, NotStarted, cluster_package, cores_of
from gramloop.evaluate.plan import Part, Subject
from gramloop.evaluate.runner import Done, Missed, Runner, make_runner
from gramloop.evaluate.store import Store
from gramloop.util.files import RESUME_HINT

_RETRIES = 5  # lost nodes that one part may survive
_POLL = 1.0  # seconds
_NO_NODE = 120.0  # seconds in which a cluster that grows may start a node that is large enough
_PATIENCE = 20.0  # seconds for a cluster to answer


def run_ray(job: Job, address: str | None = None) -> Iterator[Done | Missed]:
    """Run the job's parts as tasks of the cluster at ``address`` (``auto`` for the one this machine is in)."""
    ray = cluster_package("ray")
    owns = not ray.is_initialized()
    if owns:
        _connect(ray, address)
    prepare = _preparing(ray, job)
    needs = {"CPU": job.subject.threads + prepare, "GPU": 1 if job.subject.device == "cuda" else 0}
    task = ray.remote(_run_part).options(max_retries=_RETRIES, num_cpus=needs["CPU"], num_gpus=needs["GPU"])
    head = _head(ray, address)
    shared = ray.put((job.subject, job.store, prepare))
    pending: list[Any] = [task.remote(shared, part) for part in job.parts]
    watch = _Watch(ray, job, head, needs)
    try:
        while pending:
            ready, pending = ray.wait(pending, num_returns=1, timeout=_POLL)
            for reference in ready:
                done = _result(ray, reference)
                job.on_images(len(done.part))
                watch.finished()
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
        self._reported = self._reachable = self._held = time.monotonic()
        self._some_done = False
        self.has_head = True

    def finished(self) -> None:
        """A part was finished."""
        self._reported, self._some_done = time.monotonic(), True

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
        if now - self._held > _NO_NODE:
            kind = GramLoopError if self._some_done else NotStarted
            raise kind(f"no node of the Ray cluster has {wanted}, which a part needs; {_sizes(nodes)}")
        if now - self._reported >= SILENCE:
            self._reported = now
            state = _sizes(nodes) if self._held == now else f"no node has {wanted}; {_sizes(nodes)}"
            self._job.on_wait(f"waiting for {pending} parts from Ray: {state}")


def _sizes(nodes: Sequence[dict[str, float]]) -> str:
    found = Counter(
        " and ".join(f"{node[name]:.0f} {name}" for name in ("CPU", "GPU") if node.get(name))
        for node in nodes
    )
    return "its nodes: " + (
        ", ".join(f"{many} with {size or 'neither'}" for size, many in found.items()) or "none"
    )


def _leave(ray: Any, pending: Sequence[Any], owns: bool) -> None:
    """Cancel what is left and leave the cluster; in a thread, since Ray waits long for one that is gone."""

    def leave() -> None:
        for reference in pending:
            ray.cancel(reference, force=False)
        if owns:
            ray.shutdown()

    thread = Thread(target=leave, daemon=True)
    thread.start()
    thread.join(_PATIENCE)


def _preparing(ray: Any, job: Job) -> int:
    """Processes that read images for a task: no more than every node has cores for, or the task would never run."""
    threads = job.subject.threads
    wanted = cores_of(job.subject, job.prepare) - threads
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    cores = [int(node.get("CPU", 0) // node["GPU"]) - threads for node in nodes]
    return max(0, min([wanted, *cores])) if job.prepare is None else wanted


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
    """Join the cluster; in a thread, since Ray itself never gives up."""
    check_address(address)
    answer: SimpleQueue[Exception | None] = SimpleQueue()

    def join() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            answer.put(None)
        except Exception as error:  # raised by the thread that waits
            answer.put(error)

    Thread(target=join, daemon=True).start()
    try:
        error = answer.get(timeout=_PATIENCE)
    except Empty:
        raise GramLoopError(
            f"there is no Ray cluster at {address}: it did not answer in {_PATIENCE:.0f} s"
        ) from None
    if isinstance(error, ConnectionError | ValueError | RuntimeError):
        raise GramLoopError(f"there is no Ray cluster at {address}: {error}") from error
    if error is not None:
        raise error


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


def _run_part(shared: tuple[Subject, Store[Any], int], part: Part) -> Done | Missed:
    global _runner
    subject, store, prepare = shared
    if _runner is None or _runner[0] != subject.hash:
        if _runner is not None:
            _runner[1].close()
        _runner = subject.hash, make_runner(subject, store, prepare=prepare)
    [done] = _runner[1].run([part])
    return done
