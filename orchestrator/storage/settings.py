"""Settings, resolved from flag, environment, file and default, with the source of each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from orchestrator.config import user_code
from orchestrator.errors import UserError, check_text, mask, unknown
from orchestrator.provenance import private_files
from orchestrator.storage import notifications, prices, remote
from orchestrator.storage.prices import Prices
from workloads.data import stores
from workloads.data.cache import default_data_root, is_uri, staged_path
from workloads.data.errors import DataError

Source = Literal["flag", "environment", "file", "default"]

NAMES: dict[str, tuple[str, str]] = {
    "home": (private_files.HOME_VARIABLE, "embedded home: MLflow store, run records, caches of the service"),
    "storage": ("ORCHESTRATOR_STORAGE", "where runs and sweeps keep checkpoints, logs and results: a folder, or a URI"),
    "data": ("ORCHESTRATOR_DATA", "root of the datasets"),
    "tracking": ("MLFLOW_TRACKING_URI", "MLflow tracking and registry, or none"),
    "experiment": ("MLFLOW_EXPERIMENT_NAME", "MLflow experiment; unset: the workload's name"),
    "ray_address": ("RAY_ADDRESS", "Ray cluster; unset: a local one, started and stopped with the command"),
    "gates": ("ORCHESTRATOR_GATES", "file of promotion gates; unset: gates.yaml in the home, if it is there"),
    "queue": ("ORCHESTRATOR_QUEUE", "queue of the run; queues share a Ray cluster equally"),
    "priority": ("ORCHESTRATOR_PRIORITY", "share within the queue: priority 2 gets twice that of 1"),
    "collective_timeout": ("ORCHESTRATOR_COLLECTIVE_TIMEOUT", "seconds that a worker waits for the others of its run"),
    "start_timeout": ("ORCHESTRATOR_START_TIMEOUT", "seconds that the workers of a run may take to come up"),
    "prices": ("ORCHESTRATOR_PRICES", "price of a device hour, such as gpu=2.50,cpu=0.04, or EUR gpu=2.50"),
    "notify": ("ORCHESTRATOR_NOTIFY", "webhook, or 'cmd: PROGRAM WORDS', notified of starts, ends and gates"),
}

ADDRESSES = ("tracking", "experiment", "ray_address")
"""Settings that are sent as text. Paths of other settings may be in any encoding, and a webhook is not shown."""

INTEGERS = ("priority", "collective_timeout", "start_timeout")
"""Settings that may be numbers in the file; the others are text."""


class Timeouts(NamedTuple):
    """Time limits in seconds: of a collective operation, and of a group's start."""

    collective: int
    start: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved settings. ``sources`` gives the source of each value by name.

    ``storage`` is always a folder; for a URI, its local copy (see :mod:`orchestrator.storage.remote`).
    """

    home: Path
    storage: Path
    data: Path
    tracking: str | None
    experiment: str | None
    ray_address: str | None
    gates: Path | None
    queue: str
    priority: int
    collective_timeout: int
    start_timeout: int
    prices: Prices | None
    notify: str | None = field(repr=False)  # the path of a webhook may be secret
    sources: Mapping[str, Source]

    @property
    def remote(self) -> str | None:
        """The URI whose local copy ``storage`` is; None for a plain folder."""
        return remote.uri_of(self.storage)

    def text(self, name: str) -> str:
        """A setting as it could be given: of a storage or data root in an object store the URI, not the local copy."""
        uris = {"storage": self.remote, "data": stores.uri_of(self.data)}
        return str(uris.get(name) or getattr(self, name) or "none")

    def recorded(self) -> dict[str, str | None]:
        """What the record of a run has of them: ``tracking``, without a database's password, and ``experiment``."""
        return {"tracking": self.tracking and mask(self.tracking), "experiment": self.experiment}

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts(self.collective_timeout, self.start_timeout)

    @property
    def embedded(self) -> bool:
        """Whether tracking is the embedded store below ``home``."""
        return self.tracking == embedded_uri(self.home)


def resolve(flags: Mapping[str, str | None] | None = None) -> Settings:
    """Resolve every setting. The file is ``config.yaml`` in the home."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if empty := next((name for name, value in given.items() if not value), None):
        raise UserError(f"--{empty.replace('_', '-')} is empty", fix="Give it a value, or leave it out")
    sources: dict[str, Source] = {}
    file: Mapping[str, str] = {}

    def pick(name: str, default: str | None) -> str | None:
        for source, value in (
            ("flag", given.get(name)),
            ("environment", os.environ.get(NAMES[name][0]) or None),
            ("file", file.get(name)),
        ):
            if value is not None:
                sources[name] = source  # type: ignore[assignment]
                if name in ADDRESSES:
                    check_text(f"The setting {name}", value)
                return value
        sources[name] = "default"
        return default

    home = _path(pick("home", private_files.DEFAULT_HOME))
    file = _read_file(home / "config.yaml")
    user_code.ask_at(home)
    storage = pick("storage", str(home / "storage"))
    tracking = pick("tracking", embedded_uri(home))
    folders = [home] if storage and is_uri(storage) else [home, storage]
    if tracking != "none" and (path := next((path for path in map(str, folders) if "%" in path), None)):
        raise UserError("The path contains %, which MLflow decodes", got=path, fix="Choose another, or tracking: none")
    gates = pick("gates", None)
    costs = pick("prices", None)
    target = pick("notify", None)
    return Settings(
        home=home,
        storage=_storage(storage, home),
        data=_data(pick("data", None)),
        tracking=None if tracking == "none" else _tracking(tracking),
        experiment=pick("experiment", None),
        ray_address=pick("ray_address", None),
        gates=_path(gates) if gates else None,
        queue=_queue(pick("queue", "default")),
        priority=_number("priority", pick("priority", "1"), 100, "an integer"),
        collective_timeout=_number("collective timeout", pick("collective_timeout", "600"), 86_400),
        start_timeout=_number("start timeout", pick("start_timeout", "300"), 86_400),
        prices=prices.parse(costs) if costs else None,
        notify=notifications.check(target) if target else None,
        sources=sources,
    )


def default_storage() -> Path:
    """The storage of commands without ``--storage``. Raises UserError."""
    home = private_files.home()
    given = os.environ.get(NAMES["storage"][0]) or _read_file(home / "config.yaml").get("storage")
    return _storage(given or str(home / "storage"), home)


def embedded_uri(home: Path) -> str:
    return sqlite_uri(home / "mlflow.db")


def sqlite_file(uri: str) -> Path | None:
    """The file of an address ``sqlite:///FILE``, as SQLAlchemy reads it; None for any other address."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0]))


