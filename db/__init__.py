"""The results database: traces, profiles, scenarios, runs and plans; the only home of SQLAlchemy.

Start at `db.store.Store`. Keys come from `db.canonical`, tables are in `db.schema`, their history in `db.migrations`.
"""
