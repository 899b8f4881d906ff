"""Tables of the current schema; `db.migrations` brings any older database to it, and a test compares the two.

JSON is kept as text (readable by `json_extract` in SQLite and by `::jsonb` in PostgreSQL), times are UTC as ISO 8601
text with microseconds, hashes are lower-case hex. A null metric means that it did not happen (see `db.canonical`).
"""

from __future__ import annotations

import sqlalchemy as sa

__all__ = [
    "METRIC_COLUMNS",
    "NAMING",
    "metadata",
    "plan",
    "plan_run",
    "profile",
    "run",
    "run_request",
    "scenario",
    "trace",
    "validation",
]

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Every constraint has a name that we chose; one without a name could not be dropped by a later migration."""

metadata = sa.MetaData(naming_convention=NAMING)

trace = sa.Table(
    "trace",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True, comment="hash of the content"),
    sa.Column("source", sa.Text, nullable=False, comment="where it was read from"),
    sa.Column("format", sa.Text, nullable=False, comment="detected or given format"),
    sa.Column("rows", sa.BigInteger, nullable=False, comment="requests kept"),
    sa.Column("span_s", sa.Double, comment="last minus first arrival"),
    sa.Column("stats", sa.Text, nullable=False, comment="JSON: dropped rows, lengths, warnings"),
    sa.Column("added_utc", sa.String(27), nullable=False, comment="first stored"),
)

profile = sa.Table(
    "profile",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True, comment="hash of the content"),
    sa.Column("name", sa.Text, nullable=False, comment="name in the profile"),
    sa.Column("kind", sa.Text, nullable=False, comment="analytic, measured, imported or transferred"),
    sa.Column("body", sa.Text, nullable=False, comment="JSON: the whole profile"),
    sa.Column("added_utc", sa.String(27), nullable=False, comment="first stored"),
)

scenario = sa.Table(
    "scenario",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True, comment="hash of the canonical JSON"),
    sa.Column("body", sa.Text, nullable=False, comment="JSON: deployment, speculation, SLO, plan settings"),
    sa.Column("added_utc", sa.String(27), nullable=False, comment="first stored"),
)

METRIC_COLUMNS = (
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
"""Metrics (of `specsim.metrics.RunMetrics`) that are columns too; every metric is in the JSON of `run.metrics`."""

run = sa.Table(
    "run",
    metadata,
    sa.Column("id", sa.String(24), primary_key=True, comment="run- and the first 16 digits of the key"),
    sa.Column("key", sa.String(64), nullable=False, unique=True, comment="hash of all that decides the result"),
    sa.Column("trace_sha256", sa.ForeignKey("trace.sha256"), index=True, comment="trace replayed, if any"),
    sa.Column("profile_sha256", sa.ForeignKey("profile.sha256"), index=True, comment="latency profile used"),
    sa.Column("scenario_sha256", sa.ForeignKey("scenario.sha256"), index=True, comment="scenario it belongs to"),
    sa.Column("point", sa.Text, nullable=False, comment="JSON: slice, limits, acceptance of this run"),
    sa.Column("policy", sa.Text, nullable=False, comment="JSON: the speculation policy"),
    sa.Column("policy_label", sa.Text, nullable=False, comment="short name of the policy"),
    sa.Column("load_per_s", sa.Double, comment="offered requests per second"),
    sa.Column("rate_scale", sa.Double, comment="factor on the trace's own rate"),
    sa.Column("seed", sa.BigInteger, nullable=False, comment="seed of all random streams"),
    sa.Column("code_version", sa.Text, nullable=False, comment="version of the simulator's code"),
    sa.Column("specsim_version", sa.Text, nullable=False, comment="released version"),
    sa.Column("status", sa.String(16), nullable=False, comment="complete or partial"),
    sa.Column("started_utc", sa.String(27), nullable=False, comment="wall clock at start"),
    sa.Column("finished_utc", sa.String(27), nullable=False, index=True, comment="wall clock at end"),
    sa.Column("metrics", sa.Text, nullable=False, comment="JSON: every metric"),
    *(sa.Column(name, sa.Double, comment=f"metric {name}") for name in METRIC_COLUMNS),
    sa.CheckConstraint("status IN ('complete', 'partial')", name="status"),
)

run_request = sa.Table(
    "run_request",
    metadata,
    sa.Column("run_id", sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="run"),
    sa.Column("request_index", sa.BigInteger, primary_key=True, autoincrement=False, comment="place in the trace"),
    sa.Column("arrival_s", sa.Double, comment="arrival, simulated time"),
    sa.Column("first_scheduled_s", sa.Double, comment="first in a step; null: never"),
    sa.Column("first_token_s", sa.Double, comment="first token; null: never"),
    sa.Column("finish_s", sa.Double, comment="last token; null: never"),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False, comment="prompt length"),
    sa.Column("output_tokens", sa.BigInteger, nullable=False, comment="output length"),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False, comment="prompt tokens found in the prefix cache"),
    sa.Column("preemptions", sa.BigInteger, nullable=False, comment="times thrown out and recomputed"),
    sa.Column("rejected", sa.Boolean, nullable=False, comment="refused at arrival"),
    sa.Column("replica", sa.BigInteger, nullable=False, comment="replica that served it; -1: none"),
    sqlite_with_rowid=False,  # the key is long, so the table is its own index
)

plan = sa.Table(
    "plan",
    metadata,
    sa.Column("id", sa.String(24), primary_key=True, comment="plan- and the first 12 digits of the hash of the inputs"),
    sa.Column("inputs_sha256", sa.String(64), nullable=False, unique=True, comment="hash of the inputs"),
    sa.Column("inputs", sa.Text, nullable=False, comment="JSON: all that was asked"),
    sa.Column("trace_sha256", sa.ForeignKey("trace.sha256"), index=True, comment="trace, if any"),
    sa.Column("profile_sha256", sa.ForeignKey("profile.sha256"), index=True, comment="latency profile"),
    sa.Column("scenario_sha256", sa.ForeignKey("scenario.sha256"), index=True, comment="scenario"),
    sa.Column("status", sa.String(16), nullable=False, comment="complete or partial"),
    sa.Column("schema_version", sa.Integer, nullable=False, comment="version of the keys of the result"),
    sa.Column("result", sa.Text, nullable=False, comment="JSON: what `specsim plan --json` printed"),
    sa.Column("code_version", sa.Text, nullable=False, comment="version of the simulator's code"),
    sa.Column("specsim_version", sa.Text, nullable=False, comment="released version"),
    sa.Column("created_utc", sa.String(27), nullable=False, comment="first stored"),
    sa.Column("updated_utc", sa.String(27), nullable=False, index=True, comment="last stored"),
    sa.Column(
        "kind",
        sa.String(16),
        nullable=False,
        server_default="plan",
        comment="command that asked: plan, whatif or sweep",
    ),
    sa.CheckConstraint("status IN ('complete', 'partial')", name="status"),
)

plan_run = sa.Table(
    "plan_run",
    metadata,
    sa.Column("plan_id", sa.ForeignKey("plan.id", ondelete="CASCADE"), primary_key=True, comment="plan"),
    sa.Column("run_id", sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, index=True, comment="its run"),
)

validation = sa.Table(
    "validation",
    metadata,
    sa.Column("id", sa.String(24), primary_key=True, comment="val- and the first 12 digits of the hash of the result"),
    sa.Column(
        "kind", sa.String(16), nullable=False, comment="serve (served for real here) or bench (a file of others)"
    ),
    sa.Column("subject", sa.Text, nullable=False, comment="what was predicted, in words"),
    sa.Column("profile_sha256", sa.ForeignKey("profile.sha256"), index=True, comment="latency profile that predicted"),
    sa.Column("status", sa.String(16), nullable=False, comment="complete or partial"),
    sa.Column("schema_version", sa.Integer, nullable=False, comment="version of the keys of the result"),
    sa.Column("result", sa.Text, nullable=False, comment="JSON: what `specsim validate ... --json` printed"),
    sa.Column("code_version", sa.Text, nullable=False, comment="version of the simulator's code"),
    sa.Column("specsim_version", sa.Text, nullable=False, comment="released version"),
    sa.Column("created_utc", sa.String(27), nullable=False, index=True, comment="stored"),
    sa.CheckConstraint("kind IN ('serve', 'bench')", name="kind"),
    sa.CheckConstraint("status IN ('complete', 'partial')", name="status"),
)
