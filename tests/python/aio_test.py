"""agmm.aio: many tasks on one client, cancellation, lost daemons and the client's end."""

import asyncio
import concurrent.futures
import os
import pathlib
import signal
import threading
import weakref

import agmm
import agmm.aio
import numpy as np
import pytest
from support import A, B, LARGE, LONG, PATIENCE_S, SPEC, integers, start_long_job, stopped


SOON_S = 10  # before the silence of a connection ends its calls


@pytest.fixture(scope="module")
def daemon():
    daemon = agmm.local(2, heap="64MiB", threads=1)
    daemon.start()
    yield daemon
    daemon.close()


async def new_jobs(client, known, count):
    """Waits for `count` jobs whose ids are not in `known`, and returns the ids of all such jobs."""
    while True:
        found = {job.id for job in await client.jobs(1000)} - known
        if len(found) >= count:
            return sorted(found)
        await asyncio.sleep(0.01)


async def known_jobs(client):
    return {job.id for job in await client.jobs(1000)}


def test_a_product(run):
    async def body(client):
        a, b = integers(8, 6, 1), integers(6, 10, 2)
        w = await client.put("W", b, "[K, N_x]")
        c = await client.matmul(SPEC, a, w, out="C")
        assert c.job.state == agmm.JobState.SUCCEEDED and c.name == "C"
        assert np.array_equal(await c.numpy(), a @ b)
        out = np.empty((8, 10), np.float32)
        assert await client.get("C", out=out) is out and np.array_equal(out, a @ b)
        assert sorted(tensor.name for tensor in await client.tensors()) == ["C", "W"]
        await c.delete()
        with pytest.raises(agmm.NotFound):
            await client.tensor("C")
        with pytest.raises(TypeError, match="await"):
            np.asarray(w)
        assert (await client.world()).ready

    run(body)


def test_each_line_whose_elements_overflow_is_warned_of(run):
    async def body(client):
        large = np.full((4, 4), 1e30, np.float32)
        with pytest.warns(RuntimeWarning, match="overflow encountered in cast from float32 to f16") as warned:
            await client.put("A", large, "[M, K]", dtype="f16")
            await client.put("A", large, "[M, K]", dtype="f16")
            await client.matmul(SPEC, large, B[:4], dtype="f16", out="C")
        assert [warning.filename for warning in warned] == [__file__] * 3
        assert len({warning.lineno for warning in warned}) == 3

    run(body)


def test_200_tasks_on_one_client_are_exact_and_none_is_lost(run):
    async def one(client, i):
        a, b = integers(6, 5, i), integers(5, 4, 1000 + i)
        await client.put(f"A{i}", a, "[M_x, K]")
        await client.put(f"B{i}", b, "[K, N_x]")
        if i % 2:
            info = await client.run(SPEC, f"A{i}", f"B{i}", f"C{i}")
        else:
            info = await (await client.submit(SPEC, f"A{i}", f"B{i}", f"C{i}"))
        assert info.state == agmm.JobState.SUCCEEDED
        assert np.array_equal(await client.get(f"C{i}"), a @ b)
        return i

    async def body(client):
        assert await asyncio.gather(*(one(client, i) for i in range(200))) == list(range(200))
        assert len(await client.tensors()) == 600

    run(body)


def test_200_runs_need_no_threads(run):
    def threads():
        return len(os.listdir("/proc/self/task"))

    def of_calls():
        return [thread for thread in threading.enumerate() if thread.name == "agmm.aio"]

    async def body(client):
        await client.put("A", integers(4, 4, 1), "[M_x, K]")
        await client.put("B", integers(4, 4, 2), "[K, N_x]")
        await client.run(SPEC, "A", "B", "C")
        while of_calls():
            await asyncio.sleep(0.01)
        before = threads()
        runs = [asyncio.ensure_future(client.run(SPEC, "A", "B", "C")) for _ in range(200)]
        await asyncio.sleep(0)
        assert not of_calls()
        assert threads() <= before + 50  # some of gRPC's
        assert all(info.state == agmm.JobState.SUCCEEDED for info in await asyncio.gather(*runs))

    run(body)


