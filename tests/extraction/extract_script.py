"""Run one extraction in a process of its own, so that a test can kill it."""

import sys
from pathlib import Path

from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction

if __name__ == "__main__":
    dataset, url, spool, store, part_format = sys.argv[1:]
    job = ExtractionJob(
        dataset=read_dataset(Path(dataset)),
        server_url=url,
        spool=Path(spool),
        store=Path(store),
        part_format=part_format,
        concurrency=3,
    )
    summary = run_extraction(job)
    print(summary.already_stored, summary.stored)
