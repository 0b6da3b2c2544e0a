package agent

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/agent/credential"
	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/seal"
)

// The attestors: how a machine shows that it may join.
const (
	// AttestorJoinToken is a join token. On the wire it is the empty name.
	AttestorJoinToken = "join-token"
	// AttestorTPM is the machine's TPM 2.0, without any token.
	AttestorTPM = "tpm"
	// AttestorDiscovery is a discovery token, and the hardware address that the machine was booted over.
	AttestorDiscovery = "discovery"
	// AttestorX509PoP is the key of the machine's certificate, which may have expired lately. It takes a reset.
	AttestorX509PoP = "x509pop"
)

// Attestors returns the names of all attestors.
func Attestors() []string {
	return []string{AttestorJoinToken, AttestorTPM, AttestorDiscovery, AttestorX509PoP}
}

// attestor shows the control plane that the machine may join.
type attestor interface {
	// tokenID is the public id of the token, empty without one.
	tokenID() string
	// check tells whether the machine suits, before anything is written or sent.
	check(ctx context.Context, claims *daemonv1.HardwareClaims) error
	// prove adds what the attestor asks for to a request that has all else. Each try proves afresh.
	prove(ctx context.Context, t try) error
	// expect adds what the answer must hold because of the attestor.
	expect(want *identity.Expectation)
	// admitted is called once the machine has joined. Its error is worth a warning.
	admitted() error
	// close forgets the secrets.
	close()
}

// try is one try of a join, for the attestor.
type try struct {
	// client is connected to the gateway, without a client certificate.
	client *session.Client
	// key is the key of the request that body carries.
	key crypto.Signer
	// body is the request but for the attestor's part.
	body *daemonv1.JoinRequestBody
	// within bounds one call to the gateway.
	within func(context.Context) (context.Context, context.CancelFunc)
}

// newAttestor makes the attestor that the options name, which were validated.
func (a *Agent) newAttestor(ctx context.Context, o JoinOptions) (attestor, error) {
	switch o.Attestor {
	case AttestorJoinToken:
		token, err := a.newJoinToken(ctx, o)
		if err != nil {
			return nil, err
		}
		return token, nil
	case AttestorTPM:
		return &tpmAttestor{attester: a.keys.Attester(), log: a.log}, nil
	case AttestorDiscovery:
		token, err := a.newJoinToken(ctx, o)
		if err != nil {
			return nil, err
		}
		mac, _ := hwclaims.NormalizeMAC(o.BootMAC)
		return &discovery{joinToken: token, mac: mac, epoch: o.BootLeaseEpoch}, nil
	default:
		return nil, unknownAttestor(o.Attestor)
	}
}

// Validate checks that the options go together. The errors speak of the flags of "bcd join".
func (o *JoinOptions) Validate() error {
	discovered, tokenless := o.Attestor == AttestorDiscovery, o.Attestor == AttestorTPM || o.Attestor == AttestorX509PoP
	_, isMAC := hwclaims.NormalizeMAC(o.BootMAC)
	switch {
	case o.Attestor != "" && !slices.Contains(Attestors(), o.Attestor):
		return unknownAttestor(o.Attestor)
	case o.Patience < 0:
		return fmt.Errorf("--timeout is %s, not more than 0", o.Patience)
	case discovered && o.Role != "" && o.Role != identity.RoleRamdisk:
		return fmt.Errorf("--role is %q, and a machine that joins with --attestor %s is a %s", o.Role, AttestorDiscovery, identity.RoleRamdisk)
	case !discovered && !slices.Contains([]string{"", identity.RoleNode, identity.RoleSite}, o.Role):
		return fmt.Errorf("--role is %.40q, not %s or %s", o.Role, identity.RoleNode, identity.RoleSite)
	case o.NoJoin && !o.Reset:
		return errors.New("--no-join is for --reset")
	case o.NoJoin && o.TokenFile != "":
		return errors.New("--no-join joins nothing, and so takes no --token-file")
	case o.Attestor == AttestorX509PoP && !o.Reset:
		return fmt.Errorf("--attestor %s needs --reset: it joins again with the certificate that the machine has", AttestorX509PoP)
	case o.Attestor == AttestorTPM && o.Role != "" && o.Role != identity.RoleNode:
		return fmt.Errorf("--role is %q, and a machine that joins with --attestor %s is a %s", o.Role, o.Attestor, identity.RoleNode)
	case tokenless && o.TokenFile != "":
		return fmt.Errorf("--token-file is not for --attestor %s, which takes no token", o.Attestor)
	case tokenless && o.Server != "":
		return fmt.Errorf("--server is not for --attestor %s, which seals no token", o.Attestor)
	case tokenless && o.NodeID != "":
		return fmt.Errorf("--node-id is not for --attestor %s: only a token names a node", o.Attestor)
	case discovered && o.BootMAC == "":
		return fmt.Errorf("--attestor %s needs --boot-mac", AttestorDiscovery)
	case !discovered && o.BootMAC != "":
		return fmt.Errorf("--boot-mac is for --attestor %s", AttestorDiscovery)
	case !discovered && o.BootLeaseEpoch != 0:
		return fmt.Errorf("--boot-lease-epoch is for --attestor %s", AttestorDiscovery)
	case o.BootMAC != "" && !isMAC:
		return fmt.Errorf("--boot-mac is %.40q, not a hardware address as aa:bb:cc:dd:ee:ff", o.BootMAC)
	case o.BootLeaseEpoch > math.MaxInt64:
		return errors.New("--boot-lease-epoch is more than 2^63-1")
	}
	return nil
}

