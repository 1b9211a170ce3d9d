"""Credentials are sent only to the configured address. The tests use two servers on loopback; one redirects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from orchestrator.cluster import preflight
from orchestrator.cluster.redirects import origin
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.jobs.dashboard import Dashboard
from orchestrator.storage.settings import resolve
from tests.support.web import QuietHandler, serving

SECRET = "hunter2"
ANSWERS = {"/version": b"3.5.0", "/api/version": b'{"ray_version": "2.50.0", "version": "4"}', "/api/jobs/": b"[]"}


@dataclass
class Server:
    """A server on loopback. Requests to a path in ``moved`` are redirected to that path's base address."""

    url: str
    code: int = 302
    moved: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str | None]] = field(default_factory=list)

    def redirect(self, target: str, code: int = 302) -> None:
        """Redirect every path to the same path below ``target``."""
        self.code = code
        self.moved[""] = target


@contextmanager
def redirecting() -> Iterator[Server]:
    class Handler(QuietHandler):
        def get(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            server.seen.append((self.path.partition("?")[0], self.headers["Authorization"]))
            target = next((server.moved[path] for path in server.moved if self.path.startswith(path)), None)
            if target is None:
                self.respond(200, ANSWERS.get(self.path, b"{}"))
            else:
                self.respond(server.code, Location=target + self.path)

        post = get

    with serving(Handler) as url:
        server = Server(url)
        yield server


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    """The configured server, and another one."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    with ExitStack() as stack:
        yield stack.enter_context(redirecting()), stack.enter_context(redirecting())


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_preflight_sends_no_login_to_another_address(code: int, host: str, servers: tuple[Server, Server]) -> None:
    named, other = servers
    target = other.url.replace("127.0.0.1", host)
    named.redirect(target, code)
    with pytest.raises(UserError) as caught:
        preflight.tracking(resolve({"tracking": named.url}))
    assert (caught.value.code, other.seen) == (UNAVAILABLE, [])
    assert named.seen[0][1] == f"Bearer {SECRET}"  # the login was sent to the configured address
    assert str(caught.value).startswith(f"MLflow at {named.url} redirects to {target}")
    assert "MLFLOW_TRACKING_URI" in str(caught.value)
    with pytest.raises(OSError, match=target):
        preflight.server_version(named.url)
    preflight._check_experiment(resolve({"tracking": named.url}), "mine")  # optional: it may fail without an error
    assert other.seen == []


def test_the_preflight_follows_a_redirect_to_the_same_address(servers: tuple[Server, Server]) -> None:
    named, _ = servers
    named.moved["/version"] = f"{named.url}/below"
    assert preflight.server_version(named.url) == "{}"
    assert named.seen == [("/version", f"Bearer {SECRET}"), ("/below/version", f"Bearer {SECRET}")]


def test_mlflows_own_client_sends_no_login_to_another_address(servers: tuple[Server, Server]) -> None:
    from mlflow.tracking import MlflowClient

    named, other = servers
    named.redirect(other.url.replace("127.0.0.1", "localhost"))
    MlflowClient(named.url).search_experiments()
    path = "/api/2.0/mlflow/experiments/search"
    assert (named.seen, other.seen) == ([(path, f"Bearer {SECRET}")], [(path, None)])


def test_a_dashboard_that_redirects_to_another_address_is_refused(servers: tuple[Server, Server]) -> None:
    named, other = servers
    named.redirect(other.url)
    with pytest.raises(UserError, match=f"got it redirects to {other.url}") as caught:
        Dashboard(named.url)
    assert (caught.value.code, other.seen) == (UNAVAILABLE, [])


def test_rays_own_client_sends_no_token_to_another_address(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.dashboard.modules import dashboard_sdk

    named, other = servers
    header = {"authorization": f"Bearer {SECRET}"}
    monkeypatch.setattr(dashboard_sdk, "get_auth_headers_if_auth_enabled", lambda headers: header)
    dashboard = Dashboard(named.url)
    named.moved["/api/jobs"] = other.url.replace("127.0.0.1", "localhost")
    assert dashboard.jobs() == []
    assert named.seen[-1] == ("/api/jobs/", f"Bearer {SECRET}")
    assert other.seen == [("/api/jobs/", None)]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host/a?b", "http://host"),
        ("https://me:pw@Host:443/a", "https://host"),
        ("http://host:443/", "http://host:443"),
        ("https://[::1]:8443/x", "https://[::1]:8443"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, expected: str) -> None:
    assert origin(url) == expected
