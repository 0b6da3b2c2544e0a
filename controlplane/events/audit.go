package events

import (
	"encoding/json"
	"time"
)

// Action names what an audit row records.
type Action string

// The audited actions.
const (
	ActionJoinTokenCreated    Action = "join-token.created"
	ActionJoinTokenRevoked    Action = "join-token.revoked"
	ActionJoinRequestApproved Action = "join-request.approved"
	ActionJoinRequestRejected Action = "join-request.rejected"
	ActionNodeJoined          Action = "node.joined"
	ActionNodeReclaimed       Action = "node.reclaimed"
	ActionNodeAdopted         Action = "node.adopted"
	ActionNodeCordoned        Action = "node.cordoned"
	ActionNodeUncordoned      Action = "node.uncordoned"
	ActionNodeDeleted         Action = "node.deleted"
	ActionIdentityRevoked     Action = "node.identity-revoked"
)

// Audit is one row of the audit log.
type Audit struct {
	// ID orders the log: ids grow with time.
	ID     string
	Tenant string
	Action Action
	// At is when the audited transaction ran, by the control plane's clock, to the millisecond.
	At time.Time
	// Actor is who did it: the id of an API key, of the token that a machine joined with, or of a node that joined again by
	// its certificate.
	Actor string
	// Subject is the id of what it was done to.
	Subject string
	// Data is a JSON object, the payload of the event that goes with the action.
	Data json.RawMessage
}
