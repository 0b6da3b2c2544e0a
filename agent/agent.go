package agent

import (
	"context"
	"crypto"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/agent/helper"
	"github.com/better-compute/bcd/agent/session"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/internal/statefile"
)

// Options say what an [Agent] is made of.
type Options struct {
	// Config is a validated configuration.
	Config *config.Config
	// Version is this program's, as the control plane shows it.
	Version string
	// Now is the machine's clock.
	Now func() time.Time
	// Log hears what changes and what fails.
	Log *slog.Logger
	// NVMLChild is the command that asks NVML for the GPUs; empty asks the driver's files alone.
	NVMLChild []string
	// Profile is a machine profile that stands for the hardware, in a build with the tag fakehw.
	Profile string
	// State are options of the data directory; tests watch its steps.
	State []statefile.Option
	// Sleep waits between the tries of a join, and ends early with the context's cause; nil waits by the wall clock.
	Sleep func(context.Context, time.Duration) error
	// EUID returns the effective user id; nil asks the system. A reset needs 0.
	EUID func() int
}

// Agent is one node's daemon. Its methods Join and Run use the same data directory: one at a time writes it.
type Agent struct {
	cfg     *config.Config
	version string
	log     *slog.Logger
	clock   *clock
	keys    keyring
	asked   *helper.Client // nil where this process has the privileges itself
	hw      hwclaims.Options
	state   []statefile.Option
	sleep   func(context.Context, time.Duration) error
	euid    func() int
}

// New returns an agent. It opens nothing.
func New(o Options) (*Agent, error) {
	if o.EUID == nil {
		o.EUID = os.Geteuid
	}
	var asked *helper.Client
	if o.Config.Helper.User != "" && o.EUID() != 0 {
		asked = helper.NewClient(o.Config.Helper.Socket)
	}
	keys, err := newKeyring(o.Config, o.Log, asked)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		cfg:     o.Config,
		version: o.Version,
		log:     o.Log,
		clock:   newClock(o.Now),
		keys:    keys,
		asked:   asked,
		hw: hwclaims.Options{
			Root:         o.Config.HostRoot,
			Placeholders: o.Config.Placeholders,
			NVMLChild:    o.NVMLChild,
			Profile:      o.Profile,
		},
		state: o.State,
		sleep: o.Sleep,
		euid:  o.EUID,
	}
	if a.sleep == nil {
		a.sleep = a.sleepWall
	}
	return a, nil
}

// gateway returns where the gateway is. id adds the pins that the control plane announced; it may be nil.
func (a *Agent) gateway(id *identity.Identity) session.Gateway {
	pins := a.cfg.ServingCA
	if id != nil {
		pins = pins.With(id.NextPins.ServingCA...)
	}
	return session.Gateway{Address: a.cfg.Gateway.Address, ServerName: a.cfg.Gateway.ServerName, ServingCA: pins, Now: a.clock.Local}
}

// signingPins returns the keys that may sign an answer.
func (a *Agent) signingPins(id *identity.Identity) pin.Set {
	pins := a.cfg.JoinSigning
	if id != nil {
		pins = pins.With(id.NextPins.JoinSigningKey...)
	}
	return pins
}

// open opens the data directory and the identity in it, without the lock.
func (a *Agent) open() (*statefile.Dir, *identity.Store, error) {
	dir, err := a.openDir()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open the data directory: %w", err)
	}
	return dir, identity.New(dir, a.keys), nil
}

// StoppedStatus is the status of a daemon that does not run: the identity on disk, or the join that waits for an operator.
func (a *Agent) StoppedStatus() (Status, error) {
	dir, store, err := a.open()
	if err != nil {
		return Status{}, err
	}
	defer dir.Close()
	id, key, err := store.Load()
	if isNoIdentity(err) {
		if p, _, pendingErr := store.PendingJoin(); pendingErr == nil && p.Waits() {
			return Status{Version: a.version, State: Joining, Join: joinStatus(p)}, nil
		}
	}
	if err != nil {
		return Status{}, err
	}
	s := Status{Version: a.version, Identity: identityStatus(id, key)}
	if a.clock.Local().After(id.Leaf().NotAfter) {
		s.problem(fault.New(fault.AccessDenied, fault.HintJoinAgain, "%s", textExpired(id)))
	}
	return s, nil
}

// stored is the identity on disk and its key.
func (a *Agent) stored() (*identity.Identity, crypto.Signer, error) {
	dir, store, err := a.open()
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	return store.Load()
}

// isNoIdentity reports whether err says that the machine has not joined.
func isNoIdentity(err error) bool { return fault.Is(err, fault.NoIdentity) }
