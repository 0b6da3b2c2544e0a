package joinservice_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/signing"
)

const bootMAC = "b4:96:91:a7:00:01"

// siteAgent joins a site agent at a new site of the other tenant, and returns it and the site.
func (w *world) siteAgent() (*member, string) {
	w.t.Helper()
	site := store.NewID(store.PrefixSite, epoch)
	w.write(func(tx *store.Tx) error {
		return tx.InsertSite(store.Site{ID: site, TenantID: w.other, Name: "theirs", Custom: true})
	})
	return w.siteAgentAt(site), site
}

func (w *world) siteAgentAt(site string) *member {
	w.t.Helper()
	m := newMachine(w.t)
	a := w.mustJoin(m, w.issue(tokens.IssueRequest{Role: store.TokenSite, SiteID: site}), role("site"), func(c *call) { c.body.Site = site })
	return &member{nodeID: a.GetNodeId(), key: m.key, leaf: a.GetChain()[0]}
}

// vouchCall is a Vouch in the making.
type vouchCall struct {
	body    *daemonv1.VouchBody
	raw     []byte // instead of body
	peer    []byte
	signer  *ecdsa.PrivateKey
	purpose signing.Purpose
	after   func(*daemonv1.Vouch)
}

func (w *world) vouch(m *member, site string, change ...func(*vouchCall)) *joinv1.VouchRequest {
	w.t.Helper()
	c := &vouchCall{
		body: &daemonv1.VouchBody{
			NodeId: m.nodeID, Site: site, Mac: bootMAC, BootLeaseEpoch: 7, IssuedAtUnixMs: w.now().UnixMilli(),
		},
		peer: m.leaf, signer: m.key, purpose: signing.SiteVouch,
	}
	for _, f := range change {
		f(c)
	}
	raw := c.raw
	if raw == nil {
		var err error
		if raw, err = proto.Marshal(c.body); err != nil {
			w.t.Fatal(err)
		}
	}
	sig, err := signing.Sign(c.signer, c.purpose, raw)
	if err != nil {
		w.t.Fatal(err)
	}
	v := &daemonv1.Vouch{Body: raw, Sig: sig}
	if c.after != nil {
		c.after(v)
	}
	return &joinv1.VouchRequest{Peer: &joinv1.Peer{Certificate: c.peer}, Vouch: v}
}

func lease(n uint64) func(*vouchCall) { return func(c *vouchCall) { c.body.BootLeaseEpoch = n } }

