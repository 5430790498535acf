"""The command ``rag-lab``.

Results go to stdout, progress and warnings to stderr. Exit status: 0 done,
1 the input is bad, 2 wrong usage or an option value outside its range.
"""

import argparse
import json
import os
import sys
import warnings
from pathlib import Path

from rag_lab import __version__
from rag_lab.collection import embedded_path, load_collection, shorten
from rag_lab.errors import InputError, OptionError
from rag_lab.metrics import DEFAULT_METRICS, NO_RELEVANT, TIES, evaluate
from rag_lab.trec import read_qrels, read_run, write_qrels, write_run

FORMATS = ("table", "json", "csv")
EXAMPLES = {
    "score": "rag-lab score qrels.txt run.txt --metrics ndcg@10 map --per-query",
    "check": "rag-lab check my_collection",
    "evaluate": "rag-lab evaluate my_collection --retriever hybrid --rerank 20 --split test",
    "ablate": "rag-lab ablate my_collection --grid grid.yaml --out report --jobs 2",
    "compare": "rag-lab compare my_collection run_a.txt run_b.txt",
    "data": "rag-lab evaluate $(rag-lab data) --retriever bm25",
}


def main(arguments=None):
    """Run the command line and return its exit status."""
    options = make_parser().parse_args(arguments)
    warnings.showwarning = lambda message, *_: print(f"rag-lab: warning: {message}", file=sys.stderr)
    try:
        options.run(options)
        sys.stdout.flush()
        return 0
    except OptionError as error:
        print(f"rag-lab: {error}", file=sys.stderr)
        return 2
    except InputError as error:
        print(f"rag-lab: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"rag-lab: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rag-lab: interrupted", file=sys.stderr)
        return 130


def make_parser():
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="rag-lab", description="Measure the retrieval half of a RAG system.")
    parser.add_argument("--version", action="version", version=f"rag-lab {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    score = _command(commands, "score", run_score, "score a TREC run against judgements")
    score.add_argument("qrels", metavar="QRELS", help="trec_eval or BEIR format")
    score.add_argument("run_file", metavar="RUN", help="trec_eval format")
    score.add_argument("--depth", type=int, help="use at most so many documents a query")
    score.add_argument("--no-relevant", choices=NO_RELEVANT, default="zero", help="queries with no relevant document")
    score.add_argument("--ties", choices=TIES, default="id", help="what equal scores count")
    _scoring(score)

    check = _command(commands, "check", run_check, "check a collection folder")
    check.add_argument("collection", metavar="COLLECTION")
    check.add_argument("--format", choices=FORMATS, default="table")

    single = _command(commands, "evaluate", run_evaluate, "evaluate one retriever on a collection")
    single.add_argument("collection", metavar="COLLECTION")
    single.add_argument("--retriever", choices=("bm25", "dense", "hybrid"), required=True)
    single.add_argument("--alpha", type=float, default=0.5, help="weight of the dense leg of a hybrid")
    single.add_argument("--fusion", default="minmax", help="minmax, zscore, raw or rrf")
    single.add_argument("--chunker", default="fixed:512", metavar="SPEC", help="such as fixed:512:64 or sentence:512")
    single.add_argument("--rerank", type=int, nargs="?", const=20, default=0, metavar="N", help="candidates to rerank")
    single.add_argument("--threshold", type=float, help="lowest probability after reranking")
    single.add_argument("--k", type=int, help="results a query (the largest cutoff)")
    single.add_argument("--run-file", metavar="F", help="write the run in trec_eval format")
    single.add_argument("--qrels-file", metavar="F", help="write matching judgements in trec_eval format")
    _scoring(single)
    _collection(single)

    ablate = _command(commands, "ablate", run_ablate, "run a grid of configurations")
    ablate.add_argument("collection", metavar="COLLECTION")
    ablate.add_argument(
        "--grid", metavar="FILE.yaml", help="keys with lists of values (the article's 18 configurations)"
    )
    ablate.add_argument(
        "--out", metavar="DIR", help="write tables and a report; a second run goes on where one stopped"
    )
    ablate.add_argument("--jobs", type=int, default=1, metavar="N")
    ablate.add_argument("--baseline", metavar="NAME", help="configuration to compare with (the first)")
    _scoring(ablate, per_query=False)
    _collection(ablate)

    compare = _command(commands, "compare", run_compare, "compare runs, query by query")
    compare.add_argument("labels_path", metavar="COLLECTION_OR_QRELS")
    compare.add_argument("runs", nargs="+", metavar="RUN", help="two or more; the first is the baseline")
    compare.add_argument(
        "--chunker", metavar="SPEC", help="that made the chunks of all runs; allows chunk-view metrics"
    )
    compare.add_argument("--depth", type=int, help="use at most so many documents a query (qrels only)")
    _scoring(compare, per_query=False, metrics=None)
    _collection(compare, models=False)

    _command(commands, "data", run_data, "print the path of the embedded collection")
    return parser


def _command(commands, name, run, text):
    parser = commands.add_parser(
        name, help=text, description=text.capitalize() + ".", epilog=f"example: {EXAMPLES[name]}"
    )
    parser.set_defaults(run=run)
    return parser


def _scoring(parser, per_query=True, metrics=DEFAULT_METRICS):
    parser.add_argument("--metrics", nargs="+", default=metrics, metavar="NAME@K")
    parser.add_argument("--rel-level", type=int, default=1, metavar="N", help="lowest grade that counts as relevant")
    parser.add_argument("--format", choices=FORMATS, default="table")
    if per_query:
        parser.add_argument("--per-query", action="store_true")


def _collection(parser, models=True):
    parser.add_argument("--split", metavar="S", help="dev or test (all queries)")
    parser.add_argument("--labels", choices=("evidence", "qrels"))
    if models:
        parser.add_argument("--encoder", default=None, help="packaged name, hub name or path")
        parser.add_argument("--reranker", default=None, help="packaged name, hub name or path")


def run_score(options):
    """``rag-lab score``."""
    evaluation = evaluate(
        read_qrels(options.qrels),
        read_run(options.run_file),
        options.metrics,
        options.rel_level,
        options.depth,
        options.no_relevant,
        options.ties,
    )
    print_evaluation(evaluation, options)


def run_check(options):
    """``rag-lab check``."""
    collection = load_collection(options.collection)
    unlabelled = set(collection.queries) - set(collection.spans_by_query()) - set(collection.all_qrels())
    counts = {
        "documents": len(collection.documents),
        "characters": sum(len(document.text) for document in collection.documents.values()),
        "queries": len(collection.queries),
        "unanswerable": sum(q.metadata.get("answerable") is False for q in collection.queries.values()),
        "unlabelled": sum(collection.queries[q].metadata.get("answerable") is not False for q in unlabelled),
        "spans": len(collection.spans),
        "judgements": sum(len(grades) for grades in collection.all_qrels().values()),
    }
    if options.format == "json":
        print(json.dumps({"valid": True, "counts": counts}))
    else:
        _print_rows(counts.items(), options.format)


def run_evaluate(options):
    """``rag-lab evaluate``."""
    # Imported here, so that the other commands start without these libraries.
    from rag_lab.ablation import Workbench, check_configuration
    from rag_lab.evaluation import RAGEvaluator, choose_labels

    names = ("chunker", "retriever", "alpha", "fusion", "rerank", "threshold")
    configuration = check_configuration({name: getattr(options, name) for name in names})
    if options.threshold is not None and not options.rerank:
        raise OptionError("--threshold is a probability of the reranker; expected --rerank with it")
    collection = load_collection(options.collection)
    bench = Workbench(collection, **_models(options))
    chunks = bench.chunks(options.chunker)
    labels = choose_labels(collection, options.labels, options.chunker)
    evaluator = RAGEvaluator(collection, chunks, options.metrics, options.split, labels, options.rel_level, k=options.k)
    if 0 < configuration["rerank"] < evaluator.k:
        warnings.warn(
            f"--rerank {options.rerank} returns at most {options.rerank} results, below the cutoff {evaluator.k}",
            stacklevel=1,
        )
    results = evaluator.search(bench.retriever(configuration))
    evaluation = evaluator.score(results)
    extra = {"configuration": configuration, "labels": labels, "truncated": count_truncated(bench, configuration)}
    if options.run_file:
        write_run(options.run_file, {q: [(hit.id, hit.score) for hit in hits] for q, hits in results.items()})
    if options.qrels_file:
        write_qrels(options.qrels_file, {query_id: evaluator.qrels[query_id] for query_id in evaluator.counted})
    print_evaluation(evaluation, options, extra)


def count_truncated(bench, configuration):
    """Return how many indexed texts the encoder cut, and warn about them."""
    if configuration["retriever"] == "bm25":
        return {"texts": 0, "of": 0}
    texts = bench.texts(configuration["chunker"])
    cut = bench.encoder.count_truncated(texts)
    if cut:
        warnings.warn(
            f"{cut} of {len(texts)} texts are longer than the encoder reads; their ends are not searched", stacklevel=1
        )
    return {"texts": cut, "of": len(texts)}


def _models(options):
    chosen = {"encoder": options.encoder, "reranker": options.reranker}
    return {role: name for role, name in chosen.items() if name}


def run_ablate(options):
    """``rag-lab ablate``."""
    from rag_lab.ablation import (
        ARTICLE_GRID,
        expand_grid,
        format_summary,
        read_grid,
        run_ablation,
        summarize,
        write_report,
    )

    configurations = read_grid(options.grid) if options.grid else expand_grid(ARTICLE_GRID)
    collection = load_collection(options.collection)
    results = run_ablation(
        collection,
        configurations,
        options.metrics,
        options.split,
        options.labels,
        options.rel_level,
        options.out,
        options.jobs,
        **_models(options),
    )
    summary = summarize(results, options.baseline, options.metrics)
    if options.out:
        write_report(results, summary, collection, options.out)
    print(format_summary(summary, "markdown" if options.format == "table" else options.format), end="")


def run_compare(options):
    """``rag-lab compare``."""
    import pandas as pd

    from rag_lab.ablation import format_summary, summarize
    from rag_lab.evaluation import as_frame

    if len(options.runs) < 2:
        raise OptionError("one run; expected two or more to compare")
    if len(set(options.runs)) != len(options.runs):
        raise OptionError("a run is given twice; expected different files")
    runs = {path: read_run(path) for path in options.runs}
    if Path(options.labels_path).is_dir():
        metrics, evaluations = _on_collection(options, runs)
    else:
        if options.split or options.labels or options.chunker:
            raise OptionError("--split, --labels and --chunker need a collection, not a qrels file")
        metrics, qrels = options.metrics or list(DEFAULT_METRICS), read_qrels(options.labels_path)
        evaluations = {
            path: evaluate(qrels, run, metrics, options.rel_level, options.depth) for path, run in runs.items()
        }
    frames = [as_frame(e, metrics).reset_index().assign(configuration=path) for path, e in evaluations.items()]
    summary = summarize(pd.concat(frames), metrics=metrics)
    print(format_summary(summary, "markdown" if options.format == "table" else options.format), end="")


def _on_collection(options, runs):
    """Score runs of chunks (``doc:start:end``) or documents on a collection."""
    from rag_lab.chunking import chunk_documents
    from rag_lab.evaluation import CHUNK_RULES, RAGEvaluator, choose_labels, parse_evidence_metric
    from rag_lab.metrics import order_by_score
    from rag_lab.retrieval import as_hits

    if options.depth is not None:
        raise OptionError("--depth needs a qrels file, not a collection")
    collection = load_collection(options.labels_path)
    ranked = {
        path: {query_id: as_hits(order_by_score(list(scores.items())), query_id) for query_id, scores in run.items()}
        for path, run in runs.items()
    }
    everything = [hit for results in ranked.values() for hits in results.values() for hit in hits]
    of_chunks = all(hit.doc_id is not None and hit.id not in collection.documents for hit in everything)
    labels = choose_labels(collection, options.labels, "fixed:512" if of_chunks else "none")
    if labels == "qrels":
        chunks, metrics = [], options.metrics or list(DEFAULT_METRICS)
    elif not of_chunks:
        raise InputError("the runs hold documents, but evidence is scored on chunks; expected ids doc_id:start:end")
    else:
        _check_places(everything, collection)
        metrics = options.metrics or ["recall@5", "evidence_ndcg@10", "iou@5"]
        on_chunks = [name for name in metrics if parse_evidence_metric(name)[0] in CHUNK_RULES]
        if on_chunks and not options.chunker:
            raise OptionError(f"{on_chunks[0]} depends on all chunks of the index; expected --chunker with it")
        chunks = chunk_documents(collection.documents.values(), options.chunker) if options.chunker else []
        if unknown := {hit.id for hit in everything} - {chunk.id for chunk in chunks} if options.chunker else set():
            raise InputError(f"chunk {min(unknown)!r} is none of {options.chunker}; expected runs of this chunker")
    evaluator = RAGEvaluator(collection, chunks, metrics, options.split, labels, options.rel_level)
    if labels == "qrels" and of_chunks:
        from rag_lab.evaluation import collapse

        ranked = {path: {q: collapse(hits) for q, hits in results.items()} for path, results in ranked.items()}
    return metrics, {path: evaluator.score(results) for path, results in ranked.items()}


def _check_places(hits, collection):
    for hit in hits:
        document = collection.documents.get(hit.doc_id)
        if document is None or not 0 <= hit.start <= hit.end <= len(document.text):
            raise InputError(f"chunk {hit.id!r} lies in no document of the collection; expected doc_id:start:end")


def run_data(options):
    """``rag-lab data``."""
    print(embedded_path())


def print_evaluation(evaluation, options, extra=None):
    """Print an `Evaluation` in the wanted format."""
    if options.format == "json":
        answer = {"metrics": evaluation.metrics, "queries": evaluation.queries}
        if evaluation.abstention is not None:
            answer["abstention"] = evaluation.abstention
        if evaluation.no_relevant:
            answer["no_relevant"] = evaluation.no_relevant
        answer.update(extra or {})
        if options.per_query:
            answer["per_query"] = evaluation.per_query
        print(json.dumps(answer, ensure_ascii=False))
        return
    rows = [(query, name, value) for query, values in evaluation.per_query.items() for name, value in values.items()]
    totals = [("all", name, value) for name, value in evaluation.metrics.items()]
    if options.format == "csv":
        _print_rows([("query", "metric", "value"), *(rows if options.per_query else []), *totals], "csv")
        return
    if options.per_query:
        _print_rows([(query, name, f"{value:.4f}") for query, name, value in rows], "table")
    _print_rows([(name, f"{value:.4f}") for _, name, value in totals], "table")
    if evaluation.abstention is not None:
        _print_rows([("abstention", f"{evaluation.abstention:.4f}")], "table")
    print("queries: " + ", ".join(f"{count} {kind}" for kind, count in evaluation.queries.items()))
    if evaluation.no_relevant:
        print(f"queries without a relevant document: {shorten(evaluation.no_relevant, 200)}")


def _print_rows(rows, kind):
    rows = [tuple(map(str, row)) for row in rows]
    if kind == "csv":
        import csv

        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
