"""Acceptance from a measured speed-up, and sweeps over load: held to sweeps that the simulator made itself.

The simulator knows the truth of its own sweeps, so that a protocol that adds errors of its own is found out.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.published.conditions import cases_of
from scenarios.published.rows import PublishedRow, rows_of
from scenarios.resolve import resolve
from specsim.acceptance import PerPosition
from specsim.cli import cli
from specsim.config import Deployment, Slo, Speculation
from specsim.errors import ScenarioError
from specsim.planner.concurrency import CrossoverSettings, PairedLoop
from specsim.planner.implied import gain, implied_acceptance
from specsim.planner.published import Case, Prediction, predict
from specsim.planner.published_result import published_result
from specsim.report.published import published_text
from specsim.traces.recipe import LengthSpec

HEADER = "id,source,target,draft,method,k,tree,hardware,n_gpus,dtype,engine,isl,osl,load_kind,load,unit,speedup"


def table(*lines: str, header: str = HEADER) -> tuple[PublishedRow, ...]:
    return rows_of("\n".join((header, *lines)), "t.csv")


def cases(*lines: str) -> list[Case]:
    found, rest = cases_of(table(*lines), seeds=3, seed=0)
    assert not rest, rest
    return found


def loop(concurrency: int = 4, *, k: int = 3, method: str = "eagle") -> PairedLoop:
    speculation = Speculation(method=method, num_spec_tokens=(k,))  # type: ignore[arg-type]
    asked = CrossoverSettings((concurrency,), LengthSpec(60), LengthSpec(80), k, seeds=3)
    return PairedLoop(resolve(Deployment(), speculation, Slo()), asked, concurrency)


@settings(max_examples=8, deadline=None)
@given(st.floats(1.05, 3.8), st.sampled_from([(0.7,), (0.8, 0.6, 0.4)]), st.sampled_from(["throughput", "tpot"]))
def test_the_acceptance_of_a_simulated_point_is_found_again(
    length: float, vector: tuple[float, ...], metric: str
) -> None:
    from specsim.acceptance.scaled import scaled_to_length

    place, base = loop(), PerPosition(vector)
    truth = gain(place.point(scaled_to_length(base, length, 3)), metric).mean  # type: ignore[arg-type]
    solved = implied_acceptance(place, base, 3, truth, metric)  # type: ignore[arg-type]
    assert solved.reached
    assert gain(solved.point, metric).mean == pytest.approx(truth, rel=2e-3)  # type: ignore[arg-type]
    assert solved.length == pytest.approx(length, rel=0.02)
    assert solved.low <= solved.length <= solved.high


def test_more_than_all_accepted_and_less_than_none_end_at_the_ends() -> None:
    place, base = loop(), PerPosition((0.7,))
    most = implied_acceptance(place, base, 3, 9.0)
    assert (most.reached, most.length) == (False, 4.0)
    least = implied_acceptance(place, base, 3, 0.2)
    assert (least.reached, least.length) == (False, 1.0)


@pytest.mark.parametrize(("k", "speedup", "said"), [(0, 1.2, "nothing is drafted"), (3, 0.0, "> 0"), (3, -1.0, "> 0")])
def test_questions_without_an_answer_are_refused(k: int, speedup: float, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        implied_acceptance(loop(), PerPosition((0.7,)), k, speedup)


SWEEP = [
    f"s{n},made,Llama-3.1-8B,EAGLE,EAGLE,3,chain,H100,1,bf16,vLLM,60,80,concurrency,{n},tok/s,{{}}" for n in (1, 8, 32)
]


def made(rows: list[str], length: float) -> list[Prediction]:
    """The rows with the speed-ups that the simulator itself gives at an acceptance length, predicted again."""
    first = cases(*(row.format(1.5) for row in rows))
    speedups = []
    for case in first:
        from specsim.acceptance.scaled import scaled_to_length

        truth = scaled_to_length(case.base, length, case.settings.num_spec_tokens)
        place = PairedLoop(case.question, case.settings, int(case.load))
        speedups.append(gain(place.point(truth), case.metric).mean)
    again = cases(*(row.format(f"{speedup:.6f}") for row, speedup in zip(rows, speedups, strict=True)))
    return predict(again, processes=1)[0]


def test_a_sweep_made_by_the_simulator_comes_out_without_error() -> None:
    swept = [p for p in made(SWEEP, 2.4) if p.protocol in ("anchor", "anchored")]
    assert [p.protocol for p in swept] == ["anchor", "anchored", "anchored"]
    assert all(abs(p.error) < 0.01 for p in swept), [p.error for p in swept]
    assert all(p.length == pytest.approx(2.4, rel=0.01) for p in swept)
    assert max(abs(p.null_error) for p in swept if p.protocol == "anchored") > 0.01, "the guard: another model errs"


def test_only_rows_that_differ_in_load_alone_form_a_sweep() -> None:
    rows = [row.format(1.4) for row in SWEEP]
    other = rows[1].replace("s8,", "t8,").replace(",3,chain", ",4,chain")
    found = {case.id: case.sweep for case in cases(*rows, other)}
    assert found == {"s1": "s1", "s8": "s1", "s32": "s1", "t8": None}
    same_load = rows[0].replace("s1,", "u1,")
    assert [case.sweep for case in cases(rows[0], same_load)] == [None, None]


def test_a_sweep_that_no_acceptance_explains_says_so_and_is_still_predicted() -> None:
    rows = [row.format(9.0 if n == 0 else 1.4) for n, row in enumerate(SWEEP)]
    swept = [p for p in predict(cases(*rows), processes=1)[0] if p.protocol in ("anchor", "anchored")]
    assert all(p.length == pytest.approx(4.0) for p in swept)
    assert all("no acceptance gives 9.000 at load 1" in p.warning for p in swept)


def test_predictions_do_not_depend_on_processes_or_on_the_order_of_rows() -> None:
    rows = [row.format(1.4) for row in SWEEP[:2]]
    other = rows[0].replace("s1,", "x1,").replace("EAGLE,EAGLE", ",n-gram")
    alone = {(p.case.id, p.protocol): p.speedup for p in predict(cases(*rows, other), processes=1)[0]}
    pooled = {(p.case.id, p.protocol): p.speedup for p in predict(cases(other, *reversed(rows)), processes=2)[0]}
    assert alone == pooled
    assert set(alone) == {("s1", "catalogue"), ("s1", "anchor"), ("s8", "catalogue"), ("s8", "anchored"),
                          ("x1", "catalogue")}  # fmt: skip


def test_the_answer_counts_what_it_says() -> None:
    """Errors, shares and groups of a made-up set of predictions, by hand."""
    (one,) = cases(SWEEP[0].format(1.5))

    def prediction(measured: float, speedup: float, **changes: object) -> Prediction:
        case = dataclasses.replace(one, measured=measured, **changes)  # type: ignore[arg-type]
        return Prediction(case, "given", speedup, speedup, speedup, 2.0, 100.0, 150.0, 2.0, 2.0)

    found = [prediction(1.0, 1.1), prediction(1.2, 0.9), prediction(0.8, 0.84), prediction(2.0, 1.5, method="ngram")]
    left_open = prediction(1.5, 3.0, incomplete=("k",))
    result = published_result([], [*found, left_open], [("z", "made", "why")], rows_from="x", settings={})
    entries = {(entry["group"], entry["name"]): entry for entry in result["summary"]}
    whole = entries["all", "complete"]
    assert (whole["points"], whole["sign_points"]) == (4, 3)
    assert whole["sign_right_share"] == pytest.approx(2 / 3)
    assert whole["median_error"] == pytest.approx((0.1 + 0.25) / 2)
    assert whole["null_sign_right_share"] == pytest.approx(2 / 3)
    assert entries["incomplete", "incomplete"]["median_error"] == pytest.approx(1.0)
    assert entries["method", "ngram"]["mean_signed_error"] == pytest.approx(-0.25)
    assert entries["load", "1"]["points"] == 4
    json.dumps(result, allow_nan=False)


def test_the_text_fits_100_columns() -> None:
    rows = cases(*(row.format(1.4) for row in SWEEP[:2]))
    result = published_result(
        rows, predict(rows, processes=1)[0], [("z", "made", "a reason")], rows_from="x", settings={}
    )
    text = published_text(result)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert "z: a reason" in text


def test_a_sweep_has_one_anchor_though_large_batches_run_whole() -> None:
    """A batch beyond an engine's usual admission has limits of its own, and is of the sweep all the same."""
    rows = [f"s-{n},x,Llama-3.1-8B,,EAGLE,3,chain,H100,1,,vLLM v0.10.1,20,16,batch,{n},,1.5" for n in (1, 8, 64)]
    found, _ = predict(cases(*rows), processes=1)
    protocols = [(p.case.id, p.protocol) for p in found if p.protocol in ("anchor", "anchored")]
    assert protocols == [("s-1", "anchor"), ("s-8", "anchored"), ("s-64", "anchored")]


