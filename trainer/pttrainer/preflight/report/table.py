"""The verdict as a table: needed and available memory, largest buffers, step time, suggested changes."""

from pttrainer.preflight.memory.resident import Buffer, total
from pttrainer.preflight.shapes.passes import DECODE
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.rollout_time import Generation
from pttrainer.preflight.timing.step_time import Estimate
from pttrainer.preflight.timing.timeline import IDLE, Phase, idle_share
from pttrainer.preflight.verdict import Option, Verdict

OPTIONS_SHOWN = 12
BAR = 40
"""Characters of a step in its timeline."""


def text(of: Verdict) -> str:
    """Return lines of text, memory in GiB per chip."""
    lines = [f"{of.job}: {of.line()}", "", *_facts(of), "", *_memory(of)]
    if of.estimate is not None:
        lines += ["", *_time(of.estimate), *_compiled(of), *_timeline(of.estimate)]
    lines += _sent(of.collectives or [])
    if of.options:
        by = (
            "by the formula"
            if of.factor == 1.0
            else f"by the formula times {of.factor:.3f}, as the compiler said of the job"
        )
        lines += ["", f"changes, one at a time, {by} (GiB):", *map(_option, of.options[:OPTIONS_SHOWN])]
    if not of.fits:
        smallest = of.smallest
        order = "the cheapest" if any(one.hourly is not None for one in smallest) else "fewest FLOP/s"
        lines += [
            "",
            f"smallest slices that hold it, {order} first:" if smallest else "no slice that was tried holds it",
            *map(_option, smallest),
        ]
    lines += ["", *(f"note: {note}" for note in of.notes), *(f"assumed: {line}" for line in of.assumptions)]
    return "\n".join(lines)


def _facts(of: Verdict) -> list[str]:
    mesh = ", ".join(f"{axis} {size}" for axis, size in of.mesh.items() if size > 1) or "one device"
    trained = f", {of.trained_parameters:,} of them trained" if of.trained_parameters < of.parameters else ""
    return [
        f"  model        {of.model}: {of.parameters:,} weights{trained}",
        f"  accelerator  {of.accelerator}; mesh: {mesh}",
        f"  remat        {of.remat}",
    ]


def _memory(of: Verdict) -> list[str]:
    scale = of.devices_per_chip
    rows = [f"  {'memory, GiB per chip':<34} {'arguments':>10} {'temporaries':>12} {'peak':>8}   by"]
    for one in of.programs:
        how = one.stage if one.compile_seconds is None else f"{one.stage} compile, {one.compile_seconds:.0f} s"
        parts = (_gib(one.arguments * scale), _gib(one.temporaries * scale)) if one.fits else ("", "")
        refused = "" if one.fits else ", refused"
        rows.append(f"  {one.name:<34} {parts[0]:>10} {parts[1]:>12} {_gib(one.peak * scale):>8}   {how}{refused}")
    if any(one.stage != "formula" and one.fits for one in of.programs):
        rows.append("  peak: of a program's fullest moment, when not all of its temporaries and results exist")
    rows += ["", f"  {'in use at once, GiB per chip':<34} {'':>10} {'':>12} {'peak':>8}"]
    rows += [_phase(name, buffers, scale) for name, buffers in of.phases.items()]
    rows.append(f"  {'available':<34} {'':>10} {'':>12} {_gib(of.available * scale):>8}")
    for title, buffers in (("largest", of.largest), ("largest arrays", [] if of.fits else of.arrays)):
        if buffers:
            rows.append(f"  {title}: " + "; ".join(f"{one.label} {_gib(one.bytes * scale)}" for one in buffers))
    return rows


def _phase(name: str, buffers: list[Buffer], scale: int) -> str:
    sizes = " + ".join(f"{one.name} {_gib(one.bytes * scale)}" for one in buffers if one.bytes)
    return f"  {name:<34} {'':>10} {'':>12} {_gib(total(buffers) * scale):>8} = {sizes}"


