"""The retrieval collections by name: BEIR's SciFact and five classic ones of one topic each."""

from __future__ import annotations

from workloads.data.retrieval.beir import CORPUS, JUDGEMENTS, QUERIES, collection
from workloads.data.source import Dataset, SourceFile

_BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"


def _scifact(path: str, size: int, sha256: str) -> SourceFile:
    return SourceFile(path, size=size, sha256=sha256, url=f"{_BEIR}/scifact.zip", member=f"scifact/{path}")


SCIFACT = collection(
    "scifact",
    "scientific claims and abstracts, BEIR's form, 5,183 documents, 809 + 300 queries (claims CC BY 4.0)",
    "scifact",
    (
        _scifact(CORPUS, 8_106_566, "dec31c8182f3d744c7d2c09423756fd1d17cbef75808db13ba01cc0aab4d1ac6"),
        _scifact(QUERIES, 209_731, "8ff84a7c903f722981cd8d595c022660140c51867b27608a6d4910db86080313"),
        _scifact("qrels/train.tsv", 13_582, "ac0902d9b1cb717df182aaff1306175877fdb8f55bb5c3e8597ad694fc8e539f"),
        _scifact("qrels/test.tsv", 5_049, "68c0ac63f1c24b9e8ce497649694f09b2d0850bab7ec2b103cc66996f5f8b3a3"),
    ),
)


def _classic(name: str, summary: str) -> Dataset:
    return collection(
        name,
        summary,
        f"classic-ir/{name}",
        tuple(SourceFile(path) for path in (CORPUS, QUERIES, JUDGEMENTS)),
        obtain="Bring the collection of Glasgow's IR test collections into BEIR's form, without a split",
    )


CRAN = _classic("cran", "Cranfield, aerodynamics, 1,400 documents, 225 queries, grades 1 to 4")
CISI = _classic("cisi", "CISI, information science, 1,460 documents, 76 judged queries")
CACM = _classic("cacm", "CACM, computing, 3,204 titles and abstracts, 52 judged queries")
MED = _classic("med", "MEDLINE, biomedicine, 1,033 abstracts, 30 queries")
TIME = _classic("time", "TIME, world news of 1963, 423 articles, 82 judged queries")
