"""agmm.aio: mappings, and the turns of calls that wait for them."""

import asyncio
import sys
import threading
import warnings

import agmm
import agmm.aio
import numpy as np
import pytest
from support import A, PATIENCE_S, integers, start_long_job, stopped


def test_a_mapping_is_shared_memory(run):
    async def body(client):
        await client.put("A", integers(4, 4, 1), "[M, K]", ranks=[0])
        with await client.map("A", writable=True) as mapping:
            mapping.array[:] = 7
            assert (await mapping.commit()).version > mapping.tensor.version
        assert np.array_equal(await client.get("A"), np.full((4, 4), 7, np.float32))

    run(body)


def test_a_mapping_lasts_over_commits(run):
    async def body(client):
        await client.put("A", np.ones((4, 4), np.float32), "[M, K]", ranks=[0])
        with await client.map("A", writable=True) as writer:
            await writer.commit()
            with await client.map("A") as reader:
                for value in range(1, 6):
                    await reader.release()
                    await writer.renew()
                    writer.write(np.full((4, 4), value, np.float32))
                    await writer.commit()
                    tensor = await reader.renew()
                    assert reader.tensor.version == tensor.version
                    assert np.array_equal(await tensor.numpy(), reader.read())
                    assert reader.array[0, 0] == value

    run(body)


@pytest.mark.parametrize("turn_comes", [False, True])
def test_a_cancelled_map_leaves_the_contents(run, turn_comes):
    async def body(client):
        job = await start_long_job(client)
        before = await client.get("A")
        mapping = asyncio.ensure_future(client.map("A", writable=True))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(mapping), 0.5)
        if turn_comes:  # at about the same time
            await job.cancel()
        mapping.cancel()
        await asyncio.wait([mapping])
        if turn_comes and not mapping.cancelled():  # it came first
            await mapping.result().commit()
        else:
            assert mapping.cancelled()
        if not turn_comes:
            await job.cancel()
        np.testing.assert_array_equal(await client.get("A"), before)

    run(body)


def test_the_tensor_of_a_mapping_is_awaited(run):
    async def body(client):
        a = integers(4, 4, 1)
        await client.put("A", a, "[M, K]", ranks=[0])
        with await client.map("A") as mapping:
            assert type(mapping.tensor) is agmm.aio.AsyncTensor
            assert np.array_equal(await mapping.tensor.numpy(), a)
            await mapping.release()
            await client.put("A", 2 * a, "[M, K]", ranks=[0])
            assert (await mapping.renew()) is mapping.tensor
            assert type(mapping.tensor) is agmm.aio.AsyncTensor
            assert np.array_equal(await mapping.tensor.numpy(), 2 * a)

    run(body)


def test_a_mapping_is_awaited_or_entered(run):
    async def body(client):
        tensor = await client.fill("A", (8, 8), "[M, N]", kind="constant", value=1, ranks=[0])
        async with client.map("A", writable=True) as mapping:
            mapping.array[:] = 2
            await mapping.commit()
        async with tensor.map() as mapping:
            assert (mapping.array == 2).all()
        assert mapping.detached
        with await client.map("A") as mapping:
            assert not mapping.detached
        with await asyncio.create_task(client.map("A")):
            pass
        for mapping in await asyncio.gather(client.map("A"), tensor.map()):
            mapping.close()
        with pytest.raises(LookupError, match="of the block"):
            async with client.map("A") as mapping:
                raise LookupError("of the block")
        assert mapping.detached

    run(body)


def test_a_mapping_that_is_not_committed_warns_at_the_line_of_the_block(run):
    async def body(client):
        await client.fill("A", (8, 8), "[M, N]", ranks=[0])
        with pytest.warns(RuntimeWarning, match="of tensor 'A' ends without commit") as warned:
            async with client.map("A", writable=True) as mapping:
                mapping.array[:] = 2
        assert [warning.filename for warning in warned] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(LookupError):
                async with client.map("A", writable=True) as mapping:
                    raise LookupError
            async with client.map("A", writable=True) as mapping:
                await mapping.commit()

    run(body)


