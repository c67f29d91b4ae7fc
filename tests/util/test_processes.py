"""Workers start cheaply, share out work, hear nothing of Ctrl-C, and never outlive the process that started them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gramloop.errors import GramLoopError
from gramloop.util.files import RESUME_HINT
from gramloop.util.processes import (
    available_cores,
    in_order,
    process_context,
    process_pool,
    worker_count,
)

PARENT = (
    "import time\nfrom gramloop.util.processes import process_context, process_pool\n"
    "if __name__ == '__main__':\n"
    "    with process_pool(2, process_context()) as pool:\n"
    "        jobs = [pool.submit(time.sleep, 600) for _ in range(2)]\n"
    "        while not all(job.running() for job in jobs):\n            time.sleep(0.01)\n"
    "        print(*pool._processes, flush=True)\n"
    "        jobs[0].result()\n"
)

_known = ""


def _learn(word: str, times: int) -> None:
    global _known
    _known = word * times


def _tell(number: int) -> tuple[int, str, int, bool]:
    import cv2

    ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return number**2, _known, cv2.getNumThreads(), ignores


def _sleep(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return number


def _fail(number: int) -> None:
    if number == 2:
        raise GramLoopError(f"the number {number} is refused")


def test_workers_are_started_with_what_they_need():
    with process_pool(2, process_context(), _learn, "ab", 3) as pool:
        found = list(pool.map(_tell, range(20)))
    assert found == [(number**2, "ababab", 1, True) for number in range(20)]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_calls(workers):
    calls = [(number, 0.2 if number == 0 else 0.0) for number in range(6)]
    assert list(in_order(_sleep, calls, workers)) == list(range(6))


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_arrive_as_themselves(workers):
    with pytest.raises(GramLoopError, match="the number 2 is refused"):
        list(in_order(_fail, ((number,) for number in range(5)), workers))
    assert list(in_order(_fail, [], workers)) == []
    assert list(in_order(_fail, [(1,)], workers)) == [None]


def test_only_so_many_calls_are_sent_ahead(monkeypatch):
    monkeypatch.setattr("gramloop.util.processes._WAITING", 3)
    taken = []

    def calls():
        for number in range(10):
            taken.append(number)
            yield number, 0.0

    for done, _ in enumerate(in_order(_sleep, calls(), 2)):
        assert len(taken) - done <= 3
    assert taken == list(range(10))


def test_leaving_early_drops_what_waits():
    begun = time.monotonic()
    results = in_order(_sleep, ((number, 0.0 if number == 0 else 0.2) for number in range(500)), 2)
    assert next(results) == 0
    results.close()
    assert time.monotonic() - begun < 30  # all of them would take 50 seconds


def test_a_worker_that_is_ended_from_outside_is_one_sentence():
    with pytest.raises(GramLoopError) as caught:
        list(in_order(os._exit, ((1,), (1,)), 2))
    assert str(caught.value) == f"a worker process died (out of memory?); {RESUME_HINT}"


def alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for orphans in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_parent(tmp_path, number):
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    workers = [int(word) for word in parent.stdout.readline().split()]
    try:
        assert len(workers) == 2
        assert all(alive(worker) for worker in workers)
        parent.send_signal(number)
        assert parent.wait(60) == -number
        deadline = time.monotonic() + 60
        while any(alive(worker) for worker in workers):
            assert time.monotonic() < deadline, f"workers {workers} outlived their parent"
            time.sleep(0.02)
    finally:
        parent.stdout.close()
        for process in filter(alive, workers):
            os.kill(process, signal.SIGKILL)


def test_as_many_workers_as_asked_for_or_as_the_cores_hold(monkeypatch):
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    assert worker_count(None) == available_cores()
    assert worker_count(7, threads=4) == 7
    monkeypatch.setattr("gramloop.util.processes.available_cores", lambda: 8)
    assert [worker_count(None, threads) for threads in (1, 3, 8, 9)] == [8, 2, 1, 1]
    with pytest.raises(GramLoopError, match="the number of workers must be at least 1, not 0"):
        worker_count(0)


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/pod/job\n", {"pod/cpu.max": "50000 100000"}, 1),
    ],
    ids=["limit", "no limit", "of a parent"],
)
def test_limits_of_containers(tmp_path, monkeypatch, membership, files, cores):
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    monkeypatch.setattr("gramloop.util.processes._CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr("gramloop.util.processes._MEMBERSHIP", tmp_path / "membership")
    assert available_cores() == (cores or len(os.sched_getaffinity(0)))


def test_a_script_without_a_guard_begins_once(tmp_path: Path) -> None:
    """Processes that are not forked import their parent's script, which would start them anew in each."""
    script = tmp_path / "script.py"
    script.write_text(
        "import math\nfrom gramloop.util.processes import in_order\n"
        "print('begun', list(in_order(math.sqrt, [(4.0,), (9.0,)], 2)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "begun [2.0, 3.0]\n"


@pytest.mark.slow
def test_a_script_without_a_guard_draws_scenes_and_evaluates(tmp_path: Path) -> None:
    (tmp_path / "my_models.py").write_text(
        "def make():\n    predict = lambda image: (image.mean(2) > 128).astype(int)\n"
        "    predict.classes = ['dark', 'light']\n    return predict\n"
    )
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\nimport gramloop\nfrom gramloop.data.scenes import SceneFiles, write_scenes\nprint('begun')\n"
        "write_scenes(Path('scenes'), SceneFiles(33), workers=2)\n"
        "found = gramloop.evaluate('my_models.py:make', 'scenes', suite='scenes-c', truth='clean', images=2,\n"
        "    conditions=['fog'], severities=[3], methods=['baseline', 'median'], shards=2, workers=2, out='out')\n"
        "print(sorted(found.means()))\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "begun\n['baseline', 'median']\n"
