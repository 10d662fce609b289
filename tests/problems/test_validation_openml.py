"""Downloads by name: scikit-learn's own code, over HTTP, from a local server that answers as OpenML does.

The requests for www.openml.org go to the local server; everything else (addresses, errors, compression, checksums, the
ARFF parser, the cache) is scikit-learn's.  The answers for Australian are OpenML's own, which scikit-learn ships with
its tests.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from stepsize_opt.problems.data import load_dataset

sklearn_datasets = pytest.importorskip("sklearn.datasets")
API = "/api/v1/json/data"


class OpenML:
    """A server with (status, body) for each path, and an opener that sends OpenML's addresses to it."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        answers, asked = self.answers, self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                # OpenML answers 412 for what it does not know.
                status, body = answers.get(self.path, (412, b'{"error": {"code": "372", "message": "No results"}}'))
                packed = gzip.compress(body)
                self.send_response(status)
                self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Length", str(len(packed)))
                self.end_headers()
                self.wfile.write(packed)

            def log_message(self, format: str, *args: Any) -> None:
                """Keep the test's output clean."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        local = f"http://127.0.0.1:{self.server.server_port}"

        class ToLocal(urllib.request.HTTPSHandler):
            def https_open(self, req: urllib.request.Request) -> Any:
                assert req.host == "www.openml.org"
                return self.parent.open(urllib.request.Request(local + req.selector, headers=req.headers))

        urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({}), ToLocal))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Go offline."""
        self.server.shutdown()
        self.server.server_close()

    def add(self, name: str, number: int, features: list[dict[str, Any]], arff: str) -> None:
        """A dense set: what the four requests of a download are answered with."""
        url = f"/data/v1/download/{number}/{name}.arff"
        body = arff.encode()
        listing = {"did": number, "name": name, "version": 1, "status": "active", "format": "ARFF", "file_id": number}
        about = {
            "id": str(number),
            "name": name,
            "version": "1",
            "status": "active",
            "format": "ARFF",
            "description": "a small set",
            "url": f"https://www.openml.org{url}",
            "md5_checksum": hashlib.md5(body).hexdigest(),
        }
        plain = {"is_target": "false", "is_ignore": "false", "is_row_identifier": "false"}
        listed = [
            plain | {"index": str(i), "number_of_missing_values": "0"} | feature for i, feature in enumerate(features)
        ]
        rows = str(arff.partition("@DATA\n")[2].count("\n"))
        self.json(f"{API}/list/data_name/{name}/limit/2/data_version/1", {"data": {"dataset": [listing]}})
        self.json(f"{API}/{number}", {"data_set_description": about})
        self.json(f"{API}/features/{number}", {"data_features": {"feature": listed}})
        qualities = {"data_qualities": {"quality": [{"name": "NumberOfInstances", "value": rows}]}}
        self.json(f"{API}/qualities/{number}", qualities)
        self.answers[url] = (200, body)

    def json(self, path: str, value: Any) -> None:
        self.answers[path] = (200, json.dumps(value).encode())


@pytest.fixture
def openml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenML]:
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    server = OpenML()
    yield server
    server.stop()
    urllib.request.install_opener(None)  # type: ignore[arg-type]


NUMBERS = [
    {"name": "weight", "data_type": "numeric"},
    {"name": "flag", "data_type": "nominal", "nominal_value": ["0", "1"]},
    {"name": "unit", "data_type": "numeric"},
    {"name": "good", "data_type": "nominal", "nominal_value": ["yes", "no"], "is_target": "true"},
]
ARFF = """@RELATION small
@ATTRIBUTE weight REAL
@ATTRIBUTE flag {0,1}
@ATTRIBUTE unit REAL
@ATTRIBUTE good {yes,no}
@DATA
1.5,0,7,no
2.5,1,7,yes
5.0,1,7,no
"""


