/** Version of the schema below, stored in `user_version`: the number of the store's format. */
export const schemaVersion = 16;

const decisions = `
  -- The audit: the decisions of each tree, as a hash chain. It outlives the sessions.
  CREATE TABLE decisions (
    root TEXT NOT NULL,
    seq INTEGER NOT NULL,
    time REAL NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (root, seq)
  ) WITHOUT ROWID;
  CREATE INDEX decisions_by_time ON decisions (time);
`;

const assignments = `
  CREATE UNIQUE INDEX calls_by_assignment ON calls (assignment) WHERE assignment IS NOT NULL;
`;

const notices = `
  -- Notices to channels. "state" is opened or settled while one is due, sent between both, and closed or dead at the end. "recipient" is a
  -- person, in a channel that addresses persons.
  CREATE TABLE notices (
    ask TEXT NOT NULL,
    channel TEXT NOT NULL,
    recipient TEXT NOT NULL DEFAULT '',
    opened REAL NOT NULL DEFAULT 0,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL,
    owner TEXT NOT NULL,
    lease REAL NOT NULL,
    ref TEXT NOT NULL DEFAULT '',
    why TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (ask, channel, recipient)
  ) WITHOUT ROWID;
  CREATE INDEX due_notices ON notices (channel, next_at) WHERE state IN ('opened', 'settled');
  CREATE INDEX notices_by_time ON notices (opened);
`;

const exports = `
  -- Receivers of the audit that are configured, with the replica that exports to each, and the cursor of each chain.
  CREATE TABLE receivers (
    receiver TEXT PRIMARY KEY,
    owner TEXT NOT NULL DEFAULT '',
    lease REAL NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0
  ) WITHOUT ROWID;
  CREATE TABLE exports (
    receiver TEXT NOT NULL,
    root TEXT NOT NULL,
    seq INTEGER NOT NULL DEFAULT 0,
    hash TEXT NOT NULL DEFAULT '',
    pending INTEGER NOT NULL,
    PRIMARY KEY (receiver, root)
  ) WITHOUT ROWID;
  CREATE INDEX pending_exports ON exports (receiver, root) WHERE pending = 1;
`;

const escalations = `
  CREATE INDEX open_asks_by_step ON asks (escalates) WHERE settled IS NULL AND escalates IS NOT NULL;
`;

/** The notices of version 12. */
const firstNotices = `
  CREATE TABLE notices (
    ask TEXT NOT NULL,
    channel TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL,
    owner TEXT NOT NULL,
    lease REAL NOT NULL,
    ref TEXT NOT NULL DEFAULT '',
    why TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (ask, channel)
  ) WITHOUT ROWID;
  CREATE INDEX due_notices ON notices (channel, next_at) WHERE state IN ('opened', 'settled');
`;

/** Migrations from each version to the next, from version 1 on. */
export const migrations: readonly string[] = [
  "ALTER TABLE calls ADD COLUMN repeats INTEGER NOT NULL DEFAULT 0",
  "CREATE TABLE states (session TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (session, name)) WITHOUT ROWID",
  "ALTER TABLE calls ADD COLUMN prepared INTEGER NOT NULL DEFAULT 0",
  `ALTER TABLE sessions ADD COLUMN asks_version INTEGER NOT NULL DEFAULT 0;
   ALTER TABLE grants ADD COLUMN used REAL NOT NULL DEFAULT 0;
   ${decisions}`,
  "ALTER TABLE calls ADD COLUMN hooked TEXT",
  `ALTER TABLE calls ADD COLUMN assignment TEXT;
   ALTER TABLE calls ADD COLUMN reported INTEGER NOT NULL DEFAULT 0;
   ${assignments}`,
  "ALTER TABLE calls ADD COLUMN memo TEXT",
  "ALTER TABLE grants ADD COLUMN suspended REAL NOT NULL DEFAULT 0",
  `ALTER TABLE sessions ADD COLUMN session_crc INTEGER;
   ALTER TABLE log ADD COLUMN event_crc INTEGER;
   ALTER TABLE calls ADD COLUMN spec_crc INTEGER;
   ALTER TABLE calls ADD COLUMN snapshot_crc INTEGER;
   ALTER TABLE asks ADD COLUMN request_crc INTEGER;
   ALTER TABLE asks ADD COLUMN settled_crc INTEGER;
   ALTER TABLE grants ADD COLUMN grant_crc INTEGER`,
  `ALTER TABLE calls ADD COLUMN remote TEXT;
   ALTER TABLE calls ADD COLUMN queued_until REAL`,
  firstNotices,
  `ALTER TABLE notices RENAME TO first_notices;
   DROP INDEX due_notices;
   ${notices}
   INSERT INTO notices (ask, channel, state, attempts, next_at, owner, lease, ref, why)
     SELECT ask, channel, state, attempts, next_at, owner, lease, ref, why FROM first_notices;
   DROP TABLE first_notices`,
  exports,
  `ALTER TABLE grants ADD COLUMN times INTEGER NOT NULL DEFAULT 0;
   ALTER TABLE grants ADD COLUMN uses TEXT NOT NULL DEFAULT ''`,
  `ALTER TABLE asks ADD COLUMN escalates REAL;
   ${escalations}`,
];

