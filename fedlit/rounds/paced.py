"""PacedCloud: several servers that have their reports at times which no clock of ours draws: real or recorded ones."""

import math
from abc import abstractmethod

from fedlit.rounds.cloud import CloudProtocol
from fedlit.rounds.protocol import Event, ServerRecords


class PacedCloud(CloudProtocol):
    """Which servers of a cloud step next is decided by when their reports were there."""

    @abstractmethod
    def reported_s(self, server: int) -> float | None:
        """Seconds at which a server had its reports in its present round; None if it does not have them yet."""

    def paced_event(self) -> Event:
        """The next event, as far as it is known; at an infinite time if too few servers have their reports."""
        for server in self.servers:
            reported = self.reported_s(server.id)
            self.waiting[server.id].duration_s = math.inf if reported is None else reported - server.started
        return self.earliest()

    def finish_times(self) -> dict[int, float]:
        """Server -> seconds at which it had its reports, for those that have them."""
        times = {server.id: self.reported_s(server.id) for server in self.servers}
        return {server: seconds for server, seconds in times.items() if seconds is not None}

    def records(self, event: Event) -> ServerRecords:
        """As in the base; a server that still waits for its clients gets the current time as finish."""
        rows = super().records(event)
        rows["finish_s"] = [event.time_s if math.isinf(end) else end for end in rows["finish_s"]]
        return rows
