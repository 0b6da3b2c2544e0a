// Package events names what the control plane tells its operators: the events of a tenant's stream, the audit actions,
// and the limit on how many refusals may be told.
//
// An event's payload is a type of this package, so that the fields of each event are written down once. The package
// stores nothing: controlplane/store writes events to an outbox in the transaction that they report.
//
// Payloads of refusals hold hashes only. Whoever adds a field to one must not add anything that a caller sent in clear.
package events

import (
	"encoding/json"
	"time"
)

// Type is the name of an event. It is part of the API.
type Type string

// The events of joining, renewal and sessions.
const (
	TypeJoinTokenCreated     Type = "security.join-token.created"
	TypeJoinTokenRevoked     Type = "security.join-token.revoked"
	TypeJoinRefused          Type = "security.join.refused"
	TypeJoinRequestCreated   Type = "security.join-request.created"
	TypeJoinRequestApproved  Type = "security.join-request.approved"
	TypeJoinRequestRejected  Type = "security.join-request.rejected"
	TypeRenewRefused         Type = "security.renew.refused"
	TypeRenewForked          Type = "security.renew.forked"
	TypeVouchRefused         Type = "security.vouch.refused"
	TypeCertificateRevoked   Type = "security.certificate-revoked"
	TypeNodeJoined           Type = "node.joined"
	TypeNodeConnected        Type = "node.connected"
	TypeNodeDisconnected     Type = "node.disconnected"
	TypeNodeAdopted          Type = "node.adopted"
	TypeAcceptanceStarted    Type = "node.acceptance.started"
	TypeNodeAcceptanceFailed Type = "node.acceptance.failed"
	TypeNodeCordoned         Type = "node.cordoned"
	TypeNodeUncordoned       Type = "node.uncordoned"
	TypeNodeDeleted          Type = "node.deleted"
)

// Event is one row of a tenant's stream.
type Event struct {
	// Tenant receives the event.
	Tenant string
	// Seq orders the events of one tenant: 1, 2, 3, … in the order of their commits.
	Seq int64
	// Type names the event and with it the shape of Data.
	Type Type
	// At is when the reported transaction ran, by the control plane's clock, to the millisecond.
	At time.Time
	// Data is the payload, a JSON object with camelCase keys.
	Data json.RawMessage
}

// Payload is the data of one type of event. Its JSON form is the event's Data.
type Payload interface {
	EventType() Type
}

// JoinTokenCreated reports a new join token.
type JoinTokenCreated struct {
	TokenID   string `json:"tokenId"`
	PoolID    string `json:"poolId,omitempty"`
	SiteID    string `json:"siteId"`
	Role      string `json:"role"`
	CreatedBy string `json:"createdBy"`
	// Pinned says whether the token has an `expect` binding.
	Pinned bool `json:"pinned"`
	// Hosted is present only where it is set.
	Hosted string `json:"hosted,omitempty"`
}

// JoinTokenRevoked reports the end of a join token.
type JoinTokenRevoked struct {
	TokenID   string `json:"tokenId"`
	PoolID    string `json:"poolId,omitempty"`
	SiteID    string `json:"siteId,omitempty"`
	RevokedBy string `json:"revokedBy"`
}

// JoinRefused says why a join was refused. The machine is never told.
type JoinRefused struct {
	// Attestor is the attestor that the machine asked for.
	Attestor string `json:"attestor"`
	// Reason is `<attestor>:<reason>` for the attestor's own checks and `join:<reason>` for JoinService's.
	Reason string `json:"reason"`
	Role   string `json:"role"`
	// CSRSHA256 is the SHA-256 of the request's CSR, lower-case hex; empty where it holds none.
	CSRSHA256 string `json:"csrSha256"`
	// HardwareKey is the machine's hardware key, lower-case hex; empty where its claims give none.
	HardwareKey string `json:"hardwareKey"`
	// EKSHA256 is the SHA-256 of the endorsement key that the machine's TPM proved, lower-case hex; absent where it proved
	// none.
	EKSHA256 string `json:"ekSha256,omitempty"`
	// Suppressed counts the refusals of this kind that were not published since the last one that was.
	Suppressed int64 `json:"suppressed"`
}

