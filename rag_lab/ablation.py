"""Run many configurations on the same queries, and say which differences are real.

A configuration is a dictionary with the keys of `DEFAULTS`. Results are one
tidy table, a row per configuration and query; finished configurations are kept
in the output folder, so that an interrupted run goes on where it stopped.
"""

import hashlib
import html
import json
from pathlib import Path

import joblib
import pandas as pd
import yaml
from sklearn.model_selection import ParameterGrid

import rag_lab
from rag_lab.chunking import check_spec, chunk_documents
from rag_lab.collection import read_lines, shorten, write_text
from rag_lab.errors import InputError, OptionError
from rag_lab.evaluation import RAGEvaluator, choose_labels
from rag_lab.metrics import DEFAULT_METRICS, check_cutoff
from rag_lab.models import ENCODER, RERANKER, Encoder, Reranker, progress
from rag_lab.retrieval import BM25Retriever, DenseRetriever, HybridRetriever, TwoStageRetriever
from rag_lab.statistics import bootstrap_interval, holm, randomisation_test

RETRIEVERS = ("bm25", "dense", "hybrid")
DEFAULTS = {
    "chunker": "fixed:512",
    "retriever": "dense",
    "alpha": 0.5,  # weight of the dense leg; hybrid only
    "fusion": "minmax",  # hybrid only
    "rerank": 0,  # candidates given to the cross-encoder; 0 is none
    "threshold": None,  # lowest probability after reranking
}

# The grid and the three rows of the article that the book examines.
ARTICLE_GRID = {
    "chunker": ["fixed:256+fixed:512", "fixed:512", "fixed:256+fixed:768"],
    "retriever": ["hybrid"],
    "alpha": [0.3, 0.5, 0.7],
    "rerank": [20],
    "threshold": [0.5, 0.7],
}
ARTICLE_ROWS = [
    {"chunker": "fixed:512", "retriever": "dense"},
    {"chunker": "fixed:256+fixed:768", "retriever": "hybrid"},
    {"chunker": "fixed:512", "retriever": "dense", "rerank": 20},
]
SUMMARY_COLUMNS = (
    "configuration metric queries mean low high difference difference_low difference_high p p_holm wins losses".split()
)


def expand_grid(grid):
    """Return the list of configurations of a grid ``{key: [value, …]}``, complete and checked.

    Several grids in a list are expanded one after the other; a value that is no
    list counts as a list of one. A configuration that occurs twice is kept once.
    """
    grids = grid if isinstance(grid, list) else [grid]
    configurations = []
    for part in grids:
        if not isinstance(part, dict):
            raise InputError(f"grid is {shorten(part)}; expected keys with lists of values")
        lists = {key: value if isinstance(value, list) else [value] for key, value in part.items()}
        if empty := [key for key, values in lists.items() if not values]:
            raise InputError(f"grid key {shorten(empty[0])} has no values; expected at least one")
        for configuration in map(check_configuration, ParameterGrid(lists)):
            if configuration not in configurations:
                configurations.append(configuration)
    if not configurations:
        raise InputError("the grid is empty; expected at least one configuration")
    return configurations


def check_configuration(configuration):
    """Return a configuration with all keys, or raise InputError."""
    if unknown := [key for key in configuration if key not in DEFAULTS]:
        raise InputError(f"unknown grid key {shorten(unknown[0])}; expected one of {', '.join(DEFAULTS)}")
    complete = {**DEFAULTS, **configuration}
    check_spec(complete["chunker"])
    if complete["retriever"] not in RETRIEVERS:
        raise OptionError(f"retriever is {shorten(complete['retriever'])}; expected one of {', '.join(RETRIEVERS)}")
    _check_number(complete["alpha"], "alpha")
    if complete["threshold"] is not None:
        _check_number(complete["threshold"], "threshold")
    if complete["rerank"] != 0 or isinstance(complete["rerank"], bool):
        check_cutoff(complete["rerank"], "rerank")
    # What a configuration does not use must not make it a different one.
    if complete["retriever"] != "hybrid":
        complete.update(alpha=DEFAULTS["alpha"], fusion=DEFAULTS["fusion"])
    if not complete["rerank"]:
        complete["threshold"] = None
    HybridRetriever(None, None, complete["alpha"], complete["fusion"])  # checks both
    return complete


def _check_number(value, name):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise OptionError(f"{name} is {shorten(value)}; expected a number from 0 to 1")


