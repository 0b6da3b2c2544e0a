package agent

import (
	"context"
	"errors"
	"io/fs"
	"os/user"
	"strconv"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/agent/helper"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

// Under [helper] the node runs as a user without privileges, and asks the helper for what takes some. Root still joins the
// machine, with the TPM itself, and hands the identity over.

// nodeUser returns the ids of the node's user.
func nodeUser(c *config.Config) (uid, gid int, err error) {
	u, err := user.Lookup(c.Helper.User)
	if err == nil {
		uid, err = strconv.Atoi(u.Uid)
	}
	if err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	if err != nil {
		return 0, 0, fault.New(fault.Config, "make the user: useradd --system --no-create-home --shell /usr/sbin/nologin "+c.Helper.User,
			"cannot find the user %q that [helper] names: %w", c.Helper.User, err)
	}
	if uid == 0 {
		return 0, 0, fault.New(fault.Config, "name another user in [helper]", "the user %q that [helper] names is root", c.Helper.User)
	}
	return uid, gid, nil
}

// separated reports whether the node runs as a user of its own.
func (a *Agent) separated() bool { return a.cfg.Helper.User != "" }

// openDir opens the data directory. What root writes there under [helper] is the node's user's.
func (a *Agent) openDir() (*statefile.Dir, error) {
	options := a.state
	if a.separated() && a.euid() == 0 {
		uid, gid, err := nodeUser(a.cfg)
		if err != nil {
			return nil, err
		}
		options = append([]statefile.Option{statefile.WithOwner(uid, gid)}, options...)
	}
	return statefile.Open(a.cfg.DataDir, options...)
}

// given ends a join by giving the node's user, under [helper], what of the identity was written before there was such a user,
// and the directory. Newer files are that user's before they have a name.
func (j *joiner) given(result JoinResult, err error) (JoinResult, error) {
	if err != nil {
		return result, err
	}
	return result, j.dir.Give(identity.KeyFile, identity.IdentityFile)
}

// checkUser refuses to run the daemon as somebody else than the user that [helper] names.
func (a *Agent) checkUser() error {
	if !a.separated() {
		return nil
	}
	uid, _, err := nodeUser(a.cfg)
	if err != nil {
		return err
	}
	if euid := a.euid(); euid != uid {
		return fault.New(fault.Config, "start it as that user: User="+a.cfg.Helper.User+" in the unit of bcd; or remove [helper]",
			"cannot run the node as the user with id %d: [helper] names the user %q, with id %d", euid, a.cfg.Helper.User, uid)
	}
	return nil
}

// RunHelper is the root helper: it holds the TPM for a node that runs as another user, until ctx ends, which is no error.
func (a *Agent) RunHelper(ctx context.Context, notify Notifier) error {
	if euid := a.euid(); euid != 0 {
		return fault.New(fault.NotRoot, "run it as root", "cannot run the helper: this is the user with id %d, not root", euid)
	}
	if !a.separated() {
		return fault.New(fault.Config, `add [helper] and user = "bcd" to the configuration`, "cannot run the helper: the configuration has no [helper]")
	}
	uid, gid, err := nodeUser(a.cfg)
	if err != nil {
		return err
	}
	parts, err := a.cfg.NodeParts()
	if err != nil {
		return err
	}
	store, err := newTPM(a.cfg, a.log)
	if err != nil {
		return err
	}
	o := helper.Options{
		Socket: a.cfg.Helper.Socket, UID: uid, GID: gid, DataDir: a.cfg.DataDir, TPM: store, Hardware: a.hw, Config: string(parts), Log: a.log,
	}
	notify.whileFed(ctx, func() {
		err = helper.Serve(ctx, o, func() {
			a.log.InfoContext(ctx, "serve node", "socket", o.Socket, "user", a.cfg.Helper.User, "uid", uid)
			notify.ready()
			notify.status("holds the TPM for " + a.cfg.Helper.User)
		})
	})
	notify.stopping()
	return err
}

// ConfigFromHelper asks the helper at a socket for the configuration of a node that may read none. Where there is no helper, or
// none for this user, the error is missing, which says why there is no configuration.
func ConfigFromHelper(ctx context.Context, socket string, flags config.Flags, missing error) (*config.Config, error) {
	document, err := helper.NewClient(socket).Config(ctx)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	return config.FromHelper(document, flags)
}
