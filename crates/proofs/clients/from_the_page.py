#!/usr/bin/env python3
"""Create orders from standard input, each at most once, by the rules of the page "Retrying Sample shop safely".

Usage: from_the_page.py BASE_URL TOKEN < orders.jsonl

Reads one `{"order": "1042", "amount": 5}` a line and prints one JSON line for each, in the same order. Running it again
with the same input is safe within the page's replay window of 24 hours: the key comes from the order's own number.

Written by somebody who had the page of the sample shop (`retrysafe docs`) and nothing else, as it was in November 2026. It is kept
as it was written: what it had to guess, the page should say.
"""

from __future__ import annotations

import email.utils
import hashlib
import http.client
import io
import json
import math
import os
import random
import socket
import ssl
import sys
import time
import urllib.parse
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple, Optional, Union, cast

# The page's numbers, in seconds.
ATTEMPTS = 3
ELAPSED = 30.0
BASE, THROTTLED_BASE, CAP = 0.05, 1.0, 20.0
IN_FLIGHT_PAUSE = 1.0  # where a 409 "in flight" names no time
KEY_BYTES = 255

RETRIED = frozenset({429, 502, 503, 504})
STORED = frozenset({400, 402, 409, 422})  # the same key gets the same failure again
# Not a verdict on the order: nothing is stored, and the same key works once the cause is removed. The page calls 401 and
# 403 "free"; 408 is not on the page, and says only that the request did not arrive in time.
NOT_A_VERDICT = frozenset({401, 403, 408})

IN_FLIGHT = "idempotency_key_in_flight"
MISMATCH = "idempotency_key_payload_mismatch"
OUTCOME_UNKNOWN = "idempotency_outcome_unknown"
NOT_KEPT = "idempotency_response_not_kept"
COLLISION = "idempotency_namespace_collision"
# Refusals of the request itself, made before the operation: they say nothing about an earlier attempt.
BEFORE_OPERATION = frozenset({
    "idempotency_key_missing", "idempotency_key_empty", "idempotency_key_too_long", "idempotency_key_malformed",
    "idempotency_key_ambiguous", "idempotency_not_guardable", "request_refused", "request_too_large",
})
# Codes after which nothing was run by this attempt, whatever the status says.
NOTHING_RUN = frozenset({
    "idempotency_overloaded", "deadline_exceeded_before_start", "upstream_unavailable", COLLISION,
})
WORTH_A_NOTE = BEFORE_OPERATION | {MISMATCH, OUTCOME_UNKNOWN, NOT_KEPT, COLLISION}

Result = Literal["created", "refused", "unknown", "later"]
OrderNumber = Union[str, int]


class Settings(NamedTuple):
    """Where to send, as whom, and how long to wait for each attempt."""

    secure: bool
    host: str
    port: int
    path: str
    token: str
    connect_timeout: float
    read_timeout: float
    tls: Optional[ssl.SSLContext]


@dataclass(frozen=True)
class Answer:
    """A whole answer. A body that broke off is no answer."""

    status: int
    code: Optional[str]
    retry_after: Optional[float]
    order_id: Union[str, int, None]


@dataclass(frozen=True)
class Outcome:
    """What is known about one order when this program stops working on it."""

    result: Result
    status: Optional[int] = None
    order_id: Union[str, int, None] = None
    attempts: int = 0
    code: Optional[str] = None


class NotSent(Exception):
    """There was no connection, so the request cannot have arrived."""


class NoAnswer(Exception):
    """The request may have arrived, and no whole answer came back: it may have happened."""


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until a deadline. A plain socket timeout would start anew with every byte of a slow answer."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> Optional[int]:  # type: ignore[no-untyped-def, override]
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("read timeout")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _DeadlineSocket:
    """The one method that `http.client.HTTPResponse` asks of a socket."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock, self._deadline))


def key_for(order: OrderNumber) -> str:
    """The order's key: the same after every restart, different for every order, and plain visible ASCII."""
    number = str(order)
    key = "order-create-" + urllib.parse.quote(number, safe="", errors="surrogatepass")
    if len(key) <= KEY_BYTES:
        return key
    # The colon keeps these apart from the keys above, where a colon is always escaped.
    return "order-create-sha256:" + hashlib.sha256(number.encode("utf-8", "surrogatepass")).hexdigest()


