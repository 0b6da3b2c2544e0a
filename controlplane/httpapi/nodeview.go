package httpapi

import (
	"encoding/hex"
	"errors"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
)

// nodeRow is what the API shows of a node.
type nodeRow struct {
	store.Node
	certificate *store.Cert // the newest; nil is none
}

func (n *nodeRow) readCertificate(tx *store.Tx) error {
	c, err := tx.NewestCert(n.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	n.certificate = &c
	return err
}

func withCertificates(tx *store.Tx, nodes []store.Node) ([]nodeRow, error) {
	rows := make([]nodeRow, len(nodes))
	for i := range nodes {
		rows[i].Node = nodes[i]
		if err := rows[i].readCertificate(tx); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (a *API) nodeOf(n nodeRow) Node {
	view := Node{
		ID:                 n.ID,
		PoolID:             textOrNull(n.PoolID),
		SiteID:             n.SiteID,
		State:              string(n.State),
		Role:               n.Role,
		Trust:              string(n.Trust),
		IdentityGeneration: n.IdentityGeneration,
		HardwareKey:        textOrNull(hex.EncodeToString(n.HardwareKey)),
		HardwareKeyTrusted: n.HardwareKeyTrusted,
		EKSHA256:           hex.EncodeToString(n.EKSHA256),
		Claims:             claimsOf(n.Claims),
		Hostname:           n.Claims.Hostname,
		Conditions:         []Condition{},
		Connected:          a.connected(n.ID),
		JoinedAt:           n.JoinedAt,
		CordonedAt:         timeOrNull(n.CordonedAt),
		RetiredAt:          timeOrNull(n.RetiredAt),
	}
	if n.HelloGeneration == n.IdentityGeneration {
		view.HelloAt = timeOrNull(n.HelloAt)
	}
	for _, c := range n.Conditions {
		view.Conditions = append(view.Conditions, Condition{Type: c.Type, Message: c.Message, Since: c.Since})
	}
	if c := n.certificate; c != nil {
		view.Certificate = &NodeCertificate{Serial: c.Serial, NotAfter: c.NotAfter, RevokedAt: timeOrNull(c.RevokedAt)}
	}
	return view
}

func claimsOf(c hwclaims.Claims) Claims {
	return Claims{
		ProductUUID:      c.ProductUUID,
		ProductSerial:    c.ProductSerial,
		BoardSerial:      c.BoardSerial,
		ChassisSerial:    c.ChassisSerial,
		DeviceTreeSerial: c.DeviceTreeSerial,
		MACs:             c.MACs,
		GPUUUIDs:         c.GPUUUIDs,
		Hostname:         c.Hostname,
		Vendor:           c.Vendor,
		ProductName:      c.ProductName,
	}
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
