package store

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"go.jetify.com/typeid/base32"
)

// Prefix is the type of an id.
type Prefix string

// The prefixes of ids.
const (
	PrefixToken       Prefix = "jt"
	PrefixJoinRequest Prefix = "jreq"
	PrefixNode        Prefix = "node"
	PrefixSite        Prefix = "site"
	PrefixPool        Prefix = "pool"
	PrefixTenant      Prefix = "tn"
	PrefixCommand     Prefix = "cmd"
	PrefixKey         Prefix = "key"
	PrefixEKAllow     Prefix = "ek"
	PrefixAudit       Prefix = "aud"
	PrefixSession     Prefix = "sess"
)

// NewID returns a new TypeID: the prefix, "_", and a UUIDv7 of the time in Crockford's base32, lower case. Ids of one
// type sort by their time, to the millisecond.
func NewID(p Prefix, now time.Time) string { return newID(p, now.UnixMilli(), nil) }

// newID makes an id of a UUIDv7 (RFC 9562 section 5.7). A count, where there is one, stands in its 12 bits after the time.
func newID(p Prefix, ms int64, count *uint16) string {
	var u [16]byte
	_, _ = rand.Read(u[6:]) // never fails: crypto/rand
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(ms)) //nolint:gosec // 48 bits until the year 10889
	copy(u[:6], b[2:])
	if count != nil {
		binary.BigEndian.PutUint16(u[6:], *count)
	}
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return string(p) + "_" + base32.Encode(u)
}

// idClock makes the ids of one writer grow, within a millisecond too and while the clock goes back.
type idClock struct {
	ms    int64
	count uint16
}

func (c *idClock) next(p Prefix, now time.Time) string {
	if ms := now.UnixMilli(); ms > c.ms {
		c.ms, c.count = ms, 0
	} else if c.count++; c.count == 1<<12 {
		c.ms, c.count = c.ms+1, 0
	}
	return newID(p, c.ms, &c.count)
}

// NewID returns a new id of the transaction's time. Ids that one process makes in writes sort in their order.
func (tx *Tx) NewID(p Prefix) string {
	if tx.ids == nil {
		return NewID(p, tx.now)
	}
	return tx.ids.next(p, tx.now)
}

// CheckID reports what is wrong with a text that should be an id of the type.
func CheckID(p Prefix, id string) error {
	suffix, ok := strings.CutPrefix(id, string(p)+"_")
	// 26 digits of 5 bits hold 130: the first digit is at most 7.
	if !ok || len(suffix) != 26 || suffix[0] > '7' || strings.ToLower(suffix) != suffix {
		return fmt.Errorf("%q is not an id that starts with %s_", id, p)
	}
	if _, err := base32.Decode(suffix); err != nil {
		return fmt.Errorf("%q is not an id that starts with %s_", id, p)
	}
	return nil
}
