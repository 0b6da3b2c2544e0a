package httpapi

import (
	"encoding/json"
	"time"
)

// A field of a request without omitempty is required. A pointer tells "not given" from a zero value that must be judged.

// Expect binds a token to one machine: each identifier given must be among the machine's claims.
type Expect struct {
	ProductUUID *string `json:"productUuid,omitempty"`
	Serial      *string `json:"serial,omitempty"`
	// MAC is aa:bb:cc:dd:ee:ff.
	MAC *string `json:"mac,omitempty"`
	// GPUUUID starts with GPU-.
	GPUUUID *string `json:"gpuUuid,omitempty"`
}

// CreateJoinToken is the request of joinTokens.create.
type CreateJoinToken struct {
	TenantID     string  `json:"tenantId"`
	PoolID       string  `json:"poolId"`
	TTLSeconds   int64   `json:"ttlSeconds"`
	MaxUses      *int64  `json:"maxUses,omitempty"`
	Expect       *Expect `json:"expect,omitempty"`
	AllowReclaim bool    `json:"allowReclaim,omitempty"`
	// Hosted is "kubernetes" or not given.
	Hosted         *string `json:"hosted,omitempty"`
	IdempotencyKey string  `json:"idempotencyKey"`
}

// JoinToken is a join token's record. It never holds the secret.
type JoinToken struct {
	ID           string    `json:"id"`
	PoolID       string    `json:"poolId"`
	SiteID       string    `json:"siteId"`
	Role         string    `json:"role"`
	UsesLeft     int64     `json:"usesLeft"`
	Expect       *Expect   `json:"expect"`
	AllowReclaim bool      `json:"allowReclaim"`
	Hosted       *string   `json:"hosted"`
	ExpiresAt    time.Time `json:"expiresAt"`
}

// CreatedJoinToken is the answer of joinTokens.create.
type CreatedJoinToken struct {
	JoinToken
	// Token is the bearer form. It is absent from the answer to a repeated idempotency key.
	Token string `json:"token,omitempty"`
}

// ListJoinTokens is the request of joinTokens.list.
type ListJoinTokens struct {
	TenantID        string `json:"tenantId"`
	PoolID          string `json:"poolId"`
	IncludeInactive bool   `json:"includeInactive,omitempty"`
	Limit           *int   `json:"limit,omitempty"`
	Cursor          string `json:"cursor,omitempty"`
}

// ListedJoinToken is a token in a list.
type ListedJoinToken struct {
	JoinToken
	// State is live, revoked, expired or used-up.
	State string `json:"state"`
}

// RevokeJoinToken is the request of joinTokens.revoke. Its answer is a [ListedJoinToken].
type RevokeJoinToken struct {
	TenantID string `json:"tenantId"`
	PoolID   string `json:"poolId"`
	TokenID  string `json:"tokenId"`
}

// List is the answer of every list. NextCursor, where there is one, is the cursor of the next page.
type List[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"nextCursor,omitempty"`
}

// ListEvents is the request of events.list. Events come oldest first.
type ListEvents struct {
	TenantID string `json:"tenantId"`
	// Type selects one type of event, security.join.refused for instance.
	Type string `json:"type,omitempty"`
	// Since is a time in RFC 3339; older events are left out.
	Since string `json:"since,omitempty"`
	Limit *int   `json:"limit,omitempty"`
	// Cursor is an event's seq in decimal: the list goes on after it.
	Cursor string `json:"cursor,omitempty"`
}

// Event is something that happened.
type Event struct {
	// Seq orders the events of a tenant: 1, 2, 3, ….
	Seq  int64     `json:"seq"`
	Type string    `json:"type"`
	At   time.Time `json:"at"`
	// Data's keys depend on the type.
	Data json.RawMessage `json:"data"`
}
