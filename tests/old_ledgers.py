"""The ledger's tables of earlier versions, kept as those versions wrote them."""

SCHEMA_2 = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    trial_id TEXT PRIMARY KEY,
    position INTEGER,
    cell TEXT NOT NULL,
    seed INTEGER NOT NULL,
    config TEXT NOT NULL,
    objective TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN
        ('planned', 'running', 'finished', 'interrupted', 'lost', 'errored')),
    num_attempts INTEGER NOT NULL DEFAULT 0,
    outcome TEXT CHECK (outcome IN ('stable', 'spiked', 'diverged', 'stalled', 'unknown', 'pruned')),
    onset_step INTEGER,
    num_spikes INTEGER,
    steps INTEGER NOT NULL,
    steps_done INTEGER,
    initial_loss REAL,
    best_loss REAL,
    final_loss REAL,
    peak_loss REAL,
    peak_factor REAL,
    off_share REAL,
    risen_share REAL,
    validation_loss REAL,
    best_validation_loss REAL,
    best_validation_step INTEGER,
    overfit_step INTEGER,
    verdict_step INTEGER,
    slow_step INTEGER,
    plateau_step INTEGER,
    is_audited INTEGER NOT NULL DEFAULT 0,
    episodes TEXT NOT NULL DEFAULT '[]',
    norm_rises TEXT NOT NULL DEFAULT '[]',
    curve_digest TEXT,
    rung_losses TEXT NOT NULL DEFAULT '[]',
    reason TEXT,
    error TEXT,
    pack_id TEXT,
    started_at REAL,
    finished_at REAL,
    fired TEXT NOT NULL DEFAULT '[]',
    CHECK ((status = 'finished') = (outcome IS NOT NULL))
);
CREATE INDEX trials_of_packs ON trials (pack_id, status);
CREATE TABLE packs (
    pack_id TEXT PRIMARY KEY,
    trial_ids TEXT NOT NULL,
    executor TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL,
    ended TEXT,
    member_steps INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    environment TEXT NOT NULL DEFAULT '{}',
    resumed_from TEXT
);
CREATE TABLE checkpoints (
    pack_id TEXT NOT NULL REFERENCES packs,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    ages TEXT NOT NULL,
    PRIMARY KEY (pack_id, number)
);
CREATE TABLE traces (
    trial_id TEXT NOT NULL REFERENCES trials,
    pack_id TEXT NOT NULL REFERENCES packs,
    first_step INTEGER NOT NULL,
    columns BLOB NOT NULL,
    PRIMARY KEY (trial_id, pack_id, first_step)
);
CREATE TABLE telemetry (
    trial_id TEXT NOT NULL REFERENCES trials,
    pack_id TEXT NOT NULL REFERENCES packs,
    first_step INTEGER NOT NULL,
    columns BLOB NOT NULL,
    PRIMARY KEY (trial_id, pack_id, first_step)
);
"""
