"""Why a run took as long as it did: its time by cause, compared with speculation off, and drawn over time."""
