"""Jobs: waits, events, futures, cancellation and errors."""

import concurrent.futures
import datetime
import json
import pickle
import threading
import types
import weakref

import agmm
import numpy as np
import pytest
from support import A, B, LONG, PATIENCE_S, SPEC, wait_until

pytestmark = pytest.mark.usefixtures("operands")


def started(job):
    """Waits for the job's second event, that it runs."""
    for event in job.watch():
        if event.state == agmm.JobState.RUNNING:
            return job
    raise AssertionError("the job ended")


def test_a_wait_returns_the_job_with_its_figures(client):
    job = client.submit(SPEC, "A", "B", "C")
    info = job.wait()
    assert info.id == job.id and info.state is agmm.JobState.SUCCEEDED and info.error is None
    assert (info.m, info.n, info.k, info.type, info.result_type) == (50, 40, 30, np.float32, np.float32)
    assert info.figures.time_us > 0 and info.figures.flop_count == 2 * 50 * 40 * 30
    assert info.explanation and info.spec == SPEC and info.owner.startswith("uid:")
    assert info.create_time <= info.start_time <= info.end_time
    assert abs(datetime.datetime.now(datetime.timezone.utc) - info.end_time) < datetime.timedelta(hours=1)
    np.testing.assert_array_equal(client.get("C"), A @ B)
    assert client.job(job.id).info() == info == pickle.loads(pickle.dumps(info))
    assert info in client.jobs(limit=5)
    with pytest.raises(AttributeError):
        info.m = 1


def test_a_trace_has_the_steps_of_all_ranks(client):
    job = client.submit(SPEC, "A", "B", "C")
    job.wait()
    steps = [event for event in json.loads(job.trace())["traceEvents"] if event["ph"] == "X"]
    assert len({(step["pid"], step["tid"]) for step in steps}) > 1


def test_a_run_is_a_submit_and_a_wait(client):
    info = client.run(SPEC, client.tensor("A"), "B", "C", chunks=np.int64(1), mesh="x=2", ranks=np.arange(2), split="N=x")
    assert info == client.job(info.id).info()
    np.testing.assert_array_equal(client.get("C"), A @ B)
    info = client.run("X[M_x, K] * Y[K, N_x] -> Z[M, N_x]:f32", tensors={"X": "A", "Y": client.tensor("B"), "Z": "C"})
    assert info.spec.startswith("X[")


def test_a_matmul_takes_arrays_names_and_tensors(client):
    c = client.matmul(SPEC, A, "B")
    np.testing.assert_array_equal(c.numpy(), A @ B)
    assert c.job.state is agmm.JobState.SUCCEEDED
    np.testing.assert_array_equal(client.matmul(SPEC, client.tensor("A"), np.asfortranarray(B), out="D").numpy(), A @ B)
    assert client.matmul(SPEC, A, B.astype(np.float64), out="E", dtype="f16", ranks=[1]).dtype == np.float16
    assert {tensor.name for tensor in client.tensors()} == {"A", "B", "D", "E", c.name}, "temporary tensors are left"


def test_a_matmul_that_fails_leaves_nothing(client):
    before = {tensor.name for tensor in client.tensors()}
    with pytest.raises(agmm.InvalidArgument):
        client.matmul(SPEC, A, A)
    with pytest.raises(agmm.InvalidArgument, match="is not a product"):
        client.matmul("A[M_x, K] -> B[M, K]", A, B)
    with pytest.raises(agmm.InvalidArgument, match="float64"):
        client.matmul(SPEC, A, np.zeros((30, 40)))
    with pytest.raises(agmm.DeadlineExceeded):
        client.matmul(SPEC, A, B, repeat=1_000_000, timeout=0.5)
    assert {tensor.name for tensor in client.tensors()} == before


def test_a_product_in_one_line(client, monkeypatch, daemon):
    np.testing.assert_array_equal(agmm.matmul(A, B, client=client), A @ B)
    monkeypatch.setenv("AGMM_ENDPOINT", daemon.endpoint)
    out = np.empty((50, 40), np.float32)
    assert agmm.matmul(A, B, out=out) is out
    np.testing.assert_array_equal(out, A @ B)
    np.testing.assert_array_equal(agmm.matmul(A, B, spec="X[M, K_x] * Y[K_x, N] -> Z[M_x, N]"), A @ B)