def test_a_cancelled_task_cancels_its_job(run):
    async def body(client):
        job = await start_long_job(client)
        waiting = asyncio.ensure_future(job.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(agmm.Cancelled) as raised:
            await job
        assert raised.value.reason == "CANCELLED"
        assert (await job.info()).state == agmm.JobState.CANCELLED

    run(body)


def test_a_deadline_of_asyncio_cancels_a_product(run):
    async def body(client):
        a = integers(512, 512, 1)
        known = await known_jobs(client)
        product = asyncio.ensure_future(client.matmul(SPEC, a, a, out="C", **LONG))
        (id,) = await new_jobs(client, known, 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(product, 0)
        with pytest.raises(agmm.Cancelled):
            await (await client.job(id))
        # The tensors of the arrays were deleted, too.
        assert all(tensor.name == "C" for tensor in await client.tensors())

    run(body)


def test_a_watch_sees_each_event_once(run):
    async def body(client):
        await client.put("A", integers(4, 4, 1), "[M_x, K]")
        await client.put("B", integers(4, 4, 2), "[K, N_x]")
        job = await client.submit(SPEC, "A", "B", "C")
        events = [event async for event in job.watch()]
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert events[-1].state == agmm.JobState.SUCCEEDED
        assert [event async for event in job.watch(after_event=events[-2].number)] == events[-1:]

    run(body)


def test_a_watch_ends_with_a_cancelled_job(run):
    async def body(client):
        job = await start_long_job(client)
        await job.cancel()
        assert [event.state async for event in job.watch()][-1] == agmm.JobState.CANCELLED

    run(body)


def test_a_cancelled_run_cancels_its_job(run):
    async def body(client):
        await client.fill("A", (512, 512), "[M_x, K]")
        await client.fill("B", (512, 512), "[K, N_x]")
        known = await known_jobs(client)
        run = asyncio.ensure_future(client.run(SPEC, "A", "B", "C", **LONG))
        (id,) = await new_jobs(client, known, 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(run, 0)
        with pytest.raises(agmm.Cancelled):
            await (await client.job(id))

    run(body)


def test_a_cancelled_put_ends_and_leaves_no_contents(run):
    async def body(client):
        moved, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def progress(moved_bytes, total_bytes):
            loop.call_soon_threadsafe(moved.set)
            assert go.wait(PATIENCE_S)

        array = np.zeros((4096, 2048), np.float32)
        putting = asyncio.ensure_future(client.put("P", array, "[M_x, K]", progress=progress))
        await moved.wait()
        putting.cancel()
        for _ in range(10):  # turns of the loop, in which the task stops its transfer
            await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await putting
        with pytest.raises(agmm.NotFound):
            await client.tensor("P")

    run(body)


def test_a_task_that_is_cancelled_twice_ends_after_its_transfer(run):
    async def body(client):
        await client.put("A", integers(64, 64, 1), "[M_x, K]")
        loop = asyncio.get_running_loop()
        moving, go, ended = asyncio.Event(), threading.Event(), threading.Event()

        def progress(moved_bytes, total_bytes):
            loop.call_soon_threadsafe(moving.set)
            assert go.wait(PATIENCE_S)
            ended.set()

        reading = asyncio.ensure_future(client.get("A", progress=progress))
        await moving.wait()
        for _ in range(3):
            reading.cancel()
            for _ in range(10):  # turns of the loop, in which the task would end
                await asyncio.sleep(0)
        assert not reading.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert ended.is_set()

    run(body)


def test_a_cancelled_watch_cancels_its_job(run):
    async def body(client):
        job = await start_long_job(client)

        async def watch():
            async for _ in job.watch(after_event=2):
                pass

        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        with pytest.raises(agmm.Cancelled):
            await job
        with pytest.raises(agmm.InvalidArgument, match="after_event"):
            job.watch(-1)
        with pytest.raises(agmm.InvalidArgument, match="timeout"):
            job.watch(timeout=-1)

    run(body)


def test_a_job_can_be_cancelled_while_all_threads_of_transfers_wait_for_it(run):
    async def body(client):
        job = await start_long_job(client)
        reads = [asyncio.ensure_future(client.get("C")) for _ in range(40)]  # more than there are threads
        await asyncio.sleep(0)
        await job.cancel()
        for result in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(result, agmm.Error), repr(result)

    run(body)


FAILURES = {
    "a transfer": lambda client: client.put("P", A, "no sharding"),
    "a short call": lambda client: client.tensor("absent"),
    "a call that waits for a mapping's turn": lambda client: client.fill("P", (4, 4), "no sharding"),
    "a run": lambda client: client.run(SPEC, "absent", "B", "C"),
    "a product": lambda client: client.matmul("A[M_y, K] * B[K, N_x] -> C[M, N_x]", A, B),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_the_error_of_a_call_goes_without_the_collector(run, no_collector, kind):
    async def body(client):
        try:
            await FAILURES[kind](client)
        except agmm.Error as error:
            failed = weakref.ref(error)
        while failed() is not None:  # the call's thread may be about to end
            await asyncio.sleep(0.01)

    run(body)


def test_the_error_of_a_watch_goes_without_the_collector(run, no_collector):
    async def body(client):
        job = await start_long_job(client)
        try:
            async for _ in job.watch(timeout=0.5):
                pass
        except agmm.DeadlineExceeded as error:
            failed = weakref.ref(error)
        while failed() is not None:  # the library's thread may have it
            await asyncio.sleep(0.01)
        await job.cancel()

    run(body)


def test_loops_of_several_threads_share_a_client(daemon):
    with agmm.connect(daemon.endpoint) as blocking:
        client = agmm.aio.AsyncClient(blocking)

        def use(_):
            async def main():
                worlds = await asyncio.gather(*(client.world() for _ in range(100)))
                return all(world.ready for world in worlds)

            return asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert list(pool.map(use, range(8))) == [True] * 8


def test_a_get_that_waits_for_a_job_can_be_cancelled(run):
    async def body(client):
        job = await start_long_job(client)
        reading = asyncio.ensure_future(client.get("C"))
        await asyncio.sleep(0)  # the call begins on its thread; it cannot end before the job
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert (await job.info()).state == agmm.JobState.RUNNING
        await job.cancel()

    run(body)


def test_the_loop_runs_while_transfers_do(run):
    async def body(client):
        moving, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def progress(moved_bytes, total_bytes):
            loop.call_soon_threadsafe(moving.set)
            assert go.wait(PATIENCE_S)

        putting = asyncio.ensure_future(client.put("P", integers(64, 64, 1), "[M_x, K]", progress=progress))
        await moving.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not putting.done()
        go.set()
        await putting

    run(body)


def test_a_killed_daemon_gives_each_task_its_error():
    async def body(client, pid):
        job = await start_long_job(client)
        waits = [asyncio.ensure_future(job.wait()) for _ in range(20)]
        reads = [asyncio.ensure_future(client.get("C")) for _ in range(5)]
        known = await known_jobs(client)
        runs = [asyncio.ensure_future(client.run(SPEC, "A", "B", f"D{i}")) for i in range(20)]
        await new_jobs(client, known, len(runs))
        os.kill(pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*waits, *reads, *runs, return_exceptions=True), PATIENCE_S)
        for result in results:
            assert isinstance(result, (agmm.Unavailable, agmm.Aborted, agmm.Cancelled)), repr(result)

    async def main(endpoint, pid):
        async with agmm.aio.connect(endpoint, session=True) as client:
            await body(client, pid)

    daemon = agmm.local(2, heap="64MiB", threads=1)
    daemon.start()
    try:
        asyncio.run(main(daemon.endpoint, int(pathlib.Path(daemon.endpoint + ".lock").read_text())))
    finally:
        daemon.close()


def test_a_close_ends_the_tasks_that_wait(run):
    async def body(client):
        job = await start_long_job(client)
        waits = [asyncio.ensure_future(job.wait()) for _ in range(20)]
        known = await known_jobs(client)
        runs = [asyncio.ensure_future(client.run(SPEC, "A", "B", f"D{i}")) for i in range(20)]
        reads = [asyncio.ensure_future(client.get("C")) for _ in range(40)]  # more than there are threads
        await new_jobs(client, known, len(runs))
        await client.close()
        for result in await asyncio.gather(*waits, *runs, *reads, return_exceptions=True):
            # The session may end before the reads, and its tensors with it.
            assert isinstance(result, (agmm.Cancelled, agmm.FailedPrecondition, agmm.NotFound)), repr(result)
        assert client.closed
        with pytest.raises(agmm.FailedPrecondition):
            await client.run(SPEC, "A", "B", "C")

    run(body)


def test_clients_are_made_by_await_too(daemon):
    async def main():
        client = await agmm.aio.connect(daemon.endpoint)
        assert not client.closed
        await client.close()
        with pytest.raises(agmm.Unavailable):
            await agmm.aio.connect("/no/daemon")

    asyncio.run(main())


def test_a_client_survives_the_end_of_a_loop_with_tasks(daemon):
    async def main(client):
        job = await start_long_job(client)
        known = await known_jobs(client)
        asyncio.ensure_future(job.wait())
        asyncio.ensure_future(client.run(SPEC, "A", "B", "D"))
        await new_jobs(client, known, 1)

    with agmm.connect(daemon.endpoint, session=True) as blocking:
        asyncio.run(main(agmm.aio.AsyncClient(blocking)))
        assert blocking.world().ready


def test_a_cancelled_submit_leaves_no_job():
    async def body(local):
        async with agmm.aio.connect(local.endpoint, session=True) as client:
            for operand, matrix in LARGE.items():
                await client.fill(operand, *matrix)
            with stopped(local):
                submitting = asyncio.ensure_future(client.submit(SPEC, "A", "B", "C", **LONG))
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(submitting, 0.5)
            while [job.state for job in await client.jobs()] != [agmm.JobState.CANCELLED]:
                await asyncio.sleep(0.01)

    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local:
        asyncio.run(asyncio.wait_for(body(local), PATIENCE_S))


def test_the_cancellation_of_a_job_does_not_wait_for_a_daemon_that_hangs():
    async def body(local):
        async with agmm.aio.connect(local.endpoint, session=True) as client:
            job = await start_long_job(client)

            async def watch():
                async for _ in job.watch(after_event=2):
                    pass

            with stopped(local):
                calls = [asyncio.ensure_future(call) for call in (job.wait(), watch())]
                await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
                done, _ = await asyncio.wait(calls, timeout=SOON_S)
                assert all(call.cancelled() for call in calls), done

    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local:
        asyncio.run(asyncio.wait_for(body(local), PATIENCE_S))


def test_a_plain_with_says_to_write_async_with(run):
    async def body(client):
        await client.put("A", A, "[M_x, K]")
        with pytest.raises(TypeError, match="async with"), client.map("A"):
            pass
        with pytest.raises(TypeError, match="async with"), agmm.aio.connect(client.endpoint):
            pass

    run(body)
