package joinservice

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/signing"
)

const (
	// maxVouchBody bounds a vouch's body, in bytes. Ours need about a hundred.
	maxVouchBody = 1 << 10
	// vouchWithin is how far the time in a vouch may be from ours. A gateway that keeps a vouch can play it for that long;
	// it says again what the site agent said, and a vouch for a later boot lease is never undone by it.
	vouchWithin = 60 * time.Second
	// vouchFresh is how long the same vouch again writes nothing.
	vouchFresh = time.Minute
)

// vouching is one call of Vouch.
type vouching struct {
	peer   *x509.Certificate // nil where it does not parse
	body   []byte
	digest [sha256.Size]byte
	sig    []byte

	// What the last check found.
	leaf  store.Cert
	node  store.Node
	vouch store.Vouch
}

// Vouch implements [joinv1.JoinServiceServer]. Whatever is wrong with a vouch, the answer is that it is not recorded, and no
// more; a failure of ours is an error, so that the agent tries again.
func (s *Service) Vouch(ctx context.Context, in *joinv1.VouchRequest) (*daemonv1.VouchAck, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	arrived := s.now()
	v := &vouching{body: in.GetVouch().GetBody(), sig: in.GetVouch().GetSig()}
	v.digest = sha256.Sum256(v.body)
	v.peer, _ = x509.ParseCertificate(in.GetPeer().GetCertificate()) // nil is no certificate of ours
	ack := &daemonv1.VouchAck{VouchSha256: v.digest[:], Recorded: true}
	err := s.vouch(ctx, v)
	if err == nil {
		return ack, nil
	}
	refused := errors.New("refused")
	if err = s.answer(ctx, arrived, err, refused, func(r *refusal) { s.tellVouch(ctx, v, r) }); !errors.Is(err, refused) {
		return nil, err
	}
	ack.Recorded = false
	return ack, nil
}

func (s *Service) vouch(ctx context.Context, v *vouching) error {
	if len(v.body) > maxVouchBody {
		return Refuse("size")
	}
	if v.peer == nil {
		return Refuse(reasonUnknown)
	}
	var done bool
	err := s.store.Read(ctx, func(tx *store.Tx) error {
		if err := v.check(tx); err != nil {
			return err
		}
		before, err := tx.Vouch(v.vouch.SiteID, v.vouch.MAC)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		done = before.BootLeaseEpoch == v.vouch.BootLeaseEpoch && before.NodeID == v.vouch.NodeID &&
			tx.Now().Sub(before.VouchedAt).Abs() < vouchFresh
		return err
	})
	if err != nil || done {
		return err
	}
	return s.store.Write(ctx, func(tx *store.Tx) error { return v.record(tx) })
}

// record checks the vouch once more and writes it.
func (v *vouching) record(tx *store.Tx) error {
	if err := v.check(tx); err != nil {
		return err
	}
	err := tx.PutVouch(v.vouch)
	if errors.Is(err, store.ErrOlderEpoch) {
		return v.tell(Refuse("older-epoch"))
	}
	return err
}

// check runs the checks in their order: the certificate, the signature by its key, and then what the signed body says.
func (v *vouching) check(tx *store.Tx) error {
	var err error
	if v.leaf, v.node, err = findLeaf(tx, v.peer); err != nil {
		return err
	}
	if signing.Verify(v.peer.PublicKey, signing.SiteVouch, v.body, v.sig) != nil {
		return Refuse("signature")
	}
	if err := checkLeaf(tx, v.leaf, v.node); err != nil {
		return v.tell(err)
	}
	return v.tell(v.checkBody(tx))
}

// checkBody reads the body of a good agent's vouch.
func (v *vouching) checkBody(tx *store.Tx) error {
	var body daemonv1.VouchBody
	if proto.Unmarshal(v.body, &body) != nil {
		return Refuse("body")
	}
	mac, ok := hwclaims.BootMAC(body.GetMac())
	switch {
	case v.leaf.Role != store.RoleSite:
		return Refuse("role")
	case body.GetNodeId() != v.node.ID:
		return Refuse(reasonIdentity)
	case body.GetSite() != v.node.SiteID:
		return Refuse("site")
	case !ok || mac != body.GetMac():
		return Refuse("mac")
	case body.GetBootLeaseEpoch() < 1 || body.GetBootLeaseEpoch() > math.MaxInt64:
		return Refuse("epoch")
	case tx.Now().Sub(time.UnixMilli(body.GetIssuedAtUnixMs())).Abs() > vouchWithin:
		return Refuse("issued-at")
	}
	v.vouch = store.Vouch{
		SiteID: v.node.SiteID, MAC: mac, NodeID: v.node.ID,
		BootLeaseEpoch: int64(body.GetBootLeaseEpoch()), //nolint:gosec // at most MaxInt64
	}
	return nil
}

// tell marks a refusal as one that the agent's tenant may be told: its own agent's key signed the vouch.
func (v *vouching) tell(err error) error {
	var r *refusal
	if errors.As(err, &r) {
		r.tenant, r.node, r.serial = v.node.TenantID, v.node.ID, v.leaf.Serial
	}
	return err
}

// tellVouch publishes a refused vouch, if its kind is not over its limit. What no agent of ours signed is only logged:
// nobody may write into a tenant's events by a session alone.
func (s *Service) tellVouch(ctx context.Context, v *vouching, r *refusal) {
	if r.tenant == "" {
		s.log.InfoContext(ctx, "refuse vouch", "reason", r.reason)
		return
	}
	k := events.Kind{Tenant: r.tenant, Attestor: "vouch", Reason: r.reason}
	s.publish(ctx, k, func(suppressed int64) events.Payload {
		return events.VouchRefused{
			Reason: r.reason, NodeID: r.node, Serial: r.serial, VouchSHA256: hex.EncodeToString(v.digest[:]), Suppressed: suppressed,
		}
	})
}
