"""Headings of policies in the tables of a plan: short, one for each policy, explained where they do not say it all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cli import QUICK, plan, write_log

from specsim.report.policy_names import headings, legend

LABELS = st.lists(
    st.sampled_from(["off", "k=1", "k=3", "k=3 to 64", "k=3 until 0.4 over 100", "k=3 until 0.4 over 9", "adaptive<=5"])
    | st.from_regex(r"(schedule|ema|budget|context)( |<=)[0-9]{1,3}(/[0-9]@[0-9]{1,3}| a=[0-9]){0,3}", fullmatch=True),
    unique=True,
    max_size=12,
)


@given(LABELS)
def test_headings_are_short_and_tell_policies_apart(labels: list[str]) -> None:
    names = headings(labels)
    assert list(names) == labels
    assert len(set(names.values())) == len(labels)
    assert all(len(name) <= 14 for name in names.values())
    for label, name in names.items():
        assert name == label or name in ("schedule", "adaptive") or f"{name} is '{label}'" in legend(names)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["off", "k=3", "schedule 5/0@9", "adaptive<=5"], ["off", "k=3", "schedule", "adaptive"]),
        (["schedule 5/0@9", "schedule 5/0@90"], ["schedule #1", "schedule #2"]),
        (["k=3", "k=3 to 64", "k=3 to 2147483647"], ["k=3", "k=3 to 64", "k=3 #1"]),
        (["ema<=3", "ema<=5"], ["ema<=3", "ema<=5"]),
    ],
)
def test_headings_of_plans(labels: list[str], names: list[str]) -> None:
    assert list(headings(labels).values()) == names


def test_long_labels_fit_the_page(tmp_path: Path) -> None:
    further = ("ema:3:ema_alpha=0.3", "schedule:1-4=3,5-9=2,10-20=1,21-64=0", "trt_gate:3:0.4:100:over=requests")
    flags = [word for text in further for word in ("--policy", text)]
    text = plan("--trace", write_log(tmp_path / "log.csv"), *QUICK, *flags, "--no-store", "--full").stdout
    assert "…" not in text
    tables = text.split("7. Flags")[0].splitlines()
    assert max(map(len, tables)) <= 100
    assert "'ema<=3 ema_alpha=0.3'" in " ".join(text.split())