def _time(e: Estimate) -> list[str]:
    network = "" if e.ici_seconds is None else f", network {e.ici_seconds + (e.dcn_seconds or 0.0):.3g} s"
    rows = [
        f"  step         at least {e.seconds:.3g} s ({e.bound})",
        f"  update       {e.flops:.3g} FLOPs, {e.compute_seconds:.3g} s; memory {e.hbm_seconds:.3g} s{network}",
        *_sampling(e.generation),
        f"  tokens       at most {e.tokens_per_second_per_chip:,.0f} per second and chip",
    ]
    if e.chip_hours is not None:
        cost = "" if e.cost is None else f", {e.cost:,.2f} at the given price"
        rows.append(f"  run          {e.steps:,} steps: at least {e.chip_hours:,.1f} chip-hours{cost}")
    return rows


def _compiled(of: Verdict) -> list[str]:
    """Return the step's time by the compiler's estimates, and how far to trust it."""
    seconds = next((one.step_seconds for one in reversed(of.programs) if one.step_seconds is not None), None)
    if seconds is None:
        return []
    return [
        f"  compiled     about {seconds:.3g} s a step by the compiler's own estimates, which no chip has confirmed:",
        "               compare programs for one generation of chips by it, and no estimate with a measured second",
    ]


def _timeline(of: Estimate) -> list[str]:
    """Return a line for each phase of a step that samples: chips, seconds from its beginning, a bar, what bounds it."""
    if of.generation is None:
        return []
    idle = f"idle {100 * idle_share(of.timeline):.0f}% of chip-seconds"
    head = f"  {'timeline':<12} {'chips':<18} {'from':>8} {'to':>8}   one step, at least {of.seconds:.3g} s; {idle}"
    return ["", head, *(_bar(phase, of.seconds) for phase in of.timeline)]


def _bar(of: Phase, step: float) -> str:
    first, last = (round(BAR * seconds / step) for seconds in (of.start, of.end))
    mark = "." if of.name == IDLE else "#"
    bar = " " * min(first, BAR - 1) + mark * max(1, last - first)
    by = f"  {of.bound}" if of.bound else ""
    chips = f"{of.chips:,} {of.on}" if of.on != "all" else f"all {of.chips:,}"
    return f"  {of.name:<12} {chips:<18} {of.start:>8.3g} {of.end:>8.3g}   |{bar:<{BAR}}|{by}"


def _sent(traffic: list[Traffic]) -> list[str]:
    where = {True: " between slices", False: ""}
    return [
        f"  {one.kind:<12} {one.count:,} times{where[one.between_slices]}, {one.bytes / 2**30:,.1f} GiB per device"
        for one in traffic
    ]


def _sampling(of: Generation | None) -> list[str]:
    if of is None:
        return []
    token = of.programs[DECODE]
    often = "" if of.share == 1.0 else f", {of.share:.3g} of it each step"
    return [
        f"  rollout      {of.rows:,} rows at once, at most {of.tokens_per_second:,.0f} tokens/s in all: weights "
        f"{of.transfer_seconds:.3g} s, prompts {of.prefill_seconds:.3g} s, tokens {of.decode_seconds:.3g} s "
        f"({1000 * token.seconds:.3g} ms each, {token.bound}){often}"
    ]


def _option(one: Option) -> str:
    outcome = "fits" if one.fits else "does not fit"
    mesh = one.settings.get("training.parallelism", {}) if "accelerator" in one.settings else {}
    also = [f"{axis} {mesh[axis]}" for axis in ("tensor", "sequence") if mesh.get(axis, 1) != 1]
    also += [
        f"{path.rpartition('.')[2]} {value}" for path, value in one.settings.items() if not isinstance(value, dict)
    ]
    memory = f"{_gib(one.peak):>8} of {_gib(one.available):>6} per device"
    also += [] if one.hourly is None else [f"{one.hourly:,.2f} an hour"]
    return f"  {one.change:<38} {memory}   {outcome:<12}   {', '.join(also)}".rstrip()


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"
