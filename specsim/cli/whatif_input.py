"""What `specsim whatif` is asked: kinds of replicas to compare, the window, and prices, from flags to records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specsim.cli.profile_input import StoredProfiles
    from specsim.config import Deployment
    from specsim.planner.costs import GpuCost, Ownership
    from specsim.planner.whatif import WhatIfJob
    from specsim.profiles import LatencyProfile
    from specsim.shapes import Gpu, Price

__all__ = ["read_job"]

_PEAK_S = 600.0
_MOST_REQUESTS = 20_000
_REPLICATIONS = 3


def read_job(values: dict[str, Any], kept: StoredProfiles) -> WhatIfJob:
    """Everything that the flags say, resolved.

    Raises:
        InputError: a flag that is malformed or contradicts another, a name that is not known, a log that cannot be
            used, or kinds of replicas of which none is possible.
    """
    from scenarios.hardware import gpu as find_gpu
    from scenarios.workload import WorkloadSpec
    from specsim.cli.pool_input import masks_of, read_pools
    from specsim.cli.profile_input import profile_fills_in
    from specsim.cli.scenario_input import overruled_workload, read_workload
    from specsim.cli.scenario_options import deployment_from, slo_from, speculation_from
    from specsim.errors import ScenarioError, TraceError
    from specsim.planner.peak import peak_window
    from specsim.planner.question import PlanSettings
    from specsim.planner.whatif import Pool, WhatIfJob
    from specsim.traces.options import parse_duration
    from specsim.traces.slices import chosen

    gpus = _names(values.pop("gpus"), "--gpu")
    devices = {device.name: device for device in map(find_gpu, gpus)}
    if len(devices) < len(gpus):
        raise ScenarioError("--gpu has one GPU twice, perhaps spelt in two ways; give each once")
    tps, dtypes = values.pop("tps"), values.pop("dtypes")
    profile = None if values["profile"] is None else kept.find(values["profile"])
    profile_fills_in(values, kept)
    assumed = _assumed(values)
    tps = (int(values.get("tp") or 1),) if tps is None else _tps(tps)
    dtypes = [values.get("weight_dtype")] if dtypes is None else _dtypes(dtypes)
    kinds = _kinds(values.pop("policies"))
    if values.pop("replicas") != "auto":
        raise ScenarioError("--replicas takes auto only: the least number is what is searched")
    growth = _growth(values.pop("growth"))
    prices, ownership, notes = _prices(values, devices)
    peak = values.pop("peak")
    settings = PlanSettings(replications=_REPLICATIONS, max_requests=_MOST_REQUESTS)
    changes = {n: values.pop(n) for n in ("replications", "max_requests", "seed", "jobs")}
    settings = replace(settings, **{n: value for n, value in changes.items() if value is not None})
    only_end = values["e2e"] is not None and values["ttft"] is None and values["tpot"] is None
    base = deployment_from(values)
    speculation = speculation_from(values)
    slo = slo_from(values)
    if only_end:
        slo = replace(slo, ttft_s=None, tpot_s=None)
    if slo.ttft_s is slo.tpot_s is slo.e2e_s is None:
        raise ScenarioError("whatif needs an objective to size for: give --ttft, --tpot or --e2e")
    if speculation.acceptance_length is not None and speculation.acceptance_length_k is None:
        if len(speculation.num_spec_tokens) != 1:
            raise ScenarioError(
                "--acceptance-length needs the k at which it was measured: give --acceptance-length-k, or one --k"
            )
        speculation = replace(speculation, acceptance_length_k=speculation.num_spec_tokens[0])
    asked = read_pools(values.pop("pools"), slo)
    if asked and growth:
        raise ScenarioError(
            "--growth is of one fleet for all, and --pool of several: leave one out, or ask for the part of the log "
            "of each pool on its own"
        )
    workload = overruled_workload(None, values, place="whatif", command="whatif")
    assert isinstance(workload, WorkloadSpec)
    whole = read_workload(workload, folder=Path(), seed=settings.seed)
    peak_s = _PEAK_S if peak is None else parse_duration(peak, "--peak")
    window, said = peak_window(whole, peak_s, settings.max_requests)
    kinds_of = [replace(base, gpu=gpu, tp=tp, weight_dtype=dtype) for gpu in devices for tp in tps for dtype in dtypes]
    groups, refused = _groups(kinds_of, speculation, slo, whole, window, kinds, assumed, profile)
    job = WhatIfJob(
        groups=groups, refused=refused, trace=window, whole=whole, slo=slo, settings=settings, growth=growth,
        prices=prices, ownership=ownership, notes=(*said, *notes),
    )  # fmt: skip
    if not asked:
        return job
    pools = []
    for pool, mask in zip(asked, masks_of(asked, whole), strict=True):
        own = chosen(whole, mask)
        try:
            part, said = peak_window(own, peak_s, settings.max_requests)
        except TraceError as error:
            raise TraceError(f"--pool {pool.name}: {error}") from error
        groups, refused = _groups(kinds_of, speculation, pool.slo, own, part, pool.kinds, assumed, profile)
        sized = replace(
            job, groups=groups, refused=refused, trace=part, whole=own, slo=pool.slo, growth=(), notes=tuple(said)
        )
        pools.append(Pool(pool.name, pool.tasks, sized))
    return replace(job, pools=tuple(pools))


def _groups(
    deployments: Sequence[Deployment], speculation: Any, slo: Any, whole: Any, window: Any, kinds: Sequence[str],
    assumed: tuple[str, ...], profile: LatencyProfile | None,
) -> Any:  # fmt: skip
    """Kinds of replicas that are possible, and those that are not with the reason.

    `profile`: measured step times, which are carried to each kind of replica that they are not of.
    """
    from scenarios.carried import carried_to
    from scenarios.hardware import gpu as find_gpu
    from scenarios.resolve import by_task, resolve
    from specsim.errors import CapacityError, ScenarioError
    from specsim.planner.whatif import Refusal, make_group

    groups, refused, errors = [], [], []
    for deployment in deployments:
        try:
            own = None
            if profile is not None:
                own = carried_to(
                    profile, find_gpu(deployment.gpu), tp=deployment.tp, weight_dtype=deployment.weight_dtype,
                    target=deployment.target,
                )  # fmt: skip
            question = by_task(resolve(deployment, speculation, slo, assumed=assumed, profile=own), whole)
            groups.append(make_group(question, window, kinds))
        except (CapacityError, ScenarioError) as error:
            errors.append(error)
            refused.append(Refusal(deployment.gpu, deployment.tp, deployment.weight_dtype, str(error)))
    if not groups:
        raise type(errors[0])(
            f"none of the {len(refused)} kinds of replicas is possible; the first, {refused[0].gpu} with tp "
            f"{refused[0].tp}: {errors[0]}"
        )
    return tuple(groups), tuple(refused)


def _names(text: str | None, flag: str) -> list[str]:
    from specsim.errors import ScenarioError

    names = [part.strip() for part in (text or "").split(",")]
    if not all(names):
        raise ScenarioError(f"{flag} must be names separated by commas, e.g. h100-sxm,h200-sxm; got {text!r}")
    return names


def _tps(text: str) -> tuple[int, ...]:
    from specsim.cli.scenario_options import parse_whole_numbers, refuse_doubles

    found = parse_whole_numbers(text, "--tp", low=1)
    refuse_doubles(found, "--tp")
    return found


def _dtypes(text: str) -> list[str | None]:
    from specsim.errors import ScenarioError

    found = _names(text, "--dtype")
    if len(set(found)) < len(found):
        raise ScenarioError(f"--dtype {text} has one twice; give each once")
    return list(found)


def _kinds(text: str | None) -> tuple[str, ...]:
    from specsim.errors import ScenarioError, nearest
    from specsim.planner.whatif import POLICIES

    if text is None:
        return POLICIES
    found = _names(text, "--policies")
    for name in found:
        if name not in POLICIES:
            raise ScenarioError(f"--policies: no '{name}'{nearest(name, POLICIES)}; one of {', '.join(POLICIES)}")
        if found.count(name) > 1:
            raise ScenarioError(f"--policies has {name} twice; give each once")
    return tuple(name for name in POLICIES if name in found)


def _growth(text: str | None) -> tuple[float, ...]:
    from specsim.cli.scenario_options import parse_numbers, refuse_doubles
    from specsim.errors import ScenarioError

    if text is None:
        return ()
    found = parse_numbers(text, "--growth")
    refuse_doubles(found, "--growth")
    for factor in found:
        if not 1.0 < factor <= 100.0:
            raise ScenarioError(f"--growth must be traffic over today's, above 1 and at most 100, got {factor:g}")
    return tuple(sorted(found))


def _prices(
    values: dict[str, Any], devices: Mapping[str, Gpu]
) -> tuple[dict[str, GpuCost], Ownership | None, list[str]]:
    """Prices of every GPU, what owning takes, and sentences on both."""
    from scenarios.hardware import gpu as find_gpu
    from scenarios.prices import chosen_prices, price_table
    from specsim.errors import ScenarioError
    from specsim.planner.costs import GpuCost, Ownership

    table_path, provider = values.pop("prices"), values.pop("provider")
    table: dict[str, list[Price]] | None = None
    if table_path is not None:
        table = {}
        for name, prices in price_table(table_path).items():
            table.setdefault(find_gpu(name).name, []).extend(prices)
    rents, notes = chosen_prices(
        list(devices.values()), given=_by_gpu(values.pop("price"), "--price", devices), table=table, provider=provider
    )
    purchase = _by_gpu(values.pop("purchase"), "--purchase", devices)
    watts = _by_gpu(values.pop("watts"), "--watts", devices)
    owning = {name: values.pop(name) for name in ("years", "usd_per_kwh", "pue", "hosting")}
    ownership = None
    if purchase:
        needed = [f"--{name.replace('_', '-')}" for name in ("years", "usd_per_kwh", "pue") if owning[name] is None]
        if needed:
            raise ScenarioError(f"--purchase needs {', '.join(needed)} too, which have no usual value")
        ownership = Ownership(owning["years"], owning["usd_per_kwh"], owning["pue"], owning["hosting"] or 0.0)
        lacking = [name for name in devices if name not in purchase]
        if lacking:
            notes.append(f"No purchase price was given for {', '.join(lacking)}; ranked by rent.")
    else:
        for name, value in (*owning.items(), ("watts", watts or None)):
            if value is not None:
                raise ScenarioError(f"--{name.replace('_', '-')} does nothing without --purchase GPU=USD; give both")
    costs = {}
    for name, device in devices.items():
        power, source = _watts(device, watts.get(name))
        costs[name] = GpuCost(rents[name], purchase.get(name), power, source)
    return costs, ownership, notes


def _watts(device: Gpu, given: float | None) -> tuple[float, str]:
    if given is not None:
        return given, "--watts"
    all_in = device.extra.get("all_in_kw")
    if all_in is not None:
        return float(all_in) * 1e3, "catalogue, with its share of the server"
    return device.tdp_w, "TDP of the GPU alone, without its server"


def _by_gpu(texts: Sequence[str], flag: str, devices: Mapping[str, Gpu]) -> dict[str, float]:
    """Positive numbers by the name of one of the GPUs, from `GPU=N` each."""
    from scenarios.hardware import gpu as find_gpu
    from specsim.checks import read_number
    from specsim.errors import ScenarioError

    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            figure = read_number(value)
        except ValueError:
            figure = -1.0
        if not name or not 0 < figure < 1e9:
            raise ScenarioError(f"{flag} {text!r} must be GPU=N with a number > 0, e.g. h100-sxm=2.5")
        device = find_gpu(name).name
        if device not in devices:
            raise ScenarioError(f"{flag} {text}: {device} is not among --gpu; add it there, or leave it out")
        if device in found:
            raise ScenarioError(f"{flag} names {device} twice; give it once")
        found[device] = figure
    return found


def _assumed(values: dict[str, Any]) -> tuple[str, ...]:
    found = []
    for name, said in (
        ("target", "No --target was given: Llama-3.1-8B is assumed."),
        ("method", "No --method was given: an EAGLE head is assumed."),
    ):
        if values[name] is None:
            found.append(said)
    if values["acceptance"] is None and values["acceptance_length"] is None and values["acceptance_file"] is None:
        found.append("Acceptance is a published default, not yours (--acceptance, --acceptance-length).")
    if values["ttft"] is values["tpot"] is values["e2e"] is values["slo_share"] is None:
        found.append("No objective was given: TTFT 1000 ms and TPOT 50 ms for 95% are assumed (--ttft, --tpot, --e2e).")
    return tuple(found)
