package httpapi

import "time"

// ListJoinRequests is the request of joinRequests.list: the pool's requests, and those of its site that no pool claimed.
type ListJoinRequests struct {
	TenantID string `json:"tenantId"`
	PoolID   string `json:"poolId"`
	// State selects one state, or all: pending where it is left out.
	State  *string `json:"state,omitempty"`
	Limit  *int    `json:"limit,omitempty"`
	Cursor string  `json:"cursor,omitempty"`
}

// ApproveJoinRequest is the request of joinRequests.approve. Its answer is the request as it is afterwards.
type ApproveJoinRequest struct {
	TenantID string `json:"tenantId"`
	// PoolID is the pool that the machine joins.
	PoolID    string `json:"poolId"`
	RequestID string `json:"requestId"`
	// TTLSeconds is how long the machine may join by the approval: an hour where it is left out.
	TTLSeconds *int64 `json:"ttlSeconds,omitempty"`
	// Reason is for people: why.
	Reason string `json:"reason,omitempty"`
	// CSRSHA256 is what a list showed: where the machine has asked with another CSR since, the answer is CONFLICT.
	CSRSHA256 *string `json:"csrSha256,omitempty"`
}

// RejectJoinRequest is the request of joinRequests.reject. Its answer is the request as it is afterwards.
type RejectJoinRequest struct {
	TenantID  string `json:"tenantId"`
	PoolID    string `json:"poolId"`
	RequestID string `json:"requestId"`
	// Reason is for people: why. The machine is not told it.
	Reason string `json:"reason,omitempty"`
}

// JoinRequest is a machine that waits for a person's decision, or waited.
type JoinRequest struct {
	ID string `json:"id"`
	// State is pending, approved, rejected, expired or consumed.
	State  string `json:"state"`
	SiteID string `json:"siteId"`
	// PoolID is null while no pool has claimed the request.
	PoolID *string `json:"poolId"`
	// Attestor is the one that the machine asked, discovery for instance.
	Attestor string `json:"attestor"`
	// Role is the role that the machine asked for: node, site or ramdisk.
	Role string `json:"role"`
	// Claims is what the machine says of its hardware.
	Claims Claims `json:"claims"`
	// HardwareKey is the key of that hardware in lower-case hex; null where the claims give none.
	HardwareKey *string `json:"hardwareKey"`
	// EKSHA256 is the SHA-256 of the endorsement key that the machine's TPM proved, lower-case hex, and ekUnverified says that
	// no certificate of a maker that the control plane trusts vouches for it; both absent where it proved none.
	EKSHA256     string `json:"ekSha256,omitempty"`
	EKUnverified *bool  `json:"ekUnverified,omitempty"`
	// MAC is the card that the machine booted from, aa:bb:cc:dd:ee:ff.
	MAC *string `json:"mac"`
	// IP is the address that the gateway saw.
	IP *string `json:"ip"`
	// WorkflowID is the workflow that the machine's credential was made for.
	WorkflowID *string `json:"workflowId"`
	// VouchedBy is the node id of the site agent that saw the machine boot, and bootLeaseEpoch the boot lease that it saw;
	// both null where none did.
	VouchedBy      *string `json:"vouchedBy"`
	BootLeaseEpoch *int64  `json:"bootLeaseEpoch"`
	// CSRSHA256 is the SHA-256 of the only certificate request that an approval admits, lower-case hex.
	CSRSHA256 string    `json:"csrSha256"`
	CreatedAt time.Time `json:"createdAt"`
	// ExpiresAt ends a pending request, and from its approval on the approval.
	ExpiresAt time.Time `json:"expiresAt"`
	// DecidedAt, decidedBy (the id of an API key) and reason are the decision's.
	DecidedAt *time.Time `json:"decidedAt"`
	DecidedBy *string    `json:"decidedBy"`
	Reason    *string    `json:"reason"`
	// ConsumedAt is when the approved join happened.
	ConsumedAt *time.Time `json:"consumedAt"`
}