// vouches sends a vouch and reports whether it was recorded.
func (w *world) vouches(req *joinv1.VouchRequest) bool {
	w.t.Helper()
	ack, err := w.svc.Vouch(context.Background(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	if digest := sha256.Sum256(req.GetVouch().GetBody()); !bytes.Equal(ack.GetVouchSha256(), digest[:]) {
		w.t.Error("the answer is to another vouch")
	}
	return ack.GetRecorded()
}

func (w *world) vouchFor(site, mac string) (store.Vouch, bool) {
	w.t.Helper()
	found := true
	v := query(w, func(tx *store.Tx) (store.Vouch, error) {
		v, err := tx.Vouch(site, mac)
		if errors.Is(err, store.ErrNotFound) {
			found, err = false, nil
		}
		return v, err
	})
	return v, found
}

func TestAVouchIsRecorded(t *testing.T) {
	w := newWorld(t)
	m, site := w.siteAgent()
	if !w.vouches(w.vouch(m, site)) {
		t.Fatal("a good vouch is refused")
	}
	v, _ := w.vouchFor(site, bootMAC)
	if want := (store.Vouch{SiteID: site, MAC: bootMAC, BootLeaseEpoch: 7, NodeID: m.nodeID, VouchedAt: epoch}); v != want {
		t.Errorf("%+v, want %+v", v, want)
	}
	// A renewed certificate's key vouches too, for a later boot.
	next := w.mustRenew(m)
	if !w.vouches(w.vouch(next, site, lease(math.MaxInt64))) {
		t.Fatal("a renewed agent is refused")
	}
	if v, _ := w.vouchFor(site, bootMAC); v.BootLeaseEpoch != math.MaxInt64 {
		t.Errorf("%+v", v)
	}
	if got := eventsOf[events.VouchRefused](w, w.other); len(got) != 0 {
		t.Errorf("events %+v", got)
	}
}

// The same vouch again writes nothing for a minute, and then says again that it holds.
func TestTheSameVouchAgainWritesNothing(t *testing.T) {
	w := newWorld(t)
	m, site := w.siteAgent()
	w.vouches(w.vouch(m, site))
	var steps []string
	w.step = func(s string) error { steps = append(steps, s); return nil }
	for range 3 {
		w.clock.add(19 * time.Second)
		if !w.vouches(w.vouch(m, site)) {
			t.Error("refused")
		}
	}
	if len(steps) != 0 {
		t.Errorf("steps %q within a minute", steps)
	}
	w.clock.add(3 * time.Second)
	w.vouches(w.vouch(m, site))
	if v, _ := w.vouchFor(site, bootMAC); !v.VouchedAt.Equal(epoch.Add(time.Minute)) {
		t.Errorf("vouched at %s, want it refreshed", v.VouchedAt)
	}
	steps = nil
	w.vouches(w.vouch(w.siteAgentAt(site), site)) // another agent is another vouch
	if !slices.Contains(steps, "record the vouch") {
		t.Errorf("steps %q", steps)
	}
}

// A pending request of the very boot that is vouched for says who vouches; no other does.
// Req: AP-042
func TestAVouchReachesItsPendingRequest(t *testing.T) {
	w := newWorld(t)
	m, site := w.siteAgent()
	requests := map[string]store.JoinRequest{}
	for name, change := range map[string]func(*store.JoinRequest){
		"this boot":      func(*store.JoinRequest) {},
		"another boot":   func(r *store.JoinRequest) { r.ClaimedEpoch = 6 },
		"another NIC":    func(r *store.JoinRequest) { r.MAC = "b4:96:91:a7:00:02" },
		"another site":   func(r *store.JoinRequest) { r.SiteID, r.TenantID = w.site, w.root },
		"no boot":        func(r *store.JoinRequest) { r.ClaimedEpoch = 0 },
		"vouched before": func(r *store.JoinRequest) { r.VouchedBy = "node_before" },
	} {
		r := store.JoinRequest{
			TenantID: w.other, SiteID: site, Attestor: "discovery", Role: "ramdisk", MachineKey: name, MAC: bootMAC,
			ClaimedEpoch: 7, CSRSHA256: sha256.Sum256([]byte(name)), ExpiresAt: epoch.Add(time.Hour),
		}
		change(&r)
		w.write(func(tx *store.Tx) error {
			r.ID = tx.NewID(store.PrefixJoinRequest)
			return tx.InsertJoinRequest(r)
		})
		requests[name] = r
	}
	if !w.vouches(w.vouch(m, site)) {
		t.Fatal("refused")
	}
	for name, r := range requests {
		want := map[string]string{"this boot": m.nodeID, "vouched before": "node_before"}[name]
		got := query(w, func(tx *store.Tx) (store.JoinRequest, error) { return tx.JoinRequest(r.ID) })
		if got.VouchedBy != want || (got.BootLeaseEpoch == 7) != (want != "") {
			t.Errorf("%s: vouched by %q for %d, want %q", name, got.VouchedBy, got.BootLeaseEpoch, want)
		}
	}
}

// Whatever is wrong, the agent hears that nothing was recorded, on the grid of refusals, and its tenant why: once its own
// key signed.
func TestVouchRefused(t *testing.T) {
	for name, c := range map[string]struct {
		reason string // of the event; empty is none
		change func(w *world, c *vouchCall)
	}{
		"no certificate": {"", func(_ *world, c *vouchCall) { c.peer = nil }},
		"another's":      {"", func(w *world, c *vouchCall) { c.peer = w.member().leaf }},
		"not ours": {"", func(_ *world, c *vouchCall) {
			c.peer = slices.Concat(c.peer[:len(c.peer)-1], []byte{c.peer[len(c.peer)-1] ^ 1})
		}},
		"another key":         {"", func(w *world, c *vouchCall) { c.signer = newKey(w.t) }},
		"another purpose":     {"", func(_ *world, c *vouchCall) { c.purpose = signing.CommandResult }},
		"altered":             {"", func(_ *world, c *vouchCall) { c.after = func(v *daemonv1.Vouch) { v.Body[len(v.Body)-1] ^= 1 } }},
		"unsigned":            {"", func(_ *world, c *vouchCall) { c.after = func(v *daemonv1.Vouch) { v.Sig = nil } }},
		"large":               {"", func(_ *world, c *vouchCall) { c.raw = make([]byte, 1025) }},
		"no body":             {"identity-mismatch", func(_ *world, c *vouchCall) { c.raw = []byte{} }},
		"no message":          {"body", func(_ *world, c *vouchCall) { c.raw = []byte("\xff\xff") }},
		"another node":        {"identity-mismatch", func(_ *world, c *vouchCall) { c.body.NodeId = "node_x" }},
		"another site":        {"site", func(w *world, c *vouchCall) { c.body.Site = w.site }},
		"no MAC":              {"mac", func(_ *world, c *vouchCall) { c.body.Mac = "" }},
		"a MAC in upper case": {"mac", func(_ *world, c *vouchCall) { c.body.Mac = strings.ToUpper(bootMAC) }},
		"broadcast":           {"mac", func(_ *world, c *vouchCall) { c.body.Mac = "ff:ff:ff:ff:ff:ff" }},
		"no epoch":            {"epoch", func(_ *world, c *vouchCall) { c.body.BootLeaseEpoch = 0 }},
		"an epoch too large":  {"epoch", func(_ *world, c *vouchCall) { c.body.BootLeaseEpoch = 1 << 63 }},
		"old":                 {"issued-at", func(_ *world, c *vouchCall) { c.body.IssuedAtUnixMs -= 60_001 }},
		"from the future":     {"issued-at", func(_ *world, c *vouchCall) { c.body.IssuedAtUnixMs += 60_001 }},
		"no time":             {"issued-at", func(_ *world, c *vouchCall) { c.body.IssuedAtUnixMs = math.MinInt64 }},
		"an older boot":       {"older-epoch", func(_ *world, c *vouchCall) { c.body.BootLeaseEpoch = 2 }},
		"revoked": {"revoked", func(w *world, c *vouchCall) {
			w.write(func(tx *store.Tx) error { _, err := tx.RevokeCerts(c.body.NodeId, 1, "operator"); return err })
		}},
		"retired": {"retired", func(w *world, c *vouchCall) {
			w.write(func(tx *store.Tx) error { return tx.SetNodeState(c.body.NodeId, store.NodeRetired) })
		}},
		"a certificate's end": {"expired", func(w *world, c *vouchCall) { w.clock.add(24 * time.Hour); c.body.IssuedAtUnixMs = w.now().UnixMilli() }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m, site := w.siteAgent()
			if !w.vouches(w.vouch(m, site, lease(3))) {
				t.Fatal("a good vouch is refused")
			}
			before, _ := w.vouchFor(site, bootMAC)
			req := w.vouch(m, site, func(v *vouchCall) { c.change(w, v) })
			w.slept = nil
			if w.vouches(req) {
				t.Error("recorded")
			}
			if want := []time.Duration{250 * time.Millisecond}; !slices.Equal(w.slept, want) {
				t.Errorf("answered after %v, want %v", w.slept, want)
			}
			// A retired agent's is gone, as it should be.
			if after, found := w.vouchFor(site, bootMAC); after != before && (found || name != "retired") {
				t.Errorf("the vouch is now %+v", after)
			}
			got := eventsOf[events.VouchRefused](w, w.other)
			if c.reason == "" {
				if got = append(got, eventsOf[events.VouchRefused](w, w.root)...); len(got) != 0 {
					t.Errorf("events %+v, want none", got)
				}
				return
			}
			digest := sha256.Sum256(req.GetVouch().GetBody())
			want := events.VouchRefused{
				Reason: c.reason, NodeID: m.nodeID, Serial: leafSerial(t, m), VouchSHA256: hex.EncodeToString(digest[:]),
			}
			if len(got) != 1 || got[0] != want {
				t.Errorf("events %+v, want %+v", got, want)
			}
		})
	}
}

// A node's certificate vouches for nothing, whatever it signs.
func TestANodeDoesNotVouch(t *testing.T) {
	w := newWorld(t)
	if w.vouches(w.vouch(w.member(), w.site)) {
		t.Error("recorded")
	}
	if got := eventsOf[events.VouchRefused](w, w.root); len(got) != 1 || got[0].Reason != "role" {
		t.Errorf("events %+v", got)
	}
}

// A gateway that keeps a vouch and plays it again changes nothing: not by the same words, not by those of an older boot,
// and not once they are a minute old.
func TestAReplayedVouchChangesNothing(t *testing.T) {
	w := newWorld(t)
	m, site := w.siteAgent()
	old, later := w.vouch(m, site, lease(3)), w.vouch(m, site, lease(4))
	for _, req := range []*joinv1.VouchRequest{old, later, later} {
		if !w.vouches(req) {
			t.Fatal("refused")
		}
	}
	want, _ := w.vouchFor(site, bootMAC)
	if w.vouches(old) {
		t.Error("the older boot's vouch is recorded")
	}
	w.clock.add(61 * time.Second)
	if w.vouches(later) {
		t.Error("a vouch of a minute ago is recorded")
	}
	if got, _ := w.vouchFor(site, bootMAC); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestRefusedVouchesAreLimited(t *testing.T) {
	w := newWorld(t)
	m, site := w.siteAgent()
	for range events.RefusalsPerWindow + 5 {
		w.vouches(w.vouch(m, site, lease(0)))
	}
	if got := eventsOf[events.VouchRefused](w, w.other); len(got) != events.RefusalsPerWindow {
		t.Errorf("%d events, want %d", len(got), events.RefusalsPerWindow)
	}
}

// A failure of ours is no refusal: the agent tries again.
func TestAVouchThatCannotBeWritten(t *testing.T) {
	w := newWorld(t)
	m, site := w.siteAgent()
	w.step = func(string) error { return errors.New("disk full") }
	if ack, err := w.svc.Vouch(t.Context(), w.vouch(m, site)); err == nil || ack != nil {
		t.Errorf("answer %v, %v", ack, err)
	}
	w.step = nil
	if !w.vouches(w.vouch(m, site)) {
		t.Error("refused")
	}
}

func TestVouchWithoutKeys(t *testing.T) {
	w := newWorld(t, func(o *joinservice.Options) { o.Keys = nil })
	_, err := w.svc.Vouch(t.Context(), &joinv1.VouchRequest{})
	if err == nil || !strings.Contains(err.Error(), "JoinService has no keys") {
		t.Errorf("error %v", err)
	}
}

func TestConcurrentVouchesEndWithTheLatest(t *testing.T) {
	w := newWorld(t)
	m, site := w.siteAgent()
	var all sync.WaitGroup
	for i := range 40 {
		req := w.vouch(m, site, lease(uint64(1+i)), func(c *vouchCall) { c.body.Mac = fmt.Sprintf("b4:96:91:a7:00:%02x", i%2) })
		all.Go(func() { _, _ = w.svc.Vouch(context.Background(), req) })
	}
	all.Wait()
	for i, want := range []int64{39, 40} {
		if v, _ := w.vouchFor(site, fmt.Sprintf("b4:96:91:a7:00:%02x", i)); v.BootLeaseEpoch != want {
			t.Errorf("lease %d of machine %d, want %d", v.BootLeaseEpoch, i, want)
		}
	}
}

func leafSerial(t *testing.T, m *member) string {
	t.Helper()
	return leafOf(t, &daemonv1.Admission{Chain: [][]byte{m.leaf}}).SerialNumber.Text(16)
}

// The vector for another implementation: a body of these fields, and a signature of it.
func TestVouchVector(t *testing.T) {
	b, err := os.ReadFile("../../testdata/vectors/signing.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Signatures []struct {
			Purpose signing.Purpose `json:"purpose"`
			Payload string          `json:"payload_hex"`
		} `json:"signatures"`
		Vouch []struct {
			NodeID  string `json:"node_id"`
			Site    string `json:"site"`
			MAC     string `json:"mac"`
			Epoch   uint64 `json:"boot_lease_epoch"`
			Issued  int64  `json:"issued_at_unix_ms"`
			Payload string `json:"payload_hex"`
		} `json:"vouch"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vouch) != 1 {
		t.Fatalf("%d vouches", len(v.Vouch))
	}
	want := v.Vouch[0]
	raw, err := hex.DecodeString(want.Payload)
	if err != nil {
		t.Fatal(err)
	}
	var got daemonv1.VouchBody
	if err := proto.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&got, &daemonv1.VouchBody{
		NodeId: want.NodeID, Site: want.Site, Mac: want.MAC, BootLeaseEpoch: want.Epoch, IssuedAtUnixMs: want.Issued,
	}) {
		t.Errorf("the payload says %v, want %+v", &got, want)
	}
	for _, s := range v.Signatures {
		if s.Purpose == signing.SiteVouch && s.Payload != want.Payload {
			t.Error("the signature is of another payload")
		}
	}
}

// FuzzVouch: whatever a caller sends, only what the site agent signed is recorded.
func FuzzVouch(f *testing.F) {
	w := newWorld(f)
	m, site := w.siteAgent()
	good := w.vouch(m, site).GetVouch()
	f.Add(good.GetBody(), good.GetSig(), m.leaf)
	f.Add([]byte{}, []byte{}, []byte{})
	f.Add(good.GetBody()[:20], good.GetSig(), m.leaf)
	f.Fuzz(func(t *testing.T, body, sig, peer []byte) {
		ack, err := w.svc.Vouch(t.Context(), &joinv1.VouchRequest{
			Peer: &joinv1.Peer{Certificate: peer}, Vouch: &daemonv1.Vouch{Body: body, Sig: sig},
		})
		if err != nil {
			t.Fatal(err)
		}
		if ack.GetRecorded() && !bytes.Equal(body, good.GetBody()) {
			t.Error("another vouch is recorded")
		}
	})
}
