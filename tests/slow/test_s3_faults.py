"""S3 behind a network that fails: answers get lost, cut, refused and delayed, verdicts stay true."""

from __future__ import annotations

import asyncio
import http.client
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest

from ckptctl.model.manifest import MANIFEST, Manifest, decode, pointer_path
from conftest import FIXTURES
from support.effort import PATIENCE
from support.publish import Bucket, bucket, ckptctl, done, s3_environment, s3_server

IMPATIENT = 0.25
"""Seconds that clients wait for an answer while requests are swallowed; else they have patience."""
ROUNDS = 2
MANIFEST_KEY = re.compile(re.escape(MANIFEST))
POINTER_KEY = re.compile(r"ckptctl\.pointers/")
PROBE_KEY = re.compile(r"ckptctl\.probe/")
SLANDER = ("altered-file", "checksum", "truncated-file", "missing-file", "resized-file")


class Fault(Enum):
    """What goes wrong with one request."""

    ERROR_500 = "the server fails"
    ERROR_503 = "the server asks to slow down"
    TIMEOUT = "the request is swallowed and no answer comes"
    SHORT = "the answer breaks off in its body"
    LOST = "the request is carried out and its answer is lost"
    DROPPED = "the connection breaks before the request is carried out"
    UNCONDITIONAL = "the server ignores the condition of a creation"


Choice = Callable[[str, str], Fault | None]
"""From method and path to what goes wrong."""


