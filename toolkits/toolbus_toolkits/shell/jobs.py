r"""Commands that run or have run, whose they are, and what they write.

A job belongs to those behind the call that started it: to nobody else it exists. It ends by itself,
when it is stopped, and with the toolkit.

What a command writes is kept within bounds while it runs. Offsets and sizes count characters of the
decoded text, in which each line ends with `\n`. What is shown has its control characters and
invisible characters escaped, since models read it; escapes count only for the limit of one answer.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable

from toolbus import ToolFailed
from toolbus.concurrency.tasks import retrieve_error
from toolbus.untrusted_text import one_line, visible
from toolbus_toolkits.callers import MAX_ASKERS, MAX_ASSESSED, Asker, LastUsed
from toolbus_toolkits.launcher import RunningCommand
from toolbus_toolkits.shell.reading import read_line

__all__ = ["MAX_CHARS", "Job", "Jobs", "WrittenLines"]

MAX_CHARS = 30_000
"""Of one answer, as models read it: some 8,000 tokens."""
# What is kept of one command, its beginning and its end: the first error of a build is at the
# beginning, its summary at the end. Some 40 answers of `read`, and 1.25 MB of ASCII.
_HEAD_CHARS = 256 * 1024
_TAIL_CHARS = 1024 * 1024
_MAX_PIECES = 1_000
"""Pieces of a few characters each would cost many times what they say."""
# After so many bytes a job's output waits for so long: what writes 40 MB/s has room, and what
# writes without an end takes a tenth of a processor here, and not all of it.
_BURST_BYTES = 4 * 1024 * 1024
_PAUSE_S = 0.1
_MAX_RUNNING = 64
"""Of all callers together."""
# Jobs that are kept after their end, of one caller and of all, and the output of all: the oldest
# are left out.
_MAX_ENDED_OF_ONE = 64
_MAX_ENDED = 1_024
_MAX_ENDED_CHARS = 64 * 1024 * 1024
_END_S = 1.0
_WRITE_S = 5.0


class _Ends:
    """The beginning and the end of a text that grows."""

    def __init__(self, head_chars: int, tail_chars: int) -> None:
        self._head_chars = head_chars
        self._tail_chars = tail_chars
        self._heads: list[str] = []
        self._tails = deque[str]()
        self._tail_size = 0
        self.head_size = 0
        self.size = 0
        """Of the whole text."""

    @property
    def tail_start(self) -> int:
        """Where the end begins that is kept; `head_size` if nothing is missing between them."""
        return self.size - self._tail_size

    def add(self, text: str) -> None:
        self.size += len(text)
        room = self._head_chars - self.head_size
        if room > 0:
            self._heads.append(text[:room])
            self.head_size += len(self._heads[-1])
            text = text[room:]
        if not text:
            return
        self._tails.append(text)
        self._tail_size += len(text)
        while self._tail_size - len(self._tails[0]) >= self._tail_chars:
            self._tail_size -= len(self._tails.popleft())
        if len(self._tails) > _MAX_PIECES:
            self._join_tails()

    def head(self) -> str:
        if len(self._heads) != 1:
            self._heads = ["".join(self._heads)]
        return self._heads[0]

    def tail(self) -> str:
        """Return the end, without what `head` has."""
        self._join_tails()
        return self._tails[0]

    def _join_tails(self) -> None:
        # Cut, because a piece is left out only as a whole: joined ones would grow for ever.
        text = "".join(self._tails)[-self._tail_chars :]
        self._tails = deque([text])
        self._tail_size = len(text)


class Output(_Ends):
    """The output of a command, stdout and stderr in the order of arrival."""

    def __init__(self) -> None:
        super().__init__(_HEAD_CHARS, _TAIL_CHARS)

    @property
    def retained_size(self) -> int:
        """How many characters are retained: the beginning and the end."""
        return self.head_size + self.size - self.tail_start

    def page(self, offset: int) -> tuple[str, int]:
        """Return the part that begins at an offset, escaped, and the offset of the next one.

        It has at most `MAX_CHARS` characters.
        """
        if offset < self.head_size:
            text, used = _shown_start(self.head()[offset : offset + MAX_CHARS], MAX_CHARS)
            return text, offset + used
        note = ""
        start = self.tail_start
        if offset < start:
            note = f"[{start - offset:,} characters are not kept any more]\n"
            offset = start
        offset = min(offset, self.size)
        begin = offset - start
        limit = MAX_CHARS - len(note)
        text, used = _shown_start(self.tail()[begin : begin + limit], limit)
        return note + text, offset + used


class Excerpt(_Ends):
    """The beginning and the end of a stream of a command; all of it is appended to the output."""

    def __init__(self, output: Output) -> None:
        super().__init__(MAX_CHARS, MAX_CHARS)
        self._output = output
        # It decodes UTF-8 across the borders of pieces. A lone `\r` writes a line of progress anew:
        # then each is a line, and none is hidden.
        self._decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder("utf-8")("replace"), translate=True
        )
        self._pieces: list[tuple[int, int]] = []

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        """Append bytes; the last ones may be none."""
        text = self._decoder.decode(data, final=is_last)
        if text:
            if self.head_size < MAX_CHARS:
                self._pieces.append((self.size, self._output.size))
            self.add(text)
            self._output.add(text)

    def last(self, chars: int) -> str:
        """Return the last characters, escaped."""
        text = self.tail()[-chars:]
        if len(text) < chars:
            text = self.head()[len(text) - chars :] + text
        return _shown_end(text, chars)[0]

    def wanted(self) -> int:
        """Return how many characters it shows if there is room; more than `MAX_CHARS` is cut."""
        if self.size > MAX_CHARS:
            return self.size
        return len(visible(self.head()))

    def shown(self, limit: int, job: str) -> str:
        """Return it within a limit of characters; without its middle where it is longer.

        The line that stands for the middle takes less, and names the job that has all of it.
        """
        if self.wanted() <= limit:
            return visible(self.head())
        # The text of the line depends on what it counts; no such line is longer.
        half = (limit - 200) // 2
        first, used = _shown_start(self.head()[:half], half)
        last, end_size = _shown_end((self.head() + self.tail())[-half:], half)
        left_out = self.size - used - end_size
        at = bisect_right(self._pieces, (used, self.size)) - 1
        start, offset = self._pieces[at]
        offset += used - start
        note = f"[{left_out:,} characters are left out here: `read` job {job} from offset {offset}]"
        return f"{first}\n{note}\n{last}"


def _shown_start(text: str, limit: int) -> tuple[str, int]:
    """Escape as much of the beginning of a text as fits; also return how much that is."""
    used = min(len(text), limit)
    while len(shown := visible(text[:used])) > limit:
        used = used * limit // len(shown)
    return shown, used


def _shown_end(text: str, limit: int) -> tuple[str, int]:
    """Escape as much of the end of a text as fits; also return how much that is."""
    used = min(len(text), limit)
    while len(shown := visible(text[len(text) - used :])) > limit:
        used = used * limit // len(shown)
    return shown, used


class WrittenLines:
    """The lines that a shell without a script has been given as its input."""

    def __init__(self) -> None:
        self._unfinished = ""
        """What was written and may go on in the next text: `r`, or a quote that is open."""
        self._assessed = LastUsed[str, str](MAX_ASSESSED)
        """What was unfinished when a text was assessed."""

    def lines_to_assess(self, text: str) -> str:
        """Return the lines that a text ends, and remember that it was assessed so."""
        self._assessed[text] = self._unfinished
        return self._unfinished + text

    def write(self, text: str) -> None:
        """Note that a text is written.

        Raises `ToolFailed` if another one was written since this one was assessed, so that it ends
        another line.
        """
        if self._assessed and self._assessed.get(text) != self._unfinished:
            message = "another text was written to this job since this one was judged: nothing was"
            raise ToolFailed(f"{message} written, call it again", details={"reason": "changed"})
        self._unfinished += text
        if self._unfinished.endswith("\n") and not read_line(self._unfinished, {}).faults:
            self._unfinished = ""


class Job:
    """One command line, with its output and its end. What writes over `max_bytes` is killed."""

    def __init__(self, command: str, max_bytes: int | None = None) -> None:
        self.command = command
        self.id: str = ""
        """Empty until it is kept."""
        self.output = Output()
        self.stdout = Excerpt(self.output)
        self.stderr = Excerpt(self.output)
        self.streams: dict[str, Excerpt] = {"stdout": self.stdout, "stderr": self.stderr}
        self.bytes: int = 0
        """That it has written."""
        self.exit: int | None = None
        """Its exit status as bash tells it, 128 and more for a signal; None while it runs."""
        self.is_killed_for_output: bool = False
        self.on_output: Callable[[], None] | None = None
        """Called when it has written something."""
        self.process: RunningCommand | None = None
        """Set once it is started."""
        self.lines: WrittenLines | None = None
        """Set if it runs what it reads as command lines."""
        self._max_bytes = max_bytes
        self._burst = 0
        self._writing: asyncio.Task[None] | None = None
        self._started_at = time.monotonic()
        self._ended_at: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._ended_at is None

    @property
    def seconds(self) -> float:
        """Seconds since its start, until its end."""
        return (self._ended_at or time.monotonic()) - self._started_at

    def receive(self, stream: str, data: bytes) -> None:
        """Take a piece of its output. One that writes too much is killed, a fast one paused."""
        self.bytes += len(data)
        self.streams[stream].feed(data)
        process = self.process
        if process is not None:  # its first output may come while it is being started
            is_too_much = self._max_bytes is not None and self.bytes > self._max_bytes
            if is_too_much and not self.is_killed_for_output:
                self.is_killed_for_output = True
                process.kill()
            self._burst += len(data)
            if self._burst >= _BURST_BYTES:
                self._burst = 0
                process.pause()
                asyncio.get_running_loop().call_later(_PAUSE_S, process.resume)
        if self.on_output is not None:
            self.on_output()

    async def write(self, data: bytes) -> bool:
        """Write to its input; no bytes end it.

        Returns:
            Whether it has not read all of it yet.

        Raises `ToolFailed` if it reads nothing any more, or has not read what was written before.
        """
        process = self.process
        if process is None or not self.is_running:
            raise ToolFailed(f"the job {self.id} has ended", details={"reason": "ended"})
        if self._writing is not None and not self._writing.done():
            text = f"the job {self.id} has not read yet what was written to it before"
            raise ToolFailed(text, retryable=True, details={"reason": "not_read"})
        if not data:
            process.close_stdin()
            return False
        self._writing = writing = asyncio.create_task(process.write(data))
        writing.add_done_callback(retrieve_error)
        await asyncio.wait([writing], timeout=_WRITE_S)
        try:
            return not writing.done() or writing.result() is not None
        except BrokenPipeError:
            text = f"the job {self.id} has ended its input"
            raise ToolFailed(text, details={"reason": "ended"}) from None

    async def ended(self) -> None:
        """Wait until nothing of the started command is left."""
        assert self.process is not None
        status = await self.process.wait()
        self.close(128 - status if status < 0 else status)

    def close(self, exit: int | None) -> None:
        """Note its exit status; None if it was ended here. Idempotent."""
        if self._ended_at is None:
            self.exit = exit
            self._ended_at = time.monotonic()
            for excerpt in self.streams.values():
                excerpt.feed(b"", is_last=True)


class Jobs:
    """The jobs of one toolkit, of which some of one asker run at a time."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._jobs = dict[tuple[Asker, str], Job]()
        self._last_ids = LastUsed[Asker, int](MAX_ASKERS)
        self._running = dict[Job, asyncio.Task[None] | None]()
        """With what waits for its end, once it is started."""
        self._ended = dict[tuple[Asker, str], Job]()
        """The oldest first."""

    async def start(
        self, asker: Asker, job: Job, start: Callable[[], Awaitable[RunningCommand]]
    ) -> None:
        """Start a job, and give it an id.

        Raises `ToolFailed` if the asker, or all together, run as many jobs as they may, and what
        `start` raises.
        """
        running = [job.id for job in self.of(asker) if job.is_running]
        if len(running) >= self._max_running:
            text = f"as many of your jobs are running as may be ({len(running)}): stop one of "
            raise ToolFailed(text + ", ".join(running), details={"reason": "too_many_jobs"})
        if len(self._running) >= _MAX_RUNNING:
            text = "this host runs as many jobs as it may, of all callers: try again later"
            raise ToolFailed(text, retryable=True, details={"reason": "too_many_jobs"})
        self._add(asker, job)
        self._running[job] = None  # it takes its place before it is started
        try:
            job.process = await start()
        except BaseException:
            del self._running[job]
            del self._jobs[asker, job.id]
            raise
        self._running[job] = asyncio.create_task(self._wait(asker, job))

    def keep(self, asker: Asker, job: Job) -> None:
        """Keep a command that has ended, to be read, and give it an id."""
        self._add(asker, job)
        self._note_end(asker, job)

    def get(self, asker: Asker, job: str) -> Job:
        """Return a job by its id. Raises `ToolFailed` if the asker has none of that id."""
        found = self._jobs.get((asker, job))
        if found is None:
            text = f"you have no job {one_line(job, 32)}: `jobs` lists those that there are"
            raise ToolFailed(text, details={"reason": "not_found"})
        return found

    def of(self, asker: Asker) -> list[Job]:
        """Return the jobs of an asker, the oldest first."""
        return [job for (owner, _), job in self._jobs.items() if owner == asker]

    async def stop(self, job: Job) -> None:
        """End a job and all that it started."""
        end = self._running.get(job)
        if job.process is not None and end is not None:
            await job.process.aclose()
            # What waits for a broken disk ends when that answers, and is listed until then.
            await asyncio.wait([end], timeout=_END_S)

    async def end_all(self) -> None:
        """End all jobs, and forget them."""
        await asyncio.gather(*(self.stop(job) for job in tuple(self._running)))
        self._jobs.clear()
        self._last_ids.clear()
        self._ended.clear()

    def _add(self, asker: Asker, job: Job) -> None:
        number = 1 + max(self._last_ids.get(asker, 0), *(int(own.id) for own in self.of(asker)), 0)
        self._last_ids[asker] = number
        job.id = str(number)
        self._jobs[asker, job.id] = job

    async def _wait(self, asker: Asker, job: Job) -> None:
        await job.ended()
        del self._running[job]
        if (asker, job.id) in self._jobs:  # else all were forgotten
            self._note_end(asker, job)

    def _note_end(self, asker: Asker, job: Job) -> None:
        """Leave the oldest jobs out that are too many, now that one more has ended."""
        self._ended[asker, job.id] = job
        left_out = [key for key in self._ended if key[0] == asker][:-_MAX_ENDED_OF_ONE]
        number = len(self._ended)
        chars = sum(other.output.retained_size for other in self._ended.values())
        for key, other in self._ended.items():
            if other is job or (number <= _MAX_ENDED and chars <= _MAX_ENDED_CHARS):
                break
            number -= 1
            chars -= other.output.retained_size
            left_out.append(key)
        for key in dict.fromkeys(left_out):
            del self._ended[key], self._jobs[key]
