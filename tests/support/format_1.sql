-- The tables of the three SQLite files that a state folder of format 1 has, each behind its name.
-- ledger/letters.db
CREATE TABLE letters (letter TEXT PRIMARY KEY, standing TEXT NOT NULL, attempts INTEGER NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL, changed TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE history (letter TEXT NOT NULL, at TEXT NOT NULL, what TEXT NOT NULL, replay INTEGER, reason TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE replays (number INTEGER PRIMARY KEY, plan TEXT NOT NULL, content TEXT NOT NULL, began TEXT NOT NULL, ended TEXT);
CREATE TABLE waiting (sequence INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, letter TEXT NOT NULL UNIQUE);
CREATE TABLE catching (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- ledger/sightings.db
CREATE TABLE sightings (endpoint TEXT NOT NULL, message TEXT NOT NULL, epoch TEXT NOT NULL, since INTEGER NOT NULL, first INTEGER, last INTEGER, PRIMARY KEY (endpoint, message)) WITHOUT ROWID;
-- relations/exchanges.db
CREATE TABLE halves (number INTEGER PRIMARY KEY AUTOINCREMENT, asked INTEGER NOT NULL, paired INTEGER NOT NULL, due REAL NOT NULL, told TEXT NOT NULL);
CREATE TABLE keys (key TEXT NOT NULL, asked INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (key, asked, number)) WITHOUT ROWID;
CREATE TABLE outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, told TEXT NOT NULL);
CREATE TABLE commits (app TEXT PRIMARY KEY, query TEXT NOT NULL, whole TEXT NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