@dataclass
class Weather:
    """What the proxy does now, and what it has done."""

    choose: Choice = lambda method, path: None
    done: list[tuple[Fault, str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strike(self, method: str, path: str) -> Fault | None:
        with self.lock:
            fault = self.choose(method, path)
            if fault is not None:
                self.done.append((fault, method, path))
            return fault


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to the server, except for what the weather does to them."""

    protocol_version = "HTTP/1.1"
    weather: Weather
    upstream: str
    closing: threading.Event

    def log_message(self, *args: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.weather.strike(self.command, self.path)
        if fault is Fault.TIMEOUT:
            self.closing.wait()  # the client gives up long before
            self.close_connection = True
        elif fault is Fault.DROPPED:
            self.close_connection = True
        elif fault in (Fault.ERROR_500, Fault.ERROR_503):
            self._refuse(500 if fault is Fault.ERROR_500 else 503)
        else:
            self._forward(body, fault)

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Answer every method alike."""
        if name.startswith("do_"):
            return self.pass_on
        raise AttributeError(name)

    def _refuse(self, status: int) -> None:
        code = {500: "InternalError", 503: "SlowDown"}[status]
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>bad luck</Message></Error>"
        self._send(status, {"Content-Type": "application/xml"}, text.encode())

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        dropped = {"connection", "host", "content-length", "expect"}
        if fault is Fault.UNCONDITIONAL:
            dropped.add("if-none-match")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        server = http.client.HTTPConnection(self.upstream, timeout=PATIENCE)
        try:
            server.request(self.command, self.path, body, headers)
            answer = server.getresponse()
            data = answer.read()
        finally:
            server.close()
        if fault is Fault.LOST:
            self.close_connection = True
            return
        hop = {"connection", "transfer-encoding", "server", "date"}
        kept = {k: v for k, v in answer.getheaders() if k.lower() not in hop}
        self._send(answer.status, kept, data, cut=fault is Fault.SHORT)

    def _send(
        self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True


class QuietServer(ThreadingHTTPServer):
    """Clients hang up on it by intention."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with s3_server() as address:
        yield address


@dataclass
class Site:
    """A run on S3 that ckptctl reaches through the proxy and the test reaches directly."""

    url: str
    bucket: Bucket
    weather: Weather

    def add(self, name: str, *, case: str = "fsdp2/step-12") -> str:
        return self.bucket.upload(FIXTURES / case, f"run/{name}")

    def damage(self, name: str, file: str = "__1_0.distcp") -> None:
        """Turn over a bit in the middle of a stored object."""
        key = f"run/{name}/{file}"
        data = bytearray(self.bucket.get(key))
        data[len(data) // 2] ^= 4
        self.bucket.put(key, bytes(data))

    def manifests(self, name: str) -> list[str]:
        return [key for key in self.bucket.keys(f"run/{name}/") if key.endswith(MANIFEST)]

    def storm(self, choose: Choice, *, swallowing: bool = False) -> None:
        """Let requests fail from now on; clients hurry only where no answer may ever come."""
        self.weather.choose = choose
        _configure(IMPATIENT if swallowing else PATIENCE)

    def calm(self) -> None:
        self.storm(lambda method, path: None)


def _configure(seconds: float) -> None:
    """Say how long a client made from now on waits for an answer."""
    import fsspec

    retries = {"max_attempts": 1, "mode": "standard"}
    config = {"read_timeout": seconds, "connect_timeout": seconds, "retries": retries}
    fsspec.config.conf["s3"] = {"config_kwargs": config}


async def _at_once(seconds: float, result: object = None, real: Any = asyncio.sleep) -> Any:
    """Let everybody else go first, as after a pause; how long clients pause is their affair."""
    return await real(0, result)


@pytest.fixture
def site(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    import fsspec
    import s3fs

    weather, closing = Weather(), threading.Event()
    members = {
        "weather": weather,
        "upstream": endpoint.removeprefix("http://"),
        "closing": closing,
    }
    server = QuietServer(("127.0.0.1", 0), type("BoundProxy", (Proxy,), members))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    for name, value in s3_environment(f"http://127.0.0.1:{server.server_address[1]}").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {})
    _configure(PATIENCE)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 2)
    monkeypatch.setattr(asyncio, "sleep", _at_once)
    s3fs.S3FileSystem.clear_instance_cache()
    with bucket(endpoint, f"faults-{uuid4()}") as made:
        yield Site(f"s3://{made.name}/run", made, weather)
    s3fs.S3FileSystem.clear_instance_cache()
    closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


def now_and_then(share: float, *faults: Fault, seed: int = 0) -> Choice:
    """Strike at random requests."""
    chance = random.Random(seed)
    return lambda method, path: chance.choice(faults) if chance.random() < share else None


def once(fault: Fault, method: str, key: re.Pattern[str], *, times: int = 1) -> Choice:
    """Strike the first requests for a key."""
    left = [times]

    def choose(asked: str, path: str) -> Fault | None:
        if asked != method or not key.search(path) or not left[0]:
            return None
        left[0] -= 1
        return fault

    return choose


def always(fault: Fault, method: str, key: re.Pattern[str]) -> Choice:
    """Strike all requests of a kind for a key."""
    return lambda asked, path: fault if asked == method and key.search(path) else None


def after(first: Choice, method: str, key: re.Pattern[str], then: Fault) -> Choice:
    """Once ``first`` has struck, let all requests of a kind for a key fail."""
    struck = [False]

    def choose(asked: str, path: str) -> Fault | None:
        if struck[0]:
            return then if asked == method and key.search(path) else None
        fault = first(asked, path)
        struck[0] = fault is not None
        return fault

    return choose


ANYTHING = re.compile("")
KINDS = {
    "5xx": (0.05, (Fault.ERROR_500, Fault.ERROR_503)),
    "many 5xx": (0.4, (Fault.ERROR_500, Fault.ERROR_503)),
    "timeouts": (0.05, (Fault.TIMEOUT,)),
    "short bodies": (0.1, (Fault.SHORT,)),
    "many short bodies": (0.5, (Fault.SHORT,)),
    "lost answers": (0.1, (Fault.LOST,)),
    "dropped": (0.1, (Fault.DROPPED,)),
    "everything": (
        0.1,
        (Fault.ERROR_500, Fault.ERROR_503, Fault.SHORT, Fault.LOST, Fault.DROPPED),
    ),
}


@pytest.mark.quick
def test_the_proxy_itself_changes_nothing(site: Site) -> None:
    url = site.add("step-12")
    done("commit", url, "--promote")
    assert done("resolve", site.url).stdout == f"{url}\n"
    done("verify", url, "--require", "manifest")
    assert site.weather.done == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_checkpoint_is_never_slandered(site: Site, kind: str) -> None:
    share, faults = KINDS[kind]
    url = site.add("step-12")
    done("commit", url, "--promote")
    for round_ in range(ROUNDS):
        site.storm(now_and_then(share, *faults, seed=round_), swallowing=Fault.TIMEOUT in faults)
        choices: tuple[tuple[str, ...], ...] = ((), ("--require", "manifest", "--json"))
        for options in choices:
            ended = ckptctl("verify", url, *options)
            assert ended.code in (0, 4), ended
            assert not any(word in ended.stdout + ended.stderr for word in SLANDER), ended
        for options in ((), ("--full",)):
            ended = ckptctl("resolve", site.url, *options)
            assert (ended.code, ended.stdout) in ((0, f"{url}\n"), (4, "")), ended
            assert not any(word in ended.stderr for word in SLANDER), ended
    assert site.weather.done


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_object_is_never_called_good(site: Site, kind: str) -> None:
    share, faults = KINDS[kind]
    older, url = site.add("step-8", case="fsdp2/step-8"), site.add("step-12")
    done("commit", older)
    done("commit", url, "--promote")
    site.damage("step-12")
    for round_ in range(ROUNDS):
        site.storm(now_and_then(share, *faults, seed=round_), swallowing=Fault.TIMEOUT in faults)
        ended = ckptctl("verify", url)
        assert ended.code in (10, 4), ended
        ended = ckptctl("resolve", site.url, "--full")
        # where the damaged one could not be looked at, the older one may be taken, and is good
        assert (ended.code, ended.stdout) in ((0, f"{older}\n"), (4, "")), ended
    assert site.weather.done


@pytest.mark.parametrize("kind", KINDS)
def test_a_publication_says_what_has_become_of_it(site: Site, kind: str) -> None:
    share, faults = KINDS[kind]
    for round_ in range(ROUNDS):
        name = f"step-{round_ + 1}"
        url = site.add(name)
        site.storm(now_and_then(share, *faults, seed=round_), swallowing=Fault.TIMEOUT in faults)
        ended = ckptctl("commit", url)
        site.calm()
        assert ended.code in (0, 4, 6), ended
        assert not any(word in ended.stderr for word in SLANDER), ended
        made = site.manifests(name)
        if ended.code == 0:
            assert made
        if ended.code == 4:
            assert made == [], ended  # "certainly not made"
        if made:
            done("verify", url, "--require", "manifest")
        else:
            done("commit", url)
        before = revisions(site)
        site.storm(
            now_and_then(share, *faults, seed=round_ + 100), swallowing=Fault.TIMEOUT in faults
        )
        ended = ckptctl("promote", url)
        site.calm()
        assert ended.code in (0, 4, 6), ended
        grown = revisions(site) - before
        assert grown in {0: (1,), 4: (0,), 6: (0, 1)}[ended.code], ended
        done("promote", url)
        assert done("resolve", site.url).stdout == f"{url}\n"
    assert site.weather.done


def revisions(site: Site) -> int:
    keys = site.bucket.keys("run/ckptctl.pointers/")
    return sum(key.endswith(".json") for key in keys)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_our_own_success_is_recognised_when_its_answer_was_lost(site: Site, times: int) -> None:
    url = site.add("step-12")
    site.storm(once(Fault.LOST, "PUT", MANIFEST_KEY, times=times))
    ended = done("commit", url)
    assert [fault for fault, _, _ in site.weather.done] == [Fault.LOST] * len(site.weather.done)
    assert site.weather.done
    manifest = decode(Manifest, site.bucket.get(f"run/step-12/{MANIFEST}"))
    assert manifest.digest in ended.stdout


@pytest.mark.quick
def test_our_own_pointer_is_recognised_when_its_answer_was_lost(site: Site) -> None:
    url = site.add("step-12")
    done("commit", url)
    site.storm(once(Fault.LOST, "PUT", POINTER_KEY))
    done("promote", url)
    assert [fault for fault, _, _ in site.weather.done] == [Fault.LOST]
    assert revisions(site) == 1


@pytest.mark.quick
def test_an_answer_that_is_lost_with_no_reading_back_is_an_unknown_outcome(site: Site) -> None:
    url = site.add("step-12")
    lost = once(Fault.LOST, "PUT", MANIFEST_KEY)

    def choose(method: str, path: str) -> Fault | None:
        if not site.weather.done:
            return lost(method, path)
        return Fault.ERROR_503 if MANIFEST_KEY.search(path) else None

    site.storm(choose)
    ended = ckptctl("commit", url)
    assert (ended.code, ended.stdout) == (6, ""), ended
    assert MANIFEST in ended.stderr
    site.calm()
    assert site.manifests("step-12")
    done("verify", url, "--require", "manifest")
    assert "committed already, with the same bytes" in done("commit", url).stdout


def test_a_creation_that_never_arrives_is_a_failure_or_unknown_and_nothing_is_there(
    site: Site,
) -> None:
    url = site.add("step-12")
    for fault, codes in (
        (Fault.ERROR_503, {4}),
        (Fault.DROPPED, {4, 6}),
        (Fault.TIMEOUT, {4, 6}),
    ):
        site.storm(always(fault, "PUT", MANIFEST_KEY), swallowing=fault is Fault.TIMEOUT)
        assert ckptctl("commit", url).code in codes
        site.calm()
        assert site.manifests("step-12") == []
    done("commit", url)


def test_somebody_elses_manifest_behind_a_lost_answer_is_a_conflict(site: Site) -> None:
    """The other commit lands while ours is on its way, and our refusal is lost."""
    url = site.add("step-12")
    other = Manifest(name="step-12", step=12, files=(), commit_id="theirs", actor="somebody else")

    def choose(method: str, path: str) -> Fault | None:
        if method != "PUT" or not MANIFEST_KEY.search(path):
            return None
        site.bucket.put(f"run/step-12/{MANIFEST}", other.encode())
        return Fault.LOST if not site.weather.done else None

    site.storm(choose)
    ended = ckptctl("commit", url)
    assert ended.code == 5, ended
    assert "somebody else" in ended.stderr
    assert site.bucket.get(f"run/step-12/{MANIFEST}") == other.encode()


def test_a_server_that_ignores_the_condition_is_refused(site: Site) -> None:
    url = site.add("step-12")
    site.storm(always(Fault.UNCONDITIONAL, "PUT", ANYTHING))
    ended = ckptctl("commit", url)
    assert ended.code == 5, ended
    assert "If-None-Match" in ended.stderr
    site.calm()
    assert site.manifests("step-12") == []
    assert site.bucket.keys("run/ckptctl.probe/") == []


def test_a_probe_that_fails_is_no_accusation_of_the_server(site: Site) -> None:
    url = site.add("step-12")
    for fault in (Fault.ERROR_500, Fault.LOST):
        for method in ("PUT", "GET", "HEAD", "DELETE"):
            site.storm(always(fault, method, PROBE_KEY))
            ended = ckptctl("promote", url) if site.manifests("step-12") else ckptctl("commit", url)
            assert ended.code in (0, 4, 6), (fault, method, ended)
            assert "ignores" not in ended.stderr


@pytest.mark.parametrize("fault", [Fault.ERROR_500, Fault.DROPPED, Fault.TIMEOUT, Fault.SHORT])
def test_a_root_that_cannot_be_listed_is_not_an_empty_one(site: Site, fault: Fault) -> None:
    url = site.add("step-12")
    done("commit", url, "--promote")
    site.storm(always(fault, "GET", re.compile("list-type")), swallowing=fault is Fault.TIMEOUT)
    ended = ckptctl("resolve", site.url)
    assert (ended.code, ended.stdout) == (4, ""), ended


@pytest.mark.parametrize("fault", [Fault.ERROR_500, Fault.DROPPED, Fault.TIMEOUT, Fault.SHORT])
@pytest.mark.parametrize("key", [MANIFEST_KEY, POINTER_KEY, re.compile(r"\.metadata|distcp")])
def test_records_and_data_that_do_not_answer_are_no_verdict(
    site: Site, fault: Fault, key: re.Pattern[str]
) -> None:
    url = site.add("step-12")
    done("commit", url, "--promote")
    methods = ("GET",) if fault is Fault.SHORT else ("GET", "HEAD")
    site.storm(
        lambda method, path: fault if key.search(path) and method in methods else None,
        swallowing=fault is Fault.TIMEOUT,
    )
    for words in (("resolve", site.url), ("verify", url)):
        ended = ckptctl(*words)
        assert ended.code == 4, (words, ended)
        assert not any(word in ended.stdout for word in SLANDER), ended


def test_a_lost_pointer_revision_never_makes_a_gap(site: Site) -> None:
    for step in range(1, 4):
        url = site.add(f"step-{step}")
        done("commit", url)
        site.storm(now_and_then(0.3, Fault.LOST, Fault.ERROR_503, seed=step))
        while ckptctl("promote", url).code != 0:
            pass
        site.calm()
    found = site.bucket.keys("run/ckptctl.pointers/")
    keys = sorted(key for key in found if key.endswith(".json"))
    assert keys == [f"run/{pointer_path('latest_committed', n)}" for n in range(1, 4)]