def sqlite_uri(file: Path) -> str:
    """The address of a SQLite file."""
    return "sqlite:///" + str(file).replace("%", "%25").replace("?", "%3F")


def _tracking(uri: str | None) -> str:
    assert uri is not None
    schemes = ("http://", "https://", "sqlite:///", "postgresql://", "postgresql+psycopg2://", "mysql", "mssql")
    if not uri.startswith(schemes):
        raise UserError(
            "The tracking address is not supported",
            got=repr(uri),
            allowed="http(s)://HOST:PORT, sqlite:///FILE, a database URI, or none",
            fix="Files (mlruns, file:) are refused by MLflow since 3.7; leave it unset for the embedded store",
        )
    if file := sqlite_file(uri):  # workers change directory: with a relative path each would create a store
        return "".join((sqlite_uri(file.expanduser().absolute()), *uri.partition("?")[1:]))
    if uri.startswith("http"):
        return _without_login(uri)
    scheme, _, rest = uri.partition("://")
    if "@" in rest and re.search(r":\d+/|\s", rest.partition("@")[0]):  # it would be shown: the digits may be a port
        raise UserError(
            "The tracking address is not valid", got=f"{scheme}://***@{rest.rpartition('@')[2]}",
            fix="Write a slash in a password as %2F, and a blank as %20",
        )  # fmt: skip
    return uri


def _without_login(uri: str) -> str:
    """The server's address without user and password, which are put into the environment for MLflow's client.

    Records, notifications and messages contain the address and must not contain a login.
    """
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:  # not an address: its users report it
        if "@" not in uri:
            return uri
        raise UserError(
            "The tracking address is not valid", got=repr(uri), allowed="http(s)://USER:PASSWORD@HOST:PORT",
            fix="Write a slash in a password as %2F, or put it into MLFLOW_TRACKING_PASSWORD",
        ) from None  # fmt: skip
    for variable, value in (("MLFLOW_TRACKING_USERNAME", parts.username), ("MLFLOW_TRACKING_PASSWORD", parts.password)):
        if value:
            os.environ[variable] = unquote(value)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _queue(text: str | None) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,62}", text or "", re.ASCII):
        raise UserError("The queue has no valid name", got=repr(text), allowed="letters, digits, . _ - (at most 63)")
    return str(text)


def _number(what: str, text: str | None, most: int, unit: str = "seconds,") -> int:
    if not (text or "").isdecimal() or not 1 <= int(text or "") <= most:
        raise UserError(f"The {what} is not valid", got=repr(text), allowed=f"{unit} from 1 to {most}")
    return int(text or "")


def _storage(text: str | None, home: Path) -> Path:
    assert text is not None
    if is_uri(text):
        return remote.mirror_of(remote.normal(text), home)
    if re.match(r"[A-Za-z][\w+.-]+:(?!//)", text):
        raise UserError("The storage is no folder and no URI", got=text, allowed="a folder, or s3://BUCKET/PREFIX")
    return _path(text.removeprefix("file://"))


def _data(text: str | None) -> Path:
    """The data root, the default one without ``text``; for a URI, its copy on this node. Raises UserError."""
    try:
        if text is None:
            return default_data_root().absolute()
        return staged_path(text) if is_uri(text) else _path(text.removeprefix("file://"))
    except DataError as error:
        raise UserError(str(error)) from None


@contextmanager
def preserve_env(*names: str) -> Iterator[None]:
    """Restore environment variables on exit, unset ones included."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _path(text: str | None) -> Path:
    assert text is not None
    return private_files.absolute(text)


def _read_file(file: Path) -> Mapping[str, str]:
    if not file.exists():
        return {}
    from orchestrator.config.parsing import read_yaml

    values = read_yaml(file).values
    for name, value in values.items():
        if name not in NAMES or name == "home":
            raise unknown(f"setting in {file}", name, set(NAMES) - {"home"})
        integer = type(value) is int and name in INTEGERS
        if not (value is None or isinstance(value, str) or integer):
            nested = isinstance(value, list | dict)
            raise UserError(
                f"The setting {name} in {file} is not valid",
                got=f"a {'list' if isinstance(value, list) else 'mapping'}" if nested else value,
                allowed="an integer" if name in INTEGERS else "text",
                fix=None if nested or name in INTEGERS else "Put it in quotes",
            )
    return {name: str(value) for name, value in values.items() if value is not None}