@pytest.mark.parametrize("call", [
    lambda client, mapping: mapping.renew(timeout=PATIENCE_S),
    lambda client, mapping: client.map("A", timeout=PATIENCE_S),
    lambda client, mapping: client.fill("A", (4, 4), "[M, K]", ranks=[0], timeout=PATIENCE_S),
], ids=["renew", "map", "fill"])
def test_calls_that_wait_for_a_commit_do_not_hold_it_up(run, monkeypatch, call):
    monkeypatch.setattr(agmm.aio, "_THREADS", 2)

    async def body(client):
        await client.put("A", np.ones((4, 4), np.float32), "[M, K]", ranks=[0])
        mappings = []
        for _ in range(4):
            mappings.append(await client.map("A", writable=True))
            await mappings[-1].commit()
        holder = mappings.pop()
        await holder.renew()

        async def use(mapping):
            for each in (await call(client, mapping), mapping):
                if isinstance(each, agmm.Mapping):
                    each.close()

        waiting = [asyncio.ensure_future(use(mapping)) for mapping in mappings]
        await asyncio.sleep(0)  # they have their turns
        await holder.commit()
        await asyncio.gather(*waiting)

    run(body)


def test_cancelled_calls_keep_their_turns_until_their_threads_end(run, monkeypatch):
    monkeypatch.setattr(agmm.aio, "_THREADS", 2)

    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "agmm.aio"]

    async def body(client):
        await client.put("A", np.ones((4, 4), np.float32), "[M, K]", ranks=[0])
        mapping = await client.map("A", writable=True)
        while threads():  # those before may be about to end
            await asyncio.sleep(0.01)
        for _ in range(10):
            filling = asyncio.ensure_future(client.fill("A", (4, 4), "[M, K]", ranks=[0], timeout=PATIENCE_S))
            for _ in range(10):  # turns of the loop, in which it begins
                await asyncio.sleep(0)
            filling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await filling
        assert len(threads()) == 2
        await mapping.commit()
        for _ in range(4):
            await client.fill("A", (4, 4), "[M, K]", ranks=[0])

    run(body)


def test_a_commit_that_is_cancelled_before_its_turn_has_not_begun(run, monkeypatch):
    monkeypatch.setattr(agmm.aio, "_THREADS", 1)

    async def body(client):
        await client.put("A", np.ones((4, 4), np.float32), "[M, K]", ranks=[0])
        mapping = await client.map("A", writable=True)
        async with client._turns().calls:
            committing = asyncio.ensure_future(mapping.commit())
            await asyncio.sleep(0)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
        started = []
        with monkeypatch.context() as patch:
            patch.setattr(agmm.aio, "_start", started.append)
            mapping.close()
        assert mapping.detached and not started

    run(body)


def in_commit():
    return any(frame.f_code.co_name == "commit" for frame in sys._current_frames().values())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_loop_runs_while_a_mapping_ends_after_a_cancelled_commit(asynchronous):
    async def main(daemon):
        async with agmm.aio.connect(daemon.endpoint) as client:
            await client.fill("A", (4, 4), "[M, K]")
            mapping = await client.map("A", writable=True)

            async def work():
                if asynchronous:
                    async with mapping:
                        await mapping.commit()
                else:
                    with mapping:
                        await mapping.commit()

            with stopped(daemon):
                task = asyncio.ensure_future(work())
                while not mapping.detached:  # by the commit, which the daemon will read
                    await asyncio.sleep(0.01)
                task.cancel()
                for _ in range(10):
                    await asyncio.sleep(0.01)
                assert in_commit() and task.done() is not asynchronous
            with pytest.raises(asyncio.CancelledError):
                await task
            while not (await client.tensor("A")).has_contents:  # the daemon may answer this before it has read the commit
                await asyncio.sleep(0.01)

    with agmm.local(1, heap="16MiB", threads=1) as daemon:
        asyncio.run(asyncio.wait_for(main(daemon), PATIENCE_S))
