package controlplane

import (
	"time"

	"github.com/better-compute/bcd/controlplane/joinservice"
)

// make makes the attestors that have a section. None is an empty list, never nil: that would be the default.
func (c AttestorsConfig) make(keys *joinservice.Keys) []joinservice.Attestor {
	made := []joinservice.Attestor{}
	if c.JoinToken != nil {
		made = append(made, joinservice.JoinToken{Keys: keys.Decryption})
	}
	if d := c.Discovery; d != nil {
		made = append(made, joinservice.Discovery{
			Keys: keys.Decryption, Approval: d.Approval, PendingTTL: time.Duration(d.PendingTTLSeconds) * time.Second,
		})
	}
	if c.X509PoP != nil {
		made = append(made, joinservice.X509PoP{})
	}
	return made
}
