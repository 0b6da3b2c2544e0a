-- Times are Unix milliseconds, digests are bytes, lists and objects are JSON text.
--
-- What is SQLite's alone: BLOB (PostgreSQL's BYTEA), and WITHOUT ROWID, which keeps a row in its primary key's tree, so
-- that a commit writes one page less for it.

CREATE TABLE tenants (
  id          TEXT NOT NULL PRIMARY KEY,
  name        TEXT NOT NULL,
  created_at  BIGINT NOT NULL
);

CREATE TABLE sites (
  id          TEXT NOT NULL PRIMARY KEY,
  tenant_id   TEXT NOT NULL REFERENCES tenants (id),
  name        TEXT NOT NULL,
  custom      BOOLEAN NOT NULL,
  created_at  BIGINT NOT NULL
);
CREATE INDEX sites_by_tenant ON sites (tenant_id, id);

CREATE TABLE pools (
  id           TEXT NOT NULL PRIMARY KEY,
  tenant_id    TEXT NOT NULL REFERENCES tenants (id),
  site_id      TEXT NOT NULL REFERENCES sites (id),
  name         TEXT NOT NULL,
  agent        TEXT NOT NULL CHECK (agent IN ('bcd', 'none')),
  acceptance   BOOLEAN NOT NULL,
  policy       TEXT NOT NULL,
  created_at   BIGINT NOT NULL,
  archived_at  BIGINT
);
CREATE INDEX pools_by_tenant ON pools (tenant_id, id);

CREATE TABLE join_tokens (
  id             TEXT NOT NULL PRIMARY KEY,
  tenant_id      TEXT NOT NULL REFERENCES tenants (id),
  pool_id        TEXT,
  site_id        TEXT NOT NULL,
  role           TEXT NOT NULL CHECK (role IN ('node', 'site', 'provisioned', 'discovery')),
  secret_sha256  BLOB NOT NULL,
  max_uses       BIGINT NOT NULL,
  uses_left      BIGINT NOT NULL CHECK (uses_left >= 0),
  expect         TEXT,
  allow_reclaim  BOOLEAN NOT NULL,
  hosted         TEXT,
  node_id        TEXT,
  created_by     TEXT NOT NULL,
  created_at     BIGINT NOT NULL,
  expires_at     BIGINT NOT NULL,
  revoked_at     BIGINT
) WITHOUT ROWID;
CREATE INDEX join_tokens_by_pool ON join_tokens (pool_id, id);

CREATE TABLE nodes (
  id                    TEXT NOT NULL PRIMARY KEY,
  tenant_id             TEXT NOT NULL REFERENCES tenants (id),
  pool_id               TEXT,
  site_id               TEXT NOT NULL REFERENCES sites (id),
  role                  TEXT NOT NULL CHECK (role IN ('node', 'site', 'ramdisk')),
  state                 TEXT NOT NULL CHECK (state IN ('adopting', 'adopted', 'retired')),
  trust                 TEXT NOT NULL CHECK (trust IN ('platform', 'tenant-owned', 'tenant-controlled')),
  identity_generation   BIGINT NOT NULL,
  hardware_key          BLOB,
  hardware_key_trusted  BOOLEAN NOT NULL,
  claims                TEXT NOT NULL,
  conditions            TEXT,
  joined_at             BIGINT NOT NULL,
  hello_at              BIGINT,
  hello_generation      BIGINT NOT NULL DEFAULT 0,
  hello_claims          BLOB,
  retired_at            BIGINT,
  deleted_at            BIGINT
) WITHOUT ROWID;
CREATE UNIQUE INDEX nodes_by_trusted_hardware_key ON nodes (hardware_key) WHERE hardware_key_trusted;
CREATE INDEX nodes_by_pool ON nodes (pool_id, id);
CREATE INDEX nodes_by_tenant ON nodes (tenant_id, id);

