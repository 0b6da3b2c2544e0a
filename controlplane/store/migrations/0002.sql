-- Join requests, boot leases that site agents vouched for, and cordoned nodes.

CREATE TABLE join_requests (
  id                    TEXT NOT NULL PRIMARY KEY,
  tenant_id             TEXT NOT NULL REFERENCES tenants (id),
  site_id               TEXT NOT NULL REFERENCES sites (id),
  pool_id               TEXT,
  attestor              TEXT NOT NULL,
  role                  TEXT NOT NULL CHECK (role IN ('node', 'site', 'ramdisk')),
  state                 TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'rejected', 'expired', 'consumed')),
  machine_key           TEXT NOT NULL,
  claims                TEXT NOT NULL,
  hardware_key          BLOB,
  ek_sha256             BLOB,
  ek_unverified         BOOLEAN NOT NULL,
  mac                   TEXT,
  ip                    TEXT,
  workflow_id           TEXT,
  vouched_by            TEXT,
  boot_lease_epoch      BIGINT,
  csr_sha256            BLOB NOT NULL,
  token_id              TEXT,
  created_at            BIGINT NOT NULL,
  expires_at            BIGINT NOT NULL,
  decided_at            BIGINT,
  decided_by            TEXT,
  reason                TEXT,
  consumed_at           BIGINT
) WITHOUT ROWID;
-- The tenant is in it so that one tenant of a shared site cannot put its request in the place of another's.
CREATE UNIQUE INDEX join_requests_pending ON join_requests (site_id, machine_key, tenant_id) WHERE state = 'pending';
CREATE INDEX join_requests_by_csr ON join_requests (csr_sha256);
CREATE INDEX join_requests_by_pool ON join_requests (pool_id, state, id);
CREATE INDEX join_requests_by_site ON join_requests (site_id, state, id) WHERE pool_id IS NULL;
CREATE INDEX join_requests_by_time ON join_requests (site_id, created_at);

CREATE TABLE boot_vouches (
  site_id           TEXT NOT NULL REFERENCES sites (id),
  mac               TEXT NOT NULL,
  boot_lease_epoch  BIGINT NOT NULL,
  node_id           TEXT NOT NULL REFERENCES nodes (id),
  vouched_at        BIGINT NOT NULL,
  PRIMARY KEY (site_id, mac)
) WITHOUT ROWID;
CREATE INDEX boot_vouches_by_age ON boot_vouches (site_id, vouched_at, mac);
CREATE INDEX join_requests_by_boot ON join_requests (site_id, mac, boot_lease_epoch) WHERE state = 'pending';

-- What the first call asked for: what it made may have changed since, and a repeat that asks for something else is told apart.
ALTER TABLE idempotency_keys ADD COLUMN request_sha256 BLOB;

CREATE INDEX pools_in_use ON pools (tenant_id, id) WHERE archived_at IS NULL;
CREATE INDEX pools_in_use_by_site ON pools (site_id, tenant_id) WHERE archived_at IS NULL;

ALTER TABLE join_tokens ADD COLUMN workflow_id TEXT;
CREATE INDEX join_tokens_by_site ON join_tokens (site_id, id) WHERE role = 'site';
CREATE INDEX join_tokens_live_of_site ON join_tokens (site_id, id, expires_at, uses_left, revoked_at, role)
  WHERE role = 'site' AND revoked_at IS NULL AND uses_left > 0;
CREATE INDEX api_keys_live ON api_keys (tenant_id, id, expires_at) WHERE revoked_at IS NULL;

ALTER TABLE nodes ADD COLUMN cordoned_at BIGINT;

-- Lists of nodes are by state, and a node's newest certificate is looked up for each.
DROP INDEX nodes_by_pool;
CREATE INDEX nodes_by_pool ON nodes (pool_id, state, id);
DROP INDEX nodes_by_tenant;
CREATE INDEX nodes_by_tenant ON nodes (tenant_id, state, id);
DROP INDEX node_certs_by_node;
CREATE INDEX node_certs_by_node ON node_certs (node_id, generation, issued_at, serial);

-- It holds all that decides whether a token is live: a list finds the live ones behind thousands without reading those rows.
CREATE INDEX join_tokens_live ON join_tokens (pool_id, id, expires_at, uses_left, revoked_at)
  WHERE revoked_at IS NULL AND uses_left > 0;

-- A TPM's endorsement key (the SHA-256 of its SubjectPublicKeyInfo) is bound to one node, until the node is deleted.
ALTER TABLE nodes ADD COLUMN ek_sha256 BLOB;
CREATE UNIQUE INDEX nodes_by_ek ON nodes (ek_sha256) WHERE ek_sha256 IS NOT NULL;

-- A TPM may have several endorsement keys. It has one attestation key, which the statements of its certificates name.
CREATE INDEX node_certs_by_statements ON node_certs (statements, node_id) WHERE statements IS NOT NULL;

CREATE TABLE ek_allow (
  id          TEXT NOT NULL PRIMARY KEY,
  tenant_id   TEXT NOT NULL REFERENCES tenants (id),
  site_id     TEXT NOT NULL REFERENCES sites (id),
  pool_id     TEXT NOT NULL REFERENCES pools (id),
  ek_sha256   BLOB NOT NULL,
  note        TEXT,
  created_by  TEXT NOT NULL,
  created_at  BIGINT NOT NULL,
  removed_at  BIGINT
) WITHOUT ROWID;
-- At a site an endorsement key stands once, whoever listed it: else the machine would not know where it lands.
CREATE UNIQUE INDEX ek_allow_by_ek ON ek_allow (ek_sha256, site_id) WHERE removed_at IS NULL;
CREATE INDEX ek_allow_by_pool ON ek_allow (pool_id, id) WHERE removed_at IS NULL;
