"""How a job or a shared crawl stands, in the text format of OpenMetrics.

Names, types and units are as https://prometheus.io/docs/specs/om/open_metrics_spec/ wants them.
Only counters and gauges are used: Prometheus's older format, which node exporter reads, knows no
other types that would fit, and takes the lines that it does not know for comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .standing import Answer, has_pace, printable

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

#: All states that a job or a shared crawl can be in; of one that is "silent" it is not known.
STATES = ("running", "closing", "stopped", "finished", "unsaved", "died")
#: Name of a metric without the prefix, what it says, and where that is in the answer.
_COUNTERS = (
    ("accepted_requests", "Requests that were accepted, in all runs.", "accepted"),
    ("done_requests", "Requests that are done, in all runs.", "done"),
    ("duplicate_requests", "Requests that this run has refused as seen.", "duplicates"),
    ("runs", "How often the job was opened.", "run"),
    ("commits", "Commits of the job, in all runs.", "commit"),
)
_GAUGES = (
    ("pending_requests", "Requests that wait for their turn.", "pending"),
    ("in_flight_requests", "Requests that were handed out and are not done.", "in_flight"),
    ("delayed_requests", "Requests whose time has not come.", "delayed"),
    ("failed_requests", "Requests that have failed, and are kept.", "failed"),
    ("dead_requests", "Requests that are dead letters.", "dead"),
    ("seen_pages", "Pages that are seen: fingerprints in the duplicates filter.", "seen"),
    ("held_slots", "Download slots that are deferred, of which 20 at most are known.", "held"),
    ("resting_slots", "Download slots whose delay is not over.", "resting"),
    ("workers", "Workers that the server knows.", "workers"),
    ("size_bytes", "Bytes of the job directory, or, about, on the server.", "bytes"),
    ("start_timestamp_seconds", "When this run, or the shared crawl, has begun.", "began"),
    ("last_commit_timestamp_seconds", "When the last commit was.", "committed"),
    # Only of a crawl that runs.
    ("found_requests_per_second", "Requests accepted, over the last minute.", "found_rate"),
    ("ended_requests_per_second", "Requests done, failed or dead since.", "ended_rate"),
)


def openmetrics(answer: Answer) -> str:
    """The answer of ``scrapy altsched status``, as lines of text.

    :raises ConfigError: the package that makes them is not installed.
    """
    try:
        from prometheus_client.openmetrics.exposition import generate_latest
        from prometheus_client.registry import Collector, CollectorRegistry
    except ImportError:
        raise ConfigError(
            "--openmetrics needs the package 'prometheus_client', which is not installed: run"
            " pip install scrapy-altsched[metrics]"
        ) from None

    class OneLook(Collector):
        def collect(self) -> Iterable[Metric]:
            return _metrics(answer)

    registry = CollectorRegistry()
    registry.register(OneLook())
    # It has no types.
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]  # it has no types
    return text.decode()


def _metrics(answer: Answer) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    # Prometheus sets a label "job" of its own.
    place, where = ("crawl", "key") if "key" in answer else ("jobdir", "target")
    names = ["spider", place]
    values = [printable(answer["spider"]), printable(answer[where])]
    what = "1 for the state that it is in, 0 for all others."
    state = GaugeMetricFamily("altsched_state", what, labels=[*names, "state"])
    for name in STATES:
        state.add_metric([*values, name], float(name == answer["state"]))
    yield state
    numbers = _numbers(answer)
    for family, metrics in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for name, what, key in metrics:
            if numbers.get(key) is not None:
                metric = family(f"altsched_{name}", what, labels=names)
                metric.add_metric(values, numbers[key])
                yield metric


def _numbers(answer: Answer) -> Answer:
    numbers = {**answer, **answer.get("counts", {})}
    for name in ("held", "workers"):
        if name in answer:
            numbers[name] = len(answer[name])
    if "resting" in answer:
        numbers["resting"] = answer["resting"]["slots"]
    if not has_pace(answer):
        numbers["found_rate"] = numbers["ended_rate"] = None
    return numbers