def test_events_come_in_order(client):
    job = client.submit(SPEC, "A", "B", "C")
    events = list(job.watch())
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [event.state.name for event in events] == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert list(job.watch(after_event=events[0].number)) == events[1:]


def test_a_watch_that_is_dropped_before_its_first_event_ends(client, monkeypatch):
    answers = []

    class Watch(agmm.job._Watch):
        def on_event(self, fields):
            answers.append(super().on_event(fields))
            return answers[-1]

    monkeypatch.setattr(agmm.job, "_Watch", Watch)
    job = client.submit(SPEC, "A", "B", "C", **LONG)
    events = job.watch()
    wait_until(lambda: len(answers) == 2)  # it is queued, and it runs
    del events
    job.cancel()
    wait_until(lambda: len(answers) == 3)
    assert answers == [True, True, False]


def test_the_error_of_a_watch_goes_without_the_collector(client, no_collector):
    job = client.submit(SPEC, "A", "B", "C", **LONG)
    try:
        list(job.watch(timeout=0.5))
    except agmm.DeadlineExceeded as error:
        failed = weakref.ref(error)
    wait_until(lambda: failed() is None)  # the library's thread may have it
    job.cancel()


def test_a_watch_may_end_early(client):
    job = client.submit(SPEC, "A", "B", "C", **LONG)
    assert next(job.watch()).state is agmm.JobState.QUEUED
    started(job).cancel()
    events = list(job.watch())
    assert events[-1].state is agmm.JobState.CANCELLED


@pytest.mark.parametrize("error", [agmm.Unavailable("lost"), agmm.FailedPrecondition("closed")])
def test_a_watch_that_cannot_cancel_keeps_the_handlers_exception(client, monkeypatch, error):
    def refuse(self, *, timeout=None):
        raise error

    job = client.submit(SPEC, "A", "B", "C", **LONG)
    events = job.watch()
    next(events)
    with monkeypatch.context() as patch:
        patch.setattr(agmm.Job, "cancel", refuse)
        with pytest.raises(KeyboardInterrupt):
            events.throw(KeyboardInterrupt)
    job.cancel()


def test_descriptions_are_short(client, daemon):
    info = client.run(SPEC, "A", "B", "C")
    assert str(info.state) == f"{info.state}" == "SUCCEEDED" and f"{info.state:>10}" == " SUCCEEDED"
    assert repr(info).startswith(f"JobInfo({info.id}, SUCCEEDED, {info.algorithm}") and repr(info).endswith(" us)")
    assert len(repr(info)) < 120
    assert repr(client) == f"<agmm.Client of {daemon.endpoint}>"
    assert repr(client.tensor("C")).endswith("version=1)")


def test_handles_say_what_to_send_in_their_place(client):
    with pytest.raises(TypeError, match="send its handle, '#"):
        pickle.dumps(client.tensor("A"))
    with pytest.raises(TypeError, match="send its id, [0-9]+, and use"):
        pickle.dumps(client.submit(SPEC, "A", "B", "C"))


def test_a_cancelled_job_says_so(client):
    job = started(client.submit(SPEC, "A", "B", "C", **LONG))
    with pytest.raises(agmm.DeadlineExceeded) as late:
        job.wait(timeout=0.5)
    assert late.value.reason == "" and isinstance(late.value, TimeoutError)
    assert job.info().state is agmm.JobState.RUNNING
    job.cancel()
    with pytest.raises(agmm.Cancelled) as cancelled:
        job.wait()
    assert (cancelled.value.code, cancelled.value.reason) == ("CANCELLED", "CANCELLED")
    info = job.info()
    assert info.state is agmm.JobState.CANCELLED and type(info.error) is agmm.Cancelled
    job.cancel()