// JoinRequestCreated reports a join that waits for a person's decision. It holds hashes and ids only.
type JoinRequestCreated struct {
	RequestID string `json:"requestId"`
	// PoolID is empty where no pool claims the request yet.
	PoolID   string `json:"poolId,omitempty"`
	SiteID   string `json:"siteId"`
	Attestor string `json:"attestor"`
	Role     string `json:"role"`
	// TokenID is the join token that the machine presented, where it presented one.
	TokenID string `json:"tokenId,omitempty"`
	// CSRSHA256 is the SHA-256 of the request's CSR, HardwareKey the machine's hardware key, both lower-case hex.
	CSRSHA256   string `json:"csrSha256"`
	HardwareKey string `json:"hardwareKey"`
	// EKSHA256 is the SHA-256 of the endorsement key that the machine's TPM proved, EKUnverified that no maker's certificate
	// vouches for it; both absent where it proved none.
	EKSHA256     string `json:"ekSha256,omitempty"`
	EKUnverified bool   `json:"ekUnverified,omitempty"`
}

// JoinRequestApproved reports an approval, which admits one join.
type JoinRequestApproved struct {
	RequestID string `json:"requestId"`
	PoolID    string `json:"poolId"`
	SiteID    string `json:"siteId"`
	Attestor  string `json:"attestor"`
	CSRSHA256 string `json:"csrSha256"`
	// ExpiresAt is when the approval ends.
	ExpiresAt  time.Time `json:"expiresAt"`
	ApprovedBy string    `json:"approvedBy"`
	// Reason is the operator's, where there is one.
	Reason string `json:"reason,omitempty"`
}

// JoinRequestRejected reports a rejection; that of an approval which was not used yet too.
type JoinRequestRejected struct {
	RequestID  string `json:"requestId"`
	PoolID     string `json:"poolId,omitempty"`
	SiteID     string `json:"siteId"`
	Attestor   string `json:"attestor"`
	CSRSHA256  string `json:"csrSha256"`
	RejectedBy string `json:"rejectedBy"`
	// Reason is the operator's, where there is one.
	Reason string `json:"reason,omitempty"`
}

// RenewRefused says why a renewal was refused. The machine is never told.
type RenewRefused struct {
	// Reason is bare: `pop`, `revoked`, ….
	Reason string `json:"reason"`
	// NodeID and Serial are those of the certificate that the caller presented, where it is one of ours.
	NodeID string `json:"nodeId,omitempty"`
	Serial string `json:"serial,omitempty"`
	// CSRSHA256 is the SHA-256 of the request's CSR, lower-case hex; empty where it holds none.
	CSRSHA256  string `json:"csrSha256"`
	Suppressed int64  `json:"suppressed"`
}

// VouchRefused says why a site agent's vouch was not recorded. The agent is never told.
type VouchRefused struct {
	// Reason is bare: `older-epoch`, `issued-at`, ….
	Reason string `json:"reason"`
	// NodeID is the site agent, Serial the certificate whose key signed.
	NodeID string `json:"nodeId"`
	Serial string `json:"serial"`
	// VouchSHA256 is the SHA-256 of the vouch's body, lower-case hex.
	VouchSHA256 string `json:"vouchSha256"`
	Suppressed  int64  `json:"suppressed"`
}

// RenewForked reports two certificates from one: a certificate whose successor is in use was renewed again with another
// key. Someone may have copied the node's key.
type RenewForked struct {
	NodeID string `json:"nodeId"`
	// Serial is the certificate that was renewed twice, Successor the one in use, Forked the new one.
	Serial    string `json:"serial"`
	Successor string `json:"successor"`
	Forked    string `json:"forked"`
}

// CertificateRevoked reports the revocation of a node's certificate.
type CertificateRevoked struct {
	NodeID             string `json:"nodeId"`
	Serial             string `json:"serial"`
	IdentityGeneration int64  `json:"identityGeneration"`
	// Reason is `reclaimed` or what revoked it.
	Reason string `json:"reason"`
}

