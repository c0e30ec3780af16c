"""What a container grants: memory and CPUs by its control groups, of either version."""

import math
import sys

import pytest

from llama_ablate.launch import local
from llama_ablate.training import compute, containers

GB = 10**9
#: A limit of memory around a job's group that is wider, and a limit of CPU time.
VERSION_2 = {
    "memory.max": "max",
    "jobs/memory.max": f"{8 * GB}",
    "jobs/memory.current": f"{3 * GB}",
    "jobs/memory.stat": f"anon {GB}\nfile {GB}\ninactive_file {GB}",
    "jobs/cpu.max": "250000 100000",
    "jobs/one/memory.max": f"{32 * GB}",
    "jobs/one/memory.current": f"{2 * GB}",
    "jobs/one/cpu.max": "max 100000",
}
#: In a container, whose groups' paths are those of the machine around it.
VERSION_1 = {
    "memory/memory.limit_in_bytes": f"{8 * GB}",
    "memory/memory.usage_in_bytes": f"{3 * GB}",
    "memory/memory.stat": f"cache {GB}\ntotal_inactive_file {GB}",
    "cpu/cpu.cfs_quota_us": "250000",
    "cpu/cpu.cfs_period_us": "100000",
}
NO_LIMIT = {
    "memory/memory.limit_in_bytes": f"{sys.maxsize // 4096 * 4096}",
    "memory/memory.usage_in_bytes": f"{3 * GB}",
    "cpu/cpu.cfs_quota_us": "-1",
    "cpu/cpu.cfs_period_us": "100000",
}
GROUPS_1 = "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n1:name=systemd:/docker/a\n0::/x\n"


@pytest.mark.parametrize(
    ("files", "groups", "memory", "cpus"),
    [
        (VERSION_2, "0::/jobs/one\n", 6 * GB, 2.5),
        (VERSION_1, GROUPS_1, 6 * GB, 2.5),
        (NO_LIMIT, GROUPS_1, math.inf, math.inf),
        ({}, "0::/\n", math.inf, math.inf),
        ({}, None, math.inf, math.inf),
    ],
    ids=["version 2", "version 1", "no limit", "no files", "no control groups"],
)
def test_the_least_limit_of_all_groups_around_a_process_counts(
    files, groups, memory, cpus, tmp_path
):
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    if groups:
        (tmp_path / "groups").write_text(groups)
    given = (tmp_path / "root", tmp_path / "groups")
    assert containers.memory_left(*given) == memory
    assert containers.cpus(*given) == cpus


def test_a_containers_limits_decide_how_many_workers_start_and_are_described(monkeypatch):
    monkeypatch.setattr(local, "cores", lambda: 16)
    monkeypatch.setattr(containers, "cpus", lambda: math.inf)
    monkeypatch.setattr(containers, "memory_left", lambda: math.inf)
    assert local.default_workers("cpu") == 16
    assert local.describe_limits() == ""
    monkeypatch.setattr(containers, "cpus", lambda: 2.5)
    monkeypatch.setattr(containers, "memory_left", lambda: 2e6)
    assert local.default_workers("cpu") == 2
    assert local.default_workers("cpu", ranks=4) == 1
    assert compute.free_bytes("cpu") == 2_000_000
    assert local.describe_limits() == ("this container has 2.5 CPUs and 0.0 GB of memory, now free")
