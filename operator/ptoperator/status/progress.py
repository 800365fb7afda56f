"""Convert the trainer's progress document to the status's numbers, as text if printer columns need text."""

from ptapi import run_directory
from ptapi.run_directory import CheckpointRef, Progress
from ptapi.status import CheckpointStatus, MetricsStatus, ProgressStatus
from ptkube.timestamps import duration

_FIELDS = {
    "loss": run_directory.LOSS,
    "reward": run_directory.REWARD,
    "kl": run_directory.KL,
    "entropy": run_directory.ENTROPY,
    "completion_length": run_directory.COMPLETION_LENGTH,
    "staleness": run_directory.STALENESS,
    "mfu": run_directory.MFU,
    "hbm_in_use": run_directory.HBM_IN_USE,
    "duty_cycle": run_directory.DUTY_CYCLE,
    "eval_loss": run_directory.EVAL_LOSS,
    "eval_reward": run_directory.EVAL_REWARD,
}
_DIGITS = 4


def progress_status(progress: Progress, is_running: bool) -> ProgressStatus:
    """Return the progress; the ETA only for a running job."""
    total = progress.total_steps
    return ProgressStatus(
        step=progress.step,
        total=total,
        steps=f"{progress.step}/{total}" if total else "",
        percent=min(100, 100 * progress.step // total) if total else 0,
        seconds_per_step=_rounded(progress.seconds_per_step),
        eta=duration(progress.eta_seconds) if is_running and progress.eta_seconds is not None else "",
        stage=progress.stage,
        updated=progress.updated,
    )


def metrics_status(metrics: dict[str, float], chips: int) -> MetricsStatus:
    """Return the metrics, with throughput per chip."""
    values = {field: number(metrics[key]) for field, key in _FIELDS.items() if key in metrics}
    if chips and run_directory.TOKENS_PER_SECOND in metrics:
        values["tokens_per_second_per_chip"] = number(metrics[run_directory.TOKENS_PER_SECOND] / chips)
    return MetricsStatus(**values)


def checkpoint_status(checkpoint: CheckpointRef) -> CheckpointStatus:
    """Return the checkpoint."""
    return CheckpointStatus(step=checkpoint.step, uri=checkpoint.uri, time=checkpoint.time)


def number(value: float) -> str:
    """Return four significant digits, without an exponent unless a person would write one."""
    if value != value:
        return "NaN"
    text = f"{value:.{_DIGITS}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e9 else text


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