// NodeJoined reports an admission; a reclaim too.
type NodeJoined struct {
	NodeID             string `json:"nodeId"`
	PoolID             string `json:"poolId,omitempty"`
	SiteID             string `json:"siteId"`
	Role               string `json:"role"`
	Attestor           string `json:"attestor"`
	Reclaim            bool   `json:"reclaim"`
	HardwareKeyTrusted bool   `json:"hardwareKeyTrusted"`
	// Serial is the certificate's, lower-case hex.
	Serial             string `json:"serial"`
	IdentityGeneration int64  `json:"identityGeneration"`
	// NodeKey is `tpm` where the attestor proved that the node key lives in the machine's TPM, else `unattested`.
	NodeKey string `json:"nodeKey"`
	// EKSHA256 is the SHA-256 of the endorsement key of the TPM that the machine joined with, lower-case hex; absent where it
	// showed none.
	EKSHA256 string `json:"ekSha256,omitempty"`
}

// NodeConnected reports an opened session.
type NodeConnected struct {
	NodeID       string `json:"nodeId"`
	SessionID    string `json:"sessionId"`
	Serial       string `json:"serial"`
	AgentVersion string `json:"agentVersion,omitempty"`
	Gateway      string `json:"gateway,omitempty"`
}

// NodeDisconnected reports the end of a session.
type NodeDisconnected struct {
	NodeID    string `json:"nodeId"`
	SessionID string `json:"sessionId"`
	// Reason is the Goodbye's, or `closed` where the node or its gateway went away.
	Reason string `json:"reason"`
}

// NodeAdopted reports a node that is ready for work.
type NodeAdopted struct {
	NodeID string `json:"nodeId"`
}

// AcceptanceStarted reports the start of a node's acceptance checks.
type AcceptanceStarted struct {
	NodeID string `json:"nodeId"`
}

// NodeAcceptanceFailed says which acceptance check failed.
type NodeAcceptanceFailed struct {
	NodeID string `json:"nodeId"`
	// Message is for people.
	Message string `json:"message"`
}

// NodeCordoned reports a node that an operator set aside.
type NodeCordoned struct {
	NodeID     string `json:"nodeId"`
	CordonedBy string `json:"cordonedBy"`
}

// NodeUncordoned reports a node that takes work again.
type NodeUncordoned struct {
	NodeID       string `json:"nodeId"`
	UncordonedBy string `json:"uncordonedBy"`
}

// NodeDeleted reports a node that is no more, and whose machine may join as a new one.
type NodeDeleted struct {
	NodeID    string `json:"nodeId"`
	PoolID    string `json:"poolId,omitempty"`
	SiteID    string `json:"siteId"`
	DeletedBy string `json:"deletedBy"`
}

// EventType implements [Payload].
func (JoinTokenCreated) EventType() Type { return TypeJoinTokenCreated }

// EventType implements [Payload].
func (JoinTokenRevoked) EventType() Type { return TypeJoinTokenRevoked }

// EventType implements [Payload].
func (JoinRefused) EventType() Type { return TypeJoinRefused }

// EventType implements [Payload].
func (JoinRequestCreated) EventType() Type { return TypeJoinRequestCreated }

// EventType implements [Payload].
func (JoinRequestApproved) EventType() Type { return TypeJoinRequestApproved }

// EventType implements [Payload].
func (JoinRequestRejected) EventType() Type { return TypeJoinRequestRejected }

// EventType implements [Payload].
func (RenewRefused) EventType() Type { return TypeRenewRefused }

// EventType implements [Payload].
func (VouchRefused) EventType() Type { return TypeVouchRefused }

// EventType implements [Payload].
func (RenewForked) EventType() Type { return TypeRenewForked }

// EventType implements [Payload].
func (CertificateRevoked) EventType() Type { return TypeCertificateRevoked }

// EventType implements [Payload].
func (NodeJoined) EventType() Type { return TypeNodeJoined }

// EventType implements [Payload].
func (NodeConnected) EventType() Type { return TypeNodeConnected }

// EventType implements [Payload].
func (NodeDisconnected) EventType() Type { return TypeNodeDisconnected }

// EventType implements [Payload].
func (NodeAdopted) EventType() Type { return TypeNodeAdopted }

// EventType implements [Payload].
func (AcceptanceStarted) EventType() Type { return TypeAcceptanceStarted }

// EventType implements [Payload].
func (NodeAcceptanceFailed) EventType() Type { return TypeNodeAcceptanceFailed }

// EventType implements [Payload].
func (NodeCordoned) EventType() Type { return TypeNodeCordoned }

// EventType implements [Payload].
func (NodeUncordoned) EventType() Type { return TypeNodeUncordoned }

// EventType implements [Payload].
func (NodeDeleted) EventType() Type { return TypeNodeDeleted }
