"""Traces, profiles, scenarios, runs and plans. Frozen: never edit; add a new step instead."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["m001_first"]

_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
_METRICS = (
    "ttft_p50_s",
    "ttft_p95_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "tpot_p99_s",
    "itl_chunk_p50_s",
    "itl_chunk_p95_s",
    "itl_chunk_p99_s",
    "itl_token_p50_s",
    "itl_token_p95_s",
    "itl_token_p99_s",
    "e2e_p50_s",
    "e2e_p95_s",
    "e2e_p99_s",
    "offered_requests_per_s",
    "served_requests_per_s",
    "output_tokens_per_s",
    "goodput_per_s",
    "slo_share",
    "running_batch",
    "kv_use",
    "utilisation",
    "preemptions",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "tokens_per_round",
    "mean_k",
)


def m001_first(connection: sa.Connection) -> None:
    """The first schema."""
    metadata = sa.MetaData(naming_convention=_NAMING)
    sa.Table(
        "trace",
        metadata,
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("span_s", sa.Double),
        sa.Column("stats", sa.Text, nullable=False),
        sa.Column("added_utc", sa.String(27), nullable=False),
    )
    sa.Table(
        "profile",
        metadata,
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("added_utc", sa.String(27), nullable=False),
    )
    sa.Table(
        "scenario",
        metadata,
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("added_utc", sa.String(27), nullable=False),
    )
    sa.Table(
        "run",
        metadata,
        sa.Column("id", sa.String(24), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("trace_sha256", sa.ForeignKey("trace.sha256"), index=True),
        sa.Column("profile_sha256", sa.ForeignKey("profile.sha256"), index=True),
        sa.Column("scenario_sha256", sa.ForeignKey("scenario.sha256"), index=True),
        sa.Column("point", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("policy_label", sa.Text, nullable=False),
        sa.Column("load_per_s", sa.Double),
        sa.Column("rate_scale", sa.Double),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("code_version", sa.Text, nullable=False),
        sa.Column("specsim_version", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("started_utc", sa.String(27), nullable=False),
        sa.Column("finished_utc", sa.String(27), nullable=False, index=True),
        sa.Column("metrics", sa.Text, nullable=False),
        *(sa.Column(name, sa.Double) for name in _METRICS),
        sa.CheckConstraint("status IN ('complete', 'partial')", name="status"),
    )
    sa.Table(
        "plan",
        metadata,
        sa.Column("id", sa.String(24), primary_key=True),
        sa.Column("inputs_sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.Column("trace_sha256", sa.ForeignKey("trace.sha256"), index=True),
        sa.Column("profile_sha256", sa.ForeignKey("profile.sha256"), index=True),
        sa.Column("scenario_sha256", sa.ForeignKey("scenario.sha256"), index=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("code_version", sa.Text, nullable=False),
        sa.Column("specsim_version", sa.Text, nullable=False),
        sa.Column("created_utc", sa.String(27), nullable=False),
        sa.Column("updated_utc", sa.String(27), nullable=False, index=True),
        sa.CheckConstraint("status IN ('complete', 'partial')", name="status"),
    )
    sa.Table(
        "plan_run",
        metadata,
        sa.Column("plan_id", sa.ForeignKey("plan.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("run_id", sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, index=True),
    )
    metadata.create_all(connection, checkfirst=False)
