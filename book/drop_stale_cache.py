"""Drop executed chapters when the code, the data or the pins behind them changed.

The execution cache looks at a notebook's own cells. Without this, a change in
the package would leave old results on the pages.
"""

import hashlib
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"


def fingerprint():
    """Return a hash over everything that a chapter's results depend on."""
    digest = hashlib.sha256()
    sources = [
        *(ROOT / "rag_lab").rglob("*"),
        *(ROOT / "collection").rglob("*.json"),
        *(ROOT / "benchmarks").rglob("*.json"),
    ]
    for path in sorted([*sources, ROOT / "requirements.txt", ROOT / "pyproject.toml"]):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def main():
    stamp, current = BUILD / "fingerprint", fingerprint()
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != current:
        for folder in (BUILD / ".jupyter_cache", BUILD / ".doctrees"):
            shutil.rmtree(folder, ignore_errors=True)
        BUILD.mkdir(exist_ok=True)
        stamp.write_text(current, encoding="utf-8")


if __name__ == "__main__":
    main()
