"""A real Ray cluster of several nodes on this one host, for tests: a head and some small nodes.

It lives in a process of its own, which answers one word of command at a time: Ray prints the state
of dying nodes wherever it can.
"""

import contextlib
import os
import random
import subprocess
import sys

import psutil

TOKEN = "of-the-tests-" + "0" * 32
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
SMALL = {"object_store_memory": 80 << 20, "include_dashboard": False}


class RayCluster:
    """A head without CPUs and nodes of one CPU each, up between `with` and its end."""

    def __init__(self, nodes=3):
        self.nodes = nodes
        self.env = dict(ENVIRONMENT)

    def __enter__(self):
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(self.nodes), str(write)],
            env=os.environ | self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[write],
            start_new_session=True,
            text=True,
        )
        os.close(write)
        self.answers = os.fdopen(read)
        self.address = self.answers.readline().strip()
        assert self.address, "the cluster did not start"
        return self

    def __exit__(self, *_):
        family = _family(self.process.pid)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.communicate("", timeout=20)
        self.process.kill()
        self.process.wait()
        _kill(family)
        self.answers.close()

    def order(self, word):
        """SIGKILL the head or a node with all that it runs, or a raylet alone; or start a node.

        The workers of a raylet live on for a moment, as those of a node that is cut off do.
        """
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        assert self.answers.readline() == "done\n", f"the cluster died of '{word}'"


def _family(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _kill(processes):
    """Stop all before any is killed: none lives to see another's death."""
    for send in (psutil.Process.suspend, psutil.Process.kill):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                send(process)


def keep_cluster(many, answers):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    nodes = [cluster.add_node(num_cpus=1, **SMALL) for _ in range(many)]
    chance = random.Random(0)
    print(cluster.address, file=answers, flush=True)
    for line in sys.stdin:
        if line.strip() == "start":
            nodes.append(cluster.add_node(num_cpus=1, **SMALL))
        elif line.strip() == "node":
            one = nodes.pop(chance.randrange(len(nodes)))
            if chance.random() < 0.5:
                raylet = one.all_processes["raylet"][0].process.pid
                _kill([psutil.Process(raylet), *_family(raylet)])
            cluster.remove_node(one, allow_graceful=False)
        elif line.strip() == "head":
            cluster.remove_node(cluster.head_node, allow_graceful=False)
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[2]), "w") as pipe:
        keep_cluster(int(sys.argv[1]), pipe)