def configuration_name(configuration):
    """Return a short name such as ``fixed:512 hybrid α.5 rerank20 ≥.7``."""
    c = {**DEFAULTS, **configuration}
    words = [c["chunker"], c["retriever"]]
    if c["retriever"] == "hybrid":
        words.append("rrf" if c["fusion"] == "rrf" else f"α{_decimal(c['alpha'])}")
        if c["fusion"] not in ("minmax", "rrf"):
            words.append(c["fusion"])
    if c["rerank"]:
        words.append(f"rerank{c['rerank']}")
        if c["threshold"] is not None:
            words.append(f"≥{_decimal(c['threshold'])}")
    return " ".join(words)


def _decimal(number):
    return f"{number:g}".removeprefix("0") or "0"


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML without aliases (they can grow without bound) and without repeated keys."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(set(map(repr, keys))) != len(keys):
            raise yaml.YAMLError("a key occurs twice")
        return super().construct_mapping(node, deep)


def read_grid(path):
    """Read a YAML file with a grid, or a list of grids, and return its configurations."""
    text = "\n".join(line for _, line in read_lines(path))
    try:
        grid = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: broken YAML ({reason}); expected keys with lists of values") from None
    try:
        return expand_grid(grid)
    except InputError as error:
        raise type(error)([f"{path}: {problem}" for problem in error.problems]) from None


class Workbench:
    """The indexes of one collection, each built once and shared by all configurations.

    Parameters
    ----------
    collection : Collection
    encoder, reranker : str
        Names of models.
    """

    def __init__(self, collection, encoder=ENCODER, reranker=RERANKER):
        self.collection = collection
        self.metadata = {document.id: document.metadata for document in collection.documents.values()}
        self.encoder, self.reranker = Encoder(encoder), Reranker(reranker)
        self._chunks, self._legs = {}, {}

    def chunks(self, chunker):
        """Return the chunks of the collection under a chunker."""
        if chunker not in self._chunks:
            self._chunks[chunker] = chunk_documents(self.collection.documents.values(), chunker)
        return self._chunks[chunker]

    def texts(self, chunker):
        """Return what is indexed for each chunk: its text; a whole document has its title in front."""
        documents = self.collection.documents
        if chunker == "none":
            return [f"{documents[c.doc_id].title} {c.text}".strip() for c in self.chunks(chunker)]
        return [chunk.text for chunk in self.chunks(chunker)]

    def leg(self, chunker, kind):
        """Return the BM25 or dense retriever over a chunker's chunks."""
        if (chunker, kind) not in self._legs:
            chunks, texts = self.chunks(chunker), self.texts(chunker)
            if kind == "bm25":
                leg = BM25Retriever(chunks, texts, self.metadata)
            else:
                leg = DenseRetriever(chunks, self.encoder, texts, self.metadata)
            self._legs[chunker, kind] = leg
        return self._legs[chunker, kind]

    def retriever(self, configuration):
        """Return the retriever that a configuration describes."""
        c = check_configuration(configuration)
        if c["retriever"] == "hybrid":
            legs = self.leg(c["chunker"], "dense"), self.leg(c["chunker"], "bm25")
            retriever = HybridRetriever(*legs, c["alpha"], c["fusion"])
        else:
            retriever = self.leg(c["chunker"], c["retriever"])
        if c["rerank"]:
            ids = (chunk.id for chunk in self.chunks(c["chunker"]))
            texts = dict(zip(ids, self.texts(c["chunker"]), strict=True))
            retriever = TwoStageRetriever(retriever, self.reranker, texts, c["rerank"], c["threshold"])
        return retriever


