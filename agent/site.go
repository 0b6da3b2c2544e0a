package agent

import (
	"context"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// RoleSite is the role of a site agent, for [JoinOptions].
const RoleSite = identity.RoleSite

// RunSite is a site agent's daemon: [Agent.Run] for an identity of role site, which takes vouches on the status socket and
// sends them on its session; see [RequestVouch].
func (a *Agent) RunSite(ctx context.Context, notify Notifier) error {
	return a.runDaemon(ctx, newBoard(newVouches()), notify)
}

// runs reports that an identity of the role is not for this daemon.
func (b *board) runs(role string) error {
	site := b.vouches != nil
	switch {
	case site && role != identity.RoleSite:
		return fault.New(fault.Config, `run "bcd node"`, "cannot run a site agent: this machine joined with the role %s", role)
	case !site && role == identity.RoleSite:
		return fault.New(fault.Config, `run "bcd site"`, "cannot run a node: this machine joined with the role %s", role)
	default:
		return nil
	}
}
