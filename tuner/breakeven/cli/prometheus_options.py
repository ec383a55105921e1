"""Options for queries to a Prometheus: address, credentials from the environment or from files, and one query.

A credential never stands in an address or on the command line, where process lists and CI logs show it, and is never printed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from breakeven.cli.output import gathered, several
from breakeven.cli.parameters import InputFile, Number
from breakeven.errors import BreakevenError, InputError

if TYPE_CHECKING:
    from ssl import SSLContext

    from breakeven.past.courses import TimeGrid
    from breakeven.prometheus_queries import Prometheus
    from breakeven.readers.prometheus import Samples
    from breakeven.serving.promql import Matcher, RangeQuestion

prometheus_options = gathered(
    "access",
    dict,
    click.option(
        "--prometheus", "url", required=True, metavar="URL", help="Prometheus base URL (http or https)."
    ),
    click.option(
        "--bearer-token-env", metavar="NAME", help="Environment variable that holds a token for Prometheus."
    ),
    click.option("--bearer-token-file", type=InputFile(), help="File that holds it."),
    click.option("--basic-user", metavar="USER", help="User for basic authentication."),
    click.option(
        "--basic-password-env", metavar="NAME", help="Environment variable that holds the password."
    ),
    click.option("--basic-password-file", type=InputFile(), help="File that holds it."),
    click.option("--ca", type=InputFile(), help="CA certificate of Prometheus (PEM)."),
    click.option("--client-cert", type=InputFile(), help="Our certificate for mutual TLS (PEM)."),
    click.option("--client-key", type=InputFile(), help="Its key (PEM)."),
    click.option("--tenant", metavar="VALUE", help="Tenant to ask about (Mimir, Cortex, Thanos)."),
    click.option("--tenant-env", metavar="NAME", help="Environment variable that holds it."),
    click.option(
        "--tenant-header", default="X-Scope-OrgID", show_default=True, help="Header that selects the tenant."
    ),
    click.option(
        "--label",
        multiple=True,
        metavar="LABEL=NAME",
        help="Name under which the engines' series have the label namespace or pod, such as pod=exported_pod after a federation.",
    ),
)
_MATCHER = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)(.*)", re.DOTALL)


def series_options(timeout_s: float) -> Callable[[Any], Any]:
    """Options that choose series, and how long an answer is waited for (s) unless it is given."""
    return several(
        click.option(
            "--match",
            multiple=True,
            metavar="LABEL=VALUE",
            help="Label matchers on every series (cluster, namespace, pod, job, ...); =, !=, =~ and !~ as in PromQL, such as 'pod=~chat-a-.*'.",
        ),
        click.option(
            "--metric-prefix",
            metavar="PREFIX",
            help="What the names of vLLM's series begin with; else vllm:, kserve_vllm:, ray_vllm:, ray_vllm_ and vllm_ are looked for.",
        ),
        timeout_option(timeout_s),
    )


def timeout_option(timeout_s: float) -> Callable[[Any], Any]:
    """How long an answer is waited for (s) unless it is given."""
    return click.option(
        "--timeout-seconds",
        type=Number(0.1),
        default=timeout_s,
        show_default=True,
        help="For each answer of Prometheus.",
    )


class AskedPrometheus(NamedTuple):
    """The Prometheus that a command names."""

    client: Prometheus

    @classmethod
    def of(cls, given: Mapping[str, Any], timeout_s: float) -> AskedPrometheus:
        """The Prometheus of `prometheus_options`.

        Raises:
            InputError: one of them is wrong; no credential is repeated.
        """
        from breakeven.prometheus_queries import Prometheus
        from breakeven.serving.promql import LabelNames

        url = given["url"]
        if not url.startswith(("http://", "https://")):
            shown = url if "@" not in url else "an address with a credential in it"
            raise InputError("--prometheus", repr(shown), "an http:// or https:// URL")
        if any(sign in url for sign in "@?#"):
            raise InputError(
                "--prometheus",
                "an address with a user, a query or a fragment in it",
                "a plain address, and credentials by --bearer-token-env, --basic-user or --tenant",
            )
        headers: dict[str, str] = {}
        token = _secret(given, "bearer_token")
        password = _secret(given, "basic_password")
        if (given["basic_user"] is None) != (password is None):
            raise InputError("--basic-user", "user without password, or password without user", "both")
        if token is not None and password is not None:
            raise InputError("--bearer-token-env", "given beside --basic-user", "one of the two")
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if password is not None:
            pair = f"{given['basic_user']}:{password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        tenant = from_environment("--tenant-env", given["tenant_env"]) or given["tenant"]
        if tenant is not None:
            name = given["tenant_header"]
            if not name.isascii() or not name.replace("-", "").isalnum():
                raise InputError("--tenant-header", repr(name), "a header's name")
            headers[name] = _one_line("--tenant", tenant)
        try:
            labels = LabelNames.of(given["label"])
        except ValueError as error:
            raise InputError("--label", repr(" ".join(given["label"])), str(error)) from error
        return cls(Prometheus(url.rstrip("/"), headers, timeout_s, _tls(given), labels))

    def at(self, promql: str, time_s: int | None = None) -> list[tuple[Mapping[str, str], float]]:
        """Labels and value of each element of an instant query's result, now or as of a Unix time (s), where the value is finite.

        Raises:
            BreakevenError: there is no usable answer.
        """
        import math

        with self._named():
            found = self.client.instant(promql, time_s)
        return [(one.labels, one.value) for one in found if math.isfinite(one.value)]

    def over(self, promql: str, grid: TimeGrid) -> list[Samples]:
        """Series of a range query at the times of a grid; samples that are no numbers are among them.

        Raises:
            BreakevenError: there is no usable answer.
        """
        from breakeven.serving.promql import RangeQuestion

        return self.asked(RangeQuestion(promql, grid.first_s, grid.last_s, grid.step_s))

    def asked(self, question: RangeQuestion) -> list[Samples]:
        """Series of a range query.

        Raises:
            BreakevenError: there is no usable answer.
        """
        with self._named():
            return self.client.over(question)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        from breakeven.prometheus_queries import PrometheusError

        try:
            yield
        except PrometheusError as error:
            credential = "a credential (--bearer-token-env, --basic-user, --tenant)"
            wanted = credential if error.status in {401, 403} else "an answer of Prometheus' HTTP API"
            what = "; ".join(filter(None, (f"{error}", error.said)))
            raise BreakevenError(f"{self.client.url}: Prometheus {what}; expected {wanted}") from error


_UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_S = 400 * 86400


def span_seconds(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    """A span such as 14d, 36h or 90m in seconds; wrong usage if it is none, or beyond 400 days."""
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise click.BadParameter(f"{text!r} is no span; expected such as 14d, 36h or 90m, at most 400d")
    return seconds


def read_matcher(text: str) -> Matcher:
    """A label matcher as PromQL writes it, its value without quotes or in double ones; else a refused input."""
    from breakeven.serving.promql import Matcher

    found = _MATCHER.fullmatch(text)
    if found is None:
        raise InputError(
            "--match", repr(text), "LABEL=VALUE, LABEL!=VALUE, LABEL=~EXPRESSION or LABEL!~EXPRESSION"
        )
    label, operator, value = found.groups()
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    if operator in {"=~", "!~"}:
        try:
            re.compile(value)
        except re.error as error:
            raise InputError("--match", repr(text), f"a regular expression ({error})") from error
    return Matcher(label, operator, value)


def read_prefix(text: str | None) -> str | None:
    """The beginning of metric names; a refused input if no name begins like that."""
    if text is not None and not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text):
        raise InputError("--metric-prefix", repr(text), "letters, digits, _ and :")
    return text


def _secret(given: Mapping[str, Any], name: str) -> str | None:
    option = f"--{name.replace('_', '-')}"
    variable, file = given[f"{name}_env"], given[f"{name}_file"]
    if variable is not None and file is not None:
        raise InputError(f"{option}-env", f"given beside {option}-file", "one of the two")
    if file is not None:
        return _one_line(f"{option}-file {file}", _content(file).decode("utf-8", "replace").strip())
    value = from_environment(f"{option}-env", variable)
    return _one_line(f"{option}-env {variable}", value) if value is not None else None


def from_environment(
    option: str, variable: str | None, expected: str = "a value in that variable"
) -> str | None:
    """The value of the variable that an option names; None if it names none, a refused input if it is not set."""
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise InputError(f"{option} {variable}", "not set or empty", expected)
    return value


def _one_line(option: str, value: str) -> str:
    """A header's value; a wrong one is not repeated."""
    if not value or not value.isascii() or not value.isprintable():
        raise InputError(option, "not plain ASCII of one line", "a credential as a header takes it")
    return value


def _content(file: Path) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InputError(str(file), f"cannot be read ({error.strerror})", "a file") from error


def _tls(given: Mapping[str, Any]) -> SSLContext | None:
    from breakeven.prometheus_queries import tls_context

    authority, certificate, key = given["ca"], given["client_cert"], given["client_key"]
    if authority is None and certificate is None and key is None:
        return None
    if (certificate is None) != (key is None):
        raise InputError("--client-cert", "certificate without key, or key without certificate", "both")
    contents = [_content(file) if file is not None else None for file in (authority, certificate, key)]
    try:
        return tls_context(*contents)
    except (OSError, ValueError) as error:
        where = f"--client-cert {certificate}" if authority is None else f"--ca {authority}"
        raise InputError(where, "not usable", "a CA certificate, or ours with its key, in PEM") from error
