"""Where the device's time went, from events in the stream; nothing ever waits for them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_engines.device.device import Device, Event
from dflash_engines.engine import Timing

Shares = Mapping[str, float]  # of a stretch of time, by program


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    begin: Event
    end: Event
    shares: Shares


class Clock:
    """Adds up stretches of the stream, each given to programs by shares."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pending: deque[_Stretch] = deque()
        self._spare: list[Event] = []
        self._seconds = {"prefill": 0.0, "draft": 0.0, "target": 0.0, "accept": 0.0}

    def begin(self) -> Event:
        """A stretch begins here."""
        event = self._spare.pop() if self._spare else self._device.event()
        self._device.record(event)
        return event

    def end(self, begin: Event, shares: Shares) -> None:
        """The stretch ends here."""
        self._pending.append(_Stretch(begin=begin, end=self.begin(), shares=shares))

    def timing(self) -> Timing:
        """All stretches that are over."""
        while self._pending and self._pending[0].end.done():
            stretch = self._pending.popleft()
            elapsed = self._device.seconds(stretch.begin, stretch.end)
            for program, share in stretch.shares.items():
                self._seconds[program] += elapsed * share
            self._spare += [stretch.begin, stretch.end]
        return Timing(**self._seconds)