def test_a_dense_set_is_downloaded_standardised_and_kept(openml: OpenML) -> None:
    openml.add("small-set", 90001, NUMBERS, ARFF)
    data = load_dataset("openml:small-set")
    np.testing.assert_array_equal(data.b, [-1.0, 1.0, -1.0])
    expected = np.array([[1.5, 0.0], [2.5, 1.0], [5.0, 1.0]])  # the constant column is gone
    np.testing.assert_allclose(data.A, (expected - expected.mean(axis=0)) / expected.std(axis=0), rtol=1e-14)
    assert len(openml.asked) == 5
    openml.stop()
    again = load_dataset("openml:small-set")
    np.testing.assert_array_equal(again.A, data.A)


def test_text_features_more_classes_and_unknown_names_are_refused(openml: OpenML) -> None:
    words = [NUMBERS[0], {**NUMBERS[1], "nominal_value": ["a", "b"]}, *NUMBERS[2:]]
    text = ARFF.replace("{0,1}", "{a,b}").replace(",0,", ",a,").replace(",1,", ",b,")
    openml.add("words", 90002, words, text)
    with pytest.raises(ValueError, match="openml:words has features that are not numbers: flag"):
        load_dataset("openml:words")
    openml.add(
        "three",
        90003,
        NUMBERS,
        ARFF.replace("{yes,no}", "{yes,no,maybe}")
        .replace("2.5,1,7,yes", "2,1,7,maybe")
        .replace("5.0,1,7,no", "5,1,7,yes"),
    )
    with pytest.raises(ValueError, match="openml:three has 3 classes"):
        load_dataset("openml:three")
    with pytest.raises(ValueError, match="Dataset absent with version 1 not found"):
        load_dataset("openml:absent")


def test_a_damaged_download_is_not_used(openml: OpenML) -> None:
    openml.add("small-set", 90001, NUMBERS, ARFF)
    url = "/data/v1/download/90001/small-set.arff"
    openml.answers[url] = (200, ARFF.replace("1.5", "1.6").encode())
    with pytest.warns(RuntimeWarning, match="Invalid cache"), pytest.raises(ValueError, match="md5 checksum"):
        load_dataset("openml:small-set")


def test_the_answers_of_openml_for_australian(openml: OpenML) -> None:
    """A sparse set, version 1 of which OpenML has replaced by another: scikit-learn finds it and says so."""
    folder = Path(sklearn_datasets.__file__).parent / "tests" / "data" / "openml" / "id_292"
    if not folder.exists():
        pytest.skip("scikit-learn was installed without its tests")

    def stored(name: str) -> bytes:
        return gzip.decompress((folder / name).read_bytes())

    listing = f"{API}/list/data_name/australian/limit/2/data_version/1"
    openml.answers[listing] = (412, stored("api-v1-jdl-dn-australian-l-2-dv-1.json.gz"))
    openml.answers[f"{listing}/status/deactivated"] = (
        200,
        stored("api-v1-jdl-dn-australian-l-2-dv-1-s-dact.json.gz"),
    )
    openml.answers[f"{API}/292"] = (200, stored("api-v1-jd-292.json.gz"))
    openml.answers[f"{API}/features/292"] = (200, stored("api-v1-jdf-292.json.gz"))
    arff = stored("data-v1-dl-49822.arff.gz")
    openml.answers["/data/v1/download/49822/Australian.sparse_arff"] = (200, arff)
    with pytest.warns(UserWarning, match="Version 1 of dataset Australian is inactive"):
        data = load_dataset("openml:Australian")
    rows = [line for line in arff.decode().splitlines() if line.startswith("{")]
    assert sparse.issparse(data.A) and (data.m, data.d) == (len(rows), 14)
    for row, label, line in zip(data.A.toarray(), data.b, rows, strict=True):
        pairs = {int(place): float(value) for place, value in (pair.split() for pair in line.strip("{}").split(","))}
        # A sparse file leaves out the first value of its label, here 1.
        assert label == pairs.pop(0, 1.0)
        np.testing.assert_array_equal(row, [pairs.get(j, 0.0) for j in range(1, 15)])


def test_without_a_connection_the_error_says_what_to_do(openml: OpenML) -> None:
    openml.stop()
    with (
        pytest.warns(UserWarning, match="A network error occurred"),
        pytest.raises(ConnectionError, match=r"openml:anything could not be downloaded .*STEPSIZE_OPT_DATA"),
    ):
        load_dataset("openml:anything")