CREATE TABLE node_authz (
  node_id    TEXT NOT NULL PRIMARY KEY REFERENCES nodes (id),
  tenant_id  TEXT NOT NULL,
  pool_id    TEXT,
  site_id    TEXT NOT NULL,
  role       TEXT NOT NULL,
  trust      TEXT NOT NULL,
  updated_at BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE node_certs (
  serial         TEXT NOT NULL PRIMARY KEY,
  node_id        TEXT NOT NULL REFERENCES nodes (id),
  generation     BIGINT NOT NULL,
  role           TEXT NOT NULL,
  spki_sha256    BLOB NOT NULL,
  csr_sha256     BLOB NOT NULL,
  der            BLOB NOT NULL,
  issuers        BLOB NOT NULL,
  allowed_kinds  TEXT,
  statements     TEXT,
  max_lifetime   BIGINT NOT NULL,
  not_before     BIGINT NOT NULL,
  not_after      BIGINT NOT NULL,
  issued_at      BIGINT NOT NULL,
  predecessor    TEXT REFERENCES node_certs (serial),
  first_used_at  BIGINT,
  revoked_at     BIGINT,
  revoke_reason  TEXT
);
CREATE UNIQUE INDEX node_certs_by_spki ON node_certs (spki_sha256);
CREATE INDEX node_certs_by_node ON node_certs (node_id, generation);
CREATE INDEX node_certs_by_predecessor ON node_certs (predecessor) WHERE predecessor IS NOT NULL;

CREATE TABLE joins (
  csr_sha256  BLOB NOT NULL PRIMARY KEY,
  attestor    TEXT NOT NULL,
  token_id    TEXT,
  role        TEXT NOT NULL,
  node_id     TEXT NOT NULL REFERENCES nodes (id),
  pool_id     TEXT,
  serial      TEXT NOT NULL REFERENCES node_certs (serial),
  joined_at   BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE renew_proofs (
  digest   BLOB NOT NULL PRIMARY KEY,
  used_at  BIGINT NOT NULL
) WITHOUT ROWID;
CREATE INDEX renew_proofs_by_time ON renew_proofs (used_at);

CREATE TABLE event_streams (
  tenant_id  TEXT NOT NULL PRIMARY KEY,
  last_seq   BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE events (
  tenant_id  TEXT NOT NULL,
  seq        BIGINT NOT NULL,
  type       TEXT NOT NULL,
  at         BIGINT NOT NULL,
  data       TEXT NOT NULL,
  PRIMARY KEY (tenant_id, seq)
) WITHOUT ROWID;
CREATE INDEX events_by_type ON events (tenant_id, type, seq);

CREATE TABLE audit (
  tenant_id  TEXT NOT NULL,
  id         TEXT NOT NULL,
  action     TEXT NOT NULL,
  at         BIGINT NOT NULL,
  actor      TEXT NOT NULL,
  subject    TEXT NOT NULL,
  data       TEXT NOT NULL,
  PRIMARY KEY (tenant_id, id)
) WITHOUT ROWID;

CREATE TABLE controller_queue (
  node_id    TEXT NOT NULL PRIMARY KEY REFERENCES nodes (id),
  reason     TEXT NOT NULL,
  queued_at  BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE api_keys (
  id          TEXT NOT NULL PRIMARY KEY,
  tenant_id   TEXT NOT NULL REFERENCES tenants (id),
  name        TEXT NOT NULL,
  sha256      BLOB NOT NULL,
  actions     TEXT NOT NULL,
  created_at  BIGINT NOT NULL,
  expires_at  BIGINT,
  revoked_at  BIGINT
);
CREATE UNIQUE INDEX api_keys_by_digest ON api_keys (sha256);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id);

CREATE TABLE idempotency_keys (
  tenant_id    TEXT NOT NULL,
  identity     TEXT NOT NULL,
  method       TEXT NOT NULL,
  key          TEXT NOT NULL,
  resource_id  TEXT NOT NULL,
  created_at   BIGINT NOT NULL,
  PRIMARY KEY (tenant_id, identity, method, key)
) WITHOUT ROWID;