/**
 * The tables of an empty store. Rows are identified by small numbers (`ordinal`, in order of creation). The contract's
 * messages are stored in binary form, each with its CRC-32, which is null where an earlier version wrote the message; the other
 * columns repeat only the fields that queries search by.
 */
export const schema = `
  CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

  -- "trimmed" is the last sequence number that was trimmed from the log, "trimmed_bytes" the size of all trimmed events.
  -- "active" is the time of the last event, at most an hour behind while the log has rows ("logged").
  CREATE TABLE sessions (
    ordinal INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    root TEXT NOT NULL,
    parent TEXT NOT NULL,
    owner TEXT NOT NULL,
    closed REAL NOT NULL DEFAULT 0,
    rules_version INTEGER NOT NULL DEFAULT 0,
    asks_version INTEGER NOT NULL DEFAULT 0,
    trimmed INTEGER NOT NULL DEFAULT 0,
    trimmed_bytes INTEGER NOT NULL DEFAULT 0,
    logged INTEGER NOT NULL DEFAULT 0,
    active REAL NOT NULL,
    session BLOB NOT NULL,
    session_crc INTEGER
  );
  CREATE INDEX sessions_by_root ON sessions (root);
  CREATE INDEX sessions_by_parent ON sessions (parent);
  CREATE INDEX sessions_by_owner ON sessions (owner);
  CREATE INDEX sessions_by_activity ON sessions (logged, active);

  -- "total" is the size of the session's log up to and with this event, also of what was trimmed. The table has row ids
  -- because without them all but the first kilobyte of an event would go to an overflow page.
  CREATE TABLE log (
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    total INTEGER NOT NULL,
    event BLOB NOT NULL,
    event_crc INTEGER,
    PRIMARY KEY (session, seq)
  );

  -- "opened" is the number of its first event; "snapshot" is the event that holds the part; "ended" is null while the call is open; "expired" marks a tombstone.
  -- "assignment" is the hash with which the host of a delegated call reports; "reported" marks a report after the end.
  -- "remote" is the worker process that runs the body, as JSON; "queued_until" ends the wait for one.
  CREATE TABLE calls (
    ordinal INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    opened INTEGER NOT NULL,
    started INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 1,
    epoch INTEGER NOT NULL DEFAULT 1,
    attempts INTEGER NOT NULL DEFAULT 0,
    repeats INTEGER NOT NULL DEFAULT 0,
    prepared INTEGER NOT NULL DEFAULT 0,
    hooked TEXT,
    memo TEXT,
    cancel TEXT,
    assignment TEXT,
    reported INTEGER NOT NULL DEFAULT 0,
    remote TEXT,
    queued_until REAL,
    ended REAL,
    expired INTEGER NOT NULL DEFAULT 0,
    spec TEXT NOT NULL,
    spec_crc INTEGER,
    snapshot BLOB NOT NULL,
    snapshot_crc INTEGER,
    UNIQUE (session, call_id)
  );
  CREATE INDEX calls_by_session ON calls (session);
  CREATE INDEX calls_by_end ON calls (expired, ended, session) WHERE ended IS NOT NULL;
  ${assignments}
  -- "escalates" is the time of the next step that is not taken.
  CREATE TABLE asks (
    ordinal INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    root TEXT NOT NULL,
    session TEXT NOT NULL,
    call INTEGER NOT NULL,
    expires REAL NOT NULL,
    request BLOB NOT NULL,
    request_crc INTEGER,
    settled BLOB,
    settled_crc INTEGER,
    escalates REAL
  );
  CREATE INDEX asks_by_call ON asks (call);
  CREATE INDEX open_asks ON asks (ordinal) WHERE settled IS NULL;
  CREATE INDEX open_asks_by_root ON asks (root) WHERE settled IS NULL;
  CREATE INDEX open_asks_by_deadline ON asks (expires) WHERE settled IS NULL;
  ${escalations}

  -- "uses" names the calls that count in a grant with a limit ("times"); see grant-uses.ts.
  CREATE TABLE grants (
    ordinal INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    scope INTEGER NOT NULL,
    root TEXT NOT NULL,
    workspace TEXT NOT NULL,
    agent TEXT NOT NULL,
    expires REAL NOT NULL,
    revoked REAL NOT NULL,
    used REAL NOT NULL DEFAULT 0,
    suspended REAL NOT NULL DEFAULT 0,
    times INTEGER NOT NULL DEFAULT 0,
    uses TEXT NOT NULL DEFAULT '',
    "grant" BLOB NOT NULL,
    grant_crc INTEGER
  );
  CREATE INDEX grants_by_root ON grants (root);
  CREATE INDEX grants_by_workspace ON grants (workspace);
  CREATE TABLE grant_users (
    grant_id TEXT NOT NULL,
    root TEXT NOT NULL,
    PRIMARY KEY (grant_id, root)
  ) WITHOUT ROWID;
  CREATE INDEX grant_users_by_root ON grant_users (root);

  ${decisions}
  ${notices}
  ${exports}
  CREATE TABLE reads (
    root TEXT NOT NULL,
    path TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (root, path)
  ) WITHOUT ROWID;

  -- Values of tools for a session, as JSON.
  CREATE TABLE states (
    session TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (session, name)
  ) WITHOUT ROWID;
`;
