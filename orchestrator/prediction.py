"""What the registry holds, used: batch prediction from file to file, and MLflow's UI on the right store."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from orchestrator import registry, store
from orchestrator.doctor import mask
from orchestrator.errors import UNAVAILABLE, RunFailed, UserError, nearest, unknown
from orchestrator.settings import Settings

if TYPE_CHECKING:
    from io import BufferedReader

    import pandas as pd

BATCH_ROWS = 8192  # held in memory and given to the model at once
FORMATS = (".parquet", ".csv", ".jsonl")
STREAM = "-"
INTEGERS, NUMBERS = ("integer", "long"), ("integer", "long", "float", "double")
PARAMETER_TYPES = {"boolean": bool, "integer": int, "long": int, "float": float, "double": float, "string": str}


def predict(settings: Settings, model: str, source: str, target: str | None, params: Mapping[str, Any]) -> None:
    """Predict for every row of ``source`` with a registered model and write the answers to ``target``.

    ``source`` is a Parquet, CSV or JSON lines file, or ``-`` for standard input (CSV or JSON lines); ``target`` is
    such a file, or None for JSON lines on standard output. Rows pass through in batches, and a target file appears
    whole or not at all. ``params`` are the model's own parameters, as text or values. Raises UserError, or
    RunFailed where the model itself fails.
    """
    target = target or STREAM
    _check_files(source, target)
    loaded = _load(settings, model)
    signature = loaded.metadata.signature
    given = _check_params(model, signature and signature.params, params)
    columns = _columns(signature and signature.inputs)
    name = "standard input" if source == STREAM else source
    rows = written = 0
    with _output(target) as write:
        for found in _frames(source, name, columns):
            batch = found if columns is None else _typed(found, columns, name, rows)
            if batch.empty:
                continue
            answer = _answer(loaded, model, batch, given, rows)
            write(answer)
            rows, written = rows + len(batch), written + len(answer)
        if not rows:
            write(_empty(signature and signature.outputs))
    if target != STREAM:
        print(f"{rows} rows in, {written} rows out: {target}")


def _check_files(source: str, target: str) -> None:
    for role, name in (("input", source), ("output", target)):
        if name != STREAM and Path(name).suffix not in FORMATS:
            raise UserError(f"The {role} {name} has no known format", allowed=[f"NAME{end}" for end in FORMATS])
    if source != STREAM and not Path(source).is_file():
        raise UserError(f"The input {source} does not exist", fix="Check the path")
    if not Path(target).absolute().parent.is_dir():
        raise UserError(f"The folder of the output {target} does not exist", fix="Make it, or correct the path")


def _load(settings: Settings, model: str) -> Any:
    registry.client(settings)  # refuses where tracking is off
    uri = registry.resolve(settings, model)
    import mlflow

    mlflow.set_tracking_uri(settings.tracking)
    mlflow.set_registry_uri(settings.tracking)
    try:
        return mlflow.pyfunc.load_model(uri)
    except Exception as error:  # whatever a model's own code and packages can raise
        raise UserError(
            f"The model {model} can not be loaded", got=f"{type(error).__name__}: {_line(error)}",
            fix="See that its files are there, and install what its requirements.txt lists",
        ) from None  # fmt: skip


def _check_params(model: str, spec: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """``key=value`` in the types of the model's signature; what is not given, the model fills in."""
    from pydantic import TypeAdapter, ValidationError

    known = {param.name: param for param in spec or ()}
    given = {}
    for name, value in params.items():
        if name not in known:
            raise unknown(f"parameter of {model}", name, known)
        kind, many = known[name].dtype.name, bool(known[name].shape)
        target: Any = PARAMETER_TYPES.get(kind, Any)
        try:
            given[name] = TypeAdapter(list[target] if many else target).validate_python(value)
        except ValidationError:
            allowed = f"a list of {kind}" if many else kind
            raise UserError(f"Parameter {name} of {model} is not valid", got=repr(value), allowed=allowed) from None
    return given


def _columns(spec: Any) -> list[Any] | None:
    """The named columns of a signature; None where it has none."""
    named = spec is not None and not spec.is_tensor_spec() and spec.has_input_names()
    return list(spec.inputs) if named else None