def run_ablation(
    collection,
    configurations,
    metrics=DEFAULT_METRICS,
    split=None,
    labels=None,
    rel_level=1,
    out=None,
    jobs=1,
    encoder=ENCODER,
    reranker=RERANKER,
):
    """Score every configuration on every query.

    Parameters
    ----------
    collection : Collection
    configurations : list of dict
        See `expand_grid`.
    metrics, split, labels, rel_level
        As in `RAGEvaluator`.
    out : str or Path, optional
        Folder for finished configurations. A second run with the same folder
        repeats only what is missing.
    jobs : int
        Number of processes. The result is the same for every number.
    encoder, reranker : str
        Names of models.

    Returns
    -------
    pandas.DataFrame
        Columns ``configuration``, ``query_id``, ``type``, ``language`` and one a
        metric; a row per configuration and counted query.
    """
    check_cutoff(jobs, "jobs")
    configurations = [check_configuration(configuration) for configuration in configurations]
    options = {"metrics": list(metrics), "split": split, "labels": labels, "rel_level": rel_level}
    models = {"encoder": encoder, "reranker": reranker}
    folder = Path(out) / "parts" if out else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    # Configurations that share chunks share indexes, so a job takes all of one chunker.
    groups = {}
    for configuration in configurations:
        groups.setdefault(configuration["chunker"], []).append(configuration)
    work = joblib.delayed(_run_group)
    fingerprint = _fingerprint(collection, options, models)
    tasks = [work(collection, group, options, models, folder, fingerprint) for group in groups.values()]
    finished = {}
    with progress(len(configurations), "Configurations") as bar:
        for part in joblib.Parallel(n_jobs=jobs, return_as="generator")(tasks):
            finished.update(part)
            bar.update(len(part))
    rows = [row for configuration in configurations for row in finished[configuration_name(configuration)]]
    return pd.DataFrame(rows)


def _run_group(collection, configurations, options, models, folder, fingerprint):
    """Run the configurations of one chunker, skipping those found in the folder."""
    finished, bench = {}, None
    for configuration in configurations:
        name = configuration_name(configuration)
        path = folder / f"{_part_key(configuration, fingerprint)}.json" if folder else None
        rows = _read_part(path) if path else None
        if rows is None:
            bench = bench or Workbench(collection, **models)
            rows = _run_one(bench, configuration, options)
            if path:
                write_text(path, json.dumps({"checksum": _digest(rows), "rows": rows}, ensure_ascii=False))
        finished[name] = rows
    return finished


def _run_one(bench, configuration, options):
    collection, chunker = bench.collection, configuration["chunker"]
    labels = choose_labels(collection, options["labels"], chunker)
    evaluator = RAGEvaluator(collection, bench.chunks(chunker), **{**options, "labels": labels})
    frame = evaluator.evaluate(bench.retriever(configuration))
    rows = []
    for query_id, values in frame.to_dict("index").items():
        metadata = collection.queries[query_id].metadata
        rows.append(
            {
                "configuration": configuration_name(configuration),
                "query_id": query_id,
                "type": metadata.get("type", ""),
                "language": metadata.get("language", ""),
                **values,
            }
        )
    return rows


def _digest(value):
    encoded = json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return hashlib.sha256(encoded).hexdigest()


def _fingerprint(collection, options, models):
    """Everything besides the configuration that a result depends on."""
    digest = hashlib.sha256(_digest([options, models, rag_lab.__version__]).encode())
    for document in collection.documents.values():
        digest.update(_digest(vars(document)).encode())
    for query in collection.queries.values():
        digest.update(_digest(vars(query)).encode())
    digest.update(_digest([list(vars(span).values()) for span in collection.spans]).encode())
    digest.update(_digest(collection.qrels).encode())
    return digest.hexdigest()


def _part_key(configuration, fingerprint):
    return _digest([configuration, fingerprint])[:32]


