package store

import (
	"cmp"
	"crypto/sha256"
	"math"
	"slices"
	"time"

	"github.com/better-compute/bcd/hwclaims"
)

// JoinRequestState is where a join request stands.
type JoinRequestState string

// The states of a join request. Only pending and approved ones can change.
const (
	JoinRequestPending  JoinRequestState = "pending"  // waits for a decision
	JoinRequestApproved JoinRequestState = "approved" // admits one join until it expires
	JoinRequestRejected JoinRequestState = "rejected"
	JoinRequestExpired  JoinRequestState = "expired"  // pending or approved past its expiry
	JoinRequestConsumed JoinRequestState = "consumed" // the approved join happened
)

// JoinRequestStates are the states, in the order of a request's life.
var JoinRequestStates = []JoinRequestState{
	JoinRequestPending, JoinRequestApproved, JoinRequestRejected, JoinRequestExpired, JoinRequestConsumed,
}

// JoinRequest is a join that a person decides.
type JoinRequest struct {
	ID string
	// TenantID is who decides: the tenant that the machine's credential is good for.
	TenantID string
	SiteID   string
	// PoolID is the pool that claims the request: its credential's, or the one that approved it. Empty is none yet.
	PoolID   string
	Attestor string
	// Role is the role that the machine asked for.
	Role string
	// State is the recorded state. [JoinRequest.StateAt] says which one it is at a time.
	State JoinRequestState
	// MachineKey names the machine within its site: `ek:` and the digest of its TPM's endorsement key, which the machine
	// proved, else `hw:` and its trusted hardware key, else `mac:` and the address that it booted from; keys and digests in
	// lower-case hex.
	MachineKey string
	Claims     hwclaims.Claims
	// HardwareKey is nil where the claims give none.
	HardwareKey []byte
	// EKSHA256 is nil where the attestor knows no endorsement key.
	EKSHA256 []byte
	// EKUnverified says that no certificate of a maker that the control plane trusts vouches for the endorsement key.
	EKUnverified bool
	// MAC is the NIC that the machine booted from, normalised, or empty.
	MAC string
	// IP is the address that the gateway saw, or empty.
	IP string
	// WorkflowID is the workflow that the credential was made for, or empty.
	WorkflowID string
	// VouchedBy is the node id of the site agent that saw the machine boot, and BootLeaseEpoch the boot lease that it saw;
	// empty and 0 where none did.
	VouchedBy      string
	BootLeaseEpoch int64
	// ClaimedEpoch is the boot lease that the machine claims; 0 is none.
	ClaimedEpoch int64
	// CSRSHA256 is the digest of the only CSR that an approval admits.
	CSRSHA256 [sha256.Size]byte
	// TokenID is the join token that verified when the request was made, or empty.
	TokenID   string
	CreatedAt time.Time
	// ExpiresAt ends a pending request, and from its approval on the approval.
	ExpiresAt time.Time
	// DecidedAt, DecidedBy and Reason are the decision's. DecidedBy is the id of an API key.
	DecidedAt  time.Time
	DecidedBy  string
	Reason     string
	ConsumedAt time.Time
}

// StateAt returns the request's state at a time.
func (r JoinRequest) StateAt(now time.Time) JoinRequestState {
	if (r.State == JoinRequestPending || r.State == JoinRequestApproved) && !now.Before(r.ExpiresAt) {
		return JoinRequestExpired
	}
	return r.State
}

const joinRequestColumns = `id, tenant_id, site_id, pool_id, attestor, role, state, machine_key, claims, hardware_key, ek_sha256,
	ek_unverified, mac, ip, workflow_id, vouched_by, boot_lease_epoch, csr_sha256, token_id, created_at, expires_at, decided_at,
	decided_by, reason, consumed_at`

func scanJoinRequest(s scanner) (r JoinRequest, err error) {
	var csr []byte
	var epoch *int64
	err = s.Scan(&r.ID, &r.TenantID, &r.SiteID, textOf{&r.PoolID}, &r.Attestor, &r.Role, &r.State, &r.MachineKey,
		jsonOf[hwclaims.Claims]{&r.Claims}, &r.HardwareKey, &r.EKSHA256, &r.EKUnverified, textOf{&r.MAC}, textOf{&r.IP}, textOf{&r.WorkflowID},
		textOf{&r.VouchedBy}, &epoch, &csr, textOf{&r.TokenID}, timeOf{&r.CreatedAt}, timeOf{&r.ExpiresAt},
		timeOf{&r.DecidedAt}, textOf{&r.DecidedBy}, textOf{&r.Reason}, timeOf{&r.ConsumedAt})
	if err != nil {
		return r, err
	}
	if epoch != nil {
		r.ClaimedEpoch = *epoch
	}
	if r.VouchedBy != "" {
		r.BootLeaseEpoch = r.ClaimedEpoch
	}
	return r, copyDigest(&r.CSRSHA256, csr)
}

