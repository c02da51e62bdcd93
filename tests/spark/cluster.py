"""A standalone Spark cluster whose processes tests can kill.

It runs on the loopback interface: a master, workers of one core each, a driver in client mode, all of them processes.
Each has the cluster's folder in its environment, and its children (executors, the Python workers below them, the
driver's JVM) inherit it. So `/proc` shows which processes belong to the cluster, including those that survived a killed
parent, and leaving the cluster kills them all. Logs are in `folder/logs`, of executors in `folder/worker-N/work`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

MARK = "TOCSIN_TEST_CLUSTER"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
LOOPBACK = "127.0.0.1"
# Short lives on a busy machine: what counts is the start of a JVM, not its speed after a minute.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
SETTINGS = {
    # No number of losses ends the application.
    "spark.deploy.maxExecutorRetries": -1,
    "spark.task.maxFailures": 1000,
    "spark.stage.maxConsecutiveAttempts": 1000,
    "spark.excludeOnFailure.enabled": False,
    # Losses are seen, and given up on, within seconds.
    "spark.worker.timeout": 10,
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.rpc.askTimeout": "20s",
    "spark.rpc.lookupTimeout": "20s",
    "spark.shuffle.io.maxRetries": 1,
    "spark.shuffle.io.retryWait": "1s",
    "spark.shuffle.registration.timeout": "5s",
    # One executor of one core on each worker, used as soon as it is there.
    "spark.cores.max": 2,
    "spark.executor.cores": 1,
    "spark.executor.memory": "640m",
    "spark.driver.memory": "640m",
    "spark.scheduler.minRegisteredResourcesRatio": 0,
    "spark.locality.wait": 0,
    "spark.executor.extraJavaOptions": JVM,
    "spark.driver.extraJavaOptions": JVM,
    # Nothing listens beyond the loopback interface, or where nobody looks.
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": False,
    "spark.master.rest.enabled": False,
}


class Cluster:
    """`with Cluster(folder) as cluster: cluster.submit(script)` runs a script on a master and `workers` workers."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder.resolve()
        self.master = ""
        self.driver: subprocess.Popen[bytes] | None = None
        self._count = workers
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._home = spark_home()

    def __enter__(self) -> Cluster:
        (self.folder / "logs").mkdir(parents=True)
        (self.folder / "conf").mkdir()
        lines = [
            f"{name} {str(value).lower() if isinstance(value, bool) else value}" for name, value in SETTINGS.items()
        ]
        (self.folder / "conf" / "spark-defaults.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            self._spark_class("master", "org.apache.spark.deploy.master.Master", "--port", "0")
            self.master = until(self._address, "a master")
            for number in range(self._count):
                self.start_worker(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_worker(self, number: int) -> None:
        """Starts a worker, or starts it again; it takes a few seconds until it has registered with the master."""
        assert number not in self._workers
        place = self.folder / f"worker-{number}"
        # A folder for each start: executors of a killed worker may still write into the last one.
        local = place / f"local-{len(self._started)}"
        local.mkdir(parents=True)
        arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(place / "work"), self.master)
        self._workers[number] = self._spark_class(
            f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments, SPARK_LOCAL_DIRS=str(local)
        )

    def kill_worker(self, number: int, *, machine: bool = False) -> None:
        """Kills a worker; with `machine` also all that it started, which otherwise finds out by itself and exits."""
        worker = self._workers.pop(number)
        worker.kill()
        worker.wait()
        if machine:
            self._end(f"worker-{number}")

    def executors(self) -> list[int]:
        """The process ids of all executors that are alive, orphans too."""
        return [pid for pid, name in self._processes() if name.startswith("worker-") and EXECUTOR in command(pid)]

    def kill_executor(self, pid: int | None = None) -> int:
        """Kills an executor, any if none is named or it has just ended; answers its process id."""
        while pid is None or not end(pid):
            pid = until(self.executors, "an executor")[0]
        return pid

    def submit(self, script: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts `python script MASTER arguments…` as the driver."""
        assert self.driver is None or self.driver.poll() is not None
        self.driver = self._start("driver", [sys.executable, str(script), self.master, *arguments])
        return self.driver

    def kill_driver(self) -> None:
        """Kills the driver and its JVM, which cannot say goodbye; its executors find out by themselves and exit."""
        assert self.driver is not None
        self._end("driver")
        self.driver.wait()

    def stop(self) -> None:
        self._end()
        for process in self._started:
            process.wait()

    def log(self, name: str, lines: int = 60) -> str:
        """The end of the newest log of "driver", "master" or "worker-N"."""
        path = max((self.folder / "logs").glob(f"{name}.*"))
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _address(self) -> str:
        assert self._started[0].poll() is None, self.log("master")
        match = re.search(r"Starting Spark master at (spark://\S+)", self.log("master", 1000))
        return match[1] if match else ""

    def _spark_class(self, name: str, main: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        start = [str(self._home / "bin" / "spark-class"), main, "--host", LOOPBACK, "--webui-port", "0", *arguments]
        return self._start(name, start, **environment)

    def _start(self, name: str, start: list[str], **environment: str) -> subprocess.Popen[bytes]:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
            "SPARK_HOME": str(self._home),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "SPARK_LAUNCHER_OPTS": JVM,
            "PYSPARK_PYTHON": sys.executable,
            MARK: f"{self.folder}:{name}",
            **environment,
        }
        number = len(list((self.folder / "logs").glob(f"{name}.*")))
        with (self.folder / "logs" / f"{name}.{number:03}").open("wb") as log:
            # A session of its own: a Ctrl-C is for the test, which then stops the cluster.
            process = subprocess.Popen(
                start, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(process)
        return process

    def _processes(self) -> Iterator[tuple[int, str]]:
        """Process id of all that is alive, each with the name under which it or its ancestor was started."""
        mark = f"{MARK}={self.folder}:".encode()
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                for variable in read(Path("/proc", entry, "environ")).split(b"\0"):
                    if variable.startswith(mark):
                        yield int(entry), variable.removeprefix(mark).decode()

    def _end(self, name: str | None = None) -> None:
        # A process that one look misses was started meanwhile by one that it saw: so nothing seen is nothing left.
        def none_left() -> bool:
            # Children, which have the higher numbers, come first: a parent's end would be a warning.
            alive = sorted((pid for pid, other in self._processes() if name in (None, other)), reverse=True)
            for pid in alive:
                end(pid)
            return not alive

        until(none_left, f"the end of {name or 'the cluster'}")


def spark_home() -> Path:
    """Where PySpark's own copy of Spark is, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def until(look: Callable[[], T], what: str, timeout_s: float = 300) -> T:
    """Looks until there is something to see, and answers it."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.05)
    return seen


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def command(pid: int) -> str:
    return read(Path("/proc", str(pid), "cmdline")).replace(b"\0", b" ").decode(errors="replace")


def end(pid: int) -> bool:
    """Kills a process; false if it had ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
