"""A real Slurm on this one host, for tests: its own munge, a controller, and some small nodes.

A fake `sbatch` shows only what its author believed of Slurm. These are the daemons themselves, so a
lost node, a lost controller and a requeued job happen here as they happen in a cluster; only the
waiting times are set short. It needs root, but neither systemd nor cgroups, and writes nowhere but
in its folder.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
SETTLED = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}  # and no * behind: silent

# A requeued job waits for cred_expire, whose least value is 5. A dead node is noticed after twice
# SlurmdTimeout. Jobs are to be started by the main scheduler, so backfill has a long interval: what
# backfill starts is not written to the controller's state, and starts a second time if that dies.
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
JobRequeue=1
ReturnToService=2
SlurmdTimeout=5
BatchStartTimeout=5
MessageTimeout=3
KillWait=2
CompleteWait=0
MinJobAge=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF
"""
NODE = "NodeName={name} NodeHostName={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=2000\n"


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on just now: all held at once, so that they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def below(guard: int) -> list[psutil.Process]:
    """Return all that a guard has started and that is not dead, its daemon first."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(guard).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def kill_below(guard: int) -> None:
    """SIGKILL all that a guard has started; to be repeated, since these start more meanwhile.

    All are stopped before any is killed: no daemon lives to report the death of a job.
    """
    found = below(guard)
    for send in (psutil.Process.suspend, psutil.Process.kill):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                send(process)


class SlurmCluster:
    """The daemons of one cluster, up between `with` and its end; nodes are called n1, n2, ..."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        """Take a short folder, and the number of nodes."""
        self.folder = folder.resolve()
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self.guards: dict[str, list[subprocess.Popen]] = {}

    def __enter__(self) -> "SlurmCluster":
        for name in ("state", *self.names):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        host = socket.gethostname().partition(".")[0]
        ports = free_ports(1 + len(self.names))
        text = CONFIGURATION.format(folder=self.folder, host=host, ports=ports)
        for name, port in zip(self.names, ports[1:], strict=True):
            text += NODE.format(name=name, host=host, port=port)
        Path(self.env["SLURM_CONF"]).write_text(text, "utf-8")
        key, munge = str(self.folder / "munge.key"), str(self.folder / "munge")
        subprocess.run([self._path("mungekey"), "-c", "-k", key], check=True)
        try:
            # --force: folders of tests are closed to other users, and so is this munge
            self._start(
                *("munged", "--foreground", "--force", "--key-file", key),
                *("--socket", munge + ".socket", "--pid-file", munge + ".pid"),
                *("--seed-file", munge + ".seed"),
            )
            self.wait((self.folder / "munge.socket").exists, "munge is up")
            self.start_controller()
            for name in self.names:
                self._start("slurmd", "-D", "-N", name, name=name)
            self.wait(lambda: set(self.states().values()) == {"IDLE"}, "all nodes are idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all jobs and daemons; whatever they had become, their guards know them."""
        for name in sorted(self.guards, reverse=True):  # slurmctld first: nothing starts any more
            self.kill(name)

    def command(self, *words: str) -> str:
        """Run one of Slurm's commands against this cluster; return what it prints."""
        env = os.environ | self.env
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} exited {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return what the controller believes of each node; a * behind: it does not answer."""
        lines = self.command("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return {name: state.upper() for name, state in (line.split() for line in lines)}

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 300) -> None:
        """Ask until a condition holds; an error names the logs where it never does."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(RuntimeError):  # a controller that starts answers nothing yet
                if condition():
                    return
            time.sleep(0.1)
        raise TimeoutError(f"not within {seconds} s: {what}; see {self.folder}/*.log")

    def processes(self, name: str) -> list[psutil.Process]:
        """Return the daemon "n1", "slurmctld" or "munged", and all that runs because of it."""
        guards = [guard.pid for guard in self.guards.get(name, []) if guard.poll() is None]
        return [process for guard in guards for process in below(guard)]

    def start_node(self, name: str) -> None:
        """Start a slurmd (again); return when the controller would give it work."""
        log = self.folder / f"{name}.log"
        before = log.read_text().count("slurmd started")
        self._start("slurmd", "-D", "-N", name, name=name)
        self.wait(lambda: log.read_text().count("slurmd started") > before, f"{name} is up")
        self.wait(lambda: self.states()[name] in SETTLED, f"{name} is back")

    def start_controller(self) -> None:
        """Start slurmctld on the state that it left; return when it answers.

        It knows its nodes again, and gives them jobs, some five seconds later.
        """
        self._start("slurmctld", "-D")
        self.wait(lambda: "is UP" in self.command("scontrol", "ping"), "slurmctld answers")

    def _path(self, program: str) -> str:
        return shutil.which(program, path=PLACES) or program

    def _start(self, program: str, *words: str, name: str = "") -> None:
        """Start a daemon below a guard of its own; what it prints is its log."""
        name = name or program
        command = [sys.executable, __file__, self._path(program), *words]
        with (self.folder / f"{name}.log").open("ab") as out:
            guard = subprocess.Popen(
                command,
                env=os.environ | self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.guards.setdefault(name, []).append(guard)

    def kill(self, name: str) -> None:
        """SIGKILL a daemon: a slurmd with every job and step on its node, as when a machine dies.

        Without slurmctld jobs run on, and commands fail. It writes its state every five seconds at
        most. When killed before, it forgets the jobs that came since, gives their ids again, and
        takes those that it started for waiting.
        """
        for guard in self.guards.pop(name, []):
            while guard.poll() is None:  # it ends with the last process below it
                kill_below(guard.pid)
                time.sleep(0.02)


def keep_guard(command: list[str]) -> None:
    """Run a daemon, adopt every process that it lets go, and end with the last of them.

    Steps and their jobs leave slurmd's family at once, and may clear their environment: only a
    process that adopts orphans (PR_SET_CHILD_SUBREAPER) always knows them. Where the tests are
    killed, it kills them all.
    """
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    tests = os.getppid()
    subprocess.Popen(command)
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if os.getppid() != tests:
            kill_below(os.getpid())
        time.sleep(0.1)


if __name__ == "__main__":
    keep_guard(sys.argv[1:])
