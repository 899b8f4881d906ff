"""Frozen records made in Python: a value of the wrong type gets the project's own error, whatever the field."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios
import specsim
from scenarios.hardware import gpu
from scenarios.models import model
from scenarios.resolve import STAND_IN, resolve
from scenarios.workload import WorkloadSpec
from specsim.acceptance import ByTask, Constant, Empirical, PerPosition
from specsim.acceptance.mixture import Mixture
from specsim.benchmarks import Acceptance, Benchmark
from specsim.config import Deployment, ReplicaLimits, Slo, Speculation
from specsim.disaggregation import Disaggregation
from specsim.disciplines import Discipline
from specsim.drafters import drafter
from specsim.errors import ScenarioError, SpecsimError
from specsim.evidence import Evidence
from specsim.planner.concurrency import CrossoverSettings, steady_trace
from specsim.planner.costs import Ownership
from specsim.planner.question import PlanSettings
from specsim.planner.single import SingleRun
from specsim.policies import KINDS, parse_policy
from specsim.shapes import Price
from specsim.traces.options import ArrivalProcess, ReadOptions
from specsim.traces.recipe import LengthSpec, PrefixPool, RateProfile, SynthSpec
from specsim.trees import Tree
from specsim.type_checks import check_types

TRACE = steady_trace(LengthSpec(20), LengthSpec(8), 1, 8, 0)
QUESTION = resolve(*STAND_IN, Slo())
MIXTURE = Mixture(
    accept=((0.8, 0.7), (0.3, 0.2)),
    moves=(((0.9, 0.1), (0.2, 0.8)),),
    starts=((0.5, 0.5),),
    shares=((1.0,),),
    share_tokens=(100.0,),
    outputs=((100, 1.0),),
)
GOOD = [
    Deployment(),
    Speculation(),
    Slo(),
    ReplicaLimits(100),
    Discipline(),
    Disaggregation(1, 1, 1e6, math.inf),
    PlanSettings(),
    Ownership(3.0, 0.1, 1.3),
    Acceptance(2.4, (0.7, 0.6), 2),
    Benchmark("client", "file", (9, 20), (5, 1), {"tpot_mean_s": 0.1}, concurrency=2, acceptance=Acceptance(2.4)),
    CrossoverSettings((1, 2), LengthSpec(20), LengthSpec(8), 3),
    SingleRun(question=QUESTION, trace=TRACE, policy=parse_policy("static:3")),
    *(parse_policy(kind.example) for kind in KINDS.values()),
    *(kind.settings() for kind in KINDS.values() if kind.settings is not None),
    QUESTION.on.profile,
    QUESTION.on.profile.target,
    Evidence(points=3, ranges={"requests": (1.0, 8.0)}, intervals={"target.token_s": (0.0, 1.0)}),
    gpu("h100-sxm"),
    model("llama-3.1-8b"),
    Price(2.0, "somebody", "2026-01-01", "a page"),
    drafter("eagle"),
    Tree((2, 2), (1, 1)),
    TRACE,
    ReadOptions(),
    ArrivalProcess("poisson", 2.0),
    LengthSpec(20),
    RateProfile(),
    PrefixPool(4, 1024),
    SynthSpec(process=ArrivalProcess("poisson", 2.0), requests=10),
    WorkloadSpec(isl=20, osl=8, requests=10, rate_per_s=1.0),
    PerPosition((0.8, 0.7)),
    MIXTURE,
    Empirical(runs=(np.array([1, 0, 2], dtype=np.int8),), max_spec_tokens=3, name="x"),
    ByTask(models=(Constant(0.7), Constant(0.5)), weights=(0.5, 0.5)),
]
WRONG: list[Any] = [
    None, True, -1, 0, 3, 10**400, 0.5, math.nan, math.inf, "", "banana", b"bytes", [], [1, 2], (), (1, "x"), ("a",),
    ((1, 2),), {}, {"a": "b"}, {1: 2}, object(), int, np.float64("nan"), np.zeros(3),
]  # fmt: skip


def self_checking() -> Iterator[type]:
    """Frozen records of the packages that look at themselves when they are made."""
    for package in (specsim, scenarios):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            module = importlib.import_module(found.name)
            for item in vars(module).values():
                is_own = inspect.isclass(item) and item.__module__ == found.name and dataclasses.is_dataclass(item)
                if is_own and "__post_init__" in vars(item) and item.__dataclass_params__.frozen:
                    yield item


def test_every_record_that_checks_itself_is_tried_here() -> None:
    tried = {type(good) for good in GOOD}
    assert {item.__qualname__ for item in self_checking() if item not in tried} == set()
    assert len(tried) > 28


@pytest.mark.parametrize("good", GOOD, ids=lambda good: type(good).__name__)
def test_a_wrong_type_is_told_by_field_value_and_what_is_expected(good: Any) -> None:
    refused = 0
    for field in dataclasses.fields(good):
        if not field.init:
            continue
        for wrong in WRONG:
            try:
                dataclasses.replace(good, **{field.name: wrong})
            except SpecsimError as refusal:
                refused += 1
                assert "\n" not in str(refusal)
                if isinstance(wrong, bytes | list):
                    assert field.name in str(refusal)
                    assert " must be " in str(refusal)
    assert refused >= 5 * len(dataclasses.fields(good)), "the guard"


@dataclasses.dataclass(frozen=True)
class Made:
    """One field of every type that annotations use."""

    whole: int = 1
    real: float = 1.0
    word: str = ""
    flag: bool = False
    maybe: int | None = None
    rows: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        check_types(self, "made")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"whole": True}, "made.whole must be a whole number, got True"),
        ({"whole": 2.0}, "made.whole must be a whole number, got 2.0"),
        ({"real": math.nan}, "made.real must be a finite number, got nan"),
        ({"real": "1"}, "made.real must be a finite number, got '1'"),
        ({"word": b"x"}, "made.word must be text, got b'x'"),
        ({"flag": 1}, "made.flag must be true or false, got 1"),
        ({"maybe": "no"}, "made.maybe must be a whole number or None, got 'no'"),
        ({"rows": [(1, 2.0)]}, "made.rows must be a tuple of rows, each a tuple of 2 values, got [(1, 2.0)]"),
        ({"rows": ((1, 2.0, 3),)}, "made.rows must be a tuple of rows"),
    ],
)
def test_the_sentence(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Made(**values)
    assert str(caught.value).startswith(said)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
                    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=5),
       st.sampled_from([f.name for f in dataclasses.fields(Speculation)]))  # fmt: skip
def test_any_value_of_any_field_of_a_speculation(value: object, name: str) -> None:
    try:
        dataclasses.replace(Speculation(), **{name: value})
    except SpecsimError as refusal:
        assert "\n" not in str(refusal)