def _read_part(path):
    """Return the rows of a finished configuration, None if there is none or it is damaged."""
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
        return part["rows"] if part["checksum"] == _digest(part["rows"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def summarize(results, baseline=None, metrics=None, level=0.95):
    """Summarise a tidy table: means with intervals, and paired tests against a baseline.

    Parameters
    ----------
    results : pandas.DataFrame
        As `run_ablation` returns it; every configuration has the same queries.
    baseline : str, optional
        Name of the configuration to compare with; the first by default.
    metrics : sequence of str, optional
        Columns to summarise; all numeric ones by default.
    level : float
        Of the bootstrap intervals.

    Returns
    -------
    pandas.DataFrame
        A row per configuration and metric with the columns `SUMMARY_COLUMNS`.
        ``p`` is from a paired randomisation test, ``p_holm`` is corrected for
        all comparisons of the table.
    """
    names = list(dict.fromkeys(results["configuration"]))
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise InputError(f"baseline {baseline!r} is not in the results; they have {', '.join(names)}")
    metrics = list(metrics or results.select_dtypes("number").columns)
    tables = {name: part.set_index("query_id")[metrics] for name, part in results.groupby("configuration", sort=False)}
    reference = tables[baseline]
    rows = []
    for name in names:
        if set(tables[name].index) != set(reference.index):
            raise InputError(f"{name!r} has other queries than {baseline!r}; a paired test needs the same")
        for metric in metrics:
            values = tables[name].loc[reference.index, metric].to_numpy()
            rows.append(
                [name, metric, len(values), *_summary(values, reference[metric].to_numpy(), name == baseline, level)]
            )
    summary = pd.DataFrame(rows, columns=[column for column in SUMMARY_COLUMNS if column != "p_holm"])
    tested = summary["p"].notna()
    summary.insert(summary.columns.get_loc("p") + 1, "p_holm", float("nan"))
    summary.loc[tested, "p_holm"] = holm(summary.loc[tested, "p"].tolist())
    return summary


def _summary(values, reference, is_baseline, level):
    mean, interval = float(values.mean()), bootstrap_interval(values, level)
    if is_baseline:
        return mean, *interval, 0.0, 0.0, 0.0, float("nan"), 0, 0
    difference = values - reference
    return (
        mean,
        *interval,
        float(difference.mean()),
        *bootstrap_interval(difference, level),
        randomisation_test(values, reference),
        int((difference > 1e-12).sum()),
        int((difference < -1e-12).sum()),
    )


def wide_summary(summary):
    """Return a table for reading: a row a configuration, ``mean [low, high]`` and p a metric.

    An asterisk marks a corrected p below .05.
    """
    cells = {}
    for row in summary.itertuples():
        mark = "" if pd.isna(row.p_holm) else f" p={row.p_holm:.3f}" + ("*" if row.p_holm < 0.05 else "")
        cells.setdefault(row.configuration, {})[row.metric] = f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]{mark}"
    return pd.DataFrame.from_dict(cells, orient="index").rename_axis("configuration")


def format_summary(summary, kind):
    """Return a summary as "markdown", "latex", "csv", "json" or "html" text."""
    if kind == "csv":
        return summary.to_csv(index=False, lineterminator="\n")
    if kind == "json":
        return summary.to_json(orient="records", force_ascii=False, indent=1) + "\n"
    table = wide_summary(summary).reset_index()
    if kind == "markdown":
        return table.map(lambda cell: str(cell).replace("|", "\\|")).to_markdown(index=False) + "\n"
    if kind == "latex":
        return table.to_latex(index=False, escape=True)
    if kind == "html":
        return table.to_html(index=False, escape=True, border=0)
    raise OptionError(f"format is {kind!r}; expected markdown, latex, csv, json or html")


def write_report(results, summary, collection, out):
    """Write results.csv, summary.{csv,json,md,tex} and report.html into a folder."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "results.csv", results.to_csv(index=False, lineterminator="\n"))
    for kind, suffix in (("csv", "csv"), ("json", "json"), ("markdown", "md"), ("latex", "tex")):
        write_text(out / f"summary.{suffix}", format_summary(summary, kind))
    write_text(out / "report.html", _report(results, summary, collection))


def _report(results, summary, collection):
    """A self-contained page; every text from the collection is escaped."""
    metrics = list(dict.fromkeys(summary["metric"]))
    worst = results.groupby("query_id")[metrics].mean().sort_values(metrics[0], kind="stable").head(10)
    rows = "".join(
        f"<tr><td>{html.escape(query_id)}</td><td>{html.escape(collection.queries[query_id].text)}</td>"
        f"<td>{html.escape(_best_evidence(collection, query_id))}</td><td>{value:.3f}</td></tr>"
        for query_id, value in worst[metrics[0]].items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Ablation report</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.3rem .7rem;text-align:left;"
        "border-bottom:1px solid #ccc;vertical-align:top}</style></head><body>\n<h1>Ablation report</h1>\n"
        f"<p>{summary['queries'].iloc[0]} queries; mean with 95 % bootstrap interval; p from a paired randomisation "
        f"test against <em>{html.escape(summary['configuration'].iloc[0])}</em>, Holm-corrected over the table, "
        "* below .05.</p>\n"
        f"{format_summary(summary, 'html')}\n<h2>The ten hardest queries, by mean {html.escape(metrics[0])}</h2>\n"
        "<table><tr><th>id</th><th>query</th><th>best evidence</th><th>mean</th></tr>"
        f"{rows}</table>\n</body></html>\n"
    )


def _best_evidence(collection, query_id):
    spans = [span for span in collection.spans if span.query_id == query_id and span.grade > 0]
    if not spans:
        return ""
    best = max(spans, key=lambda span: span.grade)
    return collection.documents[best.doc_id].text[best.start : best.end]
