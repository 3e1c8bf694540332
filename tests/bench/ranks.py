"""The ranks of a contender: one process for each host. It lives for the whole run and sleeps between its turns."""

import os
import pathlib
import selectors
import subprocess
import time

from hosts import end_all


class ContenderFailed(Exception):
    """One line: the contender, and what it said."""


class Ranks:
    """Speaks contender_rank.h's lines with `size` processes over FIFOs in `folder`."""

    def __init__(self, name, folder, size):
        self.name, self.folder, self.size = name, pathlib.Path(folder), size
        self.processes, self.rest = [], [b""] * size
        self.folder.mkdir(parents=True)
        for rank in range(size):
            os.mkfifo(self.folder / f"in.{rank}")
            os.mkfifo(self.folder / f"out.{rank}")
        # Opened for reading and writing, so that opening never waits; a rank sees the end of the
        # file when this process ends.
        self.to = [os.open(self.folder / f"in.{rank}", os.O_RDWR | os.O_CLOEXEC) for rank in range(size)]
        self.back = [
            os.open(self.folder / f"out.{rank}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for rank in range(size)
        ]
        self.log = open(self.folder / "log", "wb")

    def start(self, command, environment=None):
        self.processes.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                env={**os.environ, **(environment or {})},
            )
        )

    def ready(self, deadline_s=60):
        return self._answers(deadline_s, "start")

    def call(self, line, deadline_s=120):
        """Sends `line` to every rank, or if it is a list, one item to each. Returns the answers by rank."""
        lines = line if isinstance(line, list) else [line] * self.size
        for fd, text in zip(self.to, lines):
            os.write(fd, text.encode() + b"\n")
        return self._answers(deadline_s, lines[0][:60])

    def run(self, what, count, products=1):
        """Returns the microseconds per product of `count` runs of `products` products, each on the slowest rank."""
        answers = [[float(word) for word in answer.split()] for answer in self.call(f"run {what} {count} {products}")]
        return [max(times) for times in zip(*answers)]

    def _answers(self, deadline_s, asked):
        answers = [None] * self.size
        end = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            for rank, fd in enumerate(self.back):
                selector.register(fd, selectors.EVENT_READ, rank)
            while None in answers:
                for key, _ in selector.select(0.5):
                    answers[key.data] = self._line(key.data) or answers[key.data]
                wrong = next((a for a in answers if a is not None and not a.startswith("ok")), None)
                if wrong is not None:
                    raise self._failed(f"answers `{asked}` with: {wrong}")
                gone = [p.returncode for p in self.processes if p.poll() is not None]
                if gone and None in answers:
                    raise self._failed(f"has ended with code {gone[0]} at `{asked}`")
                if time.monotonic() > end:
                    late = [rank for rank, answer in enumerate(answers) if answer is None]
                    raise self._failed(f"has not answered `{asked}` within {deadline_s} s on ranks {late}")
        return [answer[3:].strip() for answer in answers]

    def _line(self, rank):
        self.rest[rank] += os.read(self.back[rank], 1 << 16)
        line, end, rest = self.rest[rank].partition(b"\n")
        if not end:
            return None
        self.rest[rank] = rest
        return line.decode(errors="replace")

    def _failed(self, what):
        self.log.flush()
        lines = (self.folder / "log").read_text(errors="replace").strip().splitlines()
        return ContenderFailed(
            f"{self.name} {what}" + (f"; the end of its log: {' / '.join(lines[-3:])}" if lines else "")
        )

    def close(self):
        for fd in self.to + self.back:
            os.close(fd)
        end_all(self.processes)
        self.log.close()
