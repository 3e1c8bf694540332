"""Sessions: their list, what they hold, and the names of their programs."""

import asyncio
import datetime
import os
import socket
import subprocess
import sys

import agmm
import agmm.aio
import numpy as np
import pytest
from agmm import program_name
from support import LONG, SPEC, wait_until

W = np.ones((512, 64), np.float32)


def since_own(client):
    """Returns the client's own session and those opened later: an earlier test's may still be ending."""
    sessions = client.sessions()
    own = next(index for index, each in enumerate(sessions) if each.own)
    return sessions[own:]


def here(name):
    """Returns the text of a program of this process."""
    return f"{name} (pid {os.getpid()} on {socket.gethostname()})"


def test_a_session_is_listed_with_what_it_holds(daemon, client, operands):
    begin = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=10)
    client.put("W", W, "[M_x, K]")
    client.put("V", W, "[M, K]")  # whole on both devices
    with agmm.connect(daemon.endpoint, session=True, program="other") as other:
        own, second = since_own(client)
        assert own.own and not second.own
        assert own.number < second.number
        assert own.tensor_count == 4  # with the operands
        assert own.tensor_bytes >= 3 * W.nbytes
        assert second.program == here("other")
        assert (second.tensor_count, second.tensor_bytes, second.job_count) == (0, 0, 0)
        assert own.node == second.node == client.world().devices[0].node
        assert own.owner == client.tensor("W").owner
        assert begin < own.open_time <= second.open_time
        assert [each.own for each in other.sessions()][-2:] == [False, True]
    wait_until(lambda: len(since_own(client)) == 1)


def test_queued_and_running_jobs_are_counted(client, operands):
    jobs = [client.submit(SPEC, "A", "B", "C", **LONG) for _ in range(2)]
    assert since_own(client)[0].job_count == 2
    for job in jobs:
        job.cancel()
    wait_until(lambda: since_own(client)[0].job_count == 0)


def test_a_client_without_a_session_lists_but_is_not_listed(daemon, client):
    with agmm.connect(daemon.endpoint, program="observer") as observer:
        sessions = observer.sessions()
        assert since_own(client)[0].number in [each.number for each in sessions]
        assert not any(each.own or each.program == here("observer") for each in sessions)


def test_asyncio_lists_the_same_and_takes_a_name(daemon, client):
    async def program():
        async with agmm.aio.connect(daemon.endpoint, session=True, program="größe 矩阵") as second:
            return [(each.own, each.program) for each in await second.sessions()]

    assert asyncio.run(program())[-2:] == [(False, since_own(client)[0].program), (True, here("größe 矩阵"))]


def test_a_killed_program_takes_its_session_along(daemon, client):
    code = f"import agmm, sys; c = agmm.connect({daemon.endpoint!r}, session=True); print(c.sessions()[-1].program, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == f"python (pid {process.pid} on {socket.gethostname()})\n"
        assert len(since_own(client)) == 2
        process.kill()
    wait_until(lambda: len(since_own(client)) == 1)


@pytest.mark.parametrize("argv, name", [
    (["/home/me/train.py", "--fast"], "train.py"),
    (["-c"], "python"),
    ([""], "python"),
    (["-"], "python"),
    ([], "python"),
    (["/usr/lib/python3/pytest/__main__.py"], "pytest"),
    (["/usr/lib/python3/ipykernel_launcher.py", "-f", "x.json"], "notebook"),
    (["größe\n.py"], "größe?.py"),
    (["\udcff.py"], "?.py"),
    (["\x1b[31m\u202e.py"], "?[31m?.py"),
    (["矩" * 30], "矩" * 21),
])
def test_a_program_is_named_after_its_script(monkeypatch, daemon, argv, name):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(sys, "argv", argv)
    assert program_name.default() == name
    with agmm.connect(daemon.endpoint, session=True) as client:
        assert client.sessions()[-1].program == here(name)


def test_a_notebook_is_named_after_its_file(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/lib/ipykernel_launcher.py"])
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/layer.ipynb")
    assert program_name.default() == "layer.ipynb"


@pytest.mark.parametrize("program, error", [
    ("p" * 65, "program has 65 bytes; at most 64 are taken"),
    ("a\x1b[2J", r"program has the control character U\+001B at byte 1"),
    ("\u202etxt.exe", r"program has the control character U\+202E at byte 0"),
    ("\udcff", "program is .* not valid Unicode"),
    (b"x", "program is b'x', a bytes; give a str"),
    (7, "program is 7, an int; give a str"),
])
def test_a_hostile_name_is_refused(daemon, program, error):
    with pytest.raises(agmm.InvalidArgument, match=error):
        agmm.connect(daemon.endpoint, session=True, program=program)


def test_a_closed_client_and_a_wrong_timeout_are_refused(daemon):
    client = agmm.connect(daemon.endpoint)
    with pytest.raises(agmm.InvalidArgument):
        client.sessions(timeout=-1)
    client.close()
    with pytest.raises(agmm.FailedPrecondition, match="this client is closed"):
        client.sessions()