ODD = [
    "{},x,Llama-3.1-8B,,EAGLE,3,chain,H100,1,,vLLM v0.10.1,200000,20,batch,{},,1.5",  # lengths that do not fit
    "{},x,Llama-3.1-8B,,EAGLE,3,chain,H100,1,,vLLM v0.10.1,20,1e8,batch,{},,1.5",
]


def test_a_row_that_cannot_be_simulated_is_named_and_the_others_are_predicted() -> None:
    good = SWEEP[0].format(1.4)
    for odd in ODD:
        found, refused = predict(cases(good, odd.format("o", 1)), processes=1)
        assert [p.case.id for p in found] == ["s1"]
        assert [r.case.id for r in refused] == ["o"]
        assert "do not fit" in refused[0].reason


def test_outputs_of_one_token_have_no_time_per_token_to_predict() -> None:
    row = "{},x,Llama-3.1-8B,,EAGLE,3,chain,H100,1,,vLLM v0.10.1,20,1,batch,{},TPOT ms,1.5"
    found, refused = predict(cases(row.format("a", 1), row.format("b", 8)), processes=1)
    assert not found
    assert [r.reason.split(":")[0] for r in refused] == ["outputs are too short"] * 2


def test_a_sweep_goes_on_without_the_points_that_cannot_be_simulated() -> None:
    """What is left of it has an anchor of its own; one point left is no sweep."""
    rows = cases(*(row.format(1.4) for row in SWEEP))
    from specsim.planner import published

    class Picky(PairedLoop):
        def __init__(self, question: object, settings: object, concurrency: int) -> None:
            if concurrency == 1:
                raise ScenarioError("not this one")
            super().__init__(question, settings, concurrency)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "PairedLoop", Picky)
        found, refused = predict(rows, processes=1)
        assert [r.case.id for r in refused] == ["s1"]
        assert [(p.case.id, p.protocol) for p in found if p.protocol in ("anchor", "anchored")] == [
            ("s8", "anchor"), ("s32", "anchored")]  # fmt: skip
        found, _ = predict(rows[:2], processes=1)
        assert [p.protocol for p in found] == ["catalogue"]


def test_the_command_lists_such_rows_with_the_reason(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    header = "id,target,method,k,tree,hardware,isl,osl,load_kind,load,speedup"
    row = "{},llama-3.1-8b,EAGLE,3,{},H100,{},16,{},{},1.5"
    table.write_text(
        "\n".join(
            [
                header,
                row.format("long", "chain", 200000, "batch", 1),
                row.format("good", "chain", 20, "batch", 1),
                row.format("fast", "chain", 20, "requests/s", 1e6),
                row.format("odd", "no idea", 20, "batch", 1),
            ]
        )
    )
    done = CliRunner().invoke(cli, ["validate", "published", "--rows", str(table), "--json", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [row["id"] for row in result["rows"]] == ["good"]
    assert [row["id"] for row in result["unpredictable"]] == ["long", "fast", "odd"]
    assert "do not fit" in result["unpredictable"][0]["reason"]
