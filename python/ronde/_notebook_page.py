"""What a cell of ``%%ronde`` shows: a head that says how the job is, and below it a part for each rank.

Each is a display of its own, so that only what has changed is sent to the page again. Rank 0 is open, the others are
folded and show their last line; what people fold or open stays so while the job runs. The page is told at most a few
times a second, and is shown the last lines only: a rank may print more than a browser can hold.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from html import escape
from typing import Any

# How often the page is told of news at most, and of the time, in seconds.
_PAUSE = 0.25
_BEAT = 1.0
# How many lines of a rank are shown while the job runs, and when it has ended.
_LIVE = 100
_KEPT = 1000

# Escape sequences of terminals.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")

# The element around a display outlives what is shown in it, so it is where a page can remember what people opened.
_REMEMBER = ' ontoggle="this.parentNode.dataset.ronde = this.open"'
_RECALL = (
    "<script>{ const part = document.currentScript?.parentNode; const open = part?.dataset.ronde;"
    " if (open) part.querySelector('details').open = open === 'true' }</script>"
)

Display = Callable[[dict[str, str]], Any]
"""Shows a bundle of MIME types and returns a handle with ``update``."""


class Page:
    """The output of one job."""

    options = ("--task-output",)
    """What makes the launcher write what ``streams`` take: the ranks' lines, and what it says itself."""

    def __init__(self, display: Display, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display
        self._clock = clock
        self._began = clock()
        self._told = self._beaten = self._began
        self._ranks: list[_Rank] = []
        self._notes: list[str] = []
        self._end: str | None = None
        self._head = display(self._bundle())
        self.streams = (_Writer(self._take_event), _Writer(self._notes.append))

    @property
    def size(self) -> int:
        """How many ranks there are, once that is known."""
        return len(self._ranks)

    @property
    def said(self) -> str:
        """What the launcher has said so far."""
        return _lines(self._notes)

    def look_up(self) -> None:
        """Tell the page what is new, if it has not been told just now."""
        now = self._clock()
        if now - self._told < _PAUSE:
            return
        self._told = now
        for rank in self._ranks:
            rank.tell()
        if now - self._beaten >= _BEAT:
            self._beaten = now
            self._head.update(self._bundle())

    def finish(self, end: str, failed: int | None = None, said: str = "") -> None:
        """Show how the job ended, all that is kept of the ranks' output, and the rank that failed.

        What the launcher ``said`` about that at last is shown elsewhere.
        """
        self._end = end
        last = said.rstrip("\n").split("\n")
        if self._notes[-len(last) :] == last:
            del self._notes[-len(last) :]
        for number, rank in enumerate(self._ranks):
            rank.finish(failed=number == failed)
        self._head.update(self._bundle())

    def _take_event(self, line: str) -> None:
        event = json.loads(line)
        if "hosts" in event:
            self._ranks = [_Rank(self._display, rank, host) for rank, host in enumerate(event["hosts"])]
            self._head.update(self._bundle())
        else:
            self._ranks[event["rank"]].take(event["text"], event["stream"] == "stderr", event["end"] == "return")

    def _bundle(self) -> dict[str, str]:
        hosts = len({rank.host for rank in self._ranks})
        where = f"{_count(self.size, 'rank')} on {_count(hosts, 'host')}" if self._ranks else ""
        seconds = self._clock() - self._began
        passed = f"{seconds:.0f} s" if seconds >= 10 or self._end is None else f"{seconds:.1f} s"
        # Until a rank speaks, the launcher may have something to say about what keeps it.
        waits = len(self._notes) > 1 and not any(rank.has_spoken for rank in self._ranks)
        state = self._end or (self._notes[-1].strip() if waits else "" if where else "starting")
        text = " · ".join(part for part in (state, where, passed) if part)
        bar = "" if self._end else '<progress style="width:8em;vertical-align:middle"></progress> '
        # The launcher's first line says little more than this head does.
        more = self._notes if len(self._notes) > 1 else []
        html = f'<div class="ronde-head">{bar}{escape(text)}</div>'
        if more:
            pre = f"<pre>{escape(_lines(more))}</pre>"
            html += f'<details{_REMEMBER}><summary style="cursor:pointer">launcher</summary>{pre}</details>{_RECALL}'
        return {"text/plain": _lines([text, *more]), "text/html": html}


class _Rank:
    """The part of one rank."""

    def __init__(self, display: Display, rank: int, host: str) -> None:
        self.host = host
        self._rank = rank
        self._lines: deque[tuple[str, bool]] = deque(maxlen=_KEPT)
        self._count = 0
        self._returned: set[bool] = set()
        self._news = self._ended = self._failed = False
        self._part = display(self._bundle())

    @property
    def has_spoken(self) -> bool:
        """Whether the rank has printed anything."""
        return self._count > 0

    def take(self, text: str, is_error: bool, returns: bool) -> None:
        """Take a line; one that is followed by a carriage return is overwritten by the next of its stream."""
        text = _SEQUENCE.sub("", text)
        if is_error in self._returned:
            self._returned.discard(is_error)
            if text:
                self._overwrite(text, is_error)
        elif text or not returns:
            self._lines.append((text, is_error))
            self._count += 1
        if returns and text:
            self._returned.add(is_error)
        self._news = True

    def tell(self) -> None:
        """Tell the page what is new."""
        if self._news:
            self._news = False
            self._part.update(self._bundle())

    def finish(self, failed: bool) -> None:
        """Show all that is kept."""
        self._ended, self._failed = True, failed
        self._part.update(self._bundle())

    def _overwrite(self, text: str, is_error: bool) -> None:
        for back in range(1, len(self._lines) + 1):
            if self._lines[-back][1] == is_error:
                self._lines[-back] = (text, is_error)
                return

    def _bundle(self) -> dict[str, str]:
        lines = list(self._lines)[-(_KEPT if self._ended else _LIVE) :]
        left_out = self._count - len(lines)
        if left_out:
            lines.insert(0, (f"… {left_out:,} earlier lines are not shown", False))
        plain = _lines(f"[{self._rank}] {text}" for text, _ in lines)
        return {"text/plain": plain, "text/html": self._html(lines)}

    def _html(self, lines: list[tuple[str, bool]]) -> str:
        last = next((text for text, _ in reversed(lines) if text.strip()), "no output" if self._ended else "")
        mark = '<span style="color:var(--jp-error-color1,#d32f2f)">✗</span> ' if self._failed else ""
        is_open = " open" if self._rank == 0 or self._failed else ""
        shown = _lines(
            f'<span style="background:var(--jp-rendermime-error-background,#fdd)">{escape(text)}</span>'
            if is_error
            else escape(text)
            for text, is_error in lines
        )
        # Laid out from below, so that the newest line is the one in view.
        return (
            f'<details class="ronde-rank"{is_open}{_REMEMBER}><summary style="cursor:pointer;white-space:nowrap;'
            f'overflow:hidden;text-overflow:ellipsis">{mark}<b>rank {self._rank}</b> on {escape(self.host)}'
            f'<span style="opacity:.6"> · {escape(last)}</span></summary>'
            '<div style="max-height:24em;overflow:auto;display:flex;flex-direction:column-reverse">'
            f'<pre style="margin:0 0 0 1.2em">{shown}</pre></div></details>{_RECALL}'
        )


class _Writer:
    """Stands for a file that is written whole lines."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take

    def write(self, text: str) -> None:
        # Not by `splitlines`, to which more than a newline ends a line.
        for line in text.removesuffix("\n").split("\n"):
            self._take(line)

    def flush(self) -> None:
        pass


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
