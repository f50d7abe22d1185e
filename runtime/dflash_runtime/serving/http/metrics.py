"""What the server tells Prometheus. Every application has a registry of its own."""

import logging
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from dflash_engines.device.engine import DeviceEngine
from dflash_engines.engine import Engine
from dflash_engines.errors import DflashError
from dflash_runtime.completion import Completion, Step
from dflash_runtime.serving.concurrent_decoder import ConcurrentDecoder
from dflash_runtime.serving.errors import CancelledError, ClosedError, DeadlineError
from dflash_runtime.serving.generation import Generation

LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
PASSES_BEFORE_ALARM = 64
_SMOOTHING = 1 / 256  # of the running acceptance length
log = logging.getLogger("dflash.server")


class Metrics:
    """Implements `observer.Observer`."""

    def __init__(self, acceptance_alarm: float) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._waited = self._histogram("dflash_queue_seconds", "From arrival to a slot", LONG)
        self._first = self._histogram("dflash_time_to_first_token_seconds", "From arrival to the first tokens", LONG)
        self._gap = self._histogram("dflash_step_gap_seconds", "Between two steps of an answer", SHORT)
        self._token = self._histogram("dflash_inter_token_seconds", "A step's gap, over the tokens it brought", SHORT)
        self._prompt = self._counter("dflash_prompt_tokens", "Prompt tokens of finished answers")
        self._reused = self._counter("dflash_reused_prompt_tokens", "Those that a slot still held")
        self._generated = self._counter("dflash_generated_tokens", "Tokens sent")
        self._drafted = self._counter("dflash_drafted_tokens", "Tokens that the drafter proposed")
        self._accepted = self._counter("dflash_accepted_tokens", "Proposed tokens that the target agreed with")
        self._passes = self._counter("dflash_verifying_passes", "Passes of the target, per answer they served")
        self._ended = Counter("dflash_requests", "By how they ended", ["outcome"], registry=self.registry)
        self.http = Counter("dflash_http_requests", "Responses", ["path", "status"], registry=self.registry)
        self._length = self._gauge("dflash_acceptance_length", "Tokens a drafting pass gains, running mean")
        self._alarm = self._gauge("dflash_acceptance_alarm", f"1 while that is under {acceptance_alarm}")
        self._threshold, self._mean, self._seen = acceptance_alarm, 0.0, 0

    def watch(self, decoder: ConcurrentDecoder) -> None:
        """Read the decoder's queue and slots at every scrape."""
        queue = decoder.queue
        self._gauge("dflash_queue_length", "Requests that wait for a slot").set_function(lambda: len(queue))
        self._gauge("dflash_slots_busy", "Requests that run").set_function(lambda: queue.running)
        self._gauge("dflash_slots", "Requests that can run together").set(queue.slots)
        self._gauge("dflash_queue_limit", "Requests that may wait").set(queue.size)
        self._watch_memory(decoder.texts.engine)

    def _watch_memory(self, engine: Engine) -> None:
        """Of a device; an engine in host memory is part of the process."""
        if isinstance(engine, DeviceEngine) and engine.device.memory() is not None:
            for i, name in enumerate(("free", "total")):
                gauge = self._gauge(f"dflash_device_memory_{name}_bytes", f"The device's {name} memory")
                gauge.set_function(partial(_device_memory, engine, i))

    def admitted(self, generation: Generation, waited: float) -> None:
        """See Observer."""
        self._waited.observe(waited)

    def stepped(self, generation: Generation, step: Step, since: float, first: bool) -> None:
        """See Observer."""
        if first:
            self._first.observe(since)
        else:
            self._gap.observe(since)
            self._token.observe(since / max(1, len(step.token_ids)))
        self._generated.inc(len(step.token_ids))
        if step.acceptance_length is not None and step.block_size is not None:
            self._passes.inc()
            self._drafted.inc(step.block_size - 1)
            self._accepted.inc(step.acceptance_length - 1)
            if step.block_size > 1:
                self._accept(step.acceptance_length)

    def ended(self, generation: Generation, outcome: Completion | DflashError) -> None:
        """See Observer."""
        self._ended.labels(_outcome(outcome)).inc()
        if isinstance(outcome, Completion):
            self._prompt.inc(outcome.prompt_tokens)
            self._reused.inc(outcome.reused_tokens)

    def _accept(self, length: int) -> None:
        """The mean of the first passes, then a running one."""
        self._seen += 1
        self._mean += max(_SMOOTHING, 1 / self._seen) * (length - self._mean)
        self._length.set(self._mean)
        fallen = self._seen >= PASSES_BEFORE_ALARM and self._mean < self._threshold
        if fallen != self._alarming:
            self._alarming = fallen
            self._alarm.set(fallen)
            log.log(
                logging.WARNING if fallen else logging.INFO,
                "acceptance has fallen" if fallen else "acceptance has recovered",
                extra={"acceptance_length": round(self._mean, 3), "threshold": self._threshold},
            )

    _alarming = False

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, about, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, registry=self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, registry=self.registry)


def _device_memory(engine: DeviceEngine, which: int) -> float:
    return (engine.device.memory() or (0, 0))[which]


def _outcome(outcome: Completion | DflashError) -> str:
    if isinstance(outcome, Completion):
        return outcome.finish_reason
    names = {CancelledError: "cancelled", DeadlineError: "deadline", ClosedError: "closed"}
    return next((name for kind, name in names.items() if isinstance(outcome, kind)), "error")
