"""A daemon that is killed: calls end with an error, and mapped arrays say so."""

import concurrent.futures
import os
import pathlib
import signal

import agmm
import numpy as np
import pytest
from support import LARGE, LONG, PATIENCE_S, SPEC, wait_until

LOST = (agmm.Unavailable, agmm.Aborted, agmm.Cancelled)


def test_calls_end_when_their_daemon_is_killed():
    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local, concurrent.futures.ThreadPoolExecutor(8) as pool:
        # Without a session, calls are repeated for 10 s.
        client = agmm.connect(local.endpoint, session=True)
        for operand, matrix in LARGE.items():
            client.fill(operand, *matrix)
        mapping = client.fill("D", (8, 8), "[M_x, K]").map()
        row = mapping.array[0]
        job = client.submit(SPEC, "A", "B", "C", **LONG)
        events = job.watch()
        while next(events).state is not agmm.JobState.RUNNING:
            pass
        calls = [pool.submit(job.wait), pool.submit(client.get, "C"), pool.submit(client.run, SPEC, "A", "B", "C"),
                 pool.submit(list, events), pool.submit(client.put, "C", np.ones((512, 512), np.float32).T, "[M, N_x]")]
        future = job.done()
        os.kill(int(pathlib.Path(local.endpoint + ".lock").read_text()), signal.SIGKILL)
        for call in [*calls, future]:
            with pytest.raises(LOST) as lost:
                call.result(PATIENCE_S)
            assert "\n" not in str(lost.value)
        wait_until(lambda: "was lost" in mapping._mapping.status)
        with pytest.raises(agmm.FailedPrecondition, match="was lost"):
            row.sum()
        with pytest.raises(LOST):
            client.world()
        mapping.close()
        client.close()
