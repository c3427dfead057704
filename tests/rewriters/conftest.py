"""Real releases for the tests of drift, opened once."""

import pytest

from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.source_tree import SourceTree
from auxtap.tests.rewriters.drifts import RELEASES


@pytest.fixture(scope="session")
def trees(shared_cache: CacheLayout) -> dict[str, SourceTree]:
    return {release: open_source(f"pypi:{release}", shared_cache).tree for release in RELEASES}
