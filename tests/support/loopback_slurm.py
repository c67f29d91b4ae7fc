"""A Slurm on this machine: its controller and a few nodes as processes, where its packages are installed."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
NODES = ("n1", "n2", "n3")
CORES = 2

needs_slurm = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
    reason="needs root, slurm-wlm and munge",
)

CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=5
MessageTimeout=3
KillWait=1
MinJobAge=30
"""


class LoopbackSlurm:
    """A running cluster; its commands find it by ``SLURM_CONF``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf = folder, folder / "slurm.conf"
        self._munge: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ports = _free_ports(1 + len(NODES))
        text = CONFIGURATION.format(host=socket.gethostname(), port=ports[0], folder=self.folder)
        for name, port in zip(NODES, ports[1:], strict=True):
            text += f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
            text += f"CPUs={2 * CORES} RealMemory=8000\n"
            (self.folder / f"spool-{name}").mkdir()
        nodes = ",".join(NODES)
        text += f"PartitionName=main Nodes={nodes} Default=YES MaxTime=60 DefaultTime=10 State=UP\n"
        text += f"PartitionName=urgent Nodes={nodes} PriorityTier=2 State=UP\n"
        self.conf.write_text(text)
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self._munge = subprocess.Popen(
            ["munged", "--foreground", "--force", f"--key-file={key}"]
            + [f"--{name}-file={self.folder}/munge/{name}" for name in ("pid", "log", "seed")]
            + [f"--socket={self.folder}/munge/socket"],
            stderr=subprocess.DEVNULL,
        )
        _until(lambda: (self.folder / "munge" / "socket").exists())
        self.start_controller()
        for name in NODES:
            self.run("slurmd", "-N", name)
        self.until_idle()

    def until_idle(self) -> None:
        """Wait for every job to end and every node to be free."""
        _until(lambda: set(self.run("sinfo", "-h", "-o", "%T").split()) == {"idle"})

    def run(self, *words: str) -> str:
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(
            words, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def start_controller(self) -> None:
        self.run("slurmctld")
        _until(
            lambda: (
                "UP"
                in subprocess.run(
                    ["scontrol", "ping"],
                    env={**os.environ, "SLURM_CONF": str(self.conf)},
                    capture_output=True,
                    text=True,
                ).stdout
            )
        )

    def stop_controller(self) -> None:
        self._end("slurmctld.pid", signal.SIGTERM)

    def kill_node(self, name: str) -> None:
        """Kill a node as a power cut would: its daemon and every job on it."""
        self._end(f"slurmd-{name}.pid", signal.SIGKILL)
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                variables = entry.read_bytes()
                if f"SLURMD_NODENAME={name}\0".encode() in variables and str(self.conf).encode() in variables:
                    os.kill(int(entry.parent.name), signal.SIGKILL)

    def stop(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--user=root")
        for path in [*self.folder.glob("slurmd-*.pid"), self.folder / "slurmctld.pid"]:
            self._end(path.name, signal.SIGTERM)
        if self._munge is not None:
            self._munge.terminate()
            self._munge.wait(10)

    def jobs(self) -> dict[str, str]:
        """State of every job that has not ended."""
        lines = self.run("squeue", "-h", "-r", "-o", "%i %T").splitlines()
        return dict(re.split(r"\s+", line.strip(), maxsplit=1) for line in lines)

    def _end(self, name: str, number: signal.Signals) -> None:
        path = self.folder / name
        with contextlib.suppress(OSError, ValueError):
            process = int(path.read_text())
            os.kill(process, number)
            _until(lambda: not Path(f"/proc/{process}").exists())
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def loopback_slurm(folder: Path) -> Iterator[LoopbackSlurm]:
    cluster = LoopbackSlurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _until(done, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "the cluster did not get ready in time"
        time.sleep(0.1)