def test_a_deadline_fails_the_job(client):
    job = client.submit(SPEC, "A", "B", "C", repeat=1_000_000, timeout=0.5)
    with pytest.raises(agmm.DeadlineExceeded) as late:
        job.wait()
    assert late.value.reason == "DEADLINE"
    assert list(job.watch())[-1].state is agmm.JobState.FAILED


def test_a_future_has_the_outcome(client):
    job = client.submit(SPEC, "A", "B", "C")
    future = job.done()
    assert future.result(PATIENCE_S) == job.info()
    late = started(client.submit(SPEC, "A", "B", "C", **LONG))
    future, unwanted = late.done(), late.done()
    threads = []
    future.add_done_callback(lambda _: threads.append(threading.current_thread()))
    assert unwanted.cancel()
    late.cancel()
    with pytest.raises(agmm.Cancelled):
        future.result(PATIENCE_S)
    assert threads != [threading.current_thread()]
    assert concurrent.futures.wait([future, unwanted], PATIENCE_S).not_done == set()


def fail(*_):
    raise LookupError("of the conversion")


@pytest.mark.parametrize("place", ["agmm.errors.from_status", "agmm.job.job_info"])
def test_a_future_of_an_outcome_that_cannot_be_converted_has_the_exception(client, monkeypatch, place):
    job = started(client.submit(SPEC, "A", "B", "C", **LONG))
    succeeding = client.submit(SPEC, "A", "B", "D")
    monkeypatch.setattr(place, fail)
    future = (job if place == "agmm.errors.from_status" else succeeding).done()
    job.cancel()
    with pytest.raises(LookupError, match="of the conversion"):
        future.result(PATIENCE_S)


def test_a_client_cannot_be_closed_in_a_callback(client, daemon):
    with agmm.connect(daemon.endpoint) as other:
        result = other.matmul(SPEC, A, B)
        refused = []

        def close(future):
            try:
                other.close()
            except agmm.FailedPrecondition as error:
                refused.append(error)
            refused.append(None)

        job = started(client.submit(SPEC, "A", "B", "C", **LONG))
        future = other.job(job.id).done()
        future.add_done_callback(close)
        job.cancel()
        with pytest.raises(agmm.Cancelled):
            future.result(PATIENCE_S)
        np.testing.assert_array_equal(result.numpy(), A @ B)
    assert isinstance(refused[0], agmm.FailedPrecondition)


def test_callbacks_may_make_calls(client):
    outcomes = concurrent.futures.Future()

    def call(future):
        try:
            with pytest.raises(agmm.FailedPrecondition, match="a callback cannot watch a job"):
                client.submit(SPEC, "A", "B", "D").watch()
            ids = [client.run(SPEC, "A", "B", "D").id, client.submit(SPEC, "A", "B", "E").wait().id,
                   client.matmul(SPEC, A, B, out="G").job.id]
            np.testing.assert_array_equal(client.get("D"), client.put("F", A @ B, "[M_x, K]").numpy())
            outcomes.set_result(ids)
        except BaseException as error:
            outcomes.set_exception(error)

    client.submit(SPEC, "A", "B", "C").done().add_done_callback(call)
    assert len(set(outcomes.result(PATIENCE_S))) == 3


def test_a_client_may_lose_its_last_reference_in_a_callback(client, daemon):
    job = started(client.submit(SPEC, "A", "B", "C", **LONG))
    ended = threading.Event()

    class Kept:
        def __del__(self):
            ended.set()

    def watch():
        other = agmm.connect(daemon.endpoint)
        handle = other.job(job.id)
        # A tuple drops its last items first: the client ends before `ended` is set.
        handle.done().add_done_callback(lambda _, kept=(Kept(), other, handle): None)

    watch()
    job.cancel()
    assert ended.wait(PATIENCE_S)