def read_retry_after(value: Optional[str]) -> Optional[float]:
    """Seconds from a Retry-After header: a number, or an HTTP date. None where there is none that can be read."""
    if value is None:
        return None
    text = value.strip()
    digits = text[:-1] if text.endswith("s") else text  # the page writes `Retry-After: 1s`
    if digits.isascii() and digits.isdigit():
        return float(digits)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def connect(settings: Settings, timeout: float) -> socket.socket:
    """A connection, TLS included, to the first address that answers; the timeout is for all addresses together."""
    deadline = time.monotonic() + timeout
    failure: Exception = OSError("no address")
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotSent from error
    for family, kind, protocol, _, address in addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        sock: Optional[socket.socket] = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(left)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if settings.tls is not None:
                sock.settimeout(max(deadline - time.monotonic(), 0.001))
                sock = settings.tls.wrap_socket(sock, server_hostname=settings.host)
            return sock
        except (OSError, ValueError) as error:
            failure = error
            if sock is not None:
                sock.close()
    raise NotSent from failure


def send(settings: Settings, key: str, body: bytes, deadline: float) -> Answer:
    """One attempt, within its own timeouts and what is left until the deadline. Redirects are not followed."""
    sock = connect(settings, min(settings.connect_timeout, deadline - time.monotonic()))
    read_deadline = min(time.monotonic() + settings.read_timeout, deadline)
    kind = http.client.HTTPSConnection if settings.secure else http.client.HTTPConnection
    connection = kind(settings.host, settings.port)
    connection.sock = sock
    try:
        sock.settimeout(max(read_deadline - time.monotonic(), 0.001))
        connection.request("POST", settings.path, body, {
            "Authorization": f"Bearer {settings.token}",
            "Content-Type": "application/json",
            "Accept": "application/json, application/problem+json",
            "Idempotency-Key": key,
            "Connection": "close",
        })
        response = http.client.HTTPResponse(cast(socket.socket, _DeadlineSocket(sock, read_deadline)), method="POST")
        try:
            response.begin()
            text = response.read()
            return read_answer(response.status, response.getheader("Retry-After"), text)
        finally:
            response.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer from error
    finally:
        connection.close()


def read_answer(status: int, retry_after: Optional[str], text: bytes) -> Answer:
    """Takes what matters from an answer; a body that is not a JSON object simply has no code and no id."""
    try:
        body = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        body = None
    members = body if isinstance(body, dict) else {}
    code, order_id = members.get("code"), members.get("id")
    usable = isinstance(order_id, (str, int)) and not isinstance(order_id, bool)
    return Answer(
        status,
        code if isinstance(code, str) else None,
        read_retry_after(retry_after),
        order_id if usable else None,
    )


def is_in_flight(answer: Answer) -> bool:
    """The first request still runs. We never ask for a 202, but the page gives it this meaning."""
    return answer.status == 202 or (answer.status == 409 and answer.code == IN_FLIGHT)


def verdict(answer: Answer, in_doubt: bool) -> Result:
    """The result for an answer that is not retried. `in_doubt`: an earlier attempt of this run may have happened."""
    status, code = answer.status, answer.code
    if 200 <= status < 300:
        return "created"
    if code in (OUTCOME_UNKNOWN, NOT_KEPT):
        return "unknown"  # "not kept" did happen, but its result has to be looked up
    if status in NOT_A_VERDICT or code == COLLISION:
        return "later"
    if status in STORED and code not in BEFORE_OPERATION:
        return "refused"
    if 400 <= status < 500:
        return "unknown" if in_doubt else "refused"
    return "unknown"  # 500, and whatever the page does not speak of


