"""What an attached replay computes is what was recorded: every host, every placement and gate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import record_attach
from record_attach import HOSTS, LOW_PRECISION

# Processors differ in how they order sums and fuse multiplications, which moves float32 by some 1e-7 and, through
# blocks, median and gate, by up to 1e-5; a mistake in a formula moves norms and projections by far more than 1e-4.
# In bfloat16 one rounding is 4e-3, and drift is a difference of such values.
RTOL, RTOL_LOW = 1e-4, 5e-2


@cache
def recorded() -> dict[str, Any]:
    return record_attach.read()


@cache
def same_machine() -> bool:
    return record_attach.probe() == recorded()["probe"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with record_attach.one_thread():
        yield


def test_every_host_of_the_tests_is_recorded() -> None:
    from golden_hosts import HOSTS as LIBRARIES
    from library_models import MODELS

    assert set(record_attach.LIBRARY) >= set(MODELS)
    assert set(record_attach.LIBRARIES) >= set(LIBRARIES)
    assert list(recorded()["hosts"]) == list(HOSTS)


@pytest.mark.parametrize("name", HOSTS)
def test_host(name: str) -> None:
    found, then = record_attach.measure_host(name), recorded()["hosts"][name]
    assert list(found) == list(then)
    rtol = RTOL_LOW if any(word in name for word in LOW_PRECISION) else RTOL
    far = {label: record_attach.far(found[label], then[label], rtol) for label in then}
    assert {label: fields for label, fields in far.items() if fields} == {}
    # another machine can pass the probe and yet run a host's own head differently
    if not same_machine() or found["plain"]["out"][0] != then["plain"]["out"][0]:
        pytest.skip("floating point differs on this machine; means, norms, projections and counts agree")
    differing = {label: record_attach.differing(found[label], then[label]) for label in then}
    assert {label: fields for label, fields in differing.items() if fields} == {}
