"""Settings and helpers shared by the tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"

# One machine may run the tests beside a build: a slow example is not a failure.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def external(variable, what):
    """Return the folder that an environment variable names, or skip the test."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{what} not found: set {variable}")
    return Path(folder)


@pytest.fixture(scope="session")
def trec_eval_folder():
    return external("RAG_LAB_TREC_EVAL", "trec_eval's test files")


@pytest.fixture(scope="session")
def collections_folder():
    return external("RAG_LAB_COLLECTIONS", "public collections")


class CommandResult:
    """What a command printed, and how it ended."""

    def __init__(self, finished):
        self.code, self.out, self.err = finished.returncode, finished.stdout, finished.stderr

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(scope="session")
def rag_lab():
    """Run the command line in a process of its own."""

    def run(*arguments, code=0, env=None):
        command = [sys.executable, "-m", "rag_lab.cli", *map(str, arguments)]
        finished = subprocess.run(
            command, capture_output=True, encoding="utf-8", env={**os.environ, **(env or {})}, timeout=900, check=False
        )
        assert finished.returncode == code, finished.stderr
        assert "Traceback" not in finished.stderr
        return CommandResult(finished)

    return run


@pytest.fixture
def make_collection(tmp_path):
    """Write a collection folder from Python values and return its path."""

    def make(documents, queries, evidence=None, qrels=None, folder="collection"):
        path = tmp_path / folder
        (path / "qrels").mkdir(parents=True)
        records = [{"_id": key, "text": text} for key, text in documents.items()]
        (path / "corpus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
        records = [q if isinstance(q, dict) else {"_id": key, "text": q} for key, q in queries.items()]
        (path / "queries.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
        if evidence is not None:
            names = ("query_id", "doc_id", "start", "end", "grade")
            rows = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in evidence]
            (path / "evidence.jsonl").write_text("".join(rows), encoding="utf-8")
        for split, rows in (qrels or {}).items():
            text = "query-id\tcorpus-id\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)
            (path / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
        return path

    return make