def create(settings: Settings, key: str, body: bytes) -> Outcome:
    """Creates one order: at most 3 attempts and 30 seconds, always with the same key and the same body."""
    deadline = time.monotonic() + ELAPSED
    retry = 0
    status: Optional[int] = None
    code: Optional[str] = None
    in_doubt = False
    while True:
        answer: Optional[Answer] = None
        try:
            answer = send(settings, key, body, deadline)
        except NotSent:
            pass
        except NoAnswer:
            in_doubt = True
        asked: Optional[float] = None
        if answer is not None:
            status, code, asked = answer.status, answer.code, answer.retry_after

        if answer is not None and is_in_flight(answer):
            in_doubt = True
            pause = asked if asked else IN_FLIGHT_PAUSE  # this costs no attempt
        else:
            if answer is not None and answer.status not in RETRIED:
                result = verdict(answer, in_doubt)
                order_id = answer.order_id if result == "created" else None
                return Outcome(result, status, order_id, retry + 1, code)
            if answer is not None and answer.status != 429 and answer.code not in NOTHING_RUN:
                in_doubt = True
            if retry + 1 >= ATTEMPTS:
                return Outcome("later", status, None, retry + 1, code)
            base = THROTTLED_BASE if answer is not None and answer.status == 429 else BASE
            pause = max(random.uniform(0, min(CAP, base * 2**retry)), asked or 0.0)

        # A Retry-After is never shortened, no pause is longer than the cap, and nothing is begun after the deadline.
        if pause > CAP or pause >= deadline - time.monotonic():
            return Outcome("later", status, None, retry + 1, code)
        time.sleep(pause)
        if time.monotonic() >= deadline:
            return Outcome("later", status, None, retry + 1, code)
        if answer is None or not is_in_flight(answer):
            retry += 1


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_line(line: bytes) -> tuple[Optional[OrderNumber], Optional[bytes]]:
    """The order's number and the request's body; None for what is missing or unusable. Amounts keep their digits."""
    try:
        entry = json.loads(line.decode("utf-8"), parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, ArithmeticError, RecursionError):
        return None, None
    if not isinstance(entry, dict):
        return None, None
    order, amount = entry.get("order"), entry.get("amount")
    if isinstance(order, bool) or not isinstance(order, (str, int)) or order == "":
        return None, None
    if isinstance(amount, bool) or not isinstance(amount, (int, Decimal)):
        return order, None
    return order, f'{{"amount": {amount}}}'.encode("ascii")


def seconds_from(name: str, otherwise: float) -> float:
    """A positive number of seconds from the environment."""
    try:
        seconds = float(os.environ.get(name, otherwise))
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{name} has to be a positive number of seconds")
    return seconds


def settings_from(base_url: str, token: str) -> Settings:
    """Checks everything before the first order is sent. Its complaints never quote the token or the address."""
    try:
        url = urllib.parse.urlsplit(base_url)
        port = url.port
    except ValueError:
        raise ValueError("BASE_URL cannot be read") from None
    visible = base_url.isascii() and all("!" <= character <= "~" for character in base_url)
    if not visible or url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("BASE_URL has to be an http or https address")
    if url.query or url.fragment or url.username is not None or url.password is not None:
        raise ValueError("BASE_URL has to be without credentials, query and fragment")
    if not token or not (token.isascii() and all("!" <= character <= "~" for character in token)):
        raise ValueError("TOKEN has to be visible ASCII")
    secure = url.scheme == "https"
    return Settings(
        secure,
        url.hostname,
        port if port is not None else (443 if secure else 80),
        url.path.rstrip("/") + "/orders",
        token,
        seconds_from("CONNECT_TIMEOUT_S", 2.0),
        seconds_from("READ_TIMEOUT_S", 3.0),
        ssl.create_default_context() if secure else None,
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: from_the_page.py BASE_URL TOKEN < orders.jsonl", file=sys.stderr)
        return 1
    try:
        settings = settings_from(*arguments)
    except ValueError as error:
        print(f"from_the_page.py: {error}", file=sys.stderr)
        return 1

    settled = True
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if not line.strip():
            continue
        order, body = read_line(line)
        if order is None or body is None:
            print(f"line {number}: not an order with a number and an amount; nothing was sent", file=sys.stderr)
            outcome = Outcome("refused")
        else:
            outcome = create(settings, key_for(order), body)
        settled = settled and outcome.result in ("created", "refused")
        print(json.dumps({
            "order": order,
            "result": outcome.result,
            "status": outcome.status,
            "id": outcome.order_id,
            "attempts": outcome.attempts,
        }), flush=True)
        if outcome.code in WORTH_A_NOTE:  # only names from the page, never text from the answer
            print(f"line {number}: {outcome.code}", file=sys.stderr)
    return 0 if settled else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
