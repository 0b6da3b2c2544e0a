package httpapi

import "time"

// ListNodes is the request of nodes.list. Without poolId it lists the nodes of every pool of the tenant. Retired nodes are
// left out unless they are asked for.
type ListNodes struct {
	TenantID string `json:"tenantId"`
	PoolID   string `json:"poolId,omitempty"`
	// State selects one state: adopting, adopted or retired.
	State *string `json:"state,omitempty"`
	// IncludeRetired adds retired nodes where no state is selected.
	IncludeRetired bool   `json:"includeRetired,omitempty"`
	Limit          *int   `json:"limit,omitempty"`
	Cursor         string `json:"cursor,omitempty"`
}

// NodeRef is the request of the methods about one node. Their answer is the node as it is afterwards.
type NodeRef struct {
	TenantID string `json:"tenantId"`
	NodeID   string `json:"nodeId"`
}

// Node is a machine that joined.
type Node struct {
	ID string `json:"id"`
	// PoolID is null for a site agent.
	PoolID *string `json:"poolId"`
	SiteID string  `json:"siteId"`
	// State is adopting, adopted or retired.
	State string `json:"state"`
	// Role is the role that the machine joined for: node, site or ramdisk.
	Role string `json:"role"`
	// Trust says who controls the machine: platform, tenant-owned or tenant-controlled.
	Trust string `json:"trust"`
	// IdentityGeneration starts at 1 and goes up with every reclaim.
	IdentityGeneration int64 `json:"identityGeneration"`
	// HardwareKey is the key of the machine's hardware in lower-case hex; null where its claims give none, and for a
	// deleted node.
	HardwareKey *string `json:"hardwareKey"`
	// HardwareKeyTrusted says that the key names the machine, so that another join of it is a reclaim.
	HardwareKeyTrusted bool `json:"hardwareKeyTrusted"`
	// EKSHA256 is the SHA-256 of the endorsement key that the node is bound to, lower-case hex; absent for a node that never
	// joined by its TPM, and for a deleted node.
	EKSHA256 string `json:"ekSha256,omitempty"`
	// Claims is what the machine said of its hardware when it joined.
	Claims Claims `json:"claims"`
	// Hostname is the machine's own, from its claims.
	Hostname string `json:"hostname"`
	// Conditions is what an operator should know; empty where all is well.
	Conditions []Condition `json:"conditions"`
	// Certificate is the newest one; null where none was ever issued.
	Certificate *NodeCertificate `json:"certificate"`
	// Connected says that the node has a session now.
	Connected bool `json:"connected"`
	// HelloAt is when the node first connected with its present identity; null before.
	HelloAt  *time.Time `json:"helloAt"`
	JoinedAt time.Time  `json:"joinedAt"`
	// CordonedAt is when the node was set aside; null for a node that takes work.
	CordonedAt *time.Time `json:"cordonedAt"`
	// RetiredAt is when the node was deleted; null before.
	RetiredAt *time.Time `json:"retiredAt"`
}

// Condition is something about a node that an operator should know, AcceptanceFailed or DuplicateIdentity for instance.
type Condition struct {
	Type string `json:"type"`
	// Message is for people.
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}

// NodeCertificate is a node's client certificate.
type NodeCertificate struct {
	// Serial is lower-case hex.
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
	// RevokedAt is null for a certificate that was not revoked.
	RevokedAt *time.Time `json:"revokedAt"`
}

// Claims is what a machine says of its hardware. A value that it does not have is left out. All of it is the machine's own
// word: show it escaped.
type Claims struct {
	ProductUUID      string `json:"productUuid,omitempty"`
	ProductSerial    string `json:"productSerial,omitempty"`
	BoardSerial      string `json:"boardSerial,omitempty"`
	ChassisSerial    string `json:"chassisSerial,omitempty"`
	DeviceTreeSerial string `json:"deviceTreeSerial,omitempty"`
	// MACs are the permanent addresses of the physical network cards, aa:bb:cc:dd:ee:ff.
	MACs []string `json:"macs,omitempty"`
	// GPUUUIDs start with GPU-.
	GPUUUIDs    []string `json:"gpuUuids,omitempty"`
	Hostname    string   `json:"hostname,omitempty"`
	Vendor      string   `json:"vendor,omitempty"`
	ProductName string   `json:"productName,omitempty"`
}
