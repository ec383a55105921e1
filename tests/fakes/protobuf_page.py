"""A page of metrics in Prometheus' protobuf format, the only one in which a scrape finds exponential histograms.

vLLM's own page is text and has classic ones; a proxy or an engine in another language may have these.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto
from prometheus_client import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_SCHEMA = 3
_TYPES = {"counter": 0, "gauge": 1, "histogram": 4}
_PACKAGE = "io.prometheus.client"
_ONE, _MANY = 1, 3
_DOUBLE, _UINT64, _INT32, _STRING, _MESSAGE, _UINT32, _SINT32, _SINT64 = 1, 4, 5, 9, 11, 13, 17, 18
# Those fields of io.prometheus.client's messages that such a page needs: number, type, how many, whose message.
_MESSAGES: dict[str, dict[str, tuple[int, int, int, str]]] = {
    "LabelPair": {"name": (1, _STRING, _ONE, ""), "value": (2, _STRING, _ONE, "")},
    "Gauge": {"value": (1, _DOUBLE, _ONE, "")},
    "Counter": {"value": (1, _DOUBLE, _ONE, "")},
    "BucketSpan": {"offset": (1, _SINT32, _ONE, ""), "length": (2, _UINT32, _ONE, "")},
    "Histogram": {
        "sample_count": (1, _UINT64, _ONE, ""),
        "sample_sum": (2, _DOUBLE, _ONE, ""),
        "schema": (5, _SINT32, _ONE, ""),
        "zero_threshold": (6, _DOUBLE, _ONE, ""),
        "zero_count": (7, _UINT64, _ONE, ""),
        "positive_span": (12, _MESSAGE, _MANY, "BucketSpan"),
        "positive_delta": (13, _SINT64, _MANY, ""),
    },
    "Metric": {
        "label": (1, _MESSAGE, _MANY, "LabelPair"),
        "gauge": (2, _MESSAGE, _ONE, "Gauge"),
        "counter": (3, _MESSAGE, _ONE, "Counter"),
        "histogram": (7, _MESSAGE, _ONE, "Histogram"),
    },
    "MetricFamily": {
        "name": (1, _STRING, _ONE, ""),
        "type": (3, _INT32, _ONE, ""),
        "metric": (4, _MESSAGE, _MANY, "Metric"),
    },
}


def _family_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, label, of) in fields.items():
            whose = f".{_PACKAGE}.{of}" if of else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=whose)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily"))


_FAMILY = _family_class()


def protobuf_page(metrics: Iterable[Metric]) -> bytes:
    """The page: counters and gauges as they are, histograms as exponential ones whose values lie at the classic upper edges."""
    page = io.BytesIO()
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        family = _FAMILY(name=name, type=_TYPES[metric.type])
        if metric.type == "histogram":
            _add_histogram(family.metric.add(), metric.samples)
        else:
            for sample in metric.samples:
                if sample.name == name:
                    getattr(_labelled(family.metric.add(), sample.labels), metric.type).value = sample.value
        proto.serialize_length_prefixed(family, page)
    return page.getvalue()


def _labelled(one: Any, labels: dict[str, str]) -> Any:
    for name, value in labels.items():
        one.label.add(name=name, value=value)
    return one


def _add_histogram(one: Any, samples: Iterable[Sample]) -> None:
    """One series of a family without labels of its own."""
    counts: dict[int, int] = {}
    before = edge = 0.0
    for sample in samples:
        if sample.name.endswith("_bucket"):
            upper = float(sample.labels["le"])
            # Values beyond the last edge lie anywhere above it.
            edge = upper if math.isfinite(upper) else 2.0 * edge
            place = math.ceil(math.log2(edge) * 2**_SCHEMA)
            counts[place] = counts.get(place, 0) + int(sample.value - before)
            before = sample.value
        elif sample.name.endswith("_count"):
            one.histogram.sample_count = int(sample.value)
            _labelled(one, sample.labels)
        elif sample.name.endswith("_sum"):
            one.histogram.sample_sum = sample.value
    one.histogram.schema = _SCHEMA
    one.histogram.zero_threshold = 1e-128
    one.histogram.zero_count = 0
    end, last = 0, 0
    for place, count in sorted(counts.items()):
        # A span's offset is the gap after the one before it; its count, the difference to the bucket before it.
        one.histogram.positive_span.add(offset=place - end, length=1)
        one.histogram.positive_delta.append(count - last)
        end, last = place + 1, count
