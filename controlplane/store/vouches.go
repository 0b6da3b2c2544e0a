package store

import (
	"errors"
	"fmt"
	"time"
)

// maxVouches is how many machines of one site are vouched for at a time. Beyond it the oldest vouch is forgotten, so that a
// site agent that invents machines fills nobody's disk.
var maxVouches = 1 << 16

// ErrOlderEpoch reports a vouch for a boot lease older than the one that is vouched for.
var ErrOlderEpoch = errors.New("a later boot lease is vouched for")

// Vouch is a site agent's word that a machine booted from the network at its site.
type Vouch struct {
	SiteID string
	// MAC is the address of the NIC that booted: lower case, colons.
	MAC string
	// BootLeaseEpoch counts the NIC's boot leases; at least 1.
	BootLeaseEpoch int64
	// NodeID is the site agent.
	NodeID string
	// VouchedAt is the time of the transaction that recorded it last.
	VouchedAt time.Time
}

// PutVouch records a vouch and puts it into the pending join requests of this very boot lease. One for a later epoch
// replaces the one before, one for the same epoch refreshes it, and one for an older epoch changes nothing: it is
// [ErrOlderEpoch].
func (tx *Tx) PutVouch(v Vouch) error {
	switch before, err := tx.Vouch(v.SiteID, v.MAC); {
	case errors.Is(err, ErrNotFound):
		if err := tx.makeRoom(v.SiteID); err != nil {
			return err
		}
	case err != nil:
		return err
	case v.BootLeaseEpoch < before.BootLeaseEpoch:
		return fmt.Errorf("cannot record the vouch: %w", ErrOlderEpoch)
	}
	if err := tx.insert("record the vouch",
		`INSERT INTO boot_vouches (site_id, mac, boot_lease_epoch, node_id, vouched_at) VALUES (?, ?, ?, ?, ?)
		 ON CONFLICT (site_id, mac) DO UPDATE SET boot_lease_epoch = excluded.boot_lease_epoch,
			node_id = excluded.node_id, vouched_at = excluded.vouched_at`,
		v.SiteID, v.MAC, v.BootLeaseEpoch, v.NodeID, millis(tx.now)); err != nil {
		return err
	}
	return tx.insert("vouch for pending requests",
		`UPDATE join_requests SET vouched_by = ?
		 WHERE site_id = ? AND state = 'pending' AND mac = ? AND boot_lease_epoch = ? AND vouched_by IS NULL`,
		v.NodeID, v.SiteID, v.MAC, v.BootLeaseEpoch)
}

// makeRoom forgets a site's oldest vouch where it has as many as it may have.
func (tx *Tx) makeRoom(siteID string) error {
	n, err := one(tx, scalar[int], `SELECT COUNT(*) FROM boot_vouches WHERE site_id = ?`, siteID)
	if err != nil || n < maxVouches {
		return err
	}
	return tx.insert("forget the oldest vouch",
		`DELETE FROM boot_vouches WHERE site_id = ? AND mac =
		 (SELECT mac FROM boot_vouches WHERE site_id = ? ORDER BY vouched_at, mac LIMIT 1)`, siteID, siteID)
}

// Vouch returns the vouch for a machine's latest boot at a site, or [ErrNotFound]. An agent that was retired vouches for
// nothing: so an operator can end one that gave out numbers that no boot will reach.
func (tx *Tx) Vouch(siteID, mac string) (Vouch, error) {
	return one(tx, func(s scanner) (v Vouch, err error) {
		v.SiteID, v.MAC = siteID, mac
		err = s.Scan(&v.BootLeaseEpoch, &v.NodeID, timeOf{&v.VouchedAt})
		return v, err
	}, `SELECT v.boot_lease_epoch, v.node_id, v.vouched_at FROM boot_vouches v JOIN nodes n ON n.id = v.node_id
		WHERE v.site_id = ? AND v.mac = ? AND n.retired_at IS NULL`, siteID, mac)
}