def test_the_end_of_a_client_ends_its_calls(client, daemon):
    other = agmm.connect(daemon.endpoint)
    job = started(client.submit(SPEC, "A", "B", "C", **LONG))
    handle = other.job(job.id)
    future, events = handle.done(), handle.watch()
    outcome = []
    waiting = threading.Event()

    def wait():
        waiting.set()
        try:
            handle.wait()
        except agmm.Error as error:
            outcome.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(PATIENCE_S)
    other.close()
    thread.join(PATIENCE_S)
    # The thread's wait may have begun after the close.
    assert outcome in ([agmm.Cancelled], [agmm.FailedPrecondition])
    with pytest.raises(agmm.Cancelled):
        future.result(PATIENCE_S)
    with pytest.raises(agmm.Cancelled):
        list(events)
    for call in (other.world, handle.wait, handle.info, lambda: other.put("A", A, "[M_x, K]"), lambda: other.run(SPEC, "A", "B", "C")):
        with pytest.raises(agmm.FailedPrecondition):
            call()
    other.close()
    assert other.closed and repr(other) == f"<agmm.Client of {daemon.endpoint}, closed>"
    job.cancel()


REFUSED = {
    "an absent tensor": (("none", "B", "C"), {}, agmm.NotFound, "none"),
    "an unknown option": (("A", "B", "C"), {"chunk": 2}, agmm.InvalidArgument, "no option 'chunk'; the options are algorithm, "),
    "an option of another type": (("A", "B", "C"), {"chunks": "two"}, agmm.InvalidArgument, "option chunks is 'two', a str; give an int"),
    "a number out of range": (("A", "B", "C"), {"repeat": 10**10}, agmm.InvalidArgument,
                              r"option repeat is 10000000000; give 0 to 2\^31 - 1"),
    "a negative number": (("A", "B", "C"), {"chunks": -1}, agmm.InvalidArgument, "option chunks is -1; give 0 to"),
    "a bool for a number": (("A", "B", "C"), {"chunks": True}, agmm.InvalidArgument, "option chunks is True, a bool"),
    "a number for a bool": (("A", "B", "C"), {"carried": 1}, agmm.InvalidArgument, "option carried is 1, an int; give True"),
    "an unknown option of None": (("A", "B", "C"), {"chunk": None}, agmm.InvalidArgument, "no option 'chunk'"),
    "a split with a fault": (("A", "B", "C"), {"split": "Q=x"}, agmm.InvalidArgument, "Q"),
    "an operand of another type": ((1, "B", "C"), {}, agmm.InvalidArgument, "an int is not a tensor"),
    "names twice": (("A", "B", "C"), {"tensors": {"A": "A"}}, agmm.InvalidArgument, "both by operand"),
    "a dtype for partials": (("A", "B", "C"), {"partials": "f8"}, agmm.InvalidArgument, "'f8' is not one of"),
    "ranks of another type": (("A", "B", "C"), {"ranks": ["a"]}, agmm.InvalidArgument, "a rank is 'a', a str; give an int"),
    "ranks that are one number": (("A", "B", "C"), {"ranks": 1}, agmm.InvalidArgument, "ranks is 1; give a list"),
    "a lone surrogate": (("\ud800", "B", "C"), {}, agmm.InvalidArgument, "not valid Unicode"),
    "a lone surrogate in an option": (("A", "B", "C"), {"split": "\ud800"}, agmm.InvalidArgument, "option split"),
    "a timeout of 0": (("A", "B", "C"), {"timeout": 0}, agmm.InvalidArgument, "timeout is 0 s"),
    "a timeout of years": (("A", "B", "C"), {"timeout": 1e9}, agmm.InvalidArgument,
                           "timeout is 1000000000.0 s; the daemon takes at most 86400 s, a day"),
    "tensors in a list": ((), {"tensors": ["A", "B", "C"]}, agmm.InvalidArgument, "option tensors is .*, a list; give a dict"),
    "tensors without a name": ((), {"tensors": {1: "A"}}, agmm.InvalidArgument, "a key of option tensors is 1, an int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_job_gets_a_clear_error(client, case):
    operands, options, kind, message = REFUSED[case]
    for call in (client.submit, client.run):
        with pytest.raises(kind, match=message):
            call(SPEC, *operands, **options)


def test_none_stands_for_the_default_of_each_option(client):
    options = dict.fromkeys(agmm.JobOptions.__annotations__)
    client.run(SPEC, "A", "B", "C", **options)
    np.testing.assert_array_equal(client.matmul(SPEC, A, B, **options).numpy(), client.get("C"))


def test_options_take_numbers_of_numpy(client):
    job = client.run(SPEC, "A", "B", "C", repeat=np.int64(2), chunks=np.uint8(1), carried=np.bool_(False))
    assert (job.repeat_count, job.chunk_count, job.carried) == (2, 1, False)


def test_absent_tensors_and_jobs(client):
    for call in (client.tensor, client.get, client.delete, client.map):
        with pytest.raises(agmm.NotFound, match="absent"):
            call("absent")
    with pytest.raises(agmm.NotFound):
        client.job(10**12)
    with pytest.raises(agmm.AlreadyExists):
        client.create("A", (2, 2), "[M_x, K]")
    with pytest.raises(agmm.ResourceExhausted) as full:
        client.create("large", (2**20, 2**10), "[M_x, K]")
    assert full.value.reason == "HEAP_FULL" and isinstance(full.value, MemoryError)


WRONG = {
    "a name": (lambda client: client.put(5, A, "[M_x, K]"), "name is 5, an int; give a str"),
    "a name of bytes": (lambda client: client.tensor(b"A"), "name is b'A', a bytes"),
    "a name with a comma": (lambda client: client.create("A,B", (2, 2), "[M_x, K]"), ","),
    "a long name": (lambda client: client.create("A" * 257, (2, 2), "[M_x, K]"), "256"),
    "a sharding": (lambda client: client.put("D", A, None), "sharding is None"),
    "a mesh": (lambda client: client.put("D", A, "[M_x, K]", mesh=2), "mesh is 2"),
    "a rank": (lambda client: client.put("D", A, "[M_x, K]", ranks=[-1]), "a rank is -1; give 0 to 2.31 - 1"),
    "a shape of three": (lambda client: client.fill("D", (2, 2, 2), "[M_x, K]"), r"shape is \(2, 2, 2\); give \(rows, cols\)"),
    "a shape of text": (lambda client: client.create("D", ("a", 2), "[M_x, K]"), "the number of rows is 'a'"),
    "a shape of 0": (lambda client: client.create("D", (0, 2), "[M_x, K]"), "0"),
    "a kind": (lambda client: client.fill("D", (2, 2), "[M_x, K]", kind="ones"), "use one of uniform"),
    "a seed": (lambda client: client.fill("D", (2, 2), "[M_x, K]", seed=-1), "seed is -1; give 0 to 2.64 - 1"),
    "an empty name to put": (lambda client: client.put("", A, "[M_x, K]"), 'name is ""; give a tensor a name'),
    "an empty name to fill": (lambda client: client.fill("", (2, 2), "[M_x, K]"), 'name is ""'),
    "an empty name to create": (lambda client: client.create("", (2, 2), "[M_x, K]"), 'name is ""'),
    "an empty name of a result": (lambda client: client.matmul(SPEC, A, B, out=""), 'out is ""'),
    "an array for a result": (lambda client: client.matmul(SPEC, A, B, out=A),
                              r"out is an ndarray; give a name or a Tensor for the result, and .*\.numpy\(out=array\)"),
    "a spec": (lambda client: client.matmul(None, A, B), "spec is None"),
    "a sharding in place of an array": (lambda client: client.put("D", "[M_x, K]", A), r"the array is '\[M_x, K\]', a str; give a matrix"),
    "a callback": (lambda client: client.get("A", progress=5), "progress is 5, an int; give a function"),
    "ranks": (lambda client: client.put("D", A, "[M_x, K]", ranks=3), "ranks is 3; give a list"),
    "a shape of fractions": (lambda client: client.fill("D", (2.7, 3), "[M_x, K]"), "the number of rows is 2.7, a float"),
    "a value": (lambda client: client.fill("D", (2, 2), "[M_x, K]", kind="constant", value="x"), "value is 'x', a str; give a number"),
    "a path": (lambda client: client.load(5, {}), "path is 5, an int"),
    "a rule for all": (lambda client: client.load("a.npy", "[M_x, K]"), r"shard is '\[M_x, K\]', a str; give a dict"),
    "a rule's sharding": (lambda client: client.load("a.npy", {"*": agmm.Rule(5)}), "sharding is 5"),
    "a rule's ranks": (lambda client: client.load("a.npy", {"*": agmm.Rule("[M, K]", ranks=3)}), "ranks is 3"),
    "a tensor to save": (lambda client: client.save("a.npy", 5), "tensors is 5; give a list"),
    "metadata": (lambda client: client.save("a.safetensors", ["A"], metadata={"a": 1}), "a value of metadata is 1"),
    "an array for a name": (lambda client: client.put(A, "A", "[M_x, K]"), "name is an ndarray; give a str"),
    "an array for a sharding": (lambda client: client.put("D", A, A), "sharding is an ndarray"),
    "an array for a dtype": (lambda client: client.put("D", A, "[M_x, K]", dtype=A), "dtype an ndarray is not one of"),
    "a flag": (lambda client: client.map("A", writable=A), "writable is an ndarray; give True or False"),
    "a client": (lambda client: agmm.matmul(A, B, client="unix:/socket"), "client is 'unix:/socket', a str; give an agmm.Client"),
    "a job's number": (lambda client: client.job(-1), "id is -1; give 0 to"),
    "a job's id": (lambda client: client.job("7"), "id is '7', a str; give an int"),
    "a limit": (lambda client: client.jobs(limit=2**31), "limit is 2147483648"),
    "a timeout of text": (lambda client: client.world(timeout="1"), "timeout is '1'"),
    "an array for a tensor": (lambda client: client.get(A), "an ndarray is not a tensor"),
    "an event's number": (lambda client: client.submit(SPEC, "A", "B", "C").watch(after_event=-1.5), "after_event is -1.5"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_gets_one_clear_line(client, case):
    call, message = WRONG[case]
    with pytest.raises(agmm.InvalidArgument, match=message) as raised:
        call(client)
    assert "\n" not in str(raised.value)


def test_the_timeout_of_a_get_covers_its_lookup(client, monkeypatch):
    times, given_s = iter([0.0, 1.0, 9.0]), []
    monkeypatch.setattr("agmm.client.time", types.SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr("agmm.client.to_ms", lambda seconds: given_s.append(seconds) or 60_000)
    client.get("A", timeout=10)
    assert given_s[-2:] == [9, 1]


def test_fills_are_generated_on_the_devices(client):
    assert (client.fill("D", (3, 4), "[M_x, K]", kind="constant", value=2.5, dtype="bf16").numpy() == 2.5).all()
    one = client.fill("E", (30, 40), "[M_x, K]", seed=7).numpy()
    assert np.abs(one).max() < 1 and len(np.unique(one)) > 1000
    np.testing.assert_array_equal(client.fill("F", (30, 40), "[K, N_x]", seed=7).numpy(), one)
    whole = client.fill("G", (30, 40), "[M_x, K]", kind="integers").numpy()
    assert set(np.unique(whole)) == set(range(-4, 5))


def test_errors_survive_pickling():
    for kind in agmm.Error.__subclasses__():
        error = pickle.loads(pickle.dumps(kind("text", "REASON")))
        assert (type(error), str(error), error.reason, error.code) == (kind, "text", "REASON", kind.code)


def test_no_daemon_is_an_error_at_once(tmp_path):
    with pytest.raises(agmm.Unavailable) as missing:
        agmm.connect(str(tmp_path / "none"))
    assert isinstance(missing.value, ConnectionError) and "\n" not in str(missing.value)
    with pytest.raises(agmm.InvalidArgument):
        agmm.connect("not an endpoint")
    with pytest.raises(agmm.InvalidArgument, match="call_timeout is -1 s; give more than 0 s"):
        agmm.connect(call_timeout=-1)


def test_no_daemon_at_all_is_an_error_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("AGMM_ENDPOINT", str(tmp_path / "none"))
    with pytest.raises(agmm.Unavailable, match=r"; agmm.local\(\) starts a private daemon$"):
        agmm.connect()
