"""A profile carried to another GPU: by the roofline, back again, and honest about what does not carry."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from scenarios.carried import carried_to
from scenarios.hardware import gpu
from scenarios.resolve import resolve
from specsim.config import Deployment, Slo, Speculation
from specsim.errors import ProfileError
from specsim.evidence import Evidence
from specsim.latency import StepCost
from specsim.profiles import LatencyProfile, PassCost

STEPS = [(batch, context, k) for batch in (1, 8, 64, 256) for context in (100, 4000) for k in (0, 3)]
PAIRS = [("h100-sxm", "h200-sxm"), ("h100-sxm", "a100-80-sxm"), ("mi300x", "b200")]


def analytic(device: str, **asked: Any) -> LatencyProfile:
    deployment = Deployment(gpu=device, **{k: asked.pop(k) for k in ("tp", "weight_dtype", "target") if k in asked})
    return resolve(deployment, Speculation(**asked), Slo()).on.profile


def measured(device: str = "h100-sxm", **asked: Any) -> LatencyProfile:
    """As if measured: every term off the analytic one by a factor of its own, kernels that are chosen by size."""

    def off(cost: PassCost, start: int) -> PassCost:
        seconds = [f.name for f in fields(PassCost) if f.name.endswith("_s")]
        terms = {name: getattr(cost, name) * (1.05 + 0.01 * (start + i)) for i, name in enumerate(seconds)}
        return replace(cost, **{**terms, "request_s": 2e-6}, size_factors=((1, 0.9), (64, 1.1)))

    profile = analytic(device, **asked)
    return replace(
        profile,
        name="mine",
        kind="measured",
        target=off(profile.target, 0),
        draft=None if profile.draft is None else off(profile.draft, 5),
        host_s=0.9e-3,
        relative_error=0.03,
        notes=(),
        covers={**profile.covers, "attention_backend": "FA3", "device": "of the lab"},
        evidence=Evidence(40, ranges={"requests": (1, 64)}, intervals={"target.weights_s": (1e-3, 2e-3)}),
    )


def terms(profile: LatencyProfile) -> list[float]:
    found = []
    for cost in (profile.target, profile.draft):
        found += [] if cost is None else [getattr(cost, f.name) for f in fields(PassCost) if "factors" not in f.name]
    return [*found, profile.host_s, profile.mixed_s, profile.uncaptured_s, profile.verify_unsplit_requests]


@pytest.mark.parametrize(("here", "there"), PAIRS)
@pytest.mark.parametrize(
    "asked",
    [
        {}, {"method": "ngram"}, {"weight_dtype": "fp8"}, {"tp": 2}, {"method": "layer_skip"},
        {"target": "qwen3-30b-a3b", "method": "eagle3"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_on_the_roofline_stays_on_it(here: str, there: str, asked: dict[str, Any]) -> None:
    """Carried, an analytic profile is that of the other GPU."""
    carried = carried_to(replace(analytic(here, **asked), kind="measured"), gpu(there))
    got, wanted = StepCost(carried), StepCost(analytic(there, **asked))
    for step in STEPS:
        assert got.decode_step_s(*step) == pytest.approx(wanted.decode_step_s(*step), rel=1e-12)
    assert carried.captured_tokens_max == wanted.profile.captured_tokens_max


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_there_and_back_changes_nothing_but_the_band(here: str, there: str) -> None:
    own = measured(here)
    carried = carried_to(own, gpu(there))
    back = carried_to(carried, gpu(here))
    assert terms(carried) != pytest.approx(terms(own), rel=1e-3)
    assert terms(back) == pytest.approx(terms(own), rel=1e-12)
    assert back.target.size_factors == own.target.size_factors
    assert back.evidence is not None
    assert back.evidence.intervals["target.weights_s"] == pytest.approx((1e-3, 2e-3))
    assert (carried.kind, back.kind) == ("transferred", "transferred")
    assert own.relative_error < carried.relative_error < back.relative_error
    assert carried.covers["measured_on"] == back.covers["measured_on"] == gpu(here).name
    assert carried.name.startswith("mine, carried to ")
    assert back.name.count("carried") == 1
    assert len([note for note in back.notes if "rooflines" in note]) == 1


def test_reading_moves_by_bandwidth_computing_by_rate_and_the_host_stays() -> None:
    own = measured()
    more_bandwidth, less_compute = carried_to(own, gpu("h200-sxm")), carried_to(own, gpu("h100-pcie"))
    h100, h200, pcie = gpu("h100-sxm"), gpu("h200-sxm"), gpu("h100-pcie")
    for other, device in ((more_bandwidth, h200), (less_compute, pcie)):
        reading = h100.bandwidth_bytes_per_s / device.bandwidth_bytes_per_s
        computing = h100.flops_per_s["bf16"] / device.flops_per_s["bf16"]
        assert other.draft is not None and own.draft is not None
        for before, after in ((own.target, other.target), (own.draft, other.draft)):
            for name in ("weights_s", "head_weights_s", "kv_token_s", "sample_row_s"):
                assert getattr(after, name) == pytest.approx(reading * getattr(before, name))
            assert after.kv_pair_s == pytest.approx(computing * before.kv_pair_s)
            low, high = sorted((reading, computing))
            assert low <= after.token_s / before.token_s <= high, "elementwise work reads, the rest computes"
            assert after.fixed_s == before.fixed_s
            assert after.request_s == before.request_s
            assert (after.knee, after.size_factors) == (before.knee, before.size_factors)
        assert (other.host_s, other.host_request_s) == (own.host_s, own.host_request_s)
    alone = [StepCost(profile).decode_step_s(1, 100, 0) for profile in (less_compute, own, more_bandwidth)]
    assert alone == sorted(alone, reverse=True), "alone, a step follows the bandwidth"


def test_what_attention_does_is_carried_within_a_family_of_kernels_only() -> None:
    """FlashAttention 3 splits the cache of several queries, 2 does not (Hopper against Ampere and Ada)."""
    own = replace(measured(), verify_unsplit_requests=5.0)
    same, other = carried_to(own, gpu("h200-sxm")), carried_to(own, gpu("l40s"))
    assert same.verify_unsplit_requests == 5.0
    assert "FA3" in " ".join(same.notes)
    assert other.verify_unsplit_requests == analytic("l40s").verify_unsplit_requests > 5.0
    (said,) = [note for note in other.notes if note.startswith("Not carried: how attention")]
    assert "FA3" in said
    assert "FlashAttention 2" in other.covers["attention_backend"]
    assert "device" not in other.covers, "that was of the machine measured"
    assert other.relative_error == pytest.approx(math.hypot(0.03, 0.20), abs=1e-4)
    assert same.relative_error == pytest.approx(math.hypot(0.03, 0.10), abs=1e-4)


def test_another_split_brings_collectives_that_were_not_measured() -> None:
    own = measured()
    two = carried_to(own, gpu("h100-sxm"), tp=2)
    assert two.target.weights_s == pytest.approx(own.target.weights_s / 2)
    assert two.target.collective_token_s == pytest.approx(analytic("h100-sxm", tp=2).target.collective_token_s)
    assert any(note.startswith("Not carried: collectives") for note in two.notes)
    assert terms(carried_to(two, gpu("h100-sxm"), tp=1)) == pytest.approx(terms(own), rel=1e-9, abs=1e-15)
    half = carried_to(own, gpu("h100-sxm"), weight_dtype="fp8")
    assert half.target.weights_s == pytest.approx(own.target.weights_s / 2)
    assert half.covers["weight_dtype"] == "fp8"


def test_what_cannot_be_carried_is_refused_and_what_need_not_be_stays() -> None:
    own = measured()
    assert carried_to(own, gpu("h100-sxm")) is own
    with pytest.raises(ProfileError, match="which the catalogue does not list"):
        carried_to(replace(own, covers={**own.covers, "gpu": "AMD EPYC, 1 thread"}), gpu("h100-sxm"))
    with pytest.raises(ProfileError, match="does not say its kv_dtype"):
        carried_to(replace(own, covers={k: v for k, v in own.covers.items() if k != "kv_dtype"}), gpu("h200-sxm"))