// InsertJoinRequest adds a pending request. CreatedAt is the transaction's time, and ClaimedEpoch is what is kept of the
// boot lease. The site's pending requests that have expired are recorded as such first; a machine of the tenant that has
// another pending request there is [ErrDuplicate].
func (tx *Tx) InsertJoinRequest(r JoinRequest) error {
	claims, err := jsonText(r.Claims)
	if err != nil {
		return err
	}
	if err := tx.insert("expire join requests",
		`UPDATE join_requests SET state = 'expired' WHERE site_id = ? AND state = 'pending' AND expires_at <= ?`,
		r.SiteID, millis(tx.now)); err != nil {
		return err
	}
	return tx.insert("insert the join request",
		`INSERT INTO join_requests (id, tenant_id, site_id, pool_id, attestor, role, state, machine_key, claims, hardware_key,
			ek_sha256, ek_unverified, mac, ip, workflow_id, vouched_by, boot_lease_epoch, csr_sha256, token_id, created_at, expires_at)
		 VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.TenantID, r.SiteID, nullText(r.PoolID), r.Attestor, r.Role, r.MachineKey, claims, nullBytes(r.HardwareKey),
		nullBytes(r.EKSHA256), r.EKUnverified, nullText(r.MAC), nullText(r.IP), nullText(r.WorkflowID), nullText(r.VouchedBy),
		nullNumber(r.ClaimedEpoch), r.CSRSHA256[:], nullText(r.TokenID), millis(tx.now), millis(r.ExpiresAt))
}

// RefreshJoinRequest replaces what a pending request says of its machine and when it expires: everything but its id,
// tenant, site, machine key and creation. One that is not pending is [ErrNotFound].
func (tx *Tx) RefreshJoinRequest(r JoinRequest) error {
	claims, err := jsonText(r.Claims)
	if err != nil {
		return err
	}
	return tx.update("refresh the join request",
		`UPDATE join_requests SET pool_id = ?, attestor = ?, role = ?, claims = ?, hardware_key = ?, ek_sha256 = ?, ek_unverified = ?,
			mac = ?, ip = ?, workflow_id = ?, vouched_by = ?, boot_lease_epoch = ?, csr_sha256 = ?, token_id = ?, expires_at = ?
		 WHERE id = ? AND state = 'pending'`,
		nullText(r.PoolID), r.Attestor, r.Role, claims, nullBytes(r.HardwareKey), nullBytes(r.EKSHA256), r.EKUnverified, nullText(r.MAC),
		nullText(r.IP), nullText(r.WorkflowID), nullText(r.VouchedBy), nullNumber(r.ClaimedEpoch), r.CSRSHA256[:],
		nullText(r.TokenID), millis(r.ExpiresAt), r.ID)
}

// DecideJoinRequest records a decision: r's state, pool, expiry, who decided and why. The decision's time is the
// transaction's. A request that is neither pending nor approved is [ErrNotFound].
func (tx *Tx) DecideJoinRequest(r JoinRequest) error {
	return tx.update("decide the join request",
		`UPDATE join_requests SET state = ?, pool_id = ?, expires_at = ?, decided_at = ?, decided_by = ?, reason = ?
		 WHERE id = ? AND state IN ('pending', 'approved')`,
		r.State, nullText(r.PoolID), millis(r.ExpiresAt), millis(tx.now), r.DecidedBy, nullText(r.Reason), r.ID)
}

// ConsumeJoinRequest records that the approved join happened. A request without an approval that is good at the
// transaction's time is [ErrNotFound].
func (tx *Tx) ConsumeJoinRequest(id string) error {
	return tx.update("consume the join request",
		`UPDATE join_requests SET state = 'consumed', consumed_at = ? WHERE id = ? AND state = 'approved' AND expires_at > ?`,
		millis(tx.now), id, millis(tx.now))
}

// JoinRequest returns a request or [ErrNotFound].
func (tx *Tx) JoinRequest(id string) (JoinRequest, error) {
	return one(tx, scanJoinRequest, `SELECT `+joinRequestColumns+` FROM join_requests WHERE id = ?`, id)
}

// JoinRequestsOfCSR lists a tenant's requests of a CSR that a retry with it can meet, oldest first: rejected ones, and those
// that are pending or approved at the transaction's time.
func (tx *Tx) JoinRequestsOfCSR(tenantID string, csrSHA256 [sha256.Size]byte) ([]JoinRequest, error) {
	return many(tx, scanJoinRequest, `SELECT `+joinRequestColumns+` FROM join_requests WHERE csr_sha256 = ? AND tenant_id = ?
		AND (state = 'rejected' OR state IN ('pending', 'approved') AND expires_at > ?) ORDER BY id`,
		csrSHA256[:], tenantID, millis(tx.now))
}

// PendingJoinRequest returns the request of a tenant's machine at a site that is pending at the transaction's time, or
// [ErrNotFound].
func (tx *Tx) PendingJoinRequest(tenantID, siteID, machineKey string) (JoinRequest, error) {
	return one(tx, scanJoinRequest, `SELECT `+joinRequestColumns+` FROM join_requests
		WHERE site_id = ? AND machine_key = ? AND tenant_id = ? AND state = 'pending' AND expires_at > ?`,
		siteID, machineKey, tenantID, millis(tx.now))
}

// CountJoinRequests counts a site's requests: those that are pending at the transaction's time, and those that were made
// less than a span ago.
func (tx *Tx) CountJoinRequests(siteID string, within time.Duration) (pending, made int, err error) {
	pending, err = one(tx, scalar[int], `SELECT COUNT(*) FROM join_requests
		WHERE site_id = ? AND state = 'pending' AND expires_at > ?`, siteID, millis(tx.now))
	if err != nil {
		return 0, 0, err
	}
	made, err = one(tx, scalar[int], `SELECT COUNT(*) FROM join_requests WHERE site_id = ? AND created_at > ?`,
		siteID, millis(tx.now.Add(-within)))
	return pending, made, err
}

// JoinRequestsOfPool lists the requests that a pool's operators decide: the pool's, and those of its tenant at its site
// that no pool claimed. It lists the ones in a state, by [JoinRequest.StateAt] of the transaction's time, or all of them
// where none is given; oldest first, from the one after the id on, at most limit.
func (tx *Tx) JoinRequestsOfPool(p Pool, state JoinRequestState, after string, limit int) ([]JoinRequest, error) {
	// A range of an index for each recorded state: the few that are pending are found without reading all that were
	// ever decided.
	var ranges []stateRange
	now := millis(tx.now)
	switch state {
	case "":
		for _, s := range JoinRequestStates {
			ranges = append(ranges, stateRange{s, math.MinInt64, math.MaxInt64})
		}
	case JoinRequestPending, JoinRequestApproved:
		ranges = []stateRange{{state, now + 1, math.MaxInt64}}
	case JoinRequestExpired:
		ranges = []stateRange{
			{JoinRequestExpired, math.MinInt64, math.MaxInt64},
			{JoinRequestPending, math.MinInt64, now},
			{JoinRequestApproved, math.MinInt64, now},
		}
	default:
		ranges = []stateRange{{state, math.MinInt64, math.MaxInt64}}
	}
	var all []JoinRequest
	for _, r := range ranges {
		for _, of := range []struct{ where, id string }{{`pool_id = ?`, p.ID}, {`pool_id IS NULL AND site_id = ?`, p.SiteID}} {
			found, err := many(tx, scanJoinRequest, `SELECT `+joinRequestColumns+` FROM join_requests
				WHERE `+of.where+` AND state = ? AND id > ? AND tenant_id = ? AND expires_at BETWEEN ? AND ? ORDER BY id LIMIT ?`,
				of.id, r.state, after, p.TenantID, r.from, r.to, limit)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	slices.SortFunc(all, func(a, b JoinRequest) int { return cmp.Compare(a.ID, b.ID) })
	return all[:min(limit, len(all))], nil
}

// stateRange is the requests in a recorded state that expire between two times, both included.
type stateRange struct {
	state    JoinRequestState
	from, to int64
}
