"""Measure the retrieval half of a RAG system.

The modules are flat and import in one direction only:

``metrics`` ``ties`` ``text`` ``collection`` → ``chunking`` ``labels`` →
``models`` → ``fusion`` ``retrieval`` → ``evaluation`` →
``statistics`` ``ablation`` → ``plots`` ``cli``.

``rag_lab.metrics`` needs no third-party package; nothing imports torch before
an encoder is used.
"""

__version__ = "0.1.0"
