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
	err := a.runDaemon(ctx, newBoard(newVouches()), notify)
	if isNoIdentity(err) {
		// A join that waits has a hint of its own.
		if _, stopped := a.StoppedStatus(); isNoIdentity(stopped) {
			return fault.New(fault.NoIdentity, `run "bcd join --role site" with a site token, or give this command one with --token-file`, "%w", err)
		}
	}
	return err
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
