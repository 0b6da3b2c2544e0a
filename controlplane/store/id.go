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
	PrefixAudit       Prefix = "aud"
	PrefixSession     Prefix = "sess"
)

// NewID returns a new TypeID: the prefix, "_", and a UUIDv7 of the time in Crockford's base32, lower case. Ids of one
// type sort by their time, to the millisecond.
func NewID(p Prefix, now time.Time) string {
	var u [16]byte
	_, _ = rand.Read(u[6:]) // never fails: crypto/rand
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli())) //nolint:gosec // 48 bits, RFC 9562 section 5.7
	copy(u[:6], ms[2:])
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return string(p) + "_" + base32.Encode(u)
}

// NewID returns a new id of the transaction's time.
func (tx *Tx) NewID(p Prefix) string { return NewID(p, tx.now) }

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
