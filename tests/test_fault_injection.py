"""Accidents at random moments: each costs one measurement at most, and leaves nothing behind.

``pytest tests/test_fault_injection.py --faults 50 --log-cli-level INFO`` has 50 of them and tells
how each ended. Each hits one of the two workers while three placements are compared: somewhere
in their initialisations, first steps and timed steps, which are 18 calls together.
"""

import logging
import os
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from placer.devices import DeviceTopology, Link
from placer.environment import Outcome
from placer.placement import Placement
from profiling.placed_step import PlacedStep
from profiling.real_environment import MeasurementConfig, RealEnvironment
from tests.steps import all_on, captured

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow

v1 = tf.compat.v1
_log = logging.getLogger(__name__)

NUM_TIMED = 4
NUM_CALLS = 3 * (2 + NUM_TIMED)
CONFIG = MeasurementConfig(
    max_warmup_steps=1,
    min_timed_steps=NUM_TIMED,
    max_timed_steps=NUM_TIMED,
    # TensorFlow waits 10 s for memory, and once more, before it reports that there is none.
    timeout_s=25,
    min_timeout_s=2,
)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def stop(pid):
    os.kill(pid, signal.SIGSTOP)


def limit_memory(pid):
    """Leave the process a mebibyte more than it has."""
    used_bytes = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (used_bytes + 2**20, hard))


def lift_limit(pid):
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))


FAULTS = (kill, stop, limit_memory)


def hungry_step():
    """Two losses of a variable each; either needs 32 MiB, and as much again to compute."""
    with tf.Graph().as_default() as graph:
        losses, initializers = [], []
        for name in ("first", "second"):
            variable = v1.get_variable(name, initializer=tf.ones([2**23]), use_resource=True)
            initializers.append(variable.initializer)
            with tf.name_scope(f"{name}_loss"):
                losses.append(tf.reduce_mean(variable * variable))
        return captured("hungry", graph, losses[0] + losses[1], [], initializers)


def second_loss_on_1(step):
    return Placement([int(op.name.startswith("second")) for op in step.op_graph.ops])


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        numbers = range(metafunc.config.getoption("--faults"))
        names = [f"{number}-{FAULTS[number % len(FAULTS)].__name__}" for number in numbers]
        metafunc.parametrize("number", numbers, ids=names)


@pytest.fixture(scope="module")
def step():
    return hungry_step()


@pytest.fixture(scope="module")
def environment(step, cluster):
    return RealEnvironment(step, DeviceTopology.uniform(2, Link(1e9), kind="CPU"), cluster, CONFIG)


@pytest.fixture
def with_fault(monkeypatch):
    """Arm a fault: it strikes within 30 ms of a call's begin."""
    struck = []

    def arm(fault, pid, *, at_call, delay_s):
        call = PlacedStep._call
        num_calls = 0

        def strike():
            fault(pid)
            struck.append(pid)

        def counted(self, *arguments):
            nonlocal num_calls
            num_calls += 1
            if num_calls == at_call:
                threads.append(threading.Timer(delay_s, strike))
                threads[-1].start()
            return call(self, *arguments)

        monkeypatch.setattr(PlacedStep, "_call", counted)

    threads: list[threading.Timer] = []
    yield arm, struck
    for thread in threads:
        thread.join()


def test_an_accident_costs_one_measurement_at_most(environment, step, cluster, with_fault, number):
    arm, struck = with_fault
    rng = np.random.default_rng(number)
    fault, worker = FAULTS[number % len(FAULTS)], int(rng.integers(2))
    if fault is limit_memory:
        # A worker that has served others has memory in store.
        cluster.restart(worker)
    before = cluster.pids
    at_call, delay_s = int(rng.integers(1, NUM_CALLS)), rng.uniform(0, 0.03)
    arm(fault, before[worker], at_call=at_call, delay_s=delay_s)
    placements = [all_on(step, 0), second_loss_on_1(step), all_on(step, 1)]

    compared = environment.compare(placements)
    for pid in cluster.pids:
        lift_limit(pid)
    after = environment.measure(placements)

    failed = [one for one in [*compared, *after] if one.outcome is not Outcome.OK]
    _log.info("%s of worker %d: %s", fault.__name__, worker, failed or "all were measured")
    assert struck == [before[worker]]
    assert (len(compared), len(after)) == (3, 3)
    # None at all, if the worker was not needed any more, or had memory enough. A worker that is
    # stopped when the comparison no longer needs it is missed in the measurement after.
    assert len(failed) <= 1
    for one in failed:
        assert_is_the_outcome_of(one, fault, worker)
    for one in [*compared, *after]:
        assert one in failed or len(one.samples_s) == NUM_TIMED
    assert cluster.lost_workers() == {}
    for pid in set(before) - set(cluster.pids):
        assert not Path(f"/proc/{pid}").exists()


def assert_is_the_outcome_of(measurement, fault, worker):
    if fault is kill:
        assert measurement.outcome is Outcome.CRASHED
        assert measurement.detail == f"worker {worker} was killed by SIGKILL"
    elif fault is stop:
        assert measurement.outcome is Outcome.TIMED_OUT
        assert "did not end within" in measurement.detail
    else:
        # A step after the first one waits for memory only as long as it may take.
        assert measurement.outcome is not Outcome.OK
        assert measurement.detail