func unknownAttestor(name string) error {
	all := Attestors()
	last := len(all) - 1
	return fmt.Errorf("there is no attestor %.40q, only %s and %s", name, strings.Join(all[:last], ", "), all[last])
}

// joinToken is the attestor join-token: a token that is sealed for the request.
type joinToken struct {
	key  seal.Key
	file credential.File
	now  func() time.Time
}

func (a *Agent) newJoinToken(ctx context.Context, o JoinOptions) (*joinToken, error) {
	key, err := a.cfg.JoinKey(ctx, o.Server, config.Fetcher{Proxy: o.Proxy, Now: a.clock.Local})
	if err != nil {
		return nil, err
	}
	file, err := credentialOf(ctx, o)
	if err != nil {
		return nil, err
	}
	return &joinToken{key: key, file: file, now: a.clock.Local}, nil
}

// credentialOf reads the token from where the options say. One from standard input is a file that nobody deletes. Whoever
// waits for an input that never ends can still be told to stop.
func credentialOf(ctx context.Context, o JoinOptions) (credential.File, error) {
	if o.TokenFile != "" {
		return credential.FromFile(o.TokenFile)
	}
	type result struct {
		token bearer.Token
		err   error
	}
	read := make(chan result, 1)
	go func() {
		token, err := credential.FromReader(o.Stdin)
		read <- result{token, err}
	}()
	select {
	case r := <-read:
		return credential.File{Token: r.token}, r.err
	case <-ctx.Done():
		return credential.File{}, context.Cause(ctx)
	}
}

// tokenID implements attestor. What does not look like an id may be something that was pasted in the wrong place: it is
// not written down.
func (t *joinToken) tokenID() string {
	id := t.file.Token.ID()
	if bearer.CheckID(id) != nil {
		return ""
	}
	return id
}

func (t *joinToken) check(context.Context, *daemonv1.HardwareClaims) error { return nil }

func (t *joinToken) prove(_ context.Context, try try) (err error) {
	if try.body.SealedToken, err = seal.Seal(t.key, t.file.Token.Bytes(), try.body.GetCsr(), t.now()); err != nil {
		return fmt.Errorf("cannot seal the token: %w", err)
	}
	return nil
}

func (t *joinToken) expect(*identity.Expectation) {}

func (t *joinToken) admitted() error { return t.file.Delete() }

func (t *joinToken) close() { t.file.Token.Wipe() }

// discovery is the attestor discovery: a token that is bound to the hardware address that the machine was booted over.
type discovery struct {
	*joinToken
	mac   string // as hwclaims spells it
	epoch uint64
}

// check implements attestor. An address that the machine does not have would be refused, and nobody would be told why.
func (d *discovery) check(_ context.Context, claims *daemonv1.HardwareClaims) error {
	if macs := claims.GetMacs(); !slices.Contains(macs, d.mac) {
		hint := "this machine has no permanent hardware address that counts, see: bcd claims"
		if len(macs) > 0 {
			hint = "use the address that the machine was booted over: " + strings.Join(macs, ", ")
		}
		return fault.New(fault.Usage, hint, "cannot join: no network card of this machine has the permanent address %s", d.mac)
	}
	return nil
}

func (d *discovery) prove(ctx context.Context, t try) error {
	t.body.Attestor = AttestorDiscovery
	t.body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_Discovery{
		Discovery: &daemonv1.DiscoveryEvidence{BootMac: d.mac, BootLeaseEpoch: d.epoch},
	}}
	return d.joinToken.prove(ctx, t)
}
