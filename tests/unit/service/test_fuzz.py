"""The fuzzer: it begins with a valid request of every route, and repeats itself by its numbers."""

from __future__ import annotations

from random import Random

import pytest
from tests.verification.fuzz.samples import JSON, samples
from tests.verification.fuzz.segment import mutated

from sparktxlog.codec.submits.requests import decode_request
from sparktxlog.service.routing.openapi import client_document
from sparktxlog.service.routing.routes import ROUTES


def test_every_route_has_a_sample() -> None:
    found = samples(Random(1), "l")
    assert set(found) == {route.key for route in ROUTES}
    by_template = {f"{route.method} {route.template}": found[route.key] for route in ROUTES}
    for path, methods in client_document()["paths"].items():
        for method, operation in methods.items():
            sample = by_template[f"{method.upper()} {path}"]
            assert bool(sample.kind) >= ("requestBody" in operation), path
            if sample.kind:
                assert sample.kind in (*operation.get("requestBody", {}).get("content", ()), JSON)


@pytest.mark.parametrize("seed", range(20))
def test_samples_are_valid(seed: int) -> None:
    decode_request(samples(Random(seed), "l")["POST /v1/transactions"].body)


def test_a_seed_repeats_its_requests_and_another_does_not() -> None:
    def requests(seed: int) -> list[tuple[bytes, bool]]:
        draw = Random(seed)
        valid = samples(draw, "l")
        return [mutated(draw, valid[draw.choice(sorted(valid))], None) for _ in range(200)]

    assert requests(1) == requests(1) != requests(2)
    assert len({raw for raw, _ in requests(1)}) > 150