def _frames(source: str, name: str, columns: Sequence[Any] | None) -> Iterator[pd.DataFrame]:
    """The rows of a file or of standard input, ``BATCH_ROWS`` at a time."""
    import pyarrow as pa

    try:
        if Path(source).suffix == ".parquet":
            yield from _parquet(source, name, columns)
            return
        standard = nullcontext(cast("BufferedReader", sys.stdin.buffer))
        with standard if source == STREAM else Path(source).open("rb") as stream:
            head = stream.peek(1).lstrip()
            if source.endswith(".jsonl") or (source == STREAM and head.startswith(b"{")):
                yield from _json_lines(stream, name)
            elif head:
                yield from _csv(stream, columns)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{name} can not be read: {_line(error)}") from None


def _parquet(source: str, name: str, columns: Sequence[Any] | None) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(source) as file:
        wanted = None if columns is None else _present(columns, file.schema_arrow.names, name)
        for batch in file.iter_batches(BATCH_ROWS, columns=wanted):
            yield batch.to_pandas()


def _csv(stream: IO[bytes], columns: Sequence[Any] | None) -> Iterator[pd.DataFrame]:
    import pandas as pd

    texts = {column.name: str for column in columns or () if _kind(column) == "string"}  # 007 stays 007
    yield from pd.read_csv(stream, chunksize=BATCH_ROWS, dtype=texts, keep_default_na=False, na_values=[""])


def _json_lines(stream: IO[bytes], name: str) -> Iterator[pd.DataFrame]:
    import pandas as pd

    numbered = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
    while chunk := list(islice(numbered, BATCH_ROWS)):
        rows = []
        for number, line in chunk:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                shown = line[:60].decode(errors="replace").strip()
                raise UserError(f"Line {number} of {name} is not a JSON object", got=shown)
            rows.append(row)
        yield pd.DataFrame(rows)


def _present(columns: Sequence[Any], there: Sequence[str], name: str) -> list[str]:
    """The model's columns that are there. Raises UserError for a required one that is not."""
    for column in columns:
        if column.required and column.name not in there:
            close = nearest(column.name, there)
            raise UserError(
                f"{name} lacks the column {column.name}, which the model needs", got=", ".join(there) or "no columns",
                fix=f"Rename {close} to it?" if close else None,
            )  # fmt: skip
    return [column.name for column in columns if column.name in there]


def _typed(found: pd.DataFrame, columns: Sequence[Any], name: str, before: int) -> pd.DataFrame:
    """The model's columns in its types. Raises UserError with column, row and value; ``before`` rows went ahead."""
    import numpy as np
    import pandas as pd

    frame = found[_present(columns, list(map(str, found.columns)), name)].copy()
    for column in (column for column in columns if column.name in frame and len(frame)):
        values, kind = frame[column.name], _kind(column)
        if kind in NUMBERS and values.dtype != bool:
            typed = pd.to_numeric(values, errors="coerce")
        elif kind == "datetime":
            typed = pd.to_datetime(values, errors="coerce", format="ISO8601")
        elif kind == "string":
            typed = values.where(values.map(lambda value: isinstance(value, str)))
        else:
            continue  # MLflow's own check has the word
        if kind in INTEGERS:
            limits = np.iinfo(column.type.to_numpy())
            bad = (typed % 1 != 0) | ~typed.between(limits.min, limits.max)  # empty and infinite ones too
        else:
            bad = typed.isna() & values.notna()
        if bad.any():
            row = int(bad.to_numpy().argmax())
            got = repr(values.tolist()[row]) if values.notna().iloc[row] else "nothing"
            raise UserError(f"Column {column.name} of {name} is wrong in row {before + row + 1}", got=got, allowed=kind)
        frame[column.name] = typed.astype(column.type.to_pandas()) if kind in NUMBERS else typed
    return frame


def _kind(column: Any) -> str:
    """``long``, ``string`` ...; empty for arrays, objects and maps."""
    return str(getattr(column.type, "name", ""))


def _answer(loaded: Any, model: str, batch: pd.DataFrame, params: dict[str, Any], before: int) -> pd.DataFrame:
    import pandas as pd
    from mlflow.exceptions import MlflowException

    try:
        answer = loaded.predict(batch, params=params or None)
    except (ValueError, MlflowException) as error:
        text = _line(error).rpartition("Error: ")[2]  # MLflow's holds the whole batch before that
        raise UserError(f"{model} refuses rows {before + 1} to {before + len(batch)}: {text}") from None
    except Exception as error:
        raise RunFailed(f"Prediction with {model}", f"{type(error).__name__}: {_line(error)}") from error
    return answer if isinstance(answer, pd.DataFrame) else pd.DataFrame({"prediction": list(answer)})


def _empty(spec: Any) -> pd.DataFrame:
    """No rows, in the columns of a signature's outputs."""
    import pandas as pd

    types = {column.name: column.type for column in _columns(spec) or ()}
    return pd.DataFrame({name: pd.Series(dtype=kind.to_pandas() if hasattr(kind, "to_pandas") else object)
                         for name, kind in types.items()})  # fmt: skip


@contextmanager
def _output(target: str) -> Iterator[Callable[[pd.DataFrame], object]]:
    """Where answers go: standard output, or a file that takes its name when all of it is there."""
    if target == STREAM:
        yield lambda frame: sys.stdout.write(_json_text(frame))
        return
    path = Path(target)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file, closing(_Sink(file, path.suffix)) as sink:
            yield sink.write
        part.replace(path)
    except OSError as error:
        raise UserError(f"{target} can not be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


class _Sink:
    """Writes frames in a file's format; in Parquet the first one's columns and types are those of all."""

    def __init__(self, file: IO[bytes], suffix: str) -> None:
        self._file, self._suffix, self._started = file, suffix, False
        self._writer: Any = None

    def write(self, frame: pd.DataFrame) -> None:
        if self._suffix == ".parquet":
            self._write_parquet(frame)
        else:
            text = _json_text(frame) if self._suffix == ".jsonl" else _csv_text(frame, header=not self._started)
            self._file.write(text.encode())
        self._started = True

    def _write_parquet(self, frame: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pa.Table.from_pandas(frame, self._writer and self._writer.schema, preserve_index=False)
        except (KeyError, pa.ArrowException) as error:
            raise RunFailed("Prediction", f"the answers are not one table: {_line(error)}") from None
        self._writer = self._writer or pq.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer:
            self._writer.close()


def _json_text(frame: pd.DataFrame) -> str:
    """One object a line; a number that is not finite becomes null."""
    if frame.empty:
        return ""
    return frame.to_json(orient="records", lines=True, double_precision=15, date_format="iso", force_ascii=False)


def _csv_text(frame: pd.DataFrame, header: bool) -> str:
    """A list becomes JSON in its cell."""
    lists = {name: column.map(_cell) for name, column in frame.items() if column.dtype.kind == "O"}
    return frame.assign(**{str(name): column for name, column in lists.items()}).to_csv(index=False, header=header)


def _cell(value: Any) -> Any:
    if isinstance(value, list) or hasattr(value, "tolist"):
        return json.dumps(value, default=lambda array: array.tolist())
    return value


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def serve_ui(settings: Settings, host: str, port: int) -> None:
    """Serve MLflow's UI on the settings' store until Ctrl-C; of a tracking server, only say where it is.

    Raises UserError (exit 3) when the port can not be opened or the server does not start.
    """
    if settings.tracking is None:
        raise UserError("There is no UI with tracking off", fix="Leave --tracking away, or name a store")
    if settings.tracking.startswith("http"):
        print(mask(settings.tracking))
        return
    if settings.embedded:
        store.ensure(settings.home)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UserError(
            f"Port {port} of {host} can not be opened ({error.strerror or error})",
            fix="Choose another with --port, or another address with --host", code=UNAVAILABLE,
        ) from None  # fmt: skip
    _run_server(settings, host, port)


def _run_server(settings: Settings, host: str, port: int) -> None:
    environment = {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight more processes, for what is not ours
        "PYTHONWARNINGS": "ignore",
        **os.environ,
        # Not on the command line, where everybody would see a password.
        "MLFLOW_BACKEND_STORE_URI": str(settings.tracking),
        "MLFLOW_REGISTRY_STORE_URI": str(settings.tracking),
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": str(store.artifact_root(settings.home)),
    }
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level warning"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # In a session of its own Ctrl-C reaches it through us, and it leaves without a traceback.
    server = subprocess.Popen(command, env=environment, start_new_session=True, stdout=sys.stderr)
    try:
        while server.poll() is None and not _answers(host, port):
            time.sleep(0.1)
        if server.returncode is None:
            shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
            print(f"MLflow UI: http://{f'[{shown}]' if ':' in shown else shown}:{port}  (Ctrl-C stops it)", flush=True)
        code = server.wait()
    except KeyboardInterrupt:
        return
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    raise UserError("MLflow's server has stopped", got=f"exit code {code}", code=UNAVAILABLE)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
